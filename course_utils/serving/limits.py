"""From the bytes of a request to pixels, or to a refusal: a status and one sentence that says what to send instead."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain
from typing import Any, NoReturn

import numpy as np

from course_utils.text import plural

JSON = "application/json"
SHOWN = 40  # characters of a stranger's text that come back in a sentence


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one request may hold. The defaults are for 28x28 digits.

    Args:
        height, width: of each image, in pixels.
        peak: the value of full ink; pixels are 0..peak.
        max_images: per request, at least 1.
        max_bytes: of the body. 64 images of whole numbers take about 200 KB.
    """

    height: int = 28
    width: int = 28
    peak: float = 255.0
    max_images: int = 64
    max_bytes: int = 512 * 1024


class Refusal(Exception):
    """A request that is not served: the client's fault (4xx), or the service is busy or ending (503)."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


def check_type(content_type: str | None) -> None:
    """Raise a `Refusal` (415) unless the header says JSON; parameters such as ``charset=utf-8`` are fine."""
    kind, _, parameters = (content_type or "").partition(";")
    name, _, charset = parameters.strip().lower().partition("=")
    if kind.strip().lower() != JSON or (name == "charset" and charset.strip('" ') not in ("utf-8", "utf8")):
        raise Refusal(415, f"Send the body as {JSON}; this one says {_shown(content_type or 'nothing')}.")


def check_size(n_bytes: int, limits: Limits) -> None:
    """Raise a `Refusal` (413) if a body is longer than the limit."""
    if n_bytes > limits.max_bytes:
        raise Refusal(413, f"The body may hold {limits.max_bytes:,} bytes; this one is longer. Send fewer images.")


def read_images(body: bytes, content_type: str | None, limits: Limits | None = None) -> np.ndarray:
    """Return the pixels of a request, shape (N, 1, H, W), float32, 0..peak.

    The body is JSON: ``{"images": [image, ...]}``, and each image is a list of H rows of W numbers.

    Raises:
        Refusal: 415 wrong content type, 413 too long or too many images, 400 no JSON, 422 anything else that is wrong.
    """
    limits = limits or Limits()
    check_type(content_type)
    check_size(len(body), limits)
    images = _images_in(_parsed(body))
    if not images:
        raise Refusal(422, "The list of images is empty: send at least one.")
    if len(images) > limits.max_images:
        raise Refusal(413, f"A request may hold {plural(limits.max_images, 'image')}; this one has {len(images):,}.")
    for index, image in enumerate(images):
        if not _is_grid(image, limits):
            size = f"{limits.height} rows of {limits.width} numbers"
            raise Refusal(422, f"Image {index} is not {size}.")
    return _pixels(images, limits)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body, parse_constant=_no_number)
    except RecursionError:
        raise Refusal(400, "The JSON is nested too deeply.") from None
    except json.JSONDecodeError as error:
        raise Refusal(400, f"The body is not JSON: {error.msg.lower()} at character {error.pos}.") from None
    except ValueError:  # not UTF-8, or a whole number of thousands of digits
        raise Refusal(400, "The body is not JSON: it holds bytes or numbers that can't be read.") from None


def _no_number(name: str) -> NoReturn:
    raise Refusal(422, f"Pixels must be finite numbers; this request holds {name}.")  # Python's json would accept it


def _images_in(message: Any) -> list:
    if type(message) is not dict or "images" not in message:
        raise Refusal(422, 'Send an object with the key "images": {"images": [...]}.')
    strangers = sorted(message.keys() - {"images"})
    if strangers:
        raise Refusal(422, f'The key {_shown(strangers[0])} is not known; send "images" alone.')
    if type(message["images"]) is not list:
        raise Refusal(422, '"images" must be a list of images.')
    return message["images"]


def _is_grid(image: Any, limits: Limits) -> bool:
    if type(image) is not list or len(image) != limits.height:
        return False
    return all(type(row) is list and len(row) == limits.width for row in image)


def _pixels(images: list[list[list[Any]]], limits: Limits) -> np.ndarray:
    rows = chain.from_iterable(images)
    # Looked at before NumPy is asked: it would take true for 1 and "7" for text, without a word.
    kinds = set(map(type, chain.from_iterable(rows)))
    if not kinds <= {int, float}:
        names = {str: "text", bool: "true or false", type(None): "null", list: "a list", dict: "an object"}
        worst = sorted(names[kind] for kind in kinds - {int, float})[0]
        raise Refusal(422, f"Pixels must be numbers; this request holds {worst}.")
    try:
        pixels = np.array(images, dtype=np.float64)
    except OverflowError:  # a whole number beyond the largest float
        raise Refusal(422, f"Pixels must be in 0..{limits.peak:g}.") from None
    if not np.isfinite(pixels).all():  # 1e999 reads as infinity
        raise Refusal(422, "Pixels must be finite numbers; this request holds one that is too large.")
    if pixels.min() < 0 or pixels.max() > limits.peak:
        low, high = pixels.min(), pixels.max()
        raise Refusal(422, f"Pixels must be in 0..{limits.peak:g}; these reach from {low:g} to {high:g}.")
    return pixels.astype(np.float32)[:, None]


def _shown(text: str) -> str:
    text = text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
    return json.dumps(text, ensure_ascii=True)  # quoted, and no control characters
