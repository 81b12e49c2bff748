"""Answers to lesson 06's clinic: repairs in several forms, and programs that are still broken."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.exercises.harness import Answers, WrongAnswers

RIGHT: Answers = {}
WRONG: WrongAnswers = {}

# --- history --------------------------------------------------------------------------------------------------------


def _validate(
    mode: Callable = torch.no_grad, keep: Callable = lambda s: s, add: Callable = lambda v: v.item(), last: Any = None
) -> Any:
    def answer(model: nn.Module, batches: list) -> tuple:
        total, kept = 0.0, []
        with mode():
            for x, y in batches:
                scores = model(x)
                kept.append(keep(scores))
                total = total + add(F.cross_entropy(scores, y))
        scores = torch.cat(kept)
        return float(total) / len(batches), scores if last is None else last(scores)

    return answer


RIGHT["memory.clinic-history"] = {
    "inference mode": _validate(torch.inference_mode),
    "detach, no mode": _validate(nullcontext, keep=lambda s: s.detach()),
}
WRONG["memory.clinic-history"] = {
    "as it was": (_validate(nullcontext, add=lambda v: v, last=lambda s: s.detach()), "bytes more"),
    "detached at the end": (_validate(nullcontext, last=lambda s: s.detach()), "bytes more"),
    "scores in a graph": (_validate(nullcontext), "A validation pass needs no gradients"),
    "losses in a graph": (
        _validate(nullcontext, keep=lambda s: s.detach(), add=lambda v: v),
        "A sum of loss *tensors*",
    ),
    "the last batch only": (
        _validate(last=lambda s: s[-8:]),
        "the scores are those of all examples",
    ),
    "no scores": (lambda model, batches: 0.0, "Keep what the function returns"),
    "a tensor for the loss": (
        lambda model, batches: (torch.tensor(1.0), _validate()(model, batches)[1]),
        "A Python number",
    ),
}

# --- loop -----------------------------------------------------------------------------------------------------------


def _train(
    inner: Callable = lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    outer: Callable = nullcontext,
    clears: bool = True,
    steps_: bool = True,
    clears_cache: bool = False,
) -> Any:
    def answer(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor, steps: int) -> list[float]:
        losses = []
        with outer():
            for _ in range(steps):
                if clears_cache:
                    torch.clear_autocast_cache()
                with inner():
                    loss = F.cross_entropy(model(x), y)
                if clears:
                    optimizer.zero_grad()
                loss.backward()
                if steps_:
                    optimizer.step()
                losses.append(loss.item())
        return losses

    return answer


def _autocast(**settings: Any) -> Callable:
    return lambda: torch.autocast("cpu", dtype=torch.bfloat16, **settings)


RIGHT["memory.clinic-loop"] = {
    "autocast for each step": _train(),
    "no cache": _train(nullcontext, _autocast(cache_enabled=False)),
    "the cache cleared": _train(nullcontext, _autocast(), clears_cache=True),
}
WRONG["memory.clinic-loop"] = {
    "as it was": (_train(nullcontext, _autocast()), "Autocast casts each weight once"),
    "nested": (_train(_autocast(), _autocast()), "Autocast casts each weight once"),
    "without autocast": (_train(nullcontext), "The point is to keep autocast"),
    "gradients never cleared": (_train(clears=False), "zero_grad, backward and step as before"),
    "no step": (_train(steps_=False), "it is"),
    "no losses": (lambda *args: [], "losses.append(loss.item())"),
}

# --- half -----------------------------------------------------------------------------------------------------------


def _half(
    cast: bool = False,
    autocast: bool = True,
    lr_times: float = 1.0,
    back: bool = True,
    once: bool = False,
    dtype: torch.dtype = torch.bfloat16,
) -> Any:
    def answer(model: nn.Module, x: Tensor, y: Tensor, steps: int, lr: float) -> None:
        if cast:
            model.to(torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr * lr_times)
        for _ in range(1 if once else steps):
            with torch.autocast("cpu", dtype=dtype, enabled=autocast):
                loss = F.cross_entropy(model(x.bfloat16() if cast else x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if back:
            model.float()

    return answer


def _around_the_loop(*args: Any) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _half()(*args)


def _to_and_fro(model: nn.Module, x: Tensor, y: Tensor, steps: int, lr: float) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        model.bfloat16()
        optimizer.zero_grad()
        F.cross_entropy(model(x.bfloat16()), y).backward()
        model.float()
        optimizer.step()


def _master_copies(model: nn.Module, x: Tensor, y: Tensor, steps: int, lr: float) -> None:
    masters = [p.detach().clone() for p in model.parameters()]
    model.to(torch.bfloat16)
    for _ in range(steps):
        loss = F.cross_entropy(model(x.bfloat16()), y)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for master, grad, p in zip(masters, grads, model.parameters(), strict=True):
                master -= lr * grad.float()
                p.copy_(master)
    model.float()
    with torch.no_grad():
        for master, p in zip(masters, model.parameters(), strict=True):
            p.copy_(master)


RIGHT["memory.clinic-half"] = {"autocast": _half(), "copies of the weights in float32": _master_copies}
WRONG["memory.clinic-half"] = {
    "as it was": (_half(cast=True, autocast=False), "they moved"),
    "stays in bfloat16": (_half(cast=True, autocast=False, back=False), "Keep the weights in float32"),
    "float32 throughout": (_half(autocast=False), "torch.autocast computes in 16 bits"),
    "larger steps": (_half(lr_times=10), "times as far"),
    "one step": (_half(once=True), "One forward pass and one update for each step"),
    "float16": (_half(dtype=torch.float16), "dtype=torch.bfloat16"),
    "autocast around the loop": (_around_the_loop, "begin the block anew in each step"),
    "cast to and fro": (_to_and_fro, "no cast brings it back"),
}

# --- slice ----------------------------------------------------------------------------------------------------------

RIGHT["memory.clinic-slice"] = {
    "a loop": lambda batches: [f.detach()[0].clone() for f in batches],
    "from numbers": lambda batches: [torch.tensor(f[0].tolist()) for f in batches],
    "copied into place": lambda batches: [torch.empty(f.shape[1]).copy_(f[0].detach()) for f in batches],
}


def _all_rows(batches: Iterable[Tensor]) -> list[Tensor]:
    return list(torch.stack([f.detach() for f in batches])[:, 0])


WRONG["memory.clinic-slice"] = {
    "as it was": (lambda batches: [f[0].detach() for f in batches], "it keeps the whole batch"),
    "clone before slice": (lambda batches: [f.detach().clone()[0] for f in batches], "it keeps the whole batch"),
    "contiguous": (lambda batches: [f[0].detach().contiguous() for f in batches], "it keeps the whole batch"),
    "in a graph": (lambda batches: [f[0].clone() for f in batches], "takes a tensor out of its graph"),
    "by way of NumPy": (lambda batches: [torch.from_numpy(f[0].detach().numpy()) for f in batches], "as a NumPy array"),
    "stacked, then cut": (_all_rows, "it keeps the whole batch"),
    "the last row": (lambda batches: [f[-1].detach().clone() for f in batches], "the rows are right"),
    "a tensor": (lambda batches: torch.stack([f[0].detach() for f in batches]), "One row for each batch"),
}

# --- reentrant ------------------------------------------------------------------------------------------------------


def _scores(model: Any, images: Tensor, body: Callable) -> Tensor:
    return model.head(body(model.body, images))


def _fresh_input(model: Any, images: Tensor) -> Tensor:
    return model.head(checkpoint(model.body, images.detach().requires_grad_(), use_reentrant=True))


RIGHT["memory.clinic-reentrant"] = {
    "the newer kind": lambda m, x: _scores(m, x, lambda b, x: checkpoint(b, x, use_reentrant=False)),
    "an input that needs gradients": _fresh_input,
}
WRONG["memory.clinic-reentrant"] = {
    "as it was": (
        lambda m, x: _scores(m, x, lambda b, x: checkpoint(b, x, use_reentrant=True)),
        "so they never learn",
    ),
    "no checkpoint": (lambda m, x: m.head(m.body(x)), "Keep the checkpoint around model.body"),
    "the head instead": (
        lambda m, x: checkpoint(m.head, m.body(x), use_reentrant=False),
        "Keep the checkpoint around model.body",
    ),
    "detached": (
        lambda m, x: _scores(m, x, lambda b, x: checkpoint(b, x, use_reentrant=False).detach()),
        "so they never learn",
    ),
    "another order": (lambda m, x: m.head(m.body(x) * 2), "Keep the order"),
}

# --- counter --------------------------------------------------------------------------------------------------------


def _warm(start: float = 0.0, forward: Any = None, number: Any = None) -> type:
    class Warm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            if number is None:
                self.register_buffer("calls", torch.full((), start))
            else:
                self.calls = number

    def right(self: Any, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x * torch.clamp(self.calls / 10, max=1.0)

    Warm.forward = forward or right
    return Warm


def _as_it_was(self: Any, x: Tensor) -> Tensor:
    self.calls += 1
    return x * min(1, self.calls / 10)


def _never_full(self: Any, x: Tensor) -> Tensor:
    self.calls += 1
    return x * (self.calls / 10)


def _item(self: Any, x: Tensor) -> Tensor:
    self.calls += 1
    return x * min(1, self.calls.item() / 10)


class _Whole(nn.Module):
    """Counts in an int64 tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = torch.zeros((), dtype=torch.int64)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.where(self.calls < 10, x * self.calls / 10, x)


class _NotCompiled(nn.Module):
    """Keeps its Python number, and the compiler away."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    @torch.compiler.disable
    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * min(1, self.calls / 10)


class _Shares(nn.Module):
    """A list that is as long as the number of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(1)
        return x * min(1.0, len(self.seen) / 10)


RIGHT["memory.clinic-counter"] = {"add_": _warm(), "a plain tensor of whole numbers": _Whole}
WRONG["memory.clinic-counter"] = {
    "as it was": (_warm(number=0, forward=_as_it_was), "takes a Python number of a module for a constant"),
    "a list": (_Shares, "takes a Python number of a module for a constant"),
    "starts at 1": (_warm(start=1.0), "The first call is call 1"),
    "grows on": (_warm(forward=_never_full), "from the tenth on"),
    "never counts": (_warm(start=1.0, forward=lambda self, x: x * 0.1), "The first call is call 1"),
    "not compiled": (_NotCompiled, "don't switch the compiler off"),
    "an instance": (_warm()(), ""),
}
