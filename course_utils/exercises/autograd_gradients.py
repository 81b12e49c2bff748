"""Checks of lesson 02: accumulating, finding broken chains, clipping, own functions, gradients of the input."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_utils.exercises.compare import describe, has_shape, is_close, is_equal, is_true, is_unchanged
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.verdicts import Check


def small_model(inputs: Inputs, *sizes: int) -> nn.Sequential:
    """Return a float64 network of linear layers with tanh between them, its weights drawn from ``inputs``."""
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(sizes):
        layers += [nn.Linear(n_in, n_out, dtype=torch.float64), nn.Tanh()]
    model = nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(inputs.randn(*parameter.shape, dtype=torch.float64))
    return model


def _grads(model: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def check_accumulate(accumulate: Callable, inputs: Inputs) -> Iterator[Check]:
    """autograd.accumulate: the gradient of the mean over all examples, batch by batch."""
    n_in, hidden, classes = inputs.sizes(3, 3, 6)
    model = small_model(inputs, n_in, hidden, classes)
    sizes = [5, 5, 2]
    x = inputs.randn(sum(sizes), n_in, dtype=torch.float64)
    y = inputs.randint(0, classes, sum(sizes))
    batches = list(zip(x.split(sizes), y.split(sizes), strict=True))
    parameters = list(model.parameters())
    wanted = torch.autograd.grad(F.cross_entropy(model(x), y), parameters)
    each = [torch.autograd.grad(F.cross_entropy(model(a), b), parameters) for a, b in batches]
    total = [sum(parts) for parts in zip(*each, strict=True)]
    for old in (None, 7.0):
        weights = [p.detach().clone() for p in parameters]
        for p in parameters:
            p.grad = None if old is None else torch.full_like(p, old)
        accumulate(model, F.cross_entropy, batches)
        for p, before in zip(parameters, weights, strict=True):
            hint = "Only gradients are asked for. No optimizer step."
            yield is_unchanged("the weights stay as they were", p.detach(), before, hint=hint)
        missing = [p for p in parameters if p.grad is None]
        yield is_true(
            "leaves a gradient on every parameter",
            not missing,
            detail=f"{len(missing)} of {len(parameters)} have none",
            hint="Call backward on each batch's loss.",
        )
        what = "is the gradient of the mean over all examples" + (", whatever stood there before" if old else "")
        for p, want, added in zip(parameters, wanted, total, strict=True):
            mistakes = [
                (added, "These are the three means added up. Each batch counts by its share of the examples."),
                (added / 3, "Each batch counted a third, but the last has 2 examples, not 5."),
                (each[-1][0] if p is parameters[0] else added * 0, "That is the last batch's gradient alone."),
                (want * len(x), "That is the gradient of the sum. Divide by the number of all examples."),
            ]
            if old:
                mistakes += [(want + old, "What stood in .grad before is still in it. Clear it first.")]
            yield is_close(what, p.grad, want, hint="loss * len(batch) / len(all), then backward.", mistakes=mistakes)


def check_unreached(unreached: Callable, inputs: Inputs) -> Iterator[Check]:
    """autograd.unreached: which parameters a loss does not depend on, without touching any ``.grad``."""
    names = ["a", "b", "cut", "dead", "frozen", "unused"]
    p = {name: inputs.randn(3, dtype=torch.float64).requires_grad_(name != "frozen") for name in names}
    loss = (p["a"] * p["b"]).sum() + p["cut"].detach().sum() + (p["dead"] * 0.0).sum() + p["frozen"].sum()
    p["a"].grad = torch.full((3,), 5.0, dtype=torch.float64)
    answer = unreached(loss, dict(p))
    yield is_true(
        "returns names",
        type(answer) in (list, tuple, set) and all(type(name) is str for name in answer),
        detail=f"got {describe(answer)}",
        hint="A list of keys of the dictionary, or a set.",
    )
    wanted = ["cut", "frozen", "unused"]
    yield is_equal(
        "names what no path leads to",
        sorted(answer),
        wanted,
        hint="torch.autograd.grad(..., allow_unused=True) gives None where no path leads.",
        mistakes=[
            (["cut", "dead", "frozen", "unused"], "'dead' is reached: its gradient is 0, which is not None."),
            (["cut", "unused"], "'frozen' does not require gradients, so the loss's graph does not lead to it."),
            (["a", "b", "dead"], "Those are the ones that are reached."),
            (["b", "cut", "frozen", "unused"], "You looked at .grad, where old values may stand."),
        ],
    )
    yield is_true(
        "leaves every .grad as it was",
        all(q.grad is None for name, q in p.items() if name != "a")
        and torch.equal(p["a"].grad, p["a"].new_full((3,), 5)),
        detail="a .grad has changed",
        hint="backward() writes into .grad. torch.autograd.grad returns the gradients instead.",
    )
    yield is_true(
        "leaves every requires_grad as it was",
        all(q.requires_grad == (name != "frozen") for name, q in p.items()),
        detail="a requires_grad has changed",
        hint="To switch it on would make frozen weights learn. Treat those that don't require gradients apart.",
    )
    try:
        loss.backward()
        works = True
    except RuntimeError:
        works = False
    yield is_true(
        "the loss can still be used for backward",
        works,
        detail="its saved tensors have been freed",
        hint="retain_graph=True keeps the graph for a second pass.",
    )
    alone = inputs.randn(1).requires_grad_()
    yield is_equal(
        "works when everything is reached", list(unreached((alone * 2).sum(), {"w": alone})), [], hint="An empty list."
    )


def check_clip(clip: Callable, inputs: Inputs) -> Iterator[Check]:
    """autograd.clip: scale all gradients so that their common norm is at most ``max_norm``."""
    shapes = [(3, 2), (4,), ()]
    for what, scale, max_norm in (
        ("too long", 10.0, 1.5),
        ("short enough", 0.01, 1.5),
        ("too long by little", 1.0, 0.9),
    ):
        parameters = [inputs.randn(*shape, dtype=torch.float64).requires_grad_() for shape in shapes]
        for p in parameters:
            p.grad = scale * inputs.randn(*p.shape, dtype=torch.float64)
        idle = torch.zeros(2, requires_grad=True)  # no gradient
        grads = [p.grad.clone() for p in parameters]
        norm = torch.stack([g.norm() for g in grads]).norm().item()
        if what == "too long by little":
            max_norm = 0.9 * norm
        answer = clip([*parameters, idle], max_norm)
        factor = min(1.0, max_norm / norm)
        yield is_close(
            f"{what}: returns the norm before clipping",
            answer.item() if type(answer) is Tensor and answer.dim() == 0 else answer,
            norm,
            hint="The square root of the sum of all squares, over all tensors together. A float.",
            mistakes=[(min(norm, max_norm), "That is the norm afterwards. The one before is what you want to log.")],
        )
        for p, g in zip(parameters, grads, strict=True):
            yield is_close(
                f"{what}: every gradient is scaled by the same factor",
                p.grad,
                g * factor,
                hint="One factor for all: min(1, max_norm / norm).",
                rtol=1e-4,
                mistakes=[
                    (g * max_norm / norm, "Gradients that are short enough stay as they are: never scale up."),
                    (
                        g * min(1.0, max_norm / g.norm().item()),
                        "You clipped each tensor by its own norm: this turns the step.",
                    ),
                    (g.clamp(-max_norm, max_norm), "You clipped each number. This changes the direction of the step."),
                    (g, "Nothing was scaled. Write into p.grad, in place."),
                ],
            )
        yield is_true("a parameter without a gradient stays without", idle.grad is None, hint="Skip it.")


def check_function(softplus: Any, inputs: Inputs) -> Iterator[Check]:
    """autograd.function: log(1 + exp(x)) with a backward that doesn't overflow."""
    is_function = isinstance(softplus, type) and issubclass(softplus, torch.autograd.Function)
    yield is_true(
        "is a class derived from torch.autograd.Function",
        is_function,
        detail=f"got {describe(softplus)}",
        hint="class Softplus(torch.autograd.Function), with static methods forward and backward.",
    )
    x = inputs.strided(3, 4, dtype=torch.float64).detach().requires_grad_()
    y = softplus.apply(x)
    yield is_close("computes log(1 + exp(x))", y, F.softplus(x), hint="log1p(exp(x)) for moderate x.", atol=1e-9)
    upstream = inputs.randn(3, 4, dtype=torch.float64)
    (grad,) = torch.autograd.grad(y, x, upstream)
    slope = x.detach().sigmoid()
    yield is_close(
        "passes on the gradient from above times the derivative",
        grad,
        upstream * slope,
        hint="The derivative of log(1 + exp(x)) is sigmoid(x). Multiply by grad_output.",
        atol=1e-9,
        mistakes=[
            (slope, "That is the derivative alone. Multiply by grad_output, the gradient from above."),
            (upstream, "That is grad_output alone. Multiply by the derivative, sigmoid(x)."),
            (upstream * slope * (1 - slope), "That is the derivative of sigmoid. softplus has sigmoid as derivative."),
            (upstream * y.detach().sigmoid(), "sigmoid of the output. Save x, the input, in forward."),
        ],
    )
    yield is_true(
        "passes gradcheck",
        torch.autograd.gradcheck(softplus.apply, (x.detach().requires_grad_(),), raise_exception=False),
        detail="gradcheck, which compares with finite differences, says no",
        hint="Run torch.autograd.gradcheck(Softplus.apply, (x,)) in float64 and read its message.",
    )
    large = torch.tensor([-800.0, 0.0, 800.0], requires_grad=True)
    wide = softplus.apply(large)
    yield is_true(
        "is finite for large x",
        type(wide) is Tensor and bool(torch.isfinite(wide).all()),
        detail=f"at −800, 0 and 800 it is {wide.tolist() if type(wide) is Tensor else wide}",
        hint="exp(800) is infinite. log(1 + exp(x)) = max(x, 0) + log1p(exp(−|x|)).",
    )
    yield is_close(
        "is right for large x",
        wide,
        torch.tensor([0.0, 0.6931472, 800.0]),
        hint="exp(800) is infinite. log(1 + exp(x)) = max(x, 0) + log1p(exp(−|x|)).",
    )
    (grad,) = torch.autograd.grad(wide.sum(), large)
    yield is_close(
        "has a finite gradient for large x", grad, torch.tensor([0.0, 0.5, 1.0]), hint="torch.sigmoid doesn't overflow."
    )


def check_adversarial(adversarial: Callable, inputs: Inputs) -> Iterator[Check]:
    """autograd.adversarial: one step of the sign of the gradient with respect to the images."""
    n, pixels, classes = inputs.sizes(3, 4, 9)
    model = small_model(inputs, pixels, 6, classes)
    images = inputs.rand(n, pixels, dtype=torch.float64)
    labels = inputs.randint(0, classes, n)
    epsilon = 0.1
    kept = torch.full_like(model[0].weight, 3.0)
    model[0].weight.grad = kept.clone()
    leaf = images.clone().requires_grad_()
    (grad,) = torch.autograd.grad(F.cross_entropy(model(leaf), labels), leaf)
    before = images.clone()
    answer = adversarial(model, images, labels, epsilon)
    yield has_shape("the images keep their shape", answer, tuple(images.shape))
    yield is_unchanged("the images that were given stay as they were", images, before, hint="Work on a copy.")
    yield is_true(
        "and require no gradients afterwards",
        not images.requires_grad,
        detail="images.requires_grad is True",
        hint="requires_grad_() on a copy: images.clone().requires_grad_().",
    )
    wanted = (images + epsilon * grad.sign()).clamp(0, 1)
    yield is_close(
        "each pixel moves by epsilon towards a higher loss, and stays in 0..1",
        answer,
        wanted,
        hint="images + epsilon * sign(gradient of the loss by the images), clamped to 0..1.",
        mistakes=[
            (
                (images - epsilon * grad.sign()).clamp(0, 1),
                "That lowers the loss. Go up: with the sign of the gradient.",
            ),
            (images + epsilon * grad.sign(), "Pixels below 0 or above 1 are no ink. Clamp to 0..1."),
            (
                (images + epsilon * grad).clamp(0, 1),
                "That is a step along the gradient. Its sign moves each pixel by epsilon.",
            ),
        ],
    )
    others = [p.grad for p in list(model.parameters())[1:]]
    yield is_true(
        "the parameters' gradients are as they were",
        type(model[0].weight.grad) is Tensor
        and torch.equal(model[0].weight.grad, kept)
        and all(g is None for g in others),
        detail="a .grad of the model has changed",
        hint="loss.backward() adds to the parameters' gradients too, and clearing them loses what stood there. "
        "torch.autograd.grad(loss, images) touches none.",
    )
    yield is_true(
        "the result is in no graph",
        not answer.requires_grad,
        detail="the result requires gradients",
        hint="detach() it: the next step must not lead back through this one.",
    )
