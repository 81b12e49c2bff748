"""What objects forget: which keys a ``load_state_dict`` left out, and which split drew from the global generator.

Nothing in a model tells afterwards that ``load_state_dict(strict=False)`` matched no key at all. So from the
import of the doctor on, two functions of PyTorch leave a record beside doing what they always do. The records
are held weakly and die with their objects.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils import data

from course_utils.doctor.where import reader_frames

_RANKS = ("rank", "local_rank", "global_rank")


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


@dataclass(frozen=True)
class Splitter:
    """A function of the reader that split data, and that takes the number of its process.

    Args:
        function: callable with this number alone.
        name: of the argument.
        rank: what it was.
    """

    function: Callable[..., Any]
    name: str
    rank: int

    def indices(self, rank: int) -> list[list[int]]:
        """Run the function as another process would, and return the indices of all splits that it makes."""
        made: list[list[int]] = []
        _listeners.append(made)
        try:
            self.function(**{self.name: rank})
        finally:
            _listeners.pop()
        return made


_LOADINGS: weakref.WeakKeyDictionary[nn.Module, Loading] = weakref.WeakKeyDictionary()
_GLOBAL_SPLITS: weakref.WeakSet[data.Subset] = weakref.WeakSet()
_SPLITTERS: weakref.WeakKeyDictionary[data.Subset, Splitter] = weakref.WeakKeyDictionary()
_listeners: list[list[list[int]]] = []  # while a splitter runs again: the indices of the splits that it makes


def loading_of(module: nn.Module) -> Loading | None:
    """Return how the last ``load_state_dict`` of a module went, if there was one since the import of the doctor."""
    return _LOADINGS.get(module)


def drew_from_global_generator(subset: object) -> bool:
    """Tell whether a subset comes from a ``random_split`` that used the process-wide generator."""
    return isinstance(subset, data.Subset) and subset in _GLOBAL_SPLITS


def splitter_of(subset: object) -> Splitter | None:
    """Return the function that made a split from the process-wide generator, if it takes a rank and has ended."""
    splitter = _SPLITTERS.get(subset) if isinstance(subset, data.Subset) else None
    frame: FrameType | None = sys._getframe(1)
    while splitter is not None and frame is not None:
        if frame.f_code is splitter.function.__code__:  # it runs the doctor: it would do so again
            return None
        frame = frame.f_back
    return splitter


def _splitter() -> Splitter | None:
    """Return the reader's function that is running, if it can be called with nothing but a rank."""
    for frame in reader_frames(sys._getframe(1)):
        function = frame.f_globals.get(frame.f_code.co_name)
        if getattr(function, "__code__", None) is not frame.f_code:
            continue
        parameters = inspect.signature(function).parameters.values()
        names = [p.name for p in parameters if p.name in _RANKS and isinstance(frame.f_locals.get(p.name), int)]
        if names and all(p.name in names[:1] or p.default is not p.empty for p in parameters):
            return Splitter(function, names[0], frame.f_locals[names[0]])
    return None


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
            splitter = None
            with contextlib.suppress(Exception):
                splitter = _splitter()
            if splitter is not None:
                _SPLITTERS.update(dict.fromkeys(parts, splitter))
        for made in _listeners:
            made.extend(list(part.indices) for part in parts)
        return parts

    random_split.__doctor__ = True
    return random_split
