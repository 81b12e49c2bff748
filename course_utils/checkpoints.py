"""Save the state of a run so that it can go on as if nothing had happened, and load it without running its code.

A checkpoint is one file in torch's format that holds only plain data: tensors, numbers, text, and lists and dicts of
them. It is written beside its name and then moved there, so a kill at any moment leaves the old file or the new one.
"""

from __future__ import annotations

import os
import pickle
import platform
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import course_utils
from course_utils.errors import CheckpointError, UsageError
from course_utils.paths import atomic_path

FORMAT = 1  # rises when `load` must treat files differently
MARK = "pytorch-workbook checkpoint"


def save(path: str | Path, **state: Any) -> None:
    """Write ``state`` to ``path``, all of it or nothing.

    Args:
        path: by custom with the ending ``.pt``; missing folders are made.
        state: name -> anything with ``state_dict`` (model, optimizer, schedule, scaler), a generator, a frozen settings
            dataclass, or plain data; also nested in dicts and lists.

    Raises:
        CheckpointError: if something isn't plain data, which `load` would refuse; or if the disk doesn't take it.
    """
    ...


def load(path: str | Path, map_location: str | torch.device = "cpu") -> dict[str, Any]:
    """Return the state that `save` wrote: every object as its ``state_dict``, generators as their state.

    Only plain data is read (``weights_only=True``), so a file from a stranger can't run code.

    Args:
        map_location: device for the tensors; ``load_state_dict`` moves them on to where they belong.

    Raises:
        CheckpointError: if the file is missing, damaged, not a checkpoint of this course, or from a newer version.
    """
    raise NotImplementedError


class Keeper:
    """Keeps the newest checkpoints of one run in a folder.

    Args:
        folder: of this run alone; made when needed. Files are called ``step-00000120.pt``.
        every: steps between checkpoints. `fit` also saves after each epoch and at the end.
        keep: how many of the newest stay.
        config: settings to store with each checkpoint, for the reader; `load(path)["config"]`.
    """

    def __init__(self, folder: str | Path, *, every: int = 100, keep: int = 2, config: Any = None) -> None:
        self.folder, self.every, self.keep, self.config = Path(folder), every, keep, config

    def is_due(self, n_steps: int) -> bool:
        """Whether a checkpoint should be saved after ``n_steps`` steps."""
        return n_steps % self.every == 0

    def save(self, n_steps: int, **state: Any) -> None:
        """Save the state after ``n_steps`` steps and remove what is too old."""
        raise NotImplementedError

    def latest(self, map_location: str | torch.device = "cpu") -> dict[str, Any] | None:
        """Return the newest checkpoint, loaded; None if there is none: ``fit(..., resume=keeper.latest())``."""
        raise NotImplementedError

    def files(self) -> list[Path]:
        """Return the checkpoints, oldest first."""
        raise NotImplementedError

    def is_empty(self) -> bool:
        """Whether there is no checkpoint."""
        return not self.files()

    def clear(self) -> None:
        """Remove all checkpoints of this folder."""
        raise NotImplementedError
