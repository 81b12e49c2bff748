# %% [markdown] id="title"
# # 08 Export and serving
#
# **Why does a model that reads nearly every digit in the notebook misread most of them as a service?**
#
# The model is trained, the test looks good, somebody exports it and puts it behind a web address. It answers, with
# status 200 and high confidence, and much of what it answers is wrong. No line of code has failed: between the notebook
# and the service something was left behind, or something was taken along that should have stayed.
#
# In this lesson you find out what. You take a model out of PyTorch in every way that counts today, prove each time that
# it is still the same model, make it small, measure what that costs, and put it behind HTTP so that bad requests, many
# requests and an interrupt do no harm.

# %% id="parameters" tags=["parameters"]
SEED = 0  # of the weights and the order of the training data
DEVICE = "auto"  # the model trains on "cpu", "cuda", or "auto" for the best one found; it is served on the CPU
FAST = True  # False: a longer training, and longer measurements

# %% id="setup" tags=["setup"]
import copy
import json
import math
import pickle
import queue
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import httpx
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from torch import nn
from torch.export import Dim

from course_utils import check, claim, hint, progress, show, shows_error
from course_utils.data import Batches, load_digits28
from course_utils.devices import pick_device
from course_utils.errors import CourseError
from course_utils.export import (
    Backend,
    PackageBuild,
    RawPixels,
    calling_onnx,
    has_compiler,
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
    traced,
)
from course_utils.metrics import accuracy
from course_utils.models import DigitCNN
from course_utils.plots import use_style
from course_utils.seeding import seeded, stream
from course_utils.serving import (
    OnnxModel,
    Service,
    ServiceProcess,
    bad_requests,
    load_test,
    make_app,
    request_body,
    send_bad_requests,
    service_threads,
)
from course_utils.text import human_bytes, table
from course_utils.training import evaluating
from course_utils.widgets.export import explore_backends

use_style()
device = pick_device(DEVICE)
train, _, test = load_digits28()
pixels = test.images.float()  # (1000, 1, 28, 28), raw: 0 is paper, 255 is ink

# %% [markdown] id="evidence"
# ### The evidence
#
# A model for this lesson, trained for a few seconds. Its images are scaled to 0..1 and normalised, as always.

# %% id="train"
with seeded(SEED):
    reader = DigitCNN().to(device)
    optimizer = torch.optim.AdamW(reader.parameters(), lr=2e-3)
    images, labels = train.as_batch(normalise=True, device=device)  # (3500, 1, 28, 28), (3500,)
    for epoch in range(2 if FAST else 8):
        for x, y in Batches(images, labels, 64, generator=stream(SEED, "shuffle", epoch)):
            loss = F.cross_entropy(reader(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
reader.cpu()
with evaluating(reader):
    share = accuracy(reader(test.as_batch(normalise=True)[0]), test.labels)
print("reads at least 92 % of the test digits:", share >= 0.92)

# %% [markdown] id="predict-evidence-text"
# **Predict.** Now four services. One prepares the pixels as the notebook does. One forgets to prepare them. One was
# exported while the model was in training mode, and gets one image at a time. One gets ordinary pictures, in which
# paper is 255 and ink is 0. What percentage does each read?

# %% id="predict-evidence" tags=["prediction"]
guess = ...  # four numbers, such as (95, 95, 95, 95)


# %% id="evidence-table" tags=["nbval-ignore-output"]
def prepare(raw):
    return (raw / 255 - train.mean) / train.std


reader.train()
forgotten = torch.export.export(reader, (prepare(pixels[:2]),), dynamic_shapes=({0: Dim("batch", max=64)},)).module()
reader.eval()
with torch.no_grad():
    services = {
        "as in the notebook": reader(prepare(pixels)),
        "pixels not prepared": reader(pixels),
        "exported in training mode": torch.cat([forgotten(prepare(image[None])) for image in pixels]),
        "ordinary pictures": reader(prepare(255 - pixels)),
    }
rows = [(name, f"{accuracy(z, test.labels):.0%}", f"{z.softmax(1).amax(1).mean():.2f}") for name, z in services.items()]
print(table(rows, ("service", "reads", "mean confidence")))
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="evidence-says"
# Nothing failed, and every service answers with confidence. The ordinary pictures are a disaster that somebody will
# notice. The other two faults are worse: they cost a little, nobody notices, and they stay for years. Without
# preparation, the model has also become certain of everything, right or wrong.
#
# All three have one root. What was exported was not what was tested.
#
# ## 1. What leaves the notebook
#
# A model that leaves needs three things on board: its **weights**, its **mode**, and its **preprocessing**.
# Preprocessing belongs inside the model, because every client that does it again will do it a little differently.
#
# ### Exercise: preprocessing on board
#
# Write a module `RawReader(model, mean, std)`. Its `forward` takes raw pixels, shape (N, 1, H, W), 0..255, bytes or
# floating, and returns the model's logits for `(pixels / 255 - mean) / std`. `mean` and `std` are numbers. The model's
# parameters are among its own, and the model follows `train()` and `eval()`.


# %% id="ex-self-contained" tags=["exercise"] exercise="export.self-contained"
class RawReader(nn.Module):
    """Logits (N, C) from raw pixels (N, 1, H, W), 0..255."""

    def __init__(self, model, mean, std):
        super().__init__()
        ### BEGIN SOLUTION
        self.model, self.mean, self.std = model, mean, std
        ### END SOLUTION

    def forward(self, pixels):
        ### BEGIN SOLUTION
        return self.model((pixels.float() / 255 - self.mean) / self.std)
        ### END SOLUTION


check("export.self-contained", RawReader)
# hint("export.self-contained")

# %% [markdown] id="raw-text"
# The course's own module for this is `RawPixels`. From here on, `shipped` is what leaves the notebook.

# %% id="shipped"
shipped = RawPixels(reader, train.mean, train.std).eval()
with torch.no_grad():
    same = torch.equal(shipped(test.images), reader(prepare(pixels)))
print("from raw bytes, the same logits as in the notebook:", same)

# %% [markdown] id="file-text"
# ### What kind of file?
#
# `torch.save(model)` writes a **pickle**: the weights, and the *name* of the class. Who loads it needs the class, in
# the same place, from the same version. And a pickle may hold calls, which are made when it is loaded. The next cell
# writes a file that looks like weights: a dict with one entry. In place of a tensor stands the call `print("…")`.
#
# **Predict.** The file is loaded with `torch.load`, in two ways: with `weights_only=False`, and as the default is. In
# which of them does the line get printed?

# %% id="predict-pickle" tags=["prediction"]
guess = ...  # (True or False, True or False)


# %% id="pickle"
class Surprise:
    def __reduce__(self):
        return print, ("  this line was in the file",)


scratch = tempfile.TemporaryDirectory(prefix="lesson08-")  # the last cell removes it
folder = Path(scratch.name)
torch.save({"weights": Surprise()}, folder / "gift.pt")
print("weights_only=False:")
torch.load(folder / "gift.pt", weights_only=False)
print("the default:")
try:
    torch.load(folder / "gift.pt")
except pickle.UnpicklingError as error:
    print("  UnpicklingError:", str(error).split(".")[0])
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="file-says"
# It could have been any call. So: a `state_dict`, which is plain tensors and loads under the default, where the class
# is at hand; an exported program or an ONNX file, where it is not. Sections 2 and 4 write those.
#
# ### The mode is a switch on every module
#
# `eval()` on the whole sets all of them. But a frozen body, a block that was replaced after `eval()`, or one `train()`
# too many leave the switches different, and `model.training` shows only the root's.

# %% id="mode-hidden"
shipped.model.norm2.train()  # one block of many
print("shipped.training:", shipped.training)
print("still training:", still_training(shipped))
shipped = shipped.eval()

# %% [markdown] id="ex-unready-text"
# ### Exercise: who is still training?
#
# Return the names, as `named_modules()` gives them, of all modules that are in training mode, in any order. The root
# counts, too; its name is `""`. Switch nothing.


# %% id="ex-unready" tags=["exercise"] exercise="export.unready"
def unready(model):
    """Return the names of all modules in training mode, a list of str."""
    ### BEGIN SOLUTION
    return [name for name, module in model.named_modules() if module.training]
    ### END SOLUTION


check("export.unready", unready)
# hint("export.unready")

# %% [markdown] id="s2"
# ## 2. A program without Python
#
# A `state_dict` holds weights, and whoever loads it needs the class. `torch.export` captures the *computation*: it runs
# the model once, with stand-ins for the tensors, and writes down each operator. The result is an **exported program**:
# a list of operators, the weights, and the conditions under which the list is right.

# %% id="static-program"
program = torch.export.export(shipped, (pixels[:2],))
calls = [node for node in program.graph.nodes if node.op == "call_function"]
for name, count in Counter(str(node.target).removeprefix("aten.") for node in calls).items():
    print(f"{count} x {name}")
print("the dropouts' argument `train`:", [node.args[2] for node in calls if "dropout" in str(node.target)])

# %% [markdown] id="static-says"
# You can read the whole model: the preprocessing (`div`, `sub`, `div`), two blocks, two linear layers. The dropout
# layers are in it as well, and were told that nobody is training.
#
# **Predict.** The example had 2 images. For which of the batches 1, 2 and 5 does this program run?

# %% id="predict-static" tags=["prediction"]
guess = ...  # for example (1, 2, 5)

# %% id="static-runs"
with torch.no_grad():
    for size in (1, 2, 5):
        try:
            print(f"batch {size}: logits {tuple(program.module()(pixels[:size]).shape)}")
        except AssertionError as error:
            print(f"batch {size}: {error}")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="dynamic-text"
# A **guard**: the program refuses inputs for which it was not captured. That is good: an error is seen, a wrong answer
# is not.
#
# An axis that may vary gets a name and bounds, a `Dim`. `dynamic_shapes` has an entry for each argument: here, axis 0
# of the first one.

# %% id="dynamic-program"
batch = Dim("batch", min=1, max=1024)
program = torch.export.export(shipped, (pixels[:2],), dynamic_shapes=({0: batch},))
with torch.no_grad():
    print("rows:", [len(program.module()(pixels[:size])) for size in (1, 2, 5, 512)])
with shows_error(AssertionError):
    program.module()(torch.zeros(1025, 1, 28, 28))

# %% [markdown] id="one-text"
# One trap is left, and nearly everybody steps into it, because the natural example is a single image.

# %% id="example-of-one"
with shows_error(RuntimeError), quiet():
    torch.export.export(shipped, (pixels[:1],), dynamic_shapes=({0: batch},))

# %% [markdown] id="one-says"
# The exporter treats sizes of 0 and 1 as constants: a batch of 1 may broadcast, any other may not. So the example has
# two images or more, and `min=1` still allows a single one.
#
# ### Exercise: one to most
#
# Return the exported program of `model` for 1 to `most` images, in evaluation mode. `example` is one image, (1, ...).
# The model may be in any mode, and trains on afterwards: each of its modules has its own mode back. `evaluating(model)`
# does that, as a context manager. `torch.cat` makes two images of one.


# %% id="ex-program" tags=["exercise"] exercise="export.program"
def any_batch(model, example, most):
    """Return a torch.export.ExportedProgram for 1..most images."""
    ### BEGIN SOLUTION
    batch = Dim("batch", min=1, max=most)
    with evaluating(model):
        return torch.export.export(model, (torch.cat([example, example]),), dynamic_shapes=({0: batch},))
    ### END SOLUTION


check("export.program", any_batch)
# hint("export.program")

# %% [markdown] id="parity-text"
# ### Is it still the same model?
#
# Every way out ends with the same test: **parity**. Run both on the same *real* inputs, in batches of several sizes,
# and look at the largest difference. Zero is too much to ask: another order of additions rounds differently. What you
# may ask is that it stays far below what decides between two digits.
#
# ### Exercise: how far apart?
#
# `reference` and `candidate` are functions from images to logits. For each size in `sizes`, call both on the first
# `size` images. Return the largest absolute difference over all sizes, a Python number. It is `math.inf` if two results
# have different shapes, or if a difference is not finite.


# %% id="ex-parity" tags=["exercise"] exercise="export.parity"
def largest_difference(reference, candidate, images, sizes):
    """Return how far the two are apart at most, a float."""
    ### BEGIN SOLUTION
    largest = 0.0
    for size in sizes:
        a, b = reference(images[:size]), candidate(images[:size])
        if a.shape != b.shape or not torch.isfinite(a - b).all():
            return math.inf
        largest = max(largest, (a - b).abs().max().item())
    return largest
    ### END SOLUTION


check("export.parity", largest_difference)
# hint("export.parity")

# %% [markdown] id="package-text"
# ### A package in the making
#
# **AOTInductor** compiles a program ahead of time to machine code, in a file that needs no Python. That takes a C++
# compiler and 10 to 20 s on two cores, so we start it now, in a process of its own, and fetch the result in section 8.
# The process gets the saved program and never sees the class `DigitCNN`.

# %% id="package-start" tags=["nbval-ignore-output"]
build = PackageBuild(program, folder) if has_compiler() else None
print("the build has started" if build else "no C++ compiler here: this lesson goes on without the package")

# %% [markdown] id="s3"
# ## 3. When the model decides
#
# To read ordinary pictures too, the model should turn them round: if the mean is above 127.5, paper is bright. In
# Python that is an `if`.


# %% id="batch-if"
class WithIf(nn.Module):
    """Turn a bright batch round, then read it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixels):
        if pixels.mean() > 127.5:
            pixels = 255 - pixels
        return self.model(pixels)


deciding = WithIf(shipped).eval()
with torch.no_grad():
    for name, batch_of in (("as in training", pixels), ("ordinary pictures", 255 - pixels)):
        print(f"{name}: reads at least 92 %: {accuracy(deciding(batch_of), test.labels) >= 0.92}")

# %% [markdown] id="trace-text"
# ### The old way: TorchScript
#
# Tutorials before 2024 say `torch.jit.trace(model, example)`: it runs the model once with an example, and returns one
# that runs without the class. The model has an `if`, and the example takes one of its two branches.
#
# **Predict.** We trace with digits as in training. Does the traced model read ordinary pictures? Is there an error?

# %% id="predict-trace" tags=["prediction"]
guess = ...

# %% id="trace"
old, warned = traced(deciding, pixels[:2])  # torch.jit.trace, and the kinds of warnings that it gave
print("a TracerWarning:", "TracerWarning" in warned)
for name, batch_of in (("as in training", pixels), ("ordinary pictures", 255 - pixels)):
    (row,) = parity(deciding, old, batch_of, [512])
    print(f"{name}: the same digits: {row.agree == 1}, largest difference below 1e-3: {row.largest < 1e-3}")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="trace-says"
# A trace records the operators of one run: the branch of the example is frozen. A `TracerWarning` scrolls by once, in
# the middle of a build, and from then on the file answers wrongly without a word. `torch.jit.script` reads the source
# instead and keeps the `if`, but understands only a part of Python. Both belong to **TorchScript**, which is
# deprecated; use it for nothing new.
#
# What does `torch.export` do? The course's `to_program` calls it as you did above, and shortens what it says.

# %% id="export-if"
with shows_error(CourseError):
    to_program(deciding, pixels[:2])

# %% [markdown] id="cond-text"
# It refuses: a stand-in has no mean to compare. What it can capture is a decision that is *part of the program*:
# `torch.cond(condition, if_true, if_false, arguments)`. Both branches are captured, and their results must have the
# same shapes and dtypes.


# %% id="cond"
class WithCond(WithIf):
    def forward(self, pixels):
        bright = pixels.mean() > 127.5
        pixels = torch.cond(bright, lambda x: 255 - x, lambda x: x.clone(), (pixels,))
        return self.model(pixels)


conditional = torch.export.export(WithCond(shipped).eval(), (pixels[:2],), dynamic_shapes=({0: batch},))
for name, batch_of in (("as in training", pixels), ("ordinary pictures", 255 - pixels)):
    (row,) = parity(deciding, conditional.module(), batch_of, [512])
    print(f"{name}: the same digits: {row.agree == 1}, largest difference below 1e-3: {row.largest < 1e-3}")

# %% [markdown] id="mixed-text"
# Exported, and still wrong. The model decides for the whole batch. In a notebook a batch is one thing; behind a service
# it is whoever asked in the same few milliseconds.
#
# **Predict.** 60 images as in training and 10 ordinary pictures come in one batch. How many of the 10 get the answer
# that they would get alone?

# %% id="predict-mixed" tags=["prediction"]
guess = ...  # 0 to 10

# %% id="mixed" tags=["nbval-ignore-output"]
crowd = torch.cat([pixels[100:160], 255 - pixels[:10]])
with torch.no_grad():
    together = deciding(crowd).argmax(1)[60:]
    alone = torch.cat([deciding(255 - pixels[i : i + 1]) for i in range(10)]).argmax(1)
print("alone:   ", alone.tolist())
print("together:", together.tolist())
print(f"the same: {(alone == together).sum()} of 10, your guess: {'none yet' if guess is ... else guess}")

# %% [markdown] id="branch-ex-text"
# The others were misread because of their neighbours. An answer may never depend on who else asks.
#
# ### Exercise: a decision for each image
#
# Write a module `EitherWay()`. It takes raw pixels, (N, 1, H, W), floating, and returns them with each image whose own
# mean is above 127.5 turned round: 255 − pixel. The others stay, and so does the input. It must be exportable for a
# batch of any size. `torch.where(condition, a, b)` chooses element by element, and its condition may broadcast.


# %% id="ex-branch" tags=["exercise"] exercise="export.branch"
class EitherWay(nn.Module):
    """Turn bright images round, each by itself, (N, 1, H, W) -> (N, 1, H, W)."""

    def forward(self, pixels):
        ### BEGIN SOLUTION
        is_bright = pixels.mean((1, 2, 3), keepdim=True) > 127.5  # (N, 1, 1, 1)
        return torch.where(is_bright, 255 - pixels, pixels)
        ### END SOLUTION


check("export.branch", EitherWay)
# hint("export.branch")

# %% [markdown] id="s4"
# ## 4. ONNX: another runtime
#
# **ONNX** is a file format for such programs that many runtimes read. **ONNX Runtime** runs it, on servers without
# PyTorch, in browsers and on phones. `torch.onnx.export(..., dynamo=True)` starts from the exported program; the older
# exporter underneath `dynamo=False` is a tracer, with the trap that you have just seen.
#
# Two habits: name inputs and outputs, since they are a contract, and put the facts that a stranger needs into the file.

# %% id="onnx-write"
path = folder / "reader.onnx"
with quiet():
    result = torch.onnx.export(
        program,
        dynamo=True,
        verbose=False,
        input_names=["pixels"],
        output_names=["logits"],
        dynamic_shapes=({0: "batch"},),
    )
result.model.metadata_props.update({"pixels": "raw, 0 paper to 255 ink", "classes": "0123456789"})
result.save(path, external_data=False)  # one file; large models keep their weights beside it, and lose them
onnx_reader = OnnxModel(path)  # opens a session of ONNX Runtime
print("input:", onnx_reader.input_name, onnx_reader.input_shape)
print("facts:", onnx_reader.metadata)
print("operators:", dict(Counter(node.op_type for node in result.model.graph)))

# %% [markdown] id="onnx-says"
# `batch` in the shape: any size. There are fewer operators than in the program: BatchNorm has been multiplied into the
# convolutions, and dropout is gone.
#
# Parity, on real digits, for batches of 1, 7 and 512: one alone, one that is no power of two, one that is large.
#
# **Predict.** The logits are between about −20 and 20, in float32. How large is the largest difference?

# %% id="predict-parity" tags=["prediction"]
guess = ...  # for example 1e-3

# %% id="onnx-parity"
rows = parity(shipped, calling_onnx(onnx_reader), pixels)
for row in rows:
    print(f"batch {row.batch:>3}: below 1e-4: {row.largest < 1e-4}, the same digit for {row.agree:.0%}")

# %% id="onnx-parity-numbers" tags=["nbval-ignore-output"]
for row in rows:
    print(f"batch {row.batch:>3}: largest difference {row.largest:.1e}")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="onnx-train-text"
# A float32 has 24 bits, so numbers near 20 are about 2·10⁻⁶ apart: the difference is a few of the smallest possible
# steps. **A parity budget** says how much you allow: 10⁻⁴ for another float32 runtime; for int8, agreement of the
# answers.
#
# And what if the model is in training mode? People say that exporting it gives no warning.

# %% id="onnx-train"
reader.train()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.export.export(reader, (prepare(pixels[:2]),))
    n_program = len(caught)
    torch.onnx.export(reader, (prepare(pixels[:2]),), dynamo=True, verbose=False)
reader.eval()
says_so = any("training mode" in str(w.message) for w in caught[n_program:])
print("torch.export warns:", n_program > 0, "  torch.onnx.export warns:", says_so)

# %% [markdown] id="s5"
# ## 5. Eight bits
#
# A weight of 32 bits becomes a whole number of −127..127 times a **scale**. One scale for each row of the matrix, since
# rows differ in size. The unit is chosen so that the largest weight of the row just fits.
#
# ### Exercise: weights in eight bits
#
# For a matrix (O, I) return `(q, scale)`: `scale`, shape (O,), is the largest |weight| of the row divided by 127, and 1
# for a row of zeros; `q`, int8, shape (O, I), is the nearest whole number to weight / scale.


# %% id="ex-int8" tags=["exercise"] exercise="export.int8"
def to_int8(weight):
    """Return (q, scale): (O, I) int8 and (O,)."""
    ### BEGIN SOLUTION
    largest = weight.abs().amax(1)
    scale = torch.where(largest > 0, largest / 127, 1.0)
    return (weight / scale[:, None]).round().to(torch.int8), scale
    ### END SOLUTION


check("export.int8", to_int8)
# hint("export.int8")

# %% [markdown] id="int8-linear-text"
# **Weight-only** quantization stops here: the file is small, and the computation multiplies back to float32. To compute
# in whole numbers, the inputs must be rounded, too. **Dynamic** quantization measures their range in each call,
# **static** quantization measures it beforehand, on typical inputs: calibration.
#
# ### Exercise: a layer in whole numbers
#
# `quantize_rows(matrix)`, from the set-up cell, gives `(q, scale)` as above. Round each row of `x`, (N, I), with it.
# Multiply whole numbers by whole numbers and add up in int32; then multiply row n, column o by both scales, and add the
# bias, (O,). The result is float32, (N, O).


# %% id="ex-int8-linear" tags=["exercise"] exercise="export.int8-linear"
def int8_linear(x, q, scale, bias):
    """Return x @ W.T + bias for W = q * scale[:, None], computed in whole numbers; (N, O), float32."""
    ### BEGIN SOLUTION
    xq, x_scale = quantize_rows(x)
    return (xq.int() @ q.int().T) * (x_scale[:, None] * scale) + bias
    ### END SOLUTION


check("export.int8-linear", int8_linear)
# hint("export.int8-linear")

# %% [markdown] id="int8-ways-text"
# Now the tools. **torchao** is PyTorch's library for it and quantizes linear layers (`torch.quantization`, in older
# tutorials, is deprecated in its favour). ONNX Runtime has its own tools and quantizes convolutions as well. Which
# works on *this* CPU? Nobody knows from reading. Each one is measured in three numbers.
#
# **Predict.** int8 has a quarter of the bits. Which of the four variants, if any, is quicker than the float32 model in
# the same runtime?

# %% id="predict-int8" tags=["prediction"]
guess = ...

# %% id="int8-make"
calibration = train.images[:256].float()  # training images: the test is for testing
static, dynamic = folder / "static.onnx", folder / "dynamic.onnx"
quantize_onnx(path, static, calibration)
quantize_onnx(path, dynamic)
ways = {  # name -> (what it is compared with, how to call it, bytes)
    "PyTorch float32": (None, shipped, state_bytes(shipped)),
    "ONNX Runtime float32": (None, calling_onnx(onnx_reader), path.stat().st_size),
}
for kind in ("weights", "dynamic"):
    small = quantize_linears(shipped, kind)
    ways[f"torchao int8, {kind}"] = ("PyTorch float32", small, state_bytes(small))
for name, file in (("dynamic", dynamic), ("static", static)):
    call = calling_onnx(OnnxModel(file))
    ways[f"ONNX Runtime int8, {name}"] = ("ONNX Runtime float32", call, file.stat().st_size)

# %% id="int8-measure" tags=["nbval-ignore-output"]
budget = 0.05 if FAST else 0.5  # seconds per measurement


def measured(call):
    """Return the latency for 1 and for 64 images in ms, and the accuracy."""
    with torch.no_grad():
        logits = torch.cat([call(part) for part in pixels.split(100)])
    one, many = (latency_ms(call, pixels[:n], budget_s=budget) for n in (1, 64))
    return one, many, accuracy(logits, test.labels)


results = {name: measured(call) for name, (_, call, _) in ways.items()}
rows = []
for name, (one, many, share) in results.items():
    base = results[ways[name][0] or name]
    gains = [f"x{base[0] / one:.1f}", f"x{base[1] / many:.1f}"]
    rows.append((name, human_bytes(ways[name][2]), f"{one:.3f}", gains[0], f"{many:.1f}", gains[1], f"{share:.1%}"))
print(table(rows, ("way", "size", "1 image, ms", "quicker", "64 images, ms", "quicker", "accuracy")))
print("your guess:", "none yet" if guess is ... else guess)

# %% id="int8-facts"
sizes = {name: size for name, (_, _, size) in ways.items()}
for name, (base, call, size) in ways.items():
    if base:
        (row,) = parity(shipped, call, pixels, [200])
        print(f"{name}: {size / sizes[base]:.2f} of the size, the same digit for at least 97 %: {row.agree >= 0.97}")

# %% [markdown] id="int8-says"
# Size is certain: about a quarter, wherever the weights are in int8. Accuracy stays within the noise of 1,000 test
# digits. Speed is another matter: in the columns "quicker", values below 1 are slower. A small network is not held up
# by its weights; it drowns in the work of rounding, scaling and choosing kernels.
#
# **Predict.** Another network: three linear layers of 1,024 × 1,024, one image at a time. ONNX Runtime, float32 against
# int8 (dynamic). By which factor is int8 quicker or slower here?

# %% id="predict-int8-large" tags=["prediction"]
guess = ...  # for example 1.5, or 0.5 for half as quick

# %% id="int8-large" tags=["nbval-ignore-output"]
with seeded(SEED):
    wide = nn.Sequential(*[layer for _ in range(3) for layer in (nn.Linear(1024, 1024), nn.ReLU())]).eval()
x = torch.rand(64, 1024)
whole = to_onnx(wide, x[:2], folder / "wide.onnx")
small = quantize_onnx(whole, folder / "wide8.onnx")
calls = [calling_onnx(OnnxModel(file)) for file in (whole, small)]
for n in (1, 64):
    before, after = (latency_ms(call, x[:n], budget_s=budget) for call in calls)
    print(f"{n:>2} at a time: {before:.2f} ms in float32, {after:.2f} ms in int8, x{before / after:.1f} quicker")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="int8-large-says"
# One at a time, each weight is fetched from memory for a single multiplication, and a quarter of the bytes are fetched
# in less time. With 64, a weight that is fetched is used 64 times; what is gained then comes from the CPU's
# instructions for whole numbers, if it has them. The same tool, the same CPU, another result than above. **int8 is a
# promise about size. Speed you measure**, with your model, on the machine that will serve.

# %% [markdown] id="s6"
# ## 6. A service
#
# Now HTTP. The course's service is a FastAPI app with four routes: `POST /predict`, `GET /health`, `GET /about`,
# `GET /stats`. It runs in a thread of this notebook, on a port that was free, on the **loopback** interface: reached
# from this machine only. At the end of the block it stops.

# %% id="first-request"
digits = pixels[:5].to(torch.uint8)
with Service(make_app(onnx_reader, about=onnx_reader.metadata)) as service, service.client() as client:
    print("GET /health:", client.get("/health").json())
    answer = client.post("/predict", content=request_body(digits), headers={"content-type": "application/json"})
    print("POST /predict:", answer.status_code, answer.json()["digits"])
    print("GET /stats:", client.get("/stats").json())
with torch.no_grad():
    print("the model itself:   ", shipped(digits).argmax(1).tolist())
print("threads left behind:", service_threads())

# %% [markdown] id="first-request-says"
# `client` is httpx, a real HTTP client: the request went through the network stack and back. The statistics count one
# request more than we sent: the app shows the model a blank image before it takes requests, so a broken model stops the
# start and not a customer. To use a service over several cells, write `service = Service(app).start()` in the first and
# `service.stop()` in the last.
#
# ### What comes in from outside
#
# Anything. The first rule of a service: **a bad request is the client's fault (4xx), gets one sentence that says what
# to send, and leaves no trace.** A 500 means that *we* are broken, and wakes somebody up at night.
#
# **Predict.** JSON has no NaN. Python's `json.loads('[NaN, 1e999]')`: an error, or a list?

# %% id="predict-nan" tags=["prediction"]
guess = ...

# %% id="json-nan"
print(json.loads("[NaN, 1e999]"), "and true is a number:", isinstance(json.loads("true"), int))
print("your guess:", "none yet" if guess is ... else guess)

# %% id="bad-requests"
with Service(make_app(onnx_reader)) as service, service.client() as client:
    answers = send_bad_requests(client)
    print(
        table([(r.name, status, sentence[:78]) for r, status, sentence in answers], ("request", "status", "sentence"))
    )
    print("still healthy:", client.get("/health").status_code == 200)

# %% [markdown] id="read-request-text"
# ### Exercise: nothing but pixels
#
# Write the part that stands at the door. It returns `(200, pixels)`, an array or tensor of shape (N, 28, 28) with the
# numbers as they came, or `(status, sentence)`, a sentence of more than one word, and raises nothing. In this order:
#
# | what is wrong | status |
# | --- | --- |
# | the content type is not `application/json` (parameters after `;` are fine) | 415 |
# | the body has more than 50,000 bytes | 413 |
# | the body is not JSON | 400 |
# | it is not an object with the key `"images"`, a list of at least one image | 422 |
# | there are more than 4 images | 413 |
# | an image is not a list of 28 rows, each a list of 28 numbers | 422 |
# | a number is `true`, `false`, not finite, or outside 0..255 | 422 |


# %% id="ex-read-request" tags=["exercise"] exercise="export.read-request"
def read_request(body, content_type):
    """Return (200, pixels) or (status, sentence) for a request's bytes and its content type."""
    ### BEGIN SOLUTION
    if content_type.split(";")[0].strip().lower() != "application/json":
        return 415, "Send application/json."
    if len(body) > 50_000:
        return 413, "Send at most 50,000 bytes."
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return 400, "The body is not JSON."
    if type(message) is not dict or type(message.get("images")) is not list or not message["images"]:
        return 422, 'Send {"images": [...]} with at least one image.'
    images = message["images"]
    if len(images) > 4:
        return 413, "Send at most 4 images."
    for image in images:
        rows = image if type(image) is list and len(image) == 28 else []
        if not rows or not all(type(row) is list and len(row) == 28 for row in rows):
            return 422, "An image is 28 rows of 28 numbers."
        if not all(type(p) in (int, float) and math.isfinite(p) and 0 <= p <= 255 for row in rows for p in row):
            return 422, "Pixels are numbers in 0..255."
    return 200, np.array(images, dtype=np.float32)
    ### END SOLUTION


check("export.read-request", read_request)
# hint("export.read-request")

# %% [markdown] id="s7"
# ## 7. Many at once
#
# Most of the cost of a call is often the same for one image and for many. So a service lets requests that arrive
# together share a call: **dynamic batching**. It waits a few milliseconds for company. To see the effect, we need a
# costly model: here is one that takes 20 ms for each call, whatever the batch, as a large network on a GPU would.
#
# **Predict.** 8 clients, each sends its next request when the last is answered. Without batching, how many requests per
# second? And with batches of up to 64?

# %% id="predict-batching" tags=["prediction"]
guess = ...  # (without, with)


# %% id="batching" tags=["nbval-ignore-output"]
def costly(batch_of):
    time.sleep(0.02)  # stands for the large network
    return onnx_reader(batch_of)


bodies = [request_body(pixels[i : i + 1].int()) for i in range(16)]
rows, loads = [], {}
for most in (1, 64):
    with Service(make_app(costly, max_batch=most)) as service, service.client() as client:
        load = loads[most] = load_test(service.url, bodies, n_requests=80, n_clients=8, timeout_s=20)
        stats = client.get("/stats").json()
    rows.append((most, f"{load.per_second:.0f}", f"{load.latency_ms(0.5):.0f}", stats["batches"], stats["largest"]))
print(table(rows, ("max_batch", "requests/s", "median, ms", "calls of the model", "largest batch")))
print("your guess:", "none yet" if guess is ... else guess)

# %% id="batching-facts"
print("all answered:", all(load.statuses == {200: 80} for load in loads.values()))
print("batching serves more per second:", loads[64].per_second > loads[1].per_second)

# %% [markdown] id="gather-text"
# One at a time, 20 ms each: at most 50 per second, and each request waits for seven others. With batches, the clients
# fall into groups: while one group is computed, the others gather. Each request then waits for a call that is under way
# and for its own, and several share each call.
#
# ### Exercise: wait, but not for ever
#
# The heart of it. `waiting` is a `queue.Queue` of requests. Take the first, however long it takes to come. From then
# on, others have `wait_s` seconds to join. Return a list in the order of arrival as soon as it has `most` requests, or
# when the time is up. Take nothing that you don't return. `waiting.get(timeout=seconds)` raises `queue.Empty`;
# `time.monotonic()` is a clock that nobody resets.


# %% id="ex-gather" tags=["exercise"] exercise="export.gather"
def gather(waiting, most, wait_s):
    """Return the requests of one batch, a list of 1..most."""
    ### BEGIN SOLUTION
    batch = [waiting.get()]
    end = time.monotonic() + wait_s
    while len(batch) < most:
        try:
            batch.append(waiting.get(timeout=max(0.0, end - time.monotonic())))
        except queue.Empty:
            break
    return batch
    ### END SOLUTION


check("export.gather", gather)
# hint("export.gather")

# %% [markdown] id="overload-text"
# ### More than it can do
#
# A queue without a limit is a promise that can't be kept: everybody waits longer and longer, and at the end all time
# out. With a limit, some are told at once to come back later: status 503. Here, 24 clients, a model of 20 ms that takes
# one request per call, and room for 4 in the queue.

# %% id="overload"
with Service(make_app(costly, max_batch=1, max_waiting=4)) as service, service.client() as client:
    load = load_test(service.url, bodies, n_requests=120, n_clients=24, timeout_s=20)
    print("statuses that came:", sorted(load.statuses), "  all accounted for:", sum(load.statuses.values()) == 120)
    print("nobody who was served waited for two seconds:", load.latencies_ms[-1] < 2000)
    print("healthy:", client.get("/health").status_code == 200)

# %% [markdown] id="end-text"
# ### The end
#
# A service that is told to stop takes nothing new, answers what it has, and gives the port back. Also when you press
# "interrupt" in the middle: the block's end does the work.

# %% id="interrupt"
try:
    with Service(make_app(onnx_reader)) as service:
        print("threads while it runs:", service_threads())
        raise KeyboardInterrupt  # as if you had pressed stop
except KeyboardInterrupt:
    print("threads after the interrupt:", service_threads())
with Service(make_app(onnx_reader), port=service.port) as again, again.client() as client:
    print("the port is free again:", client.get("/health").json())

# %% [markdown] id="s8"
# ## 8. Which one serves?
#
# The package from section 2 should be ready by now. `load_package` gives a function; its parity is tested like that of
# all others.

# %% id="package-fetch" tags=["nbval-ignore-output"]
packaged = None
if build is None:
    print("No C++ compiler here. With one, this cell would load compiled code and compare it with the model.")
else:
    try:
        packaged = load_package(build.result(timeout_s=30 if FAST else 180))
        for row in parity(shipped, packaged, pixels):
            print(f"batch {row.batch:>3}: largest difference {row.largest:.1e}, the same digit for {row.agree:.0%}")
        print(f"built in {build.seconds:.0f} s, {human_bytes(build.package.stat().st_size)}, weights included")
    except CourseError as error:
        print(f"{error.what} The lesson goes on without it.")
    finally:
        build.close()

# %% [markdown] id="explorer-text"
# ### Explorer: latency and throughput
#
# **Latency** is what one customer waits for, **throughput** is how many are served. A larger batch
# raises the first, and up to a point the second. The explorer measures each way that you have built, when you first
# ask for it.
#
# **Try this.** Which is best for a single image? Set 64 images per call: does the order change? If you have more than
# one core, take two threads: who gains, and for which batch? With a limit of 10 ms, which batch would you choose?

# %% id="explorer" tags=["explorer", "nbval-ignore-output"]
backends = [Backend("PyTorch eager", lambda threads: shipped, state_bytes(shipped))]
if packaged:
    backends.append(Backend("PyTorch compiled", lambda threads: packaged, build.package.stat().st_size))
for name, file in (("ONNX Runtime", path), ("ONNX Runtime int8", static)):
    backends.append(
        Backend(name, lambda threads, file=file: calling_onnx(OnnxModel(file, threads=threads)), file.stat().st_size)
    )
if device.type == "cuda":
    on_gpu = copy.deepcopy(shipped).to(device)
    backends.append(
        Backend("PyTorch, CUDA", lambda threads: lambda x: on_gpu(x.to(device)).cpu(), state_bytes(shipped))
    )
else:
    print("With CUDA there would be one line more: the GPU, with the way there and back.")
explore_backends(backends, pixels)

# %% [markdown] id="best-batch-text"
# ### Exercise: quick enough, and most
#
# `latency_ms` is a dict: batch size → milliseconds per call. Under load, a request may come just after a call has
# started. It waits for that one, and then for its own. So a limit is kept if **twice** the time of a call fits into it.
#
# Return `(batch, images_per_second)` for the size that computes the most images per second among those that keep the
# limit; None if none does.


# %% id="ex-best-batch" tags=["exercise"] exercise="export.best-batch"
def best_batch(latency_ms, limit_ms):
    """Return (batch, images per second), or None."""
    ### BEGIN SOLUTION
    rates = {size: 1000 * size / ms for size, ms in latency_ms.items() if 2 * ms <= limit_ms}
    if not rates:
        return None
    best = max(rates, key=rates.get)
    return best, rates[best]
    ### END SOLUTION


check("export.best-batch", best_batch)
# hint("export.best-batch")

# %% [markdown] id="process-text"
# ### Where does the time go?
#
# The small model again, with nothing slowed down, in two places: in a thread of this notebook, and in a process of its
# own, started by `python -m course_utils.serving reader.onnx`. That process needs NumPy, ONNX Runtime and FastAPI, and
# never imports PyTorch. It ends with the block, and even if this notebook is killed.

# %% id="process" tags=["nbval-ignore-output"]
n_requests = 200 if FAST else 800
rows = []
for name, place in (("thread", Service(make_app(onnx_reader))), ("process", ServiceProcess(path))):
    with place as service:
        for n_clients in (1, 8):
            load = load_test(service.url, bodies, n_requests=n_requests, n_clients=n_clients, timeout_s=20)
            numbers = [f"{load.latency_ms(share):.1f}" for share in (0.5, 0.95, 0.99)]
            rows.append((name, n_clients, f"{load.per_second:.0f}", *numbers, load.n_failed))
print(table(rows, ("server in a", "clients", "requests/s", "p50, ms", "p95, ms", "p99, ms", "failed")))
print(f"the model alone: {latency_ms(calling_onnx(onnx_reader), pixels[:1]):.2f} ms")

# %% [markdown] id="process-says"
# The model is a small part of it. The rest is HTTP, reading JSON, waiting for company (2 ms), and eight clients that
# share the same cores. So a model that is twice as quick would change next to nothing here; sending bytes in place of
# JSON, or larger requests, would. **Measure the whole path before you make one part of it quick.**
#
# p95 is the latency that 95 % of the requests kept to. The mean tells you nothing about the one in a hundred who waited
# for seconds.
#
# ### Exercise: the slowest of a hundred
#
# `times` has the latency of each request in milliseconds, or None for one that got no answer. Such a request is
# infinitely slow; leave it out, and the worst service looks best. Return `(p50, p95, p99)` by nearest rank: of n sorted
# values, the one at place ⌈p · n / 100⌉, counted from 1.


# %% id="ex-percentiles" tags=["exercise"] exercise="export.percentiles"
def percentiles(times):
    """Return p50, p95 and p99 in ms, three numbers."""
    ### BEGIN SOLUTION
    ordered = sorted(math.inf if ms is None else ms for ms in times)
    return tuple(ordered[math.ceil(p * len(ordered) / 100) - 1] for p in (50, 95, 99))
    ### END SOLUTION


check("export.percentiles", percentiles)
# hint("export.percentiles")

# %% [markdown] id="when-text"
# **When is which the better choice?** Eager PyTorch while the model still changes, and where its time doesn't matter. A
# compiled package where PyTorch's library is there anyway, above all on GPUs. ONNX Runtime where you serve small models
# on CPUs, want a small installation, or leave Python. Whatever you choose: lock the versions of what serves, write them
# into the file's facts, and run the parity test where it serves.

# %% [markdown] id="clinic"
# ## Clinic
#
# Six programs that run. Run each check first, read what it says, then repair the function.
#
# ### Good in the notebook, nonsense in the service
#
# The service has no training data at hand, so somebody prepares the pixels from what is there. `mean` and `std` are
# those of training, as fractions of 255.


# %% id="clinic-preprocess" tags=["clinic"] exercise="export.clinic-preprocess"
def prepare_pixels(pixels, mean, std):
    """Return pixels, (N, 1, H, W), 0..255, as the model was trained on them; same shape."""
    ### BEGIN SOLUTION
    return (pixels / 255 - mean) / std
    ### END SOLUTION
    ### BEGIN STUB
    # x = pixels / pixels.max()
    # return (x - x.mean()) / x.std()
    ### END STUB


check("export.clinic-preprocess", prepare_pixels)
# hint("export.clinic-preprocess")

# %% [markdown] id="clinic-train-mode-text"
# ### Another answer each time
#
# After each epoch the model is exported, and then it trains on: each of its modules must come back in the mode
# that it came in; some are frozen and stay in evaluation mode.


# %% id="clinic-train-mode" tags=["clinic"] exercise="export.clinic-train-mode"
def ship(model, example):
    """Return the exported model as a function, for a batch of any size; example has 3 images."""
    ### BEGIN SOLUTION
    with evaluating(model):
        program = torch.export.export(model, (example,), dynamic_shapes=({0: Dim("batch", min=1)},))
    return program.module()
    ### END SOLUTION
    ### BEGIN STUB
    # program = torch.export.export(model, (example,), dynamic_shapes=({0: Dim("batch", min=1)},))
    # return program.module()
    ### END STUB


check("export.clinic-train-mode", ship)
# hint("export.clinic-train-mode")

# %% [markdown] id="clinic-fixed-text"
# ### Two images, or none
#
# It worked with the example. `layer` is a linear layer on the flattened image.


# %% id="clinic-fixed-batch" tags=["clinic"] exercise="export.clinic-fixed-batch"
def export_reader(layer, example):
    """Return the exported reader as a function, for 1 or more images; example has 2."""

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, images):
            ### BEGIN SOLUTION
            return self.layer(images.flatten(1))

    batch = Dim("batch", min=1)
    return torch.export.export(Reader().eval(), (example,), dynamic_shapes=({0: batch},)).module()
    ### END SOLUTION
    ### BEGIN STUB
    #         return torch.stack([self.layer(image.flatten()) for image in images])
    #
    # return torch.export.export(Reader().eval(), (example,)).module()
    ### END STUB


check("export.clinic-fixed-batch", export_reader)
# hint("export.clinic-fixed-batch")

# %% [markdown] id="clinic-thread-text"
# ### Gradients off, in the wrong thread
#
# The service calls `predict` in a thread of its own. In the notebook it worked; in the service there was an error about
# `numpy()`, and somebody added `.detach()`. Since then it works, and it is slow and takes memory.


# %% id="clinic-thread" tags=["clinic"] exercise="export.clinic-thread"
def make_predict(model):
    """Return a function from an array (N, D) to an array of logits (N, C), for any thread."""

    ### BEGIN SOLUTION
    def predict(pixels):
        with torch.no_grad():
            return model(torch.from_numpy(pixels)).numpy()

    ### END SOLUTION
    ### BEGIN STUB
    # torch.set_grad_enabled(False)
    #
    # def predict(pixels):
    #     return model(torch.from_numpy(pixels)).detach().numpy()
    ### END STUB

    return predict


check("export.clinic-thread", make_predict)
# hint("export.clinic-thread")

# %% [markdown] id="clinic-answers-text"
# ### My digits, your digits
#
# Several requests share a call of the model. Each is an array of images, with the images along axis 0. Somebody thought
# that sorting by length would be tidy.


# %% id="clinic-answers" tags=["clinic"] exercise="export.clinic-answers"
def answer_all(predict, requests):
    """Return the digits of each request, a list of arrays, with one call of predict (images -> logits)."""
    ### BEGIN SOLUTION
    logits = predict(np.concatenate(requests))
    ends = np.cumsum([len(images) for images in requests])
    return np.split(logits.argmax(1), ends[:-1])
    ### END SOLUTION
    ### BEGIN STUB
    # tidy = sorted(requests, key=len)
    # logits = predict(np.concatenate(tidy))
    # ends = np.cumsum([len(images) for images in tidy])
    # return np.split(logits.argmax(1), ends[:-1])
    ### END STUB


check("export.clinic-answers", answer_all)
# hint("export.clinic-answers")

# %% [markdown] id="clinic-blocking-text"
# ### The health check fails under load
#
# Each time the service is busy, the health check times out, and the service is restarted in the middle of its work.
# `read_digit(body)` takes the body's bytes, computes for a while, and returns an int. `run_in_threadpool(function,
# argument)`, from FastAPI, runs a function in another thread and can be awaited.


# %% id="clinic-blocking" tags=["clinic"] exercise="export.clinic-blocking"
def make_service(read_digit):
    """Return a FastAPI app: POST /predict gives {"digit": ...}, GET /health gives {"status": "ok"}."""
    app = FastAPI()

    @app.get("/health")
    async def health():
        return {"status": "ok"}

    @app.post("/predict")
    async def predict(request: Request):
        body = await request.body()
        ### BEGIN SOLUTION
        return {"digit": await run_in_threadpool(read_digit, body)}
        ### END SOLUTION
        ### BEGIN STUB
        # return {"digit": read_digit(body)}
        ### END STUB

    return app


check("export.clinic-blocking", make_service)
# hint("export.clinic-blocking")

# %% id="clean-up"
if build:
    build.close()  # once more, for a notebook in which a cell was skipped
scratch.cleanup()
print("threads and files left behind:", service_threads(), folder.exists())

# %% [markdown] id="people-say"
# ## What people say
#
# Thirteen sentences that articles and colleagues repeat. Some are right, some were right in an earlier release, some
# never were. Put your verdict in place of the dots, in quotes: `"true"`, `"caveat"` (true under a condition),
# `"outdated"`, `"false"`, or `"opinion"` (no measurement decides it). Then run the cell, which measures.

# %% id="claim-x014"
# “Exporting without model.eval() leaves BatchNorm in training state and the online results can be far off.”
claim("X014", ...)

# %% id="claim-x033"
# “torchvision and torch versions must match.”
claim("X033", ...)

# %% id="claim-x009"
# “When production hits a branch the trace has not seen, it raises an error immediately.”
claim("X009", ...)

# %% id="claim-x016"
# “trace fails when the number of loop iterations depends on the input content.”
claim("X016", ...)

# %% id="claim-x027"
# “torch.onnx.export produces a file usable in ONNX Runtime.”
claim("X027", ...)

# %% id="claim-x028"
# “torch.where may export and then be unsupported in ONNX Runtime.”
claim("X028", ...)

# %% id="claim-x017"
# “Many ONNX exports fail because the inputs were normalised differently.”
claim("X017", ...)

# %% id="claim-x015"
# “Exporting in training mode gives no error or warning at all.”
claim("X015", ...)

# %% id="claim-x005"
# “Frequently modifying a Python list in forward makes torch.compile fall back to eager mode and lose the speed-up.”
claim("X005", ...)

# %% id="claim-x023"
# “Frequently changing input shapes cause repeated recompilation.”
claim("X023", ...)

# %% id="claim-x018" tags=["nbval-ignore-output"]
# “Dynamic quantization changes two lines of code and turns FP32 weights into INT8 for a considerable CPU speed-up.”
claim("X018", ...)

# %% id="claim-x021"
# “Keep a GPU driver on the CPU production machine to avoid precision differences between CPU and GPU operators.”
claim("X021", ...)

# %% id="claim-x020" tags=["nbval-ignore-output"]
# “libomp and libiomp5md are both the Intel OpenMP runtime that PyTorch loads for multithreading on a CPU.”
claim("X020", ...)

# %% [markdown] id="people-say-more"
# <details>
# <summary>The other 23 sentences about this lesson</summary>
#
# `claim("X001")` measures one of them, `python3 course.py claims 08` all.
#
# - **X001** torch.compile turns the dynamic graph into an optimised statically compiled version for large-scale
#   training.
# - **X002** torch.compile uses TorchDynamo to translate Python bytecode to a graph and a backend compiler to fuse
#   operators.
# - **X003** torch.compile makes mid-sized vision models 1.2 to 1.8 times faster without code changes.
# - **X004** The first call of a compiled model needs extra compilation time.
# - **X006** Do not enable torch.compile while the model is changing often, because the compiled cache is invalidated
#   each time.
# - **X007** TorchScript is PyTorch's officially recommended export format.
# - **X008** jit.trace records only the branch taken by the example input.
# - **X010** For dynamic branches use torch.jit.script, which supports only part of Python.
# - **X011** A model is exported to ONNX with opset\_version=17 and dynamic\_axes naming the batch dimension.
# - **X012** Without a dynamic batch axis an exported model accepts only the batch size of its example.
# - **X013** An ONNX model can be run with ONNX Runtime on CPU or converted to TensorRT, decoupling training and
#   deployment.
# - **X019** Make the batch dimension dynamic on export, or keep the inference batch size equal to the training one.
# - **X022** torch.compile makes Transformers 20 to 50 percent faster with one line.
# - **X024** Models with data-dependent Python control flow may fail to compile or become slower.
# - **X025** Compiled-mode error messages are less direct than eager ones.
# - **X026** TorchScript fails or gives wrong results on dynamic Python code.
# - **X029** Custom operators are the main ONNX incompatibility, so run a verification after export.
# - **X030** Use torch.quantization for post-training and QAT.
# - **X031** INT8 quantization cuts model size; accuracy must be validated on target hardware.
# - **X032** Use torch.profiler and sort by cuda\_time\_total.
# - **X034** torchaudio is the tool for decoding audio.
# - **X035** torch.compile arrived in PyTorch 2.0 and captures the graph at run time before generating faster code.
# - **X036** TorchScript models run without Python through libtorch in C++.
#
# </details>

# %% [markdown] id="recap"
# ## Recap
#
# You can now
#
# - say what must leave the notebook together: weights, mode, preprocessing, and a batch of any size;
# - export a program with `torch.export`, read its guards, and say why it refuses;
# - write ONNX with the current exporter, run it without PyTorch, and prove parity on real inputs;
# - tell what a trace freezes, and when `torch.cond` or `torch.where` is the answer;
# - quantize to int8 by hand and by tool, and report size, latency and accuracy, each measured;
# - serve a model over HTTP: refuse what is wrong, share calls, say no in time, and stop cleanly.
#
# **Read next:** [torch.export](https://docs.pytorch.org/docs/stable/export.html),
# [torch.onnx](https://docs.pytorch.org/docs/stable/onnx.html),
# [AOTInductor](https://docs.pytorch.org/docs/stable/torch.compiler_aot_inductor.html),
# [torchao](https://docs.pytorch.org/ao/stable/), [ONNX Runtime](https://onnxruntime.ai/docs/) and
# [FastAPI](https://fastapi.tiangolo.com/).

# %% id="progress" tags=["nbval-ignore-output"]
progress()
