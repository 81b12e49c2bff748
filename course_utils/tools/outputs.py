"""Stored outputs: the same text on every machine, small pictures, nothing that only works with a live kernel."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from course_utils.errors import CourseError
from course_utils.paths import NOTEBOOKS, ROOT
from course_utils.text import human_bytes

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
SANITIZE = NOTEBOOKS / "sanitize.cfg"
LARGE_IMAGE_BYTES = 40 * 1024  # above this, a picture is reduced to a palette: plots lose nothing that can be seen
MAX_IMAGE_BYTES = 250 * 1024
MAX_NOTEBOOK_BYTES = 1_500_000  # GitHub stops showing notebooks somewhat above
PALETTE_COLOURS = 64
_PAIR = re.compile(r"^regex: (.*)$\n^replace: (.*)$", re.MULTILINE)  # as nbval reads the file
_REWRITTEN = re.compile(r"^[^\n]*\r(?=[^\n])", re.MULTILINE)

Output = dict[str, Any]


class OutputError(CourseError):
    """A cell's output can't be stored as it is."""


def sanitize_patterns(path: Path = SANITIZE) -> list[tuple[re.Pattern[str], str]]:
    """Return the pairs of pattern and replacement of a sanitize file."""
    return [(re.compile(regex), replace) for regex, replace in _PAIR.findall(path.read_text(encoding="utf-8"))]


def sanitized(text: str, patterns: list[tuple[re.Pattern[str], str]]) -> str:
    """Return ``text`` with everything replaced that may differ between two runs."""
    for pattern, replacement in patterns:
        text = pattern.sub(replacement, text)
    return text


def clean_outputs(outputs: list[Output], execution_count: int) -> list[Output]:
    """Return a cell's outputs as they are stored.

    Raises:
        OutputError: if an output shows nothing without a live kernel, is too big, or names a path of this machine.
    """
    patterns = sanitize_patterns()
    cleaned = []
    for output in merged_streams(outputs):
        if output["output_type"] == "stream":
            cleaned.append({**output, "text": sanitized(output["text"], patterns)})
        else:
            data = {
                mime: _clean(mime, value, patterns) for mime, value in output["data"].items() if mime != WIDGET_VIEW
            }
            _refuse_what_readers_cannot_see(output["data"], data)
            kept = {mime: entry for mime, entry in output.get("metadata", {}).items() if mime in data}
            output = {"output_type": output["output_type"], "data": data, "metadata": kept}
            if output["output_type"] == "execute_result":
                output["execution_count"] = execution_count
            cleaned.append(output)
    for text in _texts(cleaned):
        for place in {str(ROOT), os.path.expanduser("~")} - {"/", "~"}:
            if re.search(rf"(?<![\w.-]){re.escape(place)}(?![\w-])", text):
                raise OutputError(
                    f"prints the path {place!r} of this machine.", fix="print the name without the folder."
                )
    return cleaned


def incomplete(cell: dict[str, Any]) -> Iterator[str]:
    """Yield what is missing or wrong in the stored outputs of a code cell."""
    if cell.get("execution_count") is None:
        yield "was never executed"
    for output in cell.get("outputs", []):
        if output["output_type"] == "error":
            yield f"stores the error {output.get('ename')}"
        data = output.get("data", {})
        if WIDGET_VIEW in data:
            yield "stores a widget that only a live kernel can show"
        if any(mime.startswith("image/") for mime in data) and "text/plain" not in data:
            yield "stores a picture without a description"


def merged_streams(outputs: list[Output]) -> Iterator[Output]:
    """Join neighbouring texts, stdout before stderr: their order is chance, the kernel sends them separately."""
    waiting: dict[str, str] = {}
    for output in [*outputs, None]:
        if output is not None and output["output_type"] == "stream":
            waiting[output["name"]] = waiting.get(output["name"], "") + output["text"]
            continue
        for name in ("stdout", "stderr"):
            if name in waiting:
                yield {"output_type": "stream", "name": name, "text": _REWRITTEN.sub("", waiting[name])}
        waiting = {}
        if output is not None:
            yield output


def _clean(mime: str, value: Any, patterns: list[tuple[re.Pattern[str], str]]) -> Any:
    if mime == "image/png":
        return base64.b64encode(smaller_png(base64.b64decode(value))).decode("ascii")
    return sanitized(value, patterns) if isinstance(value, str) else value


def _refuse_what_readers_cannot_see(before: dict[str, Any], after: dict[str, Any]) -> None:
    if not after or (
        WIDGET_VIEW in before
        and re.fullmatch(r"\w+\(.*\)\s*", str(after.get("text/plain")), re.DOTALL)
        and len(after) == 1
    ):
        raise OutputError(
            "shows a widget that is nothing without a live kernel.", fix="use explore(…), which has a static picture."
        )
    if "image/png" in after and re.match(r"<Figure size|\[?<matplotlib", after.get("text/plain", "")):
        raise OutputError("draws a figure without a description.", fix='end the cell with show(fig, "caption").')


def smaller_png(png: bytes) -> bytes:
    """Return a PNG reduced to a palette if it is large.

    Raises:
        OutputError: if it is too large even then.
    """
    if len(png) > LARGE_IMAGE_BYTES:
        from PIL import Image

        with Image.open(BytesIO(png)) as image:
            buffer = BytesIO()
            flat = image.convert("RGB").quantize(PALETTE_COLOURS, dither=Image.Dither.NONE)
            flat.save(buffer, format="PNG", optimize=True)
        png = min(png, buffer.getvalue(), key=len)
    if len(png) > MAX_IMAGE_BYTES:
        raise OutputError(
            f"has a picture of {human_bytes(len(png))}.",
            expected=f"at most {human_bytes(MAX_IMAGE_BYTES)}",
            fix="draw it smaller, or with fewer points or colours.",
        )
    return png


def _texts(outputs: list[Output]) -> Iterator[str]:
    for output in outputs:
        yield output.get("text", "")
        yield from (value for mime, value in output.get("data", {}).items() if mime.startswith("text/"))
