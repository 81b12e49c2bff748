"""The networks have the shapes, sizes and behaviour that their documentation says."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_utils.errors import UsageError
from course_utils.models import (
    MLP,
    MODELS,
    DigitCNN,
    ResidualBlock,
    TransformerBlock,
    count_parameters,
    from_name,
)
from course_utils.seeding import seeded


@pytest.mark.parametrize("name", MODELS)
def test_every_network_turns_digits_into_logits(name):
    assert from_name(name)(torch.zeros(3, 1, 28, 28)).shape == (3, 10)


@pytest.mark.parametrize("name", MODELS)
def test_every_network_starts_near_the_loss_of_guessing(name):
    with seeded(0):
        model = from_name(name)
        logits = model(torch.rand(64, 1, 28, 28))
    loss = F.cross_entropy(logits, torch.arange(64) % 10)
    assert loss.item() == pytest.approx(torch.tensor(10.0).log().item(), abs=0.4)


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_of_every_network_gets_a_gradient(name):
    model = from_name(name)
    model(torch.rand(4, 1, 28, 28)).logsumexp(1).sum().backward()
    assert [key for key, parameter in model.named_parameters() if parameter.grad is None] == []


def test_settings_reach_the_constructor():
    assert count_parameters(from_name("mlp", n_inputs=64, hidden=(), n_classes=3)) == 64 * 3 + 3
    assert from_name("digit-cnn", width=4, size=8, n_classes=3)(torch.zeros(2, 1, 8, 8)).shape == (2, 3)


@pytest.mark.parametrize("size", [4, 8, 28, 30])
def test_the_cnn_fits_other_image_sizes(size):
    assert DigitCNN(size=size)(torch.zeros(2, 1, size, size)).shape == (2, 10)


def test_the_shapes_on_the_way_are_those_in_the_comments():
    model, shapes = DigitCNN().eval(), {}
    for name, layer in model.named_children():
        layer.register_forward_hook(lambda _layer, inputs, output, name=name: shapes.update({name: output.shape}))
    model(torch.zeros(2, 1, 28, 28))
    assert shapes["conv1"] == (2, 16, 28, 28)
    assert shapes["conv2"] == (2, 32, 14, 14)
    assert shapes["drop1"] == (2, 1568)
    assert shapes["drop2"] == (2, 128)
    assert shapes["fc2"] == (2, 10)


def test_dropout_and_normalisation_rest_in_eval_mode():
    model, images = DigitCNN(), torch.rand(4, 1, 28, 28)
    assert not torch.equal(model(images), model(images))
    model.eval()
    alone = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(alone, model(images))


def test_the_documented_numbers_of_parameters():
    assert count_parameters(MLP()) == 784 * 128 + 128 + 128 * 10 + 10 == 101_770
    convolutions = 16 * 9 + 32 * 16 * 9 + 2 * (16 + 32)
    assert count_parameters(DigitCNN()) == convolutions + 1568 * 128 + 128 + 128 * 10 + 10 == 206_970


def test_frozen_and_shared_parameters_are_counted_right():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    assert count_parameters(model) == 12
    model[0].bias.requires_grad_(False)
    assert count_parameters(model, trainable_only=True) == 9


@pytest.mark.filterwarnings("ignore:Lazy modules")  # torch announces that they may change
def test_a_lazy_layer_can_only_be_counted_after_a_batch():
    model = nn.Sequential(nn.LazyLinear(2))
    with pytest.raises(UsageError) as caught:
        count_parameters(model)
    assert str(caught.value) == (
        "The parameter '0.weight' has no shape yet.\n"
        "  expected: a model that has seen one batch: lazy layers take their shapes from it\n"
        "  fix:      run model(batch) once, then count"
    )
    model(torch.zeros(1, 3))
    assert count_parameters(model) == 8


@pytest.mark.parametrize("name", ["digit_cnn", None])
def test_an_unknown_name_is_answered_with_the_known_ones(name):
    with pytest.raises(UsageError) as caught:
        from_name(name)
    assert caught.value.what == f"There is no network called {name!r}."
    assert caught.value.expected == "one of 'mlp', 'digit-cnn'"
    assert caught.value.fix == ("Did you mean 'digit-cnn'?" if name else "Known are: digit-cnn, mlp.")


def test_a_new_residual_block_returns_its_input_and_can_learn():
    x = torch.rand(3, 4, 8, 8)
    block = ResidualBlock(4)
    assert torch.equal(block(x), x)
    block(x).square().sum().backward()
    assert block.norm2.weight.grad.abs().sum() > 0
    assert not torch.allclose(ResidualBlock(4, zero_init=False)(x), x)


def test_a_transformer_block_is_pytorchs_with_the_same_weights():
    block = TransformerBlock(16, n_heads=4, hidden=32).eval()
    theirs = nn.TransformerEncoderLayer(
        16, 4, 32, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    ).eval()
    with torch.no_grad():
        theirs.self_attn.in_proj_weight.copy_(block.to_qkv.weight)
        theirs.self_attn.in_proj_bias.copy_(block.to_qkv.bias)
        theirs.self_attn.out_proj.load_state_dict(block.to_out.state_dict())
        for ours, other in ((block.mlp[0], theirs.linear1), (block.mlp[2], theirs.linear2)):
            other.load_state_dict(ours.state_dict())
        x = torch.randn(2, 5, 16)
        assert torch.allclose(block(x), theirs(x), atol=1e-5)


def test_a_causal_block_sees_nothing_later():
    block = TransformerBlock(8, n_heads=2).eval()
    x = torch.randn(1, 6, 8)
    changed = x.clone()
    changed[:, 4:] = torch.randn(1, 2, 8)
    assert torch.allclose(block(x, is_causal=True)[:, :4], block(changed, is_causal=True)[:, :4], atol=1e-6)
    assert not torch.allclose(block(x)[:, :4], block(changed)[:, :4])


def test_heads_that_do_not_share_the_width_are_refused():
    with pytest.raises(UsageError, match="share the width evenly"):
        TransformerBlock(10, n_heads=4)
