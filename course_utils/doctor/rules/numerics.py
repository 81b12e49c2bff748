"""Rules about numbers that are no numbers, and gradients that are no gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from course_utils.doctor.findings import ERROR, WARNING, Seen, rule

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination


@rule(
    "autograd.loss-not-connected", ERROR, "02_autograd",
    title="The loss is not connected to the weights.",
    looks="whether the loss that backward() starts from has a graph, or is a leaf that was only marked as requiring "
    "gradients.",
    quiet="any loss that was computed from the model's output by differentiable operations.",
    fix="loss = torch.stack(parts).mean()  # no .item(), .numpy(), torch.tensor(...) or .detach() on the way",
)  # fmt: skip
def not_connected(examination: Examination) -> Iterator[Seen]:
    trained, failure = examination.trained, examination.failure
    if failure is not None and "does not require grad" in failure.text and not trained:
        if examination.model is not None and not any(p.requires_grad for p in examination.model.parameters()):
            yield Seen(
                f"backward() failed: all {len(list(examination.model.parameters()))} parameters are frozen, so the "
                "loss has no graph.",
                {"loss_requires_grad": False, "trainable_parameters": 0},
                fix="model.head.requires_grad_(True)  # what is to be trained",
            )
            return
        yield Seen(
            "backward() failed: the loss has no graph. Somewhere between the weights and the loss it became a plain "
            "number (.item(), .numpy(), torch.tensor(...), .detach(), no_grad()).",
            {"loss_requires_grad": False} | ({"where": failure.where} if failure.where else {}),
        )
    elif any(run.loss_is_leaf for run in examination.runs) and not trained:
        yield Seen(
            "The loss requires gradients but is a leaf: requires_grad_() hides that no parameter is connected to it.",
            {"loss_is_leaf": True, "parameters_with_gradient": 0},
        )


@rule(
    "numerics.nan-gradient", ERROR, "05_training",
    title="A gradient is NaN or infinite although the loss is finite.",
    looks="the gradients after each backward pass of a finite loss, and the operation whose derivative failed.",
    quiet="infinite gradients under a GradScaler are skipped; batches with NaN in them are the data's fault.",
    fix="(d.pow(2).sum(1) + 1e-8).sqrt()  # clamp or shift the INPUT of sqrt, log and division",
)  # fmt: skip
def nan_gradient(examination: Examination) -> Iterator[Seen]:
    bad_batches = {bad.batch for bad in examination.batches.nonfinite}
    for trace in examination.traces:
        for backward in trace.backwards:
            if backward.finite or not math.isfinite(backward.root) or backward.batch in bad_batches or backward.scaled:
                continue
            operation = _operation(examination, backward.index)
            yield Seen(
                f"In backward pass {backward.index} the loss is {backward.root:.4g}, but the gradient of "
                f"{backward.first_bad} is not finite" + (f": {operation}." if operation else "."),
                {"loss": backward.root, "backward_pass": backward.index, "first": backward.first_bad},
            )
            return


def _operation(examination: Examination, number: int) -> str:
    """Run again with PyTorch's anomaly detection, and return what it says about the operation."""
    from course_utils.doctor.experiments.training import short_training

    def go() -> None:
        with torch.autograd.set_detect_anomaly(True):
            short_training(examination, number + 1)

    outcome = examination.run(go, 0.3)
    if outcome.failure is None or "returned nan" not in outcome.failure.text:
        return ""
    name = outcome.failure.text.split("'")[1] if "'" in outcome.failure.text else "an operation"
    return f"{name} returned NaN, as the derivative of sqrt, log, norm or division does at 0"


@rule(
    "numerics.loss-not-finite", ERROR, "05_training",
    title="The loss becomes NaN or infinite.",
    looks="the loss of each step, on finite data.",
    quiet="data that hold NaN have their own rule; steps that the scaler skips leave the weights alone.",
    fix="a smaller learning rate, log_softmax in place of log(softmax), clamp before log and sqrt",
)  # fmt: skip
def loss_not_finite(examination: Examination) -> Iterator[Seen]:
    if examination.batches.nonfinite:
        return
    for trace in examination.traces:
        roots = [b.root for b in trace.backwards if not b.scaled]
        bad = [index for index, value in enumerate(roots) if not math.isfinite(value)]
        scalar = [value for value in roots if value == value]
        if not bad or not trace.backwards[bad[0]].root_has_graph or (not scalar and trace.backwards[bad[0]].finite):
            continue
        first = bad[0]
        if first > 0 and not trace.backwards[first - 1].finite:
            return  # numerics.nan-gradient says where it began
        if any(event.facts["skipped"] for event in trace.of_kind("scaler-step")):
            continue
        before = f" after {roots[first - 1]:.4g}" if first else ""
        yield Seen(
            f"The loss of backward pass {first} is {roots[first]}{before}, although the data are finite.",
            {"backward_pass": first, "largest_before": max((abs(v) for v in roots[:first]), default=0.0)},
        )
        return


@rule(
    "numerics.log-of-softmax", WARNING, "05_training",
    title="The logarithm of a softmax or sigmoid is taken in two steps.",
    looks="log of a tensor that a softmax or sigmoid made, directly, in the step.",
    quiet="a small number added, or a clamp, between the two; log_softmax and logsigmoid.",
    fix="F.log_softmax(logits, 1)  # or F.logsigmoid, or a loss with logits",
)  # fmt: skip
def log_of_softmax(examination: Examination) -> Iterator[Seen]:
    logs = [log for run in examination.runs for log in run.calls.logs]
    hit = [(made, where) for made, where in logs if made.startswith(("Softmax", "Sigmoid"))]
    if hit:
        made, where = hit[0]
        name = "softmax" if made.startswith("Softmax") else "sigmoid"
        yield Seen(
            f"log({name}(x)) at {where} is -inf as soon as the {name} rounds to 0, from logits of about 100 on.",
            {"calls": len(hit), "where": where},
        )


@rule(
    "autograd.saved-value-changed", ERROR, "02_autograd",
    title="A value that the backward pass needs is changed behind autograd's back.",
    looks="every tensor that autograd saves, compared with itself when the backward pass takes it.",
    quiet="in-place operations that autograd sees raise an error themselves; tensors that nobody saved may change.",
    fix="with torch.no_grad(): …  # or detach(): unlike .data they are seen by the version counter",
)  # fmt: skip
def saved_value_changed(examination: Examination) -> Iterator[Seen]:
    facts = examination.saved
    if facts is not None and facts.changed:
        shape, where = facts.changed[0]
        yield Seen(
            f"{len(facts.changed)} saved tensors have other values in the backward pass than in the forward pass (the "
            f"first of shape {shape}, saved at {where}): a write through .data or NumPy, and silently wrong gradients.",
            {"changed": len(facts.changed), "shape": list(shape)},
        )


@rule(
    "autograd.function-ignores-gradient", ERROR, "02_autograd",
    title="The backward of a custom Function ignores the incoming gradient.",
    looks="the backward for a gradient, for its double, and for none: the chain rule makes it linear.",
    quiet="straight-through estimators, reversed and scaled gradients are linear; clipped ones give 0 for 0.",
    fix="return 2 * x * grad_output",
)  # fmt: skip
def function_ignores(examination: Examination) -> Iterator[Seen]:
    for name, linear in _functions(examination).items():
        if linear["ignores"]:
            yield Seen(
                f"{name}.backward returns the same gradient whatever comes in: it leaves out grad_output, the chain "
                "rule.",
                {"gradient_for_g": linear["once"], "gradient_for_2g": linear["twice"]},
            )


@rule(
    "autograd.function-wrong-gradient", WARNING, "02_autograd",
    title="The backward of a custom Function is not the derivative of its forward.",
    looks="the backward beside a difference quotient in float64, where the forward is smooth and no multiple of its "
    "input.",
    quiet="deliberate surrogates: functions that are piecewise constant (rounding, spikes), the identity (reversal, "
    "scaling, clipping), and places where the difference quotient is 0.",
    fix="torch.autograd.gradcheck(MyFunction.apply, inputs.double())",
)  # fmt: skip
def function_wrong(examination: Examination) -> Iterator[Seen]:
    for name, facts in _functions(examination).items():
        if facts["ignores"] or facts["wrong"] is None:
            continue
        quotient, given = facts["wrong"]
        yield Seen(
            f"{name}.backward gives {given:.4g} where the difference quotient of its forward is {quotient:.4g}.",
            {"given": given, "difference_quotient": quotient},
        )


def _functions(examination: Examination) -> dict[str, dict[str, Any]]:
    cached = vars(examination).get("_functions")
    if cached is not None:
        return cached
    found: dict[str, dict[str, Any]] = {}
    saved = examination.saved
    for name, use in (saved.functions if saved is not None else {}).items():
        outcome = examination.run(lambda use=use: _check_function(use.kind, use.args), 0.2)
        if outcome.is_done and outcome.value is not None:
            found[name] = outcome.value
    vars(examination)["_functions"] = found
    return found


def _check_function(kind: Any, args: tuple[Any, ...]) -> dict[str, Any] | None:
    places = [i for i, a in enumerate(args) if isinstance(a, Tensor) and a.is_floating_point()]
    if not places:
        return None
    torch.manual_seed(0)
    inputs = [a.detach().clone().requires_grad_() if i in places else a for i, a in enumerate(args)]
    output = kind.apply(*inputs)
    first = output if isinstance(output, Tensor) else next((o for o in output if isinstance(o, Tensor)), None)
    if first is None or not first.requires_grad:
        return None
    leaves = [inputs[i] for i in places]

    def grads(direction: Tensor) -> list[Tensor]:
        found = torch.autograd.grad(first, leaves, direction, retain_graph=True, allow_unused=True)
        return [
            torch.zeros_like(leaf) if g is None else g.detach().clone() for g, leaf in zip(found, leaves, strict=True)
        ]

    direction = torch.rand_like(first) + 0.5
    once, twice, none = grads(direction), grads(2 * direction), grads(torch.zeros_like(first))
    ignores = any(
        bool((a != 0).any()) and torch.allclose(a, b) and torch.allclose(a, c)
        for a, b, c in zip(once, twice, none, strict=True)
    )
    facts: dict[str, Any] = {
        "ignores": ignores,
        "once": float(once[0].abs().max()),
        "twice": float(twice[0].abs().max()),
        "wrong": None,
    }
    if not ignores:
        facts["wrong"] = _compare_with_quotient(kind, args, places)
    return facts


def _compare_with_quotient(kind: Any, args: tuple[Any, ...], places: list[int]) -> tuple[float, float] | None:
    """Return a difference quotient and the gradient given instead, where they clearly differ; None where they agree."""
    double = [a.detach().double() if i in places else a for i, a in enumerate(args)]
    try:
        reference = _apply(kind, double)
    except Exception:
        return None
    step = 1e-5
    for place in places:
        value = double[place]
        if reference.shape == value.shape and _is_multiple(reference, value):
            continue  # the identity, or a multiple: its backward is a design, not a derivative
        leaf = value.clone().requires_grad_()
        output = _apply(kind, [leaf if i == place else a for i, a in enumerate(double)])
        if not output.requires_grad:
            continue
        direction = torch.ones_like(output)
        (given,) = torch.autograd.grad(output, leaf, direction, allow_unused=True)
        if given is None:
            continue
        flat_given = given.reshape(-1)
        chosen = torch.randperm(value.numel())[:24].tolist()
        wrong, right = [], 0
        for index in chosen:
            moved = [value.clone().reshape(-1) for _ in range(2)]
            moved[0][index] += step
            moved[1][index] -= step
            up, down = (
                _apply(kind, [m.reshape(value.shape) if i == place else a for i, a in enumerate(double)]) for m in moved
            )
            quotient = float((up - down).sum()) / (2 * step)
            answer = float(flat_given[index])
            if abs(quotient) < 1e-6:
                continue  # flat here: a surrogate may say what it likes
            if abs(quotient - answer) > 1e-2 * max(abs(quotient), abs(answer)) + 1e-6:
                wrong.append((quotient, answer))
            else:
                right += 1
        if len(wrong) >= 3 and len(wrong) > right:
            return wrong[0]
    return None


def _apply(kind: Any, args: list[Any]) -> Tensor:
    output = kind.apply(*args)
    return output if isinstance(output, Tensor) else next(o for o in output if isinstance(o, Tensor))


def _is_multiple(output: Tensor, value: Tensor) -> bool:
    place = int(value.abs().argmax())
    top = value.reshape(-1)[place]
    if float(top) == 0:
        return True
    return torch.allclose(output, value * (output.reshape(-1)[place] / top), rtol=1e-4, atol=1e-7)


@rule(
    "autograd.sample-not-rsample", WARNING, "02_autograd",
    title="A sample cuts the graph where a reparameterized one would not.",
    looks="``sample()`` of a distribution that has ``rsample()``, whose parameters require gradients, in a step that "
    "never asks for a log_prob.",
    quiet="policies that are trained through log_prob, and samples drawn without gradients.",
    fix="z = torch.distributions.Normal(mu, sigma).rsample()",
)  # fmt: skip
def sample_not_rsample(examination: Examination) -> Iterator[Seen]:
    facts = examination.saved
    if facts is not None and facts.samples and not facts.log_probs:
        name, where = facts.samples[0]
        yield Seen(
            f"{name}.sample() at {where} has no gradient with respect to the distribution's parameters: what it feeds "
            "can't teach them.",
            {"samples": len(facts.samples), "where": where},
        )
