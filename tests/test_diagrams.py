"""Storage maps: the drawing has a cell for every element, in the right place, and the words say the same."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
import torch

from course_utils.diagrams import INK, MAX_ELEMENTS, RAMP, UNUSED, storage_map
from course_utils.errors import UsageError
from course_utils.plots import Diagram

SVG = "{http://www.w3.org/2000/svg}"


def drawn(diagram: Diagram) -> ET.Element:
    return ET.fromstring(diagram.svg)


def cells(diagram: Diagram) -> list[ET.Element]:
    return [rect for rect in drawn(diagram).iter(f"{SVG}rect") if rect.get("stroke")]


def test_each_element_is_drawn_once_in_the_grid_and_each_place_once_in_the_strip():
    x = torch.arange(24).view(2, 3, 4)
    assert len(cells(storage_map(x))) == 24 + 24
    assert len(cells(storage_map(x, x[:, 1:, ::2]))) == 48 + 8 + 24


def test_places_that_are_not_read_are_grey():
    x = torch.arange(12).view(3, 4)
    grey = [cell for cell in cells(storage_map(x[1:, ::2])) if cell.get("fill") == UNUSED]
    assert len(grey) == 12 - 4


def test_the_same_place_has_the_same_shade_in_every_view():
    x = torch.arange(12).view(3, 4)
    diagram = storage_map(x, x.t())
    fills = [cell.get("fill") for cell in cells(diagram)]
    grid, turned = fills[:12], fills[24:36]
    assert turned == [grid[row * 4 + column] for column in range(4) for row in range(3)]


def test_words_tell_shape_strides_offset_owner_and_order_of_reading():
    x = torch.arange(12).view(3, 4)
    text = storage_map(x, x[1:, ::2], names=("x", "part")).text
    assert "x: shape (3, 4), strides (4, 1), offset 0, contiguous; its storage: 96 bytes" in text
    assert "part: shape (2, 2), strides (4, 2), offset 4, not contiguous; on the storage of x" in text
    assert "reads storage positions 4 6 8 10" in text


def test_a_copy_is_not_said_to_be_on_the_others_storage():
    x = torch.zeros(4)
    assert "on the storage" not in storage_map(x, x.clone()).text


def test_an_expanded_tensor_reads_its_places_again_and_again():
    assert "reads storage positions 0 1 0 1 0 1" in storage_map(torch.arange(2).expand(3, 2)).text


def test_verdicts_are_drawn_with_marks_and_told_in_words():
    diagram = storage_map(torch.zeros(4), verdicts=[("a", True), ("b", False)])
    texts = [element.text for element in drawn(diagram).iter(f"{SVG}text")]
    assert "✓ a" in texts
    assert "✗ b" in texts
    assert diagram.text.endswith("possible: a\nnot possible: b")


def test_many_verdicts_go_on_in_the_next_row():
    diagram = storage_map(torch.zeros(4), verdicts=[(f"view({n}, 4)", True) for n in range(12)])
    rows = {element.get("y") for element in drawn(diagram).iter(f"{SVG}text") if element.text.startswith("✓")}
    assert len(rows) > 1
    assert float(drawn(diagram).get("width")) < 800


def test_names_are_escaped():
    diagram = storage_map(torch.zeros(4), names=("a < b & c",))
    assert "a < b & c" in "".join(drawn(diagram).itertext())


def test_nothing_is_drawn_outside_of_the_picture():
    x = torch.arange(36.0).view(3, 3, 4)
    root = drawn(storage_map(x, x.permute(2, 1, 0), verdicts=[("view(36)", False)]))
    width, height = float(root.get("width")), float(root.get("height"))
    for rect in root.iter(f"{SVG}rect"):
        assert float(rect.get("x", 0)) + float(rect.get("width")) <= width
        assert float(rect.get("y", 0)) + float(rect.get("height")) <= height
    assert all(float(text.get("y")) <= height for text in root.iter(f"{SVG}text"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.uint8])
def test_every_dtype_can_be_drawn(dtype):
    assert len(cells(storage_map(torch.ones(2, 3, dtype=dtype)))) == 12


def test_a_tensor_that_requires_gradients_can_be_drawn():
    assert storage_map(torch.ones(2, requires_grad=True)).svg.startswith("<svg")


@pytest.mark.parametrize(
    ("tensor", "seen"),
    [
        (torch.zeros(MAX_ELEMENTS + 1), "65 elements"),
        (torch.zeros(100)[:2], "100 elements"),
        (torch.zeros(1).expand(70), "70 elements"),
        (torch.zeros(()), "shape ()"),
        (torch.zeros(1, 1, 1, 2), "shape (1, 1, 1, 2)"),
        (torch.zeros(3, device="meta"), "on meta"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_its_size(tensor, seen):
    with pytest.raises(UsageError) as caught:
        storage_map(tensor)
    assert "can't be drawn as a storage map" in str(caught.value)
    assert seen in caught.value.got


def test_too_many_tensors_are_refused():
    with pytest.raises(UsageError, match="This number of tensors can't be drawn"):
        storage_map(*[torch.zeros(2)] * 5)
    with pytest.raises(UsageError, match="1 to 4 tensors"):
        storage_map(torch.zeros(2), torch.zeros(2), names=("x",))


def contrast(first: str, second: str) -> float:
    """Source: WCAG 2.2, relative luminance and contrast ratio."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_every_number_can_be_read_on_its_shade():
    x = torch.arange(64)
    svg = storage_map(x).svg
    pairs = re.findall(r'<rect [^>]*fill="(#\w+)" stroke[^>]*/><text [^>]*fill="(#\w+)">\d+</text>', svg)
    assert len(pairs) == 128
    assert {ink for _, ink in pairs} == {INK}
    assert min(contrast(fill, ink) for fill, ink in pairs) >= 4.5
    assert pairs[0][0] == "#" + "".join(f"{part:02x}" for part in RAMP[0])
