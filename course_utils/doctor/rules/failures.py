"""Rules about exceptions in the reader's code: each becomes a finding that explains it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from course_utils.doctor.explain import explain
from course_utils.doctor.findings import ERROR, NOTE, Seen, rule
from course_utils.doctor.running import Failure

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination


def _seen(failure: Failure, examination: Examination, what: str) -> Seen:
    explanation = explain(failure, examination)
    evidence = {"kind": explanation.slug, **explanation.evidence}
    if failure.where:
        evidence["where"] = failure.where
    evidence["raised"] = f"{failure.kind}: {' '.join(failure.text.split())[:200]}"
    return Seen(f"{what} {explanation.message}", evidence, fix=explanation.fix)


def _is_loader_s(failure: Failure, examination: Examination) -> bool:
    """Tell whether it is the loader that fails, which has a finding of its own."""
    loading = examination.batches.failure
    return loading is not None and (loading.kind, loading.text) == (failure.kind, failure.text)


@rule(
    "failure.step", ERROR, "05_training",
    title="A training step raises an exception.",
    looks="the exception of the first steps, the layer in which it happened, shapes, dtypes and devices there.",
    quiet="exceptions that only the doctor's observation causes: the steps are run again without it.",
    fix="see the message",
)  # fmt: skip
def step_fails(examination: Examination) -> Iterator[Seen]:
    steps = examination.steps
    if steps.failure is not None and steps in examination.runs and not _is_loader_s(steps.failure, examination):
        yield _seen(steps.failure, examination, f"Step {steps.failed_at} fails.")


@rule(
    "failure.train", ERROR, "05_training",
    title="The training loop raises an exception.",
    looks="the exception of train().",
    quiet="a loop that is cut for time raises none.",
    fix="see the message",
)  # fmt: skip
def train_fails(examination: Examination) -> Iterator[Seen]:
    training = examination.training
    if training is not None and training.failure is not None and not _is_loader_s(training.failure, examination):
        yield _seen(training.failure, examination, f"train() fails after {len(training.trace.updates)} updates.")


@rule(
    "failure.evaluate", ERROR, "05_training",
    title="Validation or the metric raises an exception.",
    looks="the exceptions of evaluate() and metric().",
    quiet="nothing to be quiet about.",
    fix="see the message",
)  # fmt: skip
def evaluate_fails(examination: Examination) -> Iterator[Seen]:
    from course_utils.doctor.rules.evaluation import _metric_calls

    evaluation = examination.evaluation
    if evaluation is not None and evaluation.failure is not None:
        yield _seen(evaluation.failure, examination, "evaluate() fails.")
    failure = _metric_calls(examination)[1].get("failure")
    if failure is not None and examination.failure is None:
        yield _seen(failure, examination, "metric() fails on the model's outputs.")


@rule(
    "failure.loader", ERROR, "04_data",
    title="The loader raises an exception.",
    looks="the exception, and the number of the batch.",
    quiet="nothing to be quiet about.",
    fix="see the message",
)  # fmt: skip
def loader_fails(examination: Examination) -> Iterator[Seen]:
    batches = examination.batches
    if batches.failure is not None:
        yield _seen(batches.failure, examination, f"The loader fails at batch {batches.failed_at}.")


@rule(
    "failure.too-slow", NOTE, "05_training",
    title="The examination ran out of time.",
    looks="whether a step ended within the doctor's time.",
    quiet="steps that end.",
    fix="doctor.examine(..., limit_s=600)  # or a smaller batch",
)  # fmt: skip
def too_slow(examination: Examination) -> Iterator[Seen]:
    if examination.steps.is_over_time:
        limit = examination.budget.limit_s
        yield Seen(
            f"No step ended within {0.6 * limit:.0f} s, so only what needs no step was looked at.", {"limit_s": limit}
        )


_TOLD = {
    "not a leaf": (
        "The gradient of a tensor that is no leaf was read: it is None.",
        "tensor.retain_grad()  # before backward()",
    ),
    "torch.cuda.amp": (
        "torch.cuda.amp is deprecated, and on a machine without CUDA it silently does nothing.",
        'torch.autocast("cuda"), torch.amp.GradScaler("cuda")',
    ),
    "requires_grad=True to a scalar": (
        "A tensor with a graph was turned into a Python number: what is computed from it has no gradient.",
        "loss.item()  # for printing; stay with tensors for what is differentiated",
    ),
}  # fmt: skip


@rule(
    "failure.warning", NOTE, "02_autograd",
    title="PyTorch warned about something that has an explanation.",
    looks="the warnings that PyTorch gives while your code runs.",
    quiet="warnings that the doctor has nothing to add to.",
    fix="see the message",
)  # fmt: skip
def told(examination: Examination) -> Iterator[Seen]:
    texts = [text for run in examination.runs for _, text in run.warnings]
    for part, (message, fix) in _TOLD.items():
        count = sum(part in text for text in texts)
        if count:
            yield Seen(message, {"warnings": count}, fix=fix)
