"""Data sets, loaders, splits."""

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, get_worker_info, random_split

from tests.doctor.programs import batches, classes, faulty, healthy, mlp, regression, setup


@faulty("data.nonfinite")
def infinity_in_the_labels():
    x, y = regression()
    y[20, 0] = float("inf")
    return setup(mlp(), batches(x, y))


@faulty("data.nonfinite")
def nan_far_back_in_the_loader():
    x, y = regression(512)
    x[500, 2] = float("nan")
    return setup(mlp(), DataLoader(TensorDataset(x, y), 16))


@faulty("data.nonfinite", "note")
def missing_values_masked_by_the_model():
    x, y = regression()
    x[10:20, 1] = float("nan")

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(8)

        def forward(self, x):
            return self.net(torch.cat([torch.nan_to_num(x), x.isnan().float()], 1))

    return setup(Masked(), batches(x, y))


def _sorted():
    torch.manual_seed(0)
    y = torch.arange(5).repeat_interleave(40)
    return torch.randn(200, 4) + nn.functional.one_hot(y, 5)[:, :4], y


@faulty("data.single-class-batches")
def folders_in_order():
    x, y = _sorted()
    return setup(mlp(4, 5), DataLoader(TensorDataset(x, y), 20), nn.CrossEntropyLoss())


@healthy
def sorted_but_shuffled():
    x, y = _sorted()
    return setup(mlp(4, 5), DataLoader(TensorDataset(x, y), 20, shuffle=True), nn.CrossEntropyLoss())


@healthy
def shuffled_by_hand():
    x, y = _sorted()
    order = torch.randperm(200)
    return setup(mlp(4, 5), batches(x[order], y[order], 20), nn.CrossEntropyLoss())


@healthy
def classes_alternate():
    x, y = _sorted()
    loader = []
    for i in range(0, 40, 10):
        loader += [(x[y == c][i : i + 10], y[y == c][i : i + 10]) for c in range(5)]
    return setup(mlp(4, 5), loader, nn.CrossEntropyLoss())


@healthy
def time_series_in_order():
    t = torch.arange(200.0).unsqueeze(1) / 100
    return setup(mlp(1), DataLoader(TensorDataset(t, torch.sin(t)), 20))


class Stored(Dataset):
    def __init__(self, read):
        self.data = np.random.default_rng(0).normal(3, 2, (32, 4)).astype("float32")
        self.read, self.cache = read, {}

    def __len__(self):
        return 32

    def __getitem__(self, i):
        x = self.read(self, i)
        return x, x.sum().view(1)


@faulty("data.reading-edits")
def standardized_in_place():
    def read(data, i):
        row = data.data[i]
        row -= row.mean()
        row *= 1.1
        return torch.from_numpy(row)

    return setup(mlp(), DataLoader(Stored(read), 8))


@healthy
def cached_reading():
    def read(data, i):
        if i not in data.cache:
            data.cache[i] = torch.from_numpy(data.data[i] / 2)
        return data.cache[i]

    return setup(mlp(), DataLoader(Stored(read), 8))


@healthy
def random_augmentation():
    def read(data, i):
        return torch.from_numpy(data.data[i]) + 0.1 * torch.randn(4)

    return setup(mlp(), DataLoader(Stored(read), 8, num_workers=2))


@healthy
def scaled_once_at_the_start():
    def read(data, i):
        if not data.cache:
            data.data -= data.data.mean(0)
            data.cache["done"] = True
        return torch.from_numpy(data.data[i].copy())

    return setup(mlp(), DataLoader(Stored(read), 8))


@faulty("data.worker-copies")
def random_state_in_init():
    def read(data, i):
        return torch.from_numpy(data.data[i]) + data.cache["rng"].random()

    data = Stored(read)
    data.cache["rng"] = random.Random(0)
    return setup(mlp(), DataLoader(data, 8, num_workers=2))


@faulty("data.worker-copies")
def every_worker_seeded_alike():
    def read(data, i):
        return torch.from_numpy(data.data[i] + np.random.normal(size=4).astype("float32"))

    return setup(mlp(), DataLoader(Stored(read), 8, num_workers=4, worker_init_fn=lambda worker: np.random.seed(42)))


@faulty("data.epoch-copies")
def workers_seeded_by_their_number():
    def read(data, i):
        return torch.from_numpy(data.data[i] + np.random.normal(size=4).astype("float32"))

    loader = DataLoader(Stored(read), 8, num_workers=2, worker_init_fn=lambda worker: np.random.seed(worker))
    return setup(mlp(), loader)


@healthy
def workers_seeded_from_torch():
    def read(data, i):
        return torch.from_numpy(data.data[i] + np.random.normal(size=4).astype("float32"))

    def seed(worker):
        np.random.seed(torch.initial_seed() % 2**32)

    return setup(mlp(), DataLoader(Stored(read), 8, num_workers=2, worker_init_fn=seed))


@healthy
def augmentation_by_index():
    def read(data, i):
        generator = torch.Generator().manual_seed(i)
        return torch.from_numpy(data.data[i]) + torch.randn(4, generator=generator)

    return setup(mlp(), DataLoader(Stored(read), 8, num_workers=2))


class Lines(IterableDataset):
    def __init__(self, split, rank=0, world_size=1):
        self.split, self.rank, self.world_size, self.first, self.step = split, rank, world_size, 0, 1

    def __iter__(self):
        for i in self.split(self):
            x = torch.tensor([float(i), 1.0, 0.0, 0.0]) / 10
            yield x, x.sum().view(1)


@faulty("data.stream-not-split")
def whole_file_in_each_worker():
    return setup(mlp(), DataLoader(Lines(lambda data: range(40)), 4, num_workers=3))


@healthy
def stream_split_by_worker():
    def split(data):
        info = get_worker_info()
        return range(40) if info is None else range(info.id, 40, info.num_workers)

    return setup(mlp(), DataLoader(Lines(split), 4, num_workers=3))


@healthy
def stream_split_in_worker_init():
    def start(worker):
        info = get_worker_info()
        info.dataset.first, info.dataset.step = worker, info.num_workers

    data = Lines(lambda data: range(data.first, 40, data.step))
    return setup(mlp(), DataLoader(data, 4, num_workers=2, worker_init_fn=start))


@healthy
def endless_random_stream():
    class Endless(IterableDataset):
        def __iter__(self):
            while True:
                x = torch.randn(4)
                yield x, x.sum().view(1)

    return setup(mlp(), DataLoader(Endless(), 8, num_workers=2))


@faulty("data.stream-ignores-rank")
def stream_same_on_every_rank():
    return setup(mlp(), DataLoader(Lines(lambda data: range(40), rank=1, world_size=4), 4))


@healthy
def stream_split_by_rank():
    return setup(mlp(), DataLoader(Lines(lambda d: range(d.rank, 40, d.world_size), rank=1, world_size=4), 4))


@faulty("data.split-overlaps")
def overlapping_slices():
    x, y = regression()
    return setup(mlp(), batches(x[:50], y[:50]), val_loader=batches(x[40:], y[40:]))


@faulty("data.split-overlaps")
def two_random_splits():
    x, y = regression()
    data = TensorDataset(x, y)
    train, _ = random_split(data, [48, 16], generator=torch.Generator().manual_seed(0))
    _, val = random_split(data, [48, 16], generator=torch.Generator().manual_seed(1))
    return setup(mlp(), DataLoader(train, 16), val_loader=DataLoader(val, 16))


@healthy
def one_random_split():
    x, y = regression()
    train, val = random_split(TensorDataset(x, y), [48, 16], generator=torch.Generator().manual_seed(0))
    return setup(mlp(), DataLoader(train, 16), val_loader=DataLoader(val, 16))


@healthy
def validated_on_training_data():
    x, y = regression()
    data = TensorDataset(x, y)
    return setup(mlp(), DataLoader(data, 16, shuffle=True), val_loader=DataLoader(data, 64))


@healthy
def discrete_inputs_that_repeat():
    x = torch.arange(64.0).remainder(4).unsqueeze(1)
    return setup(mlp(1), batches(x[:48], x[:48]), val_loader=batches(x[48:], x[48:]))


class Jittered(Dataset):
    def __init__(self, jitter=True):
        self.x, self.y = regression()
        self.jitter = jitter

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return self.x[i] + (torch.randn(4) if self.jitter else 0), self.y[i]


@faulty("data.validation-augmented")
def transform_shared_by_both_parts():
    data = Jittered()
    return setup(mlp(), DataLoader(Subset(data, range(48)), 16), val_set=Subset(data, range(48, 64)))


@healthy
def transform_for_training_only():
    train, val = Subset(Jittered(), range(48)), Subset(Jittered(False), range(48, 64))
    return setup(mlp(), DataLoader(train, 16), val_set=val, val_loader=DataLoader(val, 16))


@faulty("data.validation-scaled-differently")
def validation_left_raw():
    x, y = regression()
    return setup(mlp(), batches(x[:48], y[:48]), val_loader=batches(x[48:] * 60 + 128, y[48:]))


@faulty("data.images-not-scaled")
def bytes_as_floats():
    torch.manual_seed(0)
    x = torch.randint(0, 256, (32, 1, 8, 8)).float()
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    return setup(model, batches(x, (x.mean((1, 2, 3)) > 127).long()), nn.CrossEntropyLoss(), optimizer)


@healthy
def bytes_scaled_by_the_model():
    torch.manual_seed(0)
    x = torch.randint(0, 256, (32, 1, 8, 8)).float()

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))

        def forward(self, x):
            return self.net(x / 255)

    return setup(Scaled(), batches(x, (x.mean((1, 2, 3)) > 127).long()), nn.CrossEntropyLoss())


@faulty("data.last-batch-of-one")
def batchnorm_meets_one_example():
    x, y = regression(33)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    return setup(model, DataLoader(TensorDataset(x, y), 16))


@healthy
def last_batch_dropped():
    x, y = regression(33)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    return setup(model, DataLoader(TensorDataset(x, y), 16, drop_last=True))


@faulty("failure.loader")
def sequences_of_unequal_length():
    data = [(torch.randn(3 + i % 2, 4), torch.zeros(1)) for i in range(16)]
    return setup(mlp(), DataLoader(data, 4))


@healthy
def batches_as_dicts():
    x, y = regression()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, features, scale):
            return self.net(features * scale)

    loader = [{"features": a, "scale": torch.ones(len(a), 1), "labels": b} for a, b in batches(x, y)]
    return setup(Net(), loader)


@healthy
def generator_function_as_loader():
    x, y = regression()

    class Loader:
        def __iter__(self):
            for i in range(0, 64, 16):
                yield x[i : i + 16], y[i : i + 16]

    return setup(mlp(), Loader())


@healthy
def one_shot_generator():
    x, y = regression()
    return setup(mlp(), ((x[i : i + 16], y[i : i + 16]) for i in range(0, 64, 16)))


@healthy
def autoencoder_batches():
    x, _ = regression()
    return setup(mlp(4, 4), [x[i : i + 16] for i in range(0, 64, 16)], step=_reconstruct)


def _reconstruct(model, batch, loss_fn, optimizer):
    optimizer.zero_grad()
    loss = loss_fn(model(batch), batch)
    loss.backward()
    optimizer.step()
    return loss


@healthy
def many_labels_in_order():
    x, y = classes()
    return setup(mlp(4, 3), DataLoader(TensorDataset(x, y), 16), nn.CrossEntropyLoss())
