"""Lesson 04: what people say about datasets, loaders and their workers."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from course_utils.claims.data_workers import PAGE
from course_utils.claims.evidence import WORKS, attempt, time_ratio, warnings_of
from course_utils.claims.ledger import Evidence
from course_utils.claims.verdicts import CAVEAT, FALSE, NEEDS_CUDA, OPINION, TRUE
from course_utils.datasets import Sequences, mask_of, pad
from course_utils.scratch import scratch_folder
from course_utils.seeding import seed_everything

__all__ = ["PAGE"]
GLOBALS = ("random", "numpy", "torch")


# --- Items and batches -----------------------------------------------------------------------------------------------


@PAGE.claim(
    "D001",
    "A batch of variable-length sequences can be handled by looping over time steps or masking in forward.",
    rule=lambda seen: TRUE if seen["loop with a mask ends as each sequence alone"] else FALSE,
    right="On this version the masked loop differs from running each sequence alone; pack the batch instead.",
    page="generated/torch.nn.utils.rnn.pack_padded_sequence.html",
)
def loop_over_steps_with_a_mask() -> Evidence:
    sequences, cell = Sequences([2, 5, 3]), nn.GRUCell(2, 4)
    padded, lengths = pad(list(sequences))  # (N, T, D), (N,)
    mask = mask_of(lengths)

    def last(x: Tensor, real: Tensor) -> Tensor:
        state = torch.zeros(len(x), 4)
        for t in range(x.shape[1]):
            state = torch.where(real[:, t, None], cell(x[:, t], state), state)  # a finished one keeps its state
        return state

    alone = torch.cat([last(x[None], torch.ones(1, len(x), dtype=torch.bool)) for x in sequences])
    return {
        "loop with a mask ends as each sequence alone": torch.allclose(last(padded, mask), alone, atol=1e-6),
        "loop without one": torch.allclose(last(padded, torch.ones_like(mask)), alone, atol=1e-6),
    }


@PAGE.claim(
    "D002",
    "Building class_to_idx from sorted(os.listdir(root)) gives one class per folder.",
    rule=lambda seen: FALSE if not seen["folders only: as many classes"] else TRUE
    if seen["with a hidden file: as many classes"] else CAVEAT,
    right="os.listdir also returns files, and a hidden one such as .DS_Store becomes class 0 and moves all others: "
    "keep only the entries that are folders.",
    page="https://docs.pytorch.org/vision/stable/generated/torchvision.datasets.ImageFolder.html",
)  # fmt: skip
def classes_from_a_listing() -> Evidence:
    with scratch_folder("claim") as root:
        for name in ("cat", "dog"):
            (root / name).mkdir()
        clean = {name: k for k, name in enumerate(sorted(os.listdir(root)))}
        (root / ".DS_Store").write_bytes(b"")
        stray = {name: k for k, name in enumerate(sorted(os.listdir(root)))}
    return {
        "folders only: as many classes": len(clean) == 2,
        "with a hidden file: as many classes": len(stray) == 2,
        "number of class 'cat'": f"{clean['cat']}, then {stray['cat']}",
    }


@PAGE.claim(
    "D005",
    "Random augmentation belongs inside Dataset.__getitem__ so that each epoch sees different versions of a sample.",
    rule=lambda seen: FALSE if seen["in __getitem__"] == 1 else TRUE if seen["in the loop"] == 1 else OPINION,
    right="What counts is that the draw is made anew each time: in __getitem__, or in the loop on the whole batch "
    "(which can use a GPU); only a transform that is baked into the stored data shows one version.",
    page="https://docs.pytorch.org/vision/stable/transforms.html",
)
def versions_of_one_image() -> Evidence:
    from torchvision.transforms import v2  # here, since no other claim needs it

    turn, image = v2.RandomRotation(30), torch.rand(1, 64, 64)

    class Fresh(Dataset):
        def __getitem__(self, index: int) -> Tensor:
            return turn(image)

    baked, fresh = turn(image), Fresh()
    versions = {
        "in __getitem__": [fresh[0] for _ in range(10)],
        "in the loop": [turn(image[None]) for _ in range(10)],
        "baked into the data": [baked for _ in range(10)],
    }
    return {where: len({x.numpy().tobytes() for x in seen}) for where, seen in versions.items()}  # of 10 epochs


@PAGE.claim(
    "D006",
    "Fixing the seed also fixes the data-loading order.",
    rule=lambda seen: FALSE if not seen["same order, same program"] else TRUE
    if seen["same order, one draw more before it"] else CAVEAT,
    right="It does as long as nothing else draws from the global generator first: one random layer more, and the "
    "order is another one. A generator of its own, DataLoader(generator=...), fixes the order for good.",
    page="notes/randomness.html#dataloader",
)  # fmt: skip
def order_after_a_seed() -> Evidence:
    def order(draws_before: int, generator: torch.Generator | None = None) -> list[int]:
        torch.manual_seed(0)
        torch.rand(draws_before)
        return [int(x) for x in DataLoader(range(20), shuffle=True, generator=generator)]  # type: ignore[arg-type]

    own = [order(n, torch.Generator().manual_seed(1)) for n in (0, 1)]
    return {
        "same order, same program": order(0) == order(0),
        "same order, one draw more before it": order(0) == order(1),
        "same order, own generator": own[0] == own[1],
    }


class _Pair:
    """Any class with the two methods: no base class."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index


class _NoLength:
    def __getitem__(self, index: int) -> int:
        return index


@PAGE.claim(
    "D007",
    "A map-style Dataset only needs __len__ and __getitem__.",
    rule=lambda seen: TRUE if seen["both, without a base class"] == WORKS else FALSE,
    right="On this version the two methods are not enough.",
    page="data.html#map-style-datasets",
)
def the_two_methods() -> Evidence:
    return {
        "both, without a base class": attempt(lambda: list(DataLoader(_Pair()))),  # type: ignore[arg-type]
        "without __len__": attempt(lambda: list(DataLoader(_NoLength()))),  # type: ignore[arg-type]
        "without __len__, indices given": attempt(lambda: list(DataLoader(_NoLength(), sampler=[2, 0]))),  # type: ignore[arg-type]
    }


@PAGE.claim(
    "D012",
    "Convert every tensor returned by Dataset.__getitem__ to float32.",
    rule=lambda seen: (
        OPINION if seen["class labels as float32"] == seen["token numbers as float32"] == WORKS else FALSE
    ),
    right="Class labels and token numbers must stay whole numbers, int64; images may stay uint8 until the batch is on "
    "its device, a quarter of the bytes.",
    page="generated/torch.nn.CrossEntropyLoss.html",
)
def everything_as_float32() -> Evidence:
    numbers, image = torch.tensor([0, 2]), torch.zeros(1, 28, 28, dtype=torch.uint8)
    return {
        "class labels as float32": attempt(lambda: F.cross_entropy(torch.zeros(2, 3), numbers.float())),
        "token numbers as float32": attempt(lambda: F.embedding(numbers.float(), torch.zeros(3, 4))),
        "class labels as int64": attempt(lambda: F.cross_entropy(torch.zeros(2, 3), numbers)),
        "bytes of a uint8 image, as float32": f"{image.nbytes}, {image.float().nbytes}",
    }


@PAGE.claim(
    "D023",
    "The last batch can be smaller; drop_last=True discards it.",
    rule=lambda seen: TRUE if (seen["sizes"], seen["with drop_last"]) == ("4, 4, 2", "4, 4") else FALSE,
    right="On this version batches come in other sizes.",
    page="data.html#torch.utils.data.DataLoader",
)
def sizes_of_the_batches() -> Evidence:
    def sizes(**options: Any) -> str:
        return ", ".join(str(len(x)) for x in DataLoader(range(10), batch_size=4, **options))  # type: ignore[arg-type]

    return {"sizes": sizes(), "with drop_last": sizes(drop_last=True)}


@PAGE.claim(
    "D028",
    "Check samples for NaN and Inf inside the Dataset.",
    rule=lambda seen: OPINION if seen["found per item"] == seen["found per batch"] else TRUE
    if seen["found per item"] else FALSE,
    right="One NaN spoils its whole batch, so do look, but once, before training, or with one call per batch: inside "
    "__getitem__ the same look is paid for each item in each epoch. There it makes sense where an augmentation may "
    "make one.",
    page="generated/torch.isfinite.html",
)  # fmt: skip
def one_nan_in_the_data() -> Evidence:
    data = TensorDataset(torch.rand(8, 3), torch.rand(8))
    data.tensors[0][5, 1] = torch.nan
    x, y = next(iter(DataLoader(data, batch_size=8)))
    return {
        "loss of the batch": str(F.mse_loss(x.sum(1), y).item()),
        "found per item": any(not item.isfinite().all() for item, _ in data),
        "found per batch": not bool(x.isfinite().all()),
    }


# --- Seeds in one process --------------------------------------------------------------------------------------------


@PAGE.claim(
    "D024",
    "Seed random, numpy, torch and CUDA together to fix randomness.",
    rule=lambda seen: TRUE if all(seen.values()) else CAVEAT if all(seen[name] for name in GLOBALS) else FALSE,
    right="That fixes the global generators. A numpy.random.default_rng() without a seed takes a new one from the "
    "system each time, a torch.Generator has a state of its own, and kernels that are not deterministic need "
    "torch.use_deterministic_algorithms.",
    page="notes/randomness.html",
)
def what_seeding_all_repeats() -> Evidence:
    def draw() -> dict[str, float]:
        seed_everything(0)
        own = np.random.default_rng().random()
        return {
            "random": random.random(),
            "numpy": np.random.rand(),
            "torch": torch.rand(()).item(),
            "default_rng()": own,
        }

    first, second = draw(), draw()
    return {name: first[name] == second[name] for name in first}


@PAGE.claim(
    "D025",
    "torch.manual_seed covers both CPU and GPU generators; manual_seed_all handles all GPUs.",
    rule=lambda seen: (
        TRUE if seen["repeats on the CPU"] and seen["hands the seed to torch.cuda.manual_seed_all"] else FALSE
    ),
    right="On this version torch.manual_seed leaves the GPUs alone.",
    page="generated/torch.manual_seed.html",
)
def what_manual_seed_reaches() -> Evidence:
    draws = []
    for _ in range(2):
        with patch.object(torch.cuda, "manual_seed_all") as seed_gpus:
            torch.manual_seed(7)
            draws.append(torch.rand(()).item())
    return {
        "repeats on the CPU": draws[0] == draws[1],
        "hands the seed to torch.cuda.manual_seed_all": seed_gpus.call_args is not None
        and seed_gpus.call_args.args == (7,),
    }


# What two releases drew after manual_seed(42) and rand(5). Source: github.com/pytorch/pytorch/issues/150538
DRAWN = {
    "2.6.0": [1.6459, 0.4294, 0.0677, 1.3809, 0.7803],
    "2.8.0.dev20250401": [0.5809, 0.0436, 2.0548, 1.9680, 0.3315],
}


@PAGE.claim(
    "D027",
    "Different PyTorch versions can produce different results with the same seed.",
    rule=lambda seen: (
        TRUE if not all(value for name, value in seen.items() if name.startswith("exponential_")) else FALSE
    ),
    right="On this version the draws agree with all the stored ones.",
    page="notes/randomness.html",
)
def draws_of_other_releases() -> Evidence:
    torch.manual_seed(42)
    uniform, exponential = torch.rand(5), torch.empty(5).exponential_(1)
    old = torch.tensor([0.8823, 0.9150, 0.3829, 0.9593, 0.3904])  # the same in both releases
    same = {
        f"exponential_ as {name} drew": torch.allclose(exponential, torch.tensor(x), atol=1e-4)
        for name, x in DRAWN.items()
    }
    return {"rand as both drew": torch.allclose(uniform, old, atol=1e-4), **same}


# --- What needs a GPU ------------------------------------------------------------------------------------------------


def _copy_to_gpu(source: Tensor, **options: Any) -> Callable[[], None]:
    def copy() -> None:
        source.to("cuda", **options)
        torch.cuda.synchronize()

    return copy


@PAGE.claim(
    "D004",
    "pin_memory=True speeds up host-to-device copies through page-locked memory.",
    rule=lambda seen: (
        NEEDS_CUDA if not seen["CUDA"] else TRUE if seen["times faster from pinned memory"] > 1.1 else FALSE
    ),
    right="It is about copies to an accelerator: without one, PyTorch warns and pins nothing.",
    page="data.html#memory-pinning",
    varies=True,
)
def copy_from_pinned_memory() -> Evidence:
    if not torch.cuda.is_available():
        loader = DataLoader(TensorDataset(torch.zeros(4)), pin_memory=True)
        said = warnings_of(lambda: next(iter(loader)))
        return {"CUDA": False, "batch is pinned": next(iter(loader))[0].is_pinned(), "warning": said}
    usual = torch.zeros(2**26, dtype=torch.uint8)
    ratio = time_ratio(_copy_to_gpu(usual), _copy_to_gpu(usual.pin_memory()))
    return {"CUDA": True, "times faster from pinned memory": ratio}


@PAGE.claim(
    "D019",
    "pin_memory brings 5 to 15 percent and costs almost nothing, so it should be on by default.",
    rule=lambda seen: NEEDS_CUDA if not seen["CUDA"] else TRUE if 1.05 <= seen["times faster per epoch"] <= 1.15
    else CAVEAT if seen["times faster per epoch"] > 1.15 else FALSE,
    right="The gain is that of the copies: nothing without an accelerator, and with one as much as the copies weigh "
    "against loading and computing. Pinning itself copies each batch once more. Measure your own loop.",
    page="data.html#memory-pinning",
    varies=True,
)  # fmt: skip
def epoch_with_pinned_batches() -> Evidence:
    data = TensorDataset(torch.rand(256, 3, 64, 64))
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def epoch(pin: bool) -> Callable[[], None]:
        def run() -> None:
            for (x,) in DataLoader(data, batch_size=64, pin_memory=pin):
                x.to(device, non_blocking=True).square().mean()
            if device == "cuda":
                torch.cuda.synchronize()

        return run

    ratio = time_ratio(epoch(False), epoch(True), repeats=7)
    return {"CUDA": device == "cuda", "times faster per epoch": ratio}


@PAGE.claim(
    "D020",
    "Combine pin_memory with non_blocking=True in .to() to overlap transfer and compute.",
    rule=lambda seen: NEEDS_CUDA if not seen["CUDA"] else TRUE if seen["pinned: .to() waits, share of the copy"] < 0.5
    else FALSE,
    right="Both are needed, and a GPU: .to() then returns while the copy still runs; on a CPU it does nothing at all.",
    page="https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
    varies=True,
)  # fmt: skip
def return_before_the_copy_ends() -> Evidence:
    x = torch.zeros(2**26, dtype=torch.uint8)
    if not torch.cuda.is_available():
        return {"CUDA": False, "x.to('cpu', non_blocking=True) is x": x.to("cpu", non_blocking=True) is x}

    def waited(source: Tensor) -> float:
        _copy_to_gpu(source)()
        start = time.perf_counter()
        source.to("cuda", non_blocking=True)
        returned = time.perf_counter()
        torch.cuda.synchronize()
        return (returned - start) / (time.perf_counter() - start)

    return {
        "CUDA": True,
        "pinned: .to() waits, share of the copy": waited(x.pin_memory()),
        "not pinned: .to() waits, share of the copy": waited(x),
    }


@PAGE.claim(
    "D026",
    "For ordinary training keep cudnn.benchmark at True.",
    rule=lambda seen: NEEDS_CUDA if not seen["CUDA"] else OPINION if seen["times faster, one shape"] > 1.02 else FALSE,
    right="The default is False. True lets cuDNN try several algorithms for each new shape: it can pay for "
    "convolutions of one shape, costs time where shapes change, and lets the clock pick the algorithm, so that runs "
    "may differ.",
    page="notes/randomness.html#cuda-convolution-benchmarking",
    varies=True,
)
def convolutions_picked_by_the_clock() -> Evidence:
    cudnn = torch.backends.cudnn
    if not torch.cuda.is_available():
        return {"CUDA": False, "benchmark as it is set": cudnn.benchmark}
    conv = nn.Conv2d(32, 32, 3).cuda()

    def run(benchmark: bool, sizes: list[int]) -> Callable[[], None]:
        def work() -> None:
            with cudnn.flags(enabled=True, benchmark=benchmark, deterministic=False, allow_tf32=True):
                for size in sizes:
                    conv(torch.zeros(16, 32, size, size, device="cuda"))
                torch.cuda.synchronize()

        return work

    fixed, fresh = [64] * 20, iter(range(24, 4000))
    start = time.perf_counter()
    run(True, [next(fresh) for _ in range(20)])()
    changing = time.perf_counter() - start
    return {
        "CUDA": True,
        "times faster, one shape": time_ratio(run(False, fixed), run(True, fixed)),
        "seconds for 20 new shapes": changing,
    }


PAGE.claims.sort(key=lambda claim: claim.id)  # two modules, one list
