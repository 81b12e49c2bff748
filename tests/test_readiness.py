"""What the lessons need beyond arithmetic: each probe tries the thing, and says what to do when it fails."""

from __future__ import annotations

import shutil
import socket
import tempfile
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from psutil import Process

from course_utils import readiness
from course_utils.lessons import LESSONS
from course_utils.readiness import Finding, Probe


def failing() -> None:
    raise OSError("no such thing")


BROKEN = Probe("a thing", "01", "Buy one.", failing)
OPTIONAL = Probe("a toy", "01", "Optional: buy one.", failing, required=False)
FINE = Probe("air", "01", "Open a window.", lambda: None)


def test_this_machine_has_what_the_lessons_need():
    findings = readiness.examine()
    assert readiness.summary(findings) == "This machine has what the lessons need.", readiness.remedies(findings)


def test_probes_leave_no_process_and_no_group_behind():
    before = set(Process().children(recursive=True))
    readiness.examine()
    assert not dist.is_initialized()
    assert set(Process().children(recursive=True)) <= before


def test_a_failing_probe_is_a_finding_with_its_remedy():
    findings = readiness.examine([FINE, BROKEN, OPTIONAL])
    assert [finding.works for finding in findings] == [True, False, False]
    assert readiness.remedies(findings)[0] == "a thing: OSError: no such thing. Buy one."
    assert readiness.summary(findings) == "Missing on this machine: a thing. The remedies stand above."
    for words in ("air", "works", "MISSING", "not there (optional)"):
        assert words in readiness.findings_table(findings)


def test_optional_things_do_not_count():
    assert "has what" in readiness.summary([Finding(OPTIONAL, "no such thing")])


def test_a_full_disk_is_found(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=5 * 2**20))
    (finding,) = readiness.examine([readiness.PROBES[0]])
    assert "only 5 MiB are free" in finding.problem


def test_a_temporary_folder_that_cannot_be_written_is_found(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "missing"))
    assert not readiness.examine([readiness.PROBES[0]])[0].works


@pytest.mark.parametrize(
    ("attempt", "module", "name", "replacement"),
    [
        (readiness.open_a_port, socket, "create_connection", lambda *_, **__: failing()),
        (readiness.join_a_process_group, dist, "is_available", lambda: False),
        (readiness.join_a_process_group, dist, "init_process_group", lambda *_, **__: failing()),
        (readiness.import_exporters, readiness, "import_module", lambda name: failing()),
        (readiness.import_service, readiness, "import_module", lambda name: failing()),
        (readiness.find_a_compiler, shutil, "which", lambda name: None),
        (readiness.start_a_worker, readiness, "DataLoader", lambda *_, **__: iter([])),
    ],
)
def test_each_probe_notices_that_its_thing_is_missing(attempt, module, name, replacement, monkeypatch):
    monkeypatch.setattr(module, name, replacement)
    assert not readiness.examine([Probe("it", "01", "Do.", attempt)])[0].works


def test_probes_name_lessons_and_say_what_to_do():
    numbers = {lesson.number for lesson in LESSONS}
    for probe in readiness.PROBES:
        assert probe.remedy.endswith(".")
        assert probe.lesson in numbers
