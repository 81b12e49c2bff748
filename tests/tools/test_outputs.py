"""Stored outputs: no machine in them, no live widget, small pictures."""

from __future__ import annotations

import base64
import re
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from course_utils.paths import ROOT
from course_utils.tools import outputs
from course_utils.tools.outputs import (
    LARGE_IMAGE_BYTES,
    SANITIZE,
    WIDGET_VIEW,
    OutputError,
    clean_outputs,
    incomplete,
    sanitize_patterns,
    sanitized,
    smaller_png,
)

PATTERNS = sanitize_patterns()
VARYING = {  # what a run prints, and what is compared
    "warning in a cell": ("/tmp/ipykernel_81/4123.py:3: UserWarning: no", "<cell>:3: UserWarning: no"),
    "warning on Windows": (r"C:\Temp\ipykernel_8\41.py:3: UserWarning: no", "<cell>:3: UserWarning: no"),
    "warning in a package": (
        "/opt/env/lib/python3.11/site-packages/torch/nn/functional.py:5849: UserWarning: no",
        "torch/nn/functional.py: UserWarning: no",
    ),
    "address": ("<function f at 0x7f3b2c1d5e40>", "<function f at 0x...>"),
    "bar at the start": ("  0%|          | 0/938 [00:00<?, ?it/s]", "[progress bar, 938 steps]"),
    "bar with a name": (
        "training:  60%|██████    | 3/5 [00:01<00:00, 2.5it/s, loss=0.1]",
        "training: [progress bar, 5 steps]",
    ),
    "bar of two words": ("epoch 1: 100%|####| 3/3 [00:01<00:00]", "epoch 1: [progress bar, 3 steps]"),
    "counter": ("rows: 12it [00:00, 99.1it/s]", "rows: [progress bar]"),
}  # fmt: skip
KEPT = ("accuracy 98%", "shape (3, 4)", "0xff", "3/5 of the cells", "| a | 50%| b |", "took 3 s", "x.py:3: note", "")


@pytest.mark.parametrize(("printed", "compared"), VARYING.values(), ids=VARYING.keys())
def test_what_can_not_be_the_same_is_replaced(printed, compared):
    assert sanitized(printed, PATTERNS) == compared
    assert sanitized(f"before\n{printed}\nafter", PATTERNS) == f"before\n{compared}\nafter"


@pytest.mark.parametrize("text", KEPT)
def test_what_is_compared_is_left_alone(text):
    assert sanitized(text, PATTERNS) == text


@given(st.lists(st.sampled_from([*(printed for printed, _ in VARYING.values()), *KEPT, " "]), max_size=8))
def test_stored_text_stays_as_it_is_when_it_is_compared(parts):
    once = sanitized("\n".join(parts), PATTERNS)  # a bar has a line of its own
    assert sanitized(once, PATTERNS) == once


def test_the_one_file_is_read_as_nbval_reads_it():
    from nbval.plugin import get_sanitize_patterns

    text = SANITIZE.read_text(encoding="ascii")  # nbval opens it in the locale's encoding
    ours = [(pattern.pattern, replacement) for pattern, replacement in PATTERNS]
    assert ours == get_sanitize_patterns(text)
    assert len(ours) == text.count("\nregex:")
    assert not re.search(r"[ \t]$", text, re.MULTILINE)  # an editor may take trailing blanks away


def stream(name, text):
    return {"output_type": "stream", "name": name, "text": text}


def display(**data):
    return {"output_type": "display_data", "data": data, "metadata": {}}


def test_streams_are_stored_in_one_order_around_what_is_displayed():
    card = display(**{"text/plain": "card"})
    said = [stream("stderr", "b"), stream("stdout", "a"), stream("stderr", "c"), card, stream("stdout", "d")]
    assert clean_outputs(said, 1) == [stream("stdout", "a"), stream("stderr", "bc"), card, stream("stdout", "d")]


def test_a_rewritten_line_is_stored_as_it_ends():
    assert clean_outputs([stream("stderr", "1 of 2\r2 of 2\ndone\r\n")], 1) == [stream("stderr", "2 of 2\ndone\r\n")]


def test_a_live_widget_leaves_its_static_picture():
    view = {"version_major": 2, "version_minor": 0, "model_id": "abc"}
    panel = display(**{WIDGET_VIEW: view, "text/plain": "a curve", "image/svg+xml": "<svg/>"})
    (stored,) = clean_outputs([panel], 1)
    assert stored["data"] == {"text/plain": "a curve", "image/svg+xml": "<svg/>"}


@pytest.mark.parametrize(
    "data",
    [
        {WIDGET_VIEW: {"model_id": "a"}},
        {WIDGET_VIEW: {"model_id": "a"}, "text/plain": "IntSlider(value=3, max=9)"},
        {WIDGET_VIEW: {"model_id": "a"}, "text/plain": "VBox(children=(IntSlider(value=3),\n HTML(value='')))"},
    ],
    ids=["view only", "repr of a slider", "repr of a box"],
)
def test_a_widget_without_a_static_form_is_refused(data):
    with pytest.raises(OutputError, match="nothing without a live kernel"):
        clean_outputs([display(**data)], 1)


def test_a_figure_without_a_description_is_refused():
    picture = {"image/png": png(4), "text/plain": "<Figure size 640x480 with 1 Axes>"}
    with pytest.raises(OutputError, match="figure without a description"):
        clean_outputs([display(**picture)], 1)


@pytest.mark.parametrize("place", [ROOT / "course_utils" / "x.py", Path.home() / "notes.txt"], ids=["root", "home"])
def test_a_path_of_this_machine_is_refused(place):
    with pytest.raises(OutputError, match="prints the path"):
        clean_outputs([stream("stdout", f"saved {place}\n")], 1)


def png(side: int) -> str:
    buffer = BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (side, side, 3), dtype=np.uint8)
    Image.fromarray(noise).save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def test_a_large_picture_is_reduced_to_a_palette_and_keeps_its_size_in_pixels():
    before = base64.b64decode(png(200))
    after = smaller_png(before)
    assert len(before) > LARGE_IMAGE_BYTES > len(after)
    with Image.open(BytesIO(after)) as image:
        assert (image.size, image.mode) == ((200, 200), "P")


def test_a_small_picture_is_stored_as_it_is():
    before = base64.b64decode(png(20))
    assert smaller_png(before) == before


def test_a_picture_that_stays_large_is_refused(monkeypatch):
    monkeypatch.setattr(outputs, "MAX_IMAGE_BYTES", 10_000)
    with pytest.raises(OutputError, match="has a picture of"):
        smaller_png(base64.b64decode(png(200)))


INCOMPLETE = {
    "never executed": ({"execution_count": None}, "was never executed"),
    "error": ({"outputs": [{"output_type": "error", "ename": "KeyError"}]}, "stores the error KeyError"),
    "widget": ({"outputs": [display(**{WIDGET_VIEW: {}})]}, "only a live kernel can show"),
    "picture alone": ({"outputs": [display(**{"image/png": "x"})]}, "a picture without a description"),
}


@pytest.mark.parametrize(("cell", "problem"), INCOMPLETE.values(), ids=INCOMPLETE.keys())
def test_incomplete_outputs_are_told(cell, problem):
    (told,) = incomplete({"execution_count": 1, "outputs": []} | cell)
    assert problem in told


def test_complete_outputs_have_no_problem():
    assert list(incomplete({"execution_count": 1, "outputs": [stream("stdout", "a")]})) == []
