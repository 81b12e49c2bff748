"""Exercises and clinic items of lesson 05: titles, hints, and where each check is."""

from __future__ import annotations

from course_utils.exercises.registry import CLINIC, Exercise
from course_utils.exercises.training_clinic import (
    check_clinic_best,
    check_clinic_clip,
    check_clinic_modes,
    check_clinic_onecycle,
    check_clinic_resume,
)
from course_utils.exercises.training_loop import (
    check_evaluate,
    check_train_epoch,
    check_two_losses,
)
from course_utils.exercises.training_runs import (
    check_checkpoint,
    check_epoch_order,
    check_first_bad_layer,
)
from course_utils.exercises.training_updates import (
    check_adamw_step,
    check_clip,
    check_early_stop,
    check_warmup_cosine,
)

NO_FLOAT = (
    "The label arrived as bool or int64. A loss on one score per question wants float labels: is_even.float().",
    "The scores are (N, 1), the labels (N,). Bring both to one shape, squeeze(1) or unsqueeze(1), before the loss.",
)

EXERCISES = [
    Exercise(
        id="training.two-losses",
        title="Two heads, two losses",
        check=check_two_losses,
        hints=(
            "One head chooses among C classes, the other answers one yes-or-no question. They need different losses.",
            "Both losses want raw scores. The class loss wants int64 labels (N,), "
            "the yes-or-no loss wants float labels "
            "with the shape of its scores.",
            "F.cross_entropy(scores, labels), and "
            "F.binary_cross_entropy_with_logits(even_scores.squeeze(1), is_even.float()).",
        ),
        errors=(
            ("can't be cast", NO_FLOAT[0]),
            ("expected scalar type", NO_FLOAT[0]),
            ("with a bool tensor", NO_FLOAT[0]),
            ("two bool tensors", NO_FLOAT[0]),
            ("Found dtype", NO_FLOAT[0]),
            ("arget size", NO_FLOAT[1]),
        ),
    ),
    Exercise(
        id="training.train-epoch",
        title="One epoch of training",
        check=check_train_epoch,
        hints=(
            "Five calls per batch, in one order. Ask of each: what does it read, what does it write?",
            "backward adds to .grad, so empty it first. The loss of a batch is a mean: to "
            "average over examples, multiply by len(x).",
            "model.train(); per batch: optimizer.zero_grad(); loss = loss_fn(model(x), "
            "y); loss.backward(); optimizer.step(); "
            "total += loss.item() * len(x); count += len(x). Return total / count.",
        ),
    ),
    Exercise(
        id="training.evaluate",
        title="An honest validation pass",
        check=check_evaluate,
        hints=(
            "Two switches: one changes what layers do, the other whether a graph is "
            "recorded. And the modes go back afterwards.",
            "modes = [m.training for m in model.modules()] before model.eval(); put each back at the end. "
            "Count hits and loss over examples, not over batches.",
            "with torch.no_grad(): for x, y in batches: logits = model(x); total += "
            "loss_fn(logits, y).item() * len(x); "
            "hits += (logits.argmax(1) == y).sum().item(); count += len(x).",
        ),
    ),
    Exercise(
        id="training.adamw-step",
        title="One step of AdamW by hand",
        check=check_adamw_step,
        hints=(
            "Two running means: of the gradient, and of its square. Both start at 0, so early on they are too small.",
            "Correct both by 1 - beta ** t before you use them. The weight decay doesn't "
            "touch the gradient: it shrinks w directly.",
            "m = beta1*m + (1-beta1)*grad; v = beta2*v + (1-beta2)*grad**2; "
            "w = w - lr*decay*w - lr * (m/(1-beta1**t)) / ((v/(1-beta2**t)).sqrt() + eps).",
        ),
    ),
    Exercise(
        id="training.warmup-cosine",
        title="Warm-up, then cosine",
        check=check_warmup_cosine,
        hints=(
            "Two pieces that meet at 1. Write down the factor at step 0, warmup - 1, "
            "warmup and total before you write code.",
            "Below warmup: (step + 1) / warmup. Above: progress from 0 to 1, cut off at "
            "1, through (1 + cos(pi * progress)) / 2.",
            "if step < warmup: return (step + 1) / warmup. progress = min(1, (step - warmup) / (total - warmup)); "
            "return 0.5 * (1 + math.cos(math.pi * progress)).",
        ),
        errors=(("division by zero", "With warmup = 0 there is nothing to divide by: test step < warmup first."),),
    ),
    Exercise(
        id="training.clip",
        title="Clip gradients by their total norm",
        check=check_clip,
        hints=(
            "All gradients together are one long vector. Clipping shortens it and keeps where it points.",
            "parameters() is a generator and runs out: make a list of the gradients that are not None. "
            "The norm is the root of the sum of all squares.",
            "grads = [p.grad for p in parameters if p.grad is not None]; norm = sqrt(sum of (g ** 2).sum()); "
            "if norm > max_norm: g.mul_(max_norm / norm) for each. Return the norm.",
        ),
        errors=(("NoneType", "A parameter that took no part has grad None. Leave it out."),),
    ),
    Exercise(
        id="training.early-stop",
        title="When to stop",
        check=check_early_stop,
        hints=(
            "Carry three things along: the best loss so far, when it was, and how many epochs have passed since.",
            "A better epoch sets the count to 0, any other adds 1. nan is never better: ask loss < best.",
            "for epoch, loss in enumerate(losses): if loss < best: best, best_epoch, "
            "waited = loss, epoch, 0; else: waited += 1; "
            "if waited == patience: return epoch + 1, best_epoch. After the loop: return len(losses), best_epoch.",
        ),
    ),
    Exercise(
        id="training.epoch-order",
        title="A shuffle that survives a crash",
        check=check_epoch_order,
        hints=(
            "The order must follow from seed and epoch alone: not from what was drawn before, nor from a global state.",
            "Make a new torch.Generator inside the function. Its seed must mix seed "
            "and epoch so that no two pairs collide.",
            'torch.randperm(n, generator=stream(seed, "shuffle", epoch)).split(batch_size), as a list.',
        ),
    ),
    Exercise(
        id="training.checkpoint",
        title="A checkpoint that forgets nothing",
        check=check_checkpoint,
        hints=(
            "Ask of every part: does it change while training runs? Then it belongs into the file.",
            "Four states and a number: model, optimizer, scheduler, torch's random generator, and the step.",
            'save: torch.save({"model": self.model.state_dict(), …, "rng": '
            'torch.get_rng_state(), "step": step}, path). '
            "load: torch.load(path), load_state_dict for the three, torch.set_rng_state, return the step.",
        ),
    ),
    Exercise(
        id="training.first-bad-layer",
        title="Hunt the first nan",
        check=check_first_bad_layer,
        hints=(
            "A forward hook on each layer is called when that layer has finished. Which of them reports first?",
            "Test with torch.isfinite(output).all(). Keep the first name only, and "
            "remove every hook in a finally block.",
            "for name, layer in model.named_modules(): "
            "handles.append(layer.register_forward_hook(note)), where note appends name "
            "to a list if the output is not all finite. Run model(x); return found[0] if found else None.",
        ),
        errors=(
            (
                "cannot be multiplied",
                "The order of registration is not the order of running. Call model(x), and let hooks report.",
            ),
        ),
    ),
    Exercise(
        id="training.clinic-clip",
        title="Clipped, and still it jumps",
        check=check_clinic_clip,
        kind=CLINIC,
        finding="loop.clip-misplaced",
        hints=(
            "When do the gradients of this batch exist, and when are they used?",
            "backward writes them, step reads them. Clipping must stand between.",
            "zero_grad, backward, clip_grad_norm_, step.",
        ),
    ),
    Exercise(
        id="training.clinic-modes",
        title="Dropout that works for one epoch",
        check=check_clinic_modes,
        kind=CLINIC,
        finding="loop.eval-mode-while-training",
        hints=(
            "Follow model.training through the first two epochs.",
            "eval() in the validation pass stays in force until somebody calls train().",
            "Move model.train() into the epoch loop, as its first line.",
        ),
    ),
    Exercise(
        id="training.clinic-onecycle",
        title="A cycle that never gets going",
        check=check_clinic_onecycle,
        kind=CLINIC,
        finding="scheduler.wrong-pace",
        hints=(
            "How many times is scheduler.step() called, and how many calls does the schedule count on?",
            "total_steps counts optimizer steps. The scheduler must move as often.",
            "Indent scheduler.step() into the batch loop, after used.append(...).",
        ),
    ),
    Exercise(
        id="training.clinic-best",
        title="The best model is the last one",
        check=check_clinic_best,
        kind=CLINIC,
        finding="memory.best-state-is-live",
        hints=(
            "Compare a tensor of `best` with the model's own tensor, right after it was kept and one epoch later.",
            "state_dict() holds the model's tensors, not copies. Training writes into them.",
            "best = copy.deepcopy(model.state_dict())",
        ),
    ),
    Exercise(
        id="training.clinic-resume",
        title="The resumed run that learns nothing",
        check=check_clinic_resume,
        kind=CLINIC,
        finding="optimizer.parameters-missing",
        hints=(
            "Which network do the optimizer's parameters belong to?",
            "Two networks are made here. The optimizer holds the first, the caller gets the second.",
            "Delete the second make_model(): one model, its optimizer, then load both states.",
        ),
    ),
]
