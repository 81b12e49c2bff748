"""Lesson 05: what people say about the training loop."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from course_utils.claims import training_nan, training_rates
from course_utils.claims.evidence import WORKS, attempt, warnings_of
from course_utils.claims.ledger import Evidence
from course_utils.claims.training_gradients import PAGE, flat, problem
from course_utils.claims.verdicts import CAVEAT, FALSE, OPINION, TRUE
from course_utils.data import load_digits8
from course_utils.models import MLP
from course_utils.seeding import seeded

__all__ = ["PAGE", "training_nan", "training_rates"]


# --- Losses and measures ---------------------------------------------------------------------------------------------


@PAGE.claim(
    "L004",
    ".item() converts a scalar tensor to a Python number and drops the graph.",
    rule=lambda seen: TRUE if seen["type"] == "float" and not seen["the number has a graph"] else FALSE,
    right="On this version the result is no plain number.",
    page="generated/torch.Tensor.item.html",
)
def number_of_a_loss() -> Evidence:
    loss = torch.ones(3, requires_grad=True).square().mean()
    number = loss.item()
    return {
        "type": type(number).__name__,
        "the number has a graph": hasattr(number, "grad_fn"),
        "backward() of the tensor afterwards": attempt(loss.backward),
    }


@PAGE.claim(
    "L005",
    "The epoch loss should be accumulated as loss.item()*images.size(0) and divided by the number of samples.",
    rule=lambda seen: FALSE if not seen["equals the loss over all"] else TRUE
    if seen["with class weights: equals the loss over all"] else CAVEAT,
    right="Right for a loss that is a mean over the examples, and far better than the mean of the batch means. With "
    "class weights or ignore_index the mean is over the weights: add up those instead.",
    page="generated/torch.nn.CrossEntropyLoss.html",
)  # fmt: skip
@PAGE.claim(
    "L044",
    "Epoch loss computed as sum(loss.item()*batch)/len(dataset) is right.",
    rule=lambda seen: FALSE if not seen["equals the loss over all"] else TRUE
    if seen["drop_last=True: equals the loss over what was seen"] else CAVEAT,
    right="Only if every example was seen. With drop_last=True, a sampler or an early stop, len(dataset) counts "
    "examples that were not: divide by the number that you add up in the loop.",
    page="data.html#torch.utils.data.DataLoader",
)  # fmt: skip
def epoch_loss_from_batches() -> Evidence:
    logits, labels = 3 * torch.randn(10, 3), torch.arange(10) % 3
    dataset = TensorDataset(logits, labels)

    def summed(weight: Tensor | None = None, **options: Any) -> Tensor:
        batches = DataLoader(dataset, batch_size=4, **options)  # 4, 4, 2
        return sum(F.cross_entropy(z, y, weight=weight) * len(y) for z, y in batches) / len(dataset)

    def same(a: Tensor, b: Tensor) -> bool:
        return torch.allclose(a, b, atol=1e-5)

    weights, whole = torch.tensor([1.0, 5.0, 20.0]), F.cross_entropy(logits, labels)
    means = [F.cross_entropy(z, y) for z, y in DataLoader(dataset, batch_size=4)]
    return {
        "equals the loss over all": same(summed(), whole),
        "mean of the batch means: equals it": same(torch.stack(means).mean(), whole),
        "drop_last=True: equals the loss over what was seen": same(
            summed(drop_last=True), F.cross_entropy(logits[:8], labels[:8])
        ),
        "with class weights: equals the loss over all": same(
            summed(weights), F.cross_entropy(logits, labels, weight=weights)
        ),
    }


@PAGE.claim(
    "L006",
    "Accuracy is (preds == labels).sum() with preds from torch.max(outputs, 1).",
    rule=lambda seen: TRUE if seen["(preds == labels).sum()"] == seen["share of hits"] else FALSE,
    right="That is the number of hits: divide by the number of examples, over all batches together. "
    "torch.max(outputs, 1) returns values and indices; the predictions are the indices, outputs.argmax(1).",
    page="generated/torch.max.html",
)
def hits_of_four() -> Evidence:
    outputs = torch.tensor([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0], [5.0, 4.0]])
    labels = torch.tensor([0, 1, 0, 1])
    _, preds = torch.max(outputs, 1)
    hits = (preds == labels).sum().item()
    return {"(preds == labels).sum()": hits, "share of hits": hits / len(labels)}


LABEL_TYPES = (torch.int64, torch.int32, torch.float32)


@PAGE.claim(
    "L021",
    "Labels whose dtype differs from what the loss expects are a common bug.",
    rule=lambda seen: TRUE if any(text != WORKS for text in seen.values()) else FALSE,
    right="On this version every loss takes every type.",
    page="generated/torch.nn.CrossEntropyLoss.html",
)
def labels_of_three_types() -> Evidence:
    losses = {
        "cross_entropy": lambda y: F.cross_entropy(torch.zeros(4, 3), y),
        "binary_cross_entropy_with_logits": lambda y: F.binary_cross_entropy_with_logits(torch.zeros(4), y),
        "mse_loss": lambda y: F.mse_loss(torch.zeros(4), y),
    }
    return {
        f"{name}, {str(kind)[6:]} labels": attempt(lambda loss=loss, kind=kind: loss(torch.zeros(4, dtype=kind)))
        for name, loss in losses.items()
        for kind in LABEL_TYPES
    }


@PAGE.claim(
    "L030",
    "cross_entropy aligns the shapes of logits and labels internally.",
    rule=lambda seen: TRUE if seen["labels (N, 1)"] == seen["logits (N, T, C), labels (N, T)"] == WORKS else FALSE,
    right="It aligns nothing: classes are axis 1, labels lack that axis, so sequences need (N, C, T). Where T and C "
    "happen to be equal, the wrong order runs without an error.",
    page="generated/torch.nn.CrossEntropyLoss.html",
)
def shapes_for_cross_entropy() -> Evidence:
    def loss(logits: tuple[int, ...], labels: tuple[int, ...]) -> str:
        return attempt(lambda: F.cross_entropy(torch.zeros(logits), torch.zeros(labels, dtype=torch.int64)))

    return {
        "labels (N, 1)": loss((4, 3), (4, 1)),
        "logits (N, T, C), labels (N, T)": loss((4, 5, 3), (4, 5)),
        "logits (N, T, C) where T = C": loss((4, 3, 3), (4, 3)),
        "logits (N, C, T)": loss((4, 3, 5), (4, 5)),
    }


@PAGE.claim(
    "L031",
    "A shape-broadcast bug in a hand-written loss raises no error and shows only as a model that does not converge.",
    rule=lambda seen: TRUE if seen["hand-written, (N, 1) and (N,): warns"] == "none"
    and seen["hand-written: loss after training"] > 0.5 else FALSE,
    right="On this version the shapes are noticed.",
    page="notes/broadcasting.html",
)  # fmt: skip
def train_with_a_broadcast() -> Evidence:
    x = torch.linspace(-1, 1, 32)[:, None]
    y = 2 * x[:, 0]  # (N,), while the network gives (N, 1)

    def loss_after(squeeze: bool) -> float:
        torch.manual_seed(0)
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        for _ in range(100):
            optimizer.zero_grad()
            out = model(x).squeeze(1) if squeeze else model(x)
            loss = ((out - y) ** 2).mean()  # (N, 1) - (N,) is (N, N)
            loss.backward()
            optimizer.step()
        return round(loss.item(), 2)

    return {
        "hand-written, (N, 1) and (N,): warns": warnings_of(lambda: ((x - y) ** 2).mean()),
        "F.mse_loss, the same shapes: warns": warnings_of(lambda: F.mse_loss(x, y)),
        "hand-written: loss after training": loss_after(squeeze=False),
        "shapes alike: loss after training": loss_after(squeeze=True),
    }


# --- Modes -----------------------------------------------------------------------------------------------------------


@PAGE.claim(
    "L023",
    "A validation batch size much smaller than in training makes BatchNorm metrics fluctuate even when the mode is "
    "right.",
    rule=lambda seen: FALSE if seen["eval mode: batches of 2 give what 64 give"] else TRUE,
    right="In eval mode BatchNorm uses the running statistics of training, so the batch size of validation changes "
    "nothing. If it does, the model is in train mode.",
    page="generated/torch.nn.BatchNorm1d.html",
)
def validate_in_small_batches() -> Evidence:
    x, _, _ = problem()
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    model(x)  # one training pass moves the running statistics

    def agree(training: bool) -> bool:
        model.train(training)
        with torch.no_grad():
            return torch.allclose(torch.cat([model(part) for part in x.split(2)]), model(x), atol=1e-5)

    return {
        "eval mode: batches of 2 give what 64 give": agree(training=False),
        "train mode: batches of 2 give what 64 give": agree(training=True),
    }


@PAGE.claim(
    "L027",
    "model.eval() and torch.no_grad() are not equivalent: eval changes layer behaviour, no_grad the gradient tracking.",
    rule=lambda seen: TRUE if list(seen.values()) == [False, True, True, False] else FALSE,
    right="On this version each does the other's job too.",
    page="notes/autograd.html#evaluation-mode-nn-module-eval",
)
def eval_or_no_grad() -> Evidence:
    model, x = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5)), torch.ones(4, 8)
    model.eval()
    only_eval = model(x)
    model.train()
    with torch.no_grad():
        only_no_grad = model(x)
    return {
        "eval() only: dropout acts": bool((only_eval == 0).any()),
        "eval() only: a graph is kept": only_eval.requires_grad,
        "no_grad() only: dropout acts": bool((only_no_grad == 0).any()),
        "no_grad() only: a graph is kept": only_no_grad.requires_grad,
    }


@PAGE.claim(
    "L034",
    "Calling model.train() inside or outside the epoch loop has the same effect.",
    rule=lambda seen: TRUE if seen["outside"] == seen["inside"] else CAVEAT
    if seen["outside, no validation"] == seen["inside"] else FALSE,
    right="The same only as long as nothing in the loop calls eval(). A validation pass does, and then every epoch "
    "after the first trains without dropout and with frozen BatchNorm statistics.",
    page="generated/torch.nn.Module.html#torch.nn.Module.train",
)  # fmt: skip
def modes_of_three_epochs() -> Evidence:
    def modes(inside: bool, validates: bool = True) -> str:
        model, seen = nn.Dropout(0.5), []
        model.train()
        for _ in range(3):
            if inside:
                model.train()
            seen.append("train" if model.training else "eval")
            if validates:
                model.eval()
        return ", ".join(seen)

    return {
        "inside": modes(inside=True),
        "outside": modes(inside=False),
        "outside, no validation": modes(inside=False, validates=False),
    }


# --- Save and resume -------------------------------------------------------------------------------------------------


def _resumed_like_whole(random_parts: bool, with_generator: bool = False) -> bool:
    """Train 4 epochs, and 2 and 2 with a checkpoint between; tell whether every bit of the weights agrees."""
    x, y, _ = problem()

    def start(seed: int) -> tuple[nn.Module, Any, Any]:
        torch.manual_seed(seed)  # another process has another state
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5 if random_parts else 0.0), nn.Linear(16, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    def train(model: nn.Module, optimizer: Any, scheduler: Any, epochs: int) -> None:
        for _ in range(epochs):
            for part_x, part_y in DataLoader(TensorDataset(x, y), batch_size=16, shuffle=random_parts):
                optimizer.zero_grad()
                F.cross_entropy(model(part_x), part_y).backward()
                optimizer.step()
            scheduler.step()

    whole, first, second = start(0), start(0), None
    torch.manual_seed(0)
    train(*whole, epochs=4)
    torch.manual_seed(0)
    train(*first, epochs=2)
    file = io.BytesIO()
    torch.save({"parts": [part.state_dict() for part in first], "generator": torch.get_rng_state()}, file)
    second = start(1)
    saved = torch.load(io.BytesIO(file.getvalue()))
    for part, state in zip(second, saved["parts"], strict=True):
        part.load_state_dict(state)
    if with_generator:
        torch.set_rng_state(saved["generator"])
    train(*second, epochs=2)
    return torch.equal(flat(whole[0].parameters()), flat(second[0].parameters()))


@PAGE.claim(
    "L007",
    "Saving model, optimizer, epoch and scheduler state lets an interrupted run resume without any loss.",
    rule=lambda seen: FALSE if not seen["nothing random: same bits"] else TRUE if seen["dropout and shuffle: same bits"]
    else CAVEAT,
    right="Without dropout, shuffling and augmentation, yes. With them, the states of the random generators belong to "
    "it (torch, Python, NumPy, the loader's own), and the scaler's under mixed precision.",
    page="notes/randomness.html",
)  # fmt: skip
def resume_in_another_process() -> Evidence:
    return {
        "nothing random: same bits": _resumed_like_whole(random_parts=False),
        "dropout and shuffle: same bits": _resumed_like_whole(random_parts=True),
        "the generator's state saved too: same bits": _resumed_like_whole(random_parts=True, with_generator=True),
    }


@PAGE.claim(
    "L008",
    "A checkpoint dictionary is read back with torch.load(path)['model_state_dict'] and nothing else is needed.",
    rule=lambda seen: FALSE if seen["tensors and plain values"] != WORKS else TRUE
    if seen["best loss as a NumPy number"] == WORKS and seen["the model has the weights then"] else CAVEAT,
    right="Since release 2.6 torch.load reads tensors and plain values only: anything else needs add_safe_globals, or "
    "weights_only=False for a file that you trust. What it returns is a dictionary: model.load_state_dict puts it in, "
    "and map_location is needed where the file's device is missing.",
    page="generated/torch.load.html",
)  # fmt: skip
def read_a_checkpoint_back() -> Evidence:
    def written(**more: Any) -> io.BytesIO:
        file = io.BytesIO()
        torch.save({"model_state_dict": nn.Linear(2, 1).state_dict(), "epoch": 3, **more}, file)
        file.seek(0)
        return file

    model = nn.Linear(2, 1)
    loaded = torch.load(written())["model_state_dict"]
    refused = attempt(lambda: torch.load(written(best=np.float64(0.5)))).split(".")[0]  # a long message
    return {
        "tensors and plain values": attempt(lambda: torch.load(written(best=0.5))),
        "best loss as a NumPy number": refused,
        "the same with weights_only=False": attempt(
            lambda: torch.load(written(best=np.float64(0.5)), weights_only=False)
        ),
        "the model has the weights then": torch.equal(model.weight, loaded["weight"]),
    }


@PAGE.claim(
    "L055",
    "A settings file with the line 'learning_rate: 1e-4' loads as a float through yaml.safe_load.",
    rule=lambda seen: TRUE if seen["1e-4 is a float"] else FALSE,
    right="YAML 1.1, which PyYAML reads, wants a point in the number: 1e-4 is text, 1.0e-4 a float. Check types when "
    "you load settings.",
    page="https://yaml.org/type/float.html",
)
def rates_in_a_yaml_file() -> Evidence:
    read = {text: yaml.safe_load(f"learning_rate: {text}")["learning_rate"] for text in ("1e-4", "1.0e-4", "0.0001")}
    return {f"{text} is a float": isinstance(value, float) for text, value in read.items()}


# --- Optimizers ------------------------------------------------------------------------------------------------------


@cache
def _test_accuracy(name: str, lr: float) -> float:
    digits = load_digits8()
    (x, y), (test_x, test_y) = digits.train.as_batch(), digits.test.as_batch()
    with seeded(0):
        model = MLP(64, (64,))
        momentum = {"momentum": 0.9} if name == "SGD" else {}
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=lr, **momentum)
        for _ in range(5):
            for rows in torch.randperm(len(y)).split(64):
                optimizer.zero_grad()
                F.cross_entropy(model(x[rows]), y[rows]).backward()
                optimizer.step()
    with torch.no_grad():
        return (model(test_x).argmax(1) == test_y).float().mean().item()


@PAGE.claim(
    "L009",
    "Adam is the quick first choice; tuned SGD+momentum often generalises better, so switch later.",
    rule=lambda seen: OPINION if abs(seen["Adam, best of 3 rates"] - seen["SGD, best of 3 rates"]) < 0.05 else TRUE
    if seen["SGD, best of 3 rates"] > seen["Adam, best of 3 rates"] else FALSE,
    right="Which one is ahead depends on task, budget and how well each rate was searched: compare them with the same "
    "number of trials.",
    page="https://arxiv.org/abs/1910.05446",
    varies=True,
)  # fmt: skip
def adam_and_sgd_on_digits() -> Evidence:
    return {
        "Adam, best of 3 rates": max(_test_accuracy("Adam", lr) for lr in (0.003, 0.01, 0.03)),
        "SGD, best of 3 rates": max(_test_accuracy("SGD", lr) for lr in (0.03, 0.1, 0.3)),
        "Adam, its default rate": _test_accuracy("Adam", 0.001),
    }


PAGE.claims.sort(key=lambda claim: claim.id)  # several modules, one list
