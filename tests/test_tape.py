"""Tapes: their derivatives by hand, by autograd and by finite differences agree."""

from __future__ import annotations

import doctest
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_utils import tape
from course_utils.tape import ARITY, LEAF, OPERATIONS, Step, as_tensors, as_text, gradients, partials, random_tape, run


def test_examples_are_right():
    assert doctest.testmod(tape).failed == 0


@pytest.mark.parametrize("operation", OPERATIONS)
@given(values=st.lists(st.floats(-2, 2), min_size=2, max_size=2))
def test_partial_derivatives_are_those_of_autograd(operation, values):
    values = values[: ARITY[operation]]
    steps = [*(Step(LEAF) for _ in values), Step(operation, tuple(range(len(values))))]
    assert partials(operation, *values) == pytest.approx(gradients(steps, values)[:-1])


@pytest.mark.parametrize("seed", range(20))
def test_random_tapes_are_repeatable_moderate_and_differentiable(seed):
    steps, leaves = random_tape(seed)
    assert (steps, leaves) == random_tape(seed)
    values, grads = run(steps, leaves), gradients(steps, leaves)
    assert max(map(abs, [*values, *grads])) < 100
    assert values == pytest.approx([value.item() for value in as_tensors(steps, leaves)])
    for place in range(3):
        up, down = list(leaves), list(leaves)
        up[place] += 1e-6
        down[place] -= 1e-6
        slope = (run(steps, up)[-1] - run(steps, down)[-1]) / 2e-6
        assert math.isclose(slope, grads[place], rel_tol=1e-4, abs_tol=1e-5)


def test_random_tapes_use_results_twice_and_leave_some_unused():
    uses = [[place for step in random_tape(seed)[0] for place in step.inputs] for seed in range(20)]
    assert any(len(places) > len(set(places)) for places in uses)
    assert any(0.0 in gradients(*random_tape(seed)) for seed in range(20))


def test_a_tape_reads_as_text():
    steps = [Step(LEAF), Step(LEAF), Step("mul", (0, 1))]
    assert as_text(steps, [2.0, 3.0]).splitlines()[-1] == "#2 mul(#0, #1)      6.0000"
