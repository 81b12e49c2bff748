"""A small world of ranks inside one process: each rank is a thread, and messages go through its memory.

For trying code that talks to other ranks without starting processes. Each rank's function gets a `Rank`, whose methods
are named and behave like the functions of ``torch.distributed`` on gloo: what runs here runs there, with the module in
the place of the `Rank`. Two things are better here. A deadlock is seen at once and told, rank by rank, and so is a
collective in which the ranks disagree; and what was sent is counted.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_utils.errors import CourseError, UsageError

TIMEOUT_S = 20.0  # for a rank that computes for ever; waiting for ever is noticed at once


class DeadlockError(CourseError):
    """Every rank waits for another one, or for one that has returned."""


class MismatchError(CourseError):
    """The ranks called different collectives, or the same with tensors that don't fit together."""


class TrafficError(CourseError):
    """A message was sent that nobody received, or one that doesn't fit into the tensor it was received in."""


@dataclass(frozen=True)
class Call:
    """One collective as a rank called it: its name, the shape and dtype of its tensor, and the root if it has one."""

    name: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    root: int | None = None
    op: str = ""

    def __str__(self) -> str:
        inside = [str(self.shape)] if self.dtype else []
        inside += [self.dtype] if self.dtype else []
        inside += [f"from {self.root}"] if self.root is not None else []
        inside += [self.op] if self.op not in ("", "SUM") else []
        return f"{self.name}({', '.join(inside)})"


@dataclass(frozen=True)
class Sent:
    """One message: to which rank, and how many numbers."""

    to: int
    numbers: int


@dataclass
class _Message:
    """One end of a transfer: posted by its rank, done when the other end has been posted too."""

    tensor: Tensor
    done: bool = False


@dataclass
class _Round:
    """One collective: who has called it, and with what."""

    calls: dict[int, Call] = field(default_factory=dict)
    tensors: dict[int, Any] = field(default_factory=dict)
    done: bool = False


class Work:
    """A transfer that was begun; ``wait()`` returns when it is finished."""

    def __init__(self, wait: Callable[[], None]) -> None:
        self._wait = wait

    def wait(self) -> bool:
        """Wait until the transfer is done; return True."""
        self._wait()
        return True


class _Abandoned(BaseException):
    """Ends a rank's thread: another rank failed, or the world has been given up."""


class World:
    """N ranks as threads.

    Args:
        n_ranks: how many.

    After `run`, ``sent[rank]`` lists the messages that a rank sent, and ``calls[rank]`` the collectives it called.
    """

    def __init__(self, n_ranks: int) -> None:
        if not isinstance(n_ranks, int) or n_ranks < 1:
            raise UsageError("This is not a number of ranks.", got=n_ranks, expected="a whole number, at least 1")
        self.n_ranks = n_ranks
        self.sent: list[list[Sent]] = [[] for _ in range(n_ranks)]
        self.calls: list[list[Call]] = [[] for _ in range(n_ranks)]
        self._turn = threading.Condition()
        self._sends: dict[tuple[int, int], list[_Message]] = {}
        self._receives: dict[tuple[int, int], list[_Message]] = {}
        self._rounds: list[_Round] = []
        self._waiting: dict[int, tuple[Callable[[], bool], str]] = {}
        self._ended: set[int] = set()
        self._failure: BaseException | None = None

    def run(self, program: Callable[[Rank], Any], timeout_s: float = TIMEOUT_S) -> list[Any]:
        """Call ``program(rank)`` in every rank at the same time; return the results in the order of the ranks.

        Args:
            program: gets the `Rank`; may be called once for each world.
            timeout_s: seconds after which ranks that still compute are given up.

        Raises:
            DeadlockError: if all wait. It says for what.
            MismatchError: if they disagree about a collective. It says who.
            TrafficError: if a message was left over or didn't fit.
            Exception: whatever a rank raised first.
        """
        results: list[Any] = [None] * self.n_ranks

        def be(rank: int) -> None:
            try:
                results[rank] = program(Rank(self, rank))
            except _Abandoned:
                pass
            except BaseException as error:
                self._fail(error)
            finally:
                self._end(rank)

        threads = [threading.Thread(target=be, args=(rank,), daemon=True) for rank in range(self.n_ranks)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + timeout_s
        try:
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
            late = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
            if late:
                raise DeadlockError(
                    f"After {timeout_s:g} s rank {late[0]} still computes.", fix="look for a loop that never ends"
                )
        finally:
            self._give_up(threads)
        if self._failure is not None:
            raise self._failure
        self._refuse_leftovers()
        return results

    def _give_up(self, threads: Sequence[threading.Thread]) -> None:
        """Let no thread live on: those that wait are woken, those that compute get an exception."""
        if not any(thread.is_alive() for thread in threads):
            return
        self._fail(_Abandoned())
        for thread in threads:
            thread.join(0.1)
            if thread.is_alive() and thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Abandoned))

    def _fail(self, error: BaseException) -> None:
        with self._turn:
            if self._failure is None:
                self._failure = error
            self._turn.notify_all()

    def _end(self, rank: int) -> None:
        with self._turn:
            self._ended.add(rank)
            self._refuse_deadlock()
            self._turn.notify_all()

    def wait(self, rank: int, is_ready: Callable[[], bool], what: str) -> None:
        """Let a rank wait until ``is_ready``; called with the lock held."""
        while not is_ready():
            if self._failure is None:
                self._waiting[rank] = (is_ready, what)
                self._refuse_deadlock()
            if self._failure is not None:
                raise _Abandoned
            self._turn.wait()
        self._waiting.pop(rank, None)
        if self._failure is not None:
            raise _Abandoned

    def _refuse_deadlock(self) -> None:
        """Fail if nobody can go on: each rank has ended or waits for what can't come."""
        if self._failure is not None or not self._waiting:
            return
        if len(self._waiting) + len(self._ended - set(self._waiting)) < self.n_ranks:
            return
        if any(is_ready() for is_ready, _ in self._waiting.values()):
            return
        states = [
            f"rank {rank} {'waits in ' + self._waiting[rank][1] if rank in self._waiting else 'has returned'}"
            for rank in range(self.n_ranks)
        ]
        self._failure = DeadlockError(f"Nobody can go on: {'; '.join(states)}.")
        self._turn.notify_all()

    def _refuse_leftovers(self) -> None:
        for (source, target), messages in self._sends.items():
            if messages:
                raise TrafficError(f"Rank {source} sent a message to rank {target} that was never received.")
        for (source, target), messages in self._receives.items():
            if messages:
                raise TrafficError(f"Rank {target} began to receive from rank {source}, and nothing was sent.")

    def post(self, source: int, target: int, tensor: Tensor, is_send: bool) -> _Message:
        """Announce one end of a transfer; the bytes are copied when both ends are there."""
        if not isinstance(tensor, Tensor):
            raise UsageError("Only tensors can be sent.", got=type(tensor).__name__, fix="torch.tensor(value)")
        if not tensor.is_contiguous():
            raise UsageError("Tensors must be contiguous to be sent or received.", fix="send tensor.contiguous()")
        message = _Message(tensor)
        pair = (source, target)
        with self._turn:
            if self._failure is not None:
                raise _Abandoned
            if is_send:
                self.sent[source].append(Sent(target, tensor.numel()))
            mine, others = (self._sends, self._receives) if is_send else (self._receives, self._sends)
            waiting = others.get(pair)
            if not waiting:
                mine.setdefault(pair, []).append(message)
                return message
            other = waiting.pop(0)
            sender, receiver = (message, other) if is_send else (other, message)
            if sender.tensor.dtype != receiver.tensor.dtype or sender.tensor.numel() != receiver.tensor.numel():
                raise TrafficError(
                    f"Rank {source} sent {_kind(sender.tensor)} to rank {target}, which received it into "
                    f"{_kind(receiver.tensor)}.",
                    fix="both ends must have the same shape and dtype",
                )
            with torch.no_grad():
                receiver.tensor.copy_(sender.tensor.reshape(receiver.tensor.shape))
            sender.done = receiver.done = True
            self._turn.notify_all()
        return message

    def join_round(self, rank: int, call: Call, tensor: Any, finish: Callable[[dict[int, Any]], None]) -> _Round:
        """Take part in the next collective; the last rank that comes lets ``finish`` do the work for all."""
        with self._turn:
            if self._failure is not None:
                raise _Abandoned
            number = len(self.calls[rank])
            self.calls[rank].append(call)
            if number == len(self._rounds):
                self._rounds.append(_Round())
            current = self._rounds[number]
            current.calls[rank], current.tensors[rank] = call, tensor
            if len(current.calls) == self.n_ranks:
                if len(set(current.calls.values())) > 1:
                    raise MismatchError(_disagreement(number, current.calls))
                with torch.no_grad():
                    finish(current.tensors)
                current.done = True
                self._turn.notify_all()
            return current


class Rank:
    """One rank of a `World`: the functions of ``torch.distributed`` that the lesson uses, with the same names.

    ``send`` and ``recv`` wait for each other, as on gloo: a message leaves when its receiver is there.
    """

    ReduceOp = dist.ReduceOp

    def __init__(self, world: World, rank: int) -> None:
        self._world = world
        self._rank = rank

    def get_rank(self) -> int:
        """Return this rank's number, from 0."""
        return self._rank

    def get_world_size(self) -> int:
        """Return the number of ranks."""
        return self._world.n_ranks

    def isend(self, tensor: Tensor, dst: int) -> Work:
        """Begin to send a tensor; it must not change before ``wait()`` has returned."""
        message = self._world.post(self._rank, self._other(dst), tensor, is_send=True)
        return Work(lambda: self._wait(lambda: message.done, f"send to {dst}"))

    def irecv(self, tensor: Tensor, src: int) -> Work:
        """Begin to receive into a tensor, in place."""
        message = self._world.post(self._other(src), self._rank, tensor, is_send=False)
        return Work(lambda: self._wait(lambda: message.done, f"recv from {src}"))

    def send(self, tensor: Tensor, dst: int) -> None:
        """Send a tensor and wait until it has been received."""
        self.isend(tensor, dst).wait()

    def recv(self, tensor: Tensor, src: int) -> int:
        """Receive into a tensor, in place; return the number of the sender."""
        self.irecv(tensor, src).wait()
        return src

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self._collective(Call("barrier"), None, lambda tensors: None)

    def all_reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM, async_op: bool = False) -> Work | None:
        """Put the sum over all ranks (or MAX, MIN, PRODUCT) into everybody's tensor, in place."""
        name = _name_of_op(op)

        def finish(tensors: dict[int, Tensor]) -> None:
            stack = torch.stack([tensors[rank].detach() for rank in sorted(tensors)])
            total = _REDUCERS[name](stack)
            for other in tensors.values():
                other.copy_(total)

        return self._collective(_call("all_reduce", tensor, op=name), tensor, finish, async_op)

    def broadcast(self, tensor: Tensor, src: int = 0) -> None:
        """Copy the tensor of rank ``src`` into everybody's, in place."""

        def finish(tensors: dict[int, Tensor]) -> None:
            source = tensors[src].detach().clone()
            for other in tensors.values():
                other.copy_(source)

        self._other(src, itself=True)
        self._collective(_call("broadcast", tensor, root=src), tensor, finish)

    def all_gather(self, tensors: list[Tensor], tensor: Tensor) -> None:
        """Put everybody's tensor into the list of N tensors, in the order of the ranks, in place."""

        def finish(everybody: dict[int, tuple[list[Tensor], Tensor]]) -> None:
            given = [everybody[rank][1].detach().clone() for rank in sorted(everybody)]
            for places, _ in everybody.values():
                for place, value in zip(places, given, strict=True):
                    place.copy_(value)

        self._collective(_call("all_gather", tensor), (tensors, tensor), finish)

    def _collective(
        self, call: Call, tensor: Any, finish: Callable[[dict[int, Any]], None], async_op: bool = False
    ) -> Work | None:
        number = len(self._world.calls[self._rank]) + 1
        current = self._world.join_round(self._rank, call, tensor, finish)
        work = Work(lambda: self._wait(lambda: current.done, f"{call}, its collective {number}"))
        if async_op:
            return work
        work.wait()
        return None

    def _wait(self, is_ready: Callable[[], bool], what: str) -> None:
        with self._world._turn:
            self._world.wait(self._rank, is_ready, what)

    def _other(self, rank: int, itself: bool = False) -> int:
        n = self._world.n_ranks
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < n:
            raise UsageError(f"There is no rank {rank!r}.", expected=f"a whole number in 0..{n - 1}")
        if rank == self._rank and not itself:
            raise UsageError(f"Rank {rank} can't send to or receive from itself.")
        return rank


_REDUCERS: dict[str, Callable[[Tensor], Tensor]] = {
    "SUM": lambda stack: stack.sum(0, dtype=stack.dtype),
    "MAX": lambda stack: stack.amax(0),
    "MIN": lambda stack: stack.amin(0),
    "PRODUCT": lambda stack: stack.prod(0, dtype=stack.dtype),
}


def _name_of_op(op: Any) -> str:
    name = str(op).rpartition(".")[2]
    if name not in _REDUCERS:
        raise UsageError(f"gloo can't reduce with {name}.", expected=f"one of {', '.join(_REDUCERS)}")
    return name


def _call(name: str, tensor: Tensor, root: int | None = None, op: str = "") -> Call:
    if not isinstance(tensor, Tensor):
        raise UsageError(f"{name} takes a tensor.", got=type(tensor).__name__, fix="torch.tensor(value)")
    return Call(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), root, op)


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _disagreement(number: int, calls: dict[int, Call]) -> str:
    groups: dict[Call, list[int]] = {}
    for rank in sorted(calls):
        groups.setdefault(calls[rank], []).append(rank)
    parts = [f"rank {', '.join(map(str, ranks))} called {call}" for call, ranks in groups.items()]
    return f"The ranks disagree about their collective {number + 1}: {'; '.join(parts)}."
