"""SIGKILL at any instant: afterwards the same command succeeds, no file is half, no process is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from course_utils.paths import ROOT
from tests.faults.campaign import SEED, report, size
from tests.faults.commands import COMMANDS, kill_and_repeat

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL"),
]


def test_whatever_writes_files_is_killed_at_any_instant_and_nothing_is_lost(tmp_path):
    kills = size(sample=4, whole=40)
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.victims", str(tmp_path / "victims"), str(SEED), str(kills)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=60 + 30 * kills,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for name, facts in found.items():
        report(f"kill, {name}", f"{facts['kills']} kills, {len(facts['problems'])} with a loss")
    assert sum(facts["kills"] for facts in found.values()) > 0.6 * kills * len(found)
    problems = {name: facts["problems"] for name, facts in found.items() if facts["problems"]}
    assert not problems, f"seed {SEED}: {json.dumps(problems, indent=1)}"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_killed_in_its_work_leaves_nothing_and_succeeds_the_next_time(name, tmp_path):
    trials = size(sample=name == "build", whole=6)  # the usual tests kill a run, and interrupt a run and a grading
    if not trials:
        pytest.skip("a part of course.py test --faults")
    kills = sum(kill_and_repeat(name, tmp_path / str(number), number) for number in range(trials))
    report(f"kill, {name}", f"{kills} kills, 0 with a loss")
