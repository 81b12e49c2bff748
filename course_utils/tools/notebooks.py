"""Is this JSON a notebook? A file that was cut off, merged badly or edited by hand can hold anything.

nbformat's own validation takes seconds to import; here is what our tools rely on.
"""

from __future__ import annotations

from typing import Any

_TEXT = (str, list)


def shape_problem(value: Any, *, with_ids: bool = False) -> str:
    """Return what keeps a value from being a notebook of format 4, as a clause; an empty text if nothing does.

    Args:
        value: what a JSON file holds.
        with_ids: whether every cell must have an id; cells of older files have none.
    """
    if not isinstance(value, dict) or not isinstance(value.get("cells"), list):
        return "it has no cells"
    metadata = value.get("metadata", {})
    course = metadata.get("course", {}) if isinstance(metadata, dict) else None
    handed_out = course.get("cells", {}) if isinstance(course, dict) else None
    if not isinstance(handed_out, dict) or not all(isinstance(digest, str) for digest in handed_out.values()):
        return "its metadata is damaged"
    for number, cell in enumerate(value["cells"], start=1):
        if not isinstance(cell, dict) or not isinstance(cell.get("cell_type"), str):
            return f"cell {number} has no type"
        if not isinstance(cell.get("metadata"), dict) or not _is_list_of(cell["metadata"].get("tags", []), str):
            return f"cell {number} has no metadata, or damaged ones"
        if not isinstance(cell.get("source"), _TEXT) or not _is_list_of(list(cell["source"]), str):
            return f"cell {number} has no source"
        if not isinstance(cell.get("id", None if with_ids else ""), str):
            return f"cell {number} has no id"
        if cell["cell_type"] == "code" and not _are_outputs(cell.get("outputs", [])):
            return f"the outputs of cell {number} are damaged"
    return ""


def _is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _are_outputs(value: Any) -> bool:
    return _is_list_of(value, dict) and all(
        isinstance(output.get("output_type"), str)
        and isinstance(output.get("data", {}), dict)
        and isinstance(output.get("text", ""), _TEXT)
        for output in value
    )
