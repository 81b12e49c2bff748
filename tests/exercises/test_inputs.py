"""Random inputs of checks: fresh, repeatable when asked, and outside the reader's randomness."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_utils.exercises.inputs import Inputs


def draws(inputs: Inputs) -> tuple[object, ...]:
    return (
        inputs.randn(2, 3).tolist(),
        inputs.rand(4).tolist(),
        inputs.randint(0, 9, 5).tolist(),
        inputs.strided(2, 3).tolist(),
        inputs.size(1, 100),
        inputs.sizes(3, 1, 50),
        inputs.choice("abc"),
        inputs.permutation(4),
    )


def test_the_same_seed_gives_the_same_inputs():
    assert draws(Inputs(7)) == draws(Inputs(7))


def test_without_a_seed_each_run_has_other_inputs(monkeypatch):
    monkeypatch.delenv("COURSE_CHECK_SEED", raising=False)
    assert draws(Inputs()) != draws(Inputs())


def test_the_environment_variable_fixes_the_inputs(monkeypatch):
    monkeypatch.setenv("COURSE_CHECK_SEED", "11")
    assert draws(Inputs()) == draws(Inputs(11))


def test_a_variable_that_is_no_number_is_ignored(monkeypatch):
    monkeypatch.setenv("COURSE_CHECK_SEED", "tomorrow")
    assert draws(Inputs()) != draws(Inputs())


def test_global_generators_are_untouched():
    torch.manual_seed(0), random.seed(0)
    expected = torch.rand(1).item(), random.random()
    torch.manual_seed(0), random.seed(0)
    draws(Inputs(3))
    assert (torch.rand(1).item(), random.random()) == expected


def test_inputs_are_on_the_cpu_whatever_the_default_device_is():
    try:
        torch.set_default_device("meta")
        made = [Inputs(0).randn(2), Inputs(0).rand(2), Inputs(0).randint(0, 3, 2), Inputs(0).strided(2)]
    finally:
        torch.set_default_device(None)
    assert {tensor.device.type for tensor in made} == {"cpu"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_dtype_is_the_one_asked_for(dtype):
    assert Inputs(0).randn(2, dtype=dtype).dtype == Inputs(0).strided(2, 2, dtype=dtype).dtype == dtype


@pytest.mark.parametrize("shape", [(2,), (3, 2), (2, 3, 4), (1, 2)])
def test_strided_inputs_are_never_contiguous_and_start_inside_their_storage(shape):
    tensor = Inputs(0).strided(*shape)
    assert tuple(tensor.shape) == shape
    assert not tensor.is_contiguous()
    assert tensor.storage_offset() > 0


@given(low=st.integers(0, 20), extra=st.integers(3, 20), seed=st.integers(0, 2**31))
def test_sizes_lie_in_their_range_and_differ(low, extra, seed):
    inputs = Inputs(seed)
    sizes = inputs.sizes(3, low, low + extra)
    assert len(set(sizes)) == 3
    assert all(low <= size <= low + extra for size in [*sizes, inputs.size(low, low + extra)])


@given(count=st.integers(2, 6), seed=st.integers(0, 2**31))
def test_a_permutation_moves_something(count, seed):
    order = Inputs(seed).permutation(count)
    assert sorted(order) == list(range(count)) != order


def test_a_permutation_of_one_is_itself():
    assert Inputs(0).permutation(1) == [0]
