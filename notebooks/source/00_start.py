# %% [markdown] id="title"
# # 00 Start here
#
# **Does everything work on this machine, and how does the course work?**
#
# A project that fails in week three often failed on day one: a library that was not the one everybody else had, a
# data file cut short by a bad network, a check that nobody ran. This page tests your machine by computing something,
# shows you the four tools that every lesson uses, and teaches one habit: to make a failing program smaller.
#
# If you have not used a notebook before: click into a cell, press <kbd>Shift</kbd> + <kbd>Enter</kbd> to run it and
# move on. Run the cells from top to bottom.

# %% id="parameters" tags=["parameters"]
SEED = 0  # where this page draws at random, it starts here
DEVICE = "auto"  # "cpu", "cuda", or "auto" for the best one found
FAST = True  # False: longer, prettier runs in the lessons that offer them

# %% id="setup" tags=["setup"]
import torch
import torch.nn.functional as F
from IPython.display import Markdown, display

from course_utils import check, hint, progress, readiness, selftest, shows_error, solution
from course_utils.devices import pick_device
from course_utils.lessons import LESSONS
from course_utils.seeding import stream
from course_utils.text import table
from course_utils.tools import envreport
from course_utils.tools.requirements import pins, unmet
from course_utils.widgets.start import explore_line

device = pick_device(DEVICE)

# %% [markdown] id="promises"
# ## Three promises
#
# 1. **You see it happen.** What a lesson claims, you can measure on your own machine, most of it in the next cell,
#    without a GPU and without a network. Every number comes with its unit, every tensor with its shape.
# 2. **You are told why, not only that.** When an answer is wrong, the check names the idea behind the mistake. When
#    a program is wrong, you learn to find out where, in an order that works.
# 3. **You end up able to do it alone.** Given a model and a pile of data that you have never seen, you train it, find
#    out why it misbehaves, make it fit, and ship it.
#
# ## The map
#
# Each lesson opens with something that goes wrong in real projects.

# %% id="map"
lines = ["| lesson | it starts from the question |", "| --- | --- |"]
for lesson in LESSONS:
    lines.append(f"| [{lesson.number} {lesson.title}]({lesson.stem}.ipynb) | {lesson.question} |")
display(Markdown("\n".join(lines)))

# %% [markdown] id="how-lessons-work"
# ## How a lesson works
#
# A section of a lesson has four steps: a question in words, **your prediction**, a measurement, and what the numbers
# say. Between the sections stand **exercises**; near the end comes a **clinic** of small programs that run and do
# the wrong thing, for you to repair. A lesson runs from top to bottom whatever you have answered, so you can read
# ahead and come back.
#
# ### Predictions
#
# Write down what you expect *before* you run the experiment. Then you look at the result more closely, and a wrong
# guess shows you which idea to mend. Nobody grades it, and no check looks at it.
#
# Here is the first one. Below are 400 points that scatter around a straight line: each one is moved up or down by a
# random amount with standard deviation 0.5. We let PyTorch look for the line that fits best, where "best" means
# that the **mean squared error** is smallest: take the vertical distance of each point from the line, square it,
# average over all points.
#
# How small can that average get? It will not be 0, since no line passes through all points. Write your guess in
# place of the three dots, run the cell, then run the next one. You don't have to know the functions in its code yet.

# %% id="predict-floor" tags=["prediction"]
guess = ...

# %% id="measure-floor"
x, y = selftest.line_points()  # (N,), (N,) with N = 400
line = torch.zeros(2, requires_grad=True)  # slope and intercept: what we look for
for _ in range(200):
    loss = ((line[0] * x + line[1] - y) ** 2).mean()  # (N,) -> ()
    (slope_of_loss,) = torch.autograd.grad(loss, line)
    with torch.no_grad():
        line -= 0.2 * slope_of_loss  # a small step downhill

print(f"line found: y = {line[0]:.2f} x + {line[1]:.2f}")
print(f"mean squared error: {loss:.2f}")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="explain-floor"
# The points were made from y = 2 x + 0.5, and the line that was found is close to it. What remains is the scatter:
# its standard deviation is 0.5, so its mean square is about 0.5² = 0.25. No method gets far below that without
# learning the noise by heart. Whenever you meet a loss that stops falling, ask first how low it *can* go.
#
# You have also just seen a whole training loop: compute a loss, find out which way is downhill, take a step, repeat.
# The lessons that follow are about what happens inside those five lines.
#
# ### Explorers
#
# An explorer is a picture with controls, and what it shows is computed afresh at every change. Click a slider and
# use the arrow keys, or drag it. Without the controls, on GitHub for example, you see the picture for the starting
# values, and the same numbers as text.
#
# **Try this.** Move the line by hand. Get the error as low as you can with the slope alone, then with both. Can you
# beat the line that PyTorch found?

# %% id="explorer-line" tags=["explorer"]
explore_line()

# %% [markdown] id="exercises"
# ### Exercises
#
# In an exercise you replace the blank `...` by your own code and run the cell. Its last line, `check(...)`, tries
# your answer on inputs that are new each time, and says one of three things: *not attempted yet*, *passed* with what
# was seen to hold, or the *first* thing that is not right together with the idea to revisit. Every right way to
# write it counts. Run it as often as you like.
#
# The warm-up: write the mean squared error as a function. Both inputs have shape (N,), one number per example; the
# result is a tensor of shape (), a single number that still knows how it was computed.

# %% id="exercise-mse" tags=["exercise"] exercise="start.mean-squared-error"
def mean_squared_error(predictions, labels):
    """Return the mean of the squared differences, shapes (N,), (N,) -> ()."""
    ### BEGIN SOLUTION
    return (predictions - labels).square().mean()
    ### END SOLUTION


check("start.mean-squared-error", mean_squared_error)

# %% [markdown] id="hints"
# ### Hints and solutions
#
# Stuck? Each call of `hint` says a little more than the one before, in three steps: the idea, the tools, nearly the
# answer. `solution` shows one way to write it. Try a wrong answer too: leave out the square, check again, and read
# what the check says about it.

# %% id="show-hint"
hint("start.mean-squared-error", 1)

# %% [markdown] id="solutions-note"
# To see the reference answer, remove the `#` and run the cell.

# %% id="show-solution"
# solution("start.mean-squared-error")

# %% [markdown] id="progress-note"
# ### Your progress
#
# What you have solved is kept in one small file, `progress.json`, in the folder `workspace/`. Once an exercise is
# passed it stays passed, whatever you try afterwards. `python3 course.py progress` shows the same list in a terminal.

# %% id="progress" tags=["nbval-ignore-output"]
progress()

# %% [markdown] id="selftest-intro"
# ## Does PyTorch compute the right thing here?
#
# `import torch` without an error proves little. A wrong build, two packages that do not belong together, or a
# damaged data file show only when something is computed. So the course tests itself: it fits the line from above,
# then trains a small network on 3,500 images of handwritten digits for two passes, and compares seven numbers with
# those stored by the authors.

# %% id="selftest-run"
results = selftest.run(device)
print(selftest.layer_table(results.layers))

# %% [markdown] id="selftest-shapes"
# That is the network, layer by layer, as a batch of 64 images passes through it. Read the shapes from top to bottom.
# The first axis is always the batch. A convolution (`Conv2d`) turns one channel into several and leaves height and
# width alone; after each, a pooling step that learns nothing halves both, so 28 becomes 14, then 7. Before `drop1`,
# what is left of an image, 16 · 7 · 7 = 784 numbers, is laid out in one row. The `norm` and `drop` layers keep the
# shape they get; later lessons are about them. The last layer leaves ten numbers per image, one for each digit. A table
# like this one is a good first look at an unfamiliar model.
#
# Now the comparison. Two machines seldom agree to the last digit: the order of a sum depends on the number of threads
# and on the processor, and training lets tiny differences grow. Each line therefore has a tolerance, wide enough for
# a healthy machine and far too narrow for a network that does not learn.

# %% id="selftest-verdicts"
verdicts = selftest.compare(results.values)
print(selftest.verdict_table(verdicts))
print()
print(selftest.summary(verdicts))

# %% [markdown] id="selftest-measured"
# And these are the numbers of your machine. The first loss of the network is worth a look. A network that knows
# nothing gives each of 10 digits a probability of about 1/10. The loss is minus the logarithm of the probability that
# the right digit got, here ln 10 = 2.30 per image; its unit is the *nat*, from the natural logarithm. Lesson 05 makes
# a test of it that takes one line.

# %% id="selftest-values" tags=["nbval-ignore-output"]
for verdict in verdicts:
    print(f"{verdict.what:<28} {verdict.measured:10.4f}")

# %% [markdown] id="readiness-intro"
# ## Does this machine have what the lessons need?
#
# Some lessons use more than arithmetic. They start worker processes, let processes add numbers together, export a
# model to another format, or listen on a port. Each of these works on nearly every machine, and where it doesn't, it
# looks like a fault of *your* program. So each is tried here, once and small. A line that says MISSING comes with its
# remedy.

# %% id="readiness" tags=["nbval-ignore-output"]
findings = readiness.examine()
print(readiness.findings_table(findings))
for remedy in readiness.remedies(findings):
    print(remedy)
print()
print(readiness.summary(findings))

# %% [markdown] id="environment-intro"
# ## What this machine has
#
# When something fails, the first thing that anybody who wants to help you will ask is what you have installed. This
# is the answer, in a form to paste into a bug report. `python3 course.py env` prints it in a terminal, together with
# the folders in use; look through those before you paste them anywhere, since they often contain your name.

# %% id="environment" tags=["nbval-ignore-output"]
report = envreport.collect()
facts = ("python", "torch", "torchvision", "cuda", "device", "threads", "cores", "deterministic", "platform")
rows = [(fact, str(report[fact])) for fact in facts]
rows += [(f"data: {entry['name']}", envreport.data_text(entry)) for entry in report["data"]]
print(table(rows, ("what", "value")))
for problem in report["problems"] or ["none found"]:
    print("problem:", problem)

# %% [markdown] id="versions-intro"
# ### Locked and installed versions
#
# The course names the exact version of each package it uses, in `requirements.txt`. That is called *locking*: it is
# what makes your numbers and ours comparable. A lock only helps if it is kept, so compare what is locked with what is
# installed. The table lists the differences and nothing else; if there are none, one sentence says so.

# %% id="versions" tags=["nbval-ignore-output"]
locked = pins()
differences = unmet(locked)
rows = [(name, locked[name], found or "not installed") for name, found in differences.items()]
print(table(rows, ("package", "locked", "installed")) if rows else f"All {len(locked)} packages are as locked.")

# %% [markdown] id="versions-note"
# A difference is not an error. It is the first suspect when a result differs. `python3 course.py setup` brings back
# the locked versions.

# %% [markdown] id="repro-intro"
# ## The habit: cut it down until it fits on a postcard
#
# Something fails in a program of 300 lines, and you cannot see why. Do not stare at it. *Make it smaller while it
# still fails.* What you end up with is called a **minimal reproduction**: the shortest program that shows the fault
# on somebody else's machine. Often you find the cause while cutting. If not, you have what a colleague, a forum or the
# PyTorch developers need to help you.
#
# Here is a small case to practise on. It stands in for your 300 lines: it loads data, prepares it, builds a model
# and trains it.

# %% id="repro-whole"
import numpy as np
from sklearn.datasets import load_digits
from torch import nn


def train(epochs=3):
    data = load_digits()
    images = data.images.reshape(len(data.images), -1)  # (N, 64)
    images = (images - images.mean()) / images.std()
    order = np.random.default_rng(SEED).permutation(len(images))
    x, y = torch.from_numpy(images[order]), torch.from_numpy(data.target[order])
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for xb, yb in zip(x.split(100), y.split(100), strict=True):
            loss = F.cross_entropy(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


with shows_error(RuntimeError):
    train()

# %% [markdown] id="repro-cut-1"
# The course shows only the last line of the error here. The whole *traceback* says where: in `model(xb)`, inside its
# first layer. To see it, call `train()` in a cell of your own, without `shows_error`.
#
# **Cut 1: take away what comes after the failure.** It fails at the very first batch, before there is a loss. So the
# loss, the optimizer and the loop cannot be the cause. They go, and it still fails.

# %% id="repro-cut-1-run"
data = load_digits()
images = data.images.reshape(len(data.images), -1)
images = (images - images.mean()) / images.std()
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))

with shows_error(RuntimeError):
    model(torch.from_numpy(images[:100]))

# %% [markdown] id="repro-cut-2"
# **Cut 2: replace the data by made-up data of the same kind.** Nobody else has your files, so a report that needs
# them helps nobody. Keep what a tensor *is*: its shape, its dtype, its device. Here `images` is a NumPy array of
# shape (100, 64) and dtype float64, so zeros of the same shape and dtype take its place.
#
# **Cut 3: replace the model by one layer.** Take the layer that the traceback names, and try it alone.

# %% id="repro-cut-3-run"
layer = nn.Linear(64, 32)
array = np.zeros((100, 64))

with shows_error(RuntimeError):
    layer(torch.from_numpy(array))
print("input: ", torch.from_numpy(array).dtype)
print("layer: ", layer.weight.dtype)

# %% [markdown] id="repro-found"
# Three lines are left, and the cause is in plain sight: NumPy makes float64 unless told otherwise, `from_numpy` keeps
# it, and the layer's weights are float32. A matrix product wants one dtype. Lesson 01 explains why; the repair is one
# word.

# %% id="repro-repair"
repaired = layer(torch.from_numpy(array).float())  # (100, 64) -> (100, 32)
print("output:", tuple(repaired.shape), repaired.dtype)

# %% [markdown] id="repro-rules"
# Two more rules for the cutting:
#
# - **One cut at a time, and run after each.** If the failure goes away, what you cut last has to do with it. Put it
#   back and cut elsewhere.
# - **Run it in a fresh process**: *Kernel → Restart Kernel and Run All Cells*. A notebook remembers every cell you
#   ever ran, also those you have deleted, and many faults live in that memory only.
#
# ### What goes into the report
#
# 1. The shortest program, as text, complete with its imports and its seed. Not a screenshot.
# 2. What you expected, in one sentence.
# 3. What you saw: the whole error text, or the wrong number.
# 4. The environment report from above.
#
# If the failure comes and goes, seed first. With the seed in the program, the person who helps you sees the same
# random numbers as you do. `stream` is the course's way: it makes a generator for one purpose, from a seed and a name.

# %% id="repro-seed"
first = torch.rand(3, generator=stream(SEED, "demo"))
again = torch.rand(3, generator=stream(SEED, "demo"))
print(f"the same numbers twice: {torch.equal(first, again)}")

# %% [markdown] id="recap"
# ## Recap
#
# You can now
#
# - run a lesson, commit to a prediction, use an explorer, check an exercise and ask for help with it;
# - say what your machine has, and whether it computes what it should;
# - cut a failing program down to a few lines, and write a report that somebody can act on.
#
# **Read next:** [PyTorch's page on reproducibility](https://docs.pytorch.org/docs/stable/notes/randomness.html), and
# Stack Overflow's
# [How to create a minimal, reproducible example](https://stackoverflow.com/help/minimal-reproducible-example).
# Then start with [lesson 01](01_tensors.ipynb).
