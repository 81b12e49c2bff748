"""Recorders see what they should, and leave no hook behind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from course_utils.hooks import UnknownLayerError, gradient_norms, hook_count, recording, recording_gradients


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))


def test_recording_keeps_the_output_of_each_pass_in_order():
    net, x, y = model(), torch.randn(5, 3), torch.randn(2, 3)
    with recording(net, "2") as seen:
        first, second = net(x), net(y)
    assert [tuple(t.shape) for t in seen["2"]] == [(5, 2), (2, 2)]
    assert torch.equal(seen["2"][0], first)
    assert torch.equal(seen["2"][1], second)
    assert not seen["2"][0].requires_grad


def test_recording_survives_an_in_place_layer_that_rewrites_what_it_saw():
    net, x = model(), torch.randn(5, 3)
    with recording(net, "0") as seen:
        net(x)
    assert torch.equal(seen["0"][0], net[0](x))
    assert (seen["0"][0] < 0).any()  # the ReLU after it has not reached the copy


def test_recording_without_names_takes_every_layer_without_children():
    with recording(model()) as seen:
        pass
    assert list(seen) == ["0", "1", "2"]


@pytest.mark.parametrize("recorder", [recording, recording_gradients])
def test_hooks_come_off_after_an_error_in_the_block(recorder):
    net = model()
    attached = 0

    def failing_block() -> None:
        nonlocal attached
        with recorder(net):
            attached = hook_count(net)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing_block()
    assert attached == 3
    assert hook_count(net) == 0


@pytest.mark.parametrize("recorder", [recording, recording_gradients])
def test_unknown_layer_is_named_with_the_closest_one_and_leaves_no_hook(recorder):
    net = nn.ModuleDict({"conv1": nn.Linear(1, 1), "fc": nn.Linear(1, 1)})
    with pytest.raises(UnknownLayerError, match="no layer called 'conv2'") as caught, recorder(net, "fc", "conv2"):
        pass
    assert "conv1" in caught.value.fix
    assert hook_count(net) == 0


def test_recorded_gradients_are_those_of_the_layer_outputs():
    net, x = model(), torch.randn(5, 3)
    with recording_gradients(net, "2") as seen:
        net(x).sum().backward()
    assert torch.equal(seen["2"][0], torch.ones(5, 2))


def test_gradient_norms_leave_out_parameters_without_a_gradient():
    net = model()
    net[0].requires_grad_(False)
    net(torch.ones(1, 3)).sum().backward()
    norms = gradient_norms(net)
    assert set(norms) == {"2.weight", "2.bias"}
    assert norms["2.bias"] == pytest.approx(2**0.5)
