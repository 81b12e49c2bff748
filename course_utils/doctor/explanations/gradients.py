"""Graphs, gradients, in-place changes, custom Functions, optimizers."""

from __future__ import annotations

import re

from torch import nn

from course_utils.doctor.explain import Case, Explanation, explains


@explains(r"through the graph a second time|Trying to backward through the graph")
def second_backward(case: Case) -> Explanation:
    step = case.examination.run_facts.failed_at if case.examination.run_facts is not None else 0
    return Explanation(
        "second-backward", f"backward() went through a graph that an earlier backward() had freed, in step {step}"
        f"{case.at}.",
        "state = state.detach()  # between batches; or one backward() for the sum of the losses", {"step": step},
    )  # fmt: skip


@explains(r"leaf Variable that requires grad")
def inplace_on_leaf(case: Case) -> Explanation:
    target = case.operand(0)
    name = target.name if target is not None and target.name else "a tensor that requires gradients"
    is_view = "view of a leaf" in case.text
    return Explanation(
        "inplace-on-leaf", f"{name} is a leaf that requires gradients, and it is changed in place"
        f"{' through a view' if is_view else ''}{case.at}. Autograd can't record that: the value to which the gradient "
        "belongs would be gone.",
        "with torch.no_grad(): w -= lr * w.grad  # an update; in a forward pass: y = w + 1 makes a new tensor",
        {"tensor": name, **case.shapes},
    )  # fmt: skip


@explains(r"modified by an inplace operation")
def inplace_on_saved(case: Case) -> Explanation:
    text = case.text
    made = re.search(r"which is output \d+ of (\w+)", text)
    shape = re.search(r"\[torch\.\w+ \[([\d, ]*)\]", text)
    versions = re.search(r"is at version (\d+); expected version (\d+)", text)
    maker = made[1].removesuffix("Backward0").removesuffix("0") if made else ""
    is_view = maker in ("", "AsStrided", "T", "Transpose", "Permute")  # as a linear layer sees its weight
    what = "a tensor" if is_view else f"the output of {maker}"
    weights = shape is not None and is_view and any(
        sorted(p.shape) == sorted(int(n) for n in shape[1].split(",") if n.strip())
        for optimizer in case.examination.optimizers for group in optimizer.param_groups for p in group["params"]
    )  # fmt: skip
    stepped = weights and bool(case.examination.run_facts and case.examination.run_facts.trace.updates)
    message = (
        f"The backward pass needs {what}"
        + (f" of shape ({shape[1]})" if shape else "")
        + " as it was in the forward pass, and it was changed in place since then."
    )
    if stepped:
        message += " A weight has this shape: an optimizer.step() between forward and backward changes it too."
    return Explanation(
        "inplace-modified", message,
        "call every backward() before any optimizer.step()" if stepped else
        "x = x + 1  # instead of x += 1; nn.ReLU() without inplace=True",
        ({"changes": int(versions[1]) - int(versions[2])} if versions else {}) | {"made_by": maker},
    )  # fmt: skip


@explains(r"does not require grad|does not have a grad_fn")
def no_graph(case: Case) -> Explanation:
    model = case.examination.parts.model
    trainable = sum(p.requires_grad for p in model.parameters()) if model is not None else 0
    total = len(list(model.parameters())) if model is not None else 0
    message = "backward() was called on a tensor without a graph: nothing that requires gradients led to it."
    fix = "look for detach(), .item(), no_grad(), numpy() or torch.tensor(…) between the parameters and the loss"
    if total and not trainable:
        message += f" All {total} parameters are frozen."
        fix = "model.head.requires_grad_(True)  # what is to be trained"
    return Explanation("no-graph", message, fix, {"trainable_parameters": trainable, "parameters": total})


@explains(r"only change requires_grad flags of leaf")
def flags(case: Case) -> Explanation:
    return Explanation(
        "flag-of-non-leaf", f"requires_grad can only be switched on leaves, and this tensor was computed{case.at}.",
        "h = h.detach()  # or no_grad() around its computation",
    )  # fmt: skip


@explains(r"grad can be implicitly created only for scalar")
def not_scalar(case: Case) -> Explanation:
    loss = case.operand(0)
    shape = f" of shape {loss.shape}" if loss is not None else ""
    return Explanation(
        "loss-not-scalar", f"backward() starts from one number, and gets a tensor{shape}{case.at}.",
        "loss.mean().backward()  # a loss function with reduction='mean'", case.shapes,
    )  # fmt: skip


@explains(r"NoneType'? object has no attribute|and 'NoneType'|'NoneType' and")
def gradient_is_none(case: Case) -> Explanation | None:
    if ".grad" not in case.line:
        return None
    missing = list(case.scene.without_gradient)
    if case.scene.backwards == 0:
        why = "no backward() has run yet"
        fix = "loss.backward()  # before .grad is read"
    elif missing:
        why = f"{', '.join(missing[:4])} got none: zero_grad() sets .grad to None, and what took no part has none"
        fix = "if p.grad is not None: …  # and read it after backward(), before zero_grad()"
    else:
        why = "only leaves keep their gradient, unless retain_grad() was called"
        fix = "h.retain_grad()  # before backward(), for a tensor that was computed"
    return Explanation(
        "gradient-is-none", f".grad is None where it is used{case.at}: {why}.", fix,
        {"parameters_without_gradient": missing[:8], "backward_passes_before": case.scene.backwards},
    )  # fmt: skip


@explains(r"appears? to not have been used in the graph|One of the differentiated Tensors")
def unused_in_grad(case: Case) -> Explanation:
    return Explanation(
        "not-in-graph", f"torch.autograd.grad is asked for the gradient of something that the result does not depend "
        f"on{case.at}.",
        "x.requires_grad_() before the forward pass that uses x; or allow_unused=True, and None counts as 0",
        case.shapes,
    )  # fmt: skip


@explains(r"Can't call numpy\(\) on Tensor that requires grad")
def numpy_with_graph(case: Case) -> Explanation:
    return Explanation(
        "numpy-with-graph", f"NumPy has no gradients, and this tensor has a graph{case.at}.",
        "x.detach().cpu().numpy()  # for a plot or a metric; stay with tensors for what is differentiated",
    )  # fmt: skip


@explains(r"Inference tensors cannot be saved|Inplace update to inference tensor|inference tensor")
def inference(case: Case) -> Explanation:
    return Explanation(
        "inference-tensor", f"A tensor that was made under inference_mode() is used in training{case.at}.",
        "with torch.no_grad(): …  # instead of inference_mode(); or x = x.clone()",
    )  # fmt: skip


@explains(r"deepcopy protocol at the moment")
def deepcopy(case: Case) -> Explanation:
    return Explanation(
        "copy-with-graph", f"copy.deepcopy meets a tensor with a graph{case.at}: a module or a list holds a result.",
        "self.last = h.detach()  # what is kept on the module; or clone the state dict",
    )  # fmt: skip


@explains(r"[Ff]unction (\w+)Backward\w* returned an incorrect number of gradients \(expected (\d+), got (\d+)\)")
def function_count(case: Case) -> Explanation:
    name, expected, got = case.match[1], int(case.match[2]), int(case.match[3])
    return Explanation(
        "function-gradients", f"backward() of {name} returns {got} values, and forward() takes {expected} arguments: "
        "each argument needs its gradient, None for what is no tensor.",
        "return grad_a, grad_b, None  # one for each argument of forward, after ctx",
        {"arguments": expected, "returned": got},
    )  # fmt: skip


@explains(r"[Ff]unction (\w+)Backward\w* returned an invalid gradient at index (\d+) - got (\[[^\]]*\]) but expected "
          r"shape compatible with (\[[^\]]*\])")  # fmt: skip
def function_shape(case: Case) -> Explanation:
    name, index, got, expected = case.match.groups()
    return Explanation(
        "function-gradients", f"backward() of {name} returns a gradient of shape {got} for its argument {index}, which "
        f"has shape {expected}.",
        "return grad.sum_to_size(ctx.shape)  # undo what forward() broadcast or reduced",
        {"got": got, "expected": expected},
    )  # fmt: skip


@explains(r"Legacy autograd function")
def function_called(case: Case) -> Explanation:
    return Explanation(
        "function-called", f"A custom Function is called like a module{case.at}.", "y = MyFunction.apply(x)",
    )  # fmt: skip


@explains(r"optimizer got an empty parameter list")
def empty_optimizer(case: Case) -> Explanation:
    return Explanation(
        "no-parameters", f"An optimizer gets no parameters{case.at}: the model has none, its layers stand in a list or "
        "a dict, or an iterator was used up before.",
        "self.layers = nn.ModuleList(layers)  # and pass list(model.parameters()) if it is used twice",
    )  # fmt: skip


@explains(r"can't optimize a non-leaf Tensor")
def non_leaf_optimized(case: Case) -> Explanation:
    return Explanation(
        "not-a-leaf", f"An optimizer gets a tensor that was computed{case.at}: `torch.randn(…, requires_grad=True) * s`"
        " and `.to(device)` make a new one.",
        "w = (s * torch.randn(…)).to(device).requires_grad_()  # requires_grad at the end",
    )  # fmt: skip


@explains(r"'(\w+)' object is not iterable")
def optimizer_of_module(case: Case) -> Explanation | None:
    model = case.examination.parts.model
    kinds = {type(m).__name__ for m in model.modules()} if model is not None else set()
    if case.match[1] not in kinds and "optim" not in case.line:
        return None
    return Explanation(
        "module-not-iterable", f"A {case.match[1]} is used where parameters, or several modules, are asked for"
        f"{case.at}.",
        "torch.optim.SGD(model.parameters(), lr=0.1)  # parameters(), called",
    )  # fmt: skip


@explains(r"unscale_\(\) has already been called")
def unscaled_twice(case: Case) -> Explanation:
    return Explanation(
        "unscaled-twice", f"scaler.unscale_(optimizer) ran twice before scaler.update(){case.at}.",
        "once per update, after the last micro-batch: scaler.unscale_(optimizer); clip; scaler.step; scaler.update",
    )  # fmt: skip


@explains(r"_scale is None|No inf checks were recorded")
def scaler_without_scale(case: Case) -> Explanation:
    return Explanation(
        "scaler-unused", f"scaler.step() meets no gradient of a scaled loss{case.at}: the loss was not scaled, or no "
        "parameter of this optimizer has a gradient.",
        "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()",
    )  # fmt: skip


@explains(r"LBFGS\.step\(\) missing|closure")
def closure(case: Case) -> Explanation | None:
    if "missing" not in case.text and "NoneType" not in case.text:
        return None
    return Explanation(
        "closure-missing", "LBFGS evaluates the loss several times in one step, and needs a function that does so.",
        "def closure(): optimizer.zero_grad(); loss = …; loss.backward(); return loss\noptimizer.step(closure)",
    )  # fmt: skip


@explains(r"does not support (dense|sparse) gradients")
def sparse(case: Case) -> Explanation:
    kind = case.match[1]
    model = case.examination.parts.model
    layers = [n for n, m in model.named_modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag)) and m.sparse] \
        if model is not None else []  # fmt: skip
    return Explanation(
        "sparse-gradients", f"The optimizer gets {kind} gradients, which it can't use"
        + (f"; {', '.join(layers)} {'makes' if len(layers) == 1 else 'make'} sparse ones." if layers else "."),
        "two optimizers: SparseAdam for embeddings with sparse=True, Adam for the rest",
        {"sparse_layers": layers},
    )  # fmt: skip


@explains(r"missing \d+ required positional argument: 'metrics'")
def plateau(case: Case) -> Explanation:
    return Explanation(
        "plateau-without-metric", "ReduceLROnPlateau needs the number it watches.", "scheduler.step(val_loss)"
    )


@explains(r"Tried to step \d+ times")
def schedule_over(case: Case) -> Explanation:
    return Explanation(
        "schedule-too-short", f"The schedule is over and is stepped once more: {case.first_line}.",
        "OneCycleLR(optimizer, max_lr, epochs=epochs, steps_per_epoch=len(loader))",
    )  # fmt: skip


@explains(r"TypeError: (\w+) is not an Optimizer")
def scheduler_of_model(case: Case) -> Explanation:
    return Explanation(
        "scheduler-of-model", f"A scheduler is built with a {case.match[1]} in the place of the optimizer{case.at}.",
        "torch.optim.lr_scheduler.StepLR(optimizer, step_size)",
    )  # fmt: skip
