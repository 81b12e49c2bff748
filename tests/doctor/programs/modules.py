"""What modules hold, share, freeze and average."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from tests.doctor.programs import batches, classes, faulty, healthy, mlp, regression, setup


@faulty("model.unregistered-parameters")
def layers_in_a_tuple_of_pairs():
    x, y = regression()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stages = tuple((nn.Linear(4, 4), nn.Tanh()) for _ in range(2))
            self.out = nn.Linear(4, 1)

        def forward(self, x):
            for linear, activation in self.stages:
                x = activation(linear(x))
            return self.out(x)

    return setup(Net(), batches(x, y))


@faulty("model.unregistered-parameters")
def plain_tensor_as_weight():
    x, y = regression()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.randn(4, 4, requires_grad=True)
            self.out = nn.Linear(4, 1)

        def forward(self, x):
            return self.out(x @ self.w)

    return setup(Net(), batches(x, y))


@faulty("model.unregistered-parameters")
def layers_inside_a_plain_object():
    x, y = regression()

    class Holder:
        def __init__(self):
            self.layer = nn.Linear(4, 4)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.holder, self.out = Holder(), nn.Linear(4, 1)

        def forward(self, x):
            return self.out(torch.tanh(self.holder.layer(x)))

    return setup(Net(), batches(x, y))


@healthy
def frozen_teacher_hidden_in_a_list():
    x, y = regression()

    class Student(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.teacher = mlp(), [mlp().requires_grad_(False)]

        def forward(self, x):
            return self.net(x), self.teacher[0](x)

    return setup(Student(), batches(x, y), lambda out, label: F.mse_loss(out[0], label) + F.mse_loss(*out))


@healthy
def teacher_under_no_grad():
    x, y = regression()

    class Student(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.teacher = mlp(), [mlp()]

        def forward(self, x):
            with torch.no_grad():
                soft = self.teacher[0](x)
            return self.net(x), soft

    return setup(Student(), batches(x, y), lambda out, label: F.mse_loss(out[0], label) + F.mse_loss(*out))


@healthy
def second_name_for_a_layer():
    x, y = regression()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()
            self.order = [self.net[0], self.net[1], self.net[2]]

        def forward(self, x):
            for layer in self.order:
                x = layer(x)
            return x

    return setup(Net(), batches(x, y))


@healthy
def cached_positions():
    t = torch.randint(0, 9, (32, 6), generator=torch.Generator().manual_seed(0))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.pos, self.out = nn.Embedding(9, 8), nn.Embedding(6, 8), nn.Linear(8, 2)
            self.cache = None

        def forward(self, t):
            if self.cache is None:
                self.cache = torch.arange(t.shape[1])
            return self.out((self.emb(t) + self.pos(self.cache)).mean(1))

    return setup(Net(), batches(t, t[:, 0] % 2), nn.CrossEntropyLoss())


@faulty("model.constant-not-a-buffer")
def constant_left_in_float32():
    x, y = regression()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.basis = mlp(), torch.randn(4, 4)

        def forward(self, x):
            return self.net(x @ self.basis)

    return setup(Net().double(), batches(x.double(), y.double()))


@faulty("model.constant-not-a-buffer", "note")
def constant_that_works_here():
    x, y = regression()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.mean = mlp(), torch.zeros(4)

        def forward(self, x):
            return self.net(x - self.mean)

    return setup(Net(), batches(x, y))


@faulty("model.shared-layer", "note")
def one_block_four_times():
    x, y = regression()
    block = nn.Linear(4, 4)
    return setup(nn.Sequential(nn.ModuleList([block] * 4)[0], block, block, nn.Linear(4, 1)), batches(x, y))


@faulty("model.tying-lost")
def tie_broken_by_a_copy():
    t = torch.randint(0, 9, (64,), generator=torch.Generator().manual_seed(0))

    class Lm(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.decoder = nn.Embedding(9, 5), nn.Linear(5, 9, bias=False)
            self.decoder.weight = self.embedding.weight

        def forward(self, t):
            return self.decoder(self.embedding(t))

    model = Lm()
    model.decoder.weight = nn.Parameter(model.decoder.weight.detach().clone())
    return setup(model, batches(t, (t + 1) % 9), nn.CrossEntropyLoss())


@faulty("model.tying-lost")
def tie_by_data():
    t = torch.randint(0, 9, (64,), generator=torch.Generator().manual_seed(0))

    class Lm(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.decoder = nn.Embedding(9, 5), nn.Linear(5, 9, bias=False)
            self.decoder.weight.data = self.embedding.weight.data

        def forward(self, t):
            return self.decoder(self.embedding(t))

    return setup(Lm(), batches(t, (t + 1) % 9), nn.CrossEntropyLoss())


@faulty("model.random-in-eval")
def dropout_without_training_flag():
    x, y = regression()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 16), nn.Linear(16, 1)

        def forward(self, x):
            return self.b(F.dropout(self.a(x), p=0.2))

    return setup(Net(), batches(x, y))


@faulty("model.random-in-eval")
def dropout_in_a_plain_list():
    x, y = regression()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.drops = nn.Linear(4, 16), nn.Linear(16, 1), [nn.Dropout(0.3)]

        def forward(self, x):
            return self.b(self.drops[0](self.a(x)))

    return setup(Net(), batches(x, y))


@healthy
def dropout_kept_on_by_a_layer():
    x, y = regression()

    class AlwaysDropout(nn.Module):
        def forward(self, x):
            return F.dropout(x, 0.2, training=True)

    return setup(nn.Sequential(nn.Linear(4, 16), AlwaysDropout(), nn.Linear(16, 1)), batches(x, y))


@healthy
def noise_in_both_modes():
    x, y = regression()

    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, x):
            return self.net(x + 0.01 * torch.randn_like(x))

    return setup(Noisy(), batches(x, y))


@faulty("model.layer-built-in-forward")
def head_made_in_forward():
    x, y = regression()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 8)

        def forward(self, x):
            h = torch.relu(self.body(x))
            return nn.Linear(h.shape[1], 1)(h)

    return setup(Net(), batches(x, y))


@faulty("model.layer-built-in-forward")
def batchnorm_made_in_forward():
    x, y = regression()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.out = nn.Linear(4, 8), nn.Linear(8, 1)

        def forward(self, x):
            return self.out(nn.BatchNorm1d(8)(self.body(x)))

    return setup(Net(), batches(x, y))


@healthy
def activation_made_in_forward():
    x, y = regression()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.out = nn.Linear(4, 8), nn.Linear(8, 1)

        def forward(self, x):
            return self.out(nn.ReLU()(self.body(x)))

    return setup(Net(), batches(x, y))


class Backbone(nn.Module):
    def __init__(self, frozen=True):
        super().__init__()
        torch.manual_seed(1)
        self.features = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8))
        self.classifier = nn.Linear(8, 1)
        if frozen:
            self.features.requires_grad_(False)

    def forward(self, x):
        return self.classifier(self.features(x))


@faulty("model.frozen-statistics-move")
def frozen_features_in_training_mode():
    x, y = regression()
    model = Backbone()

    def train(model, loader, loss_fn, optimizer, epochs=2):
        for _ in range(epochs):
            model.train()
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss_fn(model(inputs), labels).backward()
                optimizer.step()

    optimizer = torch.optim.SGD(model.classifier.parameters(), 0.1)
    return setup(model, batches(x + 3, y), optimizer=optimizer, train=train)


@faulty("model.frozen-statistics-move")
def frozen_flat_network():
    x, y = regression()
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    model[0].requires_grad_(False)
    model[1].requires_grad_(False)
    return setup(model, batches(x + 3, y), optimizer=torch.optim.SGD(model[3].parameters(), 0.1))


@healthy
def frozen_features_kept_in_eval():
    x, y = regression()
    model = Backbone()

    def train(model, loader, loss_fn, optimizer, epochs=2):
        for _ in range(epochs):
            model.train()
            model.features.eval()
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss_fn(model(inputs), labels).backward()
                optimizer.step()

    model.features.eval()
    optimizer = torch.optim.SGD(model.classifier.parameters(), 0.1)
    return setup(model, batches(x + 3, y), optimizer=optimizer, train=train)


@healthy
def only_affine_frozen():
    x, y = regression()
    model = Backbone(frozen=False)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.requires_grad_(False)
    return setup(
        model, batches(x, y), optimizer=torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.05)
    )


@healthy
def target_network_with_batchnorm():
    x, y = regression()
    online = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    model = nn.ModuleDict({"online": online, "target": copy.deepcopy(online).requires_grad_(False)})

    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        with torch.no_grad():
            goal = labels + 0.5 * model["target"](inputs)
        loss = loss_fn(model["online"](inputs), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return setup(model, batches(x, y), optimizer=torch.optim.Adam(online.parameters(), 0.01), step=step)


@faulty("optimizer.parameters-missing")
def head_forgotten():
    x, y = regression()
    model = Backbone(frozen=False)
    return setup(model, batches(x, y), optimizer=torch.optim.Adam(model.features.parameters(), 0.01))


@faulty("optimizer.parameters-missing")
def head_replaced_too_late():
    x, y = classes()
    model = mlp(4, 10)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model[2] = nn.Linear(16, 3)
    return setup(model, batches(x, y), nn.CrossEntropyLoss(), optimizer)


@faulty("optimizer.parameters-missing")
def optimizer_of_another_copy():
    x, y = regression()
    model = mlp()
    optimizer = torch.optim.SGD(copy.deepcopy(model).parameters(), 0.1)
    return setup(model, batches(x, y), optimizer=optimizer)


@faulty("optimizer.parameters-missing", "note")
def only_the_head_is_trained():
    x, y = regression()
    model = Backbone(frozen=False).eval()
    return setup(model, batches(x, y), optimizer=torch.optim.Adam(model.classifier.parameters(), 0.01))


@healthy
def two_optimizers_in_a_closure():
    x, y = regression()
    model = Backbone(frozen=False)
    slow = torch.optim.SGD(model.features.parameters(), 0.001)
    fast = torch.optim.SGD(model.classifier.parameters(), 0.1)

    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        for each in (slow, fast):
            each.zero_grad()
        loss = loss_fn(model(inputs), labels)
        loss.backward()
        slow.step()
        fast.step()
        return loss

    return setup(model, batches(x, y), optimizer=fast, step=step)


@healthy
def weights_updated_by_hand():
    x, y = regression()
    model = mlp()

    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        loss = loss_fn(model(inputs), labels)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), gradients, strict=True):
                p -= 0.05 * g
        return loss

    return setup(model, batches(x, y), step=step)


@healthy
def learned_input():
    torch.manual_seed(0)
    model = mlp(4, 1).requires_grad_(False)
    image = torch.randn(8, 4, requires_grad=True)

    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        loss = loss_fn(model(image), batch)
        loss.backward()
        optimizer.step()
        return loss

    return setup(model, [torch.ones(8, 1)] * 4, optimizer=torch.optim.Adam([image], 0.05), step=step)


@faulty("model.hook-left")
def hook_in_every_epoch():
    x, y = regression()
    seen = []

    def train(model, loader, loss_fn, optimizer):
        for _ in range(3):
            model[1].register_forward_hook(lambda module, inputs, output: seen.append(output.mean().item()))
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss_fn(model(inputs), labels).backward()
                optimizer.step()

    return setup(mlp(), batches(x, y), train=train)


@healthy
def hook_once_and_removed():
    x, y = regression()
    seen = []

    def train(model, loader, loss_fn, optimizer):
        handle = model[1].register_forward_hook(lambda module, inputs, output: seen.append(output.mean().item()))
        for _ in range(3):
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss_fn(model(inputs), labels).backward()
                optimizer.step()
        handle.remove()

    return setup(mlp(), batches(x, y), train=train)


def _average(update, build=None):
    x, y = regression()
    model = build() if build else nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    ema = copy.deepcopy(model).requires_grad_(False)

    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), labels)
        loss.backward()
        optimizer.step()
        update(ema, model)
        return loss

    return setup(model, batches(x, y), step=step, ema=ema)


@faulty("model.average-is-wrong")
def average_without_buffers():
    @torch.no_grad()
    def update(ema, model):
        for e, p in zip(ema.parameters(), model.parameters(), strict=True):
            e.lerp_(p, 0.1)

    return _average(update)


@faulty("model.average-is-wrong")
def average_that_is_the_model():
    x, y = regression()
    model = mlp()
    ema = mlp()
    for e, p in zip(ema.parameters(), model.parameters(), strict=True):
        e.data = p.data
    return setup(model, batches(x, y), ema=ema)


@healthy
def average_with_copied_buffers():
    @torch.no_grad()
    def update(ema, model):
        for e, p in zip(ema.parameters(), model.parameters(), strict=True):
            e.lerp_(p, 0.1)
        for e, p in zip(ema.buffers(), model.buffers(), strict=True):
            e.copy_(p)

    return _average(update)


@healthy
def averaged_model_of_pytorch():
    x, y = regression()
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))

    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), labels)
        loss.backward()
        optimizer.step()
        ema.update_parameters(model)
        return loss

    return setup(model, batches(x, y), step=step, ema=ema)


def _padded():
    torch.manual_seed(0)
    lengths = torch.randint(2, 7, (32,))
    keep = torch.arange(6).unsqueeze(0) < lengths.unsqueeze(1)
    x = torch.randn(32, 6, 8) * keep.unsqueeze(-1)
    y = (x[..., 0] * keep).sum(1, keepdim=True)
    return x, keep, lengths, y


class Attending(nn.Module):
    def __init__(self, inverted):
        super().__init__()
        torch.manual_seed(1)
        self.attention, self.head, self.inverted = (
            nn.MultiheadAttention(8, 2, batch_first=True),
            nn.Linear(8, 1),
            inverted,
        )

    def forward(self, pair):
        x, keep = pair
        h, _ = self.attention(x, x, x, key_padding_mask=keep if self.inverted else ~keep)
        return self.head(h[:, 0])


def _pairs(*parts):
    return [(tuple(p[i : i + 16] for p in parts[:-1]), parts[-1][i : i + 16]) for i in range(0, 32, 16)]


@faulty("model.depends-on-padding")
def padding_mask_inverted():
    x, keep, _, y = _padded()
    keep[:, -1] = False
    return setup(Attending(True), _pairs(x, keep, y))


@faulty("model.depends-on-padding")
def mean_over_padding():
    x, keep, _, y = _padded()

    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp, self.out = nn.Linear(8, 8), nn.Linear(8, 1)

        def forward(self, x, keep):
            return self.out(torch.relu(self.inp(x)).sum(1) / keep.sum(1, keepdim=True))

    return setup(Pool(), _pairs(x, keep, y))


@healthy
def padding_mask_right():
    x, keep, _, y = _padded()
    return setup(Attending(False), _pairs(x, keep, y))


@healthy
def mean_over_real_places():
    x, keep, _, y = _padded()

    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp, self.out = nn.Linear(8, 8), nn.Linear(8, 1)

        def forward(self, x, keep):
            h = torch.relu(self.inp(x)) * keep.unsqueeze(-1)
            return self.out(h.sum(1) / keep.sum(1, keepdim=True))

    return setup(Pool(), _pairs(x, keep, y))


@healthy
def packed_lengths():
    x, _, lengths, y = _padded()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.out = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 1)

        def forward(self, x, lengths):
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return self.out(self.gru(packed)[1][0])

    return setup(Net(), _pairs(x, lengths, y))


@faulty("checkpoint.nothing-loaded")
def compiled_names_not_stripped():
    x, y = regression()
    state = {f"_orig_mod.{name}": value for name, value in mlp().state_dict().items()}
    model = mlp()
    model.load_state_dict(state, strict=False)
    return setup(model, batches(x, y))


@healthy
def new_head_on_old_body():
    x, y = classes()
    state = mlp(4, 10).state_dict()
    del state["2.weight"], state["2.bias"]
    model = mlp(4, 3)
    model.load_state_dict(state, strict=False)
    return setup(model, batches(x, y), nn.CrossEntropyLoss())


def _frozen_midway(clear):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x, y = regression()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=clear)
    model[0].weight.requires_grad_(False)

    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad(set_to_none=clear)
        loss = loss_fn(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss

    return setup(model, batches(x, y), None, optimizer, step=step)


@faulty("optimizer.frozen-parameter-moves")
def frozen_with_its_gradient_kept():
    return _frozen_midway(clear=False)


@healthy
def frozen_with_its_gradient_cleared():
    return _frozen_midway(clear=True)


def _resumed(with_optimizer):
    model, other = mlp(), mlp()
    optimizer = torch.optim.Adam(model.parameters())
    x, y = regression()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    resumed = torch.optim.Adam(other.parameters())
    other.load_state_dict(model.state_dict())
    if with_optimizer:
        resumed.load_state_dict(optimizer.state_dict())
    return setup(other, batches(x, y), None, resumed)


@faulty("checkpoint.optimizer-starts-anew", "note")
def resumed_without_the_optimizer():
    return _resumed(with_optimizer=False)


@healthy
def resumed_with_the_optimizer():
    return _resumed(with_optimizer=True)
