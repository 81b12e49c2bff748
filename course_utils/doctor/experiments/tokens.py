"""Look for labels of a language model that are the very tokens it is given, place by place."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from course_utils.doctor.experiments.forwards import by_place
from course_utils.doctor.experiments.objective import SomeBatches, run_watched
from course_utils.doctor.parts import clone_tree, tensors_of
from course_utils.doctor.where import reader_line

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination

_OF_LABELS = {"cross_entropy": "target", "nll_loss": "target", "gather": "index"}
LEAST = 12  # places with a label


@dataclass(frozen=True)
class Echo:
    """A loss whose labels are the inputs, and what the model's answer at a place depends on.

    Args:
        where: the reader's line that computes the loss.
        places: with a label.
        own: change of the answers at a place when the token at that place changes.
        earlier: change of the answers at earlier places then.
        later: change of the answers at later places then.
        scale: largest answer.
    """

    where: str
    places: int
    own: float
    earlier: float
    later: float
    scale: float


class _Labels(TorchFunctionMode):
    """Compares the labels of each loss with the tokens that the model was given last."""

    def __init__(self, examination: Examination) -> None:
        super().__init__()
        self.model = examination.parts.model
        self.call: tuple[Any, Any] | None = None
        self.tokens: Tensor | None = None
        self.found: tuple[str, int, Tensor, tuple[Any, Any]] | None = None
        self.count = self.equal = 0  # losses over all places, and how many of them have the inputs as labels

    def note_call(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if module is self.model:
            tokens = [leaf for leaf in tensors_of((args, kwargs)) if _are_tokens(leaf)]
            self.tokens = tokens[0] if tokens else None
            self.call = (args, kwargs)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _OF_LABELS and self.tokens is not None and torch.is_grad_enabled():
            place = 2 if name == "gather" else 1
            labels = args[place] if len(args) > place else kwargs.get(_OF_LABELS[name])
            if isinstance(labels, Tensor) and not labels.is_floating_point() and labels.numel() > 1:
                self._compare(labels, self.tokens)
        return func(*args, **kwargs)

    def _compare(self, labels: Tensor, tokens: Tensor) -> None:
        self.count += 1
        if labels.numel() != tokens.numel() or self.call is None:
            return
        for given in (tokens, tokens.t()):
            flat = labels.reshape(-1)
            real = flat >= 0
            places = int(real.sum())
            if places >= LEAST and bool((flat == given.reshape(-1))[real].all()):
                self.equal += 1
                if self.found is None:
                    self.found = reader_line(), places, tokens.clone(), clone_tree(self.call)
                return


def _are_tokens(leaf: Tensor) -> bool:
    return (
        not leaf.is_floating_point() and leaf.dtype in (torch.int64, torch.int32) and leaf.ndim == 2
        and leaf.shape[0] >= 2 and leaf.shape[1] >= 4 and len(leaf.unique()) > 2
    )  # fmt: skip


def find_echo(examination: Examination) -> Echo | None:
    """Run some steps; where the labels are the inputs, change one token and see which answers change."""
    parts, kept = examination.parts, examination.batches.kept
    if parts.model is None or not kept or examination.failure is not None or not examination.runs:
        return None
    seen = _Labels(examination)

    def watch(stack: ExitStack, _batches: SomeBatches) -> None:
        assert parts.model is not None
        stack.callback(parts.model.register_forward_pre_hook(seen.note_call, with_kwargs=True).remove)
        stack.enter_context(seen)

    run_watched(examination, watch, 2)
    if seen.found is None or seen.equal < seen.count:
        return None
    where, places, tokens, call = seen.found
    changes: list[float] = []
    examination.run(lambda: changes.extend(_changes(parts.model, tokens, call)), 0.1)
    return Echo(where, places, *changes) if changes else None


def _changes(model: Any, tokens: Tensor, call: tuple[Any, Any]) -> tuple[float, ...]:
    """Return how far answers at, before and behind a place change with its token, and the largest answer."""
    model.eval()
    args, kwargs = call
    place = tokens.shape[1] // 2
    known = tokens.unique()
    index = torch.searchsorted(known, tokens[:, place].contiguous())
    changed = tokens.clone()
    changed[:, place] = known[(index + 1) % len(known)]

    def answers(given: Tensor) -> Tensor:
        def swap(value: Any) -> Any:
            return given if isinstance(value, Tensor) and value.shape == tokens.shape and value.equal(tokens) else value

        with torch.no_grad():
            output = model(*map(swap, args), **{name: swap(value) for name, value in kwargs.items()})
        whole = [by_place(leaf, torch.ones_like(tokens, dtype=torch.bool)) for leaf in tensors_of(output)]
        return next(leaf for leaf in whole if leaf.ndim == 3 and leaf.shape[:2] == tokens.shape)

    usual, again, other = answers(tokens), answers(tokens), answers(changed)
    if not torch.equal(usual, again):
        return ()
    moved = (usual - other).abs().amax(2)
    sides = (moved[:, place], moved[:, :place], moved[:, place + 1 :])
    return (*(float(side.max()) for side in sides), float(usual.abs().max()))
