# %% [markdown] id="title"
# # 02 Autograd and grad_fn
#
# **Why did half of my model never learn, without any error?**
#
# A program reads digits. Somebody adds a log: the features between the two halves of the network are turned into a
# list, written to a file, and turned back into a tensor. The loss still falls, the program still runs, and nobody
# notices that the first half has stopped learning. In this lesson you rebuild it, measure what did not move, and find
# the line by asking PyTorch itself. The way there leads through what `loss.backward()` does, step by step, until you
# have written it yourself.

# %% id="parameters" tags=["parameters"]
SEED = 0  # where this lesson draws at random, it starts here
DEVICE = "auto"  # "cpu", "cuda", or "auto" for the best one found
FAST = True  # False: longer training where a model is trained

# %% id="setup" tags=["setup"]
import math
import warnings

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import nn

from course_utils import check, claim, hint, progress, show, shows_error, solution
from course_utils.data import Batches, load_digits8
from course_utils.graphs import graph_diagram, tracing, walk_graph
from course_utils.memory import recording_saved
from course_utils.metrics import accuracy
from course_utils.plots import use_style
from course_utils.seeding import seeded, stream
from course_utils.tape import LEAF, Step, as_text, partials, random_tape, run
from course_utils.text import human_bytes, table
from course_utils.widgets.autograd import explore_expression

use_style()
digits = load_digits8()
images, labels = digits.train.as_batch()  # (1266, 1, 8, 8) in 0..1, (1266,)
test_images, test_labels = digits.test.as_batch()

# %% [markdown] id="hook-text"
# ### The evidence
#
# Two programs, equal but for one line. Both train a body and a head for 60 steps on the same batches, from the same
# weights. `F.cross_entropy` makes one loss of the ten scores of each image, small where the true digit has the highest
# score; [lesson 05](05_training.ipynb) takes this loop apart. We measure the loss, the test accuracy, and how far each
# half moved: the length of the change of its weights.

# %% id="hook-train"
def train(with_log):
    with seeded(SEED):
        body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh())
        head = nn.Linear(32, 10)
    start = [p.detach().clone() for p in (body[1].weight, head.weight)]
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.5)
    batches = Batches(images, labels, 64, generator=stream(SEED, "hook"))
    for _ in range(3):
        for x, y in batches:
            features = body(x)  # (N, 32)
            if with_log:
                features = torch.tensor(features.tolist())  # what the log needed
            loss = F.cross_entropy(head(features), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    moved = [(p - s).norm().item() for p, s in zip((body[1].weight, head.weight), start)]
    with torch.no_grad():
        share = accuracy(head(body(test_images)), test_labels)
    return body, loss.item(), share, moved

# %% id="hook-run"
rows = []
for name, with_log in (("without the log", False), ("with the log", True)):
    body, loss, share, moved = train(with_log)
    rows.append((name, f"{loss:.1f}", f"{100 * share:.0f} %", f"{moved[0]:.1f}", f"{moved[1]:.1f}"))
print(table(rows, ("program", "last loss", "test accuracy", "body moved", "head moved")))
print("the body's gradient, with the log:", body[1].weight.grad)

# %% [markdown] id="hook-says"
# The body moved by exactly nothing. Its gradient is not zero: it is `None`, which means that nobody ever computed one.
# No error says so, because a head on random features still learns something. Section 6 comes back to this list.
#
# ## 1. The graph is what you ran
#
# Set `requires_grad=True` on a tensor, and PyTorch writes down every operation that uses it. What it writes down is a
# chain of functions: each result carries a `grad_fn`, the function that will send gradients back through this
# operation. A tensor that you made yourself has none; it is a **leaf**, and gradients are collected there.

# %% id="leaf-table"
w = torch.tensor(2.0, requires_grad=True)
b = torch.tensor(-1.0, requires_grad=True)
x = torch.tensor(3.0)  # data: no gradient is wanted
h = w * x
y = h + b
rows = []
for name, tensor in (("x", x), ("w", w), ("h = w * x", h), ("y = h + b", y)):
    function = type(tensor.grad_fn).__name__ if tensor.grad_fn else "None"
    rows.append((name, str(tensor.requires_grad), str(tensor.is_leaf), function))
print(table(rows, ("tensor", "requires_grad", "is_leaf", "grad_fn")))
print("y.grad_fn.next_functions:", [type(f).__name__ for f, _ in y.grad_fn.next_functions])

# %% [markdown] id="leaf-says"
# One tensor with `requires_grad` is enough: everything computed from it requires gradients too. `next_functions` leads
# from each function to those before it, down to `AccumulateGrad`, which stands for a leaf.
#
# **Predict.** `w` is 2 and `y = w² · 3 + w`. `backward()` will put the derivative of `y` by `w` into `w.grad`. Which
# number is that?

# %% id="predict-first" tags=["prediction"]
guess = ...  # one number

# %% id="first-graph"
w = torch.tensor(2.0, requires_grad=True)
with tracing() as trace:  # remembers what each operation produced
    y = w**2 * 3 + w
y.backward()
show(graph_diagram(walk_graph(y, trace, {"w": w})), "Forward goes from left to right, backward from right to left.")
print(f"w.grad = {w.grad:.0f}, your guess: {'none yet' if guess is ... else guess}")

# %% [markdown] id="first-graph-says"
# Each box holds the value from the forward pass and, below it, the gradient: by how much `y` grows per unit of this
# box. The last box has 1, by definition. `w` is used in two places, so two contributions arrive: 12 by way of the
# square, and 1 directly.
#
# The graph is made anew in every run, from the operations that really happened. So Python's `if` and `for` need no
# special treatment: here is a function whose graph depends on the value of its input.

# %% id="control-flow"
def until_large(x):
    while x.abs() < 10:  # runs as often as it must
        x = x * 3
    return x


for start in (5.0, 1.0, -0.2):
    x = torch.tensor(start, requires_grad=True)
    y = until_large(x)
    y.backward()
    steps = sum(node.name == "Mul" for node in walk_graph(y))
    print(f"x = {start:>4}: multiplications in the graph: {steps}, derivative {x.grad:.0f}")

# %% [markdown] id="control-flow-says"
# Three inputs, three graphs, three derivatives, each right for the path that was taken. What autograd does *not* know
# is that another input would have taken another path. At the places where the number of steps changes, the function
# jumps, and no gradient tells.
#
# ### Exercise: what is in the graph
#
# Return the names of the functions in the graph of `output` as a list, sorted from A to Z. The name is that of the
# type, `type(f).__name__`. Each node counts once, however many paths lead to it. Leave out the leaves
# (`AccumulateGrad`); a tensor that is a leaf itself gives an empty list. Graphs may be thousands of steps deep. Some
# entries of `next_functions` hold `None`.

# %% id="ex-operations" tags=["exercise"] exercise="autograd.operations"
def operations(output):
    """Return the sorted names of all functions that led to output, each node once; a list of str."""
    ### BEGIN SOLUTION
    todo, seen, names = [output.grad_fn], set(), []
    while todo:
        function = todo.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        if type(function).__name__ != "AccumulateGrad":
            names.append(type(function).__name__)
        todo += [parent for parent, _ in function.next_functions]
    return sorted(names)
    ### END SOLUTION


check("autograd.operations", operations)
# hint("autograd.operations")

# %% [markdown] id="explorer-text"
# ### Explorer: values and gradients of any expression
#
# Type an expression in x, y and z; numbers, `+ - * / **` and functions such as `sin`, `exp`, `tanh` and `relu` are
# understood. Move the sliders, and follow the gradients from the right to the left.
#
# **Try this.** In `x * y`, what is the gradient of x? Make the gradient of x vanish with `tanh(x * y)`. Why does
# `relu(x - 1)` have a gradient of 0 for most x? Type `x - x`: which gradient has x, and is that `None`?

# %% id="explorer" tags=["explorer"]
explore_expression()

# %% [markdown] id="s2"
# ## 2. Write it yourself
#
# Backward is an algorithm of ten lines, and you will have written it in four exercises. To see nothing but the
# algorithm, we use plain numbers. An expression stands on a **tape**: a list of steps, each with its operation and the
# places of its inputs, earlier on the tape.

# %% id="tape"
tape = [Step(LEAF), Step(LEAF), Step("mul", (0, 1)), Step("exp", (2,)), Step("add", (3, 2))]
leaves = [0.5, -2.0]
print(as_text(tape, leaves))
print("all values:", [round(value, 3) for value in run(tape, leaves)])
print("tape[2] is", tape[2])

# %% [markdown] id="tape-says"
# Place 2 is the product of both leaves, and it is used twice: by `exp` and by the sum at the end. A leaf has no inputs.
#
# ### Exercise: six derivatives
#
# First, what each operation does on its own. Return the partial derivative of the operation with respect to each of
# its inputs, at these inputs, as a tuple of numbers: two for `add`, `sub` and `mul`, one for `exp`, `tanh` and
# `square`.

# %% id="ex-partials" tags=["exercise"] exercise="autograd.partials"
def local_derivatives(operation, *inputs):
    """Return the derivative of one operation by each input; a tuple of floats."""
    ### BEGIN SOLUTION
    if operation == "mul":
        a, b = inputs
        return (b, a)
    if operation in ("add", "sub"):
        return (1.0, 1.0 if operation == "add" else -1.0)
    (a,) = inputs
    if operation == "exp":
        return (math.exp(a),)
    if operation == "tanh":
        return (1 - math.tanh(a) ** 2,)
    return (2 * a,)
    ### END SOLUTION


check("autograd.partials", local_derivatives)
# hint("autograd.partials")

# %% [markdown] id="order-text"
# ### Exercise: in which order?
#
# Backward starts at the last step and goes to the leaves. When it visits a place, it passes this place's gradient on
# to the inputs. So the gradient must be *complete* by then: all steps that use the place must have been visited.
# Return the places that lead to the last step, in such an order, as a list of whole numbers. `tape[i].inputs` are the
# places of the inputs of step i. Places that the last step does not depend on are left out. Several orders are right.

# %% id="ex-order" tags=["exercise"] exercise="autograd.order"
def backward_order(tape):
    """Return the places to visit, the last first, each after all that use it; a list of int."""
    ### BEGIN SOLUTION
    needed, order = {len(tape) - 1}, []
    for place in reversed(range(len(tape))):
        if place in needed:
            order.append(place)
            needed |= set(tape[place].inputs)
    return order
    ### END SOLUTION


check("autograd.order", backward_order)
# hint("autograd.order")

# %% [markdown] id="engine-text"
# ### Exercise: the engine
#
# Now everything together: return the derivative of the **last** step with respect to **every** place, as a list of
# floats. `values` are the values of all places. The chain rule says what a place passes on to an input: its own
# gradient times the partial derivative. What arrives over several paths is added up. Places that the last step does
# not depend on get 0.
#
# `tape[i].operation` is the name of the operation of step i, and `tape[i].inputs` are the places of its inputs.
# `partials(operation, *inputs)` is there from the set-up cell and gives the local derivatives; a leaf has none. The
# check draws expressions at random and compares with PyTorch, to 1e-6.

# %% id="ex-engine" tags=["exercise"] exercise="autograd.engine"
def derivatives(tape, values):
    """Return d(last)/d(place) for every place of the tape; a list of floats."""
    ### BEGIN SOLUTION
    grads = [0.0] * len(tape)
    grads[-1] = 1.0
    for place in reversed(range(len(tape))):
        step = tape[place]
        if step.inputs:
            slopes = partials(step.operation, *(values[i] for i in step.inputs))
            for i, slope in zip(step.inputs, slopes):
                grads[i] += grads[place] * slope
    return grads
    ### END SOLUTION


check("autograd.engine", derivatives)
# hint("autograd.engine")

# %% [markdown] id="engine-cost-text"
# One pass from the end to the beginning, and *every* derivative is there. That is why it is called reverse mode, and
# why training works at all: the loss is one number, and the parameters are millions. **Forward mode** goes the other
# way: it asks how everything changes when one input changes. Here it is, counting its multiplications. It needs
# another pass for each input; your engine makes one multiplication for each input of each step.

# %% id="engine-cost"
def change_of_last(tape, values, leaf):
    change, count = [0.0] * len(tape), 0
    change[leaf] = 1.0
    for place, step in enumerate(tape):
        if step.inputs:
            slopes = partials(step.operation, *(values[i] for i in step.inputs))
            change[place] = sum(slope * change[i] for i, slope in zip(step.inputs, slopes))
            count += len(slopes)
    return change[-1], count


for n_leaves in (2, 20, 200):
    tape, leaves = random_tape(SEED, n_leaves=n_leaves, n_steps=200)
    values = run(tape, leaves)
    counts = [change_of_last(tape, values, leaf)[1] for leaf in range(n_leaves)]
    print(f"{n_leaves:>3} inputs: forward mode {sum(counts):>5} multiplications, reverse mode {counts[0]:>3}")

# %% [markdown] id="broadcast-text"
# ### What broadcasting does to a gradient
#
# Tensors add one thing. A bias of shape (10,) is added to scores of shape (64, 10).
#
# **Predict.** All 640 scores have a gradient of 1. What is the gradient of one number of the bias?

# %% id="predict-broadcast" tags=["prediction"]
guess = ...  # one number

# %% id="broadcast"
bias = torch.zeros(10, requires_grad=True)
scores = torch.zeros(64, 10) + bias  # (64, 10)
scores.sum().backward()  # every score gets a gradient of 1
print("bias.grad:", bias.grad[:3].tolist(), "…")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="broadcast-says"
# Each number of the bias is used 64 times, so 64 contributions arrive. Copying forward means adding up backward.
#
# ### Exercise: the gradient of a broadcast
#
# A tensor of shape `shape` was broadcast to the shape of `grad`, by NumPy's rules: axes were added in front, and axes
# of length 1 were repeated. Return the gradient of the small tensor. `grad` stays as it is.

# %% id="ex-unbroadcast" tags=["exercise"] exercise="autograd.unbroadcast"
def unbroadcast(grad, shape):
    """Return the gradient of what was broadcast; its shape is ``shape``."""
    ### BEGIN SOLUTION
    added = grad.dim() - len(shape)
    repeated = [axis + added for axis, size in enumerate(shape) if size == 1]
    grad = grad.sum(tuple(range(added)) + tuple(repeated), keepdim=True) if added + len(repeated) else grad
    return grad.reshape(shape)
    ### END SOLUTION


check("autograd.unbroadcast", unbroadcast)
# hint("autograd.unbroadcast")

# %% [markdown] id="s3"
# ## 3. From call to call
#
# So much for one call of `backward()`. A training loop calls it thousands of times, on the same parameters.
#
# **Predict.** The derivative of `3 w` by `w` is 3. Three training steps call `backward()` and nobody clears `.grad`.
# Which three values has `w.grad`, one after the other?

# %% id="predict-accumulate" tags=["prediction"]
guess = ...  # for example (3, 3, 3)

# %% id="accumulate-shown"
w = torch.tensor(1.0, requires_grad=True)
seen = []
for _ in range(3):
    (3 * w).backward()
    seen.append(w.grad.item())
print("w.grad:", seen, " your guess:", "none yet" if guess is ... else guess)
optimizer = torch.optim.SGD([w], lr=0.1)
optimizer.zero_grad()
print("after zero_grad():", w.grad)
w.grad = torch.tensor(5.0)
optimizer.zero_grad(set_to_none=False)
print("with set_to_none=False:", w.grad)

# %% [markdown] id="accumulate-says"
# Adding goes on *between* calls: `backward()` adds to whatever stands in `.grad`. So a training loop clears it. The
# optimizer's `zero_grad` sets the gradient to `None` by default. Many texts still say that it fills it with zeros,
# as it did [before PyTorch 2.0](https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html).
# Where a parameter got no gradient, the difference is one that you can measure: with weight decay, which pulls weights
# towards 0, an optimizer steps for zeros and skips `None`.

# %% id="none-or-zero"
for name, grad in (("None", None), ("zeros", torch.tensor(0.0))):
    w = torch.tensor(1.0, requires_grad=True)
    w.grad = grad
    torch.optim.SGD([w], lr=0.1, weight_decay=0.5).step()
    print(f"gradient {name:<5}: w = {w.item():.2f} after the step")

# %% [markdown] id="accumulate-tool"
# Adding up is also a tool. A batch that doesn't fit into memory can be cut into pieces: call `backward()` for each
# piece, and take one step. Here is a batch of 12 cut into three, once without and once with **BatchNorm** in the
# network, a layer that subtracts the mean of its batch and divides by the standard deviation.

# %% id="accumulate-equal"
def gradient(model, batches):
    model.zero_grad()
    n = sum(len(y) for _, y in batches)
    for x, y in batches:
        (F.cross_entropy(model(x), y) * len(y) / n).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


for name, middle in (("no BatchNorm", nn.Identity()), ("BatchNorm", nn.BatchNorm1d(16, dtype=torch.float64))):
    with seeded(SEED):
        model = nn.Sequential(nn.Linear(64, 16), middle, nn.Tanh(), nn.Linear(16, 10)).double()
    x, y = images[:12].flatten(1).double(), labels[:12]  # (12, 64), (12,)
    whole = gradient(model, [(x, y)])
    pieces = gradient(model, list(zip(x.split(4), y.split(4))))
    difference = (whole - pieces).norm() / whole.norm()
    print(f"{name:<13} relative difference {difference:.0e}" if difference > 1e-9 else f"{name:<13} equal to 1e-9")

# %% [markdown] id="accumulate-equal-says"
# Equal without BatchNorm, and not with it: BatchNorm takes mean and variance from the piece it sees, so pieces of 4 are
# another function than a batch of 12. No division by the number of pieces repairs that.
#
# ### Exercise: one gradient from several batches
#
# Leave in each parameter's `.grad` the gradient of the mean loss over **all** examples of all batches, and nothing of
# what stood there before. `loss_fn(outputs, labels)` gives the mean over one batch. The batches may differ in size.
# Weights stay as they are.

# %% id="ex-accumulate" tags=["exercise"] exercise="autograd.accumulate"
def accumulate(model, loss_fn, batches):
    """Put the gradient of the mean over all examples into .grad; batches is a list of (x, y)."""
    ### BEGIN SOLUTION
    n_all = sum(len(y) for _, y in batches)
    model.zero_grad()
    for x, y in batches:
        (loss_fn(model(x), y) * len(y) / n_all).backward()
    ### END SOLUTION


check("autograd.accumulate", accumulate)
# hint("autograd.accumulate")

# %% [markdown] id="s4"
# ## 4. What the graph keeps, and for how long
#
# The derivatives of many operations depend on values of the forward pass. So PyTorch **saves** tensors on the way
# forward, and they stay in memory until backward has used them. `recording_saved` counts their bytes, by storage, so
# that nothing is counted twice.
#
# **Predict.** `x` holds 1,000,000 numbers of 4 bytes. Which of `x + 1`, `x * 2`, `x.exp()`, `x.relu()`, `x * x` and
# `x.sum()` save something?

# %% id="predict-saved" tags=["prediction"]
guess = ...  # a list of the operations that save something

# %% id="saved-table"
x = torch.rand(1_000_000, generator=stream(SEED, "saved")).requires_grad_()
operations_to_try = {
    "x + 1": lambda: x + 1,
    "x * 2": lambda: x * 2,
    "x.exp()": lambda: x.exp(),
    "x.relu()": lambda: x.relu(),
    "x * x": lambda: x * x,
    "x.sum()": lambda: x.sum(),
    "x.exp() * x.tanh()": lambda: x.exp() * x.tanh(),
}
rows = []
for code, operation in operations_to_try.items():
    with recording_saved(inputs=[x]) as saved:
        result = operation()
    rows.append((code, human_bytes(saved.inputs), human_bytes(saved.activations)))
print(table(rows, ("operation", "saved of x", "saved beside x")))
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="saved-says"
# The derivatives of `x + 1`, `x * 2` and `x.sum()` don't depend on x: nothing to remember. That of `exp` is its own
# result, so the *result* is kept, not x. So it is with `relu`, whose result tells where x was positive. `x * x` keeps
# x, which exists anyway. The last line keeps two results, and the product finds them there: they are counted once.
#
# Without gradients nothing is kept at all. Here is a small network on 500 digits, and the same under `no_grad`.

# %% id="saved-model"
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
batch = images[:500]  # (500, 1, 8, 8)
for name, grad_mode in (("training", True), ("under no_grad", False)):
    with recording_saved(model.parameters(), [batch]) as saved, torch.set_grad_enabled(grad_mode):
        result = model(batch)
    parts = (f"{part} {human_bytes(getattr(saved, part))}" for part in ("parameters", "inputs", "activations"))
    print(f"{name:<14}", ", ".join(parts))
print(f"by hand: 2 layers of 500 x 256 numbers of 4 bytes = {human_bytes(2 * 500 * 256 * 4)}")

# %% [markdown] id="lifetime-text"
# Each hidden layer's result is needed twice, by its ReLU and by the next `Linear`. It is one storage, counted once.
#
# `backward()` frees what was saved while it goes. So a graph is good for one pass:

# %% id="lifetime"
w = torch.tensor(2.0, requires_grad=True)
y = w.exp()
y.backward()
with shows_error(RuntimeError):
    y.backward()
z = w + 1  # saves nothing
z.backward()
z.backward()
print("twice through w + 1, which saves nothing: no error")

# %% [markdown] id="lifetime-says"
# The error is about *saved values that are gone*, not about calling twice. `retain_graph=True` keeps them for another
# pass. You rarely need it: the usual cause is a graph that should have been cut, or two losses that should have been
# added.
#
# Gradients of results in the middle are not kept either, unless you ask before.

# %% id="retain-grad"
w = torch.tensor(2.0, requires_grad=True)
kept, dropped = w * 3, w * 5
kept.retain_grad()
(kept * dropped).backward()
print("w.grad   ", w.grad)
print("kept.grad", kept.grad)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    print("dropped.grad", dropped.grad)
print("warning:", str(said[0].message).split(". ")[0])

# %% [markdown] id="s5"
# ## 5. Four ways to switch it off
#
# `no_grad`, `inference_mode`, `detach` and `requires_grad_(False)` are often named in one breath. They switch off
# different things. We compute y from a parameter `w` and a tensor `x` that requires gradients too, and afterwards run
# `(y * w).sum().backward()`, which uses w a second time. Six ways to compute y:
#
# 1. `w * x` as usual
# 2. `w * x` in a block `with torch.no_grad():`
# 3. `w * x` in a block `with torch.inference_mode():`
# 4. `(w * x).detach()`
# 5. `w.detach() * x`
# 6. `w.requires_grad_(False) * x`
#
# **Predict.** In which of the six does w get *no* gradient in the end?

# %% id="predict-off" tags=["prediction"]
guess = ...  # a list of numbers from 1 to 6

# %% id="off-table"
def facts(make):
    w, x = nn.Parameter(torch.ones(3)), torch.ones(3, requires_grad=True)
    y = make(w, x)
    try:
        (y * w).sum().backward()
        after = "w.grad, x.grad: " + ", ".join("None" if t.grad is None else "set" for t in (w, x))
    except RuntimeError as error:
        after = str(error).split(".")[0][:52]
    return str(y.requires_grad), after


def in_mode(mode):
    def make(w, x):
        with mode:
            return w * x

    return make

# %% id="off-run"
ways = {
    "w * x, as usual": lambda w, x: w * x,
    "w * x, with no_grad()": in_mode(torch.no_grad()),
    "w * x, with inference_mode()": in_mode(torch.inference_mode()),
    "(w * x).detach()": lambda w, x: (w * x).detach(),
    "w.detach() * x": lambda w, x: w.detach() * x,
    "w.requires_grad_(False) * x": lambda w, x: w.requires_grad_(False) * x,
}
rows = [(f"{number}. {name}", *facts(make)) for number, (name, make) in enumerate(ways.items(), 1)]
print(table(rows, ("y =", "y requires grad", "then (y * w).sum().backward()")))
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="off-says"
# - `no_grad` and `detach` cut what was computed *there*; `w` still learns from the second use of it.
# - `w.detach()` cuts one use of one tensor. `x` still gets its gradient through the first product.
# - `inference_mode` is the strictest: its results may not be used for training afterwards at all.
# - `requires_grad_(False)` switches the *leaf* off, everywhere. That is how layers are frozen.
#
# `no_grad` is a setting of the thread, not of the program: another thread computes gradients as ever.

# %% id="thread"
from concurrent.futures import ThreadPoolExecutor

with torch.no_grad(), ThreadPoolExecutor(1) as pool:
    print("here:          ", torch.is_grad_enabled())
    print("another thread:", pool.submit(torch.is_grad_enabled).result())

# %% [markdown] id="inplace-text"
# ### In place: three cases
#
# "In-place operations are forbidden with autograd" is a common sentence. Each tensor counts the changes made to it, in
# `_version`. When autograd saves a tensor, it notes the number, and compares before it uses the values. So there are
# three cases, not one.

# %% id="inplace-cases"
print("1. on a leaf that requires gradients:")
with shows_error(RuntimeError):
    torch.ones(2, requires_grad=True).mul_(2)

print("2. on a result that is needed later:")
x = torch.ones(2, requires_grad=True)
y = x.exp()  # saves its result
before = y._version
y.mul_(2)
print(f"   version {before} -> {y._version}; no error yet")
with shows_error(RuntimeError):
    y.sum().backward()

print("3. on a result that nobody needs:")
y = x + 1  # saves nothing
y.mul_(2)
y.sum().backward()
print("   works:", x.grad.tolist())

# %% [markdown] id="inplace-says"
# The second error is the famous one. It names the version that was expected and the one that was found. And it comes
# at `backward`, far from the line that is at fault; section 7 finds that line.
#
# An optimizer must change leaves in place, and does it under `no_grad`, where the first rule is off. The counter counts
# there too. So a step between forward and backward is found:

# %% id="inplace-step"
w = torch.ones(2, requires_grad=True)
loss = (w * w).sum()  # saves w
with torch.no_grad():
    w -= 0.1  # allowed: nothing is recorded here
print("version of w:", w._version)
with shows_error(RuntimeError):
    loss.backward()

# %% [markdown] id="s6"
# ## 6. None, zero, or an error
#
# Back to the log that stopped a body from learning. There are many ways to leave the graph. Each of these eight lines
# computes something from `x`. The loss is its sum times `w`, so that there is always a graph.
#
# `torch.tensor(x.tolist())` · `x.detach()` · `torch.from_numpy(x.numpy())` · `x.data * 2` · `x.round()` ·
# `x.argmax().float()` · `(x > 0.5).float()` · `x.long().float()`
#
# **Predict.** In how many of the eight is there an error, in how many is `x.grad` None, in how many all zeros?

# %% id="predict-breaks" tags=["prediction"]
guess = ...  # three counts: (errors, None, zeros)

# %% id="breaks"
lines = {
    "torch.tensor(x.tolist())": lambda x: torch.tensor(x.tolist()),
    "x.detach()": lambda x: x.detach(),
    "torch.from_numpy(x.numpy())": lambda x: torch.from_numpy(x.numpy()),
    "x.data * 2": lambda x: x.data * 2,
    "x.round()": lambda x: x.round(),
    "x.argmax().float()": lambda x: x.argmax().float(),
    "(x > 0.5).float()": lambda x: (x > 0.5).float(),
    "x.long().float()": lambda x: x.long().float(),
}
rows = []
for code, make in lines.items():
    x, w = torch.tensor([0.2, 0.7, 1.4], requires_grad=True), torch.ones(1, requires_grad=True)
    try:
        (make(x).sum() * w).sum().backward()
        rows.append((code, "None" if x.grad is None else str(x.grad.tolist())))
    except RuntimeError as error:
        rows.append((code, "error: " + str(error).split(".")[0][:54]))
print(table(rows, ("computed from x", "x.grad")))
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="breaks-says"
# Only one line complains. All others run, and the model does not learn. `round` is the worst to find: its gradient is
# there, and it is zero, which is *true*. A staircase is flat almost everywhere.
#
# So look for `None` and for zeros after the first backward; it takes a line. On the program from the top, with the log:

# %% id="breaks-found"
body, *_ = train(with_log=True)
print({name: parameter.grad for name, parameter in body.named_parameters()})

# %% [markdown] id="unreached-text"
# ### Exercise: parameters that the loss can't reach
#
# Return the names of the parameters that `loss` does not depend on, so far as autograd can see, as a list or a set; the
# order doesn't matter. Look at the graph and not at `.grad`, where old values may stand. Leave every `.grad` and every
# `requires_grad` as it is. A parameter that doesn't require gradients counts as not reached; one whose gradient is zero
# is reached. Afterwards the caller calls `loss.backward()`, and that must work.
#
# `torch.autograd.grad(loss, tensors)` returns gradients instead of storing them. With `allow_unused=True` it gives
# `None` where no path leads.

# %% id="ex-unreached" tags=["exercise"] exercise="autograd.unreached"
def unreached(loss, parameters):
    """Return the names of the parameters that no path leads to; parameters is a dict of tensors by name."""
    ### BEGIN SOLUTION
    names = [name for name, p in parameters.items() if p.requires_grad]
    wanted = [parameters[name] for name in names]
    grads = torch.autograd.grad(loss, wanted, allow_unused=True, retain_graph=True)
    reached = {name for name, grad in zip(names, grads) if grad is not None}
    return [name for name in parameters if name not in reached]
    ### END SOLUTION


check("autograd.unreached", unreached)
# hint("autograd.unreached")

# %% [markdown] id="s7"
# ## 7. Too small, too large, not a number
#
# Backward multiplies layer by layer. Here is a network of 30 layers of width 64 with tanh after each. We draw its first
# weights with three standard deviations: the usual one, 1 / √64, then 0.6 times that, and 3 times. And we look at the
# gradient as it arrives at each layer's output, measured by its norm.
#
# **Predict.** With the small weights: the gradient at layer 1, divided by the one at layer 30?

# %% id="predict-vanishing" tags=["prediction"]
guess = ...  # for example 0.1

# %% id="vanishing"
def norms(factor, depth=30):
    with seeded(SEED):
        layers = [nn.Linear(64, 64, bias=False) for _ in range(depth)]
        for layer in layers:
            nn.init.normal_(layer.weight, std=factor / math.sqrt(64))
    h, outputs = images[:200].flatten(1), []  # (200, 64)
    for layer in layers:
        h = torch.tanh(layer(h))
        h.retain_grad()
        outputs.append(h)
    F.cross_entropy(h[:, :10], labels[:200]).backward()
    return [output.grad.norm().item() for output in outputs]

# %% id="vanishing-picture"
fig, ax = plt.subplots()
for factor in (0.6, 1.0, 3.0):
    line = norms(factor)
    ax.semilogy(range(1, 31), line, label=f"{factor} times the usual")
    ratio = line[0] / line[-1]
    print(f"{factor} times the usual: layer 1 / layer 30 = {ratio:.0e}, per layer {ratio ** (1 / 29):.2f}")
ax.set(xlabel="layer", ylabel="norm of the gradient at its output")
ax.legend()
show(fig, "The gradient on its way from the last layer to the first.", digits=1)
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="vanishing-says"
# Read the picture from right to left, as backward goes. A straight line on a logarithmic scale means a constant factor
# per layer. For the small weights it is 0.60, and 29 such factors leave the first layers nothing. With large weights
# the gradient grows as it goes back, though by less than 3 per layer: tanh saturates, and its small slope takes back
# the rest. A later lesson chooses the scale on purpose; here is the emergency brake.
#
# **Clipping.** If the gradient of all parameters together, seen as one long vector, is longer than a limit, it is
# made shorter: all its numbers are multiplied by the same factor. Its direction stays. To clip each number by itself
# is another thing:

# %% id="clip-direction"
g = torch.tensor([3.0, 0.4])
by_norm = g * min(1.0, 1.0 / g.norm().item())
by_value = g.clamp(-1.0, 1.0)
for name, clipped in (("by norm", by_norm), ("each number", by_value)):
    angle = math.degrees(math.acos(min(1.0, F.cosine_similarity(g, clipped, dim=0).item())))
    print(f"{name:<12} {[round(v, 2) for v in clipped.tolist()]}, turned by {angle:.0f} degrees")

# %% [markdown] id="clip-text"
# ### Exercise: clip, and keep the direction
#
# Let N be the square root of the sum of the squares of all gradients of all parameters. If N is larger than
# `max_norm`, multiply every gradient by `max_norm / N`, in place or by a new tensor in `.grad`; else leave them.
# Parameters whose gradient is `None` are skipped. Return N, the norm from *before*, as a float.

# %% id="ex-clip" tags=["exercise"] exercise="autograd.clip"
def clip(parameters, max_norm):
    """Scale all gradients to a common norm of at most max_norm; return the norm before, a float."""
    ### BEGIN SOLUTION
    grads = [p.grad for p in parameters if p.grad is not None]
    norm = torch.stack([grad.norm() for grad in grads]).norm().item()
    factor = min(1.0, max_norm / norm) if norm > 0 else 1.0
    for grad in grads:
        grad.mul_(factor)
    return norm
    ### END SOLUTION


check("autograd.clip", clip)
# hint("autograd.clip")

# %% [markdown] id="anomaly-text"
# ### Where does the nan come from?
#
# A nan in a gradient makes the weight nan in the next step, and then everything. The loss is fine, and `backward` does
# not complain:

# %% id="anomaly"
def first_nan(x):
    root = x.sqrt()  # at 0 the slope is infinite
    return (root * x).sum()  # at 0 the gradient that arrives at root is 0, and 0 times infinity is nan


x = torch.tensor([1.0, 0.0], requires_grad=True)
loss = first_nan(x)
loss.backward()
print("loss", loss.item(), " gradient", x.grad.tolist())

# %% [markdown] id="anomaly-mode-text"
# In **anomaly mode** PyTorch remembers the line of each operation, looks at every gradient and stops at the first nan.
# The error names the operation, a warning before it the line. It finds the line of section 5's famous error too.

# %% id="anomaly-mode"
def changed_in_place(x):
    y = x.exp()
    y.mul_(2)
    return y.sum()


for program in (first_nan, changed_in_place):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with shows_error(RuntimeError), torch.autograd.detect_anomaly():
            program(torch.tensor([1.0, 0.0], requires_grad=True)).backward()
    lines = str(said[-1].message).split(" (Triggered internally")[0].strip().split("\n")  # as in a traceback
    print("the line:", lines[-1].strip())
print(said[0].message)

# %% [markdown] id="anomaly-says"
# The line is where the saved value was made, not the one that spoilt it: look there and below. Switch anomaly mode on
# to search, not to train.

# %% [markdown] id="s8"
# ## 8. Your own function, and gradients of other things
#
# Sometimes you know better than autograd. log(1 + exp(x)) is called softplus. Written down as it stands, it overflows:

# %% id="softplus-naive"
x = torch.tensor([1.0, 100.0], requires_grad=True)
y = torch.log(1 + torch.exp(x))
y.sum().backward()
print("values   ", [round(value, 4) for value in y.tolist()])
print("gradients", [round(slope, 4) for slope in x.grad.tolist()])

# %% [markdown] id="function-text"
# exp(100) is infinite in float32; its value and gradient are lost, though softplus(100) is 100 and has a slope of 1. A
# class derived from `torch.autograd.Function` says how to go forward and how to go back. `ctx` carries what backward
# will need from one to the other. Such a class is called by its `apply`. Here is one for x³, compared by `gradcheck`
# with finite differences: it moves each input by a millionth and looks at the change.

# %% id="function-shown"
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad_output):  # the gradient of the loss by our result
        (x,) = ctx.saved_tensors
        return grad_output * 3 * x**2  # the gradient of the loss by our input


x = torch.tensor([2.0, -1.0], dtype=torch.float64, requires_grad=True)
Cube.apply(x).sum().backward()
print("gradient", x.grad.tolist())
print("agrees with finite differences:", torch.autograd.gradcheck(Cube.apply, (x,)))

# %% [markdown] id="function-ex-text"
# `gradcheck` needs float64: in float32 such small differences drown in rounding. Never trust a backward of your own
# without it.
#
# ### Exercise: softplus with its own backward
#
# Write softplus(x) = log(1 + exp(x)) as such a class. It must be right for moderate x and for x = ±800, forward and
# backward. For large x use the same function in another form: max(x, 0) + log(1 + exp(−|x|)); `torch.log1p(z)` is
# log(1 + z). The derivative of softplus is sigmoid(x) = 1 / (1 + exp(−x)), which is `torch.sigmoid`.

# %% id="ex-function" tags=["exercise"] exercise="autograd.function"
### BEGIN SOLUTION
class Softplus(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp_min(0) + torch.log1p(torch.exp(-x.abs()))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * torch.sigmoid(x)


### END SOLUTION
### BEGIN STUB
# Softplus = ...  # class Softplus(torch.autograd.Function): ...
### END STUB


check("autograd.function", Softplus)
# hint("autograd.function")

# %% [markdown] id="second-text"
# ### A gradient of a gradient
#
# With `create_graph=True`, backward is recorded like any other computation, and can be differentiated again. A loss
# that punishes steep slopes needs that.
#
# **Predict.** y = x⁴ at x = 2. Which numbers are its first five derivatives?

# %% id="predict-second" tags=["prediction"]
guess = ...  # five numbers

# %% id="second"
x = torch.tensor(2.0, requires_grad=True)
y = x**4
for order in range(1, 6):
    (y,) = torch.autograd.grad(y, x, create_graph=True)
    print(f"derivative {order}: {y.item():.0f}")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="saliency-text"
# ### The gradient of the image
#
# Nothing says that only weights get gradients. Ask for the gradient with respect to the *pixels*, and it tells which
# pixels matter for the decision: a **saliency map**. And which change of the pixels would do most harm.

# %% id="saliency-model"
with seeded(SEED):
    reader = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(reader.parameters(), lr=3e-3)
for _ in range(20 if FAST else 60):
    for x, y in Batches(images, labels, 64, generator=stream(SEED, "reader")):
        loss = F.cross_entropy(reader(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
with torch.no_grad():
    print(f"test accuracy at least 93 %: {accuracy(reader(test_images), test_labels) >= 0.93}")

# %% [markdown] id="attack-text"
# **Predict.** We move every pixel by 0.18 of full ink, up or down, whichever raises the loss. What percentage of the
# test digits does the model still read? And if each pixel moves up or down at random instead?

# %% id="predict-attack" tags=["prediction"]
guess = ...  # for example (80, 90)

# %% id="attack"
pixels = test_images.clone().requires_grad_()
(slope,) = torch.autograd.grad(F.cross_entropy(reader(pixels), test_labels), pixels)
coin = torch.rand(slope.shape, generator=stream(SEED, "coin")) - 0.5
changed = {
    "as they are": test_images,
    "moved at random": (test_images + 0.18 * coin.sign()).clamp(0, 1),
    "moved along the gradient": (test_images + 0.18 * slope.sign()).clamp(0, 1),
}
for name, x in changed.items():
    with torch.no_grad():
        share = accuracy(reader(x), test_labels)
    print(f"{name:<26} {5 * round(20 * share):>3} % read, to the next five")
print("your guess:", "none yet" if guess is ... else guess)

# %% id="attack-picture" tags=["nbval-ignore-output"]
fig, axes = plt.subplots(3, 5, figsize=(5.2, 3.3))
with torch.no_grad():
    read = {name: reader(x).argmax(1) for name, x in changed.items()}
deceived = (read["as they are"] == test_labels) & (read["moved along the gradient"] != test_labels)
kinds = test_labels[deceived].unique()[::2]  # every other digit: five columns
chosen = [torch.nonzero(deceived & (test_labels == digit))[0, 0] for digit in kinds]
for column, index in enumerate(chosen):
    pictures = (test_images[index, 0], slope[index, 0].abs(), changed["moved along the gradient"][index, 0])
    titles = (f"read as {test_labels[index]}", "saliency", f"read as {read['moved along the gradient'][index]}")
    for ax, picture, title in zip(axes[:, column], pictures, titles):
        ax.imshow(picture, cmap="gray_r", vmin=0, vmax=picture.max())
        ax.set_title(title, fontsize=8)
        ax.axis("off")
show(fig, "Above the digit, in the middle where the loss is sensitive, below the digit that deceives.")

# %% [markdown] id="attack-says"
# The same amount of change, at random, costs a few percent. Along the gradient it ruins the model, and you can still
# read the digits. In 64 dimensions a random direction hardly ever comes near the gradient's.
#
# ### Exercise: a digit that deceives
#
# Return the images moved by `epsilon` towards a higher cross entropy: each pixel by plus or minus `epsilon` (by 0 where
# its gradient is 0), then limited to 0..1. The model's parameters keep whatever stands in their `.grad`, the given
# images stay as they are, and the result is in no graph.

# %% id="ex-adversarial" tags=["exercise"] exercise="autograd.adversarial"
def adversarial(model, images, labels, epsilon):
    """Return images that the model reads less well, same shape, in 0..1."""
    ### BEGIN SOLUTION
    pixels = images.clone().requires_grad_()
    (grad,) = torch.autograd.grad(F.cross_entropy(model(pixels), labels), pixels)
    return (images + epsilon * grad.sign()).clamp(0, 1)
    ### END SOLUTION


check("autograd.adversarial", adversarial)
# hint("autograd.adversarial")

# %% [markdown] id="clinic"
# ## Clinic
#
# Five programs. Three run and do the wrong thing, two fail with a message that many have searched for. Run each check
# first, read what it says, then repair the function. The formulas are right; what is wrong is how autograd sees them.
#
# ### A body that never learns
#
# The program from the top: head(tanh(body(images))). The list was for a log.

# %% id="clinic-features" tags=["clinic"] exercise="autograd.clinic-features"
def scores_of(model, images):
    """Return the head's scores, (N, D) -> (N, C)."""
    ### BEGIN SOLUTION
    features = torch.tanh(model.body(images))
    return model.head(features)
    ### END SOLUTION
    ### BEGIN STUB
    # features = torch.tanh(model.body(images)).tolist()
    # return model.head(torch.tensor(features, dtype=images.dtype))
    ### END STUB


check("autograd.clinic-features", scores_of)
# hint("autograd.clinic-features")

# %% [markdown] id="clinic-softmax-text"
# ### Right values, wrong gradients
#
# Softmax over each row. Somebody wanted to save memory, met an error, and found that `.data` makes it go away.

# %% id="clinic-softmax" tags=["clinic"] exercise="autograd.clinic-softmax"
def probabilities(logits):
    """Return the softmax of each row, (N, C) -> (N, C)."""
    ### BEGIN SOLUTION
    unnormalised = logits.exp()
    return unnormalised / unnormalised.sum(1, keepdim=True)
    ### END SOLUTION
    ### BEGIN STUB
    # unnormalised = logits.exp()
    # unnormalised.data /= unnormalised.data.sum(1, keepdim=True)
    # return unnormalised
    ### END STUB


check("autograd.clinic-softmax", probabilities)
# hint("autograd.clinic-softmax")

# %% [markdown] id="clinic-two-text"
# ### Backward, twice
#
# Two losses share a body: the class of each image, and features that should be close to some targets. The gradients of
# both together are to be added to what stands in `.grad`.

# %% id="clinic-two-losses" tags=["clinic"] exercise="autograd.clinic-two-losses"
def backward_both(model, x, labels, targets):
    """Add the gradients of both losses to the parameters' .grad."""
    ### BEGIN SOLUTION
    features = model.body(x)
    loss = F.cross_entropy(model.head(features), labels) + F.mse_loss(features, targets)
    loss.backward()
    ### END SOLUTION
    ### BEGIN STUB
    # features = model.body(x)
    # F.cross_entropy(model.head(features), labels).backward()
    # F.mse_loss(features, targets).backward()
    ### END STUB


check("autograd.clinic-two-losses", backward_both)
# hint("autograd.clinic-two-losses")

# %% [markdown] id="clinic-distance-text"
# ### nan from two points that coincide
#
# The distance of each pair of points, |a − b|. For a pair that coincides the distance is 0, and somebody took care of
# that case with `torch.where`. Its gradient should be finite there too, between −1 and 1. The distances must be right
# to 1e-5.

# %% id="clinic-distance" tags=["clinic"] exercise="autograd.clinic-distance"
def distances(a, b):
    """Return the distance of each pair, (N, D), (N, D) -> (N,)."""
    ### BEGIN SOLUTION
    squared = (a - b).square().sum(1)
    is_apart = squared > 0
    safe = torch.where(is_apart, squared, 1.0)  # no 0 ever reaches the root
    return torch.where(is_apart, safe.sqrt(), 0.0)
    ### END SOLUTION
    ### BEGIN STUB
    # squared = (a - b).square().sum(1)
    # return torch.where(squared > 0, squared.sqrt(), 0.0)
    ### END STUB


check("autograd.clinic-distance", distances)
# hint("autograd.clinic-distance")

# %% [markdown] id="clinic-gate-text"
# ### Modified by an in-place operation
#
# A gate that never closes: x · (0.9 · sigmoid(x) + 0.1).

# %% id="clinic-gate" tags=["clinic"] exercise="autograd.clinic-gate"
def gated(x):
    """Return x times its gate, same shape."""
    ### BEGIN SOLUTION
    gate = torch.sigmoid(x) * 0.9 + 0.1
    return x * gate
    ### END SOLUTION
    ### BEGIN STUB
    # gate = torch.sigmoid(x)
    # gate *= 0.9
    # gate += 0.1
    # return x * gate
    ### END STUB


check("autograd.clinic-gate", gated)
# hint("autograd.clinic-gate")

# %% [markdown] id="people-say"
# ## What people say
#
# Thirteen sentences that articles and colleagues repeat. Some are right, some were right in an earlier release, some
# never were. Put your verdict in place of the dots, in quotes: `"true"`, `"caveat"` (true under a condition),
# `"outdated"`, `"false"`, or `"opinion"` (no measurement decides it). Then run the cell, which measures.

# %% id="claim-a018"
# “For z = x*y the grad_fn is MulBackward and it keeps references to x and y.”
claim("A018", ...)

# %% id="claim-a005"
# “After backward() the computation graph is freed by default.”
claim("A005", ...)

# %% id="claim-a011"
# “Assigning to .data of a tensor that requires grad breaks the gradient chain.”
claim("A011", ...)

# %% id="claim-a016"
# “torch.no_grad() is a global switch for gradient tracking.”
claim("A016", ...)

# %% id="claim-a009"
# “A custom loss must be built from tensor operations only; using native Python objects in between cuts the gradient.”
claim("A009", ...)

# %% id="claim-a008"
# “Autograd computes correct gradients automatically as long as every forward operation is differentiable.”
claim("A008", ...)

# %% id="claim-a030"
# “In a VAE, detach the random noise so that it does not affect gradient flow.”
claim("A030", ...)

# %% id="claim-a024"
# “Detaching the features of one model before feeding another keeps the first model from being updated.”
claim("A024", ...)

# %% id="claim-a022"
# “A leaf tensor is one created directly by the user and not computed from other tensors.”
claim("A022", ...)

# %% id="claim-a012"
# “Printing x.requires_grad and x.grad_fn finds the break: grad_fn None means the node is not in the differentiable
# chain.”
claim("A012", ...)

# %% id="claim-a013"
# “In-place operations are forbidden on tensors with requires_grad=True because the forward values are needed for
# gradients.”
claim("A013", ...)

# %% id="claim-a010"
# “The 'None gradient' error is caused by non-differentiable operations or in-place modification inside a custom
# function.”
claim("A010", ...)

# %% id="claim-a026"
# “A parameter behind a detach() or a no_grad block shows a gradient that is always zero.”
claim("A026", ...)

# %% [markdown] id="people-say-more"
# <details>
# <summary>The other 18 sentences about this lesson</summary>
#
# `claim("A001")` measures one of them, `python3 course.py claims 02` all.
#
# - **A001** Python if/for control flow in forward is run for real on each call, so the network depth may depend on
#   the input's size or values and still be differentiated.
# - **A002** The autograd graph is rebuilt on every forward pass.
# - **A003** For y = x\*\*2 + 3x + 1 at x=2, y.backward() stores x.grad = 7.
# - **A004** Once a tensor has requires\_grad=True, every tensor computed from it automatically records a grad\_fn.
# - **A006** requires\_grad=True tensors need not be the original input; every intermediate produced by a
#   differentiable op automatically has a grad\_fn.
# - **A007** loss.backward() starts at a scalar loss, walks the graph in reverse topological order and applies the
#   chain rule.
# - **A014** clone() copies the data and keeps the gradient path.
# - **A015** detach() returns a tensor separated from the graph whose requires\_grad is always False.
# - **A017** Every line executed extends the graph; even x = x + 1 in a loop is recorded.
# - **A019** A non-scalar result needs reduction (e.g. sum) before backward() without arguments.
# - **A020** Only leaf tensors keep .grad after backward; reading .grad on an intermediate gives None.
# - **A021** Call retain\_grad() to keep the gradient of an intermediate tensor.
# - **A023** Operations starting from leaf tensors are tracked by default.
# - **A025** Setting requires\_grad=False on an intermediate result makes autograd skip it.
# - **A027** Wrapping a forward branch in no\_grad silently removes its gradients.
# - **A028** Changing a tensor after forward can corrupt the gradient path.
# - **A029** The engine calls recorded backward functions in topological order from the output to the leaves.
# - **A031** Doing two backward passes before one step mixes both gradients.
#
# </details>

# %% [markdown] id="recap"
# ## Recap
#
# You can now
#
# - read a graph: which functions are in it, what they keep, and how many bytes that is;
# - say what `backward()` does, in order, since you have written it and it agrees with PyTorch;
# - tell `None` from zero, and find the line where a model stopped learning;
# - choose between `no_grad`, `inference_mode`, `detach` and `requires_grad_(False)`;
# - accumulate and clip gradients, find a nan, write a function with its own backward and prove it;
# - take the gradient of anything by anything, also of an image.
#
# **Read next:** [Autograd mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html),
# [torch.autograd](https://docs.pytorch.org/docs/stable/autograd.html), and
# [Extending PyTorch](https://docs.pytorch.org/docs/stable/notes/extending.html).

# %% id="progress" tags=["nbval-ignore-output"]
progress()
