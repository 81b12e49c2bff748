"""Starting ranks: results and errors come back, and no process stays, whatever happens to whoever started them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from uuid import uuid4

import psutil
import pytest
import torch

from course_utils import checkpoints, ranks
from course_utils.data import load_digits8
from course_utils.distributed import (
    RankError,
    cool_down,
    launch,
    loopback_interface,
    name_of,
    processes_left,
    rank_environment,
    readable,
    resolve,
    torchrun,
    torchrun_command,
    warm_up,
)
from course_utils.errors import UsageError
from course_utils.paths import ROOT
from tests import rank_programs as programs

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="signals that can't be caught are POSIX")
TOKEN = "RANKS_TEST_TOKEN"


@pytest.fixture(scope="module", autouse=True)
def helper():
    warm_up()
    launch(programs.threads, 1)  # waits until the helper has loaded PyTorch: time limits below are short
    yield
    cool_down()
    assert multiprocessing.active_children() == []


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    assert processes_left() == 0


def test_results_come_in_the_order_of_the_ranks():
    answers = launch(ranks.hello, 3)
    assert answers == [(0, 3.0), (1, 3.0), (2, 3.0)]


def test_large_arguments_and_results_travel():
    value = torch.arange(500_000)
    assert all(torch.equal(value, found) for found in launch(programs.returns, 2, value=value))


def test_one_rank_alone_is_a_world():
    assert launch("course_utils.ranks:hello", 1) == [(0, 0.0)]


def test_arithmetic_threads_are_set():
    assert launch(programs.threads, 1, threads=2) == [2]


def test_lines_are_shown_with_their_rank(capsys):
    launch(programs.speaks, 2, show=True)
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == ["[rank 0] err 0", "[rank 0] out 0", "[rank 1] err 1", "[rank 1] out 1"]


def test_without_show_nothing_is_printed_and_output_is_kept(capsys):
    ends = launch(programs.speaks, 2, check=False)
    assert capsys.readouterr().out == ""
    assert [set(end.output.split()) for end in ends] == [{"out", "err", "0"}, {"out", "err", "1"}]
    assert [end.error for end in ends] == ["", ""]


def test_an_error_in_one_rank_names_it_and_shows_its_words():
    with pytest.raises(RankError) as caught:
        launch(programs.raises_in_one, 3)
    text = str(caught.value)
    assert "rank 1: ValueError: rank 1 has had enough" in text
    assert "look at rank" in text
    assert [end.rank for end in caught.value.ends] == [0, 1, 2]


@posix_only
def test_a_rank_that_died_is_the_one_to_look_at():
    with pytest.raises(RankError, match="look at rank 1") as caught:
        launch(programs.dies_in_one, 3)
    assert caught.value.ends[1].error == "exit code -9"


@posix_only
def test_at_the_time_limit_the_error_says_where_each_rank_was():
    began = time.monotonic()
    with pytest.raises(RankError, match=r"rank 0: still running, in sleeps \(rank_programs.py, line \d+\)"):
        launch(programs.sleeps, 2, timeout_s=1.0)
    assert time.monotonic() - began < 20


def test_a_rank_that_is_deaf_is_killed():
    with pytest.raises(RankError, match="still running"):
        launch(programs.spins, 1, timeout_s=1.0)


def test_without_check_a_hang_is_a_fact():
    ends = launch(programs.sleeps, 1, timeout_s=1.0, check=False)
    assert ends[0].error.startswith("still running")
    assert "asleep" in ends[0].output


def test_a_result_that_can_not_travel_is_an_error_of_its_rank():
    with pytest.raises(RankError, match=r"rank 0: .*pickle"):
        launch(programs.unpicklable, 1)


@pytest.mark.parametrize("n", [0, -1, 2.0, "2"])
def test_numbers_of_ranks_that_are_none(n):
    with pytest.raises(UsageError, match="number of ranks"):
        launch(ranks.hello, n)


def test_programs_must_be_importable():
    def inner():
        pass

    for program in (inner, lambda: 1):
        with pytest.raises(UsageError, match="can't import"):
            name_of(program)
    for text in ("hello", "module:", ":f"):
        with pytest.raises(UsageError, match="no name of a program"):
            name_of(text)
    assert name_of(ranks.hello) == "course_utils.ranks:hello"
    assert resolve("course_utils.ranks:FlightLog.all_reduce") is ranks.FlightLog.all_reduce


def test_everything_stays_on_the_loopback_interface():
    name = loopback_interface()
    assert name in psutil.net_if_addrs()
    env = rank_environment(1, 3, 1234)
    assert (env["MASTER_ADDR"], env["MASTER_PORT"], env["RANK"], env["WORLD_SIZE"]) == ("127.0.0.1", "1234", "1", "3")
    if sys.platform != "win32":
        assert env["GLOO_SOCKET_IFNAME"] == name
    words = torchrun_command(ranks.hello, 2)
    assert "--rdzv-endpoint=127.0.0.1:0" in words
    assert words[-1] == "course_utils.ranks:hello"


WITHOUT_NETWORK = """
from course_utils.distributed import launch, torchrun
from course_utils import ranks
if __name__ == "__main__":
    print(launch(ranks.hello, 2, show=True))
    print(torchrun(ranks.hello, 2).readable)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="makes a network of its own with Linux's unshare")
def test_without_a_network_nothing_is_said_of_names(tmp_path):
    """PyTorch looks up the name of each loopback address; without a network that gave a line with the time of day."""
    script = tmp_path / "script.py"
    script.write_text(WITHOUT_NETWORK)
    words = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    if subprocess.run([*words, "true"], capture_output=True).returncode != 0:
        pytest.skip("no network of one's own may be made here")
    ended = subprocess.run(
        [*words, sys.executable, script], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ended.stderr == ""
    assert ended.stdout.count("I am rank 1 of 2") == 2, ended.stdout
    assert "socket.cpp" not in ended.stdout


def test_lines_of_torchrun_get_the_courses_mark():
    assert readable("[default1]:hello") == "[rank 1] hello"
    assert readable("[other]:hello") == "[other]:hello"
    assert readable("E1202 failed") == "E1202 failed"


# --- whoever started them goes ---------------------------------------------------------------------------------------

STARTER = """
from course_utils.distributed import launch, torchrun, processes_left
from tests import rank_programs
if __name__ == "__main__":
    try:
        {start}(rank_programs.{program}, 2, show=True)
    except KeyboardInterrupt:
        print("left:", processes_left(), flush=True)
"""


def marked(token):
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(TOKEN) == token and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


@posix_only
@pytest.mark.parametrize("start", ["launch", "torchrun"])
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL], ids=["interrupt", "kill"])
def test_ranks_end_with_who_started_them(start, end, tmp_path):
    token = uuid4().hex
    program = "spins" if start == "launch" else "sleeps"
    script = tmp_path / "starter.py"
    script.write_text(STARTER.format(start=start, program=program))
    env = {**os.environ, TOKEN: token, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    starter = subprocess.Popen([sys.executable, str(script)], env=env, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        for line in starter.stdout:
            if "spinning" in line or "asleep" in line:
                break
        assert len(marked(token)) >= 3
        starter.send_signal(end)
        rest = starter.stdout.read() if end == signal.SIGINT else ""
        starter.wait(30)
        deadline = time.monotonic() + 15
        while (left := marked(token)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left == []
        if end == signal.SIGINT:
            assert "left: 0" in rest
    finally:
        starter.kill()
        starter.wait()
        starter.stdout.close()
        for process in marked(token):
            process.kill()


# --- torchrun --------------------------------------------------------------------------------------------------------


@posix_only
@pytest.mark.slow
def test_torchrun_restarts_from_the_checkpoint_and_ends_with_the_same_weights(tmp_path, capsys):
    x, y = load_digits8().train.as_batch()
    for name in ("calm", "restarted"):
        checkpoints.save(tmp_path / name / "data.pt", x=x[:256], y=y[:256])
    settings = {"epochs": 2, "every": 3}
    launch(ranks.train_on, 2, folder=str(tmp_path / "calm"), **settings)
    ended = torchrun(
        ranks.train_on, 2, max_restarts=1, show=True, folder=str(tmp_path / "restarted"), die_at=5, **settings
    )
    assert ended.exit_code == 0
    assert ended.readable.count("] starts at step 3") == 2
    assert "[rank 1] dies at step 5" in capsys.readouterr().out
    states = [checkpoints.load(tmp_path / name / "final.pt")["model"] for name in ("calm", "restarted")]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@posix_only
def test_torchrun_is_ended_at_its_time_limit():
    with pytest.raises(RankError, match="still running after 3 s"):
        torchrun(programs.sleeps, 1, timeout_s=3)
