"""The order of things in steps and loops, losses, what is kept."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tests.doctor.programs import batches, classes, faulty, healthy, mlp, regression, setup


def _step(body, **more):
    x, y = regression()
    return setup(mlp(), batches(x, y), step=body, **more)


@faulty("loop.no-zero-grad")
def cleared_only_at_the_start():
    def train(model, loader, loss_fn, optimizer):
        optimizer.zero_grad()
        for inputs, labels in loader:
            loss_fn(model(inputs), labels).backward()
            optimizer.step()

    x, y = regression()
    return setup(mlp(), batches(x, y), train=train)


@faulty("loop.no-zero-grad")
def cleared_after_step_in_the_wrong_model():
    other = mlp()

    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        loss = loss_fn(model(inputs), labels)
        loss.backward()
        optimizer.step()
        other.zero_grad()
        return loss

    return _step(step)


@healthy
def cleared_through_the_model():
    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        model.zero_grad()
        loss = loss_fn(model(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss

    return _step(step)


@healthy
def gradients_decayed_by_hand():
    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        loss = loss_fn(model(inputs), labels)
        for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
            p.grad = g if p.grad is None else 0.5 * p.grad + g
        optimizer.step()
        return loss

    return _step(step)


@faulty("loop.gradients-erased")
def cleared_after_backward():
    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        loss = loss_fn(model(inputs), labels)
        loss.backward()
        optimizer.zero_grad()
        optimizer.step()
        return loss

    return _step(step)


@faulty("loop.gradients-erased")
def zeroed_not_none():
    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        loss = loss_fn(model(inputs), labels)
        loss.backward()
        model.zero_grad(set_to_none=False)
        optimizer.step()
        return loss

    return _step(step)


@faulty("loop.no-update")
def step_forgotten():
    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), labels)
        loss.backward()
        return loss

    return _step(step)


@faulty("loop.step-before-backward")
def updated_before_backward():
    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        loss = loss_fn(model(inputs), labels)
        optimizer.step()
        optimizer.zero_grad()
        loss.backward()
        return loss

    return _step(step)


def _accumulating(clear_inside=False, divide=True, tail=False, carry=False, clear_at_start=True, n=160, k=4):
    x, y = regression(n)

    def train(model, loader, loss_fn, optimizer, epochs=2):
        for _ in range(epochs):
            if clear_at_start:
                optimizer.zero_grad()
            for i, (inputs, labels) in enumerate(loader):
                if clear_inside:
                    optimizer.zero_grad()
                loss = loss_fn(model(inputs), labels)
                (loss / k if divide else loss).backward()
                if (i + 1) % k == 0 or (tail and i + 1 == len(loader)):
                    optimizer.step()
                    optimizer.zero_grad()

    return setup(mlp(), batches(x, y, 8), train=train)


@faulty("loop.accumulation-discarded")
def cleared_for_each_micro_batch():
    return _accumulating(clear_inside=True)


@faulty("loop.accumulation-not-divided")
def micro_losses_added():
    return _accumulating(divide=False)


@faulty("loop.accumulation-tail")
def tail_cleared_at_epoch_start():
    return _accumulating(n=144)


@healthy
def accumulation_right():
    return _accumulating()


@healthy
def accumulation_with_tail():
    return _accumulating(n=144, tail=True)


@healthy
def accumulation_carried_over():
    return _accumulating(n=144, clear_at_start=False)


@healthy
def accumulation_in_the_step():
    count = [0]

    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        loss = loss_fn(model(inputs), labels) / 2
        loss.backward()
        count[0] += 1
        if count[0] % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return _step(step)


@healthy
def gradients_divided_afterwards():
    x, y = regression(160)

    def train(model, loader, loss_fn, optimizer):
        for i, (inputs, labels) in enumerate(loader):
            loss_fn(model(inputs), labels).backward()
            if (i + 1) % 4 == 0:
                for p in model.parameters():
                    p.grad /= 4
                optimizer.step()
                optimizer.zero_grad()

    return setup(mlp(), batches(x, y, 8), train=train)


@healthy
def sum_losses_accumulated():
    x, y = regression(160)

    def train(model, loader, loss_fn, optimizer):
        for i, (inputs, labels) in enumerate(loader):
            loss_fn(model(inputs), labels).backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()

    model = mlp()
    sgd = torch.optim.SGD(model.parameters(), 1e-3)
    return setup(model, batches(x, y, 8), nn.MSELoss(reduction="sum"), sgd, train=train)


@healthy
def gradient_surgery():
    x, y = regression()

    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        collected = []
        for loss in (loss_fn(model(inputs), labels), model(inputs).abs().mean()):
            optimizer.zero_grad()
            loss.backward()
            collected.append([p.grad.clone() for p in model.parameters()])
        for p, a, b in zip(model.parameters(), *collected, strict=True):
            p.grad = a - (a * b).sum().clamp(max=0) * b / (b.norm() ** 2 + 1e-12)
        optimizer.step()
        return loss

    return setup(mlp(), batches(x, y), step=step)


@healthy
def clipping_per_example():
    x, y = regression(32)

    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        total = [torch.zeros_like(p) for p in model.parameters()]
        for a, b in zip(inputs, labels, strict=True):
            optimizer.zero_grad()
            loss_fn(model(a[None]), b[None]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for t, p in zip(total, model.parameters(), strict=True):
                t += p.grad
        for t, p in zip(total, model.parameters(), strict=True):
            p.grad = t / len(inputs)
        optimizer.step()
        return loss_fn(model(inputs), labels)

    return setup(mlp(), batches(x, y, 8), step=step)


@healthy
def sharpness_aware():
    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        optimizer.zero_grad()
        loss_fn(model(inputs), labels).backward()
        with torch.no_grad():
            moves = [0.05 * p.grad / (p.grad.norm() + 1e-12) for p in model.parameters()]
            for p, m in zip(model.parameters(), moves, strict=True):
                p += m
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), labels)
        loss.backward()
        with torch.no_grad():
            for p, m in zip(model.parameters(), moves, strict=True):
                p -= m
        optimizer.step()
        return loss

    return _step(step)


@faulty("loop.clip-misplaced")
def clipped_before_backward():
    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), labels)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        loss.backward()
        optimizer.step()
        return loss

    return _step(step)


@faulty("loop.clip-misplaced")
def clipped_after_step():
    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), labels)
        loss.backward()
        optimizer.step()
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
        return loss

    return _step(step)


@healthy
def clipped_in_between():
    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss

    return _step(step)


@healthy
def norm_measured_after_step():
    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), labels)
        loss.backward()
        optimizer.step()
        torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        return loss

    return _step(step)


def _switching(back, once=False):
    x, y = regression()
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))

    def validate(net):
        net.eval()
        with torch.no_grad():
            value = F.mse_loss(net(x), y).item()
        if back:
            net.train()
        return value

    def train(model, loader, loss_fn, optimizer, epochs=3):
        model.train()
        for _ in range(epochs):
            if not once:
                pass
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss_fn(model(inputs), labels).backward()
                optimizer.step()
            validate(model)

    return setup(model, batches(x, y), train=train, evaluate=validate)


@faulty("loop.eval-mode-while-training")
def train_mode_only_before_the_first_epoch():
    return _switching(back=False)


@healthy
def validation_switches_back():
    return _switching(back=True)


@healthy
def batchnorm_frozen_after_an_epoch():
    x, y = regression()
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))

    def train(model, loader, loss_fn, optimizer, epochs=3):
        for epoch in range(epochs):
            model.train()
            if epoch > 0:
                model[1].eval()
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss_fn(model(inputs), labels).backward()
                optimizer.step()

    return setup(model, batches(x, y), train=train)


@faulty("loss.softmax-before-cross-entropy")
def probabilities_into_cross_entropy():
    x, y = classes()
    return setup(nn.Sequential(mlp(4, 3), nn.Softmax(dim=1)), batches(x, y), nn.CrossEntropyLoss())


@faulty("loss.softmax-before-cross-entropy")
def softmax_in_the_step():
    x, y = classes()

    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        loss = F.cross_entropy(F.softmax(model(batch[0]), -1), batch[1])
        loss.backward()
        optimizer.step()
        return loss

    return setup(mlp(4, 3), batches(x, y), step=step)


@faulty("loss.not-log-probabilities")
def logits_into_nll():
    x, y = classes()
    return setup(mlp(4, 3), batches(x, y), nn.NLLLoss())


@faulty("loss.not-log-probabilities")
def probabilities_into_nll():
    x, y = classes()
    return setup(nn.Sequential(mlp(4, 3), nn.Softmax(1)), batches(x, y), nn.NLLLoss())


@faulty("loss.not-log-probabilities")
def probabilities_into_kl():
    x, _ = classes()
    goal = torch.softmax(x[:, :3], 1)
    return setup(nn.Sequential(mlp(4, 3), nn.Softmax(1)), batches(x, goal), nn.KLDivLoss(reduction="batchmean"))


@faulty("loss.sigmoid-before-logits")
def sigmoid_and_bce_with_logits():
    x, y = regression()
    model = nn.Sequential(mlp(), nn.Sigmoid(), nn.Flatten(0))
    return setup(model, batches(x, (y > 0).float().squeeze(1)), nn.BCEWithLogitsLoss())


@healthy
def sigmoid_and_bce():
    x, y = regression()
    return setup(nn.Sequential(mlp(), nn.Sigmoid()), batches(x, (y > 0).float()), nn.BCELoss())


@faulty("loss.one-class")
def one_logit_and_cross_entropy():
    x, _ = regression()
    return setup(mlp(4, 1), batches(x, torch.zeros(64).long()), nn.CrossEntropyLoss())


@faulty("loss.one-class")
def softmax_over_one_value():
    x, y = regression()
    return setup(nn.Sequential(mlp(4, 1), nn.Softmax(1)), batches(x, (y > 0).float()), nn.BCELoss())


@faulty("loss.labels-out-of-range")
def labels_one_and_two():
    x, y = regression()
    return setup(mlp(), batches(x, (y > 0).float() + 1), nn.BCEWithLogitsLoss())


@faulty("loss.labels-out-of-range")
def cosine_labels_zero_and_one():
    torch.manual_seed(0)
    x = torch.randn(32, 2, 4)
    same = (torch.rand(32) > 0.5).float()

    def step(model, batch, loss_fn, optimizer):
        pair, label = batch
        optimizer.zero_grad()
        loss = F.cosine_embedding_loss(model(pair[:, 0]), model(pair[:, 1]), label)
        loss.backward()
        optimizer.step()
        return loss

    return setup(mlp(4, 3), batches(x, same), step=step)


@healthy
def soft_labels():
    x, y = classes()
    return setup(mlp(4, 3), batches(x, F.one_hot(y, 3) * 0.9 + 0.1 / 3), nn.CrossEntropyLoss())


@healthy
def distillation():
    x, y = classes()
    teacher = mlp(4, 3).requires_grad_(False)

    def loss_fn(out, label):
        with torch.no_grad():
            soft = F.softmax(teacher(torch.ones(len(label), 4)) / 2, 1)
        return F.cross_entropy(out, label) + F.kl_div(F.log_softmax(out / 2, 1), soft, reduction="batchmean")

    return setup(mlp(4, 3), batches(x, y), loss_fn)


@faulty("loss.padding-counted")
def padding_without_ignore_index():
    torch.manual_seed(0)
    t = torch.randint(1, 9, (32, 8))
    lengths = torch.randint(3, 8, (32,))
    t[torch.arange(8)[None] >= lengths[:, None]] = 0

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.out = nn.Embedding(9, 8), nn.Linear(8, 9)

        def forward(self, t):
            return self.out(self.emb(t)).transpose(1, 2)

    return setup(Tagger(), batches(t, (t * 5) % 9), nn.CrossEntropyLoss())


@healthy
def padding_ignored():
    parts = padding_without_ignore_index()
    return {**parts, "loss_fn": nn.CrossEntropyLoss(ignore_index=0)}


@faulty("memory.graph-kept")
def running_sum_of_losses():
    x, y = regression(128)

    def train(model, loader, loss_fn, optimizer):
        total = 0
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(inputs), labels)
            loss.backward()
            optimizer.step()
            total += loss
        return total / len(loader)

    return setup(mlp(), batches(x, y), train=train)


@faulty("memory.graph-kept")
def list_of_losses():
    x, y = regression(128)

    def train(model, loader, loss_fn, optimizer, epochs=2):
        history = []
        for _ in range(epochs):
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss = loss_fn(model(inputs), labels)
                loss.backward()
                optimizer.step()
                history.append(loss)
        return history

    return setup(mlp(), batches(x, y), train=train)


@faulty("memory.graph-kept")
def losses_in_a_closure():
    history = []

    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), labels)
        loss.backward()
        optimizer.step()
        history.append(loss)
        return loss

    return _step(step, history=history)


@healthy
def losses_as_numbers():
    history = []

    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), labels)
        loss.backward()
        optimizer.step()
        history.append(loss.detach())
        return loss

    return _step(step, history=history)


class _Meter:
    def __init__(self):
        self.total, self.last = 0.0, None


def _logging(log):
    """Train one step, and let ``log(model, meter, loss)`` keep something of it."""
    meter = _Meter()

    def step(model, batch, loss_fn, optimizer):
        x, y = batch
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        log(model, meter, loss)
        return loss

    model = mlp()
    model.moving_average = 0.0
    model.register_buffer("total", torch.zeros(()))
    return setup(model, batches(*regression()), step=step)


@faulty("memory.graph-kept")
def moving_average_in_an_attribute():
    def log(model, meter, loss):
        model.moving_average = 0.9 * model.moving_average + 0.1 * loss

    return _logging(log)


@faulty("memory.graph-kept")
def sum_in_a_buffer():
    def log(model, meter, loss):
        model.total += loss

    return _logging(log)


@faulty("memory.graph-kept")
def sum_in_a_meter():
    def log(model, meter, loss):
        meter.total += loss

    return _logging(log)


@healthy
def detached_sums_and_the_last_loss():
    def log(model, meter, loss):
        model.moving_average = 0.9 * model.moving_average + 0.1 * loss.detach()
        meter.total += loss.item()
        meter.last = loss

    return _logging(log)


def _best(copying):
    x, y = regression()

    def train(model, loader, loss_fn, optimizer, epochs=4):
        lowest, best = float("inf"), None
        for _ in range(epochs):
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss = loss_fn(model(inputs), labels)
                loss.backward()
                optimizer.step()
            if best is None or loss.item() < lowest:
                lowest, best = loss.item(), copying(model)
                optimizer.param_groups[0]["lr"] *= 0.5
        model.load_state_dict(best)

    model = mlp()
    return setup(model, batches(x, y), optimizer=torch.optim.SGD(model.parameters(), 1.5), train=train)


@faulty("memory.best-state-is-live")
def best_by_reference():
    return _best(lambda model: model.state_dict())


@faulty("memory.best-state-is-live")
def best_by_shallow_copy():
    return _best(lambda model: dict(model.state_dict()))


@healthy
def best_by_deep_copy():
    return _best(lambda model: copy.deepcopy(model.state_dict()))


@healthy
def best_by_clone():
    return _best(lambda model: {name: value.clone() for name, value in model.state_dict().items()})


def _distributed(announce):
    x, y = regression()
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, num_replicas=2, rank=0, shuffle=True)

    def train(model, loader, loss_fn, optimizer, epochs=2):
        for epoch in range(epochs):
            if announce:
                sampler.set_epoch(epoch)
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss_fn(model(inputs), labels).backward()
                optimizer.step()

    return setup(mlp(), DataLoader(data, 8, sampler=sampler), train=train, sampler=sampler)


@faulty("distributed.no-set-epoch")
def epochs_not_announced():
    return _distributed(False)


@healthy
def epochs_announced():
    return _distributed(True)


@faulty("distributed.padded-evaluation")
def evaluation_with_padding():
    x, y = regression(61)
    x = x + 0.5
    data = TensorDataset(x, y)
    val = DataLoader(data, 8, sampler=DistributedSampler(data, num_replicas=4, rank=1, shuffle=False))
    return setup(mlp(), batches(*regression()), val_loader=val)


@faulty("loop.same-order-each-epoch")
def generator_seeded_in_every_epoch():
    x, y = regression()
    generator = torch.Generator()
    loader = DataLoader(TensorDataset(x, y), 16, shuffle=True, generator=generator)

    def train(model, loader, loss_fn, optimizer):
        for _ in range(3):
            generator.manual_seed(0)
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss_fn(model(inputs), labels).backward()
                optimizer.step()

    return setup(mlp(), loader, train=train)


@faulty("failure.train")
def loop_with_a_misspelt_key():
    def train(model, loader, loss_fn, optimizer):
        for batch in loader:
            loss_fn(model({"x": batch[0]}["inputs"]), batch[1]).backward()

    x, y = regression()
    return setup(mlp(), batches(x, y), train=train)
