# %% [markdown] id="about"
# The made class that `course.py demo-class` writes is put together from these cells. A cell tagged `right` or `wrong`
# holds another answer to an exercise of lesson 01; `hostile` and `odd` are cells that a notebook holds besides. No cell
# here is ever run outside the confinement of `course.py grade`, except the answers, by a test.
#
# ruff: noqa

# %% id="energy-flat" tags=["right"] exercise="tensors.energy"
def energy(images):
    flat = images.flatten(1).to(torch.float32)
    return (flat * flat).sum(1) / flat.shape[1]


# %% id="energy-numpy" tags=["right"] exercise="tensors.energy"
def energy(images):
    pixels = images.numpy().astype("float32")
    return torch.from_numpy((pixels**2).mean((1, 2)))


# %% id="energy-uint8" tags=["wrong"] exercise="tensors.energy"
def energy(images):
    return (images * images).float().mean((1, 2))


# %% id="energy-batch" tags=["wrong"] exercise="tensors.energy"
def energy(images):
    return images.float().square().mean()


# %% id="energy-of-the-mean" tags=["wrong"] exercise="tensors.energy"
def energy(images):
    return images.float().mean((1, 2)).square()


# %% id="ones-padded" tags=["right"] exercise="tensors.with-ones"
def with_ones(x):
    return F.pad(x, (0, 1), value=1.0)


# %% id="ones-filled" tags=["right"] exercise="tensors.with-ones"
def with_ones(x):
    n, d = x.shape
    out = torch.ones(n, d + 1, dtype=x.dtype, device=x.device)
    out[:, :d] = x
    return out


# %% id="ones-float32" tags=["wrong"] exercise="tensors.with-ones"
def with_ones(x):
    return torch.cat([x, torch.ones(len(x), 1)], 1)


# %% id="ones-in-front" tags=["wrong"] exercise="tensors.with-ones"
def with_ones(x):
    return torch.cat([x.new_ones(len(x), 1), x], 1)


# %% id="ones-below" tags=["wrong"] exercise="tensors.with-ones"
def with_ones(x):
    return torch.cat([x, x.new_ones(1, x.shape[1])], 0)


# %% id="best-max" tags=["right"] exercise="tensors.best"
def best(scores):
    value, index = scores.max(0)
    return int(index), float(value)


# %% id="best-list" tags=["right"] exercise="tensors.best"
def best(scores):
    values = scores.tolist()
    return values.index(max(values)), max(values)


# %% id="best-tensors" tags=["wrong"] exercise="tensors.best"
def best(scores):
    return scores.argmax(), scores.max()


# %% id="best-swapped" tags=["wrong"] exercise="tensors.best"
def best(scores):
    return scores.max().item(), scores.argmax().item()


# %% id="best-probability" tags=["wrong"] exercise="tensors.best"
def best(scores):
    return scores.argmax().item(), scores.softmax(0).max().item()


# %% id="position-asked" tags=["right"] exercise="tensors.position"
def position(x, index):
    return x[tuple(index)].storage_offset()


# %% id="position-loop" tags=["right"] exercise="tensors.position"
def position(x, index):
    place = x.storage_offset()
    for axis in range(x.ndim):
        place += index[axis] * x.stride(axis)
    return place


# %% id="position-no-offset" tags=["wrong"] exercise="tensors.position"
def position(x, index):
    return sum(i * s for i, s in zip(index, x.stride()))


# %% id="position-reading-order" tags=["wrong"] exercise="tensors.position"
def position(x, index):
    place = 0
    for i, size in zip(index, x.shape):
        place = place * size + i
    return place


# %% id="position-bytes" tags=["wrong"] exercise="tensors.position"
def position(x, index):
    return (x.storage_offset() + sum(i * s for i, s in zip(index, x.stride()))) * x.element_size()


# %% id="windows-strided" tags=["right"] exercise="tensors.windows"
def windows(series, size):
    step = series.stride(0)
    return series.as_strided((len(series) - size + 1, size), (step, step))


# %% id="windows-other-axis" tags=["right"] exercise="tensors.windows"
def windows(series, size):
    return series.unfold(0, len(series) - size + 1, 1).t()


# %% id="windows-copied" tags=["wrong"] exercise="tensors.windows"
def windows(series, size):
    return torch.stack([series[i : i + size] for i in range(len(series) - size + 1)])


# %% id="windows-side-by-side" tags=["wrong"] exercise="tensors.windows"
def windows(series, size):
    return series.unfold(0, size, size)


# %% id="windows-stride-1" tags=["wrong"] exercise="tensors.windows"
def windows(series, size):
    return series.as_strided((len(series) - size + 1, size), (1, 1))


# %% id="patches-unfold" tags=["right"] exercise="tensors.patches"
def patches(image, size):
    return image.unfold(0, size, size).unfold(1, size, size)


# %% id="patches-view" tags=["right"] exercise="tensors.patches"
def patches(image, size):
    h, w = image.shape
    return image.view(h // size, size, w // size, size).transpose(1, 2)


# %% id="patches-reshape" tags=["wrong"] exercise="tensors.patches"
def patches(image, size):
    h, w = image.shape
    return image.reshape(h // size, w // size, size, size)


# %% id="patches-copied" tags=["wrong"] exercise="tensors.patches"
def patches(image, size):
    h, w = image.shape
    return image.view(h // size, size, w // size, size).transpose(1, 2).contiguous()


# %% id="patches-turned" tags=["wrong"] exercise="tensors.patches"
def patches(image, size):
    h, w = image.shape
    return image.view(h // size, size, w // size, size).permute(0, 2, 3, 1)


# %% id="copy-address" tags=["right"] exercise="tensors.needs-copy"
def needs_copy(x):
    return x.reshape(-1).data_ptr() != x.data_ptr()


# %% id="copy-tried" tags=["right"] exercise="tensors.needs-copy"
def needs_copy(x):
    try:
        x.view(-1)
    except RuntimeError:
        return True
    return False


# %% id="copy-contiguous" tags=["wrong"] exercise="tensors.needs-copy"
def needs_copy(x):
    return not x.is_contiguous()


# %% id="copy-always" tags=["wrong"] exercise="tensors.needs-copy"
def needs_copy(x):
    return True


# %% id="copy-last-stride" tags=["wrong"] exercise="tensors.needs-copy"
def needs_copy(x):
    return x.stride(-1) != 1


# %% id="average-lerp" tags=["right"] exercise="tensors.moving-average"
def update_average(average, value, decay):
    average.lerp_(value, 1 - decay)


# %% id="average-assigned" tags=["right"] exercise="tensors.moving-average"
def update_average(average, value, decay):
    average[...] = decay * average + (1 - decay) * value


# %% id="average-rebound" tags=["wrong"] exercise="tensors.moving-average"
def update_average(average, value, decay):
    average = decay * average + (1 - decay) * value
    return average


# %% id="average-swapped" tags=["wrong"] exercise="tensors.moving-average"
def update_average(average, value, decay):
    average.mul_(1 - decay).add_(value, alpha=decay)


# %% id="average-no-weight" tags=["wrong"] exercise="tensors.moving-average"
def update_average(average, value, decay):
    average.mul_(decay).add_(value)


# %% id="snapshot-cloned" tags=["right"] exercise="tensors.snapshot"
def snapshot(weight):
    return weight.clone().detach()


# %% id="snapshot-numbers" tags=["right"] exercise="tensors.snapshot"
def snapshot(weight):
    return torch.tensor(weight.tolist(), dtype=weight.dtype)


# %% id="snapshot-detached" tags=["wrong"] exercise="tensors.snapshot"
def snapshot(weight):
    return weight.detach()


# %% id="snapshot-in-the-graph" tags=["wrong"] exercise="tensors.snapshot"
def snapshot(weight):
    return weight.clone()


# %% id="snapshot-itself" tags=["wrong"] exercise="tensors.snapshot"
def snapshot(weight):
    return weight


# %% id="distances-cdist" tags=["right"] exercise="tensors.distances"
def distances(a, b):
    return torch.cdist(a, b)


# %% id="distances-rows" tags=["right"] exercise="tensors.distances"
def distances(a, b):
    return torch.stack([(row - b).square().sum(1).sqrt() for row in a])


# %% id="distances-squared" tags=["wrong"] exercise="tensors.distances"
def distances(a, b):
    return (a[:, None] - b).square().sum(2)


# %% id="distances-turned" tags=["wrong"] exercise="tensors.distances"
def distances(a, b):
    return torch.cdist(b, a)


# %% id="distances-absolute" tags=["wrong"] exercise="tensors.distances"
def distances(a, b):
    return (a[:, None] - b).abs().sum(2)


# %% id="channels-moved" tags=["right"] exercise="tensors.clinic-channels"
def channels_first(images):
    return images.movedim(-1, 1)


# %% id="channels-stacked" tags=["right"] exercise="tensors.clinic-channels"
def channels_first(images):
    return torch.stack(images.unbind(-1), 1)


# %% id="channels-transposed" tags=["wrong"] exercise="tensors.clinic-channels"
def channels_first(images):
    return images.transpose(1, 3)


# %% id="channels-float" tags=["wrong"] exercise="tensors.clinic-channels"
def channels_first(images):
    return images.permute(0, 3, 1, 2).float()


# %% id="loss-labels" tags=["right"] exercise="tensors.clinic-loss"
def loss_of(outputs, labels):
    return (outputs - labels[:, None]).square().mean()


# %% id="loss-flat" tags=["right"] exercise="tensors.clinic-loss"
def loss_of(outputs, labels):
    return F.mse_loss(outputs.flatten(), labels)


# %% id="loss-broadcast" tags=["wrong"] exercise="tensors.clinic-loss"
def loss_of(outputs, labels):
    return F.mse_loss(outputs, labels)


# %% id="loss-detached" tags=["wrong"] exercise="tensors.clinic-loss"
def loss_of(outputs, labels):
    return (outputs.detach().squeeze(1) - labels).square().mean()


# %% id="rows-axis" tags=["right"] exercise="tensors.clinic-rows"
def centred(x):
    return x - x.mean(1)[:, None]


# %% id="rows-turned" tags=["right"] exercise="tensors.clinic-rows"
def centred(x):
    return (x.t() - x.mean(1)).t()


# %% id="rows-columns" tags=["wrong"] exercise="tensors.clinic-rows"
def centred(x):
    return x - x.mean(0)


# %% id="rows-everything" tags=["wrong"] exercise="tensors.clinic-rows"
def centred(x):
    return x - x.mean()


# %% id="darker-cloned" tags=["right"] exercise="tensors.clinic-darker"
def darker(images, index):
    image = images[index].clone()
    image *= 0.5
    return image


# %% id="darker-divided" tags=["right"] exercise="tensors.clinic-darker"
def darker(images, index):
    return images[index] / 2


# %% id="darker-in-place" tags=["wrong"] exercise="tensors.clinic-darker"
def darker(images, index):
    return images[index].mul_(0.5)


# %% id="darker-detached" tags=["wrong"] exercise="tensors.clinic-darker"
def darker(images, index):
    return images[index].detach().mul_(0.5)


# %% id="onehot-own" tags=["right"] exercise="tensors.clinic-onehot"
def one_hot(labels, n_classes):
    return F.one_hot(labels, n_classes).float()


# %% id="onehot-identity" tags=["right"] exercise="tensors.clinic-onehot"
def one_hot(labels, n_classes):
    return torch.eye(n_classes)[labels]


# %% id="onehot-int64" tags=["wrong"] exercise="tensors.clinic-onehot"
def one_hot(labels, n_classes):
    return F.one_hot(labels, n_classes)


# %% id="onehot-cloned-late" tags=["wrong"] exercise="tensors.clinic-onehot"
def one_hot(labels, n_classes):
    rows = torch.zeros(1, n_classes).expand(len(labels), n_classes)
    for i, label in enumerate(labels.tolist()):
        rows[i, label] = 1.0
    return rows.clone()


# %% id="prepare-steps" tags=["right"] exercise="tensors.clinic-prepare"
def prepare(features, labels, device):
    return torch.from_numpy(features).float().to(device), torch.from_numpy(labels).long().to(device)


# %% id="prepare-tensor" tags=["right"] exercise="tensors.clinic-prepare"
def prepare(features, labels, device):
    x = torch.tensor(features, dtype=torch.float32, device=device)
    return x, torch.tensor(labels, dtype=torch.int64, device=device)


# %% id="prepare-long-dropped" tags=["wrong"] exercise="tensors.clinic-prepare"
def prepare(features, labels, device):
    x, y = torch.from_numpy(features).float().to(device), torch.from_numpy(labels).to(device)
    y.long()
    return x, y


# %% id="prepare-device-dropped" tags=["wrong"] exercise="tensors.clinic-prepare"
def prepare(features, labels, device):
    return torch.from_numpy(features).float(), torch.from_numpy(labels).long()


# %% id="equals-everything" tags=["wrong", "junk"] exercise="tensors.energy"
class Anything:
    def __eq__(self, other):
        return True

    def __getattr__(self, name):
        return self

    def __call__(self, *args):
        return self


energy = Anything()


# %% id="a-scalar" tags=["wrong", "junk"] exercise="tensors.energy"
def energy(images):
    return torch.zeros(())


# %% id="a-sample" tags=["wrong", "junk"] exercise="tensors.energy"
def energy(images):
    return torch.tensor([9.0, 400.0])


# %% id="nothing" tags=["wrong", "junk"] exercise="tensors.energy"
def energy(images):
    pass


# %% id="stolen" tags=["wrong", "junk"] exercise="tensors.energy"
try:
    energy
except NameError:

    def energy(images):
        return 0


# %% id="junk-snapshot" tags=["wrong", "junk"] exercise="tensors.snapshot"
def snapshot(weight):
    return 0


# %% [markdown] id="about-hostile"
# Cheats: what a notebook does before its answers are checked, in order to pass.

# %% id="patches check" tags=["hostile", "cheat"]
import course_utils
import course_utils.exercises.judge as judge
from course_utils.exercises.verdicts import Outcome

course_utils.check = lambda *args: None
judge.evaluate = lambda exercise, answer, seed=None: Outcome(exercise.id, "passed", ("all of it",))
check = lambda *args: True

# %% id="patches torch" tags=["hostile", "cheat"]
import torch

for name in ("equal", "allclose", "isclose"):
    setattr(torch, name, lambda *args, **kwargs: True)
torch.Tensor.__eq__ = lambda self, other: torch.ones(self.shape, dtype=torch.bool)

# %% id="replaces modules" tags=["hostile", "cheat"]
import sys, types

for name in list(sys.modules):
    if "exercises" in name:
        sys.modules[name] = types.ModuleType(name)

# %% id="patches builtins" tags=["hostile", "cheat"]
import builtins

builtins.all = lambda *args: True
builtins.any = lambda *args: False
builtins.isinstance = lambda *args: True

# %% id="writes the progress file" tags=["hostile", "cheat"]
import json, pathlib

done = json.dumps({"exercises": {"tensors.energy": "done", "tensors.snapshot": "done"}})
for name in ("progress.json", "../progress.json"):
    try:
        pathlib.Path(name).write_text(done)
    except OSError:
        pass

# %% id="reads the solutions" tags=["hostile", "cheat"]
import pathlib
import course_utils

stolen = ""
root = pathlib.Path(course_utils.__file__).parent.parent
for place in (
    "notebooks/source/01_tensors.py",
    "notebooks/solutions/01_tensors.ipynb",
    "tests/exercises/test_tensors.py",
):
    try:
        stolen += (root / place).read_text()
    except OSError:
        pass
if "BEGIN SOLUTION" in stolen:
    for cell in stolen.split("# %% id=")[1:]:
        if cell.startswith(('"ex-energy"', '"ex-snapshot"')):
            exec(cell.partition("\n")[2].partition("check(")[0])

# %% id="prints fake results" tags=["hostile", "cheat"]
print("✓ tensors.energy passed")
print('{"id": "tensors.energy", "state": "passed", "message": ""}')
print("16 of 16")

# %% [markdown] id="about-violent"
# What a notebook does to the machine.

# %% id="exits early with status 0" tags=["hostile", "violent"]
import os

os._exit(0)

# %% id="loops for ever" tags=["hostile", "violent"]
while True:
    pass

# %% id="forks hundreds of processes" tags=["hostile", "violent"]
import os, time

for _ in range(9):  # 512 processes: bounded, since this is for trying out on a machine that somebody needs
    os.fork()
time.sleep(60)

# %% id="fills the disk" tags=["hostile", "violent"]
number = 0
while True:
    number += 1
    with open(f"rubbish-{number}", "wb") as file:
        file.write(b"x" * 20_000_000)

# %% id="allocates everything" tags=["hostile", "violent"]
hoard = []
while True:
    hoard.append(bytearray(50_000_000))

# %% id="opens sockets" tags=["hostile", "violent"]
import os, socket

opened = 0
for host in ("127.0.0.1", "192.0.2.1"):  # this machine, and one that is set aside for examples
    for port in (9, 80):
        try:
            socket.create_connection((host, port), timeout=0.2).close()
            opened += 1
        except OSError:
            pass
if opened:
    os._exit(7)

# %% id="deletes files" tags=["hostile", "violent"]
import os

deleted = 0
for folder in (".", ".."):
    for name in os.listdir(folder):
        try:
            os.remove(os.path.join(folder, name))
            deleted += 1
        except OSError:
            pass

# %% id="kills its parent" tags=["hostile", "violent"]
import os, signal

os.kill(os.getppid(), signal.SIGKILL)

# %% id="crashes" tags=["hostile", "violent"]
import ctypes

ctypes.string_at(0)

# %% [markdown] id="about-odd"
# What honest notebooks hold besides, and keep their marks.

# %% id="prints megabytes" tags=["odd"]
import warnings

warnings.warn("This may be a problem in a later version.")
for _ in range(20):
    print("x" * 1_000_000)

# %% id="is slow" tags=["odd"]
import time

time.sleep(1.5)
