"""Rules about what a loss is given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from course_utils.doctor.findings import ERROR, NOTE, WARNING, Seen, rule
from course_utils.doctor.functions import (
    CLASS_LOSSES,
    COMPARISONS,
    ELEMENTWISE_LOSSES,
    LossCall,
    crosses_batch,
)
from course_utils.doctor.parts import clone_tree

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination


_OF_SIGNS = ("cosine_embedding_loss", "margin_ranking_loss", "hinge_embedding_loss", "soft_margin_loss")  # -1 or 1


def _calls(examination: Examination, *names: str) -> list[LossCall]:
    return [call for run in examination.runs for call in run.calls.losses if not names or call.name in names]


@rule(
    "loss.broadcast", ERROR, "01_tensors",
    title="Prediction and label have shapes that broadcast against each other.",
    looks="the shapes that meet in a loss function or in arithmetic: (N, 1) and (N,) make (N, N), every prediction "
    "with every label. For hand-written losses: whether the loss notices when labels are exchanged among "
    "examples.",
    quiet="axes added on purpose (x[:, None]), several outputs for one label, pairwise losses.",
    fix="loss_fn(model(x).squeeze(1), y)  # both (N,)",
)  # fmt: skip
def broadcast(examination: Examination) -> Iterator[Seen]:
    for call in _calls(examination, *ELEMENTWISE_LOSSES):
        if crosses_batch(call.shape, call.label_shape):
            yield _broadcast_seen(call.shape, call.label_shape, call.name, call.where)
            return
        if call.shape != call.label_shape and _grows(call.shape, call.label_shape):
            yield _broadcast_seen(call.shape, call.label_shape, call.name, call.where)
            return
    broadcasts = [b for run in examination.runs for b in run.calls.broadcasts]
    crossed = [b for b in broadcasts if not b.by_hand and b.name not in COMPARISONS]
    own = examination.parts.step is not None or examination.parts.train is not None
    if crossed and (own or _ignores_pairing(examination)):
        first = crossed[0]
        yield _broadcast_seen(*first.shapes, first.name.strip("_"), first.where)


def _grows(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    """Tell whether the broadcast result is larger than both, so that it is no weight or constant."""
    try:
        result = tuple(torch.broadcast_shapes(first, second))
    except RuntimeError:
        return False
    return result != first and result != second


def _broadcast_seen(first: tuple[int, ...], second: tuple[int, ...], name: str, where: str) -> Seen:
    result = tuple(torch.broadcast_shapes(first, second))
    return Seen(
        f"The two sides of {name} have shapes {first} and {second}: they broadcast to {result}, so every prediction "
        "is compared with every label.",
        {"shapes": [list(first), list(second)], "result": list(result), "where": where},
    )


def _ignores_pairing(examination: Examination) -> bool:
    """Tell whether the loss stays the same when labels are exchanged among examples."""
    parts, kept = examination.parts, examination.batches.kept
    if not kept:
        return False

    def go() -> bool:
        inputs, labels = parts.split(clone_tree(kept[0]))
        with torch.no_grad():
            output = parts.forward(inputs)
            usual = float(parts.loss_of(output, labels, None))
            if not isinstance(labels, Tensor) or len(labels) < 3 or bool((labels == labels[:1]).all()):
                return False
            turned = float(parts.loss_of(output, labels.roll(1, 0), None))
        return abs(usual - turned) <= 1e-5 * abs(usual)

    outcome = examination.run(go, 0.1)
    return outcome.is_done and bool(outcome.value)


@rule(
    "loss.softmax-before-cross-entropy", ERROR, "05_training",
    title="Cross-entropy gets probabilities, not logits.",
    looks="the values that reach cross_entropy: rows between 0 and 1 that sum to 1, or a softmax as their maker.",
    quiet="a softmax inside the model (attention) does not reach the loss. A log-softmax before it changes nothing: "
    "a note.",
    fix="return logits  # CrossEntropyLoss applies log_softmax itself",
)  # fmt: skip
def softmax_before(examination: Examination) -> Iterator[Seen]:
    for call in _calls(examination, "cross_entropy"):
        if len(call.shape) < 2 or call.shape[1] < 2:
            continue
        looks_so = call.least >= 0 and call.most <= 1 and call.row_sum_error < 1e-3
        if looks_so or call.made_by.startswith("Softmax"):
            yield Seen(
                f"cross_entropy gets rows between {call.least:.2g} and {call.most:.2g} that sum to 1: a softmax was "
                "applied before, and the loss applies another one.",
                {"least": call.least, "most": call.most, "where": call.where},
            )
            return
        if call.made_by.startswith("Sigmoid"):
            yield Seen(
                "cross_entropy gets the output of a sigmoid: it expects logits.",
                {"least": call.least, "most": call.most, "where": call.where}, severity=WARNING,
            )  # fmt: skip
            return
        if call.made_by.startswith("LogSoftmax"):
            yield Seen(
                "cross_entropy gets log-probabilities: the second log_softmax changes nothing.", {}, severity=NOTE
            )
            return


@rule(
    "loss.sigmoid-before-logits", ERROR, "05_training",
    title="A loss with logits gets the output of a sigmoid.",
    looks="the values that reach binary_cross_entropy_with_logits: the graph says that a sigmoid (or softmax) made "
    "them, or all lie in 0..1.",
    quiet="logits that happen to lie in 0..1 in one batch do not in the next; values in 0..1 of another origin are a "
    "note, since the outputs of an untrained network may be so small.",
    fix="remove the Sigmoid: BCEWithLogitsLoss applies it itself",
)  # fmt: skip
def sigmoid_before(examination: Examination) -> Iterator[Seen]:
    calls = _calls(examination, "binary_cross_entropy_with_logits")
    if not calls:
        return
    made = [call for call in calls if call.made_by.startswith(("Sigmoid", "Softmax"))]
    plenty = sum(_count(call.shape) for call in calls) >= 32
    inside = (
        plenty
        and all(call.least >= 0 and call.most <= 1 for call in calls)
        and any(call.most > call.least for call in calls)
    )
    if made or inside:
        call = (made or calls)[0]
        yield Seen(
            f"binary_cross_entropy_with_logits gets values between {call.least:.2g} and {call.most:.2g}"
            + (", made by a sigmoid" if made else "")
            + ": the second sigmoid keeps every probability between 0.5 and 0.73.",
            {"least": call.least, "most": call.most, "where": call.where},
            severity=None if made else NOTE,
        )


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


@rule(
    "loss.not-log-probabilities", ERROR, "05_training",
    title="A loss that expects log-probabilities gets something else.",
    looks="the values that reach nll_loss and kl_div: the exponentials of each row must sum to 1.",
    quiet="log_softmax before the loss; sums of log-probabilities.",
    fix="F.nll_loss(F.log_softmax(logits, 1), y)",
)  # fmt: skip
def not_log(examination: Examination) -> Iterator[Seen]:
    for call in _calls(examination, "nll_loss", "kl_div"):
        if len(call.shape) < 2 or call.shape[1] < 2:
            continue
        if call.most > 1e-4 and call.row_exp_sum_error > 1e-2:
            yield Seen(
                f"{call.name} gets values up to {call.most:.3g}, and log-probabilities are never above 0.",
                {"least": call.least, "most": call.most, "where": call.where},
            )
            return
        if call.name == "nll_loss" and call.row_exp_sum_error > 0.2 and not call.made_by.startswith("LogSoftmax"):
            yield Seen(
                f"{call.name} gets rows whose exponentials do not sum to 1 (off by {call.row_exp_sum_error:.2g}).",
                {"least": call.least, "most": call.most, "where": call.where}, severity=WARNING,
            )  # fmt: skip
            return
        if call.name == "kl_div" and call.label_least < 0 and not call.options.get("log_target"):
            yield Seen(
                "kl_div gets negative labels and log_target=False: it expects probabilities there.",
                {"least_label": call.label_least, "where": call.where},
                fix="F.kl_div(log_p, log_q, log_target=True, reduction='batchmean')",
            )  # fmt: skip
            return


@rule(
    "loss.kl-mean", WARNING, "05_training",
    title="kl_div averages over classes too.",
    looks="calls of kl_div with reduction 'mean' on rows of several classes.",
    quiet="'batchmean', 'sum' and 'none'.",
    fix='nn.KLDivLoss(reduction="batchmean")',
)  # fmt: skip
def kl_mean(examination: Examination) -> Iterator[Seen]:
    for call in _calls(examination, "kl_div"):
        if call.reduction == "mean" and len(call.shape) >= 2 and call.shape[-1] > 1:
            yield Seen(
                f"kl_div with reduction='mean' divides by examples times classes: it is {call.shape[-1]} times "
                "smaller than the divergence.",
                {"factor": call.shape[-1], "where": call.where},
            )
            return


@rule(
    "loss.one-class", ERROR, "05_training",
    title="Cross-entropy over a single class is always zero.",
    looks="the number of classes that reach cross_entropy, or a softmax over an axis of length 1 before the loss.",
    quiet="two classes or more.",
    fix="nn.BCEWithLogitsLoss()  # one logit; or nn.Linear(…, 2) with cross-entropy",
)  # fmt: skip
def one_class(examination: Examination) -> Iterator[Seen]:
    for call in _calls(examination, "cross_entropy", "nll_loss"):
        if len(call.shape) >= 2 and call.shape[1] == 1:
            yield Seen(
                f"{call.name} gets one logit per example (shape {call.shape}): its softmax is always 1, and the loss "
                "0.",
                {"classes": 1, "where": call.where},
            )
            return
    for reduction in (r for run in examination.runs for r in run.calls.reductions):
        if (
            "softmax" in reduction.name
            and len(reduction.shape) == 2
            and reduction.shape[1] == 1
            and reduction.axis == 1
        ):
            yield Seen(
                f"A softmax runs over an axis of length 1 ({reduction.where}): it is always 1.",
                {"shape": list(reduction.shape), "where": reduction.where}, severity=WARNING, fix="torch.sigmoid(x)",
            )  # fmt: skip
            return


@rule(
    "loss.wrong-class-axis", ERROR, "05_training",
    title="Cross-entropy takes another axis for the classes.",
    looks="predictions with more than two axes that come unmoved from a linear layer, which puts classes last, while "
    "cross_entropy takes axis 1.",
    quiet="predictions that were transposed, and convolutions, which put classes on axis 1.",
    fix="loss_fn(logits.transpose(1, 2), y)  # (N, T, C) -> (N, C, T)",
)  # fmt: skip
def wrong_axis(examination: Examination) -> Iterator[Seen]:
    for call in _calls(examination, *CLASS_LOSSES):
        if len(call.shape) >= 3 and call.last_axis_is_features and len(call.label_shape) == len(call.shape) - 1:
            yield Seen(
                f"{call.name} gets shape {call.shape} straight from a linear layer: the classes are on the last axis, "
                "and it takes axis 1. Nothing fails because both have the same length.",
                {"shape": list(call.shape), "where": call.where},
            )
            return


@rule(
    "loss.labels-out-of-range", ERROR, "05_training",
    title="Labels are outside of what the loss understands.",
    looks="the labels that reach a loss: 0 to 1 for binary cross-entropy, -1 or 1 for margin and cosine losses.",
    quiet="soft labels between 0 and 1.",
    fix="y = (y > 0).float()  # 0 and 1; for margin losses: y = 2 * y - 1",
)  # fmt: skip
def out_of_range(examination: Examination) -> Iterator[Seen]:
    for call in _calls(examination):
        if call.name.startswith("binary_cross_entropy") and (call.label_least < -1e-6 or call.label_most > 1 + 1e-6):
            yield Seen(
                f"{call.name} gets labels from {call.label_least:g} to {call.label_most:g}: outside of 0..1 the loss "
                "has no lower bound.",
                {"least": call.label_least, "most": call.label_most, "where": call.where},
            )
            return
        values = set(call.label_values or ())
        if call.name in _OF_SIGNS and 0.0 in values and values <= {0.0, 1.0}:
            yield Seen(
                f"{call.name} gets labels 0 and 1, and expects -1 and 1: examples with label 0 don't count.",
                {"labels": list(call.label_values), "where": call.where}, fix="loss_fn(a, b, 2 * y - 1)",
            )  # fmt: skip
            return


@rule(
    "loss.float64", WARNING, "01_tensors",
    title="The loss is float64, the weights are float32.",
    looks="the dtype of the batch's tensors and of the losses beside that of the parameters.",
    quiet="models in float64; float64 in a batch whose loss is float32 all the same is a note.",
    fix="y = y.float()  # in the data set: NumPy's numbers and Python's are float64 in a batch",
)  # fmt: skip
def float64(examination: Examination) -> Iterator[Seen]:
    model, kept = examination.model, examination.batches.kept
    if model is None or not kept or examination.failure is not None:
        return
    from course_utils.doctor.parts import named_leaves

    dtypes = {p.dtype for p in model.parameters()}
    doubles = [name for name, leaf in named_leaves(kept[0]) if leaf.dtype == torch.float64]
    if doubles and torch.float64 not in dtypes and dtypes:
        losses = set().union(*(run.loss_dtypes for run in examination.runs))
        is_double = losses == {torch.float64}
        yield Seen(
            f"{', '.join(doubles)} is float64 while the model is float32: what meets it is computed in float64"
            + (", the loss too." if is_double else "."),
            {"leaves": doubles, "loss": ", ".join(sorted(str(d).removeprefix("torch.") for d in losses))},
            severity=None if is_double else NOTE,
        )


@rule(
    "loss.padding-counted", WARNING, "05_training",
    title="Padded places count in the loss.",
    looks="sequences that end in one repeated label while their inputs are constant there too, and the gradient of "
    "the loss at these places.",
    quiet="ignore_index and masks leave no gradient there; labels that repeat while the inputs vary are no padding.",
    fix="nn.CrossEntropyLoss(ignore_index=PAD)",
)  # fmt: skip
def padding_counted(examination: Examination) -> Iterator[Seen]:
    found = _padded(examination)
    if found is None:
        return
    places, share, gradient = found
    if gradient > 0:
        yield Seen(
            f"{places} of the batch's label places are padding ({share:.0%}), and the loss has a gradient there: the "
            "network learns to predict padding.",
            {"padded_places": places, "share": share, "gradient": gradient},
        )


def _padded(examination: Examination) -> tuple[int, float, float] | None:
    parts, kept = examination.parts, examination.batches.kept
    if not kept or parts.loss_fn is None or parts.step is not None:
        return None
    inputs, labels = parts.split(clone_tree(kept[0]))
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    first = next((leaf for leaf in given if isinstance(leaf, Tensor)), None)
    if (
        first is None
        or not isinstance(labels, Tensor)
        or labels.ndim != 2
        or labels.is_floating_point()
        or first.shape[:2] != labels.shape
    ):
        return None
    if labels.shape[1] < 3 or labels.shape[0] < 4:
        return None
    tails = _tail(labels) & _tail(first if first.ndim == 2 else first.float().sum(-1))
    lengths = tails.sum(1)
    if float((lengths > 0).float().mean()) < 0.3 or len(lengths.unique()) < 2 or int(lengths.max()) < 2:
        return None
    if len(labels[tails].unique()) != 1 or len(first[tails].reshape(int(tails.sum()), -1).unique(dim=0)) != 1:
        return None
    gradient = 0.0

    def go() -> float:
        output = parts.forward(inputs)
        output = next(leaf for leaf in [output] if isinstance(leaf, Tensor)).detach().requires_grad_()
        parts.loss_of(output, labels, None).backward()
        grad = output.grad
        assert grad is not None
        if grad.shape[:2] == tails.shape:
            return float(grad[tails].abs().max())
        if grad.ndim == 3 and (grad.shape[0], grad.shape[2]) == tuple(tails.shape):
            return float(grad.transpose(1, 2)[tails].abs().max())
        return float(grad.reshape(*tails.shape, -1)[tails].abs().max()) if grad.shape[0] == tails.numel() else 0.0

    outcome = examination.run(go, 0.1)
    if outcome.is_done:
        gradient = outcome.value
    return int(tails.sum()), float(tails.float().mean()), gradient


def _tail(values: Tensor) -> Tensor:
    """Return which places belong to a run of one value at the end of each row, rows that are all one value left out."""
    same = values == values[:, -1:]
    tail = same.flip(1).int().cumprod(1).flip(1).bool()
    tail[tail.all(1)] = False
    single = tail.sum(1) < 2
    tail[single] = False
    return tail


@rule(
    "loss.labels-unreachable", WARNING, "05_training",
    title="The output can't reach the labels.",
    looks="the last function before an element-wise loss (sigmoid, tanh, softmax, ReLU), its range, and the labels.",
    quiet="labels within the range, or a few just outside of it.",
    fix="remove the last activation, or scale the labels into its range",
)  # fmt: skip
def labels_unreachable(examination: Examination) -> Iterator[Seen]:
    ranges = {"Sigmoid": (0.0, 1.0), "Softmax": (0.0, 1.0), "Tanh": (-1.0, 1.0), "Relu": (0.0, float("inf"))}
    for call in _calls(examination, "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
        low, high = next(
            (r for name, r in ranges.items() if call.made_by.startswith(name)), (-float("inf"), float("inf"))
        )
        if call.requires_grad and call.label_outside(low, high) > 0.2:
            yield Seen(
                f"{call.name} compares outputs of {call.made_by.removesuffix('Backward0').lower()}, which lie in "
                f"{low:g} to {high:g}, with labels from {call.label_least:.3g} to {call.label_most:.3g}.",
                {"share_out_of_reach": call.label_outside(low, high), "where": call.where},
            )
            return


@rule(
    "loss.relu-before-loss", WARNING, "05_training",
    title="Logits pass through a ReLU before the loss.",
    looks="the function that made the values which reach cross_entropy or binary_cross_entropy_with_logits.",
    quiet="a ReLU anywhere but last.",
    fix="remove the last ReLU: logits may be negative",
)  # fmt: skip
def relu_before(examination: Examination) -> Iterator[Seen]:
    for call in _calls(examination, "cross_entropy", "binary_cross_entropy_with_logits"):
        if call.made_by.startswith("Relu"):
            yield Seen(
                f"{call.name} gets the output of a ReLU: no logit can be negative, and where all are 0 nothing is "
                "learned.",
                {"least": call.least, "where": call.where},
            )
            return
