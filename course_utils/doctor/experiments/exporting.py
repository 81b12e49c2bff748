"""Run the reader's own export, and compare its result with the model."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from course_utils.doctor.experiments.evaluating import _acts
from course_utils.doctor.parts import batch_size, clone_tree, take, tensors_of
from course_utils.doctor.running import Failure, attempt
from course_utils.doctor.tracing import replace

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination


@dataclass
class Difference:
    """An input on which exported and original model differ: what was changed, and by how much."""

    what: str
    shape: tuple[int, ...]
    error: float
    text: str = ""


@dataclass
class ExportFacts:
    """What the export did.

    Args:
        kinds: exporters that were called.
        in_training: Dropout and BatchNorm layers in training mode when they were.
        differences: inputs on which the result differs from the model.
        is_random: whether two calls of the result differ.
        failure: the exception that ended the export.
    """

    kinds: list[str] = field(default_factory=list)
    in_training: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    is_random: float = 0.0
    failure: Failure | None = None
    batch_refused: str = ""
    batches_tried: tuple[int, int] = (0, 0)
    is_made: bool = False
    from_example: bool = False


def probe_export(examination: Examination) -> ExportFacts | None:
    """Export as the reader does; without an ``export`` but with an ``example``, trace the model with it."""
    parts, model = examination.parts, examination.parts.model
    export, example = parts.get("export"), parts.get("example")
    if model is None or (export is None and example is None):
        return None
    facts = ExportFacts(from_example=export is None)
    _ = examination.steps

    def go() -> Any:
        with ExitStack() as stack, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _observe(stack, facts)
            if export is not None:
                made = parts.call(export, ("model", "example"))
            else:
                args = example if isinstance(example, tuple) else (example,)
                made = torch.jit.trace(model.eval(), args, check_trace=False)
        _compare(examination, made, facts)

    examination._is_dirty = True
    outcome = attempt(go, max(10.0, examination.budget.share(0.5)))
    if export is not None:
        facts.failure = outcome.failure
    examination.rewind()
    return facts


def _observe(stack: ExitStack, facts: ExportFacts) -> None:
    def noting(kind: str) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def exporter(target: Any, *args: Any, **kwargs: Any) -> Any:
                if isinstance(target, nn.Module):
                    facts.kinds.append(kind)
                    facts.in_training += [
                        name or type(m).__name__ for name, m in target.named_modules() if m.training and _acts(m)
                    ]
                return original(target, *args, **kwargs)

            return exporter

        return make

    replace(stack, torch.jit, "trace", noting("torch.jit.trace"))
    replace(stack, torch.jit, "script", noting("torch.jit.script"))
    replace(stack, torch.export, "export", noting("torch.export.export"))
    replace(stack, torch.onnx, "export", noting("torch.onnx.export"))


def _compare(examination: Examination, made: Any, facts: ExportFacts) -> None:
    model = examination.parts.model
    assert model is not None
    artefact = made.module() if hasattr(made, "module") and isinstance(made, torch.export.ExportedProgram) else made
    if not callable(artefact):
        return
    facts.is_made = True
    inputs = _inputs(examination)
    if inputs is None:
        return
    model.eval()
    size = batch_size(inputs) or 0
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, second = _try(artefact, inputs), _try(artefact, inputs)
        if isinstance(first, Tensor) and isinstance(second, Tensor) and first.shape == second.shape:
            facts.is_random = float((first - second).abs().max()) if first.numel() else 0.0
        tried: list[tuple[int, Any]] = []
        for count in dict.fromkeys(n for n in (size, 3, 2, 7) if 1 < n <= size):
            result = _try(artefact, take(inputs, slice(0, count), size))
            tried.append((count, result))
            expected = _try(model, take(inputs, slice(0, count), size))
            if isinstance(result, Exception) and not isinstance(expected, Exception):
                facts.batch_refused = f"{type(result).__name__}: {str(result).splitlines()[0] if str(result) else ''}"
                facts.batches_tried = (count, facts.batches_tried[1])
            else:
                facts.batches_tried = (facts.batches_tried[0], count)
                _difference(f"batch of {count}", inputs, result, expected, facts)
        for what, factor in (("changed sign", -1.0), ("values ten times as large", 10.0)):
            scaled = tuple(leaf * factor if leaf.is_floating_point() else leaf for leaf in inputs)
            expected = _try(model, scaled)
            if not isinstance(expected, Exception):
                _difference(what, scaled, _try(artefact, scaled), expected, facts)
        for axis in range(1, max((leaf.ndim for leaf in tensors_of(inputs)), default=1)):
            longer = tuple(torch.cat([leaf, leaf], axis) if leaf.ndim > axis else leaf for leaf in inputs)
            expected = _try(model, longer)
            if isinstance(expected, Tensor):
                _difference(f"axis {axis} twice as long", longer, _try(artefact, longer), expected, facts)


def _difference(what: str, inputs: Any, result: Any, expected: Any, facts: ExportFacts) -> None:
    if not isinstance(expected, Tensor) or isinstance(result, Exception) or not isinstance(result, Tensor):
        return
    shape = tuple(tensors_of(inputs)[0].shape)
    if result.shape != expected.shape:
        facts.differences.append(Difference(what, shape, float("inf"), f"shape {tuple(result.shape)}"))
        return
    error = float((result - expected).abs().max()) if result.numel() else 0.0
    if error > 1e-3 * (1 + float(expected.abs().max())):
        facts.differences.append(Difference(what, shape, error))


def _inputs(examination: Examination) -> tuple[Tensor, ...] | None:
    root = examination.root
    if root is not None and not root.kwargs and all(isinstance(arg, Tensor) for arg in root.args):
        return clone_tree(root.args)
    if examination.batches.kept:
        inputs = examination.parts.split(examination.batches.kept[0])[0]
        several = inputs if isinstance(inputs, tuple) else (inputs,)
        if all(isinstance(leaf, Tensor) for leaf in several):
            return several
    return None


def _try(function: Any, args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return error
