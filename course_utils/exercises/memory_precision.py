"""Checks of lesson 06 about 16 bits and compiled code: scales, autocast, a scaler's rules, one graph."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_utils.compiling import Captured, quiet_compiler
from course_utils.exercises.compare import describe, has_dtype, is_close, is_equal, is_true
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.verdicts import Check

LARGEST = 65504.0  # of float16


def check_scale(best_scale: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise memory.scale: the largest power of two that keeps every gradient in float16."""
    grads = [inputs.randn(3, 4) * 1e-5, inputs.randn(5) * 1e-3, inputs.strided(2, 3) * 1e-4]
    grads[1][2] = -inputs.size(3, 9) * 1e-2  # the largest is negative
    grads.append(inputs.rand(100, 120) * 0.002 + 0.003)  # each is far smaller, and their norm is far larger
    largest = max(g.abs().max().item() for g in grads)
    wanted = 2.0 ** math.floor(math.log2(LARGEST / largest))
    answer = best_scale(grads)
    positive = max(g.max().item() for g in grads)
    small = max(g.abs().max().item() for g in (grads[0], grads[2]))
    yield is_close(
        "is the largest power of two that keeps all of them at or below 65,504",
        answer,
        wanted,
        hint="math.floor(math.log2(65504 / largest)) is its exponent.",
        mistakes=[
            (2 * wanted, "With this scale the largest gradient becomes inf. Round the exponent down."),
            (wanted / 2, "Twice as much would still fit."),
            (LARGEST / largest, "This is no power of two, so scaling would round every number."),
            (2.0 ** math.floor(math.log2(LARGEST / positive)), "The largest gradient is negative: use abs()."),
            (2.0 ** math.floor(math.log2(LARGEST / small)), "One scale for all: look at every tensor."),
            (1 / wanted, "This divides. The gradients are to be multiplied by it."),
            (
                2.0 ** math.floor(math.log2(LARGEST / max(g.norm().item() for g in grads))),
                "A norm adds up all gradients of a tensor. The largest single one decides.",
            ),
            (
                2.0 ** math.floor(math.log2(LARGEST / torch.cat([g.flatten() for g in grads]).norm().item())),
                "A norm adds up all gradients. The largest single one decides.",
            ),
        ],
    )
    for value, scale, says in ((LARGEST, 1.0, "exactly"), (LARGEST + 8, 0.5, "just above")):
        yield is_close(
            f"a gradient that is {says} the largest number",
            best_scale([torch.tensor([1.0, value])]),
            scale,
            rtol=1e-9,
            hint="65,504 itself still fits. A scale may be below 1.",
        )
    yield is_close(
        "zeros alone leave the scale at 1",
        best_scale([torch.zeros(3), torch.zeros(2)]),
        1.0,
        hint="There is nothing to save: return 1.0.",
    )


def check_distances(distances: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise memory.distances: squared distances in float32, whatever autocast would like."""
    n, m, d = *inputs.sizes(2, 3, 6), inputs.size(60, 80)
    a, b = inputs.randn(n, d), inputs.randn(m, d)
    wanted = torch.cdist(a.double(), b.double()).square()
    plain = distances(a, b)
    yield is_close("the squared distances are right", plain, wanted, rtol=1e-3, hint="Sum (a − b)² over D; (N, M).")
    big_a, big_b = 60 * a, 60 * b  # squared lengths are far above 65,504
    with torch.autocast("cpu", dtype=torch.float16):
        answer = distances(big_a, big_b)
    yield has_dtype("under autocast they are float32", answer, torch.float32, hint="Don't cast the result down.")
    yield is_true(
        "under autocast in float16 nothing overflows",
        bool(answer.isfinite().all()),
        detail="some are inf or nan",
        hint="A product of matrices runs in float16 under autocast, also if you hand it float32. "
        "Switch autocast off for it: with torch.autocast(a.device.type, enabled=False).",
    )
    wanted = torch.cdist(big_a.double(), big_b.double()).square()
    yield is_close(
        "under autocast they are as exact as without",
        answer,
        wanted,
        rtol=1e-3,
        hint="Somewhere 16 bits were used: the 11 binary digits of float16 are too few for a difference of large "
        "numbers.",
    )
    half_a, half_b = big_a.half(), big_b.half()
    with torch.autocast("cpu", dtype=torch.float16):
        answer = distances(half_a, half_b)
    wanted = torch.cdist(half_a.double(), half_b.double()).square()
    yield has_dtype("float16 inputs give float32 too", answer, torch.float32, hint="a.float() before anything else.")
    yield is_true(
        "float16 inputs don't overflow",
        bool(answer.isfinite().all()),
        detail="some are inf or nan",
        hint="Features under autocast arrive in float16. With autocast off they stay so: write a.float(), b.float().",
    )
    yield is_close("and they are exact", answer, wanted, rtol=1e-3, hint="Cast first, then subtract.")
    yield is_true(
        "autocast is as it was",
        not torch.is_autocast_enabled("cpu"),
        detail="it stayed on",
        hint="Use it as a context manager.",
    )


def _pair(inputs: Inputs, d: int, c: int) -> tuple[nn.Linear, nn.Linear]:
    model = nn.Linear(d, c)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(inputs.randn(*p.shape))
    return model, copy.deepcopy(model)


class _LoggedSGD(torch.optim.SGD):
    """SGD with momentum that counts its steps."""

    def __init__(self, model: nn.Module) -> None:
        groups = [{"params": [p]} for p in reversed(list(model.parameters()))]  # the bias comes first
        super().__init__(groups, lr=0.1, momentum=0.9)
        self.steps = 0

    def step(self, closure: Callable | None = None) -> None:  # type: ignore[override]
        self.steps += 1
        super().step(closure)


def check_scaler(scaler_class: type, inputs: Inputs) -> Iterator[Check]:
    """Exercise memory.scaler: the rules of torch.amp.GradScaler, step by step, through forced overflows."""
    d, c = inputs.sizes(2, 3, 7)
    interval = inputs.size(3, 4)
    mine = scaler_class(init_scale=2.0**10, growth_interval=interval)
    real = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=interval)
    models = _pair(inputs, d, c)
    optimizers = [_LoggedSGD(model) for model in models]
    pattern = [1.0] * (interval - 1) + [math.inf] + [1.0] * interval + [math.nan, math.inf] + [1.0] * (2 * interval)
    first = mine.scale(torch.tensor(3.0))
    yield is_close("scale(loss) is the loss times the scale", first, torch.tensor(3.0 * 2**10), hint="loss * scale.")
    real.scale(torch.tensor(3.0))
    yield is_close("get_scale() is the scale", mine.get_scale(), 2.0**10, hint="A Python float.")
    good, overflows = 0, 0
    for number, factor in enumerate(pattern):
        clips = number % 2 == 0
        overflows += not math.isfinite(factor)
        x = inputs.randn(4, d)
        for model, optimizer, scaler in zip(models, optimizers, (mine, real), strict=True):
            optimizer.zero_grad()
            scaler.scale(model(x).square().mean()).backward()
            spoilt = model.bias if overflows % 2 else model.weight  # an overflow in one parameter, or in the other
            spoilt.grad[0] *= factor  # type: ignore[index]
            if scaler is mine:
                grads = [p.grad for p in model.parameters()]
            if clips:
                scaler.unscale_(optimizer)
        where = f"step {number + 1}" + ("" if math.isfinite(factor) else ", with an overflow")
        if clips:
            yield is_close(
                "unscale_ divides every gradient by the scale, in place",
                models[0].weight.grad,
                models[1].weight.grad,
                hint="grad.div_(scale), for every parameter of every group in optimizer.param_groups.",
            )
            yield is_true(
                "and makes no new gradients",
                all(p.grad is grad for p, grad in zip(models[0].parameters(), grads, strict=True)),
                detail="p.grad is another tensor than before",
                hint="In place: p.grad.div_(scale) or p.grad /= scale. p.grad = p.grad / scale needs the memory twice.",
            )
        for optimizer, scaler in zip(optimizers, (mine, real), strict=True):
            scaler.step(optimizer)
            scaler.update()
        yield is_equal(
            "the optimizer steps if all gradients are finite, and only then",
            optimizers[0].steps,
            optimizers[1].steps,
            hint=f"{where}: look for inf and nan in all gradients (isfinite), before the step. One parameter is "
            "enough, whether it comes first or last.",
        )
        yield is_close(
            "the weights are those with torch.amp.GradScaler",
            models[0].weight.detach(),
            models[1].weight.detach(),
            hint=f"{where}: gradients must be unscaled exactly once before the step. After unscale_, step must "
            "not do it again; without, step does it. update() begins anew.",
        )
        good = good + 1 if math.isfinite(factor) else 0
        yield is_close(
            "the scale moves as in torch.amp.GradScaler",
            mine.get_scale(),
            real.get_scale(),
            hint=f"{where}, {good} good steps in a row, growth_interval={interval}. An overflow halves the scale and "
            "starts the count again; growth_interval good steps in a row double it, and the count starts again.",
        )
    other = scaler_class(init_scale=8.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=1)
    model, _ = _pair(inputs, d, c)
    optimizer = _LoggedSGD(model)
    other.scale(torch.tensor(1.0))
    model.weight.grad = torch.ones_like(model.weight)  # the bias has no gradient
    other.step(optimizer)
    other.update()
    yield is_close(
        "growth_factor is used",
        other.get_scale(),
        32.0,
        hint="After growth_interval good steps, the scale is multiplied by growth_factor.",
    )
    model.weight.grad = torch.full_like(model.weight, math.nan)
    other.step(optimizer)
    other.update()
    yield is_close(
        "backoff_factor is used",
        other.get_scale(),
        8.0,
        hint="After an overflow, the scale is multiplied by backoff_factor.",
    )


class _Spy(nn.Module):
    """A classifier that notes under which autocast each forward pass ran, and when backward reached its weights."""

    def __init__(self, inputs: Inputs, d: int, c: int) -> None:
        super().__init__()
        self.layer, _ = _pair(inputs, d, c)
        self.seen: list[torch.dtype | None] = []
        self.passes: list[str] = []
        self.layer.weight.register_hook(lambda _: self.passes.append("backward"))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None)
        self.passes.append("forward")
        return self.layer(x)


class _LoggedScaler(torch.amp.GradScaler):
    """PyTorch's scaler, which also counts the steps that were made through it."""

    def __init__(self, **settings: float) -> None:
        super().__init__("cpu", **settings)  # type: ignore[arg-type]
        self.steps = 0

    def step(self, *args: Any, **kwargs: Any) -> float | None:
        self.steps += 1
        return super().step(*args, **kwargs)


def _weighted_gradient(model: nn.Module, pieces: list[tuple[Tensor, Tensor]], weights: list[float]) -> Tensor:
    """Return the gradient of the weighted sum of the pieces' losses in mixed precision, as one vector."""
    model.zero_grad()
    for (x, y), weight in zip(pieces, weights, strict=True):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y) * weight
        (1024 * loss).backward()
    grad = torch.cat([p.grad.flatten() for p in model.parameters()]) / 1024  # type: ignore[union-attr]
    model.zero_grad()
    return grad


def check_amp_step(amp_step: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise memory.amp-step: one update from several pieces, scaled, unscaled, clipped, in this order."""
    d, c = inputs.sizes(2, 4, 9)
    pieces = [(inputs.randn(n, d) * 3, inputs.randint(0, c, n)) for n in (8, 5, 3)]
    model = _Spy(inputs, d, c)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = _LoggedScaler(init_scale=2.0**10, growth_interval=1)
    grad = _weighted_gradient(model, pieces, [len(y) / 16 for _, y in pieces])
    norm = grad.norm().item()
    of_means, of_sum = (_weighted_gradient(model, pieces, [w] * 3).norm().item() for w in (1 / 3, 1.0))
    limit = norm / 2
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    for p in model.parameters():
        p.grad = torch.full_like(p, 1e5)  # left over from an earlier step
    model.seen.clear()
    model.passes.clear()
    answer = amp_step(model, optimizer, scaler, pieces, limit)
    yield is_equal(
        "every forward pass runs under autocast in float16",
        model.seen,
        [torch.float16] * 3,
        hint='with torch.autocast("cpu", dtype=torch.float16): around the forward pass and the loss of each piece.',
        mistakes=[([torch.float16], "The pieces must stay apart: all at once is the batch that didn't fit.")],
    )
    yield is_equal(
        "each piece goes backward before the next goes forward",
        model.passes,
        ["forward", "backward"] * 3,
        hint="Call backward for each piece: it frees the activations of the piece. A sum of losses keeps those of all "
        "pieces at once.",
    )
    yield is_close(
        "returns the norm before clipping, a float",
        answer,
        norm,
        rtol=2e-2,
        hint="torch.nn.utils.clip_grad_norm_ returns it as a tensor; .item() makes a float.",
        mistakes=[
            (of_means, "A mean of means is not the mean of all. Weight each piece by its share, len(y) / n_all."),
            (of_sum, "The means of all pieces were added up. Weight each piece by its share, len(y) / n_all."),
            (
                1024 * norm,
                "This is the norm of the *scaled* gradient. scaler.unscale_(optimizer) comes before clipping.",
            ),
        ],
    )
    moved = before - torch.cat([p.detach().flatten() for p in model.parameters()])
    wanted = grad * 0.5
    yield is_close(
        "the weights move by the clipped gradient of the mean over all examples",
        moved,
        wanted,
        rtol=3e-2,
        atol=3e-3 * norm,
        hint="Each piece's loss counts by its share of all examples, len(y) / n_all; old gradients are cleared first.",
        mistakes=[
            (wanted / 1024, "The step is 1,024 times too small: the scaled gradient was clipped."),
            (grad, "The gradient was not clipped."),
            (torch.zeros_like(moved), "The weights did not move at all."),
        ],
    )
    yield is_equal(
        "the step goes through the scaler",
        scaler.steps,
        1,
        hint="scaler.step(optimizer), once: it steps, or skips the step after an overflow.",
    )
    yield is_close(
        "the scaler is updated once",
        float(scaler.get_scale()),
        2.0**11,
        hint="scaler.update() once for each update of the weights, not for each piece.",
        mistakes=[(2.0**10, "scaler.update() is missing, so the scale never moves.")],
    )
    huge = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    amp_step(model, optimizer, huge, pieces, limit)
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    yield is_true(
        "an overflow leaves the weights as they are",
        torch.equal(before, after),
        detail="they changed" if bool(after.isfinite().all()) else "they are inf or nan",
        hint="scaler.step(optimizer), not optimizer.step(): the scaler skips a step with inf in it.",
    )
    yield is_close("and halves the scale", float(huge.get_scale()), 2.0**39, hint="scaler.update() after every step.")


def check_one_graph(shrink: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise memory.one-graph: a branch on a value, without leaving the graph."""
    n, d = inputs.sizes(2, 3, 8)
    x, limit = inputs.randn(n, d), 2.0
    small = x / x.norm() * 1.5
    for name, value in (("a long tensor is scaled to the limit", x * 9), ("a short one stays as it is", small)):
        norm = value.norm()
        wanted = value * min(1.0, limit / norm.item())
        yield is_close(
            name,
            shrink(value, limit),
            wanted,
            hint="The norm of the whole tensor decides: x.norm().",
            mistakes=[
                (value * (limit / norm), "This scales always. A short tensor must stay as it is."),
                (value * (limit / value.norm(dim=1, keepdim=True)).clamp(max=1), "One norm for all, not one per row."),
            ],
        )
    yield is_close(
        "zeros stay zeros",
        shrink(torch.zeros(n, d), limit),
        torch.zeros(n, d),
        hint="The norm of zeros is 0, and 0 / 0 is nan.",
    )
    captured = Captured()
    values = [x * 9, small, torch.zeros(n, d), x * 3]
    with quiet_compiler():
        compiled = torch.compile(shrink, backend=captured)
        results = [compiled(value, limit) for value in values]
    yield is_equal(
        "is one graph, for every value",
        captured.count,
        1,
        hint="Dynamo can't follow an `if` on a tensor's value, nor .item(), float() or NumPy: they need the number, "
        "and a graph has none yet. Choose with torch.where or clamp.",
    )
    for value, result in zip(values, results, strict=True):
        wanted = value * min(1.0, limit / max(value.norm().item(), 1e-30))
        yield is_close("compiled, it gives the same", result, wanted, hint="Both branches must be in the graph.")


def check_break_even(calls_needed: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise memory.break-even: from how many calls on compiling has paid."""
    plain, saved = inputs.size(20, 40) / 8, inputs.size(3, 9) / 8
    later = plain - saved
    count = inputs.size(20, 90)
    first = plain + saved * (count - 0.5)  # paid after `count` later calls: numbers are eighths, so this is exact
    answer = calls_needed(first, later, plain)
    yield is_true(
        "returns a whole number",
        type(answer) is int,
        detail=f"got {describe(answer)}",
        hint="math.floor or math.ceil gives one, // of floats doesn't.",
    )
    yield is_equal(
        "is the smallest number of calls that takes less time in all",
        answer,
        count + 1,
        hint="Compiled: first + (n − 1) · later. Plain: n · plain.",
        mistakes=[
            (count, "The first call counts as one of the n."),
            (count + 2, "One call fewer takes less time already."),
        ],
    )
    tied = plain + saved * count
    yield is_equal(
        "equal is not less", calls_needed(tied, later, plain), count + 2, hint="At a tie, one call more is needed."
    )
    never = "Later calls gain nothing, so the first one is never made up for: return None."
    yield is_equal("no faster never pays", calls_needed(first, plain, plain), None, hint=never)
    yield is_equal("slower never pays", calls_needed(first, plain + 1, plain), None, hint=never)
    tiny, many = 2.0**-10, 2**21
    yield is_equal(
        "it can take millions of calls",
        calls_needed(plain + tiny * (many - 0.5), plain - tiny, plain),
        many + 1,
        hint="A small gain pays in the end, however many calls it takes: set no upper limit.",
    )
    yield is_equal("it can pay at once", calls_needed(plain / 2, later, plain), 1, hint="n = 1 is possible.")
