"""Lesson 03: what people say about modules and hooks. Saving and loading are in modules_saving."""

from __future__ import annotations

import re
from importlib import metadata
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_utils.claims.evidence import WORKS, attempt
from course_utils.claims.ledger import Evidence
from course_utils.claims.modules_saving import PAGE
from course_utils.claims.verdicts import CAVEAT, FALSE, OPINION, TRUE
from course_utils.hooks import gradient_norms, hook_count
from course_utils.memory import storage_bytes
from course_utils.transfer import moved, snapshot

__all__ = ["PAGE"]


# --- What a module registers -----------------------------------------------------------------------------------------


@PAGE.claim(
    "M002",
    "Assigning layers in __init__ of an nn.Module subclass registers their parameters.",
    rule=lambda seen: TRUE if "layer.weight" in seen["parameters"] else FALSE,
    right="On this version it doesn't.",
    page="generated/torch.nn.Module.html",
)
@PAGE.claim(
    "M013",
    "nn.Module collects sub-module parameters through its hook mechanism.",
    rule=lambda seen: (
        FALSE if seen["hooks"] == 0 and "layer.weight" in seen["parameters"] and not seen["around __setattr__"]
        else TRUE
    ),
    right="Module.__setattr__ sorts what is assigned into dictionaries, and parameters() walks through them. Hooks are "
    "functions called around forward and backward.",
    page="generated/torch.nn.Module.html",
)  # fmt: skip
@PAGE.claim(
    "M014",
    "nn.Module keeps a _parameters dict and a _modules dict that are filled on attribute assignment.",
    rule=lambda seen: TRUE if (seen["_parameters"], seen["_modules"]) == ("scale", "layer") else FALSE,
    right="On this version they are called otherwise.",
    page="generated/torch.nn.Module.html",
)
def a_layer_and_a_parameter_as_attributes() -> Evidence:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))
            self.layer = nn.Linear(2, 2)

    net, around = Net(), nn.Module()
    object.__setattr__(around, "layer", nn.Linear(2, 2))  # past Module.__setattr__
    return {
        "_parameters": " ".join(net._parameters),
        "_modules": " ".join(net._modules),
        "parameters": " ".join(name for name, _ in net.named_parameters()),
        "hooks": hook_count(net),
        "around __setattr__": " ".join(name for name, _ in around.named_parameters()),
    }


@PAGE.claim(
    "M015",
    "Layers stored in a plain Python list are not registered: the optimizer misses them and they never train.",
    rule=lambda seen: (
        FALSE if seen["tensors of the list known to the model"]
        else TRUE if seen["values of the list that moved"] == 0 < seen["values of the head that moved"]
        else CAVEAT
    ),
    right="On this version the list is registered.",
    page="generated/torch.nn.ModuleList.html",
)  # fmt: skip
def layers_in_a_list() -> Evidence:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = [nn.Linear(3, 3), nn.Linear(3, 3)]
            self.head = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    net = Net()
    hidden, head = nn.ModuleList(net.layers), net.head
    before, before_head = snapshot(hidden), snapshot(head)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(8, 3)).square().mean().backward()
        optimizer.step()
    return {
        "tensors of the list known to the model": sum("layers" in name for name, _ in net.named_parameters()),
        "values of the list that moved": len(moved(hidden, before)),
        "values of the head that moved": len(moved(head, before_head)),
    }


@PAGE.claim(
    "M016",
    "If a class does not inherit nn.Module, calling model.parameters() returns no parameters.",
    rule=lambda seen: TRUE if seen["plain class"] == WORKS else FALSE,
    right="There is no such method then, and an AttributeError says so. No parameters and no error is what a plain "
    "list of layers in an nn.Module gives.",
    page="generated/torch.nn.Module.html#torch.nn.Module.parameters",
)
def parameters_of_a_plain_class() -> Evidence:
    class Plain:
        def __init__(self) -> None:
            self.layer = nn.Linear(2, 2)

    class InList(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = [nn.Linear(2, 2)]

    return {
        "plain class": attempt(lambda: list(Plain().parameters())),
        "nn.Module with a list: parameters": len(list(InList().parameters())),
    }


@PAGE.claim(
    "M017",
    "Never assign a bare torch.Tensor as a learnable attribute; use nn.Parameter or a submodule.",
    rule=lambda seen: (
        FALSE if seen["in parameters()"] and seen["in state_dict()"]
        else CAVEAT if seen["in parameters()"] or seen["in state_dict()"]
        else TRUE
    ),
    right="On this version the module knows the tensor.",
    page="generated/torch.nn.parameter.Parameter.html",
)  # fmt: skip
def a_bare_tensor_as_attribute() -> Evidence:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.ones(1, requires_grad=True)

    net = Scale()
    (net.scale * 2).sum().backward()
    return {
        "gets a gradient": net.scale.grad is not None,
        "in parameters()": len(list(net.parameters())) > 0,
        "in state_dict()": "scale" in net.state_dict(),
        "moved by .to('meta')": net.to("meta").scale.device.type == "meta",
    }


@PAGE.claim(
    "M018",
    "A custom layer only needs __init__ and forward; autograd derives the backward.",
    rule=lambda seen: TRUE if seen["gradients agree with differences"] else FALSE,
    right="On this version the gradients are wrong.",
    page="notes/extending.html#extending-torch-nn",
)
def a_layer_without_a_backward() -> Evidence:
    class Bump(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.width = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return torch.exp(-((x / self.width) ** 2)).cumsum(0)

    layer, x = Bump(), torch.randn(4, dtype=torch.float64, requires_grad=True)
    agrees = torch.autograd.gradcheck(lambda x, _width: layer(x), (x, layer.width), raise_exception=False)
    return {
        "methods written": " ".join(name for name in vars(Bump) if name in ("__init__", "forward", "backward")),
        "gradients agree with differences": agrees,
    }


@PAGE.claim(
    "M001",
    "You can compute the input size inside forward and create the fully connected layer there on the fly.",
    rule=lambda seen: (
        TRUE if seen["made in each call: calls agree"] and seen["made in each call: tensors known to an optimizer"]
        else CAVEAT if seen["kept after the first call: known to an optimizer made later"]
        else FALSE
    ),
    right="Only if the layer is kept on self and the optimizer is made after a first forward; made anew in each "
    "call it is another random layer each time. nn.LazyLinear does it properly.",
    page="generated/torch.nn.LazyLinear.html",
)  # fmt: skip
def a_layer_made_in_forward() -> Evidence:
    class Anew(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.Linear(x.shape[1], 2)(x)

    class Kept(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if not hasattr(self, "layer"):
                self.layer = nn.Linear(x.shape[1], 2)
            return self.layer(x)

    anew, kept, x = Anew(), Kept(), torch.ones(1, 3)
    before = len(list(kept.parameters()))
    kept(x)
    return {
        "made in each call: calls agree": torch.equal(anew(x), anew(x)),
        "made in each call: tensors known to an optimizer": len(list(anew.parameters())),
        "kept after the first call: known to an optimizer made before": before,
        "kept after the first call: known to an optimizer made later": len(list(kept.parameters())),
        "nn.LazyLinear: known to an optimizer made before": len(list(nn.LazyLinear(2).parameters())),
    }


@PAGE.claim(
    "M007",
    "model.to(device) moves all parameters and buffers of the network at once.",
    rule=lambda seen: TRUE if seen["parameters and buffers moved"] == seen["parameters and buffers"] else FALSE,
    right="On this version some stay.",
    page="generated/torch.nn.Module.html#torch.nn.Module.to",
)
def moving_a_model() -> Evidence:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 2)))
    model.register_buffer("mask", torch.ones(2), persistent=False)
    model.note = torch.ones(2)  # neither parameter nor buffer
    model.to("meta")
    known = [*model.parameters(), *model.buffers()]
    return {
        "parameters and buffers": len(known),
        "parameters and buffers moved": sum(tensor.device.type == "meta" for tensor in known),
        "a plain tensor attribute is on": model.note.device.type,
    }


# --- Train and eval --------------------------------------------------------------------------------------------------


@PAGE.claim(
    "M003",
    "BatchNorm normalises with batch statistics in train mode and with accumulated running statistics in eval mode.",
    rule=lambda seen: TRUE if all(seen.values()) else FALSE,
    right="On this version it uses others.",
    page="generated/torch.nn.BatchNorm1d.html",
)
def statistics_of_batchnorm() -> Evidence:
    norm, x = nn.BatchNorm1d(3, affine=False), torch.randn(16, 3) * 2 + 5
    for _ in range(3):
        trained = norm(x)
    by_batch = (x - x.mean(0)) / (x.var(0, unbiased=False) + norm.eps).sqrt()
    evaluated = norm.eval()(x)
    by_running = (x - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
    return {
        "train: by the batch's mean and variance": torch.allclose(trained, by_batch, atol=1e-5),
        "eval: by the running mean and variance": torch.allclose(evaluated, by_running, atol=1e-5),
        "the two differ": not torch.allclose(trained, evaluated, atol=1e-2),
    }


@PAGE.claim(
    "M008",
    "model.train()/eval() control just two layer types, BatchNorm and Dropout.",
    rule=lambda seen: FALSE if seen["others that do"] else TRUE,
    right="They set a flag that any layer may read. InstanceNorm with running statistics, RReLU, LSTM and "
    "MultiheadAttention with dropout do, and your own may.",
    page="generated/torch.nn.Module.html#torch.nn.Module.train",
)
def layers_that_read_the_mode() -> Evidence:
    layers = {
        "BatchNorm1d": nn.BatchNorm1d(6),
        "Dropout": nn.Dropout(),
        "InstanceNorm1d with running statistics": nn.InstanceNorm1d(6, track_running_stats=True),
        "RReLU": nn.RReLU(),
        "LSTM with dropout": nn.LSTM(6, 6, num_layers=2, dropout=0.5),
        "MultiheadAttention with dropout": nn.MultiheadAttention(6, 2, dropout=0.5),
        "LayerNorm": nn.LayerNorm(6),
    }
    x = torch.randn(6, 6, 6)

    def output(layer: nn.Module) -> Tensor:
        torch.manual_seed(0)
        result = layer(x, x, x) if isinstance(layer, nn.MultiheadAttention) else layer(x)
        return result[0] if isinstance(result, tuple) else result

    reads = {name: not torch.equal(output(layer.eval()), output(layer.train())) for name, layer in layers.items()}
    return {
        "BatchNorm1d differs between the modes": reads.pop("BatchNorm1d"),
        "Dropout does": reads.pop("Dropout"),
        "others that do": ", ".join(name for name in reads if reads[name]),
        "others that do not": ", ".join(name for name in reads if not reads[name]),
    }


@PAGE.claim(
    "M009",
    "Dropout zeroes elements only in train mode.",
    rule=lambda seen: (
        FALSE if seen["nn.Dropout in eval: zeros"] or not seen["nn.Dropout in train: zeros"]
        else CAVEAT if seen["F.dropout(x) in eval: zeros"]
        else TRUE
    ),
    right="That is nn.Dropout. The function F.dropout knows no mode: without training=self.training it zeroes in eval "
    "as well.",
    page="generated/torch.nn.functional.dropout.html",
)  # fmt: skip
def zeros_from_dropout() -> Evidence:
    class ByFunction(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x)

    def zeros(layer: nn.Module) -> int:
        return int((layer(torch.ones(1000)) == 0).sum())

    return {
        "nn.Dropout in train: zeros": zeros(nn.Dropout().train()),
        "nn.Dropout in eval: zeros": zeros(nn.Dropout().eval()),
        "F.dropout(x) in eval: zeros": zeros(ByFunction().eval()),
    }


@PAGE.claim(
    "M011",
    "Freeze early layers by setting requires_grad=False.",
    rule=lambda seen: (
        FALSE if seen["frozen parameters that moved"] else CAVEAT if seen["frozen buffers that moved"] else TRUE
    ),
    right="Their weights stay, but the running statistics of a BatchNorm are buffers and go on moving in train mode: "
    "put the frozen part in eval mode, too.",
    page="generated/torch.nn.Module.html#torch.nn.Module.requires_grad_",
)
def training_with_frozen_layers() -> Evidence:
    early = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).requires_grad_(False)
    model = nn.Sequential(early, nn.ReLU(), nn.Linear(4, 1))
    before, names = snapshot(early), {name for name, _ in early.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 3)).square().mean().backward()
        optimizer.step()
    changed = set(moved(early, before))
    return {"frozen parameters that moved": len(changed & names), "frozen buffers that moved": len(changed - names)}


# --- Shapes, starts, signals -----------------------------------------------------------------------------------------


@PAGE.claim(
    "M020",
    "nn.Conv2d(3, 16, 3, 1) applied to a (2, 3, 32, 32) input yields feature maps of 30 by 30.",
    rule=lambda seen: TRUE if seen["output"] == "(2, 16, 30, 30)" else FALSE,
    right="On this version the maps have another size.",
    page="generated/torch.nn.Conv2d.html",
)
def output_of_a_convolution() -> Evidence:
    layer = nn.Conv2d(3, 16, 3, 1)
    return {
        "output": str(tuple(layer(torch.zeros(2, 3, 32, 32)).shape)),
        "stride": str(layer.stride),
        "padding": str(layer.padding),
    }


@PAGE.claim(
    "M012",
    "A model with shapes written into its forward fails with a dimension error when it gets a batch of one.",
    rule=lambda seen: (
        TRUE if WORKS not in seen.values() else CAVEAT if set(seen.values()) != {WORKS} else FALSE
    ),
    right="If it is the batch size that is written down, and not always then: view(8, -1) also fits where the numbers "
    "happen to divide, and mixes features up. Written sizes of features do no harm.",
    page="generated/torch.Tensor.view.html",
)  # fmt: skip
def a_batch_of_one() -> Evidence:
    one, layer = torch.ones(1, 2, 4, 4), nn.Linear(32, 3)
    return {
        "x.view(8, 32), then Linear(32, 3)": attempt(lambda: layer(one.view(8, 32))),
        "x.view(8, -1), then Linear(32, 3)": attempt(lambda: layer(one.view(8, -1))),
        "x.view(8, -1), then the mean over features": attempt(lambda: one.view(8, -1).mean(1)),
        "x.view(-1, 32), then Linear(32, 3)": attempt(lambda: layer(one.view(-1, 32))),
    }


@PAGE.claim(
    "M004",
    "If the loss falls abnormally slowly, apply Xavier or Kaiming initialisation with model.apply(init_weights).",
    rule=lambda seen: (
        OPINION if seen["std after 10 layers, Kaiming"] > 2 * seen["std after 10 layers, as made"] else FALSE
    ),
    right="Layers come initialised. In a deep plain ReLU network Kaiming keeps signals that fade otherwise; with "
    "normalisation or few layers it changes little, and a learning rate is more often the reason.",
    page="nn.init.html",
)
def signals_through_ten_layers() -> Evidence:
    def init_weights(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)

    def std(normalise: bool, depth: int = 10, width: int = 64) -> float:
        x = torch.randn(256, width)
        for layer in layers[:depth]:
            x = layer(x)
            x = (F.layer_norm(x, (width,)) if normalise else x).relu()
        return x.std().item()

    layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(10))
    seen = {"std after 10 layers, as made": std(False), "with LayerNorm, as made": std(True)}
    layers.apply(init_weights)
    return {**seen, "std after 10 layers, Kaiming": std(False), "with LayerNorm, Kaiming": std(True)}


@PAGE.claim(
    "M006",
    "Printing per-parameter gradient norms locates vanishing: the layer whose gradient becomes 0 is the vanishing "
    "point.",
    rule=lambda seen: (
        TRUE if seen["layers with a norm of 0"]
        else CAVEAT if seen["norm, last layer"] > 100 * seen["norm, first layer"]
        else FALSE
    ),
    right="The norms do show it, as a fall from layer to layer: there is no point, and none is 0. A norm of exactly 0 "
    "means something else, such as dead ReLUs, and None a graph that is cut.",
    page="generated/torch.nn.utils.get_total_norm.html",
)  # fmt: skip
def gradients_through_twelve_sigmoids() -> Evidence:
    layers = [part for _ in range(12) for part in (nn.Linear(32, 32), nn.Sigmoid())]
    model = nn.Sequential(*layers, nn.Linear(32, 1))
    model(torch.randn(64, 32)).square().mean().backward()
    norms = [norm for name, norm in gradient_norms(model).items() if name.endswith("weight")]
    return {
        "norm, first layer": norms[0],
        "norm, last layer": norms[-1],
        "layers with a norm of 0": sum(norm == 0 for norm in norms),
        "layers whose norm is smaller than the next one's": sum(a < b for a, b in pairwise(norms)),
        "layers": len(norms),
    }


@PAGE.claim(
    "M021",
    "There is no standard API for zero-initialising the last norm gamma of residual blocks; do it by hand with "
    "nn.init.",
    rule=lambda seen: FALSE if seen["zero gammas with zero_init_residual=True"] == seen["blocks"] else TRUE,
    right="torchvision's ResNets take zero_init_residual=True. By hand it is for blocks of your own.",
    page="https://docs.pytorch.org/vision/stable/_modules/torchvision/models/resnet.html",
)
def gammas_of_a_resnet() -> Evidence:
    from torchvision.models.resnet import BasicBlock, ResNet

    def zero_gammas(**options: bool) -> int:
        model = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=2, **options)
        blocks = [module for module in model.modules() if isinstance(module, BasicBlock)]
        return sum(not block.bn2.weight.any() for block in blocks)

    return {
        "blocks": 4,
        "zero gammas by default": zero_gammas(),
        "zero gammas with zero_init_residual=True": zero_gammas(zero_init_residual=True),
    }


# --- Looking inside --------------------------------------------------------------------------------------------------


@PAGE.claim(
    "M019",
    "A forward hook can observe intermediate output without changing the model, and the returned handle removes it.",
    rule=lambda seen: (
        FALSE if not seen["seen by the hook"] or seen["hooks after remove()"]
        else TRUE if seen["output as before"]
        else CAVEAT
    ),
    right="On this version watching changes the output.",
    page="generated/torch.nn.Module.html#torch.nn.Module.register_forward_hook",
)  # fmt: skip
def a_hook_that_watches() -> Evidence:
    model, x, seen = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), torch.randn(2, 3), []
    before = model(x)
    handle = model[0].register_forward_hook(lambda _layer, _inputs, output: seen.append(output.detach().clone()))
    during = model(x)
    handle.remove()
    model(x)
    return {
        "seen by the hook": len(seen),
        "output as before": torch.equal(before, during),
        "hooks after remove()": hook_count(model),
    }


@PAGE.claim(
    "M031",
    "A forgotten forward hook that stores outputs grows memory.",
    rule=lambda seen: TRUE if seen["bytes kept after 10 calls"] == 10 * seen["bytes kept after 1 call"] > 0 else FALSE,
    right="On this version what it stores is given back.",
    page="generated/torch.nn.Module.html#torch.nn.Module.register_forward_hook",
)
def a_hook_that_stores() -> Evidence:
    model, x, kept = nn.Sequential(nn.Linear(8, 16), nn.Tanh()), torch.randn(4, 8), []
    handle = model[0].register_forward_hook(lambda _layer, _inputs, output: kept.append(output))
    seen: dict[str, int] = {}
    for count in range(1, 11):
        model(x)
        if count in (1, 10):
            seen[f"bytes kept after {count} call{'s' if count > 1 else ''}"] = storage_bytes(kept)
    handle.remove()
    return seen


@PAGE.claim(
    "M032",
    "torchinfo.summary(model, input_size) shows output shapes and parameter counts and finds mismatches.",
    rule=lambda seen: (
        FALSE if not seen["shows [2, 16, 30, 30]"] or not seen["shows 448 parameters"]
        else CAVEAT if seen["a layer that doesn't fit"] == WORKS
        else TRUE
    ),
    right="On this version it shows less.",
    page="https://github.com/TylerYep/torchinfo",
)  # fmt: skip
@PAGE.claim(
    "M034",
    "print(model) shows the layer hierarchy but neither output shapes nor parameter counts.",
    rule=lambda seen: (
        FALSE if not seen["print: shows the layers"]
        else CAVEAT if seen["print: shows output shapes"] or seen["print: shows parameter counts"]
        else TRUE
    ),
    right="On this version it shows more.",
    page="generated/torch.nn.Module.html#torch.nn.Module.extra_repr",
)  # fmt: skip
def two_ways_to_list_layers() -> Evidence:
    from torchinfo import summary

    size = (2, 3, 32, 32)
    right, wrong = (
        nn.Sequential(nn.Conv2d(3, 16, 3), nn.Flatten(), nn.Linear(inputs, 10)) for inputs in (16 * 30 * 30, 1000)
    )
    table, printed = str(summary(right, size, verbose=0)), repr(right)
    return {
        "shows [2, 16, 30, 30]": "[2, 16, 30, 30]" in table,
        "shows 448 parameters": bool(re.search(r"\b448\b", table)),
        "a layer that doesn't fit": attempt(lambda: summary(wrong, size, verbose=0)),
        "print: shows the layers": all(name in printed for name in ("Conv2d", "Flatten", "Linear")),
        "print: shows output shapes": "30, 30" in printed,
        "print: shows parameter counts": bool(re.search(r"\b448\b", printed)),
    }


@PAGE.claim(
    "M033",
    "The torchinfo package is torchsummary under a new name.",
    rule=lambda seen: FALSE if "completely rewritten" in seen["what it says of itself"] else TRUE,
    right="It was called torch-summary, with a hyphen, and that was a rewrite with a call of its own. torchsummary is "
    "an older package by other people; there, input sizes are given without the batch.",
    page="https://pypi.org/project/torchinfo/",
)
def history_of_torchinfo() -> Evidence:
    facts = metadata.metadata("torchinfo")
    description = " ".join((facts["Description"] or str(facts.get_payload())).split())
    said = re.search(r"This is a completely rewritten version[^.]*\.", description)
    return {
        "author": facts["Author"],
        "formerly": "torch-summary" if "formerly torch-summary" in description else "not said",
        "what it says of itself": said.group(0) if said else "nothing about its origin",
    }


PAGE.claims.sort(key=lambda claim: claim.id)  # two modules, one list
