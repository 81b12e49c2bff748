"""Rules about which parameters learn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from course_utils.doctor.findings import ERROR, NOTE, WARNING, Seen, rule
from course_utils.doctor.schedules import simulate
from course_utils.text import plural

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination
    from course_utils.doctor.experiments import Run
    from course_utils.doctor.tracing import Trace

FORESEEN = 1000  # steps of a schedule that are played forward


def _some(names: list[str], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _run(examination: Examination) -> Run | None:
    """Return the run that tells which parameters get gradients, or None if nothing ran to its end."""
    return next((run for run in examination.runs if run.failure is None and run.trace.backwards), None)


def _owner(model: nn.Module, name: str) -> nn.Module | None:
    try:
        return model.get_submodule(name.rpartition(".")[0])
    except AttributeError:
        return None


@rule(
    "optimizer.parameters-missing", ERROR, "05_training",
    title="Parameters get gradients, but no optimizer holds them.",
    looks="the parameters that get gradients in training steps, and those that the optimizers hold, including "
    "optimizers that your functions hold.",
    quiet="frozen parameters; the early part of a network whose optimizer was given only the later part is a note, "
    "since that is how a fixed feature extractor is often written; parameters that other optimizers hold.",
    fix="optimizer = torch.optim.Adam(model.parameters(), lr)  # after the last layer is in place",
)  # fmt: skip
def parameters_missing(examination: Examination) -> Iterator[Seen]:
    model = examination.model
    if model is None or not examination.optimizers:
        return
    held = set(examination.held)
    for trace in examination.traces:
        for optimizer in trace.seen_optimizers.values():
            held |= {id(p) for group in optimizer.param_groups for p in group["params"]}
    yield from _loss_s_own(examination, held)
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    trained = examination.trained
    missing = [(n, p) for n, p in named if id(p) not in held and (id(p) in trained)]
    if not missing:
        return
    moved = examination.weights_moved
    if any(id(p) in moved for _, p in missing):
        return  # somebody updates them by hand
    own = {id(p) for _, p in named}
    stray = [p for p in _held(examination) if id(p) not in own and id(p) not in trained]
    names = [name for name, _ in missing]
    evidence = {"without_optimizer": len(missing), "held_but_not_in_model": len(stray)}
    if stray:
        yield Seen(
            f"{_some(names)} get gradients but are in no optimizer, and the optimizer holds "
            f"{plural(len(stray), 'tensor')} that the model does not have: the model was changed after the optimizer "
            "was built.",
            evidence,
        )
        return
    in_use = [n for n, p in named if id(p) in held]
    prefix = bool(in_use) and _is_prefix(model, names, in_use)
    yield Seen(
        f"{_some(names)} get gradients but are in no optimizer, so they never change."
        + (" If that is meant, freeze them with requires_grad_(False): then their gradients cost "
        "nothing." if prefix else ""),
        evidence, severity=NOTE if prefix else None,
    )  # fmt: skip


def _loss_s_own(examination: Examination, held: set[int]) -> Iterator[Seen]:
    """Yield parameters of the loss itself, such as centres and temperatures, that nobody updates."""
    loss = examination.parts.loss_fn
    if not isinstance(loss, nn.Module):
        return
    own = {id(p) for p in examination.model.parameters()} if examination.model is not None else set()
    missing = [
        name for name, p in loss.named_parameters(recurse=False)
        if id(p) in examination.trained and id(p) not in held | own and id(p) not in examination.weights_moved
    ]  # fmt: skip
    if missing:
        yield Seen(
            f"The loss has parameters of its own, {_some(missing)}, which get gradients and are in no optimizer.",
            {"without_optimizer": len(missing), "held_but_not_in_model": 0},
            fix="torch.optim.Adam([*model.parameters(), *loss_fn.parameters()], lr)",
        )


def _held(examination: Examination) -> list[Tensor]:
    return [p for item in examination.optimizers for group in item.param_groups for p in group["params"]]


def _is_prefix(model: nn.Module, missing: list[str], in_use: list[str]) -> bool:
    """Tell whether the missing parameters are whole layers at the beginning of the network."""
    order = [name for name, _ in model.named_parameters()]
    is_early = max(order.index(name) for name in missing) < min(order.index(name) for name in in_use)
    owners = {name.rpartition(".")[0] for name in missing}
    return is_early and "" not in owners and not owners & {name.rpartition(".")[0] for name in in_use}


@rule(
    "optimizer.no-gradient", ERROR, "02_autograd",
    title="Parameters in the optimizer never get a gradient.",
    looks="parameters whose layer runs in training steps, but whose ``.grad`` stays None in all of them: the graph "
    "is cut.",
    quiet="parameters of layers that did not run (heads of other tasks, experts) are a note; frozen ones and those "
    "of targets and teachers that no optimizer holds are not mentioned.",
    fix="find the detach(), .data, .item(), numpy() or no_grad() between these layers and the loss",
)  # fmt: skip
def no_gradient(examination: Examination) -> Iterator[Seen]:
    model, run = examination.model, _run(examination)
    if model is None or run is None or (not run.trace.trained and not run.trace.updates):
        return
    trace, trained = run.trace, examination.trained
    if run.loss_is_leaf and not trained:
        return  # numerics: the loss itself is cut off
    cut, idle = [], []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad or id(parameter) in trained or id(parameter) not in examination.held:
            continue
        owner = _owner(model, name)
        if owner is not None and trace.called.get(id(owner)):
            cut.append(name)
        elif (
            owner is not None
            and any(trace.called.get(id(m)) for m in _ancestors(model, name))
            and not list(owner.children())
        ):
            idle.append(name)
    if cut and trained:
        yield Seen(
            f"{_some(cut)} never get a gradient, although their layers run: the graph is cut between them and the "
            "loss.",
            {"parameters": len(cut), "steps": max(run.count, 1)},
        )
    elif cut:
        yield Seen(
            f"No parameter gets a gradient ({_some(cut)}): the loss does not depend on the model's weights.",
            {"parameters": len(cut), "steps": max(run.count, 1)},
        )
    if idle:
        yield Seen(
            f"{_some(idle)} took no part in {plural(run.count, 'step')}: their layers did not run. "
            "DistributedDataParallel would wait for their gradients.",
            {"parameters": len(idle)}, severity=NOTE, fix="remove the layers, or DistributedDataParallel(model, "
                "find_unused_parameters=True)",
        )  # fmt: skip


def _ancestors(model: nn.Module, name: str) -> list[nn.Module]:
    parts = name.split(".")[:-1]
    return [model.get_submodule(".".join(parts[:i])) for i in range(len(parts))]


@rule(
    "optimizer.gradient-always-zero", WARNING, "02_autograd",
    title="The gradient of a layer is exactly zero in every step.",
    looks="weight matrices that get a gradient in four or more steps, but never one other than zero, while others do.",
    quiet="gates that start at zero open after a few updates; losses that are zero have nothing to teach; biases are "
    "not judged.",
    fix="look for round(), argmax, comparisons, a softmax over one value, or dead ReLU units before the loss",
)  # fmt: skip
def gradient_zero(examination: Examination) -> Iterator[Seen]:
    model, steps = examination.model, _run(examination)
    if model is None or steps is None or steps.count < 4:
        return
    trace = steps.trace
    if all(loss == 0 for loss in steps.losses) or (examination.batches.is_one_shot and steps.count < 4):
        return
    nonzero = trace.nonzero
    zero = [
        n for n, p in model.named_parameters()
        if p.requires_grad and p.ndim >= 2 and id(p) in trace.trained
        and id(p) not in nonzero and id(p) in examination.held
    ]  # fmt: skip
    used = [
        n
        for n in zero
        if (owner := _owner(model, n)) is not None and not isinstance(owner, (nn.Embedding, nn.EmbeddingBag))
    ]
    used = [
        n
        for n in used
        if steps.values_into.get(n.rpartition(".")[0] or type(model).__name__, (1.0, 1.0, False))[:2] != (0.0, 0.0)
    ]
    whole = steps.is_whole_epoch or steps.count >= 12
    if used and whole:
        yield Seen(
            f"The gradient of {_some(used)} is exactly 0 in all {steps.count} steps.",
            {"steps": steps.count, "weights": len(used), "weights_that_learn": len(nonzero)},
        )


@rule(
    "optimizer.update-vanishes", ERROR, "06_memory",
    title="Updates are too small to change the weights.",
    looks="the share of weights with a gradient that an update leaves bit for bit as they were.",
    quiet="judged by what moves, so bfloat16 weights with large enough updates, or rounded at random, pass.",
    fix="model.float(); with torch.autocast(device_type, dtype=torch.bfloat16): loss = …  # float32 weights",
)  # fmt: skip
def update_vanishes(examination: Examination) -> Iterator[Seen]:
    model = examination.model
    if model is None:
        return
    for trace in examination.traces:
        usable = [u for u in trace.updates if u.compared >= 1 and u.finite and u.lr > 0 and not u.with_closure]
        if len(usable) < 3:
            continue
        share = 1 - sum(u.moved * u.compared for u in usable) / sum(u.compared for u in usable)
        dtypes = {p.dtype for p in model.parameters() if p.requires_grad}
        low = bool(dtypes & {torch.bfloat16, torch.float16})
        if share >= (0.9 if low else 0.999) and not _clipped_to_nothing(trace):
            kind = ", ".join(sorted(str(d).removeprefix("torch.") for d in dtypes))
            yield Seen(
                f"{share:.0%} of the weights with a gradient stay as they were in {len(usable)} updates ({kind}, "
                f"learning rate {usable[-1].lr:g}): the updates are rounded away.",
                {"share_that_stays": share, "updates": len(usable), "learning_rate": usable[-1].lr},
                fix=None if low else "a larger learning rate",
            )
            return


def _clipped_to_nothing(trace) -> bool:
    return any(event.facts["scaled"] for event in trace.of_kind("clip"))


@rule(
    "optimizer.half-weights", WARNING, "06_memory",
    title="The trained weights are float16.",
    looks="the dtype of the parameters that an optimizer holds.",
    quiet="frozen half-precision weights below trained float32 ones (adapters) are fine.",
    fix="model.float()  # and autocast for the forward pass",
)  # fmt: skip
def half_weights(examination: Examination) -> Iterator[Seen]:
    half = [p for p in _held(examination) if p.requires_grad and p.dtype == torch.float16]
    if half:
        yield Seen(
            f"{plural(len(half), 'trained tensor')} are float16: small updates are rounded away, and Adam's eps of "
            "1e-8 becomes 0.",
            {"tensors": len(half)},
        )


@rule(
    "optimizer.learning-rate-zero", WARNING, "05_training",
    title="The learning rate is zero.",
    looks="the learning rate of every update, and what a copy of the schedule makes of it.",
    quiet="a schedule that starts at 0 raises it.",
    fix="torch.optim.SGD(model.parameters(), lr=0.01)",
)  # fmt: skip
def rate_zero(examination: Examination) -> Iterator[Seen]:
    for trace in examination.traces:
        if len(trace.updates) < 3 or any(update.lr for update in trace.updates):
            continue
        evidence: dict[str, Any] = {"updates": len(trace.updates)}
        rates = [rate for scheduler in _schedulers(examination, trace) for rate in simulate(scheduler, FORESEEN)]
        if rates and max(rates) == 0:
            evidence["steps_foreseen"] = FORESEEN
            yield Seen(
                f"All {len(trace.updates)} updates had a learning rate of 0, and the schedule leaves it there for the "
                f"next {FORESEEN} steps.",
                evidence, fix="lambda step: min(1.0, (step + 1) / warm_up)  # / and not //",
            )  # fmt: skip
        elif not rates and not trace.of_kind("schedule") and not examination.parts.schedulers:
            yield Seen(f"All {len(trace.updates)} updates had a learning rate of 0.", evidence)
        return


def _schedulers(examination: Examination, trace: Trace) -> list[Any]:
    """Return the schedulers of the optimizers that update."""
    used = {update.optimizer for update in trace.updates}
    known = {id(s): s for s in [*examination.parts.schedulers, *examination.snapshot.found(LRScheduler)]}
    given = [s for s in known.values() if id(getattr(s, "optimizer", None)) in used]
    return given or list(trace.new_schedulers.values())


@rule(
    "optimizer.strays", NOTE, "05_training",
    title="The optimizer holds tensors that nothing uses.",
    looks="tensors in the optimizer that are in no module and never get a gradient.",
    quiet="parameters of losses, learned inputs and temperatures get gradients.",
    fix="optimizer = torch.optim.Adam(model.parameters(), lr)",
)  # fmt: skip
def strays(examination: Examination) -> Iterator[Seen]:
    model, run = examination.model, _run(examination)
    if model is None or run is None:
        return
    own = {id(p) for module in examination.modules for p in module.parameters()} | {
        id(h.tensor) for h in examination.hidden
    }
    found = [p for p in _held(examination) if id(p) not in own and id(p) not in examination.trained]
    missing = [p for p in model.parameters() if p.requires_grad and id(p) not in examination.held]
    if found and not missing:
        yield Seen(
            f"The optimizer holds {plural(len(found), 'tensor')} that no module has and no step reaches.",
            {"tensors": len(found)},
        )
    elif found and missing and not any(id(p) in examination.weights_moved for p in missing):
        yield Seen(
            f"The optimizer holds {plural(len(found), 'tensor')} that the model does not have, and the model has "
            f"{len(missing)} that the optimizer lacks: it was built for another model, or before layers were replaced.",
            {"held_but_not_in_model": len(found), "without_optimizer": len(missing)}, severity=ERROR,
            fix="optimizer = torch.optim.Adam(model.parameters(), lr)  # after the model is complete",
        )  # fmt: skip


@rule(
    "optimizer.frozen-parameter-moves", WARNING, "03_modules",
    title="A frozen parameter is still changed by the optimizer.",
    looks="parameters with requires_grad=False that an optimizer holds together with an old gradient, and that change "
    "in training steps.",
    quiet="frozen parameters whose gradient is None are skipped by every optimizer, also with momentum and decay; "
    "averaged copies have no gradient.",
    fix="p.requires_grad_(False); p.grad = None  # and build the optimizer from what is trained",
)  # fmt: skip
def frozen_parameter_moves(examination: Examination) -> Iterator[Seen]:
    model = examination.model
    if model is None or not any(p.grad is not None and not p.requires_grad for p in model.parameters()):
        return
    moved = [
        name for name, p in model.named_parameters()
        if not p.requires_grad and p.grad is not None and id(p) in examination.held & examination.weights_moved
    ]  # fmt: skip
    if moved:
        yield Seen(
            f"{', '.join(moved[:4])} {'is' if len(moved) == 1 else 'are'} frozen and moved all the same: the optimizer "
            "still holds an old gradient, or momentum, and adds it in every step.",
            {"frozen_and_moved": len(moved)},
        )
