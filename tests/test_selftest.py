"""The self-test agrees with its stored results here, and says so when something is off."""

from __future__ import annotations

import json
import math

import pytest
import torch

from course_utils import selftest
from course_utils.seeding import rng_state


@pytest.fixture(scope="module")
def results() -> selftest.Results:
    return selftest.run()


def test_results_of_this_machine_agree_with_the_stored_ones(results):
    verdicts = selftest.compare(results.values)
    assert all(verdict.agrees for verdict in verdicts), selftest.verdict_table(verdicts)
    assert selftest.summary(verdicts) == "Self-test passed: all 7 results agree with the stored ones."


def test_stored_results_tolerances_and_measurements_name_the_same_things(results):
    assert list(selftest.stored_values()) == list(selftest.TOLERANCE) == list(results.values)


def test_stored_results_say_which_pytorch_they_come_from():
    stored = json.loads(selftest.STORED.read_text(encoding="utf-8"))
    assert stored["torch"] == torch.__version__.partition("+")[0]


def test_tolerances_tell_another_seed_from_this_one():
    """A tolerance that lets everything pass would be worth nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selftest, "SEED", 3)
        verdicts = selftest.compare(selftest.fit_line())
    assert [verdict.agrees for verdict in verdicts if verdict.what.startswith("line")].count(False) >= 2


def test_shapes_are_listed_in_the_order_the_layers_ran(results):
    assert [layer.name for layer in results.layers][:3] == ["conv1", "norm1", "conv2"]
    assert results.layers[0].shape == (64, selftest.WIDTH, 28, 28)
    assert results.layers[-1].shape == (64, 10)
    assert "(64, 8, 28, 28)" in selftest.layer_table(results.layers)


def test_layers_of_leaves_no_hook_behind_when_the_model_fails():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    with pytest.raises(RuntimeError):
        selftest.layers_of(model, torch.zeros(1, 4))
    assert not model[0]._forward_hooks


def test_a_miss_is_named_and_shows_what_was_measured():
    values = {**selftest.stored_values(), "digits: test accuracy": 0.1}
    verdicts = selftest.compare(values)
    assert "DIFFERS: 0.1000" in selftest.verdict_table(verdicts)
    assert selftest.summary(verdicts).startswith("Self-test failed: digits: test accuracy.")


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_never_agree(broken):
    verdicts = selftest.compare(dict.fromkeys(selftest.stored_values(), broken))
    assert not any(verdict.agrees for verdict in verdicts)


def test_a_value_that_was_not_measured_does_not_agree():
    assert not any(verdict.agrees for verdict in selftest.compare({}))


def test_verdict_text_is_the_same_whatever_the_last_digits():
    stored = selftest.stored_values()
    nudged = {what: value + selftest.TOLERANCE[what] * 0.9 for what, value in stored.items()}
    texts = {selftest.verdict_table(selftest.compare(values)) for values in (stored, nudged)}
    assert len(texts) == 1


def test_running_it_leaves_global_randomness_alone():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selftest, "EPOCHS", 1)
        before = rng_state()
        selftest.run()
        after = rng_state()
    assert torch.equal(after["torch"], before["torch"])
    assert torch.equal(after["numpy"][1], before["numpy"][1])


def test_points_scatter_around_the_line_that_is_told():
    x, y = selftest.line_points()
    noise = y - (selftest.SLOPE * x + selftest.INTERCEPT)
    assert x.shape == y.shape == (400,)
    assert noise.std().item() == pytest.approx(selftest.NOISE, rel=0.1)


def test_mean_squared_error_agrees_with_torch():
    predictions, labels = torch.randn(7), torch.randn(7)
    expected = torch.nn.functional.mse_loss(predictions, labels)
    torch.testing.assert_close(selftest.mean_squared_error(predictions, labels), expected)
