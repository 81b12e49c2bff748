"""The ledger: hand counts to the byte, owners that change, and nothing left behind."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_utils.errors import UsageError
from course_utils.hooks import hook_count
from course_utils.ledger import (
    BACKWARD,
    FORWARD,
    OWNERS,
    STEP,
    Ledger,
    draw_timeline,
    measure_step,
    mlp_budget,
    recording_memory,
)
from course_utils.models import MLP, DigitCNN

FLOAT, LONG = 4, 8  # bytes


def step_of(model, x, y, optimizer):
    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def measured(model, x, make_optimizer=torch.optim.Adam):
    y = torch.zeros(len(x), dtype=torch.int64)
    optimizer = make_optimizer(model.parameters())
    return measure_step(model, step_of(model, x, y, optimizer), optimizer)


def mlp_activations(n: int, hidden: int, classes: int) -> int:
    relu, log_softmax, weight_of_the_mean = n * hidden, n * classes, 1
    return FLOAT * (relu + log_softmax + weight_of_the_mean)


def test_an_mlp_agrees_with_a_hand_count_to_the_byte():
    n, d, h, c = 16, 64, 32, 10
    memory = measured(MLP(d, (h,)), torch.zeros(n, d))
    weights = FLOAT * (d * h + h + h * c + c)
    batch = FLOAT * n * d + LONG * n
    state = 2 * weights + 4 * FLOAT  # Adam counts steps in a tensor of its own for each of 4 parameters
    ends = 2 * FLOAT  # the loss, and the 1.0 that its backward pass starts from
    assert memory.after(FORWARD) == Ledger(weights, 0, state, mlp_activations(n, h, c), batch + ends)
    assert memory.after(BACKWARD) == Ledger(weights, weights, state, 0, batch)
    assert memory.after(STEP) == Ledger(weights, weights, state, 0, batch)
    assert memory.most().activations == mlp_activations(n, h, c)


def test_a_cnn_agrees_with_a_hand_count_to_the_byte():
    n, w, size, hidden, c = 6, 4, 28, 32, 10
    memory = measured(DigitCNN(width=w, hidden=hidden, dropout=0.25), torch.zeros(n, 1, size, size))
    first, second = n * w * size**2, n * 2 * w * (size // 2) ** 2
    flat = n * 2 * w * (size // 4) ** 2
    convolutions = FLOAT * (first + second)  # the output of each convolution, for its normalisation
    norms = FLOAT * 2 * (w + 2 * w)  # mean and 1 / std of each channel
    relus = FLOAT * (first + second)  # the output of ReLU, shared with the pooling
    pools = (FLOAT + LONG) * (first // 4) + LONG * (second // 4)  # indices, int64; the first output, for conv2
    drops = FLOAT * (2 * flat) + FLOAT * (2 * n * hidden)  # a mask each, and what came out, for the linear layer
    relu = FLOAT * n * hidden  # after fc1
    loss = FLOAT * (n * c + 1)
    assert memory.most().activations == convolutions + norms + relus + pools + drops + relu + loss


@pytest.mark.parametrize(
    ("make", "copies", "counters"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), 0, 0),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1, 0),
        (torch.optim.Adam, 2, 4),
        (torch.optim.AdamW, 2, 4),
    ],
)
def test_optimizer_state_is_none_one_or_two_copies_of_the_weights(make, copies, counters):
    ledger = measured(MLP(8, (5,), 3), torch.zeros(2, 8), make).after(STEP)
    assert ledger.optimizer_state == copies * ledger.parameters + FLOAT * counters
    assert ledger.gradients == ledger.parameters


def test_the_owners_add_up_to_the_total_at_every_event():
    memory = measured(DigitCNN(width=2, hidden=8), torch.zeros(2, 1, 28, 28))
    lines = [memory.timeline(owner) for owner in OWNERS]
    assert [sum(column) for column in zip(*lines, strict=True)] == memory.timeline()
    assert memory.at_peak().total == memory.peak_bytes == memory.timeline()[memory.peak_event]
    assert memory.most().total >= memory.peak_bytes


def test_phases_come_in_the_order_of_the_step():
    memory = measured(MLP(8, (5,), 3), torch.zeros(2, 8))
    assert list(dict.fromkeys(memory.phases)) == ["start", FORWARD, BACKWARD, STEP]


def test_state_made_in_the_block_belongs_to_the_optimizer():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    y = torch.zeros(4, dtype=torch.int64)
    memory = measure_step(model, step_of(model, torch.zeros(4, 3), y, optimizer), optimizer, warm_up=0)
    assert memory.after(STEP).optimizer_state == 2 * 32 + 2 * FLOAT


def test_shared_weights_count_once_and_frozen_ones_have_no_gradient():
    first = nn.Linear(6, 6, bias=False)
    second = nn.Linear(6, 6, bias=False)
    second.weight = first.weight
    frozen = nn.Linear(6, 3, bias=False).requires_grad_(False)
    memory = measured(nn.Sequential(first, second, frozen), torch.zeros(2, 6), lambda p: torch.optim.SGD(p, lr=0.1))
    assert memory.after(STEP).parameters == FLOAT * (36 + 18)
    assert memory.after(STEP).gradients == FLOAT * 36


def test_views_cost_nothing_and_what_dies_is_subtracted():
    x = torch.zeros(10)
    with recording_memory() as memory:
        y = x + 1
        kept = y.view(2, 5)
        assert (memory.live_bytes, memory.live_count) == (80, 2)
        del y
        assert memory.live_bytes == 80
        del kept
        assert memory.live_bytes == 40
    assert memory.timeline() == [40, 80, 80]
    assert memory.peak_bytes == 80


def test_a_temporary_counts_at_the_moment_in_which_both_are_alive():
    x = torch.zeros(10)
    with recording_memory() as memory:
        y = (x + 1) * 2
    assert memory.peak_bytes == 120  # x, x + 1, and the product
    assert memory.live_bytes == 80
    del y
    assert memory.live_bytes == 80  # the recording ended with the block


def test_recording_keeps_no_graph_alive_that_nobody_holds():
    model = MLP(8, (5,), 3)
    x = torch.zeros(2, 8)
    with recording_memory(model) as memory:
        kept = []
        lives = []
        for _ in range(3):
            kept.append(model(x).detach())  # no backward pass ever frees what this forward pass saved
            lives.append(memory.live_bytes)
    assert lives[2] - lives[1] == lives[1] - lives[0] == FLOAT * 2 * 3


def test_second_derivatives_work_while_recording():
    x = torch.tensor(2.0, requires_grad=True)
    with recording_memory():
        (slope,) = torch.autograd.grad(x.exp(), x, create_graph=True)
        (curve,) = torch.autograd.grad(slope, x)
    assert curve == x.exp()


def test_no_grad_saves_nothing():
    model = MLP(8, (5,), 3)
    with recording_memory(model) as memory, torch.no_grad():
        model(torch.zeros(2, 8))
    assert memory.most().activations == 0


def test_checkpointing_keeps_less_after_the_forward_pass():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)))
    x = torch.zeros(5, 8)
    with recording_memory(model) as plain:
        model(x).sum().backward()

    def checkpointed(x):
        for layer in model:
            x = checkpoint(layer, x, use_reentrant=False)
        return x

    with recording_memory(model) as less:
        checkpointed(x).sum().backward()
    assert plain.most().activations == 4 * 160  # each tanh keeps its output, which the next linear layer shares
    assert less.after(FORWARD).activations == 3 * 160  # the inputs of the checkpoints, the batch aside


def test_everything_comes_off_again_even_after_an_error():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ZeroDivisionError), recording_memory(model, optimizer):
        raise ZeroDivisionError
    assert hook_count(model) == 0
    assert not model.weight._post_accumulate_grad_hooks
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    with recording_memory() as memory:  # and a second recording begins anew
        torch.zeros(3)
    assert len(memory.phases) == 2


def test_a_phase_that_was_not_seen_is_an_error():
    with recording_memory() as memory:
        torch.zeros(3)
    with pytest.raises(UsageError, match="no phase 'backward'"):
        memory.after(BACKWARD)


def test_the_ledger_reads_as_a_table():
    assert str(Ledger(1000, 2, 3, 4, 5)).splitlines()[2].split() == ["parameters", "1,000"]
    assert str(Ledger(1000, 2, 3, 4, 5)).splitlines()[-1].split() == ["total", "1,014"]


def test_the_timeline_is_drawn_by_owner():
    memory = measured(MLP(8, (5,), 3), torch.zeros(2, 8))
    figure, ax = plt.subplots()
    draw_timeline(ax, memory)
    assert ax.get_legend_handles_labels()[1] == [owner.replace("_", " ") for owner in OWNERS]
    assert [text.get_text() for text in ax.texts] == [FORWARD, BACKWARD, STEP]
    plt.close(figure)


@pytest.mark.parametrize("is_mixed", [False, True])
@pytest.mark.parametrize("hidden", [(), (12,), (12, 9), (7, 7, 7)])
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("SGD", lambda p: torch.optim.SGD(p, lr=0.1)),
        ("SGD with momentum", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        ("Adam", torch.optim.Adam),
    ],
)
def test_the_budget_agrees_with_the_measurement_to_the_byte(name, make, hidden, is_mixed):
    n, d, c = 6, 20, 5
    model, x, y = MLP(d, hidden, c), torch.zeros(n, d), torch.zeros(n, dtype=torch.int64)
    optimizer = make(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_mixed):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    memory = measure_step(model, step, optimizer)
    budget, after = mlp_budget(n, d, hidden, c, name, is_mixed), memory.after(STEP)
    assert budget.activations == memory.most().activations
    for owner in ("parameters", "gradients", "optimizer_state", "other"):
        assert getattr(budget, owner) == getattr(after, owner)
