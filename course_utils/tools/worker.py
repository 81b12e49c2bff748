"""The process that executes notebooks for the runner, one after the other.

The runner starts it with ``python -m course_utils.tools.worker FOLDER``, writes one job a line to its standard input
and reads one event a line from its standard output (both JSON). It has its own process so that whatever happens in
it ends with it: the runner watches from outside, and kills this process's kernel, or this process.
When its standard input ends, the runner is gone; it then ends its kernel, removes FOLDER (short-lived files), and
ends.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from queue import SimpleQueue
from typing import Any

from course_utils.tools import processes
from course_utils.tools.preloaded import SWITCH, Preloaded


def _follow_orders(jobs: SimpleQueue[str]) -> None:
    """Pass on jobs; when no more can come because the runner is gone, leave nothing running."""
    for line in sys.stdin:
        jobs.put(line)
    processes.end_below(os.getpid())
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    os._exit(0)


def main() -> None:
    """Execute notebooks until standard input ends."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed here is no event

    def send(event: str, **facts: Any) -> None:
        events.write(json.dumps({"event": event, **facts}) + "\n")
        events.flush()

    jobs: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_follow_orders, args=(jobs,), daemon=True).start()
    adopts = processes.adopt_orphans()
    # jsonschema tries to import this and does without it; it takes longer than all other imports together.
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
    from course_utils.tools.execution import Session

    preloaded = Preloaded() if adopts and os.environ.get(SWITCH) == "forked" else None
    send("ready")
    while True:
        job = json.loads(jobs.get())
        send("done", **Session(job, send, preloaded).run())


if __name__ == "__main__":
    main()
