"""Lesson 01's explorer: what slicing and permuting do to strides, storage and the legal calls of ``view``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from course_utils.diagrams import storage_map
from course_utils.memory import counting_new_bytes, layout, shares_storage
from course_utils.text import human_bytes, shorten, table
from course_utils.widgets.panel import Choice, Entry, View, explore

SHAPES: tuple[tuple[int, ...], ...] = ((2, 3, 4), (4, 6), (3, 8), (2, 2, 6), (3, 2, 3), (12,))
# What to read of the tensor: an index for each number of axes is made by filling up from the left with ":".
SLICES: Mapping[str, tuple[Any, ...]] = {
    "everything": (),
    "skip the first of axis 0": (slice(1, None),),
    "every second of the last axis": (Ellipsis, slice(None, None, 2)),
    "all but one of the last axis": (Ellipsis, slice(None, -1)),
    "one of the last axis": (Ellipsis, slice(1, 2)),
    "the first of axis 0, repeated": (),
}
ORDERS = ("as it is", "reversed", "last axis first", "first axis last", "last two swapped")


def permutation(order: str, ndim: int) -> tuple[int, ...]:
    """Return the axes that ``permute`` gets for one of ``ORDERS``.

    Example:
        >>> permutation("last axis first", 3)
        (2, 0, 1)
    """
    axes = tuple(range(ndim))
    return {
        "as it is": axes,
        "reversed": axes[::-1],
        "last axis first": axes[-1:] + axes[:-1],
        "first axis last": axes[1:] + axes[:1],
        "last two swapped": (*axes[:-2], *axes[-2:][::-1]),
    }[order]


def derived(shape: tuple[int, ...], part: str, order: str) -> tuple[Tensor, Tensor, str]:
    """Return a tensor that counts from 0, what slicing and permuting make of it, and the code that does so."""
    base = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)
    code, result = "x", base
    if part == "the first of axis 0, repeated":
        code, result = f"{code}[:1].expand{tuple(shape)}", base[:1].expand(shape)
    elif SLICES[part]:
        code, result = f"{code}[{_as_code(SLICES[part])}]", base[SLICES[part]]
    axes = permutation(order, len(shape))
    if axes != tuple(range(len(shape))):
        code, result = f"{code}.permute{axes}", result.permute(axes)
    return base, result, code


def view_verdicts(tensor: Tensor) -> list[tuple[str, bool]]:
    """Return which ways of splitting, merging and flattening ``view`` accepts: each one is tried."""
    return [(f"view{target}".replace(",)", ")"), _can_view(tensor, target)) for target in targets(tuple(tensor.shape))]


def targets(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield other shapes of as many elements: flat, two neighbours merged, an axis split into pairs."""
    count = torch.Size(shape).numel()
    seen = {shape}
    merged = [(*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]) for axis in range(len(shape) - 1)]
    halved = [
        (*shape[:axis], size // 2, 2, *shape[axis + 1 :])
        for axis, size in enumerate(shape)
        if size > 2 and size % 2 == 0
    ]
    for target in [(count,), *merged, *halved]:
        if target not in seen:
            seen.add(target)
            yield target


def layout_view(shape: tuple[int, ...], part: str, order: str, wish: str = "") -> View:
    """Draw a tensor and one derived from it over the same storage, and try what ``view`` accepts.

    Args:
        shape: of the tensor that everything starts from.
        part: what to take of it, a key of ``SLICES``.
        order: how to order the axes then, one of ``ORDERS``.
        wish: a shape to try with ``view``, as it is typed between the brackets.
    """
    base, result, code = derived(shape, part, order)
    facts = layout(result)
    with counting_new_bytes() as copied:
        result.contiguous()
    verdicts = view_verdicts(result)
    picture = storage_map(
        base, result, names=("x", f"y = {code}"), verdicts=[(f"y.{call}", ok) for call, ok in verdicts]
    )
    rows = [
        ("y", code),
        ("shape", str(facts.shape)),
        ("strides, in elements", str(facts.strides)),
        ("offset, in elements", str(facts.offset)),
        ("shares the storage of x", _yes(shares_storage(base, result))),
        ("contiguous", _yes(facts.is_contiguous)),
        ("y.contiguous() copies", human_bytes(copied.total)),
    ]
    if wish.strip():
        rows.append((f"y.view({wish.strip()})", _answer_to(result, wish)))
    return View(picture, table(rows, ("what", "value")))


def explore_layout() -> None:
    """Show the explorer: shape, slice and order of the axes; strides, storage, and what view accepts."""
    explore(
        layout_view,
        shape=Choice("shape of x", {str(shape): shape for shape in SHAPES}, SHAPES[0]),
        part=Choice("first take", list(SLICES), "everything"),
        order=Choice("then order the axes", list(ORDERS), "last axis first"),
        wish=Entry("try y.view( … )", "2, 12"),
    )


def _can_view(tensor: Tensor, target: tuple[int, ...]) -> bool:
    try:
        tensor.view(target)
    except RuntimeError:
        return False
    return True


def _answer_to(tensor: Tensor, wish: str) -> str:
    """Return what PyTorch says to ``tensor.view(wish)``."""
    try:
        target = [int(size) for size in wish.strip(" ()").rstrip(",").split(",")]
    except ValueError:
        return "no shape: type whole numbers with commas between them, -1 for the one to be worked out"
    try:
        return f"a view of shape {tuple(tensor.view(target).shape)}"
    except RuntimeError as error:
        return "refused: " + shorten(str(error).partition(" (")[0], 56)


def _as_code(index: tuple) -> str:
    """Return an index of slices as it is typed: ``..., ::2``."""
    return ", ".join("..." if item is Ellipsis else _slice_code(item) for item in index)


def _slice_code(item: slice) -> str:
    start, stop, step = ("" if bound is None else str(bound) for bound in (item.start, item.stop, item.step))
    return f"{start}:{stop}:{step}" if step else f"{start}:{stop}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
