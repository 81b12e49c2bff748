"""Execute one notebook with papermill and nbclient, and say what came of it; runs in the worker's process.

papermill reads the notebook and puts the parameters in. ``CourseClient`` executes the cells: it bounds what they
show and takes nothing for success that is not. It keeps no clock: the runner does, from outside.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import papermill
import psutil
from nbclient.exceptions import CellExecutionComplete, CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbformat.v4 import new_output
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import Engine, NotebookExecutionManager, papermill_engines

from course_utils.paths import atomic_path
from course_utils.text import human_bytes, shorten
from course_utils.tools import processes
from course_utils.tools.kernels import (
    MESSAGE_LIMIT_BYTES,
    GuardedKernelManager,
    GuardedProvisioner,
    kernel_environment,
    scratch_variables,
)
from course_utils.tools.preloaded import NotForked, Preloaded

SAVE_EVERY_S = 2.0  # while a notebook runs; it is always saved at its end
SAVE_SPACING = 20  # times as long as a save takes: at most a twentieth of the time goes into saving
TEXT_LIMIT = 64_000  # characters of a traceback that are reported
MERGE_LIMIT = 256 * 1024  # characters of one text output
ENGINE = "course"
OUTPUT_TYPES = {"stream", "display_data", "execute_result", "error"}

Send = Callable[..., None]


class Stopped(Exception):
    """The notebook can't go on. ``how`` is a word that the runner knows, ``sentence`` is for people."""

    def __init__(self, how: str, sentence: str = "", **facts: Any) -> None:
        super().__init__(sentence)
        self.how = how
        self.sentence = sentence
        self.facts = facts


class OutputBudget:
    """How much the cells of a notebook may still show: bytes in the notebook, bytes and messages in one cell."""

    def __init__(self, cell_bytes: int, notebook_bytes: int, cell_messages: int) -> None:
        self.limits = (cell_bytes, notebook_bytes, cell_messages)
        self.before_bytes = 0  # kept outputs of earlier cells
        self.cell_bytes = 0
        self.messages = 0

    def next_cell(self) -> None:
        """Start with another cell."""
        self.before_bytes += self.cell_bytes
        self.cell_bytes = self.messages = 0

    def room(self) -> int:
        """Return how many bytes may still come."""
        cell, notebook, _ = self.limits
        return max(0, min(cell - self.cell_bytes, notebook - self.before_bytes - self.cell_bytes))

    def breach(self, size_bytes: int) -> str:
        """Return which limit an output of this size would break, as a part of a sentence; empty if none."""
        cell, notebook, messages = self.limits
        if self.messages + 1 > messages:
            return f"made more than {messages:,} outputs"
        if self.cell_bytes + size_bytes > cell:
            return f"wrote more than {human_bytes(cell)} of output"
        if self.before_bytes + self.cell_bytes + size_bytes > notebook:
            return f"took the notebook's output above {human_bytes(notebook)}"
        return ""

    def spend(self, size_bytes: int) -> None:
        """Count one output."""
        self.cell_bytes += size_bytes
        self.messages += 1


def size_of(value: Any) -> int:
    """Return about how many bytes a message's content takes in a notebook file."""
    if isinstance(value, dict):
        return sum(len(key) + size_of(entry) for key, entry in value.items())
    if isinstance(value, (list, tuple)):
        return sum(map(size_of, value))
    return len(value) if isinstance(value, str) else 8


class SavingManager(NotebookExecutionManager):
    """Keeps papermill's notes on each cell, and saves the notebook now and then, whole or not at all."""

    def __init__(self, nb: NotebookNode, output: Path) -> None:
        super().__init__(nb, progress_bar=False)
        self.output = output
        self.next_save = 0.0

    def save(self, **_kwargs: Any) -> None:
        """Save if the last time is long ago, seen against what it cost."""
        start = time.monotonic()
        if start >= self.next_save:
            self.save_now()
            self.next_save = start + max(SAVE_EVERY_S, SAVE_SPACING * (time.monotonic() - start))

    autosave_cell = save

    def save_now(self) -> None:
        """Write the notebook as it is."""
        text = nbformat.writes(self.nb) + "\n"
        with atomic_path(self.output) as temporary:
            temporary.write_text(text, encoding="utf-8", newline="\n")


class CourseClient(PapermillNotebookClient):
    """Executes every cell, bounds what they show, and believes neither the reply alone nor the output alone."""

    def __init__(self, nb_man: SavingManager, *, send: Send, budget: OutputBudget, **kwargs: Any) -> None:
        super().__init__(
            nb_man,
            kernel_name="python3",
            shutdown_kernel="immediate",  # a polite end takes 2 s and changes nothing for a finished notebook
            force_raise_errors=True,  # no tag and no setting of a notebook lets an error pass
            skip_cells_with_tag="",  # nor lets a cell be left out
            **kwargs,
        )
        self.owns_km = True
        self.send_event = send
        self.budget = budget
        self.index: int | None = None  # of the cell that runs, or ran last
        self.stopped: Stopped | None = None
        self.cell_of: dict[str, int] = {}  # request -> cell, also of cells that are done
        self.left_running: list[str] = []  # what cells started and did not wait for

    def execute(self, **kwargs: Any) -> NotebookNode:
        """Start a kernel, execute the cells, end the kernel with everything below it."""
        self.reset_execution_trackers()
        with self.setup_kernel(**kwargs):
            self.send_event("kernel", pid=self.km.provisioner.pid)
            reply = self.wait_for_reply(self.kc.kernel_info())
            self.nb.metadata["language_info"] = reply["content"]["language_info"]
            try:
                self.papermill_execute_cells()
            finally:
                forking = self.km.provisioner.preloaded
                self.left_running = still_running(self.km.provisioner.pid, forking.pid if forking else None)
                self.set_widgets_metadata()
        return self.nb

    def papermill_execute_cells(self) -> None:
        """Execute cell by cell; an error, of whatever kind, is noted at its cell and ends the notebook."""
        done = 0
        for index, cell in enumerate(self.nb.cells):
            if cell.cell_type == "code" and cell.source.strip():
                done += 1
                self.index = index
                self.send_event("cell", index=index, number=done)
                self.budget.next_cell()
            self.nb_man.cell_start(cell, index)
            try:
                self.execute_cell(cell, index)
                self._refuse_hidden_error(cell)
            except BaseException as error:
                self.nb_man.cell_exception(cell, cell_index=index, exception=error)
                raise self.stopped or error from None
            finally:
                self.nb_man.cell_complete(cell, cell_index=index)

    @staticmethod
    def _refuse_hidden_error(cell: NotebookNode) -> None:
        """Raise if the kernel reported success but the cell shows an error: a magic caught it."""
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                raise Stopped("hidden-error", **_error_facts(output))

    async def _async_poll_output_msg(self, parent_msg_id: str, cell: NotebookNode, cell_index: int) -> None:
        """As in nbclient, but what belongs to an earlier cell and comes late goes to that cell, and is not dropped."""
        self.cell_of[parent_msg_id] = cell_index
        while True:
            msg = await self.kc.iopub_channel.get_msg(timeout=None)
            owner = self.cell_of.get(msg["parent_header"].get("msg_id"))
            if owner == cell_index:
                try:
                    self.process_message(msg, cell, cell_index)
                except CellExecutionComplete:
                    return
            elif owner is not None and msg["msg_type"] in OUTPUT_TYPES:
                self.process_message(msg, self.nb.cells[owner], owner)

    def process_message(self, msg: dict[str, Any], cell: NotebookNode, cell_index: int) -> NotebookNode | None:
        """Store what a kernel says, as long as there is room for it."""
        content = msg["content"]
        if msg["msg_type"] in OUTPUT_TYPES or msg["msg_type"] == "comm_open":
            size_bytes = size_of(content)
            if breach := self.budget.breach(size_bytes):
                self._stop_for_output(content, cell, breach)
                return None
            self.budget.spend(size_bytes)
        if msg["msg_type"] == "stream" and self._continues(msg, cell):
            cell.outputs[-1].text += content["text"]
            self.nb_man.autosave_cell()
            return cell.outputs[-1]
        return super().process_message(msg, cell, cell_index)

    def clear_output(self, outs: list[NotebookNode], msg: dict[str, Any], cell_index: int) -> None:
        """Clear a cell's outputs; what is gone no longer counts."""
        super().clear_output(outs, msg, cell_index)
        self.budget.cell_bytes = 0

    def _continues(self, msg: dict[str, Any], cell: NotebookNode) -> bool:
        """Tell whether a text goes on where the cell's last output stopped."""
        last = cell.outputs[-1] if cell.outputs else {}
        return (
            last.get("output_type") == "stream"
            and last.name == msg["content"]["name"]
            and len(last.text) < MERGE_LIMIT  # appending copies
            and not self.clear_before_next_output
            and not self.output_hook_stack.get(msg["parent_header"].get("msg_id"))
        )

    def _stop_for_output(self, content: dict[str, Any], cell: NotebookNode, breach: str) -> None:
        """Keep what fits, say in the notebook that the rest is missing, and end the notebook."""
        if self.stopped is not None:
            return
        if text := content.get("text", "")[: self.budget.room()]:
            cell.outputs.append(new_output("stream", name=content["name"], text=text))
        cell.outputs.append(new_output("stream", name="stderr", text=f"\n[Left out from here: this cell {breach}.]\n"))
        self.stopped = Stopped("output", breach)
        self.task_poll_for_reply.cancel()  # nbclient then takes the kernel for dead, and soon it is


class Session:
    """One notebook: what it takes, and what came of it."""

    def __init__(self, job: dict[str, Any], send: Send, preloaded: Preloaded | None = None) -> None:
        self.job = job
        self.preloaded = preloaded
        self.send = send
        self.folder = Path(job["folder"])
        self.manager = GuardedKernelManager(folder=self.folder, kernel_name="python3")
        self.provisioner: GuardedProvisioner = self.manager.provisioner
        self.provisioner.preloaded = preloaded
        self.provisioner.startup_s = job["startup_s"]
        self.client: CourseClient | None = None

    def run(self) -> dict[str, Any]:
        """Execute the notebook and return the facts of its end."""
        started_cpu_s = sum(os.times()[2:4])
        try:
            facts = self._outcome()
        finally:
            resisting = processes.end_below(os.getpid(), spare=self.preloaded.pid if self.preloaded else None)
        _collect_children()
        return {
            **facts,
            "cell": self.client.index if self.client else None,
            "left_running": self.client.left_running if self.client else [],
            "exit_code": self.provisioner.exit_code,
            "cpu_seconds": sum(os.times()[2:4]) - started_cpu_s,
            "peak_bytes": self.provisioner.peak_bytes,
            "resisting": [process.pid for process in resisting],
        }

    def _outcome(self) -> dict[str, Any]:
        """Execute, and put the way it ended into a word."""
        job = self.job
        try:
            papermill.execute_notebook(
                job["source"].replace("{", "{{").replace("}", "}}"),  # papermill fills in parameters in paths
                None,
                parameters=job["parameters"],
                engine_name=ENGINE,
                kernel_name="python3",
                language="python",
                progress_bar=False,
                cwd=job["cwd"],
                session=self,
            )
        except Stopped as stop:
            return {"how": stop.how, "sentence": stop.sentence, **stop.facts}
        except CellExecutionError as error:
            stored = [o for o in self.client.nb.cells[self.client.index].outputs if o.output_type == "error"]
            shown = stored[-1] if stored else {"ename": error.ename, "evalue": error.evalue, "traceback": []}
            return {"how": "error", **_error_facts(shown)}
        except CellTimeoutError:
            return {"how": "output-lost", "sentence": f"Its limit is {human_bytes(MESSAGE_LIMIT_BYTES)} at once."}
        except DeadKernelError:
            return {"how": "dead"}
        except Exception as error:
            started = self.client is not None and self.client.index is not None
            return {"how": "internal" if started else "start", "sentence": f"{type(error).__name__}: {error}"}
        return {"how": "complete"}

    def execute(self, nb: NotebookNode) -> NotebookNode:
        """Execute a notebook whose parameters are in place; called by papermill."""
        nb.metadata["kernelspec"] = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
        nb.metadata.papermill["input_path"] = Path(self.job["source"]).name  # the same on every machine
        for cell in nb.cells:
            if "injected-parameters" in cell.metadata.tags:
                cell["id"] = "injected-parameters"
        saving = SavingManager(nb, Path(self.job["output"]))
        self.client = CourseClient(
            saving,
            send=self.send,
            budget=OutputBudget(*self.job["output_limits"]),
            km=self.manager,
            startup_timeout=self.job["startup_s"],
            iopub_timeout=self.job["output_wait_s"],
        )
        env = kernel_environment(self.job["threads"], self.job["token"], self.folder / "ipython")
        env |= scratch_variables(self.folder)
        saving.notebook_start()
        if self.preloaded is not None:
            with contextlib.suppress(NotForked):
                self.preloaded.start(env)
                self.send("forking", pid=self.preloaded.pid)
        try:
            self.client.execute(env=env, cwd=self.job["cwd"])
        finally:
            saving.notebook_complete()
            saving.save_now()
        return nb


class CourseEngine(Engine):
    """Hands a notebook that papermill has read and given parameters to its session."""

    @classmethod
    def execute_notebook(cls, nb: NotebookNode, kernel_name: str, *, session: Session, **_kwargs: Any) -> NotebookNode:
        """Execute the notebook; what papermill would save is saved by the session."""
        return session.execute(nb)


papermill_engines.register(ENGINE, CourseEngine)


def _error_facts(output: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of an error output, cut to what a person can read."""
    traceback = "\n".join(output["traceback"])
    if len(traceback) > TEXT_LIMIT:
        traceback = f"{traceback[: TEXT_LIMIT // 8]}\n…\n{traceback[-TEXT_LIMIT * 7 // 8 :]}"
    return {"ename": output["ename"], "evalue": output["evalue"][:TEXT_LIMIT], "traceback": traceback}


def still_running(kernel_pid: int, forking_pid: int | None = None) -> list[str]:
    """Return the commands below this process that a cell started and left, without what libraries keep for later."""
    commands = []
    for process in processes.below(os.getpid()):
        with contextlib.suppress(*processes.GONE):
            words = process.cmdline()
            is_fork = words == psutil.Process(kernel_pid).cmdline()
            is_orphan = process.ppid() == os.getpid()
            is_library = (is_fork and not is_orphan) or "multiprocessing" in " ".join(words)  # of a DataLoader, say
            if process.pid not in (kernel_pid, forking_pid) and not is_library:
                commands.append("a fork of the kernel" if is_fork else shorten(" ".join(words), 80))
    return commands


def _collect_children() -> None:
    """Wait for everything that has ended below this process, so that its processor time is counted here."""
    with contextlib.suppress(ChildProcessError, AttributeError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
