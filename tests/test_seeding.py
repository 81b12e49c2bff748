"""Randomness repeats, stays apart by purpose, and is put back."""

from __future__ import annotations

import multiprocessing
import os
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, StackDataset, Subset

from course_utils import seeding
from course_utils.errors import UsageError
from course_utils.seeding import (
    derive,
    deterministic,
    loader_kwargs,
    preserved_rng,
    rng_state,
    seed_everything,
    seed_worker,
    seeded,
    set_rng_state,
    stream,
)
from tests.noisy_datasets import DuckNoise, GlobalNoise, OwnNoise

SEEDS = st.integers(0, 2**32 - 1)


@pytest.fixture(autouse=True)
def _leave_the_generators_alone():
    with preserved_rng():
        yield


def draw() -> list[float]:
    """One number from each global generator, and a normal one from each, which may keep a second one back."""
    return [
        random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(()).item(),
        torch.randn(()).item(),
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------------- seeds


@given(seed=SEEDS)
@settings(max_examples=30)
def test_one_call_seeds_python_numpy_and_torch(seed):
    seed_everything(seed)
    first = draw()
    seed_everything(seed)
    assert draw() == first


def test_the_numbers_are_those_of_each_library_seeded_by_itself():
    seed_everything(7)
    got = random.random(), np.random.rand(), torch.rand(()).item()
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
    assert got == (random.random(), np.random.rand(), torch.rand(()).item())


def test_a_numpy_integer_is_a_seed():
    seed_everything(np.int64(7))
    first = draw()
    seed_everything(7)
    assert draw() == first


@pytest.mark.parametrize("wrong", [-1, 2**32, 1.0, "1", None, True])
@pytest.mark.parametrize("function", [seed_everything, lambda seed: derive(seed, "x"), lambda seed: stream(seed, "x")])
def test_what_is_no_seed_is_refused(function, wrong):
    with pytest.raises(UsageError) as caught:
        function(wrong)
    assert caught.value.what == "This is not a seed."
    assert caught.value.expected == "a whole number from 0 to 2**32 - 1"


def test_torch_on_cpu_reads_only_the_low_32_bits_of_a_seed():
    """The reason for the limit on seeds; if torch learns to read more, the limit can go."""
    low, high = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5 + 2**32)
    assert torch.equal(torch.rand(8, generator=low), torch.rand(8, generator=high))


# ------------------------------------------------------------------------------------ blocks that restore


def test_a_seeded_block_repeats_and_leaves_no_trace():
    seed_everything(1)
    expected = draw()
    seed_everything(1)
    with seeded(7):
        first = draw()
    with seeded(7):
        assert draw() == first
    assert draw() == expected


def test_the_generators_are_restored_after_an_exception():
    def fail_after_drawing():
        with seeded(7, deterministic=True):
            draw()
            raise ZeroDivisionError

    before = rng_state()
    with pytest.raises(ZeroDivisionError):
        fail_after_drawing()
    assert_same_state(rng_state(), before)
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_refused_seed_changes_nothing():
    before = rng_state()
    with pytest.raises(UsageError), seeded(-1, deterministic=True):
        pass
    assert_same_state(rng_state(), before)
    assert not torch.are_deterministic_algorithms_enabled()


def test_blocks_nest():
    with seeded(1):
        first = draw()
    with seeded(1):
        with seeded(2):
            draw()
        assert draw() == first


def test_preserved_rng_does_not_seed():
    seed_everything(1)
    with preserved_rng():
        inside = draw()
    assert draw() == inside


# -------------------------------------------------------------------------------------------- states


def assert_same_state(got: dict, expected: dict) -> None:
    assert got.keys() == expected.keys()
    assert torch.equal(got["torch"], expected["torch"])
    for name in ("python", "numpy"):
        for a, b in zip(got[name], expected[name], strict=True):
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@given(seed=SEEDS, draws=st.integers(0, 3))
@settings(max_examples=30)
def test_a_state_survives_a_file_and_gives_the_same_draws(tmp_path_factory, seed, draws):
    seed_everything(seed)
    for _ in range(draws):  # an odd number of normal draws leaves one in the cache of each library
        random.gauss(0, 1), np.random.randn(), torch.randn(())
    path = tmp_path_factory.mktemp("state") / "rng.pt"
    torch.save(rng_state(), path)
    expected = draw()
    seed_everything(0)
    set_rng_state(torch.load(path, weights_only=True))
    assert draw() == expected


def test_a_state_is_a_copy():
    state = rng_state()
    kept = {"torch": state["torch"].clone(), "python": state["python"], "numpy": state["numpy"]}
    draw()
    assert_same_state(state, kept)


class FakeCuda:
    """Stands in for ``torch.cuda`` on a machine with ``count`` devices; a device's state is one byte."""

    def __init__(self, monkeypatch, count: int, started: bool = True) -> None:
        self.states = [torch.tensor([index], dtype=torch.uint8) for index in range(count)]
        self.started, self.seeds = started, []
        for name, value in {
            "is_initialized": lambda: self.started,
            "is_available": lambda: count > 0,
            "device_count": lambda: count,
            "get_rng_state_all": lambda: [state.clone() for state in self.states],
            "set_rng_state": lambda state, index: self.states.__setitem__(index, state),
            "manual_seed_all": self.manual_seed_all,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def manual_seed_all(self, seed: int) -> None:
        self.seeds.append(seed)
        self.states = [torch.full_like(state, seed % 200) for state in self.states]

    def values(self) -> list[int]:
        return [int(state) for state in self.states]


def test_every_cuda_device_is_seeded_and_restored(monkeypatch):
    cuda = FakeCuda(monkeypatch, count=2)
    with seeded(7):
        assert cuda.values() == [7, 7]
    assert cuda.values() == [0, 1]


def test_cuda_is_not_started_by_a_seeded_block_and_its_later_start_is_as_before(monkeypatch):
    cuda = FakeCuda(monkeypatch, count=1, started=False)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: pytest.fail("this would start CUDA"))
    torch.manual_seed(11)
    with seeded(7):
        assert cuda.seeds[-1] == 7
    assert cuda.seeds[-1] == 11


def test_a_state_from_two_gpus_fits_a_machine_with_one_or_none(monkeypatch):
    with monkeypatch.context() as patch:
        FakeCuda(patch, count=2)
        state = rng_state()
    with monkeypatch.context() as patch:
        cuda = FakeCuda(patch, count=1)
        cuda.manual_seed_all(9)
        set_rng_state(state)
        assert cuda.values() == [0]
    with monkeypatch.context() as patch:
        FakeCuda(patch, count=0, started=False)
        set_rng_state(state)


def test_the_mps_generator_is_saved_and_restored(monkeypatch):
    states = [torch.tensor([3], dtype=torch.uint8)]
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: states[-1])
    monkeypatch.setattr(torch.mps, "set_rng_state", states.append)
    with preserved_rng():
        states.append(torch.tensor([4], dtype=torch.uint8))
    assert [int(state) for state in states] == [3, 4, 3]


# ------------------------------------------------------------------------------------------- streams


@given(seed=SEEDS, purposes=st.lists(st.text(max_size=8), min_size=2, max_size=2, unique=True))
def test_a_stream_repeats_and_differs_from_that_of_another_purpose(seed, purposes):
    first, again, other = stream(seed, purposes[0]), stream(seed, purposes[0]), stream(seed, purposes[1])
    numbers = torch.rand(4, generator=first)
    assert torch.equal(numbers, torch.rand(4, generator=again))
    assert not torch.equal(numbers, torch.rand(4, generator=other))


def test_drawing_from_one_stream_moves_neither_another_nor_the_global_generators():
    before = rng_state()
    shuffle, augment = stream(0, "shuffle"), stream(0, "augment")
    state = shuffle.get_state()
    torch.rand(100, generator=augment)
    assert torch.equal(shuffle.get_state(), state)
    assert_same_state(rng_state(), before)


def test_streams_of_neighbouring_seeds_and_epochs_are_uncorrelated():
    streams = [stream(seed, "augment", epoch) for seed in range(4) for epoch in range(4)]
    draws = torch.stack([torch.randn(4000, generator=generator) for generator in streams])
    correlation = torch.corrcoef(draws) - torch.eye(len(streams))
    assert correlation.abs().max() < 0.08  # chance: 1 / sqrt(4000) = 0.016; this is five times that


def test_derived_seeds_are_fixed_for_ever():
    """Stored outputs of the lessons rest on these numbers."""
    seeds = derive(0, "shuffle"), derive(1, "shuffle"), derive(0, "augment", 3)
    assert seeds == (2389322406, 1224638500, 1437691745)


def test_the_parts_of_a_purpose_are_not_run_together():
    seeds = {derive(0, "a", "b"), derive(0, "ab"), derive(0, "b", "a"), derive(0, "a", 1), derive(0, "a", "1")}
    assert len(seeds) == 5
    assert derive(np.int64(0), "a", np.int32(1)) == derive(0, "a", 1)


def test_a_purpose_is_required():
    with pytest.raises(UsageError, match="A derived seed needs a purpose"):
        derive(0)


# ------------------------------------------------------------------------------------------- loaders


def test_the_order_of_a_loader_repeats_and_does_not_depend_on_what_was_drawn_before():
    def order(seed: int) -> list[int]:
        loader = DataLoader(torch.arange(50), batch_size=None, shuffle=True, **loader_kwargs(seed))
        return [int(item) for _ in range(2) for item in loader]

    first = order(0)
    torch.rand(10)
    assert order(0) == first
    assert order(1) != first
    assert first[:50] != first[50:]  # the second epoch has its own order
    assert loader_kwargs(0)["generator"].initial_seed() == derive(0, "loader")
    assert loader_kwargs(0, "train")["generator"].initial_seed() == derive(0, "train")


def start_methods() -> list[str]:
    return [method for method in ("fork", "spawn") if method in multiprocessing.get_all_start_methods()]


# Python 3.12 and later warn of forking a process that has threads, as torch's has; here the children only draw numbers.
forking = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")


def worker_draws(dataset, method: str, epochs: int = 2, workers: int = 2, **kwargs) -> torch.Tensor:
    """Return what each of the workers drew, shape (epochs, workers, items per worker, draws per item)."""
    loader = DataLoader(
        dataset, batch_size=len(dataset) // workers, num_workers=workers, multiprocessing_context=method, **kwargs
    )
    batches = [torch.cat(batch, dim=1) if isinstance(batch, list) else batch for _ in range(epochs) for batch in loader]
    return torch.stack(batches).unflatten(0, (epochs, workers))


def n_different(draws: torch.Tensor) -> list[int]:
    """Return how many different values each generator gave."""
    return [len(column.unique()) for column in draws.flatten(0, -2).T]


@forking
@pytest.mark.parametrize("method", start_methods())
def test_workers_draw_differently_in_each_worker_and_epoch_and_repeat_by_seed(method):
    both = StackDataset(GlobalNoise(), OwnNoise(with_torch=False))
    epochs = 2 if method == "fork" else 1  # a spawned worker takes seconds to start
    draws = worker_draws(both, method, epochs, **loader_kwargs(0))
    assert n_different(draws) == [4 * epochs] * 5
    assert torch.equal(worker_draws(both, "fork", epochs, **loader_kwargs(0)), draws)  # whatever the start method
    assert not torch.equal(worker_draws(both, "fork", epochs, **loader_kwargs(1)), draws)


@pytest.mark.skipif("fork" not in start_methods(), reason="this platform can't fork")
@forking
class TestWhatTorchSeedsInWorkers:
    """The facts behind `seed_worker`; it can shrink when torch does more."""

    def test_the_global_generators_of_python_numpy_and_torch_without_help(self):
        draws = worker_draws(GlobalNoise(), "fork", generator=stream(0, "loader"))
        assert n_different(draws) == [8, 8, 8]  # 2 epochs of 4 items
        assert torch.equal(worker_draws(GlobalNoise(), "fork", generator=stream(0, "loader")), draws)

    def test_not_the_generators_of_the_dataset_so_workers_and_epochs_repeat_them(self):
        draws = worker_draws(OwnNoise(), "fork", generator=stream(0, "loader"))
        assert n_different(draws) == [2, 2, 2]  # 2 items per worker; both workers and both epochs drew the same

    @pytest.mark.parametrize("dataset", [OwnNoise(), DuckNoise(), Subset(OwnNoise(), range(4))])
    def test_with_seed_worker_also_those(self, dataset):
        draws = worker_draws(dataset, "fork", **loader_kwargs(0))
        assert set(n_different(draws)) == {8}
        assert torch.equal(worker_draws(dataset, "fork", **loader_kwargs(0)), draws)

    def test_the_order_is_the_same_for_any_number_of_workers(self):
        def order(workers: int) -> list[int]:
            method = "fork" if workers else None
            loader = DataLoader(
                torch.arange(20), shuffle=True, num_workers=workers, multiprocessing_context=method, **loader_kwargs(0)
            )
            return [int(item) for item in loader]

        assert order(0) == order(2)


def test_seed_worker_says_where_it_belongs():
    with pytest.raises(UsageError) as caught:
        seed_worker(0)
    assert str(caught.value) == (
        "seed_worker seeds a DataLoader worker, and this process is none.\n"
        "  fix:      DataLoader(..., worker_init_fn=seed_worker)"
    )


def test_a_dataset_that_contains_itself_is_walked_once():
    dataset = OwnNoise()
    dataset.me = dataset
    assert len(list(seeding._own_generators(dataset))) == 3


# ------------------------------------------------------------------------------- deterministic algorithms


def switches() -> tuple:
    cudnn = torch.backends.cudnn
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        cudnn.deterministic,
        cudnn.benchmark,
        os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    )


def test_deterministic_sets_every_switch_and_restores_it(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    before = switches()
    with deterministic():
        assert switches() == (True, False, True, False, ":4096:8")
        with deterministic(warn_only=True):
            assert switches() == (True, True, True, False, ":4096:8")
        assert switches() == (True, False, True, False, ":4096:8")
    assert switches() == before


def test_deterministic_restores_after_an_exception(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before = switches()
    with pytest.raises(ZeroDivisionError), deterministic():
        raise ZeroDivisionError
    assert switches() == before


def test_a_workspace_that_the_reader_chose_is_kept(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with seeded(0, deterministic=True):
        assert switches() == (True, False, True, False, ":16:8")
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def test_an_operation_without_a_deterministic_algorithm_is_refused_inside():
    x = torch.zeros(4, requires_grad=True)
    with deterministic(), pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        x.put(torch.tensor([0, 0]), torch.ones(2), accumulate=False)
