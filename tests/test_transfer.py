"""Loading what fits, freezing for real, and proving it."""

from __future__ import annotations

import copy
from contextlib import suppress

import pytest
import torch
from torch import nn

from course_utils.errors import CheckpointError
from course_utils.models import DigitCNN
from course_utils.transfer import frozen, load_matching, moved, snapshot


def network(width: int = 4, n_classes: int = 10) -> DigitCNN:
    return DigitCNN(width=width, n_classes=n_classes, size=8)


def test_a_whole_state_is_loaded_and_reported_complete():
    source, target = network(), network()
    report = load_matching(target, source.state_dict())
    assert report.is_complete
    assert set(report.loaded) == set(source.state_dict())
    assert moved(target, snapshot(source)) == []


def test_each_key_is_reported_in_exactly_one_place():
    state = network(n_classes=7).state_dict()
    del state["norm1.running_mean"]
    state["extra.weight"] = torch.zeros(2)
    target = network()
    before = snapshot(target)
    report = load_matching(target, state)
    assert report.wrong_shape == {"fc2.weight": ((7, 128), (10, 128)), "fc2.bias": ((7,), (10,))}
    assert report.missing == ("norm1.running_mean",)
    assert report.unexpected == ("extra.weight",)
    assert set(report.loaded) == set(before) - {"fc2.weight", "fc2.bias", "norm1.running_mean"}
    assert set(moved(target, before)) <= set(report.loaded)
    assert "wrong shape  fc2.bias: (7,), here (10,)" in str(report)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod."])
def test_a_prefix_before_all_keys_is_taken_off(prefix):
    source, target = network(), network()
    report = load_matching(target, {prefix + key: value for key, value in source.state_dict().items()})
    assert report.is_complete
    assert report.prefix == prefix
    assert moved(target, snapshot(source)) == []


def test_a_model_that_has_such_a_part_keeps_its_names():
    model = nn.ModuleDict({"module": nn.Linear(2, 2)})
    report = load_matching(model, copy.deepcopy(model.state_dict()))
    assert report.prefix == ""
    assert report.is_complete


def test_parameters_stay_the_same_objects_so_that_an_optimizer_goes_on():
    model = network()
    before = [id(p) for p in model.parameters()]
    load_matching(model, network().state_dict())
    assert [id(p) for p in model.parameters()] == before


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"other.weight": torch.zeros(1)}, "Nothing in this state fits"),
        ({}, "Nothing"),
        ({"model": {}}, "no state of a model"),
    ],
)
def test_what_does_not_fit_at_all_is_an_error_and_the_model_is_as_it_was(state, words):
    model = network()
    before = snapshot(model)
    with pytest.raises(CheckpointError, match=words):
        load_matching(model, state)
    assert moved(model, before) == []


def train_a_little(model: nn.Module, steps: int = 3) -> None:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(steps):
        model.train()
        loss = model(torch.rand(6, 1, 8, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_freezing_by_requires_grad_alone_lets_the_statistics_move():
    """What the lesson shows first."""
    model = network()
    before = snapshot(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("fc2"))
    train_a_little(model)
    assert "norm1.running_mean" in moved(model, before)
    assert "conv1.weight" not in moved(model, before)


def test_in_the_block_nothing_frozen_moves_by_a_bit_and_the_rest_learns():
    model = nn.Sequential(network(n_classes=5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    before = snapshot(model)
    with frozen(model[0]):
        train_a_little(model)
        assert not model[0].norm1.training
        assert model[1].training
    assert not [name for name in moved(model, before) if name.startswith("0.")]
    assert {"1.running_mean", "2.weight"} <= set(moved(model, before))


def test_afterwards_every_setting_is_back_also_after_an_error():
    model = network()
    model.norm2.eval()
    model.conv1.weight.requires_grad_(False)
    modes = [child.training for child in model.modules()]
    wanted = [p.requires_grad for p in model.parameters()]
    with suppress(ZeroDivisionError), frozen(model):
        model.train()
        raise ZeroDivisionError
    assert [child.training for child in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == wanted
    assert not any(child._forward_pre_hooks for child in model.modules())


def test_a_single_bit_is_seen_and_nan_equals_itself():
    layer = nn.Linear(2, 1)
    layer.weight.data[0, 0] = float("nan")
    before = snapshot(layer)
    assert moved(layer, before) == []
    layer.bias.data[0] = torch.nextafter(layer.bias.data[0], torch.tensor(9.0))
    assert moved(layer, before) == ["bias"]
    layer.weight.data[0, 1] = -layer.weight.data[0, 1] * 0.0
    assert set(moved(layer, before)) == {"weight", "bias"}
