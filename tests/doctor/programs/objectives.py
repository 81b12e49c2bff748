"""Programs whose loss asks for the wrong thing, and healthy ones that look alike."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.doctor.programs import batches, classes, faulty, healthy, mlp, regression, setup


@faulty("loss.wrong-sign")
def likelihood_without_its_minus():
    x, y = classes()

    def loss_fn(logits, y):
        return F.log_softmax(logits, 1).gather(1, y[:, None]).mean()

    return setup(mlp(4, 3), batches(x, y), loss_fn)


@faulty("loss.wrong-sign")
def minus_in_the_step():
    x, y = regression()

    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        loss = -loss_fn(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss

    return setup(mlp(), batches(x, y), step=step)


@faulty("loss.wrong-sign")
def binary_likelihood_of_a_loop():
    x, y = regression()

    def train(model, loader, loss_fn, optimizer):
        for inputs, labels in loader:
            p = torch.sigmoid(model(inputs)).squeeze(1)
            loss = (labels * (p + 1e-6).log() + (1 - labels) * (1 - p + 1e-6).log()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return setup(mlp(), batches(x, (y[:, 0] > 0).float()), train=train)


@faulty("loss.wrong-sign", "note")
def cross_entropy_made_larger():
    x, y = classes()
    model = mlp(4, 3)
    return setup(model, batches(x, y), nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 0.05, maximize=True))


@healthy
def likelihood_made_larger():
    x, y = classes()
    model = mlp(4, 3)

    def loss_fn(logits, y):
        return F.log_softmax(logits, 1).gather(1, y[:, None]).mean()

    return setup(model, batches(x, y), loss_fn, torch.optim.Adam(model.parameters(), 0.01, maximize=True))


@healthy
def gradients_turned_around_by_hand():
    x, y = regression()

    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        score = -loss_fn(model(batch[0]), batch[1])
        score.backward()
        for p in model.parameters():
            p.grad.neg_()
        optimizer.step()
        return score

    return setup(mlp(), batches(x, y), step=step)


@healthy
def policy_whose_rewards_are_all_negative():
    torch.manual_seed(0)
    x, a, r = torch.randn(64, 4), torch.randint(0, 3, (64,)), -torch.rand(64) - 0.1
    data = [(x[i : i + 16], a[i : i + 16], r[i : i + 16]) for i in range(0, 64, 16)]

    def step(model, batch, loss_fn, optimizer):
        states, actions, rewards = batch
        chosen = F.log_softmax(model(states), 1).gather(1, actions[:, None]).squeeze(1)
        loss = -(chosen * rewards).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return setup(mlp(4, 3), data, step=step)


@healthy
def some_examples_forgotten_others_kept():
    x, y = classes(128)

    def train(model, loader, loss_fn, optimizer):
        for i, (inputs, labels) in enumerate(loader):
            loss = loss_fn(model(inputs), labels)
            optimizer.zero_grad()
            (loss if i % 2 else -0.1 * loss).backward()
            optimizer.step()

    return setup(mlp(4, 3), batches(x, y), nn.CrossEntropyLoss(), train=train)


@healthy
def counts_that_are_nearly_always_zero():
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    y = torch.zeros(64, 1)
    y[::9] = 2
    model = mlp()
    nn.init.constant_(model[2].bias, -3.0)
    return setup(model, batches(x, y), nn.PoissonNLLLoss())


@healthy
def rare_objects():
    torch.manual_seed(0)
    x, y = torch.randn(64, 4), (torch.rand(64, 5) < 0.05).float()
    model = mlp(4, 5)
    nn.init.constant_(model[2].bias, -4.0)
    return setup(model, batches(x, y), nn.BCEWithLogitsLoss())


@healthy
def distance_that_is_small_for_pairs():
    torch.manual_seed(0)
    x, same = torch.randn(64, 2, 4), torch.rand(64) < 0.5

    class Distance(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(4, 4)

        def forward(self, pair):
            return (self.net(pair[:, 0]) - self.net(pair[:, 1])).pow(2).sum(1)

    def loss_fn(d, same):
        return (same * d + (1 - same) * (1 - (d + 1e-6).sqrt()).clamp(min=0) ** 2).mean()

    return setup(Distance(), batches(x, same.float()), loss_fn)


@healthy
def labels_of_what_it_is_not():
    x, y = classes()

    def loss_fn(logits, not_this):
        return -(1 - logits.softmax(1).gather(1, not_this[:, None]) + 1e-6).log().mean()

    return setup(mlp(4, 3), batches(x, y), loss_fn)


def _transitions():
    torch.manual_seed(0)
    s, a, r, s2 = torch.randn(64, 4), torch.randint(0, 3, (64,)), torch.randn(64), torch.randn(64, 4)
    done = (torch.rand(64) < 0.2).float()
    return [tuple(t[i : i + 16] for t in (s, a, r, s2, done)) for i in range(0, 64, 16)]


def _q_learning(next_value, compare=F.mse_loss):
    def step(model, batch, loss_fn, optimizer):
        s, a, r, s2, done = batch
        q = model(s).gather(1, a[:, None]).squeeze(1)
        loss = compare(q, r + 0.9 * (1 - done) * next_value(model, s2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return setup(mlp(4, 3), _transitions(), step=step)


@faulty("loss.target-is-learned")
def q_learning_without_detach():
    return _q_learning(lambda model, s2: model(s2).max(1).values)


@faulty("loss.target-is-learned")
def temporal_difference_by_hand():
    """The value of a state, in a loop, with the difference written out."""
    torch.manual_seed(0)
    s, r, s2 = torch.randn(64, 4), torch.randn(64, 1), torch.randn(64, 4)

    def train(model, loader, loss_fn, optimizer):
        for state, reward, after in loader:
            target = reward + model(after) * 0.95
            error = target - model(state)
            optimizer.zero_grad()
            error.square().mean().backward()
            optimizer.step()

    return setup(mlp(), [(s[i : i + 16], r[i : i + 16], s2[i : i + 16]) for i in range(0, 64, 16)], train=train)


@faulty("loss.target-is-learned")
def replayed_transitions():
    memory = [torch.cat(column) for column in zip(*_transitions(), strict=True)]

    def train(model, loader, loss_fn, optimizer):
        for _ in range(4):
            s, a, r, s2, done = (column[torch.randint(0, 64, (16,))] for column in memory)
            q = model(s)[torch.arange(16), a]
            target = r + (1 - done) * 0.9 * model(s2).max(dim=1)[0]
            optimizer.zero_grad()
            loss_fn(q, target).backward()
            optimizer.step()

    return setup(mlp(4, 3), _transitions(), train=train)


@faulty("loss.target-is-learned")
def double_q_learning_with_huber():
    return _q_learning(
        lambda model, s2: model(s2).gather(1, model(s2).argmax(1, keepdim=True)).squeeze(1), F.smooth_l1_loss
    )


@healthy
def q_learning_with_detach():
    return _q_learning(lambda model, s2: model(s2).max(1).values.detach())


@healthy
def q_learning_with_a_target_network_that_nobody_trains():
    torch.manual_seed(3)
    target = mlp(4, 3)
    return _q_learning(lambda model, s2: target(s2).amax(1))


@healthy
def differences_of_scores():
    torch.manual_seed(0)
    a, b, d = torch.randn(64, 4), torch.randn(64, 4), torch.randn(64, 1)

    def step(model, batch, loss_fn, optimizer):
        better, worse, by = batch
        loss = loss_fn(model(better), model(worse) + by)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return setup(mlp(), [(a[i : i + 16], b[i : i + 16], d[i : i + 16]) for i in range(0, 64, 16)], step=step)


@healthy
def two_views_that_should_agree():
    x, y = classes()

    def step(model, batch, loss_fn, optimizer):
        first, second = (model(batch[0] + 0.1 * torch.randn_like(batch[0])) for _ in range(2))
        loss = loss_fn(first, batch[1]) + 0.5 * F.mse_loss(first, second)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return setup(mlp(4, 3), batches(x, y), nn.CrossEntropyLoss(), step=step)


@healthy
def equation_with_its_source():
    """The residual u' - (f + a u) of a differential equation."""
    torch.manual_seed(0)
    t = torch.rand(64, 1)

    def step(model, batch, loss_fn, optimizer):
        t, source = batch
        t = t.detach().requires_grad_()
        u = model(t)
        slope = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
        loss = (slope - (source - 2.0 * u)).square().mean() + (model(torch.zeros(1, 1)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return setup(mlp(1), batches(t, torch.sin(t)), step=step)


class _Language(nn.Module):
    """A GRU over tokens; answers (N, T, V)."""

    def __init__(self, bidirectional=False, starts_with=None):
        super().__init__()
        self.rows, self.starts_with = nn.Embedding(12, 16), starts_with
        self.rnn = nn.GRU(16, 16, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(32 if bidirectional else 16, 12)

    def forward(self, tokens):
        if self.starts_with is not None:
            tokens = torch.cat([torch.full_like(tokens[:, :1], self.starts_with), tokens[:, :-1]], 1)
        return self.head(self.rnn(self.rows(tokens))[0])


def _tokens():
    torch.manual_seed(0)
    return torch.randint(1, 12, (32, 9))


def _over_places(logits, y):
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())


@faulty("loss.labels-not-shifted")
def labels_are_the_inputs():
    t = _tokens()
    return setup(_Language(), batches(t, t), _over_places)


@faulty("loss.labels-not-shifted")
def transformer_that_copies_in_its_step():
    t = _tokens()

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows, self.places = nn.Embedding(12, 16), nn.Parameter(0.1 * torch.randn(9, 16))
            self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
            self.head = nn.Linear(16, 12)

        def forward(self, ids):
            mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
            h = self.layer(self.rows(ids) + self.places[: ids.shape[1]], src_mask=mask, is_causal=True)
            return self.head(h)

    def step(model, batch, loss_fn, optimizer):
        ids = batch["input_ids"]
        logits = model(ids)
        loss = -logits.log_softmax(-1).gather(-1, ids[..., None]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return setup(Decoder(), [{"input_ids": t[i : i + 8]} for i in range(0, 32, 8)], step=step)


@healthy
def labels_moved_by_the_loss():
    t = _tokens()

    def loss_fn(logits, y):
        return F.cross_entropy(logits[:, :-1].transpose(1, 2), y[:, 1:])

    return setup(_Language(), batches(t, t), loss_fn)


@healthy
def labels_rolled_and_the_last_ignored():
    t = _tokens()
    y = t.roll(-1, 1)
    y[:, -1] = -100
    return setup(_Language(), batches(t, y), _over_places)


@healthy
def decoder_that_moves_its_inputs():
    t = _tokens()
    return setup(_Language(starts_with=0), batches(t, t), _over_places)


@healthy
def masked_words():
    t = _tokens()
    hidden = torch.rand(t.shape, generator=torch.Generator().manual_seed(1)) < 0.3
    return setup(
        _Language(bidirectional=True),
        batches(t.masked_fill(hidden, 0), t.masked_fill(~hidden, -100)),
        _over_places,
    )


@healthy
def tokens_through_a_bottleneck():
    t = _tokens()

    class Auto(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows, self.squeeze, self.out = nn.Embedding(12, 8), nn.Linear(72, 16), nn.Linear(16, 9 * 12)

        def forward(self, tokens):
            return self.out(self.squeeze(self.rows(tokens).flatten(1)).tanh()).reshape(-1, 9, 12)

    return setup(Auto(), batches(t, t), _over_places)


@healthy
def no_loss_function_where_the_step_makes_its_own():
    x, y = classes()

    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss

    return setup(mlp(4, 3), batches(x, y), step=step) | {"loss_fn": None}


@faulty("loss.sigmoid-before-logits", "note")
def small_logits_of_a_new_network():
    x, y = regression()
    model = mlp()
    with torch.no_grad():
        model[-1].weight.mul_(0.01)
        model[-1].bias.fill_(0.5)
    return setup(model, batches(x, (y > 0).float()), nn.BCEWithLogitsLoss(), torch.optim.SGD(model.parameters(), 1e-4))
