"""Text for people: shortened, counted, suggested and aligned."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_utils.text import did_you_mean, human_bytes, plural, shorten, table, without_passwords


@given(text=st.text(max_size=300), width=st.integers(3, 150))
def test_shortened_text_fits_on_one_line_of_the_width(text, width):
    short = shorten(text, width)
    assert len(short) <= width
    assert len(short.splitlines()) <= 1


@given(text=st.text(alphabet="abc", max_size=120))
def test_text_that_fits_is_kept(text):
    assert shorten(text) == text


def test_long_text_keeps_its_beginning_and_its_end():
    short = shorten("a" * 100 + "b" * 100, 30)
    assert (short[:19], short[19], short[20:]) == ("a" * 19, "…", "b" * 10)


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 cells"), (1, "1 cell"), (2, "2 cells"), (1200, "1,200 cells"), (-1, "-1 cells")]
)
def test_a_count_comes_with_its_noun(count, words):
    assert plural(count, "cell") == words


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (5 * 1024**2, "5.0 MiB"),
        (3 * 1024**3, "3.0 GiB"),
        (4000 * 1024**3, "4,000.0 GiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_bytes_come_with_a_binary_unit(size, words):
    assert human_bytes(size) == words


def test_a_close_name_is_suggested_and_otherwise_all_are_listed():
    assert did_you_mean("tensor", ["training", "tensors"]) == "Did you mean 'tensors'?"
    assert did_you_mean("zzz", ["b", "a"]) == "Known are: a, b."


def test_a_table_aligns_words_left_and_numbers_right():
    text = table([("conv1", 72), ("fc", 100480)], header=("layer", "values"))
    assert text.splitlines() == ["layer  values", "-----  ------", "conv1      72", "fc     100480"]


def test_a_table_without_rows_is_its_header():
    assert table([], header=("a", "bc")) == "a  bc\n-  --"


def test_a_table_refuses_rows_of_another_length():
    with pytest.raises(ValueError, match="zip"):
        table([("a", "b", "c")], header=("x", "y"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://ada:se:same@host:80/a", "http://ada:***@host:80/a"),
        ("two: https://a:b@c and socks5://d:e@f.", "two: https://a:***@c and socks5://d:***@f."),
        ("https://token-alone@host and http://host:80/a@b", "https://***@host and http://host:80/a@b"),
    ],
)
def test_passwords_in_addresses_are_not_shown(text, shown):
    assert without_passwords(text) == shown
