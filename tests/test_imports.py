"""Imports go one way. The table of levels is the one in CONTRIBUTING.md."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from course_utils.paths import ROOT

PACKAGE = ROOT / "course_utils"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name not in ("__init__.py", "__main__.py"))
# Upward, each for its reason: the start-up runs the command it has set everything up for.
EXCEPTIONS = {("tools.environment", "cli")}
OWNERS = {  # heavy packages, and the only modules that may import them
    "papermill": ("tools.",),
    "ipywidgets": ("widgets.",),
    "jupytext": ("tools.",),
    "nbclient": ("tools.",),
    "click": ("cli",),
    "sklearn": (),
    "mlxtend": (),
}


def levels() -> dict[str, int]:
    """Return the level of each module or folder."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| (.+) \|$", text, flags=re.MULTILINE)
    return {name.strip("/"): int(level) for level, names in rows for name in re.findall(r"`([\w/]+)`", names)}


LEVELS = levels()


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def is_for_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def nodes(tree: ast.AST, inside_functions: bool = True) -> Iterator[ast.AST]:
    """Yield the nodes that run: what stands under ``if TYPE_CHECKING`` does not."""
    for child in ast.iter_child_nodes(tree):
        if is_for_typing(child):
            continue
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and not inside_functions:
            continue
        yield child
        yield from nodes(child, inside_functions)


def imported(path: Path, inside_functions: bool = True) -> set[str]:
    """Return the full names of what a module imports; names taken from ``course_utils`` itself are modules."""
    found: set[str] = set()
    for node in nodes(tree_of(path), inside_functions):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {part if module_exists(part) else node.module for part in parts}
    return found


def module_exists(name: str) -> bool:
    path = ROOT / Path(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def ours(path: Path, inside_functions: bool = True) -> set[str]:
    prefix = "course_utils."
    return {name.removeprefix(prefix) for name in imported(path, inside_functions) if name.startswith(prefix)}


def level(name: str) -> int:
    return LEVELS[name.partition(".")[0]]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_imports_from_its_own_level_or_below(path):
    name = name_of(path)
    upward = {other for other in ours(path) if level(other) > level(name)}
    assert {(name, other) for other in upward} <= EXCEPTIONS


def test_no_module_imports_itself_through_others():
    graph = {name_of(path): ours(path, inside_functions=False) for path in MODULES}

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail, name])
        for other in graph.get(name, ()):
            visit(other, (*trail, name))

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("package", OWNERS)
def test_heavy_packages_are_imported_by_their_owners_only(package):
    users = {name_of(path) for path in MODULES if any(name.partition(".")[0] == package for name in imported(path))}
    strangers = {name for name in users if not name.startswith(OWNERS[package])} if OWNERS[package] else users
    assert strangers == set()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_plots_and_controls_are_imported_where_they_are_used(path):
    at_import = {name.partition(".")[0] for name in imported(path, inside_functions=False)}
    assert not at_import & {"matplotlib", "ipywidgets", "torchvision", "IPython"}


STANDARD_LIBRARY_ONLY = """
import sys
before = set(sys.modules)
import course_utils
import {module}
new = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(sorted(new - set(sys.stdlib_module_names) - {{"course_utils"}}))
"""


@pytest.mark.parametrize(
    "module",
    ["course_utils", "course_utils.lessons", "course_utils.sources", "course_utils.tools.environment"],
)
def test_what_runs_before_set_up_needs_the_standard_library_only(module):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    code = STANDARD_LIBRARY_ONLY.format(module=module)
    ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
