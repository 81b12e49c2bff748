"""``course.py doctor``: from a file to a report, with a sentence for everything that can be wrong with the file."""

from __future__ import annotations

import json

import pytest

from course_utils import cli
from course_utils.tools import checkup

SET_UP = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    batches = [(torch.randn(8, 3), torch.randn(8{shape})) for _ in range(4)]
    return dict(model=model, loader=batches, loss_fn=nn.MSELoss(),
                optimizer=torch.optim.SGD(model.parameters(), lr=0.01))

def nothing():
    return None

def fails():
    raise RuntimeError("no data here")
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "my_training_set_up.py"
    path.write_text(SET_UP.format(shape=""), encoding="utf-8")
    return path


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_sick_program_is_named_and_ends_in_status_1(program, capsys):
    assert cli.run(["doctor", str(program)]) == 1
    assert "loss.broadcast" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_json_has_the_keys_that_others_read(program, capsys):
    assert cli.run(["doctor", f"{program}:make", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert {"findings", "seconds"} <= set(report)
    assert {"code", "severity", "message", "evidence", "fix", "lesson"} <= set(report["findings"][0])


def test_a_healthy_program_ends_in_status_0(program, capsys):
    program.write_text(SET_UP.format(shape=", 1"), encoding="utf-8")
    assert cli.run(["doctor", str(program)]) == 0


@pytest.mark.parametrize(
    ("function", "words"),
    [(":nothing", "returned no dict"), (":fails", "no data here"), (":mak", "Did you mean 'make'")],
)
def test_a_function_that_gives_no_set_up_is_told(program, capsys, function, words):
    assert cli.run(["doctor", f"{program}{function}"]) == 2
    assert words in capsys.readouterr().err


def test_files_that_are_missing_or_broken_are_told(tmp_path, capsys):
    assert cli.run(["doctor", str(tmp_path / "none.py")]) == 2
    assert "There is no Python file" in capsys.readouterr().err
    broken = tmp_path / "broken_set_up.py"
    broken.write_text("import no_such_package_here", encoding="utf-8")
    assert cli.run(["doctor", str(broken)]) == 2
    assert "can't be imported" in capsys.readouterr().err


def test_the_page_is_in_step_with_the_rules():
    assert checkup.PAGE.read_text(encoding="utf-8") == checkup.page_text()
