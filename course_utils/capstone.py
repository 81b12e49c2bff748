"""The capstone's pile of data: digits as a project hands them over, with faults that only this module knows.

The faults are those of real piles: labels by people who confuse what looks alike, images that arrived broken, blank or
with the colours turned round, and classes of which there are hardly any. Each seed plants them elsewhere, so an answer
can be tried on a pile that nobody has seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from course_utils.data import affine_augment, load_digits28
from course_utils.seeding import stream

RARE = (5, 8)  # digits of which few examples are left
RARE_SHARE = 0.15
CONFUSED = {4: 9, 9: 4, 1: 7, 7: 1}  # what the hasty annotator mixes up
HASTY = 2  # the annotator who does
HASTY_SHARE = 0.6
SLIP_SHARE = 0.03  # wrong labels of everybody
N_ANNOTATORS = 3
N_BROKEN, N_BLANK, N_INVERTED = 80, 80, 200
PEAK = 255.0


@dataclass(frozen=True, eq=False)
class Pile:
    """What the project hands over.

    Attributes:
        images: shape (N, 1, 28, 28), float32, meant to be 0 (paper) to 255 (ink).
        labels: shape (N,), int64, each in 0..9, as the annotators gave them.
        annotators: shape (N,), int64, who gave the label.
    """

    images: Tensor
    labels: Tensor
    annotators: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Truth:
    """What is wrong with a pile; all of shape (N,).

    Attributes:
        labels: the right labels, int64.
        broken: the image holds nan.
        blank: the image is all paper, whatever was written there.
        inverted: ink and paper are exchanged.
    """

    labels: Tensor
    broken: Tensor
    blank: Tensor
    inverted: Tensor

    @property
    def unusable(self) -> Tensor:
        """Examples that nothing can be learned from, shape (N,), bool. An inverted image can be turned back."""
        return self.broken | self.blank


def make_pile(seed: int) -> tuple[Pile, Truth]:
    """Return a pile of about 3,300 digits and what is wrong with it; the same for the same seed."""
    train, validation, _ = load_digits28()
    images = torch.cat([train.images, validation.images]).float()
    right = torch.cat([train.labels, validation.labels])
    draws = stream(seed, "capstone", "pile")

    def chance(share: float) -> Tensor:
        return torch.rand(len(right), generator=draws) < share

    is_rare = torch.isin(right, torch.tensor(RARE))
    kept = torch.nonzero(~is_rare | chance(RARE_SHARE)).flatten()
    kept = kept[torch.randperm(len(kept), generator=draws)]
    images, right = images[kept], right[kept]

    annotators = torch.randint(N_ANNOTATORS, (len(right),), generator=draws)
    labels = right.clone()
    is_hasty = (annotators == HASTY) & chance(HASTY_SHARE)
    for digit, other in CONFUSED.items():
        labels[is_hasty & (right == digit)] = other
    slips = chance(SLIP_SHARE)
    labels[slips] = (right[slips] + torch.randint(1, 10, (int(slips.sum()),), generator=draws)) % 10

    order = torch.randperm(len(right), generator=draws)  # no image has two faults
    broken = _marked(len(right), order[:N_BROKEN])
    blank = _marked(len(right), order[N_BROKEN : N_BROKEN + N_BLANK])
    inverted = _marked(len(right), order[N_BROKEN + N_BLANK :][:N_INVERTED])
    images[broken, :, 10:14] = torch.nan  # four rows of pixels never arrived
    images[blank] = 0.0
    images[inverted] = PEAK - images[inverted]
    return Pile(images, labels, annotators), Truth(right, broken, blank, inverted)


def _marked(count: int, places: Tensor) -> Tensor:
    marks = torch.zeros(count, dtype=torch.bool)
    marks[places] = True
    return marks


def hidden_digits(seed: int, count: int = 1000) -> tuple[Tensor, Tensor]:
    """Return images (count, 1, 28, 28), 0..255, and right labels (count,): digits that are in no pile.

    They are the test digits, each turned, moved and resized a little at random, so that no two seeds give the same.
    """
    _, _, test = load_digits28()
    draws = stream(seed, "capstone", "hidden")
    chosen = torch.randperm(len(test), generator=draws)[:count]
    images = affine_augment(test.images[chosen].float(), draws, degrees=5.0, shift=0.05, scale=0.05)
    return images.round().clamp(0, PEAK), test.labels[chosen]


def balanced_accuracy(predictions: Tensor, labels: Tensor) -> float:
    """Return the mean over the classes of the share that was recognised; a rare class counts as much as a frequent one.

    Args:
        predictions, labels: shape (N,), whole numbers.
    """
    classes = labels.unique()
    return torch.stack([(predictions[labels == c] == c).float().mean() for c in classes]).mean().item()
