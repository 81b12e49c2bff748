"""Labels that a loss function does not take: dtype, range, shape, number."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from course_utils.doctor.explain import Case, Explanation, explains
from course_utils.doctor.functions import CLASS_LOSSES, LOSSES
from course_utils.doctor.scene import Operand

ENTROPY = CLASS_LOSSES | {"nll_loss2d", "multi_margin_loss", "multilabel_margin_loss"}
BINARY = {"binary_cross_entropy", "binary_cross_entropy_with_logits"}
MORE = {"triplet_margin_loss", "triplet_margin_with_distance_loss", "ctc_loss", "multilabel_soft_margin_loss"}


def is_in_loss(case: Case) -> bool:
    """Tell whether a loss function of PyTorch raised it."""
    return case.scene.function in LOSSES | ENTROPY | MORE


def _pair(case: Case) -> tuple[Operand | None, Operand | None]:
    return (case.operand(0), case.operand(1)) if is_in_loss(case) else (None, None)


def _facts(case: Case) -> dict[str, Any]:
    output, label = _pair(case)
    evidence: dict[str, Any] = {"loss": case.scene.function} if output is not None else {}
    if output is not None and label is not None:
        evidence |= {"output_shape": list(output.shape), "output_dtype": output.dtype}
        evidence |= {"label_shape": list(label.shape), "label_dtype": label.dtype}
    elif isinstance(case.labels, Tensor):
        dtype = str(case.labels.dtype).removeprefix("torch.")
        evidence |= {"label_shape": list(case.labels.shape), "label_dtype": dtype}
    return evidence


@explains(r"expected target dtype|expected scalar type Long|Expected floating point type for target with class prob|"
          r"(?:nll_loss|cross_entropy)\w*\" not implemented for|0D or 1D target tensor expected|multi-target "
          r"not")  # fmt: skip
def classes_expected(case: Case) -> Explanation:
    facts = _facts(case)
    dtype, shape, output = facts.get("label_dtype", ""), facts.get("label_shape", []), facts.get("output_shape", [])
    message = f"Cross-entropy takes class numbers, int64 of shape (N,), and gets {dtype} of shape {tuple(shape)}"
    fix = "y = y.long()  # class numbers 0 to C-1"
    if len(shape) == 2 and shape[1] == 1:
        fix = "y = y.squeeze(1).long()  # (N, 1) -> (N,)"
    elif shape and shape == output:
        message += ", the shape of the output: these may be class probabilities or one-hot rows, which must be floats"
        fix = "y = y.float()  # probabilities; or y.argmax(1) for class numbers"
    elif len(output) > 1 and output[1] == 1:
        message += f"; the output has one column, {tuple(output)}, as for a binary or a numerical label"
        fix = "F.binary_cross_entropy_with_logits(out, y)  # or two outputs for two classes"
    return Explanation("label-dtype", f"{message}.", fix, facts)


@explains(r"Target (-?\d+) is out of bounds|Class values must be (?:smaller than num_classes|non-negative)")
def class_out_of_range(case: Case) -> Explanation:
    output, label = _pair(case)
    labels = case.labels
    least, most = (label.least, label.most) if label is not None else (None, None)
    if least is None and isinstance(labels, Tensor) and labels.numel():
        least, most = int(labels.min()), int(labels.max())
    count = output.shape[1 if len(output.shape) > 1 else 0] if output is not None else None
    message = "A label is no class of the output"
    message += f": labels go from {least} to {most}" if least is not None else f": {case.first_line}"
    message += f", and the output has {count} classes, 0 to {count - 1}." if count is not None else "."
    fix = "nn.Linear(…, number_of_classes)  # one output for each class"
    if least is not None and least < 0:
        fix = "F.cross_entropy(out, y, ignore_index=-1)  # if negative labels mean: don't count"
    elif least == 1 and most == count:
        fix = "y - 1  # classes are counted from 0"
    elif most is not None:
        fix = f"nn.Linear(…, {most + 1})  # one output for each class; or check where label {most} comes from"
    return Explanation(
        "label-out-of-range", message, fix, {"least": least, "most": most, "classes": count, **_facts(case)}
    )


@explains(r"all elements of (input|target) should be between 0 and 1")
def outside_unit_interval(case: Case) -> Explanation:
    what = case.match[1]
    label = "outputs are scores, no probabilities" if what == "input" else "labels are neither 0 nor 1"
    return Explanation(
        "not-a-probability", f"binary_cross_entropy takes numbers from 0 to 1, and some {label}.",
        "F.binary_cross_entropy_with_logits(scores, y)" if what == "input" else "y = (y == positive_class).float()",
        _facts(case),
    )  # fmt: skip


@explains(r"Found dtype (\w+) but expected (\w+)|result type (\w+) can't be cast to the desired output type (\w+)")
def floats_expected(case: Case) -> Explanation | None:
    facts = _facts(case)
    if not is_in_loss(case):
        return None
    return Explanation(
        "label-dtype", f"{case.scene.function} compares numbers with numbers: the output is "
        f"{facts.get('output_dtype')}, the label is {facts.get('label_dtype')}.",
        "y = y.float()", facts,
    )  # fmt: skip


@explains(r"Expected target size|Using a target size|batch_size \(\d+\) to match target|Target size|"
          r"must match the size of tensor|target must have size|input and target|expected to be (?:the )?"
          r"same")  # fmt: skip
def label_shape(case: Case) -> Explanation | None:
    output, label = _pair(case)
    if case.scene.operands and not is_in_loss(case):
        return None
    if output is None or label is None:
        is_known = any(word in case.text for word in ("target", "Target"))
        if not is_known:
            return None
        return Explanation(
            "label-shape", f"Output and label have shapes that do not fit{case.at}: {case.first_line}.",
            "print(output.shape, y.shape)", _facts(case),
        )  # fmt: skip
    message = f"{case.scene.function} gets an output of shape {output.shape} and a label of shape {label.shape}"
    fix = "print(output.shape, y.shape)  # they must be equal"
    if case.scene.function in ENTROPY:
        message += "; classes stand on axis 1 of the output, and the label has all axes but that"
        fix = "output of shape (N, C) with y of shape (N,)"
        if len(output.shape) == 3 and len(label.shape) == 2 and output.shape[:2] == label.shape:
            fix = "F.cross_entropy(output.transpose(1, 2), y)  # (N, T, C) -> (N, C, T); or flatten(0, 1) both"
        elif len(output.shape) == 2 and output.shape[0] != label.shape[0]:
            fix = "look where the first axis changes: both must have one row for each example"
    elif len(output.shape) == len(label.shape) + 1 and output.shape[-1] == 1:
        fix = "output.squeeze(-1)  # (N, 1) -> (N,)"
    elif len(label.shape) == len(output.shape) + 1 and label.shape[-1] == 1:
        fix = "y.squeeze(-1)  # (N, 1) -> (N,)"
    elif case.scene.function in BINARY and len(label.shape) == 1 and len(output.shape) == 2:
        fix = f"F.cross_entropy(output, y.long())  # {output.shape[1]} classes; or one-hot labels"
    return Explanation("label-shape", f"{message}.", fix, _facts(case))
