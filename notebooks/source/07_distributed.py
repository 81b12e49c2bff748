# %% [markdown] id="title"
# # 07 Distributed data parallel
#
# **Why did the same training on two processes learn something else, and why did it stop without a word?**
#
# One card is too slow, so the job moves to four. Somebody wraps the model, starts four processes, and the loss falls.
# But the result is worse than on one card, or every card has learned something of its own, or at three in the morning
# all four stand still: no error, no progress, and the cards at 100 %.
#
# In this lesson you start several processes from this notebook, on the CPU of this machine, and have them train
# together. You write the algorithm by which they add up their gradients, and the wrapper that calls it. Then you break
# it in all the ways that keep people awake, find the guilty process, kill one, and lose nothing.

# %% id="parameters" tags=["parameters"]
SEED = 0  # of data, weights and shuffles
DEVICE = "auto"  # "cpu", "cuda", or "auto"; with CUDA, section 8 also runs on the GPUs
FAST = True  # False: longer time limits and measurements

# %% id="setup" tags=["setup"]
import inspect
import itertools
import tempfile
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DistributedSampler, TensorDataset

from course_utils import check, checkpoints, claim, hint, progress, ranks, show, shows_error
from course_utils.data import load_digits8
from course_utils.devices import pick_device
from course_utils.distributed import (
    cool_down,
    launch,
    name_of,
    processes_left,
    rank_environment,
    torchrun,
    torchrun_command,
    warm_up,
)
from course_utils.errors import UsageError
from course_utils.metrics import accuracy
from course_utils.plots import use_style
from course_utils.scaling import MB, backward_seconds, fit_link
from course_utils.seeding import seeded, stream
from course_utils.text import plural, table
from course_utils.widgets.distributed import explore_buckets
from course_utils.world import DeadlockError, World

use_style()
warm_up()  # a helper process begins to load PyTorch, while you read
n_gpus = torch.cuda.device_count() if pick_device(DEVICE).type == "cuda" else 0
PATIENCE_S = 2.0 if FAST else 10.0  # how long a process waits for the others, where this lesson makes it wait in vain
LONG_S = 0.3 if FAST else 2.0  # of a measurement
digits = load_digits8()
images, labels = digits.train.as_batch()  # (1266, 1, 8, 8) in 0..1, (1266,)
batch, batch_labels = images[:64], labels[:64]

# %% [markdown] id="hook-text"
# ### The evidence
#
# A small network, 20 steps, batches of 64 digits. First in one process. Then four programs of two processes each, which
# share every batch: 32 digits for the one, 32 for the other. All start from the same weights. All end without an error.


# %% id="hook-run"
def alone(steps, size):
    model = ranks.small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(steps):
        rows = torch.arange(step * size, (step + 1) * size) % len(images)
        optimizer.zero_grad()
        F.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
    return ranks.weights_of(model)


def same(a, b):
    return "yes" if (a - b).abs().max() < 1e-4 else "no"


one, rows = alone(20, 64), []
for kind in ("no DDP", "DDP, .module called", "DDP, same data", "DDP"):
    (first, _), (second, _) = launch(ranks.train, 2, kind=kind, x=images, y=labels, batch=64, steps=20)
    rows.append((kind, same(first, second), same(first, one)))
print(table(rows, ("two processes", "both agree", "as one process with the whole batch")))

# %% [markdown] id="hook-says"
# Only the last one is what everybody thinks they run. In the first two, each process has a network of its own, and the
# one that is saved has seen half of the data. In the third both agree, on half of the data. Nothing of this is printed.
#
# ## 1. Ranks
#
# **Distributed data parallel** means: N processes, each with a copy of the whole model, each with its own part of every
# batch. After backward they average their gradients, and so all make the same step. A process is called a **rank** and
# has a number, 0 to N−1. N is the **world size**. All of them together are the **process group**; a **backend** carries
# their messages: `nccl` between NVIDIA GPUs, `gloo` between CPUs.
#
# (`nn.DataParallel` is another thing, and older: one process, a thread for each card, and in every step the model is
# copied to all cards and everything is collected on the first. PyTorch itself recommends DDP instead, on one machine
# too.)
#
# **Predict.** Three ranks hold the numbers 0, 1 and 2, each its own. All call `dist.all_reduce(tensor)`, which sums a
# tensor over all ranks. Which number does each of them hold afterwards?

# %% id="predict-hello" tags=["prediction"]
guess = ...  # for example (rank 0, rank 1, rank 2)

# %% [markdown] id="hello-program"
# Here is the program for a rank. It joins the group, calls `all_reduce`, and returns two numbers.

# %% id="hello-source"
print(inspect.getsource(ranks.hello))
print(inspect.getsource(ranks.group.__wrapped__))

# %% [markdown] id="hello-text"
# Each rank runs the same program; what differs is its number. `launch` starts three processes that run it, shows what
# each prints, and returns what each returns. It waits for all of them, kills them at a time limit, and leaves none
# behind when you press stop.

# %% id="hello" tags=["nbval-ignore-output"]
answers = launch(ranks.hello, 3, show=True)

# %% id="hello-says-numbers"
for rank, total in answers:
    print(f"rank {rank} returned {total:.0f}")
print("your guess:", "none yet" if guess is ... else guess)
print("processes left:", processes_left())

# %% [markdown] id="env-text"
# How do they find each other? Through environment variables that whoever starts them has set. `init_process_group`
# reads them. `torchrun`, PyTorch's own starter, sets the same ones; so the same program runs under both.

# %% id="env"
environment = rank_environment(rank=1, world_size=3, port=29500)
for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
    print(f"{name:<12} {environment[name]}")

# %% [markdown] id="env-says"
# `RANK` counts over all machines, `LOCAL_RANK` within one: it says which GPU is mine. At the master address waits a
# **store**, a small server in which ranks leave their addresses for the others. Two jobs on one machine can't have the
# same port, so `launch` has the system pick a free one.
#
# The programs of this lesson live in a module, `course_utils/ranks.py`. A rank is another process: it imports its
# program, and it can't import what you have typed into a notebook.


# %% id="main"
def my_program():
    return 1


with shows_error(UsageError):
    launch(my_program, 2)

# %% [markdown] id="s2"
# ## 2. Messages, and sums over all
#
# The smallest exchange is between two ranks: one calls `send(tensor, to)`, the other `recv(tensor, from)`, which fills
# its tensor. Three ranks stand in a ring. Each has its own number in a tensor, sends it to its right neighbour,
# rank r + 1, and then receives from the left.
#
# **Predict.** What does each of the three get?

# %% id="predict-pass" tags=["prediction"]
guess = ...  # three numbers, or something else

# %% [markdown] id="pass-text"
# Here is the program, in two versions.

# %% id="pass-source"
print(inspect.getsource(ranks.pass_right))

# %% id="pass"
for send_first in (True, False):
    got = launch(ranks.pass_right, 3, send_first=send_first, patience_s=PATIENCE_S)
    print(f"send_first={send_first}:", ["nothing, time is up" if x is None else f"{x:.0f}" for x in got])
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="pass-says"
# `send` returns when the message has been taken. All three wait for somebody to take theirs, and nobody gets to `recv`:
# a **deadlock**. (Small messages may slip through on other backends. A program that relies on it hangs when they grow.)
# `isend` begins to send and returns at once; `wait()` on what it returns waits for the end. Until then, don't change
# the tensor.
#
# Waiting for the time limit at each mistake is tedious. For trying things out, the course has a `World` whose ranks are
# threads of this process. Each gets an object with the functions of `torch.distributed`, under the same names. It sees
# a deadlock at once and says who waits for whom.


# %% id="world"
def everybody_sends(dist):
    right = (dist.get_rank() + 1) % dist.get_world_size()
    dist.send(torch.ones(1), right)


with shows_error(DeadlockError):
    World(3).run(everybody_sends)

# %% [markdown] id="around-text"
# ### Exercise: round the ring
#
# Each rank has a tensor, all of the same shape. Every rank is to end with the tensors of all: return a list of n
# tensors, that of rank k at place k. Messages go to the right neighbour alone, (r + 1) % n, and each rank sends n − 1
# of them: first its own, then whatever came last. `dist` has the functions that this section has used: `get_rank()`,
# `get_world_size()`, `send`, `recv`, `isend`. With one rank there is nothing to send.


# %% id="ex-around" tags=["exercise"] exercise="distributed.around"
def gather_all(tensor, dist):
    """Return the tensors of all ranks, in the order of the ranks; a list of n tensors."""
    ### BEGIN SOLUTION
    rank, n = dist.get_rank(), dist.get_world_size()
    found = [None] * n
    found[rank] = tensor
    for step in range(1, n):
        sending = dist.isend(found[(rank - step + 1) % n], (rank + 1) % n)
        came = torch.empty_like(tensor)
        dist.recv(came, (rank - 1) % n)
        found[(rank - step) % n] = came
        sending.wait()
    return found
    ### END SOLUTION


check("distributed.around", gather_all)
# hint("distributed.around")

# %% [markdown] id="collectives-text"
# ### Collectives
#
# What all ranks do together is a **collective**. You have just written one, `all_gather`. Some others: three ranks
# begin with [1, 10], [2, 20] and [3, 30].

# %% id="collectives"
found = launch(ranks.collectives, 3)
rows = [(name, *(str(answer[name]) for answer in found)) for name in list(found[0])[:-1]]
print(table(rows, ("call", "rank 0", "rank 1", "rank 2")))
print("all_gather, on every rank:", found[2]["all_gather"])

# %% [markdown] id="collectives-says"
# `broadcast` copies from one to all. `all_reduce` adds up, or takes the largest, and leaves the result with everybody;
# training is made of it. Two rules: it works in place, and **every rank must call it**, since each waits for all.
#
# How expensive is an `all_reduce` of gradients? If everybody sends all numbers to rank 0, that rank receives n − 1
# times the data and becomes the bottleneck. The **ring all-reduce** does better. Each tensor is cut into n parts. A
# part goes round the ring, and each rank adds its own numbers on the way, so that after n − 1 steps each rank holds one
# part of the full sum. Then the sums go round once more. In each of the 2 (n − 1) steps a rank sends one part.
#
# **Predict.** The gradients take 100 MB. How many MB does each rank send with 2 ranks, with 8, with 1,000?

# %% id="predict-ring" tags=["prediction"]
guess = ...  # three numbers

# %% id="ring-cost"
for n in (2, 8, 1000):
    print(f"{n:>4} ranks: {2 * (n - 1)} steps of {100 / n:g} MB, {2 * (n - 1) * 100 / n:.1f} MB sent by each")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="ring-cost-says"
# Never more than twice the data, whatever the number of ranks. That is why data parallel training scales at all. What
# does grow is the number of steps: for small tensors the time to begin a message counts, not its size.
#
# ### Exercise: ring all-reduce
#
# Sum `tensor` over all ranks, in place, on every rank. It has one dimension, is contiguous, and holds at least n
# numbers, not always a multiple of n. Messages go to the right neighbour alone, and no rank may send more than
# 2 (n − 1) · ⌈D / n⌉ numbers in all, for a tensor of D numbers. `tensor.tensor_split(n)` gives n parts that are views.
# In step s = 0, 1, … send part (r − s) mod n and receive part (r − s − 1) mod n.


# %% id="ex-ring" tags=["exercise"] exercise="distributed.ring"
def ring_all_reduce(tensor, dist):
    """Sum the tensor over all ranks, in place."""
    ### BEGIN SOLUTION
    rank, n = dist.get_rank(), dist.get_world_size()
    parts = tensor.tensor_split(n)
    for step in range(2 * (n - 1)):
        own = parts[(rank - step - 1) % n]
        came = torch.empty_like(own)
        sending = dist.isend(parts[(rank - step) % n], (rank + 1) % n)
        dist.recv(came, (rank - 1) % n)
        sending.wait()
        if step < n - 1:
            own += came  # on the way to the sum
        else:
            own.copy_(came)  # a sum that is complete
    ### END SOLUTION


# With real processes: launch(ranks.run_source, 3, source=inspect.getsource(ring_all_reduce), name="ring_all_reduce")
check("distributed.ring", ring_all_reduce)
# hint("distributed.ring")

# %% [markdown] id="ring-real-text"
# The comment in that cell sends the text of your function to three real processes and compares it with the library.
# Here the course's own ring does so, with four processes and 1,001 numbers of double precision.

# %% id="ring-real"
compared = launch(ranks.compare_ring, 4, length=1001)
print("agrees with dist.all_reduce to 1e-12:", all(difference < 1e-12 for difference, _ in compared))
print("all ranks have the same bits:", all(is_same for _, is_same in compared))

# %% [markdown] id="ring-real-says"
# The same bits matter. Each part was added up once and then copied. If every rank added up for itself, in an order of
# its own, rounding would differ, and the copies of the model would drift apart.
#
# ## 3. What DDP does
#
# With that you can train: every rank computes the gradients of its part of the batch, then all average them. If the
# parts are equally large and the loss is a mean, the average of the ranks' gradients *is* the gradient of the whole
# batch.
#
# ### Exercise: average the gradients
#
# For every parameter of the model, put the mean of the ranks' gradients into `p.grad`, on every rank. A gradient can be
# `None`, on some ranks or on all, for a part of the model that was not used; then it counts as zeros. Where no rank has
# one, zeros or `None` are both fine.


# %% id="ex-average" tags=["exercise"] exercise="distributed.average"
def average_gradients(model, dist):
    """Average p.grad over all ranks, in place or by a new tensor in p.grad."""
    ### BEGIN SOLUTION
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    ### END SOLUTION


check("distributed.average", average_gradients)
# hint("distributed.average")

# %% [markdown] id="ddp-text"
# `DistributedDataParallel(model)`, short DDP, does it for you, *during* backward. One step of a real one on two
# processes, against one process with the whole batch of 64.


# %% id="ddp-equal"
def whole_batch(normed=False, parts=1):
    model = ranks.small_net(normed=normed)
    for x, y in zip(batch.chunk(parts), batch_labels.chunk(parts)):
        (F.cross_entropy(model(x), y) / parts).backward()
    return model


expected = ranks.gradients_of(whole_batch())
for rank, found in enumerate(launch(ranks.gradients, 2, x=batch, y=batch_labels)):
    difference = (found["gradients"] - expected).abs().max().item()
    print(f"rank {rank}: {len(expected)} gradients, as in one process to 1e-6: {difference < 1e-6}")

# %% [markdown] id="wrap-text"
# ### Exercise: DDP in ten lines
#
# Write the wrapper. `SmallDDP(module, dist)` is an `nn.Module`.
#
# - When it is made, all ranks take over the parameters *and buffers* of rank 0, in place (`p.data` is the parameter's
#   tensor without the graph; `dist.broadcast(tensor, 0)`).
# - `forward(x)` returns what the module returns.
# - After `loss.backward()`, each `p.grad` is the mean over the ranks. Nobody calls you for that:
#   `p.register_post_accumulate_grad_hook(function)` calls `function(p)` whenever a gradient has arrived in `p.grad`.


# %% id="ex-wrap" tags=["exercise"] exercise="distributed.wrap"
class SmallDDP(nn.Module):
    """A module whose gradients are averaged over the ranks in backward."""

    ### BEGIN SOLUTION
    def __init__(self, module, dist):
        super().__init__()
        self.module, self.dist = module, dist
        for tensor in itertools.chain(module.parameters(), module.buffers()):
            dist.broadcast(tensor.data, 0)
        for p in module.parameters():
            p.register_post_accumulate_grad_hook(self.average)

    def average(self, p):
        self.dist.all_reduce(p.grad)
        p.grad /= self.dist.get_world_size()

    def forward(self, x):
        return self.module(x)

    ### END SOLUTION
    ### BEGIN STUB
    # def __init__(self, module, dist): ...
    #
    # def forward(self, x): ...
    ### END STUB


check("distributed.wrap", SmallDDP)
# hint("distributed.wrap")

# %% [markdown] id="buckets-text"
# ### Buckets
#
# Yours sends one message for each parameter, and backward stands still meanwhile. DDP does two things better. It puts
# gradients together into **buckets**, and it sends a bucket in the background as soon as the last of its gradients is
# ready, while backward goes on with the layers before.
#
# We watch it: six layers of equal size, and buckets that are full at two of them. DDP lets you replace what it does
# with a bucket (`register_comm_hook`), and ours takes notes.
#
# **Predict.** Backward starts at layer 5 and ends at layer 0. At the moment when the first bucket leaves, how many of
# the six gradients are not there yet? In the first step of the training, and in the second?

# %% id="predict-buckets" tags=["prediction"]
guess = ...  # two numbers

# %% id="buckets"
steps = launch(ranks.watch_backward, 2, n_layers=6, width=200, cap_mb=0.3, steps=2)[0]
for number, events in enumerate(steps, 1):
    missing = 6
    for kind, layers in events:
        missing -= kind == "gradient"
        if kind == "bucket":
            print(f"step {number}: a bucket with layers {layers} leaves, {missing} gradients still to come")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="buckets-says"
# In the first step everything travels in one bucket, at the very end: DDP only watches in which order the gradients
# come. From the second step on it has buckets in that order, and two thirds of the way the network works while backward
# works. Usually they are 25 MB large (`bucket_cap_mb`).
#
# ### Exercise: which gradients travel together
#
# `sizes` are the bytes of the parameters in the order of the forward pass. Return the buckets as a list of lists of
# places in `sizes`, in the order in which they leave. Go from the last parameter to the first; a bucket is closed as
# soon as it holds `cap` bytes or more. What is left at the end is the last bucket.


# %% id="ex-buckets" tags=["exercise"] exercise="distributed.buckets"
def plan(sizes, cap):
    """Return the buckets, each a list of places; a list of lists of int."""
    ### BEGIN SOLUTION
    buckets, current, total = [], [], 0
    for place in reversed(range(len(sizes))):
        current.append(place)
        total += sizes[place]
        if total >= cap:
            buckets.append(current)
            current, total = [], 0
    return [*buckets, current] if current else buckets
    ### END SOLUTION


check("distributed.buckets", plan)
# hint("distributed.buckets")

# %% [markdown] id="nosync-text"
# ### Accumulating
#
# Four micro-batches, one step. Gradients add up on each rank, so the ranks need not talk before the last one. Inside
# `with ddp.no_sync():` they don't; the forward pass must be inside as well, since DDP decides there.
#
# **Predict.** The small network fits into one bucket. How many buckets does a rank send for its four micro-batches,
# without `no_sync` and with it around the first three? And in which case are the gradients those of the whole batch?

# %% id="predict-nosync" tags=["prediction"]
guess = ...  # two numbers, and a word

# %% id="nosync"
expected = ranks.gradients_of(whole_batch(parts=4))
for sync, name in (("each", "without no_sync"), ("last", "with no_sync   ")):
    found = launch(ranks.gradients, 2, x=batch, y=batch_labels, n_parts=4, sync=sync)[1]
    difference = (found["gradients"] - expected).abs().max().item()
    print(f"{name}: {plural(found['sent'], 'bucket')} sent, gradients as in one process to 1e-6: {difference < 1e-6}")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="accumulate-text"
# Both are right; one talks four times as much. Averages of averages are still averages, so the mistake costs time and
# nothing else, and nobody notices.
#
# ### Exercise: accumulate without talking
#
# `ddp` is a wrapped model with `no_sync()`, `batches` a list of k pairs `(x, y)` of equal size, `loss_fn(output, y)` a
# mean. All `.grad` are empty. After your function, every rank has the gradient of the mean over all examples of all its
# batches and of all ranks, and the ranks have exchanged gradients once. `nullcontext()` is a block that does nothing.


# %% id="ex-accumulate" tags=["exercise"] exercise="distributed.accumulate"
def accumulate(ddp, batches, loss_fn):
    """Leave the gradients of all batches in the parameters' .grad, with one exchange."""
    ### BEGIN SOLUTION
    for number, (x, y) in enumerate(batches):
        is_last = number == len(batches) - 1
        with nullcontext() if is_last else ddp.no_sync():
            (loss_fn(ddp(x), y) / len(batches)).backward()
    ### END SOLUTION


check("distributed.accumulate", accumulate)
# hint("distributed.accumulate")

# %% [markdown] id="s4"
# ## 4. Who reads what
#
# DDP knows nothing about data. If every rank reads the same batches, each average is an average of equal things: that
# was the third program at the top. A `DistributedSampler` deals the indices out: same shuffle on every rank, then every
# N-th index.
#
# **Predict.** 10 examples, 4 ranks. How many indices does each rank get, and are they all different?

# %% id="predict-sampler" tags=["prediction"]
guess = ...

# %% id="sampler"
ten = TensorDataset(torch.arange(10))
for epoch in (0, 1):
    for rank in range(4):
        sampler = DistributedSampler(ten, num_replicas=4, rank=rank, seed=SEED)
        sampler.set_epoch(epoch)
        print(f"epoch {epoch}, rank {rank}: {list(sampler)}")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="sampler-says"
# Every rank must take the same number of steps, or one waits for ever. So the sampler repeats examples until it can
# deal evenly (`drop_last=True` leaves some out instead). In training this does no harm. In an evaluation, two
# examples count twice.
#
# The order of an epoch comes from `seed + epoch`, and the sampler only knows the epoch if you call `set_epoch`.
#
# ### Exercise: deal the examples
#
# Return the indices of one rank in one epoch, a list of ⌈n_examples / n_ranks⌉ plain `int`. Together the ranks see
# every example; some may come twice to fill up. Every epoch is shuffled anew before it is dealt, so that a rank sees
# other examples, in other company. The same arguments give the same list on every rank and in every run, whatever state
# the global generators are in.


# %% id="ex-shares" tags=["exercise"] exercise="distributed.shares"
def share(n_examples, rank, n_ranks, epoch):
    """Return this rank's indices in this epoch, a list of int."""
    ### BEGIN SOLUTION
    generator = torch.Generator().manual_seed(SEED + epoch)
    order = torch.randperm(n_examples, generator=generator).tolist()
    while len(order) % n_ranks:
        order.append(order[len(order) - n_examples])
    return order[rank::n_ranks]
    ### END SOLUTION


check("distributed.shares", share)
# hint("distributed.shares")

# %% [markdown] id="seeds-text"
# ### Which seed on which rank?
#
# "Every process needs its own seed", says one page, "all need the same", says the other. We try both, with and without
# DDP, and look at the first weights and at the first dropout noise of two ranks.
#
# **Predict.** One seed for all or one for each rank, DDP or not: in how many of the four cases is the noise the same on
# both ranks?

# %% id="predict-seeds" tags=["prediction"]
guess = ...  # 0 to 4

# %% id="seeds"
first, second = launch(ranks.start, 2)
rows = []
for case in first:
    equal = ["same" if torch.equal(a, b) else "differ" for a, b in zip(first[case], second[case])]
    rows.append((*case, *equal))
print(table(rows, ("seed", "model", "weights", "dropout noise")))
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="seeds-says"
# DDP copies the weights of rank 0 to all when it is made, so they agree in any case. (Later changes by hand it doesn't
# see.) The noise is what a common seed spoils: all ranks drop the same neurons and make the same augmentation. The
# sampler's seed, on the other hand, must be the same everywhere, or the shares overlap. So: build the model, wrap it,
# then seed by rank; give the sampler a seed of its own.
#
# Workers multiply as well: 4 ranks with `num_workers=4` are 20 processes on one machine.
#
# ### Global batch and learning rate
#
# Each of N ranks takes batches of B, so a step averages over N · B examples, and an epoch has N times fewer steps. One
# process can play this: batches of 32, of 256, and of 256 with a learning rate that is multiplied by 8 as well.


# %% id="global-batch"
def after_epochs(size, lr, epochs=3):
    model = ranks.small_net(SEED)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    order = stream(SEED, "order")
    for _ in range(epochs):
        for rows in torch.randperm(len(images), generator=order).split(size):
            optimizer.zero_grad()
            F.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        return accuracy(model(images), labels)


for size, lr in ((32, 0.1), (256, 0.1), (256, 0.8)):
    print(f"batch {size:>3}, learning rate {lr}: {5 * round(20 * after_epochs(size, lr))} % read, to the next five")

# %% [markdown] id="global-batch-says"
# Eight times fewer steps of the same length do not get as far. A gradient over 8 times as many examples is less noisy,
# so the steps may be longer: multiplying the learning rate by the number of ranks is the usual first try, with a
# warm-up. It is a rule of thumb and ends somewhere; look at the loss.
# (Source: [Goyal et al., 2017](https://arxiv.org/abs/1706.02677), section 2.1.)
#
# ## 5. BatchNorm
#
# BatchNorm divides by the spread of the batch. Which batch? We repeat the comparison of gradients with one BatchNorm
# layer in the network.
#
# **Predict.** Two ranks with 32 digits each, against one process with all 64. Are the gradients the same to 1e-6? Have
# both ranks the same running mean after the step?

# %% id="predict-norm" tags=["prediction"]
guess = ...  # two words

# %% id="norm"
model = whole_batch(normed=True)
expected = ranks.gradients_of(model)
found = launch(ranks.gradients, 2, x=batch, y=batch_labels, normed=True)
for rank, answer in enumerate(found):
    difference = (answer["gradients"] - expected).abs().max() / expected.abs().max()
    print(f"rank {rank}: gradients as in one process: {bool(difference < 1e-3)}")
means = [answer["running_mean"] for answer in found]
print("running mean the same on both ranks:", torch.allclose(*means, atol=1e-6))
middle = (means[0] + means[1]) / 2
print("their middle is that of one process:", torch.allclose(middle, model[2].running_mean, atol=1e-6))
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="norm-says"
# Each rank normalises with the statistics of its own 32 digits. That is another function, with other gradients, and
# DDP doesn't hide it: it averages gradients, nothing else. The running statistics differ too. DDP copies those of
# rank 0 to all before each forward pass (`broadcast_buffers`), so at the end rank 0's are saved, and the others'
# examples never counted.
#
# With many examples per rank this matters little. With two or four, as in detection or video, it ruins the training.
# `nn.SyncBatchNorm.convert_sync_batchnorm(model)` replaces every BatchNorm by one that computes mean and variance over
# all ranks, with two extra exchanges for each layer and step. Here is what DDP says to it on the CPU.

# %% id="sync-refused"
kind, error = launch(ranks.wrap_synced, 2)[0]
print("after the conversion:", kind)
print(error or "DDP takes it on the CPU")

# %% [markdown] id="statistics-text"
# What it does is not tied to a GPU. You can write it.
#
# ### Exercise: statistics of all ranks
#
# Each rank has rows `x`, (N, C), with an N of its own, at least 1. Return `(mean, variance)` over the rows of **all**
# ranks, both (C,), on every rank; the variance divides by the number of rows. Use `dist.all_reduce(tensor)`, the sum in
# place. It must also be right for values around 3,000 that spread by 2, in float32.


# %% id="ex-statistics" tags=["exercise"] exercise="distributed.statistics"
def statistics(x, dist):
    """Return mean and variance over all ranks' rows, (N, C) -> (C,), (C,)."""
    ### BEGIN SOLUTION
    count = torch.tensor(float(len(x)))
    mean = x.sum(0)
    dist.all_reduce(count)
    dist.all_reduce(mean)
    mean = mean / count
    spread = (x - mean).square().sum(0)
    dist.all_reduce(spread)
    return mean, spread / count
    ### END SOLUTION


check("distributed.statistics", statistics)
# hint("distributed.statistics")

# %% [markdown] id="s6"
# ## 6. Numbers and files
#
# Each rank knows the accuracy on its own examples. Three ranks evaluate 8, 8 and 4 digits and get 6, 6 and 1 of them
# right.


# %% id="metric"
def report(dist):
    right, count = torch.tensor([(6.0, 8.0), (6.0, 8.0), (1.0, 4.0)][dist.get_rank()])
    share = right / count
    dist.all_reduce(share)
    return share.item() / dist.get_world_size()


print(f"mean of the ranks' accuracies: {World(3).run(report)[0]:.3f}")
print(f"right over all, of all:        {(6 + 6 + 1) / (8 + 8 + 4):.3f}")

# %% [markdown] id="metric-says"
# The mean of means is another number. Sum what can be summed, and divide at the end; the same goes for losses, for
# precision and recall. And when the sampler has filled up with repeated examples, evaluate without it.
#
# ### Exercise: accuracy over all ranks
#
# `predictions` and `labels` are int64, (N,), with an N of its own on each rank, and 0 on some. Return the share of
# right predictions over all ranks, the same Python number on every rank. At least one rank has an example.


# %% id="ex-accuracy" tags=["exercise"] exercise="distributed.accuracy"
def accuracy_of_all(predictions, labels, dist):
    """Return the share of right predictions over all ranks, a float in 0..1."""
    ### BEGIN SOLUTION
    counts = torch.tensor([int((predictions == labels).sum()), len(labels)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()
    ### END SOLUTION


check("distributed.accuracy", accuracy_of_all)
# hint("distributed.accuracy")

# %% [markdown] id="save-text"
# ### Saving
#
# A wrapper is a module that has the model in its attribute `module`. So the names in its `state_dict` get longer.


# %% id="prefix"
class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module


wrapper = Wrapper(ranks.small_net())
print("wrapper:", list(wrapper.state_dict())[:2])
print("model:  ", list(wrapper.module.state_dict())[:2])
with shows_error(RuntimeError):
    ranks.small_net().load_state_dict(wrapper.state_dict())

# %% [markdown] id="prefix-says"
# Save the inner model's state, `ddp.module.state_dict()`, and it loads anywhere: with DDP, without, on one card or on
# eight. All ranks hold the same weights, so one of them writes. And the others must not read before it has.
# `dist.barrier()` is a collective without data: it returns when every rank has called it.
#
# ### Exercise: one file for all
#
# Rank 0 writes the inner model's `state_dict` to `path` (`torch.save`), the other ranks write nothing, and no rank
# returns before the file is there. The check gives every rank a path of its own, to see who writes.


# %% id="ex-save" tags=["exercise"] exercise="distributed.save"
def save(ddp, path, dist):
    """Write the model's state once; return on every rank when it is there."""
    ### BEGIN SOLUTION
    if dist.get_rank() == 0:
        torch.save(ddp.module.state_dict(), path)
    dist.barrier()
    ### END SOLUTION


check("distributed.save", save)
# hint("distributed.save")

# %% [markdown] id="s7"
# ## 7. When ranks disagree
#
# A collective has no name on the wire. The k-th call of one rank meets the k-th call of the others, whatever each
# means by it. Three ranks sum their loss (0.5) and their number of examples (8) in each of three steps; the mean loss
# should be 0.5 and the count 24. Rank 1 makes a mistake in step 2.

# %% id="mismatch-source"
print(inspect.getsource(ranks.mismatched))

# %% [markdown] id="mismatch-text"
# **Predict.** In which of these cases does any rank get an error: rank 1 makes the two calls in the other order
# (`order`); it sums a tensor of 3 numbers where the others sum 1 (`size`); it leaves one call out and goes on computing
# (`missing`)?

# %% id="predict-mismatch" tags=["prediction"]
guess = ...  # yes or no, three times

# %% id="mismatch"
ends = {}
for kind in ("none", "order", "size", "missing"):
    ends[kind] = launch(ranks.mismatched, 3, kind=kind, patience_s=PATIENCE_S, check=False, grace_s=2 * PATIENCE_S)
    errors = [end.error or end.result["error"] for end in ends[kind]]
    what = "no error" if not any(errors) else "an error on some rank, after waiting or a crash"
    print(f"{kind:<8} {what}")
for kind in ("none", "order"):
    loss, count = ends[kind][0].result["results"][1]
    print(f"{kind:<8} rank 0 in step 2: mean loss {loss:.2f}, {count:g} examples")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="mismatch-says"
# The first mistake is the worst: shapes agree, so nothing is noticed, and losses are added to counts. The second ends
# in an error, or in the death of a process, when a message doesn't fit its buffer. The third is the hang. What did the
# ranks say?

# %% id="hang-errors" tags=["nbval-ignore-output"]
for end in ends["missing"]:
    print(f"rank {end.rank}, after {end.seconds:.1f} s: {(end.error or end.result['error'] or 'finished')[:130]}")
print("time limit of a collective, if none is set:", dist.distributed_c10d.default_pg_timeout)

# %% [markdown] id="hang-says"
# Ranks 0 and 2 waited until their time limit. We had set it to a few seconds with `init_process_group(timeout=...)`;
# without that, you would have waited as long as the last line says. And the error names the wrong ones: those who
# waited. The guilty rank has no error at all, or one that says that the others are
# gone.
#
# Two ways to find it. The first: each rank writes down what it is about to call, *before* it calls it. A **flight
# log**. Here are the first four lines of each.

# %% id="flight-log"
for kind in ("missing", "order"):
    logs = [end.result["log"] for end in ends[kind]]
    rows = [(place, *(log[place] for log in logs)) for place in range(4)]
    print(table(rows, (f"{kind}: call", "rank 0", "rank 1", "rank 2")), end="\n\n")

# %% [markdown] id="flight-says"
# At the first line where they part, one rank does otherwise than the others: that is the guilty one, also in the case
# that gave no error. PyTorch keeps such a log for NCCL (the *flight recorder*), and `TORCH_DISTRIBUTED_DEBUG=DETAIL`
# compares the calls of all ranks before each one is made, at a price.
#
# The second: a **monitored barrier**. Put it where you suspect the trouble. It is a barrier with a roll call: rank 0
# waits for a sign from each of the others, and after its time limit says who is missing.

# %% id="monitored"
said = launch(ranks.monitored, 3, patience_s=0.5)
print(said[0])

# %% [markdown] id="guilty-text"
# ### Exercise: find the guilty rank
#
# `logs[r]` is the flight log of rank r, a list of texts; a rank that waits or has left has a shorter one. Return
# `(place, ranks)`: the first place, counted from 0, at which the logs are not all equal (a log that has ended there
# differs from one that goes on), and the list of the ranks that differ from what most ranks have there, in order.
# Return `None` if all logs are equal. More than half of the ranks always agree.


# %% id="ex-guilty" tags=["exercise"] exercise="distributed.guilty"
def guilty(logs):
    """Return (place, ranks) or None."""
    ### BEGIN SOLUTION
    for place, lines in enumerate(itertools.zip_longest(*logs)):
        usual, count = Counter(lines).most_common(1)[0]
        if count < len(logs):
            return place, [rank for rank, line in enumerate(lines) if line != usual]
    return None
    ### END SOLUTION


check("distributed.guilty", guilty)
# hint("distributed.guilty")

# %% [markdown] id="unused-text"
# ### A parameter that nobody uses
#
# DDP waits for the gradient of every parameter. If one of them doesn't take part in the loss, its bucket is never full.
#
# **Predict.** A second head is not used. In which step does DDP complain, the first or the second?

# %% id="predict-unused" tags=["prediction"]
guess = ...

# %% id="unused"
print(launch(ranks.unused_parameter, 2, find=False)[0])
print("with find_unused_parameters=True:", launch(ranks.unused_parameter, 2, find=True)[0] or "no error")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="unused-says"
# Backward of the first step ends without a word, although a bucket was never full and so was never sent. Only the
# second step notices. The numbers in the message are places in `list(model.parameters())`.
# `find_unused_parameters=True` walks the graph in each step to find out; better is a model that uses what it has.
#
# ### Unequal numbers of batches
#
# Rank 0 has 3 batches, rank 1 has 4. `with ddp.join():` lets ranks that have finished play along.

# %% id="uneven"
for joined in (False, True):
    found = launch(ranks.uneven, 2, joined=joined)
    print(f"join={joined}:", ", ".join(f"rank {r}: {n} steps, {how}" for r, (n, how) in enumerate(found)))

# %% [markdown] id="uneven-says"
# Without it rank 1 begins a fourth step alone, and fails when rank 0 has gone. If rank 0 goes on to something else, an
# evaluation for example, it waits. The simplest cure is data that is dealt evenly.
#
# ## 8. What it costs
#
# Two ranks on a laptop with two cores are for learning. Still, this machine has a network between its processes, the
# loopback interface, and it can be measured: an all-reduce of growing size. The model: 2 (n − 1) messages, each with a
# **latency** until it begins and a **bandwidth** after that.

# %% id="link" tags=["nbval-ignore-output"]
sizes = [4_000, 40_000, 400_000, 1_000_000, 4_000_000, 16_000_000]
times = launch(ranks.all_reduce_seconds, 2, sizes_bytes=sizes, seconds=LONG_S / 2)[0]
link = fit_link(sizes, times, n_ranks=2)
print(f"latency {1e6 * link.latency_s:.0f} µs, bandwidth {link.bytes_per_s / 1e9:.2f} GB/s")
rows = [
    (f"{size / MB:g} MB", f"{1000 * time:.2f} ms", f"{1000 * link.all_reduce_s(size, 2):.2f} ms")
    for size, time in zip(sizes, times)
]
print(table(rows, ("tensor", "measured", "fitted")))

# %% [markdown] id="steps-text"
# Now backward with buckets: eight layers with 1 MB of gradients each, so small buckets mean many messages, and large
# ones mean that the network begins late. The model takes the time of backward alone, and the fitted link, and knows
# nothing else.

# %% id="step-times" tags=["nbval-ignore-output"]
caps = (0.5, 2, 4, 16)
found = launch(ranks.step_seconds, 2, caps_mb=caps, n_layers=8, width=512, batch=128, steps=5 if FAST else 40)[0]
layer_bytes, layer_s = [4 * 512 * 512] * 8, [found["alone"] / 8] * 8
rows = [("none sent", f"{1000 * found['alone']:.1f} ms", "")]
for cap, seconds in zip(caps, found["caps"]):
    model_s = backward_seconds(layer_bytes, layer_s, cap * 2**20, link, n_ranks=2)
    rows.append((f"{cap:g} MiB", f"{1000 * seconds:.1f} ms", f"{1000 * model_s:.1f} ms"))
print(table(rows, ("buckets", "measured", "model")))

# %% [markdown] id="steps-says"
# The model is too kind. It lets the network work beside backward for free, as it does where network cards and GPUs do
# the sending. Here the same cores do both, and so part of the time that should be hidden isn't.
#
# ### Explorer: bucket size and network
#
# A network with 100 MB of gradients, as large as a ResNet-50, on a network of your choice; "this machine" is the link
# that was fitted above. Bars of one colour are one bucket: when backward makes its gradients, and when it travels.
#
# **Try this.**
#
# - Which bucket size is best with 10 Gbit/s Ethernet and 8 ranks? What happens at both ends of the curve, and why?
# - Multiply the latency by 100. Where has the best size gone?
# - Make backward quicker, as a better GPU would. From when on does nothing help but another network?

# %% id="explorer" tags=["explorer"]
explore_buckets(measured=link)

# %% [markdown] id="scaling-text"
# ### Does it pay?
#
# **Scaling efficiency** is what N ranks do together, divided by N times what one does alone. We measure it with a batch
# of 64 for each rank.

# %% id="scaling" tags=["nbval-ignore-output"]
alone_per_s = launch(ranks.throughput, 1, batch=64, width=512, seconds=LONG_S)[0]
for n in (2, 3) if FAST else (2, 3, 4):
    together = sum(launch(ranks.throughput, n, batch=64, width=512, seconds=LONG_S))
    print(f"{n} ranks: {together:,.0f} examples/s, one alone {alone_per_s:,.0f}: ", end="")
    print(f"{together / alone_per_s:.2f} times as many, efficiency {together / n / alone_per_s:.0%}")

# %% [markdown] id="scaling-says"
# On a machine whose cores were busy already this looks sad, and it is honest: N ranks share the cores, caches and
# memory that one had, and pay for sending. What carries over to real clusters is everything *except* the speed: the
# gradients, the hangs, the restarts. Speed has to be measured where each rank has a device of its own.
#
# ### On GPUs
#
# The program stays the same. The backend is `nccl`, each rank takes the GPU with its `LOCAL_RANK`, and DDP gets
# `device_ids=[local_rank]`.

# %% id="nccl" tags=["nbval-ignore-output"]
if n_gpus:
    found = launch(ranks.nccl_sum, n_gpus, size=25_000_000)
    busy = 2 * (n_gpus - 1) / n_gpus * 100 * MB / found[0]["seconds"] / 1e9
    print(f"{n_gpus} x {found[0]['name']}: sums right: {all(answer['right'] for answer in found)}")
    print(f"100 MB in {1000 * found[0]['seconds']:.2f} ms, {busy:.0f} GB/s sent by each rank")
    differences = launch(ranks.sync_batch_norm, n_gpus, x=torch.randn(16 * n_gpus, 5))
    print(f"SyncBatchNorm as BatchNorm over the whole batch, to 1e-5: {max(differences) < 1e-5}")
else:
    print("no CUDA here; with it, this cell sums 100 MB over all GPUs by NCCL, and runs SyncBatchNorm on them")

# %% [markdown] id="fsdp"
# **And if the model doesn't fit?** DDP keeps everything on every rank: parameters, gradients, the optimizer's state.
# *Fully sharded data parallel* (`fully_shard`, FSDP) keeps an N-th of each on every rank. It collects the parameters of
# a layer just before it is used (`all_gather`), and hands each rank its part of the summed gradients (the first half of
# your ring, `reduce_scatter`). More traffic, for a fraction of the memory.
#
# ## 9. A rank that dies
#
# Machines fail, and on a hundred of them one does so every day. `torchrun` watches its ranks. If one dies, it ends all,
# starts all again, and the program must know how to go on: from a checkpoint that all ranks read.

# %% id="elastic-source"
print(inspect.getsource(ranks.train_on))

# %% [markdown] id="elastic-text"
# It averages its gradients by hand, as you did in section 3. (DDP would do the same. It imports much more, each time
# that a rank starts.) Two epochs of 19 steps, a checkpoint every 5 steps. At step 13, in the middle of an epoch, rank 1
# is killed with a signal that no program can catch. Once without that, by `launch`, for comparison.
#
# **Predict.** At which step do the ranks start for the second time? And are the final weights the same as without the
# accident: to 1e-6, to the bit, or not?

# %% id="predict-elastic" tags=["prediction"]
guess = ...  # a number and a word

# %% id="elastic" tags=["nbval-ignore-output"]
folders = [Path(tempfile.mkdtemp(prefix="lesson07-")) for _ in range(2)]
for folder in folders:
    checkpoints.save(folder / "data.pt", x=images, y=labels)
settings = {"epochs": 2, "every": 5}
launch(ranks.train_on, 2, folder=str(folders[0]), **settings)
cool_down()  # the helper of `launch` isn't needed any more; torchrun starts every rank anew
ended = torchrun(ranks.train_on, 2, max_restarts=1, folder=str(folders[1]), die_at=13, **settings)
for line in ended.readable.splitlines():
    if "] starts" in line or "] dies" in line or "] is done" in line or "exitcode" in line:
        print(line[:110])
print(f"torchrun ended with exit code {ended.exit_code} after {ended.seconds:.1f} s")

# %% id="elastic-equal"
calm, restarted = (checkpoints.load(folder / "final.pt")["model"] for folder in folders)
print("exit code:", ended.exit_code)
print("started at step 10 again:", ended.readable.count("] starts at step 10") == 2)
print("the same weights, bit for bit:", all(torch.equal(calm[name], restarted[name]) for name in calm))
print("processes left:", processes_left())
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="elastic-says"
# Three steps were made twice and nothing was lost, since everything that decides the next step was in the checkpoint or
# follows from the number of the step: weights, the optimizer's momentum, the epoch of the sampler, the place in it.
#
# In a terminal this would have been, in one line:

# %% id="elastic-command"
print("torchrun", " \\\n    ".join(torchrun_command(ranks.train_on, 2, max_restarts=1)[:5]), "\\\n    train.py")

# %% [markdown] id="elastic-bug"
# One trap: with the `c10d` rendezvous of this version, ranks that are started again can read the addresses of their
# dead predecessors and fail with "connection refused"
# ([pytorch/pytorch#135712](https://github.com/pytorch/pytorch/issues/135712)). `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`
# in the environment gives each start a store of its own; the course's `torchrun` sets it.

# %% [markdown] id="clinic"
# ## Clinic
#
# Five programs that people have run for weeks. They end without an error, or they don't end. In the checks, ranks are
# threads, so a hang is seen at once.
#
# ### 1. Every epoch alike
#
# "Since we train on four cards, it overfits sooner." Each rank reads its list of indices, epoch after epoch.


# %% id="clinic-epoch" tags=["clinic"] exercise="distributed.clinic-epoch"
def orders(dataset, rank, n_ranks, epochs):
    """Return the indices that this rank reads, a list for each epoch."""
    sampler = DistributedSampler(dataset, num_replicas=n_ranks, rank=rank, shuffle=True, seed=SEED)
    found = []
    for epoch in range(epochs):
        ### BEGIN SOLUTION
        sampler.set_epoch(epoch)
        ### END SOLUTION
        ### BEGIN STUB
        # torch.manual_seed(epoch)
        ### END STUB
        found.append(list(sampler))
    return found


check("distributed.clinic-epoch", orders)
# hint("distributed.clinic-epoch")

# %% [markdown] id="clinic-noise-text"
# ### 2. Two cards, one noise
#
# "Twice the cards, but augmentation brings no more than before." Return the model, which must start alike on all ranks
# (there is no DDP here to help), and a generator for the augmentation, different on each rank. Both follow from `seed`
# and `rank`, so that the run can be repeated. `stream(seed, "purpose", number)` makes a generator for a purpose.


# %% id="clinic-noise" tags=["clinic"] exercise="distributed.clinic-noise"
def begin(rank, seed, make_model):
    """Return (model, generator of the noise)."""
    torch.manual_seed(seed)
    model = make_model()
    ### BEGIN SOLUTION
    noise = stream(seed, "noise", rank)
    ### END SOLUTION
    ### BEGIN STUB
    # noise = torch.Generator().manual_seed(seed)
    ### END STUB
    return model, noise


check("distributed.clinic-noise", begin)
# hint("distributed.clinic-noise")

# %% [markdown] id="clinic-barrier-text"
# ### 3. Rank 0 waits for ever
#
# "On one card it works. On two it stands still after the download." Rank 0 downloads, then all load what is there.


# %% id="clinic-barrier" tags=["clinic"] exercise="distributed.clinic-barrier"
def prepare(dist, download, load):
    """Download once, then load on every rank; return what this rank loaded."""
    ### BEGIN SOLUTION
    if dist.get_rank() == 0:
        download()
    dist.barrier()
    return load()
    ### END SOLUTION
    ### BEGIN STUB
    # if dist.get_rank() == 0:
    #     download()
    #     dist.barrier()
    # return load()
    ### END STUB


check("distributed.clinic-barrier", prepare)
# hint("distributed.clinic-barrier")

# %% [markdown] id="clinic-stop-text"
# ### 4. One stops, the other waits
#
# "It hangs, always after some hours, never at the same epoch." Training stops when the loss has not improved for
# `patience` epochs. `train_epoch()` trains one epoch together with the other ranks and returns this rank's loss, a
# Python number. The mean over the ranks is what should decide. Return the number of epochs.


# %% id="clinic-stop" tags=["clinic"] exercise="distributed.clinic-stop"
def train_until(dist, train_epoch, patience):
    """Train until the mean loss has not improved for so many epochs; return how many were trained."""
    best, bad, epochs = float("inf"), 0, 0
    while bad < patience:
        ### BEGIN SOLUTION
        loss = train_epoch()
        mean = torch.tensor(loss, dtype=torch.float64)
        dist.all_reduce(mean)
        loss = mean.item() / dist.get_world_size()
        ### END SOLUTION
        ### BEGIN STUB
        # loss = train_epoch()
        ### END STUB
        epochs += 1
        if loss < best:
            best, bad = loss, 0
        else:
            bad += 1
    return epochs


check("distributed.clinic-stop", train_until)
# hint("distributed.clinic-stop")

# %% [markdown] id="clinic-module-text"
# ### 5. The way past the wrapper
#
# "The loss needs a method of the model, so we call the model." It was the second program at the top of the lesson.
# `ddp` is a wrapped model; y holds classes. Return the loss as a number.


# %% id="clinic-module" tags=["clinic"] exercise="distributed.clinic-module"
def train_step(ddp, x, y, optimizer):
    """Make one step with gradients averaged over the ranks; return this rank's loss, a float."""
    ### BEGIN SOLUTION
    loss = F.cross_entropy(ddp(x), y)
    ### END SOLUTION
    ### BEGIN STUB
    # loss = F.cross_entropy(ddp.module(x), y)
    ### END STUB
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


check("distributed.clinic-module", train_step)
# hint("distributed.clinic-module")

# %% id="clean-up"
for folder in folders:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
print("files removed:", not any(folder.exists() for folder in folders), "  processes left:", processes_left())

# %% [markdown] id="people-say"
# ## What people say
#
# Thirteen sentences that articles and colleagues repeat. Some are right, some were right in an earlier release, some
# never were. Put your verdict in place of the dots, in quotes: `"true"`, `"caveat"` (true under a condition),
# `"outdated"`, `"false"`, or `"opinion"` (no measurement decides it). Then run the cell, which measures.

# %% id="claim-r012"
# “Every DDP process should get a different seed because equal seeds make the data order identical across ranks.”
claim("R012", ...)

# %% id="claim-r013"
# “Seeding only in the main process leaves model initialisation inconsistent between ranks.”
claim("R013", ...)

# %% id="claim-r004"
# “Without a DistributedSampler all processes read the same data, so 4 cards see only a quarter of the data per epoch.”
claim("R004", ...)

# %% id="claim-r005"
# “DistributedSampler gives each process a different slice of the data.”
claim("R005", ...)

# %% id="claim-r015"
# “BatchNorm statistics under DDP are per device; SyncBatchNorm synchronises them.”
claim("R015", ...)

# %% id="claim-r016"
# “DDP buckets gradients; larger buckets communicate more efficiently at more memory, set via bucket_cap_mb.”
claim("R016", ...)

# %% id="claim-r007"
# “DDP is started with torch.distributed.launch.”
claim("R007", ...)

# %% id="claim-r022"
# “Under DDP, parameters unused by the loss raise an error in the next iteration, and calling ddp.module(x) skips
# gradient synchronisation silently.”
claim("R022", ...)

# %% id="claim-r014"
# “Give each rank a different seed (plus per-worker seeds) for augmentation and dropout.”
claim("R014", ...)

# %% id="claim-r003"
# “A DDP script initialises the process group with NCCL, reads LOCAL_RANK, sets the device and wraps the model with
# device_ids=[local_rank].”
claim("R003", ...)

# %% id="claim-r020"
# “In DDP each process samples its data independently.”
claim("R020", ...)

# %% id="claim-r008" tags=["nbval-ignore-output"]
# “DDP brings a nearly linear speed-up.”
claim("R008", ...)

# %% id="claim-r010"
# “On a single machine, torchrun plus DDP is enough.”
claim("R010", ...)

# %% [markdown] id="people-say-more"
# <details>
# <summary>The other 9 sentences about this lesson</summary>
#
# `claim("R001")` measures one of them, `python3 course.py claims 07` all.
#
# - **R001** DataParallel (one process) and DistributedDataParallel (one process per card) are different, and DDP is
#   the proper choice.
# - **R002** DataParallel scales increasingly badly from 4 cards on because of synchronisation and load imbalance.
# - **R006** Under DDP the batch\_size is per card, so the global batch is batch\_size times the number of cards and
#   the learning rate must be reconsidered.
# - **R009** Save model.module.state\_dict() so a single-card model can load it without the 'module.' prefix.
# - **R011** Call sampler.set\_epoch(epoch) each epoch, otherwise every epoch has the same order.
# - **R017** Gradient compression can reduce DDP communication.
# - **R018** num\_workers is per process: 4 ranks x 4 workers = 16 worker processes compete for CPU.
# - **R019** torchrun --nproc\_per\_node=N starts single-machine DDP with rank variables in the environment.
# - **R021** Under DDP, gradient accumulation should wrap the non-final micro-steps in no\_sync(), otherwise every
#   micro-step communicates.
#
# </details>

# %% [markdown] id="recap"
# ## Recap
#
# You can now
#
# - start ranks from a notebook or with `torchrun`, and be sure that none is left;
# - say what a ring all-reduce sends, since you have written one that agrees with the library;
# - say what DDP does, in `__init__`, in forward and in backward, and prove that its gradients are those of one process;
# - accumulate without talking, deal data fairly, and seed what must agree and what must differ;
# - name what is *not* the same as on one device: BatchNorm, the size of the batch, averages of averages;
# - find the rank that hangs the others, and go on after one has died;
# - measure what sending costs, and when it can hide behind backward.
#
# And the question from the top? Two processes that never meet learn two things. And they stop without a word because
# each waits for a call that another one will never make.
#
# **Read next**, in PyTorch's documentation:
# [torch.distributed](https://docs.pytorch.org/docs/stable/distributed.html),
# [Distributed data parallel: notes on the design](https://docs.pytorch.org/docs/stable/notes/ddp.html),
# [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html),
# [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html).

# %% id="progress" tags=["nbval-ignore-output"]
progress()
