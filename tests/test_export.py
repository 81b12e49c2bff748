"""Ways out of PyTorch: what leaves is the model, for a batch of any size, and every failure is a sentence."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
import warnings

import numpy as np
import psutil
import pytest
import torch
from torch import nn

from course_utils import export
from course_utils.errors import CourseError, EnvironmentProblem, UsageError
from course_utils.export import (
    ExportError,
    PackageBuild,
    RawPixels,
    calling_onnx,
    latency_ms,
    load_package,
    parity,
    quantize_linears,
    quantize_onnx,
    quantize_rows,
    quiet,
    state_bytes,
    still_training,
    to_onnx,
    to_program,
    torch_threads,
    traced,
    two_of,
)
from course_utils.paths import ROOT, course_first
from course_utils.seeding import seeded
from course_utils.serving.runtime import OnnxModel

PIXELS = torch.arange(512 * 16).reshape(512, 1, 4, 4) * 37 % 256  # (N, 1, 4, 4), whole numbers in 0..255


def network():
    with seeded(0):
        model = nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(48, 5)
        )
        model(torch.randn(64, 1, 4, 4))  # BatchNorm has seen something
    return model


@pytest.fixture(scope="module")
def model():
    return RawPixels(network().eval(), 0.4, 0.3)


@pytest.fixture(scope="module")
def program(model):
    return to_program(model, PIXELS[:1].float())


@pytest.fixture(scope="module")
def onnx_file(program, tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    return to_onnx(program, PIXELS[:1].float(), path, metadata={"mean": 0.4, "classes": "abcde"})


def test_raw_pixels_does_what_the_notebook_does(model):
    expected = model.model((PIXELS[:9].float() / 255 - 0.4) / 0.3)
    assert torch.allclose(model(PIXELS[:9]), expected)
    assert torch.allclose(model(PIXELS[:9].to(torch.uint8)), expected)


@pytest.mark.parametrize("training", [True, False])
def test_raw_pixels_has_the_mode_of_its_model(training):
    wrapped = RawPixels(network().train(training), 0, 1)
    assert wrapped.training == training
    assert bool(still_training(wrapped)) == training


def test_still_training_names_what_a_root_in_eval_mode_hides():
    model = network().eval()
    model[1].train()
    assert still_training(model) == ["1"]


def test_a_program_takes_every_batch_up_to_its_bound_and_no_more(model, program):
    assert [round(row.largest, 5) for row in parity(model, program.module(), PIXELS.float())] == [0, 0, 0]
    with pytest.raises(AssertionError, match="1024"):
        program.module()(torch.zeros(1025, 1, 4, 4))


def test_exporting_uses_evaluation_mode_and_leaves_the_modes_alone():
    model = network().train()
    model[1].eval()
    modes = [module.training for module in model.modules()]
    statistics = model[1].running_mean.clone()
    program = to_program(model, torch.randn(3, 1, 4, 4))
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(model[1].running_mean, statistics)
    x = torch.randn(7, 1, 4, 4)
    assert torch.equal(program.module()(x), program.module()(x))  # no dropout


class Decides(nn.Module):
    def forward(self, x):
        return 1 - x if x.mean() > 0.5 else x


class Fixed(nn.Module):
    def forward(self, x):
        return x.reshape(2, -1)


@pytest.mark.parametrize("model", [Decides(), Fixed()], ids=["a decision on values", "the example's batch size"])
def test_what_can_not_be_captured_is_refused_with_the_reason(model, capfd):
    with pytest.raises(ExportError, match=r"any size(.|\n)*torch\.cond"):
        to_program(model, torch.rand(2, 3))
    assert capfd.readouterr().err == ""


def test_a_trace_freezes_the_branch_of_its_example_and_warns():
    run, warned = traced(Decides(), torch.zeros(2, 3))
    assert "TracerWarning" in warned
    assert torch.equal(run(torch.ones(2, 3)), torch.ones(2, 3))  # the model itself gives zeros


def test_rows_in_int8_are_off_by_half_a_unit_at_most():
    matrix = torch.cat([torch.randn(5, 9), torch.zeros(1, 9)])
    q, scale = quantize_rows(matrix)
    assert q.dtype == torch.int8
    assert q.abs().amax(1).tolist() == [127] * 5 + [0]
    assert scale[5] == 1
    assert ((q * scale[:, None] - matrix).abs() <= 0.501 * scale[:, None]).all()


def test_two_of_never_gives_the_exporter_a_batch_of_one():
    assert [len(two_of(PIXELS[:n])) for n in (1, 2, 5)] == [2, 2, 5]


def test_an_onnx_file_agrees_for_every_batch_and_says_what_it_is(model, onnx_file):
    session = OnnxModel(onnx_file)
    for row in parity(model, calling_onnx(session), PIXELS):
        assert row.largest < 1e-5
        assert row.agree == 1
    assert (session.input_name, session.input_shape) == ("pixels", ["batch", 1, 4, 4])
    assert session.metadata == {"mean": "0.4", "classes": "abcde"}


def test_an_onnx_file_is_whole_by_itself(onnx_file, tmp_path):
    alone = shutil.copy(onnx_file, tmp_path / "alone.onnx")
    assert OnnxModel(alone)(PIXELS[:2].float().numpy()).shape == (2, 5)
    assert [path.name for path in onnx_file.parent.iterdir()] == [onnx_file.name]


def test_a_module_can_be_written_directly(model, tmp_path):
    path = to_onnx(model, PIXELS[:1].float(), tmp_path / "direct.onnx")
    assert OnnxModel(path)(np.zeros((3, 1, 4, 4))).shape == (3, 5)


def test_an_operator_that_onnx_lacks_is_a_sentence_and_leaves_no_file(tmp_path):
    class Odd(nn.Module):
        def forward(self, x):
            return torch.special.airy_ai(x)

    with pytest.raises(ExportError, match="can't be written as ONNX"):
        to_onnx(Odd(), torch.rand(2, 3), tmp_path / "odd.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_static", [True, False])
def test_int8_files_are_smaller_and_nearly_agree(model, tmp_path, is_static):
    linear = RawPixels(nn.Sequential(nn.Flatten(), nn.Linear(16, 600), nn.ReLU(), nn.Linear(600, 5)).eval(), 0.4, 0.3)
    source = to_onnx(linear, PIXELS[:1].float(), tmp_path / "a.onnx")
    level = logging.getLogger().level
    path = quantize_onnx(source, tmp_path / "b.onnx", PIXELS[:128] if is_static else None)
    assert logging.getLogger().level == level
    assert path.stat().st_size < source.stat().st_size * 0.6
    (row,) = parity(linear, calling_onnx(OnnxModel(path)), PIXELS, [64])
    assert row.largest < 0.1
    assert row.agree > 0.8


@pytest.mark.parametrize("kind", ["weights", "dynamic"])
def test_int8_linears_are_smaller_and_leave_the_model_alone(kind):
    with seeded(0):
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    images = torch.rand(64, 784)
    before = model(images).detach()
    smaller = quantize_linears(model, kind)
    assert state_bytes(smaller) < 0.4 * state_bytes(model)
    assert torch.equal(model(images), before)
    (row,) = parity(model, smaller, images, [64])
    assert 0 < row.largest < 0.05


def test_another_kind_of_int8_is_refused():
    with pytest.raises(UsageError, match="no kind"):
        quantize_linears(nn.Linear(2, 2), "magic")


def test_parity_sees_nan_another_shape_and_too_few_images():
    images = torch.rand(8, 3)
    assert parity(lambda x: x, lambda x: x * float("nan"), images, [4])[0].largest == float("inf")
    wrong = parity(lambda x: x, lambda x: x[:1], images, [4])[0]  # would broadcast
    assert (wrong.largest, wrong.agree) == (float("inf"), 0)
    assert parity(lambda x: x, lambda x: -x, images, [4])[0].agree < 1
    with pytest.raises(UsageError, match="too few"):
        parity(lambda x: x, lambda x: x, images, [9])


def test_latency_is_measured_without_gradients_and_threads_are_put_back():
    seen = []
    took = latency_ms(lambda x: seen.append(torch.is_grad_enabled()) or time.sleep(0.002), PIXELS, budget_s=0.01)
    assert 2 <= took < 100
    assert not any(seen)
    assert len(seen) >= 4
    before = torch.get_num_threads()
    with pytest.raises(KeyboardInterrupt), torch_threads(before + 1):
        raise KeyboardInterrupt
    assert torch.get_num_threads() == before


def test_quiet_drops_warnings_and_puts_levels_back():
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    level = logger.level
    with quiet():
        warnings.warn("noise", stacklevel=1)
    with pytest.raises(KeyboardInterrupt), quiet():
        raise KeyboardInterrupt
    assert logger.level == level


# --- packages ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not export.has_compiler(), reason="there is no C++ compiler here")
def test_a_package_is_built_from_the_program_alone_and_agrees(model, program, tmp_path):
    with PackageBuild(program, tmp_path) as build:
        path = build.result()
    assert build.seconds > 0
    call = load_package(path)
    assert all(row.largest < 1e-5 for row in parity(model, call, PIXELS.float()))
    assert {p.name for p in tmp_path.iterdir()} == {"model-program.pt2", "model-package.pt2", "inductor"}


@pytest.mark.skipif(not export.has_compiler(), reason="there is no C++ compiler here")
def test_a_build_that_is_given_up_leaves_no_process(program, tmp_path):
    build = PackageBuild(program, tmp_path)
    process = psutil.Process(build._process.pid)
    with pytest.raises(KeyboardInterrupt), build:
        raise KeyboardInterrupt
    assert not process.is_running()
    build.close()
    with PackageBuild(program, tmp_path) as build, pytest.raises(ExportError, match="not built within"):
        build.result(timeout_s=0.01)


@pytest.mark.skipif(not export.has_compiler(), reason="there is no C++ compiler here")
def test_a_build_that_fails_says_why(program, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.export, "save", lambda _program, path: path.write_bytes(b"not a program"))
    with (
        PackageBuild(program, tmp_path) as build,
        pytest.raises(ExportError, match=r"could not be built(.|\n)*not a zip file"),
    ):
        build.result()


def test_without_a_compiler_no_build_starts(program, tmp_path, monkeypatch):
    monkeypatch.setattr(export.shutil, "which", lambda name: None)
    with pytest.raises(EnvironmentProblem, match="no C\\+\\+ compiler"):
        PackageBuild(program, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_build_whose_parent_dies_ends(tmp_path):
    command = [sys.executable, "-m", "course_utils.export", str(tmp_path / "a.pt2"), str(tmp_path / "b.pt2")]
    read, write = os.pipe()
    env = {**os.environ, "PYTHONPATH": course_first(os.environ.get("PYTHONPATH"))}
    with subprocess.Popen(
        command, stdin=read, stderr=subprocess.DEVNULL, cwd=ROOT, env=env, start_new_session=True
    ) as p:
        os.close(read)
        os.close(write)  # as when the parent dies
        assert p.wait(60) != 0


def test_errors_of_this_module_are_course_errors():
    assert issubclass(ExportError, CourseError)
