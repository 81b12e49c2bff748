"""Lesson 01: what people say about tensors, dtypes, devices and strides."""

from __future__ import annotations

import torch

from course_utils.claims.evidence import WORKS, attempt
from course_utils.claims.ledger import Evidence, Page
from course_utils.claims.verdicts import CAVEAT, FALSE, TRUE

PAGE = Page("tensors")


@PAGE.claim(
    "T004",
    "view requires a contiguous tensor and otherwise raises an error.",
    rule=lambda seen: FALSE if WORKS in (seen["split one axis"], seen["same shape"]) else TRUE,
    right="view needs strides that fit the new shape: splitting an axis always fits, merging axes only where they "
    "follow each other in memory.",
    page="generated/torch.Tensor.view.html",
)
def view_of_a_tensor_with_gaps() -> Evidence:
    half = torch.zeros(4, 6)[:, :4]  # (4, 4), two of six columns left out
    return {
        "contiguous": half.is_contiguous(),
        "same shape": attempt(lambda: half.view(4, 4)),
        "split one axis": attempt(lambda: half.view(4, 2, 2)),
        "merge both axes": attempt(lambda: half.view(16)),
    }


@PAGE.claim(
    "T009",
    "Many operations such as t() return views sharing memory, so in-place edits of the view change the original.",
    rule=lambda seen: TRUE if seen["x[1, 0] after x.t()[0, 1] = 9"] == 9.0 else FALSE,
    right="On this version t() doesn't share memory.",
    page="tensor_view.html",
)
def edit_through_a_view() -> Evidence:
    x = torch.zeros(2, 3)
    x.t()[0, 1] = 9.0
    return {"x[1, 0] after x.t()[0, 1] = 9": x[1, 0].item()}


@PAGE.claim(
    "T019",
    "torch.tensor(data) always copies its data.",
    rule=lambda seen: TRUE if not any(seen.values()) else CAVEAT if not all(seen.values()) else FALSE,
    right="On this version some sources share memory with the result.",
    page="generated/torch.tensor.html",
)
def edit_the_source_of_a_tensor() -> Evidence:
    array = torch.zeros(2).numpy()
    values, source = [0.0, 0.0], torch.zeros(2)
    results = {"list": torch.tensor(values), "NumPy array": torch.tensor(array), "tensor": torch.tensor(source)}
    values[0], array[0], source[0] = 1.0, 1.0, 1.0
    return {f"shares memory with a {kind}": bool(result[0] == 1.0) for kind, result in results.items()}
