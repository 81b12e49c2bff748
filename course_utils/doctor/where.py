"""Which line of the reader's program is running; the only place where the doctor looks at source."""

from __future__ import annotations

import dis
import linecache
import os
import sys
import sysconfig
import traceback
from types import FrameType, TracebackType

_STDLIB = sysconfig.get_paths()["stdlib"]
_OURS = os.path.dirname(os.path.abspath(__file__))
_SITE = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def is_reader_file(path: str) -> bool:
    """Tell whether a file belongs to the reader: not to Python, a package, or the doctor."""
    if path.startswith("<") and not path.startswith("<ipython"):
        return False
    if path.startswith(_OURS) or any(part in path for part in _SITE):
        return False
    return not path.startswith(_STDLIB)


def reader_frames(frame: FrameType | None = None) -> list[FrameType]:
    """Return the frames of the reader's code that are running, innermost first, down to the doctor's call of it."""
    frame = frame or sys._getframe(1)
    frames: list[FrameType] = []
    seen_reader = False
    while frame is not None:
        path = frame.f_code.co_filename
        if is_reader_file(path):
            frames.append(frame)
            seen_reader = True
        elif seen_reader and path.startswith(_OURS):
            break
        frame = frame.f_back
    return frames


def reader_line() -> str:
    """Return ``file.py:12`` for the reader's line that is running, or an empty string."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if is_reader_file(path):
            return f"{os.path.basename(path)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def line_of_error(trace: TracebackType | None) -> tuple[str, str]:
    """Return place and text of the reader's innermost line in a traceback; empty strings if there is none."""
    places = [entry for entry in traceback.extract_tb(trace) if is_reader_file(entry.filename)]
    if not places:
        return "", ""
    last = places[-1]
    text = (last.line or linecache.getline(last.filename, last.lineno or 0)).strip()
    return f"{os.path.basename(last.filename)}:{last.lineno}", text


def is_augmented(frame: FrameType) -> bool:
    """Tell whether a frame is executing an augmented assignment such as ``x += y``, by its bytecode."""
    code, place = frame.f_code.co_code, frame.f_lasti
    name = dis.opname[code[place]]
    if name.startswith("INPLACE_"):  # Python 3.10
        return True
    return name == "BINARY_OP" and 13 <= code[place + 1] <= 25  # NB_INPLACE_ADD … NB_INPLACE_XOR
