"""Lesson 04's exercises: right answers in several forms pass, each wrong one meets its own message."""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, SequentialSampler, WeightedRandomSampler, get_worker_info

from tests.exercises.harness import Answers, WrongAnswers, exercise_tests

RIGHT: Answers = {}
WRONG: WrongAnswers = {}

# --- list-images -----------------------------------------------------------------------------------------------------


def _listed(
    root, endings=(".png", ".jpg", ".jpeg"), hidden=False, lower=True, order=sorted, number=sorted, top=False, dot=False
):
    found = []
    names = number(p.name for p in Path(root).iterdir() if p.is_dir() and (dot or p.name[0] != "."))
    for k, name in enumerate(names):
        for path in order((Path(root) / name).iterdir()):
            ending = path.suffix.lower() if lower else path.suffix
            if (hidden or not path.name.startswith(".")) and (endings is None or ending in endings):
                found.append((f"{name}/{path.name}", k))
    return found + ([("README.png", 0)] if top else [])


def _walked(root):
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and entry.name[0] != ".")
    names = [(c, n) for c in classes for n in sorted(os.listdir(os.path.join(root, c)))]
    return [
        (Path(root, c, n), classes.index(c))
        for c, n in names
        if n.lower().endswith((".png", ".jpg", ".jpeg")) and n[0] != "."
    ]


RIGHT["data.list-images"] = {
    "texts": _listed,
    "absolute paths": _walked,
    "absolute paths as texts": lambda root: [(str(path), k) for path, k in _walked(root)],
    "a tuple, with NumPy numbers": lambda root: tuple((path, np.int64(k)) for path, k in _listed(root)),
    "lists instead of tuples": lambda root: [list(pair) for pair in _listed(root)],
}
WRONG["data.list-images"] = {
    "takes every file": (lambda root: _listed(root, None), "notes.txt is no image"),
    "takes hidden files": (lambda root: _listed(root, hidden=True), "start with a dot"),
    "takes hidden folders": (lambda root: _listed(root, dot=True), "Jupyter makes"),
    "numbers hidden folders": (
        lambda root: [(path, k + 1) for path, k in _listed(root)],
        "leave it out before you number",
    ),
    "names alone": (lambda root: [(Path(path).name, k) for path, k in _listed(root)], "in which folder"),
    "number first": (lambda root: [(k, path) for path, k in _listed(root)], "the file first"),
    "folder names as numbers": (lambda root: [(p, int(Path(p).parent.name)) for p, _ in _listed(root)], "enumerate("),
    "small endings only": (lambda root: _listed(root, lower=False), "suffix.lower()"),
    "takes the file at the top": (lambda root: _listed(root, top=True), "has no class"),
    "not sorted": (lambda root: _listed(root, order=lambda p: sorted(p, reverse=True)), "promises no order"),
    "numbers without capitals first": (
        lambda root: _listed(root, number=lambda names: sorted(names, key=str.lower)),
        "capital letters first",
    ),
    "paths alone": (lambda root: [p for p, _ in _listed(root)], "a pair for each image"),
    "png only": (lambda root: _listed(root, (".png",)), "Images end in"),
}

# --- read ------------------------------------------------------------------------------------------------------------


def _read(path, errors=(OSError, SyntaxError), raised=ValueError, name=True, make=None):
    try:
        with Image.open(path) as image:
            pixels = torch.from_numpy(np.array(image.convert("L")))[None]
    except errors as error:
        raise raised(f"cannot read {path}" if name else "cannot read it") from error
    return pixels if make is None else make(pixels)


def _header_only(path):
    try:
        image = Image.open(path)
    except OSError as error:
        raise ValueError(f"cannot read {path}") from error
    return torch.from_numpy(np.array(image.convert("L")))[None]


def _hides(path):
    try:
        return _read(path)
    except ValueError:
        return torch.zeros(1, 8, 8, dtype=torch.uint8)


def _with_load(path):
    try:
        image = Image.open(str(path))
        image.load()
    except Exception as error:
        raise ValueError(f"{Path(path).name}: {error}") from error
    return torch.tensor(np.asarray(image.convert("L"))).unsqueeze(0)


class _BadImage(ValueError):
    pass


RIGHT["data.read"] = {
    "one try": _read,
    "with load": _with_load,
    "own kind of error": lambda p: _read(p, raised=_BadImage),
}
WRONG["data.read"] = {
    "try around open alone": (_header_only, "around *all* of it"),
    "a black image instead": (_hides, "Don't hide it"),
    "no name": (lambda p: _read(p, name=False), "names the file"),
    "another error": (lambda p: _read(p, raised=RuntimeError), "raise ValueError"),
    "an array": (lambda p: _read(p, make=lambda x: x.numpy()), "makes a tensor of an image"),
    "float": (lambda p: _read(p, make=lambda x: x / 255), "convert later"),
    "no channel": (lambda p: _read(p, make=lambda x: x[0]), "One channel"),
    "turned": (lambda p: _read(p, make=lambda x: x.mT), "then height"),
}

# --- pad -------------------------------------------------------------------------------------------------------------


def _by_hand(batch):
    lengths = torch.tensor([len(item) for item in batch])
    out = batch[0].new_zeros(len(batch), int(lengths.max()), batch[0].shape[1])
    for row, item in zip(out, batch, strict=True):
        row[: len(item)] = item
    return out, lengths


def _sizes(batch):
    return torch.tensor([len(item) for item in batch])


def _in_front(batch):
    width = max(map(len, batch))
    return torch.stack([torch.cat([b.new_zeros(width - len(b), b.shape[1]), b]) for b in batch]), _sizes(batch)


RIGHT["data.pad"] = {
    "by hand": _by_hand,
    "as a list": lambda batch: [pad_sequence(batch, True), _sizes(batch)],
    "F.pad": lambda batch: (
        torch.stack([torch.nn.functional.pad(b, (0, 0, 0, max(map(len, batch)) - len(b))) for b in batch]),
        _sizes(batch),
    ),
}
WRONG["data.pad"] = {
    "time first": (lambda batch: (pad_sequence(batch), _sizes(batch)), "batch_first=True"),
    "in front": (_in_front, "The zeros came first"),
    "stack": (lambda batch: (torch.stack(batch), _sizes(batch)), "stack needs equal lengths"),
    "no lengths": (lambda batch: pad_sequence(batch, True), "return padded, lengths"),
    "list of lengths": (lambda batch: (pad_sequence(batch, True), [len(b) for b in batch]), "A tensor with one length"),
    "cut to the shortest": (
        lambda batch: (torch.stack([b[: min(map(len, batch))] for b in batch]), _sizes(batch)),
        "as long as the longest",
    ),
    "sorted": (lambda batch: _by_hand(sorted(batch, key=len)), "order of the batch has changed"),
    "longest first": (lambda batch: _by_hand(sorted(batch, key=len, reverse=True)), "order of the batch has changed"),
    "lengths sorted": (lambda batch: (pad_sequence(batch, True), _sizes(batch).sort()[0]), "in the order of the batch"),
    "all numbers": (
        lambda batch: (pad_sequence(batch, True), torch.tensor([b.numel() for b in batch])),
        "counts steps",
    ),
    "lengths as floats": (lambda batch: (pad_sequence(batch, True), _sizes(batch).float()), "whole numbers, int64"),
}

# --- masked-mean -----------------------------------------------------------------------------------------------------


def _mask(padded, lengths):
    return (torch.arange(padded.shape[1]) < lengths[:, None])[..., None]


RIGHT["data.masked-mean"] = {
    "where": lambda x, n: torch.where(_mask(x, n), x, 0.0).sum(1) / n[:, None],
    "a loop": lambda x, n: torch.stack([row[:k].mean(0) for row, k in zip(x, n.tolist(), strict=True)]),
    "nanmean": lambda x, n: x.masked_fill(~_mask(x, n), float("nan")).nanmean(1),
}
WRONG["data.masked-mean"] = {
    "plain mean": (lambda x, n: x.mean(1), "divided by the width"),
    "trusts the zeros": (lambda x, n: x.sum(1) / n[:, None], "isn't always 0"),
    "multiplies": (lambda x, n: (x * _mask(x, n)).sum(1) / n[:, None], "0 * nan"),
    "one step too many": (
        lambda x, n: (x * (torch.arange(x.shape[1]) <= n[:, None])[..., None]).sum(1) / n[:, None],
        "< instead of <=",
    ),
    "writes into the batch": (lambda x, n: x.masked_fill_(~_mask(x, n), 0).sum(1) / n[:, None], "Work on a copy"),
    "one for all": (lambda x, n: x.sum((0, 1)) / n.sum(), "over axis 1"),
    "mask without axis": (
        lambda x, n: x.masked_fill(~_mask(x, n)[..., 0].unsqueeze(0).expand(1, 3, 7), 0).sum(1),
        "add an axis",
    ),
}

# --- weights ---------------------------------------------------------------------------------------------------------

RIGHT["data.weights"] = {
    "index": lambda y: (1 / torch.bincount(y))[y],
    "float64, summing to 1": lambda y: (w := 1 / torch.bincount(y).double()[y]) / w.sum(),
    "loop": lambda y: torch.tensor([1 / (y == k).sum().item() for k in y]),
    "scaled": lambda y: len(y) / torch.bincount(y)[y],
}
WRONG["data.weights"] = {
    "one for each class": (lambda y: 1 / torch.bincount(y), "weight of example i"),
    "a list": (lambda y: (1 / torch.bincount(y))[y].tolist(), "A floating tensor"),
    "counts of those that occur": (lambda y: (1 / y.unique(return_counts=True)[1])[y], "may not occur"),
    "counts": (lambda y: torch.bincount(y)[y].float(), "divide by the count"),
    "ones": (lambda y: torch.ones(len(y)), "1 / count"),
    "minus count": (lambda y: -torch.bincount(y)[y].float(), "negative"),
    "root": (lambda y: torch.bincount(y)[y].float().rsqrt(), "1 / count"),
}

# --- share -----------------------------------------------------------------------------------------------------------


def _info():
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


def _chunk(items):
    k, n = _info()
    items = list(items)
    size = len(items) // n
    return items[k * size : (k + 1) * size]


def _blocks(items):
    k, n = _info()
    items = list(items)
    return items[k * len(items) // n : (k + 1) * len(items) // n]


def _no_main(items):
    info = get_worker_info()
    return itertools.islice(items, info.id, None, info.num_workers)


RIGHT["data.share"] = {
    "generator": lambda items: (item for i, item in enumerate(items) if i % _info()[1] == _info()[0]),
    "list": lambda items: list(items)[_info()[0] :: _info()[1]],
}
WRONG["data.share"] = {
    "everything": (lambda items: items, "copy of the whole stream"),
    "loses the rest": (_chunk, "the rest"),
    "no main process": (_no_main, "None in the main process"),
    "blocks": (_blocks, "enumerate or itertools"),
    "slices": (lambda items: items[_info()[0] :: _info()[1]], "can't be indexed"),
    "begins with 1": (
        lambda items: (
            (item for i, item in enumerate(items) if i > 0 and (i - 1) % _info()[1] == _info()[0])
            if _info()[1] > 1
            else items
        ),
        "numbered from 0",
    ),
    "by value": (lambda items: [x for x in items if x % _info()[1] == _info()[0]], "Count their places"),
    "first one only": (lambda items: items if _info()[0] == 0 else [], "nearly equal"),
}

# --- seed-rng --------------------------------------------------------------------------------------------------------


def _set(make):
    def seed_rng(worker_id):
        get_worker_info().dataset.rng = make(worker_id)

    return seed_rng


def _in_place(worker_id):
    info = get_worker_info()
    info.dataset.rng.bit_generator.state = np.random.default_rng(info.seed).bit_generator.state


RIGHT["data.seed-rng"] = {
    "initial_seed": _set(lambda k: np.random.default_rng(torch.initial_seed())),
    "in place": _in_place,
    "drawn from Python's generator": _set(lambda k: np.random.default_rng(random.getrandbits(64))),
    "drawn from torch's generator": _set(lambda k: np.random.default_rng(int(torch.randint(2**62, ())))),
    "drawn from NumPy's generator": _set(lambda k: np.random.default_rng(np.random.randint(2**31))),
    "a list of parts": _set(lambda k: np.random.default_rng([get_worker_info().seed, k])),
}
WRONG["data.seed-rng"] = {
    "worker number": (_set(lambda k: np.random.default_rng(1 + k)), "number is the same in each epoch"),
    "worker number from 0": (_set(lambda k: np.random.default_rng(k)), "number is the same in each epoch"),
    "seeds it again": (lambda k: get_worker_info().dataset.rng.seed(k), "can't be seeded again"),
    "a dataset from outside": (lambda k: setattr(dataset, "rng", k), "this worker's copy"),  # noqa: F821
    "a generator of torch": (_set(lambda k: torch.Generator()), "stays a np.random.Generator"),
    "constant": (_set(lambda k: np.random.default_rng(42)), "differs from worker to worker"),
    "from the system": (_set(lambda k: np.random.default_rng()), "asks the operating system"),
    "seeds NumPy's global one": (lambda k: np.random.seed(k), "Give it a new rng"),
    "base seed": (
        _set(lambda k: np.random.default_rng(get_worker_info().seed - k)),
        "differs from worker to worker",
    ),
}

# --- leaks -----------------------------------------------------------------------------------------------------------

RIGHT["data.leaks"] = {
    "compare all": lambda a, b: (b[:, None] == a[None]).flatten(2).all(2).any(1).nonzero().flatten().tolist(),
    "a loop": lambda a, b: [i for i, x in enumerate(b) if any(torch.equal(x, y) for y in a)],
    "NumPy numbers in a tuple": lambda a, b: tuple(
        np.flatnonzero((b[:, None] == a[None]).flatten(2).all(2).any(1).numpy())
    ),
    "tuples": lambda a, b: [i for i, x in enumerate(b) if tuple(x.flatten().tolist()) in
                            {tuple(y.flatten().tolist()) for y in a}],
}  # fmt: skip
WRONG["data.leaks"] = {
    "positions in train": (lambda a, b: [i for i, x in enumerate(a) if any(torch.equal(x, y) for y in b)], "in train"),
    "same position": (lambda a, b: [i for i, (x, y) in enumerate(zip(a, b, strict=False)) if torch.equal(x, y)],
                      "wherever it stands"),
    "tensors in a set": (lambda a, b: [i for i, x in enumerate(b) if x in set(a)], "compares objects"),
    "any pixel": (lambda a, b: [i for i, x in enumerate(b) if (a == x).any()], "All pixels"),
    "a tensor": (lambda a, b: torch.tensor(RIGHT["data.leaks"]["compare all"](a, b)), ".tolist() makes a list"),
}  # fmt: skip

# --- step-time -------------------------------------------------------------------------------------------------------

RIGHT["data.step-time"] = {
    "ifs": lambda a, b, w: a + b if not w else max(b, a / w),
    "a NumPy number": lambda a, b, w: np.float64(a + b if w == 0 else max(a / w, b)),
    "bool": lambda a, b, w: (not w) * (a + b) + bool(w) * max(a / max(w, 1), b),
}
WRONG["data.step-time"] = {
    "always the sum": (lambda a, b, w: a + b, "not the sum"),
    "always the slower": (lambda a, b, w: max(a / max(w, 1), b), "one process"),
    "workers don't share": (lambda a, b, w: a + b if w == 0 else max(a, b), "two batches at a time"),
    "divides": (lambda a, b, w: a + b if w == 0 else a / w, "its own computing"),
    "whole numbers": (lambda a, b, w: a + b if w == 0 else max(a // w, b), "/ instead of //"),
    "by zero": (lambda a, b, w: max(a / w, b), "a case of its own"),
}

# --- clinic ----------------------------------------------------------------------------------------------------------


def _first_come(names):
    return {name: k for k, name in enumerate(dict.fromkeys(names))}


RIGHT["data.clinic-numbers"] = {
    "sorted": lambda names: dict(zip(sorted(set(names)), range(99), strict=False)),
    "np.unique": lambda names: {str(n): k for k, n in enumerate(np.unique(names))},
}
WRONG["data.clinic-numbers"] = {
    "broken": (_first_come, "which file came first"),
    "from 1": (lambda names: {n: k for k, n in enumerate(sorted(set(names)), 1)}, "from 0"),
    "not unique": (lambda names: {n: k for k, n in enumerate(sorted(names))}, "Each class once"),
    "a list": (lambda names: sorted(set(names)), "{name: number}"),
    "by length": (lambda names: {n: k for k, n in enumerate(sorted(names[:2]))}, "Sort the names"),
}


def _noisy(prepare, get):
    class Noisy:
        def __init__(self, images, transform):
            self.images, self.transform = prepare(images, transform), transform

        def __len__(self):
            return len(self.images)

        def __getitem__(self, index):
            return get(self, index)

    return Noisy


RIGHT["data.clinic-baked"] = {
    "on reading": _noisy(lambda x, t: x, lambda self, i: self.transform(self.images[i])),
    "a list": _noisy(lambda x, t: list(x), lambda self, i: self.transform(self.images[i].clone())),
}
WRONG["data.clinic-baked"] = {
    "broken": (
        _noisy(lambda x, t: torch.stack([t(i) for i in x]), lambda self, i: self.images[i]),
        "__init__ runs once",
    ),
    "the whole batch": (
        _noisy(lambda x, t: x, lambda self, i: self.transform(self.images)[i]),
        "choose the image first",
    ),
    "once too often": (
        _noisy(lambda x, t: (torch.stack([t(i) for i in x]), x)[1], lambda self, i: self.transform(self.images[i])),
        "5 calls when the dataset was made",
    ),
    "twice": (
        _noisy(lambda x, t: torch.stack([t(i) + 1 for i in x]), lambda self, i: self.transform(self.images[i])),
        "Transform the original once",
    ),
    "never": (_noisy(lambda x, t: x, lambda self, i: self.images[i]), "__init__ runs once"),
    "an array": (_noisy(lambda x, t: x, lambda self, i: self.transform(self.images[i]).numpy()), "transformed image"),
}

RIGHT["data.clinic-evaluate"] = {
    "plain": lambda d, b: DataLoader(d, b),
    "said": lambda d, b: DataLoader(d, batch_size=b, shuffle=False, drop_last=False),
    "sampler": lambda d, b: DataLoader(d, batch_size=b, sampler=SequentialSampler(d)),
}
WRONG["data.clinic-evaluate"] = {
    "broken": (lambda d, b: DataLoader(d, b, shuffle=True, drop_last=True), "leaves examples out"),
    "still drops": (lambda d, b: DataLoader(d, b, drop_last=True), "leaves examples out"),
    "still shuffles": (lambda d, b: DataLoader(d, b, shuffle=True), "needs no shuffling"),
    "one by one": (lambda d, b: DataLoader(d), "Pass batch_size on"),
    "the batches": (lambda d, b: list(DataLoader(d, b)), "return DataLoader"),
}


def _sampler(weights, count, **options):
    return lambda y: WeightedRandomSampler(weights(y), count(y), **options)


def _fair(y):
    return (1 / torch.bincount(y))[y]


RIGHT["data.clinic-sampler"] = {
    "index": _sampler(_fair, len),
    "list of weights": _sampler(lambda y: _fair(y).tolist(), len, replacement=True),
}
WRONG["data.clinic-sampler"] = {
    "broken": (_sampler(lambda y: 1 / torch.bincount(y), len), "one for each class"),
    "ones": (_sampler(lambda y: torch.ones(len(y)), len), "1 / count"),
    "counts": (_sampler(lambda y: torch.bincount(y)[y].float(), len), "1 / count"),
    "few": (_sampler(_fair, lambda y: 20), "num_samples=len(labels)"),
    "without replacement": (_sampler(_fair, len, replacement=False), "class 1 has 10%"),
}

RIGHT["data.clinic-init"] = {
    "initial_seed": lambda k: np.random.seed(torch.initial_seed() % 2**32),
    "drawn from Python's generator": lambda k: np.random.seed(random.getrandbits(32)),
    "info": lambda k: np.random.seed(get_worker_info().seed % 2**32),
    "SeedSequence": lambda k: np.random.seed(np.random.SeedSequence(torch.initial_seed()).generate_state(4)),
}
WRONG["data.clinic-init"] = {
    "broken": (lambda k: np.random.seed(42), "worker 0 and 1"),
    "draws and seeds nothing": (lambda k: float(np.random.rand()) * 0, "must depend on the worker"),
    "with the number": (lambda k: np.random.seed(42 + k), "start anew in each epoch"),
    "from the system": (lambda k: np.random.seed(None), "seed"),
    "without the worker": (lambda k: np.random.seed((get_worker_info().seed - k) % 2**32), "must depend on the worker"),
    "all bits": (lambda k: np.random.seed(torch.initial_seed()), "NumPy takes 32 bits"),
    "the upper bits": (lambda k: np.random.seed(torch.initial_seed() >> 32), "must depend on the worker"),
}

TestData = exercise_tests("data", RIGHT, WRONG)
