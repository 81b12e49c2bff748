# %% [markdown] id="title"
# # 06 Memory, mixed precision, compilation
#
# **Why does a network of 0.8 MiB need 60 MiB to learn, and why does half the precision not take half of it?**
#
# The model file is small. Training it ends in *out of memory*. Somebody says: halve the batch. Somebody says: switch on
# mixed precision, that halves everything. Somebody says: call `empty_cache()`. Each of them is right in some program,
# and a bookkeeper would know in which. In this lesson you become the bookkeeper: every byte of a training step gets an
# owner. Then you make the step smaller, in each of the ways there are, and measure what each one costs. At the end the
# step gets faster, or slower, by being compiled.

# %% id="parameters" tags=["parameters"]
SEED = 0  # of weights and batches
DEVICE = "auto"  # "cpu", "cuda", or "auto" for the best one found
FAST = True  # False: longer runs of the timings

# %% id="setup" tags=["setup"]
import gc
import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_utils import check, claim, hint, progress, show
from course_utils.allocator import MIB, CachingAllocator, OutOfMemory, draw_segments
from course_utils.compiling import (
    Captured,
    break_reasons,
    compilations,
    compiled_here,
    has_compiler,
    quiet_compiler,
    time_calls,
)
from course_utils.data import load_digits8, load_digits28
from course_utils.devices import pick_device, use_threads
from course_utils.ledger import FORWARD, STEP, draw_timeline, measure_step, recording_memory
from course_utils.models import MLP, DigitCNN
from course_utils.plots import use_style
from course_utils.precision import (
    FORMATS,
    draw_ranges,
    draw_spacings,
    dtype_under_autocast,
    lost_share,
    number_format,
    short_name,
)
from course_utils.seeding import seeded, stream
from course_utils.text import human_bytes, table
from course_utils.widgets.memory import explore_budget, explore_scale

use_style()
device = pick_device(DEVICE)
images, labels = load_digits28().train.as_batch()  # (3500, 1, 28, 28) in 0..1, (3500,)
small_images, small_labels = load_digits8().train.as_batch()  # (1266, 1, 8, 8)

# %% [markdown] id="hook-text"
# ### The evidence
#
# The course's CNN takes one training step with Adam, three times: with 1 digit, with 256, and with 256 in mixed
# precision, where most of the arithmetic is done in 16 bits instead of 32. We note the most bytes that were alive at
# one moment of the step: the **peak**.

# %% id="hook-measure"
def measure(model, x, y, optimizer=torch.optim.Adam, dtype=None, **settings):
    x, y = x.clone(), y.clone()  # a batch of its own: a slice is a view, and holds all 3,500 digits
    stepper = optimizer(model.parameters(), **settings)

    def step():
        stepper.zero_grad()
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):  # mixed precision, if there is a dtype
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        stepper.step()

    return measure_step(model, step, stepper)  # runs two steps and records the second


# %% id="hook-run"
rows = []
for batch, dtype in ((1, None), (256, None), (256, torch.bfloat16)):
    memory = measure(DigitCNN(), images[:batch], labels[:batch], dtype=dtype)
    weights = memory.after(STEP).parameters
    ratio = f"{memory.peak_bytes / weights:.0f}"
    rows.append((batch, "16 bits" if dtype else "32 bits", human_bytes(weights), human_bytes(memory.peak_bytes), ratio))
print(table(rows, ("batch", "arithmetic", "weights", "peak", "peak / weights")))

# %% [markdown] id="hook-says"
# The weights are the same three times. 256 digits need 79 times the memory of the weights, and 16 bits save
# two fifths of it, not half. So where are the bytes?
#
# `measure_step` watches every operator of the step and every **storage**, the memory behind a tensor, from its birth to
# its death. It works on the CPU, with tensors of any kind, and it is in `course_utils/ledger.py`.
#
# ## 1. Who owns the bytes?
#
# Three owners stay from step to step. The **parameters**. Their **gradients**, one number for each weight. And the
# **optimizer's state**: what an optimizer remembers of earlier steps (lesson 05).
#
# **Predict.** A model has 100 million weights in float32. How many bytes do parameters, gradients and the state of Adam
# take together, in GB (10⁹ bytes)? And with Adafactor, which is made to save memory?

# %% id="predict-owners" tags=["prediction"]
guess = ...  # two numbers of GB, for example (1.0, 1.0)

# %% id="owners-table"
optimizers = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "SGD with momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "Adam": (torch.optim.Adam, {}),
    "AdamW": (torch.optim.AdamW, {}),
    "Adafactor": (torch.optim.Adafactor, {}),
}
rows = []
for name, (kind, settings) in optimizers.items():
    kept = measure(MLP(784, (512, 512)), images[:64], labels[:64], kind, **settings).after(STEP)
    parts = [getattr(kept, owner) / kept.parameters for owner in ("parameters", "gradients", "optimizer_state")]
    rows.append((name, *(f"{part:.2f}" for part in parts), f"{100e6 * 4 * sum(parts) / 1e9:.1f} GB"))
print(table(rows, ("in units of the parameters", "parameters", "gradients", "state", "100 million weights")))
print("your guess:", "none yet" if guess is ... else f"{guess} GB")

# %% [markdown] id="owners-says"
# SGD with momentum keeps a running mean of the gradient. Adam keeps two running means, of the gradient and of its
# square. One, one and two: four times the weights, before a single example is there. Adafactor keeps a mean of the
# squares only, and of it one number for each row and each column of a matrix, which is next to nothing.
#
# ### Exercise: who owns the bytes
#
# Write the bookkeeper. Return a dict with the keys `"parameters"`, `"gradients"` and `"optimizer_state"`, and for each
# the bytes as an `int`. Count **storages**: `t.untyped_storage()` is the memory behind a tensor `t`, with `.nbytes()`,
# and `.data_ptr()`, its address, which tells it from others. A storage that several tensors of one owner share counts
# once, and as a whole. Parameters without a gradient have `p.grad` None. `optimizer.state` maps each parameter to a
# dict; count the tensors in it, the counters of steps too, and leave out what is no tensor.

# %% id="ex-owners" tags=["exercise"] exercise="memory.owners"
def owners(model, optimizer):
    """Return the bytes of parameters, gradients and optimizer state; a dict of three ints."""
    ### BEGIN SOLUTION
    def bytes_of(tensors):
        storages = [t.untyped_storage() for t in tensors if isinstance(t, torch.Tensor)]
        return sum({s.data_ptr(): s.nbytes() for s in storages}.values())

    parameters = list(model.parameters())
    return {
        "parameters": bytes_of(parameters),
        "gradients": bytes_of(p.grad for p in parameters),
        "optimizer_state": bytes_of(value for state in optimizer.state.values() for value in state.values()),
    }
    ### END SOLUTION


check("memory.owners", owners)
# hint("memory.owners")

# %% [markdown] id="s2"
# ## 2. Activations: what backward will need
#
# The fourth owner comes and goes with each step. To compute gradients, backward needs values of the forward pass: the
# input of a linear layer, the result of a ReLU. Autograd keeps these tensors until backward has used them. They are
# called **activations**, and here they are for one batch of 64 digits, layer by layer, counted by hand and measured.

# %% id="hand-count"
model, n = MLP(784, (512, 256)), 64
memory = measure(model, images[:n], labels[:n])
by_hand = {
    "first ReLU, kept once for itself and for the next layer": n * 512 * 4,
    "second ReLU": n * 256 * 4,
    "log-softmax, inside the cross entropy": n * 10 * 4,
    "the number that the mean divides by": 4,
}
for what, size in by_hand.items():
    print(f"{size:>8,} bytes  {what}")
print(f"{sum(by_hand.values()):>8,} bytes by hand,  {memory.most().activations:,} measured")

# %% [markdown] id="hand-count-says"
# Equal to the byte. Three things in the list are easily got wrong. The *result* of a linear layer is not kept: nobody's
# derivative needs it. The input of the first layer is the batch, which exists anyway. And a tensor that two layers need
# is kept once.
#
# **Predict.** For the CNN of the top, a batch of 256 digits: which share of the activations' bytes is *not* float32?
# Everything we fed in was.

# %% id="predict-indices" tags=["prediction"]
guess = ...  # per cent

# %% id="by-dtype"
sizes = {}


def note(tensor):
    storage = tensor.untyped_storage()
    sizes[storage.data_ptr()] = (short_name(tensor.dtype), storage.nbytes())
    return tensor.detach()


cnn = DigitCNN()
with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
    loss = F.cross_entropy(cnn(images[:256]), labels[:256])
for t in (*cnn.parameters(), *cnn.buffers(), images, labels):  # these exist anyway
    sizes.pop(t.untyped_storage().data_ptr(), None)
total = sum(size for _, size in sizes.values())
for dtype in ("float32", "int64"):
    size = sum(size for name, size in sizes.values() if name == dtype)
    print(f"{dtype:<8} {human_bytes(size):>9}  {100 * size / total:.0f} %")
print("your guess:", "none yet" if guess is ... else f"{guess} %")

# %% [markdown] id="by-dtype-says"
# Max pooling notes *where* each maximum was, as a whole number of 8 bytes, and backward sends the gradient there. These
# bytes will not get smaller when floating numbers do. Keep them in mind.
#
# The cell used the tool behind all this: `saved_tensors_hooks(pack, unpack)`. Autograd calls `pack` with each tensor
# that it saves, and keeps what `pack` returns; in backward, `unpack` gives it back. Return `tensor.detach()`: a result
# knows its graph, and a graph that keeps the result itself would keep itself alive for ever.
#
# ### Exercise: what backward will need
#
# Return the bytes that `model(x)` saves for backward, as an `int`. Each storage counts once, and as a whole. The
# storages of the parameters, of the buffers and of `x` exist anyway: leave them out. Count the model as it stands, in
# training mode or not, and `x` too. If gradients are off, the answer is 0. Hold the result of `model(x)` until you have
# counted: memory that is given back can get the same address again.

# %% id="ex-saved" tags=["exercise"] exercise="memory.saved"
def saved_bytes(model, x):
    """Return the bytes that a forward pass keeps for backward, beside what exists anyway; an int."""
    ### BEGIN SOLUTION
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = model(x)
    for known in (x, *model.parameters(), *model.buffers()):
        storages.pop(known.untyped_storage().data_ptr(), None)
    del result
    return sum(storages.values())
    ### END SOLUTION


check("memory.saved", saved_bytes)
# hint("memory.saved")

# %% [markdown] id="batch-text"
# ### Twice the batch
#
# **Predict.** The CNN with a batch of 64, then 128. By which factor does the peak grow? And an MLP with two hidden
# layers of 1024?

# %% id="predict-batch" tags=["prediction"]
guess = ...  # two factors, for example (2.0, 2.0)

# %% id="batch-curve"
batches = (1, 16, 32, 64, 128, 256)
peaks = {}
for name, make in (("CNN", DigitCNN), ("MLP of width 1024", lambda: MLP(784, (1024, 1024)))):
    peaks[name] = [measure(make(), images[:n], labels[:n]).peak_bytes for n in batches]
fig, ax = plt.subplots()
for name, line in peaks.items():
    ax.plot(batches, [size / MIB for size in line], "o-", label=name)
ax.set(xlabel="batch size", ylabel="peak (MiB)", ylim=(0, None))
ax.legend()
show(fig, "The peak of one step against the batch size.")
for name, line in peaks.items():
    print(f"{name:<18} from 64 to 128: {line[4] / line[3]:.2f} times the peak")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="batch-says"
# Two different animals. In a CNN few weights are used at many pixels, so activations are nearly everything, and the
# peak follows the batch. In a wide MLP a weight is used once for each example; with Adam the weights cost four times
# their size, and the batch hardly shows. Who is told to halve the batch should first look which of the two they have.
#
# ### Exercise: the largest batch that fits
#
# `peak_bytes(n)` runs one step with `n` examples and returns its peak. It never falls as `n` grows, but it is no
# straight line: for small `n` it can be flat, as for the MLP. Return the largest `n` from 1 to `most` whose peak is at
# most `limit`, or 0 if there is none. `most` is at most 1,000, and you may run at most 12 steps.

# %% id="ex-largest-batch" tags=["exercise"] exercise="memory.largest-batch"
def largest_batch(peak_bytes, limit, most):
    """Return the largest batch size in 1..most whose step needs at most limit bytes, else 0; an int."""
    ### BEGIN SOLUTION
    fits, most_that_may = 0, most
    while fits < most_that_may:
        middle = (fits + most_that_may + 1) // 2
        if peak_bytes(middle) <= limit:
            fits = middle
        else:
            most_that_may = middle - 1
    return fits
    ### END SOLUTION


check("memory.largest-batch", largest_batch)
# hint("memory.largest-batch")

# %% [markdown] id="s3"
# ## 3. When is the peak?
#
# The owners don't reach their maxima at the same time. Activations pile up in the forward pass and are freed one after
# the other in backward, while gradients appear.
#
# **Predict.** In which phase of the CNN's step is the peak: forward, backward, or the optimizer's step? And for the MLP
# of width 1024 with 64 digits?

# %% id="predict-peak" tags=["prediction"]
guess = ...  # two phases, for example ("forward", "forward")

# %% id="timeline"
steps = {
    "CNN, 64 digits": measure(DigitCNN(), images[:64], labels[:64]),
    "MLP of width 1024, 64 digits": measure(MLP(784, (1024, 1024)), images[:64], labels[:64]),
}
fig, axes = plt.subplots(1, 2, figsize=(9.5, 3.2))
for ax, (name, memory) in zip(axes, steps.items()):
    draw_timeline(ax, memory, "MiB")
    ax.set_title(name, pad=16)
axes[0].legend(fontsize=7, loc="upper right")
show(fig, "Bytes alive after each operator of a step, by owner.", digits=1)
for name, memory in steps.items():
    print(f"{name:<29} peak {human_bytes(memory.peak_bytes):>9} in the phase: {memory.phases[memory.peak_event]}")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="timeline-says"
# Left: the mountain of activations. It is highest in backward, and late: the first layers have the largest feature
# maps, backward reaches them last, and then gradients *of activations* (grey: they belong to nobody for long) stand
# beside what was saved for these layers. Right: activations are a thin line, and the peak is a grey spike near the end.
# Adam computes its update for one weight matrix at a time, with a few temporary tensors of that matrix's size.
#
# `fused=True` asks for an implementation that does the update in one pass, without temporaries. And a habit of old
# programs, gradients that are filled with zeros instead of being dropped, keeps them through the forward pass.

# %% id="step-variants"
def wide():
    return MLP(784, (1024, 1024))


rows = []
for name, settings in (("Adam", {}), ("Adam(fused=True)", {"fused": True})):
    memory = measure(wide(), images[:64], labels[:64], **settings)
    rows.append((name, human_bytes(memory.peak_bytes), memory.phases[memory.peak_event]))
print(table(rows, ("optimizer", "peak", "in phase")))


def forward_bytes(set_to_none):
    model = DigitCNN()
    stepper = torch.optim.Adam(model.parameters())

    def step():
        stepper.zero_grad(set_to_none=set_to_none)
        F.cross_entropy(model(images[:64]), labels[:64]).backward()
        stepper.step()

    return measure_step(model, step, stepper).after(FORWARD).gradients


for set_to_none in (True, False):
    print(f"gradients at the end of forward, set_to_none={set_to_none}: {human_bytes(forward_bytes(set_to_none))}")

# %% [markdown] id="budget-text"
# ### Explorer: the budget of a step
#
# The upper bar is arithmetic on the settings. The lower one is a real step, run and recorded. If they differ by one
# byte, the table says so.
#
# **Try this.** Find settings in which the optimizer's state is the largest owner, and others in which the activations
# are. In which phase is the peak, and what moves it to another? What does twice the depth cost, what twice the width?

# %% id="budget" tags=["explorer"]
explore_budget()

# %% id="cuda-ledger" tags=["nbval-ignore-output"]
if device.type == "cuda":
    cnn, x, y = DigitCNN().to(device), images[:256].to(device), labels[:256].to(device)
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    memory = measure(cnn, x, y)
    there = sum(t.nbytes for t in cnn.parameters())  # in the recording, and on the GPU before it
    print(f"ledger:    {human_bytes(memory.peak_bytes - there)} above the weights")
    print(f"allocator: {human_bytes(torch.cuda.max_memory_allocated() - held)}, with rounding and workspaces")
else:
    print("With a GPU, this cell puts the ledger's peak beside torch.cuda.max_memory_allocated().")

# %% [markdown] id="s4"
# ## 4. Paying less
#
# Nothing is kept if nobody will call backward: under `torch.no_grad()` each activation dies as soon as the next layer
# is done with it. So an evaluation may use a larger batch than training. The same forward pass, with and without:

# %% id="no-grad"
for name, gradients in (("with gradients", True), ("under no_grad", False)):
    cnn, batch = DigitCNN().eval(), images[:256].clone()
    with recording_memory(cnn) as memory, torch.set_grad_enabled(gradients):
        cnn(batch)
    print(f"{name:<15} peak {human_bytes(memory.peak_bytes)}")

# %% [markdown] id="accumulate-text"
# **Gradient accumulation** takes the batch in pieces, calls `backward()` for each, and steps once. The gradient is the
# same (lesson 02 proved it, and showed that BatchNorm is the exception). What does it do to the peak?

# %% id="accumulate"
def accumulated(pieces):
    model = DigitCNN()
    stepper = torch.optim.Adam(model.parameters())
    x_pieces, y_pieces = images[:256].clone().chunk(pieces), labels[:256].clone().chunk(pieces)

    def step():
        stepper.zero_grad()
        for x, y in zip(x_pieces, y_pieces):
            (F.cross_entropy(model(x), y) / pieces).backward()
        stepper.step()

    return measure_step(model, step, stepper).peak_bytes


for pieces in (1, 2, 4, 8, 16):
    print(f"{pieces:>2} pieces of {256 // pieces:>3} digits: peak {human_bytes(accumulated(pieces))}")

# %% [markdown] id="accumulate-says"
# Halving works until the other owners are what is left. The price is time per example, since small batches use the
# hardware less well, and BatchNorm sees smaller batches.
#
# ### Recompute instead of remember
#
# **Activation checkpointing** keeps only the *input* of a group of layers. In backward it runs the group again to get
# the activations back. `checkpoint(group, x, use_reentrant=False)` does that; the argument chooses the newer of two
# implementations, and the clinic shows why.
#
# Take 36 layers, each a linear layer with tanh, in groups of equal size. One group of 36, or 36 groups of 1, or
# something between.
#
# **Predict.** Which number of groups has the lowest peak? And which numbers of groups save nothing?

# %% id="predict-groups" tags=["prediction"]
guess = ...  # for example "12 is best, 1 saves nothing"

# %% id="groups"
depth = 36
with seeded(SEED):
    deep = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(depth))
features = torch.randn(2048, 64, generator=stream(SEED, "features"))  # (N, D): one layer's output has 512 KiB


def through(x, groups):
    if groups == 0:  # no checkpoints
        return nn.Sequential(*deep)(x)
    size = depth // groups
    for start in range(0, depth, size):
        x = checkpoint(nn.Sequential(*deep[start : start + size]), x, use_reentrant=False)
    return x


def peak_with(groups):
    deep.zero_grad()
    with recording_memory(deep) as memory:
        through(features, groups).sum().backward()
    return memory.peak_bytes


# %% id="groups-picture"
tried = (1, 2, 3, 4, 6, 9, 12, 18, 36)
line = [peak_with(groups) / MIB for groups in tried]
fig, ax = plt.subplots()
ax.plot(tried, line, "o-", label="checkpointed")
ax.axhline(peak_with(0) / MIB, color="#d55e00", linestyle="--", label="no checkpoints")
ax.set(xlabel="number of groups", ylabel="peak (MiB)", ylim=(0, None))
ax.legend()
show(fig, "36 layers: the peak against the number of checkpointed groups.")
print(f"no checkpoints: {peak_with(0) / MIB:.1f} MiB")
print(f"lowest: {min(line):.1f} MiB with {tried[line.index(min(line))]} groups")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="groups-says"
# With k groups, the inputs of k groups are kept, and while a group of 36 / k layers is run again, its activations too:
# k + 36 / k, lowest at the square root. At both ends nothing is gained. One single group is computed again as a whole,
# so everything is there at once after all. And 36 groups of one layer keep 36 inputs, which is what was kept before.
#
# What does it cost? Each layer runs forward twice, so the forward pass is paid for twice.

# %% id="groups-time" tags=["nbval-ignore-output"]
repeats = 9 if FAST else 41
forward = time_calls(lambda: through(features, 0), repeats=repeats)
print(f"forward alone: {1000 * forward.later_s:.1f} ms")
for groups in (0, 6):
    times = time_calls(lambda groups=groups: through(features, groups).sum().backward(), repeats=repeats)
    print(f"{groups} groups: {1000 * times.later_s:.1f} ms for forward and backward")

# %% [markdown] id="segments-text"
# ### Exercise: layers in checkpointed groups
#
# Run all `layers` in order on `x`, in checkpointed groups of `size` layers; the last group may be shorter, and `size`
# may exceed the number of layers. Values and gradients must be those without checkpoints, dropout included. `x` is data
# and needs no gradient. After the forward pass, only what enters each group may be kept.

# %% id="ex-segments" tags=["exercise"] exercise="memory.segments"
def run_in_segments(layers, x, size):
    """Return the output of all layers, checkpointed in groups of ``size``; layers is a list of modules."""
    ### BEGIN SOLUTION
    for start in range(0, len(layers), size):
        x = checkpoint(nn.Sequential(*layers[start : start + size]), x, use_reentrant=False)
    return x
    ### END SOLUTION


check("memory.segments", run_in_segments)
# hint("memory.segments")

# %% [markdown] id="recompute-text"
# ### Exercise: your own checkpoint
#
# There is no magic in it. Write a `torch.autograd.Function` that is called as `Recompute.apply(run, x)`: `run` is a
# module, `x` a tensor that requires gradients, perhaps the result of earlier layers with a graph of its own. `forward`
# returns `run(x)` and keeps `x` only; inside `forward` gradients are off. `backward` gets the gradient of the loss by
# the output, runs `run` a second time with gradients on, and calls `backward` on *that* result, which also fills the
# `.grad` of `run`'s parameters. It returns one gradient for each argument of `forward`, None for `run`.

# %% id="ex-recompute" tags=["exercise"] exercise="memory.recompute"
### BEGIN SOLUTION
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x):
        ctx.run = run
        ctx.save_for_backward(x)
        return run(x)

    @staticmethod
    def backward(ctx, grad_output):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.run(x)
        y.backward(grad_output)
        return None, x.grad
### END SOLUTION
### BEGIN STUB
# Recompute = ...  # class Recompute(torch.autograd.Function): ...
### END STUB


check("memory.recompute", Recompute)
# hint("memory.recompute")

# %% [markdown] id="s5"
# ## 5. What stays: leaks
#
# A training loop should need the same memory in step 1,000 as in step 10. Where it doesn't, something is being kept,
# and Python frees nothing that can still be reached. A high peak is no leak. A *rising* one is.
#
# Eight loops. Each takes steps with 64 small digits and an MLP with 128 hidden values, and keeps something.
#
# **Predict.** Which of the eight grow by more than 100 bytes per step?

# %% id="predict-leaks" tags=["prediction"]
guess = ...  # a list of the lines below that grow

# %% id="leaks-loop"
def growth(keep, trains=True, steps=5):
    """Return by how many bytes of storage the live memory grows per step, after the first ones."""
    with seeded(SEED):
        model = MLP(64, (128,))
    stepper = torch.optim.SGD(model.parameters(), lr=0.1)
    kept, live = [], []
    with recording_memory(model, stepper) as memory:
        for _ in range(steps):
            scores = model(small_images[:64])  # (64, 10)
            loss = F.cross_entropy(scores, small_labels[:64])
            if trains:
                stepper.zero_grad()
                loss.backward()
                stepper.step()
            kept.append(keep(scores, loss))
            del scores, loss
            live.append(memory.live_bytes)
    return live[-1] - live[-2]


# %% id="leaks-table"
loops = {
    "training, keeps loss.item()": growth(lambda scores, loss: loss.item()),
    "training, prints the loss": growth(lambda scores, loss: str(loss) and None),
    "training, keeps the loss": growth(lambda scores, loss: loss),
    "training, keeps the scores": growth(lambda scores, loss: scores),
    "training, keeps scores[0]": growth(lambda scores, loss: scores[0]),
    "training, keeps a clone of scores[0]": growth(lambda scores, loss: scores[0].detach().clone()),
    "validation, keeps the loss": growth(lambda scores, loss: loss, trains=False),
    "validation, keeps scores.detach()": growth(lambda scores, loss: scores.detach(), trains=False),
}
print(table([(name, f"{size:,}") for name, size in loops.items()], ("loop", "bytes per step")))
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="leaks-says"
# "A list of losses keeps a thousand graphs" is half true. In *training*, `backward()` frees what the graph had saved;
# 4 bytes per step stay, and the empty nodes of the graph. In *validation* without `no_grad` nobody calls backward, and
# the same line keeps every activation of every batch. And a row of ten numbers keeps as much as all 64 rows: it is a
# view, and a view holds the storage it was cut from.
#
# What holds on to a tensor? A name, a list, a hook that collects outputs (lesson 03), a graph. And an *error*: its
# traceback holds the frames of all functions that were running, with their local variables. After an "out of memory"
# that was caught and kept, the tensors of the failed step stay alive.

# %% id="exception"
def failing_step():
    activations = torch.zeros(1000, 1000)  # 4 MB, a local variable
    raise RuntimeError(f"something went wrong with {activations.shape}")


with recording_memory() as memory:
    try:
        failing_step()
    except RuntimeError as error:
        kept_error = error  # to show it later, say
    print(f"the error is kept:           {memory.live_bytes:>9,} bytes alive")
    kept_error = kept_error.with_traceback(None)
    print(f"kept without its traceback:  {memory.live_bytes:>9,} bytes alive")

# %% [markdown] id="live-text"
# ### Exercise: bytes that are alive
#
# The recorder must be there from the beginning. In a notebook that has grown for an hour you want to ask *now*.
# `gc.get_objects()` lists the objects that Python's garbage collector keeps track of, tensors among them. Return the
# bytes of all storages behind them as an `int`, each storage once and as a whole. Run `gc.collect()` first: objects
# that hold each other in a circle are dead and wait for it. Some objects in the list react when touched, so don't call
# their methods: `issubclass(type(o), torch.Tensor)` only looks at the type. Sparse tensors need not be counted.

# %% id="ex-live" tags=["exercise"] exercise="memory.live"
def live_bytes():
    """Return the bytes of the storages behind all tensors that Python knows of; an int."""
    ### BEGIN SOLUTION
    gc.collect()
    tensors = [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)]
    storages = [t.untyped_storage() for t in tensors]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())
    ### END SOLUTION


check("memory.live", live_bytes)
# hint("memory.live")

# %% [markdown] id="live-limit"
# One limit. Python's collector lists Python objects, and a tensor that PyTorch's own code made and the graph keeps has
# never been one. The same loss is kept twice: once we ask the collector, once the recorder.

# %% id="live-limit-shown"
def listed_bytes():
    gc.collect()
    found = [o.untyped_storage() for o in gc.get_objects() if issubclass(type(o), torch.Tensor)]
    return sum({s.data_ptr(): s.nbytes() for s in found}.values())


w, target = torch.zeros(64, 1000, requires_grad=True), torch.zeros(64, dtype=torch.int64)
before = listed_bytes()
first = F.cross_entropy(w, target)
print(f"the collector lists {listed_bytes() - before:>8,} bytes more")
with recording_memory() as memory:
    second = F.cross_entropy(w, target)
    print(f"the recorder sees   {memory.live_bytes - w.nbytes - target.nbytes:>8,} bytes more")
print(f"log-softmax alone has {w.nbytes:,}")

# %% [markdown] id="s6"
# ## 6. On a GPU: the caching allocator
#
# Asking a GPU's driver for memory is slow, so PyTorch asks rarely. It takes memory in large pieces, **segments**, hands
# out parts of them, **blocks**, and keeps what comes back for the next request. So two numbers describe a GPU.
# *Allocated*: blocks in use, what this lesson has counted so far. *Reserved*: all segments, which is what `nvidia-smi`
# sees, and more.
#
# You can watch it without a GPU. `CachingAllocator` is a model of it with the rules of PyTorch's source: requests are
# rounded up to 512 bytes; up to 1 MiB they share segments of 2 MiB, below 10 MiB segments of 20 MiB, and above that
# each gets a segment of its own. Free neighbours become one block.

# %% id="allocator"
def line(gpu, what):
    allocated, reserved = gpu.allocated_bytes / MIB, gpu.reserved_bytes / MIB
    return f"{what:<32} allocated {allocated:>4.0f} MiB, reserved {reserved:>3.0f} MiB"


gpu = CachingAllocator(40 * MIB)  # a very small GPU
blocks = [gpu.take(4 * MIB) for _ in range(10)]
print(line(gpu, "10 tensors of 4 MiB"))
for block in blocks[::2]:
    gpu.give(block)
print(line(gpu, "every second one deleted"))

# %% [markdown] id="allocator-predict-text"
# **Predict.** 20 MiB are free now. A tensor of 12 MiB is wanted. Does it fit? Does `empty_cache()` help, which gives
# unused segments back to the driver?

# %% id="predict-fragments" tags=["prediction"]
guess = ...  # for example (True, True)

# %% id="fragments"
fits = []
for with_empty_cache in (False, True):
    if with_empty_cache:
        gpu.empty_cache()
        print(line(gpu, "after empty_cache()"))
    try:
        gpu.take(12 * MIB)
        fits.append(True)
    except OutOfMemory as error:
        fits.append(False)
        print(str(error).split("\n")[1].strip())
fig, ax = plt.subplots(figsize=(6, 1.6))
show(draw_segments(ax, gpu).figure, "The two segments of the small GPU.")
print("fits:", fits, " your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="fragments-says"
# Half of the memory is free and no piece is larger than 4 MiB: this is **fragmentation**, and the message of a real GPU
# names it in the same words, *reserved but unallocated*. `empty_cache()` can give back only segments in which nothing
# is in use. It helps *other* programs on the GPU. PyTorch itself calls it before it gives up. Against a leak it does
# nothing, since a leak is allocated.
#
# What helps: shapes that don't change from batch to batch, so that a freed block fits the next request, and
# `PYTORCH_ALLOC_CONF=expandable_segments:True`, which lets one segment grow instead of taking another, so that there
# are fewer borders that a block can't cross. The same requests, with five *neighbours* deleted instead of every second
# one:

# %% id="fragments-order"
gpu = CachingAllocator(40 * MIB)
blocks = [gpu.take(4 * MIB) for _ in range(10)]
for block in blocks[:5]:
    gpu.give(block)
print(f"five neighbours free: largest free block {gpu.largest_free_bytes / MIB:.0f} MiB")
gpu.take(12 * MIB)
print(line(gpu, "a tensor of 12 MiB"))

# %% id="cuda-memory" tags=["nbval-ignore-output"]
if device.type == "cuda":
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    tensors = [torch.empty(MIB, device=device) for _ in range(10)]  # 4 MiB each
    gpu = CachingAllocator(10**12)
    blocks = [gpu.take(4 * MIB) for _ in range(10)]
    rows = [
        ("allocated", gpu.allocated_bytes, torch.cuda.memory_allocated() - start[0]),
        ("reserved", gpu.reserved_bytes, torch.cuda.memory_reserved() - start[1]),
    ]
    print(table(rows, ("bytes", "model", "GPU")))
    print("peak:", torch.cuda.max_memory_allocated())
else:
    print("With a GPU, this cell puts the model beside torch.cuda.memory_allocated() and memory_reserved().")

# %% [markdown] id="cuda-memory-says"
# On a GPU, `torch.cuda.memory._record_memory_history()` and `torch.cuda.memory._dump_snapshot("snapshot.pickle")` write
# down every block with the line of Python that asked for it; the page `pytorch.org/memory_viz` draws the file. It is
# the timeline of section 3, made by the allocator itself.
#
# ## 7. Numbers in 16 bits
#
# A floating number spends its bits on a sign, an **exponent** (how far it reaches) and a **fraction** (how fine it is).
# There are two ways to spend 16.

# %% id="formats"
rows = []
for dtype in FORMATS:
    facts = number_format(dtype)
    rows.append(
        (
            short_name(dtype),
            facts.exponent_bits,
            facts.fraction_bits,
            f"{facts.largest:.3g}",
            f"{facts.smallest:.1g}",
            f"1/{1 / facts.step_at_one:.0f}",
        )
    )
print(table(rows, ("format", "exponent bits", "fraction bits", "largest", "smallest above 0", "step after 1")))

# %% id="formats-picture"
fig, axes = plt.subplots(1, 2, figsize=(9, 2.8))
draw_ranges(axes[0])
draw_spacings(axes[1])
show(fig, "How far and how fine: the formats compared.")

# %% [markdown] id="formats-says"
# **float16** is fine, and reaches from 0.00000006 to 65,504. **bfloat16** reaches as far as float32 and has two to
# three decimal digits. Each has a way to go wrong.
#
# **Predict.** A weight is 1. It gets 1,000 updates of +0.001, one after the other. What is it afterwards, in float32,
# in bfloat16 and in float16?

# %% id="predict-stall" tags=["prediction"]
guess = ...  # three numbers, for example (2.0, 2.0, 2.0)

# %% id="stall"
for dtype in FORMATS:
    weight = torch.ones((), dtype=dtype)
    for _ in range(1000):
        weight += 0.001
    print(f"{short_name(dtype):<9} {weight.item():.4f}")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="stall-says"
# In bfloat16 nothing has happened, a thousand times. The neighbour of 1 is 1 + 1/128; the update is less than half of
# that, and is rounded away. This is why **mixed** precision keeps the weights, the gradients' sum and the optimizer's
# state in float32, and uses 16 bits only for the arithmetic in between.
#
# float16's trouble is the range. Here are the gradients of all weights of a small network, by size, and what would
# become 0 in each format.

# %% id="gradients"
def gradients(loss_factor):
    with seeded(SEED):
        model = MLP(64, (64, 64))
    loss = F.cross_entropy(model(small_images[:256]), small_labels[:256]) * loss_factor
    return torch.cat([grad.flatten() for grad in torch.autograd.grad(loss, list(model.parameters()))])


rows = []
for loss_factor in (1.0, 1e-3, 1e-6):
    grads = gradients(loss_factor)
    typical = grads[grads != 0].abs().median().item()
    lost = [f"{100 * lost_share(grads, dtype):.0f} %" for dtype in (torch.float16, torch.bfloat16)]
    rows.append((f"{loss_factor:g}", f"{typical:.0e}", *lost))
print(table(rows, ("loss times", "median gradient", "0 in float16", "0 in bfloat16")))

# %% [markdown] id="gradients-says"
# The loss was multiplied by small factors, as happens with a mean over many outputs, a small weight of one loss among
# several, or a deep network. In float16 all gradients are lost in the end, without an error. In bfloat16 none.
#
# The remedy for float16 is old: multiply the loss by a large number. All gradients grow by the same factor (the chain
# rule is linear in it), and are divided by it afterwards, in float32.

# %% id="scales-picture"
powers = list(range(0, 61, 4))
grads = gradients(1e-6)
grads = grads[grads != 0]  # pixels that are always blank have a gradient of 0
lost = [100 * lost_share(grads, torch.float16, 2.0**power) for power in powers]
too_large = [100 * (grads.double() * 2.0**power).half().isinf().double().mean().item() for power in powers]
fig, ax = plt.subplots()
ax.plot(powers, lost, "o-", label="become 0")
ax.plot(powers, too_large, "s-", color="#d55e00", label="become inf")
ax.set(xlabel="loss scale, power of two", ylabel="gradients (%)")
ax.legend()
show(fig, "One gradient in float16 under different scales.", digits=1)

# %% [markdown] id="scale-text"
# Between too small and too large there is a wide valley. One inf is enough to ruin a step, so the largest gradient says
# where the valley ends.
#
# ### Exercise: the largest scale that fits
#
# Return the largest power of two, as a float, by which all gradients can be multiplied so that none exceeds 65,504 in
# absolute value. `grads` is a list of float32 tensors of different shapes. Powers of two change only the exponent of a
# number, so nothing is rounded. The result may be below 1. If all gradients are zero, return 1.0.

# %% id="ex-scale" tags=["exercise"] exercise="memory.scale"
def best_scale(grads):
    """Return the largest power of two that keeps every gradient within float16; a float."""
    ### BEGIN SOLUTION
    largest = max(grad.abs().max().item() for grad in grads)
    return 2.0 ** math.floor(math.log2(65504 / largest)) if largest else 1.0
    ### END SOLUTION


check("memory.scale", best_scale)
# hint("memory.scale")

# %% [markdown] id="s8"
# ## 8. Autocast and the scaler
#
# `with torch.autocast(device_type, dtype)` decides for each operator in which format it runs. Weights and inputs stay
# as they are; the operators that it lists cast their inputs on the way in.
#
# **Predict.** `a` is float32, `h` is 16 bits. Under autocast in bfloat16, on the CPU: which type has the result of
# `a @ a`, `a + a`, `h + a`, `h.exp()`, `h.sum()`, and of a cross entropy of `h`?

# %% id="predict-autocast" tags=["prediction"]
guess = ...  # six types, for example ["bfloat16", ...]

# %% id="autocast-table"
a, target = torch.rand(4, 4, generator=stream(SEED, "autocast")), torch.arange(4)
operators = {
    "a @ a": lambda h: a @ a,
    "F.linear(a, a)": lambda h: F.linear(a, a),
    "a + a": lambda h: a + a,
    "h + a": lambda h: h + a,
    "h * h": lambda h: h * h,
    "h.exp()": lambda h: h.exp(),
    "h.sum()": lambda h: h.sum(),
    "h.softmax(1)": lambda h: h.softmax(1),
    "F.layer_norm(h, (4,))": lambda h: F.layer_norm(h, (4,)),
    "F.cross_entropy(h, target)": lambda h: F.cross_entropy(h, target),
    "F.mse_loss(h, a)": lambda h: F.mse_loss(h, a),
    "a.double() @ a.double()": lambda h: a.double() @ a.double(),
}

# %% id="autocast-run"
formats = (torch.bfloat16, torch.float16)
rows = [
    (code, *(dtype_under_autocast(lambda d=d, call=call: call(a.to(d)), d) for d in formats))
    for code, call in operators.items()
]
print(table(rows, ("operator", "autocast to bfloat16", "to float16")))
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="autocast-says"
# Three groups. Products of matrices and convolutions are *cast down*. Losses are *cast up* to float32. All others run
# in what they get, and mixed inputs meet in the wider type. The lists differ by device: on CUDA also `exp`, `sum`,
# `softmax` and `layer_norm` are cast up, on the CPU they stay in 16 bits. Ask by running, as here.

# %% id="cuda-autocast" tags=["nbval-ignore-output"]
if device.type == "cuda":
    h = a.to(device).half()
    for code, call in {"h.exp()": h.exp, "h.sum()": h.sum, "h.softmax(1)": lambda: h.softmax(1)}.items():
        print(f"{code:<13} {dtype_under_autocast(call, torch.float16, 'cuda')}")
else:
    print("With a GPU, this cell shows that CUDA's list casts exp, sum and softmax up to float32.")

# %% [markdown] id="saves-text"
# ### What it saves, and what not
#
# **Predict.** At the top, the CNN's peak fell by two fifths. The MLP of width 1024 takes a step with 16 digits, in
# float32 and under autocast to bfloat16. By which factor do the bytes of its *activations* change, and how many per
# cent of its peak are saved?

# %% id="predict-saves" tags=["prediction"]
guess = ...  # a factor and a percentage, for example (0.5, 50)

# %% id="saves"
rows = []
for name, make, n in (("CNN, 256 digits", DigitCNN, 256), ("MLP of width 1024, 16 digits", wide, 16)):
    ledgers = []
    for dtype in (None, torch.bfloat16):
        memory = measure(make(), images[:n], labels[:n], dtype=dtype)
        ledgers.append((memory.after(STEP).total, memory.most().activations, memory.peak_bytes))
    (stays, kept, peak), (_, kept_16, peak_16) = ledgers
    saved, factor = f"{100 * (1 - peak_16 / peak):.0f} %", f"{kept_16 / kept:.2f}"
    rows.append((name, human_bytes(stays), human_bytes(kept), human_bytes(kept_16), factor, saved))
print(table(rows, ("", "between steps", "activations, 32 bits", "16 bits", "factor", "peak saved")))
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="saves-says"
# Parameters, gradients and state stay in float32: not one byte is saved there. Of the CNN's activations the indices of
# the pooling stay, and the statistics of BatchNorm. For the MLP with a small batch the activations *grow*: a copy of
# each weight in 16 bits is made and kept for backward. Its peak, in Adam's step, doesn't notice either way. Mixed
# precision saves memory where activations are most of it. Its first purpose is speed, on hardware that multiplies
# 16-bit matrices faster.
#
# ### Exercise: a part that stays in float32
#
# A loss of your own uses the squared distance of each row of `a` (N, D) to each row of `b` (M, D):
# |a|² + |b|² − 2 a·b, or the sum of (a − b)². Return it as float32, shape (N, M), right to three digits for inputs in
# float32 and in float16, with entries up to a few hundred, and whether the caller has autocast switched on or not.
# `torch.autocast(a.device.type, enabled=False)` switches it off for a block; inside, tensors keep the type they have.

# %% id="ex-distances" tags=["exercise"] exercise="memory.distances"
def squared_distances(a, b):
    """Return the squared distances of all pairs, (N, D), (M, D) -> (N, M), float32."""
    ### BEGIN SOLUTION
    with torch.autocast(a.device.type, enabled=False):
        a, b = a.float(), b.float()
        return a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T
    ### END SOLUTION


check("memory.distances", squared_distances)
# hint("memory.distances")

# %% [markdown] id="scaler-text"
# ### The scaler
#
# Which scale is right changes while training: gradients shrink, and now and then one is huge. `torch.amp.GradScaler`
# finds it by trial. Four calls make a step:
#
# - `scaler.scale(loss).backward()`: the loss times the scale, so all gradients are too;
# - `scaler.unscale_(optimizer)`: divides the gradients, in place, and notes whether one of them is inf or nan;
# - `scaler.step(optimizer)`: unscales if that was not done, and lets the optimizer step, unless an inf or nan was
#   noted;
# - `scaler.update()`: after an overflow the scale is halved; after `growth_interval` good steps in a row it is doubled.
#
# Here it meets two overflows that we force.

# %% id="scaler-shown"
w = nn.Parameter(torch.ones(3))
stepper = torch.optim.SGD([w], lr=0.125)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=3)
rows = []
for number, factor in enumerate((1, 1, math.inf, 1, 1, 1, 1, math.nan)):
    before, scale = w.detach().clone(), scaler.get_scale()
    stepper.zero_grad()
    scaler.scale((w * factor).sum()).backward()
    scaler.step(stepper)
    scaler.update()
    moved = "skipped" if torch.equal(w, before) else f"moved by {(w - before)[0].item():.3f}"
    rows.append((number, factor, f"2**{math.log2(scale):.0f}", moved, f"2**{math.log2(scaler.get_scale()):.0f}"))
print(table(rows, ("step", "gradient", "scale", "weights", "scale afterwards")))

# %% [markdown] id="scaler-ex-text"
# ### Exercise: a gradient scaler
#
# Write it. The class has `__init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5,
# growth_interval=2000)` and the methods `scale(loss)`, `unscale_(optimizer)`, `step(optimizer)`, `update()` and
# `get_scale()`, which returns a float. One optimizer is enough. The rules are the four above, precisely:
#
# - `unscale_` divides the gradient of each parameter in `optimizer.param_groups` (each group is a dict with `"params"`)
#   in place; parameters whose `.grad` is None are skipped;
# - within one step, gradients are unscaled once, by `unscale_` or by `step`;
# - `update` after an overflow: scale times `backoff_factor`, and the count of good steps starts at 0. Otherwise the
#   count grows by 1; when it reaches `growth_interval`, scale times `growth_factor`, and the count starts at 0.
#
# The check runs it beside PyTorch's own, step by step, through overflows.

# %% id="ex-scaler" tags=["exercise"] exercise="memory.scaler"
### BEGIN SOLUTION
class Scaler:
    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.factor, self.growth_factor, self.backoff_factor = init_scale, growth_factor, backoff_factor
        self.growth_interval, self.good = growth_interval, 0
        self.is_unscaled, self.has_overflow = False, False

    def scale(self, loss):
        return loss * self.factor

    def unscale_(self, optimizer):
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        for grad in grads:
            grad.div_(self.factor)
        self.has_overflow = not all(bool(grad.isfinite().all()) for grad in grads)
        self.is_unscaled = True

    def step(self, optimizer):
        if not self.is_unscaled:
            self.unscale_(optimizer)
        if not self.has_overflow:
            optimizer.step()

    def update(self):
        self.good = 0 if self.has_overflow else self.good + 1
        if self.has_overflow:
            self.factor *= self.backoff_factor
        elif self.good == self.growth_interval:
            self.factor *= self.growth_factor
            self.good = 0
        self.is_unscaled = self.has_overflow = False

    def get_scale(self):
        return self.factor
### END SOLUTION
### BEGIN STUB
# Scaler = ...  # class Scaler: ...
### END STUB


check("memory.scaler", Scaler)
# hint("memory.scaler")

# %% [markdown] id="scale-explorer-text"
# ### Explorer: the scale in a real run
#
# A small network learns digits in float16 for 60 steps, with PyTorch's scaler. Nothing is forced here: a step is
# skipped because a real gradient has left the range.
#
# **Try this.** Start at 2³²: how many steps are lost before learning begins? Set the loss times 1/1,000,000 and start
# at 1: does it learn? From where do you have to start? Let the scale double after 1 good step: what is the price?

# %% id="scale-explorer" tags=["explorer"]
explore_scale()

# %% [markdown] id="amp-text"
# ### Exercise: one update in mixed precision
#
# Everything together: one update from several pieces of a batch. `pieces` is a list of `(x, y)` of different sizes.
# Clear old gradients. For each piece, forward pass and `F.cross_entropy` (its mean over the piece) under autocast on
# the CPU in float16; backward outside of the block, where each operator uses the type that its forward used, and
# before the next piece. The gradient is that of the mean over **all** examples. Clip its norm to `max_norm` with
# `torch.nn.utils.clip_grad_norm_`, which scales gradients in place and returns the norm from before. Step through the
# scaler, and update it once. Return that norm as a float.

# %% id="ex-amp-step" tags=["exercise"] exercise="memory.amp-step"
def amp_step(model, optimizer, scaler, pieces, max_norm):
    """Update the model once from all pieces, in mixed precision; return the gradient's norm before clipping."""
    ### BEGIN SOLUTION
    n_all = sum(len(y) for _, y in pieces)
    optimizer.zero_grad()
    for x, y in pieces:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y) * (len(y) / n_all)
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)  # clipping needs the true size
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm.item()
    ### END SOLUTION


check("memory.amp-step", amp_step)
# hint("memory.amp-step")

# %% [markdown] id="bf16-text"
# And bfloat16? Its range is that of float32, so there is nothing to rescue: autocast alone, no scaler. Train the same
# network from the same weights in four ways, and compare the loss at the end.

# %% id="bf16"
def last_loss(dtype, has_scaler=False):
    with seeded(SEED):
        model = MLP(64, (32,))
    stepper = torch.optim.SGD(model.parameters(), lr=2e5)  # the loss is tiny, so the steps are large
    scaler = torch.amp.GradScaler("cpu", enabled=has_scaler)  # not enabled, it passes everything through
    for _ in range(60):
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = F.cross_entropy(model(small_images[:256]), small_labels[:256]) * 1e-6
        stepper.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(stepper)
        scaler.update()
    return loss.item() * 1e6


# %% id="bf16-run"
ways = {
    "float32": (None, False),
    "bfloat16, no scaler": (torch.bfloat16, False),
    "float16, no scaler": (torch.float16, False),
    "float16, scaler": (torch.float16, True),
}
for name, way in ways.items():
    print(f"{name:<20} last loss {last_loss(*way):.1f} nats (guessing: {math.log(10):.1f})")

# %% [markdown] id="bf16-says"
# A scaler hides things, too. A model whose gradients are *always* nan is skipped for ever: no error, no learning, and
# a scale that falls and falls. If the scale goes down five updates in a row, stop and look for the nan.
#
# ## 9. Compiled code
#
# So far Python runs the model line by line, and each operator reads its input from memory and writes its output back.
# `torch.compile(f)` returns a function that does something else in its first call: it watches which operators Python
# asks for (this part is called **Dynamo**), writes them into a **graph**, and hands the graph to a **backend** that
# makes code from it. The usual backend, Inductor, writes C++ or GPU code in which operators are fused into one loop.
#
# A backend is just a function. `Captured` is one that keeps the graph, for us to look at, and runs it unchanged.

# %% id="captured"
def soft_gate(x):
    inner = 0.8 * (x + 0.0447 * x * x * x)
    return 0.5 * x * (1 + torch.tanh(inner))


captured = Captured()
x = torch.linspace(-3, 3, 7)
with quiet_compiler():  # keeps Dynamo's log off the page; in the end all is forgotten, and its files are removed
    compiled = torch.compile(soft_gate, backend=captured)
    print("equal to the plain function:", torch.equal(compiled(x), soft_gate(x)))
print("graphs:", captured.operators())

# %% [markdown] id="breaks-text"
# ### Where the graph ends
#
# A graph holds operators on tensors. What if Python needs a *value* to go on?
#
# **Predict.** `decide` below has an `if` on a value. How many graphs does one call make?

# %% id="predict-breaks" tags=["prediction"]
guess = ...  # a number

# %% id="breaks"
def decide(x):
    x = x * 2
    if x.sum() > 0:
        x = x - 1
    return x.relu()


captured = Captured()
with quiet_compiler():
    compiled = torch.compile(decide, backend=captured)
    compiled(torch.ones(3))
    print("after a call with a positive sum:", captured.operators())
    compiled(-torch.ones(3))
    print("after one with a negative sum:   ", captured.operators()[2:], "more")
print("your guess:", "none yet" if guess is ... else guess)
with quiet_compiler():
    try:
        torch.compile(decide, backend="eager", fullgraph=True)(torch.ones(3))
    except RuntimeError as error:
        print(f"fullgraph=True: {type(error).__name__}: {str(error).splitlines()[0]}")

# %% [markdown] id="breaks-says"
# The first graph ends where the value is needed: a **graph break**. Python takes over, evaluates the `if`, and the rest
# is captured as a second graph, one for each branch that was taken. The result is always right. But at each break the
# data goes back to Python, and nothing is fused across it. `fullgraph=True` makes a break an error, which is the way to
# find them. What else breaks a graph?

# %% id="break-table"
def prints(x):
    print("x has arrived")
    return x + 1


candidates = {
    "x.sum().item()": lambda x: x * x.sum().item(),
    "int(x.sum())": lambda x: x * int(x.sum()),
    "print(...)": prints,
    "x[x > 0]": lambda x: x[x > 0] + 1,
    "if x.shape[0] > 2": lambda x: x + 1 if x.shape[0] > 2 else x - 1,
    "torch.where(x > 0, x, 0)": lambda x: torch.where(x > 0, x, 0.0),
}
rows = [(code, len(break_reasons(call, torch.ones(3)))) for code, call in candidates.items()]
print(table(rows, ("in the function", "breaks")))

# %% [markdown] id="one-graph-text"
# Shapes are known when the graph is made, values are not. So an `if` on a shape is decided then and there, and costs
# nothing. `x[x > 0]` has a shape that depends on values. And `print`, a break in older texts, is none in this version.
#
# ### Exercise: a branch without leaving the graph
#
# This function breaks the graph. Write one that gives the same and stays in one graph, whatever the values:
#
# ```
# def shrink(x, limit):
#     norm = x.norm().item()
#     if norm > limit:
#         return x * (limit / norm)
#     return x
# ```
#
# `limit` is a positive float. Zeros stay zeros.

# %% id="ex-one-graph" tags=["exercise"] exercise="memory.one-graph"
def shrink(x, limit):
    """Return x scaled down to a norm of at most limit, same shape."""
    ### BEGIN SOLUTION
    return x * (limit / x.norm()).clamp(max=1.0)
    ### END SOLUTION


check("memory.one-graph", shrink)
# hint("memory.one-graph")

# %% [markdown] id="recompile-text"
# ### When it is compiled again
#
# With each graph Dynamo stores **guards**: what must be as it was, such as types, shapes, and Python values that were
# used. If a guard fails, the function is compiled again.
#
# **Predict.** A function is called with batches of 8, 8, 5, 3, 7 and 1. How many graphs are there after each call?

# %% id="predict-recompile" tags=["prediction"]
guess = ...  # six numbers, for example [1, 1, 1, 1, 1, 1]

# %% id="recompile"
def counter():
    layer = nn.Linear(4, 4)
    layer.calls = 0

    def call(x):
        layer.calls += 1
        return layer(x) * layer.calls

    return call


x = torch.ones(3, 4)
cases = {
    "batches of 8, 8, 5, 3, 7, 1": (lambda x: x * 2, [(torch.ones(n, 4),) for n in (8, 8, 5, 3, 7, 1)]),
    "float32, float64, float32": (lambda x: x * 2, [(x,), (x.double(),), (x,)]),
    "a float: 0.1, 0.2, 0.3, 0.4": (lambda x, s: x * s, [(x, s) for s in (0.1, 0.2, 0.3, 0.4)]),
    "a string: a, b, c, d": (lambda x, s: x * ord(s), [(x, s) for s in "abcd"]),
    "a counter in a module, 12 calls": (counter(), [(x,)] * 12),
}
rows = [(name, str(compilations(call, calls))) for name, (call, calls) in cases.items()]
print(table(rows, ("calls", "graphs after each call")))
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="recompile-says"
# The first shape is taken for the only one. When a second comes, Dynamo compiles once more with the size as a variable,
# and later sizes reuse that. A size of 1 is always a case of its own, since it broadcasts. Numbers that are passed in
# get the same treatment. Strings don't, and neither does a number that a module keeps: every call compiles, until the
# limit of 8 is reached, and from then on the function runs uncompiled. The clinic has one of these.
#
# ### What it costs and what it saves
#
# Now the real backend. On a CPU it writes C++, so it needs a compiler for that.
#
# **Predict.** A million numbers go through `soft_gate`, in one thread. How long does the first compiled call take, and
# how many times faster than plain is a later one?

# %% id="predict-inductor" tags=["prediction"]
guess = ...  # for example "1 second, 1.5 times"

# %% id="inductor" tags=["nbval-ignore-output"]
x = torch.randn(1_000_000, generator=stream(SEED, "compile"))
repeats, quick = 20 if FAST else 200, None
with use_threads(1), quiet_compiler() as folder:
    plain = time_calls(soft_gate, x, repeats=repeats)
    print(f"plain: {1000 * plain.later_s:.1f} ms a call")
    if has_compiler():
        compiled = compiled_here(soft_gate)
        quick = time_calls(compiled, x, repeats=repeats)
        print(f"compiled: {quick.first_s:.1f} s for the first call, then {1000 * quick.later_s:.1f} ms")
        print("agrees to 1e-5:", torch.allclose(compiled(x), soft_gate(x), atol=1e-5))
        print("files written:", sum(path.is_file() for path in folder.rglob("*")))
        print("your guess:", "none yet" if guess is ... else guess)
    else:
        print("There is no C++ compiler here. With one, this cell times the first compiled call and later ones.")

# %% [markdown] id="inductor-says"
# Each operator of the plain function reads a million numbers and writes a million, and so memory is what it waits for.
# The compiled one has fused them: it reads once and writes once. Large matrix products gain little, since they are one
# well-written kernel already. So ask the profiler (lesson 05) first: many small element-wise operators are worth
# compiling, one large product is not.
#
# ### Exercise: when compiling has paid
#
# The first compiled call takes `first_s` seconds, each later one `later_s`, and a plain call `plain_s`. Return the
# smallest number of calls, an `int` of at least 1, for which compiled calls take *less* time in all than as many plain
# ones, or None if there is no such number.

# %% id="ex-break-even" tags=["exercise"] exercise="memory.break-even"
def calls_needed(first_s, later_s, plain_s):
    """Return the smallest number of calls that compiling makes quicker in all, or None."""
    ### BEGIN SOLUTION
    if first_s < plain_s:
        return 1
    if later_s >= plain_s:
        return None
    return math.floor((first_s - plain_s) / (plain_s - later_s)) + 2
    ### END SOLUTION


check("memory.break-even", calls_needed)
# hint("memory.break-even")

# %% id="break-even-here" tags=["nbval-ignore-output"]
from course_utils.compiling import break_even

if quick is not None:
    needed = break_even(quick.first_s, quick.later_s, plain.later_s)
    print("never: it is no quicker here" if needed is None else f"compiling pays from call {needed:,} on, here")
else:
    print("With a C++ compiler, this cell says from which call on compiling has paid on this machine.")

# %% [markdown] id="clinic"
# ## Clinic
#
# Six programs that run without an error. Each wastes memory, learns nothing, or is slower than it should be.
#
# ### Validation that keeps everything
#
# The mean loss over all batches (all of one size), and the scores of all examples. Memory grows with every batch.

# %% id="clinic-history" tags=["clinic"] exercise="memory.clinic-history"
def validate(model, batches):
    """Return (mean loss as a float, scores (N, C) in no graph); batches is a list of (x, y)."""
    ### BEGIN SOLUTION
    total, scores = 0.0, []
    with torch.no_grad():
        for x, y in batches:
            scores.append(model(x))
            total += F.cross_entropy(scores[-1], y).item()
    return total / len(batches), torch.cat(scores)
    ### END SOLUTION
    ### BEGIN STUB
    # total, scores = 0.0, []
    # for x, y in batches:
    #     scores.append(model(x))
    #     total += F.cross_entropy(scores[-1], y)
    # return (total / len(batches)).item(), torch.cat(scores).detach()
    ### END STUB


check("memory.clinic-history", validate)
# hint("memory.clinic-history")

# %% [markdown] id="clinic-loop-text"
# ### A loss that never moves
#
# The weights move in every step, and the loss is the same to the last digit. Autocast must stay.

# %% id="clinic-loop" tags=["clinic"] exercise="memory.clinic-loop"
def train_mixed(model, optimizer, x, y, steps):
    """Train on one batch in bfloat16; return the loss of each step, a list of floats."""
    ### BEGIN SOLUTION
    losses = []
    for _ in range(steps):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
    ### END SOLUTION
    ### BEGIN STUB
    # losses = []
    # with torch.autocast("cpu", dtype=torch.bfloat16):
    #     for _ in range(steps):
    #         loss = F.cross_entropy(model(x), y)
    #         optimizer.zero_grad()
    #         loss.backward()
    #         optimizer.step()
    #         losses.append(loss.item())
    # return losses
    ### END STUB


check("memory.clinic-loop", train_mixed)
# hint("memory.clinic-loop")

# %% [markdown] id="clinic-half-text"
# ### Half the bytes, no progress
#
# "Train in bfloat16, it takes half the memory." The model is cast, and stays where it was. Let it compute in bfloat16
# and learn all the same. The model is float32 when it comes in, and when it goes out.

# %% id="clinic-half" tags=["clinic"] exercise="memory.clinic-half"
def train_half(model, x, y, steps, lr):
    """Train on one batch with SGD; the forward pass computes in bfloat16."""
    ### BEGIN SOLUTION
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    ### END SOLUTION
    ### BEGIN STUB
    # model.to(torch.bfloat16)
    # optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    # for _ in range(steps):
    #     loss = F.cross_entropy(model(x.to(torch.bfloat16)), y)
    #     optimizer.zero_grad()
    #     loss.backward()
    #     optimizer.step()
    # model.to(torch.float32)
    ### END STUB


check("memory.clinic-half", train_half)
# hint("memory.clinic-half")

# %% [markdown] id="clinic-slice-text"
# ### A row that keeps its batch
#
# One row of each batch is kept, for a plot. After an epoch the process has grown by the size of the data set.

# %% id="clinic-slice" tags=["clinic"] exercise="memory.clinic-slice"
def remember(batches):
    """Return the first row of each batch of features, a list of tensors (D,) in no graph."""
    ### BEGIN SOLUTION
    return [features[0].detach().clone() for features in batches]
    ### END SOLUTION
    ### BEGIN STUB
    # return [features[0].detach() for features in batches]
    ### END STUB


check("memory.clinic-slice", remember)
# hint("memory.clinic-slice")

# %% [markdown] id="clinic-reentrant-text"
# ### A checkpoint that stops learning
#
# To save memory, the body of a model is checkpointed. The head goes on learning, the body doesn't.

# %% id="clinic-reentrant" tags=["clinic"] exercise="memory.clinic-reentrant"
def checkpointed_scores(model, images):
    """Return head(body(images)), with the body's activations recomputed in backward."""
    ### BEGIN SOLUTION
    return model.head(checkpoint(model.body, images, use_reentrant=False))
    ### END SOLUTION
    ### BEGIN STUB
    # return model.head(checkpoint(model.body, images, use_reentrant=True))
    ### END STUB


check("memory.clinic-reentrant", checkpointed_scores)
# hint("memory.clinic-reentrant")

# %% [markdown] id="clinic-counter-text"
# ### Compiled at every call
#
# A layer that warms up: call k, counted from 1, returns x · min(1, k / 10). Compiled, it is slower than plain, since it
# is compiled again in each of the first calls. Repair the class, so that three compilations at most are enough. It
# must stay compiled.

# %% id="clinic-counter" tags=["clinic"] exercise="memory.clinic-counter"
class Warm(nn.Module):
    """Multiply by 0.1 in the first call, 0.2 in the second, and so on up to 1."""

    ### BEGIN SOLUTION
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x * (self.calls / 10).clamp(max=1)
    ### END SOLUTION
    ### BEGIN STUB
    # def __init__(self):
    #     super().__init__()
    #     self.calls = 0
    #
    # def forward(self, x):
    #     self.calls += 1
    #     return x * min(1, self.calls / 10)
    ### END STUB


check("memory.clinic-counter", Warm)
# hint("memory.clinic-counter")

# %% [markdown] id="people-say"
# ## What people say
#
# Thirteen sentences that articles and colleagues repeat. Some are right, some were right in an earlier release, some
# never were. Put your verdict in place of the dots, in quotes: `"true"`, `"caveat"` (true under a condition),
# `"outdated"`, `"false"`, or `"opinion"` (no measurement decides it). Then run the cell, which measures.

# %% id="claim-p021"
# “Wrap autocast() around the outside of the training loop.”
claim("P021", ...)

# %% id="claim-p016"
# “optimizer.step() must never be inside the autocast context.”
claim("P016", ...)

# %% id="claim-p032"
# “Intermediate activations all stay in memory until the backward pass has finished.”
claim("P032", ...)

# %% id="claim-p044"
# “Printing tensors while debugging keeps the autograd graph alive.”
claim("P044", ...)

# %% id="claim-p010"
# “Mixed precision directly halves memory use.”
claim("P010", ...)

# %% id="claim-p018"
# “If the loss becomes inf/NaN the scaler lowers its scale automatically and so safeguards training.”
claim("P018", ...)

# %% id="claim-p034"
# “torch.utils.checkpoint.checkpoint(fn, x) needs no further argument.”
claim("P034", ...)

# %% id="claim-p007"
# “Accumulating the loss tensor instead of loss.item() keeps every iteration's computation graph, so 1000 batches hold
# 1000 graphs and memory explodes.”
claim("P007", ...)

# %% id="claim-p038"
# “With a GradScaler, clipping between backward and step without scaler.unscale_ clips scaled gradients and makes
# updates vanish.”
claim("P038", ...)

# %% id="claim-p050"
# “Mixed precision means float16 (or bfloat16), and either is used in the same way with GradScaler.”
claim("P050", ...)

# %% id="claim-p049"
# “torch.cuda.memory_summary() gives an exact per-tensor allocation report.”
claim("P049", ...)

# %% id="claim-p015"
# “autocast should wrap only forward and loss; backward may stay outside.”
claim("P015", ...)

# %% id="claim-p025"
# “Inference without no_grad uses almost twice the memory of inference with it.”
claim("P025", ...)

# %% [markdown] id="people-say-more"
# <details>
# <summary>The other 37 sentences about this lesson</summary>
#
# `claim("P001")` measures one of them, `python3 course.py claims 06` all.
#
# - **P001** If input data accidentally has requires\_grad=True, gradients flow into the data and memory use doubles.
# - **P002** Training memory is dominated by intermediate activations, not by model parameters.
# - **P003** A model with only a few million parameters can produce more than ten GB of intermediate tensors.
# - **P004** Activation memory grows with batch size because every layer's feature map grows, not only the input.
# - **P005** The caching allocator keeps freed GPU blocks for reuse, so nvidia-smi usage does not drop right after
#   tensors are deleted.
# - **P006** A memory leak shows as a peak that keeps rising across iterations, not as memory that fails to fall once.
# - **P008** With gradient accumulation, zero\_grad() is still called at every micro-batch, while optimizer.step()
#   waits for the target count.
# - **P009** Gradient accumulation over small batches is equivalent to training with one large batch.
# - **P011** torch.cuda.max\_memory\_allocated() with reset\_peak\_memory\_stats() measures the peak of one code
#   section better than nvidia-smi.
# - **P012** Mixed precision runs forward and backward in FP16 while an FP32 master copy of the weights is kept.
# - **P013** FP16 matmul throughput on modern GPUs is often more than twice FP32.
# - **P014** Mixed precision is used through torch.cuda.amp.autocast() and torch.cuda.amp.GradScaler().
# - **P017** GradScaler scales the loss up before backward and scales the gradients back before the step, so that
#   small FP16 gradients do not underflow.
# - **P019** NVIDIA GPUs support mixed precision in hardware from the Pascal generation on.
# - **P020** FP16 is sensitive to large values, so normalise inputs to [-1,1] or [0,1] to reduce overflow.
# - **P022** Mixed precision gives a 50-100% training speed-up on GPUs with FP16 support.
# - **P023** Keep numerically sensitive operations (e.g. custom normalisation layers) in FP32 inside autocast.
# - **P024** torch.no\_grad() makes memory use and speed much better during inference.
# - **P026** Training memory consists of parameters, gradients, optimizer state and saved activations.
# - **P027** With Adam, parameters + gradients + optimizer state total 4x the parameter bytes (1x+1x+2x).
# - **P028** A 100M-parameter fp32 model needs 1.6 GB for parameters, gradients and Adam state.
# - **P029** If optimizer state dominates, SGD or Adafactor saves memory.
# - **P030** Activation memory can far exceed parameter memory, so a peak of more than ten times the parameters is not
#   a leak.
# - **P031** Activations grow linearly with batch size, so doubling the batch does not double total memory.
# - **P033** Activation (gradient) checkpointing drops intermediates and recomputes them in backward, trading time for
#   memory.
# - **P035** float16 takes half the space of float32.
# - **P036** Mixed precision cuts training memory by 30 to 50 percent.
# - **P037** The smallest positive float16 is about 6e-8; smaller gradients underflow to zero.
# - **P039** Custom losses can overflow in float16; run the sensitive part outside autocast.
# - **P040** Not all operations support float16.
# - **P041** Gradient accumulation and AMP can be combined.
# - **P042** Appending outputs to a list during validation leaks memory; detach/cpu or clear them.
# - **P043** Printing torch.cuda.memory\_allocated() each batch distinguishes high usage from a leak (growth).
# - **P045** del plus torch.cuda.empty\_cache() forces memory to be reclaimed; do not call it often because it has
#   overhead.
# - **P046** empty\_cache only releases free cached memory and does not fix a leak.
# - **P047** empty\_cache gives the blocks back to the cache pool and lets the allocator tidy up; call it regularly
#   against fragmentation.
# - **P048** OOM after hundreds of epochs with free memory overall is fragmentation from varying tensor sizes.
#
# </details>

# %% [markdown] id="recap"
# ## Recap
#
# You can now
#
# - say who owns the bytes of a training step, and when its peak comes, and check a hand count to the byte;
# - choose what to do about it: another batch, accumulation, checkpoints, another optimizer, `no_grad`; and say what
#   each one costs and what it can't help with;
# - find a leak by what grows, and tell it from fragmentation;
# - explain what float16 and bfloat16 can't hold, and why weights stay in float32;
# - write a mixed-precision step with accumulation and clipping, and the scaler inside it;
# - see what `torch.compile` captures, where it breaks off, why it compiles again, and when it pays.
#
# **Read next:** [Understanding CUDA memory usage](https://docs.pytorch.org/docs/stable/torch_cuda_memory.html),
# [Automatic mixed precision](https://docs.pytorch.org/docs/stable/amp.html),
# [torch.utils.checkpoint](https://docs.pytorch.org/docs/stable/checkpoint.html), and
# [torch.compile](https://docs.pytorch.org/docs/stable/torch.compiler.html).

# %% id="progress" tags=["nbval-ignore-output"]
progress()
