"""Exercises and clinic items of lesson 01: titles, hints, and where each check is."""

from __future__ import annotations

from course_utils.exercises.registry import CLINIC, Exercise
from course_utils.exercises.tensors_clinic import (
    check_clinic_channels,
    check_clinic_darker,
    check_clinic_loss,
    check_clinic_onehot,
    check_clinic_prepare,
    check_clinic_rows,
)
from course_utils.exercises.tensors_memory import (
    check_moving_average,
    check_needs_copy,
    check_patches,
    check_position,
    check_snapshot,
    check_windows,
)
from course_utils.exercises.tensors_values import check_best, check_distances, check_energy, check_with_ones

EXERCISES = [
    Exercise(
        id="tensors.energy",
        title="Energy of a uint8 image",
        check=check_energy,
        hints=(
            "What is the largest number that uint8 can hold, and what is 20 times 20?",
            "Change the dtype first, square then, average last: over the two pixel axes.",
            "images.float().square().mean((1, 2))",
        ),
        errors=(
            ("could not infer output dtype", "mean refuses integers. Change the dtype first: images.float()."),
            ("Input dtype must be either", "mean refuses integers. Change the dtype first: images.float()."),
        ),
    ),
    Exercise(
        id="tensors.with-ones",
        title="A column of ones, anywhere",
        check=check_with_ones,
        hints=(
            "A factory function decides dtype and device itself unless you tell it. x knows both.",
            "torch.ones(..., dtype=x.dtype, device=x.device), or x.new_ones(...). Then torch.cat along axis 1.",
            "torch.cat([x, x.new_ones(len(x), 1)], dim=1)",
        ),
        errors=(
            ("same device", "torch.ones made its column on the CPU, x lives elsewhere. Pass device=x.device."),
            ("meta", "Your column and x are on different devices. Pass device=x.device, or use x.new_ones."),
        ),
    ),
    Exercise(
        id="tensors.best",
        title="The winner in plain Python",
        check=check_best,
        hints=(
            "A tensor with one element is still a tensor. A log file or a JSON answer wants a number.",
            "argmax finds the class. item() leaves the tensor world, and the graph.",
            "label = scores.argmax().item(); return label, scores[label].item()",
        ),
    ),
    Exercise(
        id="tensors.position",
        title="Where an element lies in storage",
        check=check_position,
        hints=(
            "Start at the first element. How far is one step along each axis?",
            "x.storage_offset() is where the first element lies, x.stride() how far each step goes, in elements.",
            "x.storage_offset() + sum(i * s for i, s in zip(index, x.stride()))",
        ),
    ),
    Exercise(
        id="tensors.windows",
        title="Sliding windows, copying nothing",
        check=check_windows,
        hints=(
            "Two neighbouring windows share all but one element. In a view they can share the memory too.",
            "Both axes have the same stride: that of the series. Look up Tensor.unfold, or torch.as_strided.",
            "series.unfold(0, size, 1)",
        ),
        errors=(("out of bounds", "A window reaches beyond the storage: there are T - size + 1 of them."),),
    ),
    Exercise(
        id="tensors.patches",
        title="Cut an image into patches, copying nothing",
        check=check_patches,
        hints=(
            "Each axis is two axes in one: which patch, and which pixel inside it.",
            "Split both axes: (H/s, s, W/s, s). Then the grid axes must come first: permute.",
            "image.unflatten(0, (-1, size)).unflatten(2, (-1, size)).permute(0, 2, 1, 3)",
        ),
        errors=(
            (
                "view size is not compatible",
                "This image has gaps in storage. view can split an axis, but not merge two: split each axis alone.",
            ),
        ),
    ),
    Exercise(
        id="tensors.needs-copy",
        title="Whether reshape must copy",
        check=check_needs_copy,
        hints=(
            "A flat view has one stride for everything. When do two neighbouring axes step like one?",
            "Axes i and i + 1 merge if stride[i] == stride[i + 1] * size[i + 1]. Drop axes of length 1 first.",
            "Or ask PyTorch: x.view(-1) raises a RuntimeError exactly when there is no flat view.",
        ),
    ),
    Exercise(
        id="tensors.moving-average",
        title="Update an average in place",
        check=check_moving_average,
        hints=(
            "The caller keeps the same tensor and looks into it later. A new tensor doesn't help.",
            "average.mul_(decay) first, then add the value with its weight: add_(value, alpha=...).",
            "average.mul_(decay).add_(value, alpha=1 - decay)",
        ),
    ),
    Exercise(
        id="tensors.snapshot",
        title="A snapshot that stays",
        check=check_snapshot,
        hints=(
            "Two ties have to be cut: the one to the memory, and the one to the graph.",
            "detach cuts the tie to the graph and shares the memory. clone copies the memory and stays in the graph.",
            "weight.detach().clone()",
        ),
        errors=(("requires grad", "NumPy can't follow gradients. Detach first."),),
    ),
    Exercise(
        id="tensors.distances",
        title="All distances at once",
        check=check_distances,
        hints=(
            "Broadcasting lines shapes up from the right. Where must each of the two get an axis of length 1?",
            "a[:, None, :] is (N, 1, D), b[None, :, :] is (1, M, D). Their difference is (N, M, D).",
            "(a[:, None] - b[None]).square().sum(2).sqrt()",
        ),
        errors=(
            ("must match the size", "The shapes (N, D) and (M, D) don't line up. Insert an axis of length 1 in each."),
        ),
    ),
    Exercise(
        id="tensors.clinic-channels",
        title="Colours in disorder",
        check=check_clinic_channels,
        kind=CLINIC,
        unseen="The shape is right, and a network trains on pictures in disorder too, only worse.",
        hints=(
            "The shape is right. Look at one channel as a picture.",
            "reshape keeps the reading order of all numbers and cuts it anew. Here the axes themselves must move.",
            "images.permute(0, 3, 1, 2)",
        ),
    ),
    Exercise(
        id="tensors.clinic-loss",
        title="The loss that does not fall",
        check=check_clinic_loss,
        kind=CLINIC,
        finding="loss.broadcast",
        hints=(
            "Print the shape of the difference before the mean hides it.",
            "Name the axis: outputs.squeeze(1), or labels[:, None]. Not squeeze(), which also eats a batch of one.",
            "((outputs.squeeze(1) - labels) ** 2).mean()",
        ),
    ),
    Exercise(
        id="tensors.clinic-rows",
        title="Tested on the wrong matrix",
        check=check_clinic_rows,
        kind=CLINIC,
        finding="failure.step",
        hints=(
            "Try it on a matrix that is not square. What does the error say about the shape of the mean?",
            "A mean over axis 1 has shape (N,), and broadcasting lines that up with the last axis.",
            "x - x.mean(1, keepdim=True)",
        ),
        errors=(
            (
                "must match the size",
                "The means have lost their axis, so they no longer line up with the rows. keepdim=True keeps it.",
            ),
        ),
    ),
    Exercise(
        id="tensors.clinic-darker",
        title="The data set that fades",
        check=check_clinic_darker,
        kind=CLINIC,
        finding="data.reading-edits",
        hints=(
            "Call it twice with the same index.",
            "images[index] copies nothing. What does *= write to?",
            "return images[index] * 0.5",
        ),
    ),
    Exercise(
        id="tensors.clinic-onehot",
        title="Every row the same",
        check=check_clinic_onehot,
        kind=CLINIC,
        finding="model.mixes-batch",
        hints=(
            "Look at the strides of rows before the loop.",
            "A stride of 0 means: the next row is the same memory.",
            "rows = torch.zeros(len(labels), n_classes)",
        ),
    ),
    Exercise(
        id="tensors.clinic-prepare",
        title="Three lines that do nothing",
        check=check_clinic_prepare,
        kind=CLINIC,
        finding="failure.step",
        hints=(
            "Print x.dtype after each line. Which line changes it?",
            "float(), long() and to() never change the tensor they are called on. They return one.",
            "x = torch.from_numpy(features).to(device, torch.float32)",
        ),
        errors=(
            ("same dtype", "The layer computes in float32 and got something else. Print x.dtype."),
            ("expected scalar type", "Labels are class numbers in int64. Print y.dtype."),
        ),
    ),
]
