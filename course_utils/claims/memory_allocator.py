"""Lesson 06, the part about the caching allocator of CUDA. Without a GPU, a model of it stands in."""

from __future__ import annotations

import gc
from collections import defaultdict
from typing import Any
from unittest import mock

import torch

from course_utils.allocator import MIB, CachingAllocator
from course_utils.claims.evidence import attempt
from course_utils.claims.ledger import Evidence, Rule
from course_utils.claims.memory_precision import PAGE
from course_utils.claims.verdicts import CAVEAT, FALSE, NEEDS_CUDA, TRUE
from course_utils.ledger import recording_memory

MANAGEMENT = "notes/cuda.html#memory-management"
SNAPSHOT = "torch_cuda_memory.html"


class Cuda:
    """The allocator of this machine's GPU, with the few words of the model that stands in for it."""

    name = "the GPU"

    def __init__(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()
        self._reserved, self._allocated = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
        self.used_before = self.driver_bytes()

    @property
    def reserved_bytes(self) -> int:
        return torch.cuda.memory_reserved() - self._reserved

    @property
    def allocated_bytes(self) -> int:
        return torch.cuda.memory_allocated() - self._allocated

    @staticmethod
    def driver_bytes() -> int:
        """Bytes in use as nvidia-smi shows them, those of other programs among them."""
        free, total = torch.cuda.mem_get_info()
        return total - free

    def take(self, size_bytes: int) -> torch.Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")

    def give(self, block: torch.Tensor) -> None:
        block.set_()  # its storage goes, whoever still holds the tensor

    def empty_cache(self) -> None:
        torch.cuda.empty_cache()


class Model(CachingAllocator):
    """The model of ``course_utils.allocator``, with 1 GiB."""

    name = "a model of the allocator"

    def __init__(self) -> None:
        super().__init__(1024 * MIB)


def allocator() -> Cuda | Model:
    """Return the GPU's allocator if there is a GPU, else the model."""
    return Cuda() if torch.cuda.is_available() else Model()


def on_gpu(rule: Rule) -> Rule:
    """A verdict about the GPU's allocator is one only where it was measured: what the model does, decides nothing."""
    return lambda seen: rule(seen) if seen["CUDA"] else NEEDS_CUDA


@PAGE.claim(
    "P005",
    "The caching allocator keeps freed GPU blocks for reuse, so nvidia-smi usage does not drop right after tensors are "
    "deleted.",
    rule=on_gpu(lambda seen: TRUE if seen["freed: MiB reserved"] >= 64 > seen["freed: MiB allocated"] else FALSE),
    right="A freed block leaves memory_allocated() at once and stays in memory_reserved(), which is what nvidia-smi "
    "sees, together with the CUDA context.",
    page=MANAGEMENT,
    varies=True,
)
@PAGE.claim(
    "P045",
    "del plus torch.cuda.empty_cache() forces memory to be reclaimed; do not call it often because it has overhead.",
    rule=on_gpu(
        lambda seen: (
            FALSE
            if seen["emptied: MiB reserved"] > 0
            else CAVEAT
            if seen["emptied, one name left: MiB allocated"] > 0
            else TRUE
        )
    ),
    right="It gives back what is free: if another name holds the tensor, del frees nothing and empty_cache() finds "
    "nothing. Each call makes the GPU finish its work, and the next request must ask the driver again.",
    page=MANAGEMENT,
    varies=True,
)
@PAGE.claim(
    "P046",
    "empty_cache only releases free cached memory and does not fix a leak.",
    rule=on_gpu(
        lambda seen: (
            TRUE
            if seen["emptied, one name left: MiB allocated"] == 64 and seen["emptied: MiB reserved"] == 0
            else FALSE
        )
    ),
    right="A leak is a name that still holds its tensor, and such blocks are not free: find the name.",
    page=MANAGEMENT,
    varies=True,
)
@PAGE.claim(
    "P047",
    "empty_cache gives the blocks back to the cache pool and lets the allocator tidy up; call it regularly against "
    "fragmentation.",
    rule=on_gpu(lambda seen: FALSE if seen["emptied: MiB reserved"] < seen["freed: MiB reserved"] else TRUE),
    right="It does the opposite: it takes free segments out of the cache and gives them to the driver. A segment in "
    "which one block is in use stays, so fragmentation stays; against that there is expandable_segments.",
    page=MANAGEMENT,
    varies=True,
)  # fmt: skip
def what_is_freed_and_what_is_given_back() -> Evidence:
    gpu = allocator()
    block = gpu.take(64 * MIB)
    gpu.empty_cache()  # the block has an owner: somebody forgot a name
    held = gpu.allocated_bytes
    gpu.give(block)
    freed = {"freed: MiB allocated": gpu.allocated_bytes / MIB, "freed: MiB reserved": gpu.reserved_bytes / MIB}
    if isinstance(gpu, Cuda):
        freed["freed: MiB more than before, as nvidia-smi counts"] = (gpu.driver_bytes() - gpu.used_before) / MIB
    gpu.empty_cache()
    return {
        "CUDA": isinstance(gpu, Cuda),
        "measured on": gpu.name,
        "emptied, one name left: MiB allocated": held / MIB,
        **freed,
        "emptied: MiB reserved": gpu.reserved_bytes / MIB,
    }


@PAGE.claim(
    "P048",
    "OOM after hundreds of epochs with free memory overall is fragmentation from varying tensor sizes.",
    rule=on_gpu(lambda seen: CAVEAT if seen["MiB that had to be reserved on top"] > 0 else FALSE),
    right="It can be: free blocks that don't lie together serve no large request, and the message then names much "
    "memory as reserved but unallocated. If that number is small, something grows: look for a leak first.",
    page=SNAPSHOT,
    varies=True,
)
def a_large_request_into_many_gaps() -> Evidence:
    gpu = allocator()
    gpu.give(gpu.take(256 * MIB))  # one free segment
    blocks = [gpu.take(16 * MIB) for _ in range(16)]
    for block in blocks[::2]:
        gpu.give(block)  # every other one: 8 gaps
    free, before = gpu.reserved_bytes - gpu.allocated_bytes, gpu.reserved_bytes
    large = gpu.take(64 * MIB)
    grown = gpu.reserved_bytes - before
    for block in [large, *blocks[1::2]]:
        gpu.give(block)
    gpu.empty_cache()
    return {
        "CUDA": isinstance(gpu, Cuda),
        "measured on": gpu.name,
        "MiB free in gaps": free / MIB,
        "MiB asked for": 64,
        "MiB that had to be reserved on top": grown / MIB,
    }


@PAGE.claim(
    "P011",
    "torch.cuda.max_memory_allocated() with reset_peak_memory_stats() measures the peak of one code section better "
    "than nvidia-smi.",
    rule=on_gpu(
        lambda seen: TRUE if seen["peak of the section: MiB"] >= 64 > seen["alive after it: MiB"]
        and seen["peak of a small section afterwards: MiB"] < 64 <= seen["nvidia-smi counts after it: MiB"] else FALSE
    ),
    right="The counter is exact about tensors of this process; nvidia-smi shows what is reserved, of all processes. "
    "Memory that NCCL or other libraries take is in nvidia-smi only.",
    page=MANAGEMENT,
    varies=True,
)  # fmt: skip
def peak_of_a_section() -> Evidence:
    def section(mib: int, device: str) -> None:
        torch.empty(mib * MIB, dtype=torch.uint8, device=device)  # taken and given back

    if not torch.cuda.is_available():
        peaks, after = [], []
        for mib in (64, 1):
            with recording_memory() as memory:
                section(mib, "cpu")
            peaks.append(memory.peak_bytes / MIB)
            after.append(memory.live_bytes / MIB)
        names = ("peak of the section: MiB", "alive after it: MiB", "peak of a small section afterwards: MiB")
        seen = dict(zip(names, (peaks[0], after[0], peaks[1]), strict=True))
        return {"CUDA": False, "measured on": "the course's ledger", **seen}

    def peak(mib: int) -> float:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        section(mib, "cuda")
        return (torch.cuda.max_memory_allocated() - before) / MIB

    gpu = Cuda()
    seen = {"peak of the section: MiB": peak(64), "alive after it: MiB": gpu.allocated_bytes / MIB}
    seen["peak of a small section afterwards: MiB"] = peak(1)
    seen["nvidia-smi counts after it: MiB"] = (gpu.driver_bytes() - gpu.used_before) / MIB
    gpu.empty_cache()
    return {"CUDA": True, "measured on": "the GPU", **seen}


@PAGE.claim(
    "P043",
    "Printing torch.cuda.memory_allocated() each batch distinguishes high usage from a leak (growth).",
    rule=on_gpu(
        lambda seen: TRUE if seen["leak: MiB more in 3 batches"] > 0 == seen["high: MiB more in 3 batches"] else FALSE
    ),
    right="Print it at the same place of each batch, after the step: high use comes back to the same number, a leak "
    "grows.",
    page=MANAGEMENT,
    varies=True,
)  # fmt: skip
def allocated_after_each_batch() -> Evidence:
    def grown(keeps: bool) -> float:
        gpu = allocator()
        kept: list[Any] = []
        after = []
        for _ in range(4):
            blocks = [gpu.take(32 * MIB), gpu.take(MIB)]  # activations, logits
            gpu.give(blocks[0])
            if keeps:
                kept.append(blocks[1])
            else:
                gpu.give(blocks[1])
            after.append(gpu.allocated_bytes)
        for block in kept:
            gpu.give(block)
        gpu.empty_cache()
        return (after[-1] - after[0]) / MIB

    has_cuda = torch.cuda.is_available()
    name = Cuda.name if has_cuda else Model.name
    return {
        "CUDA": has_cuda,
        "measured on": name,
        "high: MiB more in 3 batches": grown(False),
        "leak: MiB more in 3 batches": grown(True),
    }


@PAGE.claim(
    "P049",
    "torch.cuda.memory_summary() gives an exact per-tensor allocation report.",
    rule=lambda seen: FALSE if seen["rows"] > 0 and not seen["a tensor's shape is in it"] else TRUE,
    right="It is a table of totals: bytes allocated, active, requested and reserved, and counts. Single blocks, with "
    "the lines that made them, are in a memory snapshot.",
    page=SNAPSHOT,
)
def rows_of_the_summary() -> Evidence:
    if torch.cuda.is_available():
        held = torch.zeros(1234, 567, device="cuda")
        text = torch.cuda.memory_summary()
        del held
    else:  # the report is text made from counters, whatever they say
        counters: dict[str, int] = defaultdict(int, num_ooms=0, num_alloc_retries=0)
        with (
            mock.patch("torch.cuda.memory.memory_stats", return_value=counters),
            mock.patch("torch.cuda.memory._get_device_index", return_value=0),
        ):
            text = torch.cuda.memory_summary()
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.count("|") > 4]
    names = [row for row in rows if row and "Metric" not in row and not row.startswith("from")]
    return {
        "rows": len(names),
        "the first": ", ".join(names[:4]),
        "a tensor's shape is in it": "1234, 567" in text or "shape" in text.lower(),
        "without a GPU": attempt(torch.cuda.memory_summary) if not torch.cuda.is_available() else "not tried",
    }
