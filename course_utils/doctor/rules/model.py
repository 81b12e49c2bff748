"""Rules about the model: what it registers, what it computes, in which mode."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from course_utils.doctor.findings import ERROR, NOTE, WARNING, Seen, rule
from course_utils.text import plural

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination


def _some(names: list[str], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


@rule(
    "model.unregistered-parameters", ERROR, "03_modules",
    title="Layers or parameters are kept where the module does not see them.",
    looks="tensors in lists, dicts, tuples and plain objects of a module that get gradients in training steps, and "
    "that no optimizer holds.",
    quiet="a frozen teacher or a skeleton on the meta device hidden on purpose gets no gradient; a second name of a "
    "registered layer is no hidden one.",
    fix="self.layers = nn.ModuleList(layers)  # ModuleDict, ParameterList, ParameterDict",
)  # fmt: skip
def unregistered(examination: Examination) -> Iterator[Seen]:
    trained = examination.trained
    by_holder: dict[str, list] = {}
    for hidden in examination.hidden:
        if hidden.tensor.requires_grad and hidden.tensor.is_leaf and not hidden.tensor.is_meta:
            by_holder.setdefault(hidden.holder, []).append(hidden)
    for holder, several in by_holder.items():
        missed = [h for h in several if id(h.tensor) in trained and id(h.tensor) not in examination.held]
        names = [h.name for h in several]
        kind = several[0].container
        what = "a plain tensor" if kind == "attribute" and several[0].module is None else (
            "an object" if kind == "attribute" else f"a {kind}")  # fmt: skip
        if missed:
            modules = len({id(h.module) for h in several if h.module is not None})
            content = plural(modules, "module") if modules else plural(len(several), "tensor")
            holding = f"{what} holding {content}" if kind != "attribute" else what
            yield Seen(
                f"Attribute {holder!r} is {holding} that parameters() does not see: {_some([h.name for h in missed])} "
                "get gradients, but are neither trained nor saved nor moved.",
                {"tensors": len(several), "with_gradient_and_without_optimizer": len(missed)},
                fix="self.weight = nn.Parameter(tensor)" if what == "a plain tensor" else None,
            )
        elif any(id(h.tensor) in examination.held for h in several):
            yield Seen(
                f"{_some(names)} are trained by the optimizer, but the model does not register them: they are not "
                "saved or moved with it.",
                {"tensors": len(several)}, severity=NOTE,
            )  # fmt: skip
        elif not examination.runs or examination.failure is not None:
            yield Seen(
                f"Attribute {holder!r} is {what} with trainable tensors that parameters() does not see: "
                f"{_some(names)}.",
                {"tensors": len(several)},
                severity=None if several[0].is_parameter and not examination.parts.optimizers else NOTE,
            )


@rule(
    "model.constant-not-a-buffer", ERROR, "03_modules",
    title="A constant is a plain attribute and no buffer.",
    looks="tensors that a module holds without registering them, and uses in forward, whose dtype or device differs "
    "from the parameters'.",
    quiet="where dtype and device agree it works until the model is moved: a note. Index tensors and caches that are "
    "not used are not mentioned.",
    fix='self.register_buffer("name", tensor)',
)  # fmt: skip
def not_a_buffer(examination: Examination) -> Iterator[Seen]:
    model, failure = examination.model, examination.failure
    if model is None:
        return
    first = next((p for p in model.parameters() if p.is_floating_point()), None)
    for hidden in examination.hidden:
        tensor = hidden.tensor
        if tensor.requires_grad or hidden.module is not None or tensor.is_meta or first is None:
            continue
        differs = (tensor.is_floating_point() and tensor.dtype != first.dtype) or tensor.device != first.device
        used = any(id(tensor) in run.hidden_used for run in examination.runs)
        failed = failure is not None and ("dtype" in failure.text or "device" in failure.text)
        if differs and failed and tensor.ndim > 0:
            yield Seen(
                f"{hidden.name!r} is a plain tensor ({tensor.dtype}, {tensor.device}) while the parameters are "
                f"{first.dtype} on {first.device}: .to() did not move it, and the forward pass fails.",
                {"attribute": str(tensor.dtype), "parameters": str(first.dtype)},
            )
        elif used and tensor.is_floating_point() and tensor.ndim > 0 and hidden.container == "attribute":
            yield Seen(
                f"{hidden.name!r} is used in forward but is no buffer: .to() does not move it and state_dict() lacks "
                "it.",
                {"shape": list(tensor.shape)}, severity=NOTE,
            )  # fmt: skip


@rule(
    "model.shared-layer", NOTE, "03_modules",
    title="One layer stands at several places of a container.",
    looks="a module with parameters that a Sequential, ModuleList or ModuleDict holds more than once.",
    quiet="sharing can be meant, so this is never more than a note.",
    fix="nn.ModuleList(nn.Linear(6, 6) for _ in range(4))  # not [layer] * 4",
)  # fmt: skip
def shared_layer(examination: Examination) -> Iterator[Seen]:
    model = examination.model
    for prefix, module in model.named_modules() if model is not None else ():
        if not isinstance(module, (nn.Sequential, nn.ModuleList, nn.ModuleDict)):
            continue
        places: dict[int, list[str]] = {}
        for name, child in module._modules.items():
            if child is not None and any(True for _ in child.parameters()):
                places.setdefault(id(child), []).append(f"{prefix}.{name}" if prefix else name)
        for names in places.values():
            if len(names) > 1:
                yield Seen(
                    f"{_some(names)} are one and the same layer: their weights are shared. If that is not meant, "
                    "build each anew.",
                    {"places": len(names)},
                )


@rule(
    "model.tying-lost", ERROR, "03_modules",
    title="Weights that were tied are separate now.",
    looks="an embedding and a linear layer whose weights are equal bit for bit, but do not share memory; and "
    "parameters that share memory without being one parameter.",
    quiet="copies of whole networks (target, teacher) have equal layers of the same kind.",
    fix="model.out.weight = model.emb.weight  # again after load_state_dict(assign=True)",
)  # fmt: skip
def tying_lost(examination: Examination) -> Iterator[Seen]:
    model = examination.model
    if model is None:
        return
    by_address: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.is_meta and parameter.numel() > 1:
            by_address.setdefault(parameter.data_ptr(), []).append(name)
    for names in by_address.values():
        if len(names) > 1:
            yield Seen(
                f"{_some(names)} share memory but are {len(names)} parameters: the optimizer updates it {len(names)} "
                "times, and the tie ends when the model is moved.",
                {"parameters": len(names)},
                severity=WARNING,
                fix="model.out.weight = model.emb.weight  # one Parameter under two names",
            )
    kinds = (nn.Embedding, nn.Linear)
    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, kinds) and not m.weight.is_meta]
    for (name, first), (other, second) in combinations(layers[:200], 2):
        equal = _equal_once_tied(first, second)
        if equal:
            yield Seen(
                f"{name}.weight and {other}.weight {equal} in all {first.weight.numel()} elements, but are two "
                "tensors: they were tied once, and drift apart with the first update.",
                {"elements": first.weight.numel(), "equal": first.weight.numel()},
            )


def _equal_once_tied(first: nn.Module, second: nn.Module) -> str:
    """Say how two weights are equal that only a lost tie explains; empty if they are not."""
    a, b = first.weight.detach(), second.weight.detach()  # type: ignore[operator]
    if (
        a.data_ptr() == b.data_ptr()
        or a.numel() < 4
        or a.numel() != b.numel()
        or a.dtype != b.dtype
        or a.device != b.device
    ):
        return ""
    if float(a.float().std()) == 0:
        return ""
    if type(first) is not type(second) and a.shape == b.shape and torch.equal(a, b):
        return "are equal"
    if a.shape != b.shape and a.shape == b.T.shape and torch.equal(a, b.T):
        return "are each other's transpose"
    return ""


@rule(
    "model.random-in-eval", ERROR, "03_modules",
    title="The model is random in evaluation mode.",
    looks="two forward passes in evaluation mode with different random numbers, and which function drew them.",
    quiet="noise that is drawn on purpose (samplers, training=True written out, layers that keep dropout on) is a "
    "note.",
    fix="F.dropout(x, p, training=self.training)  # or an nn.Dropout made in __init__",
)  # fmt: skip
def random_in_eval(examination: Examination) -> Iterator[Seen]:
    forwards = examination.forwards
    if forwards is None or forwards.eval_difference <= 0:
        return
    evidence = {"difference": forwards.eval_difference}
    if forwards.omitted_training:
        yield Seen(
            f"Two passes in evaluation mode differ by {forwards.eval_difference:.3g}: F.dropout at "
            f"{forwards.omitted_training[0]} is called without training=, and is on by default.",
            evidence,
        )
    elif forwards.unregistered_dropout:
        yield Seen(
            f"Two passes in evaluation mode differ by {forwards.eval_difference:.3g}: a dropout layer that the model "
            "does not hold (made in forward, or kept in a list) stays in training mode, "
            f"{forwards.unregistered_dropout[0]}.",
            evidence,
            fix="self.drop = nn.Dropout(p)  # in __init__",
        )
    elif any(training for training, _ in forwards.eval_calls.dropouts):
        yield Seen(
            f"Two passes in evaluation mode differ by {forwards.eval_difference:.3g}: dropout stays on.",
            evidence, severity=NOTE,
        )  # fmt: skip
    else:
        drawn = forwards.eval_calls.random
        where = f" {drawn[0][0]} at {drawn[0][1]}." if drawn else ""
        yield Seen(
            f"Two passes in evaluation mode differ by {forwards.eval_difference:.3g}, because forward draws random "
            f"numbers.{where}",
            evidence, severity=NOTE,
        )  # fmt: skip


@rule(
    "model.layer-built-in-forward", ERROR, "03_modules",
    title="A layer is made anew in each forward pass.",
    looks="modules with parameters, Dropout or BatchNorm that are made while a forward pass runs, in more than one "
    "pass.",
    quiet="activations and losses without parameters may be made anywhere; a layer that is made once and registered "
    "is lazy.",
    fix="self.fc = nn.Linear(8, 1)  # in __init__; in forward only self.fc(x)",
)  # fmt: skip
def built_in_forward(examination: Examination) -> Iterator[Seen]:
    run = examination.run_facts
    if run is None:
        return
    lines: dict[str, list[nn.Module]] = {}
    known = {id(m) for m in examination.modules}
    for module, where in run.trace.built_in_forward:
        has_state = any(True for _ in module.parameters()) or isinstance(
            module, (_BatchNorm, nn.modules.dropout._DropoutNd)
        )
        if has_state and id(module) not in known:
            lines.setdefault(where, []).append(module)
    for where, modules in lines.items():
        if len(modules) >= max(2, run.count):
            kind = type(modules[0]).__name__
            yield Seen(
                f"{kind} is made inside forward ({where}), {len(modules)} times in {run.count} steps: its weights are "
                "new each time, and eval(), the optimizer and state_dict() don't reach it.",
                {"made": len(modules), "steps": run.count, "where": where},
            )
            return


@rule(
    "model.mixes-batch", ERROR, "01_tensors",
    title="The answer for one example depends on its neighbours in the batch.",
    looks="the first output when all other inputs change, in evaluation mode; and whether shuffled inputs give "
    "shuffled outputs, which a view that mixes axes does not.",
    quiet="models bound to one batch (a graph with all its nodes) fail on fewer examples and are left out; "
    "statistics over the batch, which treat all examples alike, are a warning, and a note beside several "
    "optimizers (GAN).",
    fix="x = x.transpose(0, 1)  # axes are exchanged by transpose or permute, not by view or reshape",
)  # fmt: skip
def mixes_batch(examination: Examination) -> Iterator[Seen]:
    forwards = examination.forwards
    if forwards is None or forwards.mixing <= 1e-5 * forwards.scale:
        return
    evidence = {"change_of_first_output": forwards.mixing, "largest_output": forwards.scale}
    if not forwards.is_equivariant:
        yield Seen(
            f"The output of example 0 changes by {forwards.mixing:.3g} when only the other examples change, and it "
            "matters where they stand: a view, reshape or layer takes the batch axis for another one.",
            evidence,
        )
    elif forwards.over_batch:
        yield Seen(
            f"The output of example 0 changes by {forwards.mixing:.3g} when only the other examples change: a softmax "
            f"runs over the batch axis, {forwards.over_batch[0]}.",
            evidence,
            fix="x.softmax(dim=1)",
        )
    elif forwards.attention_over_batch:
        shape = forwards.attention_over_batch[0]
        yield Seen(
            f"The output of one example changes by {forwards.mixing:.3g} when only the others change: attention gets "
            f"shape {shape} and takes axis 0, the batch, for the sequence.",
            evidence,
            fix="nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)",
        )
    else:
        meant = len(examination.optimizers) > 1 or any(
            isinstance(m, _BatchNorm) and not m.track_running_stats for m in examination.model.modules()
        )
        yield Seen(
            f"The output of one example changes by {forwards.mixing:.3g} when the others change, even in evaluation "
            "mode: the model uses statistics of the batch.",
            evidence,
            severity=NOTE if meant else WARNING,
            fix="compute means and norms over axis 1, or keep running statistics for evaluation",
        )


@rule(
    "model.squeeze-drops-batch", ERROR, "01_tensors",
    title="For a batch of one example the model drops the batch axis.",
    looks="the shapes of the outputs for one and for two examples, and whether the loader yields a batch of one.",
    quiet="where no batch of one comes it is a note.",
    fix="x.squeeze(1)  # names the axis; squeeze() takes every axis of length 1",
)  # fmt: skip
def squeeze_drops(examination: Examination) -> Iterator[Seen]:
    from course_utils.doctor.rules.data import _yields_one

    forwards = examination.forwards
    if forwards is None or forwards.shape_of_two is None or forwards.shape_of_one is None:
        return
    if len(forwards.shape_of_one) < len(forwards.shape_of_two):
        comes = _yields_one(examination)
        yield Seen(
            f"The output has shape {forwards.shape_of_one} for one example and {forwards.shape_of_two} for two: "
            "squeeze() drops the "
            "batch axis" + (", and the loader ends with a batch of one." if comes else "."),
            {"shape_for_one": list(forwards.shape_of_one), "shape_for_two": list(forwards.shape_of_two)},
            severity=None if comes else NOTE,
        )


@rule(
    "model.inplace-changes-result", ERROR, "02_autograd",
    title="An in-place operation overwrites what is still needed.",
    looks="the output with in-place layers and operators, and with the same working out of place.",
    quiet="in-place operations on values that nobody else reads change nothing.",
    fix="nn.ReLU()  # without inplace=True, where the input is used again",
)  # fmt: skip
def inplace_changes(examination: Examination) -> Iterator[Seen]:
    forwards = examination.forwards
    if forwards is None or forwards.inplace_difference <= 1e-5 * forwards.scale or not forwards.inplace_names:
        return
    yield Seen(
        f"The output changes by {forwards.inplace_difference:.3g} when {_some(forwards.inplace_names)} work out of "
        "place: they overwrite a tensor that is used again, such as the input of a shortcut.",
        {"difference": forwards.inplace_difference, "in_place": forwards.inplace_names[:8]},
    )


@rule(
    "model.frozen-statistics-move", ERROR, "03_modules",
    title="A frozen part changes, because its BatchNorm keeps learning statistics.",
    looks="BatchNorm layers in frozen parts whose running statistics move in training steps while their parameters "
    "do not.",
    quiet="teachers and target networks are updated, or are a copy of a trained part; a BatchNorm between trained "
    "layers is not frozen; one that is kept in evaluation mode does not move.",
    fix="def train(self, mode=True): super().train(mode); self.backbone.eval(); return self",
)  # fmt: skip
def frozen_statistics(examination: Examination) -> Iterator[Seen]:
    model = examination.model
    facts = examination.run_facts
    if model is None or facts is None or not facts.buffers_moved:
        return
    frozen: list[str] = []
    for prefix, module in model.named_modules():
        if isinstance(module, (nn.ModuleDict, nn.ModuleList)) or (not prefix and _trains(module)):
            continue
        own = list(module.parameters())
        if not own or any(p.requires_grad for p in own) or any(id(p) in examination.weights_moved for p in own):
            continue
        layers = [
            (n, m)
            for n, m in module.named_modules(prefix=prefix)
            if isinstance(m, _BatchNorm) and m.track_running_stats
        ]
        if not layers or not any(
            not isinstance(m, _BatchNorm) and list(m.parameters(recurse=False)) for m in module.modules()
        ):
            continue
        if _has_trained_twin(model, module, examination):
            continue
        frozen += [n for n, _ in layers if f"{n}.running_mean" in facts.buffers_moved and n not in frozen]
    if not frozen:
        frozen = _frozen_in_sequence(model, facts.buffers_moved, examination)
    if frozen:
        yield Seen(
            f"All parameters around {_some(frozen)} are frozen, but their running statistics change in training: the "
            "frozen part gives other features afterwards.",
            {"batchnorm_layers_that_move": len(frozen)},
        )


def _trains(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters())


def _frozen_in_sequence(model: nn.Module, moved: set[str], examination: Examination) -> list[str]:
    """Return frozen BatchNorm layers that follow a frozen layer, where no container holds just the frozen part."""
    found, before, moving = [], None, examination.weights_moved
    for name, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        if not own:
            continue
        frozen = not any(p.requires_grad for p in own)
        if not isinstance(module, _BatchNorm):
            before = frozen
        elif frozen and before and f"{name}.running_mean" in moved and moving.isdisjoint(map(id, own)):
            found.append(name)
    return found if not _has_any_twin(model) else []


def _shapes(module: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in module.state_dict().values()]


def _has_trained_twin(model: nn.Module, module: nn.Module, examination: Examination) -> bool:
    """Tell whether another module of the same build is trained: then this one is its teacher or target."""
    shapes = _shapes(module)
    return any(
        other is not module and type(other) is type(module) and _trains(other) and _shapes(other) == shapes
        for other in examination.modules
    )


def _has_any_twin(model: nn.Module) -> bool:
    children = [_shapes(child) for child in model.children() if list(child.parameters())]
    return any(children.count(shapes) > 1 and len(shapes) > 2 for shapes in children)


@rule(
    "model.hook-left", ERROR, "03_modules",
    title="Hooks are registered again and again and never removed.",
    looks="hooks with the same code on one module, before and after your loop.",
    quiet="a single hook that stays is a note; hooks that are removed leave nothing.",
    fix="handle = module.register_forward_hook(hook)\ntry: ...\nfinally: handle.remove()",
)  # fmt: skip
def hook_left(examination: Examination) -> Iterator[Seen]:
    training = examination.training
    if training is not None:
        for key, after in training.hooks_after.items():
            before = training.hooks_before.get(key, {})
            new = {code: count - before.get(code, 0) for code, count in after.items() if count > before.get(code, 0)}
            if new:
                most = max(new.values())
                name = training.modules.get(key, "a module")
                yield Seen(
                    f"Your loop leaves {plural(most, 'hook')} with the same code on {name!r} after "
                    f"{plural(training.trace.epochs, 'epoch')}.",
                    {"hooks": most, "epochs": training.trace.epochs},
                    severity=None if most >= 2 else NOTE,
                )  # fmt: skip
                return
    model = examination.model
    for name, module in model.named_modules() if model is not None else ():
        codes = [getattr(hook, "__code__", None) for hook in module._forward_hooks.values()]
        repeated = max((codes.count(code) for code in codes if code is not None), default=0)
        if repeated >= 2:
            yield Seen(
                f"{name or type(module).__name__!r} carries {repeated} forward hooks with the same code: one is "
                "registered again and again.",
                {"hooks": repeated}, severity=WARNING,
            )  # fmt: skip
            return


@rule(
    "model.depends-on-padding", WARNING, "04_data",
    title="The answer depends on padding.",
    looks="the output when only padded places change, and when only real places change, for batches that say which "
    "is which (a mask, lengths, or a channel of zeros and ones).",
    quiet="outputs at padded places don't count; convolutions may look one place beyond the end: a note.",
    fix="key_padding_mask=~keep  # True means: ignore. In scaled_dot_product_attention True means: keep",
)  # fmt: skip
def depends_on_padding(examination: Examination) -> Iterator[Seen]:
    forwards = examination.forwards
    if forwards is None or forwards.padding is None:
        return
    padding = forwards.padding
    if padding.effect <= 1e-4 * forwards.scale:
        return
    evidence = {
        "change_by_padding": padding.effect, "change_by_real_places": padding.effect_of_real,
        "padded_places": padding.padded,
    }  # fmt: skip
    if padding.effect_of_real <= 1e-5 * forwards.scale:
        yield Seen(
            f"Padded places change the output by {padding.effect:.3g}, real places after the first by nothing: the "
            "mask is the wrong way round.",
            evidence, severity=ERROR,
        )  # fmt: skip
    else:
        yield Seen(
            f"The output changes by {padding.effect:.3g} when only padded places change ({padding.kind}): padding is "
            "not masked.",
            evidence, severity=NOTE if padding.has_convolution else None,
        )  # fmt: skip


@rule(
    "model.average-is-wrong", ERROR, "05_training",
    title="The averaged copy (EMA) does not hold what it should.",
    looks="parameters and buffers of the copy given as ``ema`` beside the model's, after some steps.",
    quiet="AveragedModel keeps buffers for update_bn: a note.",
    fix="with torch.no_grad():\n    for e, p in zip(ema.parameters(), model.parameters()): e.lerp_(p, 0.01)\n"
    "    for e, b in zip(ema.buffers(), model.buffers()): e.copy_(b)",
)  # fmt: skip
def average_is_wrong(examination: Examination) -> Iterator[Seen]:
    ema = next((run.ema for run in examination.runs if run.ema), {})
    if not ema or not ema["shared"]:
        return
    if ema["aliased"]:
        yield Seen(
            f"The copy shares the memory of {_some(ema['aliased'])} with the model: it is no average but the model "
            "itself.",
            {"shared_tensors": len(ema["aliased"])}, fix="ema = copy.deepcopy(model)",
        )  # fmt: skip
        return
    if ema["rounded_away"] and not ema["parameters_moved"]:
        yield Seen(
            f"The copy is written to but does not move ({_some(ema['rounded_away'])}): its precision is too low for "
            "steps that small.",
            {"tensors": len(ema["rounded_away"])}, severity=WARNING, fix="keep the copy in float32",
        )  # fmt: skip
    if ema["with_graph"]:
        yield Seen(
            f"{_some(ema['with_graph'])} of the copy carry a graph: it grows with every step.",
            {"tensors": len(ema["with_graph"])}, fix="with torch.no_grad(): ema_p.lerp_(p, 0.01)",
        )  # fmt: skip
    if ema["unit"]:
        _, norm = ema["unit"][0]
        yield Seen(
            f"{_some([n for n, _ in ema['unit']])} are unit vectors in the model, and have norm {norm:.4f} in the "
            "copy: such buffers (spectral norm) must be copied, not averaged.",
            {"buffers": len(ema["unit"]), "norm": norm},
        )
    if ema["stale_buffers"] and ema["parameters_moved"]:
        yield Seen(
            f"The copy's parameters follow the model, but {_some(ema['stale_buffers'])} stay as they were: in "
            "evaluation mode it normalizes with old statistics.",
            {"buffers": len(ema["stale_buffers"])}, severity=NOTE if ema["is_averaged_model"] else WARNING,
        )  # fmt: skip


@rule(
    "model.forward-called-directly", NOTE, "03_modules",
    title="forward() is called directly, so that hooks don't run.",
    looks="layers of the model that run in a step without the model itself being called, while it has hooks.",
    quiet="containers of several networks are never called themselves.",
    fix="model(x)  # instead of model.forward(x)",
)  # fmt: skip
def forward_directly(examination: Examination) -> Iterator[Seen]:
    model, run = examination.model, examination.run_facts
    if model is None or run is None or isinstance(model, (nn.ModuleDict, nn.ModuleList)):
        return
    runs = any(run.trace.called.get(id(child)) for child in model.children())
    if runs and not run.trace.called.get(id(model)) and (model._forward_hooks or model._forward_pre_hooks):
        yield Seen(
            "The model has hooks, but its forward() is called directly: they never run.",
            {"hooks": len(model._forward_hooks)},
        )


@rule(
    "model.symmetric-units", ERROR, "03_modules",
    title="All units of a layer are the same, and stay the same.",
    looks="weights whose rows are equal before and after updates that moved them.",
    quiet="layers that start at zero and whose rows come apart with the first update (heads, gates, adapters).",
    fix="nn.init.kaiming_uniform_(layer.weight)  # not zeros or a constant",
)  # fmt: skip
def symmetric_units(examination: Examination) -> Iterator[Seen]:
    run = examination.run_facts
    if run is None or not run.symmetric or len(run.trace.updates) < 2:
        return
    yield Seen(
        f"All rows of {_some(run.symmetric)} are equal before and after {len(run.trace.updates)} updates: the layer "
        "has one unit, many times.",
        {"weights": len(run.symmetric), "updates": len(run.trace.updates)},
    )


@rule(
    "model.uninitialized", ERROR, "01_tensors",
    title="A parameter or a result holds memory that nobody filled.",
    looks="parameters with values that no initialization gives, and a step in which new memory holds NaN, or zeros "
    "where the loss is NaN already.",
    quiet="buffers that are filled before they are read leave the loss as it is.",
    fix="torch.zeros(shape)  # torch.empty holds what was there before",
)  # fmt: skip
def uninitialized(examination: Examination) -> Iterator[Seen]:
    model = examination.model
    for name, parameter in model.named_parameters() if model is not None else ():
        if parameter.is_meta or not parameter.numel() or not parameter.is_floating_point():
            continue
        size = parameter.detach().abs().float()
        strange = (~torch.isfinite(size)) | (size > 1e18) | ((size > 0) & (size < 1e-30))
        if bool(strange.any()):
            yield Seen(
                f"{name} holds values that no initialization gives, such as "
                f"{float(parameter.detach()[strange][0]):.3g}.",
                {"strange_values": int(strange.sum()), "values": parameter.numel()},
            )
            return
    if examination.saved is not None and examination.saved.reads_empty:
        yield Seen(
            "Whether the loss is a number depends on what new memory holds: the step reads a torch.empty that nobody "
            "filled.",
            {"loss_depends_on_memory": True},
        )


@rule(
    "model.sees-the-future", ERROR, "05_training",
    title="The model sees the values that it should predict.",
    looks="labels that are the inputs moved by one place, and outputs that change when only later inputs change.",
    quiet="models whose labels are no moved inputs (masked language models, classifiers).",
    fix="mask = nn.Transformer.generate_square_subsequent_mask(T)  # is_causal=True",
)  # fmt: skip
def sees_the_future(examination: Examination) -> Iterator[Seen]:
    forwards = examination.forwards
    if forwards is None or forwards.future <= 1e-4 * forwards.scale:
        return
    yield Seen(
        "The labels are the inputs one place later, and the output of the first places changes by "
        f"{forwards.future:.3g} when only later inputs change: the answer is in the input.",
        {"change": forwards.future, "largest_output": forwards.scale},
    )
