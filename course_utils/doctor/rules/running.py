"""What `doctor.watch` alone can tell: faults that need more steps than an examination takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from course_utils.doctor.findings import NOTE, WARNING, Seen, rule

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination


@rule(
    "loop.gradient-explodes", WARNING, "05_training",
    title="The gradient grows and grows.",
    looks="(watch) the gradient's length: late, at its lowest, in the first updates, and beside the weights' length.",
    quiet="outliers, warm-up and small starts: it must be 1000 times its lowest, longer than the weights, and rise on.",
    fix="torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # and a smaller learning rate",
)  # fmt: skip
@rule(
    "loop.gradient-vanishes", WARNING, "03_modules",
    title="The gradient of the first layer is next to nothing.",
    looks="(watch) the gradient of the first weights beside the longest one, in 16 looks in a row.",
    quiet="gradients that shrink everywhere as the loss is solved, frozen parts, last layers that start at 0.",
    fix="nn.ReLU() in place of nn.Sigmoid()  # or residual connections, or normalization layers",
)  # fmt: skip
@rule(
    "model.dead-units", WARNING, "03_modules",
    title="Nearly all units in front of a layer are 0 for every example.",
    looks="(watch) what enters linear and convolution layers, in 10 or more steps and 500 or more examples.",
    quiet="sparse activations: a unit that fires once is alive; layers with fewer than 90 % silent units; inputs.",
    fix="nn.LeakyReLU()  # or a smaller learning rate; look at the bias in front of the ReLU",
)  # fmt: skip
@rule(
    "memory.grows", NOTE, "06_memory",
    title="More and more tensors stay alive.",
    looks="(watch) number and bytes of the tensors that Python knows, eight times, over 200 updates or more.",
    quiet="a cache or a replay buffer that fills looks the same: a note. Kept graphs are `memory.graph-kept`.",
    fix="history.append(loss.item())  # keep numbers, not tensors",
)  # fmt: skip
@rule(
    "data.starved", WARNING, "04_data",
    title="The loop waits for its data more than half of the time.",
    looks="(watch) the time until the loader hands over a batch, beside the time until the next one is asked for; on a "
    "GPU only while it has nothing to do.",
    quiet="the first batch of an epoch, hiccups, and waits of less than 2 ms.",
    fix="DataLoader(..., num_workers=4, persistent_workers=True)  # or less work per example",
)  # fmt: skip
def seen_while_running(_examination: Examination) -> Iterable[Seen]:
    return ()  # an examination is too short
