"""Facts about the memory behind tensors: which storage, which bytes, in which order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode  # PyTorch's documented way to see every operator
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Layout:
    """How a tensor reads its storage.

    Args:
        shape: length of each axis.
        strides: for each axis, how many elements further in storage its next index lies.
        offset: position in storage of the element with all indices 0.
        element_bytes: size of one element.
        storage_bytes: size of the whole storage, which may be more than this tensor reads.
        is_contiguous: whether reading row by row walks the storage without a gap.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    element_bytes: int
    storage_bytes: int
    is_contiguous: bool


def layout(tensor: Tensor) -> Layout:
    """Return how ``tensor`` reads its storage; nothing is copied."""
    return Layout(
        shape=tuple(tensor.shape),
        strides=tuple(tensor.stride()),
        offset=tensor.storage_offset(),
        element_bytes=tensor.element_size(),
        storage_bytes=tensor.untyped_storage().nbytes(),
        is_contiguous=tensor.is_contiguous(),
    )


def shares_storage(first: Tensor, second: Tensor) -> bool:
    """Tell whether two tensors live on one storage, so that an in-place change of one can reach the other.

    Empty tensors and tensors on the meta device hold no memory, and share none.
    """
    if first.device != second.device or first.device.type == "meta":
        return False
    address = first.untyped_storage().data_ptr()
    return address != 0 and address == second.untyped_storage().data_ptr()


def positions(tensor: Tensor) -> list[int]:
    """Return the position in storage of each element, in reading order: offset plus index times stride, summed."""
    steps = [
        [index * stride for index in range(size)] for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    return [tensor.storage_offset() + sum(combination) for combination in product(*steps)]


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of all storages behind ``tensors``; one that several tensors share counts once."""
    return sum(_storages(tensors).values())


@dataclass
class NewBytes:
    """What ``counting_new_bytes`` has counted so far, in bytes."""

    total: int = 0


@contextmanager
def counting_new_bytes() -> Iterator[NewBytes]:
    """Count the bytes of every storage that PyTorch's operators make inside the block.

    Temporary tensors count too, and memory that is given back in between is not subtracted: this is what was
    written anew, not the peak. Views and in-place operators make no storage, so they count 0.

    Example:
        >>> import torch
        >>> x = torch.zeros(2, 3)
        >>> with counting_new_bytes() as new:
        ...     y = x.t().contiguous()
        >>> new.total
        24
    """
    count = NewBytes()
    with _Counter(count):
        yield count


@dataclass
class SavedBytes:
    """What autograd keeps for the backward pass, in bytes of storage; each storage counts once.

    ``parameters`` and ``inputs`` exist anyway; ``activations`` are kept for backward alone.
    """

    parameters: int = 0
    inputs: int = 0
    activations: int = 0

    @property
    def total(self) -> int:
        return self.parameters + self.inputs + self.activations


@contextmanager
def recording_saved(parameters: Iterable[Tensor] = (), inputs: Iterable[Tensor] = ()) -> Iterator[SavedBytes]:
    """Count the bytes of what the forward passes in the block save for backward.

    Keep the outputs until the block ends: memory that was given back may be used again, and would count once.
    The tensors are counted, not held. In the block, autograd does not notice in-place changes of what it saved.

    Args:
        parameters: tensors whose storages count as parameters.
        inputs: tensors whose storages count as inputs.

    Example:
        >>> import torch
        >>> x = torch.zeros(1000, requires_grad=True)
        >>> with recording_saved(inputs=[x]) as saved:
        ...     y = x.exp() * x  # exp saves its result, the product both factors
        >>> saved
        SavedBytes(parameters=0, inputs=4000, activations=4000)
    """
    count = SavedBytes()
    owners = dict.fromkeys(_storages(inputs), "inputs") | dict.fromkeys(_storages(parameters), "parameters")
    seen: set[tuple[str, int]] = set()

    def note(tensor: Tensor) -> Tensor:
        for storage, size in _storages([tensor]).items():
            if storage not in seen:
                seen.add(storage)
                owner = owners.get(storage, "activations")
                setattr(count, owner, getattr(count, owner) + size)
        return tensor.detach()  # the tensor itself would hold the node that holds it

    with saved_tensors_hooks(note, lambda tensor: tensor):
        yield count


class _Counter(TorchDispatchMode):
    """Sees each operator just before it runs, below views and composite functions; made by counting_new_bytes."""

    def __init__(self, count: NewBytes) -> None:
        super().__init__()
        self.count = count

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        known = _storages(_tensors((args, kwargs)))
        made = _storages(_tensors(result))
        self.count.total += sum(size for address, size in made.items() if address not in known)
        return result


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _storages(tensors: Iterable[Tensor]) -> dict[tuple[str, int], int]:
    """Return the bytes of each storage behind ``tensors``, by device and address."""
    storages = ((tensor.device, tensor.untyped_storage()) for tensor in tensors)
    return {(str(device), storage.data_ptr()): storage.nbytes() for device, storage in storages}
