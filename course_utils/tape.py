"""Small expressions on a tape: what an automatic differentiation of one's own is tried on.

A tape is a list of steps. A step names its operation and the places, earlier on the tape, of what goes into it; a leaf
has no inputs. Values are Python floats, so nothing but arithmetic is left of the problem.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LEAF = "leaf"


@dataclass(frozen=True)
class Step:
    """One step of a tape: the operation, and the places of its inputs on the tape.

    Example:
        >>> Step("mul", (0, 1))
        Step(operation='mul', inputs=(0, 1))
    """

    operation: str
    inputs: tuple[int, ...] = ()


Tape = Sequence[Step]

# Each operation three times: on numbers, its partial derivatives, and on tensors.
_RULES: dict[str, tuple[Callable[..., float], Callable[..., tuple[float, ...]], Callable[..., Tensor]]] = {
    "add": (lambda a, b: a + b, lambda a, b: (1.0, 1.0), torch.add),
    "sub": (lambda a, b: a - b, lambda a, b: (1.0, -1.0), torch.sub),
    "mul": (lambda a, b: a * b, lambda a, b: (b, a), torch.mul),
    "exp": (math.exp, lambda a: (math.exp(a),), torch.exp),
    "tanh": (math.tanh, lambda a: (1 - math.tanh(a) ** 2,), torch.tanh),
    "square": (lambda a: a * a, lambda a: (2 * a,), torch.square),
}
OPERATIONS = tuple(_RULES)
ARITY = {name: 2 if name in ("add", "sub", "mul") else 1 for name in OPERATIONS}


def run(tape: Tape, leaves: Sequence[float]) -> list[float]:
    """Return the value of every step, given those of the leaves in their order on the tape."""
    given = iter(leaves)
    values: list[float] = []
    for step in tape:
        if step.operation == LEAF:
            values.append(float(next(given)))
        else:
            values.append(_RULES[step.operation][0](*(values[place] for place in step.inputs)))
    return values


def partials(operation: str, *inputs: float) -> tuple[float, ...]:
    """Return the partial derivative of an operation with respect to each of its inputs.

    Example:
        >>> partials("mul", 3.0, 5.0)
        (5.0, 3.0)
    """
    return _RULES[operation][1](*inputs)


def as_tensors(tape: Tape, leaves: Sequence[float]) -> list[Tensor]:
    """Return the value of every step as a float64 tensor with a graph; the leaves require gradients."""
    given = iter(leaves)
    values: list[Tensor] = []
    for step in tape:
        if step.operation == LEAF:
            values.append(torch.tensor(float(next(given)), dtype=torch.float64, requires_grad=True))
        else:
            values.append(_RULES[step.operation][2](*(values[place] for place in step.inputs)))
    return values


def gradients(tape: Tape, leaves: Sequence[float]) -> list[float]:
    """Return what autograd says: the derivative of the last step with respect to every step; 0 where none leads."""
    values = as_tensors(tape, leaves)
    found = torch.autograd.grad(values[-1], values, allow_unused=True)
    return [0.0 if grad is None else grad.item() for grad in found]


def random_tape(seed: int, n_leaves: int = 3, n_steps: int = 8) -> tuple[list[Step], list[float]]:
    """Return a random tape and values for its leaves, all moderate; some results are used several times, some never.

    Args:
        seed: the same seed gives the same tape.
        n_leaves, n_steps: how many leaves it begins with, and how many operations follow.
    """
    draws = random.Random(seed)
    while True:
        leaves = [round(draws.uniform(-1.5, 1.5), 2) for _ in range(n_leaves)]
        tape = [Step(LEAF) for _ in range(n_leaves)]
        for _ in range(n_steps):
            operation = draws.choice(OPERATIONS)
            tape.append(Step(operation, tuple(draws.randrange(len(tape)) for _ in range(ARITY[operation]))))
        tape.append(Step("add", (len(tape) - 1, draws.randrange(n_leaves, len(tape)))))
        try:
            if max(map(abs, [*run(tape, leaves), *gradients(tape, leaves)])) < 100:
                return tape, leaves
        except OverflowError:
            continue


def as_text(tape: Tape, leaves: Sequence[float]) -> str:
    """Return a tape as lines of text: place, operation, inputs, value."""
    lines = []
    for place, (step, value) in enumerate(zip(tape, run(tape, leaves), strict=True)):
        call = step.operation + (f"({', '.join(f'#{p}' for p in step.inputs)})" if step.inputs else "")
        lines.append(f"#{place} {call:<14} {value:8.4f}")
    return "\n".join(lines)
