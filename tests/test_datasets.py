"""Datasets of lesson 04: fixed order, errors that name the file, shares without gaps."""

from __future__ import annotations

import pickle
import time

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, Subset, TensorDataset, WeightedRandomSampler

from course_utils.data import Batches
from course_utils.datasets import (
    Costly,
    Counting,
    ImageFolder,
    Numbers,
    Rows,
    Sequences,
    mask_of,
    pad,
    read_image,
    shard,
    write_image_folder,
)
from course_utils.errors import DataError, UsageError
from course_utils.workers import acting_as_worker

IMAGES = torch.arange(4 * 5 * 6, dtype=torch.uint8).view(4, 1, 5, 6)


def test_folder_gives_back_what_was_written(tmp_path):
    folder = ImageFolder(write_image_folder(tmp_path, IMAGES, [7, 2, 7, 2]))
    assert folder.classes == ["2", "7"]
    assert [label for _, label in folder] == [0, 0, 1, 1]
    assert torch.equal(torch.stack([image for image, _ in folder]), IMAGES[[1, 3, 0, 2]])


def test_other_and_hidden_files_and_empty_classes_are_left_out(tmp_path):
    write_image_folder(tmp_path, IMAGES, [7, 2, 7, 2])
    for name in ("2/Thumbs.db", "2/.a.png", "top.png"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "1").mkdir()
    (tmp_path / ".cache").mkdir()
    folder = ImageFolder(tmp_path)
    assert len(folder) == 4
    assert folder.classes == ["2", "7"]


def test_transform_is_called_at_each_reading(tmp_path):
    calls = []
    folder = ImageFolder(write_image_folder(tmp_path, IMAGES, [0] * 4), transform=calls.append)
    assert folder[0] == (None, 0)
    folder[0]
    assert len(calls) == 2


def test_no_image_is_an_error(tmp_path):
    with pytest.raises(DataError, match="no image in this folder"):
        ImageFolder(tmp_path)


@pytest.mark.parametrize("keep", [0, 10, 40, -30])
def test_corrupt_file_is_named(tmp_path, keep):
    path = write_image_folder(tmp_path, IMAGES, [3] * 4) / "3" / "0002.png"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"3/0002\.png"):
        read_image(path)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.png"):
        read_image(tmp_path / "gone.png")


def test_shares_are_disjoint_and_whole():
    assert list(Numbers(7)) == list(range(7))
    shares = []
    for number in range(3):
        with acting_as_worker(number, 3):
            shares.append(list(Numbers(7)))
            assert list(Numbers(7, sharded=False)) == list(range(7))
    assert shares == [[0, 3, 6], [1, 4], [2, 5]]
    assert list(shard(iter("abc"))) == ["a", "b", "c"]


def test_pad_and_mask():
    padded, lengths = pad([Sequences([2, 4], 3)[0], Sequences([2, 4], 3)[1]])
    assert padded.shape == (2, 4, 3)
    assert padded[:, :, 0].tolist() == [[1, 2, 0, 0], [1, 2, 3, 4]]
    assert mask_of(lengths).tolist() == [[True, True, False, False], [True] * 4]
    assert mask_of(lengths, 5).shape == (2, 5)
    with pytest.raises(UsageError, match="empty batch"):
        pad([])


def test_costly_items_and_counting():
    x, label = Costly(20, 0.1)[13]
    assert x.shape == (64,)
    assert label == 3
    assert Costly(2, 0.1, waiting=True)[1][1] == 1
    uneven = Costly(8, 2.0, waiting=True, every=4)
    started = time.perf_counter()
    uneven[0], uneven[4]
    assert time.perf_counter() - started >= 0.016  # each as much as four items
    assert all(uneven[i][1] == i for i in range(8))
    counting = Counting(3)
    assert [counting[0], counting[2]] == [0, 2]
    assert counting.read == 2
    assert len(counting) == 3


def test_everything_can_be_pickled(tmp_path):
    for dataset in (
        Costly(2),
        Counting(2),
        Numbers(2),
        Sequences([1]),
        ImageFolder(write_image_folder(tmp_path, IMAGES, [0] * 4)),
    ):
        pickle.loads(pickle.dumps(dataset))


# --- whole batches at once

X, Y = torch.randn(23, 1, 3, 2, generator=torch.Generator().manual_seed(0)), torch.arange(23)
LOADERS = {
    "in order": lambda data: DataLoader(data, 5),
    "shuffled": lambda data: DataLoader(data, 5, shuffle=True, generator=torch.Generator().manual_seed(1)),
    "without the short batch": lambda data: DataLoader(data, 5, drop_last=True),
    "a part": lambda data: DataLoader(Subset(data, range(20, 3, -2)), 4),
    "drawn with weights": lambda data: DataLoader(
        data, 6, sampler=WeightedRandomSampler(range(23), 12, generator=torch.Generator().manual_seed(2))
    ),
    "one by one": lambda data: DataLoader(data, None),
    "from the end": lambda data: DataLoader(data, batch_sampler=[[-1, 0], [-23, 22]]),
    "a collate function of one's own": lambda data: DataLoader(
        data,
        4,
        collate_fn=lambda examples: [torch.stack([x for x, _ in examples]), torch.stack([y for _, y in examples])],
    ),
    "a collate function that leaves some out": lambda data: DataLoader(
        data, 4, collate_fn=lambda examples: torch.utils.data.default_collate([e for e in examples if e[1] % 2])
    ),
    "a collate function that looks at a few": lambda data: DataLoader(
        data, 4, collate_fn=lambda examples: torch.utils.data.default_collate(examples[1:])
    ),
}


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS.keys())
def test_rows_come_in_the_same_batches_as_from_pytorchs_dataset(make):
    expected, got = list(make(TensorDataset(X, Y))), list(make(Rows(X, Y)))
    assert len(got) == len(expected) > 1
    for theirs, ours in zip(expected, got, strict=True):
        assert type(theirs) is type(ours)
        for a, b in zip(theirs, ours, strict=True):
            assert torch.equal(a, b)
            assert (a.dtype, a.stride()) == (b.dtype, b.stride())


def test_a_batch_of_rows_is_a_copy():
    rows = Rows(X.clone(), Y.clone())
    for x, _ in DataLoader(rows, 8):
        x.zero_()
    assert torch.equal(rows.tensors[0], X)


def test_an_index_out_of_range_is_refused_as_by_pytorchs_dataset():
    with pytest.raises(IndexError, match="23"):
        Rows(X, Y).__getitems__([0, 23])


def test_rows_in_a_worker_give_the_same_batches():
    got = list(DataLoader(Rows(X, Y), 9, num_workers=1, multiprocessing_context="spawn"))
    assert [y.tolist() for _, y in got] == [part.tolist() for part in Y.split(9)]


def test_a_random_sampler_of_its_own_and_batches_agree_on_the_order():
    sampler = RandomSampler(range(23), generator=torch.Generator().manual_seed(3))
    loaded = DataLoader(Rows(X, Y), 5, sampler=sampler)
    ours = Batches(X, Y, 5, torch.Generator().manual_seed(3))
    assert [y.tolist() for _, y in loaded] == [y.tolist() for _, y in ours]
