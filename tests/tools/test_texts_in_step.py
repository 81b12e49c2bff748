"""The stored catalogue of texts is the one that the sources give today."""

from __future__ import annotations

import json

from course_utils.tools import texts


def test_the_catalogue_is_in_step_with_the_sources():
    stored = json.loads(texts.CATALOGUE.read_text(encoding="utf-8"))
    differences = texts.stale(stored, texts.catalogue())
    assert differences == {}, "python3 course.py build writes it anew"
    assert texts.CATALOGUE.read_text(encoding="utf-8") == texts.catalogue_text()
