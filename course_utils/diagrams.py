"""Diagrams of what can't be photographed: storages and strides, as SVG with the same facts in words."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import torch
from torch import Tensor

from course_utils.errors import UsageError
from course_utils.memory import layout, positions, shares_storage
from course_utils.plots import Diagram
from course_utils.text import plural

CELL, GAP, MARGIN, TITLE, STRIP = 26, 14, 8, 22, 42  # pixels; STRIP is a row of cells with the numbers below it
LETTER = 6.6  # pixels, about the width of one letter
PAPER, LINE, INK, UNUSED = "#ffffff", "#555555", "#111111", "#eeeeee"
RAMP = ((0xEC, 0xF5, 0xFB), (0x3A, 0x8F, 0xD0))  # first and last of the storage: light to dark, black stays readable
MARKS = {True: ("✓", "#00724f"), False: ("✗", "#b34700")}  # dark enough to be read as text
CHIPS_WIDTH = 640  # pixels after which verdicts go on in the next row
MAX_ELEMENTS, MAX_TENSORS = 64, 4


def storage_map(
    *tensors: Tensor, names: Sequence[str] = ("x", "y", "z", "w"), verdicts: Sequence[tuple[str, bool]] = ()
) -> Diagram:
    """Draw who reads which element of the storage: each tensor as the reader sees it, and as memory holds it.

    A cell's shade tells its position in storage, light to dark. In the strip, what a tensor doesn't read is grey.

    Args:
        tensors: up to four, each with one to three axes; storages of at most 64 elements.
        names: what to call them.
        verdicts: calls and whether they are possible; written below with a mark.

    Raises:
        UsageError: if there are too many tensors or one can't be drawn.
    """
    _check(tensors, names)
    y, width, parts, words = MARGIN, 0, [], []
    for index, (tensor, name) in enumerate(zip(tensors, names, strict=False)):
        owner = next((names[i] for i in range(index) if shares_storage(tensors[i], tensor)), None)
        title = _title(tensor, name, owner)
        places = positions(tensor)
        words += [title, f"   reads storage positions {' '.join(map(str, places)) or '(none)'}"]
        parts.append(_text(MARGIN, y + 13, title, anchor="start", weight="bold"))
        y += TITLE
        grid_width, grid_height = _grid(parts, tensor, places, y)
        y += grid_height + 8
        strip_width = _strip(parts, tensor, set(places), y)
        y += STRIP + GAP
        width = max(width, grid_width, strip_width, round(LETTER * len(title)))
    if verdicts:
        chips_width, chips_height = _chips(parts, verdicts, y)
        words += ["possible: " + _listed(verdicts, True), "not possible: " + _listed(verdicts, False)]
        width, y = max(width, chips_width), y + chips_height
    return Diagram(_svg(parts, width + 2 * MARGIN, y - GAP + MARGIN), "\n".join(words))


def _check(tensors: Sequence[Tensor], names: Sequence[str]) -> None:
    if not 1 <= len(tensors) <= min(MAX_TENSORS, len(names)):
        raise UsageError(
            "This number of tensors can't be drawn.",
            got=f"{plural(len(tensors), 'tensor')}, {plural(len(names), 'name')}",
            expected=f"1 to {MAX_TENSORS} tensors, a name for each",
        )
    for tensor in tensors:
        has_values = tensor.device.type != "meta"
        largest = max(_stored(tensor), tensor.numel())
        if not has_values or largest > MAX_ELEMENTS or not 1 <= tensor.ndim <= 3:
            raise UsageError(
                "This tensor can't be drawn as a storage map.",
                got=f"shape {tuple(tensor.shape)}, {plural(largest, 'element')}, on {tensor.device}",
                expected=f"1 to 3 axes, at most {MAX_ELEMENTS} elements in storage and in the tensor, with values",
                fix="draw a smaller one with the same strides.",
            )


def _stored(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes() // tensor.element_size()


def _title(tensor: Tensor, name: str, owner: str | None) -> str:
    facts = layout(tensor)
    where = f"on the storage of {owner}" if owner else f"its storage: {plural(facts.storage_bytes, 'byte')}"
    order = "contiguous" if facts.is_contiguous else "not contiguous"
    return f"{name}: shape {facts.shape}, strides {facts.strides}, offset {facts.offset}, {order}; {where}"


def _values(tensor: Tensor) -> list[str]:
    """Return the text of each element of the tensor's whole storage."""
    flat = torch.as_strided(tensor.detach(), (_stored(tensor),), (1,), 0)
    return [f"{value:g}"[:4] if isinstance(value, float) else str(value)[:4] for value in flat.tolist()]


def _grid(parts: list[str], tensor: Tensor, places: Sequence[int], y: int) -> tuple[int, int]:
    """Draw the tensor as its reader sees it; the first of three axes goes to the right. Return width and height."""
    planes, rows, columns = (1,) * (3 - tensor.ndim) + tuple(tensor.shape)
    values = _values(tensor)
    for index, place in enumerate(places):
        plane, row, column = index // (rows * columns), index // columns % rows, index % columns
        x = MARGIN + plane * (columns * CELL + GAP) + column * CELL
        _cell(parts, x, y + row * CELL, values[place], place / max(len(values) - 1, 1))
    return planes * (columns * CELL + GAP) - GAP, rows * CELL


def _strip(parts: list[str], tensor: Tensor, used: set[int], y: int) -> int:
    """Draw the storage as one strip, with positions below it; what the tensor doesn't read is grey. Return width."""
    values = _values(tensor)
    for place, value in enumerate(values):
        x, share = MARGIN + place * CELL, place / max(len(values) - 1, 1)
        _cell(parts, x, y, *((value, share) if place in used else ("", None)))
        parts.append(_text(x + CELL // 2, y + CELL + 11, str(place), size=9, fill=LINE))
    return len(values) * CELL


def _chips(parts: list[str], verdicts: Sequence[tuple[str, bool]], y: int) -> tuple[int, int]:
    """Write each verdict with its mark, in rows. Return width and height."""
    x, top, width = MARGIN, y, 0
    for text, passed in verdicts:
        chip = round(LETTER * (len(text) + 4))
        if x > MARGIN and x + chip > CHIPS_WIDTH:
            x, y = MARGIN, y + 20
        sign, colour = MARKS[passed]
        parts.append(_text(x, y + 13, f"{sign} {text}", anchor="start", fill=colour))
        x, width = x + chip, max(width, x + chip - MARGIN)
    return width, y + 20 + GAP - top


def _listed(verdicts: Sequence[tuple[str, bool]], wanted: bool) -> str:
    return ", ".join(text for text, passed in verdicts if passed is wanted) or "none"


def _shade(share: float) -> str:
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(*RAMP, strict=True))


def _cell(parts: list[str], x: int, y: int, text: str, share: float | None) -> None:
    fill = UNUSED if share is None else _shade(share)
    parts.append(
        f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="{fill}" stroke="{LINE}" stroke-width="0.7"/>'
    )
    if text:
        parts.append(_text(x + CELL // 2, y + CELL // 2 + 4, text))


def _text(
    x: int, y: int, text: str, *, anchor: str = "middle", weight: str = "normal", size: int = 12, fill: str = INK
) -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}" font-size="{size}" '
        f'fill="{fill}">{escape(text)}</text>'
    )


def _svg(parts: Sequence[str], width: int, height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12"><rect width="{width}" height="{height}" fill="{PAPER}"/>'
        f"{''.join(parts)}</svg>"
    )
