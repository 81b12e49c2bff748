"""Lesson 01's explorer: what it shows is what PyTorch does, for every setting that the panel offers."""

from __future__ import annotations

import itertools

import pytest
import torch

from course_utils.memory import shares_storage
from course_utils.widgets import tensors as explorer
from course_utils.widgets.tensors import (
    ORDERS,
    SHAPES,
    SLICES,
    derived,
    layout_view,
    permutation,
    targets,
    view_verdicts,
)

SETTINGS = list(itertools.product(SHAPES, SLICES, ORDERS))


@pytest.mark.parametrize("shape", SHAPES)
def test_every_setting_draws_and_tells_the_strides(shape):
    for part, order in itertools.product(SLICES, ORDERS):
        _, result, _ = derived(shape, part, order)
        view = layout_view(shape, part, order)
        assert view.picture.svg.startswith("<svg")
        assert str(tuple(result.stride())) in view.text
        assert f"strides {tuple(result.stride())}" in view.picture.text


def test_the_code_that_is_shown_makes_the_tensor_that_is_shown():
    for shape, part, order in SETTINGS:
        x, result, code = derived(shape, part, order)
        again = eval(code, {"x": x})
        assert torch.equal(again, result)
        assert again.stride() == result.stride()


def test_nothing_that_the_explorer_makes_is_a_copy():
    for setting in SETTINGS:
        x, result, _ = derived(*setting)
        assert shares_storage(x, result)


def test_orders_are_permutations():
    for ndim, order in itertools.product((1, 2, 3), ORDERS):
        assert sorted(permutation(order, ndim)) == list(range(ndim))


def test_verdicts_are_those_of_torch():
    for setting in SETTINGS:
        _, result, _ = derived(*setting)
        for (text, ok), target in zip(view_verdicts(result), targets(tuple(result.shape)), strict=True):
            assert text == f"view{target}".replace(",)", ")")
            assert ok is shares_storage(result, result.reshape(target))


def test_targets_have_the_same_number_of_elements_and_are_new():
    for shape in SHAPES:
        found = list(targets(shape))
        assert len(found) == len(set(found))
        assert shape not in found
        assert all(torch.Size(target).numel() == torch.Size(shape).numel() for target in found)


def test_a_tensor_with_gaps_that_can_be_flattened_is_among_the_settings():
    view = layout_view((2, 3, 4), "every second of the last axis", "as it is")
    assert "possible: y.view(12)" in view.picture.text
    assert "contiguous               no" in view.text


@pytest.mark.parametrize(
    ("wish", "answer"),
    [
        ("4, 6", "a view of shape (4, 6)"),
        ("-1, 6", "a view of shape (4, 6)"),
        ("(4, -1)", "a view of shape (4, 6)"),
        ("24", "refused: view size is not compatible"),
        ("5, 5", "refused: shape '[5, 5]' is invalid"),
        ("-1, -1", "refused: only one dimension can be inferred"),
        ("four", "no shape"),
        (",", "no shape"),
    ],
)
def test_the_readers_own_shape_is_tried(wish, answer):
    text = layout_view((2, 3, 4), "everything", "last axis first", wish).text
    assert f"y.view({wish})" in text
    assert answer in text


def test_an_empty_wish_says_nothing():
    assert "y.view(" not in layout_view((2, 3, 4), "everything", "as it is", " ").text


def test_the_explorer_starts_with_a_permuted_tensor(monkeypatch):
    shown = {}
    monkeypatch.setattr(explorer, "explore", lambda render, **controls: shown.update(render=render, controls=controls))
    explorer.explore_layout()
    view = shown["render"](**{name: control.value for name, control in shown["controls"].items()})
    assert "x.permute(2, 0, 1)" in view.text
    assert "not possible: y.view(24)" in view.picture.text
