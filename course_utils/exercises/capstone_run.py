"""The check of lesson 09's clinic item: a training run that is repaired, which the doctor confirms."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from course_utils.exercises.capstone_data import pile_for
from course_utils.exercises.compare import describe, is_true
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.verdicts import Check

PARTS = ("model", "loader", "loss_fn", "optimizer", "step", "train", "evaluate")
N_EXAMPLES = 700  # upright ones with right labels; 70 are held out, no multiple of the batch size
EPOCHS, MIN_SHARE = 8, 0.7


def check_clinic_run(make_run: Callable, inputs: Inputs) -> Iterator[Check]:
    """capstone.clinic-run: parts without a finding of the doctor, and a run that learns."""
    from course_utils import doctor  # it watches what is made from then on: only where it is wanted

    pile, truth, _ = pile_for(inputs)
    chosen = torch.nonzero(~truth.unusable & ~truth.inverted).flatten()[:N_EXAMPLES]
    images, labels = pile.images[chosen], truth.labels[chosen]
    parts = make_run(images.clone(), labels.clone())
    yield is_true(
        "returns the parts as a dict",
        type(parts) is dict and all(name in parts for name in PARTS),
        detail=f"missing: {', '.join(name for name in PARTS if name not in parts)}"
        if type(parts) is dict
        else f"got {describe(parts)}",
        hint="Keep the seven keys. What isn't there can't be examined.",
    )
    model, loader, loss_fn, optimizer, step, train, evaluate = (parts[name] for name in PARTS)
    yield is_true(
        "the model is a module, the others can be called",
        isinstance(model, nn.Module) and all(map(callable, (loss_fn, step, train, evaluate))),
        hint="Repair the functions, and leave them functions.",
    )
    report = doctor.examine(**{name: parts[name] for name in PARTS})
    certain = [finding for finding in report.findings if finding.severity != "note"]
    yield is_true(
        "the doctor has neither an error nor a warning",
        not certain,
        detail=f"{certain[0].code}: {certain[0].message}" if certain else "",
        hint=f"Repair: {certain[0].fix}" if certain else "",
    )
    alone = doctor.examine(**{name: parts[name] for name in PARTS if name != "train"})
    certain = [finding for finding in alone.findings if finding.severity != "note"]
    yield is_true(
        "nor by step and evaluate alone",
        not certain,
        detail=f"{certain[0].code}: {certain[0].message}" if certain else "",
        hint=f"Repair: {certain[0].fix}" if certain else "",
    )
    n_read = sum(len(y) for _, y in loader)
    yield is_true(
        "the loader has the first nine tenths",
        n_read == len(labels) * 9 // 10,
        detail=f"{n_read} examples of {len(labels)}",
        hint="The last tenth is held out, all others are for training.",
    )
    before, again = _number(evaluate(model)), _number(evaluate(model))
    yield is_true(
        "evaluate gives the share of held-out digits that are right, each time the same",
        before is not None and before == again and 0 <= before <= 0.5,
        detail=f"two calls before training give {before} and {again}",
        hint="A number from 0 to 1, computed in eval mode; before training it is near one tenth.",
    )
    train(model, loader, loss_fn, optimizer, EPOCHS)
    after = _number(evaluate(model))
    yield is_true(
        f"after {EPOCHS} epochs at least {MIN_SHARE:.0%} of the held-out digits are right",
        after is not None and MIN_SHARE <= after <= 1,
        detail=f"before training {before:.0%}, afterwards {after}",
        hint="Does train call step for each batch, and does step move the weights?",
    )


def _number(value: object) -> float | None:
    """Return a plain number, or None; a tensor with one value counts."""
    if type(value) is Tensor and value.numel() == 1:
        value = value.item()
    return float(value) if type(value) in (int, float) else None
