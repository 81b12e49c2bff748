"""Call the model with variations of a batch: evaluation twice, one example, shuffled neighbours, no in-place layers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from course_utils.doctor.functions import WRITES, Calls, FunctionObserver
from course_utils.doctor.parts import batch_size, clone_tree, take, tensors_of
from course_utils.doctor.where import is_augmented, reader_line

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination

MAX_EXAMPLES = 16


@dataclass
class Forwards:
    """How the model answers.

    Args:
        size: examples in the batch that was used.
        eval_difference: largest difference between two outputs in evaluation mode, under different random numbers.
        eval_calls: functions called in evaluation mode.
        omitted_training: lines that call ``F.dropout`` without saying ``training=``.
        unregistered_dropout: lines where a dropout layer that the model does not hold ran in training mode.
        shape_of_two: shape of the output for two examples; and for one.
        error_of_one: the exception for one example.
        mixing: largest change of the first output when the other inputs change.
        is_equivariant: whether shuffled inputs give the same outputs, shuffled.
        over_batch: lines of a softmax over the batch axis.
        attention_over_batch: shapes that reach attention layers that take the batch axis for the sequence.
        inplace_difference: largest change of the output when in-place layers work out of place.
        inplace_names: names of those layers, or lines.
        padding: effect of padding, see Padding.
        future: for labels that are the inputs moved by one place, change of early outputs when later inputs change.
    """

    size: int = 0
    eval_difference: float = 0.0
    eval_calls: Calls = field(default_factory=Calls)
    omitted_training: list[str] = field(default_factory=list)
    unregistered_dropout: list[str] = field(default_factory=list)
    shape_of_two: tuple[int, ...] | None = None
    shape_of_one: tuple[int, ...] | None = None
    error_of_one: str = ""
    train_error_of_one: str = ""
    mixing: float = 0.0
    scale: float = 1.0
    is_equivariant: bool = True
    over_batch: list[str] = field(default_factory=list)
    attention_over_batch: list[tuple[int, ...]] = field(default_factory=list)
    inplace_difference: float = 0.0
    inplace_names: list[str] = field(default_factory=list)
    padding: Padding | None = None
    future: float = 0.0


@dataclass
class Padding:
    """What padded places do to the answer.

    Args:
        kind: how the batch says what is padding: ``mask``, ``lengths`` or ``mask channel``.
        effect: largest change of the output when only padded places change.
        effect_of_real: the same when only real places change.
        has_convolution: whether a convolution may look beyond the end.
    """

    kind: str
    effect: float
    effect_of_real: float
    has_convolution: bool
    padded: int = 0


def probe_forward(examination: Examination) -> Forwards | None:
    """Call the model with the inputs of its first call, in evaluation mode and without gradients."""
    model, root = examination.parts.model, examination.root
    if model is None or root is None:
        return None
    args = root.inputs
    size = batch_size(args) or 0
    facts = Forwards(size=size)
    small = min(size, MAX_EXAMPLES)
    inputs = take(args, slice(0, small), size) if size else args
    _guarded(examination, lambda: _eval_twice(model, inputs, facts))
    if small >= 2 and _has_batch_axis(inputs, root.output, size, small):
        _guarded(examination, lambda: _one_example(model, inputs, small, facts))
        _guarded(examination, lambda: _neighbours(model, inputs, small, facts))
    _guarded(examination, lambda: _without_inplace(model, inputs, facts))
    if small >= 2:
        _guarded(examination, lambda: _padding(model, inputs, small, facts))
        labels = examination.parts.split(examination.batches.kept[0])[1] if examination.batches.kept else None
        _guarded(examination, lambda: _future(model, inputs, labels, small, facts))
    return facts


def _call(model: nn.Module, inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    args, kwargs = inputs
    return model(*args, **kwargs)


def _guarded(examination: Examination, experiment: Callable[[], None]) -> None:
    """Run an experiment; what fails here is the doctor's question, not the reader's program."""

    def go() -> None:
        examination.parts.model.eval()  # type: ignore[union-attr]
        with torch.no_grad():
            experiment()

    examination.run(go, 0.2)


def _has_batch_axis(inputs: Any, output: Any, whole: int, small: int) -> bool:
    leaves, outputs = tensors_of(inputs), tensors_of(output)
    return (
        bool(leaves and outputs)
        and all(leaf.ndim >= 1 and leaf.shape[0] == small for leaf in leaves)
        and outputs[0].ndim >= 1
        and outputs[0].shape[0] == whole
    )


def _eval_twice(model: nn.Module, inputs: Any, facts: Forwards) -> None:
    owned = {id(module) for module in model.modules()}
    original = F.dropout
    fresh: list[str] = []

    def dropout(*args: Any, **kwargs: Any) -> Any:
        if len(args) < 3 and "training" not in kwargs:
            facts.omitted_training.append(reader_line())
        return original(*args, **kwargs)

    def before(module: nn.Module, _inputs: Any) -> None:
        if (
            id(module) not in owned
            and module.training
            and isinstance(module, nn.modules.dropout._DropoutNd)
            and module.p
        ):
            fresh.append(reader_line())

    F.dropout = dropout
    handle = nn.modules.module.register_module_forward_pre_hook(before)
    try:
        with FunctionObserver(facts.eval_calls):
            _call(model, clone_tree(inputs))
    finally:
        F.dropout = original
        handle.remove()
    torch.manual_seed(1)
    first = _call(model, clone_tree(inputs))
    torch.manual_seed(2)
    second = _call(model, clone_tree(inputs))
    facts.unregistered_dropout = fresh
    difference = _difference(first, second)
    scale = max((float(leaf.float().abs().max()) for leaf in tensors_of(first) if leaf.numel()), default=0.0)
    facts.eval_difference = difference if difference > 1e-5 * scale else 0.0  # below: another order of summation


def _one_example(model: nn.Module, inputs: Any, size: int, facts: Forwards) -> None:
    facts.shape_of_two = _shape(_call(model, take(inputs, slice(0, 2), size)))
    try:
        facts.shape_of_one = _shape(_call(model, take(inputs, slice(0, 1), size)))
    except Exception as error:
        facts.error_of_one = str(error).splitlines()[0] if str(error) else type(error).__name__
    model.train()
    try:
        _call(model, take(inputs, slice(0, 1), size))
    except Exception as error:
        facts.train_error_of_one = str(error).splitlines()[0] if str(error) else type(error).__name__


def _neighbours(model: nn.Module, inputs: Any, size: int, facts: Forwards) -> None:
    if facts.eval_difference > 0:  # random anyway: nothing can be compared
        return
    calls = Calls()

    def before(module: nn.Module, given: Any) -> None:
        if isinstance(module, nn.MultiheadAttention) and not module.batch_first and given:
            shape = tuple(given[0].shape)
            if len(shape) == 3 and shape[0] == size and shape[1] > 1:
                facts.attention_over_batch.append(shape)

    handle = nn.modules.module.register_module_forward_pre_hook(before)
    try:
        with FunctionObserver(calls):
            _call(model, clone_tree(inputs))
    finally:
        handle.remove()
    alone = _first(_call(model, clone_tree(inputs)))
    fewer = _first(_call(model, take(inputs, slice(0, size - 1), size)))  # a model bound to its batch size fails here
    if alone is None or fewer is None or not alone.is_floating_point() or bool(alone.isnan().any()):
        return
    facts.scale = float(alone.abs().max()) + 1e-12
    if fewer.shape[1:] != alone.shape[1:]:
        return  # one column for each neighbour: a similarity between all pairs
    for kept in (0, size - 1):  # a recurrence over the batch axis reaches only forwards
        mixed = [_replaced_neighbours(leaf, kept) for leaf in tensors_of(inputs)]
        changed = _first(_call(model, _rebuilt(inputs, mixed)))
        if changed is None or changed.shape != alone.shape:
            return
        if alone[kept].numel():
            facts.mixing = max(facts.mixing, float((changed[kept] - alone[kept]).abs().max()))
    permutation = torch.randperm(size, generator=torch.Generator().manual_seed(3))
    permuted = _first(_call(model, take(inputs, permutation, size)))
    if permuted is not None and permuted.shape == alone.shape:
        facts.is_equivariant = torch.allclose(permuted, alone[permutation], rtol=1e-3, atol=1e-4 * facts.scale)
    facts.over_batch = [r.where for r in calls.reductions if r.axis == 0 and r.shape[0] == size and "softmax" in r.name]


def _replaced_neighbours(leaf: Tensor, kept: int) -> Tensor:
    """Return inputs of which one example stays, and whose others are exchanged and, for numbers, also changed."""
    changed = leaf.roll(1, 0).clone()
    if leaf.is_floating_point():
        changed = changed * 1.5 + leaf.float().std().nan_to_num().to(leaf.dtype)
    changed[kept] = leaf[kept]
    return changed


def _rebuilt(inputs: Any, leaves: list[Tensor]) -> Any:
    from torch.utils._pytree import tree_flatten, tree_unflatten

    flat, spec = tree_flatten(inputs)
    fresh = iter(leaves)
    return tree_unflatten([next(fresh) if isinstance(value, Tensor) else value for value in flat], spec)


class _OutOfPlace(TorchFunctionMode):
    """Turns ``F.relu(x, inplace=True)`` and ``x += y`` into their forms that write nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.turned: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if kwargs.get("inplace") is True:
            kwargs["inplace"] = False
            self.turned.append(reader_line())
        elif name in WRITES and is_augmented(sys._getframe(1)) and args and _is_float(args[0]):
            self.turned.append(reader_line())
            return WRITES[name](*args)
        return func(*args, **kwargs)


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _without_inplace(model: nn.Module, inputs: Any, facts: Forwards) -> None:
    if facts.eval_difference > 0:
        return
    usual = _first(_call(model, clone_tree(inputs)))
    layers = [(name, module) for name, module in model.named_modules() if getattr(module, "inplace", False) is True]
    for _, module in layers:
        module.inplace = False  # type: ignore[assignment]
    mode = _OutOfPlace()
    with mode:
        plain = _first(_call(model, clone_tree(inputs)))
    if usual is None or plain is None or usual.shape != plain.shape:
        return
    facts.scale = max(facts.scale, 1e-12)
    facts.inplace_difference = float((usual - plain).abs().max()) if usual.numel() else 0.0
    facts.inplace_names = [name or type(module).__name__ for name, module in layers] + [w for w in mode.turned if w]


def _padding(model: nn.Module, inputs: Any, size: int, facts: Forwards) -> None:
    """Find out what the batch says about padding, and whether padded places reach the answer."""
    if facts.eval_difference > 0:
        return
    found = _find_padding(inputs, size)
    if found is None:
        return
    kind, place, real, channels = found  # real: (N, T), True for a real place
    leaves = tensors_of(inputs)
    usual = _first(_call(model, clone_tree(inputs)))
    if usual is None or not usual.is_floating_point() or bool(usual.isnan().any()):
        return

    def effect(where: Tensor, keep_first: bool) -> float:
        changed = [leaf.clone() for leaf in leaves]
        target = changed[place]
        if keep_first:
            where = where.clone()
            where[:, 0] = False
        if not target.is_floating_point():  # token numbers: others that occur
            changed[place] = torch.where(where, _other_tokens(target, real), target)
        else:
            change = torch.full_like(target, 3.0)
            if target.ndim > 2:
                change[..., ~channels] = 0
            mask = where if target.ndim == 2 else where.unsqueeze(-1)
            target += change * mask.to(target.dtype)
        result = _first(_call(model, _rebuilt(inputs, changed)))
        if result is None or result.shape != usual.shape:
            return 0.0
        difference = (result - usual).abs()
        difference = by_place(difference, real)
        if difference.ndim >= 2 and difference.shape[:2] == real.shape:  # one for each place: only real ones count
            difference = difference[real & ~where]
        return float(difference.max()) if difference.numel() else 0.0

    convolution = any(isinstance(module, nn.modules.conv._ConvNd) for module in model.modules())
    facts.padding = Padding(kind, effect(~real, False), effect(real, True), convolution, int((~real).sum()))


def by_place(values: Tensor, real: Tensor) -> Tensor:
    """Return outputs with one answer for each place as (N, T, …), whatever order they have; others as they are."""
    n, t = real.shape
    if values.ndim == 3 and values.shape[1] != t and (values.shape[0], values.shape[2]) == (n, t):
        return values.transpose(1, 2)
    if values.ndim == 2 and values.shape[0] == n * t:
        return values.reshape(n, t, -1)
    if values.ndim == 3 and values.shape[0] == t and values.shape[1] == n != t:
        return values.transpose(0, 1)
    return values


def _future(model: nn.Module, inputs: Any, labels: Any, size: int, facts: Forwards) -> None:
    """Change the second half of sequences whose labels are the inputs moved by one, and look at the first half."""
    leaves = tensors_of(inputs)
    if facts.eval_difference > 0 or len(leaves) != 1 or not isinstance(labels, Tensor):
        return
    x, y = leaves[0], labels[:size]
    if x.ndim < 2 or x.shape != y.shape or x.shape[1] < 4 or not torch.equal(x[:, 1:], y[:, :-1].to(x.dtype)):
        return
    if bool((x == x[:, :1]).all()):
        return
    half = x.shape[1] // 2
    changed = x.clone()
    changed[:, half:] = x[:, half:].roll(1, 0) if not x.is_floating_point() else x[:, half:] * 1.5 + 1
    usual, other = _first(_call(model, clone_tree(inputs))), _first(_call(model, _rebuilt(inputs, [changed])))
    if usual is None or other is None or usual.shape != other.shape or torch.equal(changed, x):
        return
    if bool(usual.isnan().any()):
        return
    difference = (usual - other).abs().float()
    time = next((axis for axis in (1, 2) if difference.ndim > axis and difference.shape[axis] == x.shape[1]), None)
    if time is None or difference.shape[0] != size:
        return
    facts.future = float(difference.narrow(time, 0, half).max())
    facts.scale = max(facts.scale, float(usual.abs().max()))


def _find_padding(inputs: Any, size: int) -> tuple[str, int, Tensor, Tensor] | None:
    """Return how padding is marked, the leaf with the sequences, which places are real, and the channels to change."""
    leaves = tensors_of(inputs)
    for place, leaf in enumerate(leaves):
        if _are_tokens(leaf, size):
            for other, mark in enumerate(leaves):
                if other != place and mark.shape == leaf.shape and _is_mask(mark):
                    real = mark.bool() if _ends_padded(mark.bool()) else ~mark.bool()
                    if _ends_padded(real) and _is_constant(leaf, ~real):
                        return "mask", place, real, torch.ones(1, dtype=torch.bool)
                if other != place and mark.shape == (size,) and not mark.is_floating_point() and int(mark.min()) > 0:
                    real = torch.arange(leaf.shape[1]).unsqueeze(0) < mark.unsqueeze(1)
                    if bool((~real).any()) and _is_constant(leaf, ~real):
                        return "lengths", place, real, torch.ones(1, dtype=torch.bool)
            continue
        if not leaf.is_floating_point() or leaf.ndim not in (2, 3) or leaf.shape[0] != size or leaf.shape[1] < 2:
            continue
        every = torch.ones(leaf.shape[-1], dtype=torch.bool)
        for other, mark in enumerate(leaves):
            if other == place:
                continue
            if mark.shape == leaf.shape[:2] and _is_mask(mark):
                real = mark.bool()
                if not _ends_padded(real):
                    real = ~real
                if _ends_padded(real):
                    return "mask", place, real, every
            if mark.shape == (size,) and not mark.is_floating_point() and 0 < int(mark.max()) <= leaf.shape[1]:
                real = torch.arange(leaf.shape[1]).unsqueeze(0) < mark.unsqueeze(1)
                if bool((~real).any()) and _is_constant(leaf, ~real):
                    return "lengths", place, real, every
        if leaf.ndim == 3 and leaf.shape[2] > 1:
            for channel in range(leaf.shape[2]):
                mark = leaf[..., channel]
                if _is_mask(mark) and _ends_padded(mark.bool()):
                    channels = every.clone()
                    channels[channel] = False
                    return "mask channel", place, mark.bool(), channels
    return None


def _are_tokens(leaf: Tensor, size: int) -> bool:
    return (
        leaf.dtype in (torch.int64, torch.int32)
        and leaf.ndim == 2
        and leaf.shape[0] == size
        and leaf.shape[1] >= 2
        and not _is_mask(leaf)
    )


def _other_tokens(tokens: Tensor, real: Tensor) -> Tensor:
    """Return, for every place, a token number that occurs at some real place, and that is not the one there."""
    known = tokens[real].unique()
    places = torch.arange(tokens.numel()).reshape(tokens.shape)
    first, second = known[places % len(known)], known[(places + 1) % len(known)]
    return torch.where(first == tokens, second, first)


def _is_mask(mark: Tensor) -> bool:
    return bool(((mark == 0) | (mark == 1)).all()) and bool((mark == 0).any()) and bool((mark == 1).any())


def _ends_padded(real: Tensor) -> bool:
    """Tell whether each row is real places followed by padding, with some of both somewhere."""
    falls = (real[:, 1:].int() - real[:, :-1].int()) <= 0
    return bool(falls.all()) and bool(real[:, 0].all()) and bool((~real).any())


def _is_constant(leaf: Tensor, where: Tensor) -> bool:
    values = leaf[where]
    return values.numel() > 0 and bool((values == values.reshape(-1)[0]).all())


def _first(output: Any) -> Tensor | None:
    return next(iter(tensors_of(output)), None)


def _shape(output: Any) -> tuple[int, ...] | None:
    first = _first(output)
    return None if first is None else tuple(first.shape)


def _difference(first: Any, second: Any) -> float:
    differences = [
        float((a.float() - b.float()).abs().max()) if a.shape == b.shape and a.numel() else 0.0
        for a, b in zip(tensors_of(first), tensors_of(second), strict=False)
    ]
    return max((d for d in differences if d == d), default=0.0)
