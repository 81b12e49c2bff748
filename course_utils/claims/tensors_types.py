"""Lesson 01, the part about dtypes and devices: what is converted, what is moved, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_utils.claims.evidence import WORKS, attempt
from course_utils.claims.ledger import Evidence, Page
from course_utils.claims.verdicts import CAVEAT, FALSE, NEEDS_CUDA, OPINION, OUTDATED, TRUE

PAGE = Page("tensors")
PROMOTION = "tensor_attributes.html#type-promotion-doc"


def dtype_or_error(action: Callable[[], Tensor]) -> str:
    """Return the dtype of what the action makes, ``torch.float32``, or its error."""
    results: list[Tensor] = []
    seen = attempt(lambda: results.append(action()))
    return str(results[0].dtype) if results else seen


# --- What a tensor is and carries ------------------------------------------------------------------------------------


@PAGE.claim(
    "T001",
    "A tensor is a multi-dimensional array that automatically tracks its operations and can be computed on a GPU.",
    rule=lambda seen: (
        FALSE if not seen["tracked, requires_grad=True"] else TRUE if seen["tracked, as created"] else CAVEAT
    ),
    right="Operations are tracked only where an input has requires_grad=True, which is not the default and which "
    "integer tensors refuse.",
    page="notes/autograd.html",
)
def tracking_of_a_new_tensor() -> Evidence:
    plain, wanted = torch.ones(2, 3), torch.ones(2, 3, requires_grad=True)
    return {
        "tracked, as created": (plain * 2).grad_fn is not None,
        "tracked, requires_grad=True": (wanted * 2).grad_fn is not None,
        "integers with requires_grad=True": attempt(lambda: torch.tensor([1, 2], requires_grad=True)),
    }


@PAGE.claim(
    "T010",
    "A tensor carries dtype, device, layout, requires_grad and grad_fn metadata in addition to its values, "
    "unlike a NumPy array.",
    rule=lambda seen: (
        FALSE if seen["tensor has"] != "dtype device layout requires_grad grad_fn"
        else CAVEAT if seen["NumPy array has"]
        else TRUE
    ),
    right="A NumPy array has a dtype too, and since NumPy 2.0 a device, which is always the CPU. Layout, requires_grad "
    "and grad_fn are the tensor's alone.",
    page="tensor_attributes.html",
)  # fmt: skip
def attributes_of_a_tensor_and_an_array() -> Evidence:
    names = ("dtype", "device", "layout", "requires_grad", "grad_fn")
    array = np.zeros(2)
    return {
        "tensor has": " ".join(name for name in names if hasattr(torch.zeros(2), name)),
        "NumPy array has": " ".join(name for name in names if hasattr(array, name)),
    }


@PAGE.claim(
    "T003",
    "Data that you feed to a model should be created with an explicit requires_grad=False.",
    rule=lambda seen: TRUE if any(seen.values()) else OPINION,
    right="False is the default of every way to make a tensor, so writing it out changes nothing; whether it helps "
    "readers is a matter of taste.",
    page="generated/torch.tensor.html",
)
def default_of_requires_grad() -> Evidence:
    made = {
        "torch.tensor": torch.tensor([1.0]),
        "torch.rand": torch.rand(2),
        "torch.from_numpy": torch.from_numpy(np.ones(2)),
        "stacked": torch.stack([torch.ones(2), torch.ones(2)]),
    }
    return {f"{how} requires grad": tensor.requires_grad for how, tensor in made.items()}


# --- dtypes ----------------------------------------------------------------------------------------------------------


@PAGE.claim(
    "T011",
    "Multiplying an integer tensor by a floating-point model parameter raises a dtype error instead of converting "
    "silently.",
    rule=lambda seen: OUTDATED if seen["int64 * float32 parameter"] == "torch.float32" else TRUE,
    right="Since PyTorch 1.3 element-wise arithmetic promotes int64 to float32 without a word; products of matrices "
    "and convolutions still demand one dtype.",
    page=PROMOTION,
)
@PAGE.claim(
    "T012",
    "NumPy promotes dtypes implicitly while PyTorch does not, which makes PyTorch errors easier to debug.",
    rule=lambda seen: (
        FALSE if "Error" in seen["NumPy: int64 * float32"]
        else TRUE if "Error" in seen["int64 * float32 parameter"]
        else OUTDATED
    ),
    right="Since PyTorch 1.3 element-wise arithmetic promotes too, by rules of its own: int64 with float32 gives "
    "float32, where NumPy gives float64. Products of matrices and convolutions demand one dtype.",
    page=PROMOTION,
)  # fmt: skip
def an_integer_tensor_meets_a_parameter() -> Evidence:
    numbers, weight = torch.arange(3), nn.Parameter(torch.ones(3))
    return {
        "int64 * float32 parameter": dtype_or_error(lambda: numbers * weight),
        "int64 @ float32 parameter": dtype_or_error(lambda: numbers @ weight),
        "NumPy: int64 * float32": str((np.arange(3, dtype=np.int64) * np.ones(3, np.float32)).dtype),
    }


@PAGE.claim(
    "T013",
    "torch.tensor([1,2,3]) infers an integer dtype (int64) rather than a float dtype.",
    rule=lambda seen: TRUE if seen["torch.tensor([1, 2, 3])"] == "torch.int64" else FALSE,
    right="This version infers another dtype.",
    page="generated/torch.tensor.html",
)
@PAGE.claim(
    "T014",
    "Tensors that take part in gradient computation should be given an explicit floating dtype such as float32.",
    rule=lambda seen: OPINION if seen["torch.tensor([1.0, 2.0]) with requires_grad"] == WORKS else TRUE,
    right="It must be floating or complex, but one decimal point is enough: torch.tensor([1.0]) gets the default "
    "dtype. Whether to spell it out depends on where the values come from; NumPy's are float64.",
    page="generated/torch.get_default_dtype.html",
)
def inferred_dtypes() -> Evidence:
    return {
        "torch.tensor([1, 2, 3])": str(torch.tensor([1, 2, 3]).dtype),
        "torch.tensor([1.0, 2.0])": str(torch.tensor([1.0, 2.0]).dtype),
        "torch.tensor([1, 2]) with requires_grad": attempt(lambda: torch.tensor([1, 2], requires_grad=True)),
        "torch.tensor([1.0, 2.0]) with requires_grad": attempt(lambda: torch.tensor([1.0, 2.0], requires_grad=True)),
    }


@PAGE.claim(
    "T031",
    "PyTorch's default floating dtype is float32, while NumPy data is usually float64 and from_numpy keeps float64.",
    rule=lambda seen: (
        TRUE if tuple(seen.values()) == ("torch.float32", "float64", "torch.float64") else FALSE
    ),
    right="This version has other defaults.",
    page="generated/torch.from_numpy.html",
)  # fmt: skip
def default_dtypes() -> Evidence:
    array = np.ones(2)
    return {
        "torch.ones": str(torch.ones(2).dtype),
        "np.ones": str(array.dtype),
        "from_numpy of it": str(torch.from_numpy(array).dtype),
    }


@PAGE.claim(
    "T032",
    "Feeding float64 input to a float32 model raises a dtype error.",
    rule=lambda seen: _refusals(seen, "float64"),
    right="Some layers of this version convert their input.",
    page="generated/torch.nn.Module.html",
)
@PAGE.claim(
    "T034",
    "Passing an int64 tensor to a conv or linear layer usually raises nothing and is silently converted, losing "
    "precision.",
    rule=lambda seen: {TRUE: FALSE, FALSE: TRUE}.get(_refusals(seen, "int64"), CAVEAT),
    right="Both raise an error that names the two dtypes: convert yourself, with .float().",
    page="generated/torch.nn.Linear.html",
)
def other_dtypes_into_float32_layers() -> Evidence:
    layers = {"Linear": (nn.Linear(3, 2), (5, 3)), "Conv1d": (nn.Conv1d(3, 2, 1), (5, 3, 4))}
    return {
        f"{name} on {kind}": attempt(partial(layer, torch.ones(shape, dtype=getattr(torch, kind))))
        for name, (layer, shape) in layers.items()
        for kind in ("float64", "int64")
    }


def _refusals(seen: Evidence, kind: str) -> str:
    """Return ``true`` if all layers refuse a dtype, ``false`` if none does, ``caveat`` in between."""
    refused = [value != WORKS for name, value in seen.items() if name.endswith(kind)]
    return TRUE if all(refused) else CAVEAT if any(refused) else FALSE


@PAGE.claim(
    "T033",
    "Operations between a float64 data tensor and float32 model weights raise an error.",
    rule=lambda seen: (
        TRUE if all("Error" in text for text in seen.values())
        else CAVEAT if any("Error" in text for text in seen.values())
        else FALSE
    ),
    right="Products of matrices and convolutions do. Element-wise arithmetic promotes to float64 and says nothing, "
    "and what comes after it is float64 as well.",
    page=PROMOTION,
)  # fmt: skip
def float64_data_and_float32_weights() -> Evidence:
    data, weight = torch.ones(3, dtype=torch.float64), nn.Parameter(torch.ones(3))
    return {
        "data @ weight": dtype_or_error(lambda: data @ weight),
        "data * weight": dtype_or_error(lambda: data * weight),
        "data + weight": dtype_or_error(lambda: data + weight),
    }


@PAGE.claim(
    "T035",
    "Low-level layers such as conv and linear only accept float32 or float16.",
    rule=lambda seen: FALSE if {"float64", "bfloat16", "complex64"} & {
        name.split()[-1] for name, text in seen.items() if text == WORKS
    } else TRUE,
    right="float64, bfloat16 and complex64 work as well, as long as input and weights have the same dtype.",
    page="generated/torch.nn.functional.linear.html",
)  # fmt: skip
def dtypes_that_layers_accept() -> Evidence:
    seen: dict[str, str] = {}
    for kind in ("float32", "float16", "bfloat16", "float64", "complex64"):
        dtype = getattr(torch, kind)
        x, weight = torch.ones(5, 3, 4, dtype=dtype), torch.ones(2, 3, 1, dtype=dtype)
        seen[f"conv1d with {kind}"] = attempt(partial(F.conv1d, x, weight))
        seen[f"linear with {kind}"] = attempt(partial(F.linear, x[:, :, 0], weight[:, :, 0]))
    return seen


# --- Devices ---------------------------------------------------------------------------------------------------------


def far_device() -> torch.device:
    """Return a device other than the CPU: CUDA, or meta, which everybody has and which holds shapes without values."""
    return torch.device("cuda" if torch.cuda.is_available() else "meta")


@PAGE.claim(
    "T002",
    "Tensors on different devices cannot be combined in one operation; it raises a RuntimeError ('Expected all "
    "tensors to be on the same device').",
    rule=lambda seen: FALSE if seen["matrix + matrix"] == WORKS else CAVEAT if WORKS in seen.values() else TRUE,
    right="A CPU tensor of shape () may meet any device, and a CPU tensor of indices may index any; all else must be "
    "on one device.",
    page="notes/cuda.html",
)
@PAGE.claim(
    "T018",
    "PyTorch never moves data between CPU and GPU implicitly; device placement is explicit.",
    rule=lambda seen: FALSE if WORKS in (seen["shape () on the CPU + matrix"], seen["matrix[indices on the CPU]"])
    else TRUE,
    right="It does so for CPU tensors of shape () in arithmetic and for CPU tensors of indices. Every other move is "
    "written out.",
    page="notes/cuda.html",
)  # fmt: skip
def two_devices_in_one_operation() -> Evidence:
    here, far = torch.ones(3, 3), torch.ones(3, 3, device=far_device())
    indices = torch.tensor([0, 2])
    return {
        "the other device": far.device.type,
        "matrix + matrix": attempt(lambda: here + far),
        "shape () on the CPU + matrix": attempt(lambda: torch.tensor(2.0) + far),
        "matrix[indices on the CPU]": attempt(lambda: far[indices]),
    }


@PAGE.claim(
    "T007",
    "CPU data that was not manually moved to the GPU makes training very slow without any obvious reason.",
    rule=lambda seen: TRUE if seen["a model there, data on the CPU"] == WORKS else FALSE,
    right="A model on the GPU refuses data on the CPU with an error. Slow and silent is the other case: the model was "
    "not moved either.",
    page="notes/cuda.html",
)
def a_model_on_another_device() -> Evidence:
    far = far_device()
    return {
        "the other device": far.type,
        "a model there, data on the CPU": attempt(lambda: nn.Linear(3, 2, device=far)(torch.ones(5, 3))),
        "both there": attempt(lambda: nn.Linear(3, 2, device=far)(torch.ones(5, 3, device=far))),
    }


@PAGE.claim(
    "T006",
    "tensor.to(device) copies or migrates the data in place to the given device.",
    rule=lambda seen: FALSE if seen["x is on, after x.to(other)"] == "cpu" else TRUE,
    right="Tensor.to returns a tensor and leaves x where it was: write x = x.to(device). Only Module.to works in "
    "place.",
    page="generated/torch.Tensor.to.html",
)
@PAGE.claim(
    "T017",
    "Tensor.to(device) returns a copy on the target device and leaves the original tensor unchanged.",
    rule=lambda seen: (
        FALSE if seen["x is on, after x.to(other)"] != "cpu" else CAVEAT if seen["x.to('cpu') is x"] else TRUE
    ),
    right="Where the tensor has that device and dtype already, it returns the tensor itself, and an in-place change "
    "of the result is a change of the original.",
    page="generated/torch.Tensor.to.html",
)
def to_another_and_to_the_same_device() -> Evidence:
    x = torch.ones(2)
    moved = x.to(far_device())
    return {
        "x is on, after x.to(other)": x.device.type,
        "the result is on": moved.device.type,
        "x.to('cpu') is x": x.to("cpu") is x,
    }


@PAGE.claim(
    "T015",
    "The device-mismatch error message tells you which devices the operands are on, so you can simply follow it.",
    rule=lambda seen: (
        NEEDS_CUDA if seen["the other device"] != "cuda"
        else TRUE if all(_names_both(text) for text in list(seen.values())[1:])
        else CAVEAT
    ),
    right="Most messages name two devices, though not which of your variables is where; others name tensor types, or "
    "where one operand is and where it was expected.",
    page="notes/cuda.html",
    varies=True,
)  # fmt: skip
def messages_about_devices() -> Evidence:
    far = far_device()
    images = torch.ones(1, 3, 8, 8)
    return {
        "the other device": far.type,
        "add": attempt(lambda: images + images.to(far)),
        "linear layer": attempt(lambda: nn.Linear(8, 2, device=far)(images)),
        "convolution": attempt(lambda: nn.Conv2d(3, 2, 3, device=far)(images)),
    }


def _names_both(text: str) -> bool:
    return "cpu" in text and "cuda" in text


@PAGE.claim(
    "T030",
    "A CUDA tensor must be moved with .cpu() before .numpy(), while .item() works on a CUDA scalar directly.",
    rule=lambda seen: (
        NEEDS_CUDA if seen["the other device"] != "cuda"
        else FALSE if seen[".item()"] != WORKS or seen[".numpy()"] == WORKS
        else CAVEAT if seen[".numpy(force=True)"] == WORKS
        else TRUE
    ),
    right=".numpy() alone refuses, and .item() works as said; .numpy(force=True) copies to the CPU itself.",
    page="generated/torch.Tensor.numpy.html",
    varies=True,
)  # fmt: skip
def from_another_device_to_numpy() -> Evidence:
    x = torch.ones(1, device=far_device())
    return {
        "the other device": x.device.type,
        ".numpy()": attempt(lambda: x.numpy()),
        ".item()": attempt(lambda: x.item()),
        ".numpy(force=True)": attempt(lambda: x.numpy(force=True)),
    }


@PAGE.claim(
    "T016",
    "A factory call such as torch.randn(3,4) without device= is always placed on the CPU.",
    rule=lambda seen: TRUE if seen["the same in a block `with torch.device('meta')`"] else FALSE,
    right="It goes to the default device. That is the CPU until torch.set_default_device or a block `with "
    "torch.device(...)` says otherwise.",
    page="generated/torch.set_default_device.html",
)
def factory_calls_without_a_device() -> Evidence:
    with torch.device("meta"):
        inside = torch.randn(3, 4).device
    outside = torch.randn(3, 4).device
    return {"device": outside.type, "the same in a block `with torch.device('meta')`": inside == outside}
