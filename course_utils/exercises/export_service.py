"""Checks of lesson 08 about the service: requests, batches, latencies."""

from __future__ import annotations

import json
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from course_utils.exercises.compare import describe, is_close, is_equal, is_true
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.verdicts import Check

SIDE, MAX_IMAGES, MAX_BYTES = 28, 4, 50_000  # the limits that the exercise names
PATIENCE_S = 1.5  # then an answer that waits for ever is given up


def check_read_request(read_request: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise export.read-request: pixels, or a status and a sentence; never an error."""
    n = inputs.size(2, MAX_IMAGES)
    images = inputs.randint(0, 256, n, SIDE, SIDE).tolist()
    images[0][0][0] = 12.5
    status, answer, problem = _asked(read_request, _body(images))
    yield is_true("takes a good request", problem == "" and status == 200, detail=problem or f"status {status}",
                  hint="return 200, pixels")  # fmt: skip
    pixels = torch.as_tensor(answer) if type(answer) in (np.ndarray, torch.Tensor) else answer
    yield is_true("gives a tensor or an array", type(pixels) is torch.Tensor, detail=f"got {describe(answer)}",
                  hint="np.array(images) or torch.tensor(images)")  # fmt: skip
    yield is_close("with the pixels of the request", pixels.float(), torch.tensor(images),
                   hint="Shape (N, 28, 28). Nothing is scaled or rounded here.")  # fmt: skip
    good = _body(images[1:2])
    full = _body([images[1]] * MAX_IMAGES)
    for what, body in ((f"takes {MAX_IMAGES} images", full), (f"takes {MAX_BYTES:,} bytes", full.ljust(MAX_BYTES))):
        status, _, problem = _asked(read_request, body)
        yield is_true(what, problem == "" and status == 200, detail=problem or f"status {status}",
                      hint="So many are allowed: refuse only more.")  # fmt: skip
    for name, body, kind, wanted, hint in _bad(images[1], good):
        status, answer, problem = _asked(read_request, body, kind)
        if not problem and status == wanted and not (type(answer) is str and " " in answer.strip()):
            problem, hint = f"got {describe(answer)}", "Say in a sentence what to send instead: return status, sentence"
        yield is_true(f"{name}: {wanted}, and says why", not problem and status == wanted,
                      detail=problem or f"status {status}", hint=hint)  # fmt: skip
    status, _, _ = _asked(read_request, good, "application/json; charset=utf-8")
    yield is_true("takes a content type with a charset", status == 200, detail=f"status {status}",
                  hint='content_type.split(";")[0].strip()')  # fmt: skip


def _bad(image: list, good: bytes) -> Iterator[tuple[str, bytes, str, int, str]]:
    json_type = "application/json"

    def pixel(text: str) -> bytes:
        changed = [row[:] for row in image]
        changed[3][4] = "PIXEL"
        return json.dumps({"images": [changed]}).replace('"PIXEL"', text).encode()

    ragged = [*image[:-1], image[-1][:-1]]
    key = 'The message must be a dict with the key "images": look before you use it.'
    grid = f"Each image is a list of {SIDE} rows, and each row a list of {SIDE} numbers. Look at every row."
    number = "type(pixel) in (int, float): true is an int for isinstance, and NumPy takes it for 1."
    finite = "Python's json reads NaN and 1e999 without complaint. math.isfinite, or np.isfinite(...).all()."
    bounds = "0 <= pixel <= 255 for all of them."
    whole = "Compare the whole type, without what follows a `;`: nothing else may stand before or after it."
    yield "text/plain", good, "text/plain", 415, "Look at the content type first."
    yield "application/jsonl", good, "application/jsonl", 415, whole
    yield "text/json", good, "text/json", 415, whole
    yield (
        "a long body of text/plain",
        b" " * (MAX_BYTES + 1),
        "text/plain",
        415,
        "The table has an order: the type first.",
    )
    yield (
        "a long body",
        b" " * (MAX_BYTES + 1),
        json_type,
        413,
        f"len(body) > {MAX_BYTES:,}, before it is read as JSON.",
    )
    yield "broken JSON", good[:-9], json_type, 400, "json.loads raises a ValueError: catch it."
    yield "no text", b"\xff\xfe\xfa", json_type, 400, "UnicodeDecodeError is a ValueError, too: catch that."
    yield "a list", b"[1, 2]", json_type, 422, key
    yield "another key", b'{"image": 1}', json_type, 422, key
    yield "a number of images", b'{"images": 3}', json_type, 422, "images must be a list."
    yield "no images", b'{"images": []}', json_type, 422, "An empty list is no request."
    yield "5 images", _body([image] * 5), json_type, 413, f"More than {MAX_IMAGES} images: 413."
    yield "a number for an image", b'{"images": [3]}', json_type, 422, grid
    yield "a ragged image", _body([ragged]), json_type, 422, grid
    yield "27 rows", _body([image[:-1]]), json_type, 422, grid
    yield "text for a pixel", pixel('"7"'), json_type, 422, number
    yield "null for a pixel", pixel("null"), json_type, 422, number
    yield "true for a pixel", pixel("true"), json_type, 422, number
    yield "NaN", pixel("NaN"), json_type, 422, finite
    yield "1e999", pixel("1e999"), json_type, 422, finite
    yield "256", pixel("256"), json_type, 422, bounds
    yield "-1", pixel("-1"), json_type, 422, bounds
    yield "deep nesting", b"[" * 40_000, json_type, 400, "json.loads raises a RecursionError: catch it as well."


def _body(images: list) -> bytes:
    return json.dumps({"images": images}, separators=(",", ":")).encode()


def _asked(read_request: Callable, body: bytes, kind: str = "application/json") -> tuple[Any, Any, str]:
    try:
        answer = read_request(body, kind)
    except Exception as error:
        return None, None, f"{type(error).__name__}: {str(error)[:80]}"
    if type(answer) not in (tuple, list) or len(answer) != 2:
        return None, None, f"got {describe(answer)}, expected (status, pixels or sentence)"
    return answer[0], answer[1], ""


def check_gather(gather: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise export.gather: the requests of one batch, from a queue."""
    tag = inputs.size(10, 99)
    items = [f"request {tag + i}" for i in range(5)]

    waiting = _queue(items)
    answer, took, ended = _timed(gather, waiting, 3, 0.8)
    yield is_true("a full batch comes back", ended, detail=f"not within {PATIENCE_S:g} s",
                  hint="Stop as soon as the batch is full.")  # fmt: skip
    yield is_equal("takes at most `most`, in the order of arrival", answer, items[:3],
                   hint="A list of the first 3; queue.get() gives the oldest.")  # fmt: skip
    yield is_true("a full batch does not wait", took < 0.6, detail=f"it took {took:.1f} s",
                  hint="Three were there already: nothing to wait for.")  # fmt: skip
    yield is_equal("leaves the rest in the queue", _left(waiting), items[3:], hint="Take no more than you return.")

    waiting = _queue(items[:2])
    answer, took, ended = _timed(gather, waiting, 3, 0.15)
    yield is_true("does not wait for ever for company", ended, detail=f"not within {PATIENCE_S:g} s",
                  hint="waiting.get(timeout=...) raises queue.Empty when the time is up.")  # fmt: skip
    yield is_equal("a batch that is not full is served", answer, items[:2], hint="Return what there is.")
    yield is_true("waits for company at all", took > 0.1, detail=f"it took {1000 * took:.0f} ms, wait_s was 150 ms",
                  hint="After the first request, others have wait_s to join.")  # fmt: skip

    waiting = queue.Queue()
    late = threading.Timer(0.2, waiting.put, [items[0]])
    late.start()
    answer, took, ended = _timed(gather, waiting, 3, 0.05)
    late.join()
    yield is_true("with nobody there, waits for the first", ended and answer == [items[0]],
                  detail=f"got {describe(answer)}", hint="The first get() has no time limit.")  # fmt: skip

    waiting = queue.Queue()
    timers = [threading.Timer(after, waiting.put, [item]) for after, item in ((0.4, items[0]), (0.5, items[1]))]
    for timer in timers:
        timer.start()
    answer, took, ended = _timed(gather, waiting, 2, 0.35)
    for timer in timers:
        timer.join()
    yield is_equal("the wait begins when the first has come", answer, items[:2],
                   hint="The clock runs from the first request on: look at it after the first get().")  # fmt: skip

    waiting = _SlowQueue()
    for item in items[:3]:
        waiting.put(item)
    answer, took, ended = _timed(gather, waiting, 5, 0.02)
    yield is_true(
        "a get() that ends after the time is no error",
        type(answer) is list,
        detail=f"got {describe(answer)}",
        hint="The time can be over already: max(0, end - now).",
    )

    waiting = _queue(items[:1])
    stop = threading.Event()
    drip = threading.Thread(target=_drip, args=(waiting, 0.1, stop), daemon=True)
    drip.start()
    answer, took, ended = _timed(gather, waiting, 50, 0.35)
    stop.set()
    drip.join()
    yield is_true("the wait ends, however many come", ended, detail=f"not within {PATIENCE_S:g} s",
                  hint="Each request started the wait anew. Fix the end once: time.monotonic() + wait_s.")  # fmt: skip
    yield is_true("takes those that come while it waits", type(answer) is list and len(answer) > 1,
                  detail=f"got {describe(answer)}", hint="Ask again until the time is up.")  # fmt: skip
    yield is_true("the wait counts from the first request", took < 1.5, detail=f"it took {took:.1f} s for wait_s=0.35",
                  hint="Fix the end once: time.monotonic() + wait_s.")  # fmt: skip


def _queue(items: list[str]) -> queue.Queue:
    waiting: queue.Queue = queue.Queue()
    for item in items:
        waiting.put(item)
    return waiting


class _SlowQueue(queue.Queue):
    """A queue whose ``get`` comes back 50 ms late, as on a busy machine."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        item = super().get(block, timeout)
        time.sleep(0.05)
        return item


def _left(waiting: queue.Queue) -> list:
    return [waiting.get_nowait() for _ in range(waiting.qsize())]


def _drip(waiting: queue.Queue, every_s: float, stop: threading.Event) -> None:
    while not stop.wait(every_s):
        waiting.put("one more")


def _timed(gather: Callable, waiting: queue.Queue, most: int, wait_s: float) -> tuple[Any, float, bool]:
    """Return the answer, its seconds, and whether it ended; one that doesn't is fed until it does."""
    found: list[Any] = []

    def work() -> None:
        try:
            found.append((gather(waiting, most, wait_s), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=work, daemon=True)
    began = time.monotonic()
    thread.start()
    thread.join(PATIENCE_S)
    took, ended = time.monotonic() - began, not thread.is_alive()
    end = time.monotonic() + 2.0
    while thread.is_alive() and time.monotonic() < end:
        waiting.put("let go")
        time.sleep(0.001)
    if not found:
        return None, took, False
    answer, error = found[0]
    if isinstance(error, queue.Empty):
        raise queue.Empty("it came out of the function") from error  # its own message is blank
    if error is not None:
        raise error
    return answer, took, ended


def check_best_batch(best_batch: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise export.best-batch: the batch size with the most images per second that keeps a promise."""
    shift = inputs.size(0, 4) / 10
    latency = {1: 1.0 + shift, 4: 2.0 + shift, 16: 4.0 + shift, 64: 20.0 + shift, 256: 70.0 + shift}
    rate = {n: 1000 * n / ms for n, ms in latency.items()}
    answer = best_batch(dict(latency), 60.0)
    yield is_true("returns two things", type(answer) in (tuple, list) and len(answer) == 2,
                  detail=f"got {describe(answer)}", hint="return batch, images_per_second")  # fmt: skip
    batch, per_second = answer
    swapped = type(batch) is float and type(per_second) is int
    yield is_equal("chooses the batch", batch, 16, mistakes=[
        (64, "The largest is not the quickest: compare images per second."),
        (256, "Twice its time must fit into the limit."),
        (1, "The lowest latency is not the highest throughput."),
    ], hint="The batch size comes first, then the images per second." if swapped else
                   "Among those with 2 * latency <= limit, the one with the most images per second.")  # fmt: skip
    yield is_close("says how many images per second", per_second, rate[16], rtol=1e-3, mistakes=[
        (rate[16] / 1000, "That is per millisecond: 1000 * batch / latency."),
        (1000 / latency[16], "That is batches per second: each has 16 images."),
        (rate[16] / 2, "Under load, batches follow each other without a gap: 1000 * batch / latency."),
    ], hint="1000 * batch / latency in ms")  # fmt: skip
    tight = 2 * latency[4] + 0.2
    answer = best_batch(dict(latency), tight)
    yield is_equal(
        "a request may have to wait for the batch before its own",
        answer[0] if type(answer) in (tuple, list) else answer,
        4,
        mistakes=[(16, "Twice its time must fit: once for the batch before, once for its own.")],
        hint="Twice its time must fit into the limit.",
    )
    exact = best_batch(dict(latency), 2 * latency[1])
    yield is_equal("a limit that is just kept is kept", exact[0] if type(exact) in (tuple, list) else exact, 1,
                   hint="<=, not <.")  # fmt: skip
    yield is_true("None if no batch keeps it", best_batch(dict(latency), 0.5) is None,
                  hint="Then there is no answer: return None.")  # fmt: skip


def check_percentiles(report: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise export.percentiles: latencies that half, 95 % and 99 % of all requests kept to."""
    n = inputs.choice([100, 200, 300])
    times = [float(v) for v in (1 + inputs.rand(n) * 50).tolist()]
    ordered = sorted(times)

    def rank(values: list[float], percent: int) -> float:
        return values[math.ceil(percent * len(values) / 100) - 1]

    want = tuple(rank(ordered, p) for p in (50, 95, 99))
    answer = report(list(times))
    yield is_true("returns three numbers", type(answer) in (tuple, list) and len(answer) == 3
                  and all(type(v) in (int, float, np.float64, np.float32) for v in answer),
                  detail=f"got {describe(answer)}", hint="return p50, p95, p99")  # fmt: skip
    yield _three("nearest rank", answer, want, mistakes=[
        (torch.tensor([rank(times, p) for p in (50, 95, 99)]), "Sort first."),
        (torch.tensor([ordered[min(n - 1, p * n // 100)] for p in (50, 95, 99)]),
         "One place too far: the first 95 % of 100 end at index 94."),
        (torch.tensor(np.percentile(ordered, [50, 95, 99])).float(),
         "That interpolates between two requests. Take one that was measured: ceil(p * n / 100) - 1."),
        (torch.tensor(want).flip(0), "The order is p50, p95, p99."),
        (torch.tensor([rank(ordered[::-1], p) for p in (50, 95, 99)]), "Sort upwards: the slowest come last."),
    ], hint="ordered[ceil(p * n / 100) - 1]")  # fmt: skip
    few = ordered[:11]
    yield _three("nearest rank, of 11", report(list(few)), tuple(rank(few, p) for p in (50, 95, 99)), mistakes=[
        (torch.tensor([few[5], few[9], few[10]]), "Round up, with math.ceil: round(10.45) is 10, and the place is 11."),
    ], hint="The place is rounded up: math.ceil(p * n / 100).")  # fmt: skip
    failed = [*times, *[None] * (n // 10)]
    order = inputs.permutation(len(failed))
    mixed = [failed[i] for i in order]
    all_ = [*ordered, *[math.inf] * (n // 10)]
    yield _three(
        "requests without an answer count as endless",
        report(list(mixed)),
        tuple(rank(all_, p) for p in (50, 95, 99)),
        mistakes=[
            (torch.tensor(want), "The failed ones were left out. Then a service looks best that drops the slow ones.")
        ],
        hint="None becomes math.inf before sorting.",
    )
    one = report([7.0])
    yield is_true("one request is enough", list(one) == [7.0] * 3, detail=f"got {describe(one)}",
                  hint="ceil(50 * 1 / 100) - 1 is 0.")  # fmt: skip


def _three(what: str, answer: Any, want: tuple[float, ...], *, mistakes: list, hint: str) -> Check:
    """Compare three numbers, and say which came."""
    got = [float(v) for v in answer]
    check = is_close(what, torch.tensor(got), torch.tensor(want), rtol=1e-5, mistakes=mistakes, hint=hint)
    words = ", ".join(f"{v:.4g}" for v in got)
    return Check(what, check.passed, "" if check.passed else f"got {words}", check.hint)
