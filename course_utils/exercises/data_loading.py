"""Checks of lesson 04 about files, batches and sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from course_utils.datasets import write_image_folder
from course_utils.exercises.compare import describe, has_dtype, has_shape, is_close, is_equal, is_true, is_unchanged
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.verdicts import Check
from course_utils.scratch import scratch_folder


def check_list_images(list_images: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise data.list-images: files of a class folder tree with labels, in a fixed order."""
    with scratch_folder("answer") as root:
        for name in ("wolf", "ant", "Yak", ".ipynb_checkpoints"):
            (root / name).mkdir()
        for name in ("wolf/b.png", "wolf/a.PNG", "ant/z.jpg", "ant/notes.txt", "ant/.hidden.png", "Yak/m.jpeg"):
            (root / name).touch()
        (root / ".ipynb_checkpoints" / "b.png").touch()
        (root / "README.png").touch()  # an image beside the class folders
        answer = list_images(root)
        want = [("Yak/m.jpeg", 0), ("ant/z.jpg", 1), ("wolf/a.PNG", 2), ("wolf/b.png", 2)]
        yield is_true(
            "returns a list of (path, label)",
            type(answer) in (list, tuple) and all(type(item) in (tuple, list) and len(item) == 2 for item in answer),
            detail=f"got {describe(answer)}",
            hint="Return a list, and in it a pair for each image.",
        )
        yield is_true(
            "each path is a Path or text, each label a number",
            all((isinstance(p, Path) or type(p) is str) and _is_whole(k) for p, k in answer),
            detail=f"the first pair is {describe(answer[0])}" if answer else "",
            hint="(path, label): the file first, then the number of its class.",
        )
        pairs = [(_below(root, p), int(k)) for p, k in answer]
        names = [p for p, _ in pairs]
        yield is_true(
            "each path leads to the file from root",
            all("/" in name or name == "README.png" for name in names),
            detail=f"got {[str(p) for p, _ in answer][:3]}",
            hint="A name alone doesn't say in which folder. Keep the whole path, or that below root.",
        )
        yield is_true("leaves out other files", "ant/notes.txt" not in names, hint="notes.txt is no image.")
        yield is_true(
            "leaves out hidden files", "ant/.hidden.png" not in names, hint="Names that start with a dot are hidden."
        )
        yield is_true(
            "leaves out hidden folders",
            ".ipynb_checkpoints/b.png" not in names,
            hint="A folder whose name starts with a dot is no class: Jupyter makes .ipynb_checkpoints.",
        )
        yield is_true("looks in class folders only", "README.png" not in names, hint="README.png has no class.")
        yield is_true("endings in capital letters count", "wolf/a.PNG" in names, hint="Compare path.suffix.lower().")
        yield is_true(
            "finds every image",
            sorted(names) == sorted(p for p, _ in want),
            detail=f"got {sorted(names)}",
            hint="Images end in .png, .jpg or .jpeg.",
        )
        yield is_equal(
            "numbers the classes by their sorted names",
            dict(pairs),
            dict(want),
            hint="sorted(names) puts capital letters first: Yak, ant, wolf. Count from 0.",
            mistakes=[
                (
                    {name: k + 1 for name, k in want},
                    "A hidden folder took number 0, or you count from 1: leave it out before you number.",
                )
            ],
        )
        yield is_equal(
            "is sorted: by class, then by name", names, [p for p, _ in want], hint="The disk promises no order: sort."
        )


def _is_whole(value: object) -> bool:
    return type(value) is int or isinstance(value, np.integer)


def _below(root: Path, path: str | Path) -> str:
    """Return a path relative to root, with forward slashes; one that lies elsewhere as it is."""
    path = Path(path)
    for place in (root, root.resolve()):
        if path.is_relative_to(place):
            path = path.relative_to(place)
    return path.as_posix()


def check_read(read: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise data.read: a grey image as a tensor, or an error that names the file."""
    with scratch_folder("answer") as place:
        height, width = inputs.sizes(2, 5, 12)
        image = inputs.randint(0, 256, 1, 1, height, width, dtype=torch.uint8)
        good = write_image_folder(place, image, [3]) / "3" / "0000.png"
        answer = read(good)
        yield is_true(
            "returns a tensor",
            type(answer) is torch.Tensor,
            detail=f"got {describe(answer)}",
            hint="torch.from_numpy(np.array(image)) makes a tensor of an image; [None] adds the channel.",
        )
        yield has_shape("has shape (1, H, W)", answer, (1, height, width), hint="One channel, then height, then width.")
        yield has_dtype("stays uint8", answer, torch.uint8, hint="Four times smaller than float32: convert later.")
        yield is_true(
            "holds the pixels of the file",
            torch.equal(answer, image[0]),
            hint="np.array(image) has the rows first: (H, W). Don't scale.",
        )
        colour = place / "3" / "colour.png"
        Image.new("RGB", (width, height), (0, 200, 0)).save(colour)
        yield has_shape("makes a colour image grey", read(colour), (1, height, width), hint='image.convert("L")')
        for name, content in (
            ("cut.png", good.read_bytes()[: good.stat().st_size // 2]),
            ("text.png", b"not an image"),
        ):
            bad = place / "3" / name
            bad.write_bytes(content)
            message = None
            try:
                read(bad)
            except Exception as error:
                message = str(error)
                kind = type(error)
            if message is None:
                yield Check("a broken file is an error", False, f"{name} was read", "Don't hide it: raise.")
            else:
                yield is_true(
                    f"the error for {name} names the file",
                    name in message,
                    detail=f"{kind.__name__}: {message[:70]}",
                    hint="Catch what decoding raises around *all* of it, and raise a ValueError with str(path) in it.",
                )
                yield is_true(
                    "the error is a ValueError", issubclass(kind, ValueError), detail=f"got {kind.__name__}",
                    hint="raise ValueError(...) from error",
                )  # fmt: skip


def check_pad(pad_batch: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise data.pad: a collate function for sequences of different lengths."""
    low, mid, high = sorted(inputs.sizes(3, 1, 7))
    lengths = inputs.choice([[mid, high, low], [mid, low, high]])  # in no order: who sorts changes it
    features = inputs.size(8, 10)
    batch = [inputs.randn(t, features) for t in lengths]
    before = [item.clone() for item in batch]
    answer = pad_batch(batch)
    yield is_true(
        "returns two things",
        type(answer) in (tuple, list) and len(answer) == 2,
        detail=f"got {describe(answer)}",
        hint="return padded, lengths",
    )
    padded, sizes = answer
    want = torch.zeros(3, max(lengths), features)
    for row, item in zip(want, batch, strict=True):
        row[: len(item)] = item
    front = torch.stack([torch.cat([row.new_zeros(max(lengths) - t, features), row[:t]]) for row, t in
                         zip(want, lengths, strict=True)])  # fmt: skip
    by_length = torch.tensor(lengths).argsort()
    yield has_shape(
        "padded has shape (N, T, D)",
        padded,
        tuple(want.shape),
        hint="N first, as long as the longest of the batch. pad_sequence needs batch_first=True.",
    )
    yield is_close(
        "zeros fill up the end",
        padded,
        want,
        hint="Each sequence stands at the start of its row; zeros follow.",
        mistakes=[
            (front, "The zeros came first. Put them at the end."),
            (want[by_length], "The order of the batch has changed. Who sorts must sort the labels too: don't."),
            (want[by_length.flip(0)], "The order of the batch has changed. Who sorts must sort the labels too: don't."),
        ],
    )
    yield has_shape("lengths has shape (N,)", sizes, (3,), hint="A tensor with one length for each sequence.")
    yield has_dtype("lengths are int64", sizes, torch.int64, hint="Lengths are counts: whole numbers, int64.")
    yield is_equal(
        "lengths are the true ones",
        sizes,
        torch.tensor(lengths),
        hint="len(sequence) for each, in the order of the batch.",
        mistakes=[(torch.tensor(lengths) * features, "That counts all numbers. A length counts steps: len(sequence).")],
    )
    for item, old in zip(batch, before, strict=True):
        yield is_unchanged("the sequences stay as they were", item, old, hint="Write into a new tensor.")


def check_masked_mean(masked_mean: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise data.masked-mean: the mean over real steps, whatever stands in the padding."""
    lengths = torch.tensor([*inputs.sizes(2, 2, 5), 7])
    n, width, features = 3, 7, inputs.size(4, 6)
    padded = inputs.randn(n, width, features) + 3
    mask = torch.arange(width) < lengths[:, None]
    zeroed = padded * mask[..., None]
    want = zeroed.sum(1) / lengths[:, None]
    mistakes = [
        (zeroed.mean(1), "You divided by the width of the batch. Divide by each sequence's own length."),
        (zeroed.sum((0, 1)) / lengths.sum(), "One mean for the whole batch: keep the sequences apart."),
    ]
    answer = masked_mean(zeroed.clone(), lengths)
    yield has_shape(
        "one mean for each sequence and feature", answer, (n, features), hint="(N, T, D) in, (N, D) out: over axis 1."
    )
    yield is_close(
        "is the mean over the real steps",
        answer,
        want,
        hint="Sum of the real steps over the length.",
        mistakes=mistakes,
    )
    filled = torch.where(mask[..., None], padded, 99.0)
    kept = filled.clone()
    one_more = torch.arange(width) <= lengths[:, None]
    yield is_close(
        "what stands in the padding doesn't count",
        masked_mean(filled, lengths),
        want,
        hint="The padding isn't always 0: a layer with a bias has changed it. Use a mask.",
        mistakes=[
            (
                (filled * one_more[..., None]).sum(1) / lengths[:, None],
                "One step too many: steps count from 0, so those below the length are real. < instead of <=.",
            )
        ],
    )
    yield is_unchanged("the padded batch stays as it was", filled, kept, hint="Work on a copy: the caller's is needed.")
    yield is_close(
        "not even nan in the padding",
        masked_mean(torch.where(mask[..., None], padded, float("nan")), lengths),
        want,
        hint="0 * nan is nan. Choose with torch.where or masked_fill instead of multiplying.",
    )
