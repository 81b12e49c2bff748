"""Make the set-up observable: loaders work in this process while they are examined."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination


def prepare(examination: Examination) -> None:
    """Have every reachable DataLoader load in this process; the snapshot puts its workers back."""
    for loader in examination.snapshot.found(DataLoader):
        vars(loader)["num_workers"] = 0
        vars(loader)["_iterator"] = None  # the reader's running workers are kept, out of sight
        vars(loader)["prefetch_factor"] = None


def workers_of(examination: Examination, loader: object) -> int:
    """Return how many workers the reader asked for."""
    for owner, attributes in examination.snapshot._attributes:
        if owner is loader:
            return int(attributes.get("num_workers", 0))
    return 0
