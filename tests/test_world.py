"""The world of threads: what torch.distributed does on gloo, and deadlocks and quarrels that are told."""

from __future__ import annotations

import threading
import time

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from course_utils.errors import UsageError
from course_utils.ranks import ring_all_reduce
from course_utils.world import Call, DeadlockError, MismatchError, Sent, TrafficError, World


def pairs(rank):
    return rank.get_rank(), rank.get_world_size()


def test_ranks_know_who_they_are_and_results_come_in_their_order():
    assert World(3).run(pairs) == [(0, 3), (1, 3), (2, 3)]


def test_send_and_recv_carry_values_and_are_counted():
    def program(rank):
        if rank.get_rank() == 0:
            rank.send(torch.arange(4.0).reshape(2, 2), 1)
            return None
        got = torch.zeros(2, 2)
        assert rank.recv(got, 0) == 0
        return got

    world = World(2)
    assert torch.equal(world.run(program)[1], torch.arange(4.0).reshape(2, 2))
    assert world.sent == [[Sent(1, 4)], []]


def test_messages_between_two_ranks_keep_their_order():
    def program(rank):
        if rank.get_rank() == 0:
            works = [rank.isend(torch.tensor([float(k)]), 1) for k in range(3)]
            return [work.wait() for work in works]
        got = [torch.zeros(1) for _ in range(3)]
        works = [rank.irecv(place, 0) for place in got]
        [work.wait() for work in works]
        return [x.item() for x in got]

    assert World(2).run(program) == [[True] * 3, [0.0, 1.0, 2.0]]


def test_send_waits_for_its_receiver():
    order = []

    def program(rank):
        if rank.get_rank() == 0:
            rank.send(torch.ones(1), 1)
            order.append("sent")
        else:
            time.sleep(0.05)
            order.append("receives")
            rank.recv(torch.zeros(1), 0)

    World(2).run(program)
    assert order[0] == "receives"


def test_everybody_sending_first_is_a_deadlock_that_names_all():
    def program(rank):
        rank.send(torch.ones(1), (rank.get_rank() + 1) % 3)

    began = time.monotonic()
    with pytest.raises(DeadlockError, match=r"rank 0 waits in send to 1; rank 1 waits in send to 2; rank 2 waits"):
        World(3).run(program)
    assert time.monotonic() - began < 2


def test_a_rank_that_has_returned_is_named():
    def program(rank):
        if rank.get_rank() != 1:
            rank.all_reduce(torch.ones(2))

    with pytest.raises(DeadlockError, match=r"all_reduce\(\(2,\), float32\), its collective 1; rank 1 has returned"):
        World(3).run(program)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (lambda rank: rank.all_reduce(torch.ones(3)), r"rank 1 called all_reduce\(\(3,\), float32\)"),
        (lambda rank: rank.all_reduce(torch.ones(2, dtype=torch.int64)), "int64"),
        (lambda rank: rank.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX), "MAX"),
        (lambda rank: rank.broadcast(torch.ones(2), 1), "broadcast"),
        (lambda rank: rank.barrier(), "barrier"),
    ],
)
def test_ranks_that_disagree_are_told_apart(other, says):
    def program(rank):
        rank.all_reduce(torch.ones(1))
        other(rank) if rank.get_rank() == 1 else rank.all_reduce(torch.ones(2))

    with pytest.raises(MismatchError, match=f"collective 2: rank 0, 2 called .*{says}"):
        World(3).run(program)


def test_messages_that_do_not_fit_are_refused():
    def program(rank, got=None):
        if rank.get_rank() == 0:
            rank.send(torch.ones(3), 1)
        else:
            rank.recv(torch.ones(2), 0)

    with pytest.raises(TrafficError, match=r"Rank 0 sent \(3,\) float32 to rank 1"):
        World(2).run(program)


@pytest.mark.parametrize(("send", "says"), [(True, "never received"), (False, "nothing was sent")])
def test_messages_left_over_are_told(send, says):
    def program(rank):
        if rank.get_rank() == 0:
            rank.isend(torch.ones(1), 1) if send else rank.irecv(torch.ones(1), 1)

    with pytest.raises(TrafficError, match=says):
        World(2).run(program)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda rank: rank.send(torch.ones(1), 5), r"There is no rank 5"),
        (lambda rank: rank.recv(torch.ones(1), True), "There is no rank True"),
        (lambda rank: rank.send(torch.ones(1), rank.get_rank()), "itself"),
        (lambda rank: rank.send(3, (rank.get_rank() + 1) % 2), "Only tensors"),
        (lambda rank: rank.send(torch.ones(4, 4).t()[:, :2], (rank.get_rank() + 1) % 2), "contiguous"),
        (lambda rank: rank.all_reduce(3.0), "takes a tensor"),
        (lambda rank: rank.all_reduce(torch.ones(1), op=dist.ReduceOp.BAND), "gloo can't reduce with BAND"),
    ],
)
def test_wrong_arguments_get_a_sentence(call, says):
    with pytest.raises(UsageError, match=says):
        World(2).run(call)


@pytest.mark.parametrize("n", [0, -1, 1.5, "3"])
def test_a_world_has_a_whole_number_of_ranks(n):
    with pytest.raises(UsageError, match="number of ranks"):
        World(n)


def test_the_first_error_of_a_rank_comes_through_and_frees_the_others():
    def program(rank):
        if rank.get_rank() == 1:
            raise ValueError("no")
        rank.barrier()

    with pytest.raises(ValueError, match="no"):
        World(3).run(program)
    assert_no_rank_lives()


def test_an_endless_loop_ends_at_the_time_limit():
    def program(rank):
        while rank.get_rank() == 0:
            pass
        rank.barrier()

    with pytest.raises(DeadlockError, match="rank 0 still computes"):
        World(2).run(program, timeout_s=0.3)
    assert_no_rank_lives()


def assert_no_rank_lives():
    deadline = time.monotonic() + 5
    while threading.active_count() > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [thread for thread in threading.enumerate() if "(be)" in thread.name] == []


def collectives(rank):
    mine = torch.tensor([1.0, 10.0]) * (rank.get_rank() + 1)
    found = [mine.clone() for _ in range(4)]
    rank.broadcast(found[0], 1)
    rank.all_reduce(found[1])
    rank.all_reduce(found[2], op=dist.ReduceOp.MAX)
    work = rank.all_reduce(found[3], op=dist.ReduceOp.PRODUCT, async_op=True)
    everybody = [torch.zeros(2) for _ in range(3)]
    assert work.wait()
    rank.all_gather(everybody, mine)
    return [x.tolist() for x in (*found, *everybody)]


def test_collectives_do_what_their_names_say():
    world = World(3)
    results = world.run(collectives)
    assert results[0] == results[1] == results[2]
    assert results[0] == [[2, 20], [6, 60], [3, 30], [6, 6000], [1, 10], [2, 20], [3, 30]]
    assert [str(call) for call in world.calls[0][:3]] == [
        "broadcast((2,), float32, from 1)", "all_reduce((2,), float32)", "all_reduce((2,), float32, MAX)",
    ]  # fmt: skip
    assert str(Call("barrier")) == "barrier()"


def test_parameters_can_be_broadcast_as_on_gloo():
    def program(rank):
        p = torch.nn.Parameter(torch.full((2,), float(rank.get_rank())))
        rank.broadcast(p, 1)
        return p

    assert all(p.is_leaf and p.tolist() == [1.0, 1.0] for p in World(2).run(program))


@given(n=st.integers(1, 5), length=st.integers(5, 40))
@settings(max_examples=25)
def test_the_ring_sums_any_length_over_any_number_of_ranks(n, length):
    tensors = [torch.arange(length, dtype=torch.float64) * (rank + 1) for rank in range(n)]
    total = torch.stack(tensors).sum(0)
    world = World(n)
    world.run(lambda rank: ring_all_reduce(tensors[rank.get_rank()], rank))
    assert all(torch.equal(tensor, total) for tensor in tensors)
    assert all(sum(m.numbers for m in sent) <= 2 * (n - 1) * -(-length // n) for sent in world.sent)
