"""Follow what autograd saves for the backward pass, and whether it is still the same when it is used."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from course_utils.doctor.experiments.training import short_training
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
        reads_empty: whether the first loss is a number or not depending on what new memory holds.
    """

    changed: list[tuple[tuple[int, ...], str]] = field(default_factory=list)
    functions: dict[str, FunctionUse] = field(default_factory=dict)
    samples: list[tuple[str, str]] = field(default_factory=list)  # distribution, line
    log_probs: int = 0
    reads_empty: bool = False


def probe_saved(examination: Examination) -> SavedFacts | None:
    """Run one step with every saved tensor compared before and after."""
    run = examination.run_facts
    if run is None or not run.trace.backwards:
        return None
    facts = SavedFacts()
    total = 0
    buffers: set[int] = set()

    def noting_statistics(original: Any) -> Any:
        # BatchNorm saves its running statistics and moves them in the same operation, which never reads them again.
        def batch_norm(x: Tensor, mean: Any, var: Any, *args: Any, **kwargs: Any) -> Tensor:
            buffers.update(b.untyped_storage().data_ptr() for b in (mean, var) if isinstance(b, Tensor))
            return original(x, mean, var, *args, **kwargs)

        return batch_norm

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
        if copy is None or tensor._version != version or tensor.untyped_storage().data_ptr() in buffers:
            return tensor
        if not _same(tensor, copy):
            facts.changed.append((tuple(tensor.shape), where))
        return tensor

    def go() -> None:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack), ExitStack() as stack:
            _note_functions(stack, run.functions, facts)
            _note_samples(stack, facts)
            replace(stack, F, "batch_norm", noting_statistics)
            short_training(examination, 1)

    examination.run(go, 0.3)
    # Where the loss is a number, it must stay one when new memory holds NaN. Where it isn't, it was NaN by accident
    # if new memory full of zeros makes it a number.
    finite = math.isfinite(run.trace.backwards[0].root)
    first = examination.run(lambda: _first_loss(examination, math.nan if finite else 0.0), 0.2).value
    facts.reads_empty = first is not None and math.isfinite(first) != finite
    return facts


class _Filling(TorchDispatchMode):
    """Fill what torch.empty and its kin return, as PyTorch does with NaN in deterministic mode."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._overloadpacket in EMPTY and result.is_floating_point() and not result.is_meta:
            result.fill_(self.value)
        return result


EMPTY = {
    getattr(torch.ops.aten, name)
    for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted")
}


def _first_loss(examination: Examination, value: float) -> float | None:
    """The first loss of a short piece in which new memory holds a value; None where nothing called backward()."""
    roots: list[float] = []

    def noting(original: Any) -> Any:
        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            leaf = tensors if isinstance(tensors, Tensor) else None
            if leaf is not None and leaf.numel() == 1:
                roots.append(float(leaf.detach()))
            return original(tensors, *args, **kwargs)

        return backward

    with ExitStack() as stack:
        replace(stack, torch.autograd, "backward", noting)
        stack.enter_context(_Filling(value))
        short_training(examination, 1)
    return roots[0] if roots else None


def _same(first: Tensor, second: Tensor) -> bool:
    return torch.equal(torch.nan_to_num(first), torch.nan_to_num(second))


def _note_functions(stack: ExitStack, kinds: Iterable[Any], facts: SavedFacts) -> None:
    """Note what custom Functions are applied to: their forward is wrapped for the time of the step."""
    for kind in kinds:
        has_context = kind.setup_context is torch.autograd.Function.setup_context  # forward(ctx, …), the older form

        def noting(original: Any, kind: Any = kind, has_context: bool = has_context) -> Any:
            @functools.wraps(original)
            def forward(*args: Any, **kwargs: Any) -> Any:
                if kind.__name__ not in facts.functions and not kwargs:
                    own = args[1:] if has_context else args
                    copies = tuple(a.detach().clone() if isinstance(a, Tensor) else a for a in own)
                    facts.functions[kind.__name__] = FunctionUse(kind, copies)
                return original(*args, **kwargs)

            return staticmethod(forward)

        replace(stack, kind, "forward", noting)


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
