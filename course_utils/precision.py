"""Number formats and what mixed precision does with them: range and spacing, autocast by operator, a loss scaler's run.

A floating format spends its bits on three things: a sign, an exponent (how far it reaches) and a fraction (how fine
it is). Everything here is computed from ``torch.finfo`` or found by running an operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_utils.errors import UsageError
from course_utils.models import MLP
from course_utils.seeding import seeded, stream
from course_utils.text import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (torch.float32, torch.bfloat16, torch.float16)
FORMAT_COLOURS = {torch.float32: "#0072b2", torch.bfloat16: "#009e73", torch.float16: "#d55e00"}


@dataclass(frozen=True)
class NumberFormat:
    """What a floating dtype can hold.

    Args:
        dtype: the format.
        exponent_bits: bits for the power of two.
        fraction_bits: bits after the leading 1.
        largest: above it, everything is inf.
        smallest_normal: below it, numbers lose digits, one bit per halving.
        smallest: the smallest number above 0; less than half of it becomes 0.
        step_at_one: the distance from 1 to the next number.
    """

    dtype: torch.dtype
    exponent_bits: int
    fraction_bits: int
    largest: float
    smallest_normal: float
    smallest: float
    step_at_one: float


def short_name(dtype: torch.dtype) -> str:
    """Return a dtype's name without its module: ``float16``."""
    return str(dtype).removeprefix("torch.")


def number_format(dtype: torch.dtype) -> NumberFormat:
    """Return the facts of a floating dtype.

    Raises:
        UsageError: if it is no floating dtype.
    """
    if not dtype.is_floating_point:
        raise UsageError("This is no floating format.", got=dtype, expected="such as torch.float16")
    facts = torch.finfo(dtype)
    fraction = round(-math.log2(facts.eps))
    return NumberFormat(
        dtype=dtype,
        exponent_bits=facts.bits - 1 - fraction,
        fraction_bits=fraction,
        largest=facts.max,
        smallest_normal=facts.tiny,
        smallest=facts.tiny * facts.eps,
        step_at_one=facts.eps,
    )


def spacing(value: float, dtype: torch.dtype) -> float:
    """Return the distance between neighbours of ``dtype`` near ``value``: 2**-fraction of its power of two.

    Example:
        >>> spacing(2048.0, torch.float16)
        2.0
    """
    facts = number_format(dtype)
    size = max(abs(value), facts.smallest_normal)
    return 2.0 ** math.floor(math.log2(size)) * facts.step_at_one


def draw_ranges(ax: Axes, dtypes: Sequence[torch.dtype] = FORMATS) -> Axes:
    """Draw which sizes each format can hold, in powers of ten; pale where it loses digits."""
    for row, dtype in enumerate(dtypes):
        facts = number_format(dtype)
        low, normal, high = (math.log10(x) for x in (facts.smallest, facts.smallest_normal, facts.largest))
        colour = FORMAT_COLOURS.get(dtype, "#555555")
        ax.barh(row, normal - low, left=low, color=colour, alpha=0.35, height=0.5)
        ax.barh(row, high - normal, left=normal, color=colour, height=0.5)
    ax.set_yticks(range(len(dtypes)), [short_name(dtype) for dtype in dtypes])
    ax.invert_yaxis()
    ax.set(xlabel="size of a number, power of ten", title="Range")
    return ax


def draw_spacings(ax: Axes, dtypes: Sequence[torch.dtype] = FORMATS) -> Axes:
    """Draw the distance between neighbouring numbers against their size, for each format."""
    sizes = [10 ** (power / 4) for power in range(-36, 25)]  # 1e-9 to 1e6
    for dtype in dtypes:
        inside = [size for size in sizes if size <= number_format(dtype).largest]
        steps = [spacing(size, dtype) for size in inside]
        ax.loglog(inside, steps, color=FORMAT_COLOURS.get(dtype, "#555555"), label=short_name(dtype))
    ax.set(xlabel="size of a number", ylabel="distance to the next", title="Spacing")
    ax.legend()
    return ax


def lost_share(values: Tensor, dtype: torch.dtype, scale: float = 1.0) -> float:
    """Return the share of the nonzero ``values`` that become 0 when ``scale * values`` is stored in ``dtype``."""
    nonzero = values[values != 0]
    if nonzero.numel() == 0:
        return 0.0
    return ((nonzero.double() * scale).to(dtype) == 0).double().mean().item()


def dtype_under_autocast(call: Callable[[], Tensor], dtype: torch.dtype, device_type: str = "cpu") -> str:
    """Return the dtype of what ``call`` computes under autocast, or ``refused: …`` with the reason."""
    with torch.autocast(device_type, dtype=dtype), torch.no_grad():
        try:
            return short_name(call().dtype)
        except RuntimeError as error:
            return f"refused: {shorten(str(error), 40)}"


@dataclass(frozen=True)
class ScaledStep:
    """One step of training with a scaler.

    Args:
        scale: what the loss was multiplied by.
        loss: nats, before scaling.
        skipped: whether a gradient was inf or nan, so that the weights stayed.
        lost: share of the gradient's numbers that are 0 in this step and not in float32.
    """

    scale: float
    loss: float
    skipped: bool
    lost: float


def scaled_training(
    images: Tensor,
    labels: Tensor,
    *,
    init_scale: float = 2.0**16,
    growth_interval: int = 2000,
    growth_factor: float = 2.0,
    backoff_factor: float = 0.5,
    loss_factor: float = 1.0,
    steps: int = 60,
    batch_size: int = 64,
    seed: int = 0,
) -> list[ScaledStep]:
    """Train a small network in float16 with ``torch.amp.GradScaler("cpu")``; return what happened at each step.

    Nothing is forced: a step is skipped where a real gradient leaves the range of float16.

    Args:
        images: (N, 1, 8, 8), float32.
        labels: (N,), int64.
        init_scale, growth_interval, growth_factor, backoff_factor: as in ``torch.amp.GradScaler``.
        loss_factor: the loss is multiplied by it, so that gradients are smaller.
        steps: how many.
        batch_size: examples per step.
        seed: of weights and batches.
    """
    with seeded(seed):
        model = MLP(images[0].numel(), (32,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2 / loss_factor)  # the same steps, whatever the factor
    scaler = torch.amp.GradScaler(
        "cpu",
        init_scale=init_scale,
        growth_interval=growth_interval,
        growth_factor=growth_factor,
        backoff_factor=backoff_factor,
    )
    draws = stream(seed, "batches")
    history = []
    for _ in range(steps):
        chosen = torch.randint(len(images), (batch_size,), generator=draws)
        x, y = images[chosen], labels[chosen]
        plain = _gradient(model, F.cross_entropy(model(x), y) * loss_factor)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y) * loss_factor
        scaler.scale(loss).backward()
        half = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        lost = (half == 0)[plain != 0].double().mean().item()
        history.append(ScaledStep(scale, loss.item() / loss_factor, not bool(half.isfinite().all()), lost))
    return history


def _gradient(model: nn.Module, loss: Tensor) -> Tensor:
    return torch.cat([grad.flatten() for grad in torch.autograd.grad(loss, list(model.parameters()))])
