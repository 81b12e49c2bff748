"""What a request may hold: every fault has its status and a sentence, and good pixels arrive as they were."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_utils.serving.client import bad_requests, request_body
from course_utils.serving.limits import JSON, Limits, Refusal, read_images

TINY = Limits(height=2, width=3, max_images=2, max_bytes=200)
GOOD = [[[0, 1, 2], [3, 4.5, 255]]]


def body(value):
    return json.dumps(value).encode()


def refusal(content, content_type=JSON, limits=TINY):
    with pytest.raises(Refusal) as caught:
        read_images(content, content_type, limits)
    return caught.value


def test_pixels_arrive_with_a_channel_axis_as_float32():
    pixels = read_images(body({"images": GOOD}), JSON, TINY)
    assert pixels.shape == (1, 1, 2, 3)
    assert pixels.dtype == np.float32
    assert pixels[0, 0].tolist() == GOOD[0]


@pytest.mark.parametrize("kind", [JSON, "Application/JSON; charset=UTF-8", 'application/json;charset="utf-8"'])
def test_content_types_that_mean_json_are_taken(kind):
    assert read_images(body({"images": GOOD}), kind, TINY).shape == (1, 1, 2, 3)


@pytest.mark.parametrize("kind", [None, "", "text/plain", "application/json; charset=latin-1", "application/jsonp"])
def test_other_content_types_are_refused(kind):
    assert refusal(body({"images": GOOD}), kind).status == 415


WRONG = {
    "no JSON": (b'{"images"', 400, "not JSON"),
    "bytes": (b"\xff\xfe\xfa", 400, "not JSON"),
    "digits without end": (b'{"images": [[[' + b"9" * 5000 + b"]]]}", 400, "can't be read"),
    "deep": (b"[" * 100_000, 400, "deeply"),
    "a list": (body(GOOD), 422, '"images"'),
    "no key": (body({"image": GOOD}), 422, '"images"'),
    "one more key": (body({"images": GOOD, "size": 1}), 422, '"size"'),
    "no list": (body({"images": "x"}), 422, "list"),
    "none": (body({"images": []}), 422, "at least one"),
    "too many": (body({"images": GOOD * 3}), 413, "2 images"),
    "a row is missing": (body({"images": [GOOD[0][:1]]}), 422, "Image 0 is not 2 rows of 3 numbers"),
    "a pixel is missing": (body({"images": [GOOD[0], [[1, 2, 3], [1, 2]]]}), 422, "Image 1"),
    "flat": (body({"images": [[1, 2, 3, 4, 5, 6]]}), 422, "Image 0"),
    "text": (body({"images": [[["1", 2, 3], [1, 2, 3]]]}), 422, "text"),
    "true among numbers": (body({"images": [[[True, 2, 3], [1, 2, 3]]]}), 422, "true or false"),
    "null": (body({"images": [[[None, 2, 3], [1, 2, 3]]]}), 422, "null"),
    "a list for a pixel": (body({"images": [[[[1], 2, 3], [1, 2, 3]]]}), 422, "a list"),
    "NaN": (body({"images": [[[float("nan"), 2, 3], [1, 2, 3]]]}), 422, "NaN"),
    "-Infinity": (body({"images": [[[float("-inf"), 2, 3], [1, 2, 3]]]}), 422, "Infinity"),
    "1e999": (b'{"images": [[[1e999, 2, 3], [1, 2, 3]]]}', 422, "too large"),
    "beyond all floats": (b'{"images": [[[1' + b"0" * 400 + b", 2, 3], [1, 2, 3]]]}", 422, "0..255"),
    "256": (body({"images": [[[256, 2, 3], [1, 2, 3]]]}), 422, "from 1 to 256"),
    "-1": (body({"images": [[[-1, 2, 3], [1, 2, 3]]]}), 422, "from -1 to 3"),
}


@pytest.mark.parametrize(("content", "status", "says"), WRONG.values(), ids=WRONG.keys())
def test_each_fault_has_its_status_and_a_sentence(content, status, says):
    seen = refusal(content, limits=Limits(height=2, width=3, max_images=2, max_bytes=200_000))
    assert seen.status == status
    assert says in seen.sentence
    assert seen.sentence.endswith(".")
    assert "\n" not in seen.sentence


def test_a_body_that_is_too_long_is_not_even_read():
    assert refusal(b"x" * 201).status == 413


def test_what_a_stranger_wrote_comes_back_short_and_without_control_characters():
    sentence = refusal(body({"images": GOOD, "\x1b[31m" + "k" * 500: 1}), limits=Limits(height=2, width=3)).sentence
    assert "\x1b" not in sentence
    assert len(sentence) < 150


@given(st.binary(max_size=300) | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists).map(body))
@settings(max_examples=200, deadline=None)
def test_nothing_but_a_refusal_or_pixels_comes_out(content):
    status = 200
    try:
        assert np.isfinite(read_images(content, JSON, TINY)).all()
    except Refusal as refused:
        status = refused.status
    assert status in (200, 400, 413, 422)


def test_the_list_of_bad_requests_is_refused_by_the_reader_too():
    for request in bad_requests():
        if request.path == "/predict" and request.method == "POST":
            assert refusal(request.content, request.content_type, Limits()).status in request.statuses, request.name


def test_a_body_made_for_images_is_read_back():
    images = np.arange(2 * 28 * 28).reshape(2, 1, 28, 28) % 256
    assert (read_images(request_body(images), JSON) == images).all()
