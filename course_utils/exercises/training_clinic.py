"""Checks of lesson 05's clinic: five programs that run and do the wrong thing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_utils.exercises.compare import describe, is_close, is_equal, is_true
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.training_parts import Batch, classifier, memory_of, vector
from course_utils.exercises.verdicts import Check
from course_utils.scratch import scratch_folder


def check_clinic_clip(train_step: Callable, inputs: Inputs) -> Iterator[Check]:
    """training.clinic-clip: one step whose gradients are clipped to a total norm before they are used."""
    d, c = inputs.sizes(2, 3, 6)
    limit, lr = 0.5, 0.8
    start = nn.Linear(d, c, bias=False).double()  # no bias: small inputs then give small gradients
    x, y = inputs.randn(6, d, dtype=torch.float64), inputs.randint(0, c, 6)

    def moved(x: Tensor, stale: float | None = None) -> tuple[Tensor, Tensor]:
        """Return the update that the answer makes, and the one that the plain gradient would make."""
        model = copy.deepcopy(start)
        if stale is not None:
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, stale)
        train_step(model, x, y, torch.optim.SGD(model.parameters(), lr=lr), limit)
        grads = torch.autograd.grad(F.cross_entropy(start(x), y), list(start.parameters()))
        return vector(model) - vector(start), -lr * torch.cat([grad.reshape(-1) for grad in grads])

    with torch.no_grad():
        y = start(x * 1000).argmin(1)  # the class that the model finds least likely: a large gradient
    update, plain = moved(x * 1000)
    yield is_true(
        "the weights move",
        bool(update.any()),
        detail="they are as before",
        hint="The order is: zero_grad, backward, clip, step.",
    )
    unclipped = torch.allclose(update, plain)
    yield is_true(
        f"a wild batch moves the weights by at most lr * max_norm = {lr * limit:g}",
        update.norm().item() <= lr * limit * 1.001,
        detail="they moved as far as without clipping" if unclipped else f"they moved by {update.norm().item():.3g}",
        hint="Nothing was clipped: gradients exist only after backward, and step has used "
        "them when it returns. Clip between the two."
        if unclipped
        else "The norm of all gradients together must be at most max_norm when step uses "
        "them. Cutting off each number is not enough.",
    )
    yield is_close(
        "the clipped step keeps its direction",
        update,
        plain * (limit * lr / plain.norm()),
        hint="Clipping by norm scales all gradients by one factor. Cutting off single values turns the step.",
    )
    yield is_close(
        "gradients of an earlier step play no part",
        moved(x * 1000, stale=50.0)[0],
        update,
        hint="zero_grad belongs before backward: backward adds to what is there.",
    )
    update, plain = moved(x * 1e-3)
    yield is_close(
        "a calm batch moves the weights as far as its gradient says",
        update,
        plain,
        hint="Clipping is a ceiling: a gradient below max_norm stays as it is.",
    )


def check_clinic_modes(train: Callable, inputs: Inputs) -> Iterator[Check]:
    """training.clinic-modes: epochs of training with a validation pass after each; returns one accuracy per epoch."""
    epochs, n_batches = inputs.size(3, 5), inputs.size(2, 4)
    batches = [(inputs.randn(5, 4, dtype=torch.float64), inputs.randint(0, 3, 5)) for _ in range(n_batches)]
    held_out = (
        inputs.randn(31, 4, dtype=torch.float64),
        inputs.randint(0, 3, 31),
    )  # 31: told apart from a training batch
    model = classifier(inputs, 4, 3, nn.Dropout(0.5))
    passes: list[tuple[int, bool, bool]] = []
    model.register_forward_hook(
        lambda m, args, output: passes.append((len(args[0]), m[1].training, output.requires_grad))
    )
    before = vector(model)
    scores = train(model, batches, held_out, torch.optim.SGD(model.parameters(), lr=0.5), epochs)
    training = [mode for n, mode, _ in passes if n == 5]
    yield is_equal("trains on every batch of every epoch", len(training), epochs * n_batches, hint="Keep both loops.")
    yield is_true(
        "the weights move", not torch.equal(before, vector(model)), detail="they are as before", hint="Keep the steps."
    )
    quiet = training.count(False)
    yield is_true(
        "dropout is on in every training step",
        quiet == 0,
        detail="it was on in the first epoch only"
        if training == [True] * n_batches + [False] * quiet
        else f"it was off in {quiet} of {len(training)} steps",
        hint="Validation switches to eval mode. Switch back before the next epoch "
        "begins: model.train() inside the epoch loop."
        if training[0]
        else "The model must be in training mode when each epoch begins.",
    )
    measuring = [mode for n, mode, _ in passes if n == 31]
    yield is_equal("validates once per epoch", len(measuring), epochs, hint="One validation pass after each epoch.")
    yield is_true(
        "dropout is off in every validation pass",
        not any(measuring),
        detail=f"it was on in {sum(measuring)} of {epochs} passes",
        hint="Don't drop eval(): with dropout on, the score is too low and random. Both switches are needed.",
    )
    yield is_true(
        "validation builds no graph",
        not any(graph for n, _, graph in passes if n == 31),
        detail="the outputs had a grad_fn",
        hint="Keep torch.no_grad() around the validation pass.",
    )
    scores_ok = type(scores) in (list, tuple) and len(scores) == epochs
    yield is_true("returns one score per epoch", scores_ok, detail=f"got {describe(scores)}", hint="return scores")
    yield is_close(
        "the last score is the accuracy of the final weights",
        float(scores[-1]) if isinstance(scores[-1], (int, float, Tensor)) else scores[-1],
        (model.eval()(held_out[0]).argmax(1) == held_out[1]).double().mean().item(),
        hint="Measure after the epoch's last step.",
    )


def check_clinic_onecycle(train: Callable, inputs: Inputs) -> Iterator[Check]:
    """training.clinic-onecycle: returns the learning rate that each step used."""
    epochs, peak = inputs.size(3, 5), inputs.choice([0.1, 0.2, 0.4])
    batches = [(inputs.randn(4, 3), inputs.randint(0, 2, 4)) for _ in range(inputs.size(6, 9))]
    total = epochs * len(batches)

    def curve(steps: int) -> list[float]:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=peak)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=peak, total_steps=steps)
        rates = []
        for _ in range(steps):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            if len(rates) < steps:
                scheduler.step()
        return rates

    model = nn.Linear(3, 2)
    before = vector(model)
    used = train(model, batches, epochs, peak)
    is_list = type(used) in (list, tuple) and all(isinstance(rate, float) for rate in used)
    yield is_true(
        "returns the rates as a list of numbers", is_list, detail=f"got {describe(used)}", hint="Keep used.append(...)"
    )
    yield is_equal("notes one rate per step", len(used), total, hint="epochs * len(batches) steps, one entry each.")
    yield is_true(
        "the weights move", not torch.equal(before, vector(model)), detail="they are as before", hint="Keep the steps."
    )
    expected = torch.tensor(curve(total), dtype=torch.float64)
    per_epoch = torch.tensor(curve(epochs), dtype=torch.float64).repeat_interleave(len(batches))
    stuck = torch.tensor([curve(total)[step // len(batches)] for step in range(total)], dtype=torch.float64)
    shifted = torch.cat([expected[1:], expected[-1:]])
    got = torch.tensor(used, dtype=torch.float64)
    advice = "Call scheduler.step() after each optimizer.step(), inside the batch loop."
    yield is_true(
        "the rate gets off the ground",
        not torch.allclose(got, stuck, rtol=1e-3),
        detail="it stays far below the peak to the end",
        hint=f"total_steps counts optimizer steps, yet the scheduler moves once per epoch. {advice}",
    )
    yield is_close(
        "the rate rises to the peak and comes down to almost 0, step by step",
        got,
        expected,
        rtol=1e-3,
        atol=peak * 1e-4,
        hint=advice,
        mistakes=[
            (
                per_epoch,
                "The plan is consistent now, but a staircase: every epoch runs at one "
                "rate. Let it move after every step.",
            ),
            (shifted, "The noted rate is that of the next step. Note it before scheduler.step() moves it on."),
            (torch.full((total,), peak, dtype=torch.float64), "The schedule is gone: the rate stays at the peak."),
            (expected[0].repeat(total), "The scheduler never moves."),
        ],
    )


def check_clinic_best(train_and_keep_best: Callable, inputs: Inputs) -> Iterator[Check]:
    """training.clinic-best: trains, then gives the model back the state of its best epoch; returns the best loss."""
    losses = [1.0 / (epoch + 1) for epoch in range(inputs.size(3, 6))]
    best = len(losses) - 1
    losses += [losses[-1] + 0.1 * (k + 1) for k in range(inputs.size(2, 4))]
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    states: list[dict[str, Tensor]] = []

    def train_one_epoch(model: nn.Module, epoch: int) -> None:
        with torch.no_grad():
            for value in [*model.parameters(), *model.buffers()]:
                value.add_(epoch + 1)
        states.append({name: value.clone() for name, value in model.state_dict().items()})

    def validate(model: nn.Module) -> float:
        return losses[len(states) - 1]

    answer = train_and_keep_best(model, train_one_epoch, validate, len(losses))
    yield is_equal("trains every epoch once", len(states), len(losses), hint="Keep the epoch loop.")

    def holds(epoch: int, names: Sequence[str]) -> bool:
        state = model.state_dict()
        return all(torch.equal(state[name], states[epoch][name]) for name in names)

    parameters = [name for name, _ in model.named_parameters()]
    last = holds(len(losses) - 1, parameters)
    yield is_true(
        "the model ends with the weights of the best epoch",
        holds(best, parameters),
        detail="it has the weights of the last epoch" if last else "it has other weights",
        hint="state_dict() returns the live tensors, and training goes on writing into "
        "them. Keep a copy of each: copy.deepcopy."
        if last
        else "Load the copy of the epoch with the lowest loss, once, after the loop.",
    )
    yield is_true(
        "its buffers are those of the best epoch too",
        holds(best, list(states[0])),
        detail="the BatchNorm statistics belong to another epoch",
        hint="Parameters are not the whole state: running means are buffers. state_dict() has both.",
    )
    yield is_close("returns the best loss", answer, losses[best], hint="Keep return best_loss.")


def check_clinic_resume(resume: Callable, inputs: Inputs) -> Iterator[Check]:
    """training.clinic-resume: a path and two makers -> model and optimizer as they were when the file was written."""

    def make_model() -> nn.Module:
        return classifier(inputs, 3, 2)

    def make_optimizer(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()

    batches = [(inputs.randn(6, 3, dtype=torch.float64), inputs.randint(0, 2, 6)) for _ in range(2)]
    model = make_model()
    optimizer = make_optimizer(model.parameters())
    step(model, optimizer, batches[0])
    with scratch_folder("answer") as folder:
        path = folder / "run.pt"
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        answer = resume(path, make_model, make_optimizer)
    pair = type(answer) in (tuple, list) and len(answer) == 2 and isinstance(answer[0], nn.Module)
    pair = pair and isinstance(answer[1], torch.optim.Optimizer)
    yield is_true(
        "returns the model and the optimizer", pair, detail=f"got {describe(answer)}", hint="return model, optimizer"
    )
    fresh, optimizer2 = answer
    yield is_true(
        "the model has the saved weights",
        torch.equal(vector(fresh), vector(model)),
        detail="it has other weights",
        hint='model.load_state_dict(saved["model"]) on the model that you return.',
    )
    held = {id(p) for group in optimizer2.param_groups for p in group["params"]}
    yield is_true(
        "the optimizer holds the parameters of this model",
        held == {id(p) for p in fresh.parameters()},
        detail="it holds the parameters of another network",
        hint="The optimizer was built on a network that was thrown away: it updates that "
        "one. Build one model, then its optimizer.",
    )
    yield is_true(
        "the optimizer remembers its momentum",
        bool(memory_of(optimizer2)),
        detail="its memory is empty",
        hint='optimizer.load_state_dict(saved["optimizer"]) on the optimizer that you return.',
    )
    for parts in ((model, optimizer), (fresh, optimizer2)):
        step(*parts, batches[1])
    yield is_true(
        "the next step leads to the same weights as without the break",
        torch.equal(vector(fresh), vector(model)),
        detail="the weights differ",
        hint="Both states must be loaded into what you return.",
    )
