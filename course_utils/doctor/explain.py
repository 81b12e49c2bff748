"""Say what an exception of PyTorch means, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from course_utils.doctor.parts import named_leaves, tensors_of
from course_utils.doctor.running import Failure

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination


@dataclass(frozen=True)
class Explanation:
    """What an exception means.

    Args:
        slug: kind of the fault, the second part of the finding's code.
        message: in words.
        fix: the repair.
        evidence: shapes, dtypes, names.
        lesson: where it is taught.
    """

    slug: str
    message: str
    fix: str
    evidence: dict[str, Any]
    lesson: str


def explain(failure: Failure, examination: Examination) -> Explanation:
    """Return the explanation of an exception; an unknown one is told with its line."""
    text = failure.text
    for pattern, explainer in _TABLE:
        match = re.search(pattern, text, re.DOTALL)
        if match is not None:
            return explainer(match, failure, examination)
    first = text.strip().splitlines()[0] if text.strip() else ""
    at = f" in `{failure.line}`" if failure.line else ""
    return Explanation("exception", f"{failure.kind}: {first}{at}.", "read the line that is named", {}, "05_training")


def _failed_at(examination: Examination) -> int:
    run = examination.run_facts
    return run.failed_at if run is not None else 0


def _layer_that_failed(examination: Examination) -> tuple[str, nn.Module, tuple[int, ...], str] | None:
    """Run the model once more and return the innermost layer that raised, with the shape and dtype it was given."""
    import torch

    model, kept = examination.parts.model, examination.batches.kept
    if model is None or not kept:
        return None
    stack: list[tuple[nn.Module, Any]] = []
    innermost: list[tuple[nn.Module, Any]] = []

    def before(module: nn.Module, inputs: Any) -> None:
        stack.append((module, inputs))

    def after(module: nn.Module, inputs: Any, output: Any) -> None:
        if stack:
            stack.pop()

    def go() -> None:
        hooks = nn.modules.module
        handles = [hooks.register_module_forward_pre_hook(before), hooks.register_module_forward_hook(after)]
        try:
            examination.parts.run_step(kept[0])
        finally:
            for handle in handles:
                handle.remove()
            innermost.extend(stack)

    with torch.no_grad():
        examination.run(go, 0.2)
    names = {id(module): name for name, module in model.named_modules()}
    for module, inputs in reversed(innermost):
        if not list(module.children()):
            first = next(iter(tensors_of(inputs)), None)
            shape = tuple(first.shape) if isinstance(first, Tensor) else ()
            return (
                names.get(id(module), type(module).__name__) or type(module).__name__,
                module,
                shape,
                str(getattr(first, "dtype", "")),
            )
    return None


def _matmul(match: re.Match[str], failure: Failure, examination: Examination) -> Explanation:
    found = _layer_that_failed(examination)
    if found is not None and isinstance(found[1], nn.Linear):
        name, layer, shape, _ = found
        return Explanation(
            "shape-mismatch",
            f"Layer {name!r} takes {layer.in_features} features on the last axis and gets shape {shape}, with "
            f"{shape[-1] if shape else 0}.",
            f"nn.Linear({shape[-1] if shape else '…'}, {layer.out_features})  # or x.flatten(1) before it",
            {"layer": name, "in_features": layer.in_features, "input_shape": list(shape)},
            "01_tensors",
        )
    return Explanation(
        "shape-mismatch", f"A matrix product gets shapes that do not fit: {match[0]}, at `{failure.line}`.",
        "print the shapes; the last axis of the first must equal the second-to-last of the second",
        {"shapes": match[0]}, "01_tensors",
    )  # fmt: skip


def _channels(match: re.Match[str], failure: Failure, examination: Examination) -> Explanation:
    found = _layer_that_failed(examination)
    name = found[0] if found is not None else "a convolution"
    shape = list(found[2]) if found is not None else []
    return Explanation(
        "shape-mismatch", f"Layer {name!r} expects another number of channels on axis 1 than shape {tuple(shape)} has. "
        f"{failure.text.splitlines()[0]}", "x.permute(0, 3, 1, 2)  # (N, H, W, C) -> (N, C, H, W); or x.unsqueeze(1) "
        "for one channel",
        {"layer": name, "input_shape": shape}, "01_tensors",
    )  # fmt: skip


def _dtype(match: re.Match[str], failure: Failure, examination: Examination) -> Explanation:
    model, kept = examination.parts.model, examination.batches.kept
    parameters = sorted({str(p.dtype).removeprefix("torch.") for p in model.parameters()}) if model is not None else []
    leaves = {name: str(leaf.dtype).removeprefix("torch.") for name, leaf in named_leaves(kept[0])} if kept else {}
    found = _layer_that_failed(examination)
    layer = f" in layer {found[0]!r}" if found is not None else ""
    wrong = [f"{name} is {dtype}" for name, dtype in leaves.items() if dtype not in parameters]
    return Explanation(
        "dtype-mismatch",
        f"Two dtypes meet{layer}: {', '.join(wrong) or 'the input has one'}, the parameters are "
        f"{', '.join(parameters)}. NumPy's numbers are float64 unless told otherwise.",
        "x = x.float()  # in the data set; torch.from_numpy keeps float64",
        {"parameters": parameters, **leaves}, "01_tensors",
    )  # fmt: skip


def _device(match: re.Match[str], failure: Failure, examination: Examination) -> Explanation:
    model, kept = examination.parts.model, examination.batches.kept
    devices = {name: str(leaf.device) for name, leaf in named_leaves(kept[0])} if kept else {}
    parameters = sorted({str(t.device) for t in [*model.parameters(), *model.buffers()]}) if model is not None else []
    hidden = [h.name for h in examination.hidden if str(h.tensor.device) not in parameters]
    return Explanation(
        "device-mismatch",
        f"Tensors on different devices meet at `{failure.line}`: parameters on {', '.join(parameters)}"
        + (f", {', '.join(hidden)} was not moved with them" if hidden else "")
        + ".",
        "x, y = x.to(device), y.to(device)  # Tensor.to returns a copy; constants belong into register_buffer",
        {"parameters": parameters, **devices}, "01_tensors",
    )  # fmt: skip


def _second(match: re.Match[str], failure: Failure, examination: Examination) -> Explanation:
    return Explanation(
        "second-backward", f"backward() went through a graph that an earlier backward() had freed, in step "
        f"{_failed_at(examination)}.",
        "state = state.detach()  # between batches; or one backward() for the sum of the "
        "losses", {"step": _failed_at(examination)},
        "02_autograd",
    )  # fmt: skip


def _inplace(match: re.Match[str], failure: Failure, examination: Examination) -> Explanation:
    return Explanation(
        "inplace-modified", "A tensor that the backward pass needs was changed in place after the forward pass. "
        + (failure.text.split(". Hint")[0].splitlines()[0]), "x = x + 1  # instead of x += 1; nn.ReLU() without "
        "inplace=True",
        {}, "02_autograd",
    )  # fmt: skip


def _no_grad(match: re.Match[str], failure: Failure, examination: Examination) -> Explanation:
    return Explanation(
        "no-graph", "backward() was called on a tensor without a graph: nothing that requires gradients led to it.",
        "look for detach(), .item(), no_grad(), or a model whose parameters are all frozen", {}, "02_autograd",
    )  # fmt: skip


def _labels(match: re.Match[str], failure: Failure, examination: Examination) -> Explanation:
    kept = examination.batches.kept
    labels = examination.parts.split(kept[0])[1] if kept else None
    leaf = labels if isinstance(labels, Tensor) else None
    evidence = {"label_dtype": str(leaf.dtype), "label_shape": list(leaf.shape)} if leaf is not None else {}
    return Explanation(
        "label-dtype",
        "Cross-entropy takes class numbers as int64, and gets something else.",
        "y = y.long()",
        evidence,
        "05_training",
    )


def _label_range(match: re.Match[str], failure: Failure, examination: Examination) -> Explanation:
    kept = examination.batches.kept
    labels = examination.parts.split(kept[min(len(kept) - 1, max(0, _failed_at(examination)))])[1] if kept else None
    evidence = (
        {"least": int(labels.min()), "most": int(labels.max())} if isinstance(labels, Tensor) and labels.numel() else {}
    )
    return Explanation(
        "label-out-of-range",
        f"{failure.text.splitlines()[0]}: the label is no class of the output. Labels go from {evidence.get('least')} "
        f"to {evidence.get('most')}.",
        "y - 1  # classes are 0 to C-1; or a last layer with one more output", evidence, "05_training",
    )  # fmt: skip


def _index(match: re.Match[str], failure: Failure, examination: Examination) -> Explanation:
    found = _layer_that_failed(examination)
    if found is not None and isinstance(found[1], nn.Embedding):
        name, layer, _, _ = found
        ids = next(
            (leaf for _, leaf in named_leaves(examination.batches.kept[0]) if not leaf.is_floating_point()), None
        )
        most = int(ids.max()) if ids is not None and ids.numel() else -1
        return Explanation(
            "index-out-of-range", f"Embedding {name!r} has rows 0 to {layer.num_embeddings - 1} and is asked for row "
            f"{most}.",
            f"nn.Embedding({most + 1}, "
            f"{layer.embedding_dim})", {"rows": layer.num_embeddings, "largest_index": most}, "03_modules",
        )  # fmt: skip
    return Explanation(
        "index-out-of-range",
        f"{failure.text.splitlines()[0]}, at `{failure.line}`.",
        "check the largest index",
        {},
        "01_tensors",
    )


def _batchnorm(match: re.Match[str], failure: Failure, examination: Examination) -> Explanation:
    return Explanation(
        "batchnorm-of-one", "BatchNorm in training mode got a single value per channel: the batch has one example.",
        "DataLoader(data, batch_size, drop_last=True)", {"sizes": examination.batches.sizes[:20]}, "04_data",
    )  # fmt: skip


def _target_size(match: re.Match[str], failure: Failure, examination: Examination) -> Explanation:
    return Explanation(
        "label-shape", f"Prediction and label have shapes that do not fit: {failure.text.splitlines()[0]}",
        "print(output.shape, y.shape)  # classes go on axis 1: (N, C, T) with labels "
        "(N, T)", {"message": failure.text.splitlines()[0]},
        "05_training",
    )  # fmt: skip


def _view(match: re.Match[str], failure: Failure, examination: Examination) -> Explanation:
    return Explanation(
        "view", f"view() needs neighbouring axes, and the tensor was transposed or permuted: `{failure.line}`.",
        "x.reshape(…)  # or x.flatten(1)", {}, "01_tensors",
    )  # fmt: skip


def _collate(match: re.Match[str], failure: Failure, examination: Examination) -> Explanation:
    return Explanation(
        "unequal-sizes", f"Examples of different sizes can't be stacked into a batch: {match[0]}.",
        "DataLoader(…, collate_fn=lambda items: pad_sequence(items, batch_first=True))", {}, "04_data",
    )  # fmt: skip


def _collate_type(match: re.Match[str], failure: Failure, examination: Examination) -> Explanation:
    return Explanation(
        "not-collatable", f"The data set returns something that can't be put into a batch: "
        f"{failure.text.splitlines()[0]}",
        "v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])  # images to tensors", {}, "04_data",
    )  # fmt: skip


def _memory(match: re.Match[str], failure: Failure, examination: Examination) -> Explanation:
    model = examination.parts.model
    parameters = sum(p.numel() * p.element_size() for p in model.parameters()) if model is not None else 0
    state = sum(
        v.numel() * v.element_size()
        for optimizer in examination.optimizers
        for values in optimizer.state.values() if isinstance(values, dict)
        for v in values.values() if isinstance(v, Tensor)
    )  # fmt: skip
    batch = sum(leaf.numel() * leaf.element_size() for leaf in tensors_of(examination.batches.kept[:1]))
    from course_utils.text import human_bytes

    return Explanation(
        "out-of-memory",
        f"The device has no memory left. Parameters take {human_bytes(parameters)}, their gradients as much again, "
        f"the optimizer's state {human_bytes(state)} so far, a batch {human_bytes(batch)}; the rest are activations, "
        "which grow with the batch.",
        "a smaller batch with accumulation, torch.utils.checkpoint, or autocast; course_utils.ledger shows who owns "
        "what",
        {"parameter_bytes": parameters, "gradient_bytes": parameters, "optimizer_state_bytes": state,
         "batch_bytes": batch}, "06_memory",
    )  # fmt: skip


def _key(match: re.Match[str], failure: Failure, examination: Examination) -> Explanation:
    kept = examination.batches.kept
    keys = sorted(map(str, kept[0])) if kept and isinstance(kept[0], dict) else []
    return Explanation(
        "missing-key", f"KeyError {failure.text} at `{failure.line}`." + (f" The batch has "
        f"{', '.join(keys)}." if keys else ""),
        "use a key that is there", {"key": failure.text, "batch_keys": keys}, "04_data",
    )  # fmt: skip


def _state_dict(match: re.Match[str], failure: Failure, examination: Examination) -> Explanation:
    return Explanation(
        "state-dict-mismatch", "Checkpoint and model do not fit: " + " ".join(failure.text.split())[:300],
        "build the model as it was saved, or strip the prefix of the names; a new head is left out before "
        "loading", {}, "05_training",
    )  # fmt: skip


def _unpickle(match: re.Match[str], failure: Failure, examination: Examination) -> Explanation:
    return Explanation(
        "checkpoint-holds-objects", "The checkpoint holds pickled Python objects, and torch.load takes only tensors "
        "and plain values.",
        "torch.save(model.state_dict(), path)  # not the model itself", {}, "05_training",
    )  # fmt: skip


def _cuda(match: re.Match[str], failure: Failure, examination: Examination) -> Explanation:
    return Explanation(
        "no-cuda", f"The code asks for a GPU that is not here: `{failure.line}`.",
        'device = "cuda" if torch.cuda.is_available() else "cpu"', {}, "01_tensors",
    )  # fmt: skip


def _sizes(match: re.Match[str], failure: Failure, examination: Examination) -> Explanation:
    return Explanation(
        "shape-mismatch", f"Two shapes do not fit at `{failure.line}`: "
        f"{failure.text.splitlines()[0]}", "print the two shapes before this line",
        {"where": failure.where}, "01_tensors",
    )  # fmt: skip


def _onecycle(match: re.Match[str], failure: Failure, examination: Examination) -> Explanation:
    return Explanation(
        "schedule-too-short", f"The schedule is over and is stepped once more: {failure.text.splitlines()[0]}",
        "OneCycleLR(optimizer, max_lr, epochs=epochs, steps_per_epoch=len(loader))", {}, "05_training",
    )  # fmt: skip


def _plateau(match: re.Match[str], failure: Failure, examination: Examination) -> Explanation:
    return Explanation(
        "plateau-without-metric",
        "ReduceLROnPlateau needs the number it watches.",
        "scheduler.step(val_loss)",
        {},
        "05_training",
    )


def _flags(match: re.Match[str], failure: Failure, examination: Examination) -> Explanation:
    return Explanation(
        "flag-of-non-leaf", "requires_grad can only be switched on leaves, and this tensor was computed.",
        "h = h.detach()  # or no_grad() around its computation", {}, "02_autograd",
    )  # fmt: skip


def _config(match: re.Match[str], failure: Failure, examination: Examination) -> Explanation:
    return Explanation(
        "text-for-a-number", f"A number came as text: {failure.text}. YAML reads 1e-4 as text and 1.0e-4 as a number.",
        "lr = float(config[\"lr\"])", {}, "05_training",
    )  # fmt: skip


_Explainer = Callable[[re.Match[str], Failure, "Examination"], Explanation]
_TABLE: list[tuple[str, _Explainer]] = [
    (r"out of memory", _memory),
    (r"required positional argument: 'metrics'", _plateau),
    (r"only change requires_grad flags of leaf", _flags),
    (r"not supported between instances of '\w+' and 'str'|unsupported operand type\(s\) for \S+ 'float' and "
    r"'str'", _config),
    (r"same device|different device|Expected all tensors|on device|is on cpu", _device),
    (r"no NVIDIA driver|not compiled with CUDA|No CUDA GPUs", _cuda),
    (r"through the graph a second time", _second),
    (r"modified by an inplace operation|leaf Variable that requires grad", _inplace),
    (r"does not require grad", _no_grad),
    (r"Expected more than 1 value per channel", _batchnorm),
    (r"expected target dtype|expected scalar type Long|not implemented for '(?:Float|Double|Int)'", _labels),
    (r"Target -?\d+ is out of bounds", _label_range),
    (r"index out of range|out of bounds", _index),
    (r"same dtype|expected scalar type|should be the same|Found dtype|expected m1 and m2|got Double|got Long|got "
    r"Float", _dtype),
    (r"mat1 and mat2 shapes cannot be multiplied \([^)]*\)|size mismatch, got|inner dimension", _matmul),
    (r"Given groups=|expected input\S* to have \d+ channels", _channels),
    (r"view size is not compatible", _view),
    (r"stack expects each tensor to be equal size[^\n]*", _collate),
    (r"default_collate: batch must contain", _collate_type),
    (r"Error\(s\) in loading state_dict", _state_dict),
    (r"Weights only load failed", _unpickle),
    (r"Tried to step \d+ times", _onecycle),
    (r"Expected target size|Using a target size|batch_size \(\d+\) to match target|Target size|must match the size of "
    r"tensor|0D or 1D target", _target_size),
    (r"The size of tensor a|shape '\[[^\]]*\]' is invalid|must match|expand|Sizes of tensors", _sizes),
    (r"^'[^']*'$|^\d+$", _key),
]  # fmt: skip
