"""Rules about what is kept alive."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from course_utils.doctor.findings import ERROR, NOTE, WARNING, Seen, rule

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination


@rule(
    "memory.graph-kept", WARNING, "06_memory",
    title="Losses or outputs are kept with their graph.",
    looks="variables of your loop, lists that it fills, attributes and globals that hold more and more graph after "
    "every update.",
    quiet="numbers and detached tensors; a sum over micro-batches that starts anew after the update.",
    fix="total += loss.item()  # or loss.detach()",
)  # fmt: skip
def graph_kept(examination: Examination) -> Iterator[Seen]:
    for run in examination.runs:
        for kept in run.kept:
            sizes = kept.sizes
            if len(sizes) >= 4 and _grows(sizes[1:5]):
                yield Seen(
                    f"The variable {kept.name!r} of your loop keeps the graph of every step alive "
                    f"({', '.join(map(str, sizes[:6]))} nodes after the first updates).",
                    {"nodes_after_updates": sizes[:8]},
                )
                return
        for name, chain in run.chains.items():
            sizes = run.holders[name]
            if len(chain) >= 4 and all(chain[1:]) and _grows(sizes) and not name.startswith("list #"):
                what = "A dict of yours" if name.startswith("dict #") else repr(name)
                yield Seen(
                    f"{what} keeps the graph of every step alive "
                    f"({', '.join(map(str, sizes[:6]))} nodes after the first updates).",
                    {"holder": name, "nodes_after_updates": sizes[:8]},
                )
                return
        for name, depths in run.depths.items():
            if name.startswith("list #") and len(depths) >= 4 and all(run.chains[name][1:]) and _grows(depths):
                yield Seen(
                    "The tensors in a list of yours are computed from the ones before them, with their graphs: "
                    f"{', '.join(map(str, depths[:6]))} nodes after the first updates.",
                    {"nodes_after_updates": depths[:8]},
                    fix="average[i] = 0.9 * average[i] + 0.1 * p.detach()",
                )
                return
        for name, sizes in run.holders.items():
            if len(sizes) >= 4 and _grows(sizes) and name.startswith("list #"):
                yield Seen(
                    f"A list that your code fills keeps {sizes[-1]} tensors with their graph after {len(sizes)} "
                    "updates.",
                    {"tensors_after_updates": sizes[:8]},
                    fix="history.append(loss.item())",
                )
                return


def _grows(sizes: list[int]) -> bool:
    return all(b > a for a, b in itertools.pairwise(sizes))


@rule(
    "memory.best-state-is-live", ERROR, "05_training",
    title="The remembered best weights are the live ones.",
    looks="state dicts taken in your loop that are still held after later updates, and whose tensors share memory "
    "with the model.",
    quiet="state dicts that are copied, saved to disk or used up at once.",
    fix="best = copy.deepcopy(model.state_dict())",
)  # fmt: skip
def best_is_live(examination: Examination) -> Iterator[Seen]:
    alive = next((run.states_alive for run in examination.runs if run.states_alive is not None), None)
    if alive is not None:
        where, tensors, later = alive
        yield Seen(
            f"A state_dict() taken at {where} is still held after {later} more updates, and its {tensors} tensors are "
            "the live weights: it always equals the last state.",
            {"tensors": tensors, "updates_since": later},
        )


@rule(
    "memory.slice-pins-storage", NOTE, "01_tensors",
    title="Kept slices keep whole tensors alive.",
    looks="tensors in your lists that lie on a storage more than eight times as large, more of them after every "
    "update.",
    quiet="copies, and tensors that fill their storage.",
    fix="kept.append(x[0].clone())",
)  # fmt: skip
def slice_pins(examination: Examination) -> Iterator[Seen]:
    for run in examination.runs:
        for sizes in run.pins.values():
            if len(sizes) >= 4 and _grows(sizes):
                yield Seen(
                    f"A list of yours holds {sizes[-1]} small views of large tensors, which they keep in memory.",
                    {"views_after_updates": sizes[:8]},
                )
                return
