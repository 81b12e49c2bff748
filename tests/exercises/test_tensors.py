"""Lesson 01's exercises: right answers in several forms pass, each wrong one meets its own message."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from course_utils.memory import counting_new_bytes
from tests.exercises.harness import Answers, WrongAnswers, exercise_tests

RIGHT: Answers = {}
WRONG: WrongAnswers = {}


def after(action: Callable[..., object], answer: Callable[..., Any]) -> Callable[..., Any]:
    """Return an answer that first does something to its arguments."""

    def both(*args: Any) -> Any:
        action(*args)
        return answer(*args)

    return both


# --- energy: (N, H, W) uint8 -> (N,) float32 -----------------------------------------------------------------------

RIGHT["tensors.energy"] = {
    "flat": lambda x: (x.flatten(1).to(torch.float32) ** 2).mean(1),
    "in int64, then divided": lambda x: (x.long() * x.long()).sum((1, 2)) / (x.shape[1] * x.shape[2]),
    "einsum": lambda x: torch.einsum("nhw,nhw->n", x.float(), x.float()) / x[0].numel(),
    "one by one": lambda x: torch.stack([image.float().square().mean() for image in x]),
    "a matrix norm": lambda x: torch.linalg.matrix_norm(x.float()) ** 2 / x[0].numel(),
    "through NumPy and back": lambda x: torch.from_numpy((x.numpy().astype("float32") ** 2).mean((1, 2))),
}
WRONG["tensors.energy"] = {
    "squares in uint8": (lambda x: (x * x).float().mean((1, 2)), "20 * 20 became 144"),
    "squares in uint8 with **": (lambda x: (x**2).float().mean((1, 2)), "20 * 20 became 144"),
    "mean of integers": (lambda x: x.square().mean((1, 2)), "mean refuses integers"),
    "over the whole batch": (lambda x: x.float().square().mean(), "Average over the two pixel axes"),
    "over N": (lambda x: x.float().square().mean(0), "not over N"),
    "square of the mean": (lambda x: x.float().mean((1, 2)).square(), "averaged first"),
    "scaled": (lambda x: (x / 255).square().mean((1, 2)), "No scaling"),
    "root": (lambda x: x.float().square().mean((1, 2)).sqrt(), "Leave the root out"),
    "sum": (lambda x: x.float().square().sum((1, 2)), "sum over the pixels"),
    "float64": (lambda x: x.double().square().mean((1, 2)), "twice the memory"),
    "a list": (lambda x: x.float().square().mean((1, 2)).tolist(), "got"),
    "no square": (lambda x: x.float().mean((1, 2)), "Square each pixel"),
    "squares in int16": (lambda x: (x.short() ** 2).float().mean((1, 2)), "Square each pixel"),
    "a NumPy array": (lambda x: (x.numpy().astype("float32") ** 2).mean((1, 2)), "this is a NumPy array"),
    "writes into the images": (
        lambda x: (x.float().square().mean((1, 2)), x.zero_())[0],
        "the images stay as they were",
    ),
}

# --- with-ones: (N, D) -> (N, D + 1) ---------------------------------------------------------------------------------


def _filled(x: Tensor) -> Tensor:
    out = torch.empty(x.shape[0], x.shape[1] + 1, dtype=x.dtype, device=x.device)
    out[:, :-1] = x
    out[:, -1] = 1
    return out


def _in_a_device_block(x: Tensor) -> Tensor:
    with torch.device(x.device):
        return torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)


RIGHT["tensors.with-ones"] = {
    "padded": lambda x: F.pad(x, (0, 1), value=1.0),
    "filled": _filled,
    "ones_like of a slice": lambda x: torch.hstack([x, torch.ones_like(x[:, :1])]),
    "to the power of 0": lambda x: torch.cat([x, x[:, :1] ** 0], 1),
    "inside a device block": _in_a_device_block,
    "dtype and device passed on": lambda x: torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype, device=x.device)], -1),
}
WRONG["tensors.with-ones"] = {
    "always float32": (lambda x: torch.cat([x, torch.ones(len(x), 1, device=x.device)], 1), "joining promotes"),
    "always on the CPU": (lambda x: torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1), "Pass device=x.device"),
    "ones in front": (lambda x: torch.cat([x.new_ones(len(x), 1), x], 1), "The ones came first"),
    "a row of ones": (lambda x: torch.cat([x, x.new_ones(1, x.shape[1])], 0), "Join along axis 1"),
    "zeros": (lambda x: F.pad(x, (0, 1)), "the last column is 1"),
    "x divided by itself": (lambda x: torch.cat([x, x[:, :1] / x[:, :1]], 1), "Don't calculate the ones from x"),
    "0 times x, plus 1": (lambda x: torch.cat([x, x[:, -1:] * 0 + 1], 1), "Don't calculate the ones from x"),
    "always back to the CPU": (
        lambda x: F.pad(x, (0, 1), value=1.0) if x.device.type == "cpu" else torch.ones(len(x), x.shape[1] + 1),
        "on another device",
    ),
}

# --- position --------------------------------------------------------------------------------------------------------


def _walk(x: Tensor, index: tuple[int, ...]) -> int:
    for i in index:
        x = x[i]
    return x.storage_offset()


def _reading_order(x: Tensor, index: tuple[int, ...]) -> int:
    place = 0
    for i, size in zip(index, x.shape, strict=True):
        place = place * size + i
    return place


def _steps(x: Tensor, index: tuple[int, ...]) -> int:
    return sum(i * stride for i, stride in zip(index, x.stride(), strict=True))


RIGHT["tensors.position"] = {
    "asks the element itself": lambda x, index: x[index].storage_offset(),
    "axis by axis": _walk,
    "from addresses": lambda x, index: (x[index].data_ptr() - x.untyped_storage().data_ptr()) // x.element_size(),
    "a dot product": lambda x, index: (
        x.storage_offset() + math.sumprod(index, x.stride())
        if hasattr(math, "sumprod")
        else x.storage_offset() + _steps(x, index)
    ),
}
WRONG["tensors.position"] = {
    "no offset": (_steps, "left out the offset"),
    "reading order": (_reading_order, "place in reading order"),
    "reading order with the offset": (
        lambda x, index: _reading_order(x, index) + x.storage_offset(),
        "place in reading order",
    ),
    "bytes": (lambda x, i: (_steps(x, i) + x.storage_offset()) * x.element_size(), "counted in bytes"),
    "the address": (lambda x, i: x[i].data_ptr(), "finds an element"),
    "addresses over 4": (
        lambda x, i: (x[i].data_ptr() - x.untyped_storage().data_ptr()) // 4,
        "takes 8 bytes",
    ),
    "a NumPy number": (lambda x, i: x.storage_offset() + np.dot(i, x.stride()), "int() makes one"),
    "the value": (lambda x, i: x[i].item(), "finds an element"),
    "a tensor": (lambda x, i: torch.tensor(_steps(x, i) + x.storage_offset()), "got a tensor"),
}

# --- patches: (H, W) -> (H/s, W/s, s, s), a view ---------------------------------------------------------------------


def _by_strides(image: Tensor, s: int) -> Tensor:
    down, across = image.stride()
    shape = (image.shape[0] // s, image.shape[1] // s, s, s)
    return image.as_strided(shape, (s * down, s * across, down, across))


def _split(image: Tensor, s: int) -> Tensor:
    h, w = image.shape
    return image.view(h // s, s, w // s, s)


RIGHT["tensors.patches"] = {
    "unfold twice": lambda x, s: x.unfold(0, s, s).unfold(1, s, s),
    "strides by hand": _by_strides,
    "view and transpose": lambda x, s: _split(x, s).transpose(1, 2),
    "reshape and swapaxes": lambda x, s: x.reshape(x.shape[0] // s, s, -1, s).swapaxes(1, 2),
}
WRONG["tensors.patches"] = {
    "reshape alone": (lambda x, s: x.reshape(x.shape[0] // s, x.shape[1] // s, s, s), "a piece of a line"),
    "view alone": (lambda x, s: x.view(x.shape[0] // s, x.shape[1] // s, s, s), "not merge two"),
    "no permute": (_split, "First the grid of patches"),
    "pixels turned": (lambda x, s: _split(x, s).permute(0, 2, 3, 1), "Each patch is transposed"),
    "grid turned": (lambda x, s: _split(x, s).permute(2, 0, 1, 3), "First the grid of patches"),
    "a copy": (lambda x, s: _split(x, s).transpose(1, 2).contiguous(), "nothing has to be copied"),
    "a list of patches": (lambda x, s: [p for row in x.split(s) for p in row.split(s, 1)], "got a list"),
    "writes into the image": (lambda x, s: _split(x.mul_(1), s).transpose(1, 2).mul_(2), "square cut"),
}

# --- windows: (T,) -> (T - size + 1, size), a view -------------------------------------------------------------------


def _windows(x: Tensor, size: int, *, stride: int | None = None, **offset: int) -> Tensor:
    step = x.stride(0) if stride is None else stride
    return x.as_strided((len(x) - size + 1, size), (step, step), **offset)


RIGHT["tensors.windows"] = {
    "strides by hand": _windows,
    "NumPy's windows on the same memory": lambda x, size: torch.from_numpy(
        np.lib.stride_tricks.sliding_window_view(x.numpy(), size, writeable=True)
    ),
    "the other axis unfolded": lambda x, size: x.unfold(0, len(x) - size + 1, 1).t(),
    "unfold along the last axis": lambda x, size: x.unfold(-1, size, 1),
    "torch.as_strided with its offset": lambda x, size: torch.as_strided(
        x, (x.numel() - size + 1, size), x.stride() * 2, x.storage_offset()
    ),
}
WRONG["tensors.windows"] = {
    "stacked copies": (
        lambda x, size: torch.stack([x[i : i + size] for i in range(len(x) - size + 1)]),
        "nothing has to be copied",
    ),
    "stride 1 assumed": (lambda x, size: _windows(x, size, stride=1), "You took a step of 1"),
    "offset 0": (lambda x, size: _windows(x, size, storage_offset=0), "keep its offset"),
    "one window too few": (lambda x, size: x.unfold(0, size, 1)[:-1], "The last window starts"),
    "windows side by side": (lambda x, size: x.unfold(0, size, size), "The last window starts"),
    "turned": (lambda x, size: x.unfold(0, size, 1).t(), "T - size + 1 windows"),
    "contiguous at the end": (lambda x, size: x.unfold(0, size, 1).contiguous(), "nothing has to be copied"),
    "copies a series with gaps": (lambda x, size: x.contiguous().unfold(0, size, 1), "nothing has to be copied"),
}

# --- needs-copy: a bool ----------------------------------------------------------------------------------------------


def _tries_view(x: Tensor) -> bool:
    try:
        x.view(-1)
    except RuntimeError:
        return True
    return False


def _merges(x: Tensor) -> bool:
    axes = [(n, s) for n, s in zip(x.shape, x.stride(), strict=True) if n > 1]
    return not all(outer == n * inner for (_, outer), (n, inner) in pairwise(axes))


def _new_bytes(x: Tensor) -> bool:
    with counting_new_bytes() as new:
        x.reshape(-1)
    return new.total > 0


def _gap(x: Tensor) -> bool:
    return not all(s == n * t for (_, s), (n, t) in pairwise(zip(x.shape, x.stride(), strict=True)))


RIGHT["tensors.needs-copy"] = {
    "tries view": _tries_view,
    "merges axes": _merges,
    "counts the new bytes": _new_bytes,
    "compares addresses": lambda x: x.reshape(-1).data_ptr() != x.data_ptr(),
    "asks whether it is a view": lambda x: x.reshape(-1).untyped_storage().data_ptr() != x.untyped_storage().data_ptr(),
}
WRONG["tensors.needs-copy"] = {
    "not contiguous": (lambda x: not x.is_contiguous(), "asks for more than is needed"),
    "never": (lambda x: False, "is right about a transposed matrix"),
    "always": (lambda x: True, "is right about a contiguous tensor"),
    "contiguous": (lambda x: x.is_contiguous(), "is right about a contiguous tensor"),
    "last stride is not 1": (lambda x: x.stride(-1) != 1, "asks for more than is needed"),
    "forgets axes of length 1": (_gap, "An axis of length 1 is never stepped along"),
    "only looks for sorted strides": (
        lambda x: list(x.stride()) != sorted(x.stride(), reverse=True),
        "there is a gap",
    ),
    "a number": (lambda x: int(_tries_view(x)), "Return a Python bool"),
    "a tensor": (lambda x: torch.tensor(_tries_view(x)), "Return a Python bool"),
    "raises": (lambda x: x.view(-1) is None, "RuntimeError"),
}

# --- snapshot --------------------------------------------------------------------------------------------------------


def _copied(weight: Tensor) -> Tensor:
    copy = torch.empty_like(weight, requires_grad=False)
    with torch.no_grad():
        copy.copy_(weight)
    return copy


RIGHT["tensors.snapshot"] = {
    "clone first": lambda w: w.clone().detach(),
    "from numbers": lambda w: torch.tensor(w.tolist(), dtype=w.dtype),
    "through NumPy": lambda w: torch.tensor(w.detach().numpy()),
    "copied into a new one": _copied,
    "to with copy": lambda w: w.detach().to(w.device, copy=True),
}
WRONG["tensors.snapshot"] = {
    "detach only": (lambda w: w.detach(), "detach() gives a view"),
    "clone only": (lambda w: w.clone(), "clone() alone is part of the graph"),
    "the weight itself": (lambda w: w, "has a storage of its own"),
    "cpu as a copy": (lambda w: w.detach().cpu(), "detach() gives a view"),
    "data": (lambda w: w.data, "detach() gives a view"),
    "numpy at once": (lambda w: torch.from_numpy(w.numpy()), "Detach first"),
    "numpy shares": (lambda w: torch.from_numpy(w.detach().numpy()), "detach() gives a view"),
    "a list": (lambda w: w.tolist(), "Not a list"),
    "another dtype": (lambda w: w.detach().float(), "float64 came in"),
    "ends the training": (lambda w: w.detach_().clone(), "leaves the original in training"),
    "freezes the weight": (lambda w: w.requires_grad_(False).clone(), "leaves the original in training"),
}

# --- moving-average --------------------------------------------------------------------------------------------------


def _out_argument(average: Tensor, value: Tensor, decay: float) -> None:
    torch.add(average * decay, value, alpha=1 - decay, out=average)


def _operators(average: Tensor, value: Tensor, decay: float) -> None:
    average *= decay
    average += (1 - decay) * value


def _rebinds(average: Tensor, value: Tensor, decay: float) -> Tensor:
    average = decay * average + (1 - decay) * value
    return average


RIGHT["tensors.moving-average"] = {
    "lerp_": lambda a, v, d: a.lerp_(v, 1 - d),
    "copy_": lambda a, v, d: a.copy_(d * a + (1 - d) * v),
    "index assignment": lambda a, v, d: a.__setitem__(..., d * a + (1 - d) * v),
    "augmented assignment": _operators,
    "out=": _out_argument,
}
WRONG["tensors.moving-average"] = {
    "a new tensor": (lambda a, v, d: d * a + (1 - d) * v, "binds a local name"),
    "a new tensor, old name": (_rebinds, "binds a local name"),
    "swapped": (lambda a, v, d: a.copy_((1 - d) * a + d * v), "The weights are swapped"),
    "value without weight": (lambda a, v, d: a.mul_(d).add_(v), "needs its weight too"),
    "adds first": (lambda a, v, d: a.add_(v, alpha=1 - d).mul_(d), "added first"),
    "writes into the value": (lambda a, v, d: a.mul_(d).add_(v.mul_(1 - d)), "wrote into the value"),
    "keeps the value only": (lambda a, v, d: a.copy_(v), "mul_ and then add_"),
    "another memory by .data": (lambda a, v, d: setattr(a, "data", d * a + (1 - d) * v), "got another memory"),
    "another memory by set_": (lambda a, v, d: a.set_(d * a + (1 - d) * v), "got another memory"),
    "tramples on the neighbours": (
        lambda a, v, d: (
            (a.copy_(d * a + (1 - d) * v), a._base.mul_(1.0).add_(0))[0]
            if a._base is None
            else (a.copy_(d * a + (1 - d) * v), a._base[:, 1::2].zero_())[0]
        ),
        "neighbours",
    ),
}

# --- distances -------------------------------------------------------------------------------------------------------


def _loops(a: Tensor, b: Tensor) -> Tensor:
    return torch.stack([torch.linalg.vector_norm(row - b, dim=1) for row in a])


RIGHT["tensors.distances"] = {
    "PyTorch's own": torch.cdist,
    "unsqueeze and norm": lambda a, b: torch.linalg.vector_norm(a.unsqueeze(1) - b.unsqueeze(0), dim=-1),
    "from products": lambda a, b: (a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.t()).clamp(min=0).sqrt(),
    "a loop over rows": _loops,
}
WRONG["tensors.distances"] = {
    "transposed": (lambda a, b: torch.cdist(b, a), "every a against every b"),
    "no new axes": (lambda a, b: (a - b).square().sum(1).sqrt(), "don't line up"),
    "root of less than 0": (
        lambda a, b: (a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.t() - 1e-9).sqrt(),
        "clamp(min=0)",
    ),
    "squared": (lambda a, b: torch.cdist(a, b).square(), "The root is missing"),
    "absolute": (lambda a, b: torch.cdist(a, b, p=1), "adds up absolute differences"),
    "mean": (lambda a, b: (a[:, None] - b).square().mean(2).sqrt(), "averaged over D"),
    "cancels": (lambda a, b: (a[:, None] - b).sum(2).abs(), "cancel when added"),
    "sums over the wrong axis": (lambda a, b: (a[:, None] - b).square().sum(1).sqrt(), "every a against every b"),
    "keeps D": (lambda a, b: (a[:, None] - b).abs(), "every a against every b"),
}

# --- best ------------------------------------------------------------------------------------------------------------


def _from_list(scores: Tensor) -> tuple[int, float]:
    values = scores.tolist()
    return max(range(len(values)), key=values.__getitem__), max(values)


def _from_max(scores: Tensor) -> tuple[int, float]:
    value, index = scores.max(0)
    return int(index), float(value)


RIGHT["tensors.best"] = {
    "a list": _from_list,
    "max": _from_max,
    "a pair as a list": lambda s: [s.argmax().item(), s.max().item()],
    "topk": lambda s: (s.topk(1).indices.item(), s.topk(1).values.item()),
    "sorted": lambda s: (s.argsort(descending=True)[0].item(), s.sort()[0][-1].item()),
}
WRONG["tensors.best"] = {
    "tensors": (lambda s: (s.argmax(), s.max()), "the class is a Python int"),
    "swapped": (lambda s: (s.max().item(), s.argmax().item()), "The class comes first"),
    "rounded for display": (lambda s: (s.argmax().item(), round(s.max().item(), 3)), "as it came in, unchanged"),
    "score a tensor": (lambda s: (s.argmax().item(), s.max()), "keeps the whole graph"),
    "a detached tensor": (lambda s: (s.argmax().item(), s.max().detach()), "the score is a Python float"),
    "class as a float": (lambda s: (float(s.argmax()), s.max().item()), "the class is a Python int"),
    "the lowest": (lambda s: (s.argmin().item(), s.min().item()), "That is the lowest score"),
    "a probability": (lambda s: (s.argmax().item(), s.softmax(0).max().item()), "That is a probability"),
    "only the class": (lambda s: s.argmax().item(), "return label, score"),
    "numpy": (lambda s: (s.numpy().argmax(), s.numpy().max()), "requires grad"),
    "numpy numbers": (
        lambda s: (s.detach().numpy().argmax(), s.detach().numpy().max()),
        "the class is a Python int",
    ),
    "largest absolute value": (
        lambda s: (s.argmax().item(), s.abs().max().item()) if s.requires_grad is False else _from_max(s),
        "highest of negative scores",
    ),
}

# --- clinic-channels -------------------------------------------------------------------------------------------------

RIGHT["tensors.clinic-channels"] = {
    "movedim": lambda x: x.movedim(-1, 1),
    "two transposes": lambda x: x.transpose(2, 3).transpose(1, 2),
    "einsum": lambda x: torch.einsum("nhwc->nchw", x),
    "stacked channels": lambda x: torch.stack(x.unbind(-1), 1),
    "contiguous": lambda x: x.permute(0, 3, 1, 2).contiguous(),
}
WRONG["tensors.clinic-channels"] = {
    "still reshape": (lambda x: x.reshape(x.shape[0], x.shape[3], *x.shape[1:3]), "Did the axes move at all"),
    "view": (lambda x: x.view(x.shape[0], x.shape[3], *x.shape[1:3]), "Did the axes move at all"),
    "transposed": (lambda x: x.transpose(1, 3), "lie on their side"),
    "unchanged": (lambda x: x, "becomes (N, C, H, W)"),
    "batch last": (lambda x: x.permute(3, 1, 2, 0), "becomes (N, C, H, W)"),
    "float": (lambda x: x.permute(0, 3, 1, 2).float(), "the dtype stays uint8"),
    "permuted, then reshaped": (
        lambda x: x.permute(0, 3, 2, 1).reshape(x.shape[0], x.shape[3], *x.shape[1:3]),
        "channel c of the result",
    ),
}

# --- clinic-loss -----------------------------------------------------------------------------------------------------

RIGHT["tensors.clinic-loss"] = {
    "a row against a row": lambda o, y: (o.t() - y).square().mean(),
    "mse_loss": lambda o, y: F.mse_loss(o.squeeze(1), y),
    "labels get an axis": lambda o, y: ((o - y.unsqueeze(1)) ** 2).mean(),
    "flatten": lambda o, y: (o.flatten() - y.flatten()).square().mean(),
    "view_as": lambda o, y: (o - y.view_as(o)).pow(2).sum() / len(y),
}
WRONG["tensors.clinic-loss"] = {
    "unchanged": (lambda o, y: (o - y).square().mean(), "every prediction with every label"),
    "mse_loss alone": (lambda o, y: F.mse_loss(o, y), "every prediction with every label"),
    "transposed labels": (lambda o, y: (o.t() - y[:, None]).square().mean(), "every prediction with every label"),
    "sum": (lambda o, y: (o.squeeze(1) - y).square().sum(), "The mean was asked for"),
    "square of the mean": (lambda o, y: (o.squeeze(1) - y).mean().square(), "averaged first"),
    "absolute": (lambda o, y: (o.squeeze(1) - y).abs().mean(), "the square is missing"),
    "a number": (lambda o, y: (o.squeeze(1) - y).square().mean().item(), "got 0.0"),
    "detached": (lambda o, y: (o.detach().squeeze(1) - y).square().mean(), "cut the graph"),
    "per example": (lambda o, y: (o.squeeze(1) - y).square(), "got shape"),
}

# --- clinic-rows -----------------------------------------------------------------------------------------------------


def _in_place(x: Tensor) -> Tensor:
    x -= x.mean(1, keepdim=True)
    return x


RIGHT["tensors.clinic-rows"] = {
    "an axis inserted": lambda x: x - x.mean(1)[:, None],
    "transposed twice": lambda x: (x.t() - x.mean(1)).t(),
    "sum over count": lambda x: x - x.sum(-1, keepdim=True) / x.shape[-1],
    "row by row": lambda x: torch.stack([row - row.mean() for row in x]),
}
WRONG["tensors.clinic-rows"] = {
    "unchanged": (lambda x: x - x.mean(1), "the mean of row j"),
    "columns": (lambda x: x - x.mean(0), "means of the columns"),
    "columns, kept": (lambda x: x - x.mean(0, keepdim=True), "means of the columns"),
    "everything": (lambda x: x - x.mean(), "Each row has its own"),
    "standardised": (
        lambda x: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True),
        "also divided",
    ),
    "in place": (_in_place, "writes into the caller's tensor"),
    "square only": (lambda x: x - x.mean(1).expand(len(x), len(x)).t(), "must match the size"),
}

# --- clinic-darker ---------------------------------------------------------------------------------------------------


def _clone_then_scale(images: Tensor, index: int) -> Tensor:
    image = images[index].clone()
    image *= 0.5
    return image


def _scales_the_data(images: Tensor, index: int) -> Tensor:
    images *= 0.5
    return images[index].clone()


RIGHT["tensors.clinic-darker"] = {
    "clone": _clone_then_scale,
    "division": lambda x, i: x[i] / 2,
    "a list index copies": lambda x, i: x[[i]].mul_(0.5)[0],
    "torch.mul": lambda x, i: torch.mul(x[i], 0.5),
}
WRONG["tensors.clinic-darker"] = {
    "mul_": (lambda x, i: x[i].mul_(0.5), "Does images[index] copy"),
    "clone afterwards": (lambda x, i: x[i].mul_(0.5).clone(), "Does images[index] copy"),
    "scales everything": (_scales_the_data, "the data set is as it was"),
    "detach is no copy": (lambda x, i: x[i].detach().mul_(0.5), "Does images[index] copy"),
    "not darker": (lambda x, i: x[i].clone(), "half as bright"),
    "all images": (lambda x, i: x * 0.5, "returns one image"),
    "puts it back afterwards": (
        lambda x, i: (x[i].mul_(0.5).clone(), x[i].mul_(2.0))[0] if x.sum() < 0 else x[i : i + 1] * 0.5,
        "returns one image",
    ),
}

# --- clinic-onehot ---------------------------------------------------------------------------------------------------


def _filled_row_by_row(rows: Tensor, labels: Tensor) -> Tensor:
    for i, label in enumerate(labels.tolist()):
        rows[i, label] = 1.0
    return rows


RIGHT["tensors.clinic-onehot"] = {
    "zeros": lambda y, c: _filled_row_by_row(torch.zeros(len(y), c), y),
    "clone of the expanded": lambda y, c: _filled_row_by_row(torch.zeros(1, c).expand(len(y), c).clone(), y),
    "repeat copies": lambda y, c: _filled_row_by_row(torch.zeros(1, c).repeat(len(y), 1), y),
    "PyTorch's own": lambda y, c: F.one_hot(y, c).float(),
    "rows of the identity": lambda y, c: torch.eye(c)[y],
    "compared": lambda y, c: (y[:, None] == torch.arange(c)).float(),
}
WRONG["tensors.clinic-onehot"] = {
    "unchanged": (
        lambda y, c: _filled_row_by_row(torch.zeros(1, c).expand(len(y), c), y),
        "How many rows of memory are there",
    ),
    "expand_as": (
        lambda y, c: _filled_row_by_row(torch.zeros(c).expand(len(y), c), y),
        "How many rows of memory are there",
    ),
    "clone too late": (
        lambda y, c: _filled_row_by_row(torch.zeros(1, c).expand(len(y), c), y).clone(),
        "How many rows of memory are there",
    ),
    "int64": (lambda y, c: F.one_hot(y, c), "wants float32"),
    "transposed": (lambda y, c: torch.eye(c)[:, y], "has a row per label"),
    "as many classes as labels show, plus one": (
        lambda y, c: F.one_hot(y, int(y.max()) + 2).float(),
        "a column per class",
    ),
    "as many classes as labels show": (lambda y, c: F.one_hot(y).float(), "whatever labels this batch"),
    "all zeros": (lambda y, c: torch.zeros(len(y), c), "row i has a single 1"),
}

# --- clinic-prepare --------------------------------------------------------------------------------------------------


def _tensors(features: Any, labels: Any) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(features), torch.from_numpy(labels)


def _dropped(features: Any, labels: Any, device: str) -> tuple[Tensor, Tensor]:
    x, y = _tensors(features, labels)
    x.float(), y.long(), x.to(device), y.to(device)
    return x, y


def _scaled(features: Any, labels: Any, device: str) -> tuple[Tensor, Tensor]:
    features /= 2
    return torch.tensor(features, dtype=torch.float32).to(device) * 2, torch.tensor(labels).long().to(device)


RIGHT["tensors.clinic-prepare"] = {
    "step by step": lambda f, t, d: (torch.from_numpy(f).float().to(d), torch.from_numpy(t).long().to(d)),
    "torch.tensor": lambda f, t, d: (
        torch.tensor(f, dtype=torch.float32, device=d),
        torch.tensor(t, dtype=torch.int64, device=d),
    ),
    "as_tensor": lambda f, t, d: (
        torch.as_tensor(f, dtype=torch.float32, device=d),
        torch.as_tensor(t, dtype=torch.long, device=d),
    ),
    "converted by NumPy": lambda f, t, d: tuple(
        torch.from_numpy(a).to(d) for a in (f.astype("float32"), t.astype("int64"))
    ),
}
WRONG["tensors.clinic-prepare"] = {
    "unchanged": (_dropped, "what does it return"),
    "float kept, long dropped": (lambda f, t, d: (torch.from_numpy(f).float().to(d), torch.from_numpy(t)), "int64"),
    "device dropped": (
        lambda f, t, d: (torch.from_numpy(f).float(), torch.from_numpy(t).long()),
        "where did it go",
    ),
    "labels stay behind": (
        lambda f, t, d: (torch.from_numpy(f).float().to(d), torch.from_numpy(t).long()),
        "labels have to move as well",
    ),
    "float labels": (lambda f, t, d: tuple(a.float().to(d) for a in _tensors(f, t)), "int64"),
    "whole features": (lambda f, t, d: tuple(a.long().to(d) for a in _tensors(f, t)), "float32"),
    "half precision": (
        lambda f, t, d: (torch.from_numpy(f).half().to(d), torch.from_numpy(t).long().to(d)),
        "the features are float32",
    ),
    "rounded on the way": (
        lambda f, t, d: (torch.from_numpy(f).long().float().to(d), torch.from_numpy(t).long().to(d)),
        "the features hold the same values",
    ),
    "writes into the arrays": (_scaled, "the arrays are as they were"),
    "features only": (lambda f, t, d: torch.from_numpy(f).float().to(d), "return x, y"),
}

TestTensors = exercise_tests("tensors", RIGHT, WRONG)
