"""Look at the loader's batches without the model."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from course_utils.doctor.parts import batch_size, clone_tree, is_one_shot, length_of, named_leaves
from course_utils.doctor.running import Failure, attempt

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination

KEPT = 40  # batches that later experiments use
SCANNED = 2000  # batches at most that are looked at for values
SCAN_S = 0.4


@dataclass(frozen=True)
class NonFinite:
    """A value in the data that is no number."""

    batch: int
    leaf: str
    example: int
    place: tuple[int, ...]
    is_nan: bool
    is_input: bool


@dataclass
class Batches:
    """What the loader yields.

    Args:
        kept: the first batches, as they came.
        sizes: examples in each batch that was looked at.
        fetch_s: time per batch, s.
        failure: the exception that the loader raised.
        is_whole: whether the loader came to its end.
        length: what ``len(loader)`` says.
        labels: for integer labels of one axis, the labels of each batch.
    """

    kept: list[Any] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    fetch_s: float = 0.0
    failure: Failure | None = None
    failed_at: int = -1
    is_whole: bool = False
    is_one_shot: bool = False
    length: int | None = None
    nonfinite: list[NonFinite] = field(default_factory=list)
    labels: list[torch.Tensor] = field(default_factory=list)


def look_at_batches(examination: Examination) -> Batches:
    """Go through the loader for a short time."""
    parts = examination.parts
    facts = Batches(length=length_of(parts.loader), is_one_shot=is_one_shot(parts.loader))
    if parts.loader is None:
        return facts
    started = time.perf_counter()
    most = KEPT if facts.is_one_shot else SCANNED

    def go() -> None:
        for number, batch in enumerate(parts.loader):
            facts.sizes.append(batch_size(batch) or 0)
            if number < KEPT:
                facts.kept.append(batch if facts.is_one_shot else clone_tree(batch))
            _scan(facts, number, parts.split(batch))
            spent = time.perf_counter() - started
            if number + 1 >= most or (spent > SCAN_S and number >= 3) or spent > 0.2 * examination.budget.limit_s:
                return
        facts.is_whole = True

    examination._is_dirty = True
    outcome = attempt(go, examination.budget.limit_s / 3)
    examination.rewind()
    facts.failure, facts.failed_at = outcome.failure, len(facts.sizes)
    facts.fetch_s = outcome.seconds / max(1, len(facts.sizes))
    if facts.is_one_shot:
        examination.remarks.append(
            f"The loader is an iterator; the doctor took {len(facts.sizes)} batches that can't be put back."
        )
    return facts


def _scan(facts: Batches, number: int, pair: tuple[Any, Any]) -> None:
    for is_input, tree in ((True, pair[0]), (False, pair[1])):
        for name, leaf in named_leaves(tree, "inputs" if is_input else "labels"):
            if not leaf.is_floating_point() or len(facts.nonfinite) >= 20 or leaf.numel() == 0:
                continue
            if not bool(torch.isfinite(leaf.sum())):
                bad = (~torch.isfinite(leaf)).nonzero()
                if len(bad):
                    place = tuple(bad[0].tolist())
                    is_nan = bool(torch.isnan(leaf[place]))
                    facts.nonfinite.append(
                        NonFinite(number, name, place[0] if place else 0, place[1:], is_nan, is_input)
                    )
    labels = pair[1]
    if isinstance(labels, torch.Tensor) and _are_classes(labels):
        facts.labels.append(labels.detach().reshape(-1).long().clone())


def _are_classes(labels: torch.Tensor) -> bool:
    """Tell whether a batch has one class for each example: whole numbers, or 0.0 and 1.0."""
    if labels.numel() != labels.shape[0] if labels.ndim else True:
        return False
    if labels.is_floating_point():
        return bool(((labels == 0) | (labels == 1)).all())
    return not labels.is_complex()
