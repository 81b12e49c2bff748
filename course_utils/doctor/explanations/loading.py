"""What a data set, a sampler or a collate function raises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset, Subset

from course_utils.doctor.explain import Case, Explanation, explains
from course_utils.doctor.running import attempt
from course_utils.doctor.scene import kind_text

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination

LOOKED_AT = 2000  # examples at most, in search of the one that fails


def _is_loader(case: Case) -> bool:
    return case.failure is case.examination.batches.failure or case.failure.text == getattr(
        case.examination.batches.failure, "text", None
    )


def failing_example(examination: Examination) -> tuple[int | None, int, list[Any]]:
    """Return the index of the example that can't be read (or None), how many there are, and the batch's examples."""
    loader = examination.parts.loader
    if (
        not isinstance(loader, DataLoader)
        or isinstance(loader.dataset, IterableDataset)
        or loader.batch_sampler is None
    ):
        return None, 0, []
    dataset: Any = loader.dataset
    examples: list[Any] = []
    found: list[int | None] = [None]
    failed_at = max(0, examination.batches.failed_at)

    def go() -> None:
        looked = 0
        for number, indices in enumerate(loader.batch_sampler):
            examples.clear()
            for index in indices:
                looked += 1
                found[0] = index
                examples.append(dataset[index])
            found[0] = None
            if number == failed_at or looked > LOOKED_AT:
                return

    outcome = examination.run(go, 0.1)
    return (found[0] if outcome.failure is not None else None), _length(dataset), examples


def _length(dataset: Any) -> int:
    outcome = attempt(lambda: len(dataset), 1.0)
    return outcome.value if outcome.is_done else 0


def _kinds(examples: list[Any]) -> str:
    """Return what the first example is, and the first that is something else."""
    texts = [kind_text(example) for example in examples]
    other = next((text for text in texts[1:] if text != texts[0]), None)
    if other is None:
        return texts[0] if texts else ""
    return f"example 0 is {texts[0]}, example {texts.index(other)} is {other}"


def _parts_that_differ(examples: list[Any]) -> tuple[str, list[list[int]]]:
    """Return which part of the examples has shapes that differ, and these shapes."""
    rows = [example if isinstance(example, (tuple, list)) else [example] for example in examples]
    if rows and all(isinstance(row, dict) for row in examples):
        rows = [list(example.values()) for example in examples]
    for place in range(min(map(len, rows), default=0)):
        shapes = [list(getattr(row[place], "shape", ())) or _len(row[place]) for row in rows]
        if any(shape != shapes[0] for shape in shapes):
            name = f"part {place}" if isinstance(examples[0], (tuple, list)) else "the example"
            if isinstance(examples[0], dict):
                name = repr(list(examples[0])[place])
            return name, shapes
    return "", []


def _len(value: Any) -> list[int]:
    return [len(value)] if isinstance(value, (list, tuple)) else []


@explains(r"stack expects each tensor to be equal size[^\n]*|each element in list of batch should be of equal size|"
          r"Trying to resize storage that is not resizable|expected Tensor as element")  # fmt: skip
def unequal(case: Case) -> Explanation | None:
    if case.scene.operands:
        return None  # the reader's own torch.stack
    _, _, examples = failing_example(case.examination)
    name, shapes = _parts_that_differ(examples)
    if "expected Tensor as element" in case.text:
        return Explanation(
            "mixed-kinds", f"Examples of different kinds can't be put into one batch: {_kinds(examples)}.",
            "return torch.as_tensor(value)  # one kind for every example", {},
        )  # fmt: skip
    message = "Examples of different sizes can't be stacked into a batch"
    message += f": {name} has shapes {', '.join(str(tuple(s)) for s in _distinct(shapes)[:4])}." if shapes else \
        f": {case.first_line}."  # fmt: skip
    is_image = bool(shapes) and len(shapes[0]) >= 3
    return Explanation(
        "unequal-sizes", message,
        "v2.Resize((height, width), antialias=True)  # in the data set" if is_image else
        "DataLoader(…, collate_fn=…)  # pad_sequence([x for x, _ in items], batch_first=True)",
        {"shapes": _distinct(shapes)[:8]},
    )  # fmt: skip


def _distinct(shapes: list[list[int]]) -> list[list[int]]:
    return [shape for number, shape in enumerate(shapes) if shape not in shapes[:number]]


@explains(r"default_collate: batch must contain tensors[^;]*; found (?:<class ')?([\w.]+)")
def not_collatable(case: Case) -> Explanation:
    kind = case.match[1]
    if kind == "NoneType":
        message = "The data set returns None for an example, or as a part of one: a branch of __getitem__ has no return"
        fix = "return x, y  # in every branch; leave bad examples out before the training"
    elif "Image" in kind or kind.startswith("PIL"):
        message = f"The data set returns {kind}, an image that is no tensor"
        fix = "v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])  # images to tensors"
    else:
        message = f"The data set returns {kind}, which can't be put into a batch"
        fix = "return torch.as_tensor(x), y  # tensors, arrays of numbers, numbers; or a collate_fn of your own"
    _, _, examples = failing_example(case.examination)
    given = f" (an example is {_kinds(examples[:1])})" if examples else ""
    return Explanation("not-collatable", f"{message}{given}.", fix, {"found": kind})


@explains(r"object of type 'NoneType' has no len\(\)|'NoneType' object is not (?:subscriptable|iterable)")
def an_example_is_none(case: Case) -> Explanation | None:
    if not _is_loader(case):
        return None
    _, _, examples = failing_example(case.examination)
    if not any(example is None for example in examples):
        return None
    place = next(number for number, example in enumerate(examples) if example is None)
    return Explanation(
        "not-collatable", f"The data set returns None for example {place} of this batch: a branch of __getitem__ has "
        "no return.",
        "return x, y  # in every branch; leave bad examples out before the training", {"found": "NoneType"},
    )  # fmt: skip


@explains(r"IndexError: |KeyError: (.*)|FileNotFoundError|UnidentifiedImageError|NotImplementedError: Subclasses")
def example_fails(case: Case) -> Explanation | None:
    """The data set itself can't give an example."""
    if not _is_loader(case):
        return None
    index, length, examples = failing_example(case.examination)
    kind = case.failure.kind
    if index is None:
        if kind != "KeyError" or not examples:
            return None
        return Explanation(
            "different-keys", f"Examples of one batch have different keys: {_kinds(examples)}.",
            "return the same keys for every example", {"key": case.text},
        )  # fmt: skip
    evidence = {"index": index, "length": length}
    dataset = case.examination.parts.loader.dataset
    if kind == "IndexError" and isinstance(dataset, Subset):
        largest, stored = max(map(int, dataset.indices)), _length(dataset.dataset)
        return Explanation(
            "example-index", f"A Subset asks for example {dataset.indices[index]}, and its data set has {stored}: the "
            "indices were made for another one.",
            "indices = torch.randperm(len(dataset)).tolist()", evidence | {"largest_index": largest, "stored": stored},
        )  # fmt: skip
    if kind == "IndexError":
        return Explanation(
            "example-index", f"dataset[{index}] fails{case.at} ({case.first_line}), and the data set says that it has "
            f"{length} examples: __len__ and what is stored do not agree.",
            "return len(self.labels)  # __len__: the number of what __getitem__ can reach", evidence,
        )  # fmt: skip
    if kind == "KeyError":
        return Explanation(
            "example-key", f"dataset[{index}] looks up {case.text}{case.at}, and there is no such entry"
            + (": a Subset or a filtered table keeps the old numbers." if case.text.strip("'").isdigit() else "."),
            "self.table.iloc[index]  # by place, or reset_index(drop=True) after filtering", evidence,
        )  # fmt: skip
    return Explanation(
        "example-unreadable", f"dataset[{index}] can't be read{case.at}: {kind}: {case.first_line}.",
        "look at this example alone; leave out what can't be read before the training", evidence,
    )  # fmt: skip


@explains(r"KeyError: ('?)(?P<key>[^\n]*?)\1$")
def missing_key(case: Case) -> Explanation:
    batch = case.batch
    keys = sorted(map(str, batch)) if isinstance(batch, dict) else []
    return Explanation(
        "missing-key", f"There is no key {case.text.strip(chr(39))!r}{case.at}."
        + (f" The batch has {', '.join(keys)}." if keys else "")
        + ("" if keys else case.variables()),
        "use a key that is there", {"key": case.text.strip("'"), "batch_keys": keys},
    )  # fmt: skip


@explains(r"lengths` array must be sorted|Length of all samples has to be greater|len\(lengths\)|lengths.*should be a "
          r"1D CPU|'lengths' argument")  # fmt: skip
def packing(case: Case) -> Explanation:
    text = case.text
    message = f"pack_padded_sequence can't take these lengths{case.at}: {case.first_line}."
    fix = "pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)"
    if "greater than 0" in text:
        fix = "leave out empty sequences, or lengths.clamp(min=1)"
    elif "CPU" in text:
        fix = "pack_padded_sequence(x, lengths.cpu(), …)"
    elif "batch_size" in text:
        fix = "pack_padded_sequence(x, lengths, batch_first=True, …)  # for (N, T, F)"
    return Explanation("packing", message, fix, case.shapes)


@explains(r"ValueError: (?:too many|not enough) values to unpack")
def unpacking(case: Case) -> Explanation:
    batch = kind_text(case.batch) if case.batch is not None else ""
    return Explanation(
        "unpacking", f"{case.first_line[0].upper()}{case.first_line[1:]}{case.at}."
        + (f" A batch is {batch}." if batch else "") + case.variables("batch"),
        "x, y = batch  # as many names as there are parts; batch[\"x\"] for a dict", {"batch": batch},
    )  # fmt: skip
