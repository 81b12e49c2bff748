"""Rules about batches, data sets and loaders."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch.utils.data import DataLoader, IterableDataset

from course_utils.doctor.findings import ERROR, NOTE, WARNING, Seen, rule
from course_utils.doctor.history import drew_from_global_generator, splitter_of
from course_utils.doctor.parts import batch_size, named_leaves, tensors_of

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination


@rule(
    "data.nonfinite", ERROR, "05_training",
    title="The data hold NaN or infinity.",
    looks="the values of the batches, and whether loss or gradients of such a batch are finite.",
    quiet="missing values that the model or the loss masks leave loss and gradients finite: a note.",
    fix="keep = x.isfinite().flatten(1).all(1); x, y = x[keep], y[keep]",
)  # fmt: skip
def nonfinite(examination: Examination) -> Iterator[Seen]:
    batches = examination.batches
    if not batches.nonfinite:
        return
    bad = batches.nonfinite[0]
    place = f", place {list(bad.place)}" if bad.place else ""
    harmless = _is_masked(examination, bad.batch)
    yield Seen(
        f"Batch {bad.batch} holds {'NaN' if bad.is_nan else 'infinity'} in its {bad.leaf} (example "
        f"{bad.example}{place})"
        + (
            "; the loss stays finite, so it seems to be masked."
            if harmless
            else ": one update with it ruins every weight."
        ),
        {"batch": bad.batch, "example": bad.example, "place": list(bad.place), "found": len(batches.nonfinite)},
        severity=NOTE if harmless else None,
    )


def _is_masked(examination: Examination, number: int) -> bool:
    """Tell whether a batch with such values gives a finite loss and leaves finite gradients."""
    parts, batches = examination.parts, examination.batches
    if number >= len(batches.kept) or parts.model is None:
        return False
    from course_utils.doctor.parts import clone_tree

    def go() -> bool:
        loss = parts.run_step(clone_tree(batches.kept[number]))
        values = [float(leaf.detach().sum()) for leaf in tensors_of(loss)]
        finite = all(torch.isfinite(p).all() for p in parts.model.parameters())
        return finite and all(value == value and abs(value) != float("inf") for value in values)

    outcome = examination.run(go, 0.2)
    return outcome.is_done and bool(outcome.value)


@rule(
    "data.single-class-batches", WARNING, "04_data",
    title="The labels are sorted and the loader does not shuffle.",
    looks="the labels of consecutive batches, and of examples spread over the data set.",
    quiet="samplers that mix, streams in which classes alternate, and labels that are no classes.",
    fix="DataLoader(data, batch_size, shuffle=True)",
)  # fmt: skip
def single_class(examination: Examination) -> Iterator[Seen]:
    batches = examination.batches
    labels = [batch for batch in batches.labels if len(batch) >= 2]
    if len(labels) < 3 or len(labels) < 0.8 * len(batches.sizes):
        return
    pure = [int(batch[0]) for batch in labels if bool((batch == batch[0]).all())]
    classes = len({*torch.cat(labels).tolist(), *examination.data.spread_labels})
    if classes < 2 or classes > 0.5 * sum(map(len, labels)) or len(pure) < 0.75 * len(labels):
        return
    switches = sum(a != b for a, b in itertools.pairwise(pure))
    if switches <= len(set(pure)) and len(pure) > len(set(pure)):
        yield Seen(
            f"{len(pure)} of {len(labels)} consecutive batches hold one class each, and the classes come one after "
            "the other: the network forgets each class while it sees the next.",
            {"batches": len(labels), "with_one_class": len(pure), "classes": classes},
        )


@rule(
    "data.reading-edits", ERROR, "04_data",
    title="Reading an example changes the data set.",
    looks="three readings of one example from the same random state, and whether the stored arrays have changed.",
    quiet="random augmentation writes nothing into the store; a cache gives the same values the second time.",
    fix="x = torch.from_numpy(self.data[i].copy())  # then change x",
)  # fmt: skip
def reading_edits(examination: Examination) -> Iterator[Seen]:
    facts = examination.data
    if facts.is_edited:
        yield Seen(
            f"dataset[0] gives other values each time it is read (they differ by {facts.edit_size:.3g}): __getitem__ "
            "writes into the stored data.",
            {"change_per_reading": facts.edit_size},
        )


@rule(
    "data.batch-edited", WARNING, "01_tensors",
    title="The training step writes into the data.",
    looks="the batch's tensors before and after a step, where the loader hands out the stored tensors themselves.",
    quiet="loaders that collate a fresh batch each time: then nothing that is kept has changed.",
    fix="x = x + noise  # instead of x += noise",
)  # fmt: skip
def batch_edited(examination: Examination) -> Iterator[Seen]:
    run = next((run for run in examination.runs if run.edited and run.is_stored), None)
    if run is None:
        return
    names = sorted(set(run.edited))
    yield Seen(
        f"A step changes {', '.join(names)} in place, and the loader hands out its stored tensors: the data drift "
        "from epoch to epoch.",
        {"changed": names},
    )


@rule(
    "data.worker-copies", ERROR, "04_data",
    title="All workers draw the same random numbers.",
    looks="what two workers would draw for one example, with the random states that a DataLoader gives them.",
    quiet="data sets without randomness, or whose randomness depends on the index alone.",
    fix="rng = np.random.default_rng(torch.initial_seed() % 2**32)  # made in the worker, not in __init__",
)  # fmt: skip
def worker_copies(examination: Examination) -> Iterator[Seen]:
    facts = examination.data
    if facts.worker_copies:
        yield Seen(
            f"The {facts.workers} workers draw identical random numbers, since each works with a copy of the data "
            "set's own generator (or a constant seed).",
            {"workers": facts.workers, "equal_draws": 2},
        )


@rule(
    "data.epoch-copies", ERROR, "04_data",
    title="Each epoch repeats the random numbers of the one before.",
    looks="what a worker would draw in two epochs, with the random states that a DataLoader gives it.",
    quiet="workers that live on (persistent_workers), and data sets without randomness.",
    fix="def worker_init_fn(worker): np.random.seed(torch.initial_seed() % 2**32)",
)  # fmt: skip
def epoch_copies(examination: Examination) -> Iterator[Seen]:
    facts = examination.data
    if facts.epoch_copies and not facts.worker_copies:
        yield Seen(
            "Workers start each epoch with the same random state, so every epoch has the same augmentation.",
            {"workers": facts.workers},
        )


@rule(
    "data.stream-not-split", ERROR, "04_data",
    title="Every worker yields the whole stream.",
    looks="the first examples that two workers of an iterable data set would yield.",
    quiet="streams split by get_worker_info or in worker_init_fn, and streams of fresh random examples.",
    fix="info = get_worker_info()\nfor i, item in enumerate(source):\n    if info is None or i % info.num_workers == "
        "info.id: yield item",
)  # fmt: skip
def stream_not_split(examination: Examination) -> Iterator[Seen]:
    facts = examination.data
    if facts.stream_copies:
        yield Seen(
            f"Workers 0 and 1 start with the same {facts.stream_copies} examples: each of the {facts.workers} workers "
            f"yields the whole stream, and an epoch has every example {facts.workers} times.",
            {"workers": facts.workers, "equal_examples": facts.stream_copies},
        )


@rule(
    "data.stream-ignores-rank", WARNING, "07_distributed",
    title="Every process reads the same stream.",
    looks="the first examples of an iterable data set that keeps the number of its process, for two such numbers.",
    quiet="data sets that keep no such number, and streams that change with it.",
    fix="if i % self.world_size != self.rank: continue",
)  # fmt: skip
def stream_ignores_rank(examination: Examination) -> Iterator[Seen]:
    facts = examination.data
    if facts.ignores_rank:
        rank, world = facts.ignores_rank
        yield Seen(
            f"The data set keeps {rank!r} and {world!r}, but processes 0 and 1 get the same examples.",
            {"equal_examples": 8},
        )


@rule(
    "data.split-overlaps", ERROR, "04_data",
    title="Training and validation data share examples.",
    looks="indices into the same data set, or the bytes of inputs that are distinct within each part.",
    quiet="validating on the whole training set is a way to measure the fit: a note. Inputs that repeat within a "
    "part are not compared.",
    fix="train, val = random_split(data, [0.8, 0.2], generator=torch.Generator().manual_seed(0))",
)  # fmt: skip
def split_overlaps(examination: Examination) -> Iterator[Seen]:
    facts = examination.data
    if not facts.shared:
        return
    whole = facts.shared == facts.val_size and facts.shared == facts.train_size
    yield Seen(
        f"{facts.shared} of {facts.val_size} validation examples are training examples too (compared by "
        f"{facts.shared_by}).",
        {"shared": facts.shared, "training": facts.train_size, "validation": facts.val_size},
        severity=NOTE if whole else None,
    )


@rule(
    "data.split-by-global-generator", NOTE, "07_distributed",
    title="The split depends on the process-wide generator.",
    looks="whether random_split drew from the process-wide generator (known for splits made after the doctor's "
    "import). If the function that split takes a rank, it runs as two ranks, from the same random state: another "
    "split for each is an error.",
    quiet="splits with a generator of their own; a seed that is the same for all ranks leaves a note.",
    fix="random_split(data, sizes, generator=torch.Generator().manual_seed(0))",
)  # fmt: skip
def split_by_global(examination: Examination) -> Iterator[Seen]:
    from torch.utils.data import Subset

    subsets = [s for s in examination.snapshot.found(Subset) if drew_from_global_generator(s)]
    if not subsets:
        return
    differing = _splits_by_rank(examination, subsets[0])
    if differing is not None:
        rank, share = differing
        yield Seen(
            f"Rank {rank} and rank {rank + 1} split the data differently: {share:.0%} of what one of them holds back "
            "is in the other's training data. random_split drew from the process-wide generator, and its seed "
            "depends on the rank.",
            {"ranks": [rank, rank + 1], "share_in_other_training_data": share}, severity=ERROR,
        )  # fmt: skip
        return
    yield Seen(
        "random_split drew from the process-wide generator. Processes with different seeds would split "
        "differently, and then validation examples of one are training examples of another; so would two runs "
        "with other seeds.",
        {},
    )


def _splits_by_rank(examination: Examination, subset: object) -> tuple[int, float] | None:
    """Run the function that split the data as two ranks; return the first and which share went over, if any did."""
    splitter = splitter_of(subset)
    if splitter is None or (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    made: list[list[list[int]]] = []

    def go() -> None:
        state = torch.get_rng_state()
        for rank in (splitter.rank, splitter.rank + 1):
            torch.set_rng_state(state)
            made.append(splitter.indices(rank))

    examination.run(go, 0.1)
    if len(made) < 2 or len(made[0]) != len(made[1]) or len(made[0]) < 2:
        return None
    held_back, training = set(made[0][1]), set(made[1][0])
    share = len(held_back & training) / max(1, len(held_back))
    return (splitter.rank, share) if share > 0 else None


@rule(
    "data.validation-augmented", WARNING, "04_data",
    title="The validation data are augmented.",
    looks="two readings of one validation example under different random numbers, where training and validation are "
    "subsets of one data set object.",
    quiet="a validation data set of its own may be random on purpose.",
    fix="train, val = Subset(Images(augment=True), train_ids), Subset(Images(augment=False), val_ids)",
)  # fmt: skip
def validation_augmented(examination: Examination) -> Iterator[Seen]:
    if examination.data.val_random:
        yield Seen(
            "Validation examples are random: training and validation share one data set object, and with it its "
            "random transform.",
            {"readings": 2},
        )


@rule(
    "data.validation-scaled-differently", WARNING, "04_data",
    title="Training and validation inputs are scaled differently.",
    looks="mean and spread of the inputs of both loaders.",
    quiet="differences below five standard deviations.",
    fix="val = (val - train_mean) / train_std  # the same numbers for both",
)  # fmt: skip
def validation_scaled(examination: Examination) -> Iterator[Seen]:
    facts = examination.data
    if facts.train_stats is None or facts.val_stats is None:
        return
    (mean, spread), (val_mean, val_spread) = facts.train_stats, facts.val_stats
    if spread <= 0 or val_spread <= 0 or spread != spread or val_spread != val_spread:
        return
    if abs(mean - val_mean) > 5 * max(spread, 1e-12) or not 0.1 < val_spread / spread < 10:
        yield Seen(
            f"Training inputs have mean {mean:.3g} and standard deviation {spread:.3g}, validation inputs "
            f"{val_mean:.3g} and {val_spread:.3g}.",
            {"training_mean": mean, "training_std": spread, "validation_mean": val_mean, "validation_std": val_spread},
            severity=WARNING if not 0.02 < val_spread / spread < 50 or abs(mean - val_mean) > 20 * spread else NOTE,
        )


@rule(
    "data.images-not-scaled", WARNING, "04_data",
    title="Images reach the first layer with values up to 255.",
    looks="the values that enter the first convolution or linear layer: whole numbers from 0 to 255.",
    quiet="models that scale their inputs themselves, and features that are no images.",
    fix="x = x / 255  # or v2.ToDtype(torch.float32, scale=True)",
)  # fmt: skip
def images_not_scaled(examination: Examination) -> Iterator[Seen]:
    root, run = examination.root, examination.run_facts
    if root is None or run is None or not run.values_into:
        return
    shape = next((tuple(leaf.shape) for leaf in tensors_of(root.inputs)), ())
    is_image = (len(shape) == 4 and shape[1] in (1, 3, 4)) or (len(shape) >= 2 and shape[-1] in (784, 3072))
    name, (least, most, whole) = next(iter(run.values_into.items()))
    if is_image and whole and least >= 0 and 100 < most <= 255:
        yield Seen(
            f"Layer {name!r} gets whole numbers from {least:g} to {most:g}: the images were made floating without "
            "being scaled.",
            {"least": least, "most": most},
        )


@rule(
    "data.last-batch-of-one", ERROR, "04_data",
    title="The last batch has one example, and BatchNorm can't take it.",
    looks="the size of the last batch, and a forward pass in training mode with one example.",
    quiet="loaders that drop the last batch, and models that take one example.",
    fix="DataLoader(data, batch_size, shuffle=True, drop_last=True)",
)  # fmt: skip
def last_batch_of_one(examination: Examination) -> Iterator[Seen]:
    forwards, batches = examination.forwards, examination.batches
    if (
        forwards is None
        or not _yields_one(examination)
        or "more than 1 value per channel" not in forwards.train_error_of_one
    ):
        return
    model = examination.model
    if model is not None and not model.training and examination.training is None:
        return
    yield Seen(
        "The loader ends with a batch of one example, and in training mode the model fails on it: "
        f"{forwards.train_error_of_one}.",
        {"batches": len(batches.sizes), "last_batch": 1},
    )


def _yields_one(examination: Examination) -> bool:
    """Tell whether a loader yields a batch of one beside larger ones, seen or by arithmetic."""
    sizes = examination.batches.sizes
    if 1 in sizes and max(sizes) > 1:
        return True
    return any(_ends_with_one(loader) for loader in (examination.parts.loader, examination.parts.get("val_loader")))


def _ends_with_one(loader: object) -> bool:
    if isinstance(loader, list) and len(loader) > 1:
        return batch_size(loader[-1]) == 1 and batch_size(loader[0]) != 1
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset) or loader.drop_last:
        return False
    try:
        return (loader.batch_size or 0) > 1 and len(loader.sampler) % loader.batch_size == 1
    except TypeError:
        return False


@rule(
    "data.input-requires-grad", NOTE, "02_autograd",
    title="The inputs require gradients.",
    looks="the tensors of the first batch.",
    quiet="attacks and penalties set it on copies, in the step.",
    fix="x = x.detach()  # in the data set",
)  # fmt: skip
def input_requires_grad(examination: Examination) -> Iterator[Seen]:
    loader = examination.parts.loader
    first = loader[0] if isinstance(loader, (list, tuple)) and loader else None
    names = [name for name, leaf in named_leaves(first) if leaf.requires_grad] if first is not None else []
    if names:
        yield Seen(
            f"{', '.join(names)} requires gradients: each step computes and keeps gradients for the data.",
            {"leaves": names},
        )


@rule(
    "data.one-shot-loader", NOTE, "04_data",
    title="The loader can be gone through only once.",
    looks="whether the loader is its own iterator.",
    quiet="streams that are used for one long epoch.",
    fix="loader = DataLoader(...)  # or a list, or a class with __iter__: not the generator itself",
)  # fmt: skip
def one_shot(examination: Examination) -> Iterator[Seen]:
    if examination.batches.is_one_shot:
        yield Seen("The loader is an iterator: a second epoch over it has no batches.", {})


@rule(
    "data.too-many-workers", NOTE, "04_data",
    title="A loader with many workers for data in memory.",
    looks="the number of workers and the number of cores.",
    quiet="no more workers than cores.",
    fix="DataLoader(data, batch_size, num_workers=0)  # measure before adding workers",
)  # fmt: skip
def many_workers(examination: Examination) -> Iterator[Seen]:
    from course_utils.doctor.running import cores

    if examination.data.workers > cores():
        yield Seen(
            f"The loader has {examination.data.workers} workers on {cores()} cores.",
            {"workers": examination.data.workers, "cores": cores()},
        )


@rule(
    "data.channels-scrambled", ERROR, "01_tensors",
    title="Images with channels last got a channels-first shape without moving their values.",
    looks="the values that enter the first convolution beside the batch's, and a data set's first example beside what "
    "it stores: the same order of values under another shape.",
    quiet="permute and movedim, images that were stored with channels first, one channel, images whose channels are "
    "equal enough that nothing can be told.",
    fix="x = x.permute(0, 3, 1, 2)  # view and reshape keep the order of the values",
)  # fmt: skip
def channels_scrambled(examination: Examination) -> Iterator[Seen]:
    found = examination.scrambled
    if found is not None:
        yield Seen(
            f"{found.where} gets images of shape {found.after} that hold the values of {found.before} images in "
            "unchanged order: view or reshape, where the axes should be moved. Each channel is a mixture of all.",
            {
                "shape_before": list(found.before), "shape_after": list(found.after),
                "likeness_to_moved_axes": found.moved, "where": found.where,
            },
        )  # fmt: skip
