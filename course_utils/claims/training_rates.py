"""Lesson 05, the part about schedules and about seeds: who steps when, and what repeats."""

from __future__ import annotations

import inspect
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    StepLR,
)

from course_utils.claims.data import what_manual_seed_reaches
from course_utils.claims.evidence import WORKS, attempt, time_ratio
from course_utils.claims.ledger import Evidence
from course_utils.claims.training_gradients import PAGE, flat, problem
from course_utils.claims.verdicts import CAVEAT, FALSE, NEEDS_CUDA, OPINION, OUTDATED, TRUE


def _optimizer(lr: float = 0.1) -> Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)


def _rates(make: Callable[[Optimizer], Any], calls: int, lr: float = 0.1) -> list[float]:
    """Return the learning rate at the start and after each of so many calls of ``scheduler.step()``."""
    optimizer = _optimizer(lr)
    scheduler = make(optimizer)
    rates = [optimizer.param_groups[0]["lr"]]
    for _ in range(calls):
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


# --- Schedules -------------------------------------------------------------------------------------------------------


def _cosine_rule(seen: Evidence) -> str:
    falls = seen["falls at each of the first 50 calls"] and seen["rate after 50 calls"] < 0.001
    return FALSE if not falls else CAVEAT if seen["rate after 100 calls"] > 0.001 else TRUE


@PAGE.claim(
    "L011",
    "CosineAnnealingLR(optimizer, T_max=50) keeps the rate high at first and then lowers it smoothly along a cosine.",
    rule=_cosine_rule,
    right="For 50 calls of step(), whatever a call means in your loop. Called once per batch it is at 0 after 50 "
    "batches, then it climbs again, back to its start after 100: T_max must count the calls that you make.",
    page="generated/torch.optim.lr_scheduler.CosineAnnealingLR.html",
)
@PAGE.claim(
    "L039",
    "Cosine annealing falls smoothly from the initial rate to near zero; use CosineAnnealingLR.",
    rule=_cosine_rule,
    right="It falls to eta_min, which is 0 unless you say otherwise, over T_max calls of step(); with more calls it "
    "rises again.",
    page="generated/torch.optim.lr_scheduler.CosineAnnealingLR.html",
)
def cosine_for_a_hundred_calls() -> Evidence:
    rates = _rates(lambda optimizer: CosineAnnealingLR(optimizer, T_max=50), 100)
    return {
        "falls at each of the first 50 calls": all(rates[k + 1] < rates[k] for k in range(50)),
        "rate after 10 calls": round(rates[10], 4),
        "rate after 50 calls": round(rates[50], 4),
        "rate after 100 calls": round(rates[100], 4),
    }


@PAGE.claim(
    "L012",
    "A learning-rate scheduler must be stepped at the end of every epoch.",
    rule=lambda seen: FALSE if not seen["StepLR(2), once per epoch: falls after epoch 2"] else CAVEAT
    if seen["OneCycleLR, once per epoch: share of the highest rate reached"] < 0.5 else TRUE,
    right="A scheduler counts calls and knows no epochs. OneCycleLR and a warm-up count steps: called once per epoch "
    "they never leave the start of their curve. Call it as often as its lengths were meant.",
    page="optim.html#how-to-adjust-learning-rate",
)  # fmt: skip
def once_per_epoch() -> Evidence:
    stairs = _rates(lambda optimizer: StepLR(optimizer, step_size=2), 2)
    cycle = _rates(lambda optimizer: OneCycleLR(optimizer, max_lr=0.1, epochs=4, steps_per_epoch=25), 4)
    return {
        "StepLR(2), once per epoch: falls after epoch 2": stairs[1] == stairs[0] and stairs[2] < stairs[1],
        "OneCycleLR, once per epoch: calls made": len(cycle) - 1,
        "OneCycleLR: calls that it was made for": 4 * 25,
        "OneCycleLR, once per epoch: share of the highest rate reached": round(max(cycle) / 0.1, 3),
    }


@PAGE.claim(
    "L013",
    "ReduceLROnPlateau lowers the learning rate automatically from the validation loss.",
    rule=lambda seen: TRUE if seen["12 equal losses: rate"] < 0.1 and seen["12 falling losses: rate"] == 0.1 else FALSE,
    right="On this version it doesn't look at the number it is given.",
    page="generated/torch.optim.lr_scheduler.ReduceLROnPlateau.html",
)
@PAGE.claim(
    "L043",
    "ReduceLROnPlateau is called differently from other schedulers.",
    rule=lambda seen: TRUE if seen["step() without a number"] != WORKS and seen["StepLR: step()"] == WORKS else FALSE,
    right="On this version step() is called in the same way.",
    page="generated/torch.optim.lr_scheduler.ReduceLROnPlateau.html",
)
def steps_of_a_plateau() -> Evidence:
    def rate_after(losses: list[float]) -> float:
        optimizer = _optimizer()
        plateau = ReduceLROnPlateau(optimizer)
        for loss in losses:
            plateau.step(loss)
        return optimizer.param_groups[0]["lr"]

    return {
        "11 equal losses: rate": rate_after([1.0] * 11),
        "12 equal losses: rate": round(rate_after([1.0] * 12), 4),
        "12 falling losses: rate": rate_after([1.0 / (k + 1) for k in range(12)]),
        "step() without a number": attempt(lambda: ReduceLROnPlateau(_optimizer()).step()),  # type: ignore[call-arg]
        "StepLR: step()": attempt(lambda: StepLR(_optimizer(), 1).step()),
    }


@PAGE.claim(
    "L040",
    "CosineAnnealingWarmRestarts periodically resets the learning rate to its initial value.",
    rule=lambda seen: TRUE if seen["calls after which the rate is the initial one"] == "10, 20, 30" else FALSE,
    right="On this version it doesn't come back every T_0 calls.",
    page="generated/torch.optim.lr_scheduler.CosineAnnealingWarmRestarts.html",
)
def restarts_every_ten_calls() -> Evidence:
    rates = _rates(lambda optimizer: CosineAnnealingWarmRestarts(optimizer, T_0=10), 30)
    longer = _rates(lambda optimizer: CosineAnnealingWarmRestarts(optimizer, T_0=10, T_mult=2), 30)

    def restarts(rates: list[float]) -> str:
        return ", ".join(str(k) for k in range(1, 31) if rates[k] == rates[0])

    return {"calls after which the rate is the initial one": restarts(rates), "with T_mult=2": restarts(longer)}


@PAGE.claim(
    "L041",
    "Warmup raises the learning rate linearly over the first hundreds to thousands of steps; the original Transformer "
    "recipe uses it.",
    rule=lambda seen: TRUE if seen["Transformer's rule: equal steps up"] and 100 <= seen["highest at step"] < 10_000
    else FALSE,
    right="The recipe rises otherwise.",
    page="https://arxiv.org/abs/1706.03762",
)  # fmt: skip
def warm_up_of_the_transformer() -> Evidence:
    def rate(step: int) -> float:  # "Attention Is All You Need", section 5.3, with d_model 512 and 4,000 steps
        return 512**-0.5 * min((step + 1) ** -0.5, (step + 1) * 4000**-1.5)

    rates = torch.tensor(_rates(lambda optimizer: LambdaLR(optimizer, rate), 6000, lr=1.0), dtype=torch.float64)
    rises = rates[1:4000] - rates[:3999]
    default = inspect.signature(LinearLR).parameters["total_iters"].default
    return {
        "Transformer's rule: equal steps up": torch.allclose(rises, rises[:1].expand(3999), rtol=1e-6),
        "highest at step": int(rates.argmax()) + 1,
        "steps of LinearLR unless you say otherwise": default,
    }


@PAGE.claim(
    "L042",
    "Since PyTorch 1.1 schedulers are called at another loop level (epoch or batch) than before.",
    rule=lambda seen: FALSE if seen["the warning speaks of the order"] and not seen["of epochs or batches"] else TRUE,
    right="What changed in 1.1 is the order: optimizer.step() first, then scheduler.step(). Otherwise the first rate "
    "is skipped, and PyTorch warns. Which loop it belongs to is your choice, before and after.",
    page="optim.html#how-to-adjust-learning-rate",
)
def scheduler_before_the_optimizer() -> Evidence:
    optimizer = _optimizer()
    scheduler = StepLR(optimizer, 1)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        scheduler.step()
    said = " ".join(str(entry.message) for entry in seen)
    return {
        "scheduler first: PyTorch warns": bool(seen),
        "the warning speaks of the order": "1.1" in said and "opposite order" in said,
        "of epochs or batches": "epoch" in said or "batch" in said,
    }


# --- What repeats ----------------------------------------------------------------------------------------------------


def _trained(seed: int | None) -> Tensor:
    """Train a network with dropout for a few steps; with None the seed comes from the system."""
    x, y, _ = problem()
    if seed is None:
        torch.seed()
    else:
        torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return flat(model.parameters())


def _sums_differ_on_cuda() -> bool:
    """Add the same million numbers into ten sums, five times; tell whether some bits differ."""
    x = torch.rand(10**6, device="cuda")
    index = torch.arange(10**6, device="cuda") % 10
    sums = [torch.zeros(10, device="cuda").index_add(0, index, x) for _ in range(5)]
    return not all(torch.equal(sums[0], other) for other in sums)


PAGE.claim(
    "L018",
    "torch.cuda.manual_seed_all(seed) is needed in addition to torch.manual_seed(seed).",
    rule=lambda seen: OUTDATED if seen["hands the seed to torch.cuda.manual_seed_all"] else TRUE,
    right="torch.manual_seed hands the seed to all GPUs itself, and keeps it for those that start later. It did not "
    "up to release 0.1.12, of 2017.",
    page="generated/torch.manual_seed.html",
)(what_manual_seed_reaches)


@PAGE.claim(
    "L017",
    "There are at least four random sources: PyTorch, Python random, NumPy and CUDA non-determinism.",
    rule=lambda seen: FALSE if seen["torch.manual_seed repeats random"] or seen["torch.manual_seed repeats numpy"]
    else NEEDS_CUDA if not seen["CUDA"] else TRUE if seen["CUDA: sums in another order differ"] else CAVEAT,
    right="The first three are separate, as measured here; the fourth takes a GPU. It is no generator and has no "
    "seed: only torch.use_deterministic_algorithms helps. Generators of your own and hash() of text come on top.",
    page="notes/randomness.html",
)  # fmt: skip
def sources_that_torch_does_not_seed() -> Evidence:
    draws = []
    for _ in range(2):
        torch.manual_seed(0)
        draws.append((torch.rand(()).item(), random.random(), float(np.random.rand())))
    torch_same, random_same, numpy_same = (a == b for a, b in zip(*draws, strict=True))
    has_cuda = torch.cuda.is_available()
    return {
        "torch.manual_seed repeats torch": torch_same,
        "torch.manual_seed repeats random": random_same,
        "torch.manual_seed repeats numpy": numpy_same,
        "CUDA": has_cuda,
        "CUDA: sums in another order differ": has_cuda and _sums_differ_on_cuda(),
    }


@PAGE.claim(
    "L019",
    "Set cudnn.deterministic=True and cudnn.benchmark=False for reproducibility.",
    rule=lambda seen: TRUE if all(seen.values()) else CAVEAT,
    right="The two switches are about cuDNN's convolutions alone. Seeds come first, and "
    "torch.use_deterministic_algorithms(True) covers the other operations: it raises where there is no deterministic "
    "one.",
    page="notes/randomness.html",
)
def the_two_switches_alone() -> Evidence:
    torch.use_deterministic_algorithms(False)  # the usual setting; the ledger puts back what was set
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        return {
            "two runs agree": torch.equal(_trained(None), _trained(None)),
            "other operations are held to it": torch.are_deterministic_algorithms_enabled(),
        }


@PAGE.claim(
    "L020",
    "Do not aim for bit-for-bit reproducibility because CUDA atomics are unordered; agreement within a small range is "
    "enough.",
    rule=lambda seen: OPINION if seen["two seeded runs on the CPU: every bit agrees"] else TRUE,
    right="Every bit can be had: on a CPU with the same number of threads, on a GPU with "
    "torch.use_deterministic_algorithms, each with one release and machine. Whether it is worth the time is your "
    "choice: it tells a bug from noise.",
    page="notes/randomness.html",
)
@PAGE.claim(
    "L028",
    "Two runs of the same code differ because floating-point addition is not associative and GPU order varies.",
    rule=lambda seen: FALSE if seen["(a + b) + c equals a + (b + c)"] else TRUE
    if not seen["two seeded runs on the CPU: every bit agrees"] else CAVEAT,
    right="That is what remains on a GPU once the seeds are set. Without seeds runs differ by their random numbers, "
    "and seeded runs on a CPU with the same number of threads don't differ at all.",
    page="notes/randomness.html",
)  # fmt: skip
def two_runs_on_the_cpu() -> Evidence:
    a, b, c = torch.tensor([1e8, -1e8, 1.0])
    seen = {
        "(a + b) + c equals a + (b + c)": bool((a + b) + c == a + (b + c)),
        "two seeded runs on the CPU: every bit agrees": torch.equal(_trained(0), _trained(0)),
        "two runs without a seed: every bit agrees": torch.equal(_trained(None), _trained(None)),
    }
    if torch.cuda.is_available():
        seen["CUDA: sums in another order differ"] = _sums_differ_on_cuda()
    return seen


@PAGE.claim(
    "L029",
    "cudnn.deterministic=True selects deterministic algorithms, benchmark=False stops autotuning, and this is slower.",
    rule=lambda seen: NEEDS_CUDA if not seen["CUDA"] else FALSE if not seen["deterministic: same bits"] else TRUE
    if seen["times slower"] > 1.02 else CAVEAT,
    right="Slower or not depends on the layers and the card: measure your model. On a CPU the switches do nothing.",
    page="notes/randomness.html#cuda-convolution-determinism",
    varies=True,
)  # fmt: skip
def convolution_with_and_without_the_switches() -> Evidence:
    if not torch.cuda.is_available():
        return {"CUDA": False, "cuDNN": torch.backends.cudnn.is_available()}
    conv, x = nn.Conv2d(64, 64, 3).cuda(), torch.randn(32, 64, 56, 56, device="cuda")

    def slope(deterministic: bool) -> Tensor:
        switches = {"enabled": True, "benchmark": not deterministic, "deterministic": deterministic}
        with torch.backends.cudnn.flags(**switches):
            (grad,) = torch.autograd.grad(conv(x).square().sum(), conv.weight)
        torch.cuda.synchronize()
        return grad

    return {
        "CUDA": True,
        "deterministic: same bits": all(torch.equal(slope(True), slope(True)) for _ in range(3)),
        "times slower": time_ratio(lambda: slope(True), lambda: slope(False)),
    }
