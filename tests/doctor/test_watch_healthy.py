"""Healthy loops, however unusual, hear nothing; and nothing stays behind, however the loop ends."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import optimizer as optimizer_module

from course_utils import doctor
from course_utils.training import evaluating
from tests.doctor.test_watch import data, is_silent, mlp, train


@pytest.fixture(autouse=True)
def same_weights():
    torch.manual_seed(0)


def gan(watching, models, batches):
    one, two = models
    first, second = (torch.optim.Adam(model.parameters(), lr=2e-3) for model in models)
    for x, _ in watching(batches):
        fake = one(torch.randn(len(x), 4))
        second.zero_grad()
        F.softplus(-two(x)).mean().add(F.softplus(two(fake.detach())).mean()).backward()
        second.step()
        first.zero_grad()
        F.softplus(-two(fake)).mean().backward()
        first.step()


def accumulation(watching, model, batches):
    optimizer = torch.optim.AdamW(model.parameters())
    for number, (x, y) in enumerate(watching(batches)):
        (F.cross_entropy(model(x), y) / 4).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def bf16(watching, model, batches):
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in watching(batches):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()


def scaled(watching, model, batches):
    """A scaler that finds its scale: updates with infinite gradients are skipped."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1e38)
    for x, y in watching(batches):
        loss = F.cross_entropy(model(x), y) * 1e-3
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def lbfgs(watching, model, batches):
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    x, y = batches[0]

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in watching(batches):
        optimizer.step(closure)


def frozen(watching, model, batches):
    for parameter in model[:2].parameters():
        parameter.requires_grad = False
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    train(model, watching(batches), optimizer=optimizer)


def evaluated(watching, model, batches):
    optimizer = torch.optim.Adam(model.parameters())
    loader, losses, best = watching(batches[:20]), [], {}
    for _ in range(3):
        train(model, loader, optimizer=optimizer)
        with evaluating(model):
            losses += [F.cross_entropy(model(x), y) for x, y in batches]
        best = copy.deepcopy(model.state_dict())
    assert best


def several_losses(watching, model, batches):
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in watching(batches):
        optimizer.zero_grad()
        outputs = model(x)
        F.cross_entropy(outputs, y).backward(retain_graph=True)
        outputs.square().mean().backward()
        optimizer.step()


def zero_head(watching, model, batches):
    """The last layer starts at 0: at first no gradient reaches the others."""
    nn.init.zeros_(model[-1].weight)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 1e-2, total_iters=50)
    for batch in watching(batches):
        train(model, [batch], optimizer=optimizer)
        warmup.step()


def masked(watching, model, batches):
    """Minus infinity on purpose, and an operation that a mask keeps from being used."""
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in watching(batches):
        optimizer.zero_grad()
        outputs = model(x)
        allowed = F.one_hot(y, 3).bool() | (torch.rand(len(y), 3) < 0.5)
        F.cross_entropy(outputs.masked_fill(~allowed, -torch.inf), y).backward()
        optimizer.step()


def solved(watching, model, batches):
    """One batch, learned by heart: gradients shrink to nothing."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in watching(range(300)):
        train(model, batches[:1], optimizer=optimizer)


def spiked(watching, model, batches):
    """A rare batch is far out; its gradient is clipped."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, (x, y) in enumerate(watching(batches)):
        optimizer.zero_grad()
        F.cross_entropy(model(x * (1e4 if number % 25 == 24 else 1.0)), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


LOOPS = [accumulation, bf16, scaled, lbfgs, frozen, evaluated, several_losses, zero_head, masked, solved, spiked]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_a_healthy_loop_hears_nothing(loop):
    model = mlp()
    with doctor.watch(model) as watching:
        loop(watching, model, data(100, size=16))
    assert is_silent(watching), watching.report


def test_two_networks_that_take_turns_hear_nothing():
    models = mlp(nn.LeakyReLU(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8)), mlp()
    models[0][-1] = nn.Linear(8, 4)
    with doctor.watch(models) as watching:
        gan(watching, models, data(100))
    assert is_silent(watching), watching.report


def test_a_recurrent_network_and_a_compiled_one_hear_nothing():
    recurrent = nn.GRU(4, 8, batch_first=True)
    optimizer = torch.optim.Adam(recurrent.parameters())
    with doctor.watch(recurrent) as watching:
        hidden = None
        for _ in watching(range(60)):
            optimizer.zero_grad()
            outputs, hidden = recurrent(torch.randn(5, 7, 4), hidden)
            outputs.square().mean().backward()
            optimizer.step()
            hidden = hidden.detach()
    assert is_silent(watching), watching.report
    for watched in (0, 1):
        torch.compiler.reset()
        model = mlp()
        compiled = torch.compile(model, backend="eager")
        with doctor.watch((model, compiled)[watched]) as watching:
            train(compiled, watching(data(60)))
        assert is_silent(watching), watching.report


# Nothing stays behind.


def traces(model):
    hooks = [len(table) for module in model.modules() for name, table in vars(module).items() if name.endswith("hooks")]
    return (
        hooks, torch.autograd.backward, torch.Tensor.backward,
        len(optimizer_module._global_optimizer_pre_hooks), len(optimizer_module._global_optimizer_post_hooks),
    )  # fmt: skip


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_nothing_stays_behind_however_the_loop_ends(error, steps):
    model, batches = mlp(), data(steps + 1)
    before = traces(model)
    ends = contextlib.nullcontext() if error is None else pytest.raises(error)
    with ends, doctor.watch(model) as watching:
        for batch in watching(batches):
            train(model, [batch])
        model(batches[0][0])
        if error is not None:
            raise error
    assert traces(model) == before


def test_a_watcher_holds_nothing_of_a_loop_that_has_ended():
    model, batches = mlp(), data(3)
    optimizer = torch.optim.Adam(model.parameters())
    with doctor.watch(model) as watching:
        for batch in watching(batches):
            train(model, [batch], optimizer=optimizer)
    things = [weakref.ref(thing) for thing in (model, optimizer, batches[0][0], batches[2][0])]
    del model, optimizer, batch, batches
    gc.collect()
    assert [thing() for thing in things] == [None] * 4
    assert watching.report.is_healthy


def test_copies_and_files_of_a_watched_model_are_clean():
    model, stored = mlp(), io.BytesIO()
    with doctor.watch(model) as watching:
        train(model, watching(data(3)))
        twin = copy.deepcopy(model)
        torch.save(model, stored)
    x = torch.randn(2, 4)
    assert torch.equal(twin(x), model(x))
    assert not any(hooks for hooks in traces(twin)[0])
    assert b"course_utils" not in stored.getvalue()
    stored.seek(0)
    assert torch.equal(torch.load(stored, weights_only=False)(x), model(x))


def test_two_watchers_may_overlap():
    one, two = mlp(), mlp()
    before = traces(one)
    first, second = doctor.watch(one), doctor.watch(two)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    train(two, second(data(3)))
    second.__exit__(None, None, None)
    assert traces(one)[0] == before[0]
    assert traces(one)[3:] == before[3:]
    train(one, data(2))  # a wrapper that is off may remain, and does nothing
    torch.autograd.backward = before[1]


def test_the_run_is_the_one_that_nobody_watched():
    def run(watched):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        batches = data(50)
        if watched:
            with doctor.watch(model) as watching:
                train(model, watching(batches), optimizer=optimizer)
        else:
            train(model, batches, optimizer=optimizer)
        return [*model.state_dict().values(), torch.get_rng_state()]

    assert all(torch.equal(a, b) for a, b in zip(run(True), run(False), strict=True))


# What it costs, counted and not timed.


def test_most_steps_are_not_looked_at(monkeypatch):
    from course_utils.doctor import watching as module

    counts = dict.fromkeys(("_look_at_lengths", "_mark_graph", "_open_units", "_see_units"), 0)
    for name in counts:
        original = getattr(module.Watcher, name)

        def counting(self, *args, name=name, original=original):
            counts[name] += 1
            return original(self, *args)

        monkeypatch.setattr(module.Watcher, name, counting)
    model = mlp()
    with doctor.watch(model) as watching:
        train(model, watching(data(10) * 100))
    assert 30 < counts["_look_at_lengths"] < 55
    assert 30 < counts["_mark_graph"] < 55
    assert 30 < counts["_open_units"] < 50
    assert counts["_see_units"] <= 2 * counts["_open_units"]
    assert is_silent(watching)
