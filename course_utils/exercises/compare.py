"""Comparisons that refuse before they compare: type, then shape, then dtype, then finite, then values.

Each returns a ``Check``. Nothing is broadcast, converted or called on the learner's object before its exact
type is known, so an object that equals everything, or a scalar in place of a vector, gets nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from course_utils.exercises.verdicts import Check
from course_utils.text import shorten

Mistakes = Iterable[tuple[Any, str]]  # wrong values that have a known cause, each with the sentence that names it

_TENSORS = (Tensor, nn.Parameter)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, slice)
_NESTED = (tuple, list, set, frozenset, dict)
MSG_ARRAY = "A tensor was asked for, and this is a NumPy array. Stay with tensor operations all the way."
MAX_DESCRIBED = 4  # items of a tuple or list that a message names one by one
MAX_DEPTH = 20  # levels of containers in containers; answers have two or three


def describe(value: object) -> str:
    """Return a value in a few words: a tensor by shape and dtype, plain values as they are, others by type."""
    if type(value) in _TENSORS:
        assert isinstance(value, Tensor)
        name = "parameter" if type(value) is nn.Parameter else "tensor"
        return f"a {name} of shape {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}"
    if _is_plain(value):
        return shorten(repr(value))
    if type(value) in (tuple, list):
        assert isinstance(value, (tuple, list))
        if len(value) <= MAX_DESCRIBED and all(type(item) in _TENSORS or _is_plain(item) for item in value):
            return f"a {type(value).__name__} of {'; '.join(describe(item) for item in value)}"
    kind = type(value).__name__
    return f"a {kind}" if kind[:1].lower() not in "aeiou" else f"an {kind}"


def is_true(what: str, condition: bool, *, detail: str = "", hint: str = "") -> Check:
    """The condition holds; ``condition`` must be a real bool, computed by the check itself."""
    return Check(what, condition is True, "" if condition is True else detail, hint)


def is_tensor(what: str, value: object, *, hint: str = "") -> Check:
    """The value is a tensor (or a parameter), not an array, a list, a number or a look-alike."""
    passed = type(value) in _TENSORS
    return Check(what, passed, "" if passed else f"got {describe(value)}", hint)


def has_shape(what: str, value: object, shape: tuple[int, ...], *, hint: str = "") -> Check:
    """The value is a tensor of exactly this shape."""
    if type(value) not in _TENSORS:
        return is_tensor(what, value, hint=MSG_ARRAY if type(value) is np.ndarray else hint)
    assert isinstance(value, Tensor)
    passed = tuple(value.shape) == tuple(shape)
    return Check(what, passed, "" if passed else f"got shape {tuple(value.shape)}, expected {tuple(shape)}", hint)


def has_dtype(what: str, value: object, dtype: torch.dtype, *, hint: str = "") -> Check:
    """The value is a tensor of exactly this dtype."""
    if type(value) not in _TENSORS:
        return is_tensor(what, value, hint=hint)
    assert isinstance(value, Tensor)
    passed = value.dtype == dtype
    return Check(what, passed, "" if passed else f"got {value.dtype}, expected {dtype}", hint)


def is_close(
    what: str,
    value: object,
    expected: Tensor | float,
    *,
    hint: str = "",
    rtol: float = 1e-4,
    atol: float = 1e-6,
    dtype: torch.dtype | None = None,
    mistakes: Mistakes = (),
) -> Check:
    """The value agrees with ``expected`` in type, shape and, within the tolerance, in every element.

    Args:
        value: the learner's tensor, or number where ``expected`` is a number.
        expected: what it should be. A tensor accepts only a tensor, a number only a Python number.
        dtype: if given, the dtype that the value must have; else any floating dtype will do.
        mistakes: wrong values with the sentence to say instead of ``hint`` when the answer equals one.
    """
    if not isinstance(expected, Tensor):
        if type(value) not in (int, float):
            return Check(what, False, f"got {describe(value)}, expected a Python number", hint)
        value, expected = torch.tensor(float(value), dtype=torch.float64), torch.tensor(float(expected))  # type: ignore[arg-type]
        mistakes = [(torch.tensor(float(wrong)), cause) for wrong, cause in mistakes]
    shape = has_shape(what, value, tuple(expected.shape), hint=_cause(value, mistakes, rtol, atol) or hint)
    if not shape.passed:
        return shape
    assert isinstance(value, Tensor)
    if dtype is not None and value.dtype != dtype:
        return has_dtype(what, value, dtype, hint=hint)
    if value.device.type == "meta":
        return Check(what, False, "got a tensor on the meta device, which holds no values", hint)
    got, want = _comparable(value), _comparable(expected)
    if bool(torch.isnan(got).any()) and not bool(torch.isnan(want).any()):
        return Check(what, False, "got nan", _cause(value, mistakes, rtol, atol) or hint)
    if got.is_complex() != want.is_complex():
        return Check(what, False, f"got {describe(value)}", hint)
    if torch.allclose(got, want, rtol=rtol, atol=atol, equal_nan=True):
        return Check(what, True, "", hint)
    difference = (got - want).abs().nan_to_num(nan=float("inf")).max().item()
    return Check(what, False, f"largest difference {difference:.3g}", _cause(value, mistakes, rtol, atol) or hint)


def is_equal(what: str, value: object, expected: object, *, hint: str = "", mistakes: Mistakes = ()) -> Check:
    """The value has the same type as ``expected`` and equals it; containers are compared item by item.

    For plain values and containers of them, and for tensors (exact shape, dtype and elements). A
    ``torch.Size`` may stand for a tuple, since PyTorch returns one for the other.
    """
    passed = _same(value, expected)
    cause = next((cause for wrong, cause in mistakes if _same(value, wrong)), "")
    detail = "" if passed else f"got {describe(value)}"
    return Check(what, passed, detail, hint if passed else cause or hint)


def shares_memory(what: str, value: object, base: Tensor, *, hint: str = "") -> Check:
    """The value is a view: a tensor on the memory of ``base``, also where it came back by way of NumPy."""
    if type(value) not in _TENSORS:
        return is_tensor(what, value, hint=hint)
    passed = _same_storage(value, base)
    return Check(what, passed, "" if passed else "it has a storage of its own: the values were copied", hint)


def owns_memory(what: str, value: object, base: Tensor, *, hint: str = "") -> Check:
    """The value is a copy: a tensor whose memory is not that of ``base``."""
    if type(value) not in _TENSORS:
        return is_tensor(what, value, hint=hint)
    passed = not _same_storage(value, base)
    return Check(what, passed, "" if passed else "it still shares its storage with the input", hint)


def is_unchanged(what: str, value: Tensor, before: Tensor, *, hint: str = "") -> Check:
    """The tensor that was handed in still holds what it held before the call (keep a clone to compare)."""
    passed = value.shape == before.shape and value.dtype == before.dtype and torch.equal(value, before)
    return Check(what, passed, "" if passed else "the call changed its input", hint)


def raises(what: str, call: Callable[[], object], errors: type[Exception] | tuple, *, hint: str = "") -> Check:
    """The call raises one of ``errors``."""
    try:
        call()
    except errors:
        return Check(what, True, "", hint)
    except Exception as error:
        return Check(what, False, f"it raised {type(error).__name__}: {shorten(str(error))}", hint)
    return Check(what, False, "nothing was raised", hint)


def _is_plain(value: object, depth: int = 0) -> bool:
    if type(value) in _NESTED:
        items = [*value.keys(), *value.values()] if isinstance(value, dict) else value  # type: ignore[call-overload]
        # A container can hold itself, so the search ends somewhere.
        return depth < MAX_DEPTH and all(_is_plain(item, depth + 1) for item in items)
    return type(value) in _PLAIN


def _comparable(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _cause(value: object, mistakes: Mistakes, rtol: float, atol: float) -> str:
    """Return the sentence of the first known mistake that ``value`` equals, else an empty one."""
    for wrong, cause in mistakes:
        if type(value) in _TENSORS and isinstance(wrong, Tensor) and tuple(value.shape) == tuple(wrong.shape):  # type: ignore[attr-defined]
            if value.device.type == "meta" or value.is_complex() != wrong.is_complex():  # type: ignore[attr-defined]
                continue
            if torch.allclose(_comparable(value), _comparable(wrong), rtol=rtol, atol=atol, equal_nan=True):  # type: ignore[arg-type]
                return cause
    return ""


def _same_storage(value: object, base: Tensor) -> bool:
    assert isinstance(value, Tensor)
    if value.device != base.device or value.device.type == "meta":
        return False
    # Not only the same start: a NumPy view of a slice comes back as a storage that begins inside the other one.
    first, second = value.untyped_storage(), base.untyped_storage()
    start = max(first.data_ptr(), second.data_ptr())
    end = min(first.data_ptr() + first.nbytes(), second.data_ptr() + second.nbytes())
    return start < end or first.data_ptr() == second.data_ptr()


def _same(value: object, expected: object) -> bool:
    if isinstance(expected, Tensor):
        if type(value) not in _TENSORS:
            return False
        assert isinstance(value, Tensor)
        return value.dtype == expected.dtype and value.shape == expected.shape and torch.equal(value, expected)
    if isinstance(expected, tuple) and type(value) in (tuple, torch.Size):
        return len(value) == len(expected) and all(map(_same, value, expected))  # type: ignore[arg-type]
    if type(value) is not type(expected):
        return False
    if isinstance(expected, list):
        return len(value) == len(expected) and all(map(_same, value, expected))  # type: ignore[arg-type]
    if isinstance(expected, dict):
        keys_agree = value.keys() == expected.keys()  # type: ignore[attr-defined]
        return keys_agree and all(_same(value[key], expected[key]) for key in expected)  # type: ignore[index]
    return bool(value == expected) and _is_plain(value)
