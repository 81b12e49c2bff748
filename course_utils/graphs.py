"""Walk autograd's graph and draw it, with the values and gradients that stand on its nodes.

Autograd keeps functions, not values: ``tracing`` remembers, for each operation made in its block, the tensor
that came out, so that after ``backward`` the picture can show what each node held and what gradient reached it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from course_utils.plots import Diagram

NODE_WIDTH, NODE_HEIGHT, LANE_HEIGHT, GAP_X, GAP_Y, MARGIN = 124, 58, 6, 44, 14, 8  # pixels
LEAF_FILL, OPERATION_FILL, ROOT_FILL = "#d5eaf7", "#f4f4f4", "#ffe9c7"


@dataclass(frozen=True)
class Node:
    """One node of the graph.

    Args:
        name: the leaf's name, or the operation's (``MulBackward0`` is shown as ``Mul``).
        is_leaf: whether gradients are accumulated here.
        value: what the forward pass produced, as text; empty if it was not traced.
        grad: the gradient of the output with respect to this node, as text; empty before backward.
        inputs: positions in the list of the nodes that this one was computed from.
    """

    name: str
    is_leaf: bool
    value: str
    grad: str
    inputs: tuple[int, ...]


class Trace(TorchFunctionMode):
    """Remembers the output of each differentiable operation by its ``grad_fn``; made by ``tracing``."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: dict[Any, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, Tensor) and tensor.grad_fn is not None:
                tensor.retain_grad()
                self.outputs[tensor.grad_fn] = tensor
        return result


@contextmanager
def tracing() -> Iterator[Trace]:
    """Remember what each operation in the block produces, and keep its gradient at backward."""
    with Trace() as trace:
        yield trace


def walk_graph(output: Tensor, trace: Trace | None = None, names: Mapping[str, Tensor] | None = None) -> list[Node]:
    """Return the nodes from which ``output`` was computed, inputs before what uses them, the output last.

    Args:
        output: a tensor with a ``grad_fn``, any shape.
        trace: from ``tracing``, for the values and gradients of the intermediate results.
        names: names for leaves; others are called by their shape.

    Raises:
        ValueError: if the tensor has no graph.
    """
    if output.grad_fn is None:
        raise ValueError("this tensor has no grad_fn: nothing that requires gradients led to it")
    leaf_names = {id(leaf): name for name, leaf in (names or {}).items()}
    outputs = trace.outputs if trace else {}
    order: list[Any] = []
    seen: set[Any] = set()
    stack = [(output.grad_fn, False)]
    while stack:  # depth first without recursion: deep graphs are normal
        function, is_expanded = stack.pop()
        if is_expanded:
            order.append(function)
        elif function not in seen:
            seen.add(function)
            stack.append((function, True))
            stack.extend((parent, False) for parent, _ in reversed(function.next_functions) if parent is not None)
    position = {function: index for index, function in enumerate(order)}
    nodes = []
    for function in order:
        inputs = tuple(position[parent] for parent, _ in function.next_functions if parent is not None)
        leaf = getattr(function, "variable", None)
        tensor = leaf if leaf is not None else outputs.get(function)
        if leaf is not None:
            name = leaf_names.get(id(leaf), "leaf " + "×".join(map(str, leaf.shape)))
        else:
            name = type(function).__name__.rstrip("0123456789").removesuffix("Backward")
        grad = tensor.grad if tensor is not None and (tensor.is_leaf or tensor.retains_grad) else None
        nodes.append(Node(name, leaf is not None, _short(tensor), _short(grad), inputs))
    return nodes


def graph_text(nodes: list[Node]) -> str:
    """Return the graph as lines of text, one node a line, the output last."""
    lines = []
    for index, node in enumerate(nodes):
        source = f" <- {', '.join(f'#{i}' for i in node.inputs)}" if node.inputs else ""
        facts = "".join(f"  {label} {text}" for label, text in (("value", node.value), ("grad", node.grad)) if text)
        lines.append(f"#{index} {node.name}{source}{facts}")
    return "\n".join(lines)


def graph_diagram(nodes: list[Node]) -> Diagram:
    """Return a picture of the graph: leaves at the left, the output at the right, value above gradient."""
    columns, chains = _layout(nodes)

    def height_of(slot: int) -> int:
        return NODE_HEIGHT if slot < len(nodes) else LANE_HEIGHT

    tallest = max(sum(map(height_of, column)) + GAP_Y * len(column) for column in columns)
    places: dict[int, tuple[int, int]] = {}  # left edge and middle of each slot
    for x, column in enumerate(columns):
        heights = [height_of(slot) for slot in column]
        y = MARGIN + (tallest - sum(heights) - GAP_Y * len(column)) // 2
        for slot, slot_height in zip(column, heights, strict=True):
            places[slot] = (MARGIN + x * (NODE_WIDTH + GAP_X), y + slot_height // 2)
            y += slot_height + GAP_Y
    width = 2 * MARGIN + len(columns) * (NODE_WIDTH + GAP_X) - GAP_X
    height = 2 * MARGIN + tallest - GAP_Y
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *(_edge([places[slot] for slot in chain]) for chain in chains),
    ]
    for index, node in enumerate(nodes):
        parts.append(_box(node, *places[index], is_root=index == len(nodes) - 1))
    return Diagram("".join([*parts, "</svg>"]), graph_text(nodes))


def _layout(nodes: list[Node]) -> tuple[list[list[int]], list[list[int]]]:
    """Put each node one column right of its latest input, and give each longer edge a lane of its own.

    Returns:
        The columns, from top to bottom, of slots: node positions, and lanes counted on from ``len(nodes)``;
        and each edge as the chain of slots that it passes.
    """
    depth = [0] * len(nodes)
    for index, node in enumerate(nodes):
        depth[index] = max((depth[i] + 1 for i in node.inputs), default=0)
    for index, node in enumerate(nodes):
        if not node.inputs:  # a leaf stands just left of its first use
            users = [depth[i] for i, other in enumerate(nodes) if index in other.inputs]
            depth[index] = max(min(users, default=1) - 1, 0)
    columns: list[list[int]] = [[] for _ in range(max(depth) + 1)]
    for index in range(len(nodes)):
        columns[depth[index]].append(index)
    chains, lanes = [], len(nodes)
    for index, node in enumerate(nodes):
        for source in dict.fromkeys(node.inputs):
            chain = [source]
            for column in range(depth[source] + 1, depth[index]):
                columns[column].append(lanes)
                chain.append(lanes)
                lanes += 1
            chains.append([*chain, index])
    links = [(left, right) for chain in chains for left, right in pairwise(chain)]
    for column_index in range(1, len(columns)):  # one sweep: each slot goes to the mean height of its inputs
        heights = {slot: i / len(columns[column_index - 1]) for i, slot in enumerate(columns[column_index - 1])}

        def wish(slot: int, heights: dict[int, float] = heights) -> float:
            before = [heights[left] for left, right in links if right == slot and left in heights]
            return sum(before) / len(before) if before else 0.5

        columns[column_index].sort(key=wish)
    return columns, chains


def _edge(points: list[tuple[int, int]]) -> str:
    """Draw one edge from the first slot's right side to the last slot's left side, straight through its lanes."""
    path = [f"M{points[0][0] + NODE_WIDTH},{points[0][1]}"]
    for (left_x, left_y), (right_x, right_y) in pairwise(points):
        start, end = left_x + NODE_WIDTH, right_x
        middle = (start + end) // 2
        path.append(f"L{start},{left_y} C{middle},{left_y} {middle},{right_y} {end},{right_y}")
    x, y = points[-1]
    return f'<path d="{" ".join(path)}" fill="none" stroke="#777777"/><path d="M{x},{y} l-7,-4 v8 z" fill="#777777"/>'


def _box(node: Node, x: int, middle: int, *, is_root: bool) -> str:
    fill = LEAF_FILL if node.is_leaf else ROOT_FILL if is_root else OPERATION_FILL
    lines = [(node.name, "bold", "#111111")]
    if node.value:
        lines.append((f"value {node.value}", "normal", "#111111"))
    if node.grad:
        lines.append((f"grad {node.grad}", "normal", "#b03a00"))
    first = middle + 4 - 8 * (len(lines) - 1)
    texts = "".join(
        f'<text x="{x + NODE_WIDTH // 2}" y="{first + 16 * row}" text-anchor="middle" font-weight="{weight}" '
        f'fill="{colour}">{escape(text)}</text>'
        for row, (text, weight, colour) in enumerate(lines)
    )
    corner = 4 if node.is_leaf else 14
    return (
        f'<rect x="{x}" y="{middle - NODE_HEIGHT // 2}" width="{NODE_WIDTH}" height="{NODE_HEIGHT}" rx="{corner}" '
        f'fill="{fill}" stroke="#555555"/>{texts}'
    )


def _short(tensor: Tensor | None) -> str:
    """Return a scalar with four digits, anything larger as its shape."""
    if tensor is None:
        return ""
    return f"{tensor.item():.4g}" if tensor.numel() == 1 else "×".join(map(str, tensor.shape))
