"""Rules about exported models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from course_utils.doctor.findings import ERROR, NOTE, WARNING, Seen, rule

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination


@rule(
    "export.train-mode", ERROR, "08_export",
    title="The model is exported in training mode.",
    looks="the mode of Dropout and BatchNorm layers at the moment of the export, and whether two calls of the result "
    "differ.",
    quiet="models without such layers.",
    fix="model.eval()  # before the export",
)  # fmt: skip
def train_mode(examination: Examination) -> Iterator[Seen]:
    facts = examination.exported
    if facts is not None and facts.in_training and not facts.from_example:
        yield Seen(
            f"{', '.join(dict.fromkeys(facts.in_training))} was in training mode when {facts.kinds[0]} ran; two calls "
            f"of the result differ by {facts.is_random:.3g}.",
            {"layers_in_training_mode": len(facts.in_training), "difference_of_two_calls": facts.is_random},
        )


@rule(
    "export.static-batch", WARNING, "08_export",
    title="The exported model takes only the batch size of its example.",
    looks="the exported model on batches of other sizes, on which the model itself works.",
    quiet="models that were exported with dynamic shapes.",
    fix='torch.export.export(model, args, dynamic_shapes=({0: torch.export.Dim("batch")},))',
)  # fmt: skip
def static_batch(examination: Examination) -> Iterator[Seen]:
    facts = examination.exported
    if facts is not None and facts.batch_refused:
        refused, taken = facts.batches_tried
        yield Seen(
            f"The exported model refuses a batch of {refused}, which the model itself takes ({facts.batch_refused}).",
            {"refused": refused, "taken": taken},
        )


@rule(
    "export.result-differs", ERROR, "08_export",
    title="The exported model computes something else.",
    looks="both models on the example's inputs, on other batch sizes, and with each other axis twice as long, where "
    "the model itself accepts that.",
    quiet="differences below 0.1 %, and inputs that the model refuses.",
    fix="torch.ones_like(x[..., 0]).sum(1)  # tensor operations in place of Python numbers made from shapes",
)  # fmt: skip
def differs(examination: Examination) -> Iterator[Seen]:
    facts = examination.exported
    if facts is None or not facts.differences or (facts.in_training and not facts.from_example):
        return
    worst = facts.differences[0]
    error = f"by {worst.error:.3g}" if worst.error != float("inf") else f"in {worst.text}"
    yield Seen(
        f"Exported and original model differ {error} for inputs of shape {worst.shape} ({worst.what}): the export "
        "holds a constant or a branch that was right for its example only.",
        {"difference": worst.error, "input": worst.what, "inputs_that_differ": len(facts.differences)},
    )


@rule(
    "export.failed", ERROR, "08_export",
    title="The export fails.",
    looks="the exception of export().",
    quiet="nothing to be quiet about.",
    fix="read the message; torch.export needs tensor operations in place of Python branches on values",
)  # fmt: skip
def failed(examination: Examination) -> Iterator[Seen]:
    facts = examination.exported
    if facts is not None and facts.failure is not None:
        first = facts.failure.text.strip().splitlines()[0] if facts.failure.text.strip() else ""
        yield Seen(f"export() raised {facts.failure.kind}: {first}", {"where": facts.failure.where}, severity=NOTE)
