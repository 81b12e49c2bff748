"""Lesson 03's exercises: right answers in several forms pass, each wrong one meets its own message."""

from __future__ import annotations

import copy
from collections import OrderedDict
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_utils.hooks import recording
from course_utils.transfer import load_matching
from tests.exercises.harness import Answers, WrongAnswers, exercise_tests

RIGHT: Answers = {}
WRONG: WrongAnswers = {}

# --- standardize ----------------------------------------------------------------------------------------------------


class _Folded(nn.Module):
    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", 1 / std)
        self.register_buffer("shift", -mean / std)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


class _BufferClass(nn.Module):
    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.mean, self.std = nn.Buffer(mean), nn.Buffer(std)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class _AsParameters(nn.Module):
    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.mean, self.std = nn.Parameter(mean), nn.Parameter(std)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class _AsAttributes(nn.Module):
    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.mean, self.std = mean, std

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class _Frozen(_AsParameters):
    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__(mean, std)
        self.requires_grad_(False)


class _NotSaved(nn.Module):
    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class _Batchwise(_BufferClass):
    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) / x.std(0)


class _NoInit(nn.Module):
    def __init__(self, mean: Tensor, std: Tensor) -> None:
        self.register_buffer("mean", mean)


RIGHT["modules.standardize"] = {"scale and shift": _Folded, "nn.Buffer": _BufferClass}
WRONG["modules.standardize"] = {
    "parameters": (_AsParameters, "Fixed numbers are no parameters"),
    "frozen parameters": (_Frozen, "frozen or not"),
    "plain attributes": (_AsAttributes, "a tensor that the module doesn't know"),
    "not saved": (_NotSaved, "persistent=False leaves a buffer out"),
    "of this batch": (_Batchwise, "Per feature, over the last axis"),
    "an object": (_BufferClass(torch.zeros(2), torch.ones(2)), "hand in the class itself"),
    "no super().__init__()": (_NoInit, "super().__init__() comes first"),
}

# --- stack ----------------------------------------------------------------------------------------------------------


class _Sequential(nn.Sequential):
    def __init__(self, sizes: list[int]) -> None:
        layers: list[nn.Module] = []
        for a, b in pairwise(sizes):
            layers += [nn.Linear(a, b), nn.ReLU()]
        super().__init__(*layers[:-1])


class _AddModule(nn.Module):
    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.n = len(sizes) - 1
        for i in range(self.n):
            self.add_module(f"layer{i}", nn.Linear(sizes[i], sizes[i + 1]))

    def forward(self, x: Tensor) -> Tensor:
        for i in range(self.n):
            x = getattr(self, f"layer{i}")(x)
            x = x.relu() if i + 1 < self.n else x
        return x


class _InAList(nn.Module):
    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        return self.layers[-1](x)


class _ReluEverywhere(_Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


class _NoRelu(_AddModule):
    def forward(self, x: Tensor) -> Tensor:
        for i in range(self.n):
            x = getattr(self, f"layer{i}")(x)
        return x


class _LastForgotten(nn.Module):
    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes[:-1]))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class _StarSizes(_AddModule):
    def __init__(self, *sizes: int) -> None:
        super().__init__(list(sizes))


RIGHT["modules.stack"] = {"a Sequential": _Sequential, "add_module": _AddModule}
WRONG["modules.stack"] = {
    "a list": (_InAList, "A list or a dict hides them"),
    "ReLU at the end": (_ReluEverywhere, "There is a ReLU after the last layer"),
    "no ReLU": (_NoRelu, "all of them together are one linear map"),
    "sizes one by one": (_StarSizes, "sizes comes as one list"),
    "one layer short": (_LastForgotten, "maps (N, first) to (N, last)"),
}

# --- conv-parameters ------------------------------------------------------------------------------------------------


def _by_building(c_in: int, c_out: int, kernel: int, groups: int = 1, bias: bool = True) -> int:
    layer = nn.Conv2d(c_in, c_out, kernel, groups=groups, bias=bias, device="meta")
    return sum(p.numel() for p in layer.parameters())


def _per_group(c_in: int, c_out: int, kernel: int, groups: int = 1, bias: bool = True) -> int:
    per_group = (c_out // groups) * (c_in // groups) * kernel * kernel
    return groups * per_group + bias * c_out


RIGHT["modules.conv-parameters"] = {"by building it": _by_building, "group by group": _per_group}
WRONG["modules.conv-parameters"] = {
    "groups forgotten": (lambda i, o, k, groups=1, bias=True: i * o * k * k + bias * o, "only its own group"),
    "bias always": (lambda i, o, k, groups=1, bias=True: i // groups * o * k * k + o, "Conv2d("),
    "no bias ever": (
        lambda i, o, k, groups=1, bias=True: i // groups * o * k * k,
        "one number for each output channel",
    ),
    "bias of the inputs": (lambda i, o, k, groups=1, bias=True: i // groups * o * k * k + bias * i, "per *output*"),
    "kernel not squared": (
        lambda i, o, k, groups=1, bias=True: i // groups * o * k + bias * o,
        "The kernel is a square",
    ),
    "a float": (lambda i, o, k, groups=1, bias=True: i / groups * o * k * k + bias * o, "its type is float"),
    "one group": (
        lambda i, o, k, groups=1, bias=True: (i // groups) * (o // groups) * k * k + bias * o,
        "as many as groups says",
    ),
}

# --- batchnorm ------------------------------------------------------------------------------------------------------


class _Norm(nn.Module):
    correction = 0
    momentum = 0.1

    def __init__(self, d: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(d))
        self.register_buffer("var", torch.ones(d))

    def follow(self, x: Tensor) -> None:
        x = x.detach()
        self.mean = (1 - self.momentum) * self.mean + self.momentum * x.mean(0)
        self.var = (1 - self.momentum) * self.var + self.momentum * x.var(0)

    def forward(self, x: Tensor) -> Tensor:
        mean, var = self.mean, self.var
        if self.training:
            mean, var = x.mean(0), x.var(0, correction=self.correction)
            self.follow(x)
        return (x - mean) / (var + 1e-5).sqrt()


class _Functional(_Norm):
    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.mean, self.var, training=self.training)


class _NMinusOne(_Norm):
    correction = 1


class _NeverFollows(_Norm):
    momentum = 0.0


class _AlwaysBatch(_Norm):
    def forward(self, x: Tensor) -> Tensor:
        self.follow(x)
        return (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()


class _OtherMomentum(_Norm):
    momentum = 0.9


class _FollowsInEval(_Norm):
    def forward(self, x: Tensor) -> Tensor:
        result = super().forward(x)
        if not self.training:
            self.follow(x)
        return result


class _NotBuffers(_Norm):
    def __init__(self, d: int) -> None:
        nn.Module.__init__(self)
        self.mean, self.var = torch.zeros(d), torch.ones(d)


class _InTheGraph(_Norm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)

    def follow(self, x: Tensor) -> None:
        super().follow(x)
        self.var = self.var * torch.ones((), requires_grad=True)


class _GraphOfTheInput(_Norm):
    def follow(self, x: Tensor) -> None:
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        self.var = 0.9 * self.var + 0.1 * x.var(0)


class _Constants(_Norm):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        self.follow(x)
        return (x - x.detach().mean(0)) / (x.detach().var(0, correction=0) + 1e-5).sqrt()


class _WithoutGradients(_Norm):
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


RIGHT["modules.batchnorm"] = {"new tensors": _Norm, "F.batch_norm": _Functional}
WRONG["modules.batchnorm"] = {
    "N - 1 within the batch": (_NMinusOne, "BatchNorm divides by N"),
    "never follows": (_NeverFollows, "update them in train mode"),
    "always the batch": (_AlwaysBatch, "look at self.training"),
    "follows too fast": (_OtherMomentum, "running = 0.9"),
    "follows in eval": (_FollowsInEval, "Update only if self.training"),
    "not saved": (_NotBuffers, "self.register_buffer"),
    "in the graph": (_InTheGraph, "Update them under torch.no_grad()"),
    "in the graph of the input": (_GraphOfTheInput, "Update them under torch.no_grad()"),
    "statistics as constants": (_Constants, "Both depend on x"),
    "all under no_grad": (_WithoutGradients, "not the output"),
}

# --- residual -------------------------------------------------------------------------------------------------------


class _Block(nn.Module):
    zero: tuple[int, ...] = (2,)

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        for place in self.zero:
            nn.init.zeros_(self.branch[place].weight)
            nn.init.zeros_(self.branch[place].bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class _ThreeLayers(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(width, width) for _ in range(3))
        with torch.no_grad():
            for p in self.c.parameters():
                p.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.c(F.relu(self.b(F.relu(self.a(x))))) + x


class _AllZero(_Block):
    zero = (0, 2)


class _NotZero(_Block):
    zero = ()


class _NoSkip(_Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.branch(x)


class _InPlace(_Block):
    def forward(self, x: Tensor) -> Tensor:
        x += self.branch(x) + 1e-3
        return x


class _InPlaceSum(_Block):
    def forward(self, x: Tensor) -> Tensor:
        x += self.branch(x)
        return x


class _Identity(_Block):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0.0 * self.branch(x)


class _Nothing(_Block):
    def forward(self, x: Tensor) -> Tensor:
        return x


class _OneLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Linear(width, width)
        nn.init.zeros_(self.branch.weight)
        nn.init.zeros_(self.branch.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class _Linear(_Block):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.branch[1] = nn.Identity()


class _ReluAfter(_Block):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


class _Normed(nn.Module):
    """With a BatchNorm at the end whose scale begins with 0, and GELU: right, too."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Linear(width, width), nn.GELU(), nn.Linear(width, width, bias=False), nn.BatchNorm1d(width)
        )
        nn.init.zeros_(self.branch[3].weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class _Scalar(nn.Module):
    """The whole branch times a learned number that begins with 0: right, too."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.branch(x)


RIGHT["modules.residual"] = {
    "wider inside": _Block,
    "three layers": _ThreeLayers,
    "a learned scale": _Scalar,
    "with BatchNorm": _Normed,
}
WRONG["modules.residual"] = {
    "everything 0": (_AllZero, "If all layers began with zeros"),
    "not at all 0": (_NotZero, "Set the weight and the bias of the last layer"),
    "no input": (_NoSkip, "The block returns its branch"),
    "in place": (_InPlace, "x = x + …, not x += …"),
    "learns nothing": (_Identity, "and it can learn"),
    "in place, a sum": (_InPlaceSum, "writes into the input of the first layer"),
    "the input alone": (_Nothing, "No parameter takes part"),
    "one layer": (_OneLayer, "at least two linear layers"),
    "no ReLU": (_Linear, "Two linear layers in a row are one"),
    "ReLU after the sum": (_ReluAfter, "a ReLU after the sum"),
}

# --- attention ------------------------------------------------------------------------------------------------------


def _by_library(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


def _by_einsum(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
    scores = torch.einsum("nie,nje->nij", q, k) / q.size(-1) ** 0.5
    if is_causal:
        t = q.size(1)
        scores = scores + torch.full((t, t), -1e9).triu(1)
    return torch.einsum("nij,nje->nie", torch.softmax(scores, dim=2), v)


def _broken(scale: float = 0.5, axis: int = -1, fill: float = float("-inf"), after: bool = False, flip: bool = False):
    def attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** scale
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        hidden = hidden.T if flip else hidden
        if is_causal and not after:
            scores = scores.masked_fill(hidden, fill)
        weights = scores.softmax(axis)
        return (weights.masked_fill(hidden, 0.0) if is_causal and after else weights) @ v

    return attention


def _all_axes(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
    return (q @ k.permute(2, 1, 0)).softmax(-1) @ v  # what k.T is


def _zero_times_infinity(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
    scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
    if is_causal:
        scores = scores - torch.ones(scores.shape[1:]).triu(1) * float("inf")
    return scores.softmax(-1) @ v


RIGHT["modules.attention"] = {"the library's": _by_library, "einsum": _by_einsum}
WRONG["modules.attention"] = {
    "not scaled": (_broken(scale=0.0), "divided by √E before the softmax"),
    "scaled by E": (_broken(scale=1.0), "by √E, not by E"),
    "softmax over queries": (_broken(axis=-2), "softmax over the last axis"),
    "hidden by 0": (_broken(fill=0.0), "exp(0) = 1"),
    "hidden afterwards": (_broken(after=True), "no longer add up to 1"),
    "looks ahead only": (_broken(flip=True), "the wrong way round"),
    "all axes turned": (_all_axes, "swaps the last two"),
    "k as it is": (lambda q, k, v, is_causal=False: (q @ k).softmax(-1) @ v, "swaps the last two axes"),
    "0 times infinity": (_zero_times_infinity, "0 · inf is nan"),
    "never causal": (lambda q, k, v, is_causal=False: _by_library(q, k, v), "makes no difference yet"),
}

# --- recorder -------------------------------------------------------------------------------------------------------


class _Recorder:
    """A context manager written as a class."""

    def __init__(self, model: nn.Module, name: str) -> None:
        self.layer = model.get_submodule(name)

    def __enter__(self) -> list[Tensor]:
        self.seen: list[Tensor] = []
        self.handle = self.layer.register_forward_hook(self.keep)
        return self.seen

    def keep(self, _layer: nn.Module, _inputs: Any, output: Tensor) -> None:
        self.seen.append(output.clone().detach())

    def __exit__(self, *_error: object) -> None:
        self.handle.remove()


@contextmanager
def _by_course(model: nn.Module, name: str):
    with recording(model, name) as records:
        yield records[name]


def _recorder(keep: Any = lambda o: o.detach().clone(), clean: bool = True, careful: bool = True, back: bool = False):
    @contextmanager
    def recorder(model: nn.Module, name: str):
        seen: list[Tensor] = []

        def hook(_layer: nn.Module, _inputs: Any, output: Tensor) -> Any:
            seen.append(keep(output))
            return output.detach() if back else None

        handle = dict(model.named_modules())[name].register_forward_hook(hook)
        try:
            yield seen
        except Exception:
            if careful:
                handle.remove()
            raise
        if clean:
            handle.remove()

    return recorder


@contextmanager
def _first_only(model: nn.Module, name: str):
    seen: list[Tensor] = []

    def hook(_layer: nn.Module, _inputs: Any, output: Tensor) -> None:
        seen.append(output.detach().clone())
        handle.remove()

    handle = model.get_submodule(name).register_forward_hook(hook)
    try:
        yield seen
    finally:
        handle.remove()


@contextmanager
def _by_attribute(model: nn.Module, name: str):
    with _Recorder(getattr(model, name), "") as seen:
        yield seen


@contextmanager
def _clears_all(model: nn.Module, name: str):
    layer, seen = model.get_submodule(name), []
    layer.register_forward_hook(lambda layer, inputs, output: seen.append(output.detach().clone()))
    try:
        yield seen
    finally:
        layer._forward_hooks.clear()


RIGHT["modules.recorder"] = {"a class": _Recorder, "the course's": _by_course}
WRONG["modules.recorder"] = {
    "no copy": (_recorder(keep=lambda o: o.detach()), "works in place and has rewritten"),
    "with the graph": (_recorder(keep=lambda o: o.clone()), "keeps its whole graph"),
    "never removed": (_recorder(clean=False, careful=False), "takes its hook off"),
    "removed only if all goes well": (_recorder(careful=False), "also when the block fails"),
    "replaces the output": (_recorder(back=True), "replaces the output"),
    "by attribute": (_by_attribute, "A name with dots"),
    "takes off all": (_clears_all, "your own hook and no other"),
    "the first pass only": (_first_only, "records every forward pass"),
}

# --- prepare --------------------------------------------------------------------------------------------------------


def _one_by_one(model: nn.Module, backbone: nn.Module) -> list[Tensor]:
    inside = {id(p) for p in backbone.parameters()}
    for p in backbone.parameters():
        p.requires_grad = False
    for part in model.modules():
        part.training = True
    for part in backbone.modules():
        part.training = False
    return [p for p in model.parameters() if id(p) not in inside]


def _lazily(model: nn.Module, backbone: nn.Module) -> Any:
    model.train()
    backbone.eval().requires_grad_(False)
    return filter(lambda p: p.requires_grad, model.parameters())


def _no_modes(model: nn.Module, backbone: nn.Module) -> list[Tensor]:
    backbone.requires_grad_(False)
    return [p for p in model.parameters() if p.requires_grad]


def _train_last(model: nn.Module, backbone: nn.Module) -> list[Tensor]:
    backbone.requires_grad_(False)
    backbone.eval()
    model.train()
    return [p for p in model.parameters() if p.requires_grad]


def _only_modes(model: nn.Module, backbone: nn.Module) -> list[Tensor]:
    model.train()
    backbone.eval()
    return list(set(model.parameters()) - set(backbone.parameters()))


def _everything(model: nn.Module, backbone: nn.Module) -> list[Tensor]:
    _one_by_one(model, backbone)
    return list(model.parameters())


def _all_eval(model: nn.Module, backbone: nn.Module) -> list[Tensor]:
    answer = _one_by_one(model, backbone)
    model.eval()
    return answer


RIGHT["modules.prepare"] = {"one by one": _one_by_one, "a filter": _lazily}
WRONG["modules.prepare"] = {
    "modes left as they came": (_no_modes, "The head must be in train mode"),
    "train() last": (_train_last, "Statistics are no parameters"),
    "only modes": (_only_modes, "requires_grad_(False) on the backbone"),
    "returns all": (_everything, "Those that require gradients"),
    "all in eval mode": (_all_eval, "The head must be in train mode"),
}

# --- load -----------------------------------------------------------------------------------------------------------


def _with_course(model: nn.Module, state: dict[str, Tensor]) -> Any:
    report = load_matching(model, state)
    return report.loaded, list(report.wrong_shape), report.missing, report.unexpected


def _by_copy(model: nn.Module, state: dict[str, Tensor]) -> Any:
    plain = OrderedDict((k.removeprefix("module."), v) for k, v in state.items())
    own, loaded, wrong = model.state_dict(), set(), set()
    for key in own.keys() & plain.keys():
        if own[key].shape == plain[key].shape:
            own[key].copy_(plain[key])
            loaded.add(key)
        else:
            wrong.add(key)
    return [loaded, wrong, set(own.keys() - plain.keys()), set(plain.keys() - own.keys())]


def _parts(model: nn.Module, state: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[list[str]]]:
    own = model.state_dict()
    fits = {k: v for k, v in state.items() if k in own and v.shape == own[k].shape}
    lists = [
        list(fits),
        [k for k in own if k in state and k not in fits],
        [k for k in own if k not in state],
        [k for k in state if k not in own],
    ]
    return fits, lists


def _prefix_kept(model: nn.Module, state: dict[str, Tensor]) -> Any:
    fits, lists = _parts(model, state)
    model.load_state_dict(fits, strict=False)
    return lists


def _says_only(model: nn.Module, state: dict[str, Tensor]) -> Any:
    return _parts(model, {k.removeprefix("module."): v for k, v in state.items()})[1]


def _strict_false(model: nn.Module, state: dict[str, Tensor]) -> Any:
    result = model.load_state_dict({k.removeprefix("module."): v for k, v in state.items()}, strict=False)
    return [], [], result.missing_keys, result.unexpected_keys


def _shape_as_missing(model: nn.Module, state: dict[str, Tensor]) -> Any:
    fits, lists = _parts(model, {k.removeprefix("module."): v for k, v in state.items()})
    result = model.load_state_dict(fits, strict=False)
    return lists[0], lists[1], result.missing_keys, lists[3]


def _parameters_only(model: nn.Module, state: dict[str, Tensor]) -> Any:
    fits, lists = _parts(model, {k.removeprefix("module."): v for k, v in state.items()})
    names = {name for name, _ in model.named_parameters()}
    model.load_state_dict({k: v for k, v in fits.items() if k in names}, strict=False)
    return [k for k in lists[0] if k in names], *lists[1:]


def _assigns(model: nn.Module, state: dict[str, Tensor]) -> Any:
    fits, lists = _parts(model, {k.removeprefix("module."): v.clone() for k, v in state.items()})
    model.load_state_dict(fits, strict=False, assign=True)
    return lists


def _empties(model: nn.Module, state: dict[str, Tensor]) -> Any:
    fits, lists = _parts(model, {k.removeprefix("module."): v for k, v in state.items()})
    model.load_state_dict(fits, strict=False)
    for value in fits.values():
        value.zero_()
    return lists


def _pops(model: nn.Module, state: dict[str, Tensor]) -> Any:
    for key in [key for key in state if key.startswith("module.")]:
        state[key.removeprefix("module.")] = state.pop(key)
    fits, lists = _parts(model, state)
    model.load_state_dict(fits, strict=False)
    return lists


def _anywhere(model: nn.Module, state: dict[str, Tensor]) -> Any:
    fits, lists = _parts(model, {k.replace("module.", ""): v for k, v in state.items()})
    model.load_state_dict(fits, strict=False)
    return lists


def _by_count(model: nn.Module, state: dict[str, Tensor]) -> Any:
    own, plain = model.state_dict(), {k.removeprefix("module."): v for k, v in state.items()}
    same = {k: v.reshape(own[k].shape) for k, v in plain.items() if k in own and v.numel() == own[k].numel()}
    wrong = [k for k in own if k in plain and k not in same]
    model.load_state_dict(same, strict=False)
    return list(same), wrong, [k for k in own if k not in plain], [k for k in plain if k not in own]


def _by_data(model: nn.Module, state: dict[str, Tensor]) -> Any:
    fits, lists = _parts(model, {k.removeprefix("module."): v for k, v in state.items()})
    for own in (dict(model.named_parameters()), dict(model.named_buffers())):
        for key in own.keys() & fits.keys():
            own[key].data = fits[key]
    return lists


RIGHT["modules.load"] = {"the course's": _with_course, "copies in a loop, sets": _by_copy}
WRONG["modules.load"] = {
    "prefix kept": (_prefix_kept, "DistributedDataParallel puts it before every key"),
    "says and doesn't load": (_says_only, "strict=False)"),
    "strict=False": (_strict_false, "strict=False forgives missing names, not other shapes"),
    "another shape is missing": (_shape_as_missing, "A key of another shape is not missing"),
    "no buffers": (_parameters_only, "All others, also buffers"),
    "new parameters": (_assigns, "Copy values into them"),
    "writes into the state": (_empties, "write nothing into the state's tensors"),
    "renames in the state": (_pops, "Build a new dictionary"),
    "prefix anywhere": (_anywhere, "at the beginning of a name only"),
    "as many numbers": (_by_count, "yet another shape"),
    "shares memory": (_by_data, "share memory"),
    "a number back": (lambda model, state: 0, "return loaded, wrong_shape, missing, unexpected"),
}

# --- clinic ---------------------------------------------------------------------------------------------------------


class _Experts(nn.Module):
    container: Any = nn.ModuleDict

    def __init__(self, width: int, names: list[str]) -> None:
        super().__init__()
        self.experts = self.container({name: nn.Linear(width, width) for name in names})

    def forward(self, x: Tensor, name: str) -> Tensor:
        return self.experts[name](x)


class _ByIndex(nn.Module):
    def __init__(self, width: int, names: list[str]) -> None:
        super().__init__()
        self.names = list(names)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in names)

    def forward(self, x: Tensor, name: str) -> Tensor:
        return self.layers[self.names.index(name)](x)


class _AddedExperts(nn.Module):
    def __init__(self, width: int, names: list[str]) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, nn.Linear(width, width))

    def forward(self, x: Tensor, name: str) -> Tensor:
        return self.get_submodule(name)(x)


class _Hidden(_Experts):
    container = dict


class _OneForAll(_Experts):
    def __init__(self, width: int, names: list[str]) -> None:
        nn.Module.__init__(self)
        layer = nn.Linear(width, width)
        self.experts = nn.ModuleDict(dict.fromkeys(names, layer))


class _AskedByName(_ByIndex):
    def forward(self, x: Tensor, name: str) -> Tensor:
        return self.layers[name](x)


class _AlwaysTheFirst(_Experts):
    def forward(self, x: Tensor, name: str) -> Tensor:
        return next(iter(self.experts.values()))(x)


class _NewEachTime(_Experts):
    def forward(self, x: Tensor, name: str) -> Tensor:
        return nn.Linear(x.shape[1], x.shape[1])(x)


RIGHT["modules.clinic-experts"] = {"a ModuleList": _ByIndex, "add_module": _AddedExperts}
WRONG["modules.clinic-experts"] = {
    "a dict": (_Hidden, "A dict hides layers"),
    "one for all": (_OneForAll, "one and the same layer"),
    "a list by name": (_AskedByName, "asked by number"),
    "the first always": (_AlwaysTheFirst, "Both experts must be reached"),
    "new ones each time": (_NewEachTime, "Both experts must be reached"),
}


def _predict_on_a_copy(model: nn.Module, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return copy.deepcopy(model).eval()(x).argmax(dim=1).clone()


def _predict_and_restore(model: nn.Module, x: Tensor) -> Tensor:
    training = {name: part.training for name, part in model.named_modules()}
    with torch.no_grad():
        classes = model.eval()(x).max(1).indices
    for name, part in model.named_modules():
        part.training = training[name]
    return classes


def _predict(train: bool = False, after: str = "") -> Any:
    def predict(model: nn.Module, x: Tensor) -> Tensor:
        was = model.training
        if not train:
            model.eval()
        with torch.no_grad():
            classes = model(x).argmax(1)
        if after:
            model.train(was if after == "flag" else after == "train")
        return classes

    return predict


RIGHT["modules.clinic-predict"] = {"on a copy": _predict_on_a_copy, "a dictionary of modes": _predict_and_restore}
WRONG["modules.clinic-predict"] = {
    "as it was": (_predict(train=True, after="train"), "Dropout must be off"),
    "stays in eval": (_predict(), "The model stays in eval mode"),
    "train() for all": (_predict(after="train"), "wakes the BatchNorm"),
    "the model's own flag for all": (_predict(after="flag"), "wakes the BatchNorm"),
    "scores": (lambda model, x: _predict_on_a_copy(model, x).float(), "returns the classes"),
}


def _features_directly(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model.backbone(x)


def _features_by_course(model: nn.Module, x: Tensor) -> Tensor:
    with recording(model, "backbone") as seen:
        model(x)
    return seen["backbone"][0]


def _features(remove: str = "", detach: bool = True) -> Any:
    def features(model: nn.Module, x: Tensor) -> Tensor:
        seen: list[Tensor] = []
        handle = model.backbone.register_forward_hook(lambda m, i, o: seen.append(o.detach() if detach else o))
        if remove == "always":
            try:
                model(x)
            finally:
                handle.remove()
        else:
            model(x)
            if remove:
                handle.remove()
        return seen[0]

    return features


RIGHT["modules.clinic-features"] = {"no hook at all": _features_directly, "the course's": _features_by_course}
WRONG["modules.clinic-features"] = {
    "as it was": (_features(), "Each call registers another hook"),
    "left when it fails": (_features(remove="if all goes well"), "nor does a call that fails"),
    "in a graph": (_features(remove="always", detach=False), "detach() what you keep"),
    "the head's output": (lambda model, x: model(x).detach(), "The output of model.backbone"),
}


class _WithLayer(nn.Module):
    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Dropout(0.5), nn.Linear(n_in, n_out))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class _ByHand(nn.Module):
    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(n_in, n_out)

    def drop(self, x: Tensor) -> Tensor:
        return x * (torch.rand_like(x) < 0.5) / 0.5 if self.training else x

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.drop(x))


class _AsItWas(_ByHand):
    def drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5)


class _Off(_ByHand):
    def drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, training=False)


class _Reversed(_ByHand):
    def drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, training=not self.training)


class _OnScores(_ByHand):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.linear(x), 0.5, self.training)


class _LessDropped(_ByHand):
    def drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.1, self.training)


class _NotScaled(_ByHand):
    def drop(self, x: Tensor) -> Tensor:
        return 0.1 * x * (torch.rand_like(x) < 0.5) if self.training else 10 * x


RIGHT["modules.clinic-dropout"] = {"nn.Dropout": _WithLayer, "by hand": _ByHand}
WRONG["modules.clinic-dropout"] = {
    "as it was": (_AsItWas, "Pass training=self.training"),
    "off in both": (_Off, "Off in both modes is no repair"),
    "the wrong way round": (_Reversed, "Pass training=self.training"),
    "on the scores": (_OnScores, "The dropout stands before the linear layer"),
    "another probability": (_LessDropped, "Dropout of 0.5, once"),
    "another scale": (_NotScaled, "so that the mean stays"),
}


def _cloned(model: nn.Module, train_epoch: Any, n_epochs: int) -> dict[str, Tensor]:
    states = []
    for _ in range(n_epochs):
        loss = train_epoch(model)
        states.append((loss, {k: v.detach().clone() for k, v in model.state_dict().items()}))
    return min(states, key=lambda pair: pair[0])[1]


def _copied_model(model: nn.Module, train_epoch: Any, n_epochs: int) -> dict[str, Tensor]:
    best = None
    for _ in range(n_epochs):
        loss = train_epoch(model)
        if best is None or loss < best[0]:
            best = (loss, copy.deepcopy(model))
    return best[1].state_dict()


def _best(wanted: Any = min, copied: bool = True, epochs: int = 0, back: bool = False) -> Any:
    def best_state(model: nn.Module, train_epoch: Any, n_epochs: int) -> Any:
        states = []
        for _ in range(epochs or n_epochs):
            loss = train_epoch(model)
            states.append((loss, copy.deepcopy(model.state_dict()) if copied else dict(model.state_dict())))
        state = wanted(states, key=lambda pair: pair[0])[1]
        if back:
            model.load_state_dict(state)
        return state

    return best_state


def _parameters_alone(model: nn.Module, train_epoch: Any, n_epochs: int) -> dict[str, Tensor]:
    names = {name for name, _ in model.named_parameters()}
    return {name: value for name, value in _cloned(model, train_epoch, n_epochs).items() if name in names}


RIGHT["modules.clinic-best"] = {"clones": _cloned, "a copied model": _copied_model}
WRONG["modules.clinic-best"] = {
    "as it was": (_best(copied=False), "Copy them: copy.deepcopy"),
    "the largest loss": (_best(wanted=max), "not of the last"),
    "no buffers": (_parameters_alone, "holds parameters and buffers"),
    "stops early": (_best(epochs=2), "Call train_epoch(model) once for each epoch"),
    "loads it back": (_best(back=True), "Don't load it back here"),
    "returns the model": (lambda m, t, n: [t(m) for _ in range(n)] and m, "The state_dict of the best epoch"),
}

TestModules = exercise_tests("modules", RIGHT, WRONG)
