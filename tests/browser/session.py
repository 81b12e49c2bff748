"""Drive a real lesson in JupyterLab with the system's Chromium, as a learner would.

Also a program: ``python -m tests.browser.session 01_tensors docs/images/lesson.png 1`` runs the lesson, moves the
first control of its explorer by one key and keeps the screenshot that the README shows.
"""

from __future__ import annotations

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

from course_utils.paths import ROOT, write_text

START_S, RUN_S, REDRAW_S = 60.0, 180.0, 20.0
PAGE = {"width": 1280, "height": 1040}  # CSS pixels
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM_OPTIONS = (
    "--no-sandbox",  # in containers, where root is the usual user
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
CONTROL = ".jp-OutputArea .widget-slider .noUi-handle, .jp-OutputArea .widget-dropdown select"
PICTURE = ".jp-OutputArea .jupyter-widgets img, .jp-OutputArea .jupyter-widgets svg"


def chromium() -> str | None:
    """Return the path of the system's Chromium, or None; ``COURSE_CHROMIUM`` names another."""
    named = os.environ.get("COURSE_CHROMIUM")
    return named or next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)


@dataclass(frozen=True)
class Seen:
    """What happened in the browser.

    Args:
        executed: code cells that have run, as JupyterLab numbers them.
        errors: texts of error outputs.
        before: the explorer's picture as it came (its source).
        after: the picture after the arrow keys.
        numbers: the explorer's text after the arrow keys.
    """

    executed: int
    errors: list[str]
    before: str
    after: str
    numbers: str


def visit(lesson: str, screenshot: Path | None = None, keys: int = 12) -> Seen:
    """Open ``lesson`` in JupyterLab, run all cells, move its first control by keyboard, and look.

    Args:
        lesson: stem such as ``01_tensors``; its learner edition must be built.
        screenshot: where to keep a picture of the page, with the explorer in sight.
        keys: how often the right arrow is pressed; in a menu, how many options further down.
    """
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, running_lab(lesson, Path(folder)) as address, sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium(), args=list(CHROMIUM_OPTIONS))
        try:
            page = browser.new_page(viewport=PAGE)
            page.goto(address, wait_until="domcontentloaded", timeout=START_S * 1e3)
            return _work_through(page, screenshot, keys)
        finally:
            browser.close()


def _work_through(page: Any, screenshot: Path | None, keys: int) -> Seen:
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=START_S * 1e3)
    # The status bar, not the notebook's own sign: that one says idle before there is a kernel.
    page.wait_for_selector("text=/Python 3 .*\\| Idle/", timeout=START_S * 1e3)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    _wait_until_idle(page)
    control = page.locator(CONTROL).first
    _bring_into_view(page, control)
    picture = page.locator(PICTURE).first
    before = _source(picture)
    _move(page, control, keys)
    deadline = time.monotonic() + REDRAW_S
    while _source(picture) == before and time.monotonic() < deadline:
        page.wait_for_timeout(100)
    page.wait_for_timeout(1000)  # the last of the redraws
    if screenshot is not None:
        page.keyboard.press("Control+b")  # the file browser makes room for the lesson
        page.wait_for_timeout(500)
        _bring_into_view(page, control)
        page.wait_for_timeout(500)
        screenshot.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(screenshot))
    numbers = page.locator(".jp-OutputArea .jupyter-widgets pre").first
    return Seen(
        executed=page.locator(".jp-CodeCell .jp-InputPrompt").filter(has_text=re.compile(r"\[\d+\]")).count(),
        errors=page.locator('.jp-OutputArea [data-mime-type="application/vnd.jupyter.error"]').all_inner_texts(),
        before=before,
        after=_source(picture),
        numbers=numbers.inner_text(),
    )


def _move(page: Any, control: Any, keys: int) -> None:
    """Move a slider by arrow keys, or choose the option that stands so much further down in a menu."""
    if control.evaluate("element => element.tagName") == "SELECT":  # JupyterLab keeps the arrow keys for itself there
        control.select_option(index=control.evaluate("element => element.selectedIndex") + keys)
        return
    control.focus()
    for _ in range(keys):
        page.keyboard.press("ArrowRight")


def _wait_until_idle(page: Any) -> None:
    """Wait until no cell is running or waiting, seen twice in a row."""
    deadline, calm = time.monotonic() + RUN_S, 0
    while calm < 3:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the lesson was still running after {RUN_S:.0f} s")
        page.wait_for_timeout(500)
        waiting = page.locator(".jp-InputPrompt").filter(has_text="[*]").count()
        status = page.locator(".jp-Notebook-ExecutionIndicator").first.get_attribute("data-status")
        calm = calm + 1 if waiting == 0 and status == "idle" else 0


def _bring_into_view(page: Any, target: Any) -> None:
    """Scroll the notebook until the target exists (cells far away are not drawn) and is in sight."""
    cells = page.locator(".jp-Notebook .jp-Cell")
    for index in range(cells.count()):
        if target.count():
            break
        cells.nth(index).scroll_into_view_if_needed()
        page.wait_for_timeout(50)
    target.evaluate("element => element.closest('.jp-OutputArea').scrollIntoView({block: 'center'})")


def _source(picture: Any) -> str:
    """Return an image's data, or a drawing's markup."""
    return picture.evaluate("element => element.tagName === 'IMG' ? element.src : element.outerHTML")


@contextmanager
def running_lab(lesson: str, folder: Path) -> Iterator[str]:
    """Start ``course.py lab`` on a fresh workspace in ``folder``; yield the address with its token."""
    port = free_port()
    log = folder / "lab.log"
    command = [sys.executable, str(ROOT / "course.py"), "lab", lesson, "--no-browser", "--port", str(port)]
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


if __name__ == "__main__":
    seen = visit(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    print(f"{seen.executed} cells ran, errors: {seen.errors or 'none'}, picture changed: {seen.before != seen.after}")
    print(seen.numbers)
