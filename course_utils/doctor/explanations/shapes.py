"""Shapes that don't fit: which layer or line, and both shapes."""

from __future__ import annotations

import math

from torch import nn

from course_utils.doctor.explain import Case, Explanation, explains
from course_utils.doctor.scene import Operand

_CONVOLUTIONS = nn.modules.conv._ConvNd
_NORMS = nn.modules.batchnorm._NormBase


def _input(case: Case) -> Operand | None:
    """What came into the layer."""
    inputs = case.scene.layer_inputs or tuple(o for o in case.scene.operands if not o.is_parameter)
    return inputs[0] if inputs else None


def _told(case: Case, message: str, fix: str, slug: str = "shape-mismatch", **more: object) -> Explanation:
    given = _input(case)
    evidence = {**case.shapes, **({"input_shape": list(given.shape)} if given is not None else {}), **more}
    return Explanation(slug, message, fix, evidence)


@explains(r"Expected more than 1 value per channel")
def batchnorm_of_one(case: Case) -> Explanation:
    return _told(
        case, f"BatchNorm in training mode got a single value per channel in {case.where}: the batch has one example.",
        "DataLoader(data, batch_size, drop_last=True)", "batchnorm-of-one", sizes=case.examination.batches.sizes[:20],
    )  # fmt: skip


@explains(r"mat1 and mat2 shapes cannot be multiplied|size mismatch, got|inner dimension|mat1 dim 1 must match mat2|"
          r"input\.size\(-1\) must be equal to input_size|input has inconsistent input_size|"
          r"Expected size for first two dimensions of batch2|batch1 and batch2 must have same|vector")  # fmt: skip
def product(case: Case) -> Explanation | None:
    layer, given = case.scene.module, _input(case)
    if isinstance(layer, nn.Linear) and given is not None and given.shape:
        last = given.shape[-1]
        flat = math.prod(given.shape[1:]) if len(given.shape) > 2 else 0
        fix = f"nn.Linear({last}, {layer.out_features})"
        if flat == layer.in_features:
            fix = "x = x.flatten(1)  # before this layer"
        elif len(given.shape) > 1 and given.shape[1] == layer.in_features:
            fix = "x = x.transpose(1, -1)  # features on the last axis"
        return _told(
            case, f"Layer {case.scene.layer!r} takes {layer.in_features} features on the last axis and gets shape "
            f"{given.shape}, with {last}.", fix, in_features=layer.in_features,
        )  # fmt: skip
    if isinstance(layer, (nn.RNNBase, nn.RNNCellBase)) and given is not None and given.shape:
        return _told(
            case, f"Layer {case.scene.layer!r} ({type(layer).__name__}) takes {layer.input_size} features on the last "
            f"axis and gets shape {given.shape}.",
            f"nn.{type(layer).__name__}({given.shape[-1]}, {layer.hidden_size})", input_size=layer.input_size,
        )  # fmt: skip
    if not case.scene.operands and "shapes cannot be" not in case.text:
        return None
    return _told(
        case, f"A matrix product in {case.where} gets {case.shapes_text or case.first_line}: the last axis of the "
        "first must equal the second-to-last of the second.",
        "b.transpose(-1, -2)  # or the factors the other way round",
    )  # fmt: skip


@explains(r"Given groups=\d+, weight of size|expected input\S* to have \d+ channels|"
          r"running_mean should contain \d+ elements|Expected number of channels|num_channels|weight should "
          r"contain")  # fmt: skip
def channels(case: Case) -> Explanation:
    layer, given = case.scene.module, _input(case)
    shape = given.shape if given is not None else ()
    wanted = getattr(layer, "in_channels", getattr(layer, "num_features", getattr(layer, "num_channels", None)))
    fix = "one layer's out_channels is the next layer's in_channels"
    if wanted is not None and len(shape) > 2 and shape[-1] == wanted:
        fix = "x = x.movedim(-1, 1)  # (N, H, W, C) -> (N, C, H, W)"
    elif wanted is not None and len(shape) > 1 and isinstance(layer, (_CONVOLUTIONS, _NORMS)):
        kind = type(layer).__name__
        out = f", {layer.out_channels}, …" if isinstance(layer, _CONVOLUTIONS) else ""
        fix = f"nn.{kind}({shape[1]}{out})  # or other channels before it"
    return _told(
        case, f"{case.where[0].upper()}{case.where[1:]} takes {wanted if wanted is not None else 'other'} channels on "
        f"axis 1 and gets shape {shape}"
        + (f", with {shape[1]}." if len(shape) > 1 else "."), fix, channels=wanted,
    )  # fmt: skip


@explains(r"Expected \d\w* \(unbatched\) or \d\w* \(batched\)|expected \d\w*(?: or \d\w*)? input \(got \d\w* input\)|"
          r"Expected \d-?D(?: or \d-?D)?|expected \d-dimensional|must have the same number of spatial dimensions|"
          r"Expected input to be (?:2|3)\S* (?:or|D)|RNN: Expected input")  # fmt: skip
def number_of_axes(case: Case) -> Explanation:
    given = _input(case)
    shape = given.shape if given is not None else ()
    fix = "x.unsqueeze(1)  # one channel: (N, H, W) -> (N, 1, H, W)"
    if isinstance(case.scene.module, (nn.Conv1d, nn.BatchNorm1d)) or len(shape) > 4:
        fix = "x.flatten(2)  # or another layer: 1d takes (N, C, L), 2d (N, C, H, W)"
    elif len(shape) == 2 and isinstance(case.scene.module, (nn.Conv2d, nn.BatchNorm2d)):
        fix = "x.view(len(x), 1, height, width)  # images were flattened before this layer"
    return _told(
        case, f"{case.where[0].upper()}{case.where[1:]} takes another number of axes than shape {shape} has: "
        f"{case.first_line}.", fix,
    )  # fmt: skip


@explains(r"Kernel size can't be greater|Output size is too small|[Oo]utput size .*too small|Calculated padded input")
def too_small(case: Case) -> Explanation:
    given = _input(case)
    return _told(
        case, f"{case.where[0].upper()}{case.where[1:]} gets shape {given.shape if given is not None else ()}, which "
        "is smaller than its kernel: pooling and strides before it have used up the picture.",
        "padding=1, a pooling layer less, or nn.AdaptiveAvgPool2d(1)", "too-small",
    )  # fmt: skip


@explains(r"Given normalized_shape=(\[[^\]]*\])")
def layer_norm(case: Case) -> Explanation:
    given = _input(case)
    shape = given.shape if given is not None else ()
    return _told(
        case, f"{case.where[0].upper()}{case.where[1:]} normalises the last axes {case.match[1]} and gets shape "
        f"{shape}.",
        f"nn.LayerNorm({shape[-1] if shape else '…'})", normalized_shape=case.match[1],
    )  # fmt: skip


@explains(r"[Ee]xpected hidden(?:\[\d\])? size|doesn't match hidden|hidden\d? has inconsistent|"
          r"Input batch size \d+ doesn't match")  # fmt: skip
def hidden_state(case: Case) -> Explanation:
    given, state = _input(case), case.operand(1)
    inputs = case.scene.layer_inputs
    state = inputs[1] if len(inputs) > 1 else state
    return _told(
        case, f"{case.where[0].upper()}{case.where[1:]} gets input {given.shape if given else ()} and a state "
        f"{state.shape if state else ()}, made for another batch size: {case.first_line}.",
        "h = torch.zeros(layers, len(x), hidden)  # for each batch; drop_last=True if the state is carried over",
        "hidden-state", state_shape=list(state.shape) if state is not None else [],
    )  # fmt: skip


@explains(r"expecting embedding dimension|attn_mask|key_padding_mask|key_padded_mask|embed_dim|"
          r"src and tgt must|the feature number of src")  # fmt: skip
def attention(case: Case) -> Explanation:
    batch_first = getattr(case.scene.module, "batch_first", None)
    note = "" if batch_first is not False else " Without batch_first=True it takes (T, N, E)."
    shapes = ", ".join(str(o.shape) for o in case.scene.layer_inputs[:3])
    return _told(
        case, f"Attention in {case.where} gets shapes {shapes}: {case.first_line}.{note}",
        "nn.MultiheadAttention(embed_dim, heads, batch_first=True)  # (N, T, E); masks (T, T), padding (N, T)",
    )  # fmt: skip


@explains(r"index out of range in self|out of bounds|out of range in")
def index_out_of_range(case: Case) -> Explanation | None:
    layer = case.scene.module
    if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
        index = next((o for o in case.scene.operands if o.most is not None), _input(case))
        most, least = (index.most, index.least) if index is not None else (None, None)
        asked = least if least is not None and least < 0 else most
        fix = f"nn.Embedding({(most if most is not None else 0) + 1}, {layer.embedding_dim})"
        if asked is not None and asked < 0:
            fix = "x.masked_fill(x < 0, 0), with padding_idx=0  # rows are counted from 0"
        return _told(
            case, f"Embedding {case.scene.layer!r} has rows 0 to {layer.num_embeddings - 1} and is asked for row "
            f"{asked}.", fix, "index-out-of-range", rows=layer.num_embeddings, largest_index=most, smallest_index=least,
        )  # fmt: skip
    if not case.scene.operands:
        return None
    return _told(
        case, f"In {case.where}, {case.scene.function} gets {case.shapes_text}: {case.first_line}.",
        "print the largest index and the length of that axis", "index-out-of-range",
    )  # fmt: skip


@explains(r"view size is not compatible")
def view(case: Case) -> Explanation:
    return _told(
        case, f"view() needs neighbouring axes, and the tensor was transposed or permuted{case.at}.",
        "x.reshape(…)  # or x.flatten(1)", "view",
    )  # fmt: skip


@explains(r"shape '(\[[^\]]*\])' is invalid for input of size (\d+)|Provided sizes .* don't multiply up")
def reshape(case: Case) -> Explanation:
    given = case.operand(0)
    return _told(
        case, f"In {case.where}, {given or 'a tensor'} can't become {case.match[1] or 'these axes'}: the numbers of "
        f"elements differ{f' ({case.match[2]})' if case.match[2] else ''}.",
        "x.flatten(1)  # or -1 for one axis; the batch size belongs to no fixed number", "reshape",
        wanted=case.match[1],
    )  # fmt: skip


@explains(r"Dimension out of range|number of dimensions in the tensor input does not match|dims? .*not match")
def axis(case: Case) -> Explanation:
    return _told(
        case, f"In {case.where}, {case.scene.function or 'a function'} is asked for an axis that "
        f"{case.shapes_text or 'the tensor'} does not have: {case.first_line}.",
        "dim=-1 is the last axis; squeeze() without dim also removes a batch of one", "axis",
    )  # fmt: skip


@explains(r"The size of tensor a|must match|expand|Sizes of tensors|shape mismatch|does not broadcast|"
          r"does not match the shape|not broadcastable|must have the same (?:size|shape|number of dim)|"
          r"Index tensor must have|stack expects each tensor")  # fmt: skip
def broadcast(case: Case) -> Explanation | None:
    if not case.scene.operands:
        if "stack expects" in case.text:
            return None  # a loader's: loading says it
        return _told(
            case, f"Two shapes do not fit{case.at}: {case.first_line}.", "print the two shapes before this line"
        )
    first, second = case.operand(0), case.operand(1)
    fix = "print the two shapes before this line; axes are compared from the last one"
    if first is not None and second is not None and case.scene.function not in ("cat", "concat", "stack"):
        if sorted(first.shape) == sorted(second.shape) and first.shape != second.shape:
            fix = "x.transpose(1, 2)  # the same axes in another order"
        elif len(first.shape) > len(second.shape) and second.shape == first.shape[: len(second.shape)]:
            fix = f"y{'.unsqueeze(-1)' * (len(first.shape) - len(second.shape))}  # axes are compared from the last one"
    return _told(
        case, f"In {case.where}, {case.scene.function}() gets {case.shapes_text}, which do not fit.", fix,
    )  # fmt: skip
