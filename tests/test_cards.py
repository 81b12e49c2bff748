"""Cards: the text says everything that the HTML says, and the HTML shows what was typed, not what it means."""

from __future__ import annotations

import re
import sys
import types
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_utils import cards
from course_utils.cards import COLOURS, Card, in_notebook


def test_text_aligns_labels_and_indents_lines_that_follow():
    card = Card("wrong", "Softmax: not right yet", (("seen", "one\ntwo"), ("expected", "rows")), code="x = 1\n\ny = 2")
    assert card.text.split("\n") == [
        "✗ Softmax: not right yet",
        "    seen:     one",
        "              two",
        "    expected: rows",
        "",
        "    x = 1",
        "",
        "    y = 2",
    ]


def test_a_card_without_rows_is_its_headline():
    assert Card("info", "Hello").text == "→ Hello"
    assert "<table" not in Card("info", "Hello").html


def test_an_empty_row_is_its_label():
    assert Card("info", "Hello", (("then", ""),)).text == "→ Hello\n    then:"


printable = st.text(alphabet=st.characters(codec="ascii", categories=("L", "N", "P", "S")), min_size=1, max_size=30)


@given(headline=printable, label=printable, text=printable, code=printable)
def test_html_says_what_the_text_says(headline, label, text, code):
    card = Card("done", headline, ((label, text),), code)
    shown = unescape(re.sub(r"<[^>]+>", " ", card.html))
    for part in (headline, label, text, code):
        assert part in shown
        assert part in card.text


def test_html_of_a_value_is_shown_and_not_obeyed():
    html = Card("info", "<script>", (("<b>", "a < b & c"),), code="x<y").html
    assert "<script>" not in html
    assert "<b>a" not in html
    assert "a &lt; b &amp; c" in html


@pytest.mark.parametrize("kind", COLOURS)
def test_each_kind_differs_by_sign_and_not_by_colour_alone(kind):
    signs = [sign for sign, _ in COLOURS.values()]
    assert len(set(signs)) == len(signs)
    assert Card(kind, "x").text.startswith(COLOURS[kind][0])


def test_outside_a_notebook_the_text_is_printed(capsys):
    Card("todo", "Softmax").show()
    assert capsys.readouterr().out == "○ Softmax\n"


def test_in_a_notebook_the_card_is_displayed(monkeypatch):
    shown: list[object] = []
    monkeypatch.setattr(cards, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", shown.append)
    card = Card("todo", "Softmax")
    card.show()
    assert shown == [card]
    assert set(card._repr_mimebundle_()) == {"text/plain", "text/html"}


@pytest.mark.parametrize(
    ("shell", "expected"),
    [(None, False), (types.SimpleNamespace(), False), (types.SimpleNamespace(kernel=object()), True)],
    ids=["plain Python", "IPython in a terminal", "a kernel"],
)
def test_a_notebook_is_recognised_by_its_kernel(monkeypatch, shell, expected):
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert in_notebook() is expected


def test_without_ipython_there_is_no_notebook_and_no_import_of_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert in_notebook() is False
    assert "IPython" not in sys.modules


def test_long_words_and_long_code_stay_within_a_narrow_window():
    html = Card("info", "Hello", (("seen", "x" * 500),), code="y" * 500).html
    assert "overflow-wrap:anywhere" in html
    assert "overflow-x:auto" in html
