"""Take a trained network further: load what fits, keep still what shall not move, and prove that it did not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from course_utils.errors import CheckpointError
from course_utils.text import plural

PREFIXES = ("module.", "_orig_mod.")  # what DistributedDataParallel and torch.compile put before every key


@dataclass(frozen=True)
class LoadReport:
    """What became of every key when a state was loaded into a model.

    Args:
        loaded: keys whose values were taken over, by the model's names.
        wrong_shape: key -> (shape in the state, shape in the model); not loaded.
        missing: keys of the model that the state lacks; they keep their values.
        unexpected: keys of the state that the model lacks; ignored.
        prefix: what was taken off the state's keys, ``"module."`` for example, or nothing.
    """

    loaded: tuple[str, ...]
    wrong_shape: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    prefix: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether everything in the model was loaded and nothing in the state was left over."""
        return not (self.wrong_shape or self.missing or self.unexpected)

    def __str__(self) -> str:
        lines = [f"{plural(len(self.loaded), 'key')} loaded"]
        lines += [f"prefix {self.prefix!r} taken off"] if self.prefix else []
        lines += [f"wrong shape  {key}: {theirs}, here {ours}" for key, (theirs, ours) in self.wrong_shape.items()]
        lines += [f"missing      {key}" for key in self.missing]
        lines += [f"unexpected   {key}" for key in self.unexpected]
        return "\n".join(lines)


def load_matching(model: nn.Module, state: Mapping[str, Tensor]) -> LoadReport:
    """Copy into a model what fits of a state, by name and shape, and report every key.

    The parameters stay the same objects, so an optimizer that holds them goes on working. A prefix that stands before
    *all* keys of the state and that the model doesn't know is taken off.

    Args:
        model: what to load into.
        state: a ``state_dict``.

    Raises:
        CheckpointError: if nothing fits, or a value is no tensor; the model is as it was then.
    """
    for key, value in state.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(
                "This is no state of a model.",
                got=f"{key!r} holds a {type(value).__name__}",
                expected="a dictionary of tensors, as state_dict() gives it",
                fix="a checkpoint often keeps it under a key such as 'model': pass checkpoint['model']",
            )
    ours = model.state_dict()
    prefix = next((p for p in PREFIXES if state and all(k.startswith(p) for k in state) and not _any(ours, p)), "")
    theirs = {key.removeprefix(prefix): value for key, value in state.items()}
    shared = [key for key in ours if key in theirs]
    fitting = [key for key in shared if theirs[key].shape == ours[key].shape]
    if not fitting:
        raise CheckpointError(
            "Nothing in this state fits this model.",
            got=f"keys such as {', '.join(map(repr, list(state)[:3]))}",
            expected=f"keys such as {', '.join(map(repr, list(ours)[:3]))}",
            fix="print both lists of keys: is it another model, or is there something before every name?",
        )
    with torch.no_grad():
        for key in fitting:
            ours[key].copy_(theirs[key])  # state_dict() holds the model's own tensors
    return LoadReport(
        loaded=tuple(fitting),
        wrong_shape={k: (tuple(theirs[k].shape), tuple(ours[k].shape)) for k in shared if k not in fitting},
        missing=tuple(key for key in ours if key not in theirs),
        unexpected=tuple(key for key in theirs if key not in ours),
        prefix=prefix,
    )


def _any(keys: Mapping[str, object], prefix: str) -> bool:
    return any(key.startswith(prefix) for key in keys)


@contextmanager
def frozen(module: nn.Module) -> Iterator[nn.Module]:
    """Keep a part of a model from moving by a bit: no gradients, and eval mode whatever its parent is switched to.

    Eval mode is what keeps BatchNorm's statistics still, and a parent's ``train()`` would end it. So each forward pass
    in the block begins by switching this part back. Afterwards every parameter and submodule has its own setting again.
    """
    wanted = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
    modes = [(child, child.training) for child in module.modules()]

    def stay_still(part: nn.Module, _inputs: object) -> None:
        if any(child.training for child in part.modules()):
            part.eval()

    with ExitStack() as attached:
        attached.callback(_restore, wanted, modes)
        for part in module.modules():  # also where a parent calls a part directly
            attached.callback(part.register_forward_pre_hook(stay_still).remove)
        module.requires_grad_(False)
        module.eval()
        yield module


def _restore(wanted: list[tuple[nn.Parameter, bool]], modes: list[tuple[nn.Module, bool]]) -> None:
    for parameter, requires_grad in wanted:
        parameter.requires_grad_(requires_grad)
    for child, mode in modes:
        child.training = mode


def snapshot(module: nn.Module) -> dict[str, Tensor]:
    """Return a copy of everything that a module would save: parameters and buffers, by name."""
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def moved(module: nn.Module, before: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the parameters and buffers that differ from a `snapshot` by at least a bit."""
    after = module.state_dict()
    return [name for name, value in before.items() if name not in after or not _same_bits(after[name], value)]


def _same_bits(first: Tensor, second: Tensor) -> bool:
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    # As bytes: nan equals itself then, and 0 and -0 are two values.
    return torch.equal(*(tensor.detach().reshape(-1).contiguous().view(torch.uint8) for tensor in (first, second)))
