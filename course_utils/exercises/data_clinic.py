"""Checks of the clinic of lesson 04."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from course_utils.exercises.compare import describe, is_equal, is_true
from course_utils.exercises.data_sampling import worker_seed
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.verdicts import Check
from course_utils.workers import acting_as_worker


def check_clinic_numbers(class_numbers: Callable, inputs: Inputs) -> Iterator[Check]:
    """Clinic data.clinic-numbers: the same class has the same number in every split."""
    names = ["cat", "dog", "ant", "cat", "bee", "dog"]
    first = class_numbers(list(names))
    yield is_true("returns a dict", type(first) is dict, detail=f"got {describe(first)}", hint="{name: number}")
    second = class_numbers([names[i] for i in inputs.permutation(len(names))])
    reverse = class_numbers(names[::-1])
    yield is_true(
        "another order of the files gives the same numbers",
        first == second == reverse,
        detail=f"{first} and {reverse}",
        hint="The number depends on which file came first. Sort the names before counting.",
    )
    yield is_equal(
        "counts from 0, in alphabetical order",
        first,
        {"ant": 0, "bee": 1, "cat": 2, "dog": 3},
        hint="Each class once: sorted(set(names)), then enumerate.",
    )


def check_clinic_baked(noisy: object, inputs: Inputs) -> Iterator[Check]:
    """Clinic data.clinic-baked: an augmentation that is drawn anew each time an item is read."""
    images = inputs.randn(5, 1, 3, 4)
    shapes = []

    def transform(image: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(image.shape))
        return image + torch.rand(())

    dataset = noisy(images, transform)
    early = len(shapes)
    yield is_true("has a length", len(dataset) == 5, detail=f"got {describe(len(dataset))}", hint="len(self.images)")
    first, again = dataset[2], dataset[2]
    yield is_true(
        "returns tensors", type(first) is torch.Tensor and first.shape == images[2].shape,
        detail=f"got {describe(first)}", hint="Return the transformed image, (C, H, W).",
    )  # fmt: skip
    yield is_true(
        "reading twice gives two versions",
        not torch.equal(first, again),
        detail="both readings are the same",
        hint="__init__ runs once, __getitem__ at each reading. Keep the images, and transform when one is read.",
    )
    yield is_true(
        "the transform gets one image",
        set(shapes) <= {(1, 3, 4)},
        detail=f"it got shapes {sorted(set(shapes))}",
        hint="self.transform(self.images[index]): choose the image first, (C, H, W), then transform it.",
    )
    shift = (first - images[2]).flatten()
    yield is_true(
        "the versions are made from the original",
        bool((shift > -1e-5).all() and (shift < 1 + 1e-5).all() and (shift - shift[0]).abs().max() < 1e-5),
        detail="an image was transformed more than once, or another one was read",
        hint="Transform the original once: no transformed image may be transformed again.",
    )
    yield is_true(
        "the transform is called once for each reading",
        len(shapes) == 2,
        detail=f"{early} calls when the dataset was made, {len(shapes) - early} for two readings",
        hint="One call, in __getitem__.",
    )
    for _ in range(20):
        last = dataset[2]
    yield is_true(
        "also after many readings",
        bool((last - images[2]).max() < 1 + 1e-5),
        detail="the noise adds up",
        hint="Don't write the transformed image back.",
    )


def check_clinic_evaluate(test_loader: Callable, inputs: Inputs) -> Iterator[Check]:
    """Clinic data.clinic-evaluate: a loader that shows every example once, in order."""
    n = inputs.choice([33, 37, 45])
    dataset = TensorDataset(torch.arange(n))
    loader = test_loader(dataset, 8)
    yield is_true("returns a DataLoader", type(loader) is DataLoader, detail=f"got {describe(loader)}",
                  hint="return DataLoader(...)")  # fmt: skip
    seen = [x for (batch,) in loader for x in batch.tolist()]
    yield is_true(
        "every example is seen once",
        sorted(seen) == list(range(n)),
        detail=f"{len(seen)} examples, {len(set(seen))} different ones of {n}",
        hint="drop_last is for training. In a test it leaves examples out.",
    )
    yield is_true(
        "in the order of the data",
        seen == list(range(n)),
        detail=f"it starts with {seen[:4]}",
        hint="A test needs no shuffling, and predictions in order can be matched with files.",
    )
    yield is_true(
        "in batches of the size that was asked for",
        len(next(iter(loader))[0]) == 8,
        detail=f"the first has {len(next(iter(loader))[0])}",
        hint="Pass batch_size on.",
    )


class _Labelled(Dataset):
    def __init__(self, labels: torch.Tensor) -> None:
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, int(self.labels[index])


def check_clinic_sampler(balanced: Callable, inputs: Inputs) -> Iterator[Check]:
    """Clinic data.clinic-sampler: the weights of a weighted sampler belong to examples."""
    labels = torch.tensor([0] * 180 + [1] * 20)
    sampler = balanced(labels)
    drawn = torch.tensor([int(i) for i in sampler])
    yield is_true(
        "draws as many examples as there are",
        len(drawn) == len(labels),
        detail=f"{len(drawn)} draws for {len(labels)} examples",
        hint="num_samples=len(labels)",
    )
    yield is_true(
        "examples from the whole data set are drawn",
        int(drawn.max()) > 10,
        detail=f"only the examples {sorted(set(drawn.tolist()))[:4]} are drawn",
        hint="WeightedRandomSampler reads weight i as that of example i. You gave it one for each class.",
    )
    share = labels[drawn].float().mean().item()
    yield is_true(
        "both classes are drawn about equally often",
        0.3 < share < 0.7,
        detail=f"class 1 has {share:.0%} of the draws",
        hint="Each example weighs 1 / count of its class.",
    )
    rare = drawn[labels[drawn] == 1]
    yield is_true(
        "rare examples come more than once",
        len(set(rare.tolist())) < len(rare),
        detail="no example came twice",
        hint="20 examples can fill 100 draws only with replacement=True.",
    )


def check_clinic_init(init: Callable, inputs: Inputs) -> Iterator[Check]:
    """Clinic data.clinic-init: a worker_init_fn that gives each worker and each epoch other numbers."""

    def draw(number: int, epoch: int, run: int) -> float:
        with acting_as_worker(number, 2, None, seed=worker_seed(number, epoch, run)):
            np.random.seed(7)  # the same everywhere, as torch once left it: the answer itself must seed
            init(number)
            return float(np.random.rand())

    run = inputs.size(1, 50)
    first = draw(0, 0, run)
    yield is_true("two workers draw differently", first != draw(1, 0, run), detail="worker 0 and 1 draw the same",
                  hint="The seed must depend on the worker: torch.initial_seed() does.")  # fmt: skip
    yield is_true(
        "two epochs draw differently",
        first != draw(0, 1, run),
        detail="the second epoch repeats the first",
        hint="The workers start anew in each epoch, and each time with the same number.",
    )
    yield is_true(
        "another run with another seed draws differently",
        first != draw(0, 0, run + 1),
        detail="the seed of the run doesn't matter",
        hint="torch.initial_seed() or get_worker_info().seed comes from the loader's generator.",
    )
    yield is_true(
        "the same seed gives the same draws",
        first == draw(0, 0, run),
        detail="two runs with the same seed differ",
        hint="Nothing from the clock or the operating system.",
    )
