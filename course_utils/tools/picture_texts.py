"""The words in pictures, found where they are drawn: titles, axes, legends, marks, captions.

Most are one word long, so length can't tell them from keys and formats; the call they stand in can.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

# Calls of matplotlib and of the course that put words into a picture or below it: which of their keywords do, and
# whether what stands without a keyword does too.
_LABELS = ("label", "labels", "tick_labels", "title", "xlabel", "ylabel", "caption")
_DRAWN_BY_PLACE = {
    *("set_title", "set_xlabel", "set_ylabel", "set_xticks", "set_yticks", "suptitle", "legend"),
    *("text", "annotate", "bar", "barh", "show"),
}
_DRAWN_BY_KEYWORD = _DRAWN_BY_PLACE | {
    *("set", "plot", "step", "scatter", "hist", "boxplot", "imshow", "fill_between", "errorbar", "semilogy", "loglog"),
    *("axhline", "axvline", "hlines", "vlines", "axhspan", "axvspan", "colorbar", "subplots"),
}


def picture_texts(source: str) -> list[str]:
    """Return the texts that a piece of Python draws, in its order and each once; what is filled in stands in braces.

    Raises:
        SyntaxError: if it can't be read.
    """
    found = [text for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) for text in _drawn(node)]
    return list(dict.fromkeys(text for text in found if re.search(r"[A-Za-z]{2}", text)))


def template(node: ast.JoinedStr) -> str:
    """Return an f-string with its expressions in braces, as in the source."""
    parts = []
    for value in node.values:
        parts.append(str(value.value) if isinstance(value, ast.Constant) else "{" + ast.unparse(value.value) + "}")  # type: ignore[attr-defined]
    return "".join(parts)


def _drawn(call: ast.Call) -> Iterator[str]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in _DRAWN_BY_PLACE:
        for argument in call.args:
            yield from _strings(argument)
    if name in _DRAWN_BY_KEYWORD:
        for keyword in call.keywords:
            if keyword.arg in _LABELS:
                yield from _strings(keyword.value)


def _strings(node: ast.expr) -> Iterator[str]:
    """Yield the texts of an expression: one, those of a list, both of a choice."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield template(node)
    elif isinstance(node, (ast.List, ast.Tuple)):
        for entry in node.elts:
            yield from _strings(entry)
    elif isinstance(node, ast.IfExp):
        yield from _strings(node.body)
        yield from _strings(node.orelse)
    elif isinstance(node, ast.BinOp):
        yield from _strings(node.left)
        yield from _strings(node.right)
