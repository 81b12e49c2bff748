"""Save the state of a run so that it can go on as if nothing had happened, and load it without running its code.

A checkpoint is one file in torch's format that holds only plain data: tensors, numbers, text, and lists and dicts of
them. It is written beside its name and then moved there, so a kill at any moment leaves the old file or the new one.
"""

from __future__ import annotations

import pickle
import platform
import re
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import course_utils
from course_utils.errors import CheckpointError, UsageError
from course_utils.paths import atomic_path

MARK = "pytorch-workbook checkpoint"
FORMAT = 1  # rises when `load` must treat files differently
ZIP_START = b"PK\x03\x04"
PLAIN_TYPES = (type(None), bool, int, float, str, bytes, torch.dtype, torch.device)


def save(path: str | Path, **state: Any) -> None:
    """Write ``state`` to ``path``, all of it or nothing.

    Args:
        path: by custom with the ending ``.pt``; missing folders are made.
        state: name -> anything with ``state_dict`` (model, optimizer, schedule, scaler), a generator, a settings
            dataclass, or plain data; also nested in dicts and lists.

    Raises:
        CheckpointError: if something isn't plain data, which `load` would refuse; or if the disk doesn't take it.
    """
    versions = {"course": course_utils.__version__, "torch": str(torch.__version__)}
    versions |= {"numpy": np.__version__, "python": platform.python_version()}
    content = {"format": [MARK, FORMAT], "versions": versions}
    if taken := sorted(content.keys() & state.keys()):
        raise UsageError("This name is taken by `save` itself.", got=taken[0], fix="give the part another name")
    content |= {name: _plain(part, name) for name, part in state.items()}
    try:
        with atomic_path(Path(path)) as temporary:
            torch.save(content, temporary)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"The checkpoint {Path(path).name} could not be written; an earlier one is untouched.",
            got=str(error),
            expected="a folder that can be written to, and room on the disk",
            fix="free some space or choose another folder",
        ) from error


def load(path: str | Path, map_location: str | torch.device = "cpu") -> dict[str, Any]:
    """Return the state that `save` wrote: every object as its ``state_dict``, generators as their state.

    Only plain data is read (``weights_only=True``), so a file from a stranger can't run code. Beside the parts that
    were given to `save` there are ``"format"`` and ``"versions"``.

    Args:
        map_location: device for the tensors; ``load_state_dict`` moves them on to where they belong.

    Raises:
        CheckpointError: if the file is missing, damaged, not a checkpoint of this course, or from a newer version.
    """
    path = Path(path)
    _check_whole(path)
    try:
        content = torch.load(path, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path.name} holds more than plain data, so it was not loaded and nothing in it was run.",
            got=str(error),
            expected="tensors, numbers, text, and lists and dicts of them",
            fix="ask for a file with state_dicts only; a pickled model can run any code",
        ) from error
    except Exception as error:  # a damaged pickle can raise anything
        raise CheckpointError(
            f"{path.name} can't be loaded.",
            got=str(error),
            expected=f"a checkpoint whose tensors fit on {map_location}",
            fix="try map_location='cpu', or an older checkpoint",
        ) from error
    mark, version = _format_of(content)
    if mark != MARK:
        raise CheckpointError(
            f"{path.name} is a torch file, but not a checkpoint of this course.",
            got=f"a dict with {', '.join(map(str, list(content)[:5]))}" if isinstance(content, dict) else type(content),
            expected="a file that checkpoints.save wrote",
            fix="if it is a state_dict: model.load_state_dict(torch.load(path, weights_only=True))",
        )
    if version > FORMAT:
        raise CheckpointError(
            f"{path.name} was written by a newer version of the course.",
            got=f"format {version}",
            expected=f"format {FORMAT} or older",
            fix="update the course, or load it with the version that wrote it",
        )
    return content


class Keeper:
    """Keeps the newest checkpoints of one run in a folder.

    Args:
        folder: of this run alone; made when needed. Files are called ``step-00000120.pt``.
        every: steps between checkpoints. `fit` also saves after each epoch and at the end.
        keep: how many of the newest stay.
        config: settings to store with each checkpoint, for the reader: ``keeper.latest()["config"]``.
    """

    def __init__(self, folder: str | Path, *, every: int = 100, keep: int = 2, config: Any = None) -> None:
        for name, number in (("every", every), ("keep", keep)):
            if not (isinstance(number, int) and number >= 1):
                raise UsageError(
                    f"This is not a value for {name}.",
                    got=number,
                    expected="a whole number, at least 1",
                    fix=f"for example {name}=10",
                )
        self.folder, self.every, self.keep, self.config = Path(folder), every, keep, config

    def is_due(self, n_steps: int) -> bool:
        """Whether a checkpoint should be saved after ``n_steps`` steps."""
        return n_steps % self.every == 0

    def save(self, n_steps: int, **state: Any) -> None:
        """Save the state after ``n_steps`` steps, then remove what is too old and what a kill left half-written.

        Checkpoints of later steps go too: they belong to a future that this run, resumed from before it, has left.
        """
        path = self.folder / f"step-{n_steps:08d}.pt"
        save(path, **state, **({} if self.config is None else {"config": self.config}))
        files = self.files()
        place = files.index(path)
        for file in [*files[: max(0, place + 1 - self.keep)], *files[place + 1 :], *self.folder.glob(".step-*.tmp")]:
            file.unlink(missing_ok=True)

    def latest(self, map_location: str | torch.device = "cpu") -> dict[str, Any] | None:
        """Return the newest checkpoint, loaded; None if there is none: ``fit(..., resume=keeper.latest())``."""
        files = self.files()
        return load(files[-1], map_location) if files else None

    def files(self) -> list[Path]:
        """Return the checkpoints, oldest first."""
        found = [path for path in self.folder.glob("step-*.pt") if re.fullmatch(r"step-\d+", path.stem)]
        return sorted(found, key=lambda path: int(path.stem.removeprefix("step-")))

    def is_empty(self) -> bool:
        """Whether there is no checkpoint."""
        return not self.files()

    def clear(self) -> None:
        """Remove all checkpoints of this folder; other files stay."""
        for file in self.files():
            file.unlink()


def _check_whole(path: Path) -> None:
    """Refuse a file that is missing, cut off or changed. Torch itself doesn't notice a flipped bit in a tensor."""
    try:
        with open(path, "rb") as file:
            start, is_zip = file.read(len(ZIP_START)), zipfile.is_zipfile(file)
            damaged = _damage(zipfile.ZipFile(file), path.stat().st_size) if is_zip else None
    except FileNotFoundError as error:
        raise CheckpointError(
            f"There is no checkpoint {path.name}.",
            got=str(path),
            expected="a file that checkpoints.save wrote",
            fix="look at the folder; Keeper(folder).latest() finds the newest, or gives None",
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"The checkpoint {path.name} can't be read.",
            got=str(error),
            expected="a file that you may read",
            fix="check the path and its permissions",
        ) from error
    except Exception as error:  # zipfile raises several kinds on damaged headers
        damaged = f"a wrong header: {error}"
    if damaged is not None or (start == ZIP_START and not is_zip):
        raise CheckpointError(
            f"The checkpoint {path.name} is damaged.",
            got=damaged or "the end of the file is missing",
            expected="every byte that was saved",
            fix="copy or download it again, or use an older checkpoint",
        )
    if not is_zip:
        raise CheckpointError(
            f"{path.name} is not a checkpoint.",
            got=f"a file that begins with {start!r}",
            expected="a file that checkpoints.save wrote",
            fix="check the path",
        )


def _damage(archive: zipfile.ZipFile, size_bytes: int) -> str | None:
    """Return what is wrong with a checkpoint's archive. Torch compresses nothing: a small file never holds much."""
    parts = archive.infolist()
    if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
        return "compressed parts, which nobody knows the size of before they are unpacked"
    if sum(part.file_size for part in parts) > size_bytes:
        return "parts that say they unpack to more than the file holds"
    name = archive.testzip()
    return None if name is None else f"a wrong checksum: {name}"


def _format_of(content: Any) -> tuple[Any, int]:
    mark = content.get("format") if isinstance(content, dict) else None
    if isinstance(mark, list) and len(mark) == 2 and isinstance(mark[1], int):
        return mark[0], mark[1]
    return None, 0


def _plain(value: Any, where: str) -> Any:
    """Return ``value`` as plain data; ``where`` is its name in the checkpoint, for the error."""
    if type(value) in PLAIN_TYPES:
        return value
    if type(value) in (Tensor, nn.Parameter):
        return value.detach()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, torch.Generator):
        return value.get_state()
    if callable(getattr(value, "state_dict", None)):
        return _plain(value.state_dict(), where)
    if isinstance(value, Counter):  # MultiStepLR needs its milestones back as a Counter
        return Counter(value)
    if isinstance(value, Mapping):
        items = ((_plain(key, where), _plain(item, f"{where}[{key!r}]")) for key, item in value.items())
        if not isinstance(value, OrderedDict):
            return dict(items)
        ordered = OrderedDict(items)
        if hasattr(value, "_metadata"):  # the version of each submodule, which load_state_dict looks at
            ordered._metadata = value._metadata  # type: ignore[attr-defined]
        return ordered
    if isinstance(value, (list, tuple)):
        items = (_plain(item, f"{where}[{index}]") for index, item in enumerate(value))
        return list(items) if isinstance(value, list) else tuple(items)
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value), where)
    raise CheckpointError(
        f"The part {where} of the checkpoint is not plain data.",
        got=f"a {type(value).__name__}",
        expected="tensors, numbers, text, lists and dicts of them, or an object with state_dict()",
        fix="store what it is made of, for example str(path), array.tolist() or torch.from_numpy(array)",
    )
