"""Rules about what a loss asks for: what the model is pushed to, and what it is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from course_utils.doctor.experiments.objective import SURE
from course_utils.doctor.findings import NOTE, WARNING, Seen, rule

GROWTH = 1e-4  # of a gradient: less may be rounding

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination


@rule(
    "loss.wrong-sign", WARNING, "05_training",
    title="Each step moves the outputs away from the labels.",
    looks="the gradient that reaches the model's output in your own steps, and on which side of it the label lies: "
    "down the gradient, the label's logit falls, and numbers move away from theirs. And whether the gradient grows "
    "on that way, as it does where a loss is made larger, while it falls on the way to a minimum.",
    quiet="batches that are more than inputs and labels (rewards, weights), passes of which some move towards the "
    "labels (adversaries, forgetting some examples), distances that should be small for label 1, labels that name "
    "what is wrong, likelihoods under maximize=True. A loss that grows under maximize=True is a note.",
    fix="loss = -log_p.gather(1, y[:, None]).mean()  # the optimizer makes the loss smaller",
)  # fmt: skip
def wrong_sign(examination: Examination) -> Iterator[Seen]:
    facts = examination.objective
    held = {id(p) for p in examination.model.parameters()} if examination.model is not None else set()
    if len(facts.away) < 2 or min(facts.away) < SURE or not held & examination.weights_moved:
        return
    if not facts.growth > GROWTH:
        return
    cause = (
        "the optimizer has maximize=True, and the loss is one that should become small."
        if facts.is_climbing
        else "the loss has the wrong sign."
    )
    yield Seen(
        f"In {len(facts.away)} of {len(facts.away)} backward passes, the step moves at least {min(facts.away):.0%} of "
        f"the outputs away from their labels, and the gradient grows on the way: {cause}",
        {
            "passes": len(facts.away), "share_away": min(facts.away), "outputs": facts.outputs,
            "growth_of_gradient": facts.growth,
        },
        severity=NOTE if facts.is_climbing else None,
        fix="maximize=False" if facts.is_climbing else None,
    )  # fmt: skip
