"""What is compared in the benchmarks is the same work: same weights, same digits. No time is asserted here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import checking, feeding, loops, peers, speed
from benchmarks.measure import surroundings
from benchmarks.peers import PeersMissing, environment


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_fit_ends_with_the_weights_of_the_bare_loop(monkeypatch, one_thread):
    monkeypatch.setattr(loops, "STEPS", 5)
    monkeypatch.setattr(loops, "PEERS", {})
    found = loops.measure(2)
    assert set(found) == {"DataLoader", "ready batches"}
    for kind in found.values():
        assert kind["equal"] == {"bare loop": True, "fit": True}
        assert {name: len(times) for name, times in kind["ms"].items()} == {"bare loop": 2, "fit": 2}


def test_batches_of_a_round_are_the_same_in_every_round():
    first, second = (torch.cat([y for _, y in make()]) for make in loops.BATCHES.values())
    assert torch.equal(first, second)
    assert len(first) == loops.BATCH * loops.STEPS


def test_every_way_gives_the_same_digits_and_is_measured(one_thread):
    rates = feeding.measure(1)
    assert set(rates) == {feeding.OURS, feeding.OURS_LOADER, feeding.PYTORCH, feeding.INDEX, feeding.VISION}
    assert all(rate > 0 for run in rates.values() for rate in run)


LOOPS = {
    "ms": {"bare loop": [1.0, 2.0], "fit": [1.01, 2.0], "A": [1.2, 2.4], "B": [1.5, 3.0]},
    "equal": {"bare loop": True, "fit": True, "A": True, "B": False},
}


def test_loops_are_compared_round_by_round_and_with_the_fastest_peer():
    over_bare, over_peer = speed.compared_loops("DataLoader", LOOPS)
    assert over_bare.runs == [1.01, 1.0]
    assert over_bare.met
    assert over_bare.others == {"A": 1.2, "B": 1.5}
    assert over_bare.note.endswith("final weights equal the bare loop's: fit, A.")
    assert over_peer.note == "the fastest is A"
    assert over_peer.met


def test_without_peers_the_loop_is_compared_with_the_bare_one_and_a_sentence_says_why(monkeypatch):
    def missing(packages):
        raise PeersMissing("skorch can't be installed here: no network.")

    found = {name: {key: LOOPS["ms"][key] for key in ("bare loop", "fit")} for name in ("ms",)}
    monkeypatch.setattr(speed, "environment", missing)
    monkeypatch.setattr(speed, "json_from", lambda *_: {"DataLoader": {**LOOPS, **found}})
    (alone,) = speed.training(2)
    assert alone.met
    assert alone.note.endswith("skorch can't be installed here: no network.")


def test_a_failed_installation_is_a_sentence(monkeypatch, tmp_path):
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: first\nERROR: no matching distribution\n")
    monkeypatch.setattr(peers, "FOLDER", tmp_path)
    monkeypatch.setattr(peers.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(PeersMissing, match=r"^nothing can't be installed here: ERROR: no matching distribution$"):
        environment(["nothing"])


def test_peers_live_beside_the_courses_packages(monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "FOLDER", tmp_path)
    commands = []

    def run(command, **_):
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(peers.subprocess, "run", run)
    python = environment(["some-peer"])
    assert environment(["some-peer"]) == python
    assert len(commands) == 1
    assert "some-peer" in commands[0]
    assert f"torch=={torch.__version__.partition('+')[0]}" in " ".join(commands[0])
    monkeypatch.undo()
    program = "import sys, importlib.util; print(sys.prefix, importlib.util.find_spec('torch').origin)"
    prefix, origin = subprocess.check_output([python, "-c", program], text=True).split()
    assert Path(prefix).is_relative_to(tmp_path)
    assert Path(origin) == Path(torch.__file__)


def test_the_slowest_call_is_the_result_and_excused_ones_are_listed():
    (result,) = speed.slowest("x: check", {"a": 10.0, "b": 290.0, "c": 20.0, "train": 5_000.0}, {"train"})
    assert (result.runs, result.met) == ([290.0], True)
    assert result.note == "b; the median is 20.0; not judged: train 5,000"
    assert list(speed.slowest("x: claim", {}, ())) == []


@pytest.mark.parametrize("kind", ["check", "first check", "hint"])
def test_a_call_is_measured_as_in_a_notebook(kind, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    checking.main(kind, ["tensors.energy"])
    assert capsys.readouterr().out.startswith('{"tensors.energy": ')


def test_the_fitted_power_is_that_of_the_curve():
    assert speed.power([1, 2, 4, 8], [3, 6, 12, 24]) == pytest.approx(1)
    assert speed.power([1, 2, 4, 8], [5, 20, 80, 320]) == pytest.approx(2)
    assert speed.power([1, 2, 4], [7, 7, 7]) == pytest.approx(0)


def test_a_broken_measurement_says_what_broke():
    with pytest.raises(RuntimeError, match=r"(?s)benchmarks\.checking ended with 1: .*IndexError"):
        speed.json_from(Path(sys.executable), "benchmarks.checking")


def test_a_measured_process_has_one_thread():
    assert surroundings(OMP_NUM_THREADS="1")["OMP_NUM_THREADS"] == "1"


def test_growth_is_measured_on_few_sizes(monkeypatch, one_thread):
    monkeypatch.setattr(speed, "SIZES", (64, 128))
    assert [len(result.runs) for result in speed.growth(2)] == [2, 2]
