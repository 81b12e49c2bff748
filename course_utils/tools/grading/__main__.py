"""Start the process that grades: ``python -m course_utils.tools.grading FOLDER [HIDDEN]...`` (see ``zygote``).

Its imports take seconds, and much longer on a crowded machine. Should whoever asked be killed meanwhile, it ends.
"""

from __future__ import annotations

import contextlib
import shutil
import sys

from course_utils.tools import processes

if __name__ == "__main__":
    watched = processes.ending_with_input(lambda: shutil.rmtree(sys.argv[1], ignore_errors=True))
    with watched, contextlib.redirect_stdout(sys.stderr):  # the first line that is written says that it is ready
        from course_utils.tools.grading import zygote

        zygote.preload()
    zygote.main()
