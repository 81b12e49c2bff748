"""Look whether images with channels last were given a channels-first shape without moving their values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

from course_utils.doctor.experiments.objective import SomeBatches, run_watched
from course_utils.doctor.parts import tensors_of

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination

CHANNELS = (2, 3, 4)
SAME, OTHER = 0.9999, 0.99  # correlations: at least, for one order of the values; at most, for the other


@dataclass(frozen=True)
class Scrambled:
    """Images whose values kept their order while their shape changed.

    Args:
        where: the layer that gets them, or the data set.
        before: shape with channels last.
        after: shape with channels first.
        moved: correlation of the values with those of images whose axes are moved, of the worst channel.
    """

    where: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    moved: float


def find_scrambled(examination: Examination) -> Scrambled | None:
    """Compare what enters the first convolution with the batch, and what the data set returns with what it stores."""
    parts = examination.parts
    model, kept = parts.model, examination.batches.kept
    if model is None or not kept or not any(isinstance(m, nn.modules.conv._ConvNd) for m in model.modules()):
        return None
    found: list[Scrambled] = []
    names = {id(module): name or type(module).__name__ for name, module in model.named_modules()}

    def watch(stack: ExitStack, batches: SomeBatches) -> None:
        def note(module: nn.Module, args: Any) -> None:
            if not isinstance(module, nn.Conv2d) or not args or not isinstance(args[0], Tensor) or found:
                return
            for leaf in tensors_of(batches.current):
                found.extend(_compared(names.get(id(module), "a convolution"), leaf, args[0]))

        stack.callback(nn.modules.module.register_module_forward_pre_hook(note).remove)

    if any(_is_channels_last(leaf.shape) for leaf in tensors_of(kept[0])) and examination.runs:
        run_watched(examination, watch, 1)
    if not found and isinstance(parts.loader, DataLoader):
        examination.run(lambda: found.extend(_stored(parts.loader.dataset)), 0.1)
    return found[0] if found else None


def _is_channels_last(shape: tuple[int, ...]) -> bool:
    return len(shape) == 4 and shape[3] in CHANNELS and min(shape[1:3]) > shape[3]


def _compared(where: str, before: Tensor, after: Tensor) -> Iterator[Scrambled]:
    """Yield what is wrong with images (N, C, H, W) that were made from images (N, H, W, C)."""
    if not _is_channels_last(before.shape) or after.ndim != 4 or torch._C._functorch.is_functorch_wrapped_tensor(after):
        return
    n, h, w, c = before.shape
    if after.shape not in ((n, c, h, w), (n, c, w, h)):
        return
    kept = _likeness(before.reshape(after.shape), after)
    moved = _likeness(before.permute(0, 3, 1, 2).reshape(after.shape), after)
    turned = _likeness(before.permute(0, 3, 2, 1).reshape(after.shape), after)
    if kept >= SAME and max(moved, turned) <= OTHER:
        yield Scrambled(where, (h, w, c), tuple(after.shape[1:]), max(moved, turned))


def _likeness(first: Tensor, second: Tensor) -> float:
    """Return the correlation of two batches of images, of the worst channel: scaling and shifting don't count."""
    values = []
    for channel in range(first.shape[1]):
        a, b = (images[:, channel].detach().reshape(-1).double().cpu() for images in (first, second))
        a, b = a - a.mean(), b - b.mean()
        length = float(a.norm() * b.norm())
        values.append(float(a @ b) / length if length > 0 else 0.0)
    return min(values)


def _stored(dataset: Any) -> Iterator[Scrambled]:
    """Compare the first example of a data set with the first image that it stores."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    if isinstance(dataset, torch.utils.data.IterableDataset):
        return
    stores = [_first_image(value) for value in getattr(dataset, "__dict__", {}).values()]
    images = [image for image in stores if image is not None]
    if not images:
        return
    for leaf in tensors_of(dataset[0]):
        for image in images:
            yield from _compared("dataset[0]", image[None], leaf[None]) if leaf.ndim == 3 else ()


def _first_image(value: Any) -> Tensor | None:
    is_stack = isinstance(value, (np.ndarray, Tensor)) and value.ndim == 4
    if not (is_stack or isinstance(value, (list, tuple))) or not len(value):
        return None
    image = value[0]
    if not isinstance(image, (np.ndarray, Tensor)) or image.ndim != 3 or not _is_channels_last((1, *image.shape)):
        return None
    if isinstance(image, np.ndarray) and image.dtype.kind not in "fiu":
        return None
    return torch.as_tensor(np.ascontiguousarray(image)) if isinstance(image, np.ndarray) else image
