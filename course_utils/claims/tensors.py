"""Lesson 01: what people say about tensors. Memory, views and shapes are here, dtypes and devices in tensors_types."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from course_utils.claims.evidence import WORKS, attempt, time_ratio
from course_utils.claims.ledger import Evidence
from course_utils.claims.tensors_types import PAGE
from course_utils.claims.verdicts import CAVEAT, FALSE, TRUE
from course_utils.memory import counting_new_bytes, shares_storage
from course_utils.seeding import deterministic

__all__ = ["PAGE"]


# --- Views and copies ------------------------------------------------------------------------------------------------


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
    "T005",
    "reshape is the safer choice for non-contiguous tensors.",
    rule=lambda seen: (
        FALSE if seen["x.t().reshape(6)"] != WORKS else TRUE if seen["a write to the result reaches x"] else CAVEAT
    ),
    right="It never fails for its strides. But where view would, it copies without a word, so what you write to the "
    "result no longer reaches the original.",
    page="generated/torch.reshape.html",
)
@PAGE.claim(
    "T025",
    "Before reshaping a transposed tensor you must call contiguous() yourself.",
    rule=lambda seen: FALSE if seen["x.t().reshape(6)"] == WORKS else TRUE,
    right="reshape copies by itself where it must, and costs the same: contiguous() first is needed only for view.",
    page="generated/torch.reshape.html",
)
def reshape_of_a_transposed_tensor() -> Evidence:
    x = torch.zeros(2, 3)
    with counting_new_bytes() as by_itself:
        reshape = attempt(lambda: x.t().reshape(6))
    with counting_new_bytes() as by_hand:
        x.t().contiguous().view(6)
    if reshape == WORKS:
        x.t().reshape(6)[0] = 9.0
    return {
        "x.t().view(6)": attempt(lambda: x.t().view(6)),
        "x.t().reshape(6)": reshape,
        "a write to the result reaches x": bool(x[0, 0] == 9.0),
        "bytes copied by reshape": by_itself.total,
        "bytes copied by contiguous().view": by_hand.total,
    }


@PAGE.claim(
    "T008",
    "x.add_(1) modifies the memory in place while x = x + 1 creates a new tensor.",
    rule=lambda seen: TRUE if seen["new bytes, add_"] == 0 < seen["new bytes, x + 1"] else FALSE,
    right="On this version both do the same.",
    page="generated/torch.Tensor.add_.html",
)
def adding_in_place() -> Evidence:
    x = torch.zeros(1000)
    with counting_new_bytes() as in_place:
        x.add_(1)
    with counting_new_bytes() as out_of_place:
        y = x + 1
    return {
        "new bytes, add_": in_place.total,
        "new bytes, x + 1": out_of_place.total,
        "x + 1 shares memory with x": shares_storage(x, y),
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
    "T023",
    "transpose and permute do not move data; they only change the strides over the same storage.",
    rule=lambda seen: TRUE if seen["new bytes"] == 0 and seen["both share the storage of x"] else FALSE,
    right="On this version they copy.",
    page="tensor_view.html",
)
def swapping_axes() -> Evidence:
    x = torch.zeros(2, 3, 4)
    with counting_new_bytes() as new:
        transposed, permuted = x.transpose(0, 2), x.permute(2, 0, 1)
    return {
        "new bytes": new.total,
        "both share the storage of x": shares_storage(x, transposed) and shares_storage(x, permuted),
        "strides of x": str(x.stride()),
        "transposed": str(transposed.stride()),
        "permuted": str(permuted.stride()),
    }


@PAGE.claim(
    "T024",
    "Contiguity/stride order is what the tensor attribute called layout describes.",
    rule=lambda seen: (
        FALSE if seen["layout of x"] == seen["layout of x.t()"] and seen["strides of x"] != seen["strides of x.t()"]
        else TRUE
    ),
    right="layout says in which form the values are stored at all: strided, sparse_coo, sparse_csr, …; for the order "
    "ask stride() and is_contiguous(), with a memory_format if need be.",
    page="tensor_attributes.html#torch.layout",
)  # fmt: skip
def layout_of_a_transposed_tensor() -> Evidence:
    x = torch.eye(2, 3)
    return {
        "layout of x": str(x.layout),
        "layout of x.t()": str(x.t().layout),
        "layout of x.to_sparse()": str(x.to_sparse().layout),
        "strides of x": str(x.stride()),
        "strides of x.t()": str(x.t().stride()),
    }


@PAGE.claim(
    "T026",
    "contiguous() copies memory, so repeating it in a loop costs time.",
    rule=lambda seen: (
        FALSE if not seen["bytes copied, transposed"] else CAVEAT if seen["x.contiguous() is x"] else TRUE
    ),
    right="It copies only where the tensor is not contiguous yet; otherwise it returns the tensor itself. In a loop, "
    "keep what the first call returned.",
    page="generated/torch.Tensor.contiguous.html",
)
def contiguous_again_and_again() -> Evidence:
    x = torch.zeros(100, 200)
    with counting_new_bytes() as transposed:
        copy = x.t().contiguous()
    with counting_new_bytes() as again:
        copy.contiguous()
    return {
        "bytes copied, transposed": transposed.total,
        "bytes copied, called again on the result": again.total,
        "x.contiguous() is x": x.contiguous() is x,
    }


@PAGE.claim(
    "T027",
    "Matrix multiplication accepts transposed (strided) tensors without calling contiguous().",
    rule=lambda seen: (
        FALSE if seen["a.t() @ b"] != WORKS or not seen["same values as with contiguous()"]
        else CAVEAT if seen["bytes beyond the result"]
        else TRUE
    ),
    right="On this version the transposed matrix is copied first.",
    page="generated/torch.matmul.html",
)  # fmt: skip
def product_with_a_transposed_matrix() -> Evidence:
    a, b = torch.rand(20, 30), torch.rand(20, 40)
    with counting_new_bytes() as new:
        product = a.t() @ b  # (30, 20) @ (20, 40) -> (30, 40)
    return {
        "a.t() @ b": attempt(lambda: a.t() @ b),
        "same values as with contiguous()": torch.allclose(product, a.t().contiguous() @ b),
        "bytes beyond the result": new.total - 4 * 30 * 40,
    }


# --- Making tensors --------------------------------------------------------------------------------------------------


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


@PAGE.claim(
    "T020",
    "torch.as_tensor(data) shares memory with its source when possible.",
    rule=lambda seen: (
        TRUE if seen["shares with a NumPy array"] and seen["shares with a tensor"]
        else CAVEAT if any(seen.values())
        else FALSE
    ),
    right="On this version it copies where it would not have to.",
    page="generated/torch.as_tensor.html",
)  # fmt: skip
def edit_the_source_of_as_tensor() -> Evidence:
    array, other, values, source = np.zeros(2), np.zeros(2), [0.0, 0.0], torch.zeros(2)
    results = {
        "a NumPy array": torch.as_tensor(array),
        "a tensor": torch.as_tensor(source),
        "a NumPy array of another dtype": torch.as_tensor(other, dtype=torch.float32),
        "a list": torch.as_tensor(values),
    }
    values[0], array[0], other[0], source[0] = 1.0, 1.0, 1.0, 1.0
    return {f"shares with {kind}": bool(result[0] == 1.0) for kind, result in results.items()}


@PAGE.claim(
    "T021",
    "torch.empty does not initialise memory, so it is the fastest factory, and its content is random.",
    rule=lambda seen: (
        FALSE if seen["times longer, torch.zeros"] <= 1 else TRUE if seen["torch.empty draws"] else CAVEAT
    ),
    right="It is fast because it writes nothing. What you see is what the memory held before, often zeros or older "
    "results, and no random number.",
    page="generated/torch.empty.html",
    varies=True,
)
def what_empty_draws() -> Evidence:
    def draws(factory: Callable[[int], Tensor]) -> bool:
        before = torch.get_rng_state()
        factory(1000)
        return not torch.equal(before, torch.get_rng_state())

    size = 1_000_000
    return {
        "torch.empty draws": draws(torch.empty),
        "torch.rand draws": draws(torch.rand),
        "times longer, torch.zeros": time_ratio(lambda: torch.zeros(size), lambda: torch.empty(size)),
    }


@PAGE.claim(
    "T022",
    "Forgetting to overwrite a torch.empty buffer produces plausible garbage values that are very hard to debug.",
    rule=lambda seen: CAVEAT if seen["NaN in deterministic mode"] == seen["values"] else TRUE,
    right="Old values can come back. But with torch.use_deterministic_algorithms(True) PyTorch fills every new buffer "
    "with NaN, and what you forgot to write shows at once.",
    page="deterministic.html",
    varies=True,
)
def old_values_in_new_buffers() -> Evidence:
    size, rounds, met = 10_000, 20, 0
    for _ in range(rounds):
        old = torch.full((size,), 7.0)
        del old  # its memory may be handed out again
        met += bool((torch.empty(size) == 7.0).any())
    with deterministic():
        filled = torch.empty(size).isnan().sum().item()
    return {"rounds": rounds, "rounds in which old values came back": met, "values": size,
            "NaN in deterministic mode": filled}  # fmt: skip


@PAGE.claim(
    "T028",
    "torch.from_numpy shares memory with the array, so modifying one changes the other.",
    rule=lambda seen: TRUE if seen["from_numpy: array -> tensor"] and seen["from_numpy: tensor -> array"] else FALSE,
    right="On this version from_numpy copies.",
    page="generated/torch.from_numpy.html",
)
@PAGE.claim(
    "T029",
    "A CPU tensor and its .numpy() result share memory.",
    rule=lambda seen: TRUE if seen["numpy(): array -> tensor"] and seen["numpy(): tensor -> array"] else FALSE,
    right="On this version numpy() copies.",
    page="generated/torch.Tensor.numpy.html",
)
def edits_across_numpy() -> Evidence:
    array = np.zeros(2)
    tensor = torch.from_numpy(array)
    array[0], tensor[1] = 1.0, 1.0
    source = torch.zeros(2)
    result = source.numpy()
    source[0], result[1] = 1.0, 1.0
    return {
        "from_numpy: array -> tensor": bool(tensor[0] == 1.0),
        "from_numpy: tensor -> array": bool(array[1] == 1.0),
        "numpy(): tensor -> array": bool(result[0] == 1.0),
        "numpy(): array -> tensor": bool(source[1] == 1.0),
    }


# --- Broadcasting ----------------------------------------------------------------------------------------------------


@PAGE.claim(
    "T036",
    "After taking a mean over a dimension the result can be subtracted from the original directly thanks to "
    "broadcasting.",
    rule=lambda seen: (
        FALSE if WORKS not in (seen["(3, 4), mean over dim 0"], seen["(3, 4), mean over dim 1, keepdim"])
        else CAVEAT if seen["(3, 4), mean over dim 1"] != WORKS or not seen["(3, 3), mean over dim 1: rows centred"]
        else TRUE
    ),
    right="Only for the first dimension, or with keepdim=True. Otherwise the shapes don't fit or, worse, they fit by "
    "chance: a square matrix is shifted by the wrong means without an error.",
    page="notes/broadcasting.html",
)  # fmt: skip
def subtracting_a_mean() -> Evidence:
    x, square = torch.rand(3, 4), torch.rand(3, 3)
    centred = square - square.mean(1)
    return {
        "(3, 4), mean over dim 0": attempt(lambda: x - x.mean(0)),
        "(3, 4), mean over dim 1": attempt(lambda: x - x.mean(1)),
        "(3, 4), mean over dim 1, keepdim": attempt(lambda: x - x.mean(1, keepdim=True)),
        "(3, 3), mean over dim 1: rows centred": torch.allclose(centred.mean(1), torch.zeros(3), atol=1e-6),
    }


@PAGE.claim(
    "T037",
    "Subtracting a label of shape [batch] from an output of shape [batch, seq, classes] silently broadcasts to "
    "[batch, seq, batch].",
    rule=lambda seen: (
        TRUE if set(seen.values()) == {"(4, 5, 4)"} else CAVEAT if "(4, 5, 4)" in seen.values() else FALSE
    ),
    right="Only if classes is 1, or happens to equal the batch size; with any other number the shapes don't fit, and "
    "an error says so.",
    page="notes/broadcasting.html",
)
def labels_subtracted_from_a_sequence() -> Evidence:
    labels, seen = torch.zeros(4), {}
    for classes in (3, 1, 4):
        shapes: list[str] = []
        output = torch.zeros(4, 5, classes)
        error = attempt(lambda output=output, shapes=shapes: shapes.append(str(tuple((output - labels).shape))))
        seen[f"batch 4, seq 5, classes {classes}"] = shapes[0] if shapes else error
    return seen


PAGE.claims.sort(key=lambda claim: claim.id)  # two modules, one list
