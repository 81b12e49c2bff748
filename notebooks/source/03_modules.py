# %% [markdown] id="title"
# # 03 nn.Module and hooks
#
# **Why did my frozen network change, although no weight moved?**
#
# A network reads dark digits on white paper, and it is in use. Now white digits on dark paper shall be read too. The
# plan is the usual one: freeze the network, give it a second head (its last layer), and train only that head. The old
# head is kept, so the old task must be as good as before. It isn't, and no weight of the old network differs by a bit.
# In this lesson you find what moved, and learn to prove that nothing does.

# %% id="parameters" tags=["parameters"]
SEED = 0  # where this lesson draws at random, it starts here
DEVICE = "auto"  # "cpu", "cuda", or "auto" for the best one found
FAST = True  # False: longer training where a model is trained

# %% id="setup" tags=["setup"]
import copy
import time
from contextlib import contextmanager

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
import torchinfo
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from course_utils import check, claim, hint, progress, show, shows_error, solution
from course_utils.data import Batches, load_digits8, load_digits28
from course_utils.hooks import gradient_norms, hook_count, recording
from course_utils.models import DigitCNN, ResidualBlock, TransformerBlock, count_parameters
from course_utils.plots import use_style
from course_utils.seeding import seeded, stream
from course_utils.text import human_bytes, table
from course_utils.transfer import load_matching, moved, snapshot
from course_utils.widgets.modules import explore_layers

use_style()
digits = load_digits28()
images, labels = digits.train.as_batch()
images = images.double()  # (3000 or so, 1, 28, 28) in 0..1; float64 gives the same counts on every machine
test_images, test_labels = digits.test.as_batch()
test_images = test_images.double()  # (1000, 1, 28, 28)

# %% [markdown] id="the-evidence-first-the-network"
# ### The evidence
#
# First the network that is in use: the course CNN, trained for 150 steps. `correct` counts how many of the 1,000 test
# digits a model gets right, in eval mode: the mode for use, which section 3 takes apart.

# %% id="def-fit-model-parameters-x"
def fit(model, parameters, x, y, epochs, prepare=nn.Module.train):
    optimizer = torch.optim.AdamW(parameters, lr=3e-3)
    batches = Batches(x, y, 64, generator=stream(SEED, "modules"))
    for _ in range(epochs):
        prepare(model)  # puts the model into train mode
        for xb, yb in batches:
            loss = F.cross_entropy(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@torch.no_grad()
def correct(model, x):
    model.eval()
    return (model(x).argmax(1) == test_labels).sum().item()


# %% id="with-seeded-seed-network-digitcnn"
with seeded(SEED):
    network = DigitCNN(width=8, dropout=0.0).double()
fit(network, network.parameters(), images, labels, epochs=3 if FAST else 10)
print(f"dark digits on white: {correct(network, test_images)} of {len(test_labels)}")

# %% [markdown] id="now-the-extension-every-parameter"
# Now the extension. Every parameter is frozen (it asks for no gradient), a new head takes the place of the old one, and
# 1,000 inverted digits train it. Then the old head goes back to its place.

# %% id="def-add-task-network-prepare"
def add_task(network, prepare):
    model = copy.deepcopy(network)
    old_head = model.fc2
    for parameter in model.parameters():
        parameter.requires_grad_(False)  # frozen
    with seeded(SEED):
        model.fc2 = nn.Linear(128, 10).double()
    fit(model, model.fc2.parameters(), 1 - images[:1000], labels[:1000], 4, prepare)
    new = correct(model, 1 - test_images)
    model.fc2 = old_head
    return model, new


changed, new = add_task(network, nn.Module.train)
weights = [torch.equal(a, b) for a, b in zip(network.parameters(), changed.parameters())]
print(f"new task: {new} of 1000")
print(f"old task: {correct(network, test_images)} before, {correct(changed, test_images)} after")
print(f"parameters that are equal bit for bit: {sum(weights)} of {len(weights)}")

# %% [markdown] id="the-old-task-has-lost"
# The old task has lost more than half of its digits, with the very same parameters. So a model is more than its
# parameters. What else is in there?
#
# ## 1. What a module knows
#
# `nn.Module` watches every assignment to `self`. A parameter, a module, or a tensor handed to `register_buffer` goes
# into one of three dictionaries, `_parameters`, `_modules` and `_buffers`. Everything that a module can do for you
# (moving, saving, switching, giving parameters to an optimizer) walks through these dictionaries. What is not in them
# does not exist.

# %% id="class-mixed-nn-module-def"
class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.register_buffer("total", torch.zeros(2))
        self.register_buffer("cache", torch.zeros(2), persistent=False)
        self.plain = torch.zeros(2)  # an attribute like any other
        self.layer = nn.Linear(2, 2, bias=False)
        self.extra = [nn.Linear(2, 2, bias=False)]  # a list

    def forward(self, x):
        return self.extra[0](self.layer(x)) * self.scale + self.total + self.plain


# %% [markdown] id="predict-the-optimizer-gets-mixed"
# **Predict.** The optimizer gets `Mixed().parameters()`. How many tensors are that? And how many entries has its
# `state_dict`, that is, what a checkpoint saves?

# %% id="predict-1" tags=["prediction"]
guess = ...  # tensors for the optimizer, entries in the state_dict

# %% id="mixed-mixed-known-dict-mixed"
mixed = Mixed()
known = dict(mixed.named_parameters()) | dict(mixed.named_buffers())
saved = mixed.state_dict()
mixed.double()
tensors = {"scale": mixed.scale, "total": mixed.total, "cache": mixed.cache, "plain": mixed.plain}
tensors |= {"layer.weight": mixed.layer.weight, "extra[0].weight": mixed.extra[0].weight}
rows = []
for name, tensor in tensors.items():
    learns = name in dict(mixed.named_parameters())
    rows.append((name, *("yes" if told else "" for told in (learns, name in saved, tensor.dtype == torch.float64))))
print(table(rows, ("tensor", "for the optimizer", "in state_dict", "moved by .double()")))
print(f"{len(list(mixed.parameters()))} for the optimizer, {len(saved)} in the state_dict")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="a-buffer-is-a-tensor"
# A **buffer** is a tensor that belongs to the model and is not learned: running statistics, a mask, the mean of the
# data. It is saved, unless it is registered with `persistent=False`, and it moves with the model. The plain tensor and
# the layer in the list are left behind by everything.
#
# Names tell the way through the tree: `layer.weight` is the parameter `weight` of the child `layer`. A `state_dict` is
# a flat dictionary of these names. Two helpers of the course read it: `snapshot(model)` copies all of it, and
# `moved(model, snapshot)` names the entries that differ now, be it by a bit.

# %% id="print-list-saved-twin-mixed"
print(list(saved))
twin = Mixed().double()
twin.load_state_dict(mixed.state_dict())
print("equal after loading:", not moved(twin, snapshot(mixed)))
print("the layer in the list:", torch.equal(twin.extra[0].weight, mixed.extra[0].weight))

# %% [markdown] id="the-last-line-is-the"
# The last line is the trap. After loading, everything that the module knows is equal; the layer in the list still has
# the random weights it was born with. Nothing warned.
#
# ### Exercise: numbers that are saved but not learned
#
# Write a module that standardises its input: (x − mean) / std, per feature. `mean` and `std` are tensors of shape (D,)
# given at the start. They belong to the model: they are saved and loaded with it, they move with it to another dtype,
# and they are not among its parameters.

# %% id="ex-standardize" tags=["exercise"] exercise="modules.standardize"
class Standardize(nn.Module):
    """(N, D) -> (N, D): subtract the mean, divide by the standard deviation; both of shape (D,)."""

    ### BEGIN SOLUTION
    def __init__(self, mean, std):
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x):
        return (x - self.mean) / self.std

    ### END SOLUTION
    ### BEGIN STUB
    # ...
    ### END STUB


check("modules.standardize", Standardize)
# hint("modules.standardize")

# %% [markdown] id="a-list-judged-by-what"
# ### A list, judged by what moves
#
# Two networks with the same five layers, once in a Python list, once in an `nn.ModuleList`, which is a list that the
# module looks into. Both get one backward pass and one step of an optimizer.
#
# **Predict.** With the list: how many of the five weight matrices get a gradient, and how many move?

# %% id="predict-2" tags=["prediction"]
guess = ...  # with the list: gradients, moved

# %% id="class-chain-nn-module-def"
class Chain(nn.Module):
    def __init__(self, container):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.layers = container([nn.Linear(8, 8) for _ in range(4)])

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x


# %% id="for-container-in-list-nn"
for container in (list, nn.ModuleList):
    with seeded(SEED):
        chain = Chain(container)
        x = torch.randn(16, 8)
    weights = [chain.first.weight, *(layer.weight for layer in chain.layers)]
    before = [w.detach().clone() for w in weights]
    optimizer = torch.optim.SGD(chain.parameters(), lr=0.1)
    chain(x).square().mean().backward()
    optimizer.step()
    n_moved = sum(not torch.equal(w, b) for w, b in zip(weights, before))
    n_gradients = sum(w.grad is not None for w in weights)
    print(f"{container.__name__:<10} {n_gradients} of 5 have a gradient, {n_moved} of 5 moved")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="the-layers-in-the-list"
# The layers in the list take part in the forward pass, and they even get gradients. Only the optimizer never hears of
# them, so they keep their first random values. For a dictionary there is `nn.ModuleDict`; for bare parameters
# `nn.ParameterList` and `nn.ParameterDict`.
#
# ### Exercise: layers from a loop
#
# `sizes` is a list of at least two numbers. Write a network with a linear layer (with bias) from each size to the
# next, a ReLU between the layers, and none after the last. All layers must be learned.

# %% id="ex-stack" tags=["exercise"] exercise="modules.stack"
class Stack(nn.Module):
    """Linear layers sizes[0] -> sizes[1] -> …, with ReLU between them; (N, sizes[0]) -> (N, sizes[-1])."""

    ### BEGIN SOLUTION
    def __init__(self, sizes):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return self.layers[-1](x)

    ### END SOLUTION
    ### BEGIN STUB
    # ...
    ### END STUB


check("modules.stack", Stack)
# hint("modules.stack")

# %% [markdown] id="2-forward-is-yours-the"
# ## 2. Two ways to run a module
#
# You write `forward`, and you call `model(x)`. What is between them? To find out we need a **hook**: a function of
# yours that PyTorch calls at a certain point. The one here is a forward hook, which gets a layer, its inputs and its
# output when the layer has computed it.
#
# **Predict.** The hook counts. One call `layer(x)`, then one call `layer.forward(x)`: what does it count?

# %% id="predict-3" tags=["prediction"]
guess = ...  # after the first call, after the second

# %% id="layer-counts-nn-linear-3"
layer, counts, results = nn.Linear(3, 3), [], []
seen = []
handle = layer.register_forward_hook(lambda module, inputs, output: seen.append(output))
x = torch.ones(1, 3)
for call in (layer, layer.forward):
    results.append(call(x))
    counts.append(len(seen))
handle.remove()  # the hook is gone
print("both give the same:", torch.equal(*results))
print("hook calls:", counts, " your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="forward-alone-gives-the-same"
# `layer(x)` runs `Module.__call__`, which runs the hooks and your `forward`. `forward` alone gives the same numbers and
# skips every hook, without a word. Call the module.
#
# ## 3. Train and eval
#
# `model.train()` and `model.eval()` do one thing: they set the flag `training` in the module and all below it. No
# layer changes. Only layers that read the flag behave differently, Dropout and BatchNorm above all.
#
# **Dropout** with probability p sets each number to 0 with that probability, so that training can't rely on any single
# one. In eval mode it does nothing.
#
# **Predict.** `nn.Dropout(0.25)` gets 100,000 ones, in train mode. What is the mean of what comes out, and what is the
# largest number?

# %% id="predict-4" tags=["prediction"]
guess = ...  # mean, largest

# %% id="with-seeded-seed-ones-drop"
with seeded(SEED):
    ones, drop = torch.ones(100_000), nn.Dropout(0.25)
    result = drop(ones)  # a new module is in train mode
print(f"train: mean {result.mean():.2f}, largest {result.max():.3f}, zeros {100 * (result == 0).float().mean():.0f} %")
drop.eval()
print(f"eval:  returns its input, the same object: {drop(ones) is ones}")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="what-dropout-keeps-is-scaled"
# What Dropout keeps is scaled by 1 / (1 − p), so that the next layer sees the same mean in both modes.
#
# **BatchNorm** is two functions. To normalise is to subtract a mean and divide by the root of a variance. In train mode
# BatchNorm takes the mean and variance of each feature **in this batch**, and moves its running mean and variance a
# tenth of the way towards them. In eval mode it normalises by the running ones. The running ones are buffers.

# %% id="norm-nn-batchnorm1d-1-affine"
norm = nn.BatchNorm1d(1, affine=False)  # without a learned scale and shift
batch = torch.tensor([[8.0], [12.0]])  # (2, 1): mean 10, variance 4 by N, 8 by N - 1
print("buffers:", [name for name, _ in norm.named_buffers()])
for mode in ("train", "train", "eval"):
    norm.train(mode == "train")
    with torch.no_grad():
        out = norm(batch).flatten()
    running = f"running mean {norm.running_mean.item():.2f}, running variance {norm.running_var.item():.2f}"
    print(f"{mode:<6} out {[round(v, 2) for v in out.tolist()]!s:<16} {running}")

# %% [markdown] id="three-things-to-read-here"
# In train mode the output is (−1, 1), whatever the running values say. Every forward pass in train mode moves the
# running values, **also under `no_grad`**: this is not learning, and no gradient is involved. And in eval mode the same
# two numbers come out as large ones, since the running values have only begun to follow. One detail: the running
# variance takes a tenth of 8, the batch's variance by N − 1, while the output is made with 4, the one by N.
#
# What does it cost to forget `eval()`? We score our network in both modes, with test batches of different sizes, and
# with the test set shuffled or sorted by class, as many data sets come.
#
# **Predict.** The network gets about 95 % right in eval mode. How many in train mode, with batches of 50 that are
# sorted by class?

# %% id="predict-5" tags=["prediction"]
guess = ...  # per cent

# %% id="torch-no-grad-def-share"
@torch.no_grad()
def share_correct(training, batch_size, order):
    model = copy.deepcopy(network).train(training)
    x, y = test_images[order], test_labels[order]
    right = sum((model(xb).argmax(1) == yb).sum().item() for xb, yb in zip(x.split(batch_size), y.split(batch_size)))
    return f"{100 * right / len(y):.1f} %"


mixed_up = torch.randperm(len(test_labels), generator=stream(SEED, "order"))
by_class = test_labels.argsort(stable=True)
rows = []
for batch_size in (50, 5, 1):
    cases = [(training, batch_size, order) for training in (False, True) for order in (mixed_up, by_class)]
    rows.append((batch_size, *(share_correct(*case) for case in cases)))
print(table(rows, ("batch size", "eval, shuffled", "eval, by class", "train, shuffled", "train, by class")))
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="in-eval-mode-neither-batch"
# In eval mode neither batch size nor order matters. In train mode the answer for one image depends on who else is in
# the batch: with others of the same class, BatchNorm subtracts part of what they have in common. It costs this network
# up to three points. That is too little to be noticed, and too much for comparing two models.
#
# ### Exercise: BatchNorm, both of it
#
# Write BatchNorm for inputs of shape (N, D), without a learned scale and shift. In train mode: normalise by the
# batch's mean and variance, the variance divided by N and with 1e-5 added before the root, and update the running
# values, running = 0.9 · running + 0.1 · batch. They begin with mean 0 and variance 1. As in PyTorch, the running
# variance takes the batch's variance divided by N − 1. In eval mode: normalise by the running values, with the same
# 1e-5. The running values are saved with the model and belong to no graph; the output's gradients pass through the
# batch's mean and variance.

# %% id="ex-batchnorm" tags=["exercise"] exercise="modules.batchnorm"
class BatchNorm(nn.Module):
    """Normalise each of D features; (N, D) -> (N, D)."""

    ### BEGIN SOLUTION
    def __init__(self, n_features):
        super().__init__()
        self.register_buffer("mean", torch.zeros(n_features))
        self.register_buffer("var", torch.ones(n_features))

    def forward(self, x):
        if not self.training:
            return (x - self.mean) / (self.var + 1e-5).sqrt()
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
            self.var.lerp_(x.var(0), 0.1)
        return (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()

    ### END SOLUTION
    ### BEGIN STUB
    # ...
    ### END STUB


check("modules.batchnorm", BatchNorm)
# hint("modules.batchnorm")

# %% [markdown] id="4-building-blocks-and-how"
# ## 4. Building blocks, and how many numbers they learn
#
# Here is the course CNN as a table, made by `torchinfo`: one row for each layer, in the order of the forward pass.
#
# **Predict.** Which layer of the network holds most of the parameters: a convolution, or a linear one? What share?

# %% id="predict-6" tags=["prediction"]
guess = ...  # the layer and its share

# %% id="small-digitcnn-width-8-dropout"
small = DigitCNN(width=8, dropout=0.0)
info = torchinfo.summary(small, input_size=(1, 1, 28, 28), verbose=0)
rows = [
    (layer.var_name, layer.class_name, str(tuple(layer.output_size)), f"{layer.num_params:,}")
    for layer in info.summary_list[1:]
]
print(table(rows, ("name", "layer", "output", "parameters")))
print(f"total {info.total_params:,}; fc1 has {100 * count_parameters(small.fc1) / info.total_params:.1f} %")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="a-linear-layer-has-a"
# A linear layer has a weight for each pair of an input and an output. A convolution uses the same few weights at every
# place of the image, and its parameter count does not depend on the image's size. Dropout has no parameters.
#
# ### Exercise: counting without building
#
# How many numbers does `nn.Conv2d(c_in, c_out, kernel, groups=groups, bias=bias)` learn? Return an int. With `groups`,
# channels are split evenly, inputs and outputs alike, and each group of outputs sees only its own group of inputs. Both
# channel counts are multiples of `groups`.

# %% id="ex-conv-parameters" tags=["exercise"] exercise="modules.conv-parameters"
def conv_parameters(c_in, c_out, kernel, groups=1, bias=True):
    """Return the number of parameters of a convolution with a square kernel; an int."""
    ### BEGIN SOLUTION
    return c_out * (c_in // groups) * kernel**2 + (c_out if bias else 0)
    ### END SOLUTION


check("modules.conv-parameters", conv_parameters)
# hint("modules.conv-parameters")

# %% [markdown] id="a-transformer-block-in-two"
# ### A transformer block, in two halves
#
# A transformer block takes (N, T, E): N sequences of T positions with E numbers each. In its first half the positions
# look at each other, which is called attention. In the second a small network works on each position alone. Both
# halves are *added* to what came in.
#
# In attention every position has a query q, a key k and a value v, each of E numbers. Position i gets a weighted mean
# of all values. Its weights are the softmax over j of qᵢ · kⱼ / √E, so that they add up to 1. The block of the course
# does this four times side by side, each time with a quarter of the numbers: four *heads*.

# %% id="block-transformerblock-width-32-n"
block = TransformerBlock(width=32, n_heads=4).eval()
with torch.no_grad(), seeded(SEED):
    x = torch.randn(1, 6, 32)  # (N, T, E)
    later = x.clone()
    later[0, 5] += 1.0  # change the last position only
    for is_causal in (False, True):
        changed_at = (block(x, is_causal) - block(later, is_causal)).abs().amax(2)[0] > 0
        print(f"is_causal={is_causal!s:<5} a change at position 5 is seen at {changed_at.nonzero().flatten().tolist()}")
    print("9 positions instead of 6:", tuple(block(torch.randn(1, 9, 32)).shape))
parts = [("attention", block.to_qkv, block.to_out), ("network", block.mlp), ("normalisation", block.norm1, block.norm2)]
for name, *modules in parts:
    print(f"{name:<14}{sum(count_parameters(m) for m in modules):>7,} parameters")

# %% [markdown] id="with-is-causal-no-position"
# With `is_causal` no position sees a later one. Language models need that: they predict what comes next, and may not
# look. No parameter depends on T: the same block takes 6 positions and 9.
#
# ### Exercise: attention
#
# Write attention for q, k and v of shape (N, T, E), as in the formula above. With `is_causal=True`, position i gets
# only values of positions 0 to i, and its weights still add up to 1. (`tril` and `triu` keep one triangle of a matrix,
# and `masked_fill(mask, number)` writes a number where a mask is true.)

# %% id="ex-attention" tags=["exercise"] exercise="modules.attention"
def attention(q, k, v, is_causal=False):
    """Return the weighted means of v, (N, T, E)."""
    ### BEGIN SOLUTION
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5  # (N, T, T)
    if is_causal:
        later = torch.ones(scores.shape[-2:]).triu(1) == 1
        scores = scores.masked_fill(later, float("-inf"))
    return scores.softmax(-1) @ v
    ### END SOLUTION


check("modules.attention", attention)
# hint("modules.attention")

# %% [markdown] id="5-where-the-numbers-begin"
# ## 5. Where the numbers begin
#
# A network starts from random weights, and their scale decides whether anything arrives at the other end. We send a
# batch through 30 layers of width 256 with ReLU, and look at the standard deviation after each layer.
#
# **Predict.** Weights from a normal distribution with standard deviation 0.01. After one layer the values have a
# standard deviation of about 0.1. What is it after 30 layers?

# %% id="predict-7" tags=["prediction"]
guess = ...  # a power of ten is enough

# %% id="starts-normal-std-0-01"
STARTS = {
    "normal, std 0.01": lambda w: nn.init.normal_(w, std=0.01),
    "normal, std 1": lambda w: nn.init.normal_(w),
    "PyTorch's default": lambda w: nn.init.kaiming_uniform_(w, a=5**0.5),
    "Xavier": nn.init.xavier_normal_,
    "Kaiming": lambda w: nn.init.kaiming_normal_(w, nonlinearity="relu"),
}


def spread(start, depth=30, width=256):
    """Return the standard deviation after each layer."""
    found = []
    with seeded(SEED), torch.no_grad():
        x = torch.randn(512, width, dtype=torch.float64)
        for _ in range(depth):
            x = F.relu(x @ start(torch.empty(width, width, dtype=torch.float64)).T)
            found.append(x.std().item())
    return found


# %% id="spreads-name-spread-start-for"
spreads = {name: spread(start) for name, start in STARTS.items()}
fig, ax = plt.subplots(figsize=(7, 3.2))
for name, values in spreads.items():
    ax.plot(range(1, 31), values, label=name)
ax.set(yscale="log", xlabel="layer", ylabel="standard deviation", title="What arrives")
ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
show(fig, "Only one of five starts keeps the size of the numbers through 30 layers with ReLU.")
print(table([(n, f"{s[0]:.1e}", f"{s[-1]:.0e}") for n, s in spreads.items()], ("start", "after 1", "after 30")))
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="each-layer-multiplies-the-spread"
# Each layer multiplies the spread by about the same factor, and 30 factors are a power of 30. A sum of `width` products
# has `width` times the variance of one, so the variance of a weight should be about 1 / width: that is Xavier's
# choice. ReLU throws half of the numbers away and halves the mean square: Kaiming's choice, 2 / width, makes up for it.
# PyTorch's default for `nn.Linear` is smaller, a uniform distribution of variance 1 / (3 · width), and does not keep
# the scale in a deep network without normalisation.
#
# Does the start of our own layers agree with that rule?

# %% id="with-seeded-seed-weight-nn"
with seeded(SEED):
    weight = nn.Linear(256, 256).weight
print(f"variance · width of a new nn.Linear: {256 * weight.var().item():.2f}")
print(f"largest weight · √width:             {256**0.5 * weight.abs().max().item():.2f}")

# %% [markdown] id="blocks-that-begin-as-nothing"
# ### Blocks that begin as nothing
#
# A residual block returns x + branch(x). Add 16 of them: the sums grow. If the last scale of each branch begins with 0
# (the `weight` of its BatchNorm, called gamma in papers), every new block returns its input, and a deep network begins
# as a shallow one.

# %% id="for-zero-init-in-false"
for zero_init in (False, True):
    with seeded(SEED), torch.no_grad():
        blocks = nn.Sequential(*(ResidualBlock(4, zero_init=zero_init) for _ in range(16))).double()
        x = torch.randn(8, 4, 12, 12, dtype=torch.float64)
        out = blocks(x)
    print(f"zero_init={zero_init!s:<5} std {x.std():.2f} -> {out.std():.2f}, equal to the input: {torch.equal(out, x)}")

# %% [markdown] id="exercise-a-block-that-begins"
# ### Exercise: a block that begins as nothing
#
# Write a residual block for vectors of length D, given as `width`. Its branch has at least two linear layers and a
# nonlinearity between them, such as ReLU. A new block returns exactly its input. And it can learn: after a few steps of
# training, every parameter has a gradient that is not 0. (`nn.init.zeros_` fills a tensor with 0.)

# %% id="ex-residual" tags=["exercise"] exercise="modules.residual"
class Residual(nn.Module):
    """x + branch(x), (N, D) -> (N, D); a new block returns x."""

    ### BEGIN SOLUTION
    def __init__(self, width):
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        nn.init.zeros_(self.branch[-1].weight)
        nn.init.zeros_(self.branch[-1].bias)

    def forward(self, x):
        return x + self.branch(x)

    ### END SOLUTION
    ### BEGIN STUB
    # ...
    ### END STUB


check("modules.residual", Residual)
# hint("modules.residual")

# %% [markdown] id="6-hooks-looking-in-there"
# ## 6. Hooks: looking in
#
# There are hooks for many points of a pass. We register one each of six kinds and let them say their names.
#
# **Predict.** In which order do these five speak, in `loss = layer(x).sum()` and `loss.backward()`? *forward*,
# *forward pre*, *full backward*, *full backward pre*, and a *tensor* hook on the layer's weight.

# %% id="predict-8" tags=["prediction"]
guess = ...  # five names in order

# %% id="layer-order-nn-linear-3"
layer, order = nn.Linear(3, 2), []


def says(name, result=None):
    return lambda *args: order.append((name, len(args))) or result


layer.register_forward_pre_hook(says("forward pre"))
layer.register_forward_hook(says("forward"))
layer.register_full_backward_pre_hook(says("full backward pre"))
layer.register_full_backward_hook(says("full backward"))
layer.weight.register_hook(says("tensor"))
layer.register_state_dict_post_hook(says("state_dict"))
layer(torch.ones(4, 3, requires_grad=True)).sum().backward()
layer.state_dict()
print(table([(i + 1, name, n) for i, (name, n) in enumerate(order)], ("", "hook", "arguments")))
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="hook-is-called-with-may"
# | hook | is called with | may return |
# | --- | --- | --- |
# | forward pre | module, inputs | new inputs |
# | forward | module, inputs, output | a new output |
# | full backward pre | module, gradients by the outputs | new ones |
# | full backward | module, gradients by the inputs, by the outputs | new gradients by the inputs |
# | tensor | the gradient | a new gradient |
# | state_dict | module, state, prefix, metadata | nothing; may edit the state in place |
#
# The word "may" matters. A hook that returns something *replaces* what it was called with. Here is one that was
# written to look, and has a `return` too many.

# %% id="layer-x-nn-linear-3"
layer, x = nn.Linear(3, 2), torch.ones(1, 3)
with torch.no_grad():
    layer.bias.sub_(2)  # so that the output is negative
before = layer(x)
handle = layer.register_forward_hook(lambda module, inputs, output: output.relu())  # meant: look at the positive part
print("with the hook, the same output:", torch.equal(layer(x), before))
handle.remove()
print("without it:", torch.equal(layer(x), before))

# %% [markdown] id="the-other-hooks-look-at"
# A hook that returns nothing only looks. Here is how large the gradients of our network are, layer by layer, measured
# by two helpers of the course: `recording` puts forward hooks on the layers and takes them off again, and
# `gradient_norms` reads the gradients of the parameters.

# %% id="model-copy-deepcopy-network-train"
model = copy.deepcopy(network).train()
with recording(model) as outputs:
    loss = F.cross_entropy(model(images[:64]), labels[:64])
loss.backward()
norms = gradient_norms(model)
rows = []
for name, (output, *_) in outputs.items():
    if f"{name}.weight" in norms:
        rows.append((name, str(tuple(output.shape)), f"{output.std():.2f}", f"{norms[f'{name}.weight']:.3f}"))
print(table(rows, ("layer", "output", "std of output", "norm of the weight's gradient")))
print("hooks left behind:", hook_count(model))

# %% [markdown] id="explorer-inside-a-trained-network"
# ### Explorer: inside a trained network
#
# Pick a layer and a digit, and see what the layer gives, or the gradient of the loss by it. Red is positive, blue
# negative.
#
# **Try this.** Which channels of `conv1` find upright strokes? Choose gradients of `conv2`: why do they look like a
# chessboard with holes? (What does max pooling do with the gradient of a pixel that was not the largest?) Compare the
# gradients of `fc2` for two digits: the 6, which the network reads well, and the 3, which it takes for an 8.

# %% id="explorer" tags=["explorer"]
explore_layers()

# %% [markdown] id="what-a-forgotten-hook-costs"
# ### What a forgotten hook costs
#
# A hook stays until its handle removes it. Each call of the function below wants the output of one layer once, and
# leaves its hook there. We call it 150 times.
#
# **Predict.** How many times does a hook run during the 150th call alone? How many tensors are alive at the end?

# %% id="predict-9" tags=["prediction"]
guess = ...  # hook calls in call 150, tensors kept

# %% id="def-features-once-model-x"
def features_once(model, x, kept):
    model.fc1.register_forward_hook(lambda module, inputs, output: kept.append(output.detach().clone()))
    with torch.no_grad():
        model(x)  # and nobody removes the hook
    return kept[-1]


model = copy.deepcopy(network).eval()
kept, rows, x = [], [], test_images[:8]
for call in range(1, 151):
    before = len(kept)
    features_once(model, x, kept)
    if call in (1, 50, 100, 150):
        size = sum(t.untyped_storage().nbytes() for t in kept)
        rows.append((call, len(kept) - before, f"{len(kept):,}", human_bytes(size)))
print(table(rows, ("call", "hook calls in it", "tensors kept", "memory kept")))
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="the-hooks-of-all-earlier"
# The hooks of all earlier calls still run. So the work in a call grows with n, and what is kept grows with n². And
# time? The same forward pass, with the hooks that were left, and without:

# %% id="def-seconds-model-n-20" tags=["nbval-ignore-output"]
def seconds(model, n=20):
    with torch.no_grad():
        start = time.perf_counter()
        for _ in range(n):
            model(x)
    return (time.perf_counter() - start) / n


kept.clear()
with_hooks = seconds(model)
kept.clear()
without = seconds(copy.deepcopy(network).eval())
print(f"{hook_count(model)} hooks: {1000 * with_hooks:.2f} ms; none: {1000 * without:.2f} ms")

# %% [markdown] id="exercise-a-recorder-that-cleans"
# ### Exercise: a recorder that cleans up
#
# Write a context manager. `with recording_layer(model, name) as seen:` gives a list; inside the block, each forward
# pass appends the output of the layer with that name, as it was when the layer returned it. What is kept must keep no
# graph alive. When the block ends, however it ends, your hook is gone, and no other. The name may lead through several
# levels, as `body.0.conv` does: `model.get_submodule(name)` gives the layer.

# %% id="ex-recorder" tags=["exercise"] exercise="modules.recorder"
@contextmanager
def recording_layer(model, name):
    """Give a list that fills with copies of the layer's outputs."""
    ### BEGIN SOLUTION
    seen = []
    layer = model.get_submodule(name)
    handle = layer.register_forward_hook(lambda module, inputs, output: seen.append(output.detach().clone()))
    try:
        yield seen
    finally:
        handle.remove()
    ### END SOLUTION
    ### BEGIN STUB
    # raise NotImplementedError  # replace this line by your code
    # yield
    ### END STUB


check("modules.recorder", recording_layer)
# hint("modules.recorder")

# %% [markdown] id="7-frozen-means-frozen-back"
# ## 7. Frozen means frozen
#
# Back to the evidence. `moved` compares everything that the changed model would save with what the old one would.
#
# **Predict.** Which entries of the state moved while the new head was trained? All parameters were equal.

# %% id="predict-10" tags=["prediction"]
guess = ...  # names

# %% id="difference-moved-changed-snapshot-networ"
difference = moved(changed, snapshot(network))
print("\n".join(difference))
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="batchnorm-s-statistics-followed-the"
# BatchNorm's statistics followed the inverted digits. `requires_grad_(False)` keeps parameters still. Statistics are
# buffers, and a forward pass in train mode moves them. So the frozen part has to be in eval mode *while the head is
# trained*, and `model.train()` at the beginning of each epoch undoes that: it goes through all children.

# %% id="def-train-head-only-model"
def train_head_only(model):
    model.train()  # the head's Dropout, if it has any, is on
    model.norm1.eval()
    model.norm2.eval()


kept_still, new = add_task(network, train_head_only)
print(f"new task: {new} of 1000")
print(f"old task: {correct(network, test_images)} before, {correct(kept_still, test_images)} after")
print("moved:", moved(kept_still, snapshot(network)) or "nothing")

# %% [markdown] id="not-a-digit-is-lost"
# Not a digit is lost, and the proof is stronger than the count: nothing moved. It has a price, in the first line: the
# new head gets fewer inverted digits right than before, since it must do with statistics of dark digits on white.
#
# ### What the optimizer must receive
#
# An optimizer holds the tensors it was given. Replace a layer afterwards, and it goes on with the old one.

# %% id="with-seeded-seed-model-nn"
with seeded(SEED):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model[1] = nn.Linear(4, 3)  # a new head, after the optimizer was made
before = snapshot(model)
for _ in range(5):
    optimizer.zero_grad()
    F.cross_entropy(model(torch.ones(2, 4)), torch.tensor([0, 2])).backward()
    optimizer.step()
print("moved:", moved(model, before))
held = {id(p) for group in optimizer.param_groups for p in group["params"]}
print("unknown to the optimizer:", [name for name, p in model.named_parameters() if id(p) not in held])

# %% [markdown] id="the-last-line-is-a"
# The last line is a check worth keeping: it finds a forgotten head and a model that was rebuilt. A layer in a Python
# list it can't find, since `named_parameters` doesn't know it either.
#
# ### Exercise: frozen means frozen
#
# `backbone` is a part of `model`, and it may contain BatchNorm and Dropout. Prepare both for one epoch of training in
# which nothing in the backbone moves by a bit and everything else learns; the rest of the model is in train mode.
# Return the parameters that shall learn, as a list. The model may come in any mode, and the backbone must keep still
# even if the optimizer was given all of `model.parameters()`.

# %% id="ex-prepare" tags=["exercise"] exercise="modules.prepare"
def prepare(model, backbone):
    """Freeze the backbone for this epoch; return the parameters that learn."""
    ### BEGIN SOLUTION
    backbone.requires_grad_(False)
    model.train()
    backbone.eval()
    return [p for p in model.parameters() if p.requires_grad]
    ### END SOLUTION


check("modules.prepare", prepare)
# hint("modules.prepare")

# %% [markdown] id="8-loading-into-a-model"
# ## 8. Loading into a model that has changed
#
# Fine-tuning begins with weights from somewhere else, for a model that is not quite the same. `load_state_dict` is
# strict: every name must be there, no other, and all shapes must fit. Here the last layer has 26 classes instead of 10.
#
# **Predict.** The call fails with an error about the last layer. How many of the model's 16 entries have changed by
# then?

# %% id="predict-11" tags=["prediction"]
guess = ...  # a number from 0 to 16

# %% id="state-network-state-dict-other"
state = network.state_dict()
other = DigitCNN(width=8, n_classes=26, dropout=0.0).double()  # letters instead of digits
before = snapshot(other)
with shows_error(RuntimeError):
    other.load_state_dict(state)
print("changed by the failed call:", len(moved(other, before)), "of", len(before), "entries")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="everything-that-fits-was-loaded"
# Everything that fits was loaded, and then the error was raised. A program that catches it goes on with a model that is
# half old and half new. Many answers on the web say: `strict=False`. Does that help?

# %% id="with-shows-error-runtimeerror-other"
with shows_error(RuntimeError):
    other.load_state_dict(state, strict=False)

# %% [markdown] id="it-doesn-t-strict-false"
# It doesn't: `strict=False` forgives names, not shapes. Names are the worse trap, since nothing is raised at all.
# Weights that were saved from a `DistributedDataParallel` model have `module.` before every name:

# %% id="wrapped-f-module-key-value"
wrapped = {f"module.{key}": value for key, value in state.items()}
fresh = DigitCNN(width=8, dropout=0.0).double()
before = snapshot(fresh)
answer = fresh.load_state_dict(wrapped, strict=False)
missing, unexpected = answer
print(f"missing {len(missing)}, unexpected {len(unexpected)}, moved {len(moved(fresh, before))}")
print(load_matching(other, wrapped))

# %% [markdown] id="with-strict-false-not-one"
# With `strict=False` not one weight was loaded, and the only trace is the return value. (14 missing of 16: BatchNorm
# forgives a missing `num_batches_tracked`, which old releases did not save.) `load_matching` is the course's own: it
# takes the prefix off and accounts for every key.
#
# ### Exercise: load what fits
#
# Copy into `model` what fits of `state`, by name and shape, parameters and buffers alike. If the names in the state
# begin with `module.`, take that off first, once and only at the beginning. Return four lists of names, by the model's
# names: loaded, of another shape, missing in the state, unexpected (in the state only). What doesn't fit keeps its
# values in the model, `state` stays as it is, and the parameters remain the same objects.

# %% id="ex-load" tags=["exercise"] exercise="modules.load"
def load_partial(model, state):
    """Load what fits; return (loaded, wrong_shape, missing, unexpected), four lists of names."""
    ### BEGIN SOLUTION
    state = {key.removeprefix("module."): value for key, value in state.items()}
    own = model.state_dict()
    fits = {key: value for key, value in state.items() if key in own and value.shape == own[key].shape}
    model.load_state_dict(fits, strict=False)
    wrong_shape = [key for key in own if key in state and key not in fits]
    missing = [key for key in own if key not in state]
    unexpected = [key for key in state if key not in own]
    return list(fits), wrong_shape, missing, unexpected
    ### END SOLUTION


check("modules.load", load_partial)
# hint("modules.load")

# %% [markdown] id="does-it-help-we-move"
# ### Does it help?
#
# We move to another data set: 8×8 digits from 43 other people, made larger to 28×28. With few labels, is a new head on
# our frozen network better than training all of it from scratch? Three draws of the labelled digits for each size.

# %% id="def-enlarge-x-return-f"
def enlarge(x):
    return F.pad(F.interpolate(x.double(), size=(20, 20), mode="bilinear"), (4, 4, 4, 4))


x8, y8 = load_digits8().train.as_batch()
x8_test, y8_test = load_digits8().test.as_batch()
x8, x8_test = enlarge(x8), enlarge(x8_test)


def transfer(n_labels, draw, pretrained):
    chosen = torch.randperm(len(y8), generator=stream(SEED, "transfer", draw))[:n_labels]
    with seeded(SEED):
        model = DigitCNN(width=8, dropout=0.0).double()
    learn, mode = list(model.parameters()), nn.Module.train
    if pretrained:
        load_matching(model, {key: value for key, value in state.items() if not key.startswith("fc2")})
        learn, mode = list(model.fc2.parameters()), nn.Module.eval  # nothing but the head has a mode or learns
    fit(model, learn, x8[chosen], y8[chosen], 30, mode)
    with torch.no_grad():
        return (model.eval()(x8_test).argmax(1) == y8_test).double().mean().item()


# %% id="rows-for-n-labels-in"
rows = []
for n_labels in (20, 100) if FAST else (10, 20, 50, 100, 300):
    scores = {kind: [transfer(n_labels, d, kind) for d in range(3)] for kind in (False, True)}
    rows.append((n_labels, *(" ".join(f"{100 * s:.0f}" for s in scores[kind]) for kind in (False, True))))
print(table(rows, ("labels", "from scratch (%)", "new head on frozen weights (%)")))

# %% [markdown] id="read-the-rows-as-a"
# Read the rows as a condition, not as a rule. Frozen features are worth most where labels are few; with more labels the
# network that may move all its weights catches up. Where it turns depends on how close the two data sets are, and one
# draw of 20 labels differs from the next by several points.
#
# ## 9. Weights that are shared, weights that are computed
#
# **Weight tying.** A model may use one parameter in two places. Many language models do: an *embedding* holds a row of
# numbers for each token (a word, or a piece of one), and the output layer uses the same rows to score the next token.
#
# **Predict.** Embedding and output layer have 50 × 8 numbers each, and are tied. How many parameters has the model? How
# many entries has its `state_dict`?

# %% id="predict-12" tags=["prediction"]
guess = ...  # parameters, entries

# %% id="class-tied-nn-module-def"
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.output = nn.Linear(8, 50, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens):
        return self.output(self.embedding(tokens))


tied = Tied()
print(f"{count_parameters(tied)} parameters, state_dict: {list(tied.state_dict())}")
tokens = torch.tensor([3, 4])
F.cross_entropy(tied(tokens), tokens).backward()
used = (tied.embedding.weight.grad.abs().sum(1) > 0).sum().item()
print("one gradient for both uses:", tied.output.weight.grad is tied.embedding.weight.grad, f"({used} rows)")
copied, moved_over = copy.deepcopy(tied), Tied().double()
for name, model in (("deepcopy", copied), ("after .double()", moved_over)):
    print(f"{name}: still tied:", model.output.weight is model.embedding.weight)
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="the-parameter-counts-once-and"
# The parameter counts once, and its gradient is the sum of both uses: all 50 rows, though only two tokens were
# embedded. `state_dict` lists it under both names. Copying and moving keep the tie.
#
# **Parametrization.** The opposite: a weight that is *computed* from others at each use. Here the weight is kept
# orthogonal, so that the layer never changes the length of a vector, whatever training does to the numbers beneath.

# %% id="with-seeded-seed-layer-parametrizations"
with seeded(SEED):
    layer = parametrizations.orthogonal(nn.Linear(6, 6, bias=False))
    x = torch.randn(5, 6)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
for _ in range(20):
    optimizer.zero_grad()
    (layer(x) - torch.ones(5, 6)).square().mean().backward()
    optimizer.step()
same_length = torch.allclose(layer(x).norm(dim=1), x.norm(dim=1), atol=1e-4)
print("after 20 steps, lengths are kept:", same_length)
print("learned:", [name for name, _ in layer.named_parameters()])
print("layer.weight is a parameter:", isinstance(layer.weight, nn.Parameter))
parametrize.remove_parametrizations(layer, "weight")
print("after removal:", [name for name, _ in layer.named_parameters()])

# %% [markdown] id="clinic-five-programs-run-without"
# ## Clinic
#
# Five programs run without an error and do the wrong thing. Repair each one, and change as little as you can.
#
# ### Experts who never learn
#
# One linear layer for each name. The loss falls a little, since other parts of the model learn.

# %% id="clinic-experts" tags=["clinic"] exercise="modules.clinic-experts"
class Experts(nn.Module):
    """One linear layer (width -> width) for each name."""

    ### BEGIN SOLUTION
    def __init__(self, width, names):
        super().__init__()
        self.experts = nn.ModuleDict({name: nn.Linear(width, width) for name in names})

    def forward(self, x, name):
        return self.experts[name](x)

    ### END SOLUTION
    ### BEGIN STUB
    # def __init__(self, width, names):
    #     super().__init__()
    #     self.experts = {name: nn.Linear(width, width) for name in names}
    #
    # def forward(self, x, name):
    #     return self.experts[name](x)
    ### END STUB


check("modules.clinic-experts", Experts)
# hint("modules.clinic-experts")

# %% [markdown] id="predictions-that-change-the-model"
# ### Predictions that change the model
#
# A training loop calls this between two epochs, to log some predictions. Since then the validation score jumps, and a
# part that was kept in eval mode on purpose no longer is.

# %% id="clinic-predict" tags=["clinic"] exercise="modules.clinic-predict"
def predict(model, x):
    """Return the predicted classes, (N,) int64; the model comes back as it was."""
    ### BEGIN SOLUTION
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            return model(x).argmax(1)
    finally:
        for module, mode in modes:
            module.training = mode
    ### END SOLUTION
    ### BEGIN STUB
    # with torch.no_grad():
    #     classes = model(x).argmax(1)
    # model.train()
    # return classes
    ### END STUB


check("modules.clinic-predict", predict)
# hint("modules.clinic-predict")

# %% [markdown] id="slower-with-every-call-returns"
# ### Slower with every call
#
# Returns what `model.backbone` gives. After an afternoon of use each call takes seconds.

# %% id="clinic-features" tags=["clinic"] exercise="modules.clinic-features"
def features(model, x):
    """Return the output of model.backbone for x, in no graph; the model stays as it was, also after an error."""
    ### BEGIN SOLUTION
    seen = []
    handle = model.backbone.register_forward_hook(lambda module, inputs, output: seen.append(output.detach()))
    try:
        model(x)
    finally:
        handle.remove()
    return seen[0]
    ### END SOLUTION
    ### BEGIN STUB
    # seen = []
    # model.backbone.register_forward_hook(lambda module, inputs, output: seen.append(output.detach()))
    # model(x)
    # return seen[0]
    ### END STUB


check("modules.clinic-features", features)
# hint("modules.clinic-features")

# %% [markdown] id="never-the-same-answer-twice"
# ### Never the same answer twice
#
# In production, after `model.eval()`, one image gets another score at each request.

# %% id="clinic-dropout" tags=["clinic"] exercise="modules.clinic-dropout"
class Noisy(nn.Module):
    """A linear classifier with dropout of 0.5 on its inputs while it is trained; (N, n_in) -> (N, n_out)."""

    ### BEGIN SOLUTION
    def __init__(self, n_in, n_out):
        super().__init__()
        self.linear = nn.Linear(n_in, n_out)

    def forward(self, x):
        return self.linear(F.dropout(x, 0.5, training=self.training))

    ### END SOLUTION
    ### BEGIN STUB
    # def __init__(self, n_in, n_out):
    #     super().__init__()
    #     self.linear = nn.Linear(n_in, n_out)
    #
    # def forward(self, x):
    #     return self.linear(F.dropout(x, 0.5))
    ### END STUB


check("modules.clinic-dropout", Noisy)
# hint("modules.clinic-dropout")

# %% [markdown] id="the-best-model-is-the"
# ### The best model is the last one
#
# `train_epoch(model)` trains for one epoch and returns the validation loss. The state of the epoch with the smallest
# loss is wanted, and the model itself shall end as the last epoch leaves it. What comes back is always the last state.

# %% id="clinic-best" tags=["clinic"] exercise="modules.clinic-best"
def best_state(model, train_epoch, n_epochs):
    """Train for n_epochs; return the state_dict of the epoch with the smallest loss."""
    ### BEGIN SOLUTION
    best, best_loss = None, float("inf")
    for _ in range(n_epochs):
        loss = train_epoch(model)
        if loss < best_loss:
            best, best_loss = copy.deepcopy(model.state_dict()), loss
    return best
    ### END SOLUTION
    ### BEGIN STUB
    # best, best_loss = None, float("inf")
    # for _ in range(n_epochs):
    #     loss = train_epoch(model)
    #     if loss < best_loss:
    #         best, best_loss = model.state_dict(), loss
    # return best
    ### END STUB


check("modules.clinic-best", best_state)
# hint("modules.clinic-best")

# %% [markdown] id="people-say"
# ## What people say
#
# Thirteen sentences that articles and colleagues repeat. Some are right, some were right in an earlier release, some
# never were. Put your verdict in place of the dots, in quotes: `"true"`, `"caveat"` (true under a condition),
# `"outdated"`, `"false"`, or `"opinion"` (no measurement decides it). Then run the cell, which measures.

# %% id="claim-m011"
# “Freeze early layers by setting requires_grad=False.”
claim("M011", ...)

# %% id="claim-m028"
# “state_dict() is a snapshot: holding on to the returned dict preserves the parameter values of that moment.”
claim("M028", ...)

# %% id="claim-m009"
# “Dropout zeroes elements only in train mode.”
claim("M009", ...)

# %% id="claim-m010"
# “Filtering the checkpoint by key and shape and updating model.state_dict() is the safest way to load pretrained
# weights.”
claim("M010", ...)

# %% id="claim-m005"
# “Reordering the layer definitions in the model makes load_state_dict fail with a mismatch error.”
claim("M005", ...)

# %% id="claim-m001"
# “You can compute the input size inside forward and create the fully connected layer there on the fly.”
claim("M001", ...)

# %% id="claim-m012"
# “A model with shapes written into its forward fails with a dimension error when it gets a batch of one.”
claim("M012", ...)

# %% id="claim-m008"
# “model.train()/eval() control just two layer types, BatchNorm and Dropout.”
claim("M008", ...)

# %% id="claim-m023"
# “Pickling a whole model makes a much larger file than its state_dict.”
claim("M023", ...)

# %% id="claim-m033"
# “The torchinfo package is torchsummary under a new name.”
claim("M033", ...)

# %% id="claim-m029"
# “For transfer learning filter non-matching keys and then load with strict=False.”
claim("M029", ...)

# %% id="claim-m006"
# “Printing per-parameter gradient norms locates vanishing: the layer whose gradient becomes 0 is the vanishing point.”
claim("M006", ...)

# %% id="claim-m026"
# “A checkpoint saved on a CPU cannot be loaded on a GPU machine without map_location.”
claim("M026", ...)

# %% [markdown] id="people-say-more"
# <details>
# <summary>The other 21 sentences about this lesson</summary>
#
# `claim("M002")` measures one of them, `python3 course.py claims 03` all.
#
# - **M002** Assigning layers in \_\_init\_\_ of an nn.Module subclass registers their parameters.
# - **M003** BatchNorm normalises with batch statistics in train mode and with accumulated running statistics in eval
#   mode.
# - **M004** If the loss falls abnormally slowly, apply Xavier or Kaiming initialisation with
#   model.apply(init\_weights).
# - **M007** model.to(device) moves all parameters and buffers of the network at once.
# - **M013** nn.Module collects sub-module parameters through its hook mechanism.
# - **M014** nn.Module keeps a \_parameters dict and a \_modules dict that are filled on attribute assignment.
# - **M015** Layers stored in a plain Python list are not registered: the optimizer misses them and they never train.
# - **M016** If a class does not inherit nn.Module, calling model.parameters() returns no parameters.
# - **M017** Never assign a bare torch.Tensor as a learnable attribute; use nn.Parameter or a submodule.
# - **M018** A custom layer only needs \_\_init\_\_ and forward; autograd derives the backward.
# - **M019** A forward hook can observe intermediate output without changing the model, and the returned handle
#   removes it.
# - **M020** nn.Conv2d(3, 16, 3, 1) applied to a (2, 3, 32, 32) input yields feature maps of 30 by 30.
# - **M021** There is no standard API for zero-initialising the last norm gamma of residual blocks; do it by hand with
#   nn.init.
# - **M022** Save and load state\_dict rather than pickling the whole model with torch.save(model).
# - **M024** Whole-model pickles need importable classes and can break after refactoring.
# - **M025** Loading a GPU-saved checkpoint on a CPU-only machine without map\_location fails.
# - **M027** torch.save returns the object that it saved, so it can be assigned on the same line.
# - **M030** To find out why a checkpoint does not load, printing the list of key names is enough; shapes need not be
#   compared.
# - **M031** A forgotten forward hook that stores outputs grows memory.
# - **M032** torchinfo.summary(model, input\_size) shows output shapes and parameter counts and finds mismatches.
# - **M034** print(model) shows the layer hierarchy but neither output shapes nor parameter counts.
#
# </details>

# %% [markdown] id="recap"
# ## Recap
#
# You can now
#
# - say what a module registers, and find what an optimizer, a checkpoint or `.to()` will miss;
# - explain what `train()` and `eval()` change, and what moves although no weight is learned;
# - build residual blocks and attention, count the parameters of a convolution, and start layers at the right scale;
# - look into any model with hooks that always come off;
# - freeze a part of a model and prove that it did not move by a bit;
# - load weights into a model that has changed, and account for every key.
#
# **Read next:** [Module](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html),
# [Modules](https://docs.pytorch.org/docs/stable/notes/modules.html),
# [torch.nn.init](https://docs.pytorch.org/docs/stable/nn.init.html), and
# [Parametrizations tutorial](https://docs.pytorch.org/tutorials/intermediate/parametrizations.html).

# %% id="progress" tags=["nbval-ignore-output"]
progress()
