"""Metrics agree with slow arithmetic and refuse shapes that do not belong together."""

from __future__ import annotations

import doctest
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_utils import metrics
from course_utils.errors import ShapeError, UsageError
from course_utils.metrics import Mean, accuracy, confusion


@st.composite
def predictions(draw):
    """Logits (N, C) without ties, as nested lists, and labels (N,)."""
    n, c = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    rows = [draw(st.permutations(range(c))) for _ in range(n)]
    labels = draw(st.lists(st.integers(0, c - 1), min_size=n, max_size=n))
    return rows, labels, c


@given(predictions())
def test_accuracy_is_the_share_of_right_answers(case):
    rows, labels, _ = case
    right = [row.index(max(row)) == label for row, label in zip(rows, labels, strict=True)]
    assert accuracy(torch.tensor(rows, dtype=torch.float32), torch.tensor(labels)) == sum(right) / len(right)


@given(predictions())
def test_confusion_counts_each_pair_and_its_diagonal_is_the_accuracy(case):
    rows, labels, c = case
    logits, labels = torch.tensor(rows, dtype=torch.float32), torch.tensor(labels)
    counts = confusion(logits, labels, c)
    expected = [[0] * c for _ in range(c)]
    for row, label in zip(rows, labels.tolist(), strict=True):
        expected[label][row.index(max(row))] += 1
    assert counts.tolist() == expected
    assert counts.dtype == torch.int64
    assert counts.diagonal().sum().item() / len(labels) == accuracy(logits, labels)


def test_confusion_may_have_more_classes_than_logits():
    assert confusion(torch.tensor([[0.0, 1.0]]), torch.tensor([2]), 3).tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0]]


def test_labels_of_small_integer_types_do_not_overflow():
    logits = torch.eye(200)
    labels = torch.arange(200, dtype=torch.uint8)
    assert accuracy(logits, labels) == 1.0
    assert confusion(logits, labels, 200).diagonal().tolist() == [1] * 200


WRONG_SHAPES = {
    "labels (N, 1), which would broadcast": (torch.zeros(3, 2), torch.zeros(3, 1, dtype=torch.int64)),
    "one label for all": (torch.zeros(3, 2), torch.zeros(1, dtype=torch.int64)),
    "a label without an axis": (torch.zeros(3, 2), torch.tensor(0)),
    "predictions instead of logits": (torch.zeros(3), torch.zeros(3, dtype=torch.int64)),
    "one logit more": (torch.zeros(3, 2, 1), torch.zeros(3, dtype=torch.int64)),
    "one-hot labels": (torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.int64)),
    "no example": (torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64)),
    "no class": (torch.zeros(3, 0), torch.zeros(3, dtype=torch.int64)),
}


@pytest.mark.parametrize(("logits", "labels"), WRONG_SHAPES.values(), ids=WRONG_SHAPES.keys())
def test_shapes_that_do_not_belong_together_are_refused(logits, labels):
    for metric in (accuracy, lambda a, b: confusion(a, b, 2)):
        with pytest.raises(ShapeError) as caught:
            metric(logits, labels)
        assert caught.value.what == "Logits and labels do not belong together."
        assert caught.value.got == f"logits {tuple(logits.shape)}, labels {tuple(labels.shape)}"
        assert caught.value.expected == "(N, C) and (N,), with at least one example"
        assert caught.value.fix == ("labels.squeeze(1)" if labels.shape == (3, 1) else "")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64])
def test_labels_must_be_whole_numbers(dtype):
    with pytest.raises(UsageError) as caught:
        accuracy(torch.zeros(3, 2), torch.zeros(3, dtype=dtype))
    assert str(caught.value) == (
        f"Labels are class numbers.\n  got:      {dtype}\n  expected: whole numbers\n  fix:      labels.long()"
    )


def test_confusion_refuses_more_logits_than_classes():
    with pytest.raises(ShapeError) as caught:
        confusion(torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64), 2)
    assert str(caught.value) == (
        "There are more logits than classes.\n  got:      logits (3, 4)\n  expected: (N, 2) for 2 classes"
    )


@pytest.mark.parametrize("label", [-1, 2, -100])
def test_confusion_refuses_a_label_that_is_no_class(label):
    with pytest.raises(UsageError) as caught:
        confusion(torch.zeros(2, 2), torch.tensor([0, label]), 2)
    assert str(caught.value) == (
        f"A label is no class.\n  got:      labels from {min(0, label)} to {max(0, label)}\n  expected: 0 to 1"
    )


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.integers(1, 9))
def test_the_mean_of_batches_is_the_mean_of_examples(values, batch_size):
    mean = Mean()
    for start in range(0, len(values), batch_size):
        batch = values[start : start + batch_size]
        mean.add(sum(batch) / len(batch), count=len(batch))
    assert mean.value == pytest.approx(sum(values) / len(values), abs=1e-6)
    assert mean.count == len(values)


def test_a_mean_takes_a_tensor_of_one_number_and_keeps_no_graph():
    mean = Mean()
    mean.add(torch.tensor([2.0], requires_grad=True).mean(), count=3)
    mean.add(torch.tensor([[4.0]]), count=torch.tensor(3))
    assert mean.value == 3.0
    assert isinstance(mean.total, float)
    assert isinstance(mean.count, int)


def test_a_mean_of_nothing_is_nan_and_an_empty_batch_weighs_nothing():
    mean = Mean()
    assert math.isnan(mean.value)
    mean.add(math.nan, count=0)
    mean.add(1.0)
    assert mean.value == 1.0


def test_a_nan_is_not_hidden():
    mean = Mean()
    mean.add(1.0)
    mean.add(math.nan)
    assert math.isnan(mean.value)


def test_a_mean_refuses_one_loss_per_example():
    with pytest.raises(ShapeError) as caught:
        Mean().add(torch.zeros(4), count=4)
    assert str(caught.value) == (
        "A mean takes one number per batch.\n  got:      (4,)\n  expected: shape ()\n  fix:      value.mean()"
    )


@pytest.mark.parametrize("count", [-1, 1.5])
def test_a_mean_refuses_a_count_that_is_none(count):
    with pytest.raises(UsageError) as caught:
        Mean().add(1.0, count=count)
    assert str(caught.value) == (
        f"This is not a number of examples.\n  got:      {count}\n  expected: a whole number of at least 0"
    )


def test_the_examples_in_the_documentation_run():
    failed, tried = doctest.testmod(metrics)
    assert (failed, tried > 0) == (0, True)
