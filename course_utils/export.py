"""Ways out of PyTorch: the exported program, ONNX, int8 and a compiled package, each measured against the model.

What leaves here is complete: it takes raw pixels, since preprocessing that stays in a notebook is forgotten by the
first client; it is in evaluation mode; and its batch may have any size.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any

import torch
from torch import Tensor, nn

from course_utils.errors import CourseError, EnvironmentProblem, UsageError
from course_utils.paths import ROOT, atomic_path, course_first
from course_utils.serving.runtime import OnnxModel
from course_utils.text import shorten
from course_utils.training import evaluating

MAX_BATCH = 1024  # of exported programs; a bound lets the exporter check what it promises
INPUT, OUTPUT = "pixels", "logits"  # names in ONNX files: part of the contract with whoever calls them
BUILD_TIMEOUT_S = 180.0  # of a package; 10 to 20 s on two idle cores
Call = Callable[[Tensor], Tensor]


class ExportError(CourseError):
    """A model that can't leave PyTorch, or a result that is not the model."""


class RawPixels(nn.Module):
    """A model with its preprocessing inside: raw pixels in, logits out.

    Args:
        model: takes normalised images, float32, (N, 1, H, W).
        mean, std: of the training pixels, as fractions of ``peak``.
        peak: the value of full ink.
    """

    def __init__(self, model: nn.Module, mean: float, std: float, peak: float = 255.0) -> None:
        super().__init__()
        self.model = model
        self.mean, self.std, self.peak = mean, std, peak
        self.train(model.training)  # else a model in evaluation mode would look as if it trained

    def forward(self, pixels: Tensor) -> Tensor:
        """Return logits, (N, C), for pixels (N, 1, H, W) in 0..peak, of any real dtype."""
        return self.model((pixels.float() / self.peak - self.mean) / self.std)


def still_training(model: nn.Module) -> list[str]:
    """Return the names of the sub-modules in training mode, the model itself as ``""``; ready models have none."""
    return [name for name, module in model.named_modules() if module.training]


def to_program(model: nn.Module, example: Tensor, *, max_batch: int = MAX_BATCH) -> torch.export.ExportedProgram:
    """Return the model as an exported program for 1 to ``max_batch`` examples. The model keeps its modes.

    Args:
        model: is exported in evaluation mode, whatever mode it is in.
        example: what it takes, (N, ...). N doesn't matter.

    Raises:
        ExportError: if the model can't be captured for a batch of any size; it says why.
    """
    batch = torch.export.Dim("batch", min=1, max=max_batch)
    with evaluating(model), quiet():
        try:
            return torch.export.export(model, (two_of(example),), dynamic_shapes=({0: batch},))
        except (RuntimeError, ValueError) as error:  # all of torch.export's errors are one of the two
            raise ExportError(
                "This model can't be exported for a batch of any size.",
                got=_first_words(error),
                expected="a forward without Python decisions on values, and without the example's batch size in it",
                fix="torch.where or torch.cond in place of if; x.flatten(1) or x.shape[0] in place of a number",
            ) from error


def two_of(example: Tensor) -> Tensor:
    """Return the example with at least two rows: the exporter takes a batch of 0 or 1 for a constant."""
    return example if len(example) > 1 else torch.cat([example[:1], example[:1]])


def traced(model: nn.Module, example: Tensor) -> tuple[Call, list[str]]:
    """Return what ``torch.jit.trace`` makes of a model, and the kinds of warnings that it gave, each once.

    TorchScript is deprecated; this is here to show what it does.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = torch.jit.trace(model, (example,))
    return result, sorted({warning.category.__name__ for warning in caught})


def to_onnx(
    model: nn.Module | torch.export.ExportedProgram,
    example: Tensor,
    path: Path,
    *,
    metadata: Mapping[str, object] | None = None,
    max_batch: int = MAX_BATCH,
) -> Path:
    """Write the model as one ONNX file, with a batch of any size; input ``pixels``, output ``logits``.

    Args:
        model: a module, or its exported program.
        example: what it takes, (N, ...).
        metadata: facts that travel with the file, as text.

    Raises:
        ExportError: if it can't be captured, or has an operator that ONNX lacks.
    """
    program = to_program(model, example, max_batch=max_batch) if isinstance(model, nn.Module) else model
    with quiet():
        try:
            result = torch.onnx.export(
                program, dynamo=True, verbose=False, input_names=[INPUT], output_names=[OUTPUT],
                dynamic_shapes=({0: "batch"},),
            )  # fmt: skip
        except Exception as error:  # the exporter's errors have no common class
            raise ExportError("This program can't be written as ONNX.", got=_first_words(error)) from error
        assert result is not None
        result.model.metadata_props.update({key: str(value) for key, value in (metadata or {}).items()})
        with atomic_path(path) as temporary:
            result.save(str(temporary), external_data=False)  # one file: nothing to lose on the way
    return Path(path)


def quantize_onnx(source: Path, path: Path, calibration: Tensor | None = None) -> Path:
    """Write an int8 version of an ONNX file, by ONNX Runtime's tools.

    Args:
        source: a float32 file with one input.
        calibration: typical inputs, (N, ...): the ranges of all intermediate values are measured on them beforehand
            (static quantization). None measures the ranges anew in each call (dynamic).
    """
    from onnxruntime import quantization as ort

    logger = logging.getLogger()  # its advice about optional steps goes to the root logger
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with atomic_path(path) as temporary:
            if calibration is None:
                ort.quantize_dynamic(str(source), str(temporary), weight_type=ort.QuantType.QInt8)
            else:
                ort.quantize_static(
                    str(source), str(temporary), _Calibration(calibration, OnnxModel(source).input_name),
                    quant_format=ort.QuantFormat.QDQ, per_channel=True,
                    activation_type=ort.QuantType.QUInt8, weight_type=ort.QuantType.QInt8,
                )  # fmt: skip
    finally:
        logger.setLevel(level)
    return Path(path)


class _Calibration:
    """Batches for ONNX Runtime's calibration, which asks until it gets None."""

    def __init__(self, images: Tensor, name: str) -> None:
        self._feeds = iter([{name: part.float().numpy()} for part in images.split(64)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


def quantize_linears(model: nn.Module, kind: str = "weights") -> nn.Module:
    """Return a copy of the model with its linear layers in int8, by torchao.

    Args:
        kind: ``weights`` keeps weights in int8 and computes in float32; ``dynamic`` computes in int8, too.
    """
    if kind not in ("weights", "dynamic"):
        raise UsageError(f"There is no kind {kind!r}.", expected="'weights' or 'dynamic'")
    with quiet():
        from torchao import quantization as ao

        config = ao.Int8WeightOnlyConfig() if kind == "weights" else ao.Int8DynamicActivationInt8WeightConfig()
        smaller = copy.deepcopy(model).eval()
        ao.quantize_(smaller, config)
    return smaller


def quantize_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the matrix as whole numbers, each row in units of its own.

    Args:
        matrix: shape (O, I), float.

    Returns:
        Whole numbers in -127..127, shape (O, I), int8, and scales, shape (O,): ``q * scale[:, None]`` is the matrix up
        to half a unit. A row of zeros has the scale 1.
    """
    largest = matrix.abs().amax(1)
    scale = torch.where(largest > 0, largest / 127, 1.0)  # 127, not 128: int8 ends there on the positive side
    return (matrix / scale[:, None]).round().to(torch.int8), scale


def calling_onnx(model: OnnxModel) -> Call:
    """Return an ONNX model as a function from tensor to tensor."""
    return lambda images: torch.from_numpy(model(images.float().numpy()))


def state_bytes(model: nn.Module) -> int:
    """Return the size of the model's saved state, in bytes."""
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.tell()


@dataclass(frozen=True)
class Parity:
    """How far two ways of computing the same model are apart, for one batch size.

    Attributes:
        batch: examples per call.
        largest: the largest absolute difference of two logits; infinite if a value is nan or a shape is another one.
        agree: share of the examples for which both name the same class.
    """

    batch: int
    largest: float
    agree: float


def parity(reference: Call, candidate: Call, images: Tensor, batches: Sequence[int] = (1, 7, 512)) -> list[Parity]:
    """Compare two models on the same real inputs, in batches of each size.

    Args:
        images: (N, ...); the first examples are used, 20 batches at most of each size.
    """
    rows = []
    with torch.no_grad():
        for size in batches:
            parts = [part for part in images.split(size)[:20] if len(part) == size]
            if not parts:
                raise UsageError("There are too few images.", got=f"{len(images)} for a batch of {size}")
            pairs = [(reference(part), candidate(part)) for part in parts]
            largest = max(_difference(a, b) for a, b in pairs)
            same = [a.argmax(1) == b.argmax(1) if a.shape == b.shape else torch.zeros(len(a)) for a, b in pairs]
            rows.append(Parity(size, largest, torch.cat(same).float().mean().item()))
    return rows


def _difference(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape:
        return float("inf")
    return (a - b).abs().nan_to_num(nan=float("inf")).max().item()


@dataclass(frozen=True)
class Backend:
    """One way to run a model.

    Attributes:
        name: for tables.
        make: gives the function from images to logits for a number of threads.
        size_bytes: of what must be shipped.
    """

    name: str
    make: Callable[[int], Call]
    size_bytes: int


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let PyTorch use ``count`` cores per operator inside the block; afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def latency_ms(call: Call, images: Tensor, *, budget_s: float = 0.05, least: int = 3) -> float:
    """Return the median time of one call on these images, in milliseconds.

    Args:
        budget_s: measure for about so long, after one call that warms up.
        least: calls at least, whatever they take.
    """
    with torch.inference_mode():
        call(images)
        times: list[float] = []
        end = time.perf_counter() + budget_s
        while len(times) < least or time.perf_counter() < end:
            began = time.perf_counter()
            call(images)
            times.append(1000 * (time.perf_counter() - began))
    return median(times)


class PackageBuild:
    """An AOTInductor package in the making: a process of its own compiles it from the exported program alone.

    The build reads the ``.pt2`` file and never sees the model's Python code. It takes 10 to 20 s on two cores, so a
    lesson starts it early and fetches the package later. The process ends with `close`, and also when this process
    dies.

    Args:
        program: what to compile; saved to the folder first.
        folder: for the program, the package and the compiler's cache.

    Raises:
        EnvironmentProblem: if there is no C++ compiler.
    """

    def __init__(self, program: torch.export.ExportedProgram, folder: Path) -> None:
        if not has_compiler():
            raise EnvironmentProblem("There is no C++ compiler on the path.", fix="Install g++ or clang.")
        self.package = Path(folder) / "model-package.pt2"
        source = Path(folder) / "model-program.pt2"
        with quiet():
            torch.export.save(program, source)
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by close)
        self._began, self.seconds = time.monotonic(), 0.0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "course_utils.export", str(source), str(self.package)],
            stdin=subprocess.PIPE, stdout=self._log, stderr=self._log, cwd=ROOT, start_new_session=True,
            env={
                **os.environ, "PYTHONPATH": course_first(os.environ.get("PYTHONPATH")),
                "TORCHINDUCTOR_CACHE_DIR": str(Path(folder) / "inductor"),
            },
        )  # fmt: skip

    def result(self, timeout_s: float = BUILD_TIMEOUT_S) -> Path:
        """Wait for the package and return its path; ``seconds`` then says how long the build took.

        Raises:
            ExportError: if the build failed, with its last words, or is not done in time.
        """
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.close()
            raise ExportError(f"The package was not built within {timeout_s:g} s.", fix="Give it more time.") from None
        self.seconds = self.seconds or time.monotonic() - self._began
        if code != 0:
            self._log.seek(0)
            words = self._log.read().decode("utf-8", "replace").strip().splitlines()
            raise ExportError("The package could not be built.", got=words[-1] if words else f"exit status {code}")
        return self.package

    def close(self) -> None:
        """End the build and all that it started; closing twice does no harm."""
        if self._process.poll() is None:
            if hasattr(os, "killpg"):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)  # the compiler is its child: both go
            else:
                self._process.kill()
            self._process.wait()
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        self._log.close()

    def __enter__(self) -> PackageBuild:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def has_compiler() -> bool:
    """Tell whether a C++ compiler is on the path."""
    return any(shutil.which(name) for name in ("c++", "g++", "clang++", "cl"))


def load_package(path: Path) -> Call:
    """Return the compiled function of an AOTInductor package."""
    with quiet():
        return torch._inductor.aoti_load_package(str(path))


def build_package(source: Path, package: Path) -> None:
    """Compile an exported program to a package; called in the build's own process."""
    quick: dict[str, Any] = {
        "aot_inductor.precompile_headers": False,  # they pay only for the second package
        "cpp.vec_isa_ok": True,  # what the processor has, the compiler knows: trying it out takes half the time
    }
    with quiet(), atomic_path(package) as temporary:
        named = temporary.with_suffix(".pt2")  # it refuses other endings
        try:
            for settings in (quick, {}):
                try:
                    torch._inductor.aoti_compile_and_package(
                        torch.export.load(source), package_path=str(named), inductor_configs=settings
                    )
                    break
                except Exception:
                    if not settings:
                        raise
            os.replace(named, temporary)
        finally:
            named.unlink(missing_ok=True)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep exporters from reporting their progress: warnings and log lines are dropped, errors stay."""
    loggers = [logging.getLogger(name) for name in ("torch", "torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    # Each torch logger has a level of its own, and so has each of those below it.
    loggers += [
        logger
        for name, logger in logging.root.manager.loggerDict.items()
        if name.startswith(("torch.", "torchao")) and isinstance(logger, logging.Logger)
    ]
    levels = [(logger, logger.level) for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        # torch.export prints the graph as far as it got to standard error before it raises.
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in levels:
            logger.setLevel(level)


def _first_words(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return shorten(f"{type(error).__name__}: {lines[0] if lines else ''}", 160)


def _main(arguments: Sequence[str]) -> None:
    def watch() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        if hasattr(os, "killpg"):
            os.killpg(0, signal.SIGKILL)  # the one who asked is gone; the compiler must not go on for nobody
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    source, package = arguments
    build_package(Path(source), Path(package))


if __name__ == "__main__":
    _main(sys.argv[1:])
