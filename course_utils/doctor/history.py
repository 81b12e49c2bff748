"""What objects forget: which keys a ``load_state_dict`` left out, and which split drew from the global generator.

Nothing in a model tells afterwards that ``load_state_dict(strict=False)`` matched no key at all. So from the
import of the doctor on, two functions of PyTorch leave a record beside doing what they always do. The records
are held weakly and die with their objects.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import data


@dataclass(frozen=True)
class Loading:
    """The outcome of one ``load_state_dict``.

    Args:
        given: names in the checkpoint.
        own: names in the model.
        strict: whether a difference would have raised.
    """

    given: tuple[str, ...]
    own: tuple[str, ...]
    strict: bool

    @property
    def matched(self) -> int:
        """How many of the model's names the checkpoint had."""
        return len(set(self.given) & set(self.own))


_LOADINGS: weakref.WeakKeyDictionary[nn.Module, Loading] = weakref.WeakKeyDictionary()
_GLOBAL_SPLITS: weakref.WeakSet[data.Subset] = weakref.WeakSet()


def loading_of(module: nn.Module) -> Loading | None:
    """Return how the last ``load_state_dict`` of a module went, if there was one since the import of the doctor."""
    return _LOADINGS.get(module)


def drew_from_global_generator(subset: object) -> bool:
    """Tell whether a subset comes from a ``random_split`` that used the process-wide generator."""
    return isinstance(subset, data.Subset) and subset in _GLOBAL_SPLITS


def keep() -> None:
    """Start keeping records; a second call changes nothing."""
    if not hasattr(nn.Module.load_state_dict, "__doctor__"):
        nn.Module.load_state_dict = _recording_loads(nn.Module.load_state_dict)
        data.random_split = _recording_splits(data.random_split)
        data.dataset.random_split = data.random_split


def _recording_loads(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load_state_dict(self: nn.Module, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, state_dict, *args, **kwargs)
        strict = args[0] if args else kwargs.get("strict", True)
        with contextlib.suppress(Exception):  # a record must never be the reason why loading fails
            _LOADINGS[self] = Loading(tuple(state_dict), tuple(self.state_dict()), bool(strict))
        return result

    load_state_dict.__doctor__ = True
    return load_state_dict


def _recording_splits(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def random_split(dataset: Any, lengths: Any, *args: Any, **kwargs: Any) -> Any:
        parts = original(dataset, lengths, *args, **kwargs)
        generator = args[0] if args else kwargs.get("generator", torch.default_generator)
        if generator is torch.default_generator or generator is None:
            _GLOBAL_SPLITS.update(parts)
        return parts

    random_split.__doctor__ = True
    return random_split
