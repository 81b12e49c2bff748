"""Checks of lesson 04 about files, batches and sequences."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from PIL import Image

from course_utils.datasets import write_image_folder
from course_utils.exercises.compare import describe, has_dtype, has_shape, is_close, is_equal, is_true, is_unchanged
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.verdicts import Check


def check_list_images(list_images: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise data.list-images: files of a class folder tree with labels, in a fixed order."""
    with tempfile.TemporaryDirectory(prefix="lesson04-") as place:
        root = Path(place)
        for name in ("wolf", "ant", "Yak"):
            (root / name).mkdir()
        for name in ("wolf/b.png", "wolf/a.PNG", "ant/z.jpg", "ant/notes.txt", "ant/.hidden.png", "Yak/m.jpeg"):
            (root / name).touch()
        (root / "README.png").touch()  # an image beside the class folders
        answer = list_images(root)
        want = [("Yak/m.jpeg", 0), ("ant/z.jpg", 1), ("wolf/a.PNG", 2), ("wolf/b.png", 2)]
        yield is_true(
            "returns a list of (path, label)",
            type(answer) is list and all(type(item) in (tuple, list) and len(item) == 2 for item in answer),
            detail=f"got {describe(answer)}",
            hint="Return a list, and in it a pair for each image.",
        )
        pairs = [(str(p.relative_to(root) if isinstance(p, Path) else p), k) for p, k in answer]
        pairs = [(p.replace("\\", "/"), k) for p, k in pairs]
        names = [p for p, _ in pairs]
        yield is_true("leaves out other files", "ant/notes.txt" not in names, hint="notes.txt is no image.")
        yield is_true(
            "leaves out hidden files", "ant/.hidden.png" not in names, hint="Names that start with a dot are hidden."
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
            hint="sorted(names) puts capital letters first: Yak, ant, wolf. Count from 0, with plain int.",
        )
        yield is_equal(
            "is sorted: by class, then by name", names, [p for p, _ in want], hint="The disk promises no order: sort."
        )


def check_read(read: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise data.read: a grey image as a tensor, or an error that names the file."""
    with tempfile.TemporaryDirectory(prefix="lesson04-") as place:
        height, width = inputs.sizes(2, 5, 12)
        image = inputs.randint(0, 256, 1, 1, height, width, dtype=torch.uint8)
        good = write_image_folder(place, image, [3]) / "3" / "0000.png"
        answer = read(good)
        yield has_shape("has shape (1, H, W)", answer, (1, height, width), hint="One channel, then height, then width.")
        yield has_dtype("stays uint8", answer, torch.uint8, hint="Four times smaller than float32: convert later.")
        yield is_true(
            "holds the pixels of the file",
            torch.equal(answer, image[0]),
            hint="np.array(image) has the rows first: (H, W). Don't scale.",
        )
        colour = Path(place) / "3" / "colour.png"
        Image.new("RGB", (width, height), (0, 200, 0)).save(colour)
        yield has_shape("makes a colour image grey", read(colour), (1, height, width), hint='image.convert("L")')
        for name, content in (
            ("cut.png", good.read_bytes()[: good.stat().st_size // 2]),
            ("text.png", b"not an image"),
        ):
            bad = Path(place) / "3" / name
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
    lengths = inputs.sizes(3, 1, 7)
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
        mistakes=[(front, "The zeros came first. Put them at the end.")],
    )
    yield has_shape("lengths has shape (N,)", sizes, (3,), hint="A tensor with one length for each sequence.")
    yield is_equal("lengths are the true ones, int64", sizes, torch.tensor(lengths), hint="In the order of the batch.")
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
    yield is_close(
        "what stands in the padding doesn't count",
        masked_mean(torch.where(mask[..., None], padded, 99.0), lengths),
        want,
        hint="The padding isn't always 0: a layer with a bias has changed it. Use a mask.",
    )
    yield is_close(
        "not even nan in the padding",
        masked_mean(torch.where(mask[..., None], padded, float("nan")), lengths),
        want,
        hint="0 * nan is nan. Choose with torch.where or masked_fill instead of multiplying.",
    )
