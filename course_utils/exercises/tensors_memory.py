"""Checks of lesson 01: strides, views, copies, in-place changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from course_utils.exercises.compare import (
    describe,
    has_dtype,
    has_shape,
    is_close,
    is_equal,
    is_tensor,
    is_true,
    is_unchanged,
    owns_memory,
    shares_memory,
)
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.verdicts import Check

MSG_VIEW = "The numbers are already there. Only shape and strides have to change, so nothing has to be copied."


def check_position(position: Callable, inputs: Inputs) -> Iterator[Check]:
    """tensors.position: where in its storage an element lies, from strides and offset."""
    rows, columns, planes = inputs.sizes(3, 3, 7)
    contiguous = inputs.randn(rows, columns)
    yield from _position_cases(position, "a contiguous matrix", contiguous, inputs)
    yield from _position_cases(position, "a transposed matrix", contiguous.t(), inputs)
    sliced = inputs.randn(planes, rows + 2, 2 * columns, dtype=torch.float64)[1:, 2:, ::2]  # 8 bytes, not 4
    yield from _position_cases(position, "a slice with an offset", sliced, inputs)
    yield from _position_cases(position, "an expanded row", inputs.randn(1, columns).expand(rows, columns), inputs)


def _position_cases(position: Callable, kind: str, x: Tensor, inputs: Inputs) -> Iterator[Check]:
    for _ in range(50):  # until reading order and storage tell different positions, where they can
        index = tuple(inputs.size(1, size - 1) for size in x.shape)
        steps = sum(i * stride for i, stride in zip(index, x.stride(), strict=True))
        reading_order = 0
        for i, size in zip(index, x.shape, strict=True):
            reading_order = reading_order * size + i
        if steps != reading_order:
            break
    mistakes = [
        (steps, "You left out the offset: a slice starts later in its storage. x.storage_offset() tells where."),
        (
            reading_order,
            "That is the place in reading order. The storage keeps the order of the original: use x.stride().",
        ),
        (
            (steps + x.storage_offset()) * x.element_size(),
            "That is counted in bytes. Strides and positions count elements.",
        ),
        (
            (steps + x.storage_offset()) * x.element_size() // 4,
            "You divided an address by 4, but an element of this tensor takes 8 bytes. x.element_size() tells.",
        ),
    ]
    expected = steps + x.storage_offset()
    answer = position(x, index)
    is_other_number = type(answer) is Tensor or isinstance(answer, np.integer)
    yield is_equal(
        f"finds an element of {kind}",
        answer,
        expected,
        hint="A Python int was asked for: int() makes one."
        if is_other_number
        else "Offset, plus for each axis its index times its stride.",
        mistakes=[(wrong, cause) for wrong, cause in mistakes if wrong != expected],
    )


def check_patches(patches: Callable, inputs: Inputs) -> Iterator[Check]:
    """tensors.patches: (H, W) -> (H/s, W/s, s, s), a view."""
    down, across, side = inputs.sizes(3, 2, 5)
    image = inputs.strided(down * side, across * side)
    before = image.clone()
    answer = patches(image, side)
    yield has_shape(
        "one patch per place: (H/s, W/s, s, s)",
        answer,
        (down, across, side, side),
        hint="First the grid of patches, then the pixels of one patch.",
    )
    expected = torch.stack(
        [
            torch.stack([before[i * side : (i + 1) * side, j * side : (j + 1) * side] for j in range(across)])
            for i in range(down)
        ]
    )
    scrambled = before.reshape(down, across, side, side)
    swapped = expected.transpose(2, 3)
    yield is_close(
        "each patch is a square cut from the image",
        answer,
        expected,
        hint="Split each axis in two, (H/s, s, W/s, s), then bring the axes into order.",
        mistakes=[
            (
                scrambled,
                "reshape alone deals the pixels out in reading order: each patch is a piece of a line, "
                "not a square. Split each axis first, then permute.",
            ),
            (swapped, "Each patch is transposed: its rows and columns have changed places."),
        ],
    )
    yield shares_memory("the patches are a view of the image", answer, image, hint=MSG_VIEW)
    yield is_unchanged("the image stays as it was", image, before)


def check_windows(windows: Callable, inputs: Inputs) -> Iterator[Check]:
    """tensors.windows: (T,) -> (T - size + 1, size), a view in which elements overlap."""
    size = inputs.size(3, 5)
    count = inputs.size(10, 14)  # always more windows than elements in one, so that a transposed answer shows
    for kind, series in (("a series", inputs.randn(count)), ("a series with gaps", inputs.strided(count))):
        before = series.clone()
        answer = windows(series, size)
        yield has_shape(
            f"{kind} gives T - size + 1 windows",
            answer,
            (count - size + 1, size),
            hint="The last window starts at T - size.",
        )
        expected = torch.stack([before[i : i + size] for i in range(count - size + 1)])
        ignores_stride = torch.as_strided(series, (count - size + 1, size), (1, 1))
        ignores_offset = torch.as_strided(series, (count - size + 1, size), (series.stride(0),) * 2, 0)
        yield is_close(
            f"window i of {kind} starts at element i",
            answer,
            expected,
            hint="Moving on by one window and by one element inside it is the same step.",
            mistakes=[
                (
                    ignores_offset,
                    "You started at position 0 of the storage. This series begins later: keep its offset.",
                ),
                (
                    ignores_stride,
                    "You took a step of 1 in storage. This series has another stride: use series.stride(0).",
                ),
            ]
            if series.stride(0) != 1
            else [],
        )
        yield shares_memory(f"the windows of {kind} are a view", answer, series, hint=MSG_VIEW)
        yield is_unchanged(f"{kind} stays as it was", series, before)


def check_needs_copy(needs_copy: Callable, inputs: Inputs) -> Iterator[Check]:
    """tensors.needs-copy: whether flattening a tensor has to copy it."""
    a, b, c = inputs.sizes(3, 2, 6)
    cases = [
        ("a contiguous tensor", inputs.randn(a, b, c), "Read row by row, its elements lie side by side in storage."),
        ("a transposed matrix", inputs.randn(a, b).t(), "Reading it row by row jumps back and forth in storage."),
        (
            "every second element of a vector",
            inputs.strided(a + 2),
            "It is not contiguous, yet one stride reaches all its elements: a flat view exists. "
            "is_contiguous asks for more than is needed.",
        ),
        (
            "the first columns of a matrix",
            inputs.randn(a, b + 3)[:, : b + 1],
            "From one row to the next there is a gap.",
        ),
        ("the first rows of a matrix", inputs.randn(a + 2, b)[:a], "Nothing is skipped inside the part that it reads."),
        (
            "a single column",
            inputs.randn(a, b)[:, :1],
            "An axis of length 1 is never stepped along, so its stride doesn't matter.",
        ),
        ("an expanded row", inputs.randn(1, b).expand(a, b), "Stride 0 repeats one row. No single stride does that."),
        ("every second pair of rows, all columns", inputs.randn(2 * a, b, c)[::2], "Between the pairs there are gaps."),
        (
            "one value of the last axis",
            inputs.randn(a, b, c)[:, :, 0],
            "Its two axes step regularly through the storage: a stride of C reaches each element in turn.",
        ),
    ]
    for kind, x, why in cases:
        answer = needs_copy(x)
        yield is_true(
            "answers True or False",
            type(answer) is bool,
            detail=f"got {describe(answer)}",
            hint="Return a Python bool.",
        )
        expected = x.reshape(-1).untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
        yield is_equal(f"is right about {kind}", answer, expected, hint=why)
    probe = inputs.randn(a, b).t()
    address = probe.untyped_storage().data_ptr()
    needs_copy(probe)
    yield is_true("leaves the tensor as it is", probe.untyped_storage().data_ptr() == address)


def check_snapshot(snapshot: Callable, inputs: Inputs) -> Iterator[Check]:
    """tensors.snapshot: the values of now, for ever: a copy without history."""
    rows, columns = inputs.sizes(2, 3, 7)
    weight = inputs.randn(rows, columns, dtype=torch.float64).requires_grad_()
    values = weight.detach().clone()
    answer = snapshot(weight)
    yield is_tensor("returns a tensor", answer, hint="Not a list, not an array: what reads it later is PyTorch.")
    yield has_dtype("keeps the dtype", answer, torch.float64, hint="float64 came in, float64 goes out.")
    yield is_close("holds the same values", answer, values, rtol=0, atol=0)
    yield owns_memory(
        "has a storage of its own",
        answer,
        weight,
        hint="detach() gives a view: when the weight is updated in place, your snapshot changes with it. Copy it too.",
    )
    yield is_true(
        "carries no history",
        not answer.requires_grad and answer.grad_fn is None,
        detail="it requires gradients",
        hint="clone() alone is part of the graph: it keeps the graph alive, and gradients flow through it. Detach it.",
    )
    yield is_true(
        "leaves the original in training",
        weight.requires_grad and weight.is_leaf,
        hint="requires_grad_(False) or detach_() on the input changes the learner's weight.",
    )
    with torch.no_grad():
        weight.mul_(2)
    yield is_close("stays as it was after the weight has moved", answer, values, rtol=0, atol=0)


def check_moving_average(update: Callable, inputs: Inputs) -> Iterator[Check]:
    """tensors.moving-average: average <- decay * average + (1 - decay) * value, in the average's own storage."""
    rows, columns = inputs.sizes(2, 3, 7)
    base = inputs.randn(rows, 2 * columns)
    average, value = base[:, ::2], inputs.strided(rows, columns)
    decay = inputs.choice([0.9, 0.75, 0.6])
    before, value_before, others = average.clone(), value.clone(), base[:, 1::2].clone()
    update(average, value, decay)
    expected = decay * before + (1 - decay) * value_before
    yield is_true(
        "the average that was handed in has changed",
        not torch.equal(average, before),
        detail="it holds what it held before",
        hint="average = ... binds a local name to a new tensor; the caller never sees it. Write into the tensor: "
        "methods that end in _ , or average[...] = ...",
    )
    yield is_close(
        "it is decay times the old average plus (1 - decay) times the value",
        average,
        expected,
        hint="mul_ and then add_ with alpha, or lerp_.",
        mistakes=[
            ((1 - decay) * before + decay * value_before, "The weights are swapped: decay belongs to the old average."),
            (decay * before + value_before, "The value needs its weight too: 1 - decay."),
            (
                decay * (before + (1 - decay) * value_before),
                "You added first and multiplied then, so the decay shrinks the value as well.",
            ),
        ],
    )
    yield is_unchanged(
        "the value stays as it was", value, value_before, hint="You wrote into the value. Its owner still needs it."
    )
    yield is_unchanged("its neighbours in storage stay as they were", base[:, 1::2], others)
    yield is_close(
        "the memory that it had holds the new average",
        base[:, ::2],
        expected,
        hint="The tensor got another memory, as .data = ... and set_ give it. Whoever looks into the old one sees "
        "no update. Write into the memory that is there.",
    )
