"""Lesson 06's exercises: right answers in several forms pass, each wrong one meets its own message."""

from __future__ import annotations

import gc
import math
from itertools import accumulate, chain, repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from course_utils.memory import recording_saved, storage_bytes
from tests.exercises import memory_clinic_answers as clinic
from tests.exercises.harness import Answers, WrongAnswers, exercise_tests

RIGHT: Answers = {}
WRONG: WrongAnswers = {}

# --- owners ---------------------------------------------------------------------------------------------------------


def _state_tensors(optimizer: Any) -> list[Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]


def _grads(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def _owners(parameters: Any = None, gradients: Any = None, state: Any = None, count: Any = storage_bytes) -> Any:
    """Return an answer, right but for what is given."""

    def answer(model: nn.Module, optimizer: Any) -> dict[str, int]:
        return {
            "parameters": (parameters or (lambda m, o: count(m.parameters())))(model, optimizer),
            "gradients": (gradients or (lambda m, o: count(_grads(m))))(model, optimizer),
            "optimizer_state": (state or (lambda m, o: count(_state_tensors(o))))(model, optimizer),
        }

    return answer


def _by_set(model: nn.Module, optimizer: Any) -> dict[str, int]:
    def total(tensors: Any) -> int:
        return sum(
            size for _, size in {(t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t in tensors}
        )

    state = [t for s in optimizer.state_dict()["state"].values() for t in s.values() if isinstance(t, Tensor)]
    return {"optimizer_state": total(state), "gradients": total(_grads(model)), "parameters": total(model.parameters())}


def _bytes(tensors: Any) -> int:
    return sum(t.nbytes for t in tensors)


RIGHT["memory.owners"] = {"with the course's counter": _owners(), "a set of pairs": _by_set}
WRONG["memory.owners"] = {
    "tensors instead of storages": (_owners(count=_bytes), "Two parameters share one storage"),
    "what tensors show, each storage once": (
        _owners(count=lambda tensors: sum({t.data_ptr(): t.nbytes for t in tensors}.values())),
        "A storage counts as a whole",
    ),
    "numbers": (_owners(count=lambda tensors: sum(t.numel() for t in tensors)), "These are numbers, not bytes"),
    "without the frozen": (
        _owners(parameters=lambda m, o: storage_bytes(p for p in m.parameters() if p.requires_grad)),
        "A frozen parameter has no gradient",
    ),
    "gradients from parameters": (
        _owners(gradients=lambda m, o: storage_bytes(m.parameters())),
        "A gradient is a tensor of its own",
    ),
    "without the counters": (
        _owners(state=lambda m, o: storage_bytes(t for t in _state_tensors(o) if t.dim() > 0)),
        "Adam also counts its steps",
    ),
    "one mean": (
        _owners(state=lambda m, o: storage_bytes(t for s in o.state.values() for n, t in s.items() if n != "exp_avg")),
        "two running means",
    ),
    "forgets None": (
        _owners(gradients=lambda m, o: sum(p.grad.untyped_storage().nbytes() for p in m.parameters())),
        "skip those whose .grad is None",
    ),
    "four bytes for everything": (
        _owners(
            count=lambda tensors: sum(
                4 * n
                for n in {t.data_ptr(): t.untyped_storage().nbytes() // t.element_size() for t in tensors}.values()
            )
        ),
        "knows the size of a number",
    ),
    "a tuple": (lambda m, o: (1, 2, 3), "Its keys are"),
    "buffers too": (
        _owners(parameters=lambda m, o: storage_bytes([*m.parameters(), *m.buffers()])),
        "are buffers, no parameters",
    ),
}

# --- saved ----------------------------------------------------------------------------------------------------------


def _saved(
    leaves_out: Any = lambda model, x: [x, *model.parameters(), *model.buffers()], size: Any = None, key: Any = None
) -> Any:
    def answer(model: nn.Module, x: Tensor) -> int:
        seen: dict[Any, int] = {}
        name = key or (lambda t: t.untyped_storage().data_ptr())

        def pack(tensor: Tensor) -> Tensor:
            seen[name(tensor)] = (size or (lambda t: t.untyped_storage().nbytes()))(tensor)
            return tensor.detach()

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = model(x)
        for known in leaves_out(model, x):
            seen.pop(name(known), None)
        del result
        return sum(seen.values())

    return answer


def _saved_by_course(model: nn.Module, x: Tensor) -> int:
    with recording_saved([*model.parameters(), *model.buffers()], [x]) as saved:
        result = model(x)
    del result
    return saved.activations


def _saved_by_list(model: nn.Module, x: Tensor) -> int:
    tensors: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        tensors.append(tensor.detach())
        return tensor

    known = {t.untyped_storage().data_ptr() for t in [x, *model.parameters(), *model.buffers()]}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(x)
    return storage_bytes(t for t in tensors if t.untyped_storage().data_ptr() not in known)


def _no_hooks(model: nn.Module, x: Tensor) -> int:
    result = model(x)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        pass
    del result
    return 0


RIGHT["memory.saved"] = {"the course's counter": _saved_by_course, "a list of what was saved": _saved_by_list}
WRONG["memory.saved"] = {
    "with the weights": (_saved(lambda m, x: [x]), "Weights are saved too"),
    "with the input": (_saved(lambda m, x: m.parameters()), "The input exists anyway"),
    "with both": (_saved(lambda m, x: []), "Weights and input exist anyway"),
    "numbers": (_saved(size=lambda t: t.untyped_storage().nbytes() // t.element_size()), "numbers, not bytes"),
    "what the view shows": (_saved(size=lambda t: t.nbytes), "as a whole"),
    "by tensor": (
        _saved(key=lambda t: (id(t), t.untyped_storage().data_ptr()), leaves_out=lambda m, x: []),
        "an MLP keeps the output of each ReLU",
    ),
    "hooks around nothing": (_no_hooks, "Do the hooks surround the call"),
    "turns gradients on": (
        lambda m, x: torch.enable_grad()(_saved())(m, x),
        "Don't turn gradients on yourself",
    ),
    "with the buffers": (_saved(lambda m, x: [x, *m.parameters()]), "are buffers, which exist anyway"),
    "x made to require gradients": (lambda m, x: _saved()(m, x.requires_grad_()), "as it stands"),
    "in eval mode": (lambda m, x: _saved()(m.eval(), x), "switch nothing"),
}

# --- largest batch --------------------------------------------------------------------------------------------------


def _bisect(peak: Any, limit: int, most: int) -> int:
    low, high = 0, most + 1  # low fits, high doesn't
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if peak(middle) <= limit else (low, middle)
    return low


def _by_powers(peak: Any, limit: int, most: int) -> int:
    best = 0
    for power in reversed(range(10)):
        if best + 2**power <= most and peak(best + 2**power) <= limit:
            best += 2**power
    return best


def _linear(peak: Any, limit: int, most: int) -> int:
    return max((n for n in range(1, most + 1) if peak(n) <= limit), default=0)


def _extrapolated(peak: Any, limit: int, most: int) -> int:
    one, two = peak(1), peak(2)
    return min(most, int((limit - one) // max(two - one, 1)) + 1)


def _doubling(peak: Any, limit: int, most: int) -> int:
    n = 0
    while max(2 * n, 1) <= most and peak(max(2 * n, 1)) <= limit:
        n = max(2 * n, 1)
    return n


RIGHT["memory.largest-batch"] = {"between two that are known": _bisect, "bit by bit": _by_powers}
WRONG["memory.largest-batch"] = {
    "one by one": (_linear, "halve the range"),
    "below the limit": (lambda p, limit, most: _bisect(p, limit - 1, most), "that equals the limit still fits"),
    "one too many": (lambda p, limit, most: _bisect(p, limit, most) + 1, "does not fit any more"),
    "a straight line": (_extrapolated, "The limit was not looked at"),
    "doubling": (_doubling, "Halve the range"),
    "never asks for most": (lambda p, limit, most: _bisect(p, limit, most - 1), "Is it ever measured?"),
    "never asks for 1": (lambda p, limit, most: max(1, _bisect(p, limit, most)), "Measure n = 1 too"),
    "a line through two sizes": (lambda p, limit, most: (limit - p(1)) // (p(2) - p(1)), "the same peak"),
    "a float": (lambda p, limit, most: float(_bisect(p, limit, most)), "Halve the range"),
    "ignores the limit": (lambda p, limit, most: most, "The limit was not looked at"),
}

# --- segments -------------------------------------------------------------------------------------------------------


def _groups(layers: list, x: Tensor, size: int, **settings: Any) -> Tensor:
    for start in range(0, len(layers), size):
        x = checkpoint(nn.Sequential(*layers[start : start + size]), x, **({"use_reentrant": False, **settings}))
    return x


def _by_function(layers: list, x: Tensor, size: int) -> Tensor:
    def run(start: int, h: Tensor) -> Tensor:
        for layer in layers[start : start + size]:
            h = layer(h)
        return h

    for start in range(0, len(layers), size):
        x = checkpoint(run, start, x, use_reentrant=False)
    return x


def _last_plain(layers: list, x: Tensor, size: int) -> Tensor:
    for start in range(0, len(layers), size):
        group = nn.Sequential(*layers[start : start + size])
        x = checkpoint(group, x, use_reentrant=False) if start + size < len(layers) else group(x)
    return x


def _late_binding(layers: list, x: Tensor, size: int) -> Tensor:
    for start in range(0, len(layers), size):

        def run(h: Tensor) -> Tensor:
            for layer in layers[start : start + size]:  # noqa: B023 - this is the mistake
                h = layer(h)
            return h

        x = checkpoint(run, x, use_reentrant=False)
    return x


def _plain(layers: list, x: Tensor, size: int) -> Tensor:
    return nn.Sequential(*layers)(x)


def _nested(layers: list, x: Tensor, size: int) -> Tensor:
    def run(h: Tensor) -> Tensor:
        for layer in layers:
            h = checkpoint(layer, h, use_reentrant=False)
        return h

    return checkpoint(run, x, use_reentrant=False)


RIGHT["memory.segments"] = {
    "a function with its start": _by_function,
    "the last group plainly": _last_plain,
    "the older kind, with an input that needs gradients": lambda layers, x, size: _groups(
        layers, x.detach().requires_grad_(), size, use_reentrant=True
    ),
}
WRONG["memory.segments"] = {
    "plain": (_plain, "Wrap each group"),
    "late binding": (_late_binding, "made in a loop sees"),
    "re-entrant": (lambda layers, x, size: _groups(layers, x, size, use_reentrant=True), "use_reentrant=False"),
    "dropout drawn anew": (
        lambda layers, x, size: _groups(layers, x, size, preserve_rng_state=False),
        "dropout drew anew",
    ),
    "one by one": (lambda layers, x, size: _groups(layers, x, 1), "every layer's input is kept"),
    "nested": (_nested, "Checkpoints inside checkpoints"),
    "without the rest": (
        lambda layers, x, size: _groups(layers[: max(1, len(layers) // size) * size], x, size),
        "the last group may be shorter",
    ),
    "one group": (lambda layers, x, size: _groups(layers, x, len(layers)), "in backward it needs all activations"),
    "as many groups as size": (
        lambda layers, x, size: checkpoint_sequential(layers, len(layers), x, use_reentrant=False),
        "every layer's input is kept",
    ),
}

# --- recompute ------------------------------------------------------------------------------------------------------


def _recompute(forward: Any = None, backward: Any = None) -> type:
    """Return a Function that is right but for what is given."""

    def right_forward(ctx: Any, run: Any, x: Tensor) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(x)
        return run(x)

    def right_backward(ctx: Any, grad: Tensor) -> tuple:
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.run(x)
        torch.autograd.backward(y, grad)
        return None, x.grad

    return type(
        "Recompute",
        (torch.autograd.Function,),
        {"forward": staticmethod(forward or right_forward), "backward": staticmethod(backward or right_backward)},
    )


def _by_autograd_grad(ctx: Any, grad: Tensor) -> tuple:
    x = ctx.saved_tensors[0].detach().requires_grad_()
    parameters = list(ctx.run.parameters())
    with torch.enable_grad():
        first, *others = torch.autograd.grad(ctx.run(x), [x, *parameters], grad)
    for parameter, other in zip(parameters, others, strict=True):
        parameter.grad = other if parameter.grad is None else parameter.grad + other
    return None, first


def _keeps_the_graph(ctx: Any, run: Any, x: Tensor) -> Tensor:
    ctx.x = x.detach().requires_grad_()
    with torch.enable_grad():
        ctx.y = run(ctx.x)
    return ctx.y.detach()


def _walks_the_kept_graph(ctx: Any, grad: Tensor) -> tuple:
    ctx.y.backward(grad)
    return None, ctx.x.grad


def _backward_with(walk: Any, returned: Any = lambda x: (None, x.grad), gradients: bool = True) -> Any:
    def backward(ctx: Any, grad: Tensor) -> tuple:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.set_grad_enabled(gradients):
            walk(ctx.run(x), x, grad)
        return returned(x)

    return backward


def _only_x(ctx: Any, grad: Tensor) -> tuple:
    x = ctx.saved_tensors[0].detach().requires_grad_()
    with torch.enable_grad():
        (mine,) = torch.autograd.grad(ctx.run(x), x, grad)
    return None, mine


def _runs_twice(ctx: Any, run: Any, x: Tensor) -> Tensor:
    ctx.run = run
    ctx.save_for_backward(x)
    run(x)
    return run(x)


def _not_detached(ctx: Any, grad: Tensor) -> tuple:
    (x,) = ctx.saved_tensors
    with torch.enable_grad():
        y = ctx.run(x)
    y.backward(grad)
    return None, x.grad


RIGHT["memory.recompute"] = {
    "autograd.backward": _recompute(),
    "autograd.grad, and adding up by hand": _recompute(backward=_by_autograd_grad),
}
WRONG["memory.recompute"] = {
    "keeps the graph": (_recompute(_keeps_the_graph, _walks_the_kept_graph), "no graph is made unless you ask"),
    "sum": (_recompute(backward=_backward_with(lambda y, x, g: y.sum().backward())), "the gradient of the sum"),
    "no gradients inside": (
        _recompute(backward=_backward_with(lambda y, x, g: y.backward(g), gradients=False)),
        "torch.enable_grad() turns them on",
    ),
    "only x": (_recompute(backward=_only_x), "also fills the parameters"),
    "one result": (
        _recompute(backward=_backward_with(lambda y, x, g: y.backward(g), lambda x: x.grad)),
        "One for each input of forward",
    ),
    "runs twice": (_recompute(_runs_twice), "Keep the result of the one call"),
    "a function": (lambda run, x: run(x), "class Recompute"),
    "a plain class": (nn.Module, "class Recompute"),
    "x in its graph": (_recompute(backward=_not_detached), "went on into the graph of x"),
    "x twice": (
        _recompute(backward=_backward_with(lambda y, x, g: y.backward(g), lambda x: (None, 2 * x.grad))),
        "The gradient arrived twice",
    ),
}

# --- live -----------------------------------------------------------------------------------------------------------


def _live(
    is_tensor: Any = lambda o: issubclass(type(o), Tensor), collect: bool = True, total: Any = storage_bytes
) -> Any:
    def answer() -> int:
        if collect:
            gc.collect()
        return total([o for o in gc.get_objects() if is_tensor(o)])

    return answer


def _live_by_set() -> int:
    gc.collect()
    found = set()
    for o in gc.get_objects():
        if Tensor in type(o).__mro__:
            found.add((o.untyped_storage().data_ptr(), o.untyped_storage().nbytes()))
    return sum(size for _, size in found)


_hoard: list[Tensor] = []


def _hoards() -> int:
    gc.collect()
    _hoard[:] = [o for o in gc.get_objects() if issubclass(type(o), Tensor)]
    return storage_bytes(_hoard)


RIGHT["memory.live"] = {
    "isinstance": _live(lambda o: isinstance(o, Tensor)),
    "by the order of classes": _live_by_set,
}
WRONG["memory.live"] = {
    "views again": (_live(total=lambda ts: sum(t.untyped_storage().nbytes() for t in ts)), "Views share a storage"),
    "what tensors show": (_live(total=_bytes), "views add nothing"),
    "where views begin": (
        _live(total=lambda ts: sum({t.data_ptr(): t.untyped_storage().nbytes() for t in ts}.values())),
        "t.data_ptr() is where a view begins",
    ),
    "no parameters": (_live(lambda o: type(o) is Tensor), "A Parameter is a tensor too"),
    "no collection": (_live(collect=False), "Call gc.collect() first"),
    "numbers": (_live(total=lambda ts: storage_bytes(ts) // 4), "numbers, not bytes"),
    "hoards": (_hoards, "Keep no tensor"),
}

# --- scale ----------------------------------------------------------------------------------------------------------


def _by_trial(grads: list) -> float:
    largest = max(g.double().abs().max().item() for g in grads)
    if largest == 0:
        return 1.0
    return max(2.0**p for p in range(-100, 200) if largest * 2.0**p <= 65504)


def _by_frexp(grads: list) -> float:
    largest = torch.cat([g.flatten() for g in grads]).abs().max().item()
    if not largest:
        return 1.0
    _, exponent = math.frexp(65504 / largest)  # fraction in 0.5..1
    return math.ldexp(1.0, exponent - 1)


RIGHT["memory.scale"] = {"by trial": _by_trial, "frexp": _by_frexp}
WRONG["memory.scale"] = {
    "rounds up": (lambda g: 2 * _by_trial(g), "the largest gradient becomes inf"),
    "too careful": (lambda g: _by_trial(g) / 2, "Twice as much would still fit"),
    "no power of two": (
        lambda g: 65504 / max(t.abs().max().item() for t in g),
        "This is no power of two",
    ),
    "without abs": (lambda g: _by_trial([t.clamp(min=0) for t in g]), "The largest gradient is negative"),
    "divides": (lambda g: 1 / _by_trial(g), "This divides"),
    "never below 1": (lambda g: max(1.0, _by_trial(g)), "A scale may be below 1"),
    "zeros": (lambda g: 2.0 ** math.floor(math.log2(65504 / max(t.abs().max().item() for t in g))), "return 1.0"),
    "a tensor": (lambda g: torch.tensor(_by_trial(g)), "expected a Python number"),
    "norms": (lambda g: _by_trial([t.norm() for t in g]), "A norm adds up"),
    "the norm of all": (lambda g: _by_trial([torch.cat([t.flatten() for t in g]).norm()]), "A norm adds up"),
}

# --- distances ------------------------------------------------------------------------------------------------------


def _squared(a: Tensor, b: Tensor) -> Tensor:
    return a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T


def _off(a: Tensor, b: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return _squared(a.float(), b.float())


def _off_without_cast(a: Tensor, b: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return _squared(a, b).float()


RIGHT["memory.distances"] = {
    "differences": lambda a, b: (a.float()[:, None] - b.float()[None]).square().sum(-1),
    "a loop over rows": lambda a, b: torch.stack([(row.float() - b.float()).square().sum(1) for row in a]),
}
WRONG["memory.distances"] = {
    "the formula as it stands": (_squared, "runs in float16 under autocast"),
    "casts, autocast stays": (lambda a, b: _squared(a.float(), b.float()), "runs in float16 under autocast"),
    "switches off, does not cast": (_off_without_cast, "write a.float(), b.float()"),
    "casts the result": (lambda a, b: _off(a, b).half(), "Don't cast the result down"),
    "not squared": (lambda a, b: _off(a, b).clamp_min(0).sqrt(), "Sum (a − b)² over D"),
    "transposed": (lambda a, b: _off(b, a), "(N, M)"),
    "keeps the inputs' type": (lambda a, b: (a[:, None] - b[None]).square().sum(-1), "a.float()"),
}

# --- scaler ---------------------------------------------------------------------------------------------------------


class _Scaler:
    """Right, with places to go wrong."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        self._scale, self._up, self._down, self._interval = init_scale, growth_factor, backoff_factor, growth_interval
        self._good, self._bad, self._done = 0, False, False

    def scale(self, loss: Tensor) -> Tensor:
        return loss * self._scale

    def is_bad(self, grad: Tensor) -> bool:
        return not math.isfinite(grad.abs().sum().item())

    def unscale_(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad /= self._scale
                    self._bad = self._bad or self.is_bad(p.grad)
        self._done = True

    def step(self, optimizer: Any) -> None:
        if not self._done:
            self.unscale_(optimizer)
        if not self._bad:
            optimizer.step()

    def update(self) -> None:
        if self._bad:
            self._scale, self._good = self._scale * self._down, 0
        else:
            self._good += 1
            if self._good == self._interval:
                self._scale, self._good = self._scale * self._up, 0
        self._bad = self._done = False

    def get_scale(self) -> float:
        return self._scale


class _Wrapped(torch.amp.GradScaler):
    def __init__(self, **settings: Any) -> None:
        super().__init__("cpu", **settings)


class _AlwaysSteps(_Scaler):
    def step(self, optimizer: Any) -> None:
        if not self._done:
            self.unscale_(optimizer)
        optimizer.step()


class _UnscalesTwice(_Scaler):
    def step(self, optimizer: Any) -> None:
        self.unscale_(optimizer)
        if not self._bad:
            optimizer.step()


class _OnlyNan(_Scaler):
    def is_bad(self, grad: Tensor) -> bool:
        return bool(grad.isnan().any())


class _OnlyTheLast(_Scaler):
    def unscale_(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad /= self._scale
                    self._bad = self.is_bad(p.grad)
        self._done = True


class _OnlyTheFirstGroup(_Scaler):
    def unscale_(self, optimizer: Any) -> None:
        for p in optimizer.param_groups[0]["params"]:
            if p.grad is not None:
                p.grad /= self._scale
                self._bad = self._bad or self.is_bad(p.grad)
        self._done = True


class _NewGradients(_Scaler):
    def unscale_(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad = p.grad / self._scale
                    self._bad = self._bad or self.is_bad(p.grad)
        self._done = True


class _KeepsCounting(_Scaler):
    def update(self) -> None:
        good, bad = self._good, self._bad
        super().update()
        if bad:
            self._good = good


class _NeverGrows(_Scaler):
    def update(self) -> None:
        self._good = -1
        super().update()


class _GrowsLate(_Scaler):
    def __init__(self, growth_interval: int = 2000, **settings: Any) -> None:
        super().__init__(growth_interval=growth_interval + 1, **settings)


class _NeverBegins(_Scaler):
    def update(self) -> None:
        bad = self._bad
        super().update()
        self._bad, self._done = bad, True


class _FixedFactors(_Scaler):
    def __init__(self, growth_factor: float = 2.0, backoff_factor: float = 0.5, **settings: Any) -> None:
        super().__init__(**settings)


class _NeverUnscales(_Scaler):
    def unscale_(self, optimizer: Any) -> None:
        self._bad = any(self.is_bad(p.grad) for g in optimizer.param_groups for p in g["params"] if p.grad is not None)


class _ForgetsNone(_Scaler):
    def unscale_(self, optimizer: Any) -> None:
        grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
        for grad in grads:
            grad.div_(self._scale)
        self._bad = any(map(self.is_bad, grads))
        self._done = True


RIGHT["memory.scaler"] = {"another style": _Scaler, "PyTorch's own": _Wrapped}
WRONG["memory.scaler"] = {
    "always steps": (_AlwaysSteps, "look for inf and nan in all gradients"),
    "unscales twice": (_UnscalesTwice, "gradients must be unscaled exactly once"),
    "sees only nan": (_OnlyNan, "look for inf and nan in all gradients"),
    "keeps counting": (_KeepsCounting, "starts the count again"),
    "never grows": (_NeverGrows, "good steps in a row double it"),
    "grows a step late": (_GrowsLate, "good steps in a row double it"),
    "never begins anew": (_NeverBegins, "step 2"),
    "fixed factors": (_FixedFactors, "growth_factor is used"),
    "never unscales": (_NeverUnscales, "unscale_ divides every gradient"),
    "a parameter without gradient": (_ForgetsNone, "skip it"),
    "sees only the last parameter": (_OnlyTheLast, "whether it comes first or last"),
    "one group": (_OnlyTheFirstGroup, "every parameter of every group"),
    "new gradients": (_NewGradients, "needs the memory twice"),
}

# --- amp step -------------------------------------------------------------------------------------------------------


def _amp(
    unscale: bool = True,
    clip: bool = True,
    clear: bool = True,
    autocast: bool = True,
    share: bool = True,
    update: str = "once",
    plain_step: bool = False,
    joined: bool = False,
    at_the_end: bool = False,
) -> Any:
    def answer(model: nn.Module, optimizer: Any, scaler: Any, pieces: list, max_norm: float) -> float:
        if joined:
            pieces = [tuple(torch.cat(parts) for parts in zip(*pieces, strict=True))]
        n_all = sum(len(y) for _, y in pieces)
        if clear:
            model.zero_grad()
        total = torch.zeros(())
        for x, y in pieces:
            with torch.autocast("cpu", dtype=torch.float16, enabled=autocast):
                loss = F.cross_entropy(model(x), y, reduction="mean")
            loss = loss * (len(y) / n_all if share else 1)
            if at_the_end:
                total = total + loss
                continue
            scaler.scale(loss).backward()
            if update == "each":
                scaler.step(optimizer)
            if update in ("each", "alone"):
                scaler.update()
        if at_the_end:
            scaler.scale(total).backward()
        if update == "each":
            return 0.0
        if unscale:
            scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm if clip else math.inf)
        if not plain_step:
            scaler.step(optimizer)
        elif math.isfinite(norm):
            optimizer.step()
        if update == "once":
            scaler.update()
        return float(norm)

    return answer


def _amp_by_sums(model: nn.Module, optimizer: Any, scaler: Any, pieces: list, max_norm: float) -> float:
    optimizer.zero_grad(set_to_none=False)
    n_all = sum(len(x) for x, _ in pieces)
    for x, y in pieces:
        with torch.autocast(device_type="cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y, reduction="sum") / n_all
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    grads = [p.grad for p in model.parameters()]
    norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in grads])).item()
    if math.isfinite(norm) and norm > max_norm:
        for g in grads:
            g.mul_(max_norm / norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


RIGHT["memory.amp-step"] = {"share times the loss": _amp(), "sums, clipped by hand": _amp_by_sums}
WRONG["memory.amp-step"] = {
    "clips scaled gradients": (_amp(unscale=False), "This is the norm of the *scaled* gradient"),
    "does not clip": (_amp(clip=False), "The gradient was not clipped"),
    "keeps old gradients": (_amp(clear=False), "returns the norm before clipping"),
    "no autocast": (_amp(autocast=False), "around the forward pass and the loss"),
    "adds up means": (_amp(share=False), "were added up"),
    "never updates": (_amp(update="never"), "scaler.update() is missing"),
    "a step for each piece": (_amp(update="each"), "returns the norm before clipping"),
    "steps past the scaler": (_amp(plain_step=True), "scaler.step(optimizer), once"),
    "one backward at the end": (_amp(at_the_end=True), "keeps those of all pieces"),
    "updates without a step": (_amp(update="alone"), "scaler.update() comes once"),
    "all at once": (_amp(joined=True), "The pieces must stay apart"),
}

# --- one graph ------------------------------------------------------------------------------------------------------


def _with_item(x: Tensor, limit: float) -> Tensor:
    norm = x.norm().item()
    return x * (limit / norm) if norm > limit else x


def _with_if(x: Tensor, limit: float) -> Tensor:
    return x * (limit / x.norm()) if x.norm() > limit else x


def _by_cond(x: Tensor, limit: float) -> Tensor:
    norm = x.square().sum().sqrt()
    return torch.where(norm > limit, x * (limit / norm), x)


RIGHT["memory.one-graph"] = {
    "where": _by_cond,
    "minimum": lambda x, limit: x * torch.minimum(torch.ones(()), limit / x.norm().clamp_min(1e-12)),
}
WRONG["memory.one-graph"] = {
    "item": (_with_item, "Dynamo can't follow"),
    "an if on a tensor": (_with_if, "Dynamo can't follow"),
    "scales always": (lambda x, limit: x * (limit / x.norm()), "This scales always"),
    "row by row": (
        lambda x, limit: x * (limit / x.norm(dim=1, keepdim=True)).clamp(max=1.0),
        "One norm for all",
    ),
    "nan at zero": (lambda x, limit: x / x.norm() * x.norm().clamp(max=limit), "0 / 0 is nan"),
    "numpy": (
        lambda x, limit: x * min(1.0, limit / max(float(x.detach().numpy().__abs__().max()), x.norm().item(), 1e-9)),
        "Dynamo can't follow",
    ),
}

# --- break even -----------------------------------------------------------------------------------------------------


def _by_counting(first: float, later: float, plain: float) -> int | None:
    if first >= plain and later >= plain:
        return None
    n = max(1, int((first - later) / (plain - later)) - 3)
    while first + (n - 1) * later >= n * plain:
        n += 1
    return n


def _bounded(first: float, later: float, plain: float) -> int | None:
    return next((n for n in range(1, 1000) if first + (n - 1) * later < n * plain), None)


def _by_running_totals(first: float, later: float, plain: float) -> int | None:
    if first >= plain and later >= plain:
        return None
    leads = accumulate(chain([first - plain], repeat(later - plain)))
    return next((n for n, lead in enumerate(leads, start=1) if lead < 0), None)


RIGHT["memory.break-even"] = {"counting": _by_counting, "running totals": _by_running_totals}
WRONG["memory.break-even"] = {
    "without the first call": (
        lambda f, k, p: None if k >= p else math.ceil((f - p) / (p - k)),
        "The first call counts",
    ),
    "a float": (lambda f, k, p: None if k >= p else (f - p) / (p - k), "gives one"),
    "one too late": (lambda f, k, p: None if (n := _by_counting(f, k, p)) is None else n + 1, "One call fewer"),
    "a tie counts": (lambda f, k, p: None if k >= p else math.ceil((f - p) / (p - k)) + 1, "At a tie"),
    "divides by zero": (lambda f, k, p: math.floor((f - p) / (p - k)) + 2, "compiling never pays"),
    "at most a thousand calls": (_bounded, "set no upper limit"),
    "never says one": (lambda f, k, p: None if k >= p else max(2, _by_counting(f, k, p)), "n = 1 is possible"),
}

TestMemory = exercise_tests("memory", RIGHT | clinic.RIGHT, WRONG | clinic.WRONG)
