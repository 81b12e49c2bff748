"""Say what an exception of PyTorch means, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import Tensor

from course_utils.doctor.parts import named_leaves
from course_utils.doctor.running import Failure
from course_utils.doctor.scene import Operand, Scene, look_again

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination

BATCH = "batch"  # name of a batch in messages


@dataclass(frozen=True)
class Explanation:
    """What an exception means.

    Args:
        slug: kind of the fault, the evidence's ``kind``.
        message: in words.
        fix: the repair.
        evidence: shapes, dtypes, names.
    """

    slug: str
    message: str
    fix: str
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass
class Case:
    """One exception, and what can be found out about it.

    Args:
        failure: the exception.
        examination: in which it came up.
        match: of the pattern of the explanation that is tried.
    """

    failure: Failure
    examination: Examination
    match: re.Match[str] | None = None

    @property
    def text(self) -> str:
        return self.failure.text

    @property
    def first_line(self) -> str:
        """The first line of the message, without a full stop."""
        return next((line.strip().rstrip(".") for line in self.text.splitlines() if line.strip()), "")

    @property
    def line(self) -> str:
        return self.failure.line

    @property
    def at(self) -> str:
        """`` at `line` `` of the reader, or nothing."""
        return f" at `{self.line}`" if self.line else ""

    @cached_property
    def scene(self) -> Scene:
        """What stood where when it came up; the reader's code runs once more for it."""
        again = self.failure.again
        return Scene() if again is None else look_again(self.examination, again)

    @property
    def where(self) -> str:
        """The layer in words, and the line where that says more."""
        scene = self.scene
        if not scene.layer:
            return f"the line `{self.line}`" if self.line else "a function of PyTorch"
        kind = type(scene.module).__name__
        layer = f"layer {scene.layer!r} ({kind})" if scene.layer != kind else f"forward of {kind}"
        return f"{layer} (`{self.line}`)" if self.line and list(scene.module.children()) else layer

    def variables(self, *names: str) -> str:
        """Say what the variables of the reader's innermost line are, but for some; empty if there are none."""
        known = {name: text for name, text in self.scene.locals.items() if name not in ("self", "cls", *names)}
        return "".join(f" {name} is {text}." for name, text in list(known.items())[:6])[:400]

    @cached_property
    def batch(self) -> Any:
        """The batch at which it failed, as far as it is known."""
        kept = self.examination.batches.kept
        run = self.examination.run_facts
        return kept[min(len(kept) - 1, max(0, run.failed_at if run is not None else 0))] if kept else None

    @property
    def batch_text(self) -> str:
        """The tensors of the batch with shapes and dtypes."""
        leaves = [
            f"{name} {tuple(leaf.shape)} {str(leaf.dtype).removeprefix('torch.')}"
            for name, leaf in named_leaves(self.batch, BATCH)
        ]
        return ", ".join(leaves)

    @property
    def labels(self) -> Tensor | None:
        """The labels of that batch, if they are one tensor."""
        labels = self.examination.parts.split(self.batch)[1] if self.batch is not None else None
        return labels if isinstance(labels, Tensor) else None

    def operand(self, number: int) -> Operand | None:
        operands = self.scene.operands
        return operands[number] if len(operands) > number else None

    @property
    def shapes_text(self) -> str:
        """Names and shapes of what the function was given: ``x (16, 3) and y (5, 2)``."""
        return " and ".join(map(str, self.scene.operands[:3]))

    @property
    def shapes(self) -> dict[str, Any]:
        """Evidence: layer, function and shapes."""
        scene = self.scene
        evidence: dict[str, Any] = {"layer": scene.layer} if scene.layer else {}
        if scene.function:
            evidence |= {"function": scene.function, "shapes": [list(o.shape) for o in scene.operands]}
        return evidence


Explainer = Callable[[Case], "Explanation | None"]
_TABLE: list[tuple[re.Pattern[str], Explainer]] = []


def explains(*patterns: str) -> Callable[[Explainer], Explainer]:
    """Enter a function that explains messages of one of these patterns; it may return None to leave it to later ones.

    A message is searched as ``Kind: text``.
    """

    def enter(explainer: Explainer) -> Explainer:
        _TABLE.append((re.compile("|".join(patterns), re.DOTALL), explainer))
        return explainer

    return enter


def explain(failure: Failure, examination: Examination) -> Explanation:
    """Return the explanation of an exception; an unknown one is told with its line."""
    from course_utils.doctor import explanations

    explanations.load()
    case = Case(failure, examination)
    subject = f"{failure.kind}: {failure.text}"
    for pattern, explainer in _TABLE:
        case.match = pattern.search(subject)
        if case.match is not None:
            explanation = explainer(case)
            if explanation is not None:
                return explanation
    return _unknown(case)


def _unknown(case: Case) -> Explanation:
    in_layer = f" In {case.where}" if case.scene.layer else ""
    given = f"{in_layer or ' There'}, {case.scene.function}() gets {case.shapes_text}." if case.scene.operands else (
        f"{in_layer}." if in_layer else ""
    )  # fmt: skip
    return Explanation(
        "exception", f"{case.failure.kind}: {case.first_line}{case.at}.{given}", "read the line that is named",
        case.shapes,
    )  # fmt: skip
