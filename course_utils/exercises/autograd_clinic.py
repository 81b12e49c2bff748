"""Checks of lesson 02's clinic: gradients that are cut, wrong, nan, or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_utils.exercises.autograd_gradients import small_model
from course_utils.exercises.compare import is_close, is_true
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.verdicts import Check


class _Reader(nn.Module):
    """A body and a head, as the clinic's program expects them."""

    def __init__(self, inputs: Inputs, n_in: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.body = small_model(inputs, n_in, hidden)
        self.head = small_model(inputs, hidden, classes)


def check_clinic_features(scores: Callable, inputs: Inputs) -> Iterator[Check]:
    """autograd.clinic-features: a value that goes through a Python list leaves the graph."""
    n_in, hidden, classes = inputs.sizes(3, 3, 7)
    model = _Reader(inputs, n_in, hidden, classes)
    images = inputs.randn(4, n_in, dtype=torch.float64)
    wanted = model.head(model.body(images).tanh())
    answer = scores(model, images)
    yield is_close(
        "the scores are those of head(tanh(body(images)))", answer, wanted.detach(), hint="Keep the arithmetic."
    )
    weights = [model.body[0].weight, model.head[0].weight]
    if not answer.requires_grad:
        yield is_true(
            "the scores have a graph",
            False,
            detail="requires_grad is False",
            hint="Something took them out of the graph.",
        )
        return
    found = torch.autograd.grad(answer.square().sum(), weights, allow_unused=True)
    yield is_true(
        "the loss reaches the body",
        found[0] is not None,
        detail="the body's gradient is None: it will never learn, and no error says so",
        hint="Python lists and NumPy hold numbers without a history. Stay with tensors from body to head.",
    )
    real = torch.autograd.grad(wanted.square().sum(), weights)
    for name, got, want in zip(("body", "head"), found, real, strict=True):
        yield is_close(f"the {name}'s gradient is right", got, want, hint="Compare with autograd on the plain formula.")


def check_clinic_softmax(probabilities: Callable, inputs: Inputs) -> Iterator[Check]:
    """autograd.clinic-softmax: `.data` writes behind autograd's back, so values are right and gradients wrong."""
    logits = inputs.randn(3, 5, dtype=torch.float64).requires_grad_()
    upstream = inputs.randn(3, 5, dtype=torch.float64)
    answer = probabilities(logits)
    wanted = logits.softmax(1)
    yield is_close("each row is a softmax", answer, wanted.detach(), hint="exp, divided by the sum of the row.")
    (grad,) = torch.autograd.grad(answer, logits, upstream, allow_unused=True)
    yield is_true(
        "the result has a graph that leads to the logits", grad is not None, detail="no path", hint="Don't detach."
    )
    (right,) = torch.autograd.grad(wanted, logits, upstream)
    yield is_close(
        "the gradient is that of softmax",
        grad,
        right,
        hint="Check it: torch.autograd.gradcheck(probabilities, (logits,)) in float64.",
        mistakes=[
            (
                upstream * wanted.detach(),
                "Autograd takes the sum of the row for a constant: .data and detach hide the rest from it.",
            )
        ],
    )


def check_clinic_two_losses(backward_both: Callable, inputs: Inputs) -> Iterator[Check]:
    """autograd.clinic-two-losses: two losses on one graph."""
    n_in, hidden, classes = inputs.sizes(3, 3, 7)
    model = _Reader(inputs, n_in, hidden, classes)
    x = inputs.randn(4, n_in, dtype=torch.float64)
    labels, targets = inputs.randint(0, classes, 4), inputs.randn(4, hidden, dtype=torch.float64)
    features = model.body(x)
    parts = (F.cross_entropy(model.head(features), labels), F.mse_loss(features, targets))
    parameters = list(model.parameters())
    first, second = (_gradients(part, parameters) for part in parts)
    for old in (None, 3.0):
        for p in parameters:
            p.grad = None if old is None else torch.full_like(p, old)
        backward_both(model, x, labels, targets)
        for p, one, other in zip(parameters, first, second, strict=True):
            before = old or 0.0
            yield is_close(
                "the gradients are those of both losses together" + (", added to what stood there" if old else ""),
                p.grad if p.grad is not None else torch.zeros_like(p),
                one + other + before,
                hint="Gradients add up, so the gradient of the sum is the sum of the gradients.",
                mistakes=[
                    (one + before, "Only the first loss has arrived at this parameter."),
                    (other + before, "Only the second loss has arrived at this parameter."),
                    ((one + other) / 2 + before, "That is the gradient of the mean of both losses. Add them."),
                    (one + other, "What stood in .grad before is gone. Don't clear it here: the caller does."),
                ],
            )


def _gradients(loss: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    """Return the gradients of a loss, zeros where no path leads; its graph stays."""
    found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def check_clinic_distance(distances: Callable, inputs: Inputs) -> Iterator[Check]:
    """autograd.clinic-distance: a square root at 0 has an infinite slope, and 0 times infinity is nan."""
    n, d = inputs.sizes(2, 3, 7)
    a, b = (inputs.randn(n, d, dtype=torch.float64) for _ in range(2))
    b[0] = a[0]  # a pair that coincides
    a.requires_grad_()
    answer = distances(a, b)
    wanted = (a - b).detach().square().sum(1).sqrt()
    hint = "The root of the sum of squares."
    if type(answer) is Tensor and answer.shape == wanted.shape and answer[0] > 2e-5:
        hint += " Where a and b coincide it is 0: an epsilon under the root adds its own root, √1e-8 is 1e-4."
    yield is_close("the distances are right", answer, wanted, hint=hint, atol=2e-5)
    (grad,) = torch.autograd.grad(answer.sum(), a)
    yield is_true(
        "no gradient is nan, also where the two points are the same",
        bool(torch.isfinite(grad).all()),
        detail=f"{int((~torch.isfinite(grad)).sum())} of {grad.numel()} gradients are nan or infinite",
        hint="torch.where chooses afterwards: the branch that is not taken gets a gradient of 0, and 0 · inf is nan. "
        "Change what goes *into* the square root.",
    )
    expected = torch.zeros_like(grad)
    expected[1:] = ((a - b).detach() / wanted[:, None].clamp_min(1e-9))[1:]
    yield is_close("elsewhere the gradient is right", grad[1:], expected[1:], hint="(a − b) / distance.", rtol=1e-3)
    yield is_true(
        "where they coincide it is small",
        bool((grad[0].abs() <= 1.0).all()),
        detail=f"up to {grad[0].abs().max():.3g}",
        hint="0 is a sensible slope there.",
    )


def check_clinic_gate(gated: Callable, inputs: Inputs) -> Iterator[Check]:
    """autograd.clinic-gate: an in-place change of what backward needs."""
    x = inputs.randn(4, 3, dtype=torch.float64).requires_grad_()
    answer = gated(x)
    gate = x.sigmoid()
    wanted = x * (gate * 0.9 + 0.1)
    yield is_close("the values are x · (0.9 · sigmoid(x) + 0.1)", answer, wanted.detach(), hint="Keep the arithmetic.")
    upstream = inputs.randn(4, 3, dtype=torch.float64)
    (right,) = torch.autograd.grad(wanted, x, upstream)
    (grad,) = torch.autograd.grad(answer, x, upstream)
    gate = gate.detach()
    used = gate * 0.9 + 0.1
    yield is_close(
        "the gradient is right",
        grad,
        right,
        hint="Write gate = gate * 0.9 + 0.1: a new tensor.",
        mistakes=[
            (upstream * used, "Autograd takes the gate for a constant: detach cut it off. Make a new tensor instead."),
            (
                upstream * (used + x.detach() * used * (1 - used)),
                ".data hides the change, and backward computes with the overwritten sigmoid. Make a new tensor.",
            ),
        ],
    )
