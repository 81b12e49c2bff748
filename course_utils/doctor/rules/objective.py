"""Rules about what a loss asks for: what the model is pushed to, and what it is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from course_utils.doctor.experiments.objective import SURE
from course_utils.doctor.findings import ERROR, NOTE, WARNING, Seen, rule

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


@rule(
    "loss.target-is-learned", WARNING, "02_autograd",
    title="The target of a bootstrapped loss carries a gradient.",
    looks="comparisons in the graph of the loss whose two sides are separate answers of one trained network, one of "
    "them scaled and added to a number for each example (reward + discount · next value).",
    quiet="targets under no_grad or detached, targets of a network that no optimizer holds, distances between two "
    "answers, residuals of equations. Where the number is not one of the batch, and no action is chosen, it is a note.",
    fix="with torch.no_grad(): target = reward + gamma * target_net(next_state).amax(1)",
)  # fmt: skip
def target_is_learned(examination: Examination) -> Iterator[Seen]:
    found = sorted(examination.bootstraps, key=lambda bootstrap: not bootstrap.is_sure)
    if found:
        first = found[0]
        yield Seen(
            f"The target that is made at {first.where} is an answer of the network that is trained, and carries a "
            f"gradient: {first.shared} parameters learn from both sides of the comparison, and the target is pulled "
            "towards the prediction.",
            {"parameters_on_both_sides": first.shared, "where": first.where},
            severity=None if first.is_sure else NOTE,
        )


@rule(
    "loss.labels-not-shifted", ERROR, "05_training",
    title="The labels of a causal language model are the tokens that it is given.",
    looks="integer labels that equal the model's tokens place by place, and which answers change with one token: its "
    "own place's and later ones, and no earlier one.",
    quiet="labels one place later, also where model or loss move them; models that move their inputs; masked language "
    "models and autoencoders, whose answers depend on later tokens too.",
    fix="loss = F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:])",
)  # fmt: skip
def labels_not_shifted(examination: Examination) -> Iterator[Seen]:
    echo = examination.echo
    least = 1e-5 * echo.scale if echo is not None else 0.0
    if echo is None or echo.own <= least or echo.later <= least or echo.earlier > least:
        return
    yield Seen(
        f"All {echo.places} labels at {echo.where} equal the token at the same place, and the model sees that token: "
        f"its answer there changes by {echo.own:.3g} with it, and later ones by {echo.later:.3g}. It learns to copy, "
        "not to predict.",
        {"places": echo.places, "change_at_its_place": echo.own, "change_later": echo.later, "where": echo.where},
    )
