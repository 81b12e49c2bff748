"""Rules about devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from course_utils.doctor.findings import NOTE, Seen, rule
from course_utils.doctor.parts import tensors_of

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination


@rule(
    "device.several", NOTE, "01_tensors",
    title="The model lies on several devices.",
    looks="the devices of parameters and buffers.",
    quiet="splitting a model over devices can be meant: a note. If it fails, the failure is explained on its own.",
    fix="model.to(device)  # before the optimizer is built",
)  # fmt: skip
def several(examination: Examination) -> Iterator[Seen]:
    model = examination.model
    if model is None:
        return
    devices = sorted({str(t.device) for t in [*model.parameters(), *model.buffers()]})
    if len(devices) > 1:
        yield Seen(f"Parameters and buffers lie on {', '.join(devices)}.", {"devices": devices})


@rule(
    "device.accelerator-unused", NOTE, "01_tensors",
    title="There is an accelerator, and the model is not on it.",
    looks="whether PyTorch sees an accelerator, and where the parameters are.",
    quiet="small models may be quicker on the CPU, so this is a note.",
    fix="device = torch.accelerator.current_accelerator(); model.to(device)",
)  # fmt: skip
def unused(examination: Examination) -> Iterator[Seen]:
    model = examination.model
    first = next(model.parameters(), None) if model is not None else None
    if first is not None and first.device.type == "cpu" and torch.accelerator.is_available():
        name = torch.accelerator.current_accelerator()
        yield Seen(f"PyTorch sees a {name} device, and the model is on the CPU.", {"accelerator": str(name)})


@rule(
    "device.batch-elsewhere", NOTE, "01_tensors",
    title="Batches come from another device than the model's.",
    looks="the devices of the first batch and of the parameters.",
    quiet="steps that move the batch are right, so this is a note unless the step fails.",
    fix="x, y = x.to(device), y.to(device)",
)  # fmt: skip
def elsewhere(examination: Examination) -> Iterator[Seen]:
    model, kept = examination.model, examination.batches.kept
    if model is None or not kept or examination.failure is None:
        return
    devices = {str(p.device) for p in model.parameters()}
    batch = {str(leaf.device) for leaf in tensors_of(kept[0])}
    if batch and devices and not batch & devices:
        yield Seen(
            f"The batch is on {', '.join(sorted(batch))}, the model on {', '.join(sorted(devices))}.",
            {"batch": sorted(batch)},
        )
