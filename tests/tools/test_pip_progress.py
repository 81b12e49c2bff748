"""What somebody sees who waits for pip."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from course_utils.tools import pip_progress
from course_utils.tools.pip_progress import LiveLine, PipProgress, package_name


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, in a list to change it."""
    now = [0.0]
    monkeypatch.setattr(pip_progress.time, "monotonic", lambda: now[0])
    return now


def test_on_a_terminal_one_line_is_redrawn_and_cleared(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    line = LiveLine(stream)
    line.show("a long text")
    line.show("short")
    line.say("done")
    assert stream.getvalue() == "\ra long text\rshort      \r     \rdone\n"


def test_a_text_wider_than_the_terminal_is_cut(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "10")
    stream = Terminal()
    LiveLine(stream).show("0123456789abc")
    assert stream.getvalue() == "\r012345678"


def test_elsewhere_the_state_is_repeated_every_ten_seconds(clock):
    stream = io.StringIO()
    line = LiveLine(stream)
    line.say("Installing.")
    for second in range(25):
        clock[0] = second
        line.show(f"at {second}")
    assert stream.getvalue() == "Installing.\nat 10\nat 20\n"


def test_pips_output_becomes_what_is_downloaded_and_how_much_of_it(tmp_path: Path):
    now = [0.0]
    progress = PipProgress(tmp_path, None, clock=lambda: now[0])
    assert progress.text() == "looking for packages, 0:00"
    progress.read("Collecting torch==2.14.1 (from -r requirements.txt (line 5))")
    assert progress.text() == "looking at torch==2.14.1, 0:00"
    progress.read("  Downloading torch-2.14.1-cp311-cp311-manylinux_2_28_x86_64.whl (812.3 MB)")
    (tmp_path / "part").write_bytes(bytes(3_000_000))
    now[0] = 75.0
    assert progress.text() == "downloading torch 2.14.1: 3 of 812 MB, 1:15"


def test_small_downloads_need_no_size(tmp_path: Path):
    progress = PipProgress(tmp_path, None, clock=lambda: 0.0)
    progress.read("  Downloading click-8.5.1-py3-none-any.whl (108 kB)")
    assert progress.text() == "downloading click 8.5.1, 0:00"


def test_installing_counts_the_packages_that_are_there(tmp_path: Path):
    (tmp_path / "pip-23.2.1.dist-info").mkdir()
    progress = PipProgress(tmp_path, tmp_path, clock=lambda: 0.0)
    progress.read("Installing collected packages: sympy, numpy, torch")
    assert progress.text() == "installing 3 packages: 0 done, 0:00"
    (tmp_path / "numpy-2.4.6.dist-info").mkdir()
    assert progress.text() == "installing 3 packages: 1 done (numpy 2.4.6), 0:00"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("torch-2.14.1+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", "torch 2.14.1+cpu"),
        ("https://files.example/a/tiny-1.0.tar.gz", "tiny 1.0"),
        ("tiny-1.0-py3-none-any.whl.metadata", "tiny 1.0"),
        ("numpy-2.4.6", "numpy 2.4.6"),
    ],
)
def test_a_file_name_tells_package_and_version(file, name):
    assert package_name(file) == name
