"""Processes that are killed with SIGKILL again and again while they write, and what must be true after each kill.

``python -m tests.faults.victims FOLDER SEED KILLS``, KILLS for each victim: the parent imports what is needed and
computes nothing, then forks one child after the other. A kill falls where no Python code sees it coming: half of them
right before the child's Nth call of a function written in C (so between any two steps of a write), the others after a
random time (so inside a step too). After each kill a second child looks at what is left, and a third does the same work
once more, undisturbed. Prints what it found as JSON.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMED_TRIES = 3  # of a kill by the clock that comes too late


@dataclass(frozen=True)
class Victim:
    """What is done to files, and how to tell that nothing is lost.

    Args:
        prepare: makes the folder ready; runs in a process of its own.
        work: what is killed. It calls what it is given with each number that it has finished with.
        check: raises AssertionError if something is lost; gets the last number that was finished, -1 for none.
        finished: raises AssertionError if the work, done once more, did not end well.
    """

    prepare: Callable[[Path], None]
    work: Callable[[Path, Callable[[int], None]], None]
    check: Callable[[Path, int], None]
    finished: Callable[[Path], None]


def forked(function: Callable[[], Any]) -> None:
    """Run a function in a child and wait for it; its AssertionError, or any other error, comes out here."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        status = 1
        try:
            function()
            status = 0
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}"[:4000].encode())
        finally:
            os._exit(status)
    os.close(write)
    with open(read, "rb") as pipe:
        words = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    if status:
        raise AssertionError(words or f"ended with status {status}")


def killed(
    victim: Victim, folder: Path, *, at_call: int | None = None, after_s: float | None = None
) -> tuple[bool, int]:
    """Do the work in a child and kill it; return whether the kill came in time, and what was finished by then."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        if at_call is not None:
            left = at_call

            def count(_frame: object, event: str, _argument: object) -> None:
                nonlocal left
                if event == "c_call":
                    left -= 1
                    if left == 0:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.setprofile(count)
        status = 1
        try:
            victim.work(folder, lambda number: os.write(write, b"%d\n" % number))
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    if after_s is not None:
        time.sleep(after_s)
        os.kill(child, signal.SIGKILL)  # it waits for us, so this number is its own
    with open(read, "rb") as pipe:
        lines = pipe.read().split()
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, f"the work itself failed in {folder}"
    return os.WIFSIGNALED(status), int(lines[-1]) if lines else -1


def calls_of(victim: Victim, folder: Path) -> tuple[int, float]:
    """Return how many C functions the undisturbed work calls, and how long it takes in seconds."""
    result = folder / "calls"
    victim.prepare(folder / "calls-run")

    def run() -> None:
        counted = 0

        def count(_frame: object, event: str, _argument: object) -> None:
            nonlocal counted
            counted += event == "c_call"

        sys.setprofile(count)
        victim.work(folder / "calls-run", lambda number: None)
        sys.setprofile(None)
        result.write_text(str(counted))

    forked(run)
    started = time.perf_counter()
    victim.prepare(folder / "time-run")
    forked(lambda: victim.work(folder / "time-run", lambda number: None))
    return int(result.read_text()), time.perf_counter() - started


def attack(victim: Victim, folder: Path, draw: random.Random, kills: int) -> dict[str, Any]:
    """Kill a victim many times; return how many kills came in time, and what was lost."""
    folder.mkdir(parents=True)
    calls, seconds = calls_of(victim, folder)
    hits = half_files = 0
    problems: list[str] = []
    for number in range(kills):
        for attempt in range(TIMED_TRIES):
            place = folder / f"{number}-{attempt}"
            forked(lambda place=place: victim.prepare(place))
            if number % 2 == 0:
                how: dict[str, Any] = {"at_call": draw.randint(1, calls)}
            else:
                how = {"after_s": draw.uniform(0, seconds)}
            was_killed, done = killed(victim, place, **how)
            if was_killed:
                break
        hits += was_killed
        half_files += any(path.name.endswith(".tmp") for path in place.rglob("*"))
        try:
            forked(lambda place=place, done=done: victim.check(place, done))
            forked(lambda place=place: victim.work(place, lambda number: None))
            forked(lambda place=place: victim.finished(place))
        except AssertionError as error:
            problems.append(f"kill {number}, {how}, {done + 1} finished before: {error}")
        shutil.rmtree(place)
    return {"kills": hits, "half_files": half_files, "problems": problems}


def main(folder: Path, seed: str, kills: int) -> dict[str, dict[str, Any]]:
    from tests.faults.writers import VICTIMS

    os.fsync = lambda handle: None  # nobody pulls the plug here: what a killed process has written, the system keeps
    return {
        name: attack(victim, folder / str(index), random.Random(f"{seed} {name}"), kills)
        for index, (name, victim) in enumerate(VICTIMS.items())
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))
