"""Exercises and clinic items of lesson 04: titles, hints, and where each check is."""

from __future__ import annotations

from course_utils.exercises.data_clinic import (
    check_clinic_baked,
    check_clinic_evaluate,
    check_clinic_init,
    check_clinic_numbers,
    check_clinic_sampler,
)
from course_utils.exercises.data_loading import check_list_images, check_masked_mean, check_pad, check_read
from course_utils.exercises.data_sampling import (
    check_leaks,
    check_seed_rng,
    check_share,
    check_step_time,
    check_weights,
)
from course_utils.exercises.registry import CLINIC, Exercise

EXERCISES = [
    Exercise(
        id="data.list-images",
        title="The same list on every machine",
        check=check_list_images,
        hints=(
            "What must not depend on the disk: the classes, their numbers, the order of the files.",
            "Path.iterdir with sorted, path.is_dir, path.suffix.lower, path.name.startswith.",
            "for k, name in enumerate(sorted(folders)): for path in sorted((root / name).iterdir()): ...",
        ),
        errors=(
            ("NotADirectoryError", "README.png lies beside the class folders: take folders only."),
            ("Not a directory", "README.png lies beside the class folders: take folders only."),
            (
                "invalid literal for int",
                "A class may be called anything. Number the sorted names: enumerate(sorted(...)).",
            ),
        ),
    ),
    Exercise(
        id="data.read",
        title="An error that names the file",
        check=check_read,
        hints=(
            "Opening reads the header. When are the pixels decoded?",
            "Put open, convert and np.array into one try. PIL raises OSError, and SyntaxError for some PNG files.",
            "except (OSError, SyntaxError) as error: raise ValueError(f'cannot read {path}') from error",
        ),
    ),
    Exercise(
        id="data.pad",
        title="A batch of different lengths",
        check=check_pad,
        hints=(
            "A tensor is a box. How long must it be for the longest of the batch?",
            "new_zeros and a loop, or torch.nn.utils.rnn.pad_sequence.",
            "pad_sequence(batch, batch_first=True), torch.tensor([len(item) for item in batch])",
        ),
        errors=(("stack expects each tensor", "stack needs equal lengths: fill up the short ones first."),),
    ),
    Exercise(
        id="data.masked-mean",
        title="A mean that skips the padding",
        check=check_masked_mean,
        hints=(
            "Which positions are real? Compare 0, 1, 2, … with each length.",
            "mask = arange(T) < lengths[:, None]. masked_fill(~mask[..., None], 0) also removes nan.",
            "padded.masked_fill(~mask[..., None], 0).sum(1) / lengths[:, None]",
        ),
        errors=(("must match the size", "The mask is (N, T), the batch (N, T, D): add an axis, mask[..., None]."),),
    ),
    Exercise(
        id="data.weights",
        title="Weights for a fair draw",
        check=check_weights,
        hints=(
            "90 of one class and 10 of another: how much must each weigh, so that both add up to the same?",
            "torch.bincount(labels) counts. Index its result with labels: one entry for each example.",
            "1 / torch.bincount(labels)[labels]",
        ),
        errors=(
            ("out of bounds", "A class number in between may not occur. torch.bincount has a place for each number."),
        ),
    ),
    Exercise(
        id="data.seed-rng",
        title="Seed what the dataset holds",
        check=check_seed_rng,
        hints=(
            "In the worker there is a copy of the dataset. How do you get at it there?",
            "get_worker_info() has dataset, and a seed that differs for each worker and each epoch.",
            "info.dataset.rng = np.random.default_rng(info.seed)",
        ),
        errors=(
            ("has no attribute 'seed'", "A np.random.Generator can't be seeded again. Put a new one in its place."),
            ("name 'dataset' is not defined", "get_worker_info().dataset is this worker's copy of the dataset."),
            ("has no attribute 'random'", "rng stays a np.random.Generator: np.random.default_rng(seed)."),
            ("must be between 0 and", "default_rng takes a seed of any size; np.random.RandomState only 32 bits."),
        ),
    ),
    Exercise(
        id="data.share",
        title="My share of the stream",
        check=check_share,
        hints=(
            "Each worker has a copy of the whole. Who am I, and how many are we?",
            "get_worker_info() is None in the main process, else it has id and num_workers.",
            "islice(items, info.id, None, info.num_workers)",
        ),
        errors=(
            ("no attribute 'id'", "get_worker_info() is None in the main process: ask before you use it."),
            ("no attribute 'num_workers'", "get_worker_info() is None in the main process: ask before you use it."),
            ("has no len", "A stream has no length: go along it with enumerate or islice."),
            ("not subscriptable", "A stream can't be indexed: go along it with enumerate or islice."),
            ("not all arguments converted", "Items may be anything, here text. Count their places: enumerate(items)."),
        ),
    ),
    Exercise(
        id="data.step-time",
        title="How long is a step?",
        check=check_step_time,
        hints=(
            "With workers, two things happen at the same time. Which one does the other wait for?",
            "A batch arrives every load / workers ms, and is consumed every compute ms.",
            "load + compute if workers == 0 else max(load / workers, compute)",
        ),
        errors=(("division by zero", "0 workers is a case of its own: the main process loads."),),
    ),
    Exercise(
        id="data.leaks",
        title="Seen before",
        check=check_leaks,
        hints=(
            "Two images are the same if all their bytes are.",
            "image.numpy().tobytes() can be looked up in a set.",
            "known = {x.numpy().tobytes() for x in train}, then keep the i whose bytes are in known",
        ),
    ),
    Exercise(
        id="data.clinic-numbers",
        title="The cat is a dog in the test",
        check=check_clinic_numbers,
        kind=CLINIC,
        unseen="It sees the numbers of the classes, never their names.",
        hints=(
            "Call it with the same names in another order.",
            "The first name that comes along gets 0. In the test, another one comes first.",
            "{name: k for k, name in enumerate(sorted(set(names)))}",
        ),
    ),
    Exercise(
        id="data.clinic-baked",
        title="Augmented once and for all",
        check=check_clinic_baked,
        kind=CLINIC,
        unseen="A data set that gives the same values each time is nothing unusual.",
        hints=(
            "How often does __init__ run, and how often __getitem__?",
            "Keep images and transform as attributes, call the transform when an item is read.",
            "def __getitem__(self, index): return self.transform(self.images[index])",
        ),
    ),
    Exercise(
        id="data.clinic-evaluate",
        title="A test without its end",
        check=check_clinic_evaluate,
        kind=CLINIC,
        finding="evaluation.drops-examples",
        hints=(
            "Count what comes out of the loader.",
            "Two arguments that are good for training are wrong for a test.",
            "DataLoader(dataset, batch_size)",
        ),
    ),
    Exercise(
        id="data.clinic-sampler",
        title="Two examples, again and again",
        check=check_clinic_sampler,
        kind=CLINIC,
        unseen="A sampler may leave out examples on purpose.",
        hints=(
            "Which indices does it draw? Print the largest.",
            "Weight i belongs to example i. How many weights must there be?",
            "WeightedRandomSampler((1 / counts)[labels], num_samples=len(labels))",
        ),
    ),
    Exercise(
        id="data.clinic-init",
        title="The same noise in every epoch",
        check=check_clinic_init,
        kind=CLINIC,
        finding="data.worker-copies",
        hints=(
            "Which seed does worker 0 set in epoch 0, and which in epoch 1?",
            "torch.initial_seed() in a worker differs for each worker, each epoch and each seed of the loader.",
            "np.random.seed(torch.initial_seed() % 2**32)",
        ),
        errors=(("must be between 0 and", "NumPy takes 32 bits: torch.initial_seed() % 2**32."),),
    ),
]
