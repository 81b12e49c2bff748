"""Lesson 08, the part about torch.compile, and about the tools and packages around a service."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import os
import re
import struct
import wave
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from course_utils.claims.evidence import WORKS, attempt, time_ratio
from course_utils.claims.ledger import Evidence, Page
from course_utils.claims.running import release
from course_utils.claims.verdicts import CAVEAT, FALSE, NEEDS_CUDA, OPINION, OUTDATED, TRUE
from course_utils.compiling import Captured, compilations, has_compiler, quiet_compiler
from course_utils.export import quiet
from course_utils.models import TransformerBlock
from course_utils.scratch import scratch_folder

PAGE = Page("export")
COMPILE = "generated/torch.compile.html"
MODEL = "user_guide/torch_compiler/compile/programming_model"
RECOMPILE, BREAKS = f"{MODEL}.recompilation.html", f"{MODEL}.graph_breaks_index.html"


def outcome(action: Callable[[], object]) -> str:
    """Return ``works``, or the kind of the error without its message.

    Raises:
        ImportError: if a package is missing: that says nothing about a claim.
    """
    said = attempt(action).partition(":")[0]
    if said in ("ImportError", "ModuleNotFoundError"):
        raise ImportError("a package that this measurement needs is missing")
    return said


def no_progress_thread() -> AbstractContextManager[object]:
    """Return a context in which progress bars, also those not shown, start no thread: it would stay for good."""
    from tqdm import tqdm

    return mock.patch.object(tqdm, "monitor_interval", 0)


def gate(x: Tensor) -> Tensor:
    """Five element-wise operators, one after the other."""
    return torch.relu(x * 2 + 1) * torch.tanh(x)


# --- What is captured ------------------------------------------------------------------------------------------------


@PAGE.claim(
    "X001",
    "torch.compile turns the dynamic graph into an optimised statically compiled version for large-scale training.",
    rule=lambda seen: (
        FALSE if seen["graphs of a plain function"] == 0
        else TRUE if seen["graphs after an input of another shape"] == 1 == seen["graphs of a function with .item()"]
        else CAVEAT
    ),
    right="It compiles what it saw, with guards: another shape or another Python value compiles again, and code that "
    "needs a value splits the graph. It is no static program (that is torch.export), and the size of the training has "
    "no part in it.",
    page=COMPILE,
)  # fmt: skip
def graphs_of_three_functions() -> Evidence:
    def with_item(x: Tensor) -> Tensor:
        return x * x.sum().item() + 1

    ones = torch.ones(3)
    return {
        "graphs of a plain function": compilations(gate, [(ones,)])[-1],
        "graphs after an input of another shape": compilations(gate, [(ones,), (torch.ones(5),)])[-1],
        "graphs of a function with .item()": compilations(with_item, [(ones,)])[-1],
    }


@PAGE.claim(
    "X002",
    "torch.compile uses TorchDynamo to translate Python bytecode to a graph and a backend compiler to fuse operators.",
    rule=lambda seen: (
        FALSE if seen["operators in the graph"] < 2
        else CAVEAT if seen["Inductor"] != WORKS
        else TRUE if 0 < seen["kernels that Inductor wrote"] < seen["operators in the graph"] else FALSE
    ),
    right="The graph is captured everywhere; on a CPU, the default backend needs a C++ compiler to write its fused "
    "kernels. Other backends fuse nothing.",
    page=COMPILE,
    varies=True,
)  # fmt: skip
def operators_and_kernels() -> Evidence:
    captured, x, kernels = Captured(), torch.rand(64), 0
    with quiet_compiler(), quiet(), no_progress_thread():
        torch.compile(gate, backend=captured)(x)
        said = "no C++ compiler here"
        if has_compiler():
            from torch._inductor import metrics  # Inductor's own count of what it wrote

            before = metrics.generated_kernel_count
            # One process, no prepared headers, no search for vector instructions: quick to compile, not to run.
            options = {"compile_threads": 1, "cpp_cache_precompile_headers": False, "cpp.vec_isa_ok": False}
            said = attempt(lambda: torch.testing.assert_close(torch.compile(gate, options=options)(x), gate(x)))
            kernels = metrics.generated_kernel_count - before
    return {
        "operators in the graph": sum(map(len, captured.operators())),
        "Inductor": said,
        "kernels that Inductor wrote": kernels,
    }


@PAGE.claim(
    "X004",
    "The first call of a compiled model needs extra compilation time.",
    rule=lambda seen: (
        TRUE if seen["graphs after the first call"] > 0 == seen["graphs made by the second call"] else FALSE
    ),
    right="On this version the first call compiles nothing, or the second one compiles again.",
    page=COMPILE,
)
@PAGE.claim(
    "X035",
    "torch.compile arrived in PyTorch 2.0 and captures the graph at run time before generating faster code.",
    rule=lambda seen: (
        TRUE if seen["graphs before the first call"] == 0 < seen["graphs after the first call"] and seen["PyTorch"] >= 2
        else FALSE
    ),
    right="On this version the graph is made at another time.",
    page=COMPILE,
)  # fmt: skip
def when_a_graph_is_made() -> Evidence:
    captured, x = Captured(), torch.ones(3)
    with quiet_compiler():
        compiled = torch.compile(nn.Linear(3, 3), backend=captured)
        before = captured.count
        compiled(x)
        first = captured.count
        compiled(x)
    return {
        "PyTorch": int(release().split(".")[0]),
        "graphs before the first call": before,
        "graphs after the first call": first,
        "graphs made by the second call": captured.count - first,
    }


class Remembers(nn.Module):
    """A module with a list that outlives its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(self.seen))
        return x * 2


@PAGE.claim(
    "X005",
    "Frequently modifying a Python list in forward makes torch.compile fall back to eager mode and lose the speed-up.",
    rule=lambda seen: (
        FALSE if seen["a list that the module keeps, 12 calls: graphs"] == 1
        else TRUE if seen["a list made in forward, 12 calls: graphs"] > 1 else CAVEAT
    ),
    right="A list that is made in the call is free: capturing unrolls it, and the graph holds no list. A list that "
    "outlives the call and grows fails its guard each time: compiled anew until the limit of 8, then run uncompiled.",
    page=RECOMPILE,
)  # fmt: skip
def lists_in_forward() -> Evidence:
    def fresh(x: Tensor) -> Tensor:
        parts: list[Tensor] = []
        for k in range(10):
            parts.append(x * k)
            if k % 3 == 0:
                parts.pop(0)
        parts[0] = x
        return torch.stack(parts[::-1]).sum(0)

    calls = [(torch.ones(3),)] * 12
    return {
        "a list made in forward, 12 calls: graphs": compilations(fresh, calls)[-1],
        "a list that the module keeps, 12 calls: graphs": compilations(Remembers(), calls)[-1],
    }


@PAGE.claim(
    "X006",
    "Do not enable torch.compile while the model is changing often, because the compiled cache is invalidated each "
    "time.",
    rule=lambda seen: (
        FALSE if seen["graphs, another layer put in"] == seen["graphs, first call"]
        else OPINION if seen["graphs, new weights"] == seen["graphs, first call"] else TRUE
    ),
    right="New weights need no compilation, another layer or other code does. Whether the wait disturbs depends on the "
    "model; torch.compiler.set_stance('force_eager') switches compilation off while you edit.",
    page=RECOMPILE,
)  # fmt: skip
def graphs_of_a_changing_model() -> Evidence:
    model, x, captured = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.ones(3), Captured()
    seen = {}
    with quiet_compiler():
        compiled = torch.compile(model, backend=captured)
        compiled(x)
        seen["graphs, first call"] = captured.count
        with torch.no_grad():
            model[0].weight.mul_(2)
        model.load_state_dict(model.state_dict())
        compiled(x)
        seen["graphs, new weights"] = captured.count
        model[1] = nn.Tanh()
        compiled(x)
        seen["graphs, another layer put in"] = captured.count
    return seen


def graphs_of_sizes(dynamic: bool | None) -> int:
    """Return how many graphs 6 batch sizes make."""
    captured = Captured()
    with quiet_compiler():
        compiled = torch.compile(gate, backend=captured, dynamic=dynamic)
        for size in range(2, 8):
            compiled(torch.ones(size, 3))
    return captured.count


@PAGE.claim(
    "X023",
    "Frequently changing input shapes cause repeated recompilation.",
    rule=lambda seen: (
        TRUE if seen["6 batch sizes: graphs"] == 6
        else CAVEAT if seen["the same with dynamic=False: graphs"] == 6 or seen["2 ranks, 2 dtypes: graphs"] == 4
        else FALSE
    ),
    right="The second size compiles once more, with the size as a variable, and all later ones use that. Compiled each "
    "time are sizes with dynamic=False, and what is no size: the number of axes, the dtype, a batch of 1.",
    page=RECOMPILE,
)  # fmt: skip
def graphs_of_changing_shapes() -> Evidence:
    kinds = [torch.ones([2] * rank, dtype=dtype) for rank in (1, 2) for dtype in (torch.float32, torch.float64)]
    return {
        "6 batch sizes: graphs": graphs_of_sizes(None),
        "the same with dynamic=True: graphs": graphs_of_sizes(True),
        "the same with dynamic=False: graphs": graphs_of_sizes(False),
        "2 ranks, 2 dtypes: graphs": compilations(gate, [(x,) for x in kinds])[-1],
    }


@PAGE.claim(
    "X024",
    "Models with data-dependent Python control flow may fail to compile or become slower.",
    rule=lambda seen: (
        TRUE if seen["graphs of one call"] > 1 else CAVEAT if seen["with fullgraph=True"] != WORKS else FALSE
    ),
    right="On this version an if on a value stays in one graph.",
    page=BREAKS,
)
@PAGE.claim(
    "X025",
    "Compiled-mode error messages are less direct than eager ones.",
    rule=lambda seen: (
        OPINION if seen["wrong shapes, words when compiled"] > 2 * seen["wrong shapes, words of the eager message"]
        else FALSE
    ),
    right="They are several times longer and say the cause in the compiler's words; then they name your lines of code, "
    "which the eager message leaves to the traceback. Run it without compile first.",
    page=f"{MODEL}.observability.html",
)  # fmt: skip
def branch_and_error_when_compiled() -> Evidence:
    def decide(x: Tensor) -> Tensor:
        x = x * 2
        return x - 1 if x.sum() > 0 else x + 1

    def message(call: Callable[[], Any]) -> str:
        try:
            call()
        except Exception as error:
            return str(error)
        return ""

    wrong, x = nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 2)), torch.ones(2, 3)
    with quiet_compiler(), quiet():
        whole = outcome(lambda: torch.compile(decide, backend="eager", fullgraph=True)(torch.ones(3)))
        compiled = message(lambda: torch.compile(wrong, backend="eager")(x))
    return {
        "graphs of one call": compilations(decide, [(torch.ones(3),)])[-1],
        "with fullgraph=True": whole,
        "wrong shapes, words of the eager message": len(message(lambda: wrong(x)).split()),
        "wrong shapes, words when compiled": len(compiled.split()),
    }


# --- What it brings --------------------------------------------------------------------------------------------------


@contextmanager
def profiled() -> Iterator[torch.autograd.profiler.profile]:
    """Record the operators of the block on the CPU, and keep the profiler's own messages away."""
    with (
        mock.patch.dict(os.environ, {"KINETO_LOG_LEVEL": "99"}),
        torch.autograd.profiler.profile(use_kineto=False) as profiler,  # its tables are those of torch.profiler
    ):
        yield profiler


def gain(model: nn.Module, x: Tensor) -> dict[str, bool | float]:
    """Return how many times faster a compiled model is on a GPU; without one, how much fusing could gain at most.

    Fusing saves the time of what is no matrix product and no convolution: these are one kernel already.
    """
    model.eval()
    with torch.no_grad():
        if torch.cuda.is_available():
            model, x = model.cuda(), x.cuda()
            with quiet_compiler(), quiet(), no_progress_thread():
                compiled = torch.compile(model)

                def run(call: Callable[[Tensor], Tensor]) -> Callable[[], None]:
                    def once() -> None:
                        call(x)
                        torch.cuda.synchronize()

                    return once

                return {"CUDA": True, "times faster": time_ratio(run(model), run(compiled))}
        model(x)
        with profiled() as profiler:
            for _ in range(5):
                model(x)
    times = {event.key: event.self_cpu_time_total for event in profiler.key_averages()}
    products = sum(time for name, time in times.items() if re.search(r"conv|mm|attention", name))
    return {"CUDA": False, "on the CPU, fusing the rest gains at most: times": sum(times.values()) / products}


def speed_rule(low: float, high: float) -> Callable[[Evidence], str]:
    def rule(seen: Evidence) -> str:
        if not seen["CUDA"]:
            return NEEDS_CUDA
        faster = seen["times faster"]
        return TRUE if low <= float(faster) <= high else CAVEAT if float(faster) > 1.02 else FALSE

    return rule


@PAGE.claim(
    "X003",
    "torch.compile makes mid-sized vision models 1.2 to 1.8 times faster without code changes.",
    rule=speed_rule(1.2, 1.8),
    right="Fusing saves what is no convolution and no product: much for normalisation and activations on a large GPU, "
    "little where convolutions take the time. The factor is a property of model, batch and machine: measure it.",
    page="https://docs.pytorch.org/tutorials/intermediate/torch_compile_tutorial.html",
    varies=True,
)
def convolutions_compiled() -> Evidence:
    on_gpu = torch.cuda.is_available()
    width, size = (128, 64) if on_gpu else (32, 28)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(3):
        layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)]
    return gain(nn.Sequential(*layers), torch.rand(8, 3, size, size))


@PAGE.claim(
    "X022",
    "torch.compile makes Transformers 20 to 50 percent faster with one line.",
    rule=speed_rule(1.2, 1.5),
    right="The factor depends on the model, the batch and the machine. Products and attention are one kernel already; "
    "what is fused are norms, activations and additions: measure it.",
    page="https://docs.pytorch.org/tutorials/intermediate/torch_compile_tutorial.html",
    varies=True,
)
def transformer_compiled() -> Evidence:
    width = 512 if torch.cuda.is_available() else 128
    return gain(TransformerBlock(width), torch.rand(8, 64, width))


# --- Profiler, threads, devices --------------------------------------------------------------------------------------


@PAGE.claim(
    "X032",
    "Use torch.profiler and sort by cuda_time_total.",
    rule=lambda seen: (
        OUTDATED if seen["table(sort_by='cuda_time_total')"] != WORKS
        else CAVEAT if seen["time on the GPU, of all operators: us"] == 0 or not seen["an event has cuda_time_total"]
        else TRUE
    ),
    right="table() still takes the name, for what events now call device_time_total. In a run on the CPU it is 0 for "
    "everything and sorts nothing: use self_cpu_time_total. And a total counts an operator's children again.",
    page="profiler.html",
)  # fmt: skip
def table_sorted_by_time_on_the_gpu() -> Evidence:
    with profiled() as profiler:
        nn.Linear(8, 8)(torch.ones(2, 8))
    events = profiler.key_averages()
    return {
        "table(sort_by='cuda_time_total')": attempt(lambda: events.table(sort_by="cuda_time_total")),
        "an event has cuda_time_total": hasattr(events[0], "cuda_time_total"),
        "an event has device_time_total": hasattr(events[0], "device_time_total"),
        "time on the GPU, of all operators: us": float(sum(getattr(e, "device_time_total", 0) for e in events)),
    }


@PAGE.claim(
    "X020",
    "libomp and libiomp5md are both the Intel OpenMP runtime that PyTorch loads for multithreading on a CPU.",
    rule=lambda seen: (
        TRUE if seen["Intel's libiomp"] and seen["LLVM's libomp"] else CAVEAT if seen["Intel's libiomp"] else FALSE
    ),
    right="libiomp5md is Intel's runtime, on Windows; libomp is LLVM's, on macOS; wheels for Linux load GNU's libgomp. "
    "Two of them in one process can crash or fight for the cores.",
    page="https://github.com/joblib/threadpoolctl/blob/master/multiple_openmp.md",
    varies=True,
)  # fmt: skip
def openmp_runtimes() -> Evidence:
    with mock.patch.dict(os.environ):  # its import sets a variable for Intel's runtime
        from threadpoolctl import threadpool_info

    names = sorted({entry["prefix"] for entry in threadpool_info() if entry["user_api"] == "openmp"})
    backend = re.search(r"ATen parallel backend: (\w+)", torch.__config__.parallel_info())
    return {
        "loaded here": ", ".join(names) or "none",
        "Intel's libiomp": any(name.startswith("libiomp") for name in names),
        "LLVM's libomp": "libomp" in names,
        "PyTorch's threads": backend[1] if backend else "unknown",
    }


@PAGE.claim(
    "X021",
    "Keep a GPU driver on the CPU production machine to avoid precision differences between CPU and GPU operators.",
    rule=lambda seen: (
        FALSE if seen["linear layer on the CPU"] == WORKS and seen["bytes that it used on a GPU"] == 0
        and seen["off from float64 by"] < 1e-5 else TRUE
    ),
    right="An operator on the CPU never calls the driver. CPU and GPU differ because they add in another order, and in "
    "formats such as TF32, with a driver or without: compare results to a tolerance.",
    page="notes/numerical_accuracy.html",
)  # fmt: skip
def linear_layer_without_a_driver() -> Evidence:
    layer, x = nn.Linear(64, 64), torch.rand(8, 64)
    before = torch.cuda.memory_allocated()  # 0 without a GPU
    said = attempt(lambda: layer(x))
    exact = layer.double()(x.double())
    return {
        "a GPU and its driver are here": torch.cuda.is_available(),
        "linear layer on the CPU": said,
        "off from float64 by": (layer.float()(x) - exact).abs().max().item(),
        "bytes that it used on a GPU": torch.cuda.memory_allocated() - before,
    }


# --- Packages --------------------------------------------------------------------------------------------------------


@PAGE.claim(
    "X033",
    "torchvision and torch versions must match.",
    rule=lambda seen: TRUE if "==" in str(seen["torchvision asks for"]) else OUTDATED if seen["stable ABI"] else CAVEAT,
    right="Earlier wheels demanded one exact torch (torchvision 0.24.1: torch 2.9.1). This one is compiled against the "
    "stable ABI and asks for a lowest release only. The CUDA versions of both must still agree.",
    page="notes/libtorch_stable_abi.html",
)
def what_torchvision_asks_for() -> Evidence:
    asked = [text for text in importlib.metadata.requires("torchvision") or [] if re.match(r"torch\b", text)]
    spec = importlib.util.find_spec("torchvision")
    folders = [Path(place) for place in (spec.submodule_search_locations if spec else None) or ()]
    return {
        "torchvision asks for": "; ".join(asked) or "none",
        "stable ABI": any(list(folder.glob("_C_stable*")) for folder in folders),
    }


@PAGE.claim(
    "X034",
    "torchaudio is the tool for decoding audio.",
    rule=lambda seen: OUTDATED if (seen["PyTorch, major"], seen["PyTorch, minor"]) >= (2, 9) else TRUE,
    right="Since release 2.9 torchaudio hands decoding to TorchCodec, a package of its own, and load() fails without "
    "it. A WAV file is read by Python's standard library.",
    page="https://docs.pytorch.org/torchcodec/stable/",
)
def decoding_of_a_sound() -> Evidence:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1), sound.setsampwidth(2), sound.setframerate(8000)
        sound.writeframes(struct.pack("<4h", 0, 1000, -1000, 0))
    file.seek(0)
    with wave.open(file) as sound:
        samples = torch.frombuffer(bytearray(sound.readframes(4)), dtype=torch.int16)
    major, minor = release().split(".")[:2]
    return {
        "PyTorch, major": int(major),
        "PyTorch, minor": int(minor),
        "torchaudio.load": _load_with_torchaudio(file.getvalue()),
        "wave of the standard library reads": str(samples.tolist()),
    }


def _load_with_torchaudio(content: bytes) -> str:
    if importlib.util.find_spec("torchaudio") is None:
        return "not installed"
    import torchaudio

    with scratch_folder("claim") as folder:
        path = folder / "sound.wav"
        path.write_bytes(content)
        return attempt(lambda: torchaudio.load(str(path)))
