"""Exceptions that come out of a worker of a DataLoader."""

from __future__ import annotations

import os
import re
from dataclasses import replace

from course_utils.doctor.explain import Case, Explanation, explain, explains
from course_utils.doctor.where import is_reader_file


@explains(r"Caught (?P<kind>\w+) in DataLoader worker process (?P<worker>\d+)\.\nOriginal Traceback")
def in_a_worker(case: Case) -> Explanation:
    """Explain what the worker raised; its traceback is in the message as text."""
    text = case.text
    kind, worker = case.match["kind"], int(case.match["worker"])
    last = text.rstrip().rpartition(f"\n{kind}: ")[2] if f"\n{kind}: " in text else text.rstrip().splitlines()[-1]
    places = re.findall(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)', text)
    own = [place for place in places if is_reader_file(place[0])]
    path, number, line = own[-1] if own else ("", "", "")
    where = f"{os.path.basename(path)}:{number}" if path else ""
    inner = replace(case.failure, kind=kind, text=last, where=where, line=line, again=None)
    explained = explain(inner, case.examination)
    return Explanation(
        explained.slug,
        f"Worker {worker} of a DataLoader raised it. {explained.message}",
        f"{explained.fix}  # num_workers=0 while you look for it",
        {**explained.evidence, "worker": worker},
    )
