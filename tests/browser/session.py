"""Drive a real lesson in JupyterLab with the system's Chromium, as a learner would.

Also a program: ``python -m tests.browser.session 01_tensors docs/images/lesson.png 1`` runs the lesson, moves the
first control of its explorer by one key and keeps the screenshot that the README shows.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_utils.paths import NOTEBOOKS, ROOT, write_text
from tests.browser.page_checks import FAINT_TEXT, FOCUSED, TOO_WIDE

START_S, RUN_S, REDRAW_S, ACTION_S = 180.0, 400.0, 30.0, 60.0  # a machine may be busy with other tests
WIDE, NARROW = 1280, 800  # CSS pixels
PAGE = {"width": WIDE, "height": 1040}
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM_OPTIONS = (
    "--no-sandbox",  # in containers, where root is the usual user
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
CONTROLS = ", ".join(
    f".jp-OutputArea {kind}"
    for kind in (
        ".widget-slider .noUi-handle",
        ".widget-dropdown select",
        ".widget-checkbox input",
        ".widget-text input",
    )
)
PICTURE = ".jp-OutputArea .jupyter-widgets img, .jp-OutputArea .jupyter-widgets svg"
NUMBERS = ".jp-OutputArea .jupyter-widgets pre"
ERROR = '.jp-OutputArea [data-mime-type="application/vnd.jupyter.error"]'
LIGHT, DARK = "JupyterLab Light", "JupyterLab Dark"


def chromium() -> str | None:
    """Return the path of the system's Chromium, or None; ``COURSE_CHROMIUM`` names another."""
    named = os.environ.get("COURSE_CHROMIUM")
    return named or next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)


@dataclass(frozen=True)
class Moved:
    """What one control of an explorer did when a key moved it."""

    control: str
    picture: bool
    numbers: bool


class Visit:
    """A lesson that is open in a browser.

    Args:
        page: Playwright's page with JupyterLab in it.
        lesson: stem such as ``01_tensors``.
    """

    def __init__(self, page: Any, lesson: str) -> None:
        self.page = page
        self.notebook = json.loads((NOTEBOOKS / f"{lesson}.ipynb").read_text(encoding="utf-8"))
        self._places = {cell["id"]: place for place, cell in enumerate(self.notebook["cells"])}
        page.set_default_timeout(ACTION_S * 1e3)
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=START_S * 1e3)
        # The status bar, not the notebook's own sign: that one says idle before there is a kernel.
        page.wait_for_selector("text=/Python 3 .*\\| Idle/", timeout=START_S * 1e3)

    # Cells

    def ids(self, tag: str) -> list[str]:
        """Return the ids of the cells with a tag, in order."""
        return [cell["id"] for cell in self.notebook["cells"] if tag in cell["metadata"].get("tags", [])]

    def cell_with(self, source: str) -> str:
        """Return the id of the last cell that has this line."""
        return [cell["id"] for cell in self.notebook["cells"] if source in "".join(cell["source"]).split("\n")][-1]

    def cell(self, id: str) -> Any:
        return self.page.locator(".jp-Notebook .jp-Cell").nth(self._places[id])

    def output(self, id: str) -> str:
        """Return the text below a cell."""
        return self.cell(id).locator(".jp-Cell-outputArea").inner_text()

    def colour_of_card(self, id: str) -> str:
        """Return the colour of the edge of the last card below a cell."""
        card = self.cell(id).locator(".jp-OutputArea-output div[style*='border-left']").last
        return card.evaluate("element => getComputedStyle(element).borderLeftColor")

    def run(self, id: str, code: str | None = None) -> None:
        """Run a cell, with ``code`` in place of what stands in it if given, and wait until it has ended."""
        editor = self.cell(id).locator(".cm-content")
        editor.scroll_into_view_if_needed()
        editor.click()
        if code is not None:
            self.page.keyboard.press("Control+a")
            self.page.keyboard.insert_text(code)
        self.page.keyboard.press("Control+Enter")
        self.wait_until_idle()

    def run_all(self) -> None:
        self.page.get_by_role("menuitem", name="Run", exact=True).click()
        self.page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        self.wait_until_idle()

    def restart_and_run_all(self) -> None:
        self.page.get_by_role("menuitem", name="Kernel", exact=True).click()
        self.page.get_by_role("menuitem", name="Restart Kernel and Run All Cells…", exact=True).click()
        self.page.locator(".jp-Dialog button.jp-mod-accept").click()
        self.page.wait_for_selector(".jp-Dialog", state="detached")
        self.page.wait_for_timeout(1000)
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        """Wait until no cell is running or waiting, seen several times in a row."""
        deadline, calm = time.monotonic() + RUN_S, 0
        while calm < 4:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the lesson was still running after {RUN_S:.0f} s")
            self.page.wait_for_timeout(250)
            waiting = self.page.locator(".jp-InputPrompt").filter(has_text="[*]").count()
            status = self.page.locator(".jp-Notebook-ExecutionIndicator").first.get_attribute("data-status")
            calm = calm + 1 if waiting == 0 and status == "idle" else 0

    def executed(self) -> int:
        """Return how many code cells have a number."""
        prompts = self.page.locator(".jp-CodeCell .jp-InputPrompt")
        return prompts.filter(has_text=re.compile(r"\[\d+\]")).count()

    def errors(self) -> list[str]:
        """Return the texts of error outputs."""
        return self.page.locator(ERROR).all_inner_texts()

    # Explorers

    def controls(self, id: str) -> Any:
        return self.cell(id).locator(CONTROLS)

    def shown(self, id: str) -> tuple[str, str]:
        """Return an explorer's picture (an image's data, or a drawing's markup) and its text."""
        picture, numbers = self.cell(id).locator(PICTURE).first, self.cell(id).locator(NUMBERS).last
        source = picture.evaluate("element => element.tagName === 'IMG' ? element.src : element.outerHTML")
        return source, numbers.inner_text()

    def move(self, id: str, number: int, keys: int = 1, *, back: bool = False) -> Moved:
        """Move one control of an explorer by the keyboard, ``keys`` steps (less than 0: down), and see what follows.

        With ``back``, a slider, a menu or a line of text is put back afterwards: the next control meets what a reader
        meets.
        """
        control = self.controls(id).nth(number)
        self.bring_into_view(id, number)
        before = self.shown(id)
        written = control.evaluate("e => e.value || ''")
        control.focus()
        kind = control.evaluate("e => e.tagName === 'DIV' ? 'slider' : e.tagName === 'SELECT' ? 'select' : e.type")
        if kind == "checkbox":
            self.page.keyboard.press("Space")
        elif kind == "text":
            for key in ("End", "Backspace", "Enter"):
                self.page.keyboard.press(key)
        else:
            last = "e => e.tagName === 'SELECT' ? e.selectedIndex === e.length - 1 : e.ariaValueNow === e.ariaValueMax"
            key = "ArrowLeft" if keys < 0 or control.evaluate(last) else "ArrowRight"
            for _ in range(abs(keys)):
                self.page.keyboard.press(key)
        after = self.wait_for_redraw(id)
        if back and kind in ("slider", "select"):
            control.focus()
            for _ in range(abs(keys)):
                self.page.keyboard.press("ArrowRight" if key == "ArrowLeft" else "ArrowLeft")
            self.wait_until_idle()
        elif back and kind == "text":
            control.focus()
            self.page.keyboard.press("End")
            self.page.keyboard.insert_text(written[-1:])
            self.page.keyboard.press("Enter")
            self.wait_until_idle()
        row = control.evaluate("e => e.closest('.widget-inline-hbox').innerText").split("\n")[0].strip()
        return Moved(f"{kind} {row!r}", before[0] != after[0], before[1] != after[1])

    def wait_for_redraw(self, id: str) -> tuple[str, str]:
        """Return what an explorer shows once the kernel is idle and nothing changes any more."""
        deadline, seen, still = time.monotonic() + REDRAW_S, self.shown(id), 0
        while still < 2 and time.monotonic() < deadline:
            self.wait_until_idle()
            now = self.shown(id)
            still = still + 1 if now == seen else 0
            seen = now
        return seen

    def reached_by_keyboard(self, id: str, presses: int = 60) -> set[int]:
        """Return which controls of a cell the Tab key leads to, from the cell itself."""
        controls = self.controls(id).element_handles()
        self.cell(id).focus()
        reached: set[int] = set()
        for _ in range(presses):
            self.page.keyboard.press("Tab")
            reached.add(self.page.evaluate(FOCUSED, controls))
            if len(reached - {-1}) == len(controls):
                break
        return reached - {-1}

    def bring_into_view(self, id: str, number: int = 0) -> None:
        show = "element => element.closest('.jp-OutputArea').scrollIntoView({block: 'center'})"
        self.controls(id).nth(number).evaluate(show)
        self.page.wait_for_timeout(300)

    # The look

    def use_theme(self, name: str) -> None:
        """Choose a theme in the command palette, by keyboard."""
        self.page.keyboard.press("Control+Shift+c")
        self.page.locator(".lm-CommandPalette-input").first.wait_for()
        self.page.keyboard.type(f"Theme: {name}")
        self.page.wait_for_timeout(800)
        self.page.keyboard.press("Enter")
        self.page.wait_for_function("name => document.body.dataset.jpThemeName === name", arg=name)
        self.page.keyboard.press("Escape")
        self.page.wait_for_timeout(500)

    def use_width(self, pixels: int) -> None:
        self.page.set_viewport_size({"width": pixels, "height": PAGE["height"]})
        self.page.wait_for_timeout(800)

    def hide_files(self) -> None:
        """Give the lesson the room of the file browser, as its own shortcut does."""
        self.page.keyboard.press("Control+b")
        self.page.wait_for_timeout(500)

    def faint_text(self) -> list[Any]:
        return self.page.evaluate(FAINT_TEXT)

    def too_wide(self) -> list[Any]:
        return self.page.evaluate(TOO_WIDE)

    def screenshot(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=str(path))


@contextmanager
def open_lesson(lesson: str) -> Iterator[Visit]:
    """Open a lesson's learner edition in JupyterLab on a workspace of its own; everything ends with the block."""
    with open_lab(lesson) as page:
        yield Visit(page, lesson)


@contextmanager
def open_lab(lesson: str | None = None, progress: str = "") -> Iterator[Any]:
    """Open JupyterLab as ``course.py lab`` does, on a workspace of its own; yield Playwright's page.

    Args:
        lesson: stem such as ``01_tensors``; the start page if None.
        progress: the text of a learner's progress file, if there is one.
    """
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as name, sync_playwright() as p:
        folder = Path(name)
        if progress:
            write_text(folder / "progress.json", progress)
        with running_lab(lesson, folder) as address:
            browser = p.chromium.launch(executable_path=chromium(), args=list(CHROMIUM_OPTIONS))
            try:
                page = browser.new_page(viewport=PAGE)
                page.goto(address, wait_until="domcontentloaded", timeout=START_S * 1e3)
                yield page
            finally:
                browser.close()


@contextmanager
def running_lab(lesson: str | None, folder: Path) -> Iterator[str]:
    """Start ``course.py lab`` on a fresh workspace in ``folder``; yield the address with its token."""
    port = free_port()
    log = folder / "lab.log"
    command = [sys.executable, str(ROOT / "course.py"), "lab", *([lesson] if lesson else [])]
    command += ["--no-browser", "--port", str(port)]
    with log.open("w", encoding="utf-8") as sink:
        server = subprocess.Popen(
            command, env=_own_places(folder), stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield _address(server, log, port)
    finally:
        _end(server)


def _own_places(folder: Path) -> dict[str, str]:
    """Return the variables that keep JupyterLab away from everything a person has on this machine."""
    settings = folder / "settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    write_text(settings, '{"fetchNews": "false"}\n')
    own = {
        "COURSE_WORKSPACE": str(folder / "workspace"),
        "COURSE_PROGRESS": str(folder / "progress.json"),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "lab-workspaces"),
        "IPYTHONDIR": str(folder / "ipython"),
    }
    return {**os.environ, **own}


def _address(server: subprocess.Popen[bytes], log: Path, port: int) -> str:
    """Return the address that JupyterLab prints, once it answers."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        found = re.search(rf"http://127\.0\.0\.1:{port}/\S*token=\w+", log.read_text(encoding="utf-8"))
        if found and _answers(port):
            return found[0]
        if server.poll() is not None:
            break
        time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text(encoding='utf-8')[-2000:]}")


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _end(server: subprocess.Popen[bytes]) -> None:
    """End JupyterLab and the kernels it started."""
    server.send_signal(signal.SIGINT)
    try:
        server.wait(timeout=15)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def free_port() -> int:
    """Return a port on this machine that nothing listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main(lesson: str, path: str, keys: str, theme: str = LIGHT) -> None:
    """Keep a screenshot of a lesson's first explorer, its first control moved by so many keys."""
    with open_lesson(lesson) as visit:
        visit.run_all()
        (explorer, *_) = visit.ids("explorer")
        moved = visit.move(explorer, 0, int(keys))
        if theme != LIGHT:
            visit.use_theme(theme)
        visit.hide_files()
        visit.bring_into_view(explorer)
        visit.page.wait_for_timeout(1000)
        visit.screenshot(Path(path))
        print(f"{visit.executed()} cells ran, errors: {visit.errors() or 'none'}, {moved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
