"""Lesson 02's exercises: right answers in several forms pass, each wrong one meets its own message."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_utils import tape as tapes
from tests.exercises.harness import Answers, WrongAnswers, exercise_tests

RIGHT: Answers = {}
WRONG: WrongAnswers = {}

# --- operations: the names of the functions behind a tensor ---------------------------------------------------------


def _by_queue(output: Tensor) -> list[str]:
    todo, seen = deque([output.grad_fn]), {}
    while todo:
        function = todo.popleft()
        if function is not None and function not in seen:
            seen[function] = function.name()
            todo.extend(edge[0] for edge in function.next_functions)
    return sorted(name for name in seen.values() if "AccumulateGrad" not in name)


def _by_level(output: Tensor) -> list[str]:
    level, everything = {output.grad_fn} - {None}, set()
    while level:
        everything |= level
        level = {p for f in level for p, _ in f.next_functions if p is not None} - everything
    return sorted(type(f).__name__ for f in everything if not hasattr(f, "variable"))


def _recursive(output: Tensor) -> list[str]:
    def below(function: Any) -> list[str]:
        if function is None or type(function).__name__ == "AccumulateGrad":
            return []
        return [type(function).__name__, *(name for p, _ in function.next_functions for name in below(p))]

    return sorted(below(output.grad_fn))


RIGHT["autograd.operations"] = {"a queue": _by_queue, "level by level": _by_level}
WRONG["autograd.operations"] = {
    "only the last": (lambda y: [type(y.grad_fn).__name__], "next_functions lead on"),
    "visits again": (_recursive, "three paths lead to it"),
    "names once": (lambda y: sorted(set(_by_queue(y))), "Nodes count, not names"),
    "with the leaves": (
        lambda y: sorted([*_by_queue(y), *["AccumulateGrad"] * len({id(p[0]) for p in _leaf_nodes(y)})]),
        "Leave out the leaves",
    ),
    "from Z to A": (lambda y: _by_queue(y)[::-1], "Sort from A to Z"),
    "a leaf's grad_fn": (lambda y: _by_queue(y) if y.grad_fn.next_functions else [], "the grad_fn of a leaf"),
    "a string": (lambda y: " ".join(_by_queue(y)), "A list of names"),
    "a set": (lambda y: set(_by_queue(y)), "A list of names"),
}


def _leaf_nodes(output: Tensor) -> list[Any]:
    todo, found = [output.grad_fn], {}
    while todo:
        function = todo.pop()
        for parent, _ in function.next_functions if function is not None else ():
            if parent is not None and hasattr(parent, "variable"):
                found[parent] = (parent,)
            elif parent is not None:
                todo.append(parent)
    return list(found.values())


# --- partials -------------------------------------------------------------------------------------------------------


def _by_finite_differences(operation: str, *values: float) -> list[float]:
    steps = [*(tapes.Step(tapes.LEAF) for _ in values), tapes.Step(operation, tuple(range(len(values))))]
    slopes = []
    for place in range(len(values)):
        up, down = list(values), list(values)
        up[place] += 1e-6
        down[place] -= 1e-6
        slopes.append((tapes.run(steps, up)[-1] - tapes.run(steps, down)[-1]) / 2e-6)
    return slopes


def _wrong_partials(**rules: Any) -> Any:
    return lambda operation, *v: rules[operation](*v) if operation in rules else tapes.partials(operation, *v)


RIGHT["autograd.partials"] = {
    "finite differences": _by_finite_differences,
    "as tensors' numbers": lambda op, *v: tuple(
        float(torch.tensor(s, dtype=torch.float64)) for s in tapes.partials(op, *v)
    ),
}
WRONG["autograd.partials"] = {
    "mul by itself": (_wrong_partials(mul=lambda a, b: (a, b)), "the *other* input"),
    "sub adds": (_wrong_partials(sub=lambda a, b: (1.0, 1.0)), "falls when b grows"),
    "tanh of the input": (_wrong_partials(tanh=lambda a: (1 - a * a,)), "the output, not x itself"),
    "exp is x": (_wrong_partials(exp=lambda a: (a,)), "The derivative of exp is exp"),
    "square forgets the 2": (_wrong_partials(square=lambda a: (a,)), "differentiation applies to square"),
    "a number instead of a tuple": (_wrong_partials(exp=math.exp), "(value,)"),
    "one for two": (_wrong_partials(add=lambda a, b: (1.0,)), "2 derivatives"),
}

# --- order ----------------------------------------------------------------------------------------------------------


def _by_reverse(tape: tapes.Tape) -> list[int]:
    needed, order = {len(tape) - 1}, []
    for place in reversed(range(len(tape))):
        if place in needed:
            order.append(place)
            needed |= set(tape[place].inputs)
    return order


def _by_counting_users(tape: tapes.Tape) -> list[int]:
    needed = set(_by_reverse(tape))
    waiting = dict.fromkeys(needed, 0)
    for place in needed:
        for source in set(tape[place].inputs):
            waiting[source] += 1
    ready, order = [len(tape) - 1], []
    while ready:
        place = ready.pop(0)
        order.append(place)
        for source in set(tape[place].inputs):
            waiting[source] -= 1
            if waiting[source] == 0:
                ready.append(source)
    return order


def _postorder(tape: tapes.Tape) -> list[int]:
    order: list[int] = []

    def visit(place: int) -> None:
        if place not in order:
            for source in tape[place].inputs:
                visit(source)
            order.append(place)

    visit(len(tape) - 1)
    return order[::-1]


def _preorder(tape: tapes.Tape) -> list[int]:
    order: list[int] = []

    def visit(place: int) -> None:
        if place not in order:
            order.append(place)
            for source in tape[place].inputs:
                visit(source)

    visit(len(tape) - 1)
    return order


RIGHT["autograd.order"] = {
    "counting users": _by_counting_users,
    "postorder, turned round": _postorder,
    "as NumPy numbers": lambda tape: list(np.array(_by_reverse(tape))),
}
WRONG["autograd.order"] = {
    "depth first": (_preorder, "must be complete"),
    "everything": (lambda tape: list(reversed(range(len(tape)))), "What it does not depend on"),
    "forward": (lambda tape: sorted(_by_reverse(tape)), "Backward begins at the output"),
    "without the leaves": (lambda tape: [p for p in _by_reverse(tape) if tape[p].inputs], "missing"),
    "again and again": (lambda tape: [*_by_reverse(tape), _by_reverse(tape)[-1]], "visited once"),
    "steps instead of places": (lambda tape: [tape[p] for p in _by_reverse(tape)], "A list such as"),
}

# --- engine ---------------------------------------------------------------------------------------------------------


def _engine(
    tape: tapes.Tape, values: list[float], *, add: bool = True, chain: bool = True, seed: float = 1.0
) -> list[float]:
    grads = [0.0] * len(tape)
    grads[-1] = seed
    for place in reversed(range(len(tape))):
        step = tape[place]
        if step.inputs:
            slopes = tapes.partials(step.operation, *(values[i] for i in step.inputs))
            for source, slope in zip(step.inputs, slopes, strict=True):
                part = (grads[place] if chain else 1.0) * slope
                grads[source] = grads[source] + part if add else part
    return grads


def _forward_mode(tape: tapes.Tape, values: list[float]) -> list[float]:
    def tangent(wanted: int) -> float:
        dots: list[float] = []
        for place, step in enumerate(tape):
            if place == wanted:
                dots.append(1.0)
            elif not step.inputs:
                dots.append(0.0)
            else:
                slopes = tapes.partials(step.operation, *(values[i] for i in step.inputs))
                dots.append(sum(slope * dots[i] for slope, i in zip(slopes, step.inputs, strict=True)))
        return dots[-1]

    return [tangent(place) for place in range(len(tape))]


RIGHT["autograd.engine"] = {
    "forward mode, once for each place": _forward_mode,
    "in the order of counted users": lambda tape, values: _engine(tape, values),
    "as NumPy numbers": lambda tape, values: tuple(np.array(_engine(tape, values))),
}
WRONG["autograd.engine"] = {
    "overwrites": (lambda tape, values: _engine(tape, values, add=False), "has overwritten"),
    "no chain rule": (lambda tape, values: _engine(tape, values, chain=False), "missing as a factor"),
    "begins with 0": (lambda tape, values: _engine(tape, values, seed=0.0), "Begin with 1"),
    "only the leaves": (
        lambda tape, values: [g for g, step in zip(_engine(tape, values), tape, strict=True) if not step.inputs],
        "one for each place",
    ),
    "a tensor": (lambda tape, values: torch.tensor(_engine(tape, values)), "A list of floats"),
    "an array": (lambda tape, values: np.array(_engine(tape, values)), ".tolist() makes one"),
    "partials of a leaf": (
        lambda tape, values: [tapes.partials(step.operation, *(values[i] for i in step.inputs)) for step in tape],
        "A leaf has no inputs",
    ),
    "inverted": (lambda tape, values: _engine(tape, values)[::-1], "multiplies along a chain"),
}

# --- unbroadcast ----------------------------------------------------------------------------------------------------


def _by_steps(grad: Tensor, shape: tuple[int, ...]) -> Tensor:
    while grad.dim() > len(shape):
        grad = grad.sum(0)
    for axis, size in enumerate(shape):
        if size == 1 and grad.shape[axis] != 1:
            grad = grad.sum(axis, keepdim=True)
    return grad


def _by_autograd(grad: Tensor, shape: tuple[int, ...]) -> Tensor:
    x = torch.zeros(shape, dtype=grad.dtype, requires_grad=True)
    return torch.autograd.grad(x.expand(grad.shape), x, grad)[0]


RIGHT["autograd.unbroadcast"] = {
    "axis by axis": _by_steps,
    "asking autograd": _by_autograd,
    "sum_to_size": lambda grad, shape: grad.sum_to_size(shape),
}
WRONG["autograd.unbroadcast"] = {
    "mean": (
        lambda grad, shape: _by_steps(grad, shape) / (grad.numel() / max(math.prod(shape), 1)),
        "mean over the copies",
    ),
    "only axes in front": (
        lambda grad, shape: grad.sum(tuple(range(grad.dim() - len(shape)))) if grad.dim() > len(shape) else grad,
        "keepdim=True",
    ),
    "as it is": (lambda grad, shape: grad, "summed"),
    "the first copy": (
        lambda grad, shape: grad[(0,) * (grad.dim() - len(shape))][tuple(slice(0, s) for s in shape)],
        "Each copy of a number adds",
    ),
    "reshapes": (lambda grad, shape: grad.reshape(shape), "sum over the copies first"),
    "expands": (lambda grad, shape: grad.expand(shape), "expand goes from small to large"),
    "loses the axis": (lambda grad, shape: _by_steps(grad, shape).squeeze(), "keepdim=True"),
    "writes into the gradient": (lambda grad, shape: _by_steps(grad.mul_(2), shape) / 2, "stays as it was"),
}  # fmt: skip

# --- accumulate -----------------------------------------------------------------------------------------------------


def _weighted(model: nn.Module, loss_fn: Any, batches: Any, *, weight: Any = None, clear: bool = True) -> None:
    n = sum(len(y) for _, y in batches)
    if clear:
        model.zero_grad()
    for x, y in batches:
        (loss_fn(model(x), y) * (len(y) / n if weight is None else weight(y, n))).backward()


def _one_sum(model: nn.Module, loss_fn: Any, batches: Any) -> None:
    model.zero_grad()
    total = sum(loss_fn(model(x), y) * len(y) for x, y in batches)
    (total / sum(len(y) for _, y in batches)).backward()


def _one_batch(model: nn.Module, loss_fn: Any, batches: Any) -> None:
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    for p, g in zip(
        model.parameters(), torch.autograd.grad(loss_fn(model(x), y), list(model.parameters())), strict=True
    ):
        p.grad = g


def _stepping(model: nn.Module, loss_fn: Any, batches: Any) -> None:
    _weighted(model, loss_fn, batches)
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def _clearing_each_time(model: nn.Module, loss_fn: Any, batches: Any) -> None:
    for x, y in batches:
        model.zero_grad()
        loss_fn(model(x), y).backward()


RIGHT["autograd.accumulate"] = {"the sum, divided once": _one_sum, "one big batch": _one_batch}
WRONG["autograd.accumulate"] = {
    "adds means": (lambda *a: _weighted(*a, weight=lambda y, n: 1.0), "three means added up"),
    "a third each": (lambda *a: _weighted(*a, weight=lambda y, n: 1 / 3), "not 5"),
    "the sum": (lambda *a: _weighted(*a, weight=lambda y, n: float(len(y))), "gradient of the sum"),
    "never clears": (lambda *a: _weighted(*a, clear=False), "Clear it first"),
    "clears each time": (_clearing_each_time, "last batch"),
    "steps": (_stepping, "No optimizer step"),
    "no backward": (lambda model, *a: model.zero_grad(), "Call backward"),
    "fills None with zeros": (
        lambda model, *a: [p.grad.zero_() for p in model.parameters()],
        "model.zero_grad() copes",
    ),
}

# --- unreached ------------------------------------------------------------------------------------------------------


def _unreached(loss: Tensor, parameters: dict[str, Tensor]) -> list[str]:
    asked = {name: p for name, p in parameters.items() if p.requires_grad}
    grads = torch.autograd.grad(loss, list(asked.values()), allow_unused=True, retain_graph=True)
    reached = {name for name, grad in zip(asked, grads, strict=True) if grad is not None}
    return [name for name in parameters if name not in reached]


def _by_walking(loss: Tensor, parameters: dict[str, Tensor]) -> list[str]:
    todo, found = [loss.grad_fn], set()
    while todo:
        function = todo.pop()
        if function is not None:
            if hasattr(function, "variable"):
                found.add(id(function.variable))
            todo.extend(p for p, _ in function.next_functions)
    return [name for name, p in parameters.items() if id(p) not in found]


def _by_backward(loss: Tensor, parameters: dict[str, Tensor]) -> list[str]:
    for p in parameters.values():
        p.grad = None
    loss.backward(retain_graph=True)
    return [name for name, p in parameters.items() if p.grad is None]


def _zeros_too(loss: Tensor, parameters: dict[str, Tensor]) -> list[str]:
    names = _unreached(loss, parameters)
    rest = {n: p for n, p in parameters.items() if n not in names}
    grads = torch.autograd.grad(loss, list(rest.values()), retain_graph=True)
    return sorted([*names, *(n for n, g in zip(rest, grads, strict=True) if not g.any())])


def _once(loss: Tensor, parameters: dict[str, Tensor]) -> list[str]:
    names = _by_walking(loss, parameters)
    torch.autograd.grad(loss, [p for n, p in parameters.items() if n not in names])
    return names


def _ask(loss: Tensor, parameter: Tensor) -> Tensor | None:
    return torch.autograd.grad(loss, parameter, allow_unused=True, retain_graph=True)[0]


def _switching_on(loss: Tensor, parameters: dict[str, Tensor]) -> list[str]:
    for p in parameters.values():
        p.requires_grad_(True)
    return _unreached(loss, parameters)


RIGHT["autograd.unreached"] = {
    "all at once": _unreached,
    "walking the graph": _by_walking,
    "as a set": lambda loss, parameters: set(_unreached(loss, parameters)),
}
WRONG["autograd.unreached"] = {
    "by backward": (_by_backward, "backward() writes into .grad"),
    "zero counts": (_zeros_too, "which is not None"),
    "only those that require gradients": (
        lambda loss, p: [n for n in _unreached(loss, p) if p[n].requires_grad],
        "does not require gradients",
    ),
    "the reached": (lambda loss, p: [n for n in p if n not in _unreached(loss, p)], "ones that are reached"),
    "looks at .grad": (
        lambda loss, p: [n for n, q in p.items() if q.grad is None and n != "dead"],
        "where old values may stand",
    ),
    "switches frozen ones on": (_switching_on, "make frozen weights learn"),
    "frees the graph": (_once, "retain_graph=True keeps"),
    "asks frozen ones": (
        lambda loss, p: [n for n, q in p.items() if _ask(loss, q) is None],
        "Look at p.requires_grad first",
    ),
}  # fmt: skip

# --- clip -----------------------------------------------------------------------------------------------------------


def _clip(parameters: Any, max_norm: float, *, up: bool = False, after: bool = False, scale: bool = True) -> float:
    grads = [p.grad for p in parameters if p.grad is not None]
    norm = math.sqrt(sum(float(g.square().sum()) for g in grads))
    factor = max_norm / norm if up else min(1.0, max_norm / norm)
    if scale:
        for g in grads:
            g *= factor
    return norm * factor if after else norm


def _each_alone(parameters: Any, max_norm: float) -> float:
    norm = _clip(parameters, math.inf)
    for p in parameters:
        _clip([p], max_norm) if p.grad is not None else None
    return norm


def _clamped(parameters: Any, max_norm: float) -> float:
    norm = _clip(parameters, math.inf)
    for p in parameters:
        if p.grad is not None:
            p.grad.clamp_(-max_norm, max_norm)
    return norm


def _new_gradients(parameters: Any, max_norm: float) -> float:
    norm = _clip(parameters, math.inf)
    for p in parameters:
        if p.grad is not None:
            p.grad = p.grad * min(1.0, max_norm / norm)
    return norm


RIGHT["autograd.clip"] = {
    "PyTorch's": lambda parameters, max_norm: torch.nn.utils.clip_grad_norm_(parameters, max_norm).item(),
    "PyTorch's, as a tensor": lambda parameters, max_norm: torch.nn.utils.clip_grad_norm_(parameters, max_norm),
    "new tensors": _new_gradients,
}
WRONG["autograd.clip"] = {
    "each by itself": (_each_alone, "this turns the step"),
    "clamps": (_clamped, "changes the direction"),
    "scales up": (lambda p, m: _clip(p, m, up=True), "never scale up"),
    "the norm afterwards": (lambda p, m: _clip(p, m, after=True), "The one before"),
    "scales nothing": (lambda p, m: _clip(p, m, scale=False), "Nothing was scaled"),
    "returns nothing": (lambda p, m: [_clip(p, m), None][1], "before clipping"),
    "stumbles over None": (lambda p, m: sum(q.grad.norm() for q in p), "skip it"),
    "squares None": (lambda p, m: sum((q.grad**2).sum() for q in p), "skip it"),
}

# --- function -------------------------------------------------------------------------------------------------------


def _function(forward: Any, backward: Any) -> type:
    """Return an autograd function whose backward gets the input, the output and the gradient from above."""

    class Softplus(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y = forward(x)
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx: Any, grad_output: Tensor) -> Any:
            x, y = ctx.saved_tensors
            return backward(x, y, grad_output)

    return Softplus


def _stable(x: Tensor) -> Tensor:
    return x.clamp_min(0) + torch.log1p(torch.exp(-x.abs()))


class _saving_only(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _stable(x)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        return grad_output * torch.sigmoid(ctx.saved_tensors)


RIGHT["autograd.function"] = {
    "logaddexp": _function(lambda x: torch.logaddexp(x, torch.zeros_like(x)), lambda x, y, g: g * x.sigmoid()),
    "from the output": _function(F.softplus, lambda x, y, g: g * (1 - torch.exp(-y))),
    "sigmoid by hand": _function(_stable, lambda x, y, g: g / (1 + torch.exp(-x))),
}
WRONG["autograd.function"] = {
    "drops grad_output": (_function(_stable, lambda x, y, g: x.sigmoid()), "Multiply by grad_output"),
    "passes on": (_function(_stable, lambda x, y, g: g), "That is grad_output alone"),
    "sigmoid's derivative": (
        _function(_stable, lambda x, y, g: g * x.sigmoid() * (1 - x.sigmoid())),
        "softplus has sigmoid",
    ),
    "sigmoid of the output": (_function(_stable, lambda x, y, g: g * y.sigmoid()), "Save x"),
    "overflows": (
        _function(lambda x: torch.log(1 + torch.exp(x)), lambda x, y, g: g * x.sigmoid()),
        "exp(800) is infinite",
    ),
    "nan in backward": (
        _function(_stable, lambda x, y, g: g * torch.exp(x) / (1 + torch.exp(x))),
        "finite gradient",
    ),
    "doesn't unpack": (_saving_only, "also if it holds one tensor"),
    "looks for x outside": (_function(_stable, lambda *a: a[2] * torch.sigmoid(not_saved)), "share nothing but ctx"),  # noqa: F821
    "a function": (lambda x: _stable(x), "class Softplus"),
    "a module": (nn.Softplus, "class Softplus"),
}

# --- adversarial ----------------------------------------------------------------------------------------------------


def _grad_of(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    leaf = images.clone().requires_grad_()
    return torch.autograd.grad(F.cross_entropy(model(leaf), labels), leaf)[0]


def _with_zero_tensor(model: nn.Module, images: Tensor, labels: Tensor, epsilon: float) -> Tensor:
    shift = torch.zeros_like(images, requires_grad=True)
    (grad,) = torch.autograd.grad(F.cross_entropy(model(images + shift), labels, reduction="sum"), shift)
    return torch.clip(images + epsilon * torch.sign(grad), 0.0, 1.0)


def _with_backward_and_repair(model: nn.Module, images: Tensor, labels: Tensor, epsilon: float) -> Tensor:
    kept = [p.grad if p.grad is None else p.grad.clone() for p in model.parameters()]
    leaf = images.detach().clone().requires_grad_()
    F.cross_entropy(model(leaf), labels).backward()
    for p, g in zip(model.parameters(), kept, strict=True):
        p.grad = g
    return (leaf + epsilon * leaf.grad.sign()).clamp(0, 1).detach()


def _with_backward(model: nn.Module, images: Tensor, labels: Tensor, epsilon: float) -> Tensor:
    leaf = images.clone().requires_grad_()
    F.cross_entropy(model(leaf), labels).backward()
    return (leaf + epsilon * leaf.grad.sign()).clamp(0, 1).detach()


def _with_backward_and_clearing(model: nn.Module, images: Tensor, labels: Tensor, epsilon: float) -> Tensor:
    answer = _with_backward(model, images, labels, epsilon)
    model.zero_grad()
    return answer


def _on_the_images(model: nn.Module, images: Tensor, labels: Tensor, epsilon: float) -> Tensor:
    images.requires_grad_()
    (grad,) = torch.autograd.grad(F.cross_entropy(model(images), labels), images)
    return (images + epsilon * grad.sign()).clamp(0, 1).detach()


def _in_the_graph(model: nn.Module, images: Tensor, labels: Tensor, epsilon: float) -> Tensor:
    leaf = images.clone().requires_grad_()
    (grad,) = torch.autograd.grad(F.cross_entropy(model(leaf), labels), leaf)
    return (leaf + epsilon * grad.sign()).clamp(0, 1)


RIGHT["autograd.adversarial"] = {"by a shift": _with_zero_tensor, "backward, then put back": _with_backward_and_repair}
WRONG["autograd.adversarial"] = {
    "down": (lambda m, x, y, e: (x - e * _grad_of(m, x, y).sign()).clamp(0, 1), "Go up"),
    "not clamped": (lambda m, x, y, e: x + e * _grad_of(m, x, y).sign(), "Clamp to 0..1"),
    "along the gradient": (lambda m, x, y, e: (x + e * _grad_of(m, x, y)).clamp(0, 1), "Its sign moves"),
    "through backward": (_with_backward, "adds to the parameters' gradients"),
    "through backward, then cleared": (_with_backward_and_clearing, "loses what stood there"),
    "on the images themselves": (_on_the_images, "requires_grad_() on a copy"),
    "stays in the graph": (_in_the_graph, "in no graph"),
    "in place": (lambda m, x, y, e: x.add_(e * _grad_of(m, x, y).sign()).clamp_(0, 1), "Work on a copy"),
    "images without gradients": (
        lambda m, x, y, e: x + e * torch.autograd.grad(F.cross_entropy(m(x), y), x)[0].sign(),
        "on a copy of the images before",
    ),
}

# --- the clinic -----------------------------------------------------------------------------------------------------

RIGHT["autograd.clinic-features"] = {
    "in one line": lambda model, images: model.head(torch.tanh(model.body(images))),
    "through a stack of rows": lambda model, images: model.head(torch.stack([model.body(i).tanh() for i in images])),
}
WRONG["autograd.clinic-features"] = {
    "through a list": (
        lambda model, images: model.head(torch.tensor(model.body(images).tanh().tolist(), dtype=images.dtype)),
        "Stay with tensors",
    ),
    "through NumPy": (
        lambda model, images: model.head(torch.from_numpy(model.body(images).tanh().detach().numpy())),
        "Stay with tensors",
    ),
    "to NumPy with a graph": (
        lambda model, images: model.head(torch.from_numpy(model.body(images).tanh().numpy())),
        "so PyTorch refuses",
    ),
    "in float32": (lambda m, images: m.head(torch.tensor(m.body(images).tanh().tolist())), "forgets the dtype"),
    "a new leaf": (
        lambda model, images: model.head(model.body(images).tanh().detach().requires_grad_()),
        "the body's gradient is None",
    ),
    "without tanh": (lambda model, images: model.head(model.body(images)), "Keep the arithmetic"),
    "under no_grad": (torch.no_grad()(lambda model, images: model.head(model.body(images).tanh())), "took them out"),
}

RIGHT["autograd.clinic-softmax"] = {
    "torch's": lambda logits: logits.softmax(1),
    "through the logarithm": lambda logits: logits.log_softmax(-1).exp(),
    "divided": lambda logits: logits.exp() / logits.exp().sum(1, keepdim=True),
}


def _through_data(logits: Tensor) -> Tensor:
    e = logits.exp()
    e.data.div_(e.sum(1, keepdim=True))
    return e


WRONG["autograd.clinic-softmax"] = {
    "through .data": (_through_data, "hide the rest from it"),
    "in place": (lambda z: (lambda e: e.div_(e.sum(1, keepdim=True)))(z.exp()), "Make a new tensor: a / b"),
    "a detached sum": (lambda z: z.exp() / z.exp().sum(1, keepdim=True).detach(), "hide the rest from it"),
    "under no_grad": (torch.no_grad()(lambda z: z.softmax(1)), "outside of no_grad"),
    "over the batch": (lambda z: z.softmax(0), "sum of the row"),
    "without a graph": (lambda z: z.detach().softmax(1).requires_grad_(), "no path"),
}


def _losses(model: nn.Module, x: Tensor, labels: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    features = model.body(x)
    return F.cross_entropy(model.head(features), labels), F.mse_loss(features, targets)


def _retaining(*args: Any) -> None:
    first, second = _losses(*args)
    first.backward(retain_graph=True)
    second.backward()


def _two_passes(model: nn.Module, x: Tensor, labels: Tensor, targets: Tensor) -> None:
    F.cross_entropy(model.head(model.body(x)), labels).backward()
    F.mse_loss(model.body(x), targets).backward()


def _detached(model: nn.Module, x: Tensor, labels: Tensor, targets: Tensor) -> None:
    features = model.body(x)
    F.cross_entropy(model.head(features.detach()), labels).backward()
    F.mse_loss(features, targets).backward()


def _second_detached(model: nn.Module, x: Tensor, labels: Tensor, targets: Tensor) -> None:
    features = model.body(x)
    F.cross_entropy(model.head(features), labels).backward()
    F.mse_loss(features.detach(), targets).backward()


def _cleared_between(model: nn.Module, *args: Any) -> None:
    first, second = _losses(model, *args)
    first.backward(retain_graph=True)
    model.zero_grad()
    second.backward()


RIGHT["autograd.clinic-two-losses"] = {
    "the sum": lambda *args: sum(_losses(*args)).backward(),
    "retaining": _retaining,
    "two forward passes": _two_passes,
    "torch.autograd.backward": lambda *args: torch.autograd.backward(_losses(*args)),
}
WRONG["autograd.clinic-two-losses"] = {
    "twice": (lambda *args: [loss.backward() for loss in _losses(*args)], "The first backward freed"),
    "only the first": (lambda *args: _losses(*args)[0].backward(), "Only the first loss"),
    "only the second": (lambda *args: _losses(*args)[1].backward(), "Only the second loss"),
    "detached": (_detached, "Only the second loss"),
    "the second detached": (_second_detached, "leads nowhere"),
    "cleared between": (_cleared_between, "Only the second loss"),
    "cleared before": (lambda m, *a: (m.zero_grad(), sum(_losses(m, *a)).backward()), "Don't clear it here"),
    "the mean": (lambda *args: (sum(_losses(*args)) / 2).backward(), "the mean of both losses"),
}

RIGHT["autograd.clinic-distance"] = {
    "vector_norm": lambda a, b: torch.linalg.vector_norm(a - b, dim=1),
    "clamped inside": lambda a, b: (a - b).square().sum(1).clamp_min(1e-10).sqrt(),
    "a little added inside": lambda a, b: ((a - b).square().sum(1) + 1e-12).sqrt(),
    "two wheres": lambda a, b: (lambda s: torch.where(s > 0, torch.where(s > 0, s, 1.0).sqrt(), 0.0))(
        (a - b).square().sum(1)
    ),
}
WRONG["autograd.clinic-distance"] = {
    "where afterwards": (
        lambda a, b: (lambda s: torch.where(s > 0, s.sqrt(), 0.0))((a - b).square().sum(1)),
        "torch.where chooses afterwards",
    ),
    "nothing": (lambda a, b: (a - b).square().sum(1).sqrt(), "nan or infinite"),
    "added outside": (lambda a, b: (a - b).square().sum(1).sqrt() + 1e-12, "nan or infinite"),
    "nan to num": (lambda a, b: (a - b).square().sum(1).sqrt().nan_to_num(), "nan or infinite"),
    "a large epsilon": (lambda a, b: ((a - b).square().sum(1) + 1e-8).sqrt(), "adds its own root"),
    "detached": (lambda a, b: torch.linalg.vector_norm(a - b, dim=1).detach(), "so don't detach"),
    "clamped far": (lambda a, b: (a - b).square().sum(1).clamp_min(1.0).sqrt(), "The root of the sum"),
    "squared": (lambda a, b: (a - b).square().sum(1), "The root of the sum"),
}  # fmt: skip

RIGHT["autograd.clinic-gate"] = {
    "a new tensor": lambda x: x * (x.sigmoid() * 0.9 + 0.1),
    "in place on a copy": lambda x: x * x.sigmoid().clone().mul_(0.9).add_(0.1),
    "in place after a product": lambda x: x * (x.sigmoid() * 0.9).add_(0.1),
}
WRONG["autograd.clinic-gate"] = {
    "in place": (lambda x: x * x.sigmoid().mul_(0.9).add_(0.1), "sigmoid saved its result"),
    "behind autograd's back": (
        lambda x: (lambda g: (g.data.mul_(0.9).add_(0.1), x * g)[1])(x.sigmoid()),
        "the overwritten sigmoid",
    ),
    "a detached gate": (lambda x: x * (x.sigmoid().detach() * 0.9 + 0.1), "detach cut it off"),
    "into x": (lambda x: x.mul_(x.sigmoid() * 0.9 + 0.1), "belongs to the caller"),
    "under no_grad": (torch.no_grad()(lambda x: x * (x.sigmoid() * 0.9 + 0.1)), "outside of no_grad"),
    "another formula": (lambda x: x * x.sigmoid(), "Keep the arithmetic"),
    "without the input's path": (lambda x: x.detach() * (x.sigmoid() * 0.9 + 0.1), "a new tensor"),
}

TestAutograd = exercise_tests("autograd", RIGHT, WRONG)
