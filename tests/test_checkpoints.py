"""Checkpoints: whole or not at all, plain data only, refused with a sentence; and a resume that changes nothing."""

from __future__ import annotations

import io
import os
import pickle
import random
import re
import subprocess
import sys
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules

from course_utils import checkpoints
from course_utils.checkpoints import Keeper, load, save
from course_utils.config import TrainConfig
from course_utils.errors import CheckpointError, UsageError
from course_utils.paths import ROOT
from course_utils.records import Epoch, Step
from course_utils.seeding import preserved_rng
from course_utils.training import KeepBest, StopTraining, fit
from tests.resume.world import ACCUMULATE, EPOCHS, KINDS, STEPS, World, first_difference


@pytest.fixture(autouse=True)
def _own_rng(monkeypatch):
    """Leave the global generators alone, and do not wait for the disk a thousand times: nobody pulls the plug here."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    with preserved_rng():
        yield


# --- save and load


def test_what_is_saved_comes_back(tmp_path):
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    generator = torch.Generator().manual_seed(5)
    state = generator.get_state()
    plain = {"a": [1, 2.5, "text", None, True, b"x"], "b": (torch.arange(3), torch.float16), 3: Counter([1, 1])}
    save(tmp_path / "new" / "c.pt", model=model, draw=generator, config=TrainConfig(lr=0.5), plain=plain)
    loaded = load(tmp_path / "new" / "c.pt")
    assert first_difference(loaded["model"], model.state_dict()) is None
    assert loaded["model"]._metadata == model.state_dict()._metadata
    assert torch.equal(loaded["draw"], state)
    assert TrainConfig.from_dict(loaded["config"]) == TrainConfig(lr=0.5)
    assert first_difference(loaded["plain"], plain) is None
    assert loaded["versions"]["torch"] == str(torch.__version__)


def test_numpy_numbers_become_plain_numbers(tmp_path):
    save(tmp_path / "c.pt", numbers=[np.float64(0.1), np.float32(0.5), np.int64(3), np.bool_(True)])
    loaded = load(tmp_path / "c.pt")["numbers"]
    assert loaded == [0.1, 0.5, 3, True]
    assert [type(number) for number in loaded] == [float, float, int, bool]


def test_tied_weights_stay_tied(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    save(tmp_path / "c.pt", model=model)
    loaded = load(tmp_path / "c.pt")["model"]
    assert loaded["0.weight"].data_ptr() == loaded["1.weight"].data_ptr()


def test_any_torch_file_reader_can_open_it_safely(tmp_path):
    save(tmp_path / "c.pt", model=nn.Linear(2, 2))
    assert list(torch.load(tmp_path / "c.pt", weights_only=True)) == ["format", "versions", "model"]


SCHEDULES = {
    "LambdaLR": lambda o: schedules.LambdaLR(o, lambda epoch: 0.9**epoch),
    "MultiStepLR": lambda o: schedules.MultiStepLR(o, [2, 4]),
    "CosineAnnealingWarmRestarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: schedules.CyclicLR(o, 0.01, 0.1, cycle_momentum=False),
    "OneCycleLR": lambda o: schedules.OneCycleLR(o, 0.1, total_steps=10),
    "ReduceLROnPlateau": lambda o: schedules.ReduceLROnPlateau(o, patience=0),
    "SequentialLR": lambda o: schedules.SequentialLR(o, [schedules.LinearLR(o), schedules.StepLR(o, 1)], [2]),
    "ChainedScheduler": lambda o: schedules.ChainedScheduler([schedules.LinearLR(o), schedules.StepLR(o, 1)], o),
}


@pytest.mark.parametrize("make", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_every_kind_of_schedule_survives(tmp_path, make):
    def new():
        optimizer = torch.optim.AdamW([nn.Parameter(torch.ones(2))], lr=0.1)
        return optimizer, make(optimizer)

    def step(optimizer, schedule):
        optimizer.step()
        schedule.step(*([1.0] if isinstance(schedule, schedules.ReduceLROnPlateau) else []))
        return optimizer.param_groups[0]["lr"]

    first, second = new(), new()
    for _ in range(3):
        step(*first)
    save(tmp_path / "c.pt", optimizer=first[0], schedule=first[1])
    loaded = load(tmp_path / "c.pt")
    second[0].load_state_dict(loaded["optimizer"])
    second[1].load_state_dict(loaded["schedule"])
    assert [step(*first) for _ in range(4)] == [step(*second) for _ in range(4)]


@dataclass(frozen=True)
class HoldsAPath:
    folder: Path = Path("x")


NOT_PLAIN = {
    "a path": ({"place": Path("x")}, r"The part place of the checkpoint is not plain data\."),
    "an array": ({"a": {"b": [np.zeros(2)]}}, r"The part a\['b'\]\[0\] .*"),
    "a function": ({"f": len}, "The part f .*"),
    "a set": ({"s": {1}}, "The part s .*"),
    "a dataclass with a path": ({"c": HoldsAPath()}, r"The part c\['folder'\] .*"),
    "a class": ({"c": HoldsAPath}, "The part c .*"),
}


@pytest.mark.parametrize(("state", "what"), NOT_PLAIN.values(), ids=NOT_PLAIN.keys())
def test_what_could_not_be_loaded_is_not_saved(tmp_path, state, what):
    with pytest.raises(CheckpointError) as caught:
        save(tmp_path / "c.pt", **state)
    assert re.match(what, caught.value.what)
    assert "str(path)" in caught.value.fix
    assert not list(tmp_path.iterdir())


def test_a_name_that_save_uses_itself_is_refused(tmp_path):
    with pytest.raises(UsageError, match="taken") as caught:
        save(tmp_path / "c.pt", versions=1)
    assert caught.value.got == "versions"


def test_a_full_disk_leaves_the_old_checkpoint_alone(tmp_path, monkeypatch):
    save(tmp_path / "c.pt", value=1)

    def half(content, path):
        Path(path).write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(CheckpointError, match="could not be written") as caught:
        save(tmp_path / "c.pt", value=2)
    assert "No space left" in caught.value.got
    assert load(tmp_path / "c.pt")["value"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["c.pt"]


def test_a_folder_that_is_a_file_gets_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="could not be written"):
        save(tmp_path / "file" / "c.pt", value=1)
    with pytest.raises(CheckpointError, match="can't be read"):
        load(tmp_path / "file" / "c.pt")
    with pytest.raises(CheckpointError, match="can't be read"):
        load(tmp_path)


# --- files that must not be loaded


class Bomb:
    """Unpickling this makes the file ``exploded``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return (os.mkdir, (str(self.folder / "exploded"),))


def whole(folder: Path) -> bytes:
    save(folder / "whole.pt", weights=torch.arange(100.0), note="x" * 100)
    return (folder / "whole.pt").read_bytes()


def torch_bytes(content, **options) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, **options)
    return buffer.getvalue()


def flipped(raw: bytes) -> bytes:
    place = raw.index(torch.arange(100.0).numpy().tobytes()) + 40
    return raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]


def other_pickle(raw: bytes) -> bytes:
    """A file whose checksums are right and whose pickle is nonsense."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as source, zipfile.ZipFile(buffer, "w") as target:
        for name in source.namelist():
            target.writestr(name, b"\x80\x02garbage" if name.endswith("data.pkl") else source.read(name))
    return buffer.getvalue()


BAD_FILES = {
    "cut in the middle": (lambda d: whole(d)[:700], "The checkpoint c.pt is damaged."),
    "cut at the end": (lambda d: whole(d)[:-1], "The checkpoint c.pt is damaged."),
    "one flipped bit": (lambda d: flipped(whole(d)), "The checkpoint c.pt is damaged."),
    "another pickle": (lambda d: other_pickle(whole(d)), "c.pt .*"),
    "empty": (lambda d: b"", "c.pt is not a checkpoint."),
    "text": (lambda d: b"lr: 0.1\n", "c.pt is not a checkpoint."),
    "a zip of something": (lambda d: zip_of("a.txt"), "c.pt can't be loaded."),
    "a pickle": (lambda d: pickle.dumps({"a": 1}), "c.pt is not a checkpoint."),
    "a pickle with code": (lambda d: pickle.dumps(Bomb(d)), "c.pt is not a checkpoint."),
    "an old torch file with code": (
        lambda d: torch_bytes(Bomb(d), _use_new_zipfile_serialization=False),
        "c.pt is not a checkpoint.",
    ),
    "a torch file with code": (lambda d: torch_bytes({"model": Bomb(d)}), "c.pt holds more than plain data, .*"),
    "a whole model": (lambda d: torch_bytes(nn.Linear(1, 1)), "c.pt holds more than plain data, .*"),
    "a bare state_dict": (lambda d: torch_bytes(nn.Linear(1, 1).state_dict()), "c.pt is a torch file, but not .*"),
    "a bare tensor": (lambda d: torch_bytes(torch.ones(2)), "c.pt is a torch file, but not .*"),
    "a newer format": (
        lambda d: torch_bytes({"format": [checkpoints.MARK, 2]}),
        "c.pt was written by a newer version of the course.",
    ),
}


def zip_of(name: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(name, "text")
    return buffer.getvalue()


@pytest.mark.parametrize(("make", "what"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_bad_file_is_refused_with_a_sentence_and_never_run(tmp_path, make, what):
    (tmp_path / "c.pt").write_bytes(make(tmp_path))
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path / "c.pt")
    assert re.fullmatch(what, caught.value.what)
    assert caught.value.expected
    assert caught.value.fix
    assert not (tmp_path / "exploded").exists()


def test_the_bombs_are_live(tmp_path):
    torch.load(io.BytesIO(torch_bytes({"model": Bomb(tmp_path)})), weights_only=False)
    assert (tmp_path / "exploded").exists()


def test_every_cut_of_a_file_is_noticed(tmp_path):
    raw = whole(tmp_path)
    for end in range(0, len(raw), 97):
        (tmp_path / "c.pt").write_bytes(raw[:end])
        with pytest.raises(CheckpointError):
            load(tmp_path / "c.pt")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path / "c.pt")
    assert caught.value.what == "There is no checkpoint c.pt."
    assert "latest()" in caught.value.fix


# --- Keeper


def test_a_keeper_keeps_the_newest(tmp_path):
    keeper = Keeper(tmp_path / "run", every=10, keep=2, config=TrainConfig(epochs=7))
    assert keeper.is_empty()
    assert keeper.latest() is None
    for n_steps in (10, 20, 30, 100_000_000):
        keeper.save(n_steps, value=n_steps)
    assert [path.name for path in keeper.files()] == ["step-00000030.pt", "step-100000000.pt"]
    assert keeper.latest()["value"] == 100_000_000
    assert keeper.latest()["config"]["epochs"] == 7
    assert keeper.is_due(20)
    assert not keeper.is_due(25)


def test_a_keeper_that_goes_back_forgets_the_future_it_left(tmp_path):
    keeper = Keeper(tmp_path, keep=2)
    for n_steps in (10, 20, 15):
        keeper.save(n_steps, value=n_steps)
    assert [path.name for path in keeper.files()] == ["step-00000010.pt", "step-00000015.pt"]


def test_a_keeper_removes_what_a_kill_left_half_written_and_nothing_else(tmp_path):
    for name in (".step-00000005.pt.abc.tmp", "notes.txt", "step-best.pt"):
        (tmp_path / name).write_text("")
    keeper = Keeper(tmp_path)
    keeper.save(10, value=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "step-00000010.pt", "step-best.pt"]
    keeper.clear()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "step-best.pt"]


@pytest.mark.parametrize("wrong", [{"every": 0}, {"keep": 0}, {"every": 1.5}])
def test_a_keeper_refuses_senseless_numbers(tmp_path, wrong):
    with pytest.raises(UsageError, match="not a value"):
        Keeper(tmp_path, **wrong)


# --- resume, bit for bit


class Killed(BaseException):
    """Ends a run where it stands, as a signal would."""


def final_state(world: World) -> dict:
    return {"saved": world.keeper.latest(), "live": world.live()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Kind of loader -> the last checkpoint, the run, and what each step was fed, without any interruption."""
    found = {}
    for kind in KINDS:
        with preserved_rng():
            world = World(kind=kind, folder=tmp_path_factory.mktemp("quiet"), every=STEPS)
            found[kind] = world.run(), final_state(world), world.seen
    return found


def interrupted(folder: Path, kind: str, kills: list, every: int = 1, **changes) -> tuple:
    """Run until each kill in turn, each time in a new world that resumes; then to the end."""
    seen: dict[int, list[float]] = {}
    for kill in [*kills, {}]:
        world = World(kind=kind, folder=folder, every=every, **kill)
        try:
            run = world.run(**changes)
        except Killed:
            run = None
        seen |= world.seen
        assert (run is None) == bool(kill)
    return run, final_state(world), seen


def at(index: int, record_type: type = Step) -> dict:
    """Kill when the observers are shown this record."""

    def kill(record):
        if type(record) is record_type and record.index == index:
            raise Killed

    return {"interrupt": kill}


def assert_same(got: tuple, expected: tuple) -> None:
    assert first_difference(got[1], expected[1]) is None  # names the first state that differs
    assert first_difference(got[2], expected[2], "data of step") is None
    assert got[0] == expected[0]


def test_the_run_that_is_interrupted_has_everything_in_play(undisturbed):
    for run, state, seen in undisturbed.values():
        assert len(seen) == run.n_steps == STEPS
        assert run.skipped
        assert len(run.skipped) < STEPS - 2
        steps_down = [after / before for before, after in zip(run.lrs, run.lrs[1:], strict=False)]
        assert {round(ratio, 2) for ratio in steps_down} >= {0.9, 1.0}  # the step schedule moves
        assert min(steps_down) < 0.6  # and the plateau schedule
        assert min(run.n_examples) < max(run.n_examples)
        assert state["saved"]["best"]["weights"] is not None
    orders = [seen[0] for _, _, seen in undisturbed.values()]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])


@pytest.mark.parametrize("kind", KINDS[:4])
@pytest.mark.parametrize("every", [1, 2])
def test_a_run_killed_at_any_step_ends_bit_for_bit_as_if_it_had_not_been(tmp_path, undisturbed, kind, every):
    for index in range(STEPS):
        assert_same(interrupted(tmp_path / str(index), kind, [at(index)], every), undisturbed[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_killed_many_times_ends_bit_for_bit_as_if_it_had_not_been(tmp_path, undisturbed, kind):
    assert_same(interrupted(tmp_path, kind, [at(1), at(2), at(5), at(7)]), undisturbed[kind])


@pytest.mark.parametrize("epoch", range(EPOCHS))
def test_a_run_killed_when_an_epoch_ends_goes_on_bit_for_bit(tmp_path, undisturbed, epoch):
    assert_same(interrupted(tmp_path, "batches", [at(epoch, Epoch)]), undisturbed["batches"])


@pytest.mark.parametrize("count", range(1, 7))
def test_a_run_killed_while_it_validates_goes_on_bit_for_bit(tmp_path, undisturbed, count):
    calls = iter(range(1, 100))

    def kill():
        if next(calls) == count:
            raise Killed

    assert_same(interrupted(tmp_path, "batches", [{"measured": kill}]), undisturbed["batches"])


@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_a_run_killed_while_it_saves_goes_on_bit_for_bit(tmp_path, undisturbed, monkeypatch, count):
    write, calls = torch.save, iter(range(1, 100))

    def kill(content, path):
        write(content, path)
        if next(calls) == count:
            os.truncate(path, 1000)
            raise Killed

    world = World(folder=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", kill)
        with pytest.raises(Killed):
            world.run()
    run, state, seen = interrupted(tmp_path, "batches", [])
    assert_same((run, state, world.seen | seen), undisturbed["batches"])


@pytest.mark.parametrize("steps", [1, 3, 5, 8])
def test_a_run_that_pauses_goes_on_bit_for_bit(tmp_path, undisturbed, steps):
    first = World(folder=tmp_path, every=100)
    run = first.run(max_steps=steps)
    assert (run.stopped_by, run.n_steps, run.best_epoch) == ("max_steps", steps, None)
    run, state, seen = interrupted(tmp_path, "batches", [], every=100)
    assert_same((run, state, first.seen | seen), undisturbed["batches"])


def test_a_run_that_an_observer_ended_goes_on_bit_for_bit(tmp_path, undisturbed):
    def stop(record):
        if isinstance(record, Step) and record.index == 4:
            raise StopTraining("enough")

    first = World(folder=tmp_path, every=100, interrupt=stop)
    assert first.run().stopped_by == "enough"
    run, state, seen = interrupted(tmp_path, "batches", [], every=100)
    assert_same((run, state, first.seen | seen), undisturbed["batches"])


def test_a_finished_run_that_is_resumed_is_the_same_run(tmp_path, undisturbed):
    run = World(folder=tmp_path).run()
    again = World(folder=tmp_path)
    assert again.run() == run == undisturbed["batches"][0]
    assert again.seen == {}


def test_more_epochs_can_follow_a_finished_run(tmp_path):
    world = World(folder=tmp_path / "long")
    long = world.run(epochs=EPOCHS + 1)
    World(folder=tmp_path / "short").run()
    assert World(folder=tmp_path / "short").run(epochs=EPOCHS + 1) == long


def test_the_resumed_model_is_the_one_that_the_optimizer_changes(tmp_path):
    World(folder=tmp_path).run(max_steps=5)
    world = World(folder=tmp_path)
    held = {id(p) for group in world.optimizer.param_groups for p in group["params"]}
    saved = world.keeper.latest()
    run = world.run()
    assert {id(p) for p in world.model.parameters()} == held
    assert run.n_steps == STEPS
    changed = [name for name, p in world.model.named_parameters() if not torch.equal(p, saved["model"][name])]
    assert changed == [name for name, _ in world.model.named_parameters()]
    state = world.optimizer.state_dict()["state"][0]["exp_avg"]
    assert not torch.equal(state, saved["optimizer"]["state"][0]["exp_avg"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_a_process_killed_from_outside_at_random_times_ends_bit_for_bit_as_if_it_had_not_been(tmp_path):
    seed = random.SystemRandom().randrange(10**6)
    done = subprocess.run(
        [sys.executable, "-m", "tests.resume.victim", str(tmp_path), str(seed), "8"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    kills = [int(line) for line in done.stdout.split()]
    assert len(set(kills)) >= 3, f"seed {seed}: the kills fell at {kills}"
    killed, quiet = Keeper(tmp_path / "killed").latest(), Keeper(tmp_path / "quiet").latest()
    assert first_difference(killed, quiet) is None, f"seed {seed}: the kills fell at {kills}"


# --- checkpoints that belong to another run


def test_the_comparison_names_the_first_state_that_differs(undisturbed):
    state = undisturbed["batches"][1]["saved"]
    other = {**state, "scaler": {**state["scaler"], "scale": 1.0}}
    assert first_difference(state, other).startswith("scaler.scale: ")
    weight = state["model"]["0.weight"].clone()
    weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
    other = {**state, "model": type(state["model"])({**state["model"], "0.weight": weight})}
    assert first_difference(state, other) == "model.0.weight: other values"


def small_run(folder: Path, width: int = 2, data=None, make=torch.optim.SGD, **changes):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, width), nn.Linear(width, 2))
    optimizer = make(model.parameters(), lr=0.1)
    keeper = Keeper(folder)
    batches = [(torch.ones(2, 3), torch.tensor([0, i])) for i in (0, 1, 1, 0)] if data is None else data
    return fit(
        model,
        nn.functional.cross_entropy,
        optimizer,
        batches,
        keeper=keeper,
        **{"max_steps": 3, "resume": keeper.latest(), **changes},
    )


def other_groups(parameters, lr):
    first, *rest = parameters
    return torch.optim.SGD([{"params": [first]}, {"params": rest}], lr=lr)


MISFITS = {
    "another width": ({"width": 4}, "The checkpoint's model doesn't fit this run's model."),
    "other groups": ({"make": other_groups}, "The checkpoint's optimizer doesn't fit this run's optimizer."),
    "another accumulation": ({"accumulate": 2}, "The run in the checkpoint had another accumulate."),
    "other clipping": ({"clip_norm": 1.0}, "The run in the checkpoint had another clip_norm."),
    "a part more": ({"best": KeepBest()}, "The run in the checkpoint had other parts."),
    "a generator more": ({"also": {"g": torch.Generator()}}, "The run in the checkpoint had other generators."),
    "an entry more": ({"also": {"e": nn.Linear(1, 1)}}, "The run in the checkpoint had other entries in `also`."),
    "fewer batches": (
        {"data": [(torch.ones(2, 3), torch.tensor([0, 0]))]},
        "The loader ends before the place where the checkpoint was made.",
    ),
    "another order": (
        {"data": [(torch.ones(2, 3), torch.tensor([0, i])) for i in (0, 1, 0, 1)]},
        "The batches come in another order than before the interruption.",
    ),
    "not a run": ({"resume": {"model": {}}}, "This checkpoint was not made by fit, so there is no run to continue."),
}


@pytest.mark.parametrize(("changes", "what"), MISFITS.values(), ids=MISFITS.keys())
def test_a_checkpoint_of_another_run_is_refused(tmp_path, changes, what):
    small_run(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        small_run(tmp_path, **{"max_steps": None, **changes})
    assert caught.value.what == what
    assert caught.value.got
    assert caught.value.expected
    assert caught.value.fix


def test_a_new_run_does_not_mix_with_the_checkpoints_of_an_old_one(tmp_path):
    small_run(tmp_path)
    with pytest.raises(UsageError, match="earlier run") as caught:
        small_run(tmp_path, resume=None)
    assert "keeper.clear()" in caught.value.fix


def test_an_order_that_no_seed_repeats_is_noticed(tmp_path):
    labels = iter(torch.tensor([0, i]) for i in (0, 1, 1, 0, 0, 0, 0, 0, 0))
    unrepeatable = lambda epoch: [(torch.ones(2, 3), next(labels)) for _ in range(4)]  # noqa: E731
    small_run(tmp_path, data=unrepeatable)
    with pytest.raises(CheckpointError, match="another order"):
        small_run(tmp_path, data=unrepeatable, max_steps=None)


def test_accumulation_leaves_windows_of_the_planned_size():
    assert (ACCUMULATE, STEPS // EPOCHS) == (3, 3)
