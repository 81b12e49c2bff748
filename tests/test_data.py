"""The digits are the right ones, quick to load, hard to break; batches and augmentation keep their promises."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from course_utils import data
from course_utils.data import (
    DIGITS8,
    DIGITS28,
    Batches,
    Digits,
    affine_augment,
    data_status,
    deal_by_content,
    derive,
    load_digits8,
    load_digits28,
    load_full_mnist,
)
from course_utils.errors import DataError, ShapeError, UsageError
from course_utils.paths import DATA, ROOT
from course_utils.seeding import stream

FILES = pytest.mark.parametrize("file", [DIGITS28, DIGITS8], ids=lambda file: file.name)


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path) -> Path:
    """An empty folder for derived data."""
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "derived"))
    return tmp_path / "derived"


# ------------------------------------------------------------------------------------------- the digits


@pytest.mark.parametrize(
    ("load", "sizes", "side", "peak"),
    [(load_digits28, (3500, 500, 1000), 28, 255), (load_digits8, (1266, 178, 353), 8, 16)],
)
def test_each_part_has_its_size_types_and_range(load, sizes, side, peak):
    for part, size in zip(load(), sizes, strict=True):
        assert len(part) == size
        assert part.images.shape == (size, 1, side, side)
        assert part.labels.shape == (size,)
        assert (part.images.dtype, part.labels.dtype) == (torch.uint8, torch.int64)
        assert part.images.is_contiguous()
        assert (int(part.images.min()), int(part.images.max())) == (0, peak)
        assert part.labels.unique().tolist() == list(range(10))


def test_every_class_has_the_same_share_of_each_part():
    assert [part.labels.bincount().tolist() for part in load_digits28()] == [[350] * 10, [50] * 10, [100] * 10]
    parts = torch.stack([part.labels.bincount() for part in load_digits8()])
    expected = torch.tensor([[0.7], [0.1], [0.2]]) * parts.sum(0)
    assert (parts - expected).abs().max() < 3  # an incomplete last round goes to the training part first


@pytest.mark.parametrize("load", [load_digits28, load_digits8])
def test_no_image_is_in_two_parts_or_twice_in_one(load):
    images = torch.cat([part.images.flatten(1) for part in load()])
    assert len(images.unique(dim=0)) == len(images)


def test_the_classes_come_mixed():
    train = load_digits28().train
    assert train.labels[:64].unique().tolist() == list(range(10))
    assert (train.labels[1:] == train.labels[:-1]).float().mean() == pytest.approx(0.1, abs=0.02)  # chance: 1 in 10


def test_labels_belong_to_their_images():
    """A nearest-mean classifier, the simplest there is, is right far more often than one time in ten."""
    train, _, test = load_digits28()
    (x, y), (test_x, test_y) = train.as_batch(), test.as_batch()
    means = torch.stack([x[y == digit].mean(0).flatten() for digit in range(10)])  # (10, 784)
    nearest = torch.cdist(test_x.flatten(1), means).argmin(1)
    assert (nearest == test_y).float().mean() > 0.75


def test_the_8x8_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    bunch = load_digits()
    expected = {
        (image.astype(np.uint8).tobytes(), label) for image, label in zip(bunch.data, bunch.target, strict=True)
    }
    got = {
        (image.numpy().tobytes(), int(label))
        for part in load_digits8()
        for image, label in zip(part.images, part.labels, strict=True)
    }
    assert got == expected


def test_two_loads_and_two_parts_share_no_memory():
    first, second = load_digits8(), load_digits8()
    first.train.images.zero_()
    assert second.train.images.any()
    assert first.test.images.any()
    assert load_digits8().train.images.any()
    storages = [tensor.untyped_storage() for part in second for tensor in (part.images, part.labels)]
    assert len({storage.data_ptr() for storage in storages}) == 6
    assert storages[0].nbytes() == second.train.images.nbytes  # saving a part does not save the others


def test_loading_prints_nothing(capfd):
    load_digits28(), load_digits28(), load_digits8()
    assert capfd.readouterr() == ("", "")


def test_a_set_of_digits_has_a_short_text():
    assert repr(load_digits28().train) == "Digits(3,500 images of 28x28)"


# -------------------------------------------------------------------------------------- tensors for a model


def test_a_batch_is_scaled_to_0_to_1_and_new():
    train = load_digits8().train
    images, labels = train.as_batch()
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert (images.min().item(), images.max().item()) == (0.0, 1.0)
    torch.testing.assert_close(images * 16, train.images.float())
    labels.zero_()
    assert train.labels.any()


@pytest.mark.parametrize("index", [slice(2, 5), torch.tensor([2, 3, 4]), torch.arange(1266).sub(3).abs() <= 1])
def test_a_batch_takes_a_slice_positions_or_a_mask(index):
    train = load_digits8().train
    images, labels = train.as_batch(index)
    assert images.shape == (3, 1, 8, 8)
    assert labels.tolist() == train.labels[2:5].tolist()


@pytest.mark.parametrize(("load", "mean", "std"), [(load_digits28, 0.1314, 0.3087), (load_digits8, 0.3051, 0.3764)])
def test_normalised_training_pixels_have_mean_0_and_variance_1(load, mean, std):
    splits = load()
    images, _ = splits.train.as_batch(normalise=True)
    assert images.mean().item() == pytest.approx(0, abs=1e-3)
    assert images.std().item() == pytest.approx(1, abs=1e-3)
    assert {(part.mean, part.std) for part in splits} == {(mean, std)}  # the training part's, for all parts


def test_a_dataset_for_a_loader_gives_the_same_numbers():
    test = load_digits8().test
    images, labels = next(iter(DataLoader(test.as_dataset(normalise=True), batch_size=5)))
    expected_images, expected_labels = test.as_batch(slice(0, 5), normalise=True)
    assert torch.equal(images, expected_images)
    assert torch.equal(labels, expected_labels)


# --------------------------------------------------------------------------------- derived bytes on disk


@FILES
def test_the_derived_bytes_are_kept_and_used(file, folder, monkeypatch):
    data._load(file)
    assert hashlib.sha256((folder / f"{file.name}.bin").read_bytes()).hexdigest() == file.derived_sha256
    assert [path.name for path in folder.iterdir()] == [f"{file.name}.bin"]  # nothing half-made is left
    monkeypatch.setattr(data, "derive", lambda file: pytest.fail("the kept bytes were not used"))
    data._load(file)


DAMAGE = {
    "one bit": lambda raw: raw[:1000] + bytes([raw[1000] ^ 1]) + raw[1001:],
    "the end is missing": lambda raw: raw[:-1],
    "something at the end": lambda raw: raw + b"\0",
    "empty": lambda raw: b"",
    "zeros": lambda raw: bytes(len(raw)),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_bytes_are_made_again(damage, folder):
    before = load_digits8()
    path = folder / "digits8.bin"
    right = path.read_bytes()
    path.write_bytes(damage(right))
    after = load_digits8()
    assert path.read_bytes() == right
    assert torch.equal(after.test.images, before.test.images)


def test_a_folder_in_the_place_of_the_file_does_no_harm(folder):
    (folder / "digits8.bin").mkdir(parents=True)
    assert len(load_digits8().train) == 1266


def test_a_place_that_can_not_be_written_is_done_without(folder, monkeypatch):
    folder.write_text("a file where the folder should be")
    assert len(load_digits8().train) == 1266

    def full_disk(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(data, "atomic_path", full_disk)
    assert len(load_digits8().train) == 1266


LOAD_AGAIN_AND_AGAIN = """
import torch
from course_utils.data import DIGITS8, derived_data, load_digits8
for _ in range(15):
    (derived_data() / "digits8.bin").unlink(missing_ok=True)
    splits = load_digits8()
    assert [len(part) for part in splits] == [1266, 178, 353], splits
print("fine")
"""


def run_python(code: str, folder: Path) -> subprocess.Popen:
    environment = os.environ | {"COURSE_DATA": str(folder), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(ROOT)
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.skipif(os.name == "nt", reason="Windows can't delete a file that another process reads, as this test does")
def test_two_processes_may_make_the_file_at_the_same_time(folder):
    processes = [run_python(LOAD_AGAIN_AND_AGAIN, folder) for _ in range(2)]
    assert [process.communicate() for process in processes] == [("fine\n", "")] * 2
    assert [path.name for path in folder.iterdir()] == ["digits8.bin"]


def test_slow_packages_are_left_alone(folder):
    code = (
        "import sys, course_utils.data as d, course_utils.models, course_utils.metrics, course_utils.config\n"
        "d.load_digits28(), d.load_digits8()\n"
        "print(*sorted({'matplotlib', 'sklearn', 'mlxtend', 'torchvision', 'pandas', 'yaml'} & sys.modules.keys()))"
    )
    assert run_python(code, folder).communicate() == ("\n", "")


# ------------------------------------------------------------------------------------ packaged files


@FILES
def test_the_derived_bytes_are_a_row_per_example(file):
    rows = np.frombuffer(derive(file), dtype=np.uint8).reshape(-1, file.side**2 + 1)
    assert len(rows) == sum(file.sizes)
    assert set(rows[:, -1]) == set(range(10))
    assert rows[:, :-1].max() == file.peak


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """A package on the path that holds a file of two digits of 2x2 pixels."""
    package = tmp_path / "packages" / "made_up_digits"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('the package was imported')")
    monkeypatch.syspath_prepend(str(package.parent))
    return package


def packaged(**changes) -> data.PackagedFile:
    return replace(DIGITS8, **({"package": "made_up_digits", "path": "digits.csv.gz"} | changes))


def test_another_file_in_the_package_is_named(package):
    (package / "digits.csv.gz").write_bytes(b"something else")
    with pytest.raises(DataError) as caught:
        derive(packaged())
    assert str(caught.value) == (
        f"The file {package / 'digits.csv.gz'} is not the one this course was written for.\n"
        f"  got:      sha256 {hashlib.sha256(b'something else').hexdigest()}\n"
        f"  expected: sha256 {DIGITS8.sha256}\n"
        "  fix:      python3 course.py setup installs the versions of the packages that the course is pinned to"
    )


def test_a_missing_file_is_named(package):
    with pytest.raises(DataError) as caught:
        derive(packaged())
    assert str(caught.value) == (
        f"The file {package / 'digits.csv.gz'} can't be read.\n"
        "  got:      No such file or directory\n"
        "  expected: the digits that the package 'made_up_digits' carries\n"
        "  fix:      python3 course.py setup"
    )


@pytest.mark.parametrize("name", ["no_such_package", "this"])  # `this` is a module: it has no folder
def test_a_missing_package_is_named(name):
    with pytest.raises(DataError) as caught:
        derive(packaged(package=name))
    assert str(caught.value) == (
        f"The package {name!r} is not installed.\n"
        "  expected: it carries the 8x8 digits\n"
        "  fix:      python3 course.py setup"
    )


def test_a_result_that_differs_is_refused_and_not_kept(folder):
    with pytest.raises(DataError, match=r"The digits made from .*digits\.csv\.gz are not the expected ones\."):
        data._load(replace(DIGITS8, derived_sha256="0" * 64))
    assert not folder.exists()


def test_the_status_names_each_set_and_what_is_wrong_with_it(monkeypatch):
    assert data_status() == [
        {"name": "digits28", "examples": 5000, "problem": ""},
        {"name": "digits8", "examples": 1797, "problem": ""},
    ]
    monkeypatch.setattr(data, "DIGITS8", replace(DIGITS8, name="other", package="no_such_package"))
    assert data_status()[1] == {
        "name": "other",
        "examples": 1797,
        "problem": "The package 'no_such_package' is not installed. python3 course.py setup",
    }


def test_the_checksums_in_the_readme_are_those_in_the_code():
    text = (DATA / "README.md").read_text(encoding="utf-8")
    for file in (DIGITS28, DIGITS8):
        assert file.sha256 in text
        assert file.derived_sha256 in text
        assert file.path in text


# ------------------------------------------------------------------------------------------ full MNIST


def fake_mnist(calls: list):
    def make(root, train, download):
        calls.append((root, train, download))
        n = 1200 if train else 100
        images = torch.arange(n * 4).remainder(251).to(torch.uint8).view(n, 2, 2)
        return SimpleNamespace(data=images, targets=torch.arange(n) % 10)

    return make


def test_the_full_set_is_asked_of_torchvision_and_split(monkeypatch, folder):
    import torchvision.datasets

    calls = []
    monkeypatch.setattr(torchvision.datasets, "MNIST", fake_mnist(calls))
    splits = load_full_mnist(download=True)
    assert calls == [(folder / "torchvision", True, True), (folder / "torchvision", False, True)]
    assert [part.images.shape for part in splits] == [(1100, 1, 2, 2), (100, 1, 2, 2), (100, 1, 2, 2)]
    assert splits.validation.labels.bincount().tolist() == [10] * 10
    load_full_mnist(folder / "elsewhere")
    assert calls[2:] == [(folder / "elsewhere", True, False), (folder / "elsewhere", False, False)]


def test_the_full_set_is_not_there_without_a_download(tmp_path):
    with pytest.raises(DataError) as caught:
        load_full_mnist(tmp_path)
    assert caught.value.what == "The full MNIST data set is not here."
    assert caught.value.got.startswith("Dataset not found")
    assert caught.value.expected == f"torchvision's files in {tmp_path}"
    assert "load_digits28(), which needs none" in caught.value.fix
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------------- dealing


@given(
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    deal=st.lists(st.integers(0, 2), min_size=1, max_size=6),
    order=st.permutations(range(60)),
)
@settings(max_examples=40)
def test_dealing_uses_every_example_once_shares_out_each_class_and_ignores_the_order(labels, deal, order):
    images = np.arange(len(labels), dtype=np.uint32)[:, None]  # all different
    labels = np.array(labels)
    parts = deal_by_content(images, labels, deal)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    for label in np.unique(labels):
        total = (labels == label).sum()
        rounds, rest = divmod(total, len(deal))
        for number, part in enumerate(parts):
            assert (labels[part] == label).sum() == rounds * deal.count(number) + deal[:rest].count(number)
    shuffled = [position for position in order if position < len(labels)]
    again = deal_by_content(images[shuffled], labels[shuffled], deal)
    assert [images[shuffled][part].tolist() for part in again] == [images[part].tolist() for part in parts]


# --------------------------------------------------------------------------------------------- batches


@given(n=st.integers(1, 40), size=st.integers(1, 50), shuffle=st.booleans(), drop_last=st.booleans())
def test_a_pass_meets_every_example_once_with_its_label(n, size, shuffle, drop_last):
    if drop_last and size > n:
        return
    x = torch.arange(n).view(n, 1)
    batches = Batches(x, x[:, 0] * 10, size, stream(0, "shuffle") if shuffle else None, drop_last)
    passes = [list(batches), list(batches)]
    for made in passes:
        assert len(made) == len(batches) == (n // size if drop_last else -(-n // size))
        assert all(torch.equal(images[:, 0] * 10, labels) for images, labels in made)
        assert [len(images) for images, _ in made[:-1]] == [size] * (len(made) - 1)
        seen = torch.cat([images[:, 0] for images, _ in made]).tolist()
        assert len(seen) == len(set(seen)) == (n - n % size if drop_last else n)
        if not shuffle:
            assert seen == list(range(len(seen)))
    if shuffle and n > 10 and not drop_last:
        assert not torch.equal(torch.cat([x for x, _ in passes[0]]), torch.cat([x for x, _ in passes[1]]))


@given(first=st.integers(0, 6))
def test_starting_in_the_middle_continues_the_same_pass(first):
    x = torch.arange(23)
    whole, rest = [Batches(x, x, 4, stream(0, "shuffle")) for _ in range(2)]
    expected = list(whole)[first:]
    got = list(rest.starting_at(first))
    assert len(got) == len(expected)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(got, expected, strict=True))
    assert torch.equal(rest.generator.get_state(), whole.generator.get_state())


def test_the_transform_sees_each_batch_that_is_made_and_no_other():
    x, sizes = torch.zeros(10, 1), []

    def keep_size(images):
        sizes.append(len(images))
        return images + 1

    batches = Batches(x, torch.zeros(10), 4, transform=keep_size)
    assert all(images.all() and not labels.any() for images, labels in batches)
    assert sizes == [4, 4, 2]
    list(batches.starting_at(2))
    assert sizes == [4, 4, 2, 2]


def test_changing_a_batch_leaves_the_data_alone():
    x = torch.zeros(4, 1)
    for images, labels in Batches(x, x, 2):
        images.add_(1), labels.add_(1)
    assert not x.any()


def test_images_and_labels_must_be_as_many():
    with pytest.raises(ShapeError) as caught:
        Batches(torch.zeros(3, 1), torch.zeros(2), 1)
    assert str(caught.value) == (
        "Images and labels differ in number.\n  got:      3 images, 2 labels\n  expected: the same first axis"
    )


@pytest.mark.parametrize(("n", "size", "drop_last"), [(3, 0, False), (3, -1, False), (3, 4, True), (0, 1, False)])
def test_batches_that_would_not_exist_are_refused(n, size, drop_last):
    with pytest.raises(UsageError) as caught:
        Batches(torch.zeros(n, 1), torch.zeros(n), size, drop_last=drop_last)
    assert caught.value.what == "There would be no batch."
    assert caught.value.got == f"{n} examples, batch_size={size}, drop_last={drop_last}"
    assert caught.value.expected.startswith("at least one example")


# ---------------------------------------------------------------------------------------- augmentation


def dot(row: int, column: int, height: int = 21, width: int = 41) -> torch.Tensor:
    images = torch.zeros(1, 1, height, width)
    images[0, 0, row, column] = 1
    return images


def centre(images: torch.Tensor) -> tuple[float, float]:
    """Return where the ink is, as (row, column)."""
    weights = images[0, 0] / images.sum()
    rows, columns = torch.meshgrid(*[torch.arange(float(size)) for size in weights.shape], indexing="ij")
    return (weights * rows).sum().item(), (weights * columns).sum().item()


@given(seed=st.integers(0, 1000))
@settings(max_examples=30)
def test_augmentation_repeats_by_seed_and_keeps_shape_type_and_range(seed):
    images = torch.rand(5, 2, 9, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    before = images.clone()
    first = affine_augment(images, stream(seed, "augment"))
    assert torch.equal(first, affine_augment(images, stream(seed, "augment")))
    assert torch.equal(images, before)
    assert (first.shape, first.dtype) == (images.shape, images.dtype)
    assert first.min() >= 0
    assert first.max() <= 1 + 1e-6


def test_no_change_changes_nothing():
    images = torch.rand(3, 1, 12, 8, generator=stream(0, "test"))
    torch.testing.assert_close(affine_augment(images, degrees=0, shift=0, scale=0), images, atol=1e-5, rtol=0)


def test_each_image_gets_its_own_draw():
    images = load_digits28().train.as_batch(slice(0, 1))[0].expand(4, 1, 28, 28)
    changed = affine_augment(images, stream(0, "augment"))
    assert len(changed.flatten(1).unique(dim=0)) == 4


@pytest.mark.parametrize("seed", range(5))
def test_a_turn_is_rigid_also_when_the_image_is_not_square(seed):
    """Without the side ratio in the matrix a wide image would be sheared, and the distance would change."""
    turned = centre(affine_augment(dot(10, 35), stream(seed, "augment"), degrees=30, shift=0, scale=0))
    distance = ((turned[0] - 10) ** 2 + (turned[1] - 20) ** 2) ** 0.5
    assert distance == pytest.approx(15, abs=0.4)
    assert abs(turned[0] - 10) <= 15 * 0.5 + 0.4  # sin 30°


@pytest.mark.parametrize("seed", range(5))
def test_a_move_is_at_most_the_given_fraction_of_the_side(seed):
    row, column = centre(affine_augment(dot(10, 20), stream(seed, "augment"), degrees=0, shift=0.1, scale=0))
    assert abs(row - 10) <= 2.1 + 1e-3
    assert abs(column - 20) <= 4.1 + 1e-3
    assert (row, column) != (10, 20)


@pytest.mark.parametrize("seed", range(5))
def test_a_zoom_keeps_the_centre_and_moves_the_rest_by_at_most_its_share(seed):
    row, column = centre(affine_augment(dot(10, 35), stream(seed, "augment"), degrees=0, shift=0, scale=0.2))
    assert row == pytest.approx(10, abs=0.1)
    assert 15 * 0.8 - 0.5 <= column - 20 <= 15 * 1.2 + 0.5


def test_without_a_generator_the_global_one_draws():
    images = torch.rand(2, 1, 8, 8)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        first = affine_augment(images)
        torch.manual_seed(3)
        assert torch.equal(affine_augment(images), first)


def test_an_empty_batch_stays_empty():
    assert affine_augment(torch.zeros(0, 1, 8, 8)).shape == (0, 1, 8, 8)


def test_a_single_image_without_a_batch_is_refused():
    with pytest.raises(ShapeError) as caught:
        affine_augment(torch.zeros(1, 28, 28))
    assert str(caught.value) == (
        "Only a batch of images can be augmented.\n  got:      (1, 28, 28)\n  expected: (N, C, H, W)"
    )


def test_whole_number_pixels_are_refused():
    digits = Digits(torch.zeros(1, 1, 8, 8, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(UsageError) as caught:
        affine_augment(digits.images)
    assert str(caught.value) == (
        "Pixels between pixels need fractions.\n"
        "  got:      torch.uint8\n"
        "  expected: floating images\n"
        "  fix:      images, labels = digits.as_batch()"
    )
