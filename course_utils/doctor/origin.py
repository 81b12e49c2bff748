"""Where a number that is not finite was born: a forward pass again, on a copy, module by module."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from course_utils.doctor.findings import RULES, Seen
from course_utils.doctor.parts import clone_tree, named_leaves, tensors_of
from course_utils.doctor.running import quiet
from course_utils.seeding import preserved_rng
from course_utils.text import plural

LOSS, GRADIENT, DATA = "numerics.loss-not-finite", "numerics.nan-gradient", "data.nonfinite"
MOST_ROWS = 5  # that a finding names
DIVERGED = 1e10  # outputs beyond it are no predictions any more


class Call(NamedTuple):
    """One forward pass as the reader made it.

    Args:
        root: name of the model, empty if there is only one.
        model: the model.
        args, kwargs: what it was called with, without graph.
        autocast: its dtype on the model's kind of device, None if it was off.
    """

    root: str
    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    autocast: torch.dtype | None

    def named(self, module: str) -> str:
        """Return a module's name with that of its model."""
        return ".".join(part for part in (self.root, module) if part)


@dataclass(frozen=True)
class Origin:
    """The first place in a forward pass with a value that is not finite.

    Args:
        is_input: whether the model got it.
        module: dotted name of the module that made it; empty for the model itself.
        kind: its class.
        before: the module that was about to be called, if the module's own code made it; else empty.
        rows: of the first axis with such values, at most five.
        inputs: lowest and highest of the finite values that went in; None if that is not known.
    """

    is_input: bool
    module: str
    kind: str
    before: str
    rows: tuple[int, ...]
    inputs: tuple[float, float] | None = None


@dataclass(frozen=True)
class Pass:
    """What a repeated forward pass showed.

    Args:
        origin: the first bad place; None if all was finite.
        order: names of the modules with parameters of their own, in the order in which they finished.
        lowest, highest: of the output's values; NaN if it has none.
    """

    origin: Origin | None
    order: tuple[str, ...] = ()
    lowest: float = math.nan
    highest: float = math.nan


class _Found(BaseException):
    """Ends the repeated pass at the first bad place; no reader's ``except Exception`` stops it."""

    def __init__(self, origin: Origin) -> None:
        super().__init__()
        self.origin = origin


def diagnose(
    place: str, loss_is_bad: bool, bad_gradients: list[str], calls: Iterable[Call], batch: Any,
    parameters: Mapping[str, Tensor], updated: str,
) -> tuple[str, Seen]:  # fmt: skip
    """Say what made a loss or a gradient that is not finite, before the update has spread it.

    Args:
        place: where in the run, in words.
        loss_is_bad: the loss itself is not finite.
        bad_gradients: names of parameters whose gradient is not finite.
        calls: the forward passes since the last update.
        batch: what the loader gave, None if that is not known.
        parameters: all parameters by name.
        updated: where the last update was, empty if losses since then have not been read.

    Returns:
        The finding's code, and what was seen.
    """
    code = LOSS if loss_is_bad else GRADIENT
    what = f"The loss of {place} is not finite" if loss_is_bad else f"A gradient of {place} is not finite"
    broken = [name for name, parameter in parameters.items() if is_bad(parameter)]
    if broken:
        return _broken(code, what, broken, list(parameters), updated)
    passes = [(call, seen) for call in calls if (seen := repeat(call)) is not None]
    for call, seen in passes:
        if seen.origin is not None:
            return say(call, seen.origin, place)
    for name, leaf in named_leaves(batch):
        if is_bad(leaf):
            return DATA, Seen(f"{what}: {name} holds NaN or infinity.", {"tensor": name, "rows": _rows(leaf)})
    outputs = ""
    evidence: dict[str, Any] = {}
    if passes:
        call, seen = passes[-1]
        evidence = {"output_lowest": seen.lowest, "output_highest": seen.highest}
        outputs = f"The model's outputs are finite, {seen.lowest:.3g} to {seen.highest:.3g}: "
        if max(-seen.lowest, seen.highest) > DIVERGED:
            fix = RULES["loop.gradient-explodes"].fix
            return code, Seen(f"{what}. {outputs}the run has diverged.", evidence, fix=fix)
    if loss_is_bad:
        return code, Seen(f"{what}. {outputs}the loss function made it (a log, a root, a division?).", evidence)
    order = [call.named(name) for name in passes[-1][1].order] if passes else []
    text, found = _on_the_way_back(order, bad_gradients)
    return code, Seen(f"{what}. {outputs}{text}", evidence | found)


def _broken(code: str, what: str, broken: list[str], names: list[str], updated: str) -> tuple[str, Seen]:
    """Say what can be told from the weights when an update has spread what is not finite."""
    if not updated:
        message = f"{what}. The weights are broken already ({_some(broken)}), so the module can't be told any more."
        fix = "doctor.watch(model, every=1)  # reads each loss before its update, also on a GPU"
        return code, Seen(message, {"parameters": broken[:3]}, fix=fix)
    order = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    text, evidence = _on_the_way_back(order, broken)
    where = f"the update of {updated} has broken weights, although its loss was finite: {text}"
    return GRADIENT, Seen(f"{what}: {where}", {**evidence, "broken_by": updated})


def _on_the_way_back(order: list[str], bad: list[str]) -> tuple[str, dict[str, Any]]:
    """Say between which modules gradients broke.

    Args:
        order: modules in the order in which they are called.
        bad: names of the parameters whose gradients are not finite.
    """
    evidence: dict[str, Any] = {"parameters": bad[:3]}
    hit = [name for name in order if any(parameter.rpartition(".")[0] == name for parameter in bad)]
    if not hit:
        return f"{_some(bad)}.", evidence
    evidence["module"] = hit[-1]
    if hit[-1] == order[-1]:
        return "on the way back it begins in the loss function, or all gradients were scaled together.", evidence
    later = order[order.index(hit[-1]) + 1]
    text = (
        f"on the way back it begins between {later!r}, whose gradients are finite, and {hit[-1]!r}: an operation there "
        "has an infinite slope."
    )
    return text, evidence


def say(call: Call, origin: Origin, place: str) -> tuple[str, Seen]:
    """Put a place in a forward pass into words: the finding's code, and what was seen."""
    rows = f" (examples {', '.join(map(str, origin.rows))})" if origin.rows else ""
    if origin.is_input:
        return DATA, Seen(f"What the model gets in {place} holds NaN or infinity{rows}.", {"rows": origin.rows})
    name = call.named(origin.module)
    title = f"{name!r} ({origin.kind})" if name else f"the model's own code ({origin.kind})"
    evidence: dict[str, Any] = {"module": name, "kind": origin.kind, "rows": origin.rows}
    between = ""
    if origin.inputs is not None:
        evidence["input_lowest"], evidence["input_highest"] = origin.inputs
        between = ", {:.3g} to {:.3g}".format(*origin.inputs)
    before = f", before it calls {call.named(origin.before)!r}" if origin.before else ""
    return LOSS, Seen(f"In {place} {title} makes NaN or infinity from finite inputs{between}{before}{rows}.", evidence)


def repeat(call: Call) -> Pass | None:
    """Make a forward pass again on a copy of the model; nothing of the reader's changes.

    Returns:
        What it showed, or None if the model can't be copied or the pass fails.
    """
    try:
        with preserved_rng(), quiet():
            return _repeat(call)
    except Exception:  # a model that can't be copied or run by itself: the finding says less, the loop goes on
        return None


def _repeat(call: Call) -> Pass:
    model = copy.deepcopy(call.model)
    order: list[str] = []
    names = {module: name for name, module in model.named_modules()}
    for module, name in names.items():
        _drop_readers_hooks(module)
        module.register_forward_pre_hook(_checking_inputs(name, names), with_kwargs=True)
        module.register_forward_hook(_checking_outputs(name, order), with_kwargs=True)
    first = next(model.parameters(), None)
    kind = "cpu" if first is None else first.device.type
    try:
        with torch.autocast(kind, dtype=call.autocast, enabled=call.autocast is not None), torch.enable_grad():
            output = model(*clone_tree(call.args), **clone_tree(call.kwargs))
    except _Found as found:
        return Pass(found.origin)
    values = [tensor.detach() for tensor in tensors_of(output) if tensor.is_floating_point() and tensor.numel()]
    lowest = min((value.min().item() for value in values), default=math.nan)
    highest = max((value.max().item() for value in values), default=math.nan)
    return Pass(None, tuple(order), lowest, highest)


def _drop_readers_hooks(module: nn.Module) -> None:
    """Keep hooks that belong to PyTorch (weight norm), drop the others: they may print, count or keep."""
    for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
        hooks = getattr(module, name)
        for key, hook in list(hooks.items()):
            owner = getattr(hook, "__module__", None) or type(hook).__module__
            if not owner.startswith("torch."):
                del hooks[key]


def _checking_inputs(name: str, names: Mapping[nn.Module, str]) -> Callable[..., None]:
    def check(module: nn.Module, args: Any, kwargs: Any) -> None:
        # -inf alone goes in on purpose: it is how attention masks say "not this one".
        bad = next((t for t in tensors_of((args, kwargs)) if is_bad(t) and not _is_mask(t)), None)
        if bad is None:
            return
        if not name:
            raise _Found(Origin(True, "", type(module).__name__, "", _rows(bad)))
        parent_name = name.rpartition(".")[0]
        parent = next((item for item, other in names.items() if other == parent_name), module)
        raise _Found(Origin(False, parent_name, type(parent).__name__, name, _rows(bad)))

    return check


def _checking_outputs(name: str, order: list[str]) -> Callable[..., None]:
    def check(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if next(module.parameters(recurse=False), None) is not None:
            order.append(name)
        bad = next((tensor for tensor in tensors_of(output) if is_bad(tensor)), None)
        if bad is not None:
            raise _Found(Origin(False, name, type(module).__name__, "", _rows(bad), _range((args, kwargs))))

    return check


def is_bad(tensor: Tensor) -> bool:
    """Tell whether a tensor holds NaN or infinity; waits for its device."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.layout != torch.strided:
        return False
    return not bool(tensor.detach().isfinite().all())


def _is_mask(tensor: Tensor) -> bool:
    values = tensor.detach()
    return not tensor.is_complex() and not bool((values.isnan() | values.isposinf()).any())


def _rows(bad: Tensor) -> tuple[int, ...]:
    wrong = ~bad.detach().isfinite()
    rows = wrong.flatten(1).any(1) if wrong.ndim > 1 else wrong.reshape(-1)
    return tuple(rows.nonzero().flatten()[:MOST_ROWS].tolist())


def _range(inputs: Any) -> tuple[float, float] | None:
    values = [tensor.detach().flatten() for tensor in tensors_of(inputs) if tensor.is_floating_point()]
    finite = [part for value in values if (part := value[value.isfinite()]).numel()]
    if not finite:
        return None
    return min(part.min().item() for part in finite), max(part.max().item() for part in finite)


def _some(names: list[str]) -> str:
    more = len(names) - 3
    return ", ".join(repr(name) for name in names[:3]) + (f" and {plural(more, 'more')}" if more > 0 else "")
