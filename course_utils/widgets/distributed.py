"""Lesson 07's explorer: bucket size and network against the time of a step, worked out by the model of `scaling`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from course_utils.scaling import MB, Link, Span, backward_seconds, backward_spans, plan_buckets
from course_utils.text import table
from course_utils.widgets.panel import Choice, Slider, View, explore

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A network of 100 MB of float32 gradients, as large as a ResNet-50: late layers hold more than early ones.
LAYERS_MB = (0.2, 0.3, 0.5, 0.5, 1.0, 1.0, 2.0, 2.0, 2.5, 4.0, 4.0, 5.0, 5.0, 6.0, 8.0, 8.0, 12.0, 14.0, 16.0, 8.0)
CAPS_MB = (0.2, 0.5, 1, 2, 5, 10, 25, 50, 100)
LINKS = {
    "10 Gbit/s Ethernet": Link(50e-6, 1.25e9),
    "1 Gbit/s Ethernet": Link(100e-6, 0.125e9),
    "100 Gbit/s InfiniBand": Link(5e-6, 12.5e9),
    "NVLink, 300 GB/s": Link(5e-6, 300e9),
}
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")


def bucket_view(bucket_mb: float, network: Link, n_ranks: int, backward_ms: float, latency_factor: float = 1.0) -> View:
    """Draw one backward pass with its network traffic, and its time for every size of buckets.

    Args:
        bucket_mb: where a bucket is closed, in MB.
        network: the link between the ranks.
        n_ranks: how many ranks.
        backward_ms: time of the backward pass alone.
        latency_factor: multiplies the link's latency.
    """
    link = Link(network.latency_s * latency_factor, network.bytes_per_s)
    sizes = [round(size * MB) for size in LAYERS_MB]
    share = backward_ms / 1000 / len(sizes)
    times = [share] * len(sizes)

    def total_ms(cap_mb: float) -> float:
        return 1000 * backward_seconds(sizes, times, cap_mb * MB, link, n_ranks)

    spans = backward_spans(sizes, times, bucket_mb * MB, link, n_ranks)
    busy = 1000 * sum(span.end_s - span.start_s for span in spans if span.lane == "network")
    total = total_ms(bucket_mb)
    best = min(CAPS_MB, key=total_ms)
    rows = [
        ("gradients", f"{sum(LAYERS_MB):.0f} MB"),
        ("buckets", str(len(plan_buckets(sizes, bucket_mb * MB)))),
        ("backward alone", f"{backward_ms:.1f} ms"),
        ("network busy", f"{busy:.1f} ms"),
        ("until all gradients are there", f"{total:.1f} ms"),
        ("hidden behind backward", f"{max(0.0, backward_ms + busy - total) / busy:.0%}" if busy else "nothing to hide"),
        ("best of the sizes drawn", f"{best:g} MB, {total_ms(best):.1f} ms"),
    ]
    return View(
        _draw(spans, bucket_mb, [total_ms(cap) for cap in CAPS_MB], backward_ms), table(rows, ("what", "value"))
    )


def explore_buckets(measured: Link | None = None) -> None:
    """Show the explorer: bucket size, network, ranks, backward time.

    Args:
        measured: a link of this machine, offered besides the others.
    """
    links = LINKS if measured is None else {**LINKS, "this machine, measured": measured}
    explore(
        bucket_view,
        bucket_mb=Choice("bucket size, MB", CAPS_MB, 25),
        network=Choice("network", links, LINKS["10 Gbit/s Ethernet"]),
        n_ranks=Slider("ranks", 1, 64, 8),
        backward_ms=Slider("backward, ms", 10, 400, 150, 10),
        latency_factor=Choice("latency, times", (0.1, 1.0, 10.0, 100.0), 1.0),
    )


def _draw(spans: list[Span], bucket_mb: float, totals_ms: list[float], backward_ms: float) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.2, 3.0), layout="constrained")
    lanes, curve = figure.subplots(1, 2, width_ratios=(1.4, 1))
    names = ["backward", "network"]
    for number in range(max(span.bucket for span in spans) + 1):
        chosen = [span for span in spans if span.bucket == number]
        lanes.barh(
            [names.index(span.lane) for span in chosen],
            [1000 * (span.end_s - span.start_s) for span in chosen],
            left=[1000 * span.start_s for span in chosen],
            color=COLOURS[number % len(COLOURS)],
            edgecolor="white",
        )
    lanes.set(yticks=range(2), yticklabels=names, xlabel="time (ms)", title="one backward pass, a colour per bucket")
    lanes.invert_yaxis()
    curve.semilogx(CAPS_MB, totals_ms, marker="o", color=COLOURS[0])
    curve.axhline(backward_ms, color="black", linestyle=":", label="backward alone")
    curve.plot(
        [bucket_mb], [totals_ms[CAPS_MB.index(bucket_mb)]], "o", color=COLOURS[5], markersize=9, label="this size"
    )
    curve.set(xlabel="bucket size (MB)", ylabel="time (ms)", title="until all gradients are there")
    curve.set_ylim(bottom=0)
    curve.legend(fontsize=8)
    return figure
