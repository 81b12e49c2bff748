"""What ``torch.compile`` does, made countable: graphs that were captured, reasons for breaks, times of calls.

Capturing needs no compiler: a backend that hands the graph back as it is shows what was captured, and when anew.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import fx

from course_utils.readiness import find_a_compiler
from course_utils.scratch import scratch_folder

# What Dynamo and Inductor say to the log while they are shown at work: file names of this machine, and hints.
_LOGGERS = ("torch._dynamo", "torch._inductor", "torch.utils.cpp_extension", "torch._functorch")


@dataclass
class Captured:
    """A backend for ``torch.compile`` that keeps each graph it is given, and runs it unchanged.

    Example:
        >>> captured = Captured()
        >>> with quiet_compiler():
        ...     torch.compile(lambda x: x * 2 + 1, backend=captured)(torch.ones(3))
        tensor([3., 3., 3.])
        >>> captured.operators()
        [['mul', 'add']]
    """

    graphs: list[fx.GraphModule] = field(default_factory=list)

    def __call__(self, graph: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        self.graphs.append(graph)
        return graph.forward

    @property
    def count(self) -> int:
        """How many graphs were compiled so far."""
        return len(self.graphs)

    def operators(self) -> list[list[str]]:
        """Return the names of the operators of each graph, in the order in which they run."""
        return [[_name(node) for node in graph.graph.nodes if node.op.startswith("call_")] for graph in self.graphs]


@contextmanager
def quiet_compiler() -> Iterator[Path]:
    """Start with nothing compiled, keep what Dynamo logs off the page, and forget and remove it all afterwards.

    Yields:
        The temporary folder into which the compiler writes in the block.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder("compiled"))
        places = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
        stack.enter_context(mock.patch.dict(os.environ, places))  # before Dynamo's import, which makes its folder
        torch.compiler.reset()
        stack.callback(torch.compiler.reset)
        for logger in map(logging.getLogger, _LOGGERS):
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
        yield folder


def compiled_here(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` compiled by Inductor in this process, with no file outside the folder of its cache.

    By default Inductor starts processes that compile side by side, and keeps headers in a folder of its own.
    """
    return torch.compile(function, options={"compile_threads": 1, "cpp_cache_precompile_headers": False})


def compilations(function: Callable[..., Any], calls: Iterable[tuple]) -> list[int]:
    """Compile ``function``, call it with each tuple of arguments, and return the graphs made so far after each call."""
    captured, counts = Captured(), []
    with quiet_compiler():
        compiled = torch.compile(function, backend=captured)
        for arguments in calls:
            compiled(*arguments)
            counts.append(captured.count)
    return counts


def break_reasons(function: Callable[..., Any], *arguments: Any) -> list[str]:
    """Return, in the words of PyTorch, the first line of the reason for each graph break in a call."""
    with quiet_compiler():
        reasons = torch._dynamo.explain(function)(*arguments).break_reasons  # the documented tool, under this name
    return [str(reason.reason).split("\n")[0] for reason in reasons]


def has_compiler() -> bool:
    """Tell whether there is a C++ compiler, which Inductor needs on a CPU."""
    try:
        find_a_compiler()
    except RuntimeError:
        return False
    return True


@dataclass(frozen=True)
class CallTimes:
    """Seconds of the first call and, the median, of later ones."""

    first_s: float
    later_s: float


def time_calls(function: Callable[..., Any], *arguments: Any, repeats: int = 10) -> CallTimes:
    """Call ``function`` once and then ``repeats`` times more; on an accelerator, call it with results on the CPU."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        function(*arguments)
        times.append(time.perf_counter() - start)
    later = sorted(times[1:])
    return CallTimes(times[0], later[len(later) // 2])


def break_even(first_s: float, later_s: float, plain_s: float) -> int | None:
    """Return the number of calls from which on compiling has saved time in all; None if it never does.

    Args:
        first_s: seconds of the first compiled call, compilation included.
        later_s: seconds of each later compiled call.
        plain_s: seconds of each call that is not compiled.
    """
    if first_s < plain_s:
        return 1
    if later_s >= plain_s:
        return None
    return math.floor((first_s - plain_s) / (plain_s - later_s)) + 2


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else node.target.__name__
