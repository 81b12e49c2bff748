"""``python -m course_utils CMD`` is ``course CMD``."""

from course_utils.cli import main

main()
