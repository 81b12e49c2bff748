"""Digits through datasets and loaders, in turns, in one process: ``python -m benchmarks.feeding ROUNDS``.

Every way gives the same examples in the same order, in batches of 64 that are ready for a model: checked before it is
timed. Prints JSON: for each way the digits per second of each round. The time is that of the thread which loads.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

from course_utils.data import Batches, Digits, load_digits28

BATCH, SEED = 64, 3
OURS, OURS_LOADER, PYTORCH = "Batches", "DataLoader with as_dataset()", "DataLoader with TensorDataset"
INDEX, VISION = "plain tensor index", "DataLoader with torchvision's MNIST"


def generator() -> torch.Generator:
    """Return the generator of the order, at its start."""
    return torch.Generator().manual_seed(SEED)


def loaded(data: Dataset) -> DataLoader:
    """Return PyTorch's loader of a dataset; the sampler alone draws the order."""
    return DataLoader(data, batch_size=BATCH, sampler=RandomSampler(data, generator=generator()))


def indexed(images: Tensor, labels: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    """Yield batches by plain indexing."""
    for rows in torch.randperm(len(labels), generator=generator()).split(BATCH):
        yield images[rows], labels[rows]


def vision(digits: Digits, folder: Path) -> Dataset:
    """Return torchvision's MNIST over the same digits: its files, written to a folder, and its usual transform."""
    from torchvision.datasets import MNIST
    from torchvision.transforms import ToTensor

    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):  # it looks for both
        for kind, array in (("images-idx3", digits.images[:, 0].numpy()), ("labels-idx1", digits.labels.numpy())):
            sizes = np.array(array.shape, dtype=">i4").tobytes()
            header = bytes([0, 0, 8, array.ndim]) + sizes  # the format of MNIST's files; 8 is unsigned bytes
            (raw / f"{part}-{kind}-ubyte").write_bytes(header + array.astype(np.uint8).tobytes())
    return MNIST(folder, train=True, transform=ToTensor())


def ways(folder: Path) -> dict[str, Callable[[], Iterable[Any]]]:
    """Return each way as a function that starts one pass over the training digits."""
    digits = load_digits28().train
    images, labels = digits.as_batch()
    own, plain, torchvision = digits.as_dataset(), TensorDataset(images, labels), vision(digits, folder)
    return {
        OURS: lambda: Batches(images, labels, BATCH, generator()),
        OURS_LOADER: lambda: loaded(own),
        PYTORCH: lambda: loaded(plain),
        INDEX: lambda: indexed(images, labels),
        VISION: lambda: loaded(torchvision),
    }


def measure(rounds: int) -> dict[str, list[float]]:
    """Return digits per second of each way.

    Raises:
        AssertionError: if two ways give other digits, or in another order.
    """
    with tempfile.TemporaryDirectory() as folder:
        passes = ways(Path(folder))
        reference = list(passes[PYTORCH]())
        count = sum(len(y) for _, y in reference)
        for name, start in passes.items():
            for (x, y), (same_x, same_y) in zip(start(), reference, strict=True):
                assert torch.equal(x, same_x), f"{name} gives other digits"
                assert torch.equal(y, same_y), f"{name} gives other labels"
        rates: dict[str, list[float]] = {name: [] for name in passes}
        for number in range(rounds):
            for name in list(passes) if number % 2 else list(passes)[::-1]:
                before = time.thread_time()
                for _ in passes[name]():
                    pass
                rates[name].append(count / (time.thread_time() - before))
    return rates


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(measure(int(sys.argv[1]))))
