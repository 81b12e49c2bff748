"""Kernels of batch runs and the trees of processes below them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from course_utils.paths import ROOT
from course_utils.tools.kernels import (
    THREAD_VARIABLES,
    GuardedKernelManager,
    kernel_environment,
    kernel_spec,
    scratch_variables,
)


def test_threads_wait_without_spinning_unless_the_user_says_otherwise():
    assert kernel_environment(2, "t", Path("/f"), base={})["OMP_WAIT_POLICY"] == "PASSIVE"
    base = {"OMP_WAIT_POLICY": "ACTIVE"}
    assert kernel_environment(2, "t", Path("/f"), base=base)["OMP_WAIT_POLICY"] == "ACTIVE"


def test_numeric_libraries_get_their_share_of_the_cores():
    env = kernel_environment(3, "t", Path("/f"), base={})
    assert {env[name] for name in THREAD_VARIABLES} == {"3"}


@pytest.mark.parametrize(("own", "expected"), [("2", "2"), ("8", "3"), ("", "3"), ("0", "3"), ("many", "3")])
def test_a_user_may_ask_for_fewer_threads_but_not_for_more(own, expected):
    assert kernel_environment(3, "t", Path("/f"), base={"OMP_NUM_THREADS": own})["OMP_NUM_THREADS"] == expected


def test_the_course_comes_first_on_the_path_and_once():
    base = {"PYTHONPATH": os.pathsep.join(["/other", str(ROOT)])}
    assert kernel_environment(1, "t", Path("/f"), base=base)["PYTHONPATH"] == os.pathsep.join([str(ROOT), "/other"])


def test_the_choice_of_a_drawing_backend_is_left_alone():
    assert "MPLBACKEND" not in kernel_environment(1, "t", Path("/f"), base={})
    assert kernel_environment(1, "t", Path("/f"), base={"MPLBACKEND": "agg"})["MPLBACKEND"] == "agg"


def test_a_kernel_does_not_know_that_it_runs_under_pytest():
    assert "PYTEST_CURRENT_TEST" in os.environ
    assert "PYTEST_CURRENT_TEST" not in kernel_environment(1, "t", Path("/f"))


def test_the_kernel_is_that_of_this_interpreter(tmp_path):
    assert kernel_spec(tmp_path / "log").argv[:3] == [sys.executable, "-m", "ipykernel_launcher"]


def test_a_long_path_takes_ports_since_sockets_need_short_ones(tmp_path):
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    assert GuardedKernelManager(folder=folder, kernel_name="python3").transport == "tcp"


def test_temporary_files_go_into_the_folder_unless_its_path_is_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr("course_utils.tools.kernels.SCRATCH_PATH_LIMIT", len(str(tmp_path)) + 5)
    assert scratch_variables(tmp_path)["TMPDIR"] == str(tmp_path / "t")
    assert (tmp_path / "t").is_dir()
    deeper = tmp_path / "deeper"
    deeper.mkdir()
    assert scratch_variables(deeper) == {}
    assert list(deeper.iterdir()) == []
