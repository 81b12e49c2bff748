"""The warm-up exercise of lesson 00."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from course_utils.exercises.compare import is_close, is_tensor, is_true, is_unchanged
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.registry import Exercise
from course_utils.exercises.verdicts import Check

MSG_NOT_A_TENSOR = (
    "Return the tensor itself: a Python number, from .item() or float(), has forgotten how it was computed, "
    "and training needs exactly that."
)
MSG_NO_GRADIENT = (
    "The value is right but its history is gone. Stay with tensor operations all the way: "
    ".item(), float(), .detach() and .numpy() cut it."
)
MSG_ONE_NUMBER = "The loss is one number for the whole batch: take the mean over all examples at the end."


def check_mean_squared_error(mse: Callable[[Tensor, Tensor], Tensor], inputs: Inputs) -> Iterator[Check]:
    """Exercise start.mean-squared-error: how wrong predictions are, (N,), (N,) -> ()."""
    # Errors of 1 and 2: every usual slip (no square, a sum, a root) gives another number than 2.5.
    small = mse(torch.tensor([1.0, 5.0]), torch.tensor([2.0, 3.0]))
    yield is_tensor("gives a tensor", small, hint=MSG_NOT_A_TENSOR)
    yield is_close(
        "errors of -1 and 2 give 2.5",
        small,
        torch.tensor(2.5),
        hint="Subtract, square each difference, then take the mean: (1 + 4) / 2.",
        mistakes=[
            (torch.tensor([1.0, 4.0]), MSG_ONE_NUMBER),
            (torch.tensor(0.5), "Without the square, errors of opposite sign cancel. Square before the mean."),
            (torch.tensor(-0.5), "Without the square, errors of opposite sign cancel. Square before the mean."),
            (torch.tensor(0.25), "You squared the mean. Square each difference first, then take the mean."),
            (torch.tensor(5.0), "This is the sum. A mean does not grow with the number of examples."),
            (torch.tensor(1.5), "This is the mean absolute error. Square the differences instead of abs()."),
            (torch.tensor(2.5).sqrt(), "This is the root of the mean square. Leave the root out."),
            (torch.tensor(1.25), "Half of it: some books put 1/2 in front, PyTorch's mse_loss does not."),
        ],
    )
    count = inputs.size(5, 9)
    predictions, labels = inputs.strided(count), inputs.randn(count)
    before, expected = predictions.clone(), ((predictions - labels) ** 2).mean()
    yield is_close(
        "is right for any number of examples",
        mse(predictions, labels),
        expected,
        hint="It has to work for any number of examples: no number of this example may stand in the code.",
    )
    yield is_unchanged(
        "leaves its inputs as they were",
        predictions,
        before,
        hint="An operation that ends in _ or an assignment such as -= writes into the caller's tensor.",
    )
    predictions = inputs.randn(count).requires_grad_()
    loss = mse(predictions, labels)
    yield is_tensor("gives a tensor", loss, hint=MSG_NOT_A_TENSOR)
    yield is_true("can be traced back to the predictions", loss.requires_grad, hint=MSG_NO_GRADIENT)
    loss.backward()
    yield is_close(
        "has the right gradient",
        predictions.grad,
        2 * (predictions.detach() - labels) / count,
        hint=MSG_NO_GRADIENT,
    )


EXERCISES = [
    Exercise(
        id="start.mean-squared-error",
        title="Mean squared error",
        check=check_mean_squared_error,
        hints=(
            "Three steps, each one operation on whole tensors: a difference, a square, a mean.",
            "Tensors of the same shape subtract element by element, ** 2 squares each element, and a tensor "
            "has a method that gives the mean of all its elements.",
            "return (predictions - labels).square().mean()",
        ),
    ),
]
