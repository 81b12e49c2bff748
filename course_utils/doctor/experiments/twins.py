"""Averaged and target copies of a model: find them, compare them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination


def find_twin(examination: Examination) -> nn.Module | dict[str, Tensor] | None:
    """Return the averaged copy that was given as ``ema``: a module, or tensors by name; None if there is none."""
    twin = examination.parts.get("ema")
    if twin is None or isinstance(twin, nn.Module):
        return twin
    candidates = [twin, *vars(twin).values()] if hasattr(twin, "__dict__") else [twin]
    for candidate in candidates:
        if isinstance(candidate, nn.Module):
            return candidate
        if isinstance(candidate, dict) and candidate and all(isinstance(value, Tensor) for value in candidate.values()):
            return candidate
    return None


def compare_twin(examination: Examination, twin: nn.Module | dict[str, Tensor]) -> dict[str, Any]:
    """Return how the copy stands to the model, after some steps: see the keys."""
    model = examination.parts.model
    assert model is not None
    is_averaged_model = isinstance(twin, torch.optim.swa_utils.AveragedModel)
    inner = twin.module if isinstance(twin, torch.optim.swa_utils.AveragedModel) else twin
    ours = model.state_dict(keep_vars=True)
    theirs = inner if isinstance(inner, dict) else inner.state_dict(keep_vars=True)
    shared = [name for name in ours if name in theirs and ours[name].shape == theirs[name].shape]
    parameters = {name for name, _ in model.named_parameters()}
    before = _contents_before(examination, theirs)
    before_ours = _contents_before(examination, ours)
    moved = {name for name in shared if _moved(theirs[name], before.get(name))}
    model_moved = {name for name in shared if _moved(ours[name], before_ours.get(name))}
    unit = []
    for name in shared:
        a, b = ours[name], theirs[name]
        if name in parameters or not a.is_floating_point() or a.ndim != 1 or a.numel() < 2:
            continue
        if abs(float(a.norm()) - 1) < 1e-5 and abs(float(b.norm()) - 1) > 3e-5:
            unit.append((name, float(b.norm())))
    return {
        "shared": len(shared),
        "aliased": [
            n for n in shared
            if n in parameters and ours[n].data_ptr() == theirs[n].data_ptr() and ours[n].numel()
        ],
        "with_graph": [n for n in shared if theirs[n].grad_fn is not None],
        "moved": moved,
        "model_moved": model_moved,
        "unit": unit,
        "stale_buffers": [
            n for n in shared
            if n not in parameters and ours[n].is_floating_point() and n in model_moved and n not in moved
        ],
        "parameters_moved": [n for n in moved if n in parameters],
        "rounded_away": [
            n for n in shared
            if n in parameters and n in model_moved and n not in moved
            and theirs[n]._version > _version(examination, theirs[n])
        ],
        "is_averaged_model": is_averaged_model,
    }  # fmt: skip


def _version(examination: Examination, tensor: Tensor) -> int:
    version = examination.snapshot.version_of(tensor)
    return tensor._version if version is None else version


def _contents_before(examination: Examination, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the values that tensors had in the snapshot."""
    contents = {}
    for name, tensor in state.items():
        key = (str(tensor.device), tensor.untyped_storage().data_ptr())
        memory = examination.snapshot._memories.get(key)
        if memory is not None:
            old = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            contents[name] = old.set_(memory.content, tensor.storage_offset(), tensor.size(), tensor.stride())
    return contents


def _moved(now: Tensor, before: Tensor | None) -> bool:
    return before is not None and not torch.equal(now.detach(), before)
