"""Lesson 06: what people say about memory: who owns the bytes of a step, what grows, what frees."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from course_utils.claims import memory_allocator
from course_utils.claims.evidence import WORKS, attempt, time_ratio, warnings_of
from course_utils.claims.ledger import Evidence
from course_utils.claims.memory_precision import PAGE
from course_utils.claims.verdicts import CAVEAT, FALSE, TRUE
from course_utils.ledger import BACKWARD, STEP, Recording, measure_step, recording_memory
from course_utils.models import MLP, DigitCNN

__all__ = ["PAGE", "memory_allocator"]
MEMORY, FAQ, AUTOGRAD = "notes/cuda.html#memory-management", "notes/faq.html", "notes/autograd.html"
GRAD_MODES = "notes/autograd.html#locally-disabling-gradient-computation"


def digits(count: int) -> tuple[Tensor, Tensor]:
    """Return a batch of the digits' shapes: images (N, 1, 28, 28), labels (N,)."""
    return torch.rand(count, 1, 28, 28), torch.randint(10, (count,))


def training(
    model: nn.Module, x: Tensor, y: Tensor, make: Callable[..., torch.optim.Optimizer] = torch.optim.Adam
) -> Recording:
    """Record the memory of one training step, the second one."""
    optimizer = make(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return measure_step(model, step, optimizer)


def cnn_step(count: int) -> Recording:
    """Return the recording of one step of the course's CNN on ``count`` digits."""
    return training(DigitCNN(), *digits(count))


def mlp_step(count: int) -> Recording:
    """Return the recording of one step of a wide MLP on ``count`` digits."""
    return training(MLP(784, (512, 512)), *digits(count))


# --- Who owns the bytes ----------------------------------------------------------------------------------------------


@PAGE.claim(
    "P001",
    "If input data accidentally has requires_grad=True, gradients flow into the data and memory use doubles.",
    rule=lambda seen: FALSE if not seen["the data has a gradient"] else TRUE if min(ratios_in(seen)) > 1.8
    else CAVEAT if max(ratios_in(seen)) > 1.8 else FALSE,
    right="The data gets a gradient of its own size: that doubles the bytes of the data, and the total only where the "
    "data is nearly all there is.",
    page="notes/autograd.html#setting-requires-grad",
)  # fmt: skip
def peak_with_gradients_of_the_data() -> Evidence:
    reached = []

    def peak(model: nn.Module, shape: tuple[int, ...], wants: bool) -> int:
        def step() -> None:
            x = torch.rand(shape, requires_grad=wants)
            model(x).square().mean().backward()
            reached.append(x.grad is not None)

        return measure_step(model, step).peak_bytes

    cases = {"CNN": (DigitCNN(), (32, 1, 28, 28)), "one layer, wide data": (nn.Linear(4096, 2), (256, 4096))}
    ratios = {f"peak, {name}: times": peak(*case, True) / peak(*case, False) for name, case in cases.items()}
    return {"the data has a gradient": reached[0], **ratios}


def ratios_in(seen: Evidence) -> list[float]:
    """Return the factors among the evidence; their names end in ``times``."""
    return [float(value) for name, value in seen.items() if name.endswith("times")]


@PAGE.claim(
    "P002",
    "Training memory is dominated by intermediate activations, not by model parameters.",
    rule=lambda seen: TRUE if min(ratios_in(seen)) > 1 else CAVEAT if max(ratios_in(seen)) > 1 else FALSE,
    right="It is so where a weight is used at many places or for many examples, as in a CNN with a real batch. A wide "
    "MLP, or a batch of one, is dominated by parameters, gradients and optimizer state.",
    page="torch_cuda_memory.html",
)
@PAGE.claim(
    "P026",
    "Training memory consists of parameters, gradients, optimizer state and saved activations.",
    rule=lambda seen: TRUE if max(value for name, value in seen.items() if name.startswith("others")) < 0.02
    else CAVEAT,
    right="These four are what stays until it is used; the peak also holds the batch and temporary tensors that "
    "nobody owns for long, such as gradients of activations and what the optimizer computes on the way.",
    page="torch_cuda_memory.html",
)  # fmt: skip
def owners_of_a_step() -> Evidence:
    seen: dict[str, float] = {}
    for name, memory in (("CNN, 1 digit", cnn_step(1)), ("CNN, 64", cnn_step(64)), ("wide MLP, 64", mlp_step(64))):
        most, peak = memory.most(), memory.at_peak()
        seen[f"{name}: activations to parameters, times"] = most.activations / most.parameters
        seen[f"others at the peak, {name}: share"] = peak.other / peak.total
    return seen


@PAGE.claim(
    "P003",
    "A model with only a few million parameters can produce more than ten GB of intermediate tensors.",
    rule=lambda seen: TRUE if seen["million parameters"] < 10 and seen["GB of activations"] > 10 else FALSE,
    right="On this version 20 convolutions at full resolution save less.",
    page="torch_cuda_memory.html",
)
def activations_without_memory() -> Evidence:
    layers = [part for _ in range(20) for part in (nn.Conv2d(128, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU())]
    model = nn.Sequential(*layers).to("meta")  # shapes without numbers: no byte is taken
    images = torch.empty(32, 128, 128, 128, device="meta")
    with recording_memory(model) as memory:
        model(images)
    parameters = sum(p.numel() for p in model.parameters())
    return {"million parameters": parameters / 1e6, "GB of activations": memory.most().activations / 1e9}


@PAGE.claim(
    "P027",
    "With Adam, parameters + gradients + optimizer state total 4x the parameter bytes (1x+1x+2x).",
    rule=lambda seen: TRUE if abs(seen["Adam: times the parameters"] - 4) < 0.01 else FALSE,
    right="On this version the sum is another one.",
    page="generated/torch.optim.Adam.html",
)
@PAGE.claim(
    "P028",
    "A 100M-parameter fp32 model needs 1.6 GB for parameters, gradients and Adam state.",
    rule=lambda seen: TRUE if abs(seen["100 million weights, Adam: GB"] - 1.6) < 0.02 else FALSE,
    right="On this version the sum is another one.",
    page="generated/torch.optim.Adam.html",
)
@PAGE.claim(
    "P029",
    "If optimizer state dominates, SGD or Adafactor saves memory.",
    rule=lambda seen: (
        TRUE
        if max(seen[f"{name}: times the parameters"] for name in ("SGD", "Adafactor"))
        < 0.75 * seen["Adam: times the parameters"]
        else FALSE
    ),
    right="On this version they keep as much as Adam.",
    page="optim.html#algorithms",
)
def state_of_optimizers() -> Evidence:
    seen: dict[str, float] = {}
    kinds = {"SGD": torch.optim.SGD, "Adafactor": torch.optim.Adafactor, "Adam": torch.optim.Adam}
    for name, kind in kinds.items():
        kept = training(MLP(784, (256, 256)), *digits(8), make=kind).after(STEP)
        total = kept.parameters + kept.gradients + kept.optimizer_state
        seen[f"{name}: times the parameters"] = round(total / kept.parameters, 3)
    model = nn.Linear(10_000, 10_000, bias=False, device="meta")  # 100 million weights that take no byte
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.empty(1, 10_000, device="meta")).sum().backward()
    optimizer.step()
    held = [model.weight, model.weight.grad, *optimizer.state[model.weight].values()]
    return {**seen, "100 million weights, Adam: GB": sum(tensor.nbytes for tensor in held) / 1e9}


# --- Batch and phases ------------------------------------------------------------------------------------------------


@PAGE.claim(
    "P004",
    "Activation memory grows with batch size because every layer's feature map grows, not only the input.",
    rule=lambda seen: (
        TRUE if seen["feature maps that doubled"] == seen["feature maps"]
        and seen["the batch's share of the growth"] < 0.5 else FALSE
    ),
    right="On this version some feature maps keep their size.",
    page="torch_cuda_memory.html",
)  # fmt: skip
def feature_maps_of_twice_the_batch() -> Evidence:
    def maps(count: int) -> list[int]:
        model, sizes = DigitCNN(), []
        for layer in model.children():
            layer.register_forward_hook(lambda _layer, _inputs, output: sizes.append(output.nbytes))
        model(torch.rand(count, 1, 28, 28))
        return sizes

    small, large = maps(8), maps(16)
    batch, grown = 8 * 28 * 28 * 4, cnn_step(16).most().activations - cnn_step(8).most().activations
    return {
        "feature maps": len(small),
        "feature maps that doubled": sum(b == 2 * a for a, b in zip(small, large, strict=True)),
        "the batch's share of the growth": batch / (batch + grown),
    }


@PAGE.claim(
    "P031",
    "Activations grow linearly with batch size, so doubling the batch does not double total memory.",
    rule=lambda seen: (
        FALSE if not 1.95 < seen["CNN, activations: factor"] < 2.05 or max(totals := total_factors(seen)) >= 2
        else CAVEAT if max(totals) > 1.9 else TRUE
    ),
    right="Parameters, gradients and optimizer state stay as they are. How much that is of the total decides: a wide "
    "MLP hardly notices the batch, a CNN with a real batch nearly doubles its peak.",
    page="torch_cuda_memory.html",
)  # fmt: skip
def peak_of_twice_the_batch() -> Evidence:
    one, two = cnn_step(32), cnn_step(64)
    return {
        "CNN, activations: factor": two.most().activations / one.most().activations,
        "CNN, peak: factor": two.peak_bytes / one.peak_bytes,
        "wide MLP, peak: factor": mlp_step(64).peak_bytes / mlp_step(32).peak_bytes,
    }


def total_factors(seen: Evidence) -> list[float]:
    return [float(value) for name, value in seen.items() if "peak" in name]


@PAGE.claim(
    "P030",
    "Activation memory can far exceed parameter memory, so a peak of more than ten times the parameters is not a leak.",
    rule=lambda seen: TRUE if min(seen["peak of step 2: times"], seen["peak of step 4: times"]) > 10
    and seen["peak of step 4: times"] <= 1.01 * seen["peak of step 2: times"] else FALSE,
    right="On this version the peak of a healthy step is smaller, or grows.",
    page="torch_cuda_memory.html",
)  # fmt: skip
def peak_of_a_healthy_step() -> Evidence:
    model, (x, y) = DigitCNN(), digits(64)
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    parameters = sum(p.nbytes for p in model.parameters())
    second, _, fourth = (measure_step(model, step, optimizer, warm_up=first).peak_bytes for first in (1, 0, 0))
    return {"peak of step 2: times": second / parameters, "peak of step 4: times": fourth / parameters}


@PAGE.claim(
    "P032",
    "Intermediate activations all stay in memory until the backward pass has finished.",
    rule=lambda seen: TRUE if seen["alive before its last operator: share"] > 0.99 else FALSE,
    right="Each is freed as soon as backward has used it, from the last layer to the first; and what no derivative "
    "needs, such as the result of a linear layer, isn't kept at all.",
    page="notes/autograd.html#saved-tensors",
)
def activations_during_backward() -> Evidence:
    memory = training(MLP(256, [256] * 8), torch.rand(64, 256), torch.randint(10, (64,)))
    line = memory.timeline("activations")
    backward = [size for size, phase in zip(line, memory.phases, strict=True) if phase == BACKWARD]
    return {
        "alive halfway through backward: share": backward[len(backward) // 2] / max(line),
        "alive before its last operator: share": backward[-2] / max(line),
    }


@PAGE.claim(
    "P033",
    "Activation (gradient) checkpointing drops intermediates and recomputes them in backward, trading time for memory.",
    rule=lambda seen: TRUE if seen["activations, with checkpoints: share"] < 0.7
    and seen["runs of each block, with"] > seen["runs of each block, without"] else FALSE,
    right="On this version it saves nothing, or computes nothing twice.",
    page="checkpoint.html",
)  # fmt: skip
def checkpoints_in_a_deep_network() -> Evidence:
    def run(keep: bool) -> tuple[int, int]:
        layers = [[nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)] for _ in range(6)]
        blocks, calls = nn.ModuleList(nn.Sequential(*block) for block in layers), []
        blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))

        def step() -> None:
            x = torch.rand(32, 64)
            for block in blocks:
                x = x + (block(x) if keep else checkpoint(block, x, use_reentrant=False))
            x.square().mean().backward()

        memory = measure_step(blocks, step, warm_up=0)
        return memory.most().activations, len(calls)

    (kept, once), (dropped, twice) = run(True), run(False)
    return {
        "activations, with checkpoints: share": dropped / kept,
        "runs of each block, without": once,
        "runs of each block, with": twice,
    }


@PAGE.claim(
    "P034",
    "torch.utils.checkpoint.checkpoint(fn, x) needs no further argument.",
    rule=lambda seen: FALSE if seen["checkpoint(fn, x)"] != WORKS else TRUE
    if seen["warning"] == "none" and seen["weights learn, if x needs no gradient"] else CAVEAT,
    right="Pass use_reentrant=False. Without it the call works and warns; and it takes the older way, which gives the "
    "weights inside no gradient at all if no input needs one.",
    page="checkpoint.html",
)  # fmt: skip
def checkpoint_without_an_argument() -> Evidence:
    def learns(**options: bool) -> bool:
        layer = nn.Linear(3, 3)
        head = nn.Linear(3, 1)
        head(checkpoint(layer, torch.rand(2, 3), **options)).sum().backward()
        return layer.weight.grad is not None

    layer, x = nn.Linear(3, 3), torch.rand(2, 3, requires_grad=True)
    return {
        "checkpoint(fn, x)": attempt(lambda: checkpoint(layer, x)),
        "warning": warnings_of(lambda: attempt(lambda: checkpoint(layer, x))),
        "weights learn, if x needs no gradient": learns() if attempt(learns) == WORKS else False,
        "the same with use_reentrant=False": learns(use_reentrant=False),
    }


# --- Leaks -----------------------------------------------------------------------------------------------------------


def growth(keep: Callable[[list, Tensor, Tensor], object], *, backward: bool, grads: bool = True) -> list[int]:
    """Return the bytes alive after each of 5 steps that hand loss and logits to ``keep``."""
    model, (x, y) = MLP(784, (256, 256)), digits(64)
    kept: list[object] = []
    with recording_memory(model) as memory, torch.set_grad_enabled(grads):
        alive = []
        for _ in range(5):
            model.zero_grad()
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            if backward:
                loss.backward()
            kept.append(keep(kept, loss, logits))
            del logits, loss
            alive.append(memory.live_bytes)
    return alive


def each(alive: list[int]) -> float:
    """Return the bytes by which a loop grows in each step."""
    return (alive[-1] - alive[1]) / (len(alive) - 2)


@PAGE.claim(
    "P006",
    "A memory leak shows as a peak that keeps rising across iterations, not as memory that fails to fall once.",
    rule=lambda seen: TRUE if seen["leak, bytes more in each step"] > 0 == seen["healthy, bytes more in each step"]
    and seen["healthy, bytes that stay after step 1"] > 0 else FALSE,
    right="On this version a healthy loop grows, or a leaking one doesn't.",
    page=FAQ,
)  # fmt: skip
def a_leaking_and_a_healthy_loop() -> Evidence:
    healthy = growth(lambda kept, loss, logits: loss.item(), backward=True)
    leaking = growth(lambda kept, loss, logits: logits, backward=True)
    parameters = sum(p.nbytes for p in MLP(784, (256, 256)).parameters())
    return {
        "healthy, bytes that stay after step 1": healthy[0] - parameters,
        "healthy, bytes more in each step": each(healthy),
        "leak, bytes more in each step": each(leaking),
    }


@PAGE.claim(
    "P007",
    "Accumulating the loss tensor instead of loss.item() keeps every iteration's computation graph, so 1000 batches "
    "hold 1000 graphs and memory explodes.",
    rule=lambda seen: (
        FALSE if seen["nodes of the graph after 10 more batches"] <= 1.5 * seen["nodes of the graph after 2 batches"]
        else CAVEAT if seen["bytes more in each step, after backward()"] < 0.1 * seen["the same without backward()"]
        else TRUE
    ),
    right="The nodes of all graphs are kept, but backward() has freed the activations in them: memory creeps, by "
    "the nodes. It explodes where no backward() runs, in a validation loop without no_grad.",
    page=FAQ + "#my-model-reports-cuda-runtime-error-2-out-of-memory",
)  # fmt: skip
def losses_that_are_added_up() -> Evidence:
    def add(kept: list, loss: Tensor, logits: Tensor) -> Tensor:
        return loss + (kept[-1] if kept else 0)

    def nodes(batches: int) -> int:
        model, (x, y), total = MLP(784, (16,)), digits(4), torch.zeros(())
        for _ in range(batches):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            total = total + loss
        waiting, seen = [total.grad_fn], set()
        while waiting:
            node = waiting.pop()
            if node is not None and node not in seen:
                seen.add(node)
                waiting += [parent for parent, _ in node.next_functions]
        return len(seen)

    return {
        "bytes more in each step, after backward()": each(growth(add, backward=True)),
        "the same without backward()": each(growth(add, backward=False)),
        "the same with loss.item()": each(growth(lambda kept, loss, logits: loss.item(), backward=True)),
        "nodes of the graph after 2 batches": nodes(2),
        "nodes of the graph after 10 more batches": nodes(12),
    }


@PAGE.claim(
    "P042",
    "Appending outputs to a list during validation leaks memory; detach/cpu or clear them.",
    rule=lambda seen: (
        FALSE if seen["with gradients: bytes a batch"] <= 2 * seen["the outputs' own bytes"]
        else CAVEAT if seen["under no_grad: bytes a batch"] <= seen["the outputs' own bytes"] else TRUE
    ),
    right="It keeps the whole graph of each batch if gradients are on. Under no_grad, or detached, the list holds the "
    "outputs' own bytes and nothing more.",
    page=GRAD_MODES,
)  # fmt: skip
def outputs_in_a_list() -> Evidence:
    def logits_of(kept: list, loss: Tensor, logits: Tensor) -> Tensor:
        return logits

    return {
        "the outputs' own bytes": 64 * 10 * 4,
        "with gradients: bytes a batch": each(growth(logits_of, backward=False)),
        "detached: bytes a batch": each(growth(lambda kept, loss, logits: logits.detach(), backward=False)),
        "under no_grad: bytes a batch": each(growth(logits_of, backward=False, grads=False)),
    }


@PAGE.claim(
    "P044",
    "Printing tensors while debugging keeps the autograd graph alive.",
    rule=lambda seen: TRUE if seen["bytes of the graph after print(y), del y"] else FALSE,
    right="print makes text and keeps nothing. What keeps a graph is a name for the tensor, and in a notebook the "
    "result of a cell, which stays in Out.",
    page=AUTOGRAD,
)
def graph_after_a_print() -> Evidence:
    def held(use: Callable[[Tensor], object]) -> int:
        x = torch.rand(1000, requires_grad=True)
        with recording_memory() as memory:
            y = (x * 2).square()  # square keeps its input, 4,000 bytes that nobody else holds
            kept = use(y)  # what the use returns lives on
            del y
            held_bytes = memory.live_bytes - x.nbytes
        del kept
        return held_bytes

    def shown(y: Tensor) -> None:
        with redirect_stdout(io.StringIO()):
            print(y)

    return {
        "bytes of the graph after print(y), del y": held(shown),
        "after repr(y), del y": held(repr),
        "with y in a list": held(lambda y: [y]),
    }


# --- Accumulation ----------------------------------------------------------------------------------------------------


def accumulated(
    model: nn.Module, x: Tensor, y: Tensor, sizes: list[int], divide: bool = True, forget: bool = False
) -> Tensor:
    """Return the gradient of all weights after micro-batches of these sizes, one after the other."""
    model.zero_grad()
    for part_x, part_y in zip(x.split(sizes), y.split(sizes), strict=True):
        if forget:
            model.zero_grad()
        loss = F.cross_entropy(model(part_x), part_y)
        (loss / len(sizes) if divide else loss).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


SPECIAL_CASES = ("loss not divided", "parts of 8, 8, 8, 5 and 3", "with BatchNorm")


def distance(a: Tensor, b: Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


@PAGE.claim(
    "P008",
    "With gradient accumulation, zero_grad() is still called at every micro-batch, while optimizer.step() waits for "
    "the target count.",
    rule=lambda seen: TRUE if seen["zero_grad at each micro-batch: off by"] < 0.01 else FALSE,
    right="zero_grad() belongs to the step: at every micro-batch it throws away what was accumulated, and only the "
    "last micro-batch counts.",
    page="notes/amp_examples.html#gradient-accumulation",
)
@PAGE.claim(
    "P009",
    "Gradient accumulation over small batches is equivalent to training with one large batch.",
    rule=lambda seen: FALSE if seen["mean of 4 equal parts: off by"] > 1e-3 else TRUE
    if max(seen[f"{case}: off by"] for case in SPECIAL_CASES) < 1e-3 else CAVEAT,
    right="It is if each loss is divided by the number of micro-batches, these have one size, and no layer looks at "
    "the batch as BatchNorm does.",
    page="notes/amp_examples.html#gradient-accumulation",
)  # fmt: skip
def gradients_of_parts() -> Evidence:
    x, y = torch.randn(32, 8), torch.randint(10, (32,))
    plain = MLP(8, (16,))
    normed = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
    whole, whole_normed = (accumulated(model, x, y, [32]) for model in (plain, normed))
    last = accumulated(plain, x[24:], y[24:], [8]) / 4
    forgetful = accumulated(plain, x, y, [8] * 4, forget=True)
    return {
        "mean of 4 equal parts: off by": distance(accumulated(plain, x, y, [8] * 4), whole),
        "loss not divided: off by": distance(accumulated(plain, x, y, [8] * 4, divide=False), whole),
        "parts of 8, 8, 8, 5 and 3: off by": distance(accumulated(plain, x, y, [8, 8, 8, 5, 3]), whole),
        "with BatchNorm: off by": distance(accumulated(normed, x, y, [8] * 4), whole_normed),
        "zero_grad at each micro-batch: off by": distance(forgetful, whole),
        "which is the last micro-batch alone": torch.allclose(forgetful, last),
    }


# --- Without gradients -----------------------------------------------------------------------------------------------


def inference(model: nn.Module, x: Tensor, grads: bool) -> int:
    """Return the most bytes alive in a forward pass."""
    with recording_memory(model) as memory, torch.set_grad_enabled(grads):
        model(x)
    return memory.peak_bytes


def memory_factors() -> dict[str, float]:
    """Return how many times the memory three forward passes take with gradients."""
    cases = {
        "one layer": (nn.Linear(256, 256), torch.rand(64, 256)),
        "CNN, 64 digits": (DigitCNN().eval(), digits(64)[0]),
        "40 layers": (MLP(64, [64] * 40), torch.rand(1024, 64)),
    }
    return {f"{name}: memory, times": inference(*case, True) / inference(*case, False) for name, case in cases.items()}


@PAGE.claim(
    "P024",
    "torch.no_grad() makes memory use and speed much better during inference.",
    rule=lambda seen: (
        TRUE if max(ratios_in(seen)) > 2 and seen["CNN: time with gradients, factor"] > 1.5
        else CAVEAT if max(ratios_in(seen)) > 1.5 or seen["CNN: time with gradients, factor"] > 1.5 else FALSE
    ),
    right="It saves the activations, much in a deep network and nothing in a shallow one. The arithmetic stays as it "
    "was: only the notes for backward fall away, and speed hardly changes.",
    page="generated/torch.no_grad.html",
    varies=True,
)  # fmt: skip
def memory_and_time_without_gradients() -> Evidence:
    model, (x, _) = DigitCNN().eval(), digits(64)

    def run(grads: bool) -> Callable[[], None]:
        def call() -> None:
            with torch.set_grad_enabled(grads):
                model(x)

        return call

    return {**memory_factors(), "CNN: time with gradients, factor": time_ratio(run(True), run(False), repeats=9)}


@PAGE.claim(
    "P025",
    "Inference without no_grad uses almost twice the memory of inference with it.",
    rule=lambda seen: TRUE if all(1.6 < x < 2.2 for x in ratios_in(seen)) else CAVEAT
    if any(1.6 < x < 2.2 for x in ratios_in(seen)) else FALSE,
    right="The factor is no constant: it grows with depth and batch. A layer or two give 1, a deep network gives many.",
    page="generated/torch.no_grad.html",
)  # fmt: skip
def memory_without_gradients() -> Evidence:
    return memory_factors()


PAGE.claims.sort(key=lambda claim: claim.id)  # three modules, one list
