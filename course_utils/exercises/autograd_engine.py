"""Checks of lesson 02: the graph, and an automatic differentiation of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from course_utils.exercises.compare import describe, has_shape, is_close, is_equal, is_true, is_unchanged
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.verdicts import Check
from course_utils.tape import ARITY, LEAF, OPERATIONS, Step, Tape, gradients, partials, random_tape, run

N_TAPES = 12


def _names(output: Tensor, *, once: bool = True) -> list[str]:
    """Return the sorted names of the functions behind a tensor; with ``once``, each node once."""
    stack, seen, names = [output.grad_fn], set(), []
    while stack:
        function = stack.pop()
        if function is None or (once and function in seen):
            continue
        seen.add(function)
        if type(function).__name__ != "AccumulateGrad":
            names.append(type(function).__name__)
        stack.extend(parent for parent, _ in function.next_functions)
    return sorted(names)


def check_operations(operations: Callable, inputs: Inputs) -> Iterator[Check]:
    """autograd.operations: the functions in a graph, each node once, by name."""
    a, b = (inputs.randn(3).requires_grad_() for _ in range(2))
    chain = (a * b).exp().sum()
    answer = operations(chain)
    yield is_true(
        "returns a list",
        type(answer) in (list, tuple),
        detail=f"got {describe(answer)}",
        hint="A list of names, such as ['ExpBackward0', 'MulBackward0', 'SumBackward0'].",
    )
    yield is_equal(
        "names the functions of a chain",
        list(answer),
        _names(chain),
        hint="Begin at output.grad_fn and follow next_functions. Sort the names.",
        mistakes=[
            (sorted([*_names(chain), "AccumulateGrad", "AccumulateGrad"]), "Leave out the leaves, AccumulateGrad."),
            (sorted([*_names(chain), "AccumulateGrad"]), "Leave out the leaves, AccumulateGrad."),
            (sorted(_names(chain), reverse=True), "Sort from A to Z."),
            (["SumBackward0"], "That is the last function only. Its next_functions lead on, and theirs too."),
        ],
    )
    shared = a.tanh()
    diamond = (shared * shared + shared.exp()).sum()
    yield is_equal(
        "counts a result that is used several times once",
        list(operations(diamond)),
        _names(diamond),
        hint="Two paths may meet in one node. Remember which nodes you have seen.",
        mistakes=[
            (_names(diamond, once=False), "tanh was computed once, but three paths lead to it. Remember what you saw."),
            (sorted(set(_names(diamond))), "Nodes count, not names: two different nodes may have the same name."),
        ],
    )
    twice = (a.exp() * b.exp()).sum()
    yield is_equal(
        "keeps two nodes of the same name apart",
        list(operations(twice)),
        _names(twice),
        hint="Two calls of exp are two nodes.",
        mistakes=[(sorted(set(_names(twice))), "Nodes count, not names: exp was called twice.")],
    )
    deep = a
    for _ in range(3000):
        deep = deep + 1
    yield is_equal(
        "walks a graph of 3,000 steps",
        list(operations(deep)),
        _names(deep),
        hint="Use a list of nodes to visit instead of a function that calls itself.",
    )
    yield is_equal("a leaf has no functions", list(operations(a)), [], hint="A leaf's grad_fn is None.")


def check_partials(answer: Callable, inputs: Inputs) -> Iterator[Check]:
    """autograd.partials: the partial derivatives of six operations, on numbers."""
    for operation in OPERATIONS:
        for _ in range(3):
            values = [round(inputs.randn(1, dtype=torch.float64).item() + 0.3, 3) for _ in range(ARITY[operation])]
            wanted = partials(operation, *values)
            given = answer(operation, *values)
            count = f"{len(wanted)} derivative" + "s" * (len(wanted) > 1)
            yield is_true(
                f"{operation}: returns a tuple of {count}",
                type(given) in (tuple, list) and len(given) == len(wanted),
                detail=f"got {describe(given)}",
                hint="One number for each input, also if there is only one: (value,).",
            )
            yield is_close(
                f"{operation}: the derivatives are right",
                torch.tensor([float(number) for number in given], dtype=torch.float64),
                torch.tensor(wanted, dtype=torch.float64),
                hint=f"At {', '.join(map(str, values))}. Which rule of differentiation applies to {operation}?",
                mistakes=list(_partial_mistakes(operation, values)),
            )


def _partial_mistakes(operation: str, values: list[float]) -> Iterator[tuple[Tensor, str]]:
    if operation == "mul":
        yield torch.tensor(values), "The derivative of a·b by a is b: each input's derivative is the *other* input."
    if operation == "sub":
        yield torch.ones(2), "a − b falls when b grows."
    if operation == "tanh":
        (x,) = values
        yield torch.tensor([1 - x * x]), "1 − t² with t = tanh(x), the output, not x itself."
    if operation == "exp":
        (x,) = values
        yield torch.tensor([x]), "That is x. The derivative of exp is exp."


def check_order(backward_order: Callable, inputs: Inputs) -> Iterator[Check]:
    """autograd.order: places that lead to the last one, each after all that use it."""
    for number in range(N_TAPES):
        tape = _diamond() if number == 0 else random_tape(inputs.seed + number)[0]
        needed = _needed(tape)
        answer = backward_order(tape)
        yield is_true(
            "returns places, as a list of whole numbers",
            type(answer) in (list, tuple)
            and all(type(place) is int or isinstance(place, np.integer) for place in answer),
            detail=f"got {describe(answer)}",
            hint="A list such as [4, 3, 1, 0].",
        )
        order = [int(place) for place in answer]
        yield is_equal(
            "begins with the last step",
            order[:1],
            [len(tape) - 1],
            hint="Backward begins at the output.",
        )
        extra = sorted(set(order) - needed)
        yield is_true(
            "holds what leads to the last step, and nothing else",
            set(order) == needed,
            detail=f"unneeded: {extra}" if extra else f"missing: {sorted(needed - set(order))}",
            hint="Follow the inputs back from the last step. What it does not depend on gets no gradient.",
        )
        yield is_true(
            "holds each place once",
            len(order) == len(set(order)),
            detail=f"got {order}",
            hint="A place that is used twice is visited once, when both of its users are done.",
        )
        position = {place: index for index, place in enumerate(order)}
        early = [(user, source) for user in order for source in tape[user].inputs if position[source] < position[user]]
        yield is_true(
            "visits a place only after all that use it",
            not early,
            detail=f"#{early[0][1]} comes before #{early[0][0]}, which uses it" if early else "",
            hint="When a place is visited, its gradient must be complete. On a tape, inputs stand before their users.",
        )


def _diamond() -> list[Step]:
    """Return a tape where depth first goes wrong: #1 is used by #2 and by #3, and #2 by #3."""
    return [Step(LEAF), Step("exp", (0,)), Step("square", (1,)), Step("mul", (1, 2))]


def _needed(tape: Tape) -> set[int]:
    needed, stack = set(), [len(tape) - 1]
    while stack:
        place = stack.pop()
        if place not in needed:
            needed.add(place)
            stack.extend(tape[place].inputs)
    return needed


def check_engine(answer: Callable, inputs: Inputs) -> Iterator[Check]:
    """autograd.engine: the derivative of the last step by every step, on random tapes, as torch says."""
    single = [Step(LEAF)]
    yield _grads("the output's own derivative is 1", answer(single, [2.0]), [1.0], "Begin with 1 at the last place.")
    chain = [Step(LEAF), Step("exp", (0,)), Step("square", (1,))]
    yield _grads(
        "multiplies along a chain",
        answer(chain, run(chain, [0.5])),
        gradients(chain, [0.5]),
        "What a place passes on is its own gradient times the partial derivative.",
        [([partials("exp", 0.5)[0], 2 * run(chain, [0.5])[1], 1.0], "The gradient from above is missing as a factor.")],
    )
    same = [Step(LEAF), Step("mul", (0, 0))]
    yield _grads(
        "adds what arrives over two paths",
        answer(same, run(same, [3.0])),
        [6.0, 1.0],
        "3 · 3 uses the leaf twice: both contributions count.",
        [([3.0, 1.0], "The second contribution has overwritten the first. Add them: +=.")],
    )
    for number in range(N_TAPES):
        tape, leaves = random_tape(inputs.seed + number)
        values = run(tape, leaves)
        yield _grads(
            "agrees with torch on random expressions",
            answer(tape, list(values)),
            gradients(tape, leaves),
            "A result that is used twice gets a contribution from each user; one that is not used gets 0.",
            [(_overwriting(tape, values), "A contribution has overwritten another. Add them: +=.")],
        )


def _grads(
    what: str, given: object, wanted: list[float], hint: str, mistakes: list[tuple[list[float], str]] | None = None
) -> Check:
    is_list = type(given) in (list, tuple) and all(  # type: ignore[attr-defined]
        type(number) in (int, float) or isinstance(number, (np.integer, np.floating)) for number in given
    )
    if not is_list or len(given) != len(wanted):  # type: ignore[arg-type]
        hint = "A list of floats, one for each place of the tape."
        if type(given) in (np.ndarray, Tensor):
            hint += " .tolist() makes one."
        return Check(what, False, f"got {describe(given)}", hint)
    return is_close(
        what,
        torch.tensor([float(number) for number in given], dtype=torch.float64),  # type: ignore[attr-defined]
        torch.tensor(wanted, dtype=torch.float64),
        hint=hint,
        atol=1e-9,
        rtol=1e-6,
        mistakes=[(torch.tensor(wrong, dtype=torch.float64), cause) for wrong, cause in mistakes or []],
    )


def _overwriting(tape: Tape, values: list[float]) -> list[float]:
    grads = [0.0] * len(tape)
    grads[-1] = 1.0
    for place in reversed(range(len(tape))):
        step = tape[place]
        if step.inputs:
            for source, slope in zip(
                step.inputs, partials(step.operation, *(values[i] for i in step.inputs)), strict=True
            ):
                grads[source] = grads[place] * slope
    return grads


def check_unbroadcast(unbroadcast: Callable, inputs: Inputs) -> Iterator[Check]:
    """autograd.unbroadcast: the gradient of a tensor that was broadcast."""
    n, m, k = inputs.sizes(3, 2, 6)
    cases = {
        "nothing was broadcast": ((n, m), (n, m)),
        "a row (M,) was repeated over N": ((n, m), (m,)),
        "a column (N, 1) was repeated over M": ((n, m), (n, 1)),
        "a scalar was repeated over everything": ((n, m), ()),
        "two axes were repeated at once": ((n, m, k), (m, 1)),
        "an axis in the middle was repeated": ((n, m, k), (n, 1, k)),
    }
    for what, (large, small) in cases.items():
        x = inputs.randn(*small, dtype=torch.float64).requires_grad_()
        grad = inputs.strided(*large, dtype=torch.float64)
        before = grad.clone()
        (wanted,) = (g.clone() for g in torch.autograd.grad(x.expand(large), x, grad))
        answer = unbroadcast(grad, small)
        extra = len(large) - len(small)
        axes = [*range(extra), *(i + extra for i, size in enumerate(small) if size == 1 and large[i + extra] != 1)]
        count = grad.numel() / max(wanted.numel(), 1)
        hint = "Axes that were added in front are summed away; axes of length 1 are summed and kept."
        if type(answer) is Tensor and answer.shape != wanted.shape and len(axes) > extra:
            hint = "An axis that had length 1 before must have length 1 again: keepdim=True."
        yield has_shape(f"{what}: has the shape from before", answer, small, hint=hint)
        yield is_close(
            f"{what}: sums over the copies",
            answer,
            wanted,
            hint="Each copy of a number adds its gradient to that number's.",
            mistakes=[(wanted / count, "That is the mean over the copies. Their gradients add up.")] if axes else [],
        )
        yield is_unchanged("the gradient that was given stays as it was", grad, before)
