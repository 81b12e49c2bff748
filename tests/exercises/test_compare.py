"""Comparisons refuse what only looks right: a scalar for a vector, a look-alike, another dtype, nan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from course_utils.exercises import compare
from tests.exercises.harness import EqualsAll

VECTOR = torch.tensor([1.0, 2.0, 3.0])
IMPOSTORS = [EqualsAll(), object(), None, ..., "text", lambda: 0, np.ones(3), [1.0, 2.0, 3.0], 2.0, True, torch]


class Subclass(torch.Tensor):
    """A tensor type that could answer every comparison as it likes."""


@pytest.mark.parametrize(
    "call",
    [
        lambda value: compare.is_tensor("what", value),
        lambda value: compare.has_shape("what", value, (3,)),
        lambda value: compare.has_dtype("what", value, torch.float32),
        lambda value: compare.is_close("what", value, VECTOR),
        lambda value: compare.is_equal("what", value, VECTOR),
        lambda value: compare.shares_memory("what", value, VECTOR),
        lambda value: compare.owns_memory("what", value, VECTOR),
    ],
    ids=["is_tensor", "has_shape", "has_dtype", "is_close", "is_equal", "shares_memory", "owns_memory"],
)
@pytest.mark.parametrize("impostor", [*IMPOSTORS, VECTOR.as_subclass(Subclass)], ids=lambda value: type(value).__name__)
def test_what_is_not_a_tensor_is_refused_with_words(call, impostor):
    check = call(impostor)
    assert not check.passed
    assert check.detail


@pytest.mark.parametrize("wrong_shape", [torch.tensor(2.0), torch.ones(1), torch.ones(1, 3), torch.ones(3, 1)])
@pytest.mark.parametrize("comparison", [compare.is_close, compare.is_equal])
def test_nothing_is_broadcast(comparison, wrong_shape):
    assert not comparison("what", wrong_shape, torch.ones(3)).passed


def test_shape_miss_tells_both_shapes():
    check = compare.has_shape("keeps the shape", torch.ones(2, 3), (3, 2))
    assert check.detail == "got shape (2, 3), expected (3, 2)"


def test_is_close_accepts_other_floating_dtypes_unless_one_is_asked_for():
    assert compare.is_close("what", VECTOR.double(), VECTOR).passed
    check = compare.is_close("what", VECTOR.double(), VECTOR, dtype=torch.float32)
    assert not check.passed
    assert check.detail == "got torch.float64, expected torch.float32"


@pytest.mark.parametrize(
    "value", [VECTOR.clone(), nn.Parameter(VECTOR.clone()), VECTOR.clone().requires_grad_() * 1, VECTOR + 1e-7]
)
def test_is_close_accepts_tensors_with_and_without_a_history(value):
    assert compare.is_close("what", value, VECTOR).passed


def test_is_close_tells_the_largest_difference_and_the_known_mistake():
    mistakes = [(VECTOR * 3, "You multiplied by 3."), (VECTOR * 2, "You doubled it.")]
    check = compare.is_close("what", VECTOR * 2, VECTOR, hint="general", mistakes=mistakes)
    assert check.detail == "largest difference 3"
    assert check.hint == "You doubled it."
    assert compare.is_close("what", VECTOR * 5, VECTOR, hint="general", mistakes=mistakes).hint == "general"


def test_a_known_mistake_of_another_shape_is_named_too():
    check = compare.is_close("what", VECTOR, torch.tensor(2.0), mistakes=[(VECTOR, "Take the mean.")])
    assert (check.passed, check.hint) == (False, "Take the mean.")


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
def test_is_close_refuses_values_that_are_not_finite(broken):
    assert not compare.is_close("what", torch.tensor([1.0, broken, 3.0]), VECTOR).passed


def test_is_close_wants_nan_where_nan_is_expected():
    expected = torch.tensor([1.0, float("nan")])
    assert compare.is_close("what", expected.clone(), expected).passed
    assert not compare.is_close("what", torch.tensor([1.0, 2.0]), expected).passed


def test_is_close_refuses_values_on_the_meta_device_with_words():
    check = compare.is_close("what", torch.ones(3, device="meta"), VECTOR, mistakes=[(VECTOR, "never this")])
    assert not check.passed
    assert "meta device" in check.detail


def test_is_close_compares_integer_boolean_and_complex_tensors():
    assert compare.is_close("what", torch.tensor([1, 2]), torch.tensor([1.0, 2.0])).passed
    assert compare.is_close("what", torch.tensor([1 + 1j]), torch.tensor([1 + 1j])).passed
    assert not compare.is_close("what", torch.tensor([1 + 2j]), torch.tensor([1 + 1j])).passed


def test_a_complex_answer_to_a_real_question_is_a_miss_and_no_error():
    assert not compare.is_close("what", VECTOR + 1j, VECTOR).passed


@pytest.mark.parametrize("number", [2, 2.0])
def test_a_number_is_expected_where_the_answer_is_a_number(number):
    assert compare.is_close("what", number, 2.0).passed


@pytest.mark.parametrize("other", [True, "2", torch.tensor(2.0), np.float64(2.0), 2 + 0j, EqualsAll(), float("nan")])
def test_what_is_not_a_plain_number_is_refused_as_one(other):
    assert not compare.is_close("what", other, 2.0).passed


def test_a_wrong_number_is_explained_by_its_known_mistake():
    check = compare.is_close("what", 4.0, 2.0, hint="general", mistakes=[(4.0, "You doubled it.")])
    assert check.hint == "You doubled it."


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1),
        ("a", "a"),
        (True, True),
        ((1, 2), (1, 2)),
        (torch.Size([1, 2]), (1, 2)),
        ([1, [2, 3]], [1, [2, 3]]),
        ({"a": (1,)}, {"a": (1,)}),
        (torch.float32, torch.float32),
        (torch.tensor([1, 2]), torch.tensor([1, 2])),
        ([torch.tensor([1.0])], [torch.tensor([1.0])]),
        ({1, 2}, {2, 1}),
    ],
)
def test_is_equal_accepts_equal_values_of_the_same_type(value, expected):
    assert compare.is_equal("what", value, expected).passed


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, True),
        (True, 1),
        (1.0, 1),
        ("1", 1),
        ([1, 2], (1, 2)),
        ((1, 2), [1, 2]),
        ((1, 2, 3), (1, 2)),
        ((1, EqualsAll()), (1, 2)),
        (EqualsAll(), (1, 2)),
        ([EqualsAll(), EqualsAll()], [1, 2]),
        ({"a": EqualsAll()}, {"a": 1}),
        ({"a": 1, "b": 2}, {"a": 1}),
        (torch.tensor([1.0, 2.0]), torch.tensor([1, 2])),
        (torch.tensor([1, 2]), torch.tensor([1, 3])),
        (torch.tensor([1]), [1]),
        ({EqualsAll()}, {1}),
        (None, False),
    ],
)
def test_is_equal_refuses_look_alikes(value, expected):
    check = compare.is_equal("what", value, expected)
    assert not check.passed
    assert check.detail.startswith("got ")


def test_is_equal_names_the_known_mistake():
    check = compare.is_equal("what", (3, 2), (2, 3), hint="general", mistakes=[((3, 2), "Swapped.")])
    assert check.hint == "Swapped."


def test_views_share_and_copies_own_their_memory():
    base = torch.arange(6.0).reshape(2, 3)
    view, copy = base.t()[1:], base.t().contiguous()
    assert compare.shares_memory("what", view, base).passed
    assert not compare.shares_memory("what", copy, base).passed
    assert compare.owns_memory("what", copy, base).passed
    assert not compare.owns_memory("what", view, base).passed


def test_tensors_on_the_meta_device_share_nothing():
    ghost = torch.ones(3, device="meta")
    assert not compare.shares_memory("what", ghost, ghost).passed


def test_is_unchanged_notices_values_and_shape():
    before = torch.tensor([1.0, 2.0])
    assert compare.is_unchanged("what", before.clone(), before).passed
    assert not compare.is_unchanged("what", before + 1, before).passed
    assert not compare.is_unchanged("what", before[None], before).passed


@pytest.mark.parametrize("condition", [EqualsAll(), 1, "yes", torch.tensor(True), None])
def test_is_true_takes_nothing_but_true(condition: Any):
    assert not compare.is_true("what", condition).passed


def raises_value_error() -> None:
    raise ValueError("wrong size")


def test_raises_wants_the_error_that_was_named():
    assert compare.raises("what", raises_value_error, ValueError).passed
    other = compare.raises("what", raises_value_error, TypeError, hint="Raise a TypeError.")
    assert (other.passed, other.detail) == (False, "it raised ValueError: wrong size")
    assert compare.raises("what", lambda: None, TypeError).detail == "nothing was raised"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.ones(2, 3), "a tensor of shape (2, 3), float32"),
        (nn.Parameter(torch.ones(2)), "a parameter of shape (2,), float32"),
        (3, "3"),
        ((1, "a"), "(1, 'a')"),
        ({"a": [1]}, "{'a': [1]}"),
        (np.ones(2), "a ndarray"),
        (EqualsAll(), "an EqualsAll"),
        ([EqualsAll()], "a list"),
        ((torch.ones(()), 3), "a tuple of a tensor of shape (), float32; 3"),
        ([torch.ones(1)] * 9, "a list"),
        (object(), "an object"),
    ],
)
def test_values_are_described_in_a_few_words(value, words):
    assert compare.describe(value) == words


def test_a_list_that_contains_itself_is_described_and_compared_without_an_error():
    loop: list[Any] = []
    loop.append(loop)
    assert not compare.is_equal("what", loop, [1]).passed


def test_a_numpy_view_that_begins_inside_the_storage_still_shares_it():
    base = torch.arange(6.0)
    tail = torch.from_numpy(base.numpy()[2:])
    assert compare.shares_memory("is a view", tail, base).passed
    assert not compare.owns_memory("is a copy", tail, base).passed
    assert not compare.shares_memory("is a view", torch.from_numpy(base.numpy()[2:].copy()), base).passed


def test_an_array_is_told_that_a_tensor_was_asked_for():
    assert compare.has_shape("is a row", np.ones(3), (3,), hint="about axes").hint == compare.MSG_ARRAY
    assert compare.has_shape("is a row", [1, 2, 3], (3,), hint="about axes").hint == "about axes"
