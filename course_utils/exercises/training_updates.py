"""Checks of lesson 05: optimizer, schedule, clipping, early stopping."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from course_utils.exercises.compare import describe, is_close, is_equal, is_true, is_unchanged
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.verdicts import Check


def check_adamw_step(adamw_step: Callable, inputs: Inputs) -> Iterator[Check]:
    """training.adamw-step: one update of AdamW; all tensors of one shape, float64."""
    shape = inputs.sizes(2, 2, 5)
    w = inputs.strided(*shape, dtype=torch.float64)
    m, v, t = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64), 0
    lr, b1, b2, eps, decay = 0.1, 0.8, 0.95, 0.01, 0.5  # far from the defaults: each has a visible effect
    twin = nn.Parameter(w.clone())
    optimizer = torch.optim.AdamW([twin], lr=lr, betas=(b1, b2), eps=eps, weight_decay=decay)
    for t in (1, 2, 3):
        grad = inputs.randn(*shape, dtype=torch.float64)
        twin.grad = grad.clone()
        optimizer.step()
        before = [part.clone() for part in (w, grad, m, v)]
        answer = adamw_step(w, grad, m, v, t, lr=lr, beta1=b1, beta2=b2, eps=eps, decay=decay)
        triple = type(answer) in (tuple, list) and len(answer) == 3
        yield is_true("returns w, m and v", triple, detail=f"got {describe(answer)}", hint="return w, m, v")
        for name, part, old in zip(("w", "grad", "m", "v"), (w, grad, m, v), before, strict=True):
            hint = "An in-place operation changed an input. Build new tensors: m = beta1 * m + ..."
            yield is_unchanged(f"leaves {name} as it was", part, old, hint=hint)
        coupled = grad + decay * w
        new_m, new_v = b1 * m + (1 - b1) * grad, b2 * v + (1 - b2) * grad**2
        yield is_close(
            "m is the running mean of the gradient",
            answer[1],
            new_m,
            hint="m = beta1 * m + (1 - beta1) * grad",
            mistakes=[
                (b1 * m + (1 - b1) * coupled, "You added the decay to the gradient. That is Adam with L2, not AdamW."),
                ((1 - b1) * m + b1 * grad, "The weights are swapped: beta1 belongs to the old mean."),
                (b1 * m + grad, "The new gradient is weighted with 1 - beta1."),
                (new_m / (1 - b1**t), "Return m as it is. The correction belongs to the update only."),
            ],
        )
        yield is_close(
            "v is the running mean of the squared gradient",
            answer[2],
            new_v,
            hint="v = beta2 * v + (1 - beta2) * grad ** 2",
            mistakes=[
                (b2 * v + (1 - b2) * grad, "v averages the square of the gradient."),
                (b1 * v + (1 - b1) * grad**2, "v has its own beta2."),
                (new_v / (1 - b2**t), "Return v as it is. The correction belongs to the update only."),
            ],
        )
        fair_m, fair_v = new_m / (1 - b1**t), new_v / (1 - b2**t)
        move = lr * fair_m / (fair_v.sqrt() + eps)
        yield is_close(
            f"w agrees with torch.optim.AdamW after step {t}",
            answer[0],
            twin.detach(),
            hint="Shrink w by lr * decay * w, then move by lr * m_fair / (sqrt(v_fair) + eps).",
            mistakes=[
                (
                    w * (1 - lr * decay) - lr * new_m / (new_v.sqrt() + eps),
                    "m and v start at 0 and are too small at first. Divide by 1 - beta ** t.",
                ),
                (w - move, "The weight decay is missing."),
                (w * (1 - decay) - move, "The decay is scaled by lr: lr * decay * w."),
                ((w - move) * (1 - lr * decay), "The decay pulls on the weight before the move, not after."),
                (w * (1 - lr * decay) - lr * fair_m / (fair_v + eps).sqrt(), "eps is added outside the square root."),
                (
                    w * (1 - lr * decay) - lr * fair_m / (fair_v + eps),
                    "Divide by the square root of v: it has squared units.",
                ),
                (w * (1 - lr * decay) + move, "The move goes against the gradient: subtract it."),
                (w - lr * (fair_m / (fair_v.sqrt() + eps)) - lr * lr * decay * w, "lr is in the decay twice."),
            ],
        )
        w, m, v = (part.detach().clone() for part in answer)


def check_warmup_cosine(warmup_cosine: Callable, inputs: Inputs) -> Iterator[Check]:
    """training.warmup-cosine: the factor of the peak rate at a step, for LambdaLR."""
    warmup = inputs.size(4, 9)
    total = warmup + 2 * inputs.size(8, 20)

    def at(step: int) -> object:
        value = warmup_cosine(step, warmup, total)
        return float(value) if isinstance(value, float) else value  # NumPy's float64 is a float too

    first = at(0)
    yield is_true(
        "returns a plain number",
        type(first) in (int, float),
        detail=f"got {describe(first)}, expected a Python number",
        hint="LambdaLR multiplies the base rate by it. Compute with the math module, or return float(...).",
    )
    yield is_close(
        "the first step already learns: 1 / warmup",
        first,
        1 / warmup,
        hint="Steps count from 0, so the factor is (step + 1) / warmup.",
        mistakes=[
            (0.0, "A factor of 0 wastes the first step. Use (step + 1) / warmup."),
            (1 / total, "The warm-up ends after `warmup` steps, not after `total`."),
            (1.0, "The warm-up is missing: it starts low."),
        ],
    )
    middle = inputs.size(2, warmup - 2)
    yield is_close(
        "the warm-up is a straight line",
        at(middle),
        (middle + 1) / warmup,
        hint="(step + 1) / warmup while step < warmup.",
    )
    yield is_close(
        "the last warm-up step has the full rate", at(warmup - 1), 1.0, hint="(step + 1) / warmup is 1 there."
    )
    late = inputs.size(warmup + 2, total - 2)
    done = (late - warmup) / (total - warmup)
    yield is_close(
        "then follows half a cosine, from 1 at `warmup` to 0 at `total`",
        at(late),
        0.5 * (1 + math.cos(math.pi * done)),
        hint="progress = (step - warmup) / (total - warmup) runs from 0 to 1; the "
        "factor is (1 + cos(pi * progress)) / 2.",
        mistakes=[
            (
                0.5 * (1 + math.cos(math.pi * late / total)),
                "Progress must be 0 where the warm-up ends: the rate jumps there now.",
            ),
            (1 - done, "This is a straight line down."),
            (math.cos(math.pi * done), "A cosine runs from 1 to -1: the rate would turn negative. Add 1, halve it."),
            (
                math.cos(math.pi / 2 * done),
                "A quarter of a cosine drops abruptly at the end. Use (1 + cos(pi * progress)) / 2.",
            ),
            (0.5 * (1 + math.cos(math.pi * (late - warmup) / total)), "The decay has total - warmup steps, not total."),
        ],
    )
    yield is_close(
        "half-way through the decay the factor is one half", at((warmup + total) // 2), 0.5, hint="cos(pi / 2) is 0."
    )
    beyond = total + inputs.size(1, 5)
    yield is_close(
        "after the end the factor stays 0",
        at(beyond),
        0.0,
        hint="A cosine that goes on rises again. Cut progress off at 1.",
        atol=1e-9,
    )
    yield is_close(
        "without warm-up it starts at 1",
        float(value) if isinstance(value := warmup_cosine(0, 0, total), float) else value,
        1.0,
        hint="With warmup = 0 no step is in the warm-up: test step < warmup before you divide.",
    )


def _with_gradients(inputs: Inputs, scale: float) -> nn.Module:
    """A network whose gradients have the total norm ``scale``; its bias has none, like a frozen or unused part."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    model[0].bias.requires_grad_(False)
    grads = {
        name: inputs.randn(*p.shape, dtype=torch.float64) for name, p in model.named_parameters() if p.requires_grad
    }
    total = torch.cat([grad.reshape(-1) for grad in grads.values()]).norm()
    for name, parameter in model.named_parameters():
        if name in grads:
            parameter.grad = grads[name] * scale / total
    return model


def _gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad.detach().clone() for parameter in model.parameters() if parameter.grad is not None]


def check_clip(clip: Callable, inputs: Inputs) -> Iterator[Check]:
    """training.clip: scale all gradients to a total norm of at most ``max_norm``; the norm before comes back."""
    flat: Callable[[Sequence[Tensor]], Tensor] = lambda grads: torch.cat([grad.reshape(-1) for grad in grads])  # noqa: E731
    norm, limit = 4.0 + inputs.size(0, 4), 1.0 + inputs.size(0, 2) / 2
    model = _with_gradients(inputs, norm)
    before = _gradients(model)
    returned = clip(model.parameters(), limit)  # a generator, as in every training loop
    one_by_one = flat([grad * min(1.0, limit / grad.norm().item()) for grad in before])
    element = flat([grad.clamp(-limit, limit) for grad in before])
    largest = limit / max(grad.abs().max().item() for grad in before)
    yield is_close(
        "the total norm becomes max_norm, and the direction stays",
        flat(_gradients(model)),
        flat(before) * limit / norm,
        hint="One norm over all gradients together, one factor max_norm / norm for all of them.",
        mistakes=[
            (
                flat(before),
                "The gradients did not change. parameters() is a generator: once walked, it is empty. Keep a list.",
            ),
            (
                one_by_one,
                "Each tensor was clipped by its own norm. That turns the step: take one norm over all of them.",
            ),
            (element, "Each number was cut off by itself. That turns the step: scale all by one factor."),
            (flat(before) * largest, "You used the largest element. The norm is the root of the sum of all squares."),
            (flat(before) / norm, "This has norm 1. Multiply by max_norm."),
            (flat(before) * limit / norm**2, "You divided by the squared norm. Take the root first."),
        ],
    )
    number = returned.item() if isinstance(returned, Tensor) and returned.numel() == 1 else returned
    yield is_close(
        "returns the norm before clipping",
        number,
        norm,
        hint="Return the norm that you measured first: it is what one wants in a log.",
        mistakes=[
            (limit, "This is the norm after clipping. The one before tells you that something blew up."),
            (norm**2, "This is the squared norm."),
            (limit / norm, "This is the factor. Return the norm."),
        ],
    )
    small = _with_gradients(inputs, limit / 2)
    before = _gradients(small)
    clip(small.parameters(), limit)
    yield is_close(
        "small gradients stay as they are",
        flat(_gradients(small)),
        flat(before),
        hint="Only scale when the norm is above max_norm.",
        mistakes=[
            (flat(before) * 2, "Small gradients were scaled up to max_norm. Clipping is a ceiling, not a target.")
        ],
    )


def _early_stop(losses: Sequence[float], patience: int) -> tuple[int, int]:
    best, best_epoch, waited = math.inf, 0, 0
    for epoch, loss in enumerate(losses):
        if loss < best:
            best, best_epoch, waited = loss, epoch, 0
        else:
            waited += 1
        if waited >= patience:
            return epoch + 1, best_epoch
    return len(losses), best_epoch


def check_early_stop(early_stop: Callable, inputs: Inputs) -> Iterator[Check]:
    """training.early-stop: validation losses by epoch -> (epochs that ran, index of the best one)."""
    patience = inputs.size(3, 5)
    falling = [3.0 / (epoch + 1) for epoch in range(inputs.size(6, 9))]

    def run(losses: Sequence[float]) -> Any:
        answer = early_stop(list(losses), patience)
        if type(answer) in (tuple, list):  # a list, and whole numbers of NumPy, are as good
            return tuple(int(item) if isinstance(item, np.integer) else item for item in answer)
        return answer

    answer = run(falling)
    pair = type(answer) is tuple and len(answer) == 2 and all(type(item) is int for item in answer)
    yield is_true(
        "returns two whole numbers", pair, detail=f"got {describe(answer)}", hint="return epochs_run, best_epoch"
    )
    yield is_equal(
        "a loss that keeps falling is never stopped",
        answer,
        (len(falling), len(falling) - 1),
        hint="epochs_run counts from 1.",
    )
    turn = len(falling) - 1
    worse = falling + [falling[-1] * (1.5 + 0.1 * k) for k in range(patience + 4)]
    yield is_equal(
        "stops once `patience` epochs in a row were not better",
        run(worse),
        (turn + 1 + patience, turn),
        hint="Count the epochs since the best one; stop when the count reaches patience.",
        mistakes=[
            ((turn + 2 + patience, turn), "One epoch too many: stop as soon as the count reaches patience."),
            ((turn + patience, turn), "One epoch too few: wait until the count reaches patience."),
            ((turn + 1 + patience, turn + patience), "best_epoch is the epoch with the lowest loss, not the last one."),
            ((turn + 2, turn), "You stopped at the first worse epoch. Patience gives it time."),
            ((len(worse), turn), "It never stopped."),
        ],
    )
    zigzag = [value for epoch in range(patience + 3) for value in (2.0 / (epoch + 1), 2.0 / (epoch + 1) + 0.01)]
    yield is_equal(
        "a better epoch starts the count anew",
        run(zigzag),
        _early_stop(zigzag, patience),
        hint="You counted all the bad epochs. Only those in a row, since the last "
        "best one, count: set the count back to 0.",
    )
    bounce = falling + [
        falling[-1] * (4 - 2 * k / (patience + 4)) for k in range(patience + 4)
    ]  # falls, but never to the best
    yield is_equal(
        "better than the epoch before is not enough",
        run(bounce),
        _early_stop(bounce, patience),
        hint="Compare with the best loss so far, not with the one before.",
    )
    level = [1.0, 0.5] + [0.5] * (patience + 3)
    yield is_equal(
        "an equal loss is no improvement",
        run(level),
        _early_stop(level, patience),
        hint="A frozen model repeats its loss for ever. Only loss < best counts.",
    )
    broken = [1.0, 0.5] + [math.nan] * (patience + 3)
    yield is_equal(
        "nan is no improvement",
        run(broken),
        _early_stop(broken, patience),
        hint="Every comparison with nan is False: ask `loss < best`, not `loss >= best`.",
    )
    later = falling + [falling[-1] * 2] * (patience + 2) + [falling[-1] / 2]
    yield is_equal(
        "what comes after the stop is never seen",
        run(later),
        _early_stop(later, patience),
        hint="The best epoch is one of those that ran.",
    )
