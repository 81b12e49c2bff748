"""Datasets and collate functions that a worker process can import: lesson 04 loads all its data through these.

A spawned worker gets a pickle of the dataset, and a pickle names classes by module. A class that was defined in a
notebook is ``__main__.Name``, and the worker's ``__main__`` is another one. So datasets live in a module, and this one
imports little, because every worker pays for it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from course_utils.errors import DataError, UsageError

IMAGE_ENDINGS = (".bmp", ".jpeg", ".jpg", ".png")  # compared in small letters


class ImageFolder(Dataset):
    """Images in one folder per class, ``root/<class>/<name>.png``; items are (image, label).

    Classes are numbered in alphabetical order, files are read in the order of their names: the same on every machine.
    Hidden files and other files than images are left out.

    Args:
        root: the folder that holds the class folders.
        transform: applied to the image, a uint8 tensor (C, H, W), each time an item is read.

    Raises:
        DataError: if there is no image, and, when an item is read, if its file can't be decoded; it names the file.
    """

    def __init__(self, root: str | Path, transform: Callable[[Tensor], Any] | None = None) -> None:
        self.root, self.transform = Path(root), transform
        folders = sorted(path.name for path in self.root.iterdir() if path.is_dir() and not path.name.startswith("."))
        self.classes = [name for name in folders if any(_images_in(self.root / name))]
        self.files = [(path, k) for k, name in enumerate(self.classes) for path in _images_in(self.root / name)]
        if not self.files:
            raise DataError(
                "There is no image in this folder.",
                got=self.root.name,
                expected=f"one folder for each class, with files that end in {', '.join(IMAGE_ENDINGS)}",
            )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self.files[index]
        image = read_image(path)
        return image if self.transform is None else self.transform(image), label


def read_image(path: str | Path) -> Tensor:
    """Return a grey image file as uint8, shape (1, H, W).

    Raises:
        DataError: if the file is missing or can't be decoded; it names the file.
    """
    from PIL import Image  # here, since not every worker reads images

    path = Path(path)
    try:
        with Image.open(path) as image:
            pixels = np.array(image.convert("L"))  # convert decodes: open reads the header alone
    except Exception as error:  # PIL raises SyntaxError for a broken PNG, others for other damages and for huge images
        raise DataError(
            f"This image can't be read: {path.parent.name}/{path.name}",
            got=f"{path.stat().st_size if path.exists() else 0} bytes",
            expected="a whole image file",
            fix="make the file again, or take it out of the folder",
        ) from error
    return torch.from_numpy(pixels)[None]


def write_image_folder(root: str | Path, images: Tensor, labels: Sequence[int] | Tensor) -> Path:
    """Write grey images, (N, 1, H, W) uint8, as ``root/<label>/<number>.png``; return the folder."""
    from PIL import Image

    root = Path(root)
    for number, (image, label) in enumerate(zip(images, torch.as_tensor(labels).tolist(), strict=True)):
        folder = root / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(folder / f"{number:04d}.png")
    return root


class Rows(TensorDataset):
    """A `TensorDataset` that a loader asks for a whole batch at once: the same batches for a fraction of the work.

    ``DataLoader`` hands the indices of a batch to ``__getitems__``, which picks them from each tensor in one operation.
    Its own collate function takes that as it is. Any other collate function sees what it always sees, a sequence of
    examples.
    """

    def __getitems__(self, indices: Sequence[int]) -> Picked:
        index = torch.as_tensor(indices)
        try:  # half the time of tensor[index], which counts negative indices from the end
            return Picked([tensor.index_select(0, index) for tensor in self.tensors])
        except (IndexError, RuntimeError):  # negative, out of range, or tensors on another device
            return Picked([tensor[index] for tensor in self.tensors])


class Example(tuple):
    """One example of `Rows`, a tuple of tensors. Its type tells PyTorch's collate function whose examples these are."""

    __slots__ = ()


class Picked(Sequence[Example]):
    """The examples of one batch, in columns; each is cut out when somebody asks for it.

    Args:
        columns: tensors of shape (N, ...), all of one N.
    """

    def __init__(self, columns: Sequence[Tensor]) -> None:
        self.columns = list(columns)

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Picked([column[index] for column in self.columns])
        return Example(column[index] for column in self.columns)


def _collate_examples(batch: Sequence[Example], **_: Any) -> list[Any]:
    """Return the batch's columns; PyTorch calls this for a batch whose first element is an `Example`."""
    if isinstance(batch, Picked):
        return batch.columns
    return [default_collate(column) for column in zip(*batch, strict=True)]


default_collate_fn_map[Example] = _collate_examples


class Draws(Dataset):
    """Each item is one draw from four generators: Python's, NumPy's and torch's global ones, and its own.

    With two workers and batches of one, two items make an epoch: the first of each worker.
    """

    def __init__(self, length: int = 2) -> None:
        self.length = length
        self.rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, float]:
        return {
            "random": random.random(),
            "numpy": float(np.random.rand()),
            "torch": torch.rand((), dtype=torch.float64).item(),
            "own generator": float(self.rng.random()),
        }


class Costly(Dataset):
    """Items whose making takes ``cost_ms`` milliseconds of work; each is a vector of shape (64,) and a label.

    Args:
        length: number of items.
        cost_ms: time per item; 0 returns a row of a tensor that is there already.
        waiting: sleep, as for a disk or a network, instead of calculating.
        every: only every so many-th item costs anything, and then as much as all of these together.
    """

    def __init__(self, length: int, cost_ms: float = 0.0, waiting: bool = False, every: int = 1) -> None:
        self.length, self.cost_ms, self.waiting, self.every = length, cost_ms, waiting, every

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        cost_s = 0.0 if index % self.every else self.cost_ms * self.every / 1000
        if self.waiting:
            time.sleep(cost_s)
        else:
            _busy(cost_s)
        return torch.full((64,), float(index)), index % 10


class Numbers(IterableDataset):
    """The numbers 0..count-1 as a stream; with ``sharded``, each worker takes every n-th of them.

    Without, each worker goes through the whole stream: nothing tells it that there are others.
    """

    def __init__(self, count: int, sharded: bool = True) -> None:
        self.count, self.sharded = count, sharded

    def __iter__(self) -> Iterator[int]:
        return iter(shard(range(self.count)) if self.sharded else range(self.count))


def shard(items: Iterable[Any]) -> Iterator[Any]:
    """Yield the items that belong to this worker: the first, and every n-th after it; all, outside a worker."""
    worker = get_worker_info()
    first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
    for number, item in enumerate(items):
        if number % step == first:
            yield item


class Counting(Dataset):
    """Counts in an attribute how many items were read: in whichever process reads them."""

    def __init__(self, length: int) -> None:
        self.length, self.read = length, 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        self.read += 1
        return index


class Sequences(Dataset):
    """Sequences of different lengths, each a float tensor (T, D), with the lengths that are given."""

    def __init__(self, lengths: Sequence[int], features: int = 2) -> None:
        self.lengths, self.features = list(lengths), features

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Tensor:
        steps = torch.arange(1, self.lengths[index] + 1, dtype=torch.float32)
        return steps[:, None].expand(-1, self.features).clone()


def pad(batch: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Collate sequences (T, D) of different T into one tensor (N, T, D), zeros at the end, and lengths (N,)."""
    if not batch:
        raise UsageError("An empty batch can't be padded.", expected="at least one sequence")
    lengths = torch.tensor([len(sequence) for sequence in batch])
    return torch.nn.utils.rnn.pad_sequence(list(batch), batch_first=True), lengths


def mask_of(lengths: Tensor, width: int | None = None) -> Tensor:
    """Return where a padded batch holds real steps: bool, shape (N, T)."""
    width = int(lengths.max()) if width is None else width
    return torch.arange(width, device=lengths.device) < lengths[:, None]


def _images_in(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_file() and path.suffix.lower() in IMAGE_ENDINGS and not path.name.startswith(".")
    )


def _busy(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
