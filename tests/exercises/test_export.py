"""Lesson 08: right answers in several forms pass, wrong ones are stopped by the message that helps."""

from __future__ import annotations

import copy
import json
import math
import queue
import time

import numpy as np
import torch
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from torch import nn
from torch.export import Dim, export

from course_utils.export import quantize_rows
from course_utils.training import evaluating
from tests.exercises.harness import exercise_tests

RIGHT: dict = {}
WRONG: dict = {}

# --- self-contained ---------------------------------------------------------------------------------------------------


def _reader(forward, keep=True, **extra):
    class Reader(nn.Module):
        def __init__(self, model, mean, std):
            super().__init__()
            if keep:
                self.model = model
            else:
                self.hidden = [model]
            self.mean, self.std = mean, std

        def forward(self, pixels):
            return forward(self, pixels)

    for name, value in extra.items():
        setattr(Reader, name, value)
    return Reader


class _WithBuffers(nn.Module):
    def __init__(self, model, mean, std):
        super().__init__()
        self.body = model
        self.register_buffer("shift", torch.tensor(mean))
        self.register_buffer("scale", torch.tensor(std))

    def forward(self, x):
        return self.body((x / 255.0 - self.shift) / self.scale)


def _as_sequential(model, mean, std):
    first = _reader(lambda self, x: (x.to(torch.float32) / 255 - self.mean) / self.std, keep=True)
    return nn.Sequential(first(nn.Identity(), mean, std), model)


def _in_place(self, x):
    x = x.float()
    return self.model(x.div_(255).sub_(self.mean).div_(self.std))


RIGHT["export.self-contained"] = {
    "buffers": _WithBuffers,
    "sequential": _as_sequential,
    "one line": _reader(lambda self, x: self.model(x.double().sub(255 * self.mean).div(255 * self.std).float())),
}
WRONG["export.self-contained"] = {
    "forgets 255": (_reader(lambda s, x: s.model((x.float() - s.mean) / s.std)), "divide by 255"),
    "forgets mean and std": (_reader(lambda s, x: s.model(x / 255)), "mean and std are not used"),
    "largest of the batch": (
        _reader(lambda s, x: s.model((x / x.max() - s.mean) / s.std)),
        "not by the largest pixel",
    ),
    "its own statistics": (
        _reader(lambda s, x: s.model((x / 255 - (x / 255).mean()) / (x / 255).std())),
        "not those of this batch",
    ),
    "softmax": (_reader(lambda s, x: s.model((x / 255 - s.mean) / s.std).softmax(1)), "the logits as they are"),
    "hides the model": (
        _reader(lambda s, x: s.hidden[0]((x / 255 - s.mean) / s.std), keep=False),
        "Assign it: self.model",
    ),
    "in place": (_reader(_in_place), "No in-place"),
    "brackets": (_reader(lambda s, x: s.model(x / 255 - s.mean / s.std)), "Brackets"),
    "numpy": (
        _reader(lambda s, x: s.model((torch.from_numpy(x.numpy()).float() / 255 - s.mean) / s.std)),
        "Tensor operations only",
    ),
    "eval() in forward": (
        _reader(lambda s, x: s.model.eval()((x / 255 - s.mean) / s.std)),
        "no eval() in forward",
    ),
    "no super": (
        type("Bad", (nn.Module,), {"__init__": lambda s, m, a, b: setattr(s, "model", m)}),
        "super().__init__()",
    ),
}

# --- unready ----------------------------------------------------------------------------------------------------------

RIGHT["export.unready"] = {
    "filter": lambda m: [name for name, _ in filter(lambda pair: pair[1].training, m.named_modules())],
    "tuple, backwards": lambda m: tuple(name for name, x in reversed(list(m.named_modules())) if x.training),
}
WRONG["export.unready"] = {
    "root only": (lambda m: [name for name, _ in m.named_modules()] if m.training else [], "the root alone"),
    "one level": (lambda m: [n for n, x in m.named_children() if x.training], "the root alone"),
    "the modules": (lambda m: [x for x in m.modules() if x.training], "not the modules"),
    "leaves out the root": (lambda m: [n for n, x in m.named_modules() if x.training and n], "The root counts"),
    "those that are ready": (lambda m: [n for n, x in m.named_modules() if not x.training], "module.training is False"),
    "a set": (lambda m: {n for n, x in m.named_modules() if x.training}, "Return a list"),
    "switches": (
        lambda m: [n for n, x in m.named_modules() if x.training and (x.train(False), True)[1]],
        "Only look",
    ),
}

# --- program ----------------------------------------------------------------------------------------------------------


def _exported(model, example, shapes):
    return export(model, (example,), dynamic_shapes=shapes)


def _by_hand(model, example, most):
    modes = {m: m.training for m in model.modules()}
    model.eval()
    program = _exported(model, example.repeat(3, 1, 1, 1), ({0: Dim("n", max=most)},))
    for m, mode in modes.items():
        m.training = mode
    return program


def _copied(model, example, most):
    twin = copy.deepcopy(model).eval()
    return _exported(twin, torch.cat([example] * 2), [{0: Dim("b", min=1, max=most)}])


def _program(mode=evaluating, repeat=2, minimum=1, maximum=True, dynamic=True):
    def answer(model, example, most):
        bounds = {"max": most} if maximum else {}
        with mode(model):
            shapes = ({0: Dim("batch", min=minimum, **bounds)},) if dynamic else None
            return _exported(model, torch.cat([example] * repeat), shapes)

    return answer


class _no_mode:
    def __init__(self, model):
        pass

    def __enter__(self):
        pass

    def __exit__(self, *error):
        pass


class _eval_for_good(_no_mode):
    def __init__(self, model):
        model.eval()


class _train_again(_no_mode):
    def __init__(self, model):
        self.model = model.eval()

    def __exit__(self, *error):
        self.model.train()


def _joined(join):
    def answer(model, example, most):
        with evaluating(model):
            return _exported(model, join(example), ({0: Dim("batch", min=1, max=most)},))

    return answer


def _loose(args, shapes):
    def answer(model, example, most):
        two, batch = torch.cat([example, example]), {0: Dim("batch", min=1, max=most)}
        with evaluating(model):
            return export(model, args(two), dynamic_shapes=shapes(batch))

    return answer


RIGHT["export.program"] = {
    "by hand": _by_hand,
    "a copy": _copied,
    "zeros": _joined(lambda x: x.new_zeros(2, *x.shape[1:])),
}
WRONG["export.program"] = {
    "fixed": (_program(dynamic=False), "dynamic_shapes"),
    "training mode": (_program(_no_mode), "captured in the mode"),
    "an example of one": (_program(repeat=1), "give it two images"),
    "at least three": (_program(minimum=3, repeat=4), "Its smallest batch is too large"),
    "no bound": (_program(maximum=False), "max=most"),
    "stays in eval": (_program(_eval_for_good), "puts every mode back"),
    "train() wakes all": (_program(_train_again), "train() sets all of them"),
    "stacks": (_joined(lambda x: torch.stack([x, x])), "torch.stack makes a new axis"),
    "cat without a list": (_joined(lambda x: torch.cat(x, x)), "torch.cat takes a list"),
    "joins channels": (_joined(lambda x: torch.cat([x, x], 1)), "along axis 0"),
    "no tuple": (_loose(lambda two: two, lambda batch: (batch,)), "stand in a tuple"),
    "shapes without a tuple": (_loose(lambda two: (two,), lambda batch: batch), "An entry for each argument"),
    "the module": (lambda m, x, n: _program()(m, x, n).module(), "return torch.export.export"),
}

# --- parity -----------------------------------------------------------------------------------------------------------


def _safe(a, b):
    return math.inf if a.shape != b.shape or not (a - b).isfinite().all() else float((a - b).abs().max())


def _parity(difference, pick=max, sizes=lambda sizes: sizes):
    return lambda f, g, x, n: pick([difference(f(x[:k]), g(x[:k])) for k in sizes(n)])


def _with_numpy(f, g, x, sizes):
    worst = 0.0
    for k in sizes:
        a, b = f(x[:k]).numpy(), g(x[:k]).numpy()
        if a.shape != b.shape or np.isnan(b).any():
            return float("inf")
        worst = max(worst, float(np.abs(a - b).max()))
    return worst


RIGHT["export.parity"] = {"list": _parity(_safe), "numpy": _with_numpy}
WRONG["export.parity"] = {
    "no abs": (_parity(lambda a, b: (a - b).max().item()), ".abs()"),
    "the last size": (_parity(_safe, pick=lambda values: values[-1]), "not the last"),
    "mean": (_parity(lambda a, b: (a - b).abs().mean().item()), "take the largest"),
    "one size": (_parity(_safe, sizes=lambda n: n[-1:]), "images[:size]"),
    "lets nan pass": (
        _parity(
            lambda a, b: math.inf if a.shape != b.shape else (a - b).abs().max().item(), pick=lambda v: max(0.0, *v)
        ),
        "let nan pass",
    ),
    "broadcasts": (
        _parity(lambda a, b: math.inf if b.isnan().any() else (a - b).abs().max().item()),
        "broadcasts without a word",
    ),
    "a tensor": (_parity(lambda a, b: (a - b).abs().max()), ".item()"),
    "compares lengths only": (
        _parity(lambda a, b: math.inf if len(a) != len(b) or b.isnan().any() else (a - b).abs().max().item()),
        "Compare the whole shapes",
    ),
    "says what came": (_parity(lambda a, b: (a - b).max().item()), "got 0, expected 0.75"),
}

# --- branch -----------------------------------------------------------------------------------------------------------


def _module(forward):
    return type("Answer", (nn.Module,), {"forward": lambda self, pixels: forward(pixels)})


def _mask(x):
    return x.mean((1, 2, 3), keepdim=True) > 127.5


def _loop(x):
    return torch.stack([255 - image if image.mean() > 127.5 else image for image in x])


def _written(x):
    x[_mask(x).flatten()] = 255 - x[_mask(x).flatten()]
    return x


RIGHT["export.branch"] = {
    "arithmetic": _module(lambda x: (m := _mask(x).float()) * (255 - x) + (1 - m) * x),
    "sum": _module(lambda x: torch.where(x.flatten(1).mean(1)[:, None, None, None] > 127.5, 255 - x, x)),
}
WRONG["export.branch"] = {
    "one for all": (_module(lambda x: 255 - x if x.mean() > 127.5 else x), "One decision for the whole batch"),
    "one for all, where": (
        _module(lambda x: torch.where(x.mean() > 127.5, 255 - x, x)),
        "One decision for the whole batch",
    ),
    "a loop": (_module(_loop), "Python decided on a value"),
    "a loop with where": (
        _module(lambda x: torch.stack([torch.where(image.mean() > 127.5, 255 - image, image) for image in x])),
        "A loop over the images",
    ),
    "each pixel": (_module(lambda x: torch.where(x > 127.5, 255 - x, x)), "Each pixel decided"),
    "1 in place of 255": (_module(lambda x: torch.where(_mask(x), 1 - x, x)), "255 - pixels, not 1"),
    "half of 1": (
        _module(lambda x: torch.where(x.mean((1, 2, 3), keepdim=True) > 0.5, 255 - x, x)),
        "the limit is 127.5",
    ),
    "in place": (_module(_written), "no in-place"),
    "the others": (_module(lambda x: torch.where(_mask(x), x, 255 - x)), "Invert those"),
    "all": (_module(lambda x: 255 - x), "One decision for the whole batch"),
    "without axes": (_module(lambda x: 255 - x if (x.mean((1, 2, 3)) > 127.5) else x), "one for each image"),
}

# --- int8 -------------------------------------------------------------------------------------------------------------


def _int8(largest, divisor=127, rounding=torch.round, zero=1.0):
    def answer(weight):
        top = largest(weight)
        scale = torch.where(top > 0, top / divisor, zero) if zero is not None else top / divisor
        return rounding(weight / scale[:, None]).to(torch.int8), scale

    return answer


def _rows(weight):
    return weight.abs().amax(1)


def _with_loop(weight):
    q, scale = torch.zeros(weight.shape, dtype=torch.int8), []
    for row, target in zip(weight, q, strict=True):
        scale.append(max(float(row.abs().max()) / 127, 0) or 1.0)
        target.copy_((row / scale[-1]).round())
    return [q, torch.tensor(scale)]


RIGHT["export.int8"] = {
    "loop": _with_loop,
    "clamped": lambda w: (
        (w / (s := torch.where(_rows(w) == 0, 1, _rows(w) / 127)).unsqueeze(1)).round().clamp(-127, 127).char(),
        s,
    ),
}
WRONG["export.int8"] = {
    "128": (_int8(_rows, divisor=128), "becomes -128"),
    "cuts": (_int8(_rows, rounding=lambda x: x), ".round() first"),
    "one scale": (_int8(lambda w: w.abs().max().expand(len(w))), "One scale for all rows"),
    "no abs": (_int8(lambda w: w.amax(1)), ".abs()"),
    "rows of zeros": (_int8(_rows, zero=None), "A row of zeros"),
    "columns": (lambda w: (q := quantize_rows(w.t()), (q[0].t().contiguous(), q[1]))[1], "amax(1)"),
    "the other way round": (lambda w: (quantize_rows(w)[0], 127 / w.abs().amax(1)), "not 127 / the largest"),
    "float": (lambda w: (quantize_rows(w)[0].float(), quantize_rows(w)[1]), "int8"),
}

# --- int8-linear ------------------------------------------------------------------------------------------------------


def _linear(x, q, scale, bias):
    xq, s = quantize_rows(x)
    return torch.einsum("ni,oi->no", xq.double(), q.double()).float() * s[:, None] * scale[None, :] + bias


def _shared(x, q, scale, bias):
    s = x.abs().max() / 127
    return ((x / s).round().int() @ q.int().T) * (s * scale) + bias


RIGHT["export.int8-linear"] = {
    "einsum": _linear,
    "scales first": lambda x, q, s, b: nn.functional.linear(
        (r := quantize_rows(x))[0].float() * r[1][:, None], q.float() * s[:, None], b
    ),
    "long": lambda x, q, s, b: torch.outer((r := quantize_rows(x))[1], s) * (r[0].long() @ q.long().t()) + b,
}
WRONG["export.int8-linear"] = {
    "runs over": (
        lambda x, q, s, b: ((r := quantize_rows(x))[0] @ q.T) * (r[1][:, None] * s) + b,
        "runs over",
    ),
    "x stays float": (lambda x, q, s, b: x @ (q * s[:, None]).T + b, "x stayed in float32"),
    "no bias": (lambda x, q, s, b: _linear(x, q, s, 0 * b), "bias is missing"),
    "no scale of x": (lambda x, q, s, b: (quantize_rows(x)[0].int() @ q.int().T) * s + b, "scales of x are missing"),
    "no scale of q": (lambda x, q, s, b: _linear(x, q, torch.ones_like(s), b), "scales of the weights"),
    "one scale": (_shared, "One scale for the whole batch"),
    "two dtypes": (lambda x, q, s, b: x @ q.T, "whole numbers"),
    "int16": (
        lambda x, q, s, b: ((r := quantize_rows(x))[0].short() @ q.short().T) * (r[1][:, None] * s) + b,
        "int16 runs over",
    ),
    "bias first": (
        lambda x, q, s, b: ((r := quantize_rows(x))[0].int() @ q.int().T + b) * (r[1][:, None] * s),
        "add the bias after",
    ),
    "scales along the wrong axis": (
        lambda x, q, s, b: ((r := quantize_rows(x))[0].int() @ q.int().T) * r[1] * s + b,
        "x_scale[:, None]",
    ),
}

# --- read-request -----------------------------------------------------------------------------------------------------


def _is_json(kind):
    return kind.partition(";")[0] == "application/json"


def _request(without=(), is_json=_is_json, longest=50_000, most=4, pixels=np.array, says="Send something else."):
    def answer(body, kind):
        if "type" not in without and not is_json(kind):
            return 415, says
        if "length" not in without and len(body) > longest:
            return 413, says
        catches = (ValueError,) if "depth" in without else (ValueError, RecursionError)
        try:
            message = json.loads(body)
        except catches:
            return 400, says
        if "object" not in without and not isinstance(message, dict):
            return 422, says
        images = message.get("images")
        if not isinstance(images, list) or (not images and "none" not in without):
            return 422, says
        if "many" not in without and len(images) > most:
            return 413, says
        try:
            array = np.array(images, dtype=None if "dtype" in without else np.float64)
        except (ValueError, TypeError, OverflowError):
            return 422, says
        if array.shape[1:] != (28, 28):
            return 422, says
        numbers = [p for image in images for row in image for p in row]
        if "bool" not in without and not {type(p) for p in numbers} <= {int, float}:
            return 422, says
        if "finite" not in without and not np.isfinite(array.astype(float)).all():
            return 422, says
        if "range" not in without and not ((array >= 0) & (array <= 255) | ~np.isfinite(array)).all():
            return 422, says
        return 200, pixels(images)

    return answer


def _length_first(body, kind):
    return (413, "At most 50,000 bytes.") if len(body) > 50_000 else _request()(body, kind)


def _trusts_images(body, kind):
    message = json.loads(body) if body[:1] == b"{" and body.endswith(b"}") else {}
    images = message.get("images")
    if isinstance(images, list):
        [len(image) for image in images]
    return _request()(body, kind)


def _raises(body, kind):
    status, answer = _request()(body, kind)
    if status != 200:
        raise ValueError(answer)
    return status, answer


RIGHT["export.read-request"] = {"numpy": _request(), "tensor": _request(pixels=torch.tensor)}
WRONG["export.read-request"] = {
    "any type": (_request({"type"}), "content type first"),
    "begins with": (_request(is_json=lambda kind: kind.startswith("application/json")), "Compare the whole type"),
    "has json in it": (_request(is_json=lambda kind: "json" in kind), "Compare the whole type"),
    "no charset": (_request(is_json=lambda kind: kind == "application/json"), "split"),
    "the length first": (_length_first, "the type first"),
    "one byte less": (_request(longest=49_999), "refuse only more"),
    "one image less": (_request(most=3), "refuse only more"),
    "len() of a number": (_trusts_images, "a list of 28 rows"),
    "a channel axis": (_request(pixels=lambda images: np.array(images)[:, None]), "(N, 28, 28)"),
    "any length": (_request({"length"}), "len(body)"),
    "any depth": (_request({"depth"}), "RecursionError"),
    "any message": (_request({"object"}), "must be a dict"),
    "many": (_request({"many"}), "More than 4"),
    "true": (_request({"bool"}), "true is an int"),
    "infinite": (_request({"finite"}), "without complaint"),
    "256": (_request({"range"}), "0 <= pixel <= 255"),
    "raises": (_raises, "content type first"),
    "says nothing": (_request(says=""), "in a sentence"),
    "scales": (_request(pixels=lambda images: np.array(images) / 255), "Nothing is scaled"),
    "trusts": (lambda body, kind: (200, np.array(json.loads(body)["images"])), "content type first"),
}

# --- gather -----------------------------------------------------------------------------------------------------------


def _gather_nowait(waiting, most, wait_s):
    batch, end = [waiting.get()], time.monotonic() + wait_s
    while len(batch) < most and time.monotonic() < end:
        try:
            batch.append(waiting.get_nowait())
        except queue.Empty:
            time.sleep(0.005)
    return batch


def _gather(timeout, first=lambda waiting: waiting.get()):
    def answer(waiting, most, wait_s):
        batch = [first(waiting)]
        end = time.monotonic() + wait_s
        while len(batch) < most:
            try:
                batch.append(waiting.get(timeout=timeout(end, wait_s)))
            except queue.Empty:
                break
        return batch

    return answer


def _left(end, wait_s):
    return max(0.0, end - time.monotonic())


def _sleeps(waiting, most, wait_s):
    batch = [waiting.get()]
    time.sleep(wait_s)
    while len(batch) < most and not waiting.empty():
        batch.append(waiting.get())
    return batch


def _one_too_many(waiting, most, wait_s):
    batch = _gather(_left)(waiting, most + 1, wait_s)
    return batch[:most]


def _early(waiting, most, wait_s):
    end = time.monotonic() + wait_s
    batch = [waiting.get()]
    while len(batch) < most:
        try:
            batch.append(waiting.get(timeout=_left(end, wait_s)))
        except queue.Empty:
            break
    return batch


def _escapes(waiting, most, wait_s):
    batch, end = [waiting.get()], time.monotonic() + wait_s
    while len(batch) < most:
        batch.append(waiting.get(timeout=_left(end, wait_s)))
    return batch


RIGHT["export.gather"] = {
    "timeout": _gather(_left),
    "looks again and again": _gather_nowait,
    "small steps": _gather(
        lambda end, wait_s: max(0.0, end - time.perf_counter() - time.monotonic() + time.perf_counter())
    ),
}
WRONG["export.gather"] = {
    "no time limit": (lambda w, most, s: [w.get() for _ in range(most)], "queue.Empty"),
    "starts anew": (_gather(lambda end, wait_s: wait_s), "Fix the end once"),
    "never waits": (_gather(lambda end, wait_s: 0), "wait_s to join"),
    "sleeps": (_sleeps, "nothing to wait for"),
    "one too many": (_one_too_many, "Take no more"),
    "the clock before the first": (_early, "The clock runs from the first"),
    "a negative timeout": (_gather(lambda end, wait_s: end - time.monotonic()), "can be over already"),
    "Empty escapes": (_escapes, "catch it"),
    "backwards": (lambda w, most, s: _gather(_left)(w, most, s)[::-1], "order of arrival"),
}

# --- best-batch -------------------------------------------------------------------------------------------------------


def _best(fits=lambda ms, limit: 2 * ms <= limit, key=lambda n, ms: n / ms, rate=lambda n, ms: 1000 * n / ms):
    def answer(times, limit):
        fitting = {n: ms for n, ms in times.items() if fits(ms, limit)}
        if not fitting:
            return None
        best = max(fitting, key=lambda n: key(n, fitting[n]))
        return best, rate(best, fitting[best])

    return answer


def _sorted(times, limit):
    found = sorted((n / ms * 1000, n) for n, ms in times.items() if ms <= limit / 2)
    return [found[-1][1], found[-1][0]] if found else None


RIGHT["export.best-batch"] = {"max": _best(), "sorted": _sorted}
WRONG["export.best-batch"] = {
    "the largest": (_best(key=lambda n, ms: n), "The largest is not the quickest"),
    "the quickest": (_best(key=lambda n, ms: -ms), "lowest latency"),
    "once": (_best(fits=lambda ms, limit: ms <= limit), "Twice its time must fit"),
    "per millisecond": (_best(rate=lambda n, ms: n / ms), "per millisecond"),
    "batches": (_best(rate=lambda n, ms: 1000 / ms), "batches per second"),
    "strictly": (_best(fits=lambda ms, limit: 2 * ms < limit), "<=, not <"),
    "the rate first": (lambda t, limit: (found := _best()(t, limit)) and found[::-1], "The batch size comes first"),
    "zero": (lambda t, limit: _best()(t, limit) or (0, 0.0), "return None"),
}

# --- percentiles ------------------------------------------------------------------------------------------------------


def _ranked(prepare, place=lambda p, n: math.ceil(p * n / 100) - 1, points=(50, 95, 99)):
    def answer(times):
        values = prepare(times)
        return tuple(values[place(p, len(values))] for p in points)

    return answer


def _endless(times):
    return sorted(math.inf if t is None else t for t in times)


RIGHT["export.percentiles"] = {
    "sorted": _ranked(_endless),
    "numpy": lambda times: np.percentile(
        np.array([np.inf if t is None else t for t in times]), [50, 95, 99], method="inverted_cdf"
    ).tolist(),
    "numbers of NumPy": lambda times: list(
        np.sort([np.inf if t is None else t for t in times])[
            [math.ceil(p * len(times) / 100) - 1 for p in (50, 95, 99)]
        ]
    ),
    "whole numbers": _ranked(_endless, place=lambda p, n: -(-p * n // 100) - 1),
}
WRONG["export.percentiles"] = {
    "drops the failed": (_ranked(lambda times: sorted(t for t in times if t is not None)), "drops the slow ones"),
    "not sorted": (_ranked(lambda times: [math.inf if t is None else t for t in times]), "Sort first"),
    "one place too far": (_ranked(_endless, place=lambda p, n: min(n - 1, p * n // 100)), "One place too far"),
    "interpolates": (lambda times: tuple(np.percentile(_endless(times), [50, 95, 99]).tolist()), "interpolates"),
    "another order": (_ranked(_endless, points=(99, 95, 50)), "order is p50"),
    "None": (_ranked(sorted), "math.inf"),
    "rounds": (_ranked(_endless, place=lambda p, n: round(p * n / 100) - 1), "Round up"),
    "downwards": (_ranked(lambda times: _endless(times)[::-1]), "Sort upwards"),
}

# --- clinic -----------------------------------------------------------------------------------------------------------


def _own(pixels, mean, std):
    x = pixels / pixels.max()
    return (x - x.mean()) / x.std()


RIGHT["export.clinic-preprocess"] = {
    "plain": lambda x, mean, std: (x / 255 - mean) / std,
    "in pixels": lambda x, mean, std: x.sub(255 * mean) / (255 * std),
}
WRONG["export.clinic-preprocess"] = {
    "broken": (_own, "Training knew none of them"),
    "still the largest": (lambda x, mean, std: (x / x.amax((1, 2, 3), keepdim=True) - mean) / std, "Divide by 255"),
    "only scaled": (lambda x, mean, std: x / 255, "mean and std are missing"),
    "times std": (lambda x, mean, std: (x / 255 - mean) * std, "Divide by std"),
    "each its own": (
        lambda x, mean, std: (x - x.mean((1, 2, 3), keepdim=True)) / x.std((1, 2, 3), keepdim=True),
        "statistics of its own",
    ),
    "forgets 255": (lambda x, mean, std: (x - mean) / std, "divide by 255 first"),
    "in place": (lambda x, mean, std: x.div_(255).sub_(mean).div_(std), "in place"),
}


def _ship(mode=evaluating, minimum=1, dynamic=True, after=lambda run: run):
    def answer(model, example):
        with mode(model):
            shapes = ({0: Dim("batch", min=minimum)},) if dynamic else None
            return after(export(model, (example,), dynamic_shapes=shapes).module())

    return answer


def _shipped_copy(model, example):
    return export(copy.deepcopy(model).eval(), (example,), dynamic_shapes=({0: Dim.DYNAMIC},)).module()


class _only_dropout(_no_mode):
    def __init__(self, model):
        self.layers = [m for m in model.modules() if isinstance(m, nn.Dropout)]
        for m in self.layers:
            m.eval()

    def __exit__(self, *error):
        for m in self.layers:
            m.train()


RIGHT["export.clinic-train-mode"] = {"evaluating": _ship(evaluating), "a copy": _shipped_copy}
WRONG["export.clinic-train-mode"] = {
    "broken": (_ship(_no_mode), "rolls dice"),
    "dropout only": (_ship(_only_dropout), "statistics of the batch"),
    "eval afterwards": (_ship(_no_mode, after=lambda run: run.eval()), "Switch before"),
    "stays in eval": (_ship(_eval_for_good), "trains on"),
    "train() wakes all": (_ship(_train_again), "train() sets all of them"),
    "loses the free batch": (_ship(evaluating, dynamic=False), "keep dynamic_shapes"),
    "the program": (lambda m, x: export(copy.deepcopy(m).eval(), (x,)), "return program.module()"),
}


class _Reads(nn.Module):
    def __init__(self, layer, forward):
        super().__init__()
        self.layer, self.how = layer, forward

    def forward(self, images):
        return self.how(self.layer, images)


def _fixed(how, dynamic=True, minimum=1):
    def answer(layer, example):
        shapes = ({0: Dim("batch", min=minimum)},) if dynamic else None
        return export(_Reads(layer, how).eval(), (example,), dynamic_shapes=shapes).module()

    return answer


def _stacked(layer, images):
    return torch.stack([layer(image.flatten()) for image in images])


RIGHT["export.clinic-fixed-batch"] = {
    "flatten": _fixed(lambda layer, x: layer(x.flatten(1))),
    "reshape": _fixed(lambda layer, x: layer(x.reshape(x.shape[0], -1))),
    "vmap": _fixed(lambda layer, x: torch.vmap(lambda image: layer(image.flatten()))(x)),
}
WRONG["export.clinic-fixed-batch"] = {
    "broken": (_fixed(_stacked, dynamic=False), "dynamic_shapes says"),
    "loop": (_fixed(_stacked), "a loop over the images"),
    "fixed": (_fixed(lambda layer, x: layer(x.flatten(1)), dynamic=False), "dynamic_shapes says"),
    "a size written out": (_fixed(lambda layer, x: layer(x.reshape(2, -1))), "a size written out"),
    "one row": (_fixed(lambda layer, x: layer(x.flatten(1))[:1]), "A row for each image"),
    "flattens all": (_fixed(lambda layer, x: layer(x.flatten())), "leaves axis 0 alone"),
}


def _plain_predict(context):
    def make(model):
        def predict(pixels):
            with context():
                return model(torch.from_numpy(pixels)).detach().numpy()

        return predict

    return make


def _globally(model):
    torch.set_grad_enabled(False)
    return lambda pixels: model(torch.from_numpy(pixels)).detach().numpy()


def _globally_inside(model):
    def predict(pixels):
        torch.set_grad_enabled(False)
        return model(torch.from_numpy(pixels)).numpy()

    return predict


def _switched_around(model):
    with torch.no_grad():
        return _plain_predict(torch.enable_grad)(model)


RIGHT["export.clinic-thread"] = {
    "no_grad": _plain_predict(torch.no_grad),
    "inference_mode": _plain_predict(torch.inference_mode),
    "decorated": lambda model: torch.no_grad()(lambda pixels: model(torch.from_numpy(pixels)).numpy()),
}
WRONG["export.clinic-thread"] = {
    "broken": (_globally, "for good"),
    "detach only": (_plain_predict(torch.enable_grad), "kept for each thread"),
    "around the making": (_switched_around, "kept for each thread"),
    "for good, inside": (_globally_inside, "with torch.no_grad()"),
    "a tensor": (lambda model: torch.no_grad()(lambda pixels: model(torch.from_numpy(pixels))), ".numpy()"),
    "an array in": (lambda model: torch.no_grad()(lambda pixels: model(pixels).numpy()), "torch.from_numpy"),
    "numpy()": (lambda model: lambda pixels: model(torch.from_numpy(pixels)).numpy(), "gradients are on"),
}


def _split(predict, requests, order):
    logits = predict(np.concatenate([requests[i] for i in order]))
    return np.split(logits.argmax(1), np.cumsum([len(requests[i]) for i in order])[:-1])


def _put_back(predict, requests):
    order = sorted(range(len(requests)), key=lambda i: len(requests[i]))
    answers = [None] * len(requests)
    for i, part in zip(order, _split(predict, requests, order), strict=True):
        answers[i] = part
    return answers


def _by_length(requests):
    return sorted(range(len(requests)), key=lambda i: len(requests[i]))


def _right_sizes_wrong_rows(predict, requests):
    digits = predict(np.concatenate([requests[i] for i in _by_length(requests)])).argmax(1)
    return np.split(digits, np.cumsum([len(r) for r in requests])[:-1])


RIGHT["export.clinic-answers"] = {
    "puts back": _put_back,
    "no sorting": lambda predict, r: _split(predict, r, range(len(r))),
}
WRONG["export.clinic-answers"] = {
    "broken": (lambda predict, r: _split(predict, r, _by_length(r)), "another order than the questions"),
    "wrong rows": (_right_sizes_wrong_rows, "got the digits of others"),
    "one by one": (lambda predict, r: [predict(x).argmax(1) for x in r], "what the batch is for"),
    "all in one": (lambda predict, r: predict(np.concatenate(r)).argmax(1), "as long as the list"),
    "backwards": (lambda predict, r: _split(predict, r, range(len(r)))[::-1], "another order"),
    "equal parts": (
        lambda predict, r: np.array_split(predict(np.concatenate(r)).argmax(1), len(r)),
        "the lengths added up",
    ),
    "lengths for places": (
        lambda predict, r: np.split(predict(np.concatenate(r)).argmax(1), [len(x) for x in r][:-1]),
        "the lengths added up",
    ),
    "logits": (
        lambda predict, r: np.split(predict(np.concatenate(r)), np.cumsum([len(x) for x in r])[:-1]),
        "argmax(1)",
    ),
}


def _app(predict):
    def make(read_digit):
        app = FastAPI()

        @app.get("/health")
        async def health():
            return {"status": "ok"}

        predict(app, read_digit)
        return app

    return make


def _awaits(call):
    def add(app, read_digit):
        @app.post("/predict")
        async def predict(request: Request):
            return {"digit": await call(read_digit, await request.body())}

    return add


async def _to_thread(read_digit, body):
    import asyncio

    return await asyncio.to_thread(read_digit, body)


async def _executor(read_digit, body):
    import asyncio

    return await asyncio.get_running_loop().run_in_executor(None, read_digit, body)


async def _blocking(read_digit, body):
    return read_digit(body)


async def _blocking_thread(read_digit, body):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(read_digit, body).result()


def _other_route(app, read_digit):
    @app.post("/digit")
    async def predict(request: Request):
        return {"digit": await run_in_threadpool(read_digit, await request.body())}


def _forgets_await(app, read_digit):
    @app.post("/predict")
    async def predict(request: Request):
        body = await request.body()
        return {"digit": str(await run_in_threadpool(read_digit, body))}


def _unawaited(answer):
    def add(app, read_digit):
        @app.post("/predict")
        async def predict(request: Request):
            return {"digit": await answer(read_digit, request)}

    return add


def _no_await(app, read_digit):
    @app.post("/predict")
    async def predict(request: Request):
        return {"digit": run_in_threadpool(read_digit, await request.body())}


async def _called(read_digit, body):
    return await run_in_threadpool(read_digit(body))


async def _body_unawaited(read_digit, request):
    return await run_in_threadpool(read_digit, request.body())


def _health_is_slow(read_digit):
    app = FastAPI()
    _awaits(run_in_threadpool)(app, read_digit)

    @app.get("/health")
    async def health():
        await run_in_threadpool(time.sleep, 0.9)
        return {"status": "ok"}

    return app


RIGHT["export.clinic-blocking"] = {
    "run_in_threadpool": _app(_awaits(run_in_threadpool)),
    "to_thread": _app(_awaits(_to_thread)),
    "executor": _app(_awaits(_executor)),
}
WRONG["export.clinic-blocking"] = {
    "broken": (_app(_awaits(_blocking)), "everybody waits"),
    "a thread, and waits for it": (_app(_awaits(_blocking_thread)), "everybody waits"),
    "another route": (_app(_other_route), "as before"),
    "text": (_app(_forgets_await), '{"digit": ...}'),
    "no await": (_app(_no_await), "await it"),
    "calls it at once": (_app(_awaits(_called)), "Hand over the function"),
    "the body without await": (_app(_unawaited(_body_unawaited)), "has to be awaited"),
    "the request": (_app(_unawaited(run_in_threadpool)), "takes the bytes"),
    "health waits": (_health_is_slow, "waited for the model"),
}

TestExport = exercise_tests("export", RIGHT, WRONG)
