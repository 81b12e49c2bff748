"""Look in the graph of the loss for a target that is learned: bootstrapped from the model's own next answer."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from course_utils.doctor.experiments.objective import SomeBatches, run_watched
from course_utils.doctor.parts import tensors_of
from course_utils.doctor.tracing import nodes_under, replace
from course_utils.doctor.where import reader_line

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination

_ADDING = {"add", "sub", "rsub", "subtract", "__add__", "__radd__", "__sub__", "__rsub__"}
_COMPARING = ("SubBackward", "RsubBackward", "MseLoss", "SmoothL1Loss", "HuberLoss", "L1Loss")
_MOVING = ("View", "Squeeze", "Unsqueeze", "UnsafeView", "Reshape", "ToCopy", "Clone", "Alias", "Expand", "Transpose")
DEPTH = 2000  # nodes of a graph that are looked at


@dataclass(frozen=True)
class Bootstrap:
    """A comparison of two answers of one network, one of which has a number of the batch added.

    Args:
        where: the reader's line that adds it.
        is_sure: whether what is added is a tensor of the batch, or the other side is the value of a chosen action.
        shared: how many trained parameters get a gradient from both sides.
    """

    where: str
    is_sure: bool
    shared: int


class _Sums(TorchFunctionMode):
    """Notes the graph nodes of sums of a plain number for each example and something that is learned."""

    def __init__(self, batches: SomeBatches) -> None:
        super().__init__()
        self.nodes: dict[Any, tuple[str, bool]] = {}
        self._batches = batches

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in _ADDING and isinstance(result, Tensor) and result.grad_fn is not None:
            plain = [value for value in args[:2] if isinstance(value, Tensor) and not value.requires_grad]
            # One number for each example; more would be a feature map, one alone a constant.
            if plain and plain[0].numel() == len(plain[0].reshape(-1)) == _examples(result) > 1:
                self.nodes[result.grad_fn] = (reader_line(), self._is_of_batch(plain[0]))
        return result

    def _is_of_batch(self, value: Tensor) -> bool:
        flat = value.reshape(-1).double()
        leaves = [leaf for leaf in tensors_of(self._batches.current) if leaf.numel() == flat.numel()]
        return any(torch.equal(leaf.reshape(-1).double(), flat) for leaf in leaves)


def _examples(value: Tensor) -> int:
    return value.numel() if value.ndim == 1 or (value.ndim == 2 and value.shape[1] == 1) else 0


def find_bootstraps(examination: Examination) -> list[Bootstrap]:
    """Run some steps, and return the targets that are learned through."""
    parts = examination.parts
    found: list[Bootstrap] = []
    if parts.model is None or not examination.batches.kept or examination.failure is not None:
        return found

    def watch(stack: ExitStack, batches: SomeBatches) -> None:
        sums = stack.enter_context(_Sums(batches))

        def noting(original: Any) -> Any:
            def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
                for root in tensors_of(tensors):
                    found.extend(_in_graph(root, sums, examination.held))
                return original(tensors, *args, **kwargs)

            return backward

        replace(stack, torch.autograd, "backward", noting)

    if examination.runs:
        run_watched(examination, watch, 2)
    return found


def _in_graph(root: Tensor, sums: _Sums, held: set[int]) -> list[Bootstrap]:
    found = []
    for node in nodes_under(root, DEPTH) if sums.nodes else ():
        sides = [side for side, _ in node.next_functions if side is not None]
        if not node.name().startswith(_COMPARING) or len(sides) != 2:
            continue
        under = [_under(side) for side in sides]
        leaves = [{id(n.variable) for n in nodes if hasattr(n, "variable")} for nodes in under]
        shared = leaves[0] & leaves[1] & held
        inner = [{n for n in nodes if n.next_functions} for nodes in under]
        if not shared or inner[0] & inner[1]:  # one forward pass for both: a residual, as of an equation
            continue
        for side, other in (sides, sides[::-1]):
            head = _seen_through(side)
            if head in sums.nodes and _is_discounted(head):
                where, is_of_batch = sums.nodes[head]
                is_chosen = _seen_through(other).name().startswith(("Gather", "Index"))
                found.append(Bootstrap(where, is_of_batch or is_chosen, len(shared)))
    return found


def _under(node: Any) -> set[Any]:
    """Return a node and those under it, at most so many."""
    waiting, seen = [node], set()
    while waiting and len(seen) < DEPTH:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting.extend(follower for follower, _ in node.next_functions if follower is not None)
    return seen


def _seen_through(node: Any) -> Any:
    """Return the node behind views and moves."""
    while node.name().startswith(_MOVING) and node.next_functions and node.next_functions[0][0] is not None:
        node = node.next_functions[0][0]
    return node


def _is_discounted(node: Any) -> bool:
    """Tell whether what is learned in a sum is scaled first, as by a discount: a difference of two answers is not."""
    behind = [_seen_through(follower) for follower, _ in node.next_functions if follower is not None]
    return any(follower.name().startswith("MulBackward") for follower in behind)
