"""Lesson 06, the part about number formats and mixed precision."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_utils.claims.evidence import WORKS, attempt, time_ratio, warnings_of
from course_utils.claims.ledger import Evidence, Page
from course_utils.claims.verdicts import CAVEAT, FALSE, NEEDS_CUDA, OPINION, OUTDATED, TRUE
from course_utils.ledger import measure_step
from course_utils.models import MLP, DigitCNN
from course_utils.precision import number_format, short_name

PAGE = Page("memory")
AMP, EXAMPLES, SCALING = "amp.html", "notes/amp_examples.html", "amp.html#gradient-scaling"
OPS = "amp.html#autocast-op-reference"
HALF, BRAIN = torch.float16, torch.bfloat16


def halved(dtype: torch.dtype = HALF, enabled: bool = True) -> torch.autocast:
    """Return autocast for the CPU, which every machine has."""
    return torch.autocast("cpu", dtype=dtype, enabled=enabled)


# --- What it saves ---------------------------------------------------------------------------------------------------


def shares(seen: Evidence) -> list[float]:
    return [float(value) for name, value in seen.items() if name.endswith("share")]


@PAGE.claim(
    "P010",
    "Mixed precision directly halves memory use.",
    rule=lambda seen: TRUE if max(shares(seen)) < 0.55 else CAVEAT if min(shares(seen)) < 0.55 else FALSE,
    right="Weights, their gradients and the optimizer's state stay in float32, and copies of the weights in 16 bits "
    "come on top. Only activations shrink, and not all of them: max pooling's indices and the loss stay.",
    page=AMP,
)  # fmt: skip
@PAGE.claim(
    "P036",
    "Mixed precision cuts training memory by 30 to 50 percent.",
    rule=lambda seen: TRUE if all(0.5 <= x <= 0.7 for x in shares(seen)) else CAVEAT
    if any(0.5 <= x <= 0.7 for x in shares(seen)) else FALSE,
    right="A CNN with a real batch comes near to it, since activations are nearly all it holds. Where weights and "
    "optimizer state dominate, nothing is saved, or a little more is needed.",
    page=AMP,
)  # fmt: skip
def peaks_in_16_and_32_bits() -> Evidence:
    def peak(make: Callable[[], nn.Module], count: int, is_mixed: bool) -> int:
        model, x, y = make(), torch.rand(count, 1, 28, 28), torch.randint(10, (count,))
        optimizer = torch.optim.Adam(model.parameters())

        def step() -> None:
            optimizer.zero_grad()
            with halved(BRAIN, is_mixed):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()

        return measure_step(model, step, optimizer).peak_bytes

    cases = {
        "CNN, 64 digits": (DigitCNN, 64),
        "CNN, 1 digit": (DigitCNN, 1),
        "wide MLP": (lambda: MLP(784, (512,)), 64),
    }
    return {f"{name}, peak: share": peak(*case, True) / peak(*case, False) for name, case in cases.items()}


@PAGE.claim(
    "P035",
    "float16 takes half the space of float32.",
    rule=lambda seen: TRUE if 2 * seen["bytes in float16"] == seen["bytes in float32"] else FALSE,
    right="On this version it does not.",
    page="tensor_attributes.html#torch-dtype",
)
def bytes_of_a_thousand_numbers() -> Evidence:
    return {f"bytes in {short_name(kind)}": torch.zeros(1000, dtype=kind).nbytes for kind in (torch.float32, HALF)}


@PAGE.claim(
    "P012",
    "Mixed precision runs forward and backward in FP16 while an FP32 master copy of the weights is kept.",
    rule=lambda seen: FALSE if seen["linear layer"] == "float32" or seen["weights"] != "float32" else TRUE
    if "float32" not in (seen["softmax"], seen["cross entropy"]) else CAVEAT,
    right="The weights just stay float32, they are no second copy; each operator is decided by a list. Matrix products "
    "and convolutions run in 16 bits, forward and backward; losses, and on CUDA also softmax and sums, in float32.",
    page=OPS,
)  # fmt: skip
def dtypes_of_a_step() -> Evidence:
    layer, x, y = nn.Linear(8, 4), torch.rand(3, 8), torch.tensor([0, 1, 2])
    with halved():
        z = layer(x)
        z.retain_grad()
        loss = F.cross_entropy(z, y)
        kinds = {"linear layer": z, "softmax": z.softmax(1), "cross entropy": loss}
    loss.backward()
    kinds |= {
        "gradient of the linear layer's result": z.grad,
        "weights": layer.weight,
        "their gradients": layer.weight.grad,
    }
    return {name: short_name(tensor.dtype) for name, tensor in kinds.items()}


# --- How it is written -----------------------------------------------------------------------------------------------


@PAGE.claim(
    "P014",
    "Mixed precision is used through torch.cuda.amp.autocast() and torch.cuda.amp.GradScaler().",
    rule=lambda seen: FALSE if seen["torch.amp.autocast('cuda')"] != WORKS else OUTDATED
    if "deprecated" in seen["torch.cuda.amp.autocast()"] + seen["torch.cuda.amp.GradScaler()"] else TRUE,
    right="Since PyTorch 2.4 these two warn: write torch.amp.autocast('cuda') and torch.amp.GradScaler('cuda'), with "
    "the device as an argument, which also work for 'cpu'.",
    page=AMP,
)  # fmt: skip
def names_of_the_tools() -> Evidence:
    return {
        "torch.cuda.amp.autocast()": warnings_of(lambda: torch.cuda.amp.autocast()),
        "torch.cuda.amp.GradScaler()": warnings_of(lambda: torch.cuda.amp.GradScaler()),
        "torch.amp.autocast('cuda')": attempt(lambda: torch.amp.autocast("cuda")),
        "torch.amp.GradScaler('cpu')": warnings_of(lambda: torch.amp.GradScaler("cpu")),
    }


class Outer(torch.autograd.Function):
    """x @ w with a backward that somebody wrote by hand; it notes in which dtype it computes."""

    seen: list[str] = []  # noqa: RUF012  (emptied by who reads it)

    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x @ w

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[None, Tensor]:
        (x,) = ctx.saved_tensors
        result = x.float().t() @ grad.float()
        Outer.seen.append(short_name(result.dtype))
        return None, result.float()


@PAGE.claim(
    "P015",
    "autocast should wrap only forward and loss; backward may stay outside.",
    rule=lambda seen: FALSE if not seen["same gradients, layers of PyTorch"] else TRUE
    if seen["a backward of one's own, inside"] != seen["a backward of one's own, outside"] else OPINION,
    right="On this version backward inside autocast gives the same; the documentation advises against it.",
    page="amp.html#autocasting",
)  # fmt: skip
def backward_inside_and_outside() -> Evidence:
    model, x, w = MLP(8, (8,)), torch.randn(4, 8), torch.randn(8, 3, requires_grad=True)

    def run(inside: bool) -> tuple[Tensor, str]:
        model.zero_grad()
        with halved(BRAIN):
            losses = [model(x).float().square().sum(), Outer.apply(x, w).float().sum()]
            if inside:
                [loss.backward() for loss in losses]
        if not inside:
            [loss.backward() for loss in losses]
        return torch.cat([p.grad.flatten() for p in model.parameters()]), Outer.seen.pop()

    (inner, inner_dtype), (outer, outer_dtype) = run(True), run(False)
    return {
        "same gradients, layers of PyTorch": torch.equal(inner, outer),
        "a backward of one's own, inside": inner_dtype,
        "a backward of one's own, outside": outer_dtype,
    }


@PAGE.claim(
    "P016",
    "optimizer.step() must never be inside the autocast context.",
    rule=lambda seen: FALSE if all(seen.values()) else CAVEAT if any(seen.values()) else TRUE,
    right="It need not be inside and does no harm there: autocast leaves the element-wise operators of an update "
    "alone. What must not happen is a second forward pass in the same autocast block after the step.",
    page="amp.html#autocasting",
)
def step_inside_and_outside() -> Evidence:
    def weights(make: Callable[..., torch.optim.Optimizer], inside: bool) -> Tensor:
        torch.manual_seed(0)
        model, x = MLP(8, (8,)), torch.randn(16, 8)
        optimizer = make(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            with halved(BRAIN):
                loss = model(x).float().square().mean()
            loss.backward()
            with halved(BRAIN, enabled=inside):
                optimizer.step()
        return nn.utils.parameters_to_vector(model.parameters()).detach()

    kinds = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam, "RMSprop": torch.optim.RMSprop}
    return {
        f"{name}: same weights": torch.equal(weights(kind, True), weights(kind, False)) for name, kind in kinds.items()
    }


@PAGE.claim(
    "P021",
    "Wrap autocast() around the outside of the training loop.",
    rule=lambda seen: FALSE if seen["autocast around the loop: different losses in 10 steps"] == 1
    else OPINION if seen["autocast in each step: different losses in 10 steps"] > 1 else TRUE,
    right="Autocast keeps its 16-bit copies of the weights until its outermost block ends. Around the loop, every "
    "forward pass uses the copies of the first step, and the loss never moves. Enter it anew in each step.",
    page="amp.html#autocasting",
)  # fmt: skip
def autocast_around_the_loop() -> Evidence:
    def losses(outside: bool) -> list[float]:
        torch.manual_seed(0)
        model, x, y, seen = nn.Linear(8, 3), torch.randn(64, 8), torch.randint(3, (64,)), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with halved(BRAIN) if outside else nullcontext():
            for _ in range(10):
                optimizer.zero_grad()
                with halved(BRAIN):
                    loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                seen.append(loss.item())
        return seen

    around, within = losses(True), losses(False)
    return {
        "autocast around the loop: different losses in 10 steps": len(set(around)),
        "autocast in each step: different losses in 10 steps": len(set(within)),
        "around the loop: loss fell by": around[0] - around[-1],
        "in each step: loss fell by": within[0] - within[-1],
    }


# --- What float16 can't hold -----------------------------------------------------------------------------------------


@PAGE.claim(
    "P037",
    "The smallest positive float16 is about 6e-8; smaller gradients underflow to zero.",
    rule=lambda seen: TRUE if 5e-8 < seen["smallest above zero"] < 7e-8 and seen["2e-8 becomes"] == 0 else FALSE,
    right="On this version it is another number.",
    page="type_info.html",
)
def smallest_number() -> Evidence:
    sizes = {"4e-8": 4e-8, "2e-8": 2e-8}
    stored = {f"{name} becomes": torch.tensor(size).to(HALF).item() for name, size in sizes.items()}
    return {"smallest above zero": number_format(HALF).smallest, **stored}


@PAGE.claim(
    "P020",
    "FP16 is sensitive to large values, so normalise inputs to [-1,1] or [0,1] to reduce overflow.",
    rule=lambda seen: (
        FALSE if seen["inputs of 0..1e6: finite"]
        else TRUE if seen["inputs of 0..1, weights times 100: finite"] and not seen["inputs of 0..255: finite"]
        else CAVEAT
    ),
    right="Above 65,504 a float16 is infinite. Pixels of 0..255 are far from that; what overflows is inside: large "
    "weights, sums of squares, logits. Normalise inputs to train well, and watch the activations.",
    page=EXAMPLES,
)  # fmt: skip
def overflow_from_inputs_and_weights() -> Evidence:
    model = MLP(784, (128, 128))
    large = MLP(784, (128, 128))
    with torch.no_grad():
        for p in large.parameters():
            p.mul_(100)

    def is_finite(network: nn.Module, top: float) -> bool:
        with halved(), torch.no_grad():
            return bool(network(torch.rand(16, 784) * top).isfinite().all())

    return {
        "inputs of 0..255: finite": is_finite(model, 255),
        "inputs of 0..1e6: finite": is_finite(model, 1e6),
        "inputs of 0..1, weights times 100: finite": is_finite(large, 1),
    }


@PAGE.claim(
    "P023",
    "Keep numerically sensitive operations (e.g. custom normalisation layers) in FP32 inside autocast.",
    rule=lambda seen: FALSE if seen["own norm in float32: off by"] > 0.01 else TRUE
    if seen["own norm: off by"] > 0.1 else OPINION,
    right="On this version the same norm in float16 is right, too.",
    page="amp.html#autocast-op-reference",
)  # fmt: skip
@PAGE.claim(
    "P039",
    "Custom losses can overflow in float16; run the sensitive part outside autocast.",
    rule=lambda seen: TRUE if not seen["own loss: finite"] and seen["own loss in float32: finite"] else FALSE,
    right="On this version the sum of squares doesn't overflow.",
    page="amp.html#autocast-op-reference",
)
def squares_of_hundreds() -> Evidence:
    def norm(z: Tensor) -> Tensor:
        return z / (z * z).mean(1, keepdim=True).sqrt()

    layer, x = nn.Linear(16, 16), torch.randn(8, 16) * 1000
    with torch.no_grad(), halved():
        z = layer(x)  # float16, some hundreds
        half_norm, half_loss = norm(z), (z * z).mean()
        with halved(enabled=False):
            full_norm, full_loss = norm(z.float()), (z.float() * z.float()).mean()
    exact = norm(z.double())
    return {
        "own norm: off by": (half_norm - exact).abs().max().item(),
        "own norm in float32: off by": (full_norm - exact).abs().max().item(),
        "own loss: finite": bool(half_loss.isfinite()),
        "own loss in float32: finite": bool(full_loss.isfinite()),
    }


@PAGE.claim(
    "P040",
    "Not all operations support float16.",
    rule=lambda seen: TRUE if any(said != WORKS for said in seen.values()) else FALSE,
    right="On this version these operators run in float16.",
    page=OPS,
)
def operators_in_half() -> Evidence:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    square = torch.eye(3, dtype=HALF, device=device)
    operators = {"x @ x": square.matmul, "svd": torch.linalg.svd, "inverse": torch.linalg.inv, "qr": torch.linalg.qr}
    return {name: attempt(lambda f=f: f(square)) for name, f in operators.items()}


@PAGE.claim(
    "P050",
    "Mixed precision means float16 (or bfloat16), and either is used in the same way with GradScaler.",
    rule=lambda seen: (
        FALSE if seen["float16, no scaler: gradient"] == 0 != seen["bfloat16, no scaler: gradient"]
        else TRUE if seen["bfloat16, no scaler: gradient"] == 0 else OPINION
    ),
    right="bfloat16 has the exponents of float32, so nothing underflows that float32 holds: it is used without a "
    "scaler. What it lacks is digits, and no scale helps against that.",
    page=SCALING,
)  # fmt: skip
def small_gradients_in_both_formats() -> Evidence:
    def gradient(dtype: torch.dtype, scale: float) -> float:
        layer = nn.Linear(4, 2)
        with halved(dtype):
            loss = layer(torch.ones(1, 4)).float().sum() * 1e-8
        (loss * scale).backward()
        return (layer.weight.grad / scale).abs().mean().item()

    return {
        "float16, no scaler: gradient": gradient(HALF, 1),
        "float16, scale 2^16: gradient": gradient(HALF, 2.0**16),
        "bfloat16, no scaler: gradient": gradient(BRAIN, 1),
        "bfloat16, scale 2^16: gradient": gradient(BRAIN, 2.0**16),
    }


# --- The scaler ------------------------------------------------------------------------------------------------------


@PAGE.claim(
    "P017",
    "GradScaler scales the loss up before backward and scales the gradients back before the step, so that small FP16 "
    "gradients do not underflow.",
    rule=lambda seen: TRUE if seen["zeros without a scaler: share"] > 0.9 and seen["zeros with a scaler: share"] < 0.1
    and 0.99 < seen["step with a scaler, to that in float32: factor"] < 1.01 else FALSE,
    right="On this version small gradients vanish with it, too, or the step has another size.",
    page=SCALING,
)  # fmt: skip
def steps_with_small_gradients() -> Evidence:
    x = torch.rand(4, 8) + 0.5

    def step(dtype: torch.dtype | None, has_scaler: bool) -> tuple[float, Tensor]:
        torch.manual_seed(0)
        layer = nn.Linear(8, 2, bias=False)
        before, optimizer = layer.weight.detach().clone(), torch.optim.SGD(layer.parameters(), lr=1e6)
        scaler = torch.amp.GradScaler("cpu", enabled=has_scaler)
        with halved(dtype or HALF, enabled=dtype is not None):
            loss = layer(x).float().mean() * 1e-7
        scaler.scale(loss).backward()
        zeros = (layer.weight.grad == 0).float().mean().item()
        scaler.step(optimizer)
        return zeros, layer.weight.detach() - before

    (lost, _), (kept, moved), (_, exact) = step(HALF, False), step(HALF, True), step(None, False)
    return {
        "zeros without a scaler: share": lost,
        "zeros with a scaler: share": kept,
        "step with a scaler, to that in float32: factor": (moved.norm() / exact.norm()).item(),
    }


def scaled_steps(factors: list[float], extra: float = 0.0) -> tuple[float, int]:
    """Take a step with a loss times each factor; return the scale at the end, and how many steps moved the weights."""
    layer, x, moved = nn.Linear(4, 2), torch.ones(1, 4), 0
    optimizer, scaler = torch.optim.SGD(layer.parameters(), lr=0.01), torch.amp.GradScaler("cpu")
    for factor in factors:
        before = layer.weight.detach().clone()
        optimizer.zero_grad()
        scaler.scale(layer(x).sum() * factor + extra).backward()
        scaler.step(optimizer)
        scaler.update()
        moved += not torch.equal(before, layer.weight)
    return scaler.get_scale(), moved


@PAGE.claim(
    "P018",
    "If the loss becomes inf/NaN the scaler lowers its scale automatically and so safeguards training.",
    rule=lambda seen: (
        FALSE if seen["one overflow: scale"] >= 65536 or not seen["one overflow: step skipped"]
        else CAVEAT if seen["100 losses of NaN: steps that moved the weights"] == 0
        or not seen["loss inf, gradients finite: step skipped"] else TRUE
    ),
    right="It looks at the gradients, not at the loss: a step with inf or NaN in them is skipped and the scale halved, "
    "which helps against an overflow. A NaN from the data or the model it can't cure: it skips for ever, in silence.",
    page=SCALING,
)  # fmt: skip
def scale_after_overflow_and_nan() -> Evidence:
    scale, moved = scaled_steps([1, 1e38, 1])
    endless, stuck = scaled_steps([float("nan")] * 100)
    return {
        "one overflow: scale": scale,
        "one overflow: step skipped": moved == 2,
        "loss inf, gradients finite: step skipped": scaled_steps([1], extra=float("inf"))[1] == 0,
        "100 losses of NaN: steps that moved the weights": stuck,
        "100 losses of NaN: scale": endless,
    }


@PAGE.claim(
    "P038",
    "With a GradScaler, clipping between backward and step without scaler.unscale_ clips scaled gradients and makes "
    "updates vanish.",
    rule=lambda seen: TRUE if max(float(v) for v in seen.values()) < 0.01 else CAVEAT
    if min(float(v) for v in seen.values()) < 0.01 else FALSE,
    right="With SGD, the clipped gradient is divided by the scale and the update vanishes. Adam divides by the "
    "gradient's own size, so its updates hardly change and the clipping does nothing. Call scaler.unscale_ first.",
    page="notes/amp_examples.html#gradient-clipping",
)  # fmt: skip
def clipping_before_unscaling() -> Evidence:
    def update(make: Callable[..., torch.optim.Optimizer], unscale: bool) -> float:
        torch.manual_seed(0)
        layer, x = nn.Linear(8, 2), torch.rand(4, 8)
        before, optimizer = layer.weight.detach().clone(), make(layer.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(layer(x).square().sum()).backward()
        if unscale:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        scaler.step(optimizer)
        return (layer.weight.detach() - before).norm().item()

    kinds = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam}
    return {
        f"{name}, update, to the right one: factor": update(kind, False) / update(kind, True)
        for name, kind in kinds.items()
    }


@PAGE.claim(
    "P041",
    "Gradient accumulation and AMP can be combined.",
    rule=lambda seen: TRUE if seen["4 scaled parts, to the whole batch in float32: off by"] < 0.02 else FALSE,
    right="On this version the accumulated gradient differs from that of the whole batch.",
    page="notes/amp_examples.html#gradient-accumulation",
)
def scaled_parts() -> Evidence:
    layer, x, y = nn.Linear(8, 4), torch.randn(32, 8), torch.randint(4, (32,))
    F.cross_entropy(layer(x), y).backward()
    whole = layer.weight.grad.clone()
    layer.zero_grad()
    optimizer, scaler = torch.optim.SGD(layer.parameters()), torch.amp.GradScaler("cpu")
    for part_x, part_y in zip(x.split(8), y.split(8), strict=True):
        with halved():
            loss = F.cross_entropy(layer(part_x), part_y) / 4
        scaler.scale(loss).backward()  # one scale for all parts: update() only after the step
    scaler.unscale_(optimizer)
    return {
        "4 scaled parts, to the whole batch in float32: off by": (
            (layer.weight.grad - whole).norm() / whole.norm()
        ).item()
    }


# --- Speed -----------------------------------------------------------------------------------------------------------


def on(device: str, work: Callable[[], object]) -> Callable[[], None]:
    """Return work that is over when it returns, on an accelerator, too."""

    def run() -> None:
        work()
        if device == "cuda":
            torch.cuda.synchronize()

    return run


@PAGE.claim(
    "P013",
    "FP16 matmul throughput on modern GPUs is often more than twice FP32.",
    rule=lambda seen: NEEDS_CUDA if not seen["CUDA"] else TRUE if seen["float16 matmul, times faster"] > 2 else FALSE,
    right="It needs Tensor Cores, and matrices large enough to keep them busy; with TF32 on, float32 uses them, "
    "too. On a CPU it depends on its instructions: without them, float16 is slower.",
    page="notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices",
    varies=True,
)
@PAGE.claim(
    "P019",
    "NVIDIA GPUs support mixed precision in hardware from the Pascal generation on.",
    rule=lambda seen: (
        NEEDS_CUDA if not seen["CUDA"] else CAVEAT if seen["compute capability"] >= 7
        else TRUE if seen["float16 matmul, times faster"] > 1.5 else FALSE
    ),
    right="The hardware for it, Tensor Cores, came with Volta (compute capability 7.0). Of Pascal (6.x) only the P100 "
    "computes quickly in float16, and builds of PyTorch for CUDA 13 don't run on Pascal at all.",
    page="https://docs.nvidia.com/deeplearning/performance/mixed-precision-training/index.html",
    varies=True,
)  # fmt: skip
def matrix_products_in_half() -> Evidence:
    has_cuda = torch.cuda.is_available()
    device, size = ("cuda", 4096) if has_cuda else ("cpu", 256)
    full = torch.randn(size, size, device=device)
    half, brain = full.to(HALF), full.to(BRAIN)

    def times_faster(x: Tensor) -> float:
        return time_ratio(on(device, lambda: full @ full), on(device, lambda: x @ x), repeats=9)

    seen: dict[str, bool | float | str] = {
        "CUDA": has_cuda,
        "measured on": device,
        "float16 matmul, times faster": times_faster(half),
        "bfloat16 matmul, times faster": times_faster(brain),
    }
    if has_cuda:
        major, minor = torch.cuda.get_device_capability()
        seen["compute capability"] = major + minor / 10
    return seen


@PAGE.claim(
    "P022",
    "Mixed precision gives a 50-100% training speed-up on GPUs with FP16 support.",
    rule=lambda seen: (
        NEEDS_CUDA if not seen["CUDA"]
        else TRUE if all(1.5 <= seen[f"{size} CNN: times faster"] <= 2 for size in ("large", "small"))
        else CAVEAT if seen["large CNN: times faster"] > 1.1 else FALSE
    ),
    right="It depends on the model: large matrix products and convolutions gain that much or more, a small network "
    "gains nothing, since casts and launches cost time, too.",
    page="https://docs.pytorch.org/tutorials/recipes/recipes/amp_recipe.html",
    varies=True,
)  # fmt: skip
def training_steps_in_half() -> Evidence:
    has_cuda = torch.cuda.is_available()
    device = "cuda" if has_cuda else "cpu"
    dtype = HALF if has_cuda else BRAIN

    def times_faster(width: int, count: int) -> float:
        model = DigitCNN(width).to(device)
        x, y = torch.rand(count, 1, 28, 28, device=device), torch.randint(10, (count,), device=device)

        def step(is_mixed: bool) -> Callable[[], None]:
            def run() -> None:
                model.zero_grad()
                with torch.autocast(device, dtype=dtype, enabled=is_mixed):
                    loss = F.cross_entropy(model(x), y)
                loss.backward()

            return on(device, run)

        return time_ratio(step(False), step(True), repeats=7)

    large = times_faster(256, 512) if has_cuda else times_faster(32, 16)
    return {
        "CUDA": has_cuda,
        "measured on": device,
        "large CNN: times faster": large,
        "small CNN: times faster": times_faster(8, 8),
    }
