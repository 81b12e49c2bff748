"""Lesson 08: what people say about TorchScript, ONNX and int8."""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from course_utils.claims.evidence import WORKS, time_ratio, warnings_of
from course_utils.claims.export_compiling import PAGE, no_progress_thread, outcome
from course_utils.claims.ledger import Evidence
from course_utils.claims.verdicts import CAVEAT, FALSE, OPINION, OUTDATED, TRUE
from course_utils.export import quantize_linears, quiet, state_bytes
from course_utils.scratch import scratch_folder

__all__ = ["PAGE"]
JIT, ONNX, EXPORT = "jit.html", "onnx.html", "user_guide/torch_compiler/export.html"
AO = "https://docs.pytorch.org/ao/stable/"


# --- TorchScript -----------------------------------------------------------------------------------------------------


def by_sum(x: Tensor) -> Tensor:
    """Twice the input if its sum is positive, else 100 less."""
    if x.sum() > 0:
        return x * 2
    return x - 100


def many_times(x: Tensor) -> Tensor:
    """Add 1 as often as the first number says."""
    for _ in range(int(x[0])):
        x = x + 1
    return x


def with_any_number(*inputs: Tensor) -> Tensor:
    return inputs[0]


def deprecations(action: Callable[[], object]) -> str:
    """Return the warnings of the action that say ``deprecated``, or ``none``."""
    return "; ".join(part for part in warnings_of(action).split("; ") if "deprecated" in part) or "none"


@PAGE.claim(
    "X007",
    "TorchScript is PyTorch's officially recommended export format.",
    rule=lambda seen: OUTDATED if "deprecated" in str(seen["torch.jit.script warns"]) else OPINION,
    right="It was, in earlier releases; since 2.10 script and trace warn that they are deprecated. torch.export took "
    "its place, with AOTInductor, ExecuTorch or ONNX behind it.",
    page=JIT,
)
@PAGE.claim(
    "X010",
    "For dynamic branches use torch.jit.script, which supports only part of Python.",
    rule=lambda seen: (
        FALSE if not seen["script takes both branches"]
        else OUTDATED if "deprecated" in str(seen["torch.jit.script warns"])
        else TRUE if seen["script of a function with *inputs"] != WORKS else CAVEAT
    ),
    right="Both halves still hold, but script is deprecated. In torch.export a branch on values is written with "
    "torch.where or torch.cond.",
    page=JIT,
)  # fmt: skip
def script_of_a_branch() -> Evidence:
    with quiet():
        scripted = torch.jit.script(by_sum)
    return {
        "torch.jit.script warns": deprecations(lambda: torch.jit.script(by_sum)),
        "torch.jit.trace warns": deprecations(lambda: torch.jit.trace(torch.relu, torch.ones(2))),
        "script takes both branches": all(torch.equal(scripted(x), by_sum(x)) for x in (torch.ones(2), -torch.ones(2))),
        "script of a function with *inputs": outcome(lambda: torch.jit.script(with_any_number)),
    }


@PAGE.claim(
    "X008",
    "jit.trace records only the branch taken by the example input.",
    rule=lambda seen: TRUE if seen["the other branch, traced"] == seen["the branch of the example"] else FALSE,
    right="On this version a trace keeps both branches.",
    page="generated/torch.jit.trace.html",
)
@PAGE.claim(
    "X009",
    "When production hits a branch the trace has not seen, it raises an error immediately.",
    rule=lambda seen: TRUE if seen["a call for the other branch"] != WORKS else FALSE,
    right="It raises nothing: it computes the recorded branch and answers wrongly. The only sign was a TracerWarning "
    "when the trace was made.",
    page="generated/torch.jit.trace.html",
)
@PAGE.claim(
    "X016",
    "trace fails when the number of loop iterations depends on the input content.",
    rule=lambda seen: TRUE if seen["trace of a loop over values"] != WORKS else FALSE,
    right="It succeeds, with a TracerWarning, and repeats for ever the number of rounds that the example took.",
    page="generated/torch.jit.trace.html",
)
@PAGE.claim(
    "X026",
    "TorchScript fails or gives wrong results on dynamic Python code.",
    rule=lambda seen: (
        FALSE
        if seen["the loop, traced with 2 rounds: right for 3"] and seen["script of a function with *inputs"] == WORKS
        else TRUE
    ),
    right="On this version it is right in these cases.",
    page=JIT,
)  # fmt: skip
def traces_of_a_branch_and_a_loop() -> Evidence:
    with quiet():
        branch = torch.jit.trace(by_sum, torch.ones(2))
        said = warnings_of(lambda: torch.jit.trace(many_times, torch.tensor([2.0])))
        loop = outcome(lambda: torch.jit.trace(many_times, torch.tensor([2.0])))
        rounds = torch.jit.trace(many_times, torch.tensor([2.0]))(torch.tensor([3.0]))
    return {
        "the branch of the example": (-torch.ones(2) * 2).tolist()[0],
        "the other branch, in Python": by_sum(-torch.ones(2)).tolist()[0],
        "the other branch, traced": branch(-torch.ones(2)).tolist()[0],
        "a call for the other branch": outcome(lambda: branch(-torch.ones(2))),
        "trace of a loop over values": loop,
        "and it warns": "TracerWarning" in said,
        "the loop, traced with 2 rounds: right for 3": torch.equal(rounds, many_times(torch.tensor([3.0]))),
        "script of a function with *inputs": outcome(lambda: torch.jit.script(with_any_number)),
    }


@PAGE.claim(
    "X036",
    "TorchScript models run without Python through libtorch in C++.",
    rule=lambda seen: (
        TRUE if seen["the file holds the code"] and seen["runs with the class gone"] else FALSE
    ),
    right="On this version the file needs its Python class.",
    page="https://docs.pytorch.org/cppdocs/",
)  # fmt: skip
def script_without_its_class() -> Evidence:
    class Doubles(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if bool(x.sum() > 0) else x

    file = io.BytesIO()
    with quiet():
        torch.jit.save(torch.jit.script(Doubles()), file)
        del Doubles
        names = zipfile.ZipFile(io.BytesIO(file.getvalue())).namelist()
        loaded = torch.jit.load(io.BytesIO(file.getvalue()))
    return {
        "the file holds the code": any("/code/" in name and name.endswith(".py") for name in names),
        "runs with the class gone": loaded(torch.ones(2)).tolist() == [2.0, 2.0],
        "libtorch's headers are here": (Path(torch.__file__).parent / "include" / "torch" / "script.h").exists(),
    }


# --- ONNX ------------------------------------------------------------------------------------------------------------


class Small(nn.Module):
    """BatchNorm with statistics of its own, then a linear layer; (N, 4) -> (N, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 3)
        nn.init.constant_(self.norm.running_mean, 5.0)
        nn.init.constant_(self.norm.running_var, 9.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))


def to_onnx(model: nn.Module, *inputs: Tensor, **options: Any) -> bytes:
    """Return what torch.onnx.export makes of a model, as the bytes of one file."""
    file = io.BytesIO()
    with no_progress_thread():
        program = torch.onnx.export(model, inputs, verbose=False, **options)
    assert program is not None
    program.save(file)
    return file.getvalue()


def run_onnx(content: bytes | str, *inputs: Tensor) -> Tensor:
    """Run an ONNX model, from bytes or from a file, in ONNX Runtime; return its first output."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4  # errors are raised; not also printed
    session = onnxruntime.InferenceSession(content, settings, providers=["CPUExecutionProvider"])
    feeds = {entry.name: x.numpy() for entry, x in zip(session.get_inputs(), inputs, strict=True)}
    return torch.from_numpy(session.run(None, feeds)[0])


@cache
def static_model() -> tuple[nn.Module, bytes]:
    """Return the small model in evaluation mode, and its export with an example of 2 rows: made once for all claims."""
    model = Small().eval()
    with quiet():
        return model, to_onnx(model, torch.rand(2, 4))


@PAGE.claim(
    "X011",
    "A model is exported to ONNX with opset_version=17 and dynamic_axes naming the batch dimension.",
    rule=lambda seen: (
        FALSE
        if not seen["5 rows instead of 2: right"]
        else OUTDATED
        if "dynamic_axes" in str(seen["warnings"])
        else TRUE
    ),
    right="It was so up to 2.8. Since 2.9 torch.onnx.export goes through torch.export: say dynamic_shapes, and leave "
    "opset_version alone. The old arguments are converted, with warnings, where that is possible.",
    page=ONNX,
)
def export_as_in_older_texts() -> Evidence:
    model, contents = Small().eval(), []
    old = {"input_names": ["x"], "opset_version": 17, "dynamic_axes": {"x": {0: "batch"}}}
    with quiet():
        said = warnings_of(lambda: contents.append(to_onnx(model, torch.rand(2, 4), **old)))
    x = torch.rand(5, 4)
    return {
        "warnings": said,
        "5 rows instead of 2: right": torch.allclose(run_onnx(contents[0], x), model(x), atol=1e-5),
    }


@PAGE.claim(
    "X012",
    "Without a dynamic batch axis an exported model accepts only the batch size of its example.",
    rule=lambda seen: TRUE if WORKS not in (seen["ONNX, 5 rows"], seen["torch.export, 5 rows"]) else FALSE
    if seen["ONNX, 5 rows"] == WORKS == seen["torch.export, 5 rows"] else CAVEAT,
    right="On this version an export without one takes other sizes, too.",
    page=ONNX,
)  # fmt: skip
@PAGE.claim(
    "X019",
    "Make the batch dimension dynamic on export, or keep the inference batch size equal to the training one.",
    rule=lambda seen: (
        OPINION if seen["ONNX, 5 rows"] == WORKS
        else CAVEAT if seen["ONNX, 2 rows as in its example"] == WORKS == seen["dynamic, 5 rows"] else FALSE
    ),
    right="The size in training has no say. A dynamic axis takes every batch, 1 included; without one, the size of the "
    "example at export counts.",
    page=EXPORT,
)  # fmt: skip
def batches_of_another_size() -> Evidence:
    model, static = static_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model(torch.rand(5, 4)).sum().backward()  # a training with batches of 5
    optimizer.step()
    batch = torch.export.Dim("batch", min=1, max=64)
    with quiet():
        program = torch.export.export(model, (torch.rand(2, 4),)).module()
        dynamic = torch.export.export(model, (torch.rand(2, 4),), dynamic_shapes=({0: batch},)).module()
    return {
        "ONNX, 2 rows as in its example": outcome(lambda: run_onnx(static, torch.rand(2, 4))),
        "ONNX, 5 rows": outcome(lambda: run_onnx(static, torch.rand(5, 4))),
        "torch.export, 5 rows": outcome(lambda: program(torch.rand(5, 4))),
        "dynamic, 5 rows": outcome(lambda: dynamic(torch.rand(5, 4))),
        "dynamic, 1 row": outcome(lambda: dynamic(torch.rand(1, 4))),
    }


@PAGE.claim(
    "X013",
    "An ONNX model can be run with ONNX Runtime on CPU or converted to TensorRT, decoupling training and deployment.",
    rule=lambda seen: TRUE if seen["ONNX Runtime on the CPU: off by"] < 1e-4 and seen["it knows TensorRT"] else FALSE,
    right="On this version ONNX Runtime gives something else, or knows no TensorRT.",
    page="https://onnxruntime.ai/docs/execution-providers/",
)
def onnx_on_the_cpu() -> Evidence:
    from onnxruntime import get_all_providers

    (model, content), x = static_model(), torch.rand(2, 4)
    return {
        "ONNX Runtime on the CPU: off by": (run_onnx(content, x) - model(x)).abs().max().item(),
        "it knows TensorRT": "TensorrtExecutionProvider" in get_all_providers(),
    }


class Training(nn.Module):
    """BatchNorm and dropout side by side; (N, 4) -> (N, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.norm(x), self.drop(x)], 1)


@PAGE.claim(
    "X014",
    "Exporting without model.eval() leaves BatchNorm in training state and the online results can be far off.",
    rule=lambda seen: (
        TRUE if all(batch_flags(seen))
        else CAVEAT if any(batch_flags(seen)) or seen["torch.onnx: dropout at work"] else FALSE
    ),
    right="torch.export and torch.jit.trace keep BatchNorm in training. torch.onnx.export puts it in evaluation mode "
    "and leaves dropout at work: the answers are random. Call eval() first.",
    page=EXPORT,
)  # fmt: skip
@PAGE.claim(
    "X015",
    "Exporting in training mode gives no error or warning at all.",
    rule=lambda seen: (
        FALSE if seen["torch.onnx.export warns"] and seen["torch.export.export warns"]
        else CAVEAT if seen["torch.onnx.export warns"] or seen["torch.export.export warns"] else TRUE
    ),
    right="torch.onnx.export warns, torch.export.export says nothing. Look yourself: no module of a model that leaves "
    "may have training True.",
    page=EXPORT,
)  # fmt: skip
def exports_in_training_mode() -> Evidence:
    model, x, contents = Training(), torch.randn(8, 4) * 3 + 5, []
    with quiet():
        program: list[Callable] = []
        plain = warnings_of(lambda: program.append(torch.export.export(model, (x,)).module()))
        onnx = warnings_of(lambda: contents.append(to_onnx(model, x)))
        traced = torch.jit.trace(model, x, check_trace=False)
        results = {"torch.onnx": run_onnx(contents[0], x), "torch.export": program[0](x), "torch.jit.trace": traced(x)}
    by_batch = nn.functional.batch_norm(x, None, None, training=True)
    norm_of = {name: torch.allclose(result[:, :4], by_batch, atol=1e-3) for name, result in results.items()}
    return {
        **{f"{name}: BatchNorm uses the batch": flag for name, flag in norm_of.items()},
        "torch.onnx: dropout at work": not torch.equal(results["torch.onnx"][:, 4:], x),
        "torch.onnx.export warns": "training mode" in onnx,
        "torch.export.export warns": "training mode" in plain,
    }


def batch_flags(seen: Evidence) -> list[bool]:
    return [bool(value) for name, value in seen.items() if "BatchNorm" in name]


@PAGE.claim(
    "X017",
    "Many ONNX exports fail because the inputs were normalised differently.",
    rule=lambda seen: TRUE if seen["export with an example of 0..255"] != WORKS else FALSE,
    right="An export looks at shapes and dtypes of the example, never at its values: it succeeds. What goes wrong are "
    "the answers, later and in silence; put the preprocessing into the model.",
    page=ONNX,
)
def export_with_other_pixels() -> Evidence:
    model, content = static_model()
    x, other = torch.rand(2, 4), []
    with quiet():
        said = outcome(lambda: other.append(to_onnx(model, x * 255)))
    same = torch.equal(run_onnx(content, x), run_onnx(other[0], x)) if other else False
    return {
        "export with an example of 0..255": said,
        "answers as the export with 0..1": same,
        "answers to raw pixels: off by": (run_onnx(content, x * 255) - model(x)).abs().max().item(),
    }


@PAGE.claim(
    "X027",
    "torch.onnx.export produces a file usable in ONNX Runtime.",
    rule=lambda seen: (
        FALSE if seen["ONNX Runtime, where it was written"] != WORKS
        else TRUE if seen["the .onnx file, alone in another folder"] == WORKS else CAVEAT
    ),
    right="It writes two files: model.onnx, and most weights in model.onnx.data, without which the first is useless. "
    "Send both, or say external_data=False (up to 2 GB).",
    page=ONNX,
)  # fmt: skip
def file_in_another_folder() -> Evidence:
    model, x = nn.Linear(64, 64), torch.rand(2, 64)
    with scratch_folder("claim") as home, scratch_folder("claim") as away:
        path = home / "model.onnx"
        with quiet(), no_progress_thread():
            torch.onnx.export(model.eval(), (x,), str(path), verbose=False)
        shutil.copy(path, away)
        return {
            "files written": ", ".join(sorted(entry.name for entry in home.iterdir())),
            "ONNX Runtime, where it was written": outcome(lambda: run_onnx(str(path), x)),
            "the .onnx file, alone in another folder": outcome(lambda: run_onnx(str(away / path.name), x)),
        }


class Where(nn.Module):
    def forward(self, mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.where(mask, a, b)


@PAGE.claim(
    "X028",
    "torch.where may export and then be unsupported in ONNX Runtime.",
    rule=lambda seen: (
        FALSE if all(said == WORKS for said in seen.values()) else TRUE if seen["float32, run"] != WORKS else CAVEAT
    ),
    right="It depends on the dtype: float32 and int64 run; bool exports without a word and is refused when the file is "
    "loaded, for lack of a kernel. Cast to a dtype that has one.",
    page="https://github.com/microsoft/onnxruntime/blob/main/docs/OperatorKernels.md",
)  # fmt: skip
def where_of_two_dtypes() -> Evidence:
    mask = torch.tensor([True, False, True])

    def tried(a: Tensor) -> list[str]:
        contents: list[bytes] = []
        with quiet():
            exported = outcome(lambda: contents.append(to_onnx(Where(), mask, a, a.flip(0))))
            return [exported, outcome(lambda: run_onnx(contents[0], mask, a, a.flip(0)))]

    (floats, floats_run), (bools, bools_run) = tried(torch.rand(3)), tried(torch.tensor([True, True, False]))
    return {"float32, export": floats, "float32, run": floats_run, "bool, export": bools, "bool, run": bools_run}


@PAGE.claim(
    "X029",
    "Custom operators are the main ONNX incompatibility, so run a verification after export.",
    rule=lambda seen: FALSE if seen["export of an operator of one's own"] == WORKS else OPINION,
    right="An operator of one's own stops the export at once, unless it brings its translation. Which trouble is the "
    "main one depends on the model; the verification is right in any case.",
    page=ONNX,
)
def export_of_an_own_operator() -> Evidence:
    library = torch.library.Library("course_claims", "DEF")  # its operators go when it goes
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    library.impl("twice", lambda x: torch.empty_like(x), "Meta")

    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ops.course_claims.twice(x)

    with quiet():
        return {
            "the operator, in PyTorch": outcome(lambda: Twice()(torch.rand(2))),
            "export of an operator of one's own": outcome(lambda: to_onnx(Twice(), torch.rand(2))),
        }


# --- int8 ------------------------------------------------------------------------------------------------------------


def quantized(model: nn.Module) -> tuple[nn.Module, str]:
    """Return the model with dynamic int8 by the tool of older texts, and the warnings about its age."""
    made: list[nn.Module] = []
    kinds = {nn.Linear, nn.Conv2d}
    said = deprecations(lambda: made.append(torch.quantization.quantize_dynamic(model, kinds)))
    return made[0], said


@PAGE.claim(
    "X018",
    "Dynamic quantization changes two lines of code and turns FP32 weights into INT8 for a considerable CPU speed-up.",
    rule=lambda seen: (
        FALSE if not seen["linear layer is quantized"]
        else TRUE if seen["convolution is quantized"] and seen["3 x Linear(32, 32), 1 row: times faster"] > 1.3
        else CAVEAT
    ),
    right="It takes linear and recurrent layers and leaves convolutions in float32. Large matrices gain, small ones "
    "lose to the rounding of their inputs. And the two lines have moved, from torch.quantization to torchao.",
    page=AO,
    varies=True,
)  # fmt: skip
def dynamic_quantization() -> Evidence:
    def times_faster(width: int) -> float:
        model, x = nn.Sequential(*[nn.Linear(width, width) for _ in range(3)]).eval(), torch.rand(1, width)
        small, _ = quantized(model)
        with torch.no_grad():
            return time_ratio(lambda: model(x), lambda: small(x), repeats=9)

    both, _ = quantized(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 4)))
    return {
        "linear layer is quantized": type(both[2]) is not nn.Linear,
        "convolution is quantized": type(both[0]) is not nn.Conv2d,
        "3 x Linear(1024, 1024), 1 row: times faster": times_faster(1024),
        "3 x Linear(32, 32), 1 row: times faster": times_faster(32),
    }


@PAGE.claim(
    "X030",
    "Use torch.quantization for post-training and QAT.",
    rule=lambda seen: OUTDATED if "deprecated" in f"{seen['after training']} {seen['in training']}" else TRUE,
    right="torch.quantization and its later name torch.ao.quantization are deprecated and announced for removal: use "
    "torchao, with quantize_ after training and its own QAT during it.",
    page=AO,
)
def warnings_of_the_old_tool() -> Evidence:
    if not hasattr(torch, "quantization"):
        return {"after training": "deprecated, and gone", "in training": "deprecated, and gone"}
    learning = nn.Sequential(nn.Linear(4, 4)).train()
    return {
        "after training": quantized(nn.Sequential(nn.Linear(4, 4)))[1],
        "in training": deprecations(lambda: torch.quantization.prepare_qat(learning)),
    }


@PAGE.claim(
    "X031",
    "INT8 quantization cuts model size; accuracy must be validated on target hardware.",
    rule=lambda seen: (
        TRUE if seen["size, int8 to float32"] < 0.5 and seen["answers differ by, of their size"] > 0 else FALSE
    ),
    right="On this version the file is no smaller, or the answers are the same.",
    page=AO,
)
def size_and_answers_in_int8() -> Evidence:
    model, x = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).eval(), torch.rand(8, 256)
    small = quantize_linears(model)
    with torch.no_grad():
        exact, rounded = model(x), small(x)
    return {
        "size, int8 to float32": state_bytes(small) / state_bytes(model),
        "answers differ by, of their size": ((rounded - exact).norm() / exact.norm()).item(),
    }


PAGE.claims.sort(key=lambda claim: claim.id)  # two modules, one list
