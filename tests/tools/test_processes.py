"""Trees of processes: counted, measured, and ended to the last."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from course_utils.paths import ROOT
from course_utils.tools import processes

ADOPT = "from course_utils.tools import processes; processes.adopt_orphans()"


DAEMON = """
import os, time
{adopt}
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)
os.wait()
print("ready", flush=True)
time.sleep(1000)
"""


def start(script: str) -> subprocess.Popen:
    """Start a Python process and wait until it has said a line."""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT)
    process.stdout.readline()
    return process


def stop(process: subprocess.Popen) -> None:
    """Kill a process, whoever else holds its output."""
    process.kill()
    process.stdout.close()
    process.wait()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux hands orphans to an ancestor")
def test_a_daemon_stays_below_a_process_that_adopts_orphans():
    process = start(DAEMON.format(adopt=ADOPT))
    try:
        assert len(processes.below(process.pid)) == 1
        assert processes.end_below(process.pid) == []
        assert processes.below(process.pid) == []
        assert process.poll() is None
    finally:
        stop(process)


def test_a_daemon_that_left_is_found_by_its_environment(monkeypatch):
    monkeypatch.setenv("COURSE_TEST_TOKEN", f"{os.getpid()}-{time.time()}")
    token = os.environ["COURSE_TEST_TOKEN"]
    process = start(DAEMON.format(adopt=""))
    stop(process)
    found = processes.marked("COURSE_TEST_TOKEN", token)
    assert len(found) == 1
    processes.end(found)
    psutil.wait_procs(found, timeout=5)
    assert processes.marked("COURSE_TEST_TOKEN", token) == []


def test_a_meter_counts_everything_below_and_remembers_the_peak():
    child = start("import os, time\nos.fork()\nx = bytearray(50_000_000)\nprint('ready', flush=True)\ntime.sleep(1000)")
    time.sleep(0.3)  # the fork may be a little later than its parent
    meter = processes.Meter(os.getpid())
    try:
        meter.sample()
        assert meter.processes >= 2
        assert meter.peak_bytes >= meter.memory_bytes > 95_000_000
        assert meter.cpu_seconds > 0
    finally:
        processes.end_below(child.pid)
        stop(child)
    before = meter.cpu_seconds
    meter.sample()
    assert meter.peak_bytes > 95_000_000
    assert meter.cpu_seconds >= before


def test_asking_about_a_process_that_is_gone_is_no_error():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert processes.below(process.pid) == []
    assert processes.end_below(process.pid) == []
    processes.Meter(process.pid).sample()


def test_cores_and_memory_are_positive_and_follow_a_container(tmp_path, monkeypatch):
    assert 1 <= processes.core_count() <= os.cpu_count()
    assert processes.available_memory_bytes() > 0
    values = {"cpu.max": ["100000 100000"], "memory.max": ["1000"], "memory.current": ["400"]}
    monkeypatch.setattr(processes, "_cgroup_values", lambda name: iter(values[name]))
    assert processes.core_count() == 1
    assert processes.available_memory_bytes() == 600
    monkeypatch.setattr(processes, "_cgroup_values", lambda name: iter(["max 100000" if name == "cpu.max" else "max"]))
    assert processes.core_count() >= 1
    assert processes.available_memory_bytes() > 600


def test_last_words_are_the_crash_and_the_lessons_part_of_the_stack(tmp_path):
    log = tmp_path / "log"
    log.write_text(
        'noise\nFatal Python error: Segmentation fault\n\nThread 0x1 (most recent call first):\n  File "a.py"\n\n'
        "Current thread 0x2 (most recent call first):\n"
        '  File "/tmp/ipykernel_12/345.py", line 3 in crash\n'
        '  File "/x/site-packages/torch/nn.py", line 9 in forward\n'
        f'  File "/x/site-packages{os.sep}IPython{os.sep}core.py", line 1 in run\n'
        '  File "later.py", line 1 in never\n'
    )
    assert processes.last_words(log).splitlines() == [
        "Fatal Python error: Segmentation fault",
        "Most recent call first:",
        '  File "<cell>", line 3 in crash',
        '  File "/x/site-packages/torch/nn.py", line 9 in forward',
    ]


def test_last_words_without_a_stack_are_the_last_lines(tmp_path):
    (tmp_path / "log").write_text("\n".join(map(str, range(100))))
    assert processes.last_words(tmp_path / "log").splitlines() == [str(n) for n in range(80, 100)]
    assert processes.last_words(tmp_path / "none") == ""


@pytest.mark.skipif(not hasattr(select, "poll"), reason="Windows can't ask a pipe whether its other end is closed")
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_helper_ends_with_its_input_in_the_block_and_reads_nothing_of_it(tmp_path, goes_on):
    program = f"""
        import sys, time
        from pathlib import Path
        from course_utils.tools.processes import ending_with_input
        with ending_with_input(lambda: Path({str(tmp_path / "cleaned")!r}).touch()):
            print("begun", flush=True)
            time.sleep({0.3 if goes_on else 60})
        print("out", flush=True)
        print(sys.stdin.read(), flush=True)
    """
    helper = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert helper.stdout.readline() == "begun\n"
    if goes_on:
        helper.stdin.write("kept")
        helper.stdin.flush()
        assert helper.stdout.readline() == "out\n"
        assert helper.communicate(timeout=30)[0] == "kept\n"
    else:
        started = time.monotonic()
        assert helper.communicate(timeout=30)[0] == ""
        assert time.monotonic() - started < 10
        assert helper.returncode == 1
        assert (tmp_path / "cleaned").exists()


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_each_way_of_ending_a_process_is_an_interrupt_inside_the_block_and_an_ignored_one_stays_ignored():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        with processes.ends_interrupt(), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with processes.ends_interrupt():
            signal.raise_signal(signal.SIGHUP)
            assert signal.SIGHUP not in processes.ends()
    finally:
        signal.signal(signal.SIGHUP, before[signal.SIGHUP])
    assert {number: signal.getsignal(number) for number in before} == before
