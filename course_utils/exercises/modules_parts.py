"""Checks of lesson 03: what a module registers, modes, initialisation, attention."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from course_utils.exercises.compare import describe, has_shape, is_close, is_equal, is_true, is_unchanged
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.verdicts import Check

MSG_REGISTER = "A module knows parameters, buffers and modules that are assigned to self. A list or a dict hides them."


def is_module_class(what: str, answer: object) -> Check:
    """The answer is a class derived from ``nn.Module``."""
    passed = isinstance(answer, type) and issubclass(answer, nn.Module)
    return is_true(
        what, passed, detail=f"got {describe(answer)}", hint="class …(nn.Module), and hand in the class itself."
    )


def check_standardize(standardize: Any, inputs: Inputs) -> Iterator[Check]:
    """modules.standardize: mean and standard deviation as buffers."""
    yield is_module_class("is a class derived from nn.Module", standardize)
    d = inputs.size(3, 6)
    mean, std = inputs.randn(d), inputs.rand(d) + 0.5
    layer = standardize(mean.clone(), std.clone())
    x = inputs.randn(5, d)
    yield is_close("computes (x − mean) / std", layer(x), (x - mean) / std, hint="Per feature, over the last axis.")
    names = [name for name, _ in layer.named_parameters()]
    yield is_equal(
        "learns nothing",
        names,
        [],
        hint="Fixed numbers are no parameters, frozen or not: parameters are what an optimizer is given. Buffers.",
    )
    buffers = dict(layer.named_buffers())
    yield is_true(
        "holds both as buffers",
        len(buffers) >= 2,
        detail=f"buffers: {list(buffers)}",
        hint='self.register_buffer("mean", mean). A plain attribute is a tensor that the module doesn\'t know.',
    )
    yield is_true(
        "saves both",
        len(layer.state_dict()) >= 2,
        detail=f"state_dict: {list(layer.state_dict())}",
        hint="persistent=False leaves a buffer out of the state_dict.",
    )
    wide = copy.deepcopy(layer).double()
    yield is_close(
        "moves with the module, here to float64",
        wide(x.double()),
        (x.double() - mean.double()) / std.double(),
        hint="Everything that .to() shall move must be registered.",
        dtype=torch.float64,
    )
    other = standardize(torch.zeros(d), torch.ones(d))
    other.load_state_dict(layer.state_dict())
    yield is_close(
        "is complete after load_state_dict", other(x), (x - mean) / std, hint="Both numbers must come along."
    )


def check_stack(stack: Any, inputs: Inputs) -> Iterator[Check]:
    """modules.stack: layers made in a loop, judged by what an optimizer moves."""
    yield is_module_class("is a class derived from nn.Module", stack)
    sizes = inputs.sizes(4, 2, 9)
    model = stack(list(sizes))
    x = inputs.randn(3, sizes[0])
    yield has_shape(
        "maps (N, first) to (N, last)",
        model(x),
        (3, sizes[-1]),
        hint="sizes comes as one list, Stack([4, 8, 3]). The first layer takes sizes[0], the last one gives sizes[-1].",
    )
    weights = [p for p in model.parameters() if p.dim() == 2]
    yield is_true(
        f"has {len(sizes) - 1} weight matrices that an optimizer gets",
        len(weights) == len(sizes) - 1,
        detail=f"model.parameters() gives {len(weights)}",
        hint=MSG_REGISTER + " nn.ModuleList or nn.Sequential.",
    )
    shapes = sorted(tuple(p.shape) for p in weights)
    wanted = sorted(zip(sizes[1:], sizes[:-1], strict=True))
    yield is_equal("of the right shapes", shapes, wanted, hint="A Linear from each size to the next.")
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):  # several: a ReLU may be closed for one batch
        model(inputs.randn(16, sizes[0])).square().sum().backward()
    optimizer.step()
    still = sum(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    yield is_true("one optimizer step moves all of them", still == 0, detail=f"{still} did not move", hint=MSG_REGISTER)
    x = inputs.randn(64, sizes[0])  # enough for some score to be negative
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(inputs.randn(*p.shape))
    by_shape = [(p, q) for p, q in zip(list(model.parameters())[::2], list(model.parameters())[1::2], strict=False)]
    h = bare = x
    for place, (weight, bias) in enumerate(by_shape):
        h, bare = h @ weight.T + bias, bare @ weight.T + bias
        h = F.relu(h) if place < len(by_shape) - 1 else h
    yield is_close(
        "ReLU between the layers and none after the last",
        model(x),
        h,
        hint="x = relu(layer(x)) for each layer but the last, which gives layer(x).",
        mistakes=[
            (F.relu(h), "There is a ReLU after the last layer. Negative scores are lost."),
            (bare, "There is no ReLU between the layers: all of them together are one linear map."),
        ],
    )


def check_conv_parameters(conv_parameters: Callable, inputs: Inputs) -> Iterator[Check]:
    """modules.conv-parameters: how many numbers a convolution learns, by arithmetic."""
    for bias in (True, False):
        c_in, c_out, kernel = 2 * inputs.size(1, 4), 2 * inputs.size(5, 8), inputs.size(3, 5)
        for groups in (1, 2):
            layer = nn.Conv2d(c_in, c_out, kernel, groups=groups, bias=bias)
            wanted = sum(p.numel() for p in layer.parameters())
            full = c_in * c_out * kernel * kernel
            mistakes = [
                (full + c_out * bias, "Each output channel sees only its own group: c_in / groups input channels."),
                (full // groups, "The bias: one number for each output channel, if there is one."),
                (full // groups + c_in * bias, "The bias has one number per *output* channel."),
                (c_in * c_out * kernel // groups + c_out * bias, "The kernel is a square: kernel · kernel weights."),
                (full // groups**2 + c_out * bias, "That is one group only: there are as many as groups says."),
                (full * 28 * 28 + c_out * bias, "The same weights are used at every place of the image."),
            ]
            yield is_equal(
                f"with {'a' if bias else 'no'} bias and {groups} group{'s' * (groups > 1)}",
                conv_parameters(c_in, c_out, kernel, groups=groups, bias=bias),
                wanted,
                hint=f"Conv2d({c_in}, {c_out}, {kernel}, groups={groups}, bias={bias}) has {wanted}. An int.",
                mistakes=[
                    *((wrong, cause) for wrong, cause in mistakes if wrong != wanted),
                    (float(wanted), "The number is right and its type is float. An int: divide by //."),
                ],
            )


def check_batchnorm(batchnorm: Any, inputs: Inputs) -> Iterator[Check]:
    """modules.batchnorm: BatchNorm1d without learned scale, train and eval."""
    yield is_module_class("is a class derived from nn.Module", batchnorm)
    d = inputs.size(3, 6)
    ours, theirs = batchnorm(d), nn.BatchNorm1d(d, affine=False)
    for _ in range(3):
        x = 3 * inputs.randn(7, d) + 2
        before = x.clone()
        wanted = theirs(x)
        yield is_close(
            "train mode: each feature has mean 0 and variance 1 over the batch",
            ours(x),
            wanted,
            hint="(x − batch mean) / sqrt(batch variance + 1e-5), the variance divided by N.",
            rtol=1e-3,
            atol=1e-4,
            mistakes=[
                (
                    (x - x.mean(0)) / (x.var(0) + 1e-5).sqrt(),
                    "You divided the variance by N − 1. Within the batch, BatchNorm divides by N.",
                )
            ],
        )
        yield is_unchanged("the input stays as it was", x, before)
    x, weights = (3 * inputs.randn(7, d) + 2).requires_grad_(), inputs.randn(7, d)
    grad, wanted = (torch.autograd.grad((norm(x) * weights).sum(), x)[0] for norm in (ours, theirs))
    yield is_close(
        "train mode: gradients pass through the batch's mean and variance, too",
        grad,
        wanted,
        hint="Both depend on x. Normalise by them as they are, without detach() and outside torch.no_grad().",
        rtol=1e-3,
        atol=1e-4,
    )
    ours.eval(), theirs.eval()
    x = inputs.randn(4, d)
    frozen = {name: value.clone() for name, value in ours.state_dict().items()}
    yield is_close(
        "eval mode: uses the running mean and variance",
        ours(x),
        theirs(x),
        hint="running = 0.9 · running + 0.1 · batch. It begins with mean 0 and variance 1, and the running variance "
        "takes the batch's variance divided by N − 1.",
        rtol=1e-3,
        atol=1e-4,
        mistakes=[
            (
                (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt(),
                "That is the batch's own mean: look at self.training.",
            ),
            (
                x / (1 + 1e-5) ** 0.5,
                "The running mean and variance are as at the beginning: update them in train mode.",
            ),
        ],
    )
    yield is_true(
        "eval mode changes nothing",
        all(torch.equal(value, frozen[name]) for name, value in ours.state_dict().items()),
        detail="a running value has moved",
        hint="Update only if self.training.",
    )
    yield is_close(
        "eval mode: the result for one example doesn't depend on the others", ours(x[:1]), theirs(x[:1]), rtol=1e-3
    )
    yield is_true(
        "the running values are saved",
        sum(value.numel() for value in frozen.values()) >= 2 * d,
        detail=f"state_dict: {list(frozen)}",
        hint="Buffers: self.register_buffer.",
    )
    hanging = [name for name, value in ours.state_dict(keep_vars=True).items() if value.requires_grad or value.grad_fn]
    yield is_equal("the running values are in no graph", hanging, [], hint="Update them under torch.no_grad().")


def check_residual(residual: Any, inputs: Inputs) -> Iterator[Check]:
    """modules.residual: x + branch(x), and at first exactly x."""
    yield is_module_class("is a class derived from nn.Module", residual)
    d = inputs.size(3, 7)
    block = residual(d)
    x = inputs.randn(4, d)
    before = x.clone()
    answer = block(x)
    yield has_shape("keeps the shape", answer, (4, d))
    matrices = sum(p.dim() == 2 for p in block.parameters())
    yield is_true(
        "has at least two linear layers",
        matrices >= 2,
        detail=f"weight matrices: {matrices}",
        hint="nn.Linear, a nonlinearity, nn.Linear.",
    )
    yield is_unchanged("the input stays as it was", x, before, hint="x = x + …, not x += ….")
    yield is_close(
        "a new block returns its input",
        answer,
        x,
        hint="Set the weight and the bias of the last layer of the branch to 0.",
        atol=1e-7,
        mistakes=[
            (torch.zeros_like(x), "The block returns its branch. Add the input."),
            (x.relu(), "There is a ReLU after the sum: the negative numbers of the input are lost."),
        ],
    )
    for _ in range(5):
        block.zero_grad()
        (block(inputs.randn(16, d)) - inputs.randn(16, d)).square().mean().backward()
        moved = [p for p in block.parameters() if p.grad is not None and p.grad.any()]
        yield is_true(
            "and it can learn",
            bool(moved),
            detail="all gradients are 0",
            hint="Only the *last* layer begins with zeros. With more of them no gradient passes.",
        )
        torch.optim.SGD(block.parameters(), lr=0.1).step()
    still = [name for name, p in block.named_parameters() if p.grad is None or not p.grad.any()]
    yield is_equal(
        "after a few steps, every parameter has a gradient",
        still,
        [],
        hint="Is every layer in the branch? If all layers began with zeros, nothing behind them ever moves.",
    )
    block = copy.deepcopy(block).double().eval()
    with torch.no_grad():
        for p in block.parameters():
            p.copy_(inputs.randn(*p.shape))
        u = inputs.randn(64, d).double()
        zero, once, twice = (block(factor * u) - factor * u for factor in (0, 1, 2))
    yield is_true(
        "the branch is no linear map",
        bool((twice - 2 * once + zero).abs().max() > 1e-6),
        detail="branch(2x) − branch(x) is branch(x) − branch(0) for every x",
        hint="Two linear layers in a row are one. A nonlinearity belongs between them, such as a ReLU.",
    )


def check_attention(attention: Callable, inputs: Inputs) -> Iterator[Check]:
    """modules.attention: softmax(q kᵀ / sqrt(E)) v, with and without looking ahead."""
    n, t, e = inputs.sizes(3, 2, 7)
    q, k, v = (inputs.strided(n, t, e) for _ in range(3))
    scores = q @ k.transpose(-2, -1) / e**0.5
    wanted = scores.softmax(-1) @ v
    answer = attention(q, k, v)
    yield has_shape("keeps the shape (N, T, E)", answer, (n, t, e))
    yield is_close(
        "each position gets a weighted mean of v",
        answer,
        wanted,
        hint="softmax over the last axis of q kᵀ / √E, then times v.",
        mistakes=[
            ((q @ k.transpose(-2, -1)).softmax(-1) @ v, "The scores are divided by √E before the softmax."),
            ((scores * e**0.5 / e).softmax(-1) @ v, "The scores are divided by √E, not by E."),
            (scores.softmax(-2) @ v, "The weights of one position must add up to 1: softmax over the last axis."),
            (scores @ v, "The softmax is missing."),
        ],
    )
    mask = torch.ones(t, t, dtype=torch.bool).tril()
    hidden = scores.masked_fill(~mask, float("-inf"))
    yield is_close(
        "with is_causal, no position sees a later one",
        attention(q, k, v, is_causal=True),
        hidden.softmax(-1) @ v,
        hint="Set the scores of later positions to −inf before the softmax, by masked_fill: 0 · inf is nan.",
        mistakes=[
            (wanted, "is_causal makes no difference yet."),
            (scores.masked_fill(~mask, 0.0).softmax(-1) @ v, "A score of 0 still has weight exp(0) = 1. Use −inf."),
            (
                scores.softmax(-1).masked_fill(~mask, 0.0) @ v,
                "Masked after the softmax, the weights no longer add up to 1.",
            ),
            (scores.masked_fill(mask, float("-inf")).softmax(-1).nan_to_num() @ v, "The mask is the wrong way round."),
            (
                scores.masked_fill(~mask.T, float("-inf")).softmax(-1) @ v,
                "The mask is the wrong way round: position i may see positions 0 to i.",
            ),
        ],
    )
    yield is_close(
        "the first position then sees only itself",
        attention(q, k, v, is_causal=True)[:, 0],
        v[:, 0],
        hint="Position 0 may look at position 0.",
    )
