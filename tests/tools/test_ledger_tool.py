"""The claims command: choosing, printing, storing."""

from __future__ import annotations

import json

import pytest

from course_utils import cli
from course_utils.claims import ledger as claims
from course_utils.errors import UsageError
from course_utils.lessons import find_lesson
from course_utils.tools import ledger


def test_names_choose_claims_and_lessons_each_once_in_order():
    assert [claim.id for claim in ledger.chosen(["t009", "T004", "T009"])] == ["T004", "T009"]
    assert ledger.chosen(["01", "T004"]) == list(claims.claims_of(find_lesson("tensors")))
    assert ledger.chosen([]) == list(claims.all_claims())
    with pytest.raises(UsageError, match="Did you mean"):
        ledger.chosen(["T00"])


def test_the_command_prints_each_claim_with_its_verdict(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.run(["claims", "T004", "T009"]) == 0
    said = capsys.readouterr().out
    assert "T004  false" in said
    assert "2 claims measured" in said


def test_json_has_the_keys_that_others_read(capsys):
    assert cli.run(["claims", "T004", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert {"id", "lesson", "verdict", "evidence", "correction", "seconds"} <= set(entry)
    assert entry["lesson"] == "tensors"


def test_a_failing_measurement_ends_in_status_1_and_the_others_are_measured(capsys, monkeypatch):
    broken = claims.Claim(id="T000", sentence="s", lesson="tensors", measure=lambda: 1 / 0, rule=lambda seen: "true")
    monkeypatch.setattr(ledger, "all_claims", lambda: (broken, claims.find_claim("T009")))
    assert cli.run(["claims", "--json"]) == 1
    assert [entry["verdict"] for entry in json.loads(capsys.readouterr().out)] == ["error", "true"]


def test_storing_writes_record_and_page_and_takes_no_names(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ledger, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(ledger, "PAGE", tmp_path / "docs" / "claims.md")
    (tmp_path / "docs").mkdir()
    assert cli.run(["claims", "T004", "--store"]) == 2
    monkeypatch.setattr(ledger, "all_claims", lambda: (claims.find_claim("T004"),))
    assert cli.run(["claims", "--store", "--json"]) == 0
    assert json.loads((tmp_path / "record.json").read_text())["verdicts"] == {"T004": "false"}
    assert "| T004 | view requires" in (tmp_path / "docs" / "claims.md").read_text()


def _release_file(tmp_path, release: str, **verdicts: str):
    path = tmp_path / "other.json"
    path.write_text(json.dumps([{"id": name, "verdict": said, "torch": release} for name, said in verdicts.items()]))
    return path


def test_another_release_is_kept_and_its_differences_are_on_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ledger, "RELEASES", tmp_path / "releases")
    monkeypatch.setattr(ledger, "PAGE", tmp_path / "claims.md")
    path = _release_file(tmp_path, "1.99.0", T004="true", T009="true")
    assert cli.run(["claims", "--release", str(path)]) == 0
    assert json.loads((tmp_path / "releases" / "1.99.0.json").read_text()) == {"T004": "true", "T009": "true"}
    section = (tmp_path / "claims.md").read_text().partition("## What changed between releases")[2]
    assert "| T004 | view requires a contiguous tensor and otherwise raises an error. | true | false |" in section
    assert "T009" not in section
    assert cli.run(["claims", "--release", str(path), "--json"]) == 2


@pytest.mark.parametrize(("text", "words"), [("nonsense", "holds no claims"), ("[]", "holds no claims")])
def test_a_file_that_holds_no_release_is_refused(tmp_path, monkeypatch, text, words):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        ledger.store_release(path)


def test_the_recorded_release_is_no_other_release(tmp_path):
    with pytest.raises(UsageError, match="as the record was"):
        ledger.store_release(_release_file(tmp_path, ledger.recorded_release(), T004="true"))
