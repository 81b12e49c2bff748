"""Lesson 02's explorer: the graph of an expression that the reader types, with values and gradients on its nodes."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from html import escape
from typing import Any

import torch
from torch import Tensor

from course_utils.errors import CourseError
from course_utils.graphs import graph_diagram, tracing, walk_graph
from course_utils.plots import Diagram
from course_utils.text import did_you_mean, shorten, table
from course_utils.widgets.panel import Entry, Slider, View, explore

FUNCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "exp": torch.exp, "log": torch.log, "sin": torch.sin, "cos": torch.cos, "tanh": torch.tanh, "sqrt": torch.sqrt,
    "sigmoid": torch.sigmoid, "relu": torch.relu, "abs": torch.abs,
}  # fmt: skip
_BINARY: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.Pow: lambda a, b: a**b,
}
NAMES = ("x", "y", "z")
MAX_LENGTH = 120  # characters; longer ones make a picture that nobody can read
MAX_NODES = 40


class ExpressionError(CourseError):
    """An expression that this explorer does not understand."""


def evaluate(text: str, leaves: Mapping[str, Tensor]) -> Tensor:
    """Return the value of an expression in the names of ``leaves``, computed by PyTorch operation by operation.

    Nothing is executed but arithmetic and the functions in ``FUNCTIONS``.

    Args:
        text: for example ``(x * y + sin(x)) ** 2``.
        leaves: a tensor of shape () for each name.

    Raises:
        ExpressionError: if the text is anything else; it says which part.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"The expression is longer than {MAX_LENGTH} characters.", fix="Take a part of it.")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ExpressionError("This is no expression.", got=text, fix="Write it as in Python: x * y + sin(x)") from None
    if sum(1 for _ in ast.walk(tree)) > 4 * MAX_NODES:
        raise ExpressionError("The expression has too many parts to draw.", fix="Take a part of it.")
    return torch.as_tensor(_value(tree.body, leaves))


def _value(node: ast.expr, leaves: Mapping[str, Tensor]) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float) and abs(node.value) < 1e6:
        return float(node.value)
    if isinstance(node, ast.Name):
        if node.id not in leaves:
            raise ExpressionError(f"There is no {node.id!r} here.", fix=did_you_mean(node.id, [*leaves, *FUNCTIONS]))
        return leaves[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _value(node.operand, leaves)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _arithmetic(node, leaves)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords and len(node.args) == 1:
        if node.func.id not in FUNCTIONS:
            raise ExpressionError(f"There is no {node.func.id!r} here.", fix=did_you_mean(node.func.id, FUNCTIONS))
        return FUNCTIONS[node.func.id](torch.as_tensor(_value(node.args[0], leaves)))
    raise ExpressionError(
        "Only numbers, names, + - * / ** and functions of one argument are understood.",
        got=ast.unparse(node),
        expected=f"names: {', '.join(leaves)}; functions: {', '.join(FUNCTIONS)}",
    )


def _arithmetic(node: ast.BinOp, leaves: Mapping[str, Tensor]) -> Any:
    left, right = _value(node.left, leaves), _value(node.right, leaves)
    try:
        result = _BINARY[type(node.op)](left, right)
    except (ZeroDivisionError, OverflowError) as error:
        raise ExpressionError(f"{ast.unparse(node)} has no value: {error}.") from None
    if isinstance(result, complex):
        raise ExpressionError(f"{ast.unparse(node)} has no real value.")
    return result


def expression_view(expression: str, x: float, y: float, z: float) -> View:
    """Draw the graph of an expression after backward, and give its value and its gradients.

    Args:
        expression: in x, y and z.
        x, y, z: where to evaluate it.
    """
    given = {"x": x, "y": y, "z": z}
    leaves = {name: torch.tensor(float(value), requires_grad=True) for name, value in given.items()}
    try:
        with tracing() as trace:
            result = evaluate(expression, leaves)
        if result.grad_fn is None:
            raise ExpressionError("No operation leads from x, y or z to this result, so there is no graph.")
        n_nodes = len(walk_graph(result, trace, leaves))
        if n_nodes > MAX_NODES:
            raise ExpressionError(f"The graph has {n_nodes} nodes, too many to draw.", fix="Take a part of it.")
        result.backward()
    except ExpressionError as error:
        return View(_message(error.sentence), str(error))
    nodes = walk_graph(result, trace, leaves)  # once more: backward has put gradients on them
    rows = [("value", f"{result.item():.4g}")]
    for name, leaf in leaves.items():
        text = "not in the graph: None" if leaf.grad is None else f"{leaf.grad.item():.4g}"
        rows.append((f"gradient of {name} = {leaf.item():.4g}", text))
    return View(graph_diagram(nodes), table(rows, ("what", "number")))


def _message(text: str) -> Diagram:
    words = escape(shorten(text, 100))
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="640" height="40" viewBox="0 0 640 40" '
        'font-family="sans-serif" font-size="13">'
        f'<rect width="640" height="40" fill="#ffffff"/><text x="8" y="25" fill="#b03a00">{words}</text></svg>'
    )
    return Diagram(svg, text)


def explore_expression() -> None:
    """Show the explorer: type an expression, move its inputs, read values and gradients in its graph."""
    explore(
        expression_view,
        expression=Entry("expression", "(x * y + sin(x)) ** 2"),
        x=Slider("x", -2.0, 2.0, 1.0, 0.1),
        y=Slider("y", -2.0, 2.0, 0.5, 0.1),
        z=Slider("z", -2.0, 2.0, -1.0, 0.1),
    )
