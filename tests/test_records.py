"""The facts of a run: frozen, right on average, and the same after being stored."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError

import pytest
import torch

from course_utils.records import Epoch, Recorder, Run, Step


def recorded(n_epochs: int = 2, norm: bool = True) -> Recorder:
    facts = Recorder()
    for epoch in range(n_epochs):
        for batch in range(3):
            index = 3 * epoch + batch
            facts.add(torch.tensor(float(index)), torch.tensor(0.5) if norm else None, lr=0.1, n_examples=batch + 1)
        facts.read()
        facts.end_epoch({"loss": 10.0 - epoch}, is_best=True, seconds=1.5)
    return facts


def test_a_step_needs_only_its_index_and_loss():
    assert Step(3, 0.5).loss == 0.5


def test_records_are_frozen():
    for record, name in ((Step(0, 1.0), "loss"), (Epoch(0, 1.0), "loss"), (Run((1.0,)), "losses")):
        with pytest.raises(FrozenInstanceError):
            setattr(record, name, 2.0)


def test_the_loss_of_an_epoch_weighs_each_example_alike():
    first, second = recorded().epochs
    assert first.loss == pytest.approx((0 * 1 + 1 * 2 + 2 * 3) / 6)
    assert second.loss == pytest.approx((3 * 1 + 4 * 2 + 5 * 3) / 6)
    assert (second.n_steps, second.last_step) == (3, 5)


def test_two_epochs_are_equal_whatever_time_they_took():
    assert Epoch(0, 1.0, seconds=1.0) == Epoch(0, 1.0, seconds=2.0)


def test_a_run_gives_its_curves():
    run = recorded().finish("epochs", best_epoch=1)
    assert run.n_steps == 6
    assert run.losses == (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
    assert run.n_examples == (1, 2, 3, 1, 2, 3)
    assert run.curve() == (10.0, 9.0)
    with pytest.raises(KeyError):
        run.curve("accuracy")


def test_a_run_is_short_to_look_at():
    assert len(repr(Run(losses=tuple(range(10_000))))) < 100


@pytest.mark.parametrize("norm", [True, False])
def test_many_numbers_read_at_once_are_the_same_as_one_by_one(norm):
    late, early = Recorder(), Recorder()
    for value in (1.5, math.inf, 3.0):
        for facts in (late, early):
            facts.add(torch.tensor(value), torch.tensor(2 * value) if norm else None, lr=0.1, n_examples=4)
        early.read()
    assert (late.n_unread, late.n_steps) == (3, 3)
    late.read()
    late.read()  # nothing left: changes nothing
    assert late.losses == early.losses == [1.5, math.inf, 3.0]
    assert late.grad_norms == early.grad_norms == ([3.0, math.inf, 6.0] if norm else [None] * 3)


def test_the_last_step_is_a_record_of_what_was_added():
    facts = recorded(1)
    facts.add(torch.tensor(7.0), torch.tensor(0.25), lr=0.2, n_examples=5)
    facts.read()
    expected = Step(3, 7.0, lr=0.2, epoch=1, batch=4, n_examples=5, grad_norm=0.25)
    assert facts.last_step(batch=4) == expected
    facts.skip_last()
    assert facts.last_step(batch=4).was_skipped
    assert facts.last_step(batch=4).grad_norm is None


def test_a_skipped_step_has_no_gradient_norm_read_or_not():
    facts = Recorder()
    for is_read in (True, False, True):
        facts.add(torch.tensor(1.0), torch.tensor(math.nan), lr=0.1, n_examples=1)
        if is_read:
            facts.read()
        facts.skip_last()
    facts.add(torch.tensor(1.0), torch.tensor(2.0), lr=0.1, n_examples=1)
    facts.read()
    assert facts.skipped == [0, 1, 2]
    assert facts.grad_norms == [None, None, None, 2.0]


@pytest.mark.parametrize("norm", [True, False])
def test_a_stored_recorder_continues_like_the_first(norm):
    first, second = recorded(norm=norm), Recorder()
    first.batch = 2
    second.load_state_dict(first.state_dict())
    for facts in (first, second):
        facts.add(torch.tensor(7.0), torch.tensor(0.5) if norm else None, lr=0.2, n_examples=5)
        facts.read()
        facts.end_epoch({"loss": 1.0}, is_best=None, seconds=math.nan)
    assert first.finish("epochs", None) == second.finish("epochs", None)
    assert (second.epoch, second.batch, second.first_step) == (3, 0, 7)
