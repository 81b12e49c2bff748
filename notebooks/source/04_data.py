# %% [markdown] id="title"
# # 04 Dataset and DataLoader
#
# **Why does training get slower when I add workers, and why do two of them draw the same random numbers?**
#
# A GPU at 30 % and a progress bar that stutters: the loop waits for data. So you write `num_workers=4`. Now the first
# batch takes seconds, on the other machine it crashes, an epoch of the stream ends somewhere else, and the augmentation
# no longer helps. Nothing says why.
#
# In this lesson you make a data pipeline from files on the disk to batches, start worker processes in every way that
# your platform has, and measure what they do: what they draw, what they read, how quick they are, and when they lose.

# %% id="parameters" tags=["parameters"]
SEED = 0  # of samplers, noise and the model
DEVICE = "auto"  # "cpu", "cuda", or "auto" for the best one found
FAST = True  # False: more numbers of workers in the timing

# %% id="setup" tags=["setup"]
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler, get_worker_info
from torchvision.transforms import v2

from course_utils import check, claim, hint, progress, show, shows_error
from course_utils.data import load_digits8
from course_utils.datasets import Costly, Counting, ImageFolder, Numbers, Sequences, mask_of, pad, write_image_folder
from course_utils.devices import pick_device
from course_utils.errors import DataError
from course_utils.models import MLP
from course_utils.pipeline import time_steps, timeline, total_ms
from course_utils.plots import use_style
from course_utils.seeding import seed_worker, seeded, stream
from course_utils.text import table
from course_utils.widgets.data import explore_timeline
from course_utils.workers import (
    GENERATORS,
    ending_workers,
    first_batch_error,
    first_draws,
    live_children,
    start_methods,
    throughput,
)

use_style()
device = pick_device(DEVICE)
folder = Path(tempfile.mkdtemp(prefix="lesson04-"))  # for images; the last cell removes it
digits = load_digits8().train

# %% [markdown] id="s1"
# ## 1. From files to examples
#
# A **dataset** answers two questions: how many examples are there (`len(dataset)`), and what is example `i`
# (`dataset[i]`). Any object that can do both will do. This kind is called *map-style*.
#
# We write 60 digits as PNG files, one folder for each class, and add what a real folder has: notes, a hidden file, an
# ending in capitals.

# %% id="make-folder"
pixels = (digits.images[:60].float() * 255 / 16).to(torch.uint8)  # (60, 1, 8, 8); this set counts from 0 to 16
write_image_folder(folder, pixels, digits.labels[:60])
(folder / "3" / "notes.txt").write_text("taken on a Tuesday")
(folder / "3" / ".preview.png").write_bytes(b"")
shutil.copy(sorted((folder / "3").glob("*.png"))[1], folder / "3" / "LAST.PNG")
images = ImageFolder(folder)
image, label = images[20]
print("examples:", len(images), "  classes:", images.classes)
print("example 20:", tuple(image.shape), image.dtype, "label", label)

# %% [markdown] id="folder-says"
# 61: the 60 files and the copy. The operating system promises no order when it lists a folder, so `ImageFolder` sorts.
# Otherwise example 20, and even the number of a class, would depend on the disk.
#
# ### Exercise: the same list on every machine
#
# List the images of such a folder as pairs `(path, label)`: path as a `Path` or as text, absolute or relative to
# `root`. Each sub-folder of `root` is a class. Classes are numbered from 0 in the order of `sorted(names)`; files come
# class by class, sorted by name. Images end in .png, .jpg or .jpeg, in any case. Files and folders whose names start
# with a dot are hidden and left out: Jupyter makes a folder `.ipynb_checkpoints` wherever it saves. Images that lie
# directly in `root` have no class.

# %% id="ex-list-images" tags=["exercise"] exercise="data.list-images"
def list_images(root):
    """Return a list of (path, label), sorted."""
    ### BEGIN SOLUTION
    def visible(folder):  # by name: Windows sorts paths as if all letters were small
        return sorted((path for path in folder.iterdir() if path.name[0] != "."), key=lambda path: path.name)

    found = []
    for label, folder in enumerate(path for path in visible(Path(root)) if path.is_dir()):
        found += [(p, label) for p in visible(folder) if p.suffix.lower() in (".png", ".jpg", ".jpeg")]
    return found
    ### END SOLUTION


check("data.list-images", list_images)
# hint("data.list-images")

# %% [markdown] id="corrupt"
# ### A file that is broken
#
# Downloads stop halfway, disks fill up. We cut the end off one file and read it twice: as Pillow does it, and as the
# course's dataset does.

# %% id="corrupt-file"
victim = sorted((folder / "7").glob("*.png"))[0]
whole = victim.read_bytes()
victim.write_bytes(whole[:-30])
try:
    np.array(Image.open(victim))
except Exception as error:
    print("Pillow's error names the file:", victim.name in str(error))
with shows_error(DataError):
    for i in range(len(images)):
        images[i]
victim.write_bytes(whole)
print("bytes put back:", victim.read_bytes() == whole)

# %% [markdown] id="corrupt-says"
# Pillow says that something is wrong, not with which file. In a loop over a million files, that is all you get. Add the
# name where it is known.
#
# ### Exercise: an error that names the file
#
# Read a grey image as a uint8 tensor `(1, H, W)`; a colour image becomes grey by `convert("L")`. If it can't be
# decoded, raise a `ValueError` whose text has the file's name. `Image.open` reads only the header; the pixels are
# decoded later, by `convert` or by `np.array(image)`.

# %% id="ex-read" tags=["exercise"] exercise="data.read"
def read(path):
    """Return the image, uint8, (1, H, W); raise ValueError with the file's name."""
    ### BEGIN SOLUTION
    try:
        with Image.open(path) as image:
            pixels = np.array(image.convert("L"))
    except (OSError, SyntaxError) as error:
        raise ValueError(f"can't read {path}") from error
    return torch.from_numpy(pixels)[None]
    ### END SOLUTION


check("data.read", read)
# hint("data.read")

# %% [markdown] id="transforms"
# ### Transforms: at each reading, or once
#
# A random transform makes another version of an image. We apply the same one (torchvision's `v2`, a turn of up to 30
# degrees) in two ways: when an example is read, and once, when the data set is made.
#
# **Predict.** We read the same image in 10 epochs. How many different versions does the model see in each case?

# %% id="predict-versions" tags=["prediction"]
guess = ...  # (at each reading, baked in)

# %% id="versions"
turn = v2.Compose([v2.RandomRotation(30), v2.ToDtype(torch.float32, scale=True)])
with seeded(SEED):
    fresh = ImageFolder(folder, transform=turn)
    baked = [(turn(image), label) for image, label in images]
    for name, dataset in (("at each reading", fresh), ("baked in", baked)):
        versions = {dataset[20][0].numpy().tobytes() for _ in range(10)}
        print(f"{name + ':':<17}{len(versions):>3} versions in 10 epochs")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="versions-says"
# Not 10 at each reading: on 8 x 8 pixels, two turns by nearly the same angle move the same pixels. Baked in,
# augmentation is only another data set of the same size. The rule: what is **random** belongs into `__getitem__`; what
# is costly and always the same (decoding, resizing) can be done once and kept.

# %% [markdown] id="s2"
# ## 2. From examples to batches
#
# A `DataLoader` draws indices (the **sampler**), reads the examples, and glues them together (`collate_fn`). The
# default collate stacks tensors and turns numbers into tensors. What about the last batch?

# %% id="batches"
ten = TensorDataset(torch.arange(10))
for drop_last in (False, True):
    loader = DataLoader(ten, batch_size=4, shuffle=True, drop_last=drop_last, generator=stream(SEED, "ten"))
    print(f"drop_last={drop_last}: sizes", [len(batch) for (batch,) in loader], "  len(loader):", len(loader))

# %% [markdown] id="batches-says"
# `drop_last=True` leaves out 2 of the 10. With a shuffle, others in each epoch, which is fine in training. In a test
# it means that some examples are never looked at.
#
# The order comes from `generator`. Without one, it is drawn from torch's global generator, and one more random layer
# in the model changes the order of the data.

# %% id="order"
def first_batch(draws_before, generator=None):
    """Return the first batch of a shuffled loader after some draws from the global generator."""
    with seeded(SEED):
        torch.rand(draws_before)
        return next(iter(DataLoader(ten, batch_size=4, shuffle=True, generator=generator)))[0].tolist()


print("global generator: the same after one draw more:", first_batch(0) == first_batch(1))
own = [first_batch(n, stream(SEED, "shuffle")) for n in (0, 1)]
print("own generator:    the same after one draw more:", own[0] == own[1])

# %% [markdown] id="ragged"
# ### Sequences of different lengths
#
# Sentences, songs and sensor logs are not equally long. The default collate refuses.

# %% id="ragged-refused"
sequences = Sequences([2, 5, 3])  # examples of shape (T, 2)
with shows_error(RuntimeError):
    next(iter(DataLoader(sequences, batch_size=3)))

# %% [markdown] id="pad-text"
# Three tools belong together: **pad** to the longest of the batch, keep the **lengths**, and make a **mask** that says
# which steps are real.

# %% id="pad-mask"
padded, lengths = next(iter(DataLoader(sequences, batch_size=3, collate_fn=pad)))
print("padded:", tuple(padded.shape), "  lengths:", lengths.tolist())
print(padded[:, :, 0])
print(mask_of(lengths).int())

# %% [markdown] id="ex-pad-text"
# ### Exercise: a collate function
#
# `batch` is a list of N tensors of shape (T, D) with different T. Return `(padded, lengths)`: padded of shape
# (N, longest T, D) with zeros after the end, lengths as an int64 tensor (N,). The order stays, and the sequences aren't
# changed. `pad_sequence(batch, batch_first=True)` does the padding.

# %% id="ex-pad" tags=["exercise"] exercise="data.pad"
def pad_batch(batch):
    """Return (padded, lengths): (N, T, D) and (N,)."""
    ### BEGIN SOLUTION
    lengths = torch.tensor([len(sequence) for sequence in batch])
    return pad_sequence(batch, batch_first=True), lengths
    ### END SOLUTION


check("data.pad", pad_batch)
# hint("data.pad")

# %% [markdown] id="packed"
# A recurrent network such as a GRU goes along the steps and carries a **hidden state** from one to the next; the last
# one stands for the whole sequence. In a **packed** batch the steps lie without gaps, with the number of sequences that
# are still running at each step.
#
# **Predict.** We compare each sequence's last state with the one that it has alone. For which of the three lengths, 2,
# 5 and 3, is it the same from the padded batch, and for which from the packed one?

# %% id="predict-packed" tags=["prediction"]
guess = ...  # two lists of three: padded [True, True, True], packed [...]

# %% id="packed-rnn"
with seeded(SEED):
    rnn = nn.GRU(2, 4, batch_first=True)
packed = pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
print("places in the padded batch:", padded[:, :, 0].numel(), "  steps in the packed one:", len(packed.data))
print("running at each step:", packed.batch_sizes.tolist())
with torch.no_grad():
    alone = torch.cat([rnn(sequence[None])[1] for sequence in sequences], 1)  # (1, N, 4), one by one
    for name, batch in (("padded", padded), ("packed", packed)):
        same = [torch.allclose(rnn(batch)[1][:, i], alone[:, i], atol=1e-6) for i in range(3)]
        print(f"{name}: ends as it does alone: {same}")
unpacked, _ = pad_packed_sequence(packed, batch_first=True)
print("unpacking gives the padded batch back:", torch.equal(unpacked, padded))
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="packed-says"
# Without packing, the short sequences run on through zeros, and their last states are others: the result for a sequence
# depends on who else is in its batch. Only the longest has no padding.
#
# ### Exercise: a mean that skips the padding
#
# Return the mean over the real steps of each sequence, (N, T, D) → (N, D). `lengths` is int64, (N,), each at least 1.
# What stands in the padding must not matter: a layer may have made anything of it, even nan. `padded` stays as it is.

# %% id="ex-masked-mean" tags=["exercise"] exercise="data.masked-mean"
def masked_mean(padded, lengths):
    """Return the mean over real steps, (N, D)."""
    ### BEGIN SOLUTION
    real = torch.arange(padded.shape[1]) < lengths[:, None]  # (N, T)
    return padded.masked_fill(~real[..., None], 0).sum(1) / lengths[:, None]
    ### END SOLUTION


check("data.masked-mean", masked_mean)
# hint("data.masked-mean")

# %% [markdown] id="s3"
# ## 3. Who is drawn: samplers
#
# 950 healthy, 50 ill. A network that always says "healthy" is right in 95 % of the cases. One answer is to draw the
# rare class more often: `WeightedRandomSampler` draws example `i` with a chance proportional to `weights[i]`.
#
# **Predict.** With weights that draw both classes equally often, 1,000 draws with replacement: how many *different*
# healthy examples does one epoch show, out of 950?

# %% id="predict-weighted" tags=["prediction"]
guess = ...  # one number

# %% id="weighted"
labels = torch.tensor([0] * 950 + [1] * 50)
weights = (1 / torch.bincount(labels))[labels]
drawn = torch.tensor(list(WeightedRandomSampler(weights, 1000, generator=stream(SEED, "weighted"))))
print("draws of class 0 and 1:", torch.bincount(labels[drawn]).tolist())
print("different examples of each:", [len(drawn[labels[drawn] == k].unique()) for k in (0, 1)])
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="weighted-says"
# Balanced, at a price: more than half of the healthy examples are not seen in this epoch, and each ill one is seen
# about ten times. What the network says afterwards are probabilities for a world in which half are ill. Never weight
# the test set.
#
# ### Exercise: weights for a fair draw
#
# Return one positive weight for each example, a floating tensor (N,), so that each class that occurs has the same total
# weight. The scale doesn't matter. A class number in between may not occur.

# %% id="ex-weights" tags=["exercise"] exercise="data.weights"
def example_weights(labels):
    """Return weights for WeightedRandomSampler, (N,) from labels (N,), int64."""
    ### BEGIN SOLUTION
    return (1 / torch.bincount(labels))[labels]
    ### END SOLUTION


check("data.weights", example_weights)
# hint("data.weights")

# %% [markdown] id="s4"
# ## 4. Workers are processes
#
# `num_workers=2` starts two processes. Each gets the dataset, makes whole batches, and sends them back. How does it get
# the dataset? That depends on how the process starts:
#
# | start method | what the worker has | default on |
# | --- | --- | --- |
# | `fork` | a copy of this process, memory and all | Linux, up to Python 3.13 |
# | `spawn` | a new Python; it gets the dataset as a **pickle** | macOS, Windows |
# | `forkserver` | a fork of a clean helper process; also a pickle | Linux, from Python 3.14 |
#
# A pickle holds the values and, of the class, only its *name*. We pickle an object of a class that we define here, in
# the notebook, and open it in a new Python.

# %% id="main-pickle"
class Mine(Dataset):
    """A dataset that was defined in a notebook."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return index


for dataset in (Mine(), range(3)):
    program = f"import pickle; print('a new Python made', pickle.loads({pickle.dumps(dataset)!r}))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    print((answer.stdout or answer.stderr).strip().splitlines()[-1].split(" on <")[0])

# %% [markdown] id="main-says"
# The new Python looks for `__main__.Mine`, and its `__main__` is not this notebook. What does a spawned worker do with
# that? The course's `first_batch_error` asks one worker for one batch, with a time limit, and returns the error.
# (`DataLoader` itself takes the start method as `multiprocessing_context`.)

# %% id="main-spawn"
print(first_batch_error(Mine(), "spawn"))
works = all(first_batch_error(Mine(), method) == "" for method in start_methods("fork"))
print("with fork, where it can be used, the same class works:", works)
print("processes left behind:", live_children())

# %% [markdown] id="main-spawn-says"
# That is the famous message: the worker died while it unpacked the dataset, and the reason stands in its own output,
# if anywhere. With fork the same class works, so such a notebook runs on one machine and not on the next, or on Linux
# until its Python is renewed. (The default there became
# [forkserver](https://docs.python.org/3/library/multiprocessing.html#contexts-and-start-methods) because a fork also
# copies the locks that other threads hold just then, and may wait for them for ever.)
#
# **Keep datasets, transforms and collate functions in a module.** All of this lesson's live in
# `course_utils.datasets`. In a script, in addition, the code that starts workers stands under
# `if __name__ == "__main__":`, because a spawned worker imports the script again.
#
# ### Who counts?
#
# **Predict.** The dataset counts in an attribute how many of its items were read. 6 items, one epoch, with no worker
# and with one. What does the count say here, in the notebook?

# %% id="predict-counting" tags=["prediction"]
guess = ...  # two counts: (no worker, one worker)

# %% id="counting"
METHOD = start_methods("fork", "spawn")[0]  # the quickest that this platform has
for workers in (0, 1):
    counting = Counting(6)
    options = {"multiprocessing_context": METHOD} if workers else {}
    with ending_workers(DataLoader(counting, num_workers=workers, **options)) as epochs:
        items = [int(x) for x in epochs]
    print(f"{workers} workers: items {items}, counted {counting.read}")
print("processes left behind:", live_children())
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="counting-says"
# The worker counted in its own copy. A cache that fills up in `__getitem__` is lost in the same way, with each worker.
#
# `ending_workers` is the course's guard. If a loop is interrupted, the traceback holds the loader's iterator, and the
# iterator holds its workers. The guard ends them, however the block ends.

# %% id="interrupted"
loader = DataLoader(Counting(100), num_workers=1, multiprocessing_context=METHOD)
try:
    with ending_workers(loader) as epochs:
        for _ in epochs:
            print("workers while the loop runs:", live_children())
            raise KeyboardInterrupt  # as if you had pressed stop
except KeyboardInterrupt:
    print("workers after the interrupt:", live_children())

# %% [markdown] id="s5"
# ## 5. What workers draw
#
# An item of the next dataset is one draw from each of four generators: Python's `random`, NumPy's global one, torch's
# global one, and a `np.random.Generator` that the dataset made in its `__init__`. Two workers, two epochs; with workers
# that start anew in each epoch, and with `persistent_workers=True`. We seed nothing in the workers.
#
# **Predict.** Which of the four repeat themselves, between the workers or between the epochs?

# %% id="predict-draws" tags=["prediction"]
guess = ...  # for example {"torch": "between epochs"}

# %% id="draws"
rows = []
for method in start_methods("fork", "spawn"):
    for persistent in (False, True):
        drawn = first_draws(method, persistent, seed=SEED)
        for name in GENERATORS:
            found = drawn.workers_repeat(name), drawn.epochs_repeat(name)
            rows.append((name, persistent, method, *("repeats" if repeat else "differs" for repeat in found)))
cells = {(name, persistent, *repeats) for name, persistent, _, *repeats in rows}
print(table(sorted(cells), ("generator", "persistent", "worker 0 and 1", "epoch 0 and 1")))
print("all start methods agree:", len(cells) == 2 * len(GENERATORS))
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="draws-says"
# One table for all start methods. torch seeds all three global generators in each worker, NumPy's among them
# ([since 1.9](https://github.com/pytorch/pytorch/pull/56488); many pages still warn of it). What it can't know is the
# generator that your dataset holds. Every worker has a copy in the same
# state: two workers draw the same noise for different images. Workers that start anew repeat it in the next epoch
# as well; persistent ones go on drawing, in step with each other.
#
# The cure is a `worker_init_fn`: a function that each worker calls as it starts. Inside, `get_worker_info()` tells the
# worker's `id`, `num_workers`, its copy of the `dataset`, and a `seed` that differs for each worker and each start. The
# course's `seed_worker` seeds what it finds in the dataset.

# %% id="cured"
drawn = first_draws(METHOD, persistent=False, seed=SEED, worker_init_fn=seed_worker)
again = first_draws(METHOD, persistent=False, seed=SEED, worker_init_fn=seed_worker)
print("workers repeat each other:", drawn.workers_repeat("own generator"))
print("epochs repeat:            ", drawn.epochs_repeat("own generator"))
print("the same seed gives the same draws:", drawn == again)

# %% [markdown] id="ex-seed-rng-text"
# ### Exercise: seed what the dataset holds
#
# Write a `worker_init_fn` for a dataset that keeps a `np.random.Generator` in its attribute `rng`. A generator has no
# method that seeds it again: `np.random.default_rng(seed)` makes a new one. Two workers must
# draw differently, two epochs too, and the same seed of the loader must give the same draws again. The check lets it
# run as a worker would.

# %% id="ex-seed-rng" tags=["exercise"] exercise="data.seed-rng"
def seed_rng(worker_id):
    """Give this worker's copy of the dataset a generator of its own."""
    ### BEGIN SOLUTION
    info = get_worker_info()
    info.dataset.rng = np.random.default_rng(info.seed)
    ### END SOLUTION


check("data.seed-rng", seed_rng)
# hint("data.seed-rng")

# %% [markdown] id="s6"
# ## 6. Streams and shards
#
# Some data has no index: a log, a tape, a query. An `IterableDataset` has `__iter__` alone. There is no sampler, so
# nobody deals the indices out.
#
# **Predict.** A stream of the numbers 0 to 5, two workers, and a dataset that knows nothing about workers. What
# arrives?

# %% id="predict-stream" tags=["prediction"]
guess = ...  # a list of numbers

# %% id="stream"
for sharded in (False, True):
    loader = DataLoader(Numbers(6, sharded), batch_size=None, num_workers=2, multiprocessing_context=METHOD)
    with ending_workers(loader) as epochs:
        print("sharded:" if sharded else "as it is:", [int(x) for x in epochs])
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="stream-says"
# Each worker has a copy of the whole stream and goes through it. An epoch has every example twice, and no error. The
# dataset must take its share itself.
#
# ### Exercise: my share of the stream
#
# Return what belongs to this worker, as any iterable: worker `k` of `n` takes items k, k + n, k + 2n, … Outside of a
# worker everything. `items` may be a stream: no `len`, no index. Its items may be anything.

# %% id="ex-share" tags=["exercise"] exercise="data.share"
def my_share(items):
    """Return this worker's items."""
    ### BEGIN SOLUTION
    info = get_worker_info()
    if info is None:
        return items
    return islice(items, info.id, None, info.num_workers)
    ### END SOLUTION


check("data.share", my_share)
# hint("data.share")

# %% [markdown] id="s7"
# ## 7. When workers win, when they lose
#
# Three datasets: one returns a row that is in memory already, one works 1 ms for each item, one waits 1 ms, as for a
# disk or a network. 256 items, batches of 32. The start of the workers is timed apart.
#
# **Predict.** How many times as fast are 2 workers, compared with none, in each case?

# %% id="predict-throughput" tags=["prediction"]
guess = ...  # (in memory, 1 ms of work, 1 ms of waiting)

# %% id="throughput" tags=["nbval-ignore-output"]
counts = (0, 1, 2) if FAST else (0, 1, 2, 4, 8)
datasets = {
    "in memory": Costly(256),
    "1 ms of work": Costly(256, 1.0),
    "1 ms of waiting": Costly(256, 1.0, waiting=True),
}
for name, dataset in datasets.items():
    speeds = {speed.workers: speed for speed in throughput(dataset, counts, method=METHOD)}
    for count, speed in speeds.items():
        print(f"{name:<15}  workers {count}: {speed.items_per_s:>9,.0f} items/s, first batch {speed.start_s:.2f} s")
    gain = speeds[2].items_per_s / speeds[0].items_per_s
    verdict = "win" if gain > 1.1 else "lose" if gain < 0.9 else "change little"
    print(f"{name:<15}  on this machine, 2 workers {verdict}: {gain:.2f} times as fast")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="throughput-says"
# A batch from a worker is written into shared memory, announced through a queue, and opened again. For items that cost
# next to nothing this is the whole cost, and workers lose. Items that cost something they share: work as long as there
# are free cores, waiting also beyond.
#
# ### What the start costs
#
# With `persistent_workers=True` the workers stay for the next epoch. We time the first batch of two epochs, with one
# worker, for each start method that this platform has.

# %% id="starts" tags=["nbval-ignore-output"]
for method, persistent in [(METHOD, False), *((method, True) for method in start_methods())]:
    options = {"multiprocessing_context": method, "persistent_workers": persistent}
    waits = []
    with ending_workers(DataLoader(Costly(64), batch_size=32, num_workers=1, **options)) as epochs:
        for _ in range(2):
            started = time.perf_counter()
            for number, _ in enumerate(epochs):
                if number == 0:
                    waits.append(time.perf_counter() - started)
    stay = "persistent" if persistent else "anew each epoch"
    print(f"{method:<10}  {stay:<15}  first batch of epoch 0: {waits[0]:.3f} s, of epoch 1: {waits[1]:.3f} s")

# %% [markdown] id="starts-say"
# A fork has everything at once. A spawned worker starts Python and imports torch, and so does each fork of the clean
# helper process. Workers that start anew pay that in every epoch.
#
# ### How far ahead
#
# A loader with workers asks for batches before you do: `prefetch_factor` of them for each worker. The sampler lives in
# the main process, so it can note how many indices have been asked for.
#
# **Predict.** Batches of one example, `prefetch_factor=2`. You hold the first batch. How many were asked for by then,
# with one worker and with two?

# %% id="predict-ahead" tags=["prediction"]
guess = ...  # two counts: (one worker, two workers)

# %% id="ahead"
def noting(asked):
    for index in range(100):
        asked.append(index)
        yield index


for workers, ahead in ((1, 1), (1, 2), (2, 2), (2, 4)):
    asked = []
    options = {"num_workers": workers, "prefetch_factor": ahead, "multiprocessing_context": METHOD}
    with ending_workers(DataLoader(Counting(100), batch_size=1, sampler=noting(asked), **options)) as epochs:
        next(iter(epochs))
    print(f"workers {workers}, prefetch_factor {ahead}: {len(asked)} batches asked for when the first has come")
print("your guess:", "none yet" if guess is ... else guess)

# %% [markdown] id="ahead-says"
# `workers · prefetch_factor` at the start, and one more for each that is handed over. All of these may lie in memory at
# once. What do you get for it? Two datasets with the same mean cost, 10 ms for an item: in one, each item costs the
# same, in the other, every eighth costs as much as all eight. A step takes 15 ms, so one worker is quick enough on
# average.

# %% id="stutter" tags=["nbval-ignore-output"]
for name, every in (("even", 1), ("uneven", 8)):
    dataset = Costly(48, 10.0, waiting=True, every=every)
    for ahead in (1, 8):
        options = {"num_workers": 1, "prefetch_factor": ahead, "multiprocessing_context": METHOD}
        with ending_workers(DataLoader(dataset, batch_size=1, **options)) as epochs:
            for number, _ in enumerate(epochs):
                if number == 0:
                    started = time.perf_counter()
                time.sleep(0.015)
        print(f"{name:<7} prefetch_factor {ahead}: {1000 * (time.perf_counter() - started):5.0f} ms for 48 steps")

# %% [markdown] id="stutter-says"
# Where every batch takes equally long, more of them ahead bring nothing but memory in use. Where some take longer, a
# stock of batches bridges the wait.
#
# `pin_memory=True` puts batches into memory from which a GPU can copy while the program goes on, if
# `.to(device, non_blocking=True)` asks for it.

# %% id="pinned" tags=["nbval-ignore-output"]
if torch.cuda.is_available():
    x = torch.randn(64, 3, 224, 224)
    for name, source, hurry in (("pageable", x, False), ("pinned", x.pin_memory(), True)):
        source.to("cuda")
        torch.cuda.synchronize()
        started = time.perf_counter()
        source.to("cuda", non_blocking=hurry)
        returned = time.perf_counter() - started
        torch.cuda.synchronize()
        done = time.perf_counter() - started
        print(f"{name}: the call returned after {returned * 1e3:.2f} ms, done after {done * 1e3:.2f} ms")
else:
    print("no CUDA here; with it, this cell shows that a copy from pinned memory returns before it is done")

# %% [markdown] id="s8"
# ## 8. Find the bottleneck, check the data
#
# Before you add workers, measure who waits for whom. `time_steps` trains one epoch and times four parts of each step:
# waiting for data, forward, backward, update. Two pipelines without workers, with batches of 32: items that take 2 ms
# each for a network of width 32, and items that are in memory for one of width 2,048.
#
# **Predict.** Which percentage of the time does each pipeline wait for data?

# %% id="predict-bottleneck" tags=["prediction"]
guess = ...  # (costly items, wide network)

# %% id="bottleneck" tags=["nbval-ignore-output"]
def times_of(cost_ms, width):
    """Train one epoch on 128 items that cost so much each, with a network of this width."""
    with seeded(SEED):
        model = MLP(64, (width, width)).to(device)
    loader = DataLoader(Costly(128, cost_ms), batch_size=32)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    return time_steps(loader, model, nn.functional.cross_entropy, optimizer, device)


measured = {"costly items": times_of(2.0, 32), "wide network": times_of(0.0, 2048)}
for name, times in measured.items():
    shares = "  ".join(f"{part} {times.share(part):.0%}" for part in ("data", "forward", "backward", "update"))
    print(f"{name}: {shares}")
print("your guess:", "none yet" if guess is ... else guess)

# %% id="bottleneck-verdict" tags=["nbval-ignore-output"]
print("costly items: the bottleneck is", measured["costly items"].bottleneck)
print("wide network: the data is the bottleneck:", measured["wide network"].bottleneck == "data")

# %% [markdown] id="bottleneck-says"
# In the first pipeline a faster network or a GPU would change next to nothing. In the second, workers would change next
# to nothing. Once workers run and the pipeline is full, loading and computing go on at the same time.
#
# ### Exercise: how long is a step?
#
# `load_ms` is the time to make one batch, `compute_ms` that of forward, backward and update. Return the time of one
# step in ms once the pipeline is full. With 0 workers the main process does both, one after the other. With more, each
# worker makes whole batches, all at the same time, while the main process computes. There are enough cores.

# %% id="ex-step-time" tags=["exercise"] exercise="data.step-time"
def step_time(load_ms, compute_ms, workers):
    """Return the time of a step in ms."""
    ### BEGIN SOLUTION
    if workers == 0:
        return load_ms + compute_ms
    return max(load_ms / workers, compute_ms)
    ### END SOLUTION


check("data.step-time", step_time)
# hint("data.step-time")

# %% [markdown] id="explorer-text"
# ### Explorer: who works when
#
# Bars are worked out from your settings: batches of loading in each worker, steps in the main process. The way between
# the processes and their start cost nothing here, and there are enough cores. **Try this.**
#
# - Set workers to 0, 1, 2, 3. From which number on does nothing change any more?
# - Make an item cheap, 0.1 ms. What do workers bring now?
# - Double the batch size. Both the loading and the memory double; the step is up to you.

# %% id="explorer" tags=["explorer"]
explore_timeline()

# %% [markdown] id="schedule-text"
# A model of a pipeline is worth something if it is checked. The same settings as a real loop: items that wait 1 ms,
# batches of 32, steps that wait 20 ms.

# %% id="schedule-check" tags=["nbval-ignore-output"]
for workers in (0, 2):
    options = {"multiprocessing_context": METHOD, "persistent_workers": True} if workers else {}
    loader = DataLoader(Costly(8 * 32, 1.0, waiting=True), batch_size=32, num_workers=workers, **options)
    with ending_workers(loader) as epochs:
        list(epochs)  # the first epoch starts the workers
        started = time.perf_counter()
        for _ in epochs:
            time.sleep(0.02)
        real_ms = 1000 * (time.perf_counter() - started)
    print(f"{workers} workers: worked out {total_ms(timeline(workers, 32, 1.0, 20)):.0f} ms, measured {real_ms:.0f} ms")

# %% [markdown] id="schedule-says"
# The real loop is slower than the model, since sleeping takes longer than asked and the way between the processes isn't
# free. Which setting is the better one, the model says right.
#
# ### Data checks
#
# Four questions before the first training, and they take a second: is there a nan, are the labels in 0..C−1, how many
# examples has each class, does an image stand in two splits? We plant one fault of each kind.

# %% id="data-checks"
train, test = digits.images[:200].float().clone(), digits.images[200:260].float().clone()
classes = digits.labels[:200].clone()
train[17, 0, 3, 3] = float("nan")
classes[5] = 10
test[8] = train[3]
print("not finite, examples:", (~train.isfinite()).flatten(1).any(1).nonzero().flatten().tolist())
print("label outside 0..9:  ", ((classes < 0) | (classes >= 10)).nonzero().flatten().tolist())
print("examples per class:  ", torch.bincount(classes, minlength=10).tolist())
same = (test.flatten(1)[:, None] == train.flatten(1)[None]).all(2)  # (60, 200)
print("test images in train:", same.any(1).nonzero().flatten().tolist())

# %% [markdown] id="ex-leaks-text"
# ### Exercise: seen before
#
# Return the positions of the test images that stand in the training set too, with all pixels equal: a sorted list of
# whole numbers. `train` and `test` are uint8 tensors, (N, 1, H, W) and (M, 1, H, W).

# %% id="ex-leaks" tags=["exercise"] exercise="data.leaks"
def leaks(train, test):
    """Return positions in test, sorted."""
    ### BEGIN SOLUTION
    known = {image.numpy().tobytes() for image in train}
    return [i for i, image in enumerate(test) if image.numpy().tobytes() in known]
    ### END SOLUTION


check("data.leaks", leaks)
# hint("data.leaks")

# %% [markdown] id="clinic"
# ## 9. Clinic
#
# Five programs that run, and do something else than their authors think. Repair each.
#
# ### 1. The cat is a dog in the test
#
# "Good in training, bad in the test, on the same images." The numbers of the classes are made from the names, once for
# training and once for the test. Number the classes from 0 in alphabetical order.

# %% id="clinic-numbers" tags=["clinic"] exercise="data.clinic-numbers"
def class_numbers(names):
    """Return {class name: number} from the class names of all files."""
    ### BEGIN SOLUTION
    return {name: number for number, name in enumerate(sorted(set(names)))}
    ### END SOLUTION
    ### BEGIN STUB
    # return {name: number for number, name in enumerate(dict.fromkeys(names))}
    ### END STUB


check("data.clinic-numbers", class_numbers)
# hint("data.clinic-numbers")

# %% [markdown] id="clinic-baked-text"
# ### 2. Augmented once and for all
#
# "I added noise, and it overfits as before." `images` is (N, C, H, W). `transform` is random and takes one image; each
# reading is to call it once.

# %% id="clinic-baked" tags=["clinic"] exercise="data.clinic-baked"
class Noisy(Dataset):
    """Images with a random transform."""

    ### BEGIN SOLUTION
    def __init__(self, images, transform):
        self.images, self.transform = images, transform

    def __getitem__(self, index):
        return self.transform(self.images[index])

    ### END SOLUTION
    ### BEGIN STUB
    # def __init__(self, images, transform):
    #     self.images = torch.stack([transform(image) for image in images])
    #
    # def __getitem__(self, index):
    #     return self.images[index]
    #
    ### END STUB
    def __len__(self):
        return len(self.images)


check("data.clinic-baked", Noisy)
# hint("data.clinic-baked")

# %% [markdown] id="clinic-evaluate-text"
# ### 3. A test without its end
#
# "The accuracy on the test set changes a little each time." The loader was copied from training.

# %% id="clinic-evaluate" tags=["clinic"] exercise="data.clinic-evaluate"
def make_test_loader(dataset, batch_size):
    """Return a loader that shows every example once, in order."""
    ### BEGIN SOLUTION
    return DataLoader(dataset, batch_size=batch_size)
    ### END SOLUTION
    ### BEGIN STUB
    # return DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=True)
    ### END STUB


check("data.clinic-evaluate", make_test_loader)
# hint("data.clinic-evaluate")

# %% [markdown] id="clinic-sampler-text"
# ### 4. Two examples, again and again
#
# "Since I balance the classes, the loss is 0 after one epoch." `labels` is int64, (N,), with the classes 0 and 1. The
# sampler is to draw N examples, with replacement, both classes about equally often.

# %% id="clinic-sampler" tags=["clinic"] exercise="data.clinic-sampler"
def balanced_sampler(labels):
    """Return a sampler that draws both classes equally often."""
    weights = 1 / torch.bincount(labels)
    ### BEGIN SOLUTION
    return WeightedRandomSampler(weights[labels], num_samples=len(labels))
    ### END SOLUTION
    ### BEGIN STUB
    # return WeightedRandomSampler(weights, num_samples=len(labels))
    ### END STUB


check("data.clinic-sampler", balanced_sampler)
# hint("data.clinic-sampler")

# %% [markdown] id="clinic-init-text"
# ### 5. The same noise in every epoch
#
# "I seeded the workers so that it can be repeated. Now augmentation brings nothing." The dataset draws from NumPy's
# global generator. Workers and epochs must draw differently, the same seed of the loader must repeat it all. Doing
# nothing would be enough for the version that you measured above; repair it so that it also works where NumPy's
# generator arrives in the same state in every worker. In a worker, `torch.initial_seed()` is the seed that torch gave
# it, up to 64 bits; `np.random.seed` takes 32.

# %% id="clinic-init" tags=["clinic"] exercise="data.clinic-init"
def init_worker(worker_id):
    """Seed NumPy's global generator in a worker."""
    ### BEGIN SOLUTION
    np.random.seed(torch.initial_seed() % 2**32)
    ### END SOLUTION
    ### BEGIN STUB
    # np.random.seed(42)
    ### END STUB


check("data.clinic-init", init_worker)
# hint("data.clinic-init")

# %% id="clean-up"
shutil.rmtree(folder)
print("images removed:", not folder.exists(), "  processes left behind:", live_children())

# %% [markdown] id="people-say"
# ## What people say
#
# Fourteen sentences that articles and colleagues repeat. Some are right, some were right in an earlier release, some
# never were. Put your verdict in place of the dots, in quotes: `"true"`, `"caveat"` (true under a condition),
# `"outdated"`, `"false"`, or `"opinion"` (no measurement decides it). Then run the cell, which measures.

# %% id="claim-d011"
# “Seeding Python, NumPy and PyTorch in the main process is enough for DataLoader augmentation.”
claim("D011", ...)

# %% id="claim-d016"
# “Worker random seeds differ by default, which makes augmentation irreproducible from run to run.”
claim("D016", ...)

# %% id="claim-d017"
# “Set worker_init_fn with a fixed seed per worker to make augmentation reproducible.”
claim("D017", ...)

# %% id="claim-d022"
# “Avoid heavy preprocessing in __getitem__; move it into transforms.”
claim("D022", ...)

# %% id="claim-d014"
# “On Windows num_workers>0 requires an if __name__=="__main__" guard; otherwise processes spawn recursively without
# end. On Linux this does not exist.”
claim("D014", ...)

# %% id="claim-d012"
# “Convert every tensor returned by Dataset.__getitem__ to float32.”
claim("D012", ...)

# %% id="claim-d018"
# “A NumPy Generator object stored in the dataset yields the same numbers in every worker and repeats them every epoch.”
claim("D018", ...)

# %% id="claim-d021" tags=["nbval-ignore-output"]
# “Raising num_workers above 0 often multiplies throughput.”
claim("D021", ...)

# %% id="claim-d009" tags=["nbval-ignore-output"]
# “If the n workers do not saturate the CPU, the bottleneck is the preprocessing logic and adding workers does not
# help.”
claim("D009", ...)

# %% id="claim-d002"
# “Building class_to_idx from sorted(os.listdir(root)) gives one class per folder.”
claim("D002", ...)

# %% id="claim-d006"
# “Fixing the seed also fixes the data-loading order.”
claim("D006", ...)

# %% id="claim-d027"
# “Different PyTorch versions can produce different results with the same seed.”
claim("D027", ...)

# %% id="claim-d008"
# “Do decoding, augmentation, normalisation and tensor conversion in __getitem__ because it runs in parallel in worker
# processes.”
claim("D008", ...)

# %% id="claim-d010" tags=["nbval-ignore-output"]
# “Overly complex __getitem__ work with large random reads can make multi-process overhead slower than a single
# process.”
claim("D010", ...)

# %% [markdown] id="people-say-more"
# <details>
# <summary>The other 15 sentences about this lesson</summary>
#
# `claim("D001")` measures one of them, `python3 course.py claims 04` all.
#
# - **D001** A batch of variable-length sequences can be handled by looping over time steps or masking in forward.
# - **D003** num\_workers of 4 to 8 clearly improves throughput on an ordinary machine, and too many workers hurt.
# - **D004** pin\_memory=True speeds up host-to-device copies through page-locked memory.
# - **D005** Random augmentation belongs inside Dataset.\_\_getitem\_\_ so that each epoch sees different versions of
#   a sample.
# - **D007** A map-style Dataset only needs \_\_len\_\_ and \_\_getitem\_\_.
# - **D013** num\_workers=0 (the default) loads data in the main process; larger values start subprocesses.
# - **D015** More workers is not always faster; each costs memory and IPC.
# - **D019** pin\_memory brings 5 to 15 percent and costs almost nothing, so it should be on by default.
# - **D020** Combine pin\_memory with non\_blocking=True in .to() to overlap transfer and compute.
# - **D023** The last batch can be smaller; drop\_last=True discards it.
# - **D024** Seed random, numpy, torch and CUDA together to fix randomness.
# - **D025** torch.manual\_seed covers both CPU and GPU generators; manual\_seed\_all handles all GPUs.
# - **D026** For ordinary training keep cudnn.benchmark at True.
# - **D028** Check samples for NaN and Inf inside the Dataset.
# - **D029** DataLoader workers prefetch batches ahead of the training loop.
#
# </details>

# %% [markdown] id="recap"
# ## Recap
#
# You can now
#
# - make a dataset from files that is the same on every machine, and whose errors name the file;
# - pad, mask and pack sequences, and average without the padding;
# - draw classes evenly, and say what that costs;
# - start workers on every platform, from a notebook, and leave none behind;
# - say which random numbers repeat in workers, and seed those that torch can't know;
# - share a stream between workers;
# - measure whether loading or computing is the bottleneck, before you change anything.
#
# And the question from the top? Workers cost a start and a way between processes, so they lose where an item is cheap.
# And each has a copy of your dataset, with a copy of its generator.
#
# **Read next**, in PyTorch's documentation:
# [torch.utils.data](https://docs.pytorch.org/docs/stable/data.html),
# [Reproducibility](https://docs.pytorch.org/docs/stable/notes/randomness.html) (section DataLoader), [Multiprocessing
# best practices](https://docs.pytorch.org/docs/stable/notes/multiprocessing.html), [Getting started with transforms
# v2](https://docs.pytorch.org/vision/stable/auto_examples/transforms/plot_transforms_getting_started.html).

# %% id="progress" tags=["nbval-ignore-output"]
progress()
