"""Rules about the order of things in a training step: clearing, backward, clipping, updating, scheduling."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from course_utils.doctor.findings import ERROR, NOTE, WARNING, Seen, rule
from course_utils.doctor.tracing import Backward, Trace, Update
from course_utils.text import plural

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination
    from course_utils.doctor.experiments import Run

ZERO = "optimizer.zero_grad()  # before loss.backward(), in every step"
MICRO_FIX = "if i % k == 0: optimizer.zero_grad()  # once per update, not once per micro-batch"


def _groups(trace: Trace) -> Iterator[list[Update]]:
    """Yield the updates of each optimizer."""
    for key in trace.seen_optimizers:
        updates = [update for update in trace.updates if update.optimizer == key]
        if updates:
            yield updates


@rule(
    "loop.no-zero-grad", ERROR, "05_training",
    title="Gradients are not cleared between updates.",
    looks="follows which backward pass put what into each ``.grad``, and whether an update uses gradients that an "
    "earlier update of the same optimizer has used already.",
    quiet="gradients set to None by hand, cleared inside a closure (LBFGS), or left over in another optimizer's "
    "parameters (GAN) are no repeated use. Accumulation uses each gradient once.",
    fix=ZERO,
)  # fmt: skip
def no_zero_grad(examination: Examination) -> Iterator[Seen]:
    for trace in examination.traces:
        for updates in _groups(trace):
            stale = [update for update in updates if update.stale and not update.replaced]
            if len(stale) >= 1 and len(updates) >= 2 and len(stale) >= (len(updates) - 1) / 2:
                worst = max(len(update.sources) for update in stale)
                yield Seen(
                    f"{len(stale)} of {len(updates)} updates used gradients that earlier updates had used already: "
                    "they are never cleared, so each step adds all the ones before it.",
                    {
                        "updates": len(updates),
                        "with_old_gradients": len(stale),
                        "backward_passes_in_one_gradient": worst,
                    },
                )
                return


@rule(
    "loop.gradients-erased", ERROR, "05_training",
    title="Gradients are cleared between the backward pass and the update.",
    looks="an update for which no parameter has a gradient, although a backward pass since the last update made some.",
    quiet="gradients that another optimizer used, or that only served the gradient of an input, may be cleared.",
    fix="optimizer.zero_grad(); loss.backward(); optimizer.step()  # in this order",
)  # fmt: skip
def gradients_erased(examination: Examination) -> Iterator[Seen]:
    for trace in examination.traces:
        for updates in _groups(trace):
            empty = [update for update in updates if not update.has_gradients and update.erased]
            if empty and len(empty) >= len(updates) / 2:
                yield Seen(
                    f"In {len(empty)} of {len(updates)} updates the gradients had been cleared before "
                    "optimizer.step(), so no weight moved.",
                    {"updates": len(updates), "without_gradients": len(empty)},
                )
                return


@rule(
    "loop.accumulation-discarded", ERROR, "05_training",
    title="Gradients of micro-batches are thrown away before the update.",
    looks="backward passes whose gradients are cleared before any update used them, while the update takes only the "
    "last.",
    quiet="gradients of another optimizer's turn (GAN), of an adversarial input, with infinities, or replaced by "
    "hand (gradient surgery, per-example clipping) may be cleared.",
    fix=MICRO_FIX,
)  # fmt: skip
def accumulation_discarded(examination: Examination) -> Iterator[Seen]:
    for trace in examination.traces:
        for updates in _groups(trace):
            hit = [update for update in updates if update.erased and update.has_gradients and not update.replaced]
            if hit and len(hit) >= max(1, 0.6 * len(updates)) and not _only_at_borders(trace, hit):
                lost = sum(len(update.erased) for update in hit)
                yield Seen(
                    f"zero_grad() threw away the gradients of {lost} backward passes before "
                    f"{plural(len(hit), 'update')}: only the last micro-batch of each counts.",
                    {"updates": len(hit), "thrown_away": lost, "used": sum(len(update.sources) for update in hit)},
                )
                return


@rule(
    "loop.accumulation-tail", WARNING, "05_training",
    title="The last micro-batches of each epoch never reach an update.",
    looks="gradients that are cleared at the border between two epochs before any update used them.",
    quiet="judged only if whole epochs ran; gradients that are carried over into the next epoch are used there.",
    fix="if (i + 1) % k == 0 or i + 1 == len(loader): optimizer.step(); optimizer.zero_grad()",
)  # fmt: skip
def accumulation_tail(examination: Examination) -> Iterator[Seen]:
    training = examination.training
    if training is None or training.is_cut or training.failure is not None:
        return
    trace = training.trace
    for updates in _groups(trace):
        hit = [update for update in updates if update.erased and update.has_gradients and not update.replaced]
        if hit and _only_at_borders(trace, hit):
            lost = len(hit[0].erased)
            yield Seen(
                f"At the border of two epochs the gradients of {plural(lost, 'batch')} were cleared before an update "
                "used "
                "them: those batches never influence the weights.".replace("batchs", "batches"),
                {"borders": len(hit), "batches_lost_per_epoch": lost},
            )
            return


def _only_at_borders(trace: Trace, hit: list[Update]) -> bool:
    """Tell whether all cleared gradients came from an epoch that was over when they were cleared."""
    lost = [trace.backwards[number] for update in hit for number in update.erased]
    return (
        trace.epochs > 1
        and all(update.epoch > trace.backwards[n].epoch for update in hit for n in update.erased)
        and bool(lost)
    )


@rule(
    "loop.accumulation-not-divided", WARNING, "05_training",
    title="The losses of micro-batches are added, not averaged.",
    looks="several backward passes from different forward passes in one update, each from an undivided mean loss, "
    "with gradients that nobody divides before the update.",
    quiet="losses that are sums, several losses from one forward pass, gradients divided by hand or by clipping.",
    fix="(loss / k).backward()  # k micro-batches in one update",
)  # fmt: skip
def accumulation_not_divided(examination: Examination) -> Iterator[Seen]:
    training = examination.training
    if training is None:
        return
    trace = training.trace
    for updates in _groups(trace):
        several = [
            update for update in updates if len(update.sources) >= 2 and not update.with_closure and not update.stale
        ]
        if len(several) < max(1, len(updates) // 2):
            continue
        update = several[0]
        sources = [trace.backwards[number] for number in update.sources if number >= 0]
        if len({source.after for source in sources}) < len(sources) or len({source.batch for source in sources}) < 2:
            continue  # several losses of one forward pass or one batch
        if not 0.99 < update.grad_scale < 1.01 or not _is_undivided_mean(examination, sources):
            continue
        yield Seen(
            f"{len(sources)} backward passes of undivided mean losses make one update, so it is {len(sources)} times "
            "as large as that of one big batch.",
            {"micro_batches": len(sources), "factor": float(len(sources))},
        )
        return


def _is_undivided_mean(examination: Examination, sources: list) -> bool:
    """Tell whether what was differentiated is the loss function's own mean over the batch."""
    import torch

    from course_utils.doctor.parts import clone_tree

    parts, kept = examination.parts, examination.batches.kept
    if not kept or parts.loss_fn is None:
        return False
    values: list[float] = []
    means: list[bool] = []

    def go() -> None:
        with torch.no_grad():
            for batch in kept[:2]:
                inputs, labels = parts.split(clone_tree(batch))
                output = parts.forward(inputs)
                value = float(parts.loss_of(output, labels, batch))
                values.append(value)
                if isinstance(output, torch.Tensor) and isinstance(labels, torch.Tensor):
                    twice = float(parts.loss_of(torch.cat([output, output]), torch.cat([labels, labels]), batch))
                    means.append(abs(twice - value) <= 1e-4 * (abs(value) + 1e-12))

    outcome = examination.run(go, 0.1)
    if not outcome.is_done or not means or not all(means):
        return False
    return all(
        abs(source.root - value) <= 1e-3 * abs(value) + 1e-9 for source, value in zip(sources, values, strict=False)
    )


@rule(
    "loop.no-update", ERROR, "05_training",
    title="The step never updates the weights.",
    looks="whole steps with gradients after which every weight is bit for bit what it was.",
    quiet="a step whose update waits for more micro-batches moves the weights after a few steps.",
    fix="optimizer.step()  # after loss.backward()",
)  # fmt: skip
def no_update(examination: Examination) -> Iterator[Seen]:
    run, model = examination.run_facts, examination.model
    if run is None or model is None or run.failure is not None or run.weights_moved or len(run.trace.backwards) < 4:
        return
    trace = run.trace
    trainable = [p for p in model.parameters() if p.requires_grad]
    if not trace.nonzero & {id(p) for p in trainable}:
        return
    if any(event.facts["skipped"] for event in trace.of_kind("scaler-step")):
        return  # amp.every-step-skipped says it
    if trace.updates:
        update = trace.updates[-1]
        if not update.has_gradients or (update.unmoved_names and update.compared) or update.lr == 0:
            return  # more exact rules say it
        if not any(id(p) in examination.held for p in trainable):
            return
    elif len(trace.backwards) < 32 and not run.is_whole_epoch:
        return
    yield Seen(
        f"After {plural(run.count, 'step')} no weight has changed, although there are gradients"
        + (": optimizer.step() was never called." if not trace.updates else "."),
        {"steps": run.count, "backward_passes": len(trace.backwards), "updates": len(trace.updates)},
    )


@rule(
    "loop.step-before-backward", WARNING, "05_training",
    title="The update comes before the backward pass.",
    looks="the order of update and backward: a first update without any gradient, and later ones with old gradients.",
    quiet="a closure computes its gradients inside the update.",
    fix="loss.backward(); optimizer.step()  # in this order",
)  # fmt: skip
def step_before_backward(examination: Examination) -> Iterator[Seen]:
    for trace in examination.traces:
        for updates in _groups(trace):
            first = updates[0]
            others = [update for update in trace.updates if update.optimizer != first.optimizer]
            if first.sources or first.has_gradients or first.with_closure or first.erased or others or len(updates) < 2:
                continue
            if any(backward.reached for backward in trace.backwards) and updates[1].sources:
                yield Seen(
                    "The first optimizer.step() ran before any backward pass, and each later one uses the gradients "
                    "of the batch before.",
                    {"updates": len(updates)},
                )
                return


@rule(
    "loop.clip-misplaced", ERROR, "05_training",
    title="Clipping runs where it has no effect.",
    looks="calls of clip_grad_norm_ and clip_grad_value_ when there are no gradients yet, or after the update used "
    "them.",
    quiet="a call with an infinite limit only measures the norm.",
    fix="loss.backward(); torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0); optimizer.step()",
)  # fmt: skip
def clip_misplaced(examination: Examination) -> Iterator[Seen]:
    for trace in examination.traces:
        clips = [e for e in trace.of_kind("clip") if e.facts["limit"] != float("inf") and e.facts["is_known"]]
        idle = [event for event in clips if not event.facts["sources"] or event.facts["is_used"]]
        if len(idle) > 0 and len(idle) >= len(clips) * 0.9 and trace.updates:
            after = sum(event.facts["is_used"] for event in idle)
            what = "after the update had used the gradients" if after else "when there were no gradients"
            yield Seen(
                f"All {plural(len(idle), 'call')} that should clip gradients ran {what}: nothing was clipped.",
                {"calls": len(idle), "after_the_update": after, "where": idle[0].facts["where"]},
            )
            return


@rule(
    "loop.eval-mode-while-training", ERROR, "05_training",
    title="The model stays in evaluation mode after a validation.",
    looks="the mode of the model at each training step of your loop, where it begins in training mode.",
    quiet="a model that is in evaluation mode from the first step on (fine-tuning with kept statistics) is meant so, "
    "and so are single layers that are set to evaluation mode.",
    fix="model.train()  # at the start of each epoch, and after each validation",
)  # fmt: skip
def eval_mode_while_training(examination: Examination) -> Iterator[Seen]:
    training, model = examination.training, examination.model
    if training is None or model is None:
        return
    modes = [backward.training for backward in training.trace.backwards if backward.training is not None]
    if not modes or not any(modes) or all(modes) or not _has_mode_layers(model):
        return
    first_off = modes.index(False)
    if any(modes[:first_off]) and sum(not mode for mode in modes[first_off:]) >= max(2, 0.5 * len(modes[first_off:])):
        yield Seen(
            f"{sum(not mode for mode in modes)} of {len(modes)} training steps ran in evaluation mode, from step "
            f"{first_off} on: dropout is off and BatchNorm keeps its statistics there.",
            {"steps": len(modes), "in_evaluation_mode": sum(not mode for mode in modes), "first": first_off},
        )


def _has_mode_layers(model) -> bool:
    from course_utils.doctor.experiments.evaluating import _acts

    return any(_acts(module) for module in model.modules())


@rule(
    "loop.stale-state", ERROR, "02_autograd",
    title="A state is carried from batch to batch with its graph.",
    looks="the size of the graph under each loss: it grows from step to step.",
    quiet="sequences of varying length make the graph vary, not grow in every step.",
    fix="self.state = state.detach()  # truncated backpropagation through time",
)  # fmt: skip
def stale_state(examination: Examination) -> Iterator[Seen]:
    run = examination.run_facts
    if run is None:
        return
    holders = [name for name in run.holders if not name.startswith("list #")]
    if _graph_used_twice(run) is not None:
        return  # autograd.graph-used-twice says it
    if run.failure is not None and "second time" in run.failure.text and len(run.trace.backwards) > 1:
        where = f" {', '.join(holders)} still" if holders else " something"
        yield Seen(
            f"Step {run.failed_at} failed because its graph reaches into the step before, whose graph is "
            f"freed:{where} carries a tensor with a graph from one batch to the next.",
            {"failed_step": run.failed_at, "held_by": ", ".join(holders) or "unknown"},
        )
        return
    sizes = run.nodes[:8]
    if len(sizes) < 4 or len({backward.after for backward in run.trace.backwards[:8]}) < len(sizes):
        return
    differences = [b - a for a, b in itertools.pairwise(sizes)]
    if all(d > 0 for d in differences) and max(differences) <= 2 * min(differences) + 5:
        yield Seen(
            f"The graph under the loss grows with every step ({', '.join(map(str, sizes))} nodes): each batch is "
            "differentiated through all the ones before.",
            {"nodes_per_step": sizes, "held_by": ", ".join(holders) or "unknown"},
        )


def _graph_used_twice(run: Run) -> tuple[Backward, Backward] | None:
    """Return two backward passes of one step of which the second failed since the first had freed its graph."""
    if run.failure is None or "second time" not in run.failure.text or not run.trace.backwards:
        return None
    second = run.trace.backwards[-1]
    if second.shares_with is None:
        return None
    first = run.trace.backwards[second.shares_with]
    is_same_batch = (first.epoch, first.batch) == (second.epoch, second.batch)
    is_same_step = is_same_batch and (bool(run.trace.batch_sizes) or first.updates == second.updates)
    return (first, second) if is_same_step else None


@rule(
    "autograd.graph-used-twice", ERROR, "02_autograd",
    title="Two backward passes of one step go through one graph.",
    looks="a backward pass that fails because an earlier one of the same batch had freed a part of its graph.",
    quiet="a backward pass that keeps the graph (retain_graph=True), and one for the sum of the losses, don't fail.",
    fix="(first + second).backward()  # or first.backward(retain_graph=True)",
)  # fmt: skip
def graph_used_twice(examination: Examination) -> Iterator[Seen]:
    for run in examination.runs:
        pair = _graph_used_twice(run)
        if pair is None:
            continue
        first, second = pair
        between = (
            " An optimizer.step() came between them: for a generator and its critic, the critic's loss takes "
            "fake.detach()."
            if second.updates > first.updates
            else ""
        )
        yield Seen(
            f"{run.failure.line or 'backward()'} goes through layers that an earlier backward() of the same step has "
            f"gone through, and what they had saved is freed (values {first.root:.4g} and {second.root:.4g})."
            + between,
            {
                "first_value": first.root,
                "second_value": second.root,
                "updates_between": second.updates - first.updates,
                "where": run.failure.where,
            },
            fix="critic_loss = critic(fake.detach())" if between else None,
        )
        return


@rule(
    "loop.adversarial-gradients-kept", WARNING, "02_autograd",
    title="Gradients of the pass that attacks the input end up in the update.",
    looks="a backward pass that fills the ``.grad`` of an input, followed by another one, and an update that uses "
    "both.",
    quiet="torch.autograd.grad fills no parameter; inputs that an optimizer holds are parameters; two losses of one "
    "forward pass belong together.",
    fix="(g,) = torch.autograd.grad(loss, x)  # leaves the parameters' gradients alone",
)  # fmt: skip
def adversarial_gradients_kept(examination: Examination) -> Iterator[Seen]:
    for trace in examination.traces:
        hit = []
        for update in trace.updates:
            sources = [trace.backwards[n] for n in update.sources if n >= 0]
            if (
                len(sources) >= 2
                and sources[0].reached_inputs
                and not sources[-1].reached_inputs
                and sources[0].after < sources[-1].after
                and not update.stale
            ):
                hit.append(update)
        if hit and len(hit) >= len(trace.updates) / 2:
            yield Seen(
                "Each update contains the gradients of a backward pass that only served the gradient of the input.",
                {"updates": len(hit)},
            )
            return


@rule(
    "loop.same-order-each-epoch", WARNING, "04_data",
    title="Shuffled data come in the same order in every epoch.",
    looks="the first batches of two epochs of your loop, with a loader that shuffles.",
    quiet="loaders without shuffling, and data whose batches are all alike.",
    fix="sampler.set_epoch(epoch)  # or: one generator for all epochs, seeded once",
)  # fmt: skip
def same_order(examination: Examination) -> Iterator[Seen]:
    training = examination.training
    if training is None or not training.is_shuffling:
        return
    orders = [order for order in training.orders if len(order) >= 2]
    if len(orders) >= 2 and orders[0] == orders[1] and len(set(orders[0])) > 1:
        yield Seen(
            "The loader shuffles, and yet the first batches of two epochs are the same"
            + (": set_epoch() was never called." if not training.set_epochs else "."),
            {"epochs": len(orders), "set_epoch_calls": training.set_epochs},
        )


@rule(
    "amp.clip-before-unscale", ERROR, "06_memory",
    title="Scaled gradients are clipped.",
    looks="clipping between ``scaler.scale(loss).backward()`` and the update without ``scaler.unscale_``.",
    quiet="a disabled scaler, or a scale of 1, changes nothing.",
    fix="scaler.unscale_(optimizer); torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
)  # fmt: skip
def clip_before_unscale(examination: Examination) -> Iterator[Seen]:
    for trace in examination.traces:
        factors = [event.facts["factor"] for event in trace.of_kind("scale")]
        scaled = [e for e in trace.of_kind("clip") if e.facts["scaled"] and e.facts["limit"] != float("inf")]
        if scaled and factors and max(factors) > 1:
            yield Seen(
                f"Clipping to {scaled[0].facts['limit']:g} saw a gradient norm of {scaled[0].facts['norm']:.3g}: the "
                f"gradients still carry the scaler's factor {max(factors):g}, so the update becomes that much smaller.",
                {"norm": scaled[0].facts["norm"], "limit": scaled[0].facts["limit"], "scale": max(factors),
                 "where": scaled[0].facts["where"]},
            )  # fmt: skip
            return


@rule(
    "amp.scaler-bypassed", ERROR, "06_memory",
    title="The loss is scaled, but the update does not go through the scaler.",
    looks="an update outside ``scaler.step`` with gradients of a scaled loss that nobody unscaled.",
    quiet="gradients unscaled with ``scaler.unscale_`` are as they should be.",
    fix="scaler.step(optimizer); scaler.update()",
)  # fmt: skip
def scaler_bypassed(examination: Examination) -> Iterator[Seen]:
    for trace in examination.traces:
        factors = [event.facts["factor"] for event in trace.of_kind("scale")]
        wrong = [update for update in trace.updates if update.grads_scaled and 0.5 < _known(update.grad_scale) < 2]
        if wrong and factors and max(factors) > 1:
            yield Seen(
                f"optimizer.step() used gradients that are {factors[0]:g} times too large: the loss was scaled, and "
                "the scaler was left out of the update.",
                {"scale": factors[0], "updates": len(wrong), "where": wrong[0].where},
            )
            return


def _known(value: float) -> float:
    return 1.0 if value != value else value


@rule(
    "amp.loss-not-scaled", ERROR, "06_memory",
    title="The scaler updates with gradients of a loss that was not scaled.",
    looks="``scaler.step`` whose gradients come from a backward pass of an unscaled loss, while the scale is above 1.",
    quiet="a disabled scaler, or a scale of 1.",
    fix="scaler.scale(loss).backward()",
)  # fmt: skip
def loss_not_scaled(examination: Examination) -> Iterator[Seen]:
    for trace in examination.traces:
        factors = [event.facts["factor"] for event in trace.of_kind("scaler-step") if event.facts["is_enabled"]]
        wrong = [
            update for update in trace.updates
            if update.via_scaler and update.sources
            and not any(trace.backwards[n].scaled for n in update.sources if n >= 0)
        ]  # fmt: skip
        if wrong and factors and max(factors) > 1 and len(wrong) >= len(trace.updates) / 2:
            yield Seen(
                f"{len(wrong)} updates went through the scaler, but their loss was not scaled: the gradients are "
                f"divided by {max(factors):g} for nothing.",
                {"updates": len(wrong), "scale": max(factors)},
            )
            return


@rule(
    "amp.no-scaler-update", WARNING, "06_memory",
    title="The scaler is never updated.",
    looks="several ``scaler.step`` without any ``scaler.update``.",
    quiet="a disabled scaler needs none.",
    fix="scaler.step(optimizer); scaler.update()",
)  # fmt: skip
def no_scaler_update(examination: Examination) -> Iterator[Seen]:
    for trace in examination.traces:
        steps = trace.of_kind("scaler-step")
        if len(steps) >= 2 and not trace.of_kind("scaler-update") and trace.of_kind("scale"):
            yield Seen(f"scaler.step() ran {len(steps)} times and scaler.update() never.", {"steps": len(steps)})
            return


@rule(
    "amp.every-step-skipped", ERROR, "06_memory",
    title="The scaler skips every update.",
    looks="five or more ``scaler.step`` in a row that update nothing, while the scale falls.",
    quiet="a few skipped steps at the start are how the scaler finds its scale.",
    fix="find the operation that gives inf or NaN: torch.autograd.set_detect_anomaly(True)",
)  # fmt: skip
def every_step_skipped(examination: Examination) -> Iterator[Seen]:
    for trace in examination.traces:
        steps = trace.of_kind("scaler-step")
        skipped = [event for event in steps if event.facts["skipped"]]
        if len(steps) >= 6 and len(skipped) == len(steps) and not examination.batches.nonfinite:
            values = [b for b in trace.backwards if b.root != b.root]
            steps_run = (
                examination.steps if trace is examination.steps.trace else None
            )  # what step() returns is unscaled
            if steps_run is not None and steps_run.losses:
                values = values or [v for v in steps_run.losses if v in (float("inf"), -float("inf"))]
            if values or steps[-1].facts["factor"] < 1:
                yield Seen(
                    f"All {len(steps)} updates were skipped because the gradients are not finite, and the scale fell "
                    f"to {steps[-1].facts['factor']:g}.",
                    {"steps": len(steps), "scale": steps[-1].facts["factor"]},
                )
                return


@rule(
    "amp.autocast-around-steps", ERROR, "06_memory",
    title="One autocast block goes around several steps.",
    looks="updates inside an autocast block that is still open at the next one: the block keeps the weights' casts, "
    "so later forward passes work with old weights.",
    quiet="a block for each step, however much of the step it holds, and blocks with cache_enabled=False.",
    fix="for batch in loader:\n    with torch.autocast(device_type, dtype=torch.bfloat16): ...",
)  # fmt: skip
def autocast_around_steps(examination: Examination) -> Iterator[Seen]:
    for trace in examination.traces:
        blocks = [update.in_autocast for update in trace.updates if update.in_autocast is not None]
        repeated = {block for block in blocks if blocks.count(block) >= 2}
        if repeated:
            yield Seen(
                f"{len([b for b in blocks if b in repeated])} updates happened inside one autocast block: its cache "
                "keeps the weights as they were cast first, so the loss does not follow the updates.",
                {"updates_in_one_block": max(blocks.count(block) for block in repeated)},
            )
            return


@rule(
    "amp.no-scaler", WARNING, "06_memory",
    title="float16 without gradient scaling.",
    looks="backward passes after a float16 autocast block without a GradScaler.",
    quiet="bfloat16 has the range of float32 and needs no scaler; a loss scaled by hand shows in the gradients.",
    fix="scaler = torch.amp.GradScaler(device_type); scaler.scale(loss).backward(); scaler.step(optimizer); "
    "scaler.update()",
)  # fmt: skip
def no_scaler(examination: Examination) -> Iterator[Seen]:
    for trace in examination.traces:
        half = [event for event in trace.of_kind("autocast") if event.facts["dtype"] == "torch.float16"]
        if half and trace.backwards and not trace.of_kind("scale") and trace.updates:
            yield Seen(
                "The forward pass runs in float16 and the loss is not scaled: gradients below 6e-8 become 0.",
                {"autocast_blocks": len(half), "scaled_losses": 0},
            )
            return


@rule(
    "scheduler.before-optimizer", WARNING, "05_training",
    title="The scheduler steps before the optimizer.",
    looks="the order of ``scheduler.step()`` and ``optimizer.step()`` in the first updates.",
    quiet="a first update that the scaler skipped does not count.",
    fix="optimizer.step(); scheduler.step()  # in this order",
)  # fmt: skip
def scheduler_before_optimizer(examination: Examination) -> Iterator[Seen]:
    for trace in examination.traces:
        scheduled = trace.of_kind("schedule")
        if not scheduled or not trace.updates or any(e.facts["skipped"] for e in trace.of_kind("scaler-step")):
            continue
        first = scheduled[0]
        if first.at_update == 0 and any(u.optimizer == first.facts["optimizer"] for u in trace.updates):
            yield Seen(
                f"{first.facts['kind_name']}.step() ran before the first optimizer.step(): the first learning rate of "
                "the schedule is never used.",
                {
                    "where": first.facts["where"],
                    "skipped_learning_rate": first.facts["lr"][0] if first.facts["lr"] else 0.0,
                },
            )
            return


@rule(
    "scheduler.on-skipped-update", WARNING, "06_memory",
    title="The scheduler advances although the scaler skipped the update.",
    looks="``scheduler.step()`` after a ``scaler.step`` that updated nothing.",
    quiet="only skips that happen are judged.",
    fix="old = scaler.get_scale(); scaler.update()\nif scaler.get_scale() >= old: scheduler.step()",
)  # fmt: skip
def scheduler_on_skipped(examination: Examination) -> Iterator[Seen]:
    for trace in examination.traces:
        skipped = 0
        advanced = 0
        was_skipped = False
        for event in trace.events:
            if event.kind == "scaler-step":
                was_skipped = event.facts["skipped"]
                skipped += was_skipped
            elif event.kind == "schedule" and was_skipped:
                advanced += 1
                was_skipped = False
        if advanced:
            yield Seen(
                f"The scaler skipped {plural(skipped, 'update')}, and the schedule advanced {advanced} times with "
                "nothing learned: the first real update has the wrong learning rate.",
                {"skipped": skipped, "advanced_on_skip": advanced},
            )
            return


@rule(
    "scheduler.wrong-pace", WARNING, "05_training",
    title="The schedule runs at the wrong pace: per batch instead of per epoch, or the other way round.",
    looks="how often the scheduler steps in an epoch, and what a copy of it makes of the learning rate over a whole "
    "epoch.",
    quiet="OneCycle and warm-up per batch reach their end only after all epochs; restarts are meant to rise again.",
    fix="for epoch in range(epochs):\n    for batch in loader: ...\n    scheduler.step()",
)  # fmt: skip
def wrong_pace(examination: Examination) -> Iterator[Seen]:
    from course_utils.doctor.schedules import paces

    for pace in paces(examination):
        yield Seen(pace.message, pace.evidence, fix=pace.fix)
        return


@rule(
    "scheduler.other-optimizer", ERROR, "05_training",
    title="The scheduler belongs to an optimizer that is not used.",
    looks="which optimizer a scheduler holds, and which optimizers update.",
    quiet="several optimizers may each have their scheduler.",
    fix="scheduler = Scheduler(optimizer, …)  # after the optimizer is built for the last time",
)  # fmt: skip
def scheduler_other_optimizer(examination: Examination) -> Iterator[Seen]:
    used = {update.optimizer for trace in examination.traces for update in trace.updates}
    for scheduler in examination.parts.schedulers:
        optimizer = getattr(scheduler, "optimizer", None)
        if (
            optimizer is not None
            and id(optimizer) not in used
            and id(optimizer) not in map(id, examination.parts.optimizers)
        ):
            if not used:
                return
            rate = next(update.lr for trace in examination.traces for update in trace.updates)
            yield Seen(
                f"{type(scheduler).__name__} changes the learning rate of an optimizer that never updates; the one "
                "that does keeps its learning rate.",
                {"learning_rate_in_use": rate},
            )


@rule(
    "scheduler.never-steps", WARNING, "05_training",
    title="A scheduler is built and never stepped.",
    looks="the calls of step() on schedulers in a whole run of your loop over several epochs.",
    quiet="runs of one epoch, and runs that were cut for time: the scheduler may step outside of them.",
    fix="scheduler.step()  # after each epoch",
)  # fmt: skip
def scheduler_never_steps(examination: Examination) -> Iterator[Seen]:
    training = examination.training
    if training is None or training.is_cut or training.failure is not None or training.trace.epochs < 2:
        return
    trace = training.trace
    used = {update.optimizer for update in trace.updates}
    idle = [s for s in examination.parts.schedulers if id(getattr(s, "optimizer", None)) in used]
    if idle and not trace.of_kind("schedule") and len({update.lr for update in trace.updates}) == 1:
        yield Seen(
            f"{type(idle[0]).__name__} was not stepped once in {trace.epochs} epochs: the learning rate stays at "
            f"{trace.updates[-1].lr:g}.",
            {"epochs": trace.epochs, "updates": len(trace.updates), "calls": 0},
        )


@rule(
    "loop.foreign-gradients", WARNING, "05_training",
    title="An update contains gradients that were made for another optimizer.",
    looks="updates that use two backward passes of one batch, of which another optimizer had used the first one before "
    "the second ran.",
    quiet="one backward pass for several optimizers; gradients that are cleared, or cut off by detach, in between.",
    fix="critic_loss = critic(fake.detach())  # or generator_optimizer.zero_grad() before its own backward()",
)  # fmt: skip
def foreign_gradients(examination: Examination) -> Iterator[Seen]:
    for trace in examination.traces:
        hit = [update for update in trace.updates if _takes_foreign(trace, update)]
        if len(hit) >= 2 and len(hit) >= 0.3 * len(trace.updates):
            yield Seen(
                f"{len(hit)} of {len(trace.updates)} updates contain the gradients of an earlier loss of the same "
                "step, which another optimizer had used for its update: both losses are mixed here.",
                {"updates": len(trace.updates), "with_foreign_gradients": len(hit)},
            )
            return


def _takes_foreign(trace: Trace, update: Update) -> bool:
    sources = [trace.backwards[number] for number in update.sources if number >= 0]
    if len(sources) < 2 or update.stale or update.replaced or update.with_closure:
        return False
    first, last = sources[0], sources[-1]
    if (first.epoch, first.batch) != (last.epoch, last.batch):
        return False
    return any(
        other.optimizer != update.optimizer and first.index in other.sources
        for other in trace.updates[: update.index] if other.index < last.updates
    )  # fmt: skip


@rule(
    "scheduler.plateau-direction", WARNING, "05_training",
    title="ReduceLROnPlateau waits for a loss to rise.",
    looks="the mode of the scheduler and whether the number it gets is the loss.",
    quiet="mode='max' is right for an accuracy.",
    fix="ReduceLROnPlateau(optimizer, mode='min')",
)  # fmt: skip
def plateau_direction(examination: Examination) -> Iterator[Seen]:
    for trace in examination.traces:
        for event in trace.of_kind("schedule"):
            if event.facts["kind_name"] != "ReduceLROnPlateau" or event.facts["metric"] is None:
                continue
            scheduler = next((s for s in examination.parts.schedulers if id(s) == event.facts["scheduler"]), None)
            roots = [backward.root for backward in trace.backwards[: event.at_backward]]
            near = roots and min(roots) * 0.999 <= event.facts["metric"] <= max(roots) * 1.001
            if scheduler is not None and getattr(scheduler, "mode", "") == "max" and near and len(roots) >= 2:
                yield Seen(
                    "The scheduler has mode='max' and gets the loss: it lowers the learning rate while the loss falls.",
                    {"metric": event.facts["metric"], "mode": "max"},
                    severity=NOTE if min(roots) == max(roots) else None,
                )  # fmt: skip
                return
