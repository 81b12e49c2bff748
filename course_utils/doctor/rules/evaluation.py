"""Rules about validation and metrics."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from course_utils.doctor.findings import ERROR, NOTE, WARNING, Seen, rule
from course_utils.doctor.functions import COMPARISONS, Calls, FunctionObserver
from course_utils.doctor.parts import clone_tree
from course_utils.text import plural

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination


@rule(
    "evaluation.train-mode", ERROR, "05_training",
    title="Validation runs in training mode.",
    looks="the mode of Dropout and BatchNorm layers while evaluate() runs, on a model that is in training mode before; "
    "in your own loop, forward passes without gradients outside of the pass over the training data whose output is "
    "compared with something: a warning.",
    quiet="statistics that are measured again on purpose are compared with nothing; models without such layers; "
    "dropout that alone is switched on in a model in evaluation mode (Monte Carlo dropout).",
    fix="model.eval()  # and model.train() afterwards",
)  # fmt: skip
def train_mode(examination: Examination) -> Iterator[Seen]:
    facts = examination.evaluation
    if facts is None or not facts.active or facts.failure is not None:
        yield from _in_the_loop(examination)
        return
    yield Seen(
        f"During validation {', '.join(facts.active[:4])} worked in training mode"
        + (f", and {', '.join(facts.buffers_moved[:2])} took up validation data" if facts.buffers_moved else "")
        + ".",
        {"layers_in_training_mode": len(facts.active), "buffers_changed": len(facts.buffers_moved)},
    )


def _in_the_loop(examination: Examination) -> Iterator[Seen]:
    training = examination.training
    events = training.trace.of_kind("judged-in-training-mode") if training is not None else []
    if training is not None and events:
        where = events[0].facts["where"]
        yield Seen(
            f"Your loop validates at {where} while the model is in training mode: Dropout and BatchNorm work as in "
            "training there.",
            {"times": len(events), "where": where}, severity=WARNING,
        )  # fmt: skip


@rule(
    "evaluation.weights-change", ERROR, "05_training",
    title="Validation changes the weights.",
    looks="the parameters before and after evaluate().",
    quiet="nothing: a validation has no reason to.",
    fix="with torch.no_grad(): …  # and no optimizer.step() in evaluate()",
)  # fmt: skip
def weights_change(examination: Examination) -> Iterator[Seen]:
    facts = examination.evaluation
    if facts is not None and facts.weights_moved:
        yield Seen("Weights differ before and after evaluate().", {"updates": len(facts.trace.updates)})


@rule(
    "evaluation.keeps-graphs", WARNING, "06_memory",
    title="Validation keeps the graphs of its outputs alive.",
    looks="variables of evaluate() that hold more and more tensors with a graph, and graphs in what it returns.",
    quiet="a graph that dies with its batch costs little: no finding, or a note.",
    fix="with torch.no_grad():\n    outputs = [model(x) for x, _ in loader]",
)  # fmt: skip
def keeps_graphs(examination: Examination) -> Iterator[Seen]:
    facts = examination.evaluation
    if facts is None or not facts.graphs:
        return
    growing = [kept for kept in facts.kept if _grows(kept.sizes)]
    if growing or facts.returned_graphs >= 2:
        names = ", ".join(kept.name for kept in growing) or "the returned value"
        yield Seen(
            f"{names} keeps the graphs of the outputs alive ({facts.graphs} of {facts.forwards} outputs require "
            "gradients): memory grows with every batch.",
            {
                "outputs_with_graph": facts.graphs,
                "outputs": facts.forwards,
                "returned_with_graph": facts.returned_graphs,
            },
        )
    elif facts.graphs >= 2:
        yield Seen(
            f"{facts.graphs} of {facts.forwards} outputs were computed with a graph that nobody uses; no_grad() saves "
            "its memory.",
            {"outputs_with_graph": facts.graphs}, severity=NOTE,
        )  # fmt: skip


def _grows(sizes: list[int]) -> bool:
    return len(sizes) >= 3 and sizes[-1] > sizes[1] and all(b >= a for a, b in itertools.pairwise(sizes[1:]))


@rule(
    "evaluation.mean-of-means", WARNING, "05_training",
    title="Batches of different size are averaged with equal weight.",
    looks="evaluate() on a long and a short batch together, and on each alone: the value of both is the plain mean "
    "of the two values, and not the mean over examples.",
    quiet="loaders whose batches all have one size; measures that are no means over examples.",
    fix="total += value * len(x); count += len(x)  # total / count at the end",
)  # fmt: skip
def mean_of_means(examination: Examination) -> Iterator[Seen]:
    facts = examination.evaluation
    if facts is None or facts.mixing is None:
        return
    both, first, second, size_a, size_b = facts.mixing
    plain = (first + second) / 2
    weighted = (first * size_a + second * size_b) / (size_a + size_b)
    scale = max(abs(first), abs(second), 1e-12)
    if abs(both - plain) <= 1e-4 * scale and abs(both - weighted) > 1e-3 * scale:
        yield Seen(
            f"Batches of {size_a} and {size_b} examples count alike: {both:.4g} instead of {weighted:.4g}.",
            {"batch_sizes": [size_a, size_b], "reported": both, "mean_over_examples": weighted},
        )


@rule(
    "evaluation.metric-broadcast", ERROR, "05_training",
    title="The metric compares every prediction with every label.",
    looks="comparisons of an (N, 1) with an (N,) tensor in metric() and evaluate().",
    quiet="axes that are added on purpose.",
    fix="(outputs.squeeze(1) > 0) == labels",
)  # fmt: skip
def metric_broadcast(examination: Examination) -> Iterator[Seen]:
    facts = examination.evaluation
    crossed = [] if facts is None else [b for b in facts.calls.broadcasts if not b.by_hand]
    crossed += [b for b in _metric_calls(examination)[0].broadcasts if not b.by_hand]
    for one in crossed:
        if one.name in COMPARISONS or "logical" in one.name or one.name.strip("_") in ("sub", "sub_"):
            yield Seen(
                f"A comparison of shapes {one.shapes[0]} and {one.shapes[1]} gives {one.result}: every prediction is "
                "compared with every label.",
                {"shapes": [list(shape) for shape in one.shapes], "where": one.where},
            )
            return


def _metric_calls(examination: Examination) -> tuple[Calls, dict[str, Any]]:
    """Call the metric on the model's outputs and, for classes, on perfect and on wrong ones."""
    cached = vars(examination).get("_metric")
    if cached is not None:
        return cached
    calls, values = Calls(), {}
    parts, kept = examination.parts, examination.batches.kept
    if parts.metric is not None and parts.model is not None and kept:
        inputs, labels = parts.split(clone_tree(kept[0]))

        def go() -> None:
            with torch.no_grad():
                parts.model.eval()
                outputs = parts.forward(inputs)
            with FunctionObserver(calls):
                values["usual"] = parts.call(parts.metric, ("outputs", "labels"), outputs=outputs, labels=labels)
            if isinstance(outputs, Tensor) and isinstance(labels, Tensor):
                _extremes(parts, outputs, labels, values)

        outcome = examination.run(go, 0.1)
        if outcome.failure is not None:
            outcome.failure.again = go
        values["failure"] = outcome.failure
    vars(examination)["_metric"] = (calls, values)
    return calls, values


def _extremes(parts: Any, outputs: Tensor, labels: Tensor, values: dict[str, Any]) -> None:
    if (
        labels.ndim == 1
        and labels.dtype == torch.int64
        and outputs.ndim == 2
        and outputs.shape[1] >= 2
        and len(labels) >= 4
    ):
        classes = outputs.shape[1]
        if int(labels.min()) < 0 or int(labels.max()) >= classes or len(labels.unique()) < 2:
            return
        right = torch.nn.functional.one_hot(labels, classes).to(outputs.dtype) * 8 - 4
        wrong = torch.nn.functional.one_hot((labels + 1) % classes, classes).to(outputs.dtype) * 8 - 4
        for name, chosen in (("right", right), ("wrong", wrong)):
            values[name] = _number(parts.call(parts.metric, ("outputs", "labels"), outputs=chosen, labels=labels))
        half = len(labels) // 2
        pieces = [slice(0, half), slice(half, 2 * half)]
        values["pieces"] = [
            _number(parts.call(parts.metric, ("outputs", "labels"), outputs=outputs[p], labels=labels[p]))
            for p in pieces
        ]


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None


@rule(
    "evaluation.metric-blind", ERROR, "05_training",
    title="The metric can't tell right from wrong.",
    looks="the metric for perfect logits and for logits that are wrong for every example; and its range.",
    quiet="metrics that are no accuracy: only equal values for both are a fault.",
    fix="(logits.argmax(1) == labels).float().mean()",
)  # fmt: skip
def metric_blind(examination: Examination) -> Iterator[Seen]:
    values = _metric_calls(examination)[1]
    right, wrong = values.get("right"), values.get("wrong")
    if right is None or wrong is None:
        return
    if abs(right - wrong) <= 1e-6 * (1 + abs(right)):
        yield Seen(
            f"The metric is {right:.4g} for perfect outputs and {wrong:.4g} for outputs that are wrong everywhere.",
            {"perfect": right, "all_wrong": wrong},
        )
    elif wrong >= 0 and right > 1 + 1e-6 and right != round(right):
        yield Seen(
            f"The metric is {right:.4g} for perfect outputs.", {"perfect": right, "all_wrong": wrong}, severity=NOTE,
        )  # fmt: skip


@rule(
    "evaluation.leaves-eval-mode", NOTE, "05_training",
    title="evaluate() leaves the model in evaluation mode.",
    looks="the mode before and after evaluate(), for models with Dropout or BatchNorm, where your own loop is not "
    "given.",
    quiet="loops that call model.train() in each epoch are right, so this is a note.",
    fix="model.train()  # at the start of each epoch",
)  # fmt: skip
def leaves_eval(examination: Examination) -> Iterator[Seen]:
    from course_utils.doctor.rules.loop import _has_mode_layers

    facts = examination.evaluation
    if facts is None or examination.training is not None or examination.model is None:
        return
    if facts.mode_before and not facts.mode_after and _has_mode_layers(examination.model):
        yield Seen(
            "evaluate() switches to evaluation mode and not back; the next training step must call model.train().", {}
        )


@rule(
    "evaluation.drops-examples", NOTE, "04_data",
    title="Validation leaves out the last examples.",
    looks="drop_last of the validation loader, and its sizes.",
    quiet="sizes that divide evenly.",
    fix="DataLoader(val, batch_size)  # without drop_last",
)  # fmt: skip
def drops(examination: Examination) -> Iterator[Seen]:
    from torch.utils.data import DataLoader, IterableDataset

    loader = examination.parts.get("val_loader")
    if (
        isinstance(loader, DataLoader)
        and loader.drop_last
        and loader.batch_size
        and not isinstance(loader.dataset, IterableDataset)
    ):
        left = len(loader.sampler) % loader.batch_size
        if left:
            yield Seen(
                f"The validation loader drops {plural(left, 'example')} of {len(loader.sampler)}.", {"dropped": left}
            )
