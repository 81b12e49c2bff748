"""Capturing, counting and timing compiled functions, with nothing left behind."""

from __future__ import annotations

import doctest
import logging
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import nn

from course_utils import compiling
from course_utils.compiling import (
    Captured,
    break_even,
    break_reasons,
    compilations,
    has_compiler,
    quiet_compiler,
    time_calls,
)


def branches(x):
    x = x * 2
    if x.sum() > 0:
        return x + 1
    return x - 1


def test_a_plain_function_is_one_graph_with_its_operators_in_order():
    captured = Captured()
    with quiet_compiler():
        result = torch.compile(lambda x: (x * 2).relu(), backend=captured)(torch.tensor([1.0, -1.0]))
    assert result.tolist() == [2.0, 0.0]
    assert captured.operators() == [["mul", "relu"]]


def test_a_branch_on_a_value_breaks_the_graph_and_says_so():
    assert len(break_reasons(branches, torch.ones(3))) == 1
    assert break_reasons(lambda x: x + 1, torch.ones(3)) == []


def test_compilations_are_counted_call_by_call():
    sizes = [(torch.rand(n, 4),) for n in (8, 8, 5, 3, 7)]
    assert compilations(lambda x: x * 2, sizes) == [1, 1, 2, 2, 2]


def test_settings_come_back_also_after_an_error():
    level, before = logging.getLogger("torch._dynamo").level, os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    with suppress(ZeroDivisionError), quiet_compiler() as folder:
        inside, existed = os.environ["TORCHINDUCTOR_CACHE_DIR"], folder.is_dir()
        raise ZeroDivisionError
    assert (inside, existed) == (str(folder), True)
    assert os.environ.get("TORCHINDUCTOR_CACHE_DIR") == before
    assert logging.getLogger("torch._dynamo").level == level
    assert not folder.exists()


def test_the_compiler_leaves_neither_files_nor_processes():
    """In a process of its own: whether a folder is made depends on who imports Dynamo first."""
    if not has_compiler():
        pytest.skip("no C++ compiler on this machine")
    program = (
        "import psutil, torch\n"
        "from course_utils.compiling import compiled_here, quiet_compiler\n"
        "x = torch.linspace(-3, 3, 100)\n"
        "with quiet_compiler() as folder:\n"
        "    y = compiled_here(lambda x: (x * 2 + 1).tanh())(x)\n"
        "    assert any(folder.rglob('*.so')) or any(folder.rglob('*.pyd'))\n"
        "assert torch.allclose(y, (x * 2 + 1).tanh())\n"
        "print(len(psutil.Process().children(recursive=True)))\n"
    )
    with TemporaryDirectory() as scratch:
        environment = os.environ | {"TMPDIR": scratch, "TEMP": scratch}
        environment.pop("TORCHINDUCTOR_CACHE_DIR", None)
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        left = list(Path(scratch).iterdir())
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr[-2000:]
    assert left == []


def test_inside_nothing_is_compiled_yet_and_afterwards_it_is_forgotten():
    captured = Captured()
    for _ in range(2):
        with quiet_compiler():
            compiled = torch.compile(nn.ReLU(), backend=captured)
            compiled(torch.ones(2))
            compiled(torch.ones(2))
    assert captured.count == 2


def test_has_compiler_says_what_the_probe_finds(monkeypatch):
    monkeypatch.setattr(compiling, "find_a_compiler", lambda: None)
    assert has_compiler()

    def missing():
        raise RuntimeError("no C++ compiler on the path")

    monkeypatch.setattr(compiling, "find_a_compiler", missing)
    assert not has_compiler()


def test_first_and_later_calls_are_timed_apart(monkeypatch):
    ticks = iter([0.0, 9.0, 10.0, 11.0, 20.0, 23.0, 30.0, 32.0])
    monkeypatch.setattr(compiling.time, "perf_counter", lambda: next(ticks))
    times = time_calls(lambda: None, repeats=3)
    assert (times.first_s, times.later_s) == (9.0, 2.0)


@pytest.mark.parametrize(
    ("first", "later", "plain"), [(10.0, 0.5, 1.0), (10.0, 0.9, 1.0), (1.5, 0.5, 1.0), (0.5, 2.0, 1.0), (3.0, 1.0, 2.0)]
)
def test_break_even_is_the_first_count_at_which_the_sum_is_lower(first, later, plain):
    count = next(n for n in range(1, 1000) if first + (n - 1) * later < n * plain)
    assert break_even(first, later, plain) == count


@pytest.mark.parametrize("later", [1.0, 2.0])
def test_what_is_no_faster_never_pays(later):
    assert break_even(10.0, later, 1.0) is None


def test_the_example_in_the_documentation_is_true():
    failed, tried = doctest.testmod(compiling)
    assert (failed, tried > 0) == (0, True)
