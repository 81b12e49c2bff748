"""Killed at 200 random points, a training run ends bit for bit as if it had not been; the first difference is named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset

from course_utils.checkpoints import Keeper
from course_utils.data import Batches, affine_augment, load_digits28
from course_utils.models import DigitCNN
from course_utils.paths import ROOT
from course_utils.schedules import Plan, make_scheduler
from course_utils.seeding import loader_kwargs, preserved_rng, rng_state, stream
from tests.faults.campaign import SEED, draws, report, size
from tests.resume.world import BATCH, KINDS, World, first_difference
from tests.test_checkpoints import assert_same, final_state

pytestmark = pytest.mark.faults
COURSE = str(ROOT / "course_utils")


class Killed(BaseException):
    """Nobody expects it: not even the code that cleans up after errors."""


@contextmanager
def killed_at(call: int) -> Iterator[list[int]]:
    """Raise ``Killed`` when one of the course's own functions is called for the ``call``-th time in the block.

    That is anywhere: between two batches, in an update, half way through a save or a resume. Gives a list that holds
    the number of calls at the end.
    """
    count = [0]

    def look(frame: Any, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(COURSE) and os.getpid() == ours:
            count[0] += 1
            if count[0] == call:
                sys.setprofile(None)
                raise Killed

    ours = os.getpid()
    sys.setprofile(look)
    try:
        yield count
    finally:
        sys.setprofile(None)


class AugmentedDigits(Dataset):
    """Digits that are turned and moved by draws from torch's global generator; each worker has its own."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return affine_augment(self.x[index : index + 1])[0], self.y[index]


class CourseWorld(World):
    """The course's own digits, network, augmentation and schedules, as its lessons train them, a few examples each."""

    def __post_init__(self) -> None:
        super().__post_init__()
        digits = load_digits28().train
        self.x, self.y = digits.images[:23].float() / 255, digits.labels[:23]
        torch.manual_seed(3)
        self.model = DigitCNN()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.step_schedule = make_scheduler(self.optimizer, Plan(peak=0.05, warmup=1, epochs=3, steps_per_epoch=8))
        self.epoch_schedule = None
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        if self.kind == "batches":
            turned = partial(affine_augment, generator=self.augment)
            self.batches = Batches(self.x, self.y, BATCH, generator=stream(0, "shuffle"), transform=turned)
        else:
            workers = 2 if "workers" in self.kind else 0
            data = AugmentedDigits(self.x, self.y)
            self.batches = DataLoader(data, BATCH, shuffle=True, num_workers=workers, **loader_kwargs(0, "shuffle"))
        self.model.register_forward_pre_hook(self._note)

    def _note(self, model: nn.Module, inputs: tuple[Tensor]) -> None:
        super()._note(model, (inputs[0].flatten(1),))

    def live(self) -> dict[str, Any]:
        """Return the states of the objects themselves; there is no schedule of epochs."""
        parts = (self.model, self.optimizer, self.step_schedule, self.scaler, self.ema)
        return {**{type(part).__name__: part.state_dict() for part in parts}, "random": rng_state()}


SET_UPS = [
    *((World, kind) for kind in KINDS),
    *((CourseWorld, kind) for kind in ("batches", "loader", "loader, 2 workers")),
]
VARIANTS: dict[str, dict[str, Any]] = {
    "all in play": {},
    "one batch a step": {"accumulate": 1},
    "float32, no scaler": {"amp": None, "scaler": None},
    "no clipping, nothing kept": {"clip_norm": None, "best": None},
}


@pytest.fixture(autouse=True)
def _own_rng(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # nobody pulls the plug here
    with preserved_rng():
        yield


def trained(
    make: type[World], folder: Path, kind: str, every: int, changes: dict[str, Any], calls: list[int]
) -> tuple[tuple, int]:
    """Train with a kill at each of these calls in turn; return what came of it, and how many kills came in time."""
    seen: dict[int, list[float]] = {}
    hits = 0
    for call in [*calls, 0]:
        with killed_at(call) as count:
            world = None
            try:
                world = make(kind=kind, folder=folder, every=every)
                run = world.run(**changes)
            except Killed:
                hits += 1
        seen |= world.seen if world else {}
    return (run, final_state(world), seen, count[0]), hits


def test_a_run_killed_at_any_point_ends_bit_for_bit_as_if_it_had_not_been(tmp_path):
    wanted, hits, trial = size(sample=12, whole=200), 0, 0
    quiet: dict[tuple[Any, ...], tuple] = {}
    set_ups = [(make, kind) for make, kind in SET_UPS if size(0, 1) or "workers" not in kind]  # they take a while
    while hits < wanted:
        draw = draws("resume", trial)
        make, kind = draw.choice(set_ups)
        variant, every = draw.choice(list(VARIANTS)), draw.randint(1, 3)
        changes, key = VARIANTS[variant], (make.__name__, kind, variant)
        if key not in quiet:
            quiet[key], _ = trained(make, tmp_path / f"quiet-{trial}", kind, 10_000, changes, [])
        expected = quiet[key]
        calls = [draw.randint(1, expected[3]) for _ in range(draw.randint(1, 3))]
        got, more = trained(make, tmp_path / str(trial), kind, every, changes, calls)
        hits, trial = hits + more, trial + 1
        try:
            assert_same(got, expected)
        except AssertionError as error:
            raise AssertionError(f"seed {SEED}, trial {trial - 1}: {key}, calls {calls}: {error}") from None
    report("resume", f"{hits} kills in {trial} runs of {len(quiet)} set-ups, 0 differences")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_a_process_killed_from_outside_ends_bit_for_bit_as_if_it_had_not_been(tmp_path):
    kills = size(sample=0, whole=60)
    if not kills:
        pytest.skip("a part of course.py test --faults; the usual tests kill eight times")
    done = subprocess.run(
        [sys.executable, "-m", "tests.resume.victim", str(tmp_path), str(SEED), str(kills)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    killed, quiet = Keeper(tmp_path / "killed").latest(), Keeper(tmp_path / "quiet").latest()
    assert first_difference(killed, quiet) is None, f"seed {SEED}"
    report("resume, SIGKILL", f"{kills} kills of one run, 0 differences")
