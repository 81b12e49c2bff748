# %% [markdown] id="title"
# # 05 The full training loop
#
# **Why does the same script train to 98 % on one day and to 90 % on another?**
#
# Nothing in it was changed, or so they say. But the machine was restarted in the night and the run went on from a
# file that held the weights and nothing else. Or a validation pass was added, and dropout has been off ever since.
# Or the learning rate was to rise and fall, and never left the ground. No error, no warning: a training run that is
# wrong still trains, only worse, and nobody sees by how much.
#
# In this lesson you build the loop piece by piece and measure what each piece does. At the end, a small network
# recognises more than 98 % of 1,000 digits that it has never seen, after a minute or so of training. You will know
# which lines that depends on, and you will be able to kill the run in the middle and lose nothing.

# %% id="parameters" tags=["parameters"]
SEED = 0  # of weights, shuffling and dropout in the lesson's own runs
DEVICE = "auto"  # "cpu", "cuda", or "auto" for the best one found
FAST = True  # False: longer runs in the sections on optimizers and seeds

# %% id="setup" tags=["setup"]
import copy
import inspect
import math
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
import yaml
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, OneCycleLR

from course_utils import check, checkpoints, claim, doctor, hint, progress, show, shows_error
from course_utils.checkpoints import Keeper
from course_utils.config import TrainConfig
from course_utils.data import Batches, affine_augment, load_digits8, load_digits28
from course_utils.devices import pick_device
from course_utils.errors import CheckpointError
from course_utils.metrics import Mean, accuracy
from course_utils.models import MLP, DigitCNN, count_parameters
from course_utils.paths import NOTEBOOKS, ROOT
from course_utils.plots import use_style
from course_utils.records import Step
from course_utils.schedules import Plan, lr_curve
from course_utils.seeding import seeded, stream
from course_utils.text import table
from course_utils.training import KeepBest, NonFiniteError, StopTraining, evaluate, evaluating, fit, logging_to
from course_utils.widgets.training import explore_schedule

use_style()
device = pick_device(DEVICE)
digits8 = load_digits8()
train_x, train_y = digits8.train.as_batch(device=device)  # (N, 1, 8, 8) in 0..1, (N,)
test_x, test_y = digits8.test.as_batch(device=device)

# %% [markdown] id="s1"
# ## 1. What the loss expects
#
# A classifier gives one raw score per class, a **logit**. `F.cross_entropy` turns the C logits of an example into
# probabilities (softmax), takes the probability p of the true class, and returns −log p: the *surprise*, in nats.
# A sure and right answer costs almost nothing. A sure and wrong one is expensive.
#
# **Predict.** A network that knows nothing gives each of the 10 digits the same score. What is its loss, in nats?

# %% id="predict-chance" tags=["prediction"]
guess = ...

# %% id="chance"
logits = torch.zeros(5, 10)  # (N, C): every class has the same score
labels = torch.tensor([3, 1, 4, 1, 5])  # (N,), int64
loss = F.cross_entropy(logits, labels)
print(f"loss of knowing nothing: {loss:.3f} nats; log of 10 is {math.log(10):.3f}")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="chance-says"
# Each class gets probability 1/10, and −log(1/10) = log 10 = 2.3. Remember this number: the first loss that you print
# must be near log C. Far above it, the last layer starts with extreme scores, or labels and classes do not match.
#
# A loss is picky about what it is given. Sometimes that is a help: it refuses.

# %% id="wrong-dtype"
with shows_error(RuntimeError):
    F.cross_entropy(logits, labels.float())  # float labels would have to be probabilities, shape (N, C)

# %% [markdown] id="refuses-says"
# | loss | scores | labels | use it for |
# | --- | --- | --- | --- |
# | `cross_entropy` | logits (N, C) | class numbers (N,), int64 | one class out of C |
# | `binary_cross_entropy_with_logits` | logits, any shape | 0 or 1, float, **same shape** | yes or no, or many labels |
# | `nll_loss` | **log**-probabilities (N, C) | class numbers (N,), int64 | models that end in `log_softmax` |
# | `mse_loss` | values, any shape | values, float, **same shape** | quantities |
#
# The dangerous case is a mistake that runs. A network that ends in a softmax gives probabilities. `cross_entropy`
# takes them for logits and applies softmax again. How low can the loss get then?

# %% id="softmax-twice"
certain = 100.0 * F.one_hot(labels, 10)  # logits of a network that is always sure and always right
print(f"logits:                {F.cross_entropy(certain, labels):.3f} nats")
print(f"softmax of the logits: {F.cross_entropy(certain.softmax(1), labels):.3f} nats")

# %% [markdown] id="softmax-says"
# A perfect network would still be told that it loses 1.46 nats. It trains all the same, and nothing says what is
# wrong. **A loss that stops falling near 1.46 with 10 classes is a softmax too many.**
#
# ### A loss is a tensor with a history
#
# `loss.item()` gives the plain number. It matters which of the two you add up. We count the nodes of the graph that
# hang on the sum of 100 losses.

# %% id="graph-size"
def graph_size(tensor):
    """Return the number of autograd nodes that a tensor keeps alive."""
    seen, todo = set(), [tensor.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [parent for parent, _ in node.next_functions]
    return len(seen)


weight = torch.zeros(64, 10, requires_grad=True)
losses = [F.cross_entropy(torch.ones(5, 64) @ weight, labels) for _ in range(100)]
print("nodes behind one loss:             ", graph_size(losses[0]))
print("nodes behind the sum of 100 losses:", graph_size(sum(losses)))
print("type of the sum of the numbers:    ", type(sum(loss.item() for loss in losses)).__name__)

# %% [markdown] id="item-says"
# The sum of the tensors keeps all 100 graphs in memory. In training most of their content is freed by `backward`; in
# validation without `no_grad` nothing is, and memory grows until the process dies. So: **tensors for `backward`,
# numbers for the log.**
#
# ### Exercise: two heads, two losses
#
# A network looks at a digit and answers two questions: *which digit* (`scores`, shape (N, C)) and *is it even*
# (`even_scores`, one logit per image, shape (N, 1)). The labels are class numbers (N,), int64, and `is_even` (N,),
# bool. Return both mean losses in nats, as tensors that can be sent backward. They must stay right for scores of ±200.

# %% id="ex-two-losses" tags=["exercise"] exercise="training.two-losses"
def two_losses(scores, labels, even_scores, is_even):
    """Return (class_loss, even_loss), two tensors of shape ()."""
    ### BEGIN SOLUTION
    class_loss = F.cross_entropy(scores, labels)
    even_loss = F.binary_cross_entropy_with_logits(even_scores.squeeze(1), is_even.float())
    return class_loss, even_loss
    ### END SOLUTION


check("training.two-losses", two_losses)
# hint("training.two-losses")

# %% [markdown] id="s2"
# ## 2. From one step to `fit`
#
# The workbench of this lesson: 8x8 digits and a network with one hidden layer. It trains in a fraction of a second, so
# we can afford to do everything wrong once. Its tensors are so small that sharing the work between threads costs more
# than it saves, so we take one thread until section 9.

# %% id="workbench"
def new_model(seed=SEED, dropout=0.0):
    """One hidden layer of 64 units for 8x8 images; the same seed gives the same weights."""
    with seeded(seed):
        return MLP(64, (64,), dropout=dropout).to(device)


def new_batches(seed=SEED):
    """The training digits in batches of 64, in an order that depends on the seed alone."""
    return Batches(train_x, train_y, 64, generator=stream(seed, "shuffle"))


threads = torch.get_num_threads()  # for section 9
torch.set_num_threads(1)
print(f"{len(train_y)} images to train on, {len(test_y)} to test, {len(new_batches())} steps per epoch")
print(f"{count_parameters(new_model()):,} parameters")

# %% [markdown] id="five-calls"
# ### One step: five calls
#
# | call | reads | writes |
# | --- | --- | --- |
# | `optimizer.zero_grad()` | | empties `p.grad` of every parameter |
# | `model(x)` | parameters | the graph |
# | `loss_fn(..., y)` | logits, labels | one number, and the top of the graph |
# | `loss.backward()` | the graph | **adds** to `p.grad` |
# | `optimizer.step()` | `p.grad` | the parameters |

# %% id="one-step"
def one_step(model, x, y, optimizer):
    """Update the model once; return the loss before the update, in nats."""
    optimizer.zero_grad()
    logits = model(x)  # (N, 1, 8, 8) -> (N, 10)
    loss = F.cross_entropy(logits, y)
    loss.backward()
    optimizer.step()
    return loss.item()


# %% [markdown] id="overfit"
# ### Overfit one batch first
#
# Before you train on all of the data, train on **one batch**, again and again. Thousands of parameters can learn a few
# dozen images by heart: the loss must go to 0. If it doesn't, first suspect the code, not the amount of data. The
# question took one second.
#
# **Predict.** Below, three programs train 100 steps on the same 32 images. One is healthy. One has a softmax too many.
# In one, the optimizer was made from another copy of the network. Which final losses do you expect, in nats?

# %% id="predict-overfit" tags=["prediction"]
guess = ...  # for example (healthy, softmax twice, other network)

# %% id="overfit-one-batch"
x, y = train_x[:32], train_y[:32]


def overfit(*extra, other=False):
    """Return the loss after 100 steps on one batch."""
    model = new_model()
    owner = copy.deepcopy(model) if other else model
    optimizer = torch.optim.Adam(owner.parameters(), lr=0.02)
    program = nn.Sequential(model, *extra)
    return [one_step(program, x, y, optimizer) for _ in range(100)][-1]


print(f"healthy:           {overfit():.1f} nats")
print(f"softmax twice:     {overfit(nn.Softmax(1)):.1f} nats")
print(f"another network's: {overfit(other=True):.1f} nats")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="overfit-says"
# The healthy program learns the batch by heart. The second is stuck at the 1.46 that you met above. The third has not
# moved from log 10: its optimizer updates weights that nobody uses. None of the three printed a warning.
#
# ### What `zero_grad` is for
#
# **Predict.** We call `backward` four times on the same batch and never empty `.grad`. How many times too long is the
# gradient then?

# %% id="predict-zero" tags=["prediction"]
guess = ...

# %% id="no-zero-grad"
model = new_model()
norms = []
for _ in range(4):
    F.cross_entropy(model(x), y).backward()
    norms.append(torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item())
print("length of .grad after each call, first = 1:", [round(norm / norms[0], 2) for norm in norms])
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="zero-says"
# `backward` adds. That is useful when one step is to see several batches, and a bug otherwise: each step follows the
# sum of all gradients since the start, those of weights long gone among them. The loss may still fall for a while.
#
# ### Exercise: one epoch
#
# An **epoch** is one pass over all batches. Write it: one update per batch, and return the mean loss over all
# *examples*, as a Python number. The model may arrive in eval mode, because a validation pass came before. The last
# batch may be short, and `loss_fn` returns a mean over its batch.

# %% id="ex-train-epoch" tags=["exercise"] exercise="training.train-epoch"
def train_epoch(model, batches, loss_fn, optimizer):
    """Update the model once per (x, y) in batches; return the mean loss over all examples."""
    ### BEGIN SOLUTION
    model.train()
    total, count = 0.0, 0
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        total, count = total + loss.item() * len(x), count + len(x)
    return total / count
    ### END SOLUTION


check("training.train-epoch", train_epoch)
# hint("training.train-epoch")

# %% [markdown] id="short-batch"
# ### Measure right on the short last batch
#
# 193 examples in batches of 64 make three full batches and one with a single example. Say the network is right on all
# but that one.

# %% id="mean-of-means"
sizes, hits = [64, 64, 64, 1], [64, 64, 64, 0]
shares = [hit / size for hit, size in zip(hits, sizes)]
print(f"mean of the batch accuracies: {sum(shares) / len(shares):.3f}")
print(f"hits over examples:           {sum(hits) / sum(sizes):.3f}")

# %% [markdown] id="mean-says"
# 75 % or 99.5 %: the mean of the batch means counts one example as much as 64 others. Weigh each batch by its size.
# `course_utils.metrics.Mean` does nothing else.
#
# ### Validation: eval, no_grad, and back
#
# Dropout sets random activations to 0 while training. When you measure, it must be off. Two calls stand in almost every
# validation pass: `model.eval()` and `torch.no_grad()`.
#
# **Predict.** The same network scores the same test images three times in each setting. In which settings do the three
# scores agree?

# %% id="predict-eval" tags=["prediction"]
guess = ...

# %% id="eval-or-no-grad"
model = new_model(dropout=0.5)
for name, training, grad in [("train mode", True, True), ("no_grad only", True, False), ("eval only", False, True)]:
    model.train(training)
    with torch.set_grad_enabled(grad):
        outputs = [model(test_x) for _ in range(3)]
    same = all(torch.equal(outputs[0], other) for other in outputs)
    print(f"{name + ':':<13} three passes agree: {same!s:<6} a graph is kept: {outputs[0].requires_grad}")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="eval-says"
# Two switches, two jobs: `eval()` changes what layers compute, `no_grad()` whether a graph is kept. A validation pass
# needs both, and afterwards the model must be as it was found. Here is how the course does it. Read it: it is short.

# %% id="read-evaluating"
print(inspect.getsource(evaluating))

# %% [markdown] id="ex-validate-text"
# ### Exercise: an honest validation pass
#
# Return `(mean_loss, accuracy)` over all examples, as Python numbers; accuracy from 0 to 1. Dropout must be off, no
# graph may be kept, and afterwards **each layer** must be in the mode in which it came. Somebody may have frozen a
# BatchNorm in eval mode on purpose, while the rest trains.

# %% id="ex-evaluate" tags=["exercise"] exercise="training.evaluate"
def validate(model, batches, loss_fn):
    """Return (mean loss, accuracy) over all examples of the batches."""
    ### BEGIN SOLUTION
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    total, hits, count = 0.0, 0, 0
    with torch.no_grad():
        for x, y in batches:
            logits = model(x)
            total += loss_fn(logits, y).item() * len(x)
            hits += (logits.argmax(1) == y).sum().item()
            count += len(x)
    for module, mode in modes:
        module.training = mode
    return total / count, hits / count
    ### END SOLUTION


check("training.evaluate", validate)
# hint("training.evaluate")

# %% [markdown] id="assemble"
# ### Put together
#
# The step is in an epoch, the epoch in a loop, and each epoch ends with a validation pass.

# %% id="my-loop"
def one_epoch(model, batches, optimizer):
    """Pass over the batches once, one update each; return the mean loss over the examples."""
    model.train()
    mean = Mean()
    for x, y in batches:
        mean.add(one_step(model, x, y, optimizer), count=len(x))
    return mean.value


def my_fit(model, optimizer, batches, validation, epochs):
    """Train, and measure after each epoch; return one (training loss, validation loss) per epoch."""
    history = []
    for _ in range(epochs):
        loss = one_epoch(model, batches, optimizer)
        history.append((loss, evaluate(model, F.cross_entropy, validation)["loss"]))
    return history


# %% [markdown] id="fit"
# The course has the same loop as `fit`, with more options. **Predict:** we run both from the same weights, with the
# same batches and with dropout on. Do the final weights agree to 3 digits, to 6 digits, or in every bit?

# %% id="predict-fit" tags=["prediction"]
guess = ...

# %% id="fit-is-the-loop"
validation = [(test_x, test_y)]
mine, theirs = new_model(dropout=0.2), new_model(dropout=0.2)
with seeded(SEED):  # dropout draws from torch's global generator
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.1, momentum=0.9)
    my_fit(mine, optimizer, new_batches(), validation, epochs=2)
with seeded(SEED):
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    run = fit(theirs, F.cross_entropy, optimizer, new_batches(), epochs=2, validation=validation)

same = all(torch.equal(a, b) for a, b in zip(mine.parameters(), theirs.parameters()))
print(f"{run.n_steps} steps; every bit of every weight agrees: {same}")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="fit-says"
# Every bit. `fit` is your loop. From here on we use it, and add its options one at a time: schedules, clipping, early
# stopping, checkpoints, a log. Read its source in `course_utils/training.py` once; it is made to be read.

# %% [markdown] id="s3"
# ## 3. Optimizers and their learning rate
#
# All three start from the gradient g.
#
# - **SGD with momentum** keeps a running sum of gradients, b ← 0.9 b + g, and moves by lr · b.
# - **Adam** keeps two running means, m ← β₁ m + (1 − β₁) g of the gradient and v ← β₂ v + (1 − β₂) g² of its square,
#   and moves by lr · m / (√v + eps); eps only keeps the division safe. Each weight then moves by about lr per step,
#   whether its gradients are large or small.
# - **AdamW** is Adam with a **weight decay**: each step also pulls every weight w a little towards 0, by
#   lr · decay · w. `Adam(weight_decay=...)` adds decay · w to the gradient instead. Then it is divided by √v too, and
#   weights with large gradients are hardly decayed.
#
# **Predict.** Same network, same batches, 3 epochs. At a learning rate of 0.003, which one is best? And at 0.3?

# %% id="predict-optimizer" tags=["prediction"]
guess = ...

# %% id="optimizers" tags=["nbval-ignore-output"]
OPTIMIZERS = {
    "SGD + momentum": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
    "Adam": torch.optim.Adam,
    "AdamW": lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr, weight_decay=0.01),
}
rates = [0.0003, 0.003, 0.03, 0.3, 3.0] if FAST else [10**k for k in np.arange(-4, 1.01, 0.5)]
scores = {}
for name, make in OPTIMIZERS.items():
    for rate in rates:
        model = new_model()
        fit(model, F.cross_entropy, make(model.parameters(), lr=rate), new_batches(), epochs=3)
        with evaluating(model):
            scores[name, rate] = accuracy(model(test_x), test_y)
rows = [(name, *(f"{100 * scores[name, rate]:.0f} %" for rate in rates)) for name in OPTIMIZERS]
print(table(rows, ("test accuracy", *(f"lr {rate:g}" for rate in rates))))

# %% [markdown] id="optimizers-note"
# Your machine may differ by a percent or two. What does not differ:

# %% id="optimizers-verdict"
best = {name: max(rates, key=lambda rate: scores[name, rate]) for name in OPTIMIZERS}
worst = {name: min(scores[name, rate] for rate in rates) for name in OPTIMIZERS}
print("each optimizer gets above 85 % at some rate:", all(scores[name, best[name]] > 0.85 for name in best))
print("each optimizer stays below 50 % at some rate:", all(share < 0.5 for share in worst.values()))
print("one and the same rate is best for all three:", len(set(best.values())) == 1)
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="optimizers-says"
# The learning rate matters far more than the name of the optimizer, and the best rates of SGD and Adam are about a
# factor of 10 apart. So "I switched to Adam and it got worse" says nothing, unless the rate was searched for both. That
# is a first answer to the question of this lesson.
#
# ### The learning-rate range test
#
# Instead of trying rates one by one: start with a tiny rate, multiply it by a constant after every step, and watch the
# loss. It stays, then falls, then explodes. `fit` takes the schedule as `step_schedule`. It tells each **observer**, a
# function, about every `Step` (with its `loss` and `lr`) and every epoch; one that raises `StopTraining` ends the run.

# %% id="range-test" tags=["nbval-ignore-output"]
model = new_model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
grow = ExponentialLR(optimizer, gamma=10 ** (4 / 100))  # four decades in 100 steps
lowest = [math.inf]


def stop_when_exploding(step):
    if isinstance(step, Step):  # not the summary of an epoch
        lowest.append(min(lowest[-1], step.loss))
        if step.loss > 4 * lowest[-1]:
            raise StopTraining


watch = [stop_when_exploding]
test = fit(model, F.cross_entropy, optimizer, new_batches(), epochs=5, step_schedule=grow, observers=watch)
fig, ax = plt.subplots(figsize=(5.5, 2.8))
ax.semilogx(test.lrs, test.losses)
ax.set(xlabel="learning rate", ylabel="training loss (nats)", title="Range test, SGD with momentum")
show(fig, "The loss of each step against the rate that the step used.")

# %% id="range-verdict"
at_lowest = test.lrs[test.losses.index(min(test.losses))]
print("the loss exploded before the end:", test.stopped_by == "observer")
print("the lowest loss was at a rate between 0.03 and 3:", 0.03 < at_lowest < 3)

# %% [markdown] id="range-says"
# Take a rate where the curve still falls steeply, a factor of 3 to 10 below the point where it turns up. For a schedule
# with warm-up, which visits the highest rate only for a while, you may go nearer. Compare with the table above: the
# range test found the same region in one run of at most 100 steps.
#
# ### Exercise: one step of AdamW
#
# Write the update for one tensor. `t` is the number of this step, from 1. Both running means start at 0 and are too
# small at first, so each is divided by 1 − beta^t **before it is used**; what you return is uncorrected. The decay acts
# on the weight as it was before the step. Leave the inputs as they are.

# %% id="ex-adamw" tags=["exercise"] exercise="training.adamw-step"
def adamw_step(w, grad, m, v, t, lr, beta1, beta2, eps, decay):
    """Return the new (w, m, v): the weight, the running mean of grad, the running mean of grad ** 2."""
    ### BEGIN SOLUTION
    m = beta1 * m + (1 - beta1) * grad
    v = beta2 * v + (1 - beta2) * grad**2
    m_fair, v_fair = m / (1 - beta1**t), v / (1 - beta2**t)
    w = w - lr * decay * w - lr * m_fair / (v_fair.sqrt() + eps)
    return w, m, v
    ### END SOLUTION


check("training.adamw-step", adamw_step)
# hint("training.adamw-step")

# %% [markdown] id="s4"
# ## 4. Schedules: who steps when
#
# A high rate moves fast and stays noisy, a low rate settles. So we start high and end low. At the very start Adam's
# running means know nothing yet and the gradients are large: a **warm-up** over the first steps helps.
#
# The scheduler writes the learning rate into the optimizer each time you call `scheduler.step()`. It does not know
# what a batch or an epoch is: **it counts calls.** Here are five plans for 8 epochs of 20 steps. Each curve is the rate
# that the optimizer really used, step by step.

# %% id="five-schedules"
kinds = ["constant", "stairs", "cosine", "warm restarts", "onecycle"]
fig, axes = plt.subplots(1, 5, figsize=(9, 1.9), sharey=True)
for ax, kind in zip(axes, kinds):
    rates = lr_curve(Plan(kind=kind, peak=0.3, warmup=0 if kind in ("constant", "stairs") else 2))
    ax.plot(rates)
    ax.set(title=kind, xlabel="step")
    print(f"{kind:<13} first {rates[0]:.4f}  highest {max(rates):.4f}  last {rates[-1]:.4f}")
axes[0].set_ylabel("learning rate")
show(fig, "Cosine and warm restarts come after a warm-up of 2 epochs; onecycle brings its own.")

# %% [markdown] id="who-steps"
# | scheduler | its lengths count | call `step()` |
# | --- | --- | --- |
# | `OneCycleLR`, warm-up by `LambdaLR` or `LinearLR` | steps | after every `optimizer.step()` |
# | `StepLR`, `CosineAnnealingLR`, `CosineAnnealingWarmRestarts` | whatever you decide: calls | consistently |
# | `ReduceLROnPlateau` | epochs without improvement | after validation: `step(validation_loss)` |
#
# Always `optimizer.step()` first, then `scheduler.step()`. The other way round, the first rate is never used.
#
# **Predict.** Somebody wants a cosine over 50 epochs and writes `CosineAnnealingLR(optimizer, T_max=50)`. But `step()`
# stands inside the batch loop, and an epoch has 20 batches. What is the rate after 5 epochs, if it began at 0.1?

# %% id="predict-cosine" tags=["prediction"]
guess = ...

# %% id="cosine-trap"
optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
scheduler = CosineAnnealingLR(optimizer, T_max=50)
for epoch in range(1, 6):
    for _ in range(20):
        optimizer.step()
        scheduler.step()
    print(f"after epoch {epoch}: learning rate {optimizer.param_groups[0]['lr']:.4f}")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="cosine-says"
# After 50 calls, in the middle of epoch 3, the rate was 0. Then the cosine went up again, and after 100 calls it is
# back at 0.1. The whole run swings between 0 and 0.1, and nobody is told. `OneCycleLR` is stricter: it refuses.

# %% id="onecycle-overrun"
optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
with shows_error(ValueError):
    for _ in range(11):
        optimizer.step()
        scheduler.step()

# %% [markdown] id="log-lr"
# The cure is one habit: **log the rate that each step used, and look at the curve.** `fit` does so in `run.lrs`. With
# `step_schedule=` it calls the scheduler after every update, with `epoch_schedule=` after every validation; a
# plateau scheduler gets the validation loss.
#
# ### Explorer: design a schedule
#
# Left, the rate that torch's own scheduler gave each step. Right, a real training with it: SGD with momentum on the
# 8x8 digits. **Try this.**
#
# - Set the peak to 1.0. Which kinds still learn, which don't?
# - Stay there, with onecycle, and take the warm-up away.
# - Set the peak to 0.01. Now a constant rate is best. Why?

# %% id="explorer" tags=["explorer", "nbval-ignore-output"]
explore_schedule()

# %% [markdown] id="explorer-says"
# A rate that starts and ends low may be higher in between: warm-up and decay carry a run over a peak at which a
# constant rate fails. The other side: where even the peak is low, every step below it is a step wasted.

# %% [markdown] id="ex-warmup-text"
# ### Exercise: warm-up, then cosine
#
# `LambdaLR` multiplies the base rate by a factor that your function returns for each step, counted from 0. Write the
# one that most large models use: a straight rise, `(step + 1) / warmup`, while `step < warmup`; then half a cosine from
# 1 at `step == warmup` down to 0 at `step == total`; after that it stays 0. With `warmup = 0` it starts at 1. Return a
# plain number, not a tensor.

# %% id="ex-warmup" tags=["exercise"] exercise="training.warmup-cosine"
def warmup_cosine(step, warmup, total):
    """Return the factor for the peak rate at this step, 0 to 1."""
    ### BEGIN SOLUTION
    if step < warmup:
        return (step + 1) / warmup
    progress_made = min(1.0, (step - warmup) / (total - warmup))
    return 0.5 * (1 + math.cos(math.pi * progress_made))
    ### END SOLUTION


check("training.warmup-cosine", warmup_cosine)
# hint("training.warmup-cosine")

# %% [markdown] id="s5"
# ## 5. Guard rails: clipping, early stopping, the best model
#
# ### Clipping
#
# One broken batch can undo an hour of training. Here the images of one batch arrive in 0..255 instead of 0..1, and
# with their labels in the wrong order. We train three epochs, let that batch pass once, and test again.
#
# **Predict.** How much test accuracy does the one step cost, in percentage points? And if the gradient is clipped to
# length 1 before the step?

# %% id="predict-clip" tags=["prediction"]
guess = ...

# %% id="clip" tags=["nbval-ignore-output"]
trained = new_model()
optimizer = torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.9)
fit(trained, F.cross_entropy, optimizer, new_batches(), epochs=3)
lost = {}
for max_norm in (math.inf, 1.0):
    model = copy.deepcopy(trained)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    F.cross_entropy(model(train_x[:64] * 255), train_y[:64].flip(0)).backward()  # a batch gone wrong
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)  # returns the norm before clipping
    optimizer.step()
    before, after = (accuracy(net(test_x), test_y) for net in (trained, model))
    lost[max_norm] = before - after
    print(f"max_norm {max_norm}: gradient length {norm:,.0f}, accuracy {before:.0%} -> {after:.0%}")

# %% id="clip-verdict"
print("without clipping the step costs more than 30 points:", lost[math.inf] > 0.3)
print("with clipping it costs less than 5 points:          ", lost[1.0] < 0.05)
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="clip-says"
# `clip_grad_norm_` measures the length of *all* gradients as one long vector. If it is above the limit, all are scaled
# by the same factor: the step keeps its direction and loses its length. It belongs between `backward` and `step`, and
# its return value, the length before clipping, belongs into your log: it tells you that something blew up.
#
# What it does not cure: a gradient that is nan. Its norm is nan, the factor is nan, and after one step so is every
# weight. Section 8 hunts one down.
#
# ### Exercise: clip by the total norm
#
# Write it. `parameters` is whatever `model.parameters()` returns. Some parameters may have no gradient. Return the norm
# before clipping, as a number or a tensor; change the gradients only if it is above `max_norm`.

# %% id="ex-clip" tags=["exercise"] exercise="training.clip"
def clip_gradients(parameters, max_norm):
    """Scale all gradients together to a total norm of at most max_norm; return the norm before."""
    ### BEGIN SOLUTION
    grads = [p.grad for p in parameters if p.grad is not None]
    norm = math.sqrt(sum((grad**2).sum().item() for grad in grads))
    if norm > max_norm:
        for grad in grads:
            grad.mul_(max_norm / norm)
    return norm
    ### END SOLUTION


check("training.clip", clip_gradients)
# hint("training.clip")

# %% [markdown] id="early"
# ### Early stopping and the best model
#
# With few examples the network learns them by heart: the training loss falls on and on, the validation loss turns up.
# `KeepBest` keeps a copy of the weights of the best epoch, ends the run when `patience` epochs in a row brought nothing
# better, and puts the best weights back.
#
# **Predict.** 100 training images, at most 100 epochs, patience 10. After how many epochs does it stop?

# %% id="predict-early" tags=["prediction"]
guess = ...

# %% id="early-stopping" tags=["nbval-ignore-output"]
few = Batches(train_x[:100], train_y[:100], 50, generator=stream(SEED, "few"))
held_out = digits8.validation.as_batch(device=device)
model = new_model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
best = KeepBest(patience=10)
run = fit(model, F.cross_entropy, optimizer, few, epochs=100, validation=[held_out], best=best)
print(f"{len(run.epochs)} epochs ran, stopped by {run.stopped_by}; the best was epoch {run.best_epoch + 1}")

fig, ax = plt.subplots(figsize=(5.5, 2.8))
ax.semilogy([epoch.loss for epoch in run.epochs], label="training")
ax.semilogy(run.curve(), label="validation")
ax.axvline(run.best_epoch, color="#999999", linestyle=":", label="best epoch")
ax.set(xlabel="epoch", ylabel="loss (nats)", title="100 training images")
ax.legend()
show(fig, "The training loss goes on falling after the validation loss has turned up.")

# %% id="early-verdict"
now = evaluate(model, F.cross_entropy, [held_out])["loss"]
print("it stopped before epoch 100:", len(run.epochs) < 100)
memorised = run.epochs[-1].loss < run.curve()[-1] / 10
print("at the end the training loss is below a tenth of the validation loss:", memorised)
print("the model has the weights of the best epoch:", math.isclose(now, min(run.curve()), rel_tol=1e-6))
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="early-says"
# Two things to remember. Choosing the best epoch by the validation set uses that set up: its score is now a little too
# good, and only an untouched **test** set tells the truth. And `state_dict()` returns the live tensors, not a copy;
# the clinic shows what that does to "the best model".
#
# ### Exercise: when to stop
#
# Given the validation losses in order and the patience, return how many epochs run and which one was best, counted from
# 0. An epoch is an improvement only if its loss is **below the best so far**. The run ends as soon as `patience` epochs
# in a row brought no improvement. A nan is never an improvement.

# %% id="ex-early" tags=["exercise"] exercise="training.early-stop"
def early_stop(losses, patience):
    """Return (epochs that ran, index of the best epoch)."""
    ### BEGIN SOLUTION
    best_loss, best_epoch, waited = math.inf, 0, 0
    for epoch, loss in enumerate(losses):
        if loss < best_loss:
            best_loss, best_epoch, waited = loss, epoch, 0
        else:
            waited += 1
        if waited == patience:
            return epoch + 1, best_epoch
    return len(losses), best_epoch
    ### END SOLUTION


check("training.early-stop", early_stop)
# hint("training.early-stop")

# %% [markdown] id="s6"
# ## 6. Seeds: the same run twice
#
# Random numbers decide the starting weights, the order of the batches, dropout and augmentation. Python, NumPy and
# torch each have a generator of their own, CUDA one per device, and each worker of a `DataLoader` again. The course's
# `seeded(seed)` seeds them together, and puts their states back afterwards.
#
# **Predict.** We run the same short training three times without a seed and three times with one. In which group do
# the final weights agree, in every bit?

# %% id="predict-seeds" tags=["prediction"]
guess = ...

# %% id="three-runs"
def short_run(look_at=None):
    """Train one epoch; weights, shuffling and dropout all draw from torch's global generator."""
    model = MLP(64, (64,), dropout=0.2).to(device)
    if look_at is not None:
        look_at()
    order = Batches(train_x, train_y, 64, generator=torch.default_generator)
    fit(model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), order)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


free, fixed = [], []
for _ in range(3):
    free.append(short_run())
    with seeded(SEED):
        fixed.append(short_run())
print("three free runs agree bit for bit:  ", all(torch.equal(free[0], other) for other in free))
print("three seeded runs agree bit for bit:", all(torch.equal(fixed[0], other) for other in fixed))
with seeded(SEED, deterministic=True):
    print("with deterministic algorithms only, the same:", torch.equal(fixed[0], short_run()))
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="seeds-says"
# Bit for bit, on the same machine with the same number of threads. On a CPU the usual algorithms are deterministic; on
# a GPU some add in whatever order the threads arrive, and `deterministic=True` replaces or refuses those.
#
# But one global generator has a weakness: everybody draws from it. Now somebody draws one random order more, before
# training, just to look at some images.

# %% id="one-draw-more"
def look():
    torch.randperm(len(train_y))[:9]  # nine images to look at


with seeded(SEED):
    after_a_look = short_run(look_at=look)
print("the same weights after a look at nine images:", torch.equal(after_a_look, fixed[0]))

batches = {}
for looked in (False, True):
    generator = stream(SEED, "shuffle")
    if looked:
        look()
    batches[looked] = [y.tolist() for _, y in Batches(train_x, train_y, 64, generator=generator)]
print("with a stream of its own, the shuffle is the same:", batches[False] == batches[True])

# %% [markdown] id="streams-says"
# So each purpose gets a generator of its own: `stream(seed, "shuffle")`, `stream(seed, "augment")`. Then looking at
# images, or validating, never changes the next training batch.
#
# | what draws | what you do |
# | --- | --- |
# | weights, dropout | `with seeded(seed):` around making the model and training |
# | shuffling, augmentation | `generator=stream(seed, "shuffle")` |
# | `DataLoader` workers | `**loader_kwargs(seed)`: a generator and a `worker_init_fn` (a later lesson) |
# | GPU kernels that add in any order | `seeded(seed, deterministic=True)`, at a price in speed |
#
# ### What still varies
#
# **Predict.** (a + b) + c and a + (b + c), in float32, with a = 10⁸, b = −10⁸ and c = 1. What do you get?

# %% id="predict-order" tags=["prediction"]
guess = ...

# %% id="order-of-sums"
a, b, c = torch.tensor([1e8, -1e8, 1.0])
print(f"(a + b) + c = {((a + b) + c).item()}")
print(f"a + (b + c) = {(a + (b + c)).item()}")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="order-says"
# Near 10⁸ the float32 numbers are 8 apart, so b + c is b again. **The order of a sum changes its result.** Another
# number of threads, another processor, another version of a library adds in another order. After thousands of steps
# the last bits have grown into other weights: equally good ones, but others.
#
# How much does luck matter, then? We train with several seeds, and with a rate that is ten times too low.

# %% id="luck" tags=["nbval-ignore-output"]
def score(seed, lr):
    """Return the test accuracy after three epochs."""
    model = new_model(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    fit(model, F.cross_entropy, optimizer, new_batches(seed), epochs=3)
    return evaluate(model, F.cross_entropy, validation, {"accuracy": accuracy})["accuracy"]


seeds = range(5 if FAST else 20)
good, low = ([score(seed, lr) for seed in seeds] for lr in (0.1, 0.01))
print("rate 0.1: ", "  ".join(f"{100 * share:.1f} %" for share in good))
print("rate 0.01:", "  ".join(f"{100 * share:.1f} %" for share in low))

# %% id="luck-verdict"
spread, gap = max(good) - min(good), sum(good) / len(good) - sum(low) / len(low)
print("the seeds lie within 5 percentage points:          ", spread < 0.05)
print("the low rate costs more than the luck of the seed: ", gap > spread)

# %% [markdown] id="luck-says"
# Seeds move the result by two or three points here, a rate that is too low by about twenty. A fall from 98 % to 90 %
# is hardly luck: look for a difference in the program. And when you compare two ideas, compare several seeds of each.
# A gain that is smaller than the spread may be no gain.
#
# ### Exercise: a shuffle that survives a crash
#
# A run dies in epoch 7 and is started again. The order of epoch 7 must come out as before, although nobody drew the
# orders of epochs 0 to 6 this time. Return the batches of indices of one epoch: every index of 0..n-1 once, shuffled,
# the last batch short. They must follow from `seed` and `epoch` alone, leave the global generators untouched, and runs
# with neighbouring seeds must not share their epochs. `stream` may help: its purpose may have several parts, texts and
# whole numbers.

# %% id="ex-order" tags=["exercise"] exercise="training.epoch-order"
def epoch_order(n, batch_size, seed, epoch):
    """Return a list of int64 tensors of indices, each of up to batch_size."""
    ### BEGIN SOLUTION
    order = torch.randperm(n, generator=stream(seed, "shuffle", epoch))
    return list(order.split(batch_size))
    ### END SOLUTION


check("training.epoch-order", epoch_order)
# hint("training.epoch-order")

# %% [markdown] id="s7"
# ## 7. Kill it, resume it, lose nothing
#
# Machines restart, jobs run into their time limit, somebody trips over a cable. A run that can't be resumed exactly is
# another run afterwards. Here is a small one with everything in it that has a memory: dropout, a shuffle, AdamW and a
# schedule.

# %% id="parts"
def make_parts():
    """Make model, optimizer, schedule and batches, always the same, on the CPU."""
    with seeded(0):
        model = MLP(64, (64,), dropout=0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    schedule = OneCycleLR(optimizer, max_lr=0.02, total_steps=200)
    batches = Batches(*load_digits8().train.as_batch(), 64, generator=stream(0, "shuffle"))
    return model, optimizer, schedule, batches


def train_digits(keeper=None, resume=None, observers=()):
    """Train 10 epochs, from the start or from a loaded checkpoint; return the model."""
    model, optimizer, schedule, batches = make_parts()
    with seeded(0):  # dropout
        options = {"keeper": keeper, "resume": resume, "observers": observers}
        fit(model, F.cross_entropy, optimizer, batches, epochs=10, step_schedule=schedule, **options)
    return model


# %% [markdown] id="predict-checkpoint-text"
# **Predict.** Which things must be in the file, so that the resumed run ends with the same weights in every bit? Write
# down all that you can think of.

# %% id="predict-checkpoint" tags=["prediction"]
guess = ...  # for example ["weights", ...]

# %% [markdown] id="child"
# Now really do it. We put the two functions above into a script, start it as a process of its own, and kill it. There
# is no clean-up and no last word: on Linux and macOS, `kill()` sends SIGKILL, which a process cannot catch. The
# script saves every 10 steps, and waits a little after each one as a big model would.

# %% id="script"
SCRIPT = f"""
import sys, time
import torch, torch.nn.functional as F
from torch.optim.lr_scheduler import OneCycleLR
from course_utils.checkpoints import Keeper
from course_utils.data import Batches, load_digits8
from course_utils.models import MLP
from course_utils.seeding import seeded, stream
from course_utils.training import fit

{inspect.getsource(make_parts)}
{inspect.getsource(train_digits)}
def slowly(step):
    print("step", getattr(step, "index", "-"), flush=True)
    time.sleep(0.03)

train_digits(keeper=Keeper(sys.argv[1], every=10), observers=[slowly])
"""
folder = Path(tempfile.mkdtemp(prefix="lesson05-"))  # for checkpoints and logs; the last cell removes it
program = folder / "train_digits.py"
_ = program.write_text(SCRIPT, encoding="utf-8")

# %% id="kill"
environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(torch.get_num_threads())}
command = [sys.executable, str(program), str(folder / "run")]
child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
for line in child.stdout:
    if line.strip() == "step 33":
        child.kill()
        break
child.stdout.close()
print("the process ended by itself:", child.wait() == 0)
keeper = Keeper(folder / "run")
saved = keeper.latest()
facts = saved["facts"]
print("epochs done:", facts["epoch"], "of 10; in the middle of the next one:", facts["batch"] > 0)
print("the file holds:", ", ".join(sorted(saved)))
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="kill-says"
# Some of these names deserve a word. `facts` is the log so far, and says which batch of which epoch comes next. `data`
# has the states of the random generators: where the shuffle stood when the epoch began, and torch's global generator,
# which dropout draws from. With mixed precision, the state of the gradient scaler is there too. `versions`
# is for you, in three months.
#
# Now continue from the file, in this process. A second run goes through without a break. A third is resumed the way it
# is often done: with the weights and nothing else.

# %% id="resume"
unbroken = train_digits()
resumed = train_digits(resume=saved)

weights_only, optimizer, schedule, batches = make_parts()
weights_only.load_state_dict(saved["model"])
fit(weights_only, F.cross_entropy, optimizer, batches, epochs=9, step_schedule=schedule)  # 1 of 10 is done


def identical(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.state_dict().values(), b.state_dict().values()))


print("resumed equals unbroken, bit for bit:     ", identical(resumed, unbroken))
print("resumed from the weights equals unbroken: ", identical(weights_only, unbroken))

# %% [markdown] id="resume-says"
# The killed and resumed run ends with the weights of the run that was never interrupted, in every bit. The other
# started again with an empty optimizer memory, at the beginning of the schedule, with the first shuffle. It trains;
# it is another run.
#
# ### A file is whole, or it is not there
#
# A kill can also come *while* the file is being written. Here is what half a checkpoint is worth.

# %% id="half-a-file"
checkpoints.save(folder / "whole.pt", model=unbroken)
content = (folder / "whole.pt").read_bytes()
(folder / "half.pt").write_bytes(content[: len(content) // 2])
with shows_error(CheckpointError):
    checkpoints.load(folder / "half.pt")

# %% [markdown] id="atomic-says"
# If that was your only file, the run is lost. So never write over the last good checkpoint. Write to a temporary file
# **in the same folder**, flush it to the disk, then rename it onto the name: `os.replace` happens as a whole or not at
# all. `course_utils.checkpoints` writes like that, and keeps the last two.
#
# ### Loading a file can run code
#
# `torch.save` uses pickle, and a pickle is a program. An object may say which function is to be called when it is
# loaded. The one below calls `print`; it might as well delete your files.

# %% id="surprise"
class Surprise:
    def __reduce__(self):
        return print, ("This line was printed by loading a file.",)


torch.save({"weights": torch.zeros(3), "gift": Surprise()}, folder / "from-the-internet.pt")
state = torch.load(folder / "from-the-internet.pt", weights_only=False)  # never with a stranger's file
try:
    torch.load(folder / "from-the-internet.pt")  # weights_only=True is the default since PyTorch 2.6
except pickle.UnpicklingError as error:
    print("Refused:", str(error).partition("WeightsUnpickler error: ")[2].partition(". ")[0])

# %% [markdown] id="weights-only-says"
# With `weights_only=True`, torch builds tensors, numbers, text, and lists and dicts of them, and refuses everything
# else. So a checkpoint that holds `state_dict`s and plain numbers opens anywhere; one that holds whole objects does
# not. Convert a NumPy number with `float(...)` before you save it.
#
# ### Exercise: a checkpoint that forgets nothing
#
# Complete the class. After `load` into a new model, optimizer and scheduler, in another process, training must go on
# bit for bit as if nothing had happened. The model has dropout, which draws from torch's generator. `load` returns the
# step that `save` was given. The file must open with `weights_only=True`.

# %% id="ex-checkpoint" tags=["exercise"] exercise="training.checkpoint"
class Checkpoint:
    def __init__(self, model, optimizer, scheduler):
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler

    def save(self, path, step):
        """Write everything that changes while training to the file at path."""
        ### BEGIN SOLUTION
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "rng": torch.get_rng_state(),
            "step": step,
        }
        torch.save(state, path)
        ### END SOLUTION

    def load(self, path):
        """Read it back, and return the step."""
        ### BEGIN SOLUTION
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["rng"])
        return state["step"]
        ### END SOLUTION


check("training.checkpoint", Checkpoint)
# hint("training.checkpoint")

# %% [markdown] id="s8"
# ## 8. Watch it, and find out why it fails
#
# ### A log that you can read later
#
# You met an observer in the range test. `logging_to` gives one that writes files for TensorBoard: loss, learning rate
# and gradient length of each step, histograms of weights and gradients of each epoch. `progress=True` shows a bar. Here
# we read the file back, as TensorBoard would.

# %% id="tensorboard"
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

model = new_model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
with logging_to(folder / "log", model) as log:
    options = {"clip_norm": 5.0, "observers": [log], "progress": True}
    run = fit(model, F.cross_entropy, optimizer, new_batches(), epochs=2, validation=validation, **options)
events = EventAccumulator(str(folder / "log")).Reload()
for tag in sorted(events.Tags()["scalars"]):
    print(f"{tag:<17} {len(events.Scalars(tag)):>3} values")
print("histograms:", len(events.Tags()["histograms"]))
logged = [event.value for event in events.Scalars("step/loss")]
print("the file has the loss of each step:", np.allclose(logged, run.losses))

# %% [markdown] id="tensorboard-says"
# In a terminal, `tensorboard --logdir FOLDER` draws them. Of all curves, look at the **gradient length** first: it
# often shows before the loss does that something is about to break, or that nothing arrives at the first layers.
#
# ### Settings belong into a file, and the file to the run
#
# In three months you will want to know what gave that result. So the settings of a run stand in a YAML file, and a copy
# of it lies beside the checkpoints. YAML has a trap for learning rates.
#
# **Predict.** In the YAML line `{a: 0.0001, b: 1e-4, c: 1.0e-4}`, what are the types of the three values?

# %% id="predict-yaml" tags=["prediction"]
guess = ...

# %% id="yaml"
for name, value in yaml.safe_load("{a: 0.0001, b: 1e-4, c: 1.0e-4}").items():
    print(f"{name} is {value!r}, a {type(value).__name__}")
print("your guess:", "none yet" if guess is ... else guess)

with shows_error(Exception):
    TrainConfig.from_yaml("lr: 1e-4")

# %% [markdown] id="yaml-says"
# YAML 1.1 wants a dot in a number with an exponent. `1e-4` is text, and text goes a long way before it fails. A config
# that checks types when it is read says so at once. Section 9 reads its recipe from `settings/05_training.yaml`.
#
# ### The debugging order
#
# When a run fails, look in this order, and don't skip: each stage trusts the ones before it.
#
# 1. **Data.** Look at a batch. Finite? In which range? Do the labels belong to the images?
# 2. **Shapes.** What goes in, what comes out of each layer?
# 3. **Loss.** Is the first one near log C? Does one batch overfit?
# 4. **Gradients.** Does every parameter get one? Finite? How long?
# 5. **Learning rate.** Only now. Which rate was used?
#
# Here is a patient. The images go through a layer that evens out the contrast: subtract each image's mean, divide by
# its standard deviation. It trained well on Monday. On Tuesday, with new scans:

# %% id="patient"
class Contrast(nn.Module):
    """Shift and scale each image to mean 0 and standard deviation 1."""

    def forward(self, x):
        mean, std = x.mean((1, 2, 3), keepdim=True), x.std((1, 2, 3), keepdim=True)  # (N, 1, 1, 1)
        return (x - mean) / std


scans = train_x.clone()
scans[777] = 0.0  # the scanner fed an empty sheet
patient = nn.Sequential(Contrast(), new_model())
batches = Batches(scans, train_y, 64, generator=stream(SEED, "shuffle"))
optimizer = torch.optim.SGD(patient.parameters(), lr=0.1)
with shows_error(NonFiniteError):
    fit(patient, F.cross_entropy, optimizer, batches)

# %% [markdown] id="hunt-predict"
# `fit` stops before the nan reaches the weights; a bare loop would go on with weights that are all nan.
#
# **Predict.** Most people now lower the learning rate. At which of the five stages will the fault show?

# %% id="predict-hunt" tags=["prediction"]
guess = ...

# %% id="hunt"
with torch.no_grad():
    print("1 data:     finite:", bool(scans.isfinite().all()))
    print("            range:", scans.min().item(), "to", scans.max().item())
    print("            labels:", train_y.min().item(), "to", train_y.max().item())
    outputs = patient(scans)
    print("2 shapes:  ", tuple(scans.shape), "->", tuple(outputs.shape))
    bad = ~outputs.isfinite().all(dim=1)  # (N,)
    print("3 loss:     examples with a loss that is not finite:", bad.nonzero().flatten().tolist())
    x = scans[bad]
    for name, layer in patient.named_children():
        x = layer(x)
        print(f"            layer {name}, {type(layer).__name__}: finite: {bool(x.isfinite().all())}")
print("            pixels of that image:", scans[bad].unique().tolist())
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="hunt-says"
# Stage 3: one example out of 1,257, made by the first layer. All its pixels are equal, so its standard deviation is 0,
# and 0/0 is nan. Every number in the data was finite and in range, so stage 1 could not see it. The nan arises before
# any weight is used: with a lower learning rate it comes at the same step.

# %% id="cured"
class SafeContrast(nn.Module):
    def forward(self, x):
        mean, std = x.mean((1, 2, 3), keepdim=True), x.std((1, 2, 3), keepdim=True)
        return (x - mean) / (std + 1e-3)  # an even image becomes 0, the others hardly change


cured = nn.Sequential(SafeContrast(), new_model())
run = fit(cured, F.cross_entropy, torch.optim.SGD(cured.parameters(), lr=0.1), batches)
print("every loss is finite:", all(math.isfinite(loss) for loss in run.losses))

# %% [markdown] id="watch-text"
# ### A doctor for your own runs
#
# You hunted with the whole data set at hand. A real run has no such view: the fault passes by in one batch, and a bare
# loop goes on. `doctor.examine` looks at a set-up before it trains, and `doctor.watch` goes along with a loop. It reads
# each loss on its way into `backward`. If one is not finite, it sends the same batch through a copy of the network,
# layer by layer. First, this lesson's own run; then the patient, in a bare loop.
#
# **Predict.** Images come shuffled, in batches of 64. The loop is not stopped, and nobody looks at the data. Which
# batch will `watch` report: the one with the empty sheet, or the one after it, in which every loss is nan?

# %% id="predict-watch" tags=["prediction"]
guess = ...  # "that one" or "the next"

# %% id="watch"
healthy = new_model()
optimizer = torch.optim.SGD(healthy.parameters(), lr=0.1)
parts = {"model": healthy, "loader": new_batches(), "loss_fn": F.cross_entropy, "optimizer": optimizer}
print("this lesson's set-up:", doctor.examine(**parts).headline)

patient = nn.Sequential(Contrast(), new_model())
optimizer = torch.optim.SGD(patient.parameters(), lr=0.1)
order = torch.randperm(len(scans), generator=torch.Generator().manual_seed(SEED))
with doctor.watch(patient, every=1, show=lambda finding: None) as watching:  # every=1: on a GPU too
    for rows in watching(order.split(64)):
        one_step(patient, scans[rows], train_y[rows], optimizer)
for finding in watching.report.findings:
    print(f"{finding.severity} {finding.code}: {finding.message}")
print("image 777 was in batch", (order == 777).nonzero().item() // 64)
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="watch-says"
# The batch itself, and in it the layer and the example. The bare loop was not stopped: after this batch its weights are
# nan. Without a watcher the first sign is the loss of a later print, and by then every layer gives nan and none can be
# blamed. That is why the loss is read *before* the update. In your own loops leave `show` out: each finding appears as
# it happens. `watch` also reports gradients that explode or vanish, dead units, graphs that are kept and waiting for
# data. All findings and their repairs stand in `docs/doctor.md`.

# %% [markdown] id="ex-bad-text"
# ### Exercise: hunt the first nan
#
# Now for any model: run `model(x)` once and return the name of the layer (as in `named_modules`) whose output is the
# **first** with a nan or inf, or None if all is finite. Layers may run in another order than they were registered, and
# blocks may contain blocks. Leave no hook behind, even if the forward pass fails.

# %% id="ex-bad-layer" tags=["exercise"] exercise="training.first-bad-layer"
def first_bad_layer(model, x):
    """Return the name of the first layer whose output is not finite, or None."""
    ### BEGIN SOLUTION
    found, handles = [], []
    for name, layer in model.named_modules():

        def note(_layer, _inputs, output, name=name):
            if not torch.isfinite(output).all():
                found.append(name)

        handles.append(layer.register_forward_hook(note))
    try:
        with torch.no_grad():
            model(x)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None
    ### END SOLUTION


check("training.first-bad-layer", first_bad_layer)
# hint("training.first-bad-layer")

# %% [markdown] id="multi"
# ### Several losses: compare their gradients
#
# A network is to name the digit *and* draw it again, pixel by pixel. Two losses are added. What counts is not how big
# they are, but how hard each pulls on the weights that they share.

# %% id="multi-loss"
with seeded(SEED):
    shared, name_it, draw_it = nn.Linear(64, 32), nn.Linear(32, 10), nn.Linear(32, 64)
x, y = train_x[:256].cpu().flatten(1), train_y[:256].cpu()
middle = F.relu(shared(x))  # (N, 32)
losses = {
    "name": F.cross_entropy(name_it(middle), y),
    "draw": (draw_it(middle) - x).square().sum(dim=1).mean(),  # sum over 64 pixels
}
pull = {}
for task, loss in losses.items():
    (grad,) = torch.autograd.grad(loss, shared.weight, retain_graph=True)
    pull[task] = grad.norm().item()
    print(f"{task}: loss {loss.item():5.1f}, length of its gradient {pull[task]:.1f}")
print(f"weight for 'draw' that makes both pull alike: {pull['name'] / pull['draw']:.2f}")

# %% [markdown] id="multi-says"
# Added as they are, the sum over the pixels decides where the shared weights go. Begin with weights that make the
# gradients equally long, log each loss by itself, and let validation choose from there: the balance shifts as training
# goes on.

# %% [markdown] id="s9"
# ## 9. The whole run
#
# ### Where does a step's time go?
#
# The course CNN on 28x28 digits: two convolutions, each with BatchNorm, ReLU and pooling, then two linear layers.
#
# **Predict.** Which operator takes most of the time of a training step on your processor?

# %% id="predict-profile" tags=["prediction"]
guess = ...

# %% id="profile" tags=["nbval-ignore-output"]
config = TrainConfig.from_file(NOTEBOOKS / "settings" / "05_training.yaml")
digits28 = load_digits28()
images, labels = digits28.train.as_batch(device=device)  # (3500, 1, 28, 28) in 0..1, (3500,)
with seeded(SEED):
    cnn = DigitCNN().to(device)
optimizer = torch.optim.AdamW(cnn.parameters(), lr=config.lr, weight_decay=config.weight_decay)
torch.set_num_threads(threads)
os.environ["KINETO_LOG_LEVEL"] = "99"  # keeps the profiler's own messages away
one_step(cnn, images[:64], labels[:64], optimizer)  # the first step also sets things up
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
    one_step(cnn, images[:64], labels[:64], optimizer)
by_time = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)[:6]
rows = [(event.key, event.count, round(event.self_cpu_time_total)) for event in by_time]
print(table(rows, ("operator", "calls", "own time (µs)")))
print("your guess:", "none yet" if guess is ... else guess)

# %% id="profile-verdict"
counts = {event.key: event.count for event in profiler.key_averages()}
print("convolutions forward: ", counts["aten::conv2d"])
print("convolutions backward:", counts["aten::convolution_backward"])
print("linear layers forward:", counts["aten::linear"])

# %% [markdown] id="profile-says"
# Two convolutions forward and two backward: the profiler sees every operator that you did not write. Measure before you
# make anything faster. A loop that waits for its data gains nothing from a quicker convolution.
#
# ### The run
#
# All parts in their places: a recipe from a file, a stream of its own for the shuffle and one for the augmentation
# (each image is turned, moved and resized a little, each time anew), AdamW, OneCycle stepped per step, validation per
# epoch, and the test set **once**, at the end.

# %% id="recipe"
print(config.to_yaml())
config.to_file(folder / "05_training.yaml")  # a copy stays with the run

# %% [markdown] id="predict-final-text"
# **Predict.** 3,500 digits to learn from. How many of the 1,000 test digits will it get right?

# %% id="predict-final" tags=["prediction"]
guess = ...

# %% id="train-parts"
draws = stream(SEED, "augment")
batches = Batches(
    images,
    labels,
    config.batch_size,
    generator=stream(SEED, "shuffle"),
    transform=lambda x: affine_augment(x, draws),  # turned, moved and resized, anew in each epoch
)
with seeded(SEED):
    cnn = DigitCNN().to(device, memory_format=torch.channels_last)
optimizer = torch.optim.AdamW(cnn.parameters(), lr=config.lr, weight_decay=config.weight_decay)
steps = config.epochs * len(batches)
schedule = OneCycleLR(optimizer, config.lr, total_steps=steps, pct_start=config.warmup)

# %% id="train" tags=["nbval-ignore-output"]
held_out = [digits28.validation.as_batch(device=device)]
started = time.perf_counter()
with seeded(SEED):  # dropout
    options = {"validation": held_out, "step_schedule": schedule, "progress": True}
    run = fit(cnn, F.cross_entropy, optimizer, batches, epochs=config.epochs, **options)
seconds = time.perf_counter() - started
result = evaluate(cnn, F.cross_entropy, [digits28.test.as_batch(device=device)], {"accuracy": accuracy})
print(f"{run.n_steps} steps in {seconds:.0f} s")
print(f"test accuracy {100 * result['accuracy']:.1f} %, loss {result['loss']:.3f} nats")

# %% id="train-verdict"
print("at least 98 % of 1,000 test digits are right:", result["accuracy"] >= 0.98)
print("your guess:", "none yet" if guess is ... else guess)

# %% id="curves" tags=["nbval-ignore-output"]
fig, (left, right) = plt.subplots(1, 2, figsize=(8.4, 2.8))
left.plot(run.losses, color="#bbbbbb", linewidth=0.8, label="training, each step")
ends = [len(batches) * (epoch.index + 1) for epoch in run.epochs]
left.plot(ends, run.curve(), "o-", label="validation")
left.set(xlabel="step", ylabel="loss (nats)", yscale="log", title="Loss")
left.legend()
right.plot(run.lrs)
right.set(xlabel="step", ylabel="learning rate", title="Rate that each step used")
show(fig, "The last epochs, with the rate coming down, bring the loss down once more.")

# %% [markdown] id="curves-says"
# The validation loss is *below* the training loss: training digits are distorted and dropout is on, validation digits
# are neither. Here are the test digits that it still gets wrong. How many would you have got right?

# %% id="mistakes" tags=["nbval-ignore-output"]
test_images, test_labels = digits28.test.as_batch(device=device)
with evaluating(cnn):
    predicted = cnn(test_images).argmax(1)
wrong = (predicted != test_labels).nonzero().flatten()[:10].tolist()
fig, axes = plt.subplots(1, 10, figsize=(8.4, 1.2))
for ax in axes:
    ax.axis("off")
for ax, index in zip(axes, wrong):
    ax.imshow(test_images[index, 0].cpu(), cmap="gray_r")
    ax.set_title(f"{test_labels[index]} as {predicted[index]}", fontsize=8, loc="center")
show(fig, "Test digits that the network gets wrong; '9 as 7' is a 9 that it takes for a 7.")

# %% [markdown] id="finetune"
# ### Fine-tuning: the recipe
#
# A trained network is a good start for a related task with few examples. Here: digits that lie on their side, with
# 100 labelled ones.
#
# 1. Load the trained weights. Put in a **new head** where the classes differ.
# 2. Make the optimizer **afterwards**, from the parameters of the final model.
# 3. Give the old layers a **smaller rate** than the head: they only need a nudge.
# 4. Freeze what shall not move at all: `requires_grad_(False)`, and `eval()` for its BatchNorm.
# 5. Compare with training from scratch. It is the only way to know that it helped.

# %% id="fine-tune" tags=["nbval-ignore-output"]
lying_x, lying_y = images[:100].rot90(1, (2, 3)), labels[:100]
test_lying = [(test_images.rot90(1, (2, 3)), test_labels)]


def fine_tune(model, lr_old):
    """Train 10 epochs with a new head; return the test accuracy."""
    with seeded(SEED):
        model.fc2 = nn.Linear(model.fc2.in_features, 10).to(device)
        old = [p for name, p in model.named_parameters() if not name.startswith("fc2")]
        groups = [{"params": old, "lr": lr_old}, {"params": model.fc2.parameters(), "lr": 3e-3}]
        lying = Batches(lying_x, lying_y, 25, generator=stream(SEED, "lying"))
        fit(model, F.cross_entropy, torch.optim.AdamW(groups), lying, epochs=10)
    return evaluate(model, F.cross_entropy, test_lying, {"accuracy": accuracy})["accuracy"]


with seeded(SEED):
    scratch = fine_tune(DigitCNN().to(device), lr_old=3e-3)
tuned = fine_tune(copy.deepcopy(cnn), lr_old=1e-3)
print(f"from scratch {100 * scratch:.0f} %, fine-tuned {100 * tuned:.0f} %")

# %% id="fine-tune-verdict"
print("fine-tuning beats training from scratch:", tuned > scratch)

# %% [markdown] id="clinic"
# ## Clinic
#
# Five small programs. Each runs without an error message and does the wrong thing. Run it, read the symptom that it
# prints, find the cause, repair it. The check looks at what your program does, not at how it is written.
#
# ### Clipped, and still it jumps
#
# The gradients are clipped to length 1 and the rate is 0.1. So no step can be longer than 0.1.

# %% id="clinic-clip" tags=["clinic"] exercise="training.clinic-clip"
def clipped_step(model, x, y, optimizer, max_norm):
    """Update the model once, with the gradients clipped to a total norm of max_norm."""
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    ### END SOLUTION
    ### BEGIN STUB
    # optimizer.zero_grad()
    # F.cross_entropy(model(x), y).backward()
    # optimizer.step()
    # nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    ### END STUB


line = nn.Linear(2, 2, bias=False)
nn.init.ones_(line.weight)
wild_x, label = torch.tensor([[100.0, 0.0]]), torch.tensor([0])
clipped_step(line, wild_x, label, torch.optim.SGD(line.parameters(), lr=0.1), max_norm=1.0)
print(f"a step of at most 0.1 moved the weights by {(line.weight.detach() - 1).norm():.1f}")
check("training.clinic-clip", clipped_step)
# hint("training.clinic-clip")

# %% [markdown] id="clinic-modes-text"
# ### Dropout that works for one epoch
#
# The network has dropout. After the first epoch it overfits as if it had none.

# %% id="clinic-modes" tags=["clinic"] exercise="training.clinic-modes"
def train_and_score(model, batches, held_out, optimizer, epochs):
    """Train; return the accuracy on held_out, an (x, y) pair, after each epoch."""
    ### BEGIN SOLUTION
    scores = []
    for _ in range(epochs):
        model.train()
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            scores.append((model(held_out[0]).argmax(1) == held_out[1]).float().mean().item())
    return scores
    ### END SOLUTION
    ### BEGIN STUB
    # scores = []
    # model.train()
    # for _ in range(epochs):
    #     for x, y in batches:
    #         optimizer.zero_grad()
    #         F.cross_entropy(model(x), y).backward()
    #         optimizer.step()
    #     model.eval()
    #     with torch.no_grad():
    #         scores.append((model(held_out[0]).argmax(1) == held_out[1]).float().mean().item())
    # return scores
    ### END STUB


net = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
passes = []
net.register_forward_hook(lambda module, _, output: passes.append("on" if module.training else "off"))
data = torch.rand(8, 4), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
train_and_score(net, [data, data], data, torch.optim.SGD(net.parameters(), lr=0.1), epochs=3)
print("dropout in each pass, 2 training and 1 validation per epoch:", " ".join(passes))
check("training.clinic-modes", train_and_score)
# hint("training.clinic-modes")

# %% [markdown] id="clinic-onecycle-text"
# ### A cycle that never gets going
#
# The rate was to rise to 0.1 and come down to almost 0 within the run. The function returns the rate that each step
# used.

# %% id="clinic-onecycle" tags=["clinic"] exercise="training.clinic-onecycle"
def train_one_cycle(model, batches, epochs, peak):
    """Train with a rate that rises to peak and falls again; return the rate of each step."""
    ### BEGIN SOLUTION
    optimizer = torch.optim.SGD(model.parameters(), lr=peak)
    scheduler = OneCycleLR(optimizer, max_lr=peak, total_steps=epochs * len(batches))
    used = []
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            used.append(optimizer.param_groups[0]["lr"])
            scheduler.step()
    return used
    ### END SOLUTION
    ### BEGIN STUB
    # optimizer = torch.optim.SGD(model.parameters(), lr=peak)
    # scheduler = OneCycleLR(optimizer, max_lr=peak, total_steps=epochs * len(batches))
    # used = []
    # for _ in range(epochs):
    #     for x, y in batches:
    #         optimizer.zero_grad()
    #         F.cross_entropy(model(x), y).backward()
    #         optimizer.step()
    #         used.append(optimizer.param_groups[0]["lr"])
    #     scheduler.step()
    # return used
    ### END STUB


data = torch.rand(8, 3), torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
used = train_one_cycle(nn.Linear(3, 2), [data] * 10, epochs=4, peak=0.1)
print(f"rates used: first {used[0]:.4f}, highest {max(used):.4f}, last {used[-1]:.4f}")
check("training.clinic-onecycle", train_one_cycle)
# hint("training.clinic-onecycle")

# %% [markdown] id="clinic-best-text"
# ### The best model is the last one
#
# After the run the model should have the weights of its best epoch. In this miniature, epoch k sets the only weight to
# k, and the loss is smallest where the weight is 2.

# %% id="clinic-best" tags=["clinic"] exercise="training.clinic-best"
def train_and_keep_best(model, train_one_epoch, validate, epochs):
    """Train, then give the model the state of the epoch with the lowest loss; return that loss."""
    ### BEGIN SOLUTION
    best_loss, best = math.inf, None
    for epoch in range(epochs):
        train_one_epoch(model, epoch)
        loss = validate(model)
        if loss < best_loss:
            best_loss, best = loss, copy.deepcopy(model.state_dict())
    model.load_state_dict(best)
    return best_loss
    ### END SOLUTION
    ### BEGIN STUB
    # best_loss, best = math.inf, None
    # for epoch in range(epochs):
    #     train_one_epoch(model, epoch)
    #     loss = validate(model)
    #     if loss < best_loss:
    #         best_loss, best = loss, model.state_dict()
    # model.load_state_dict(best)
    # return best_loss
    ### END STUB


one = nn.Linear(1, 1, bias=False)
lowest_loss = train_and_keep_best(
    one,
    lambda model, epoch: nn.init.constant_(model.weight, epoch),
    lambda model: abs(model.weight.item() - 2),
    epochs=5,
)
print(f"the best loss was {lowest_loss:.1f}; the model now has a loss of {abs(one.weight.item() - 2):.1f}")
check("training.clinic-best", train_and_keep_best)
# hint("training.clinic-best")

# %% [markdown] id="clinic-resume-text"
# ### The resumed run that learns nothing
#
# The file holds `{"model": ..., "optimizer": ...}`. The weights are back after the resume, and from then on they don't
# change. No error says so.

# %% id="clinic-resume" tags=["clinic"] exercise="training.clinic-resume"
def resume_run(path, make_model, make_optimizer):
    """Return a model and its optimizer that go on where the file at path was written."""
    ### BEGIN SOLUTION
    saved = torch.load(path)
    model = make_model()
    optimizer = make_optimizer(model.parameters())
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return model, optimizer
    ### END SOLUTION
    ### BEGIN STUB
    # model = make_model()
    # optimizer = make_optimizer(model.parameters())
    # saved = torch.load(path)
    # model = make_model()  # a fresh network for the saved weights
    # model.load_state_dict(saved["model"])
    # optimizer.load_state_dict(saved["optimizer"])
    # return model, optimizer
    ### END STUB


def make_sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


old = nn.Linear(2, 2)
state = {"model": old.state_dict(), "optimizer": make_sgd(old.parameters()).state_dict()}
with tempfile.TemporaryDirectory() as place:
    torch.save(state, Path(place) / "run.pt")
    back, stepper = resume_run(Path(place) / "run.pt", lambda: nn.Linear(2, 2), make_sgd)
back(torch.ones(1, 2)).sum().backward()
stepper.step()
print("the next step changed the weights:", not torch.equal(back.weight, old.weight))
check("training.clinic-resume", resume_run)
# hint("training.clinic-resume")

# %% [markdown] id="people-say"
# ## What people say
#
# Thirteen sentences that articles and colleagues repeat. Some are right, some were right in an earlier release, some
# never were. Put your verdict in place of the dots, in quotes: `"true"`, `"caveat"` (true under a condition),
# `"outdated"`, `"false"`, or `"opinion"` (no measurement decides it). Then run the cell, which measures.

# %% id="claim-l018"
# “torch.cuda.manual_seed_all(seed) is needed in addition to torch.manual_seed(seed).”
claim("L018", ...)

# %% id="claim-l037"
# “optimizer.zero_grad() has a set_to_none argument whose default is False, i.e. gradients are zeroed, not freed.”
claim("L037", ...)

# %% id="claim-l055"
# “A settings file with the line 'learning_rate: 1e-4' loads as a float through yaml.safe_load.”
claim("L055", ...)

# %% id="claim-l003"
# “Without zero_grad the loss curve oscillates wildly, explodes or becomes NaN.”
claim("L003", ...)

# %% id="claim-l023"
# “A validation batch size much smaller than in training makes BatchNorm metrics fluctuate even when the mode is right.”
claim("L023", ...)

# %% id="claim-l008"
# “A checkpoint dictionary is read back with torch.load(path)['model_state_dict'] and nothing else is needed.”
claim("L008", ...)

# %% id="claim-l015"
# “Gradient clipping is the standard remedy for a loss that turned NaN because of exploding gradients.”
claim("L015", ...)

# %% id="claim-l007"
# “Saving model, optimizer, epoch and scheduler state lets an interrupted run resume without any loss.”
claim("L007", ...)

# %% id="claim-l049"
# “Not dividing by the accumulation steps is equivalent to multiplying the learning rate.”
claim("L049", ...)

# %% id="claim-l053"
# “To repair BatchNorm under gradient accumulation, replace it with GroupNorm or SyncBatchNorm.”
claim("L053", ...)

# %% id="claim-l042"
# “Since PyTorch 1.1 schedulers are called at another loop level (epoch or batch) than before.”
claim("L042", ...)

# %% id="claim-l012"
# “A learning-rate scheduler must be stepped at the end of every epoch.”
claim("L012", ...)

# %% id="claim-l034"
# “Calling model.train() inside or outside the epoch loop has the same effect.”
claim("L034", ...)

# %% [markdown] id="people-say-more"
# <details>
# <summary>The other 42 sentences about this lesson</summary>
#
# `claim("L001")` measures one of them, `python3 course.py claims 05` all.
#
# - **L001** optimizer.zero\_grad() must be called before backward().
# - **L002** Gradients accumulate: each backward() adds to .grad instead of overwriting it.
# - **L004** .item() converts a scalar tensor to a Python number and drops the graph.
# - **L005** The epoch loss should be accumulated as loss.item()\*images.size(0) and divided by the number of samples.
# - **L006** Accuracy is (preds == labels).sum() with preds from torch.max(outputs, 1).
# - **L009** Adam is the quick first choice; tuned SGD+momentum often generalises better, so switch later.
# - **L010** When the loss is NaN or does not fall, the first action is always to lower the learning rate (start at
#   1e-3, reduce by 0.1x).
# - **L011** CosineAnnealingLR(optimizer, T\_max=50) keeps the rate high at first and then lowers it smoothly along a
#   cosine.
# - **L013** ReduceLROnPlateau lowers the learning rate automatically from the validation loss.
# - **L014** clip\_grad\_norm\_ rescales all gradients together when their total norm exceeds max\_norm, keeping the
#   direction.
# - **L016** Once the loss turns NaN mid-training it never recovers.
# - **L017** There are at least four random sources: PyTorch, Python random, NumPy and CUDA non-determinism.
# - **L019** Set cudnn.deterministic=True and cudnn.benchmark=False for reproducibility.
# - **L020** Do not aim for bit-for-bit reproducibility because CUDA atomics are unordered; agreement within a small
#   range is enough.
# - **L021** Labels whose dtype differs from what the loss expects are a common bug.
# - **L022** Forgetting zero\_grad makes leaf gradients several to dozens of times larger than the true gradient.
# - **L024** The officially recommended max\_norm for clip\_grad\_norm\_ is between 1.0 and 5.0.
# - **L025** When summing losses of different magnitude, weight them, otherwise the big one dominates the gradient.
# - **L026** The optimizer must receive only parameters with requires\_grad=True.
# - **L027** model.eval() and torch.no\_grad() are not equivalent: eval changes layer behaviour, no\_grad the gradient
#   tracking.
# - **L028** Two runs of the same code differ because floating-point addition is not associative and GPU order varies.
# - **L029** cudnn.deterministic=True selects deterministic algorithms, benchmark=False stops autotuning, and this is
#   slower.
# - **L030** cross\_entropy aligns the shapes of logits and labels internally.
# - **L031** A shape-broadcast bug in a hand-written loss raises no error and shows only as a model that does not
#   converge.
# - **L032** Forgetting optimizer.zero\_grad() in the loop makes gradients pile up and corrupts updates; the loss may
#   fall first and then explode or stall.
# - **L033** To find a missing zero\_grad, print a parameter gradient before step and see whether it grows with steps.
# - **L035** zero\_grad() must come before backward(); placing it after step() is equivalent.
# - **L036** Placing zero\_grad() after backward (before step) runs without error but the step has no effect.
# - **L038** Keep zero\_grad set\_to\_none at False because None gradients break code.
# - **L039** Cosine annealing falls smoothly from the initial rate to near zero; use CosineAnnealingLR.
# - **L040** CosineAnnealingWarmRestarts periodically resets the learning rate to its initial value.
# - **L041** Warmup raises the learning rate linearly over the first hundreds to thousands of steps; the original
#   Transformer recipe uses it.
# - **L043** ReduceLROnPlateau is called differently from other schedulers.
# - **L044** Epoch loss computed as sum(loss.item()\*batch)/len(dataset) is right.
# - **L045** Check for divergence with "if torch.isnan(loss)".
# - **L046** NaN in training can come from data (division by zero) as well as from the learning rate or model, so
#   check all three.
# - **L047** Operations such as exp followed by log are numerically unstable and can create NaN/Inf.
# - **L048** Gradient accumulation: several backward passes then one step emulates a large batch; divide the loss by
#   the number of steps.
# - **L050** An accumulation loop that steps only when (i + 1) % k == 0 uses every batch of the epoch.
# - **L051** Do not call zero\_grad inside the accumulation window.
# - **L052** Gradient accumulation does not change BatchNorm: statistics come from each micro-batch.
# - **L054** Record the gradient norm to see explosion or vanishing early.
#
# </details>

# %% [markdown] id="recap"
# ## Recap
#
# You can now
#
# - choose a loss, and tell from the first numbers whether it is fed with what it expects;
# - write the loop, and measure honestly: modes switched and put back, every example counted once;
# - find a learning rate, schedule it, and look at the rate that was really used;
# - keep a run within its guard rails: clipping, early stopping, the best weights;
# - repeat a run bit for bit, and say what still varies and how much that matters;
# - kill a run anywhere and resume it without losing a bit;
# - hunt a fault in an order that works: data, shapes, loss, gradients, learning rate.
#
# So why 98 % on one day and 90 % on another? Hardly luck: seeds moved the result by two or three points. Look for a
# state that a restart lost, a mode that was not switched back, a scheduler whose calls were miscounted, a batch that
# broke the weights. Each is visible in a log of loss, rate and gradient length, or in a check that takes a second.
#
# To read next, in the official documentation: [torch.optim](https://docs.pytorch.org/docs/stable/optim.html), with
# "How to adjust learning rate"; the notes on
# [reproducibility](https://docs.pytorch.org/docs/stable/notes/randomness.html) and on
# [serialization](https://docs.pytorch.org/docs/stable/notes/serialization.html); the
# [profiler](https://docs.pytorch.org/docs/stable/profiler.html).

# %% id="progress"
shutil.rmtree(folder, ignore_errors=True)
progress()
