"""Lesson 04's explorer: a timeline of loading and computing, worked out from four numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from course_utils.pipeline import Span, timeline, total_ms
from course_utils.text import table
from course_utils.widgets.panel import Slider, View, explore

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N_BATCHES = 8
COLOURS = {"load": "#E69F00", "compute": "#0072B2"}  # Okabe and Ito: told apart without colour vision too


def timeline_view(workers: int, batch_size: int, item_ms: float, compute_ms: float, prefetch: int = 2) -> View:
    """Draw who works when, for eight batches.

    Args:
        workers: 0 to load in the main process.
        batch_size: items per batch.
        item_ms: cost of one item.
        compute_ms: cost of one step.
        prefetch: batches ahead for each worker.
    """
    spans = timeline(workers, batch_size, item_ms, compute_ms, N_BATCHES, prefetch)
    total, alone = total_ms(spans), total_ms(timeline(0, batch_size, item_ms, compute_ms, N_BATCHES))
    busy = N_BATCHES * compute_ms
    rows = [
        ("loading one batch", f"{batch_size * item_ms:.0f} ms"),
        ("computing one batch", f"{compute_ms:.0f} ms"),
        (f"{N_BATCHES} steps take", f"{total:.0f} ms"),
        ("without workers", f"{alone:.0f} ms"),
        ("computing, share of the time", f"{busy / total:.0%}"),
        ("main process waits", f"{total - busy:.0f} ms"),
    ]
    return View(_draw(spans, workers), table(rows, ("what", "value")))


def explore_timeline() -> None:
    """Show the explorer: workers, batch size, cost per item, cost per step, prefetching."""
    explore(
        timeline_view,
        workers=Slider("workers", 0, 6, 2),
        batch_size=Slider("batch size", 8, 64, 32, 8),
        item_ms=Slider("one item, ms", 0.1, 3.0, 1.0, 0.1),
        compute_ms=Slider("one step, ms", 2, 60, 20, 2),
        prefetch=Slider("prefetch_factor", 1, 4, 2),
    )


def _draw(spans: list[Span], workers: int) -> Figure:
    lanes = ["main", *(f"worker {i}" for i in range(workers))]
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 0.9 + 0.42 * len(lanes)), layout="constrained")
    axes = figure.add_subplot()
    for kind in COLOURS:
        chosen = [span for span in spans if span.kind == kind]
        axes.barh(
            [lanes.index(span.lane) for span in chosen],
            [span.end_ms - span.start_ms for span in chosen],
            left=[span.start_ms for span in chosen],
            color=COLOURS[kind],
            edgecolor="white",
            label=kind,
        )
    for span in spans:
        middle = (span.start_ms + span.end_ms) / 2
        axes.text(middle, lanes.index(span.lane), str(span.batch), ha="center", va="center", color="white", fontsize=8)
    axes.set(yticks=range(len(lanes)), yticklabels=lanes, xlabel="time (ms)", title="who works on which batch")
    axes.invert_yaxis()
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure
