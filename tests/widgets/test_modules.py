"""Lesson 03's explorer: what it draws and says is what the trained network computes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from course_utils.hooks import hook_count
from course_utils.widgets.modules import LAYERS, _example, explore_layers, layer_view, trained_network


@pytest.mark.parametrize("what", ["activations", "gradients"])
@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_has_a_picture_and_its_shapes(layer, what):
    view = layer_view(layer, 7, what)
    left, right = view.picture.axes
    assert f"{what} of {layer}" in right.get_title(loc="left")
    assert str(tuple(trained_network().get_submodule(layer).weight.shape)) in view.text
    assert left.images[0].get_array().shape == (28, 28)


def test_the_numbers_are_those_of_a_pass_by_hand():
    image, label = _example(4)
    model = trained_network()
    hidden = model.conv1(image).detach().requires_grad_()
    x = F.max_pool2d(F.relu(model.norm1(hidden)), 2)
    x = F.max_pool2d(F.relu(model.norm2(model.conv2(x))), 2)
    logits = model.fc2(F.relu(model.fc1(x.flatten(1))))
    F.cross_entropy(logits, label).backward()
    text = layer_view("conv1", 4, "gradients").text
    assert f"{hidden.std():.2f}" in text
    assert f"{hidden.grad.std():.1e}" in text
    assert f"says {int(logits.argmax())} with {100 * logits.softmax(1).max():.0f} %" in text


def test_looking_leaves_the_network_as_it_was():
    model = trained_network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    layer_view("fc2", 3, "gradients")
    assert hook_count(model) == 0
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_without_a_front_end_it_prints_the_same_facts(capsys):
    explore_layers()
    printed = capsys.readouterr().out
    assert "activations of conv2" in printed
    assert layer_view("conv2", 4, "activations").text in printed
