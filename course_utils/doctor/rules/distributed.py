"""Rules about several processes, as far as one process can tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch.utils.data import DataLoader, DistributedSampler

from course_utils.doctor.findings import NOTE, WARNING, Seen, rule

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination


@rule(
    "distributed.padded-evaluation", WARNING, "07_distributed",
    title="A DistributedSampler repeats examples in an evaluation.",
    looks="samplers without shuffling whose parts add up to more indices than the data set has.",
    quiet="training shuffles, and there a few repeated examples don't matter.",
    fix="DataLoader(Subset(data, range(rank, len(data), world_size)), batch_size)",
)  # fmt: skip
def padded(examination: Examination) -> Iterator[Seen]:
    samplers = {id(s): s for s in examination.snapshot.found(DistributedSampler)}
    for loader in examination.snapshot.found(DataLoader):
        if isinstance(loader.sampler, DistributedSampler):
            samplers[id(loader.sampler)] = loader.sampler
    for sampler in samplers.values():
        extra = sampler.total_size - len(sampler.dataset)
        if extra > 0 and not sampler.shuffle and not sampler.drop_last:
            yield Seen(
                f"The sampler gives out {sampler.total_size} indices for {len(sampler.dataset)} examples: {extra} are "
                "counted twice when the results of all processes are averaged.",
                {"examples": len(sampler.dataset), "indices": sampler.total_size, "repeated": extra},
            )
            return


@rule(
    "distributed.no-set-epoch", NOTE, "07_distributed",
    title="A DistributedSampler shuffles, and set_epoch is not called.",
    looks="whether your loop calls set_epoch in two epochs or more.",
    quiet="where only one epoch was seen nothing is said.",
    fix="sampler.set_epoch(epoch)",
)  # fmt: skip
def no_set_epoch(examination: Examination) -> Iterator[Seen]:
    training = examination.training
    sampler = examination.parts.get("sampler") or getattr(examination.parts.loader, "sampler", None)
    if training is None or not isinstance(sampler, DistributedSampler) or not sampler.shuffle:
        return
    if training.trace.epochs >= 2 and not training.set_epochs:
        yield Seen(
            f"{training.trace.epochs} epochs ran without set_epoch(): each has the same order.",
            {"epochs": training.trace.epochs, "set_epoch_calls": 0}, severity=WARNING,
        )  # fmt: skip
