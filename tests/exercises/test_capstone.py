"""The capstone's exercises: right answers in several forms pass, each wrong one meets its own message.

Most of them train networks, so each is tried on one pile, not on three.
"""

from __future__ import annotations

import copy
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from course_utils.capstone import balanced_accuracy
from course_utils.data import Batches, affine_augment
from course_utils.export import quantize_onnx, to_onnx
from course_utils.models import DigitCNN
from course_utils.seeding import seeded, stream
from course_utils.serving import OnnxModel, make_app
from course_utils.training import fit
from tests.exercises.harness import Answers, WrongAnswers, exercise_tests

RIGHT: Answers = {}
WRONG: WrongAnswers = {}
EXAMPLE = torch.zeros(2, 1, 28, 28)

# --- unusable -------------------------------------------------------------------------------------------------------


def _by_sum(images: Tensor) -> Tensor:
    total = images.sum((1, 2, 3))
    return torch.isnan(total) | (total == 0)


def _one_by_one(images: Tensor) -> Tensor:
    return torch.tensor([bool(image.isnan().any() or not image.any()) for image in images])


RIGHT["capstone.unusable"] = {"by the sum": _by_sum, "one by one": _one_by_one}
WRONG["capstone.unusable"] = {
    "nan only": (lambda x: x.isnan().flatten(1).any(1), "Blank: all pixels are 0"),
    "blank only": (lambda x: x.nan_to_num(1).flatten(1).amax(1) == 0, "use isnan()"),
    "compares with nan": (
        lambda x: (x == float("nan")).flatten(1).any(1) | (x.nan_to_num(1).flatten(1).amax(1) == 0),
        "nan == nan is False",
    ),
    "little ink": (lambda x: _by_sum(x) | (x.nan_to_num().mean((1, 2, 3)) < 13), "A thin digit has little ink"),
    "hardly any ink": (lambda x: _by_sum(x) | (x.nan_to_num().mean((1, 2, 3)) < 2), "no threshold on the mean"),
    "a faint peak": (lambda x: _by_sum(x) | (x.flatten(1).amax(1) < 10), "no threshold on the mean"),
    "all pixels nan": (lambda x: x.isnan().flatten(1).all(1) | (x.flatten(1).amax(1) == 0), "any(1), not all(1)"),
    "the useful ones": (lambda x: ~_by_sum(x), "This mask marks the useful images"),
    "an array": (lambda x: _by_sum(x).numpy(), "one bool tensor of shape (N,)"),
    "inverted ones too": (lambda x: _by_sum(x) | (x.nan_to_num().mean((1, 2, 3)) > 128), "can be turned back"),
    "one for all": (lambda x: _by_sum(x).any(), "one answer for each image"),
    "numbers": (lambda x: _by_sum(x).float(), "of truth values"),
}

# --- restore --------------------------------------------------------------------------------------------------------


def _by_corners(images: Tensor) -> Tensor:
    edge = torch.cat([images[..., 0, :], images[..., -1, :]], -1).median(-1).values[..., None, None]
    return (images - 255 * (edge > 127)).abs() / 255


def _loop(images: Tensor) -> Tensor:
    return torch.stack([(255 - i if i.median() > 127 else i) / 255 for i in images])


def _restored(images: Tensor) -> Tensor:
    x = images / 255
    return torch.where(x.mean((1, 2, 3), keepdim=True) > 0.5, 1 - x, x)


def _stretched(images: Tensor) -> Tensor:
    x = _restored(images)
    return x / x.amax((1, 2, 3), keepdim=True)


def _in_place(images: Tensor) -> Tensor:
    result = _restored(images)
    images.copy_(result)
    return result


def _after_scaling(images: Tensor) -> Tensor:
    x = images / 255
    return torch.where(x.mean((1, 2, 3), keepdim=True) > 0.5, 255 - x, x)


def _sign_only(images: Tensor) -> Tensor:
    x = images / 255
    return torch.where(x.mean((1, 2, 3), keepdim=True) > 0.5, -x, x)


def _low_threshold(images: Tensor) -> Tensor:
    x = images / 255
    return torch.where(x.mean((1, 2, 3), keepdim=True) > 0.15, 1 - x, x)


RIGHT["capstone.restore"] = {"by the edges": _by_corners, "in a loop": _loop}
WRONG["capstone.restore"] = {
    "only scaled": (lambda x: x / 255, "still inverted"),
    "all inverted": (lambda x: 1 - x / 255, "You inverted all of them"),
    "not scaled": (lambda x: 255 * _restored(x), "The network wants 0..1"),
    "by the batch": (lambda x: torch.where((x / 255).mean() > 0.45, 1 - x / 255, x / 255), "turns the inverted ones"),
    "divides by the batch's peak": (
        lambda x: _restored(x) * (1.0 if len(x) > 1 else 0.9),
        "no number may come from the batch",
    ),
    "divides by its own peak": (_stretched, "nothing else changes"),
    "in place": (_in_place, "the input stays as it was"),
    "the upright ones": (lambda x: 1 - _restored(x), "The wrong way round"),
    "255 minus a share": (_after_scaling, "After the division by 255 the ink is 1"),
    "the sign only": (_sign_only, "An inverted one is turned back by 1 - x"),
    "a threshold too low": (_low_threshold, "a digit with much ink is no inverted one"),
    "axes lost": (lambda x: torch.where(x.mean((1, 2, 3)) > 127, 1 - x / 255, x / 255), "keepdim=True"),
    "if for all": (lambda x: 1 - x / 255 if x.mean((1, 2, 3)) > 127 else x / 255, "once for the whole batch"),
}

# --- the run they left -----------------------------------------------------------------------------------------------


def _run(
    scaled: bool = True,
    softmax: bool = False,
    clears: str = "before",
    back_to_train: bool = True,
    counts: bool = True,
    in_model: bool = False,
    whole: bool = False,
    steps: bool = True,
    flatters: bool = False,
    leaves_out: str | None = None,
) -> Any:
    """Return a make_run: the reference with one thing done otherwise."""

    def make_run(images: Tensor, labels: Tensor) -> dict[str, Any]:
        class Scale(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x / 255

        cut = len(labels) * 9 // 10
        layers: list[nn.Module] = [nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10)]
        if in_model:
            layers.insert(0, Scale())
        elif scaled:
            images = images / 255
        if softmax:
            layers.append(nn.Softmax(dim=1))
        model = nn.Sequential(*layers)
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        rows = slice(None) if whole else slice(cut)
        loader = DataLoader(TensorDataset(images[rows], labels[rows]), batch_size=64, shuffle=True)
        held_out = DataLoader(TensorDataset(images[cut:], labels[cut:]), batch_size=64)

        def step(model: nn.Module, batch: Any, loss_fn: Any, optimizer: Any) -> Tensor:
            x, y = batch
            if clears == "before":
                optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            if steps:
                optimizer.step()
            if clears == "after":
                model.zero_grad()
            return loss.detach()

        def evaluate(model: nn.Module) -> float:
            was_training = model.training
            model.eval()
            with torch.no_grad():
                right = [(model(x).argmax(1) == y).float() for x, y in held_out]
            shares = [part.mean() for part in right]
            if back_to_train:
                model.train(was_training)
            if flatters:
                return 0.97
            return torch.cat(right).mean().item() if counts else torch.stack(shares).mean().item()

        def train(model: nn.Module, loader: Any, loss_fn: Any, optimizer: Any, epochs: int = 2) -> None:
            model.train()
            for _ in range(epochs):
                for batch in loader:
                    step(model, batch, loss_fn, optimizer)
                evaluate(model)

        parts = {"model": model, "loader": loader, "loss_fn": F.cross_entropy, "optimizer": optimizer}
        parts |= {"step": step, "train": train, "evaluate": evaluate}
        parts.pop(str(leaves_out), None)
        return parts

    return make_run


RIGHT["capstone.clinic-run"] = {"cleared at the end": _run(clears="after"), "scaled in the model": _run(in_model=True)}
WRONG["capstone.clinic-run"] = {
    "raw pixels": (_run(scaled=False), "data.images-not-scaled"),
    "softmax kept": (_run(softmax=True), "loss.softmax-before-cross-entropy"),
    "never cleared": (_run(clears="never"), "loop.no-zero-grad"),
    "stays in eval mode": (_run(back_to_train=False), "eval-mode"),
    "mean of means": (_run(counts=False), "evaluation.mean-of-means"),
    "no step": (_run(steps=False), "loop.no-update"),
    "train left out": (_run(leaves_out="train"), "Keep the seven keys"),
    "trains on what is held out": (_run(whole=True), "The last tenth is held out"),
    "a flattering number": (_run(flatters=True), "near one tenth"),
}

# --- train ----------------------------------------------------------------------------------------------------------


def _train(
    images: Tensor, labels: Tensor, seed: int, epochs: int = 8, width: int = 8, augment: bool = True, weigh: bool = True
) -> nn.Module:
    draws = stream(seed, "test")
    with seeded(seed):
        net = DigitCNN(width=width)
        batches = Batches(images, labels, 64, generator=draws)
        optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=epochs * len(batches))
        weight = 1 / torch.bincount(labels, minlength=10).clamp(min=1) if weigh else torch.ones(10)
        fit(
            net,
            nn.CrossEntropyLoss(weight=weight / weight.mean()),
            optimizer,
            lambda epoch: ((affine_augment(x, draws) if augment else x, y) for x, y in batches),
            epochs=epochs,
            step_schedule=schedule,
        )
    return net.eval()


def _balanced_batches(images: Tensor, labels: Tensor, seed: int) -> nn.Module:
    """A loop of its own, in which every class is drawn as often as every other."""
    draws = torch.Generator().manual_seed(seed)
    share = 1 / torch.bincount(labels, minlength=10).clamp(min=1)[labels]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = DigitCNN(width=8)
        optimizer = torch.optim.Adam(net.parameters())
        n_steps = 8 * (len(labels) // 64 + 1)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=n_steps)
        for _ in range(n_steps):
            chosen = torch.multinomial(share, 64, generator=draws)
            loss = F.cross_entropy(net(affine_augment(images[chosen], draws)), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    net.eval()
    return net


def _global_seed(images: Tensor, labels: Tensor, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return _train(images, labels, int(torch.randint(2**31, ())), epochs=7)


def _order_forgotten(images: Tensor, labels: Tensor, seed: int) -> nn.Module:
    with seeded(seed):
        net = DigitCNN(width=4, dropout=0.0)
    order = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
    fit(net, F.cross_entropy, torch.optim.Adam(net.parameters()), Batches(images, labels, 64, generator=order))
    return net.eval()


def _dropout_forgotten(images: Tensor, labels: Tensor, seed: int) -> nn.Module:
    with seeded(seed):
        net = DigitCNN(width=4)
    batches = Batches(images, labels, 64, generator=stream(seed, "order"))
    fit(net, F.cross_entropy, torch.optim.Adam(net.parameters()), batches)
    return net.eval()


def _untrained(images: Tensor, labels: Tensor, seed: int) -> nn.Module:
    with seeded(seed):
        return DigitCNN(width=8).eval()


def _softmax_twice(images: Tensor, labels: Tensor, seed: int) -> nn.Module:
    with seeded(seed):
        net = DigitCNN(width=8)
        batches = Batches(images, labels, 64, generator=stream(seed, "order"))
        loss = nn.CrossEntropyLoss()
        fit(net, lambda z, y: loss(z.softmax(1), y), torch.optim.Adam(net.parameters()), batches, epochs=2)
    return net.eval()


RIGHT["capstone.train"] = {
    "balanced batches": _balanced_batches,
    "a seed made of the seed": _global_seed,
    "no augmentation": lambda x, y, seed: _train(x, y, seed, augment=False),
}
WRONG["capstone.train"] = {
    "the order is not seeded": (_order_forgotten, "Seed the first weights"),
    "dropout is not seeded": (_dropout_forgotten, "Seed the first weights"),
    "the seed is not used": (lambda x, y, seed: _train(x, y, 0, epochs=1), "Use the seed that comes in"),
    "train mode": (lambda x, y, seed: _train(x, y, seed, epochs=1).train(), "model.eval()"),
    "one epoch": (lambda x, y, seed: _train(x, y, seed, epochs=1), "a balanced accuracy of at least"),
    "rare digits don't count": (
        lambda x, y, seed: _train(x, y, seed, epochs=1, augment=False, weigh=False),
        "it is rare in the pile",
    ),
    "not trained": (_untrained, "Guessing gets 10%"),
    "a softmax before the loss": (_softmax_twice, "a balanced accuracy of at least"),
    "a function": (lambda x, y, seed: lambda images: images, "returns a module"),
    "labels of others": (lambda x, y, seed: _train(x, (y + 1) % 10, seed, epochs=1), "Guessing gets 10%"),
    "float64 weights": (lambda x, y, seed: _train(x, y, seed, epochs=1).double(), "no double()"),
}

# --- suspects -------------------------------------------------------------------------------------------------------


def _beliefs(images: Tensor, labels: Tensor, folds: int = 3, weigh: bool = True, epochs: int = 4) -> Tensor:
    fold, belief = torch.arange(len(labels)) % folds, torch.zeros(len(labels), 10)
    for part in range(folds):
        net = _train(images[fold != part], labels[fold != part], part, epochs=epochs, weigh=weigh)
        with torch.no_grad():
            belief[fold == part] = net(images[fold == part]).softmax(1)
    return belief


def _hasty(differs: Tensor, annotators: Tensor) -> Tensor:
    counts = [int((differs & (annotators == a)).sum()) for a in range(3)]
    return annotators == counts.index(max(counts))


def _four_parts(images: Tensor, labels: Tensor, annotators: Tensor) -> Tensor:
    belief = _beliefs(images, labels, folds=4)
    differs = belief.argmax(1) != labels
    return differs & (_hasty(differs, annotators) | (belief.amax(1) > 0.9))


def _by_rate(images: Tensor, labels: Tensor, annotators: Tensor) -> Tensor:
    """A threshold for each annotator that follows how often they are contradicted."""
    belief = _beliefs(images, labels)
    differs = belief.argmax(1) != labels
    rate = torch.stack([differs[annotators == a].float().mean() for a in range(3)])
    threshold = torch.where(rate == rate.max(), 0.5, 0.05)[annotators]
    return differs & (belief.gather(1, labels[:, None]).squeeze(1) < threshold)


def _everybody(images: Tensor, labels: Tensor, annotators: Tensor) -> Tensor:
    return _beliefs(images, labels, folds=2, weigh=False, epochs=3).argmax(1) != labels


def _only_hasty(images: Tensor, labels: Tensor, annotators: Tensor) -> Tensor:
    differs = _beliefs(images, labels).argmax(1) != labels
    return differs & _hasty(differs, annotators) & (labels != 4)


def _one_threshold(images: Tensor, labels: Tensor, annotators: Tensor) -> Tensor:
    return _beliefs(images, labels).gather(1, labels[:, None]).squeeze(1) < 0.1


def _by_heart(images: Tensor, labels: Tensor, annotators: Tensor) -> Tensor:
    net = _train(images, labels, 0, epochs=6, augment=False)
    with torch.no_grad():
        return net(images).softmax(1).gather(1, labels[:, None]).squeeze(1) < 0.02


def _own(images: Tensor, labels: Tensor, annotators: Tensor, held_out: int = 0) -> Tensor:
    """One network for all: it finds what is asked for, since four epochs learn little by heart."""
    learned = torch.arange(len(labels)) % 10 >= held_out
    net = _train(images[learned], labels[learned], 0, epochs=4)
    with torch.no_grad():
        belief = net(images).softmax(1)
    differs = belief.argmax(1) != labels
    return differs & (_hasty(differs, annotators) | (belief.gather(1, labels[:, None]).squeeze(1) < 0.05))


def _mostly_own(images: Tensor, labels: Tensor, annotators: Tensor) -> Tensor:
    return _own(images, labels, annotators, held_out=1)


def _one_object(images: Tensor, labels: Tensor, annotators: Tensor) -> Tensor:
    """Three parts, and one network object that gets the weights of each training."""
    fold, belief = torch.arange(len(labels)) % 3, torch.zeros(len(labels), 10)
    net = DigitCNN(width=8)
    for part in range(3):
        net.load_state_dict(_train(images[fold != part], labels[fold != part], part, epochs=4).state_dict())
        with torch.no_grad():
            belief[fold == part] = net.eval()(images[fold == part]).softmax(1)
    differs = belief.argmax(1) != labels
    return differs & (_hasty(differs, annotators) | (belief.amax(1) > 0.9))


def _corrected(images: Tensor, labels: Tensor, annotators: Tensor) -> Tensor:
    labels[:] = 0
    return labels == 1


RIGHT["capstone.suspects"] = {
    "four parts": _four_parts,
    "a threshold for each annotator": _by_rate,
    "one object for three networks": _one_object,
}
WRONG["capstone.suspects"] = {
    "doubts everybody": (_everybody, "of the suspects are wrong"),
    "all of the hasty one": (lambda x, y, a: a == 2, "Most of the hasty annotator's labels are right"),
    "only the hasty one": (_only_hasty, "They slip too"),
    "one threshold for all": (_one_threshold, "One rule for all asks too much"),
    "believed ones": (lambda x, y, a: a < 2, "Is the mask the wrong way round?"),
    "a list of places": (lambda x, y, a: torch.nonzero(a == 2).flatten(), "one bool tensor of shape (N,)"),
    "nobody": (lambda x, y, a: y > 10, "was not trained on the example"),
    "knows the wrong labels by heart": (_by_heart, "asks a network about examples that it was not trained on"),
    "trained on its own examples, and finds enough": (_own, "0% of the examples were asked of such a network"),
    "all but a tenth of them its own": (_mostly_own, "10% of the examples were asked of such a network"),
    "the wrong way round": (lambda x, y, a: ~(a == 2) | (y != 4), "Is the mask the wrong way round?"),
    "corrects the labels": (_corrected, "the labels stay as they were"),
}

# --- package --------------------------------------------------------------------------------------------------------


class _Reader(nn.Module):
    def __init__(self, net: nn.Module, turn: bool = True, scale: bool = True) -> None:
        super().__init__()
        self.net, self.turn, self.scale = net, turn, scale

    def forward(self, images: Tensor) -> Tensor:
        x = images / 255 if self.scale else images
        if self.turn:
            x = torch.where(x.mean((1, 2, 3), keepdim=True) > 0.5, 1 - x, x)
        return self.net(x)


def _package(turn: bool = True, scale: bool = True, small: bool = True, own: bool = True) -> Any:
    def package(model: nn.Module, folder: Path) -> Path:
        reader = _Reader(copy.deepcopy(model) if own else model, turn, scale).eval()
        path = to_onnx(reader, EXAMPLE, folder / "a.onnx")
        return quantize_onnx(path, folder / "b.onnx") if small else path

    return package


def _calibrated(model: nn.Module, folder: Path) -> Path:
    from course_utils.capstone import make_pile

    images = make_pile(3)[0].images.nan_to_num()[:100]
    reader = _Reader(copy.deepcopy(model)).eval()
    return quantize_onnx(to_onnx(reader, EXAMPLE, folder / "a.onnx"), folder / "b.onnx", images)


def _switches_back(model: nn.Module, folder: Path) -> Path:
    model.eval()
    try:
        path = to_onnx(_Reader(model).eval(), EXAMPLE, folder / "float.onnx")
    finally:
        model.train()
    return quantize_onnx(path, folder / "int8.onnx")


def _fixed_batch(model: nn.Module, folder: Path) -> Path:
    program = torch.onnx.export(_Reader(copy.deepcopy(model)).eval(), (EXAMPLE,), dynamo=True, verbose=False)
    program.save(str(folder / "fixed.onnx"))
    return quantize_onnx(folder / "fixed.onnx", folder / "b.onnx")


RIGHT["capstone.package"] = {"calibrated": _calibrated, "switches back": _switches_back}
WRONG["capstone.package"] = {
    "float32": (_package(small=False), "quantize_onnx makes an int8 version"),
    "not scaled": (_package(scale=False, turn=False), "raw pixels, 0..255, and restore them"),
    "not turned": (_package(turn=False), "Inverted images are read wrongly"),
    "changes the mode": (_package(own=False), "Package a copy"),
    "a fixed batch": (_fixed_batch, "The batch must be dynamic"),
    "no path": (lambda model, folder: str(_package()(model, folder)), "the path of a file in the folder"),
    "the folder": (lambda model, folder: _package()(model, folder).parent, "that is a folder"),
}

# --- report ---------------------------------------------------------------------------------------------------------


def _report(
    single: bool = True, middle: Any = median, unit: float = 1000.0, calls: int = 40, balanced: bool = True
) -> Any:
    def report(predict: Any, path: Path, images: Tensor, labels: Tensor, clock: Any) -> dict[str, float]:
        predicted = torch.from_numpy(np.asarray(predict(images.numpy()))).argmax(1)
        times = []
        for i in range(calls):
            part = images[i % len(images) :][: 1 if single else 16].numpy()
            start = clock()
            predict(part)
            times.append((clock() - start) / len(part))
        accuracy = balanced_accuracy(predicted, labels) if balanced else (predicted == labels).float().mean().item()
        return {"accuracy": accuracy, "bytes": len(path.read_bytes()), "latency_ms": unit * middle(times)}

    return report


def _sorted_middle(predict: Any, path: Path, images: Tensor, labels: Tensor, clock: Any) -> dict[str, float]:
    predict(images[:1].numpy())  # warms up
    seconds = []
    for image in images[:51]:
        before = clock()
        predict(image[None].numpy())
        seconds.append(clock() - before)
    scores = np.concatenate([predict(part.numpy()) for part in images.split(64)])
    facts = {"accuracy": balanced_accuracy(torch.from_numpy(scores).argmax(1), labels), "bytes": path.stat().st_size}
    return {**facts, "latency_ms": sorted(seconds)[25] * 1e3, "n": 51}


RIGHT["capstone.report"] = {"the median of all": _report(), "sorted": _sorted_middle}
WRONG["capstone.report"] = {
    "the mean": (_report(middle=mean), "Take the median"),
    "a share of a batch": (_report(single=False), "not what a customer with one image waits for"),
    "seconds": (_report(unit=1.0), "That is in seconds"),
    "plain accuracy": (_report(balanced=False), "counts a frequent class more"),
    "five calls": (_report(calls=5), "at least 20 calls"),
    "the quickest": (_report(middle=min), "That is the quickest call"),
    "microseconds": (_report(unit=1e6), "That is in microseconds"),
    "another clock": (lambda *a: _report()(*a[:4], time.perf_counter), "clock() was never read"),
    "texts": (lambda *a: {name: str(value) for name, value in _report()(*a).items()}, "all three are numbers"),
    "kilobytes": (lambda *a: _report()(*a) | {"bytes": a[1].stat().st_size / 1024}, "not in kB"),
    "a tuple": (lambda *a: tuple(_report()(*a).values()), "a dict with accuracy"),
}

# --- acceptance -----------------------------------------------------------------------------------------------------


def _job(
    clean: bool = True, epochs: int = 8, seed_used: bool = True, honest: bool = True, restored: bool = True,
    text: Any = str,
) -> Any:  # fmt: skip
    def job(pile: Any, folder: Path, seed: int) -> Any:
        seed = seed if seed_used else int(torch.randint(2**31, ()))
        usable = ~_by_sum(pile.images)
        raw, labels, annotators = pile.images[usable], pile.labels[usable], pile.annotators[usable]
        believed = torch.ones_like(labels, dtype=torch.bool)
        if clean:
            believed = ~_by_rate(_restored(raw), labels, annotators)
        raw, labels = raw[believed], labels[believed]
        held = torch.arange(len(labels)) % 8 == 0
        net = _train(_restored(raw[~held]), labels[~held], seed, epochs=epochs)
        path = to_onnx(_Reader(net, turn=restored), EXAMPLE, folder / "float.onnx")
        path = quantize_onnx(path, folder / "digits.onnx")
        model = OnnxModel(path)
        facts = _report()(model, path, raw[held], labels[held], time.perf_counter)
        if not honest:
            facts["bytes"] = 1000
        return make_app(model, about={name: text(value) for name, value in facts.items()})

    return job


def _float_file(pile: Any, folder: Path, seed: int) -> Any:
    """The file is not quantized, and nothing is held back but what the suspects were: right, too."""
    usable = ~_by_sum(pile.images)
    raw, labels, annotators = pile.images[usable], pile.labels[usable], pile.annotators[usable]
    bad = _by_rate(_restored(raw), labels, annotators)
    held = ~bad & (torch.arange(len(labels)) % 10 == 3)
    net = _train(_restored(raw[~bad & ~held]), labels[~bad & ~held], seed)
    path = to_onnx(_Reader(net), EXAMPLE, folder / "digits.onnx")
    facts = _report()(OnnxModel(path), path, raw[held], labels[held], time.perf_counter)
    return make_app(OnnxModel(path), about={name: str(value) for name, value in facts.items()}, max_batch=8)


RIGHT["capstone.acceptance"] = {"another order": _job(), "a float file": _float_file}
WRONG["capstone.acceptance"] = {
    "hardly trained": (_job(clean=False, epochs=1), "on hidden digits, over HTTP"),
    "inverted ones are not restored": (_job(clean=False, epochs=2, restored=False), "also in the service"),
    "another seed each time": (_job(clean=False, epochs=1, seed_used=False), "Every draw must come from the seed"),
    "a wrong size": (_job(honest=False), "The size of the file that is served"),
    "no service": (lambda pile, folder, seed: "app", "make_app("),
    "numbers with a unit": (_job(text="about {:.4f}".format), "no unit and no % sign"),
}

TestCapstone = exercise_tests("capstone", RIGHT, WRONG, seeds=(0,))
