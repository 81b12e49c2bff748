"""Every claim of the ledger, measured once on this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from course_utils.claims.ledger import Claim, Evidence, all_claims
from course_utils.claims.running import Result, recorded, recorded_release, release, run_claim
from course_utils.claims.verdicts import ERROR, NEEDS_CUDA, OPINION, TRUE
from course_utils.tools.ledger import PAGE, stored_page_text

CLAIMS = all_claims()
LETTERS = {
    "tensors": "T",
    "autograd": "A",
    "modules": "M",
    "data": "D",
    "training": "L",
    "memory": "P",
    "distributed": "R",
    "export": "X",
}
every = pytest.mark.parametrize("claim", CLAIMS, ids=[claim.id for claim in CLAIMS])
_results: dict[str, Result] = {}


def measured(claim: Claim) -> Result:
    if claim.id not in _results:
        _results[claim.id] = run_claim(claim)
    return _results[claim.id]


def test_ids_are_unique_sorted_and_tell_the_lesson():
    for name, letter in LETTERS.items():
        ids = [claim.id for claim in CLAIMS if claim.lesson == name]
        assert len(set(ids)) == len(ids)
        assert all(re.fullmatch(rf"{letter}\d\d\d", claim_id) for claim_id in ids), ids


@every
def test_the_measurement_works_and_its_evidence_is_plain(claim):
    result = measured(claim)
    assert result.verdict != ERROR, result.evidence
    assert result.evidence
    assert all(isinstance(value, (bool, int, float, str)) for value in result.evidence.values()), result.evidence
    json.dumps(result.to_dict(), allow_nan=False)


@every
def test_what_is_not_plainly_true_says_what_is_right(claim):
    if measured(claim).verdict == TRUE:
        return
    assert claim.right.endswith("."), claim.right
    assert claim.page.startswith("https://"), claim.page


@every
def test_the_verdict_is_the_recorded_one(claim):
    """Another release may differ, which is what the ledger is for; this one may not, unless the claim says so."""
    if claim.varies or release() != recorded_release():
        pytest.skip("varies between machines" if claim.varies else "another release")
    assert recorded()[claim.id] == measured(claim).verdict


@every
def test_no_rule_has_its_verdict_written_down(claim):
    """Other evidence, another verdict: the rule looks at what was seen. A recommendation may remain one."""
    verdict = measured(claim).verdict
    if verdict in (OPINION, NEEDS_CUDA):
        return
    said = {_verdict(claim, evidence) for evidence in _others(measured(claim).evidence)}
    assert said - {verdict, None}, f"{claim.id} says {verdict} whatever is seen"


def _verdict(claim: Claim, evidence: Evidence) -> str | None:
    try:
        return claim.rule(evidence)
    except Exception:
        return None


def _others(seen: Evidence) -> Iterator[Evidence]:
    """Yield evidence in which one value, or all of them, came out otherwise."""
    changed = {name: _opposites(value) for name, value in seen.items()}
    for name, values in changed.items():
        for value in values:
            yield {**seen, name: value}
    for turn in range(max(map(len, changed.values()))):
        yield {name: values[turn % len(values)] for name, values in changed.items()}


def _opposites(value: object) -> list:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [0, value + 1, value - 1, value * 1000 + 1000, -value - 1000]
    return ["RuntimeError: something else", "works", "none", ""]


def test_the_page_is_in_step_with_the_ledger():
    assert PAGE.read_text(encoding="utf-8") == stored_page_text()
