"""Checks of lesson 05: losses, one epoch, one validation pass."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_utils.exercises.compare import describe, is_close, is_equal, is_true
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.training_parts import classifier, passes_of, ragged_batches, vector
from course_utils.exercises.verdicts import Check


def check_two_losses(two_losses: Callable, inputs: Inputs) -> Iterator[Check]:
    """training.two-losses: (N, C) scores with int64 labels, (N, 1) scores with bool labels -> two means, in nats."""
    n, c = inputs.sizes(2, 5, 12)
    scores, labels = inputs.strided(n, c) * 3, inputs.randint(0, c, n)
    even_scores, is_even = inputs.randn(n, 1) * 3, inputs.randint(0, 2, n).bool()
    is_even[0], is_even[1] = True, False  # both answers occur, so that a swapped or spread label shows
    scores, even_scores = scores.requires_grad_(), even_scores.requires_grad_()
    answer = two_losses(scores, labels, even_scores, is_even)
    pair = type(answer) in (tuple, list) and len(answer) == 2
    yield is_true(
        "returns a pair of losses", pair, detail=f"got {describe(answer)}", hint="return class_loss, even_loss"
    )
    class_loss, even_loss = answer
    yield is_close(
        "the class loss is the mean surprise of the true classes",
        class_loss,
        F.cross_entropy(scores, labels),
        hint="F.cross_entropy takes raw scores (N, C) and int64 labels (N,).",
        mistakes=[
            (F.cross_entropy(scores.softmax(1), labels), "cross_entropy applies softmax itself. You applied it twice."),
            (F.cross_entropy(scores, labels, reduction="sum"), "This is the sum over the batch. Take the mean."),
            (F.cross_entropy(scores, labels, reduction="none"), "One loss per example is left. Take the mean."),
        ],
    )
    flat, truth = even_scores.squeeze(1), is_even.float()
    spread = F.binary_cross_entropy_with_logits(even_scores.expand(n, n), truth.expand(n, n))
    yield is_close(
        "the even loss is the mean surprise of the true answers",
        even_loss,
        F.binary_cross_entropy_with_logits(flat, truth),
        hint="One score per question: binary_cross_entropy_with_logits, on float labels of the same shape.",
        mistakes=[
            (spread, "(N, 1) met (N,) and became (N, N): every score was compared with every label."),
            (
                F.binary_cross_entropy_with_logits(flat.sigmoid(), truth),
                "The with_logits loss applies sigmoid itself. You applied it twice.",
            ),
            (
                F.binary_cross_entropy_with_logits(flat, truth, reduction="sum"),
                "This is the sum over the batch. Take the mean.",
            ),
            (F.binary_cross_entropy_with_logits(flat, 1 - truth), "The labels are swapped: True means even."),
        ],
    )
    yield is_true(
        "both losses can be sent backward",
        bool(class_loss.requires_grad and even_loss.requires_grad),
        detail="a loss has no grad_fn",
        hint="Return the loss tensors. item() is for the log.",
    )
    huge = torch.full((n, 1), 200.0) * torch.where(is_even, -1.0, 1.0).unsqueeze(1)  # every answer is wrong, by far
    _, far_off = two_losses(scores, labels, huge, is_even)
    yield is_close(
        "a score of 200 on the wrong side costs 200 nats",
        far_off,
        torch.tensor(200.0),
        hint="sigmoid(200) is exactly 1 in float32, and log(1 - 1) is lost. Hand "
        "the raw score to the with_logits loss.",
        mistakes=[
            (
                torch.tensor(100.0),
                "binary_cross_entropy cut the loss off at 100. Use the with_logits loss on the raw score.",
            )
        ],
    )


def check_train_epoch(train_epoch: Callable, inputs: Inputs) -> Iterator[Check]:
    """training.train-epoch: one pass over the batches; parameters move, the mean loss over examples comes back."""
    d, c = inputs.sizes(2, 4, 7)
    batches, lr = ragged_batches(inputs, d, c), 0.3
    start = classifier(inputs, d, c)

    def trained(zero: bool) -> tuple[Tensor, list[float]]:
        model, losses = copy.deepcopy(start), []
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        for x, y in batches:
            if zero:
                optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return vector(model), losses

    expected, losses = trained(zero=True)
    piled_up, _ = trained(zero=False)
    model = copy.deepcopy(start).eval()  # as a validation pass would leave it
    seen = passes_of(model)
    answer = train_epoch(model, batches, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=lr))
    yield is_equal("runs the model once per batch", len(seen), len(batches), hint="for x, y in batches: ...")
    yield is_true(
        "every step runs in training mode",
        all(training for training, _ in seen),
        detail="the model came in eval mode and stayed there",
        hint="A validation pass may have left it in eval mode. Call model.train() before the loop.",
    )
    yield is_close(
        "the parameters end where four separate updates lead",
        vector(model),
        expected,
        hint="Per batch: zero_grad, forward, loss, backward, step.",
        mistakes=[
            (
                piled_up,
                "The gradients of earlier batches were still in .grad: backward adds. Call zero_grad in each step.",
            ),
            (
                vector(start),
                "The parameters did not move: at step() the gradients were empty. backward comes after zero_grad.",
            ),
        ],
    )
    sizes = [len(y) for _, y in batches]
    total = sum(loss * n for loss, n in zip(losses, sizes, strict=True))
    is_number = isinstance(answer, float)
    yield is_true(
        "returns a Python number",
        is_number,
        detail=f"got {describe(answer)}",
        hint="A loss tensor keeps its whole graph alive. Take loss.item() for the sum.",
    )
    yield is_close(
        "returns the mean loss over all examples",
        float(answer),
        total / sum(sizes),
        hint="Add loss.item() * len(x) per batch; divide by the number of examples.",
        mistakes=[
            (
                sum(losses) / len(losses),
                "This is the mean of the batch means: the short last batch weighs as much as a full one.",
            ),
            (sum(losses), "This is the sum of the batch losses. Divide by the number of examples."),
            (losses[-1], "This is the loss of the last batch alone."),
            (total, "This is the sum over the examples. Divide by their number."),
            (total / len(batches), "Divide by the number of examples, not by the number of batches."),
            (sum(losses) / sum(sizes), "A batch loss is a mean already: multiply it by len(x) before you add."),
        ],
    )


def check_evaluate(evaluate: Callable, inputs: Inputs) -> Iterator[Check]:
    """training.evaluate: mean loss in nats and accuracy of held-out batches; the model stays as it was."""
    d, c = inputs.sizes(2, 4, 7)
    batches = ragged_batches(inputs, d, c)
    model = classifier(inputs, d, c, nn.BatchNorm1d(8), nn.Dropout(0.5)).double().train()
    model[1].eval()  # a frozen BatchNorm, as in fine-tuning
    x, y = torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
    honest = copy.deepcopy(model).eval()
    with torch.no_grad():
        logits = [honest(part) for part, _ in batches]
        losses = [F.cross_entropy(z, part).item() for z, (_, part) in zip(logits, batches, strict=True)]
        shares = [(z.argmax(1) == part).double().mean().item() for z, (_, part) in zip(logits, batches, strict=True)]
        loss = F.cross_entropy(honest(x), y).item()
        share = (honest(x).argmax(1) == y).double().mean().item()
    modes = [module.training for module in model.modules()]
    seen = passes_of(model)
    with torch.enable_grad():  # leaving the block puts the switch back, whatever the answer did to it
        answer = evaluate(model, batches, F.cross_entropy)
        grad_mode = torch.is_grad_enabled()
    pair = type(answer) in (tuple, list) and len(answer) == 2 and all(isinstance(item, float) for item in answer)
    yield is_true(
        "returns a pair of Python numbers",
        pair,
        detail=f"got {describe(answer)}",
        hint="return mean_loss, accuracy; item() turns a scalar tensor into a number.",
    )
    yield is_true(
        "every layer is in eval mode while it measures",
        bool(seen) and not any(training for training, _ in seen),
        detail="dropout was still on: the same model would score differently next time",
        hint="model.eval() before the batches. no_grad alone doesn't switch dropout off.",
    )
    yield is_true(
        "no graph is built",
        not any(graph for _, graph in seen),
        detail="the outputs had a grad_fn",
        hint="eval mode doesn't stop the recording. Put the passes under torch.no_grad().",
    )
    yield is_true(
        "recording is on again afterwards",
        grad_mode,
        detail="gradients are still switched off",
        hint="Use torch.no_grad() as a block: it ends where the block ends.",
    )
    after = [module.training for module in model.modules()]
    all_eval, all_train = not any(after), all(after)
    yield is_true(
        "each layer has its own mode back",
        after == modes,
        detail="everything is in eval mode"
        if all_eval
        else "the frozen BatchNorm is in training mode now"
        if all_train
        else "",
        hint="The next epoch would train without dropout. Switch back before you return."
        if all_eval
        else "model.train() switches every layer. Note each module's .training first, and put that back.",
    )
    yield is_close(
        "the loss is the mean over all examples",
        answer[0],
        loss,
        hint="Weigh each batch's mean by len(x).",
        mistakes=[
            (
                sum(losses) / len(losses),
                "This is the mean of the batch means: the short last batch weighs as much as a full one.",
            ),
            (sum(losses), "This is the sum of the batch losses. Divide by the number of examples."),
            (loss * len(y), "This is the sum over the examples. Divide by their number."),
        ],
    )
    yield is_close(
        "the accuracy is the share of all examples, 0 to 1",
        answer[1],
        share,
        hint="Count the hits over all batches, then divide by the number of examples.",
        mistakes=[
            (
                sum(shares) / len(shares),
                "This is the mean of the batch accuracies: the short last batch weighs too much.",
            ),
            (share * 100, "This is in percent. Return the share, 0 to 1."),
            (share * len(y), "This is the number of hits. Divide by the number of examples."),
            (
                share * len(y) / (len(batches) * len(batches[0][1])),
                "You divided by batches times batch size, but the last batch is short.",
            ),
        ],
    )
    model.eval()
    with torch.enable_grad():
        evaluate(model, batches, F.cross_entropy)
    yield is_true(
        "a model that came in eval mode leaves in eval mode",
        not any(module.training for module in model.modules()),
        detail="it was switched to training mode",
        hint="model.train() at the end is a guess. Put back what you found.",
    )
