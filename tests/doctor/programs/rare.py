"""Rarer faults, each with a healthy twin."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.doctor.programs import batches, classes, faulty, healthy, mlp, regression, setup


def _language(causal, shifted=True):
    torch.manual_seed(0)
    t = torch.randint(0, 11, (32, 9))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.pos = nn.Embedding(11, 8), nn.Embedding(8, 8)
            self.attention, self.out = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 11)

        def forward(self, t):
            h = self.emb(t) + self.pos(torch.arange(t.shape[1]))
            mask = nn.Transformer.generate_square_subsequent_mask(t.shape[1]) if causal else None
            h, _ = self.attention(h, h, h, attn_mask=mask, need_weights=False)
            return self.out(h).transpose(1, 2)

    labels = t[:, 1:] if shifted else (t[:, :-1] + 1) % 11
    return setup(Model(), batches(t[:, :-1], labels), nn.CrossEntropyLoss())


@faulty("model.sees-the-future")
def causal_mask_forgotten():
    return _language(causal=False)


@healthy
def causal_mask_there():
    return _language(causal=True)


@healthy
def tags_of_the_same_place():
    return _language(causal=False, shifted=False)


@faulty("model.sees-the-future")
def bidirectional_forecast():
    x = torch.sin(torch.arange(200.0) / 5).unfold(0, 12, 2).unsqueeze(-1)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = nn.GRU(1, 8, batch_first=True, bidirectional=True), nn.Linear(16, 1)

        def forward(self, x):
            return self.out(self.rnn(x)[0])

    return setup(Model(), batches(x[:, :-1], x[:, 1:]))


@healthy
def forward_forecast():
    x = torch.sin(torch.arange(200.0) / 5).unfold(0, 12, 2).unsqueeze(-1)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = nn.GRU(1, 8, batch_first=True), nn.Linear(8, 1)

        def forward(self, x):
            return self.out(self.rnn(x)[0])

    return setup(Model(), batches(x[:, :-1], x[:, 1:]))


@faulty("amp.loss-not-scaled")
def scaled_loss_thrown_away():
    x, y = regression()
    model = mlp()
    scaler = torch.amp.GradScaler("cpu")

    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        loss = loss_fn(model(batch[0]), batch[1])
        scaler.scale(loss)
        loss.backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return setup(model, batches(x, y), step=step, scaler=scaler)


@faulty("loss.labels-unreachable")
def sigmoid_for_large_labels():
    x, y = regression()
    return setup(nn.Sequential(mlp(), nn.Sigmoid()), batches(x, 10 * y))


@faulty("loss.labels-unreachable")
def relu_for_negative_labels():
    x, y = regression()
    return setup(nn.Sequential(mlp(), nn.ReLU()), batches(x, y))


@healthy
def sigmoid_for_labels_between_0_and_1():
    x, y = regression()
    return setup(nn.Sequential(mlp(), nn.Sigmoid()), batches(x, torch.sigmoid(y)))


@healthy
def tanh_images():
    x, _ = regression()
    return setup(nn.Sequential(mlp(4, 4), nn.Tanh()), batches(x, torch.tanh(x)))


@faulty("loss.relu-before-loss")
def relu_on_logits():
    x, y = classes()
    return setup(nn.Sequential(mlp(4, 3), nn.ReLU()), batches(x, y), nn.CrossEntropyLoss())


@faulty("model.symmetric-units")
def constant_initialization():
    x, y = regression()
    model = mlp()
    for p in model.parameters():
        nn.init.constant_(p, 0.3)
    return setup(model, batches(x, y))


@healthy
def head_starts_at_zero():
    x, y = classes()
    model = mlp(4, 3)
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    return setup(model, batches(x, y), nn.CrossEntropyLoss())


@faulty("model.uninitialized")
def buffer_never_filled():
    x, y = regression()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(8)

        def forward(self, x):
            padded = torch.empty(len(x), 8)
            padded[:, :4] = x
            return self.net(padded * 1e-3)

    return setup(Net(), batches(x, y))


@faulty("model.uninitialized")
def buffer_never_filled_that_holds_nan():
    """The same, on memory that held NaN before."""
    x, y = regression()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(8)

        def forward(self, x):
            padded = torch.Tensor(len(x), 8)
            if padded[0, 0] != 0:  # it is 0 where new memory is filled with zeros
                padded[:, 4:] = torch.nan
            padded[:, :4] = x
            return self.net(padded * 1e-3)

    return setup(Net(), batches(x, y))


@healthy
def buffer_filled():
    x, y = regression()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(8)

        def forward(self, x):
            padded = torch.empty(len(x), 8)
            padded[:, :4], padded[:, 4:] = x, 0
            return self.net(padded)

    return setup(Net(), batches(x, y))


@faulty("memory.graph-kept")
def running_total_in_a_dict():
    x, y = regression()
    log = {"total": torch.zeros(())}

    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        loss = loss_fn(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        log["total"] = log["total"] + loss
        return loss

    return setup(mlp(), batches(x, y), step=step, log=log)


@healthy
def running_total_of_a_window():
    x, y = regression(128)

    def train(model, loader, loss_fn, optimizer):
        window = 0
        for i, (inputs, labels) in enumerate(loader):
            window = window + loss_fn(model(inputs), labels) / 2
            if i % 2:
                optimizer.zero_grad()
                window.backward()
                optimizer.step()
                window = 0

    return setup(mlp(), batches(x, y, 8), train=train)


@faulty("model.tying-lost")
def decoder_is_a_transposed_copy():
    x, _ = regression()

    class Auto(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Linear(4, 3), nn.Linear(3, 4)
            self.decoder.weight = nn.Parameter(self.encoder.weight.detach().clone().t())

        def forward(self, x):
            return self.decoder(torch.tanh(self.encoder(x)))

    return setup(Auto(), batches(x, x))


@healthy
def tied_by_function():
    x, _ = regression()

    class Auto(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.bias = nn.Linear(4, 3), nn.Parameter(torch.zeros(4))

        def forward(self, x):
            return F.linear(torch.tanh(self.encoder(x)), self.encoder.weight.t(), self.bias)

    return setup(Auto(), batches(x, x))


@faulty("data.single-class-batches")
def sorted_binary_labels():
    torch.manual_seed(0)
    y = torch.cat([torch.zeros(64, 1), torch.ones(64, 1)])
    return setup(mlp(), DataLoader(TensorDataset(torch.randn(128, 4) + y, y), 16), nn.BCEWithLogitsLoss())


@faulty("data.batch-edited")
def forward_masks_its_input():
    x, y = regression()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, x):
            x[:, 0] = 0
            return self.net(x)

    return setup(Net(), batches(x, y))


@faulty("data.split-overlaps")
def oversampled_before_the_split():
    torch.manual_seed(0)
    x = torch.randn(40, 4).repeat(2, 1)
    order = torch.randperm(80)
    x = x[order]
    y = x.sum(1, keepdim=True)
    return setup(mlp(), batches(x[:60], y[:60]), val_loader=batches(x[60:68].unique(dim=0), y[:8], 4))


@faulty("model.squeeze-drops-batch")
def squeeze_meets_the_validation_tail():
    x, y = regression()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, x):
            return self.net(x).squeeze()

    data = TensorDataset(x[:17] + 9, y[:17].squeeze(1))
    return setup(Net(), batches(x, y.squeeze(1)), val_loader=DataLoader(data, 8))


@faulty("model.average-is-wrong")
def average_in_bfloat16():
    x, y = regression()
    model = mlp()
    ema = copy.deepcopy(model).bfloat16().requires_grad_(False)

    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        loss = loss_fn(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for e, p in zip(ema.parameters(), model.parameters(), strict=True):
                e.add_(1e-6 * (p.bfloat16() - e))
        return loss

    return setup(model, batches(x, y), step=step, ema=ema)


@healthy
def average_as_a_dict():
    x, y = regression()
    model = mlp()
    ema = {name: value.clone() for name, value in model.state_dict().items()}

    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        loss = loss_fn(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for name, value in model.state_dict().items():
                ema[name].lerp_(value, 0.1)
        return loss

    return setup(model, batches(x, y), step=step, ema=ema)


@faulty("model.mixes-batch")
def standardized_over_the_batch():
    x, y = regression()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, x):
            return self.net((x - x.mean(0)) / (x.std(0) + 1e-6))

    return setup(Net(), batches(x, y))


@faulty("memory.slice-pins-storage", "note")
def first_feature_of_each_batch_kept():
    x, y = regression()
    kept = []

    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        hidden = model[0](batch[0])
        loss = loss_fn(model[2](model[1](hidden)), batch[1])
        loss.backward()
        optimizer.step()
        kept.append(hidden.detach()[0])
        return loss

    return setup(mlp(), batches(x, y), step=step, kept=kept)
