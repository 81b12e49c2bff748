"""The programs of lesson 07. Each is one function that runs in every rank, and lives here since ranks import it.

They are started by `distributed.launch`, or from a terminal by ``torchrun … -m course_utils.ranks MODULE:FUNCTION``.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DistributedSampler

from course_utils import checkpoints

TIMEOUT_S = 30.0  # of one collective: how long a rank waits for the others


@contextmanager
def group(timeout_s: float = TIMEOUT_S, backend: str = "gloo") -> Iterator[tuple[int, int]]:
    """Join the process group for a block; gives the block (rank, number of ranks).

    Args:
        timeout_s: how long joining, and afterwards each operation, waits for the other ranks.
        backend: ``gloo`` or ``nccl``.
    """
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        dist.destroy_process_group()


def small_net(seed: int = 0, normed: bool = False) -> nn.Sequential:
    """Return a network for 8x8 digits with weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        norm = [nn.BatchNorm1d(32)] if normed else []
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), *norm, nn.ReLU(), nn.Linear(32, 10))


def weights_of(model: nn.Module) -> Tensor:
    """Return all parameters as one vector, (D,)."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def gradients_of(model: nn.Module) -> Tensor:
    """Return all gradients as one vector, (D,)."""
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


# --- first steps -----------------------------------------------------------------------------------------------------


def hello() -> tuple[int, float]:
    """Say who I am; return my number and the sum of all ranks' numbers."""
    with group() as (rank, n):
        print(f"I am rank {rank} of {n}, process {os.getpid()}; we meet at port {os.environ['MASTER_PORT']}")
        total = torch.tensor(float(rank))
        dist.all_reduce(total)  # in place, and in every rank
        return rank, total.item()


def train(kind: str, x: Tensor, y: Tensor, batch: int, steps: int) -> tuple[Tensor, float]:
    """Train a small network, each rank on its share of every batch; return weights (D,) and the last loss."""
    with group() as (rank, n):
        model = small_net()
        net = model if kind == "no DDP" else DDP(model)
        if kind == "DDP, .module called":
            net = net.module
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for step in range(steps):
            rows = torch.arange(step * batch, (step + 1) * batch) % len(x)
            mine = rows[0::n] if kind == "DDP, same data" else rows[rank::n]
            loss = F.cross_entropy(net(x[mine]), y[mine])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return weights_of(model), loss.item()


def collectives() -> dict[str, Any]:
    """Return what a tensor holds after each of five operations; rank r begins with [r + 1, 10 (r + 1)]."""
    with group() as (rank, n):
        mine = torch.tensor([1.0, 10.0]) * (rank + 1)
        found = {"before": mine.tolist()}
        for name, call in (
            ("broadcast from 0", lambda x: dist.broadcast(x, 0)),
            ("all_reduce, sum", lambda x: dist.all_reduce(x)),
            ("all_reduce, max", lambda x: dist.all_reduce(x, op=dist.ReduceOp.MAX)),
        ):
            x = mine.clone()
            call(x)
            found[name] = x.tolist()
        everybody = [torch.empty(2) for _ in range(n)]
        dist.all_gather(everybody, mine)
        found["all_gather"] = [x.tolist() for x in everybody]
        return found


def pass_right(send_first: bool, patience_s: float) -> float | None:
    """Give my number to the next rank; return the one that I got, or None if there was an error."""
    with group(patience_s) as (rank, n):
        right, left = (rank + 1) % n, (rank - 1) % n
        mine, got = torch.tensor([float(rank)]), torch.zeros(1)
        try:
            if send_first:
                dist.send(mine, right)
                dist.recv(got, left)
            else:
                sending = dist.isend(mine, right)
                dist.recv(got, left)
                sending.wait()
        except RuntimeError:
            return None
        return got.item()


# --- the ring --------------------------------------------------------------------------------------------------------


def ring_all_reduce(tensor: Tensor, dist: Any) -> None:
    """Sum a tensor over all ranks, in place, by messages to the right neighbour alone.

    Args:
        tensor: shape (D,), contiguous, D at least the number of ranks.
        dist: ``torch.distributed``, or a `course_utils.world.Rank`.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = tensor.tensor_split(n)  # views: what is written into a chunk stands in the tensor
    for step in range(2 * (n - 1)):
        is_adding = step < n - 1  # first add up on the way, then hand out the sums
        outgoing = chunks[(rank - step) % n]
        own = chunks[(rank - step - 1) % n]
        incoming = torch.empty_like(own)
        sending = dist.isend(outgoing, right)
        dist.recv(incoming, left)
        sending.wait()
        own.copy_(own + incoming if is_adding else incoming)


def compare_ring(length: int) -> tuple[float, bool]:
    """Return the largest difference between the ring and the library, and whether all ranks have the same bits."""
    with group() as (rank, n):
        mine = torch.randn(length, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)
        ours, theirs = mine.clone(), mine.clone()
        ring_all_reduce(ours, dist)
        dist.all_reduce(theirs)
        everybody = [torch.empty_like(ours) for _ in range(n)]
        dist.all_gather(everybody, ours)
        return (ours - theirs).abs().max().item(), all(torch.equal(ours, other) for other in everybody)


def run_source(source: str, name: str, lengths: Sequence[int] = (6, 11)) -> list[bool]:
    """Define a ring all-reduce from its source text and try it: does it agree with the library, for each length?"""
    namespace: dict[str, Any] = {"torch": torch}
    exec(source, namespace)
    with group() as (rank, _):
        found = []
        for length in lengths:
            ours = torch.arange(length, dtype=torch.float64) * (rank + 1)
            theirs = ours.clone()
            namespace[name](ours, dist)
            dist.all_reduce(theirs)
            found.append(torch.allclose(ours, theirs))
        return found


# --- DDP -------------------------------------------------------------------------------------------------------------


def counting_reductions(model: DDP) -> list[int]:
    """Have a model note the size of each bucket that it sends, in numbers; the list grows with every one."""
    sizes: list[int] = []

    def send(_state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are text, as they are here
        sizes.append(bucket.buffer().numel())
        average = bucket.buffer().div_(dist.get_world_size())
        return dist.all_reduce(average, async_op=True).get_future().then(lambda done: done.value()[0])

    model.register_comm_hook(None, send)
    return sizes


def gradients(x: Tensor, y: Tensor, n_parts: int = 1, sync: str = "each", normed: bool = False) -> dict[str, Any]:
    """Return the gradients of one step on my share of the batch, and how many buckets were sent.

    Args:
        x, y: the whole batch.
        n_parts: micro-batches into which each rank cuts its share.
        sync: ``each`` micro-batch, or the ``last`` alone.
        normed: with BatchNorm.
    """
    with group() as (rank, n):
        model = DDP(small_net(normed=normed))
        sent = counting_reductions(model)
        parts = list(zip(x[rank::n].chunk(n_parts), y[rank::n].chunk(n_parts), strict=True))
        for number, (part, labels) in enumerate(parts):
            is_quiet = sync == "last" and number < n_parts - 1
            with model.no_sync() if is_quiet else nullcontext():
                loss = F.cross_entropy(model(part), labels) / n_parts
                loss.backward()
        norm = model.module[2] if normed else None
        means = norm.running_mean.clone() if norm is not None else None
        return {"gradients": gradients_of(model), "sent": len(sent), "running_mean": means}


def wrap_synced() -> tuple[str, str]:
    """Convert a network to SyncBatchNorm on the CPU and wrap it; return the layer's type, and the error."""
    with group():
        model = nn.SyncBatchNorm.convert_sync_batchnorm(small_net(normed=True))
        kind = type(model[2]).__name__
        try:
            DDP(model)
        except ValueError as error:
            return kind, f"{type(error).__name__}: {error}"
        return kind, ""


def watch_backward(n_layers: int, width: int, cap_mb: float, steps: int) -> list[list[tuple[str, str]]]:
    """Return for each step what happened in backward, in order: gradients that were ready, buckets that left."""
    with group() as (_, n):
        net = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(n_layers)))
        layer_of = {parameter: name.split(".")[0] for name, parameter in net.named_parameters()}
        events: list[tuple[str, str]] = []
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: events.append(("gradient", layer_of[p])))
        model = DDP(net, bucket_cap_mb=cap_mb)

        def send(_state, bucket):  # type: ignore[no-untyped-def]
            events.append(("bucket", " ".join(layer_of[p] for p in bucket.parameters())))
            average = bucket.buffer().div_(n)
            return dist.all_reduce(average, async_op=True).get_future().then(lambda done: done.value()[0])

        model.register_comm_hook(None, send)
        found = []
        for _ in range(steps):
            events.clear()
            model(torch.ones(4, width)).sum().backward()
            found.append(list(events))
        return found


def start() -> dict[tuple[str, str], tuple[Tensor, Tensor]]:
    """Return the first weights and the first dropout noise of this rank, in four cases."""
    found = {}
    with group() as (rank, _):
        for seed, wrapper in itertools.product(("same seed", "seed + rank"), ("DDP", "no DDP")):
            torch.manual_seed(7 if seed == "same seed" else 7 + rank)
            model: nn.Module = nn.Linear(8, 8)
            if wrapper == "DDP":
                model = DDP(model)
            noise = F.dropout(torch.ones(64), 0.5)
            found[seed, wrapper] = weights_of(model), noise
    return found


def unused_parameter(find: bool) -> str:
    """Take two steps with a layer that the loss doesn't reach; return the error in its first sentence, or ''."""

    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    with group():
        model = DDP(TwoHeads(), find_unused_parameters=find)
        for step in range(2):
            try:
                model(torch.ones(5, 4)).sum().backward()
            except RuntimeError as error:
                place = str(error).partition("Parameter indices")
                return f"step {step + 1}: {str(error).split('. ')[0]}. Parameter indices{place[2].splitlines()[0]}"
        return ""


def uneven(joined: bool, patience_s: float = 5.0) -> tuple[int, str]:
    """Train with one more batch on each rank than on the one before; return my steps and how it ended."""
    with group(patience_s) as (rank, _):
        model = DDP(small_net())
        done = 0
        try:
            with model.join() if joined else nullcontext():
                for _ in range(3 + rank):
                    model(torch.ones(4, 64)).sum().backward()
                    done += 1
        except RuntimeError as error:
            return done, type(error).__name__
        return done, "finished"


# --- hangs -----------------------------------------------------------------------------------------------------------


class FlightLog:
    """The collectives of one rank, each written down before it is called."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def all_reduce(self, name: str, tensor: Tensor) -> None:
        """Sum over all ranks, in place; ``name`` says what is summed."""
        self.lines.append(f"{name} {tuple(tensor.shape)}")
        dist.all_reduce(tensor)


def mismatched(kind: str, patience_s: float) -> dict[str, Any]:
    """Sum a loss and a count over all ranks in three steps; rank 1 makes a mistake in step 2.

    Args:
        kind: ``none``, ``order`` (the two sums swapped), ``size`` (a longer tensor), or ``missing`` (one left out; the
            rank goes on computing).
        patience_s: how long a rank waits for the others.
    """
    with group(patience_s) as (rank, n):
        log, results = FlightLog(), []
        try:
            for step in (1, 2, 3):
                loss, count = torch.tensor([0.5]), torch.tensor([8.0])
                is_wrong = rank == 1 and step == 2
                if is_wrong and kind == "order":
                    log.all_reduce("count", count)
                    log.all_reduce("loss", loss)
                elif is_wrong and kind == "size":
                    log.all_reduce("loss", loss.repeat(3))
                    log.all_reduce("count", count)
                elif is_wrong and kind == "missing":
                    log.all_reduce("loss", loss)
                    time.sleep(patience_s + 0.5)  # an evaluation that the others know nothing of
                else:
                    log.all_reduce("loss", loss)
                    log.all_reduce("count", count)
                results.append((loss.item() / n, count.item()))
        except RuntimeError as error:
            return {"log": log.lines, "error": str(error), "results": results}
        return {"log": log.lines, "error": "", "results": results}


def monitored(patience_s: float) -> str:
    """Meet at a monitored barrier, but for rank 1, which is busy; return what it says to this rank."""
    with group() as (rank, _):
        if rank == 1:
            time.sleep(patience_s + 0.5)
            return ""
        try:
            dist.monitored_barrier(timeout=timedelta(seconds=patience_s), wait_all_ranks=True)
        except RuntimeError as error:
            return str(error).splitlines()[0]
        return ""


# --- a rank that dies ------------------------------------------------------------------------------------------------


def average_gradients(model: nn.Module) -> None:
    """Replace each gradient by its mean over the ranks, in place. All ranks must have the same ones."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def train_on(folder: str, epochs: int, every: int, die_at: int | None = None) -> None:
    """Train from the newest checkpoint on, saving every few steps; the data lies in ``folder/data.pt``.

    Args:
        folder: of this run. At its end it holds ``final.pt``.
        epochs: how many.
        every: steps between checkpoints.
        die_at: the step, counted from 0, at which rank 1 is killed, if it is the first start.
    """
    keeper = checkpoints.Keeper(folder, every=every)
    with group() as (rank, n):
        data = checkpoints.load(Path(folder) / "data.pt")
        x, y = data["x"], data["y"]
        sampler = DistributedSampler(x, n, rank, seed=0)
        model = small_net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        done = 0
        saved = keeper.latest()  # every rank reads the same file
        if saved is not None:
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            done = saved["steps"]
        print(f"starts at step {done}")
        per_epoch = len(sampler) // 32
        for step in range(done, epochs * per_epoch):
            if step == die_at and rank == 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
                print(f"dies at step {step}")
                os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
            sampler.set_epoch(step // per_epoch)
            rows = list(sampler)[step % per_epoch * 32 :][:32]
            loss = F.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            average_gradients(model)
            optimizer.step()
            if rank == 0 and keeper.is_due(step + 1):
                keeper.save(step + 1, model=model, optimizer=optimizer, steps=step + 1)
        if rank == 0:
            checkpoints.save(Path(folder) / "final.pt", model=model)
        dist.barrier()
        print("is done")


# --- times -----------------------------------------------------------------------------------------------------------


def all_reduce_seconds(sizes_bytes: Sequence[int], seconds: float = 0.15) -> list[float]:
    """Return the time of an all-reduce for each size, in seconds: the median of as many as fit into ``seconds``."""
    with group():
        found = []
        for size in sizes_bytes:
            x = torch.zeros(size // 4)
            times: list[float] = []
            count = 3
            while len(times) < count:
                began = time.perf_counter()
                dist.all_reduce(x)
                times.append(time.perf_counter() - began)
                if len(times) == 2:
                    slowest = torch.tensor(times[1])
                    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)  # all ranks must make as many
                    count = max(5, min(60, int(seconds / max(slowest.item(), 1e-6))))
            found.append(sorted(times[2:])[len(times[2:]) // 2])
        return found


def step_seconds(caps_mb: Sequence[float], n_layers: int, width: int, batch: int, steps: int) -> dict[str, Any]:
    """Return the median time of backward in seconds: without sending, and for each bucket size."""
    with group():
        x = torch.randn(batch, width)

        def measure(model: nn.Module, quiet: bool) -> float:
            times = []
            for _ in range(steps + 2):  # the first two build buckets
                with model.no_sync() if quiet else nullcontext():  # type: ignore[operator]
                    loss = model(x).square().mean()
                    began = time.perf_counter()
                    loss.backward()
                    times.append(time.perf_counter() - began)
            return sorted(times[2:])[steps // 2]

        def wrapped(cap_mb: float) -> DDP:
            net = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(n_layers)))
            return DDP(net, bucket_cap_mb=cap_mb)

        alone = measure(wrapped(25), quiet=True)
        return {"alone": alone, "caps": [measure(wrapped(cap), quiet=False) for cap in caps_mb]}


def throughput(batch: int, width: int, seconds: float = 1.0) -> float:
    """Return examples per second of this rank while it trains with all others."""
    with group():
        model = DDP(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        x = torch.randn(batch, width)
        count, began = 0, 0.0
        go_on = torch.ones(())
        while go_on.item():
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            count += 1
            if count == 3:
                began = time.perf_counter()
            go_on = torch.tensor(float(count < 3 or time.perf_counter() - began < seconds))
            dist.broadcast(go_on, 0)  # rank 0 has the clock: all stop after the same step
        return (count - 3) * batch / (time.perf_counter() - began)


def nccl_sum(size: int) -> dict[str, Any]:
    """Sum over all ranks on the GPUs; return whether the sum is right, the time in seconds, and the GPU's name."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    with group(backend="nccl") as (rank, n):
        x = torch.full((size,), float(rank + 1), device=device)
        dist.all_reduce(x)
        is_right = bool((x == n * (n + 1) / 2).all())
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(10):
            dist.all_reduce(x)
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - began) / 10
        return {"right": is_right, "seconds": seconds, "name": torch.cuda.get_device_name(device)}


def sync_batch_norm(x: Tensor) -> float:
    """Return the largest difference between SyncBatchNorm over ranks and BatchNorm over the whole batch, on GPUs."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    with group(backend="nccl") as (rank, n):
        model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(x.shape[1])).to(device)
        ours = DDP(model, device_ids=[device.index])(x[rank::n].to(device))
        whole = nn.BatchNorm1d(x.shape[1])(x)[rank::n].to(device)
        return (ours - whole).abs().max().item()


def main(words: Sequence[str]) -> None:
    """Be a rank of ``torchrun``: the program's name, then its arguments as JSON."""
    from course_utils.distributed import resolve

    resolve(words[0])(**json.loads(words[1]))
    # On a busy machine about one rank in fifty died of "terminate called without an active exception" while Python
    # ended, its group destroyed, all its work done. torchrun takes that for a failure: pytorch/pytorch issue 190489.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
