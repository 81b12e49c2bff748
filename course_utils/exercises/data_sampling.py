"""Checks of lesson 04 about sampling, workers, checks of the data and time."""

from __future__ import annotations

import random
import types
from collections.abc import Callable, Iterator

import numpy as np
import torch

from course_utils.exercises.compare import describe, has_shape, is_close, is_equal, is_true
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.verdicts import Check
from course_utils.workers import acting_as_worker

UNTOUCHED = 4_815_162_342  # the seed of a generator that nobody has seeded; nobody guesses it


def check_weights(weights: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise data.weights: one weight for each example, so that each class is drawn equally often."""
    counts = inputs.sizes(3, 2, 9)
    labels = torch.tensor([k for k, count in zip((0, 1, 3), counts, strict=True) for _ in range(count)])
    labels = labels[torch.tensor(inputs.permutation(len(labels)))]
    answer = weights(labels)
    sizes = torch.bincount(labels)
    yield is_true(
        "returns a tensor",
        type(answer) is torch.Tensor,
        detail=f"got {describe(answer)}",
        hint="A floating tensor of shape (N,). torch.bincount(labels) counts, and its result can be indexed.",
    )
    yield has_shape(
        "one weight for each example",
        answer,
        (len(labels),),
        hint="The sampler reads weights[i] as the weight of example i: index the class weights with the labels.",
    )
    got = answer.double()
    yield is_true(
        "all are finite and positive",
        bool(torch.isfinite(got).all() and (got > 0).all()),
        detail="there is inf, nan, 0 or a negative number",
        hint="A class that does not occur has count 0: 1/0 must not reach an example.",
    )
    totals = torch.stack([got[labels == k].sum() for k in (0, 1, 3)])
    frequent = "The frequent class got the larger weight: divide by the count." if totals.std() > 0 else ""
    yield is_close(
        "every class has the same total weight",
        totals / totals.sum(),
        torch.full((3,), 1 / 3, dtype=torch.float64),
        hint=frequent if bool(got[labels == int(sizes.argmax())].mean() > got.mean()) else
        "Each example weighs 1 / count of its class.",
    )  # fmt: skip
    spread = max((got[labels == k].max() - got[labels == k].min()).item() for k in (0, 1, 3))
    yield is_true("examples of one class weigh the same", spread < 1e-6, hint="The weight depends on the class alone.")


def check_share(my_share: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise data.share: what one worker reads of a stream."""
    n = inputs.choice([11, 13, 17])  # neither 2 nor 3 workers divide it
    items = [f"item {i}" for i in range(n)]
    alone = list(my_share(list(items)))
    yield is_equal(
        "outside a worker, everything",
        alone,
        items,
        hint="get_worker_info() is None in the main process: num_workers=0 must work too.",
    )
    for count in (2, 3):
        shares = []
        for number in range(count):
            with acting_as_worker(number, count):
                shares.append(list(my_share(list(items))))
        together = [item for share in shares for item in share]
        yield is_true(
            f"{count} workers read nothing twice",
            len(set(together)) == len(together),
            detail=f"{len(together)} items read, {len(set(together))} of them different",
            hint="Each worker has a copy of the whole stream. Ask get_worker_info() for id and num_workers.",
        )
        yield is_true(
            f"{count} workers miss nothing",
            set(together) == set(items),
            detail=f"missing: {', '.join(item for item in items if item not in together)}",
            hint=_missing(items, together),
        )
        yield is_true(
            "the shares are nearly equal",
            max(map(len, shares)) - min(map(len, shares)) <= 1,
            detail=f"sizes {[len(share) for share in shares]}",
            hint="Every num_workers-th item: islice(items, info.id, None, info.num_workers).",
        )
    with acting_as_worker(1, 2):
        from_stream = list(my_share(iter(items)))
    yield is_equal(
        "worker 1 of 2 reads items 1, 3, 5, … of a stream without a length",
        from_stream,
        items[1::2],
        hint="A stream has no len() and no index. enumerate or itertools.islice goes along it.",
    )


def _missing(items: list[str], together: list[str]) -> str:
    if items[0] not in together:
        return "Workers are numbered from 0: worker 0 begins with item 0."
    return "The length may not be divisible: what happens to the rest?"


def worker_seed(number: int, epoch: int, run: int) -> int:
    """Return a seed as torch gives it to a worker: 63 bits for each epoch and run, plus the worker's number."""
    return random.Random(f"epoch {epoch} of run {run}").getrandbits(62) + 2**62 + number


def _draws(init: Callable, number: int, epoch: int, run: int = 0) -> float:
    """Let a worker of one epoch start, and return what its dataset's generator draws first."""
    dataset = types.SimpleNamespace(rng=np.random.default_rng(UNTOUCHED))
    with acting_as_worker(number, 2, dataset, seed=worker_seed(number, epoch, run)):
        init(number)
        return float(dataset.rng.random())


def check_seed_rng(seed_rng: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise data.seed-rng: a worker_init_fn for a generator that the dataset holds."""
    run = inputs.size(0, 100)
    untouched = np.random.default_rng(UNTOUCHED).random()
    first = _draws(seed_rng, 0, 0, run)
    yield is_true(
        "the dataset's generator gets another state",
        first != untouched,
        detail="it draws what it drew before",
        hint="In a worker, get_worker_info().dataset is that worker's copy. Give it a new rng.",
    )
    yield is_true(
        "two workers draw differently",
        first != _draws(seed_rng, 1, 0, run),
        detail="worker 0 and worker 1 draw the same",
        hint="get_worker_info().seed differs from worker to worker.",
    )
    yield is_true(
        "two epochs draw differently",
        len({_draws(seed_rng, 0, epoch, run) for epoch in range(6)}) == 6,
        detail="a later epoch repeats an earlier one",
        hint="The worker's number is the same in each epoch. get_worker_info().seed isn't.",
    )
    yield is_true(
        "the same seed gives the same draws",
        first == _draws(seed_rng, 0, 0, run),
        detail="two runs with the same seed differ",
        hint="default_rng() without a seed asks the operating system. Give it get_worker_info().seed.",
    )


def check_leaks(leaks: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise data.leaks: which test images stand in the training set too."""
    height, width = inputs.sizes(2, 3, 6)
    train = inputs.randint(0, 4, 12, 1, height, width, dtype=torch.uint8) * 2
    test = inputs.randint(0, 4, 7, 1, height, width, dtype=torch.uint8) * 2 + 1  # odd: none of train
    answer = leaks(train, test)
    yield _are_positions(answer)
    yield is_equal("finds nothing where nothing is", [int(i) for i in answer], [], hint="All pixels must agree.")
    # A near miss: the same pixels in another order, and the same sum.
    test[0] = train[1].flatten().roll(1).reshape(train[1].shape)
    test[0, 0, 0, 0] += 1
    test[2], test[5] = train[9], train[0]
    test[6] = test[5]
    answer = leaks(train, test)
    yield _are_positions(answer)
    yield is_equal(
        "names the images of test that stand in train, sorted",
        [int(i) for i in answer],
        [2, 5, 6],
        hint="All pixels must agree. Bytes can be looked up in a set: image.numpy().tobytes().",
        mistakes=[
            ([0, 9], "Those are positions in train. Positions in test were asked for."),
            ([0, 0, 9], "Those are positions in train. Positions in test were asked for."),
            ([2, 5], "Image 6 of test is the same as image 5, and stands in train too."),
            (
                [],
                "Compare each image of test with every one of train, wherever it stands. A set of tensors doesn't "
                "help: it compares objects.",
            ),
        ],
    )


def _are_positions(answer: object) -> Check:
    return is_true(
        "returns a list of whole numbers",
        type(answer) in (list, tuple) and all(type(i) is int or isinstance(i, np.integer) for i in answer),  # type: ignore[attr-defined]
        detail=f"got {describe(answer)}",
        hint="[i for i, image in enumerate(test) if ...]; .tolist() makes a list of a tensor.",
    )


def check_step_time(step_time: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise data.step-time: time of a step once the pipeline is full, in ms."""
    load, compute = inputs.size(20, 29) * 2 + 0.75, float(inputs.size(11, 19))

    def step(workers: int) -> object:
        answer = step_time(load, compute, workers)
        return float(answer) if isinstance(answer, (np.floating, np.integer)) else answer

    yield is_close(
        "no workers: one after the other",
        step(0),
        load + compute,
        hint="With num_workers=0 the main process loads, then computes.",
        mistakes=[(max(load, compute), "Nobody loads meanwhile: with 0 workers there is one process.")],
    )
    yield is_close(
        "one worker: the slower side decides",
        step(1),
        load,
        hint="Worker and main process work at the same time.",
        mistakes=[
            (load + compute, "They work at the same time: not the sum."),
            (load // 1, "Times are no whole numbers: / instead of //."),
        ],
    )
    yield is_close(
        "two workers share the loading",
        step(2),
        load / 2,
        hint="A batch comes every load / workers ms.",
        mistakes=[(load, "Two workers make two batches at a time.")],
    )
    yield is_close(
        "enough workers: computing decides",
        step(16),
        compute,
        hint="No step is quicker than its own computing.",
        mistakes=[(load / 16, "No step is quicker than its own computing.")],
    )
