"""Checks of lesson 01's clinic: programs that run without an error and do the wrong thing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from course_utils.exercises.compare import describe, has_dtype, has_shape, is_close, is_equal, is_true, is_unchanged
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.verdicts import Check


def check_clinic_channels(channels_first: Callable, inputs: Inputs) -> Iterator[Check]:
    """tensors.clinic-channels: (N, H, W, C) -> (N, C, H, W)."""
    n, h, w, c = inputs.sizes(4, 2, 8)
    images = inputs.randint(0, 256, n, h, w, c, dtype=torch.uint8)
    before = images.clone()
    answer = channels_first(images)
    turned = type(answer) is torch.Tensor and tuple(answer.shape) == (n, c, w, h)
    hint = "Height and width have changed places as well: the images lie on their side." if turned else ""
    yield has_shape("(N, H, W, C) becomes (N, C, H, W)", answer, (n, c, h, w), hint=hint)
    yield has_dtype("the dtype stays uint8", answer, torch.uint8)
    yield is_close(
        "channel c of the result is channel c of the image",
        answer,
        before.permute(0, 3, 1, 2),
        hint="Compare answer[:, 0] with images[..., 0].",
        mistakes=[
            (
                before.reshape(n, c, h, w),
                "All numbers are there, in their old reading order, cut into rows anew. "
                "So each channel holds a bit of every colour. Did the axes move at all?",
            ),
        ],
    )
    yield is_unchanged("the input stays as it was", images, before)


def check_clinic_loss(loss_of: Callable, inputs: Inputs) -> Iterator[Check]:
    """tensors.clinic-loss: mean squared error of (N, 1) predictions against (N,) labels."""
    n = inputs.size(5, 12)
    outputs, labels = inputs.randn(n, 1), inputs.randn(n)
    paired = outputs.squeeze(1) - labels
    perfect = labels[:, None].clone()
    yield is_close(
        "perfect predictions have a loss of 0",
        loss_of(perfect, labels),
        torch.tensor(0.0),
        hint="Print the shape of outputs - labels.",
        mistakes=[
            (
                (perfect - labels).square().mean(),
                "Somebody compared every prediction with every label. Which shape do (N, 1) and (N,) have together?",
            )
        ],
    )
    yield is_close(
        "compares prediction i with label i only",
        loss_of(outputs, labels),
        paired.square().mean(),
        hint="The mean over all examples of (output - label) squared.",
        mistakes=[
            (paired.square().sum(), "This is the sum. The mean was asked for."),
            (paired.mean().square(), "You averaged first and squared then."),
            (paired.abs().mean(), "This is the mean absolute error: the square is missing."),
        ],
    )
    one = loss_of(inputs.randn(1, 1), labels[:1])
    yield has_shape("a batch of one gives a scalar too", one, (), hint="squeeze() takes every axis of length 1.")
    free = inputs.randn(n, 1).requires_grad_()
    yield is_true(
        "the loss can be sent backward",
        loss_of(free, labels).requires_grad,
        detail="it has no history",
        hint="item(), detach() and torch.tensor() cut the graph.",
    )


def check_clinic_rows(centred: Callable, inputs: Inputs) -> Iterator[Check]:
    """tensors.clinic-rows: subtract from each row its own mean, (N, D) -> (N, D)."""
    n = inputs.size(4, 8)
    square = inputs.randn(n, n) + 3 * inputs.randn(n, 1)
    before = square.clone()
    centre = before - before.mean(1, keepdim=True)
    answer = centred(square)
    yield has_shape("a square matrix keeps its shape", answer, (n, n))
    yield is_close(
        "each row of a square matrix has mean 0",
        answer,
        centre,
        hint="Print answer.mean(1).",
        mistakes=[
            (
                before - before.mean(1),
                "From element [i, j] the mean of row j was taken, not that of row i. "
                "With which axis does a result of shape (N,) line up?",
            ),
            (before - before.mean(0), "These are the means of the columns."),
            (before - before.mean(), "One mean for everything. Each row has its own."),
            (centre / before.std(1, keepdim=True), "You also divided by the standard deviation. Only the mean goes."),
        ],
    )
    wide = inputs.strided(n, n + 2)
    kept = wide.clone()
    yield is_close("each row of a wide matrix has mean 0", centred(wide), kept - kept.mean(1, keepdim=True))
    yield is_unchanged("the input stays as it was", wide, kept, hint="-= writes into the caller's tensor.")


def check_clinic_darker(darker: Callable, inputs: Inputs) -> Iterator[Check]:
    """tensors.clinic-darker: item i of a data set at half brightness, the data set untouched."""
    n, h, w = inputs.sizes(3, 3, 8)
    images = inputs.rand(n, h, w)
    before, index = images.clone(), inputs.size(0, n - 1)
    answer = darker(images, index)
    yield has_shape("returns one image", answer, (h, w), hint="images[index] is one image, (H, W).")
    yield is_close("it is half as bright", answer, before[index] / 2, hint="Multiply by 0.5.")
    yield is_unchanged(
        "the data set is as it was",
        images,
        before,
        hint="After the call, the image in the data set is darker too. Does images[index] copy? "
        "And what does *= write to?",
    )
    yield is_close("the same item gives the same image again", darker(images, index), before[index] / 2)
    answer.zero_()
    yield is_unchanged(
        "what happens to the result later does not reach the data set",
        images,
        before,
        hint="The result still shares its storage with the data set.",
    )


def check_clinic_onehot(one_hot: Callable, inputs: Inputs) -> Iterator[Check]:
    """tensors.clinic-onehot: (N,) labels -> (N, C), a 1 in column labels[i] of row i."""
    n, c = inputs.sizes(2, 4, 9)
    labels = inputs.randint(0, c, n)
    labels[0], labels[1] = 0, c - 1  # two classes at least
    answer = one_hot(labels, c)
    yield has_shape("has a row per label and a column per class", answer, (n, c))
    everywhere = torch.zeros(c).index_fill(0, labels.unique(), 1.0).expand(n, c)
    yield is_close(
        "row i has a single 1, in column labels[i]",
        answer,
        F.one_hot(labels, c).float(),
        hint="Print the first two rows.",
        mistakes=[
            (
                everywhere,
                "Every row shows the 1 of every label. How many rows of memory are there? Print rows.stride().",
            )
        ],
    )
    yield has_dtype("is float32", answer, torch.float32, hint="The loss that reads it wants float32.")
    answer[0, 0] = 5.0
    yield is_true(
        "its rows can be changed one by one",
        not bool((answer[1:, 0] == 5.0).any()),
        detail="a change of row 0 reached another row",
        hint="The rows still share their memory: one changed, all changed.",
    )
    only_first = one_hot(torch.zeros(n, dtype=torch.int64), c)
    yield has_shape(
        "has a column for a class that does not occur",
        only_first,
        (n, c),
        hint="The number of columns is n_classes, whatever labels this batch happens to hold.",
    )


def check_clinic_prepare(prepare: Callable, inputs: Inputs) -> Iterator[Check]:
    """tensors.clinic-prepare: float64 features and int32 labels from NumPy, as a model and its loss take them."""
    n, d, c = inputs.sizes(3, 3, 8)
    features = inputs.randn(n, d, dtype=torch.float64).numpy()
    labels = inputs.randint(0, c, n, dtype=torch.int32).numpy()
    kept = features.copy()
    answer = prepare(features, labels, "cpu")
    yield is_true(
        "returns features and labels",
        type(answer) in (tuple, list) and len(answer) == 2,
        detail=f"got {describe(answer)}",
        hint="return x, y",
    )
    x, y = answer
    yield has_dtype(
        "the features are float32, as the weights are",
        x,
        torch.float32,
        hint="The line x.float() stands there. What does it do to x, and what does it return?",
    )
    yield has_dtype(
        "the labels are int64, as the loss wants them",
        y,
        torch.int64,
        hint="Class numbers are int64 in PyTorch. y.long() alone leaves y as it was.",
    )
    yield is_close("the features hold the same values", x, torch.from_numpy(kept), rtol=1e-5)
    yield is_equal("the labels hold the same classes", y.tolist(), labels.tolist(), hint="Only the dtype may change.")
    scores = F.linear(x, inputs.randn(c, d), inputs.randn(c))
    yield is_true("a layer and its loss accept them", bool(F.cross_entropy(scores, y).isfinite()))
    x, y = prepare(features, labels, "meta")  # the one other device that every machine has
    yield is_true(
        "the features are on the device that was asked for",
        type(x) is torch.Tensor and x.device.type == "meta",
        detail=f"device 'meta' was asked for, got {x.device if type(x) is torch.Tensor else describe(x)}",
        hint="x.to(device) doesn't move x. It returns a tensor; where did it go?",
    )
    yield is_true(
        "the labels are on the device that was asked for",
        type(y) is torch.Tensor and y.device.type == "meta",
        detail=f"device 'meta' was asked for, got {y.device if type(y) is torch.Tensor else describe(y)}",
        hint="The labels have to move as well: the loss needs scores and labels in one place.",
    )
    yield is_true(
        "the arrays are as they were",
        bool((features == kept).all()),
        detail="the features changed",
        hint="from_numpy shares memory with the array. An in-place change reaches the owner.",
    )
