"""Lesson 07: what people say about training in several processes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from course_utils.claims import distributed_ranks as ranks
from course_utils.claims.data_workers import witnessed
from course_utils.claims.evidence import WORKS, time_ratio
from course_utils.claims.ledger import Evidence, Page
from course_utils.claims.verdicts import CAVEAT, FALSE, NEEDS_CUDA, OUTDATED, TRUE
from course_utils.distributed import launch
from course_utils.scratch import scratch_folder
from course_utils.workers import ending_workers, start_methods

PAGE = Page("distributed")


def _close(a: Sequence[float], b: Sequence[float]) -> bool:
    return torch.allclose(torch.tensor(a), torch.tensor(b), atol=1e-6)


# --- Which tool ------------------------------------------------------------------------------------------------------


@PAGE.claim(
    "R001",
    "DataParallel (one process) and DistributedDataParallel (one process per card) are different, and DDP is the "
    "proper choice.",
    rule=lambda seen: TRUE if seen["DataParallel: processes"] == 1 and seen["DDP of two ranks: processes"] == 2
    and seen["DataParallel's own documentation recommends DDP"] else FALSE,
    right="On this version the two don't differ in that.",
    page="generated/torch.nn.DataParallel.html",
)  # fmt: skip
def processes_of_the_two() -> Evidence:
    seen, model = [], ranks.net()
    model.register_forward_hook(lambda *_: seen.append(os.getpid()))
    nn.DataParallel(model)(ranks.batch()[0])
    text = nn.DataParallel.__doc__ or ""
    return {
        "DataParallel: processes": len({*seen, os.getpid()}),
        "DDP of two ranks: processes": len(set(ranks.process_of_the_model())),
        "DataParallel's own documentation recommends DDP": "recommended" in text and "DistributedDataParallel" in text,
    }


@PAGE.claim(
    "R002",
    "DataParallel scales increasingly badly from 4 cards on because of synchronisation and load imbalance.",
    rule=lambda seen: NEEDS_CUDA if seen["cards"] < 4 else TRUE
    if seen["4 cards: speed per card"] < 0.9 * seen["2 cards: speed per card"] else FALSE,
    right="It takes at least 4 cards to see. In each step DataParallel copies the model from the first card to the "
    "others and gathers all outputs there, driven by threads of one process.",
    page="generated/torch.nn.DataParallel.html",
    varies=True,
)  # fmt: skip
def speed_per_card() -> Evidence:
    cards = torch.cuda.device_count()
    if cards < 4:
        return {"cards": cards}
    model, x = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)]).cuda(), torch.randn(4096, 2048, device="cuda")

    def step(n: int) -> None:
        nn.DataParallel(model, device_ids=list(range(n)))(x).square().mean().backward()
        torch.cuda.synchronize()

    gains = {n: time_ratio(lambda: step(1), lambda n=n: step(n)) for n in (2, 4)}
    return {"cards": cards, **{f"{n} cards: speed per card": gain / n for n, gain in gains.items()}}


@PAGE.claim(
    "R003",
    "A DDP script initialises the process group with NCCL, reads LOCAL_RANK, sets the device and wraps the model with "
    "device_ids=[local_rank].",
    rule=lambda seen: TRUE if seen["gloo, CPU, no device_ids"] != WORKS else CAVEAT
    if seen["gloo, CPU, device_ids=[0]"] != WORKS else FALSE,
    right="That is the script for CUDA. On CPUs the backend is gloo, and device_ids must be left out, or it raises an "
    "error.",
    page="generated/torch.nn.parallel.DistributedDataParallel.html",
)  # fmt: skip
def wrap_a_model_on_the_cpu() -> Evidence:
    return ranks.wrap_with_and_without_device_ids()[0]


@PAGE.claim(
    "R007",
    "DDP is started with torch.distributed.launch.",
    rule=lambda seen: OUTDATED if seen["torch.distributed.launch is marked deprecated"] else TRUE,
    right="Since release 1.10 it is torchrun, the same as python -m torch.distributed.run. The old module still works "
    "and warns; scripts must read LOCAL_RANK from the environment, not from an argument.",
    page="elastic/run.html",
)
def old_and_new_starter() -> Evidence:
    from torch.distributed import launch as old
    from torch.distributed import run as new

    said = str(getattr(old.main, "__deprecated__", ""))
    return {
        "torch.distributed.launch is marked deprecated": bool(said),
        "it says": said.split("\n")[0] or "nothing",
        "torchrun's module is there": hasattr(new, "main"),
    }


@PAGE.claim(
    "R010",
    "On a single machine, torchrun plus DDP is enough.",
    rule=lambda seen: CAVEAT if seen["parameters on each rank, of the whole model"] >= 1 else TRUE,
    right="Enough as long as the model fits on each card: every rank keeps all parameters, gradients and optimizer "
    "states. Beyond that, FSDP shares them out.",
    page="fsdp.html",
)
def what_each_rank_keeps() -> Evidence:
    whole = sum(p.nbytes for p in ranks.net().parameters())
    kept = [size for _, _, size in ranks.weights_before_and_after_wrapping()]
    return {"ranks": len(kept), "parameters on each rank, of the whole model": min(kept) / whole}


# --- Who reads what --------------------------------------------------------------------------------------------------


def _dealt(length: int, n_ranks: int, epoch: int = 0, seeds: Sequence[int] | None = None) -> list[list[int]]:
    """Return the indices that each rank's DistributedSampler gives."""
    dealt = []
    for rank in range(n_ranks):
        sampler = DistributedSampler(range(length), n_ranks, rank, seed=seeds[rank] if seeds else 0)  # type: ignore[arg-type]
        sampler.set_epoch(epoch)
        dealt.append(list(sampler))
    return dealt


def _shuffled(seed: int) -> list[int]:
    """Return the order of a plain shuffled loader in a process with this seed."""
    torch.manual_seed(seed)
    return [int(x) for x in DataLoader(range(12), shuffle=True)]  # type: ignore[arg-type]


@PAGE.claim(
    "R004",
    "Without a DistributedSampler all processes read the same data, so 4 cards see only a quarter of the data per "
    "epoch.",
    rule=lambda seen: FALSE if seen["each of 4 ranks reads all of the data"] else TRUE,
    right="Each rank reads all of it, so the epoch takes as many steps as on one card and nothing is gained; with "
    "equal seeds even in the same order, so that all average the same gradient. A quarter each is what "
    "DistributedSampler gives.",
    page="data.html#torch.utils.data.distributed.DistributedSampler",
)
def read_without_a_sampler() -> Evidence:
    orders = [_shuffled(seed=0) for _ in range(4)]  # four processes with the same seed
    return {
        "all ranks read in the same order": all(order == orders[0] for order in orders),
        "each of 4 ranks reads all of the data": all(len(set(order)) == 12 for order in orders),
        "with a DistributedSampler each reads, share of the data": len(set(_dealt(12, 4)[0])) / 12,
    }


@PAGE.claim(
    "R005",
    "DistributedSampler gives each process a different slice of the data.",
    rule=lambda seen: FALSE if seen["12 examples, 4 ranks: read twice"] else CAVEAT
    if seen["10 examples, 4 ranks: read twice"] else TRUE,
    right="Different, up to the padding: where the number doesn't divide, some examples go to two ranks, so that all "
    "make the same number of steps. With drop_last=True some are left out instead. Both spoil a metric over the test "
    "set.",
    page="data.html#torch.utils.data.distributed.DistributedSampler",
)  # fmt: skip
def slices_of_four_ranks() -> Evidence:
    def twice(length: int) -> int:
        indices = list(chain(*_dealt(length, 4)))
        return len(indices) - len(set(indices))

    return {
        "12 examples, 4 ranks: read twice": twice(12),
        "10 examples, 4 ranks: read twice": twice(10),
        "10 examples, 4 ranks: each reads": len(_dealt(10, 4)[0]),
    }


@PAGE.claim(
    "R011",
    "Call sampler.set_epoch(epoch) each epoch, otherwise every epoch has the same order.",
    rule=lambda seen: TRUE if seen["without: same order"] and not seen["with: same order"] else FALSE,
    right="On this version the order changes by itself.",
    page="data.html#torch.utils.data.distributed.DistributedSampler",
)
def order_of_two_epochs() -> Evidence:
    sampler = DistributedSampler(range(12), 2, 0)  # type: ignore[arg-type]
    return {
        "without: same order": list(sampler) == list(sampler),
        "with: same order": _dealt(12, 2, epoch=0) == _dealt(12, 2, epoch=1),
    }


@PAGE.claim(
    "R012",
    "Every DDP process should get a different seed because equal seeds make the data order identical across ranks.",
    rule=lambda seen: FALSE if seen["equal seeds: never read"] == 0 and seen["different seeds: never read"] else TRUE,
    right="DistributedSampler needs the same seed everywhere: all ranks draw the same order and deal it out. With "
    "different seeds some examples are read twice and others never. What should differ is the seed of augmentation "
    "and dropout.",
    page="data.html#torch.utils.data.distributed.DistributedSampler",
)
def seeds_of_the_samplers() -> Evidence:
    def never(seeds: Sequence[int]) -> int:
        return 100 - len(set(chain(*_dealt(100, 2, seeds=seeds))))

    equal = _dealt(100, 2, seeds=(0, 0))
    return {
        "equal seeds: the ranks read the same": equal[0] == equal[1],
        "equal seeds: never read": never((0, 0)),
        "different seeds: never read": never((0, 1)),  # of 100 examples
    }


@PAGE.claim(
    "R020",
    "In DDP each process samples its data independently.",
    rule=lambda seen: FALSE if not seen["different seeds: read by both ranks"] else TRUE
    if seen["DistributedSampler: read by both ranks"] else CAVEAT,
    right="DDP itself does nothing about data, and nothing is sent: each process asks its own sampler. But they must "
    "not be independent: DistributedSampler has all draw one order from one seed and take turns, so that no example "
    "is read twice.",
    page="data.html#torch.utils.data.distributed.DistributedSampler",
)  # fmt: skip
def first_half_of_two_ranks() -> Evidence:
    def both(orders: Sequence[Sequence[int]]) -> int:
        return len(set(orders[0][:6]) & set(orders[1][:6]))

    return {
        "plain shuffle, equal seeds: read by both ranks": both([_shuffled(0), _shuffled(0)]),
        "different seeds: read by both ranks": both([_shuffled(0), _shuffled(1)]),
        "DistributedSampler: read by both ranks": both(_dealt(12, 2)),
    }


class WorkerProcess(Dataset):
    """Each item is the number of the process that made it."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return os.getpid()


@PAGE.claim(
    "R018",
    "num_workers is per process: 4 ranks x 4 workers = 16 worker processes compete for CPU.",
    rule=lambda seen: TRUE if seen["worker processes"] == seen["ranks"] * seen["num_workers"] else FALSE,
    right="On this version loaders share their workers.",
    page="data.html#multi-process-data-loading",
)
def workers_of_two_loaders() -> Evidence:
    started = {"num_workers": 1, "multiprocessing_context": start_methods("fork", "spawn")[0]}
    loaders = []
    for rank in range(2):  # the loaders of two ranks; here in one process, which changes nothing for them
        sampler = DistributedSampler(WorkerProcess(), 2, rank)
        loaders.append(DataLoader(WorkerProcess(), sampler=sampler, **started))  # type: ignore[arg-type]
    with ending_workers(loaders[0]) as first, ending_workers(loaders[1]) as second:
        seen = {int(process) for pair in zip(first, second, strict=True) for process in pair}
    return {"ranks": 2, "num_workers": 1, "worker processes": len(seen)}


# --- What DDP does ---------------------------------------------------------------------------------------------------


@PAGE.claim(
    "R006",
    "Under DDP the batch_size is per card, so the global batch is batch_size times the number of cards and the "
    "learning rate must be reconsidered.",
    rule=lambda seen: TRUE if seen["2 ranks with 4 examples: gradient of one process with 8"] else FALSE,
    right="On this version the gradient is another one.",
    page="generated/torch.nn.parallel.DistributedDataParallel.html",
)
def gradient_of_two_halves() -> Evidence:
    first, second = ranks.gradient_of_one_half()

    def alone(part: int | None) -> list[float]:
        model, (x, y) = ranks.net(), ranks.batch(part)
        F.cross_entropy(model(x), y).backward()
        return ranks.flat(model, gradients=True)

    return {
        "both ranks have the same gradient": _close(first, second),
        "2 ranks with 4 examples: gradient of one process with 8": _close(first, alone(None)),
        "2 ranks with 4 examples: gradient of one process with 4": _close(first, alone(0)),
    }


@PAGE.claim(
    "R008",
    "DDP brings a nearly linear speed-up.",
    rule=lambda seen: TRUE if min(seen.values()) > 1.7 else CAVEAT if max(seen.values()) > 1.1 else FALSE,
    right="Only where the arithmetic of a step outweighs the sending of its gradients, and each rank has a card or "
    "cores of its own. A small model gets slower.",
    page="notes/ddp.html",
    varies=True,
)
def two_ranks_against_one() -> Evidence:
    return ranks.speed_of_two_ranks()[0]


@PAGE.claim(
    "R009",
    "Save model.module.state_dict() so a single-card model can load it without the 'module.' prefix.",
    rule=lambda seen: TRUE if seen["load ddp.module.state_dict() into one"] == WORKS
    and seen["load ddp.state_dict() into a plain model"] != WORKS else FALSE,
    right="On this version both load alike.",
    page="generated/torch.nn.parallel.DistributedDataParallel.html",
)  # fmt: skip
def load_what_ddp_saved() -> Evidence:
    return ranks.names_of_the_state()[0]


@PAGE.claim(
    "R013",
    "Seeding only in the main process leaves model initialisation inconsistent between ranks.",
    rule=lambda seen: FALSE if not seen["wrapped in DDP: the ranks differ"] else TRUE,
    right="DDP sends rank 0's parameters and buffers to all ranks when it wraps the model. Weights that you change "
    "after that, or a model that is never wrapped, do stay different.",
    page="notes/ddp.html#internal-design",
)
def weights_of_two_ranks() -> Evidence:
    (before, after, _), (other_before, other_after, _) = ranks.weights_before_and_after_wrapping()
    return {
        "before: the ranks differ": not _close(before, other_before),
        "wrapped in DDP: the ranks differ": not _close(after, other_after),
        "they have rank 0's weights": _close(other_after, before),
    }


@PAGE.claim(
    "R014",
    "Give each rank a different seed (plus per-worker seeds) for augmentation and dropout.",
    rule=lambda seen: FALSE if not seen["equal seeds: same dropout mask"] else TRUE
    if seen["different seeds: workers of the ranks repeat each other"] else CAVEAT,
    right="Different seeds for the ranks, yes, after the model is wrapped and without touching the sampler's seed. "
    "The seeds of the workers follow from the rank's: they need nothing of their own, except for generators that the "
    "dataset keeps.",
    page="data.html#randomness-in-multi-process-data-loading",
)  # fmt: skip
def masks_and_workers_of_two_ranks() -> Evidence:
    def mask(seed: int) -> list[float]:
        torch.manual_seed(seed)
        return F.dropout(torch.ones(32)).tolist()

    def draws(seed: int) -> set[float]:  # of two workers in two epochs, without a worker_init_fn
        return {item["numpy"] for epoch in witnessed(0, seed) for item in epoch}

    return {
        "equal seeds: same dropout mask": mask(0) == mask(0),
        "different seeds: same dropout mask": mask(0) == mask(1),
        "different seeds: workers of the ranks repeat each other": bool(draws(0) & draws(1)),
    }


@PAGE.claim(
    "R015",
    "BatchNorm statistics under DDP are per device; SyncBatchNorm synchronises them.",
    rule=lambda seen: FALSE if seen["BatchNorm: both ranks have the mean of all"] else TRUE
    if seen["SyncBatchNorm: both ranks have the mean of all"] else CAVEAT,
    right="Per device they are; and at each forward pass DDP copies rank 0's running statistics to the others. "
    "SyncBatchNorm works on GPUs only: on a CPU it raises an error.",
    page="generated/torch.nn.SyncBatchNorm.html",
)  # fmt: skip
def means_of_two_ranks() -> Evidence:
    first, second = ranks.statistics_of_a_batch_norm()  # rank 0 has 0, 1, 2, 3, rank 1 has 4, 5, 6, 7
    ranks_means = {name: (first[name], second[name]) for name in ("BatchNorm", "SyncBatchNorm")}
    return {
        "BatchNorm: means of the ranks": ", ".join(map(str, ranks_means["BatchNorm"])),
        "SyncBatchNorm": first["SyncBatchNorm said"],
        **{f"{name}: both ranks have the mean of all": means == (3.5, 3.5) for name, means in ranks_means.items()},
    }


@PAGE.claim(
    "R016",
    "DDP buckets gradients; larger buckets communicate more efficiently at more memory, set via bucket_cap_mb.",
    rule=lambda seen: FALSE if seen["cap 100 MiB: buckets"] >= seen["cap 1 MiB: buckets"] else TRUE
    if seen["cap 100 MiB: MiB in buckets"] > seen["cap 1 MiB: MiB in buckets"] else CAVEAT,
    right="Larger ones need fewer calls, but not more memory: together the buckets always hold each gradient once. "
    "Their price is overlap, since a large bucket is sent only when its last gradient is there.",
    page="generated/torch.nn.parallel.DistributedDataParallel.html",
)  # fmt: skip
def buckets_of_two_sizes() -> Evidence:
    seen: dict[str, Any] = {}
    for name, sizes in ranks.sizes_of_the_buckets()[0].items():
        seen |= {f"cap {name}: buckets": len(sizes), f"cap {name}: MiB in buckets": round(sum(sizes) / ranks.MIB, 3)}
    return seen


@PAGE.claim(
    "R017",
    "Gradient compression can reduce DDP communication.",
    rule=lambda seen: TRUE if seen["fp16_compress_hook: bytes sent"] < seen["as it is: bytes sent"] else FALSE,
    right="On this version the hook sends as much.",
    page="ddp_comm_hooks.html",
)
def bytes_of_one_step() -> Evidence:
    return {f"{name}: bytes sent": size for name, size in ranks.bytes_sent_in_half_precision()[0].items()}


@PAGE.claim(
    "R021",
    "Under DDP, gradient accumulation should wrap the non-final micro-steps in no_sync(), otherwise every micro-step "
    "communicates.",
    rule=lambda seen: TRUE if seen["4 parts: reductions"] == 4 and seen["4 parts, no_sync: reductions"] == 1
    and seen["same gradient"] else FALSE,
    right="On this version it makes no difference, or another one.",
    page="generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync",
)  # fmt: skip
def reductions_of_one_step() -> Evidence:
    found, _ = ranks.reductions_in_four_parts()
    return {
        "4 parts: reductions": found["each part"],
        "4 parts, no_sync: reductions": found["no_sync"],
        "same gradient": _close(found["each part, gradient"], found["no_sync, gradient"]),
    }


@PAGE.claim(
    "R022",
    "Under DDP, parameters unused by the loss raise an error in the next iteration, and calling ddp.module(x) skips "
    "gradient synchronisation silently.",
    rule=lambda seen: TRUE if seen["first step"] == WORKS and seen["second step"] != WORKS
    and seen["ddp.module(x): the ranks' gradients differ"] else FALSE,
    right="On this version one of the two comes out otherwise.",
    page="generated/torch.nn.parallel.DistributedDataParallel.html",
)  # fmt: skip
def unused_part_and_a_way_around() -> Evidence:
    first, second = ranks.gradient_past_the_wrapper()
    return {
        **ranks.steps_with_an_unused_part()[0],
        "ddp.module(x): the ranks' gradients differ": not _close(first, second),
    }


# --- torchrun --------------------------------------------------------------------------------------------------------

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SCRIPT = "import json, os, sys; open(sys.argv[1] + os.environ['RANK'], 'w').write(json.dumps(dict(os.environ)))"


def be_torchrun(folder: Path) -> None:
    """Run torchrun's own ``main`` on a one-line program that writes down its environment, in two processes."""
    from torch.distributed.run import main

    words = ["--standalone", "--nproc_per_node=2", "--monitor-interval=0.1", "--no-python"]
    main([*words, sys.executable, "-c", SCRIPT, str(folder / "rank")])


@cache
def _environments() -> list[dict[str, str]]:
    with scratch_folder("claim") as folder:
        launch(be_torchrun, 1, folder=folder)  # a process of its own, since torchrun catches signals
        return [json.loads(path.read_text()) for path in sorted(folder.glob("rank*"))]


@PAGE.claim(
    "R019",
    "torchrun --nproc_per_node=N starts single-machine DDP with rank variables in the environment.",
    rule=lambda seen: TRUE if seen["their ranks"] == "0, 1" and not seen["missing variables"] else FALSE,
    right="On this version other processes or variables come.",
    page="elastic/run.html",
)  # fmt: skip
def environment_under_torchrun() -> Evidence:
    found = _environments()
    return {
        "processes, N = 2": len(found),
        "their ranks": ", ".join(env.get("RANK", "?") for env in found),
        "missing variables": ", ".join(name for name in VARIABLES if any(name not in env for env in found)),
        "OMP_NUM_THREADS": found[0].get("OMP_NUM_THREADS", "not set"),
    }


PAGE.claims.sort(key=lambda claim: claim.id)
