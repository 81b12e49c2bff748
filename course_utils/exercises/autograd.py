"""Exercises and clinic items of lesson 02: titles, hints, and where each check is."""

from __future__ import annotations

from course_utils.exercises.autograd_clinic import (
    check_clinic_distance,
    check_clinic_features,
    check_clinic_gate,
    check_clinic_softmax,
    check_clinic_two_losses,
)
from course_utils.exercises.autograd_engine import (
    check_engine,
    check_operations,
    check_order,
    check_partials,
    check_unbroadcast,
)
from course_utils.exercises.autograd_gradients import (
    check_accumulate,
    check_adversarial,
    check_clip,
    check_function,
    check_unreached,
)
from course_utils.exercises.registry import CLINIC, Exercise

EXERCISES = [
    Exercise(
        id="autograd.operations",
        title="What is in the graph",
        check=check_operations,
        hints=(
            "A tensor knows the function that made it, and each function knows those before it.",
            "Keep a list of functions to visit, beginning with output.grad_fn, and a set of those you have seen. "
            "next_functions holds pairs; the first of each may be None.",
            "while todo: f = todo.pop(); if f is None or f in seen: continue; seen.add(f); "
            "todo += [parent for parent, _ in f.next_functions]",
        ),
        errors=(
            (
                "maximum recursion depth",
                "A function that calls itself gets no deeper than about 1,000 calls. Use a list.",
            ),
            (
                "'NoneType' object has no attribute 'next_functions'",
                "Some entries of next_functions are None, and so is the grad_fn of a leaf: skip them.",
            ),
        ),
    ),
    Exercise(
        id="autograd.partials",
        title="Six derivatives",
        check=check_partials,
        hints=(
            "For each operation: if this input grows by a little, by how much does the result grow?",
            "add: 1 and 1. sub: 1 and −1. For the others use math.exp and math.tanh.",
            "mul: (b, a); exp: (exp(a),); tanh: (1 − tanh(a)²,); square: (2a,)",
        ),
    ),
    Exercise(
        id="autograd.order",
        title="In which order backward goes",
        check=check_order,
        hints=(
            "A place may be visited when everything that uses it has been visited.",
            "On a tape inputs stand before their users. So going from the end to the beginning is a right order: "
            "which places do you leave out?",
            "needed = {last}; for place from last down to 0: if place in needed: append it, add its inputs to needed",
        ),
    ),
    Exercise(
        id="autograd.engine",
        title="Reverse-mode differentiation",
        check=check_engine,
        hints=(
            "Each place collects a gradient from all that use it, then passes it on to its inputs.",
            "Start with zeros and a 1 at the end. Walk backwards; for each input add grads[place] * slope.",
            "for place in reversed(range(len(tape))): for i, slope in zip(step.inputs, partials(step.operation, "
            "*inputs)): grads[i] += grads[place] * slope",
        ),
        errors=(("'leaf'", "A leaf has no inputs, and so no partial derivatives: pass it by."),),
    ),
    Exercise(
        id="autograd.unbroadcast",
        title="The gradient of a broadcast",
        check=check_unbroadcast,
        hints=(
            "Broadcasting copies a number. What does a copy do to the gradient of the original?",
            "Sum over the axes that were added in front, then over those that had length 1, and keep these.",
            "PyTorch has it: grad.sum_to_size(shape)",
        ),
        errors=(
            ('missing 1 required positional arguments: "size"', "Hand over the shape as it is: one argument."),
            ("is invalid for input of size", "There are too many numbers for this shape: sum over the copies first."),
            ("expand(", "expand goes from small to large. The way back sums over the copies."),
            ("size {[", "The shapes don't fit: sum first, then check the shape."),
        ),
    ),
    Exercise(
        id="autograd.accumulate",
        title="One gradient from several batches",
        check=check_accumulate,
        hints=(
            "backward() adds to .grad. What must each batch's loss be multiplied by, so that the sum is right?",
            "loss_fn gives the mean over a batch. Weight it by the batch's share of all examples.",
            "(loss_fn(model(x), y) * len(y) / n_all).backward(), after model.zero_grad()",
        ),
        errors=(
            ("NoneType", "A .grad is None as long as no backward has come by. model.zero_grad() copes with that."),
        ),
    ),
    Exercise(
        id="autograd.unreached",
        title="Parameters that the loss can't reach",
        check=check_unreached,
        hints=(
            "Ask for the gradients without writing them anywhere.",
            "torch.autograd.grad(loss, list, allow_unused=True, retain_graph=True) gives None where no path leads. "
            "It refuses tensors that don't require gradients: treat those apart.",
            "[name for name, p in parameters.items() if not p.requires_grad or "
            "torch.autograd.grad(loss, p, allow_unused=True, retain_graph=True)[0] is None]",
        ),
        errors=(
            ("does not require grad", "A frozen parameter can't be differentiated by. Look at p.requires_grad first."),
            ("appears to not have been used", "allow_unused=True gives None instead of this error."),
            ("backward through the graph a second time", "retain_graph=True keeps the graph for the next call."),
        ),
    ),
    Exercise(
        id="autograd.clip",
        title="Clip, and keep the direction",
        check=check_clip,
        hints=(
            "All gradients together are one long vector. Make it shorter without turning it.",
            "The norm of all is the root of the sum of all squares. One factor for everything, never above 1.",
            "for g in grads: g.mul_(min(1.0, max_norm / norm)), then return norm",
        ),
        errors=(("NoneType", "The gradient of a parameter may be None: skip it."),),
    ),
    Exercise(
        id="autograd.function",
        title="A function with its own backward",
        check=check_function,
        hints=(
            "forward computes and saves what backward needs; backward multiplies grad_output by the derivative.",
            "ctx.save_for_backward(x) in forward, (x,) = ctx.saved_tensors in backward. The derivative is sigmoid(x). "
            "For large x write log(1 + exp(x)) as max(x, 0) + log1p(exp(−|x|)).",
            "return x.clamp_min(0) + torch.log1p(torch.exp(-x.abs())); return grad_output * torch.sigmoid(x)",
        ),
        errors=(
            ("Legacy autograd function", "forward and backward must be static: @staticmethod."),
            ("has no attribute 'apply'", "Derive the class from torch.autograd.Function."),
            ("returned an incorrect number of gradients", "backward returns one gradient for each input of forward."),
            ("tuple", "ctx.saved_tensors is a tuple, also if it holds one tensor: (x,) = ctx.saved_tensors."),
            (
                "is not defined",
                "forward and backward share nothing but ctx: ctx.save_for_backward(x) there, ctx.saved_tensors here.",
            ),
        ),
    ),
    Exercise(
        id="autograd.adversarial",
        title="A digit that deceives",
        check=check_adversarial,
        hints=(
            "The loss depends on the pixels too. In which direction does each pixel raise it?",
            "Make a copy of the images that requires gradients; torch.autograd.grad(loss, copy) touches no parameter.",
            "(images + epsilon * grad.sign()).clamp(0, 1)",
        ),
        errors=(
            ("does not require grad", "Call requires_grad_() on a copy of the images before the forward pass."),
            ("appears to not have been used", "Call requires_grad_() on a copy of the images before the forward pass."),
        ),
    ),
    Exercise(
        id="autograd.clinic-features",
        title="A body that never learns",
        check=check_clinic_features,
        kind=CLINIC,
        finding="optimizer.no-gradient",
        hints=(
            "Print body's gradient after backward.",
            "At which line does the tensor lose its grad_fn?",
            "features = torch.tanh(model.body(images)), and nothing else before the head.",
        ),
        errors=(
            ("Can't call numpy()", "A NumPy array has no history, so PyTorch refuses. Stay with tensors."),
            ("must have the same dtype", "A list forgets the dtype too. Stay with tensors."),
        ),
    ),
    Exercise(
        id="autograd.clinic-softmax",
        title="Right values, wrong gradients",
        check=check_clinic_softmax,
        kind=CLINIC,
        finding="autograd.saved-value-changed",
        hints=(
            "Compare with torch.softmax: first the values, then the gradients.",
            "Which operation happened where autograd can't see it?",
            "return unnormalised / unnormalised.sum(1, keepdim=True)",
        ),
        errors=(
            ("modified by an inplace operation", "Dividing in place changes what exp saved. Make a new tensor: a / b."),
            (
                "element 0 of tensors does not require grad",
                "The result has no graph. Compute it outside of no_grad, without detach.",
            ),
        ),
    ),
    Exercise(
        id="autograd.clinic-two-losses",
        title="Backward, twice",
        check=check_clinic_two_losses,
        kind=CLINIC,
        finding="autograd.graph-used-twice",
        hints=(
            "Both losses go through the body. What happens to the body's saved tensors in the first backward?",
            "Gradients add up: one backward of the sum does both. retain_graph=True in the first works too.",
            "(classification + regression).backward()",
        ),
        errors=(
            (
                "backward through the graph a second time",
                "The first backward freed what the body had saved, and the second needs it. Add the losses first.",
            ),
            (
                "element 0 of tensors does not require grad",
                "A detached result leads nowhere. Both losses need the body's graph.",
            ),
        ),
    ),
    Exercise(
        id="autograd.clinic-distance",
        title="Two points that coincide",
        check=check_clinic_distance,
        kind=CLINIC,
        finding="numerics.nan-gradient",
        hints=(
            "What is the slope of the square root at 0?",
            "where() picks a result; backward visits both branches. The input of sqrt must not be 0.",
            "safe = torch.where(is_apart, squared, 1.0); torch.where(is_apart, safe.sqrt(), 0.0)",
        ),
        errors=(
            (
                "element 0 of tensors does not require grad",
                "The distances have no graph: they are to be differentiated, so don't detach.",
            ),
        ),
    ),
    Exercise(
        id="autograd.clinic-gate",
        title="Modified by an in-place operation",
        check=check_clinic_gate,
        kind=CLINIC,
        finding="failure.step",
        hints=(
            "The message names the function whose saved tensor was changed. Which line changed it?",
            "sigmoid saves its output, since its derivative is s · (1 − s). mul_ and add_ overwrite it.",
            "gate = gate * 0.9 + 0.1",
        ),
        errors=(
            (
                "modified by an inplace operation",
                "sigmoid saved its result for backward, and a later line has overwritten it. Make a new tensor there.",
            ),
            ("a leaf Variable that requires grad", "x belongs to the caller, and is a leaf here. Make a new tensor."),
            (
                "element 0 of tensors does not require grad",
                "The result has no graph. Compute it outside of no_grad, without detach.",
            ),
        ),
    ),
]
