"""Rules about what is kept alive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from course_utils.doctor.findings import ERROR, WARNING, Seen, rule

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination


@rule(
    "memory.graph-kept", WARNING, "06_memory",
    title="Losses or outputs are kept with their graph.",
    looks="variables of your loop, and lists that it fills, that hold more and more graph after every update.",
    quiet="numbers and detached tensors; a sum over micro-batches that starts anew after the update.",
    fix="total += loss.item()  # or loss.detach()",
)  # fmt: skip
def graph_kept(examination: Examination) -> Iterator[Seen]:
    training, steps = examination.training, examination.steps
    if training is not None:
        for kept in training.kept:
            sizes = kept.sizes
            if (
                len(sizes) >= 4
                and all(b > a for a, b in zip(sizes[1:5], sizes[2:5], strict=False))
                and sizes[3] > sizes[1]
            ):
                yield Seen(
                    f"The variable {kept.name!r} of your loop keeps the graph of every step alive ({', '.join(map(str, sizes[:6]))} nodes "
                    "after the first updates).",
                    {"nodes_after_updates": sizes[:8]},
                )
                return
    for name, sizes in steps.graph_holders.items():
        if "#" in name and len(sizes) >= 4 and all(b > a for a, b in zip(sizes, sizes[1:], strict=False)):
            yield Seen(
                f"A list that your step fills keeps {sizes[-1]} tensors with their graph.",
                {"tensors_after_each_step": sizes[:8]}, fix="history.append(loss.item())",
            )  # fmt: skip
            return


@rule(
    "memory.best-state-is-live", ERROR, "05_training",
    title="The remembered best weights are the live ones.",
    looks="state dicts taken in your loop that are still held after later updates, and whose tensors share memory with the model.",
    quiet="state dicts that are copied, saved to disk or used up at once.",
    fix="best = copy.deepcopy(model.state_dict())",
)  # fmt: skip
def best_is_live(examination: Examination) -> Iterator[Seen]:
    training = examination.training
    if training is not None and training.states_alive:
        where, tensors, later = training.states_alive[0]
        yield Seen(
            f"A state_dict() taken at {where} is still held after {later} more updates, and its {tensors} tensors are the live weights: "
            "it always equals the last state.",
            {"tensors": tensors, "updates_since": later},
        )
