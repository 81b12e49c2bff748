"""Checks of lesson 08 about what leaves PyTorch: preprocessing, programs, parity, branches, int8."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from course_utils.exercises.compare import (
    Mistakes,
    describe,
    has_dtype,
    has_shape,
    is_close,
    is_equal,
    is_true,
    is_unchanged,
)
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.verdicts import Check
from course_utils.export import ExportError, quantize_rows, quiet, to_program


def small_model(inputs: Inputs, n_inputs: int, n_classes: int = 3) -> nn.Sequential:
    """Return a network with everything that differs between training and evaluation, in training mode."""
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(n_inputs, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, n_classes)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(inputs.randn(*parameter.shape))
        model[2].running_mean.copy_(inputs.randn(6))
        model[2].running_var.copy_(1 + inputs.rand(6))
    return model


def expected_of(model: nn.Module, x: Tensor) -> Tensor:
    """Return what the model says in evaluation mode, without changing its modes."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.no_grad():
            return model.eval()(x)
    finally:
        for module, mode in modes:
            module.training = mode


def check_self_contained(reader: Any, inputs: Inputs) -> Iterator[Check]:
    """Exercise export.self-contained: a module that takes raw pixels."""
    model = small_model(inputs, 12).eval()
    mean, std = 0.1 + 0.3 * float(inputs.rand(1)), 0.2 + 0.2 * float(inputs.rand(1))
    raw = inputs.randint(0, 200, 5, 1, 3, 4)
    raw[0] //= 4  # each image has a largest value of its own, and none has 255
    module = reader(model, mean, std)
    yield is_true("makes a module", isinstance(module, nn.Module), detail=f"got {describe(module)}",
                  hint="class RawReader(nn.Module), and the check calls RawReader(model, mean, std).")  # fmt: skip
    held = {id(p) for p in module.parameters()}
    yield is_true(
        "the model's parameters are among its own",
        all(id(p) in held for p in model.parameters()),
        hint="Assign it: self.model = model. Only then is it saved, moved and switched together with the rest.",
    )
    module.eval()
    float_raw = raw.float()
    x = float_raw / 255
    with torch.no_grad():
        want = model((x - mean) / std)
        mistakes = [
            (model((float_raw - mean) / std), "The pixels are 0..255, and mean and std are fractions: divide by 255."),
            (model(x), "mean and std are not used: (x - mean) / std."),
            (model((x - mean) * std), "Divide by std."),
            (model(x - mean / std), "Brackets: (x - mean) / std."),
            (model((float_raw / raw.max() - mean) / std), "Divide by 255, not by the largest pixel of this batch."),
            (model((x - x.mean()) / x.std()), "Use the given mean and std, not those of this batch."),
            (want.softmax(1), "Return the logits as they are: softmax is the client's choice."),
        ]
        before = float_raw.clone()
        answer = module(float_raw)
        yield has_shape("returns one row of logits for each image", answer, (5, 3), hint="(N, 1, H, W) -> (N, C)")
        yield is_close("reads raw pixels", answer, want, mistakes=mistakes, hint="model((pixels / 255 - mean) / std)")
        yield is_unchanged("leaves the pixels alone", float_raw, before, hint="No in-place operation on the input.")
        yield is_close("reads bytes, too", module(raw.to(torch.uint8)), want, hint="pixels.float() first.")
        alone = torch.cat([module(float_raw[i : i + 1]) for i in range(5)])
        yield is_close(
            "an image alone gives the same", alone, want, hint="Nothing may depend on the rest of the batch."
        )
    model.train()
    module.eval()
    yield is_true("eval() reaches the model inside", not model.training, hint="Keep the model as an attribute.")
    try:
        program = to_program(module, float_raw).module()
        with torch.no_grad():
            exported = program(float_raw[:4])
    except ExportError as error:
        yield Check("it can be exported", False, error.got, "Tensor operations only: no .item(), no numpy().")
        return
    yield is_close("it can be exported", exported, want[:4], hint="The exported program computes something else.")
    module.train()
    with torch.no_grad():
        module(float_raw)
    yield is_true("train() reaches the model, and forward leaves its mode alone", model.training,
                  hint="Who calls the module sets its mode: no eval() in forward.")  # fmt: skip


def check_unready(unready: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise export.unready: the names of all sub-modules in training mode."""
    model = nn.Sequential()
    model.add_module("body", nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Sequential(nn.Dropout(0.1))))
    model.add_module("head", nn.Linear(2, 2))
    model.eval()
    ready = unready(model)
    some = type(ready) in (list, tuple) and len(ready) > 0
    yield is_equal("a model in evaluation mode has none", _sorted(ready), [],
                   hint="These are in evaluation mode: module.training is False." if some
                   else "Return a list, an empty one then.")  # fmt: skip
    model.body[1].train(True)
    model.body[2][0].train(True)
    modes = [m.training for m in model.modules()]
    want = ["body.1", "body.2.0"]
    answer = unready(model)
    yield is_true(
        "returns a list of names", type(answer) in (list, tuple) and all(type(name) is str for name in answer),
        detail=f"got {describe(answer)}", hint="The names of named_modules(), not the modules.",
    )  # fmt: skip
    yield is_equal(
        "finds what hides below a root in evaluation mode",
        _sorted(answer),
        want,
        mistakes=[([], "model.training speaks for the root alone, and children() for one level. Go through all.")],
        hint="Every name of named_modules() whose module has training=True, at any depth.",
    )
    yield is_true("switches nothing itself", modes == [m.training for m in model.modules()], hint="Only look.")
    model.train()
    names = sorted(name for name, _ in model.named_modules())
    yield is_equal(
        "in training mode, all",
        _sorted(unready(model)),
        names,
        hint="The root counts, too; its name is the empty text.",
    )


def _sorted(names: object) -> object:
    return sorted(names) if type(names) in (list, tuple) and all(type(n) is str for n in names) else names  # type: ignore


def check_program(export_any: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise export.program: a program for 1 to ``most`` images, from one example."""
    side = inputs.size(2, 4)
    most = inputs.size(6, 12)
    model = small_model(inputs, side * side)
    model[1].eval()  # one layer has a mode of its own
    modes = [m.training for m in model.modules()]
    statistics = model[2].running_mean.clone()
    images = inputs.randn(most + 1, 1, side, side)
    with quiet():
        answer = export_any(model, images[:1], most)
    yield is_true("returns an exported program", type(answer) is torch.export.ExportedProgram,
                  detail=f"got {describe(answer)}", hint="return torch.export.export(...)")  # fmt: skip
    run = answer.module()
    want = expected_of(model, images)
    for size in (1, 2, 5, most):
        got, problem = _tried(run, images[:size])
        what = f"runs for {size} image{'s' if size > 1 else ''}"
        yield is_true(what, problem == "", detail=problem, hint=_batch_hint(problem, most))
        yield has_shape(f"gives {size} row{'s' if size > 1 else ''}", got, (size, 3), hint="(N, 1, H, W) -> (N, C)")
        yield is_close(
            f"says what the model says in evaluation mode ({size})", got, want[:size], rtol=1e-3, atol=1e-4,
            hint="Dropout and BatchNorm are captured in the mode they are in: model.eval() before.",
        )  # fmt: skip
    _, problem = _tried(run, images)
    yield is_true("refuses more than the bound", problem != "", detail=f"it took {most + 1} images, most={most}",
                  hint="Dim('batch', max=most)")  # fmt: skip
    yield is_true("the statistics of BatchNorm have not moved", torch.equal(model[2].running_mean, statistics),
                  hint="A forward pass in training mode moved them.")  # fmt: skip
    yield is_true("the model has its modes back", modes == [m.training for m in model.modules()],
                  hint="It trains on afterwards, and each module has its own mode: train() sets all of them. "
                  "`with evaluating(model):` puts every mode back.")  # fmt: skip


def _tried(run: Callable, x: Tensor) -> tuple[Any, str]:
    try:
        with quiet(), torch.no_grad():
            return run(x), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _batch_hint(problem: str, most: int) -> str:
    if ">=" in problem:
        return "Its smallest batch is too large: Dim('batch', min=1, max=most)."
    if "==" in problem and "size()[0]" not in problem:
        return "Two images lie along axis 0, (2, 1, H, W): torch.cat joins there, torch.stack makes a new axis."
    if "==" in problem:
        return "The batch of the example was taken for good: dynamic_shapes=({0: batch},)."
    return f"It should run for 1 to {most} images."


def check_parity(largest_difference: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise export.parity: one number for how far two models are apart."""
    weight = inputs.randn(4, 3)
    images = inputs.randn(12, 4)
    seen: list[int] = []

    def reference(x: Tensor) -> Tensor:
        return x @ weight

    def shifted_by(amount: float) -> Callable:
        def candidate(x: Tensor) -> Tensor:
            seen.append(len(x))
            y = x @ weight
            if len(x) == 5:
                y[3, 1] += amount  # in one batch size only, and in one place
            return y

        return candidate

    def ask(candidate: Callable, sizes: tuple[int, ...] = (1, 5, 12)) -> object:
        return largest_difference(reference, candidate, images, sizes)

    yield _number("two that agree are 0 apart", ask(reference), 0.0, hint="Return a Python number: .item()")
    for amount in (0.75, -0.75):
        answer = ask(shifted_by(amount))
        sizes = sorted(set(seen))
        yield is_true("tries every batch size", sizes == [1, 5, 12], detail=f"called with {sizes} images",
                      hint="images[:size] for each size in sizes.")  # fmt: skip
        yield _number(f"finds the one difference of {amount}", answer, 0.75, mistakes=[
            (0.0, "Take .abs() before .max(), and keep the largest over all sizes, not the last."),
            (-0.75, "A difference in the other direction counts as much: .abs()."),
            (0.75 / 15, "The mean hides what one customer gets: take the largest."),
        ], hint="(a - b).abs().max(), and the largest of these over all sizes.")  # fmt: skip
    yield _number("nan is infinitely far away", ask(lambda x: (x @ weight).masked_fill(x[:, :1] > 9, 0) * _nan_in(x)),
                  math.inf, hint="max() and > let nan pass. Ask torch.isfinite(...).all() first.")  # fmt: skip
    yield _number("another number of rows is infinitely far away", ask(lambda x: (x @ weight)[:1]), math.inf,
                  hint="(5, 3) - (1, 3) broadcasts without a word. Compare the shapes first.")  # fmt: skip
    yield _number("another number of columns is infinitely far away", ask(lambda x: (x @ weight)[:, :1]), math.inf,
                  hint="(5, 3) - (5, 1) broadcasts without a word. Compare the whole shapes.")  # fmt: skip


def _number(what: str, value: object, want: float, *, hint: str, mistakes: Mistakes = ()) -> Check:
    """Like ``is_close`` for a Python number, and says which number came, not how far off it is."""
    check = is_close(what, value, want, atol=1e-5, hint=hint, mistakes=mistakes)
    if check.passed or type(value) not in (int, float):
        return check
    return Check(what, False, f"got {value:.4g}, expected {want:.4g}", check.hint)


def _nan_in(x: Tensor) -> Tensor:
    factor = torch.ones(len(x), 3)
    factor[-1, 0] = torch.nan
    return factor


def check_branch(either_way: Any, inputs: Inputs) -> Iterator[Check]:
    """Exercise export.branch: each image with bright paper is inverted, by itself, and the module can be exported."""
    module = either_way()
    yield is_true("makes a module", isinstance(module, nn.Module), detail=f"got {describe(module)}",
                  hint="class EitherWay(nn.Module) with a forward.")  # fmt: skip
    height, width = inputs.sizes(2, 3, 6)
    ink = 100 * inputs.rand(6, 1, height, width)
    ink[:, :, 1, 1] += 130  # no image is dark or bright everywhere; its mean is on one side all the same
    is_inverted = torch.tensor([True, False, True, True, False, True])
    images = torch.where(is_inverted[:, None, None, None], 255 - ink, ink)
    before = images.clone()
    answer = module(images)
    everything = 255 - images if images.mean() > 127.5 else images
    yield has_shape("keeps the shape", answer, tuple(images.shape), hint="(N, 1, H, W) -> (N, 1, H, W)")
    yield is_close("each image decides for itself", answer, ink, rtol=1e-4, atol=1e-3, mistakes=[
        (everything, "All were turned round. One decision for the whole batch: whose images are inverted depends on "
                     "who else asks. And the limit is 127.5."),
        (torch.where(images > 127.5, 255 - images, images),
         "Each pixel decided for itself. The image decides, by its mean, for all of its pixels."),
        (torch.where(is_inverted[:, None, None, None], 1 - images, images), "The pixels are raw: 255 - pixels, not 1."),
        (255 - ink, "Invert those with a mean above 127.5, not the others."),
        (images, "Nothing was inverted: 255 - pixels."),
    ], hint="pixels.mean((1, 2, 3), keepdim=True) has shape (N, 1, 1, 1).")  # fmt: skip
    yield is_unchanged(
        "leaves the input alone", images, before, hint="It belongs to somebody else: no in-place writing."
    )
    try:
        program = to_program(module, ink[:2]).module()
    except ExportError as error:
        hint = "Python decided on a value, and the exporter can't follow. torch.where computes both and chooses."
        if "Constraints violated" in error.got:
            hint = (
                "A loop over the images, or a size as a number, keeps the example's batch: treat all of them at once."
            )
        yield Check("it can be exported for any batch", False, error.got, hint)
        return
    got, problem = _tried(program, images[:5])
    yield is_true("the program runs for another batch", problem == "", detail=problem, hint="No sizes as numbers.")
    yield is_close("the program decides, too", got, ink[:5], rtol=1e-4, atol=1e-3,
                   hint="The branch of the example was frozen.")  # fmt: skip


def check_int8(to_int8: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise export.int8: each row of a matrix in whole numbers of -127..127, with its own scale."""
    rows, columns = inputs.sizes(2, 5, 9)
    weight = inputs.strided(rows, columns) * torch.logspace(-2, 1, rows)[:, None]  # rows of very different size
    weight[1, 0] = -2 * weight[1].abs().max()  # the largest of this row is negative
    weight[2] = 0
    before = weight.clone()
    answer = to_int8(weight)
    yield is_true("returns two things", type(answer) in (tuple, list) and len(answer) == 2,
                  detail=f"got {describe(answer)}", hint="return q, scale")  # fmt: skip
    q, scale = answer
    yield has_shape("q has the shape of the matrix", q, (rows, columns), hint="One whole number for each weight.")
    yield has_dtype("q is int8", q, torch.int8, hint="Round first, then .to(torch.int8).")
    yield has_shape(
        "one scale for each row", scale, (rows,), hint="The largest of |row| / 127: amax(1) has shape (O,)."
    )
    yield is_true("every scale is a positive number", bool((scale > 0).all() and scale.isfinite().all()),
                  detail=f"got {[round(float(s), 4) for s in scale]}",
                  hint="A row of zeros has the largest value 0: give it the scale 1." if not scale.isinf().any()
                  else "The scale is the largest / 127, not 127 / the largest; 1 for a row of zeros.")  # fmt: skip
    largest = before.abs().amax(1)
    want_scale = torch.where(largest > 0, largest / 127, torch.ones(rows))
    yield is_close("the largest of each row becomes 127", scale, want_scale, mistakes=[
        (torch.where(largest > 0, largest / 128, 1.0), "int8 ends at 127, and 128 becomes -128: divide by 127."),
        (torch.where(largest > 0, largest, 1.0), "Divide by 127: the largest weight becomes 127."),
        (before.abs().max().expand(rows) / 127, "One scale for all rows: the small rows lose their digits."),
        (torch.where(before.amax(1) > 0, before.amax(1) / 127, 1.0), "A negative weight can be the largest: .abs()."),
    ], hint="scale = largest |weight| of the row / 127; 1 for a row of zeros.")  # fmt: skip
    want = (before / want_scale[:, None]).round().to(torch.int8)
    yield is_true(
        "q is the nearest whole number",
        bool(((q.float() * scale[:, None] - before).abs() <= 0.501 * want_scale[:, None] + 1e-7).all()),
        detail=f"{int((q != want).sum())} of {q.numel()} are not",
        hint=".to(torch.int8) cuts the digits off: .round() first. And divide each row by its own scale.",
    )
    yield is_unchanged("leaves the matrix alone", weight, before, hint="Nothing in place.")


def check_int8_linear(int8_linear: Callable, inputs: Inputs) -> Iterator[Check]:
    """Exercise export.int8-linear: a linear layer in whole numbers."""
    n, features, outputs = inputs.sizes(3, 20, 40)
    weight, bias = inputs.randn(outputs, features), inputs.randn(outputs)
    x = inputs.strided(n, features)
    x[0] *= 50  # one loud example
    x[1] = 0
    q, scale = quantize_rows(weight)
    xq, x_scale = quantize_rows(x)
    products = xq.int() @ q.int().t()
    want = products * (x_scale[:, None] * scale) + bias
    answer = int8_linear(x, q, scale, bias)
    loud = x.abs().max() / 127
    shared = ((x / loud).round() @ q.float().t()) * (loud * scale) + bias
    yield has_shape("one row for each example", answer, (n, outputs), hint="x @ weight.T: q has shape (O, I).")
    yield has_dtype("float32", answer, torch.float32, hint="Multiply the whole numbers by the scales at the end.")
    yield is_close("agrees with whole-number arithmetic", answer, want, rtol=1e-4, atol=1e-4, mistakes=[
        (want - bias, "The bias is missing."),
        (products.float(), "Whole numbers times scales: one scale for each row of x, one for each row of q."),
        (products * scale + bias, "The scales of x are missing: x_scale[:, None]."),
        (products * x_scale[:, None] + bias, "The scales of the weights are missing."),
        ((xq @ q.t()) * (x_scale[:, None] * scale) + bias, "int8 times int8 adds up in int8 and runs over: .int()."),
        ((xq.short() @ q.short().t()) * (x_scale[:, None] * scale) + bias, "int16 runs over, too, at 32,767: .int()."),
        ((products + bias) * (x_scale[:, None] * scale), "The scales belong to the products: add the bias after them."),
        (x @ (q * scale[:, None]).t() + bias, "x stayed in float32. It is to be rounded to int8 as well."),
        (shared, "One scale for the whole batch: the loud example spoils the others. One for each row."),
    ], hint="xq, x_scale = quantize_rows(x); xq.int() @ q.int().T; then both scales, then the bias.")  # fmt: skip
    exact = x @ weight.t() + bias
    worst = ((answer - exact).abs() / exact.abs().amax(1, keepdim=True).clamp_min(1)).max().item()
    yield is_true("is close to the layer in float32", worst < 0.05, detail=f"{worst:.0%} of the largest value off",
                  hint="Rounding to 8 bits costs about one percent.")  # fmt: skip
