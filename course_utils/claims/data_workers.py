"""Lesson 04, the part about workers: what they draw, what they cost, what they bring.

Workers are started by few measurements, with two of them at most, and their results are shared between claims.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from course_utils.claims.evidence import warnings_of
from course_utils.claims.ledger import Evidence, Page
from course_utils.claims.verdicts import CAVEAT, FALSE, TRUE
from course_utils.datasets import Costly
from course_utils.scratch import scratch_folder
from course_utils.seeding import seed_everything
from course_utils.workers import ending_workers, start_methods, throughput

PAGE = Page("data")
GLOBALS = ("random", "numpy", "torch")
METHOD = start_methods("fork", "spawn")[0]  # the quickest that this platform has
GAIN = 1.3  # times faster: more than the noise of a busy machine


# --- What workers draw -----------------------------------------------------------------------------------------------


class Witness(Dataset):
    """Each item tells who made it: the process, the worker's seed, and a draw from each generator."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return 2  # with two workers and batches of one: one item each

    def __getitem__(self, index: int) -> dict[str, Any]:
        worker = get_worker_info()
        return {
            "process": os.getpid(),
            "seed": worker.seed if worker else -1,
            "random": random.random(),
            "numpy": float(np.random.rand()),
            "torch": torch.rand((), dtype=torch.float64).item(),
            "own generator": float(self.rng.random()),
            "own MiB": psutil.Process().memory_full_info().uss / 2**20,
        }


def first_of(batch: list[Any]) -> Any:
    return batch[0]


def same_numpy_seed(worker_id: int) -> None:
    """A ``worker_init_fn`` as one often sees it: fixed, another one for each worker."""
    np.random.seed(1234 + worker_id)


@cache
def witnessed(run: int, seed: int = 0, persistent: bool = False, init: Any = None) -> list[list[dict[str, Any]]]:
    """Return ``[epoch][worker] -> item`` for two epochs of a program that seeds all global generators, then loads.

    Args:
        run: another number starts the same program again.
        seed: of the global generators; with -1, the system draws torch's.
        persistent: keep the workers between the epochs.
        init: the ``worker_init_fn``.
    """
    seed_everything(max(seed, 0))
    if seed < 0:
        torch.seed()
    loader = DataLoader(
        Witness(), num_workers=2, multiprocessing_context=METHOD, persistent_workers=persistent, worker_init_fn=init,
        collate_fn=first_of,
    )  # fmt: skip
    with ending_workers(loader) as epoch:
        return [list(epoch) for _ in range(2)]


def _drawn(epochs: list[list[dict[str, Any]]], what: str) -> list[list[float]]:
    return [[item[what] for item in epoch] for epoch in epochs]


def _differ(values: list[Any]) -> bool:
    return len(set(values)) == len(values)


@PAGE.claim(
    "D008",
    "Do decoding, augmentation, normalisation and tensor conversion in __getitem__ because it runs in parallel in "
    "worker processes.",
    rule=lambda seen: TRUE if seen["by default: in another process"] else CAVEAT
    if seen["num_workers=2: in other processes"] else FALSE,
    right="It runs in workers only with num_workers > 0, and the default is 0. Then it is a good place for what is "
    "costly for each item; what is the same in each epoch can be done once, and a whole batch is normalised quicker "
    "in one call.",
    page="data.html#single-and-multi-process-data-loading",
)  # fmt: skip
@PAGE.claim(
    "D013",
    "num_workers=0 (the default) loads data in the main process; larger values start subprocesses.",
    rule=lambda seen: TRUE if seen["num_workers=2: in other processes"] and not seen["by default: in another process"]
    else FALSE,
    right="On this version the default loads elsewhere.",
    page="data.html#single-and-multi-process-data-loading",
)  # fmt: skip
def who_reads_the_items() -> Evidence:
    (alone,) = DataLoader(Witness(), collate_fn=first_of, sampler=[0])
    pair = witnessed(0)[0]
    return {
        "by default: in another process": alone["process"] != os.getpid(),
        "num_workers=2: in other processes": all(item["process"] != os.getpid() for item in pair),
        "num_workers=2: processes": len({item["process"] for item in pair}),
    }


@PAGE.claim(
    "D011",
    "Seeding Python, NumPy and PyTorch in the main process is enough for DataLoader augmentation.",
    rule=lambda seen: TRUE if not any(seen.values()) else CAVEAT
    if not any(seen[f"workers repeat each other: {name}"] or seen[f"another run differs: {name}"] for name in GLOBALS)
    else FALSE,
    right="Since release 1.9 it is enough for the global generators: torch seeds all three in each worker. A "
    "generator that the dataset keeps is copied, so every worker draws the same numbers from it: seed that one in "
    "worker_init_fn.",
    page="notes/randomness.html#dataloader",
)  # fmt: skip
def seeded_in_the_main_process_only() -> Evidence:
    first, again = witnessed(0), witnessed(1)
    seen = {}
    for name in (*GLOBALS, "own generator"):
        values = _drawn(first, name)
        seen[f"workers repeat each other: {name}"] = not all(map(_differ, values))
        seen[f"another run differs: {name}"] = values != _drawn(again, name)
    return seen


@PAGE.claim(
    "D016",
    "Worker random seeds differ by default, which makes augmentation irreproducible from run to run.",
    rule=lambda seen: (
        TRUE if seen["seeds differ between workers"] and not seen["the same seeds in another run"] else FALSE
    ),
    right="They differ, and they come back: a worker's seed is a base seed, drawn from the main process's generator, "
    "plus the worker's number. Seed that generator, and each run has the same seeds.",
    page="data.html#randomness-in-multi-process-data-loading",
)
def seeds_of_the_workers() -> Evidence:
    first, again, unseeded = (_drawn(epochs, "seed") for epochs in (witnessed(0), witnessed(1), witnessed(0, seed=-1)))
    return {
        "seeds differ between workers": all(map(_differ, first)),
        "second seed - first seed": int(first[0][1] - first[0][0]),
        "the same seeds in another run": first == again,
        "the same seeds without torch.manual_seed": first == unseeded,
    }


@PAGE.claim(
    "D017",
    "Set worker_init_fn with a fixed seed per worker to make augmentation reproducible.",
    rule=lambda seen: FALSE if not seen["fixed seeds: repeats in another run"] else CAVEAT
    if seen["fixed seeds: second epoch repeats the first"] else TRUE,
    right="Reproducible it is, but workers start anew in each epoch, so a fixed seed shows the same augmentation in "
    "all of them. The global generators need nothing but torch.manual_seed; for others derive the seed from "
    "torch.initial_seed().",
    page="notes/randomness.html#dataloader",
)  # fmt: skip
def fixed_seed_in_each_worker() -> Evidence:
    fixed = [_drawn(witnessed(run, init=same_numpy_seed), "numpy") for run in (0, 1)]
    usual = [_drawn(witnessed(run), "numpy") for run in (0, 1)]
    return {
        "fixed seeds: repeats in another run": fixed[0] == fixed[1],
        "fixed seeds: second epoch repeats the first": fixed[0][0] == fixed[0][1],
        "no worker_init_fn: repeats in another run": usual[0] == usual[1],
        "no worker_init_fn: second epoch repeats the first": usual[0][0] == usual[0][1],
    }


@PAGE.claim(
    "D018",
    "A NumPy Generator object stored in the dataset yields the same numbers in every worker and repeats them every "
    "epoch.",
    rule=lambda seen: FALSE if not (seen["workers draw the same"] and seen["epochs repeat"]) else TRUE
    if seen["epochs repeat with persistent_workers"] else CAVEAT,
    right="Every worker does get the same numbers; each epoch repeats them only because it starts new workers: with "
    "persistent_workers=True the second epoch goes on where the first ended.",
    page="data.html#randomness-in-multi-process-data-loading",
)  # fmt: skip
def generator_kept_by_the_dataset() -> Evidence:
    usual = _drawn(witnessed(0), "own generator")
    kept = _drawn(witnessed(0, persistent=True), "own generator")
    return {
        "workers draw the same": all(epoch[0] == epoch[1] for epoch in usual),
        "epochs repeat": usual[0] == usual[1],
        "epochs repeat with persistent_workers": kept[0] == kept[1],
    }


@PAGE.claim(
    "D022",
    "Avoid heavy preprocessing in __getitem__; move it into transforms.",
    rule=lambda seen: FALSE if seen["a transform is called by"] == "__getitem__" else TRUE,
    right="A transform is called by __getitem__, in the same process and at the same time, so nothing is saved. What "
    "is heavy and always the same is done once, before training; what is heavy and random goes to workers or to the "
    "GPU.",
    page="https://docs.pytorch.org/vision/stable/generated/torchvision.datasets.ImageFolder.html",
)
def who_calls_a_transform() -> Evidence:
    from torchvision.datasets import FakeData  # here, since a spawned worker imports this module

    seen = []

    def transform(image: Any) -> Any:
        seen.append((sys._getframe(1).f_code.co_name, os.getpid()))
        return image

    FakeData(size=1, image_size=(1, 8, 8), transform=transform)[0]  # one of torchvision's datasets
    caller, process = seen[0]
    return {"a transform is called by": caller, "in this process": process == os.getpid()}


# --- What workers cost and bring -------------------------------------------------------------------------------------


class RandomReads(Dataset):
    """Items of 1 MiB, float32 (512, 512), each a copy of another place in a file."""

    def __init__(self, path: str, length: int) -> None:
        self.path, self.length = path, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        file = np.memmap(self.path, dtype=np.float32, mode="r", shape=(self.length, 512, 512))
        return torch.from_numpy(np.array(file[(index * 7) % self.length]))


@cache
def gain_of_two_workers() -> dict[str, float]:
    """Return how many times faster two workers load than none, for four kinds of items."""
    with scratch_folder("claim") as folder:
        path = folder / "items.bin"
        np.zeros((32, 512, 512), np.float32).tofile(path)
        kinds = {
            "times faster, a row that is there": Costly(1000),
            "times faster, 2 ms of waiting": Costly(64, 2.0, waiting=True),
            "times faster, 2 ms of calculation": Costly(64, 2.0),
            "times faster, 1 MiB read at random": RandomReads(str(path), 32),
        }
        gains = {}
        for name, dataset in kinds.items():
            none, two = throughput(dataset, (0, 2), batch_size=8, method=METHOD)
            gains[name] = two.items_per_s / none.items_per_s
    return gains


def _gains(seen: Evidence) -> list[float]:
    return [value for name, value in seen.items() if name.startswith("times faster")]  # type: ignore[misc]


def _all_gain(seen: Evidence) -> str:
    return TRUE if min(_gains(seen)) > GAIN else CAVEAT if max(_gains(seen)) > GAIN else FALSE


@PAGE.claim(
    "D003",
    "num_workers of 4 to 8 clearly improves throughput on an ordinary machine, and too many workers hurt.",
    rule=_all_gain,
    right="No number is good everywhere. Items that wait gain with each worker, items that calculate up to the number "
    "of cores, and cheap items lose with the first worker already. PyTorch warns above the cores that it may use. "
    "Measure.",
    page="data.html#torch.utils.data.DataLoader",
    varies=True,
)
@PAGE.claim(
    "D015",
    "More workers is not always faster; each costs memory and IPC.",
    rule=lambda seen: TRUE if min(_gains(seen)) < 1 and seen["MiB of a worker's own"] > 1 else FALSE,
    right="On this machine two workers were never slower than none.",
    page="data.html#single-and-multi-process-data-loading",
    varies=True,
)
@PAGE.claim(
    "D021",
    "Raising num_workers above 0 often multiplies throughput.",
    rule=_all_gain,
    right="It does where an item costs milliseconds: two workers come near twofold. Where items are cheap, sending "
    "them costs more than making them, and throughput falls.",
    page="data.html#single-and-multi-process-data-loading",
    varies=True,
)  # fmt: skip
def two_workers_or_none() -> Evidence:
    return {
        **gain_of_two_workers(),
        "MiB of a worker's own": witnessed(0)[0][0]["own MiB"],
        "PyTorch warns of 8 workers here": warnings_of(lambda: DataLoader(range(9), num_workers=8)) != "none",  # type: ignore[arg-type]
    }


@PAGE.claim(
    "D010",
    "Overly complex __getitem__ work with large random reads can make multi-process overhead slower than a single "
    "process.",
    rule=lambda seen: (
        FALSE
        if seen["times faster, 1 MiB read at random"] > 1
        else CAVEAT
        if seen["times faster, 2 ms of calculation"] > seen["times faster, 1 MiB read at random"]
        else TRUE
    ),
    right="Large items can, since each is copied to the main process, and cheap items do; complex work is what "
    "workers gain from. The overhead is per byte and per batch, whatever the work.",
    page="data.html#single-and-multi-process-data-loading",
    varies=True,
)
def where_two_workers_lose() -> Evidence:
    return {name: gain for name, gain in gain_of_two_workers().items() if "waiting" not in name}


class Waits(Dataset):
    """Items that wait for 3 ms, as for a disk or a network; each is the CPU time that this took, in seconds."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> float:
        start = time.process_time()
        time.sleep(0.003)
        return time.process_time() - start


@PAGE.claim(
    "D009",
    "If the n workers do not saturate the CPU, the bottleneck is the preprocessing logic and adding workers does not "
    "help.",
    rule=lambda seen: TRUE if seen["two workers against one, times faster"] < GAIN else FALSE,
    right="A worker that waits for a disk or a network leaves its core idle too, and there more workers help most, "
    "even more workers than cores.",
    page="data.html#single-and-multi-process-data-loading",
    varies=True,
)
def workers_that_wait() -> Evidence:
    busy = sum(Waits()[k] for k in range(10)) / (10 * 0.003)
    one, two = throughput(Waits(), (1, 2), batch_size=4, method=METHOD)
    return {"share of a core in use": busy, "two workers against one, times faster": two.items_per_s / one.items_per_s}


class _Asked(Sampler):
    """Indices in order; counts how many were asked for."""

    def __init__(self, length: int) -> None:
        self.length, self.count = length, 0

    def __iter__(self) -> Iterator[int]:
        for index in range(self.length):
            self.count += 1
            yield index


@PAGE.claim(
    "D029",
    "DataLoader workers prefetch batches ahead of the training loop.",
    rule=lambda seen: TRUE if seen["two workers: batches asked for"] > seen["no workers: batches asked for"] else FALSE,
    right="On this version workers don't get ahead of the loop.",
    page="data.html#torch.utils.data.DataLoader",
)
def batches_asked_for_when_the_first_is_there() -> Evidence:
    seen = {}
    for name, options in (
        ("no workers", {}),
        ("two workers", {"num_workers": 2, "multiprocessing_context": METHOD}),
    ):
        sampler = _Asked(20)
        with ending_workers(DataLoader(range(20), sampler=sampler, **options)) as batches:  # type: ignore[arg-type]
            next(iter(batches))
        seen[f"{name}: batches asked for"] = sampler.count
    return seen


# What a loader with workers does, in short: start a process, and wait for it. Each time the file is read leaves a mark.
SCRIPT = """
import multiprocessing, sys
open(sys.argv[2], "a").write("x")
child = multiprocessing.get_context(sys.argv[1]).Process(target=print)
child.start()
child.join()
"""


@PAGE.claim(
    "D014",
    'On Windows num_workers>0 requires an if __name__=="__main__" guard; otherwise processes spawn recursively '
    "without end. On Linux this does not exist.",
    rule=lambda seen: FALSE if seen["spawn: ended by itself"] else TRUE,
    right="The guard is needed wherever workers are spawned or forked from a server, which is the default on Linux "
    "too from Python 3.14. Without it nothing recurses: the child, which reads the script again, stops with a "
    "RuntimeError.",
    page="https://docs.python.org/3/library/multiprocessing.html#the-spawn-and-forkserver-start-methods",
)
def script_without_a_guard() -> Evidence:
    seen: dict[str, Any] = {}
    for method in start_methods("fork", "spawn"):
        with scratch_folder("claim") as folder:
            script, marks = folder / "script.py", Path(folder) / "marks.txt"
            script.write_text(SCRIPT)
            words = [sys.executable, str(script), method, str(marks)]
            try:
                said = subprocess.run(words, capture_output=True, text=True, timeout=30).stderr
                ended = True
            except subprocess.TimeoutExpired:
                said, ended = "", False
            seen[f"{method}: ended by itself"] = ended
            seen[f"{method}: times the script ran"] = len(marks.read_text())
            errors = [line.strip() for line in said.splitlines() if line.startswith("RuntimeError")]
            about = "bootstrapping phase" if "bootstrapping phase" in said else ""
            seen[f"{method}: error"] = " ".join([*errors, about]).strip() or "none"
    return seen
