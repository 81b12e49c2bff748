"""Checks of lesson 05: repeat a run, resume it, find out where it breaks."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_utils.exercises.compare import describe, is_equal, is_true
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.training_parts import Batch, classifier, memory_of, vector
from course_utils.exercises.verdicts import Check
from course_utils.scratch import scratch_folder


def check_epoch_order(epoch_order: Callable, inputs: Inputs) -> Iterator[Check]:
    """training.epoch-order: the batches of indices of one epoch, from the seed and the epoch number alone."""
    size = inputs.size(7, 11)
    n, seed, epoch = size * 5 + inputs.size(1, 4), inputs.size(0, 1000), inputs.size(0, 30)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)["state"]["key"].copy()
    answer = epoch_order(n, size, seed, epoch)
    now = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)["state"]["key"]
    is_list = type(answer) in (list, tuple) and all(type(part) is Tensor for part in answer)
    yield is_true(
        "returns a list of index tensors",
        is_list,
        detail=f"got {describe(answer)}",
        hint="list(order.split(batch_size))",
    )
    sizes = [tuple(part.shape) for part in answer]
    full = [(size,)] * 5
    yield is_equal(
        "the batches are full, and the last one holds the rest",
        sizes,
        [*full, (n - 5 * size,)],
        hint="split(batch_size) cuts them.",
        mistakes=[(full, "The short last batch is missing: its examples would be skipped in this epoch.")],
    )
    order = torch.cat(list(answer))
    yield is_equal(
        "holds every index once",
        sorted(order.tolist()),
        list(range(n)),
        hint="torch.randperm(n) draws without repeats.",
    )
    yield is_true(
        "is shuffled",
        order.tolist() != list(range(n)),
        detail="it is 0, 1, 2, …",
        hint="torch.randperm(n, generator=...)",
    )

    def again(seed: int, epoch: int) -> list[int]:
        return torch.cat(list(epoch_order(n, size, seed, epoch))).tolist()

    untouched = torch.equal(states[0], now[0]) and states[1] == now[1] and bool((states[2] == now[2]).all())
    yield is_true(
        "leaves the global generators alone",
        untouched,
        detail="a global generator moved",
        hint="Seeding or drawing globally also restarts dropout and everything "
        "else. Use a torch.Generator of your own.",
    )
    yield is_equal(
        "the same seed and epoch give the same order",
        again(seed, epoch),
        order.tolist(),
        hint="After a crash the epoch must come out as before: make a new generator in each call, from seed and epoch.",
    )
    yield is_true(
        "another epoch has another order",
        again(seed, epoch + 1) != order.tolist(),
        detail="two epochs came in the same order",
        hint="The epoch must go into the generator's seed.",
    )
    yield is_true(
        "another seed has another order",
        again(seed + 1, epoch) != order.tolist(),
        detail="two seeds gave the same order",
        hint="The seed must go into the generator.",
    )
    yield is_true(
        "run seed + 1 does not repeat the epochs of run seed",
        again(seed, epoch + 1) != again(seed + 1, epoch),
        detail=f"seed {seed}, epoch {epoch + 1} equals seed {seed + 1}, epoch {epoch}",
        hint="seed + epoch makes neighbouring runs share epochs. Mix them: stream(seed, 'shuffle', epoch) hashes both.",
    )


def _run_parts(inputs: Inputs) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    model = classifier(inputs, 5, 3, nn.Dropout(0.5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return model, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=12)


def _train_steps(parts: tuple, batches: Sequence[Batch]) -> None:
    model, optimizer, scheduler = parts
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step()


def check_checkpoint(checkpoint: Callable, inputs: Inputs) -> Iterator[Check]:
    """training.checkpoint: a class whose save and load let a run continue bit for bit in a new process."""
    batches = [(inputs.randn(4, 5, dtype=torch.float64), inputs.randint(0, 3, 4)) for _ in range(12)]
    stop = inputs.size(4, 8)
    parts = _run_parts(inputs)
    _train_steps(parts, batches[:stop])
    weights, memory, rng = vector(parts[0]), memory_of(parts[1]), torch.get_rng_state()
    rate, count = parts[1].param_groups[0]["lr"], parts[2].last_epoch
    with scratch_folder("answer") as folder:
        path = folder / "run.pt"
        checkpoint(*parts).save(path, stop)
        yield is_true("save writes the file", path.is_file(), detail="there is no file", hint="torch.save(state, path)")
        torch.set_rng_state(rng)  # the run goes on: whatever save drew is not its business
        _train_steps(parts, batches[stop:])
        torch.manual_seed(inputs.size(0, 10_000))  # a new process starts anywhere
        fresh = _run_parts(inputs)
        step = checkpoint(*fresh).load(path)
        here = torch.get_rng_state()
        yield is_equal(
            "load returns the step that was saved", step, stop, hint='Put "step" into the file, and return it.'
        )
        yield is_true(
            "the weights are back",
            torch.equal(vector(fresh[0]), weights),
            detail="the new model has other weights"
            if not torch.equal(vector(fresh[0]), vector(parts[0]))
            else "the weights are those of the end of the run",
            hint="model.state_dict() into the file, model.load_state_dict(...) out of it.",
        )
        found = memory_of(fresh[1])
        same = found.keys() == memory.keys() and all(torch.equal(found[key], memory[key]) for key in memory)
        yield is_true(
            "the optimizer has its memory back",
            same,
            detail="its running means are gone" if not found else "its running means differ",
            hint="AdamW remembers two means per parameter. Save optimizer.state_dict() too.",
        )
        yield is_true(
            "the scheduler goes on where it was",
            fresh[2].last_epoch == count and fresh[1].param_groups[0]["lr"] == rate,
            detail=f"it stands at step {fresh[2].last_epoch}, the saved one stood at {count}",
            hint="The scheduler counts its steps. Save scheduler.state_dict() too.",
        )
        yield is_true(
            "the random numbers go on where they were",
            torch.equal(here, rng),
            detail="the generator is in another state",
            hint="Dropout draws from torch's generator. Save torch.get_rng_state(), "
            "restore it with torch.set_rng_state.",
        )
        _train_steps(fresh, batches[stop:])
        yield is_true(
            "the resumed run ends with the same weights, bit for bit",
            torch.equal(vector(fresh[0]), vector(parts[0])),
            detail=f"largest difference {(vector(fresh[0]) - vector(parts[0])).abs().max().item():.3g}",
            hint="Something of the run is still missing from the file.",
        )
        try:
            torch.load(path, weights_only=True)
            harmless = True
        except Exception:
            harmless = False
    yield is_true(
        "the file opens with weights_only=True",
        harmless,
        detail="it holds pickled objects, whose loading runs code",
        hint="Put state_dicts, tensors and plain numbers into the file, never the objects themselves.",
    )


class _Chain(nn.Module):
    """Runs its layers in an order that differs from the one in which they were registered."""

    def __init__(self, layers: dict[str, nn.Module], order: Sequence[str]) -> None:
        super().__init__()
        self.order = list(order)
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        for name in self.order:
            x = self.get_submodule(name)(x)
        return x


class _Scaled(nn.Module):
    """Multiplies by a constant: 1e38 overflows to inf in float32."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def check_first_bad_layer(first_bad_layer: Callable, inputs: Inputs) -> Iterator[Check]:
    """training.first-bad-layer: the name of the layer whose output is the first with nan or inf, or None."""
    names = inputs.choice([("enc", "mix", "head"), ("stem", "body", "out"), ("alpha", "beta", "gamma")])
    first, middle, last = names
    x = inputs.randn(4, 3) + 2

    def chain(bad: str = "", factor: float = math.nan) -> _Chain:
        inner = nn.Sequential(
            nn.Linear(5, 5), nn.Tanh(), _Scaled(factor) if bad == "inner" else nn.Identity(), nn.Tanh()
        )
        layers = {middle: inner, last: nn.Linear(5, 2), first: nn.Linear(3, 5)}  # not in the order of running
        model = _Chain(layers, names)
        if bad == "first":
            nn.init.constant_(layers[first].weight, math.inf)  # type: ignore[arg-type]
        return model

    def hooks_of(model: nn.Module) -> int:
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())

    model = chain()
    answer = first_bad_layer(model, x)
    yield is_true(
        "a healthy model gives None",
        answer is None,
        detail=f"got {describe(answer)}",
        hint="return None when all is finite.",
    )
    yield is_equal(
        "leaves no hook behind",
        hooks_of(model),
        0,
        hint="register_forward_hook returns a handle: call its remove() in the end.",
    )
    model, answer = chain("inner"), None
    answer = first_bad_layer(model, x)
    yield is_equal(
        "names the layer where nan appears first",
        answer,
        f"{middle}.2",
        hint="Keep the first name that a hook reports; the layers after it only pass the nan on.",
        mistakes=[
            (last, "This is where the nan ends up. It appeared in an earlier layer."),
            (f"{middle}.3", "This layer only passed the nan on. Report the first one."),
            (
                middle,
                "This block contains the culprit. A block finishes after the layers inside it: "
                "the first hook to fire names the layer.",
            ),
            ("", "The empty name is the whole model. Report the layer."),
            (None, "It found nothing. Do the hooks look at the output of every layer?"),
        ],
    )
    yield is_equal(
        "finds an overflow to inf",
        first_bad_layer(chain("inner", 1e39), x),
        f"{middle}.2",
        hint="inf is not nan, and tanh makes it finite again. Test with torch.isfinite.",
    )
    yield is_equal(
        "goes by the order of running",
        first_bad_layer(chain("first"), x),
        first,
        hint="named_modules lists layers as they were registered. The forward pass "
        "decides which came first: let the hooks tell.",
    )
    model = chain()
    with suppress(Exception):
        first_bad_layer(model, inputs.randn(4, 7))  # too wide: the forward pass fails
    yield is_equal(
        "leaves no hook behind when the forward pass fails",
        hooks_of(model),
        0,
        hint="Remove the hooks in a finally block: it runs after an error too.",
    )
