"""Bad files: mutations of good ones, and a reader's duty to answer in time with a sentence that names the file."""

from __future__ import annotations

import copy
import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from course_utils.errors import CourseError
from tests.faults.campaign import size

LIMIT_S = 20.0  # for a reader to answer on a busy machine
# Bytes that have broken readers of text, JSON, YAML, zip, pickle and images before.
NASTY = (
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"\x1a", b"\x80\x02.", b"PK\x03\x04", b"PK\x05\x06", b"\xff" * 8,
    b"NaN", b"1e999", b"-", b"9" * 5000, b"[" * 3000, b"{\"a\":" * 2000, b"null", b"true", b"\"\\ud800\"", b"&a *a",
    b"!!python/object/apply:os.system [ls]", b"!!binary x", b"!!int x", b"2001-99-99", b"0x", b"<<: 1\n",
    b"? [a]\n: b\n",
    b"### BEGIN SOLUTION", b"# %%", b"\"\"\"", b"cells", b"\xe2\x80\xa8", b"%s" * 9, b"../../x",
)  # fmt: skip


class Hang(BaseException):
    """A reader took too long."""


@contextmanager
def time_limit(seconds: float = LIMIT_S) -> Iterator[None]:
    """Raise ``Hang`` in the block after some seconds; where there is no alarm, there is no limit."""
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(_number: int, _frame: object) -> None:
        raise Hang(f"no answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def trials(whole: int, sample: int = 8) -> settings:
    """Return hypothesis's settings for one reader: always the same inputs for one seed, none kept between runs."""
    return settings(
        max_examples=size(sample, whole), database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )


def answers(read: Callable[[], Any], name: str) -> str:
    """Let a reader read; return its sentence, or an empty text if it took the file.

    Raises:
        AssertionError: if the sentence does not name the file. Any other error is the test's failure as it is.
    """
    with time_limit():
        try:
            read()
        except CourseError as error:
            words = str(error)
            assert name in words, f"the file {name} is not named: {words}"
            assert len(words) < 20_000, f"a sentence of {len(words):,} characters"
            return words
    return ""


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """A strategy: the bytes of a good file with one to four damages, as disks, editors and bad people make them."""
    raw = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(raw) - 1)))
        length = draw(st.sampled_from((1, 1, 2, 4, 16, 256)))
        match draw(st.sampled_from(("flip", "cut", "drop", "double", "nasty", "zero", "byte", "line"))):
            case "flip" if raw:
                raw[at] ^= 1 << draw(st.integers(0, 7))
            case "byte" if raw:
                raw[at] = draw(st.integers(0, 255))
            case "cut":
                del raw[at:]
            case "drop":
                del raw[at : at + length]
            case "double":
                raw[at:at] = raw[at : at + length]
            case "zero":
                raw[at : at + length] = bytes(len(raw[at : at + length]))
            case "nasty":
                raw[at:at] = draw(st.sampled_from(NASTY))
            case "line":  # a text line less, or twice
                lines = bytes(raw).split(b"\n")
                number = draw(st.integers(0, len(lines) - 1))
                lines[number : number + 1] = draw(st.sampled_from(([], [lines[number]] * 2)))
                raw = bytearray(b"\n".join(lines))
    return bytes(raw)


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from((2**70, -(10**400), 1e308, float("nan"), float("inf"))),
    st.text(max_size=4),
    st.sampled_from(("code", "markdown", "parameters", "01_tensors", "tensors.energy", "../x", "\ud800", "a\0b")),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=4,
)


def places(tree: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every part of nested dicts and lists, the whole first."""
    yield where
    items: Any = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from places(value, (*where, key))


@st.composite
def regrown(draw: st.DrawFn, good: Any) -> Any:
    """A strategy: a tree of dicts and lists of which one to three parts are gone, or of another kind."""
    tree = copy.deepcopy(good)
    for _ in range(draw(st.integers(1, 3))):
        where = draw(st.sampled_from(list(places(tree))))
        if not where:
            if draw(st.integers(0, 9)) == 0:
                return draw(TREES)
            continue
        *path, last = where
        parent = tree
        for key in path:
            parent = parent[key]
        if draw(st.booleans()):
            parent[last] = draw(TREES)
        else:
            del parent[last]
    return tree


def as_json(tree: Any) -> bytes:
    """Return a tree as a JSON file; lone surrogates and nan are written as Python would."""
    return json.dumps(tree).encode()
