"""Checks of lesson 07 about shares, sums and files: buckets, samplers, statistics, metrics, checkpoints, logs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from course_utils.exercises.compare import describe, is_close, is_equal, is_true
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.verdicts import Check
from course_utils.scaling import plan_buckets
from course_utils.scratch import scratch_folder
from course_utils.world import World


def check_buckets(plan: Callable, inputs: Inputs) -> Iterator[Check]:
    """distributed.buckets: which parameters travel together."""
    sizes = [300, 100, 250, 150, 500, 50]
    for cap in (400, 550, 10_000, 1):
        found = plan(list(sizes), cap)
        yield is_true(
            f"cap {cap}: returns a list of lists",
            type(found) in (list, tuple) and all(type(bucket) in (list, tuple) for bucket in found),
            detail=f"got {describe(found)}",
            hint="One list of places for each bucket.",
        )
        found = [list(bucket) for bucket in found]
        places = [place for bucket in found for place in bucket]
        yield is_true(
            f"cap {cap}: every parameter is in one bucket",
            all(type(place) is int for place in places) and sorted(places) == list(range(len(sizes))),
            detail=f"got {found}",
            hint="Places are whole numbers from 0. The last bucket may stay below the cap.",
        )
        yield is_true(f"cap {cap}: no bucket is empty", all(found), detail=f"got {found}",
                      hint="Close a bucket only when there is something in it.")  # fmt: skip
        yield is_true(
            f"cap {cap}: from the last parameter to the first",
            places == list(range(len(sizes)))[::-1],
            detail=f"got {found}",
            hint="Backward reaches the last parameter first, so it is the first one in the first bucket.",
        )
        wanted = plan_buckets(sizes, cap)
        below = _never_above(sizes, cap)
        yield is_equal(
            f"cap {cap}: a bucket is closed when it holds {cap} bytes or more",
            found,
            wanted,
            hint=f"Sizes are {sizes}. Add the parameter first, then look whether the bucket is full.",
            mistakes=[(below, "Here no bucket exceeds the cap. DDP adds the parameter first and looks afterwards.")],
        )
    sizes = [inputs.size(1, 100) for _ in range(40)]
    yield is_equal("forty parameters", [list(b) for b in plan(list(sizes), 170)], plan_buckets(sizes, 170),
                   hint="The same rule from the end to the beginning; what is left is a bucket too.")  # fmt: skip


def _never_above(sizes: list[int], cap: float) -> list[list[int]]:
    buckets: list[list[int]] = []
    for place in reversed(range(len(sizes))):
        if buckets and sum(sizes[i] for i in buckets[-1]) + sizes[place] <= cap:
            buckets[-1].append(place)
        else:
            buckets.append([place])
    return buckets


def check_shares(share: Callable, inputs: Inputs) -> Iterator[Check]:
    """distributed.shares: the examples of one rank in one epoch."""
    for n_examples, n_ranks in ((23, 4), (24, 3), (7, 5)):
        each = -(-n_examples // n_ranks)
        epochs = []
        for epoch in range(3):
            dealt = []
            for rank in range(n_ranks):
                torch.manual_seed(1000 * epoch + rank)  # the ranks' own generators are in different states
                dealt.append(share(n_examples, rank, n_ranks, epoch))
            yield is_true(
                f"{n_examples} examples, {n_ranks} ranks: a list of whole numbers in 0..{n_examples - 1}",
                all(type(part) is list and all(type(i) is int and 0 <= i < n_examples for i in part) for part in dealt),
                detail=f"got {describe(dealt[0])}",
                hint="Plain Python numbers: tensor.tolist() makes them.",
            )
            yield is_true(
                f"{n_examples} examples, {n_ranks} ranks: every rank has {each}",
                all(len(part) == each for part in dealt),
                detail=f"they have {[len(part) for part in dealt]}",
                hint="A rank with fewer batches leaves the others waiting. Repeat some examples until all have it."
                if min(map(len, dealt)) <= each
                else "Each rank takes its own part of the order, every n_ranks-th for example.",
            )
            everything = sorted(i for part in dealt for i in part)
            missing = set(range(n_examples)) - set(everything)
            yield is_true(
                f"{n_examples} examples, {n_ranks} ranks: together they see every example",
                not missing,
                detail=f"{len(missing)} examples are seen by nobody",
                hint="Every rank must shuffle in the same way, then take its own part. A generator of its own, "
                "torch.Generator().manual_seed(...), from the epoch alone, gives all the same order.",
            )
            again = [share(n_examples, rank, n_ranks, epoch) for rank in range(n_ranks)]
            yield is_true(
                f"{n_examples} examples, {n_ranks} ranks: the same epoch is dealt in the same way again",
                again == dealt,
                detail="two calls with the same arguments differ",
                hint="The order may come from the arguments alone, not from the global generator.",
            )
            epochs.append(dealt)
        yield is_true(
            f"{n_examples} examples, {n_ranks} ranks: every epoch has another order",
            epochs[0] != epochs[1] != epochs[2] != epochs[0],
            detail="two epochs are dealt alike",
            hint="The epoch must be in the seed of the shuffle.",
        )
        kept = [set(a) == set(b) for a, b in zip(epochs[0], epochs[1], strict=True)]
        yield is_true(
            f"{n_examples} examples, {n_ranks} ranks: a rank sees other examples in the next epoch",
            not all(kept),
            detail="every rank keeps its own examples for ever",
            hint="Shuffle first, then deal: else each rank shuffles the same few.",
        )
        groups = [{frozenset(part) for part in dealt} for dealt in epochs]
        yield is_true(
            f"{n_examples} examples, {n_ranks} ranks: every epoch is shuffled anew",
            n_ranks > 4 or not groups[0] & groups[1],  # with shares of two, chance repeats one now and then
            detail="a share of one epoch is, as a whole, a share of the next",
            hint="The same examples stay together and only change the rank. Shuffle all of them, then deal.",
        )


def check_statistics(statistics: Callable, inputs: Inputs) -> Iterator[Check]:
    """distributed.statistics: mean and variance of each channel over the examples of all ranks."""
    for name, counts, offset in (("equal shares", (4, 4), 0.0), ("unequal shares", (7, 2, 3), 0.0),
                                 ("a large mean", (5, 3), 3000.0)):  # fmt: skip
        parts = [inputs.randn(count, 3) * 2 + inputs.randn(3) + offset for count in counts]
        results = World(len(counts)).run(lambda dist, parts=parts: statistics(parts[dist.get_rank()].clone(), dist))
        yield is_true(
            f"{name}: returns (mean, variance)",
            all(type(found) in (tuple, list) and len(found) == 2 for found in results),
            detail=f"got {describe(results[0])}",
            hint="A pair of tensors, (C,) and (C,).",
        )
        whole = torch.cat(parts).double()
        mean, variance = whole.mean(0), whole.var(0, unbiased=False)
        means = torch.stack([part.double().mean(0) for part in parts])
        variances = torch.stack([part.double().var(0, unbiased=False) for part in parts])
        for rank, found in enumerate(results):
            yield is_close(
                f"{name}: rank {rank} has the mean of all examples",
                found[0],
                mean,
                rtol=1e-4,
                hint="Sum x and the number of examples over the ranks, then divide.",
                mistakes=[
                    (means[rank], "That is the mean of this rank's examples."),
                    (means.mean(0), "That is the mean of means: it weighs a rank with few examples as much."),
                ],
            )
            yield is_close(
                f"{name}: rank {rank} has the variance of all examples",
                found[1],
                variance,
                rtol=1e-2,
                hint="The mean of (x − mean)² over all ranks, with the mean over all ranks."
                if not offset
                else "The mean of x² minus the squared mean loses its digits here. Mean first, then (x − mean)².",
                mistakes=[
                    (variances[rank], "That is the variance of this rank's examples."),
                    (variances.mean(0), "The ranks' means differ too, and that is part of the variance."),
                    (
                        sum(v * len(p) for v, p in zip(variances, parts, strict=True)) / len(whole),
                        "Each rank's spread is taken around its own mean. Take it around the mean of all.",
                    ),
                    (whole.var(0), "Divide by the number of examples, not by one less."),
                ],
            )


def check_accuracy(accuracy: Callable, inputs: Inputs) -> Iterator[Check]:
    """distributed.accuracy: the share of right answers over all ranks."""
    for name, counts in (
        ("equal shares", (6, 6)),
        ("a short last share", (10, 10, 3)),
        ("a rank without any", (5, 0, 4)),
    ):
        labels = [inputs.randint(0, 3, count) for count in counts]
        guesses = [inputs.randint(0, 3, count) for count in counts]
        for rank, (label, guess) in enumerate(zip(labels, guesses, strict=True)):
            guess[: len(guess) // 2 + rank] = label[: len(guess) // 2 + rank]  # shares that differ from rank to rank
        world = World(len(counts))
        results = world.run(
            lambda dist, g=guesses, y=labels: accuracy(g[dist.get_rank()].clone(), y[dist.get_rank()].clone(), dist)
        )
        hits = [int((g == y).sum()) for g, y in zip(guesses, labels, strict=True)]
        wanted = sum(hits) / sum(counts)
        shares = [hit / count if count else 0.0 for hit, count in zip(hits, counts, strict=True)]
        for rank, found in enumerate(results):
            yield is_close(
                f"{name}: rank {rank} has the share over all examples",
                found,
                wanted,
                hint="Sum the right answers and the examples over the ranks, then divide; return a Python number."
                if name != "a rank without any"
                else "A rank without examples takes part too, with 0 of 0. Divide the sums, not each rank's share.",
                mistakes=[
                    (
                        sum(shares) / len(shares),
                        "That is the mean of the ranks' shares. The last rank has fewer examples.",
                    ),
                    (shares[rank], "That is the share of this rank alone."),
                ],
            )


class _Slow(nn.Linear):
    """A layer whose state takes a while to collect, so that who doesn't wait is seen."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(0.05)
        return super().state_dict(*args, **kwargs)


def check_save(save: Callable, inputs: Inputs) -> Iterator[Check]:
    """distributed.save: one file, without the wrapper's prefix, there for everybody afterwards."""
    n = 3
    models = [nn.Module() for _ in range(n)]  # wrappers, as DDP is one
    for rank, model in enumerate(models):
        model.module = _Slow(3, 2)
        nn.init.constant_(model.module.weight, float(rank))
    with scratch_folder("answer") as folder:
        paths = [folder / f"disk{rank}" / "model.pt" for rank in range(n)]
        for path in paths:
            path.parent.mkdir()

        def program(dist: Any) -> bool:
            rank = dist.get_rank()
            save(models[rank], paths[rank], dist)
            return paths[0].exists()

        seen = World(n).run(program)
        yield is_true(
            "rank 0 has written its file",
            paths[0].exists(),
            detail="there is none",
            hint="torch.save(state, path) on rank 0.",
        )
        yield is_true(
            "the other ranks write nothing",
            not any(path.exists() for path in paths[1:]),
            detail="rank 1 has written too",
            hint="if dist.get_rank() == 0: all ranks hold the same weights, and two writers spoil one file.",
        )
        yield is_true(
            "no rank goes on before the file is there",
            all(seen),
            detail="a rank returned before rank 0 had written",
            hint="dist.barrier() after the writing, on every rank: then the others may load.",
        )
        try:
            state = torch.load(paths[0], weights_only=True)
        except Exception as error:
            state = error
        yield is_true(
            "the file holds a state_dict",
            isinstance(state, dict) and all(isinstance(value, Tensor) for value in state.values()),
            detail=f"got {describe(state)}",
            hint="torch.save(model.module.state_dict(), path): names and tensors, no pickled model.",
        )
        yield is_true(
            "a model without the wrapper can load it",
            sorted(state) == ["bias", "weight"],
            detail=f"its names are {sorted(map(str, state))[:3]}",
            hint="The wrapper puts 'module.' before each name. Save model.module.state_dict().",
        )
        yield is_true("they are the weights of rank 0", bool((state["weight"] == 0).all()), detail="other weights",
                      hint="Save what the model holds.")  # fmt: skip


def check_guilty(guilty: Callable, inputs: Inputs) -> Iterator[Check]:
    """distributed.guilty: where logs of collectives part, and which ranks did otherwise than most."""
    calls = [f"all_reduce ({inputs.size(2, 90)},)" for _ in range(6)]
    place, rank = inputs.size(1, 4), inputs.size(0, 3)
    same = [list(calls) for _ in range(4)]
    yield is_true(
        "no quarrel: returns None", guilty([list(log) for log in same]) is None,
        detail=f"got {describe(guilty([list(log) for log in same]))}", hint="If all logs are equal, return None.",
    )  # fmt: skip
    cases: list[tuple[str, list[list[str]], tuple[int, list[int]], str]] = []
    other = [list(log) for log in same]
    other[rank][place] = "barrier"
    cases.append(("one called another collective", other, (place, [rank]), "Compare the logs place by place."))
    shape = [list(log) for log in same]
    shape[rank][place] = "all_reduce (999,)"
    cases.append(("one had another shape", shape, (place, [rank]), "The whole line counts, the shape too."))
    short = [list(log) for log in same]
    del short[rank][place:]
    cases.append(("one stopped early", short, (place, [rank]), "A log that has ended differs from one that goes on."))
    more = [list(log) for log in same]
    more[rank].append("all_reduce (1,)")
    cases.append(("one went on alone", more, (6, [rank]), "Look beyond the end of the shorter logs as well."))
    skipped = [list(log) for log in same]
    skipped[rank][place:] = [f"broadcast ({k},)" for k in range(len(calls) - place)]
    cases.append(("everything differs afterwards", skipped, (place, [rank]), "The first place where they part counts."))
    two = [[*log] for log in (*same, list(calls))]
    two[1][2], two[4][2] = "barrier", "barrier"
    cases.append(("two of five", two, (2, [1, 4]), "Name every rank that did otherwise than most, in order."))
    three = [list(calls) for _ in range(5)]
    three[0][3], three[3][3] = "barrier", "broadcast (2,)"
    cases.append(
        ("two of five in two ways", three, (3, [0, 3]), "Most of the ranks are right; all the others are guilty.")
    )
    later = [list(calls) for _ in range(5)]
    later[1][2], later[4][4] = "barrier", "barrier"
    cases.append(
        ("another parts later", later, (2, [1]), "Who parts later was still right at the first place: it isn't named.")
    )
    for name, logs, wanted, hint in cases:
        found = guilty([list(log) for log in logs])
        yield is_true(
            f"{name}: returns (place, ranks)",
            type(found) in (tuple, list) and len(found) == 2 and type(found[1]) in (list, tuple),
            detail=f"got {describe(found)}",
            hint=hint if found is None else "The place, counted from 0, and a list of ranks.",
        )
        yield is_equal(f"{name}: the place", found[0], wanted[0], hint=hint)
        yield is_equal(
            f"{name}: the ranks",
            list(found[1]),
            wanted[1],
            hint="Those that differ from what most ranks called at this place. " + hint,
            mistakes=[([r for r in range(len(logs)) if r not in wanted[1]], "These are the ranks that were right.")],
        )
