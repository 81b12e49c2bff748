"""Start the course: python3 course.py setup | lab | run | test | ...

Needs nothing but Python 3.10 to 3.14. The first start makes the environment beside this file (.venv), and an
interrupted one goes on where it was. This file is kept so plain that an old Python can read it and say so.
"""

import os
import sys

OLDEST = (3, 10)
NEWEST = (3, 14)
BROKEN = ((3, 14, 1),)  # torchvision refuses to be installed on it


def refusal(version):
    """Return the sentence for a Python that the course can't run on, or None if it can."""
    name = ".".join(str(part) for part in version[:3])
    if tuple(version[:2]) < OLDEST:
        problem = "This Python is too old: it is %s" % name
    elif tuple(version[:2]) > NEWEST:
        problem = "This Python is too new: it is %s" % name
    elif tuple(version[:3]) in BROKEN:
        problem = "PyTorch can't be installed on Python %s" % name
    else:
        return None
    return (
        "%s, and the course needs Python 3.10 to 3.14. Install one of these from https://www.python.org/downloads/ "
        "and start the course with it, for example: python3.12 course.py run" % problem
    )


def main():
    """Check the Python, then let the package set up the environment and run the command."""
    sentence = refusal(sys.version_info)
    if sentence:
        sys.stderr.write(sentence + "\n")
        return 2
    root = os.path.dirname(os.path.realpath(__file__))
    if root not in sys.path:
        sys.path.insert(0, root)
    from course_utils.tools.environment import start

    return start(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
