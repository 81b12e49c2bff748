"""Follow what autograd saves for the backward pass, and whether it is still the same when it is used."""

from __future__ import annotations

import functools
import itertools
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from course_utils.doctor.running import attempt
from course_utils.doctor.tracing import _subclasses, replace
from course_utils.doctor.where import reader_line

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination

MAX_BYTES = 64 * 1024**2


@dataclass
class FunctionUse:
    """A custom autograd Function with inputs that it was applied to."""

    kind: type
    args: tuple[Any, ...]


@dataclass
class SavedFacts:
    """What happened to saved tensors.

    Args:
        changed: (shape, line that saved it) of saved tensors whose values changed unnoticed by the version counter.
        functions: custom Functions that were applied.
        samples: draws without a gradient from distributions whose parameters require one.
        log_probs: calls of log_prob.
    """

    changed: list[tuple[tuple[int, ...], str]] = field(default_factory=list)
    functions: dict[str, FunctionUse] = field(default_factory=dict)
    samples: list[tuple[str, str]] = field(default_factory=list)  # distribution, line
    log_probs: int = 0


def probe_saved(examination: Examination) -> SavedFacts | None:
    """Run one step with every saved tensor compared before and after."""
    steps = examination.steps
    if steps.trace is None or not steps.trace.backwards:
        return None
    facts = SavedFacts()
    total = 0

    def pack(tensor: Tensor) -> Any:
        nonlocal total
        size = tensor.numel() * tensor.element_size()
        if total + size > MAX_BYTES or tensor.layout != torch.strided:
            return (tensor.detach(), None, 0, "")
        total += size
        value = tensor.detach()
        return (value, value.clone(), tensor._version, reader_line())

    def unpack(packed: Any) -> Tensor:
        tensor, copy, version, where = packed
        if copy is not None and tensor._version == version and not _same(tensor, copy):
            facts.changed.append((tuple(tensor.shape), where))
        return tensor

    def go() -> None:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack), _noting_functions(facts), ExitStack() as stack:
            _note_samples(stack, facts)
            for batch in itertools.islice(iter(_loader(examination)), 1):
                examination.parts.run_step(batch)

    examination._is_dirty = True
    attempt(go, examination.budget.share(0.3))
    examination.rewind()
    return facts


def _loader(examination: Examination) -> Any:
    return examination.batches.kept if examination.batches.is_one_shot else examination.parts.loader


def _same(first: Tensor, second: Tensor) -> bool:
    return torch.equal(torch.nan_to_num(first), torch.nan_to_num(second))


class _noting_functions:
    """Note which custom Functions are applied, and to what."""

    def __init__(self, facts: SavedFacts) -> None:
        self.facts = facts

    def __enter__(self) -> None:
        self.original = torch.autograd.Function.__dict__["apply"]
        inner = self.original.__func__
        facts = self.facts

        def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
            if not cls.__module__.startswith("torch.") and cls.__name__ not in facts.functions and not kwargs:
                copies = tuple(a.detach().clone() if isinstance(a, Tensor) else a for a in args)
                facts.functions[cls.__name__] = FunctionUse(cls, copies)
            return inner(cls, *args, **kwargs)

        torch.autograd.Function.apply = classmethod(apply)  # type: ignore[method-assign, assignment]

    def __exit__(self, *_error: object) -> None:
        torch.autograd.Function.apply = self.original  # type: ignore[method-assign]


def _note_samples(stack: ExitStack, facts: SavedFacts) -> None:
    """Note draws that cut the graph, and calls of log_prob."""
    from torch.distributions import Distribution

    def noting_sample(original: Any) -> Any:
        @functools.wraps(original)
        def sample(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self.has_rsample and torch.is_grad_enabled():
                values = [v for v in vars(self).values() if isinstance(v, Tensor)]
                if any(value.requires_grad for value in values):
                    facts.samples.append((type(self).__name__, reader_line()))
            return original(self, *args, **kwargs)

        return sample

    def noting_log_prob(original: Any) -> Any:
        @functools.wraps(original)
        def log_prob(self: Any, *args: Any, **kwargs: Any) -> Any:
            facts.log_probs += 1
            return original(self, *args, **kwargs)

        return log_prob

    for kind in {Distribution, *_subclasses(Distribution)}:
        if "sample" in vars(kind):
            replace(stack, kind, "sample", noting_sample)
        if "log_prob" in vars(kind):
            replace(stack, kind, "log_prob", noting_log_prob)
