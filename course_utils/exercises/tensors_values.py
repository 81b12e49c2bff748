"""Checks of lesson 01: dtypes, devices, broadcasting, leaving the tensor world."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from course_utils.exercises.compare import describe, has_dtype, has_shape, is_close, is_equal, is_true, is_unchanged
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.verdicts import Check

SCORE_RTOL = 1e-7  # a float32 as a Python number is exact; rounding it for display is not


def check_energy(energy: Callable, inputs: Inputs) -> Iterator[Check]:
    """tensors.energy: mean squared pixel of each uint8 image, (N, H, W) -> (N,), float32."""
    n, h, w = inputs.sizes(3, 3, 9)
    images = inputs.randint(20, 256, n, h, w, dtype=torch.uint8)
    before = images.clone()
    exact = before.to(torch.float64).square().mean((1, 2))
    wrapped = (before * before).to(torch.float64).mean((1, 2))
    answer = energy(images)
    yield has_shape("one number per image: (N,)", answer, (n,), hint="Average over the two pixel axes, not over N.")
    yield is_close(
        "is the mean of the squared pixels",
        answer,
        exact,
        hint="Square each pixel, then average over H and W.",
        mistakes=[
            (
                wrapped,
                "uint8 holds 0 to 255 and starts again at 0 beyond: 20 * 20 became 144. "
                "Change the dtype before you multiply.",
            ),
            (before.to(torch.float64).mean((1, 2)).square(), "You averaged first and squared then."),
            (exact / 255**2, "The pixels stay as they are, 0 to 255. No scaling was asked for."),
            (exact.sqrt(), "This is the root of the mean square. Leave the root out."),
            (before.to(torch.float64).square().sum((1, 2)), "This is the sum over the pixels. Take the mean."),
        ],
        rtol=1e-4,
    )
    yield has_dtype(
        "is float32", answer, torch.float32, hint="float32 is what models compute in; float64 takes twice the memory."
    )
    yield is_unchanged("the images stay as they were", images, before)
    bright = torch.full((2, h, w), 255, dtype=torch.uint8)
    yield is_close(
        "is right for the brightest image",
        energy(bright),
        torch.full((2,), 65025.0),
        rtol=1e-4,
        hint="255 squared is 65,025: float16 ends at 65,504, and int16 at 32,767.",
    )


def check_with_ones(with_ones: Callable, inputs: Inputs) -> Iterator[Check]:
    """tensors.with-ones: append a column of ones, (N, D) -> (N, D + 1), in the dtype and on the device of x."""
    n, d = inputs.sizes(2, 3, 8)
    for dtype in (torch.float32, torch.float64, torch.float16):
        x = inputs.strided(n, d, dtype=dtype)
        expected = torch.cat([x, torch.ones(n, 1, dtype=dtype)], 1)
        first = torch.cat([torch.ones(n, 1, dtype=dtype), x], 1)
        answer = with_ones(x)
        yield has_shape("has one column more", answer, (n, d + 1), hint="Join along axis 1.")
        yield is_close(
            "the last column is 1, the others are x",
            answer,
            expected,
            mistakes=[(first, "The ones came first. They belong behind x.")],
        )
        yield has_dtype(
            "has the dtype of x",
            answer,
            dtype,
            hint="torch.ones makes float32, and joining promotes. Pass dtype=x.dtype, or use x.new_ones.",
        )
    x = inputs.randn(n, d)
    x[0], x[1] = torch.inf, 0.0
    yield is_close(
        "is right where x holds infinity and 0",
        with_ones(x),
        torch.cat([x, torch.ones(n, 1)], 1),
        hint="Don't calculate the ones from x: infinity times 0 and 0 / 0 are nan. Make them with a factory function.",
    )
    on_meta = with_ones(torch.empty(n, d, device="meta"))
    yield is_true(
        "stays on the device of x",
        type(on_meta) is torch.Tensor and on_meta.device.type == "meta",
        detail=f"got {describe(on_meta)} on another device",
        hint="Pass device=x.device to the factory function, or use x.new_ones.",
    )
    yield has_shape("has one column more on any device", on_meta, (n, d + 1))


def check_distances(distances: Callable, inputs: Inputs) -> Iterator[Check]:
    """tensors.distances: (N, D), (M, D) -> (N, M), Euclidean."""
    n, m, d = inputs.sizes(3, 3, 8)
    a, b = inputs.strided(n, d, dtype=torch.float64), inputs.randn(m, d, dtype=torch.float64)
    expected = torch.stack([torch.stack([(row - other).square().sum().sqrt() for other in b]) for row in a])
    answer = distances(a, b)
    hint = "a as (N, 1, D) against b as (1, M, D) meet in (N, M, D)."
    nan_hint = (
        "A square that is put together from products can fall a little below 0, and its root is nan. "
        "clamp(min=0) before the root, or start from the difference."
    )
    yield has_shape("every a against every b: (N, M)", answer, (n, m), hint=hint)
    yield is_close(
        "is the Euclidean distance",
        answer,
        expected,
        hint=nan_hint if _has_nan(answer) else hint,
        mistakes=[
            (expected.square(), "These are the squared distances. The root is missing."),
            ((a[:, None] - b).abs().sum(2), "This adds up absolute differences. Square, add, take the root."),
            ((a[:, None] - b).square().mean(2).sqrt(), "You averaged over D. Add up instead."),
            ((a[:, None] - b).sum(2).abs(), "Differences of different sign cancel when added. Square them first."),
        ],
    )
    same = inputs.randn(n, d, dtype=torch.float64)
    answer = distances(same, same.flip(0))
    yield is_close(
        "is right for two sets of the same size",
        answer,
        torch.stack([(same - other).square().sum(1).sqrt() for other in same.flip(0)], 1),
        hint=nan_hint if _has_nan(answer) else "With N = M a missing axis goes unnoticed. " + hint,
    )


def _has_nan(answer: object) -> bool:
    return type(answer) is torch.Tensor and bool(answer.isnan().any())


def check_best(best: Callable, inputs: Inputs) -> Iterator[Check]:
    """tensors.best: the winning class and its score as plain Python numbers, (C,) -> (int, float)."""
    c = inputs.size(5, 9)
    scores = inputs.strided(c).requires_grad_()
    values = scores.detach().tolist()
    winner = values.index(max(values))
    answer = best(scores)
    hint = "item() turns a tensor with one element into a Python number."
    yield is_true(
        "returns a pair",
        type(answer) in (tuple, list) and len(answer) == 2,
        detail=f"got {describe(answer)}",
        hint="return label, score",
    )
    label, score = answer
    is_swapped = type(label) is float and type(score) is int
    yield is_true(
        "the class is a Python int",
        type(label) is int,
        detail=f"got {describe(label)}",
        hint="The class comes first, then the score."
        if is_swapped
        else "A class that is a tensor, a NumPy number or a float is no int: json would write it in another way, "
        "or not at all. " + hint,
    )
    yield is_true(
        "the score is a Python float",
        type(score) is float,
        detail=f"got {describe(score)}",
        hint="A score that stays a tensor keeps the whole graph behind it alive. " + hint,
    )
    loser = values.index(min(values))
    yield is_equal(
        "the class is the one with the highest score",
        label,
        winner,
        hint="argmax over the classes.",
        mistakes=[(loser, "That is the lowest score.")],
    )
    yield is_close(
        "the score is the raw score of that class",
        score,
        values[winner],
        rtol=SCORE_RTOL,
        atol=0.0,
        hint="The score as it came in, unchanged.",
        mistakes=[(scores.detach().softmax(0).max().item(), "That is a probability. The raw score was asked for.")],
    )
    all_negative = -inputs.rand(c) - 1.0
    _, lowest = best(all_negative)
    yield is_close(
        "is right when all scores are negative",
        lowest,
        all_negative.max().item(),
        rtol=SCORE_RTOL,
        atol=0.0,
        hint="The highest of negative scores is negative too.",
    )
