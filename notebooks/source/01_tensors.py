# %% [markdown] id="title"
# # 01 Tensors: dtype, device, layout, strides
#
# **Why did a reshape scramble my images without any error?**
#
# A program that reads digits goes live. In the lab it was right for 95 of 100 images. Live it is right for 9 of 100,
# which guessing would do as well. No error, no warning. The weights are the same, the images are the same, all shapes
# and dtypes are as they should be. One line was written in another way: somebody needed the colour axis in front, and
# wrote `reshape`. In this lesson you rebuild that program, measure those two numbers, and find out what the line did.
# The way there leads through what a tensor really is: a strip of numbers in memory, and a rule for reading it.

# %% id="parameters" tags=["parameters"]
SEED = 0  # where this lesson draws at random, it starts here
DEVICE = "auto"  # "cpu", "cuda", or "auto" for the best one found
FAST = True  # False: larger tensors where time is measured

# %% id="setup" tags=["setup"]
import io
import time
import warnings

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from course_utils import check, claim, hint, progress, show, shows_error, solution
from course_utils.data import load_digits8, load_digits28
from course_utils.devices import pick_device, synchronize
from course_utils.diagrams import storage_map
from course_utils.memory import counting_new_bytes, shares_storage, storage_bytes
from course_utils.plots import use_style
from course_utils.seeding import deterministic, stream
from course_utils.text import human_bytes, shorten, table
from course_utils.widgets.tensors import explore_layout

use_style()
device = pick_device(DEVICE)
digits = load_digits28()

# %% [markdown] id="hook"
# ### The evidence
#
# Five digits as a camera delivers them: height, width, then colour. PyTorch's layers want the colour axis in front of
# height and width, so the axes are brought into that order in two ways. Both results have the same shape. Look at the
# picture; what the code does, the sections below explain.

# %% id="hook-picture"
blue, orange, green = (0, 0.6, 1), (1, 0.5, 0), (0, 0.8, 0.5)
pink, yellow = (1, 0.4, 0.8), (1, 0.8, 0)
colours = torch.tensor([blue, orange, green, pink, yellow])  # (N, C) = (5, 3)
grey, _ = digits.test.as_batch(slice(0, 5))  # (N, 1, 28, 28) in 0..1
photos = grey.permute(0, 2, 3, 1) * colours[:, None, None, :]
photos = photos.contiguous()  # (N, H, W, C) = (5, 28, 28, 3)

permuted, reshaped = photos.permute(0, 3, 1, 2), photos.reshape(5, 3, 28, 28)
fig, axes = plt.subplots(2, 5, figsize=(5.2, 2.6))
for row, (name, batch) in enumerate({"permute": permuted, "reshape": reshaped}.items()):
    print(f"{name}: {tuple(batch.shape)} {batch.dtype}")
    axes[row, 0].set_title(name)
    for ax, image in zip(axes[row], batch, strict=True):
        ax.imshow(image.permute(1, 2, 0))  # matplotlib wants the colour axis last
        ax.axis("off")
show(fig, "Above, the axes were permuted; below, the numbers were reshaped.")

# %% [markdown] id="hook-says"
# Same shape, same dtype, and nobody can read the lower row. To see why, we start where every tensor starts: where its
# numbers come from, and whose memory they are in.

# %% [markdown] id="s1"
# ## 1. Made, copied or shared
#
# A factory function makes a tensor from nothing but a shape.

# %% id="factories"
made = {
    "torch.zeros(2, 3)": torch.zeros(2, 3),
    "torch.eye(3)": torch.eye(3),
    "torch.arange(6)": torch.arange(6),
    "torch.full((2, 3), 7)": torch.full((2, 3), 7),
    "torch.rand(1000)": torch.rand(1000, generator=stream(SEED, "rand")),
    "torch.randn(1000)": torch.randn(1000, generator=stream(SEED, "randn")),
}
rows = []
for call, t in made.items():
    mean, std = t.double().mean(), t.double().std(correction=0)
    rows.append((call, str(tuple(t.shape)), str(t.dtype), f"{mean:.1f}", f"{std:.1f}"))
print(table(rows, ("call", "shape", "dtype", "mean", "std")))

# %% [markdown] id="factories-says"
# `rand` draws evenly from 0 to 1, `randn` from the normal distribution with mean 0 and standard deviation 1.
#
# One factory makes no promise about the numbers. `torch.empty` takes memory as it finds it: zeros very often, and
# sometimes what was there before. A buffer that you forgot to fill then looks plausible. There is a way to find out:
# in deterministic mode, PyTorch fills such memory with nan, "not a number".

# %% id="empty"
with deterministic():
    buffer = torch.empty(3)
    buffer[:2] = 1.0  # one element was forgotten
print(buffer)

# %% [markdown] id="shared-text"
# More often the numbers exist already, in a list or in a NumPy array. Then there is one question to ask: **is it a
# copy, or the same memory?**
#
# **Predict.** Four tensors are made from one array of float64 numbers: by `torch.tensor(array)`,
# `torch.as_tensor(array)`, `torch.from_numpy(array)` and `torch.as_tensor(array, dtype=torch.float32)`. Then the
# array's first number is set to 100. Which of the four show the 100?

# %% id="predict-shared" tags=["prediction"]
guess = ...  # for example ("tensor", "as_tensor")

# %% id="shared"
array = np.array([1.0, 2.0, 3.0])
made = {
    "tensor(array)": torch.tensor(array),
    "as_tensor(array)": torch.as_tensor(array),
    "from_numpy(array)": torch.from_numpy(array),
    "as_tensor(array, dtype=float32)": torch.as_tensor(array, dtype=torch.float32),
}
array[0] = 100
for call, result in made.items():
    print(f"torch.{call:<32} first element {result[0]:.0f}")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="shared-says"
# `torch.tensor` always copies. `from_numpy` never does. `as_tensor` copies only if it must: another dtype, another
# device, or a list, which is no array. The way back shares as well: a tensor on the CPU and its `.numpy()` are two
# names for one memory.

# %% id="numpy-shares"
scores = torch.zeros(3)
saved = scores.numpy()  # meant as a record of what the scores were
scores += 1
print("saved:", saved)

# %% [markdown] id="s2"
# ## 2. dtype: what a number can hold
#
# The dtype says how many bytes an element takes and which numbers fit into them. You get one whether you ask or not.

# %% id="dtype-defaults"
examples = {
    "torch.tensor([True])": torch.tensor([True]),
    "torch.tensor([1, 2, 3])": torch.tensor([1, 2, 3]),
    "torch.tensor([1.0, 2.0])": torch.tensor([1.0, 2.0]),
    "torch.tensor([1, 2.0])": torch.tensor([1, 2.0]),
    "torch.from_numpy(np.zeros(3))": torch.from_numpy(np.zeros(3)),
    "the images of the digits": digits.train.images,
}
rows = [(call, str(t.dtype), t.element_size()) for call, t in examples.items()]
print(table(rows, ("made by", "dtype", "bytes each")))

# %% [markdown] id="dtype-defaults-says"
# Whole numbers become int64, numbers with a point float32. NumPy makes float64, and PyTorch keeps it. Many dtype
# errors begin there. It also costs memory:

# %% id="dtype-bytes"
for dtype in (torch.uint8, torch.float16, torch.float32, torch.float64):
    images = digits.train.images.to(dtype)
    size = human_bytes(storage_bytes([images]))
    print(f"{len(images):,} digits as {dtype!s:<14} {size:>9}")

# %% [markdown] id="overflow-text"
# Images come as uint8, one byte per pixel, 0 to 255. Cheap, but small.
#
# **Predict.** Two pixels have the values 200 and 3. What is 200 + 100, and what is 3 − 5, in uint8?

# %% id="predict-overflow" tags=["prediction"]
guess = ...  # for example (300, -2)

# %% id="overflow"
pixels = torch.tensor([200, 3], dtype=torch.uint8)
print("200 + 100 =", (pixels + 100)[0].item())
print("3 - 5     =", (pixels - 5)[1].item())
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="overflow-says"
# uint8 counts in a circle: after 255 comes 0. No error and no warning. The difference of two uint8 images is wrong in
# every pixel where the second one is brighter. **Change the dtype before you calculate, not after.**
#
# Floating numbers do not wrap around. They run out of digits instead. We double a number until adding 1 no longer
# changes it.

# %% id="precision"
rows = []
for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
    n = torch.tensor(1.0, dtype=dtype)
    while n + 1 != n:
        n = n * 2
    facts = torch.finfo(dtype)
    rows.append((str(dtype), f"{n.item():,.0f}", f"{facts.max:,.5g}", f"{facts.eps:.1e}"))
print(table(rows, ("dtype", "n + 1 == n from n =", "largest", "step after 1")))

# %% [markdown] id="precision-says"
# A counter in float16 stops at 2,048. One in float32 stops at 16,777,216, and a large data set has more pixels than
# that. float16 has finer steps than bfloat16 but ends at 65,504; bfloat16 reaches as far as float32. A later lesson
# comes back to this choice.
#
# ### Exercise: the energy of an image
#
# The energy of an image is the mean of its squared pixels. `images` is (N, H, W), uint8. Return one float32 number per
# image, shape (N,).

# %% id="ex-energy" tags=["exercise"] exercise="tensors.energy"
def energy(images):
    """Return the mean squared pixel of each image, (N, H, W) uint8 -> (N,) float32."""
    ### BEGIN SOLUTION
    return images.float().square().mean(dim=(1, 2))
    ### END SOLUTION


check("tensors.energy", energy)
# hint("tensors.energy")

# %% [markdown] id="s3"
# ## 3. When two dtypes meet
#
# Some operators find a dtype that both sides fit into. That is called **promotion**. Which one they choose is a table,
# and we can measure it: add two tensors of each pair of dtypes, and look.
#
# **Predict.** What is float16 + bfloat16? Both take two bytes. And int64, eight bytes, + float16?

# %% id="predict-promotion" tags=["prediction"]
guess = ...  # for example ("float16", "int64")

# %% id="promotion"
kinds = [torch.uint8, torch.int64]
kinds += [torch.bfloat16, torch.float16, torch.float32, torch.float64]


def short(dtype):
    return str(dtype).removeprefix("torch.")


def added(a, b):
    return short((torch.ones(2, dtype=a) + torch.ones(2, dtype=b)).dtype)


rows = [[short(a), *(added(a, b) for b in kinds)] for a in kinds]
print(table(rows, ("+", *map(short, kinds))))
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="promotion-says"
# A floating dtype beats every whole-number dtype, however many bytes that has: int64 + float16 is float16. Within a
# family the larger one wins. Neither of the two 2-byte floats holds the other, so they meet in float32.
#
# Tensors with axes, tensors of shape (), and Python numbers do not have the same vote.
#
# **Predict.** `x` is float32 with shape (3,). Which of these results are float64?
#
# 1. `x * 0.5`
# 2. `x * np.pi`
# 3. `x * torch.tensor(0.5, dtype=double)` with `double = torch.float64`
# 4. `x * torch.tensor([0.5], dtype=double)`
# 5. `torch.arange(3) * 0.5`
# 6. `torch.arange(3) / 2`

# %% id="predict-zero-dim" tags=["prediction"]
guess = ...  # for example [1, 3]

# %% id="zero-dim"
x, double = torch.ones(3), torch.float64
results = [
    ("x * 0.5", x * 0.5),
    ("x * np.pi", x * np.pi),
    ("x * torch.tensor(0.5, dtype=double)", x * torch.tensor(0.5, dtype=double)),
    ("x * torch.tensor([0.5], dtype=double)", x * torch.tensor([0.5], dtype=double)),
    ("torch.arange(3) * 0.5", torch.arange(3) * 0.5),
    ("torch.arange(3) / 2", torch.arange(3) / 2),
]
for number, (code, result) in enumerate(results, start=1):
    print(f"{number}. {code:<39} {short(result.dtype)}")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="zero-dim-says"
# Only number 4. A tensor with axes decides; a number, or a tensor of shape (), can lift whole numbers to floats (5),
# but not float32 to float64. And `/` always leaves the whole numbers (6); `//` stays. One float64 array with an axis
# in a formula is enough to make everything after it float64: twice the memory, and slower.
#
# That was the friendly half. Other operators refuse. We try some of each kind on a float32, a float64 and an int64
# matrix.

# %% id="refusals"
single = torch.ones(2, 2)
double, whole = single.double(), single.long()
attempts = {
    "double + single": lambda: double + single,
    "torch.cat([double, single])": lambda: torch.cat([double, single]),
    "single.add_(double)": lambda: single.add_(double),
    "whole.add_(single)": lambda: whole.add_(single),
    "whole.mean()": lambda: whole.mean(),
    "double @ single": lambda: double @ single,
    "F.linear(whole, single)": lambda: F.linear(whole, single),
}
for code, attempt in attempts.items():
    try:
        print(f"{code:<28} {short(attempt().dtype)}")
    except RuntimeError as error:
        print(f"{code:<28} refused\n    {shorten(str(error), 82)}")

# %% [markdown] id="refusals-says"
# **Element by element, dtypes are promoted. Matrix products, and the layers made of them, want one dtype.** An in-place
# operator keeps the dtype of the tensor it writes to: it rounds float64 into float32 without a word, and refuses to
# cut fractions off. So inputs are float32 as a model's weights are, and class numbers stay int64, since that is what
# the loss functions want. Convert once, where the data enters.

# %% [markdown] id="s4"
# ## 4. device: where the arithmetic happens
#
# A tensor lives on one device, and an operator runs where its tensors are. This is what your machine has:

# %% id="device-here" tags=["nbval-ignore-output"]
print("this lesson computes on:", device)

# %% [markdown] id="device-meta"
# You may have no GPU, but everybody has a second device. `meta` holds shape, dtype and strides, and no numbers. So it
# can hold tensors that no machine could:

# %% id="meta"
huge = torch.empty(1_000_000, 1_000_000, device="meta")
print(huge.device, tuple(huge.shape), human_bytes(huge.numel() * huge.element_size()))

# %% [markdown] id="to-text"
# **Predict.** Where is `x` after these two lines?
#
# ```python
# x = torch.ones(3)
# x.to("meta")
# ```

# %% id="predict-to" tags=["prediction"]
guess = ...  # "cpu" or "meta"

# %% id="to-dropped"
x = torch.ones(3)
x.to("meta")
print("x is on:", x.device)
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="to-says"
# `to` never moves a tensor. It returns one, and this line dropped it. Right is `x = x.to(device)`. A module, which is a
# layer or a whole network, is another matter:

# %% id="to-module"
layer = nn.Linear(3, 2)
layer.to("meta")
print("the layer's weight is on:", layer.weight.device)

# %% [markdown] id="to-module-says"
# For a module, `to` moves its parameters in place: the numbers that it learns. Whoever is used to that forgets the
# `x =` for a tensor.
#
# And if there is nothing to do, what do `to` and its relatives return? (`contiguous` gets its own section, 7.)

# %% id="to-same"
x = torch.ones(3)
for code, result in {
    'x.to("cpu")': x.to("cpu"),
    "x.to(torch.float32)": x.to(torch.float32),
    "x.cpu()": x.cpu(),
    "x.float()": x.float(),
    "x.contiguous()": x.contiguous(),
    "x.to(torch.float64)": x.to(torch.float64),
    'x.to("cpu", copy=True)': x.to("cpu", copy=True),
}.items():
    print(f"{code:<24} the same object: {result is x}")

# %% [markdown] id="to-same-says"
# The very same object. `best = weights.cpu()` is a copy when the weights are on a GPU, and no copy at all when they are
# on the CPU. Code that was right on the server goes wrong on the laptop. Say `copy=True` or `clone()` when you mean it.
#
# ### Two devices in one operation

# %% id="device-error"
with shows_error(RuntimeError):
    torch.ones(3) + torch.ones(3, device="meta")
with shows_error(RuntimeError):
    nn.Linear(3, 2)(torch.ones(4, 3, device="meta"))
print(torch.ones(3, device="meta") * torch.tensor(2.0))

# %% [markdown] id="device-error-says"
# PyTorch never moves data by itself, with one exception: a CPU tensor of shape () may join in, as a number would. On a
# GPU the message begins with "Expected all tensors to be on the same device". Both name two devices. Find the one that
# you did not expect, and look for the line that made the tensor.
#
# Often it is a factory function. They make CPU tensors unless told otherwise:

# %% id="factory-device"
x = torch.ones(2, 3, device="meta", dtype=torch.float16)
made = {
    "torch.zeros(2)": torch.zeros(2),
    "torch.zeros(2, device=x.device)": torch.zeros(2, device=x.device),
    "torch.zeros_like(x)": torch.zeros_like(x),
    "x.new_zeros(2)": x.new_zeros(2),
}
with torch.device("meta"):
    made["torch.zeros(2) in a device block"] = torch.zeros(2)
for call, t in made.items():
    print(f"{call:<34} {t.device!s:<5} {t.dtype}")

# %% [markdown] id="factory-device-says"
# **Code that runs anywhere names a device once**, at the top (`device = pick_device(DEVICE)` here). Everything below
# takes the device from a tensor that it was given. The word `"cuda"` in the middle of a program is a fault that waits
# for a machine without one.
#
# ### Exercise: a column of ones, anywhere
#
# Append a column of ones to `x`, (N, D) to (N, D + 1). It must work on every device, and keep the dtype.

# %% id="ex-with-ones" tags=["exercise"] exercise="tensors.with-ones"
def with_ones(x):
    """Return x with a last column of ones, (N, D) -> (N, D + 1)."""
    ### BEGIN SOLUTION
    return torch.cat([x, x.new_ones(len(x), 1)], dim=1)
    ### END SOLUTION


check("tensors.with-ones", with_ones)
# hint("tensors.with-ones")

# %% [markdown] id="leaving-text"
# ### Leaving the tensor world
#
# Logs, JSON and `if` want Python numbers. `item()` gives one, `tolist()` gives nested lists of them.
#
# **Predict.** Is `torch.tensor(0.1).item() == 0.1`?

# %% id="predict-item" tags=["prediction"]
guess = ...  # True or False

# %% id="item"
value = torch.tensor(0.1).item()
print(value == 0.1, value, type(value).__name__)
print(torch.tensor([[1, 2], [3, 4]]).tolist())
print("your guess:", "none yet" if guess is ... else guess)
with shows_error(RuntimeError):
    torch.ones(2).item()
with shows_error(RuntimeError):
    torch.ones(2, requires_grad=True).numpy()

# %% [markdown] id="item-says"
# A Python float is float64. The nearest float32 to 0.1 is another number, and the larger format shows it. So compare
# floats with a tolerance (`torch.isclose`), and expect such digits in your JSON.
#
# A tensor with `requires_grad=True`, such as a weight, has its operations recorded, since gradients are computed from
# that record: the **graph**. NumPy knows nothing of it, and its arrays live on the CPU. So `detach()` takes a tensor
# out of the graph first, and `x.detach().cpu().numpy()` works for any `x`. `item()` and `tolist()` give plain numbers,
# which are in no graph.
#
# On a GPU, `item()` also *waits* until everything that was queued has been computed. One per step for a log is fine.
# One per layer is not.
#
# ### Exercise: the winner in plain Python
#
# `scores` has shape (C,), one score per class, and may be part of a graph. Return the class with the highest score as
# an `int` and its score as a `float`.

# %% id="ex-best" tags=["exercise"] exercise="tensors.best"
def best(scores):
    """Return (label, score) of the highest score, (C,) -> (int, float)."""
    ### BEGIN SOLUTION
    label = scores.argmax().item()
    return label, scores[label].item()
    ### END SOLUTION


check("tensors.best", best)
# hint("tensors.best")

# %% [markdown] id="s5"
# ## 5. A strip of numbers and a rule to read it
#
# Memory has no rows and columns. A tensor's numbers lie in its **storage**, one strip. Three facts say how to read it:
#
# - the **shape**, the length of each axis;
# - the **strides**: to go one step along an axis, move on by this many elements;
# - the **offset**: where the element with all indices 0 lies.
#
# The element `x[i, j]` lies at offset + i · stride[0] + j · stride[1]. That is all.
#
# **Predict.** The digits are stored image by image, row by row: shape (3500, 1, 28, 28). What are the four strides?

# %% id="predict-strides" tags=["prediction"]
guess = ...  # for example (1, 2, 3, 4)

# %% id="digit-strides"
images = digits.train.images  # (N, 1, H, W), uint8
strip = images.flatten()  # all pixels, in the order of the storage
print("strides:", images.stride())
per_image, _, per_row, per_column = images.stride()
place = images.storage_offset() + 7 * per_image + 13 * per_row + 15 * per_column
print(f"image 7, row 13, column 15 lies at {place:,}")
print(f"the number there: {strip[place]}; by index: {images[7, 0, 13, 15]}")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="strides-says"
# The next column is 1 element away, the next row 28, the next image 28 · 28 = 784. The channel axis has length 1, so no
# step is ever taken along it.
#
# Now what happens when we *rearrange* a tensor? Here are three tensors of small size. The shade of a cell tells where
# in the storage it lies, light to dark. Below each tensor is the storage itself; grey is what the tensor does not
# read.

# %% id="first-map"
x = torch.arange(12.0).view(3, 4)
show(
    storage_map(x, x.t(), x[1:, ::2], names=("x", "x.t()", "x[1:, ::2]")),
    "One storage, three ways to read it. Nothing was moved.",
)

# %% [markdown] id="views-text"
# Transposing swaps the strides. Slicing changes the offset, the shape, and with a step the strides. Tensors that share
# a storage in this way are called **views**. They cost nothing, whatever the size: `counting_new_bytes` counts the
# memory that PyTorch's operators ask for.

# %% id="views-cost"
pixels = digits.train.images.float()  # (3500, 1, 28, 28)
is_bright = pixels.sum((1, 2, 3)) > 30_000  # (3500,), bool
operations = {
    "pixels.permute(0, 2, 3, 1)": lambda: pixels.permute(0, 2, 3, 1),
    "pixels[:, :, ::2, ::2]": lambda: pixels[:, :, ::2, ::2],
    "pixels[100:200]": lambda: pixels[100:200],
    "pixels.expand(3500, 3, 28, 28)": lambda: pixels.expand(3500, 3, 28, 28),
    "pixels[[0, 5, 9]]": lambda: pixels[[0, 5, 9]],
    "pixels[is_bright]": lambda: pixels[is_bright],
}
for code, operation in operations.items():
    with counting_new_bytes() as new:
        result = operation()
    where = f"strides {result.stride()!s:<18} offset {result.storage_offset():<6}"
    print(f"{code:<31} {where} new memory {human_bytes(new.total)}")

# %% [markdown] id="views-says"
# `expand` repeats an axis with a stride of 0: three channels, no memory. The last two lines copy. An index that is a
# list or a mask can pick elements in any order, and no stride can describe that. So: **slices give views; lists, masks
# and index tensors give copies.**
#
# ### Exercise: where does it lie?
#
# Return the position in its storage of the element of `x` with this `index`, a tuple with one number per axis. `x` may
# be any view.

# %% id="ex-position" tags=["exercise"] exercise="tensors.position"
def position(x, index):
    """Return the position in storage of x[index], counted in elements, as an int."""
    ### BEGIN SOLUTION
    return x.storage_offset() + sum(i * stride for i, stride in zip(index, x.stride(), strict=True))
    ### END SOLUTION


check("tensors.position", position)
# hint("tensors.position")

# %% [markdown] id="explorer-text"
# ### Explorer: strides and memory
#
# Choose a shape, take a part of it, put its axes into another order. PyTorch is asked for everything you see: strides,
# offset, whether it is contiguous (read row by row, its numbers lie side by side), and which calls of `view` it accepts
# (another shape for the same strip). Sections 6 and 7 say more about both.
#
# **Try this.** Find a tensor that is not contiguous and can still be flattened by `view`. Find one that can't be
# flattened but whose last two axes can be merged. What does a stride of 0 do to `view`?

# %% id="explorer" tags=["explorer"]
explore_layout()

# %% [markdown] id="ex-windows-text"
# ### Exercise: sliding windows for free
#
# From a series of shape (T,) make all windows of `size` neighbours: shape (T − size + 1, size), and window i starts at
# element i. Neighbouring windows overlap. In memory they can overlap too: copy nothing. A view can be made from the
# three facts: `torch.as_strided(x, shape, strides, offset)`. The series may be a view itself.

# %% id="ex-windows" tags=["exercise"] exercise="tensors.windows"
def windows(series, size):
    """Return all windows as a view, (T,) -> (T - size + 1, size)."""
    ### BEGIN SOLUTION
    return series.unfold(0, size, 1)
    ### END SOLUTION


check("tensors.windows", windows)
# hint("tensors.windows")

# %% [markdown] id="s6"
# ## 6. view, reshape, permute
#
# `view` keeps the strip of numbers and asks for another shape. That works if strides for it exist. Otherwise:

# %% id="view-error"
x = torch.arange(6).view(2, 3)
print("x.view(6):    ", x.view(6).tolist())
with shows_error(RuntimeError):
    x.t().view(6)
print("x.t().reshape:", x.t().reshape(6).tolist())

# %% [markdown] id="reshape-text"
# To read `x.t()` row by row we have to go to 0, 3, 1, 4, 2, 5 in storage. No single step does that. The message
# suggests `reshape`, which tries `view` first and otherwise copies.
#
# **Predict.** We flatten with `reshape` and write into the result: once from `x`, once from `x.t()`. In which case does
# `x` change?

# %% id="predict-reshape" tags=["prediction"]
guess = ...  # "both", "neither", "only x", "only x.t()"

# %% id="reshape-writes"
for name, tensor in (("x", torch.zeros(2, 3)), ("x.t()", torch.zeros(2, 3).t())):
    flat = tensor.reshape(6)
    flat[0] = 7
    shared = shares_storage(flat, tensor)
    print(f"{name}.reshape(6): shares storage {shared}, x[0, 0] is {tensor[0, 0]:.0f}")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="reshape-says"
# Only in the first. The same line is a view or a copy, depending on strides that were made somewhere else. Reading is
# safe either way. **Don't write into the result of `reshape`.** And where a copy would be a surprise, prefer `view`: an
# error is better than a surprise.
#
# ### The line that scrambled the images
#
# Both calls gave the shape (N, 3, 28, 28). `permute` moves the *axes*: every number keeps its image, its row, its
# column and its colour. `reshape` keeps the *reading order*, and cuts the strip into new rows. Here is a picture of 2
# rows, 2 columns and 3 colours. Each number tells what it is: row, column, colour.

# %% id="scramble-map"
h, w, c = torch.meshgrid(torch.arange(2), torch.arange(2), torch.arange(3), indexing="ij")
codes = 100 * h + 10 * w + c  # (H, W, C) = (2, 2, 3)
show(
    storage_map(
        codes, codes.permute(2, 0, 1), codes.reshape(3, 2, 2),
        names=("image (H, W, C)", "permute(2, 0, 1)", "reshape(3, 2, 2)"),
    ),
    "The last digit is the colour: one per plane after permute, all three after reshape.",
)  # fmt: skip

# %% [markdown] id="scramble-model-text"
# What does a model make of it? The story from the top, on the 8x8 digits. We tint them, then fit a linear classifier in
# one step (least squares on the pixels, with a penalty on large weights: *ridge regression*). One model is trained on
# images that were permuted. Its accuracy on permuted and on reshaped ones stands in the first paragraph. A second one
# is *trained* on images that were reshaped.
#
# **Predict.** The test accuracy of the second model in percent: on permuted images, and on reshaped ones?

# %% id="predict-scramble" tags=["prediction"]
guess = ...  # for example (50, 20)

# %% id="scramble-data"
def tinted(part, purpose):
    """Return 8x8 digits in random colours, (N, H, W, C), and their labels."""
    images, labels = part.as_batch()  # (N, 1, 8, 8)
    tint = 0.3 + 0.7 * torch.rand(len(images), 1, 1, 3, generator=stream(SEED, purpose))
    return (images.permute(0, 2, 3, 1) * tint).contiguous(), labels


def by_permute(images):
    return images.permute(0, 3, 1, 2)  # (N, H, W, C) -> (N, C, H, W)


def by_reshape(images):
    return images.reshape(len(images), 3, 8, 8)  # the same shape, other pictures


# %% id="scramble-model"
def features(images):
    ones = torch.ones(len(images), 1)
    return torch.cat([images.flatten(1), ones], 1).double()  # (N, 193)


def fitted(images, labels):
    x, y = features(images), F.one_hot(labels, 10).double()
    return torch.linalg.solve(x.T @ x + 10 * torch.eye(x.shape[1]), x.T @ y)  # (193, 10)


def percent_right(weights, images, labels):
    return 100 * ((features(images) @ weights).argmax(1) == labels).double().mean()


# %% id="scramble-accuracy"
digits8 = load_digits8()
train_x, train_y = tinted(digits8.train, "train tints")
test_x, test_y = tinted(digits8.test, "test tints")
in_order = fitted(by_permute(train_x), train_y)
scrambled = fitted(by_reshape(train_x), train_y)
for trained_on, model in (("permute", in_order), ("reshape", scrambled)):
    for tested_on, images in (("permute", by_permute(test_x)), ("reshape", by_reshape(test_x))):
        percent = percent_right(model, images, test_y)
        print(f"trained on {trained_on}, tested on {tested_on}: {percent:2.0f} %")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="scramble-says"
# Here are the numbers of the first paragraph: the lab's model, fed with reshaped images, does no better than guessing.
# The last line is the reason why this fault lives so long. A model that was trained on scrambled images meets the
# *same* scrambling each time, and a linear model does not care where a pixel stands. All goes well until somebody
# repairs the line in one place of two: that is the third number. A convolution has more to lose: it looks at
# neighbouring pixels, and `reshape` tears neighbours apart.
#
# **The rule: to change the order of axes, `permute` or `transpose`. To split or merge neighbouring axes, `view` or
# `reshape`. And look at one image just before it enters the model.**
#
# ### Exercise: cut an image into patches
#
# A vision transformer reads an image as a grid of square patches. From an image (H, W) make (H/s, W/s, s, s): first the
# grid, then the pixels of one patch. Copy nothing. The image may be a view with gaps; H and W are multiples of `size`.

# %% id="ex-patches" tags=["exercise"] exercise="tensors.patches"
def patches(image, size):
    """Return the patches as a view, (H, W) -> (H / size, W / size, size, size)."""
    ### BEGIN SOLUTION
    split = image.unflatten(0, (-1, size)).unflatten(2, (-1, size))  # (H/s, s, W/s, s)
    return split.permute(0, 2, 1, 3)
    ### END SOLUTION


check("tensors.patches", patches)
# hint("tensors.patches")

# %% [markdown] id="ex-needs-copy-text"
# ### Exercise: must it copy?
#
# Return True if flattening `x` (`x.reshape(-1)`) has to copy, and False if a flat view exists.

# %% id="ex-needs-copy" tags=["exercise"] exercise="tensors.needs-copy"
def needs_copy(x):
    """Tell whether x.reshape(-1) must copy the numbers; a bool."""
    ### BEGIN SOLUTION
    wanted = None  # the stride that an axis must have to merge with those to its right
    for size, stride in reversed(list(zip(x.shape, x.stride(), strict=True))):
        if size != 1 and wanted is not None and stride != wanted:
            return True
        if size != 1:
            wanted = size * stride
    return False
    ### END SOLUTION


check("tensors.needs-copy", needs_copy)
# hint("tensors.needs-copy")

# %% [markdown] id="s7"
# ## 7. Contiguous, and what it costs
#
# A tensor is **contiguous** if reading it row by row walks through the storage step by step, without gaps.
# `contiguous()` returns such a tensor: the same object if it is one already, else a copy.

# %% id="contiguous-bytes"
pixels = digits.train.images.float()  # (3500, 1, 28, 28)
turned = pixels.expand(-1, 3, -1, -1).permute(0, 2, 3, 1)  # (N, H, W, C), a view
for name, tensor in (("pixels", pixels), ("turned", turned)):
    with counting_new_bytes() as new:
        tensor.contiguous()
    size = human_bytes(new.total)
    print(f"{name}: contiguous {tensor.is_contiguous()}, contiguous() writes {size}")

# %% [markdown] id="layout-text"
# A word on words: the attribute `layout` of a tensor says nothing about this order. It tells dense tensors from sparse
# ones, and every tensor with strides has the same. Whether a tensor is contiguous, its strides tell.

# %% id="layout"
print(pixels.layout, turned.layout, torch.eye(3).to_sparse().layout)

# %% [markdown] id="matmul-text"
# Who needs a contiguous tensor? Fewer than people think. A matrix product takes a transposed matrix as it is. The only
# new memory is its result.

# %% id="matmul"
flat = pixels.flatten(1)  # (3500, 784)
with counting_new_bytes() as new:
    product = flat.t() @ flat  # (784, 3500) @ (3500, 784) -> (784, 784)
print("new memory:", human_bytes(new.total))
print("the result:", human_bytes(storage_bytes([product])))

# %% [markdown] id="contiguous-time-text"
# ### The price in time
#
# **Predict.** A matrix of 1,000 x 1,000 numbers is 4 MB. How many times longer than transposing it does it take to
# transpose *and copy* it? And does it matter to a copy whether its source is transposed?

# %% id="predict-copy-time" tags=["prediction"]
guess = ...  # for example (10, "no")

# %% id="copy-time" tags=["nbval-ignore-output"]
def typical_ms(operation, repeats=15):
    """Return the median time of one call in milliseconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        operation()
        synchronize(device)
        times.append(1000 * (time.perf_counter() - start))
    return sorted(times)[repeats // 2]


size = 1000 if FAST else 4000
matrix = torch.rand(size, size, device=device)
view_ms = typical_ms(lambda: matrix.t())
plain_ms = typical_ms(lambda: matrix.clone())
turned_ms = typical_ms(lambda: matrix.t().contiguous())
print(f"view {view_ms:.4f} ms, plain copy {plain_ms:.2f} ms, transposed copy {turned_ms:.2f} ms")
print(f"transposed copy / view:       {turned_ms / view_ms:,.0f}")
print(f"transposed copy / plain copy: {turned_ms / plain_ms:.1f}")

# %% id="copy-time-guess"
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="copy-time-says"
# The view costs a few microseconds at any size. The copy moves every number. And on a CPU, copying against the order of
# the storage is slower again, since neighbours in the result are far apart in memory.
#
# So don't call `contiguous()` "to be safe". It pays off when the same badly ordered tensor is read many times: then
# copy it once, outside the loop.
#
# ### channels_last: one shape, another order in memory
#
# Convolutions often run faster when the channels of a pixel lie side by side. Then why not write (N, H, W, C)? Because
# all code expects (N, C, H, W). Strides can give you both.
#
# **Predict.** `x` has shape (8, 3, 4, 5), and contiguous strides (60, 20, 5, 1). We ask for `channels_last`. Which
# shape and which strides does it have then?

# %% id="predict-channels-last" tags=["prediction"]
guess = ...  # for example ((8, 4, 5, 3), (60, 15, 3, 1))

# %% id="channels-last"
x = torch.rand(8, 3, 4, 5, generator=stream(SEED, "images"))
last = x.to(memory_format=torch.channels_last)
print("shape:", tuple(last.shape), " same values:", torch.equal(x, last))
print("strides:", last.stride())
is_ordered = last.is_contiguous(memory_format=torch.channels_last)
print(f"contiguous: {last.is_contiguous()}; contiguous as channels_last: {is_ordered}")
kernels = torch.rand(6, 3, 3, 3, generator=stream(SEED, "kernels"))
print("after a convolution:", F.conv2d(last, kernels).stride())
print("the same without channels_last:", F.conv2d(x, kernels).stride())
print("your guess:", "none yet" if guess is ... else guess)
with shows_error(RuntimeError):
    last.view(8, 60)

# %% [markdown] id="channels-last-says"
# The shape stays, the strides change: the channel axis has stride 1. A convolution keeps the order it was given. The
# price: `view(N, -1)`, which stands in many older models, now fails. `flatten(1)` does not, since it may copy.

# %% [markdown] id="s8"
# ## 8. Two names, one memory
#
# Views are free because they share. So whoever writes into one writes into all.
#
# **Predict.** What is in `x` at the end?
#
# ```python
# x = torch.zeros(3, 2)
# first, second, third = x[0], x[1], x[[2]]
# first += 1
# second = second + 1
# third += 1
# ```

# %% id="predict-alias" tags=["prediction"]
guess = ...  # for example [[1, 1], [1, 1], [1, 1]]

# %% id="alias"
x = torch.zeros(3, 2)
first, second, third = x[0], x[1], x[[2]]
first += 1
second = second + 1
third += 1
print(x.tolist())
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="alias-says"
# - `first += 1` is an in-place operator. It wrote into the memory that `x` reads.
# - `second = second + 1` made a new tensor and gave it the old name. `x` never heard of it.
# - `third` came from a list index, so it was a copy to begin with.
#
# Names that end in an underscore (`add_`, `zero_`, `copy_`), `+=` and its relatives, and assignments to an index all
# write in place. This is about *your caller's* tensor as much as about yours: a function that starts with `x -=
# x.mean()` changes the data it was lent.
#
# What does writing in place save? One new tensor per operation:

# %% id="inplace-bytes"
x = torch.rand(1000, 1000, generator=stream(SEED, "in place"))
for code, operation in {
    "y = (x * 2 + 1).relu()": lambda: (x * 2 + 1).relu(),
    "y = x.clone().mul_(2).add_(1).relu_()": lambda: x.clone().mul_(2).add_(1).relu_(),
    "x.mul_(2).add_(1).relu_()": lambda: x.mul_(2).add_(1).relu_(),
}.items():
    with counting_new_bytes() as new:
        operation()
    print(f"{code:<40} new memory: {human_bytes(new.total)}")

# %% [markdown] id="inplace-says"
# Three operations, three new tensors of 4 MB; PyTorch gives two of them back at once. In place it is none. Where
# gradients are needed, PyTorch limits what you may overwrite, as a later lesson shows. So in a model it is the
# exception; in data preparation and in optimizers it is common.
#
# ### Exercise: a running average, in place
#
# Training code keeps running averages of weights or losses. The caller holds on to the tensor `average`. Update it **in
# its own memory** to decay · average + (1 − decay) · value. Leave `value` as it is.

# %% id="ex-moving-average" tags=["exercise"] exercise="tensors.moving-average"
def update_average(average, value, decay):
    """Write decay * average + (1 - decay) * value into average; shapes are the same."""
    ### BEGIN SOLUTION
    average.mul_(decay).add_(value, alpha=1 - decay)
    ### END SOLUTION


check("tensors.moving-average", update_average)
# hint("tensors.moving-average")

# %% [markdown] id="expand-text"
# ### Writing through an expanded tensor
#
# With a stride of 0, one number in memory is many elements of the tensor. What should `add_` do with it? It refuses.
# But an assignment to one element is allowed.

# %% id="expand-write"
table_of_zeros = torch.zeros(1, 4).expand(3, 4)  # meant as 3 rows of zeros
with shows_error(RuntimeError):
    table_of_zeros.add_(1)
table_of_zeros[0, 2] = 5  # meant for row 0
print(table_of_zeros.tolist())

# %% [markdown] id="expand-says"
# All three rows have the 5, since there is one row. Expand for reading; before you write, `clone()`.
#
# ### clone or detach?
#
# Two words that are often taken for each other. One is about memory, the other about gradients.

# %% id="clone-detach"
weight = torch.ones(3, requires_grad=True)
copies = {
    "weight.clone()": weight.clone(),
    "weight.detach()": weight.detach(),
    "weight.detach().clone()": weight.detach().clone(),
}
memory = {code: shares_storage(t, weight) for code, t in copies.items()}
with torch.no_grad():
    weight += 10  # what an optimizer does
rows = [(code, str(memory[code]), str(t.requires_grad), t[0].item()) for code, t in copies.items()]
print(table(rows, ("code", "shares memory", "in the graph", "after the step")))

# %% [markdown] id="clone-says"
# `detach` alone is no snapshot: when the optimizer moves the weight, the "old" value moves along. `clone` alone is no
# snapshot for your log either: it stays in the graph and keeps it alive.
#
# ### Exercise: a snapshot that stays
#
# Return the present values of `weight` for later comparison: same dtype, no history, and untouched by whatever happens
# to `weight` afterwards.

# %% id="ex-snapshot" tags=["exercise"] exercise="tensors.snapshot"
def snapshot(weight):
    """Return the values of weight as they are now, as a tensor of its own."""
    ### BEGIN SOLUTION
    return weight.detach().clone()
    ### END SOLUTION


check("tensors.snapshot", snapshot)
# hint("tensors.snapshot")

# %% [markdown] id="keeps-alive-text"
# ### One digit in a file
#
# You keep one digit out of 3,500 for the report and let the rest go.
#
# **Predict.** How many KiB (1,024 bytes) does `torch.save` write for the one digit, 28 x 28 float32 numbers?

# %% id="predict-save" tags=["prediction"]
guess = ...  # KiB

# %% id="save-view"
def saved_kib(tensor):
    """Return how many KiB torch.save writes for a tensor."""
    file = io.BytesIO()
    torch.save(tensor, file)
    return file.tell() / 1024


one = digits.train.images.float()[0]
print(f"its numbers:      {one.numel() * one.element_size():,} bytes")
print(f"its storage:      {human_bytes(storage_bytes([one]))}")
print(f"saved as a view:  {saved_kib(one):,.0f} KiB")
print(f"saved as a clone: {saved_kib(one.clone()):,.0f} KiB")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="save-says"
# The view keeps all 3,500 digits alive, and `torch.save` writes the whole storage. **To keep a small part, clone it.**

# %% [markdown] id="s9"
# ## 9. Broadcasting
#
# When shapes differ, PyTorch lines them up **from the right**. Two lengths fit if they are equal, or if one of them is
# 1 or missing; that one is repeated, with a stride of 0.

# %% id="broadcast-table"
pairs = [((4, 3), (3,)), ((4, 3), (4, 1)), ((4, 1), (1, 3)), ((5, 1, 3), (4, 1))]
for a, b in [*pairs, ((4, 3), (4,)), ((4, 1), (4,))]:
    try:
        print(f"{a!s:<10} with {b!s:<7} -> {tuple(torch.broadcast_shapes(a, b))}")
    except RuntimeError:
        print(f"{a!s:<10} with {b!s:<7} -> refused")

# %% [markdown] id="broadcast-says"
# Look at the last line: (4, 1) with (4,) is (4, 4). It is more than a curiosity: models give one value per example with
# shape (N, 1), and labels have shape (N,).
#
# **Predict.** A model predicts every label exactly. What is `((predictions - labels) ** 2).mean()`, with predictions of
# shape (N, 1) and labels of shape (N,)? The labels have variance 0.3.

# %% id="predict-loss" tags=["prediction"]
guess = ...

# %% id="broadcast-loss"
inputs = torch.rand(200, 1, generator=stream(SEED, "line"))  # (N, 1)
labels = 2 * inputs[:, 0] + 0.5  # (N,)
predictions = 2 * inputs + 0.5  # (N, 1): every one exactly right
difference = predictions - labels
print("shape of the difference:", tuple(difference.shape))
print(f"loss of perfect predictions: {difference.square().mean():.2f}")
always_the_mean = labels.mean().expand(200, 1)
print(f"loss of always the mean:     {(always_the_mean - labels).square().mean():.2f}")
print(f"variance of the labels:      {labels.var():.2f}")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="loss-says"
# Every prediction was compared with every label. Perfect predictions are charged twice the variance of the labels.
# Whoever predicts the mean of all labels, whatever the input, gets away with half of that. So what does a model learn
# from such a loss?

# %% id="broadcast-training"
def trained(fix_shape):
    """Fit a line to the points above, 300 steps; return slope and intercept."""
    line = torch.zeros(2, requires_grad=True)
    for _ in range(300):
        predictions = line[0] * inputs + line[1]  # (N, 1)
        difference = (predictions.squeeze(1) if fix_shape else predictions) - labels
        (slope_of_loss,) = torch.autograd.grad(difference.square().mean(), line)
        line = (line - 0.5 * slope_of_loss).detach().requires_grad_()
    return line.tolist()


for fix_shape in (False, True):
    slope, intercept = trained(fix_shape)
    print(f"shapes agree: {fix_shape!s:<5}  line: y = {slope:.2f} x + {intercept:.2f}")
print(f"mean of the labels: {labels.mean():.2f}")

# %% [markdown] id="broadcast-training-says"
# The line was y = 2 x + 0.5. From the broadcast loss, the model learns to ignore its input and to predict the mean. The
# loss falls at first, then stays. It looks like a model that is too small, and people make it larger.
#
# PyTorch's own loss function says something, once:

# %% id="mse-warning"
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    F.mse_loss(predictions, labels)
print(seen[0].category.__name__ + ":", seen[0].message)

# %% [markdown] id="accuracy-text"
# No such help comes when you write the comparison yourself. Four votes, all of them right:

# %% id="accuracy"
votes, truth = torch.tensor([[1], [0], [1], [1]]), torch.tensor([1, 0, 1, 1])
print(f"'accuracy' of (N, 1) against (N,): {(votes == truth).sum() / len(truth):.2f}")

# %% [markdown] id="mse-says"
# An accuracy above 1 is the same fault in another place, and at least it can't be overlooked. One line protects you:
# `assert predictions.shape == labels.shape`. Put it into every loss and every metric that you write.
#
# ### Used on purpose
#
# Broadcasting compares everything with everything. That is a danger in a loss and a tool elsewhere: insert an axis of
# length 1 where the other one has its own. Mind the size of the result.

# %% id="broadcast-memory"
flat = digits.test.images.flatten(1).float()  # (1000, 784)
for n in (10, 100):
    with counting_new_bytes() as new:
        pairs = flat[:n, None, :] - flat[None, :n, :]  # (n, 1, D) - (1, n, D) -> (n, n, D)
    print(f"{n} against {n}: shape {tuple(pairs.shape)}, {human_bytes(new.total)}")

# %% [markdown] id="ex-distances-text"
# Ten times the images, a hundred times the memory.
#
# ### Exercise: all distances
#
# Return the Euclidean distance of each row of `a` to each row of `b`, (N, D) and (M, D) to (N, M). No loop is needed.

# %% id="ex-distances" tags=["exercise"] exercise="tensors.distances"
def distances(a, b):
    """Return the distance of each row of a to each row of b, (N, D), (M, D) -> (N, M)."""
    ### BEGIN SOLUTION
    return (a[:, None, :] - b[None, :, :]).square().sum(2).sqrt()
    ### END SOLUTION


check("tensors.distances", distances)
# hint("tensors.distances")

# %% [markdown] id="clinic"
# ## Clinic
#
# Six small programs. Each ran without an error where its author tried it, and does the wrong thing. Run the cell, read
# what the check saw, find the cause, repair the function. Change as little as you can.
#
# ### 1. Colours in disorder
#
# "My network learns, but never as well as in the paper." Bring images from (N, H, W, C) into (N, C, H, W).

# %% id="clinic-channels" tags=["clinic"] exercise="tensors.clinic-channels"
def channels_first(images):
    """(N, H, W, C) -> (N, C, H, W)."""
    ### BEGIN SOLUTION
    return images.permute(0, 3, 1, 2)
    ### END SOLUTION
    ### BEGIN STUB
    # n, h, w, c = images.shape
    # return images.reshape(n, c, h, w)
    ### END STUB


check("tensors.clinic-channels", channels_first)
# hint("tensors.clinic-channels")

# %% [markdown] id="clinic-loss-text"
# ### 2. The loss that does not fall
#
# "I made the network four times larger and it still predicts the mean." Outputs are (N, 1), labels (N,).

# %% id="clinic-loss" tags=["clinic"] exercise="tensors.clinic-loss"
def loss_of(outputs, labels):
    """Return the mean squared error, (N, 1), (N,) -> ()."""
    ### BEGIN SOLUTION
    return (outputs.squeeze(1) - labels).square().mean()
    ### END SOLUTION
    ### BEGIN STUB
    # return (outputs - labels).square().mean()
    ### END STUB


check("tensors.clinic-loss", loss_of)
# hint("tensors.clinic-loss")

# %% [markdown] id="clinic-rows-text"
# ### 3. Tested on the wrong matrix
#
# "I tested it with a 4 x 4 matrix and it ran." Subtract from each row its own mean.

# %% id="clinic-rows" tags=["clinic"] exercise="tensors.clinic-rows"
def centred(x):
    """Return x with the mean of each row taken off, (N, D) -> (N, D)."""
    ### BEGIN SOLUTION
    return x - x.mean(1, keepdim=True)
    ### END SOLUTION
    ### BEGIN STUB
    # return x - x.mean(1)
    ### END STUB


check("tensors.clinic-rows", centred)
# hint("tensors.clinic-rows")

# %% [markdown] id="clinic-darker-text"
# ### 4. The data set that fades
#
# "The first epoch is fine. After ten epochs all images are black." Return image `index` at half its brightness.

# %% id="clinic-darker" tags=["clinic"] exercise="tensors.clinic-darker"
def darker(images, index):
    """Return one image at half its brightness, (N, H, W) -> (H, W)."""
    ### BEGIN SOLUTION
    return images[index] * 0.5
    ### END SOLUTION
    ### BEGIN STUB
    # image = images[index]
    # image *= 0.5
    # return image
    ### END STUB


check("tensors.clinic-darker", darker)
# hint("tensors.clinic-darker")

# %% [markdown] id="clinic-onehot-text"
# ### 5. Every row the same
#
# "I saved memory, and now every example has every class." Row i of the result has a 1 in column `labels[i]`.

# %% id="clinic-onehot" tags=["clinic"] exercise="tensors.clinic-onehot"
def one_hot(labels, n_classes):
    """Return a table with one 1 per row, (N,) -> (N, n_classes), float32."""
    ### BEGIN SOLUTION
    rows = torch.zeros(len(labels), n_classes)
    ### END SOLUTION
    ### BEGIN STUB
    # rows = torch.zeros(1, n_classes).expand(len(labels), n_classes)
    ### END STUB
    for i, label in enumerate(labels.tolist()):
        rows[i, label] = 1.0
    return rows


check("tensors.clinic-onehot", one_hot)
# hint("tensors.clinic-onehot")

# %% [markdown] id="clinic-prepare-text"
# ### 6. Three lines that do nothing
#
# "It says that m1 and m2 must have the same dtype. But I *do* convert." NumPy delivers float64 features and int32
# labels. The model wants float32, its loss int64, and both on `device`.

# %% id="clinic-prepare" tags=["clinic"] exercise="tensors.clinic-prepare"
def prepare(features, labels, device):
    """Return features as float32, labels as int64, both on device; change no array."""
    x, y = torch.from_numpy(features), torch.from_numpy(labels)
    ### BEGIN SOLUTION
    x = x.to(device, torch.float32)
    y = y.to(device, torch.int64)
    ### END SOLUTION
    ### BEGIN STUB
    # x.float()
    # y.long()
    # x.to(device), y.to(device)
    ### END STUB
    return x, y


check("tensors.clinic-prepare", prepare)
# hint("tensors.clinic-prepare")

# %% [markdown] id="people-say"
# ## What people say
#
# Thirteen sentences that articles and colleagues repeat. Some are right, some were right in an earlier release, some
# never were. Put your verdict in place of the dots, in quotes: `"true"`, `"caveat"` (true under a condition),
# `"outdated"`, `"false"`, or `"opinion"` (no measurement decides it). Then run the cell, which measures.

# %% id="claim-t004"
# “view requires a contiguous tensor and otherwise raises an error.”
claim("T004", ...)

# %% id="claim-t018"
# “PyTorch never moves data between CPU and GPU implicitly; device placement is explicit.”
claim("T018", ...)

# %% id="claim-t012"
# “NumPy promotes dtypes implicitly while PyTorch does not, which makes PyTorch errors easier to debug.”
claim("T012", ...)

# %% id="claim-t037"
# “Subtracting a label of shape [batch] from an output of shape [batch, seq, classes] silently broadcasts to [batch,
# seq, batch].”
claim("T037", ...)

# %% id="claim-t010"
# “A tensor carries dtype, device, layout, requires_grad and grad_fn metadata in addition to its values, unlike a NumPy
# array.”
claim("T010", ...)

# %% id="claim-t024"
# “Contiguity/stride order is what the tensor attribute called layout describes.”
claim("T024", ...)

# %% id="claim-t016"
# “A factory call such as torch.randn(3,4) without device= is always placed on the CPU.”
claim("T016", ...)

# %% id="claim-t035"
# “Low-level layers such as conv and linear only accept float32 or float16.”
claim("T035", ...)

# %% id="claim-t005"
# “reshape is the safer choice for non-contiguous tensors.”
claim("T005", ...)

# %% id="claim-t036"
# “After taking a mean over a dimension the result can be subtracted from the original directly thanks to broadcasting.”
claim("T036", ...)

# %% id="claim-t017"
# “Tensor.to(device) returns a copy on the target device and leaves the original tensor unchanged.”
claim("T017", ...)

# %% id="claim-t021" tags=["nbval-ignore-output"]
# “torch.empty does not initialise memory, so it is the fastest factory, and its content is random.”
claim("T021", ...)

# %% id="claim-t007"
# “CPU data that was not manually moved to the GPU makes training very slow without any obvious reason.”
claim("T007", ...)

# %% [markdown] id="people-say-more"
# <details>
# <summary>The other 24 sentences about this lesson</summary>
#
# `claim("T001")` measures one of them, `python3 course.py claims 01` all.
#
# - **T001** A tensor is a multi-dimensional array that automatically tracks its operations and can be computed on a
#   GPU.
# - **T002** Tensors on different devices cannot be combined in one operation; it raises a RuntimeError ('Expected all
#   tensors to be on the same device').
# - **T003** Data that you feed to a model should be created with an explicit requires\_grad=False.
# - **T006** tensor.to(device) copies or migrates the data in place to the given device.
# - **T008** x.add\_(1) modifies the memory in place while x = x + 1 creates a new tensor.
# - **T009** Many operations such as t() return views sharing memory, so in-place edits of the view change the
#   original.
# - **T011** Multiplying an integer tensor by a floating-point model parameter raises a dtype error instead of
#   converting silently.
# - **T013** torch.tensor([1,2,3]) infers an integer dtype (int64) rather than a float dtype.
# - **T014** Tensors that take part in gradient computation should be given an explicit floating dtype such as
#   float32.
# - **T015** The device-mismatch error message tells you which devices the operands are on, so you can simply follow
#   it.
# - **T019** torch.tensor(data) always copies its data.
# - **T020** torch.as\_tensor(data) shares memory with its source when possible.
# - **T022** Forgetting to overwrite a torch.empty buffer produces plausible garbage values that are very hard to
#   debug.
# - **T023** transpose and permute do not move data; they only change the strides over the same storage.
# - **T025** Before reshaping a transposed tensor you must call contiguous() yourself.
# - **T026** contiguous() copies memory, so repeating it in a loop costs time.
# - **T027** Matrix multiplication accepts transposed (strided) tensors without calling contiguous().
# - **T028** torch.from\_numpy shares memory with the array, so modifying one changes the other.
# - **T029** A CPU tensor and its .numpy() result share memory.
# - **T030** A CUDA tensor must be moved with .cpu() before .numpy(), while .item() works on a CUDA scalar directly.
# - **T031** PyTorch's default floating dtype is float32, while NumPy data is usually float64 and from\_numpy keeps
#   float64.
# - **T032** Feeding float64 input to a float32 model raises a dtype error.
# - **T033** Operations between a float64 data tensor and float32 model weights raise an error.
# - **T034** Passing an int64 tensor to a conv or linear layer usually raises nothing and is silently converted,
#   losing precision.
#
# </details>

# %% [markdown] id="recap"
# ## Recap
#
# You can now
#
# - say of a line of code whether it copies or shares, and prove it: `shares_storage`, `counting_new_bytes`;
# - choose a dtype, and name the operators that promote and those that refuse;
# - write code that runs on any device, and read a device error;
# - compute strides by hand, and tell `view`, `reshape` and `permute` apart by what they do to the strip of numbers;
# - write in place only where you mean it, and keep a snapshot that stays;
# - read two shapes from the right, and guard a loss against broadcasting.
#
# And the question from the top? `reshape` did what it promises: it kept the reading order of the numbers. The axes
# stayed where they were, only the cuts moved. All shapes fit, so nobody complained.
#
# **Read next**, in PyTorch's documentation:
# [Tensor Views](https://docs.pytorch.org/docs/stable/tensor_view.html),
# [Tensor Attributes](https://docs.pytorch.org/docs/stable/tensor_attributes.html) (dtype, promotion, device, layout,
# memory format), [Broadcasting semantics](https://docs.pytorch.org/docs/stable/notes/broadcasting.html),
# [torch.Tensor.view](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.view.html). What a tensor remembers
# about how it was computed is the subject of a later lesson.

# %% id="progress" tags=["nbval-ignore-output"]
progress()
