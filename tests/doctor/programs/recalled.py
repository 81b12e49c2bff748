"""Programs that the doctor once missed, each with its repaired twin, and healthy ones of the same kinds."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from tests.doctor.programs import batches, classes, faulty, healthy, mlp, regression, setup


def _pair(code):
    """Enter a program that takes whether it is the faulty one, as two."""

    def enter(make):
        def broken():
            return make(True)

        def repaired():
            return make(False)

        broken.__name__, repaired.__name__ = make.__name__, f"{make.__name__}_repaired"
        faulty(code)(broken)
        healthy(repaired)
        return make

    return enter


@_pair("data.reading-edits")
def cache_that_is_changed(is_broken):
    class Cached(Dataset):
        def __init__(self):
            self.cache = {}

        def __len__(self):
            return 32

        def __getitem__(self, index):
            if index not in self.cache:
                self.cache[index] = np.linspace(0, 1, 4, dtype="float32") + index / 32
            row = self.cache[index] if is_broken else self.cache[index].copy()
            row += np.random.normal(0, 0.1, 4).astype("float32")
            return torch.from_numpy(row), torch.tensor([index / 8.0])

    return setup(mlp(), DataLoader(Cached(), 8))


@_pair("data.split-overlaps")
def rows_that_occur_twice(is_broken):
    x, y = regression(96)
    again = x if is_broken else torch.randn(96, 4)
    order = torch.randperm(192, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(torch.cat([x, again])[order], torch.cat([y, y])[order])
    train, val = Subset(data, range(144)), Subset(data, range(144, 192))
    return setup(mlp(), DataLoader(train, 24), train_set=train, val_set=val)


@_pair("optimizer.learning-rate-zero")
def warm_up_in_whole_numbers(is_broken):
    x, y = regression()
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda k: k // 10_000 if is_broken else min(1.0, k / 10))

    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        loss = loss_fn(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss

    return setup(model, batches(x, y), optimizer=optimizer, step=step, scheduler=scheduler)


@_pair("optimizer.parameters-missing")
def a_scale_of_its_own(is_broken):
    x, y = regression()

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.scale = mlp(), nn.Parameter(torch.ones(1))

        def forward(self, x):
            return self.scale * self.body(x)

    model = Scaled()
    return setup(
        model, batches(x, y), optimizer=torch.optim.SGD((model.body if is_broken else model).parameters(), 0.1)
    )


@_pair("optimizer.parameters-missing")
def centres_of_the_loss(is_broken):
    x, y = classes()

    class Centres(nn.Module):
        def __init__(self):
            super().__init__()
            self.centres = nn.Parameter(torch.randn(3, 3))

        def forward(self, z, label):
            return F.cross_entropy(-torch.cdist(z, self.centres), label)

    model, loss = mlp(4, 3), Centres()
    held = [*model.parameters(), *([] if is_broken else loss.parameters())]
    return setup(model, batches(x, y), loss, torch.optim.Adam(held, 0.01))


@_pair("loss.float64")
def labels_of_numpy(is_broken):
    x, y = regression()
    return setup(mlp(), batches(x, y.double() if is_broken else y))


@_pair("memory.graph-kept")
def average_of_weights_with_their_graph(is_broken):
    x, y = regression(128)
    model = mlp()
    average = [p.detach().clone() for p in model.parameters()]

    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        loss = loss_fn(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        for i, p in enumerate(model.parameters()):
            average[i] = 0.9 * average[i] + 0.1 * (p * 1 if is_broken else p.detach())
        return loss

    return setup(model, batches(x, y), step=step, average=average)


@_pair("memory.graph-kept")
def meter_that_adds_losses(is_broken):
    x, y = regression(128)

    class Meter:
        total = 0.0

    def train(model, loader, loss_fn, optimizer):
        meter = Meter()
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(inputs), labels)
            loss.backward()
            optimizer.step()
            meter.total = meter.total + (loss if is_broken else loss.item())

    return setup(mlp(), batches(x, y), train=train)


@_pair("data.batch-edited")
def loop_that_centres_the_stored_batch(is_broken):
    x, y = regression()

    def train(model, loader, loss_fn, optimizer):
        for _ in range(2):
            for inputs, labels in loader:
                if is_broken:
                    inputs -= 0.5
                else:
                    inputs = inputs - 0.5
                optimizer.zero_grad()
                loss_fn(model(inputs), labels).backward()
                optimizer.step()

    return setup(mlp(), batches(x + 1, y), train=train)


@_pair("model.depends-on-padding")
def mean_over_padded_words(is_broken):
    torch.manual_seed(0)
    keep = torch.arange(7)[None] < torch.randint(2, 7, (48, 1))
    words = torch.randint(1, 20, (48, 7)) * keep

    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows, self.head = nn.Embedding(20, 8), nn.Linear(8, 2)

        def forward(self, words, keep):
            h = self.rows(words)
            if is_broken:
                return self.head(h.mean(1))
            return self.head((h * keep[..., None]).sum(1) / keep.sum(1, keepdim=True))

    y = torch.randint(0, 2, (48,))
    data = [(words[i : i + 16], keep[i : i + 16], y[i : i + 16]) for i in range(0, 48, 16)]
    return setup(Bag(), data, nn.CrossEntropyLoss())


@_pair("scheduler.never-steps")
def schedule_that_is_forgotten(is_broken):
    x, y = regression()
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5)

    def train(model, loader, loss_fn, optimizer):
        for _ in range(3):
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss_fn(model(inputs), labels).backward()
                optimizer.step()
            if not is_broken:
                scheduler.step()

    return setup(model, batches(x, y), optimizer=optimizer, train=train, scheduler=scheduler)


@_pair("loop.foreign-gradients")
def generator_that_learns_the_critic_s_loss(is_broken):
    torch.manual_seed(0)
    g, c = mlp(2, 2), mlp(2, 1)
    og, oc = (torch.optim.SGD(net.parameters(), 0.01) for net in (g, c))

    def step(model, real, loss_fn, optimizer):
        fake = g(torch.randn(16, 2))
        oc.zero_grad()
        (c(fake if is_broken else fake.detach()).mean() - c(real).mean()).backward()
        oc.step()
        loss = -c(g(torch.randn(16, 2))).mean()
        loss.backward()
        og.step()
        og.zero_grad()
        return loss

    model = nn.ModuleDict({"g": g, "c": c})
    return setup(model, [torch.randn(16, 2) for _ in range(4)], optimizer=og, optimizers=[og, oc], step=step)


@_pair("evaluation.train-mode")
def validation_in_the_loop_without_its_mode(is_broken):
    x, y = classes()
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    validation = DataLoader(TensorDataset(x + 1, y), 32)

    def train(model, loader, loss_fn, optimizer):
        for _ in range(2):
            model.train()
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss_fn(model(inputs), labels).backward()
                optimizer.step()
            if not is_broken:
                model.eval()
            with torch.no_grad():
                right = sum((model(inputs).argmax(1) == labels).sum() for inputs, labels in validation)
        return right

    return setup(model, batches(x, y), nn.CrossEntropyLoss(), train=train)


@faulty("amp.every-step-skipped")
def squares_beyond_float16():
    x, y = regression()
    model, scaler = mlp(), torch.amp.GradScaler("cpu", init_scale=65536.0)

    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = ((model(batch[0]) - (3000 * batch[1]).half()) ** 2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return setup(model, batches(x, y), step=step, scaler=scaler)


@faulty("numerics.loss-not-finite")  # and nothing about batches or the future, which can't be compared
def divided_by_a_norm_of_zero():
    x, y = regression()
    x[5] = 0

    class Unit(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(4, 8, bias=False), nn.Linear(8, 1)

        def forward(self, x):
            h = self.body(x)
            return self.head(h / h.norm(dim=1, keepdim=True))

    return setup(Unit(), batches(x, y))


@healthy
def gradients_of_each_example():
    x, y = regression()
    model = mlp()

    def step(model, batch, loss_fn, optimizer):
        weights = {name: p.detach() for name, p in model.named_parameters()}

        def loss_of(weights, x, y):
            return F.mse_loss(functional_call(model, weights, (x[None],)), y[None])

        each = vmap(grad(loss_of), (None, 0, 0))(weights, *batch)
        for name, p in model.named_parameters():
            p.grad = each[name].clamp(-1, 1).mean(0)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            return loss_fn(model(batch[0]), batch[1])

    return setup(model, batches(x, y), step=step)


@healthy
def embeddings_updated_more_often_than_the_head():
    torch.manual_seed(0)
    rows, head = nn.EmbeddingBag(30, 8), nn.Linear(8, 1)
    often, seldom = torch.optim.SGD(rows.parameters(), 0.1), torch.optim.SGD(head.parameters(), 0.1)

    def train(model, loader, loss_fn, optimizer):
        for i, (x, y) in enumerate(loader):
            often.zero_grad()
            (loss_fn(model(x), y) / 2).backward()
            often.step()
            if i % 2:
                seldom.step()
                seldom.zero_grad()

    data = batches(torch.randint(0, 30, (128, 5)), torch.randn(128, 1))
    return setup(nn.Sequential(rows, head), data, optimizer=often, optimizers=[often, seldom], train=train)


@healthy
def training_loss_measured_in_training_mode():
    x, y = regression()
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 1))

    def train(model, loader, loss_fn, optimizer):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss_fn(model(inputs), labels).backward()
            optimizer.step()
            with torch.no_grad():  # the same noise level as in the step: for the curve of the training
                loss_fn(model(inputs), labels).item()

    return setup(model, batches(x, y), train=train)


@healthy
def statistics_measured_again_after_training():
    x, y = regression()
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))

    def train(model, loader, loss_fn, optimizer):
        model.train()
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss_fn(model(inputs), labels).backward()
            optimizer.step()
        model[1].reset_running_stats()
        with torch.no_grad():
            for inputs, _ in loader:
                model(inputs)

    return setup(model, batches(x, y), train=train)


@healthy
def tokens_with_segments():
    torch.manual_seed(0)
    words = torch.randint(1, 20, (48, 8))
    parts = (torch.arange(8)[None] >= torch.randint(2, 7, (48, 1))).long()  # zeros, then ones: no padding

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows, self.kinds, self.head = nn.Embedding(20, 8), nn.Embedding(2, 8), nn.Linear(8, 2)

        def forward(self, words, parts):
            return self.head(torch.tanh(self.rows(words) + self.kinds(parts)).mean(1))

    y = torch.randint(0, 2, (48,))
    data = [(words[i : i + 16], parts[i : i + 16], y[i : i + 16]) for i in range(0, 48, 16)]
    return setup(Two(), data, nn.CrossEntropyLoss())


@healthy
def a_label_for_each_real_word():
    torch.manual_seed(0)
    keep = torch.arange(8)[None] < torch.randint(3, 9, (48, 1))
    words = torch.randint(2, 20, (48, 8)) * keep

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows, self.rnn, self.head = nn.Embedding(20, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, words, lengths):
            return self.head(self.rnn(self.rows(words))[0]).transpose(1, 2)  # what comes after the end is ignored

    y = torch.where(keep, words % 3, -100)
    data = [((words[i : i + 16], keep[i : i + 16].sum(1)), y[i : i + 16]) for i in range(0, 48, 16)]
    return setup(Tagger(), data, nn.CrossEntropyLoss())
