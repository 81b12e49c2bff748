"""Ask the data set the same thing twice, and as its workers would."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset
from torch.utils.data._utils import worker as worker_module  # how a DataLoader tells a worker who it is

from course_utils.doctor.experiments.setup import workers_of
from course_utils.doctor.parts import tensors_of
from course_utils.doctor.running import Failure
from course_utils.doctor.snapshot import Snapshot

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination

FETCHED = 8  # examples of a stream that are compared
SPREAD = 64  # examples over the whole data set whose labels are looked at


@dataclass
class DataFacts:
    """What the data set does.

    Args:
        workers: of the loader, as the reader set it.
        is_edited: whether reading an example changes it for the next reading.
        edit_size: largest change between two readings of one example.
        worker_copies: whether two workers draw the same random numbers.
        epoch_copies: whether each epoch draws the same random numbers again.
        stream_copies: number of equal examples at the start of two workers' streams.
        ignores_rank: names of the attributes that say which process this is, and that change nothing.
        shared: examples that are in both training and validation data.
        val_random: whether validation examples are random, and the data set is the one of training.
        spread_labels: labels of examples spread over the data set.
        state_changed: names of plain attributes that reading changes.
    """

    workers: int = 0
    is_edited: bool = False
    edit_size: float = 0.0
    worker_copies: bool = False
    epoch_copies: bool = False
    stream_copies: int = 0
    ignores_rank: list[str] = field(default_factory=list)
    shared: int = 0
    shared_by: str = ""
    train_size: int = 0
    val_size: int = 0
    val_random: bool = False
    spread_labels: list[int] = field(default_factory=list)
    state_changed: list[str] = field(default_factory=list)
    is_random: bool = False
    failure: Failure | None = None
    train_stats: tuple[float, float] | None = None
    val_stats: tuple[float, float] | None = None


def probe_data(examination: Examination) -> DataFacts:
    """Look at the data set behind the loader, and at the validation data."""
    facts = DataFacts()
    loader = examination.parts.loader
    dataset = getattr(loader, "dataset", None)
    facts.workers = workers_of(examination, loader) if isinstance(loader, DataLoader) else 0
    if isinstance(loader, DataLoader):
        if isinstance(dataset, IterableDataset):
            examination.run(lambda: _streams(loader, dataset, facts), 0.15)
            examination.run(lambda: _ranks(dataset, facts), 0.15)
        elif dataset is not None and _size(dataset):
            examination.run(lambda: _readings(dataset, facts), 0.15)
            examination.run(lambda: _workers(loader, dataset, facts), 0.15)
            examination.run(lambda: _spread(examination, dataset, facts), 0.1)
    examination.run(lambda: _overlap(examination, facts), 0.2)
    examination.run(lambda: _validation(examination, dataset, facts), 0.15)
    return facts


def _size(dataset: Any) -> int:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return 0


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _copy(item: Any) -> list[Tensor]:
    return [torch.as_tensor(leaf).detach().clone() for leaf in _numbers(item)]


def _numbers(item: Any) -> list[Any]:
    from torch.utils._pytree import tree_leaves

    leaves = tree_leaves(item)
    return [
        leaf for leaf in leaves if isinstance(leaf, (Tensor, np.ndarray, float, int)) and not isinstance(leaf, bool)
    ]


def _equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(
        a.shape == b.shape and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
        for a, b in zip(first, second, strict=True)
    )


def _readings(dataset: Any, facts: DataFacts) -> None:
    """Read one example several times from the same random state: what differs was written into the data."""
    _seed(0)
    dataset[0]  # a cache is filled now, so that its arrays are among those that are compared
    before = Snapshot.of(dataset)
    own = [(generator, state) for generator, state in before._generators]
    readings = []
    for _ in range(3):
        _seed(0)
        for generator, state in own:
            _set(generator, state)
        readings.append(_copy(dataset[0]))
    changed = before.changed_arrays()
    before.restore()
    if changed and not _equal(readings[0], readings[1]) and not _equal(readings[1], readings[2]):
        facts.is_edited = True
        pairs = zip(readings[0], readings[1], strict=False)
        facts.edit_size = max(
            (float((a.double() - b.double()).abs().max()) for a, b in pairs if a.shape == b.shape and a.numel()),
            default=0.0,
        )


def _set(generator: Any, state: Any) -> None:
    from course_utils.doctor.snapshot import _set_generator_state

    _set_generator_state(generator, state)


def _as_worker(loader: DataLoader, dataset: Any, worker: int, workers: int, base_seed: int) -> None:
    """Put this process into the state in which worker number ``worker`` starts."""
    seed = base_seed + worker
    _seed(seed)
    info = worker_module.WorkerInfo(id=worker, num_workers=workers, seed=seed, dataset=dataset)
    worker_module._worker_info = info
    if loader.worker_init_fn is not None:
        loader.worker_init_fn(worker)


def _workers(loader: DataLoader, dataset: Any, facts: DataFacts) -> None:
    """Compare what two workers, and two epochs, draw for one example."""
    if facts.workers < 1:
        return
    before = Snapshot.of(dataset)
    own = [dataset] if not isinstance(dataset, Subset) else [dataset, dataset.dataset]

    def draw(worker: int, base_seed: int) -> list[list[Tensor]]:
        before.restore()
        _as_worker(loader, own[0], worker, facts.workers, base_seed)
        try:
            return [_copy(dataset[0]), _copy(dataset[0])]
        finally:
            worker_module._worker_info = None
            before.restore()

    first, second = draw(0, 1000), draw(1, 1000)
    facts.is_random = not _equal(first[0], first[1])
    if not facts.is_random:
        return
    facts.worker_copies = facts.workers > 1 and _equal(first[0], second[0]) and _equal(first[1], second[1])
    if not loader.persistent_workers:
        later = draw(0, 987654321)
        facts.epoch_copies = _equal(first[0], later[0]) and _equal(first[1], later[1])


def _streams(loader: DataLoader, dataset: Any, facts: DataFacts) -> None:
    """Compare the starts of two workers' streams."""
    if facts.workers < 2:
        return
    before = Snapshot.of(dataset)

    def start(worker: int) -> list[list[Tensor]]:
        before.restore()
        _as_worker(loader, dataset, worker, facts.workers, 1000)
        try:
            return [_copy(item) for item in itertools.islice(iter(dataset), FETCHED)]
        finally:
            worker_module._worker_info = None
            before.restore()

    first, second = start(0), start(1)
    same = sum(_equal(a, b) for a, b in zip(first, second, strict=False))
    if first and same == min(len(first), len(second)) and same > 0 and _varies(first):
        facts.stream_copies = same


def _varies(items: list[list[Tensor]]) -> bool:
    return len(items) < 2 or any(not _equal(items[0], other) for other in items[1:])


_RANK = ("rank", "local_rank", "global_rank", "process_index", "rank_id")
_WORLD = ("world", "world_size", "num_replicas", "num_ranks", "n_ranks", "num_processes", "nprocs")


def _ranks(dataset: Any, facts: DataFacts) -> None:
    """Change the number of this process, where the data set keeps one, and see whether the stream changes."""
    own = getattr(dataset, "__dict__", {})
    rank = next((name for name in own if name.strip("_") in _RANK and isinstance(own[name], int)), None)
    world = next((name for name in own if name.strip("_") in _WORLD and isinstance(own[name], int)), None)
    if rank is None or world is None or own[world] < 2:
        return
    before = Snapshot.of(dataset)

    def start(number: int) -> list[list[Tensor]]:
        before.restore()
        _seed(0)
        own[rank] = number
        try:
            return [_copy(item) for item in itertools.islice(iter(dataset), FETCHED)]
        finally:
            before.restore()

    first, second = start(0), start(1)
    if first and len(first) == len(second) and _varies(first) and all(map(_equal, first, second)):
        facts.ignores_rank = [rank, world]


def _spread(examination: Examination, dataset: Any, facts: DataFacts) -> None:
    size = _size(dataset)
    for index in dict.fromkeys(int(i * (size - 1) / (SPREAD - 1)) for i in range(SPREAD)):
        label = examination.parts.split(dataset[index])[1]
        if (isinstance(label, Tensor) and label.numel() == 1 and not label.is_floating_point()) or (
            isinstance(label, (int, np.integer)) and not isinstance(label, bool)
        ):
            facts.spread_labels.append(int(label))
        else:
            return


def _overlap(examination: Examination, facts: DataFacts) -> None:
    """Count examples that are in both training and validation data: by index, or by content."""
    parts = examination.parts
    train = parts.get("train_set") if parts.get("train_set") is not None else getattr(parts.loader, "dataset", None)
    val_loader = parts.get("val_loader")
    val = parts.get("val_set") if parts.get("val_set") is not None else getattr(val_loader, "dataset", None)
    if isinstance(train, Dataset) and isinstance(val, Dataset) and not isinstance(train, IterableDataset):
        ours, theirs = _indices(train), _indices(val)
        if ours is not None and theirs is not None and ours[0] is theirs[0]:
            facts.train_size, facts.val_size, facts.shared = _compared(ours[1], theirs[1])
            facts.shared_by = "index"
            if facts.shared:
                return
    if (val_loader is None and val is None) or parts.loader is val_loader:
        return
    ours = _contents(parts, parts.loader)
    theirs = _contents(parts, val_loader if val_loader is not None else DataLoader(val, 16))
    if not ours or not theirs:
        return
    distinct = all(len(set(some)) > 0.3 * len(some) for some in (ours, theirs))
    if ours and theirs and distinct and _are_rich(parts, parts.loader):
        facts.train_size, facts.val_size = len(ours), len(theirs)
        both = set(ours) & set(theirs)
        facts.shared, facts.shared_by = sum(row in both for row in theirs), "content"


def _compared(ours: Sequence[int], theirs: Sequence[int]) -> tuple[int, int, int]:
    """Return how many indices each side has, and how many are on both."""
    if ours == theirs and isinstance(ours, range):
        return len(ours), len(theirs), len(ours)
    short, long = (ours, theirs) if len(ours) < len(theirs) else (theirs, ours)
    known = long if isinstance(long, range) else set(long)
    return len(ours), len(theirs), sum(index in known for index in set(short))


def _indices(dataset: Any) -> tuple[Any, Sequence[int]] | None:
    """Return the data set at the bottom of nested subsets, and the indices that are used of it."""
    if not isinstance(dataset, Subset):
        size = _size(dataset)
        return (dataset, range(size)) if size else None
    below = _indices(dataset.dataset)
    return None if below is None else (below[0], [below[1][int(i)] for i in dataset.indices])


def _contents(parts: Any, loader: Any, most: int = 5000) -> list[bytes]:
    """Return the bytes of each example's floating inputs, for inputs that are hardly equal by chance."""
    found: list[bytes] = []
    for batch in itertools.islice(iter(loader), 500):
        leaves = [leaf for leaf in tensors_of(parts.split(batch)[0]) if leaf.is_floating_point() and leaf.ndim >= 1]
        if not leaves or leaves[0].ndim < 1:
            return []
        for row in leaves[0].detach().cpu():
            found.append(
                row.contiguous().numpy().tobytes() if row.dtype != torch.bfloat16 else str(row.tolist()).encode()
            )
        if len(found) > most:
            break
    return found


def _are_rich(parts: Any, loader: Any) -> bool:
    """Tell whether inputs are so rich that two equal ones are one example: few values occur twice."""
    for batch in itertools.islice(iter(loader), 1):
        leaves = [leaf for leaf in tensors_of(parts.split(batch)[0]) if leaf.is_floating_point()]
        if leaves and leaves[0].numel():
            values = leaves[0].detach().reshape(-1)
            return len(values.unique()) > 0.5 * min(len(values), 10_000) or leaves[0].numel() // len(leaves[0]) > 16
    return False


def _validation(examination: Examination, dataset: Any, facts: DataFacts) -> None:
    """See whether validation examples are random, and whether they are scaled as the training examples are."""
    parts = examination.parts
    val_loader = parts.get("val_loader")
    val = parts.get("val_set") if parts.get("val_set") is not None else getattr(val_loader, "dataset", None)
    train = parts.get("train_set") if parts.get("train_set") is not None else dataset
    if val is not None and not isinstance(val, IterableDataset) and _size(val):
        own = Snapshot.of(val)
        _seed(1)
        first = _copy(val[0])
        _seed(2)
        second = _copy(val[0])
        own.restore()
        below, below_train = _bottom(val), _bottom(train)
        facts.val_random = below is below_train and below is not None and not _equal(first, second)
    if val_loader is None or val_loader is parts.loader:
        return
    facts.train_stats, facts.val_stats = _stats(parts, parts.loader), _stats(parts, val_loader)


def _bottom(dataset: Any) -> Any:
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


def _stats(parts: Any, loader: Any) -> tuple[float, float] | None:
    values = []
    for batch in itertools.islice(iter(loader), 8):
        leaves = [leaf for leaf in tensors_of(parts.split(batch)[0]) if leaf.is_floating_point()]
        if not leaves:
            return None
        values.append(leaves[0].detach().float().reshape(-1))
    if not values:
        return None
    whole = torch.cat(values)
    return float(whole.mean()), float(whole.std())
