"""The framework of the claims: entering, finding, measuring, showing."""

from __future__ import annotations

import json

import pytest
import torch

from course_utils import claim as show_claim
from course_utils.claims import running
from course_utils.claims.evidence import WORKS, attempt, time_ratio, warnings_of
from course_utils.claims.ledger import DOCS, Claim, Page, find_claim
from course_utils.claims.render import card, summary_text, value_text
from course_utils.claims.running import Result, record_text, release, run_claim
from course_utils.claims.verdicts import CAVEAT, ERROR, FALSE, OPINION, TRUE
from course_utils.errors import UsageError


def made(measure, rule=lambda seen: TRUE, **more) -> Claim:
    return Claim(id="Z001", sentence="It rains.", lesson="tensors", measure=measure, rule=rule, **more)


def test_stacked_claims_share_a_measurement_and_keep_the_order_of_reading():
    page = Page("tensors")

    @page.claim("Z001", "one", rule=lambda seen: TRUE, page="a.html")
    @page.claim("Z002", "two", rule=lambda seen: FALSE, page="https://example.org/b")
    def both():
        return {"seen": 1}

    @page.claim("Z003", "three", rule=lambda seen: TRUE)
    def other():
        return {}

    assert [claim.id for claim in page.claims] == ["Z001", "Z002", "Z003"]
    assert [claim.page for claim in page.claims] == [DOCS + "a.html", "https://example.org/b", ""]
    assert page.claims[0].measure is page.claims[1].measure is both


def test_a_claim_is_found_in_small_letters_and_a_near_miss_is_named():
    assert find_claim("t004").id == "T004"
    with pytest.raises(UsageError, match=r"Did you mean 'T0\d4'"):
        find_claim("T0O4")


def test_the_verdict_follows_from_what_is_seen(monkeypatch):
    claim = made(
        lambda: {"sum": torch.ones(2).sum().item()}, lambda seen: TRUE if seen["sum"] == 2 else FALSE, right="x"
    )
    assert run_claim(claim).verdict == TRUE
    monkeypatch.setattr(torch.Tensor, "sum", lambda self: self.max())
    result = run_claim(claim)
    assert (result.verdict, result.evidence) == (FALSE, {"sum": 1.0})


@pytest.mark.parametrize(
    ("measure", "rule", "words"),
    [
        (lambda: 1 / 0, lambda seen: TRUE, "ZeroDivisionError"),
        (lambda: {}, lambda seen: seen["missing"], "KeyError"),
        (lambda: {}, lambda seen: "maybe", "no verdict"),
    ],
)
def test_a_failing_measurement_is_a_result_of_its_own(measure, rule, words):
    result = run_claim(made(measure, rule, right="never shown"))
    assert result.verdict == ERROR
    assert words in result.evidence["error"]
    assert result.correction == ""


def test_measuring_leaves_random_states_and_settings_alone_and_is_repeatable(capsys):
    def measure():
        print("noise")
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        return {"drawn": torch.rand(1).item()}

    torch.manual_seed(3)
    before = torch.get_rng_state()
    first, second = run_claim(made(measure)), run_claim(made(measure))
    assert first.evidence == second.evidence
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()
    assert capsys.readouterr().out == ""


def result(verdict=FALSE, **more) -> Result:
    parts = {"evidence": {"ok": True, "count": 1234, "ratio": 1.23456, "text": "a"}, "correction": "It snows. (p)"}
    return Result(
        **{"id": "Z001", "lesson": "tensors", "verdict": verdict, "seconds": 0.1, "sentence": "It rains."}
        | parts
        | more
    )


def test_the_card_gives_verdict_guess_evidence_and_correction():
    text = card(result(), "false").text
    for words in (
        "“It rains.”",
        "verdict:    false",
        "false, as measured",
        "ok: yes",
        "count: 1,234",
        "ratio: 1.235",
        "It snows.",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("guess", "words"),
    [
        (..., "none yet"),
        ("True ", "true, but the measurement says false"),
        ("flase", "Did you mean 'false'"),
        (7, "no verdict"),
    ],
)
def test_the_card_answers_every_guess(guess, words):
    assert words in card(result(), guess).text


def test_another_verdict_than_on_the_authors_machine_is_said():
    assert "said 'true'" in card(result(recorded="true")).text
    assert "elsewhere" not in card(result(recorded="false")).text


def test_claim_never_raises(capsys):
    show_claim("nothing")
    show_claim("T004", object())
    assert "no claim called" in capsys.readouterr().out


def test_a_record_is_sorted_and_names_the_release(monkeypatch, tmp_path):
    text = record_text([result(id="Z002"), result(CAVEAT)])
    assert json.loads(text) == {"torch": release(), "verdicts": {"Z001": CAVEAT, "Z002": FALSE}}
    assert text.index("Z001") < text.index("Z002")


def test_without_a_record_nothing_differs(monkeypatch, tmp_path):
    monkeypatch.setattr(running, "RECORD", tmp_path / "none.json")
    running._record.cache_clear(), running.recorded.cache_clear()
    try:
        assert running.recorded() == {}
        assert not run_claim(made(dict)).differs
    finally:
        running._record.cache_clear(), running.recorded.cache_clear()


def test_small_tools_for_measurements():
    assert attempt(lambda: None) == WORKS
    assert attempt(lambda: [][1]) == "IndexError: list index out of range"
    assert warnings_of(lambda: None) == "none"
    assert warnings_of(lambda: torch.nn.functional.mse_loss(torch.ones(2), torch.ones(2, 1))).startswith(
        "UserWarning: Using"
    )
    assert time_ratio(lambda: sum(range(20_000)), lambda: None) > 1


def test_summary_counts_verdicts():
    assert summary_text([result(), result(), result(OPINION)]) == "3 claims measured in 0 s: 2 false, 1 opinion."
    assert value_text(False) == "no"
