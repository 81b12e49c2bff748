"""Ctrl-C once and twice, and a terminal that is closed: an end within 5 s, a word about what is kept, nothing left."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest

from tests.faults.campaign import draws, report, size
from tests.faults.commands import COMMANDS, SPAN_S, START_S, going
from tests.tools.running import left_over, marked_processes

pytestmark = [
    pytest.mark.alone,
    pytest.mark.faults,
    pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs the signals of a terminal"),
]
PATIENCE_S = 5.0  # on an idle machine
WAYS = {"once": [signal.SIGINT], "twice": [signal.SIGINT, signal.SIGINT], "closed": [signal.SIGHUP]}
SAMPLE = [("build", "twice")]  # the usual tests interrupt a run and a grading once


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", COMMANDS)
def test_an_interrupt_ends_a_command_soon_and_in_order(name, way, tmp_path):
    trials = size(sample=(name, way) in SAMPLE, whole=4)
    if not trials:
        pytest.skip("a part of course.py test --faults")
    command, slowest = COMMANDS[name], 0.0
    for number in range(trials):
        folder, draw = tmp_path / str(number), draws("interrupt", name, way, number)
        folder.mkdir()
        command.prepare(folder)
        with marked_processes() as mark:
            process = command.start(folder)
            going(command, folder, process)
            time.sleep(draw.uniform(0, SPAN_S[name] / 2))
            clock = time.monotonic()
            for count, number_of_signal in enumerate(WAYS[way]):
                time.sleep(0.3 * count)
                if process.poll() is None:
                    os.killpg(process.pid, number_of_signal)  # as a terminal does: to the whole group
            words, _ = process.communicate(timeout=60)
            slowest = max(slowest, time.monotonic() - clock)
            # What was just starting when its parent went notices it after its imports, and then ends by itself.
            assert left_over(mark, wait_s=5 if way == "once" else 30) == []
        facts = f"{name}, {way}, trial {number}, exit {process.returncode}: {words}"
        busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        assert slowest < PATIENCE_S * busy, f"{slowest:.1f} s on a machine {busy:.1f} times too busy; {facts}"
        command.whole(folder)
        if process.returncode in (0, -signal.SIGINT):
            continue  # it had done its work: the signal met its end
        if way != "closed":
            assert process.returncode == 130, facts
            assert "Traceback" not in words, facts
            assert "nterrupted" in words, facts
    report(f"interrupt, {name}, {way}", f"{trials} times, {slowest:.1f} s at most (load {os.getloadavg()[0]:.1f})")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_closed_terminal_leaves_no_process_that_gets_no_turn(name, number, tmp_path):
    """On a crowded machine a process that has just started notices late that its starter is gone. Here: never."""
    if (name, number) != ("grade", signal.SIGHUP) and not size(0, 1):
        pytest.skip("a part of course.py test --faults")
    command = COMMANDS[name]
    command.prepare(tmp_path)
    with marked_processes() as mark:
        process = command.start(tmp_path)
        going(command, tmp_path, process)
        deadline = time.monotonic() + START_S
        me = psutil.Process(process.pid)
        # One whose command line is still its parent's has not begun to be what it will be.
        while not (below := [child for child in me.children() if child.cmdline() != me.cmdline()]):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for child in below:
            child.suspend()
        os.killpg(process.pid, number)
        process.communicate(timeout=60)
        assert left_over(mark, wait_s=5) == []
    command.whole(tmp_path)
    report(f"no turn, {name}, {number.name}", f"{len(below)} processes, none left")
