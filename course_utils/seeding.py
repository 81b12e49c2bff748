"""Randomness that can be repeated, kept apart by purpose, and put back.

Python, NumPy and torch each own a global generator: a hidden state that every draw moves on. Two habits
keep results repeatable. Seed all of them together and restore them afterwards (`seeded`); and give each
purpose its own generator (`stream`), so that drawing for one never changes what another draws next.
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from course_utils.errors import UsageError

SEED_LIMIT = 2**32  # NumPy refuses more, and torch's CPU generator reads only the low 32 bits of a seed
CUBLAS_WORKSPACE = ":4096:8"  # 8 buffers of 4,096 KiB. Source: PyTorch notes, "Reproducibility"


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's global generators (torch: CPU and every accelerator).

    Raises:
        UsageError: if ``seed`` is not a whole number in 0..2**32-1.
    """
    seed = _checked(seed)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # also CUDA and MPS; where CUDA hasn't started yet, torch keeps the seed for its start


@contextmanager
def seeded(seed: int, deterministic: bool = False) -> Iterator[None]:
    """Seed all global generators for the block, then give each its earlier state back.

    Args:
        seed: whole number in 0..2**32-1.
        deterministic: also use only deterministic algorithms inside the block; see `deterministic`.
    """
    with preserved_rng(), _deterministic() if deterministic else nullcontext():
        seed_everything(seed)
        yield


@contextmanager
def preserved_rng() -> Iterator[None]:
    """Let the block draw what it likes; afterwards all global generators are where they were."""
    state = rng_state()
    try:
        yield
    finally:
        set_rng_state(state)


def rng_state() -> dict[str, Any]:
    """Return the state of all global generators as plain data that ``torch.load(weights_only=True)`` accepts.

    Generators that you made yourself (`stream`) are not in it: save ``generator.get_state()`` for each.
    """
    version, words, gauss_next = random.getstate()
    kind, key, *rest = np.random.get_state(legacy=True)
    state = {
        "python": [version, torch.tensor(words), gauss_next],
        "numpy": [str(kind), torch.from_numpy(key.astype(np.int64)), *rest],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():  # asking earlier would start CUDA, which takes seconds and memory
        state["cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore what `rng_state` returned. States of devices that this machine lacks are ignored."""
    version, words, gauss_next = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss_next))
    kind, key, *rest = state["numpy"]
    np.random.set_state((kind, key.cpu().numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"].cpu())  # cpu: torch.load(map_location="cuda") moved it
    if "cuda" in state and torch.cuda.is_available():
        for index, device_state in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(device_state.cpu(), index)
    elif "cuda" not in state:
        torch.cuda.manual_seed_all(torch.initial_seed())  # what CUDA had been told to start with
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"].cpu())


def derive(seed: int, *purpose: str | int) -> int:
    """Return the seed in 0..2**32-1 that belongs to ``seed`` and ``purpose``, always the same one.

    A hash, not ``seed + 1``: neighbouring seeds and purposes get seeds that have nothing to do with each other.
    """
    if not purpose:
        raise UsageError("A derived seed needs a purpose.", expected="at least one word", fix='derive(seed, "shuffle")')
    words = [part if isinstance(part, str) else operator.index(part) for part in purpose]
    digest = hashlib.sha256(json.dumps([_checked(seed), *words]).encode()).digest()
    return int.from_bytes(digest[:4], "little")


def stream(seed: int, *purpose: str | int, device: str | torch.device = "cpu") -> torch.Generator:
    """Return a new generator for one purpose: ``stream(seed, "shuffle")``, ``stream(seed, "augment", epoch)``.

    Streams of different purposes are independent, and none of them touches the global generators.
    """
    return torch.Generator(device=device).manual_seed(derive(seed, *purpose))


def loader_kwargs(seed: int, *purpose: str | int) -> dict[str, Any]:
    """Return the arguments that make a ``DataLoader`` repeatable: its own generator and `seed_worker`.

    Example:
        ``DataLoader(dataset, shuffle=True, num_workers=2, **loader_kwargs(seed))``
    """
    return {"generator": stream(seed, *(purpose or ("loader",))), "worker_init_fn": seed_worker}


def seed_worker(worker_id: int) -> None:
    """Seed the generators that the dataset owns, differently in each worker and each epoch; a ``worker_init_fn``.

    torch itself seeds the global generators of a worker (Python's, NumPy's, its own) from a base seed, drawn anew
    from the loader's generator at each epoch, and the worker's number. It can't know the generators that a dataset
    keeps: every worker gets a copy in the same state, so all of them repeat the same draws, and so does the next
    epoch. This function seeds those: any attribute of the dataset, or of a dataset inside it (``Subset``,
    ``ConcatDataset``), that is a `torch.Generator`, a `numpy.random.Generator` or a `random.Random`. (torch 2.14 can't
    send a `torch.Generator` to a *spawned* worker; there, keep one of the other two.)

    Raises:
        UsageError: if it is called outside a worker.
    """
    worker = get_worker_info()
    if worker is None:
        raise UsageError(
            "seed_worker seeds a DataLoader worker, and this process is none.",
            fix="DataLoader(..., worker_init_fn=seed_worker)",
        )
    for number, generator in enumerate(_own_generators(worker.dataset)):
        seed = derive(worker.seed % SEED_LIMIT, "dataset", number)  # worker.seed: base seed + worker number
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)
        elif isinstance(generator, random.Random):
            generator.seed(seed)
        else:  # in place, because a transform may hold the same generator
            bits = generator.bit_generator
            bits.state = type(bits)(seed).state


def _own_generators(dataset: object) -> Iterator[torch.Generator | np.random.Generator | random.Random]:
    """Walk a dataset and the datasets in it; yield the generators they keep, each once."""
    waiting, seen = [dataset], set()
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, (torch.Generator, np.random.Generator, random.Random)):
            yield item
        elif isinstance(item, Dataset) or item is dataset:  # any object with __getitem__ can be a dataset
            waiting.extend(getattr(item, "__dict__", {}).values())
        elif isinstance(item, (list, tuple)) and item and isinstance(item[0], Dataset):
            waiting.extend(item)


@contextmanager
def deterministic(warn_only: bool = False) -> Iterator[None]:
    """Use only deterministic algorithms inside the block; afterwards every switch is as it was.

    An operation that has none raises a RuntimeError which names it (with ``warn_only``, it warns). Deterministic
    is not seeded: the same input gives the same bits, and the seed decides the input.

    On CUDA, cuBLAS reads ``CUBLAS_WORKSPACE_CONFIG`` at its first use in the process, so enter the block before it.
    The first block of a process takes a second or two: torch loads the settings of its compiler to switch those too.
    """
    cudnn = torch.backends.cudnn
    algorithms = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    switches = cudnn.deterministic, cudnn.benchmark
    workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    try:
        torch.use_deterministic_algorithms(True, warn_only=warn_only)
        cudnn.deterministic, cudnn.benchmark = True, False  # benchmark: it would pick the algorithm by the clock
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)
        yield
    finally:
        torch.use_deterministic_algorithms(algorithms[0], warn_only=algorithms[1])
        cudnn.deterministic, cudnn.benchmark = switches
        if workspace is None:
            os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
        else:
            os.environ["CUBLAS_WORKSPACE_CONFIG"] = workspace


_deterministic = deterministic  # `seeded` has a parameter of that name


def _checked(seed: int) -> int:
    try:
        number = None if isinstance(seed, bool) else operator.index(seed)
    except TypeError:
        number = None
    if number is None or not 0 <= number < SEED_LIMIT:
        raise UsageError(
            "This is not a seed.", got=seed, expected="a whole number from 0 to 2**32 - 1", fix="for example 0"
        )
    return number
