"""Exercises and clinic items of lesson 06: titles, hints, and where each check is."""

from __future__ import annotations

from course_utils.exercises.memory_bytes import (
    check_largest_batch,
    check_live,
    check_owners,
    check_recompute,
    check_saved,
    check_segments,
)
from course_utils.exercises.memory_clinic import (
    check_clinic_counter,
    check_clinic_half,
    check_clinic_history,
    check_clinic_loop,
    check_clinic_reentrant,
    check_clinic_slice,
)
from course_utils.exercises.memory_precision import (
    check_amp_step,
    check_break_even,
    check_distances,
    check_one_graph,
    check_scale,
    check_scaler,
)
from course_utils.exercises.registry import CLINIC, Exercise

_ONE_TYPE = ("'dict' object has no attribute", "optimizer.state holds one dict for each parameter: look inside these.")
_NO_GRAD = ("does not require grad", "Inside a Function gradients are off. torch.enable_grad() turns them on again.")

EXERCISES = [
    Exercise(
        id="memory.owners",
        title="Who owns the bytes",
        check=check_owners,
        hints=(
            "Three collections of tensors: the parameters, their gradients, and what the optimizer keeps for each.",
            "t.untyped_storage() has nbytes() and data_ptr(). A dict from data_ptr to nbytes counts each storage once. "
            "optimizer.state.values() gives a dict for each parameter.",
            "sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values()), for each "
            "of the three",
        ),
        errors=(
            _ONE_TYPE,
            (
                "'NoneType' object has no attribute 'untyped_storage'",
                "A parameter may have no gradient: skip those whose .grad is None.",
            ),
            (
                "has no attribute 'untyped_storage'",
                "An optimizer may keep plain numbers beside tensors: count tensors only.",
            ),
        ),
    ),
    Exercise(
        id="memory.saved",
        title="What backward will need",
        check=check_saved,
        hints=(
            "Autograd hands every tensor that it saves to your first hook. Note its storage there.",
            "with torch.autograd.graph.saved_tensors_hooks(pack, unpack): result = model(x). Leave out the storages of "
            "the parameters, the buffers and x.",
            "def pack(t): s = t.untyped_storage(); seen[s.data_ptr()] = s.nbytes(); return t.detach(). Then remove the "
            "keys of model.parameters(), model.buffers() and x, and sum.",
        ),
        errors=(("missing 1 required positional argument", "Both hooks take one argument and return something."),),
    ),
    Exercise(
        id="memory.largest-batch",
        title="The largest batch that fits",
        check=check_largest_batch,
        hints=(
            "If a batch fits, every smaller one fits. If it doesn't, no larger one does.",
            "Keep two numbers: the largest batch known to fit (0 at first), and the largest that may still fit (most).",
            "while low < high: middle = (low + high + 1) // 2; low, high = (middle, high) if peak_bytes(middle) <= "
            "limit else (low, middle - 1)",
        ),
        errors=(
            ("by zero", "Two sizes can have the same peak: for small n it is flat. Don't divide by the difference."),
        ),
    ),
    Exercise(
        id="memory.segments",
        title="Layers in checkpointed groups",
        check=check_segments,
        hints=(
            "Cut the list of layers into groups, and let each group go through a checkpoint.",
            "nn.Sequential(*layers[start : start + size]) is a group that can be called.",
            "for start in range(0, len(layers), size): x = checkpoint(nn.Sequential(*layers[start : start + size]), x, "
            "use_reentrant=False)",
        ),
        errors=(
            (
                "'list' object is not callable",
                "A group must be callable: nn.Sequential(*layers[start : start + size]).",
            ),
            ("use_reentrant", "Say which kind: checkpoint(..., use_reentrant=False)."),
            (
                "A different number of tensors was saved",
                "Backward ran other layers than forward did. A function made in a loop sees the loop's last values: "
                "make an nn.Sequential for each group instead.",
            ),
            (
                "have different metadata",
                "Backward ran other layers than forward did. A function made in a loop sees the loop's last values.",
            ),
        ),
    ),
    Exercise(
        id="memory.recompute",
        title="Your own checkpoint",
        check=check_recompute,
        hints=(
            "forward runs without a graph and keeps x. backward runs once more, with a graph, and walks it at once.",
            "ctx.save_for_backward(x) and ctx.run = run. In backward: a detached copy of x that requires gradients, "
            "torch.enable_grad(), run, and y.backward(grad_output).",
            "x = ctx.saved_tensors[0].detach().requires_grad_(); with torch.enable_grad(): y = ctx.run(x); "
            "y.backward(grad_output); return None, x.grad",
        ),
        errors=(
            _NO_GRAD,
            ("returned an incorrect number of gradients", "One for each input of forward: None for run, x.grad for x."),
            (
                "backward through the graph a second time",
                "The inner backward went on into the graph of x. Give run a detached copy of x.",
            ),
            ("has no attribute 'apply'", "Derive the class from torch.autograd.Function."),
            ("Legacy autograd function", "forward and backward must be static: @staticmethod."),
        ),
    ),
    Exercise(
        id="memory.live",
        title="Bytes that are alive",
        check=check_live,
        hints=(
            "Ask Python for all objects it keeps, take the tensors among them, and look at their storages.",
            "gc.collect(), then gc.get_objects(). issubclass(type(o), torch.Tensor) asks nothing of a strange object; "
            "isinstance may wake one up.",
            "storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in gc.get_objects() if "
            "issubclass(type(t), torch.Tensor)}; return sum(storages.values())",
        ),
    ),
    Exercise(
        id="memory.scale",
        title="The largest scale that fits",
        check=check_scale,
        hints=(
            "Only the largest gradient, in absolute value, decides.",
            "Powers of two: floor of the binary logarithm of 65,504 / largest. Zeros alone are a case of their own.",
            "largest = max(g.abs().max().item() for g in grads); 2.0 ** math.floor(math.log2(65504 / largest)) if "
            "largest else 1.0",
        ),
        errors=(
            ("division by zero", "All gradients may be zero. Then nothing needs saving: return 1.0."),
            ("stack expects each tensor to be equal size", "The gradients differ in shape: take each one's maximum."),
            ("cannot convert float infinity", "All gradients may be zero. Then return 1.0."),
            ("math domain error", "log2 of 0: all gradients may be zero. Then return 1.0."),
        ),
    ),
    Exercise(
        id="memory.distances",
        title="A part that stays in float32",
        check=check_distances,
        hints=(
            "Two things need care: what type the inputs have, and what autocast does to a product of matrices.",
            "with torch.autocast(a.device.type, enabled=False): inside it, a.float() and b.float() first.",
            "a.square().sum(1)[:, None] + b.square().sum(1) − 2 · a @ b.T, inside the block, in float32",
        ),
        errors=(
            ("must have the same dtype", "Cast both: a.float() and b.float()."),
            ("size of tensor", "(N, 1, D) and (1, M, D) fit each other: a[:, None] and b[None]."),
        ),
    ),
    Exercise(
        id="memory.scaler",
        title="A gradient scaler",
        check=check_scaler,
        hints=(
            "State: the scale, how many good steps in a row, whether this step's gradients were unscaled, and whether "
            "an inf or nan was found.",
            "unscale_: divide each gradient in place, and note if any is not finite. step: unscale_ if that was not "
            "done, then the optimizer's step if all were finite. update: move the scale, forget the step's state.",
            "update: if found: scale *= backoff_factor; good = 0. Else: good += 1; if good == growth_interval: scale "
            "*= growth_factor; good = 0. Then found = unscaled = False.",
        ),
        errors=(
            ("has no attribute 'div_'", "A parameter may have no gradient: skip it."),
            ("has no attribute 'isfinite'", "A parameter may have no gradient: skip it."),
        ),
    ),
    Exercise(
        id="memory.amp-step",
        title="One update in mixed precision",
        check=check_amp_step,
        hints=(
            "For each piece: forward and loss under autocast, then backward of the scaled loss. After the last: "
            "unscale, clip, step, update.",
            "Each piece's mean loss counts by its share, len(y) / n_all. scaler.unscale_(optimizer), then "
            "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm).",
            "scaler.scale(loss * len(y) / n_all).backward() in the loop; then scaler.unscale_(optimizer); norm = "
            "clip_grad_norm_(...); scaler.step(optimizer); scaler.update(); return norm.item()",
        ),
        errors=(
            ("unscale_() has already been called", "Unscale once for each update, after the last piece."),
            (
                "No inf checks were recorded prior to update",
                "scaler.update() comes once, after scaler.step(optimizer): it uses what the step has found.",
            ),
            (
                "No inf checks were recorded for this optimizer",
                "No gradient has arrived: call backward before the step.",
            ),
            ("_scale is None", "The loss must go through scaler.scale(...) before backward."),
        ),
    ),
    Exercise(
        id="memory.one-graph",
        title="A branch without leaving the graph",
        check=check_one_graph,
        hints=(
            "Compute a factor as a tensor: 1 for short tensors, limit / norm for long ones.",
            "(limit / norm).clamp(max=1.0), or torch.where(norm > limit, limit / norm, 1.0).",
            "return x * (limit / x.norm()).clamp(max=1.0)",
        ),
        errors=(
            (
                "Data-dependent",
                "Dynamo can't follow an `if` on the value of a tensor. Choose with torch.where or clamp.",
            ),
        ),
    ),
    Exercise(
        id="memory.break-even",
        title="When compiling has paid",
        check=check_break_even,
        hints=(
            "Write both total times for n calls. Where does the one fall below the other?",
            "first + (n − 1) · later < n · plain. If later ≥ plain, only n = 1 can do it.",
            "1 if first < plain, None if later >= plain, else math.floor((first - plain) / (plain - later)) + 2",
        ),
        errors=(("division by zero", "If both take the same time for each call, compiling never pays: return None."),),
    ),
    Exercise(
        id="memory.clinic-history",
        title="Validation that keeps everything",
        check=check_clinic_history,
        kind=CLINIC,
        finding="evaluation.keeps-graphs",
        hints=(
            "What hangs on each tensor that is kept?",
            "Scores and losses have a graph, and a graph holds what backward would need. Who calls backward here?",
            "with torch.no_grad(): around the loop. total += loss.item()",
        ),
    ),
    Exercise(
        id="memory.clinic-loop",
        title="A loss that never moves",
        check=check_clinic_loop,
        kind=CLINIC,
        finding="amp.autocast-around-steps",
        hints=(
            "Print a weight after each step. Then print the loss.",
            "Autocast keeps the 16-bit copy of a weight until its block ends. When does it end here?",
            "for _ in range(steps): with torch.autocast(...): loss = ...; the rest outside the block",
        ),
    ),
    Exercise(
        id="memory.clinic-half",
        title="Half the bytes, no progress",
        check=check_clinic_half,
        kind=CLINIC,
        finding="optimizer.update-vanishes",
        hints=(
            "Compare a weight before and after a step, with all its digits.",
            "Near 1, bfloat16 has a number every 1/128. How large is an update here?",
            'Leave the model in float32; with torch.autocast("cpu", dtype=torch.bfloat16): around forward and loss.',
        ),
        errors=(("must have the same dtype", "Model and input have different types. Cast neither: autocast does."),),
    ),
    Exercise(
        id="memory.clinic-slice",
        title="A row that keeps its batch",
        check=check_clinic_slice,
        kind=CLINIC,
        finding="memory.slice-pins-storage",
        hints=(
            "How many bytes has row.untyped_storage()?",
            "Indexing gives a view. A copy has a storage of its own.",
            "kept.append(features[0].detach().clone())",
        ),
    ),
    Exercise(
        id="memory.clinic-reentrant",
        title="A checkpoint that stops learning",
        check=check_clinic_reentrant,
        kind=CLINIC,
        finding="optimizer.no-gradient",
        hints=(
            "Print the gradient of the body after backward.",
            "There are two kinds of checkpoint, and the older one has a condition on its input.",
            "checkpoint(model.body, images, use_reentrant=False)",
        ),
        errors=(
            (
                "does not require grad",
                "The output of the older checkpoint needs no gradient if its input needs none. use_reentrant=False.",
            ),
        ),
    ),
    Exercise(
        id="memory.clinic-counter",
        title="Compiled at every call",
        check=check_clinic_counter,
        kind=CLINIC,
        unseen="It runs the model uncompiled, and counts no compilations.",
        hints=(
            "Which number differs from call to call?",
            "A Python number is a constant of the compiled code. What would make it an input?",
            'self.register_buffer("calls", torch.zeros(())); in forward: self.calls += 1; return x * (self.calls / '
            "10).clamp(max=1)",
        ),
        errors=(
            (
                "must be Tensor, not float",
                "torch.minimum takes tensors; (self.calls / 10).clamp(max=1) does the same.",
            ),
        ),
    ),
]
