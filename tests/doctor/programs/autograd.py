"""Graphs that are cut, kept, or wrong."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.doctor.programs import batches, classes, faulty, healthy, mlp, regression, setup


class TwoParts(nn.Module):
    def __init__(self, between):
        super().__init__()
        torch.manual_seed(1)
        self.body, self.head = nn.Linear(4, 16), nn.Linear(16, 1)
        self.between = between

    def forward(self, x):
        return self.head(self.between(torch.tanh(self.body(x))))


@faulty("optimizer.no-gradient")
def through_numpy():
    x, y = regression()
    return setup(TwoParts(lambda h: torch.from_numpy(h.detach().numpy())), batches(x, y))


@faulty("optimizer.no-gradient")
def data_attribute_in_forward():
    x, y = regression()
    return setup(TwoParts(lambda h: h.data), batches(x, y))


@faulty("optimizer.no-gradient")
def new_tensor_from_values():
    x, y = regression()
    return setup(TwoParts(lambda h: torch.tensor(h.tolist())), batches(x, y))


@faulty("optimizer.no-gradient")
def encoder_under_no_grad():
    x, y = regression()

    class Net(TwoParts):
        def forward(self, x):
            with torch.no_grad():
                h = torch.tanh(self.body(x))
            return self.head(h)

    return setup(Net(None), batches(x, y))


@faulty("optimizer.gradient-always-zero")
def rounding_cuts_softly():
    x, y = regression()
    return setup(TwoParts(lambda h: (5 * h).round() / 5), batches(x, y))


@faulty("optimizer.gradient-always-zero")
def dead_relu_layer():
    x, y = regression()
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    with torch.no_grad():
        model[0].bias.fill_(-100.0)
    return setup(model, batches(x, y))


@healthy
def straight_through_rounding():
    x, y = regression()
    return setup(TwoParts(lambda h: h + ((5 * h).round() / 5 - h).detach()), batches(x, y))


@healthy
def gate_that_starts_closed():
    x, y = regression()

    class Rezero(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp, self.block, self.out = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 1)
            self.gate = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            h = self.inp(x)
            return self.out(h + self.gate * torch.tanh(self.block(h)))

    return setup(Rezero(), batches(x, y))


@healthy
def low_rank_adapter():
    x, y = regression()

    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(4, 1).requires_grad_(False)
            self.a = nn.Parameter(torch.randn(2, 4) * 0.1)
            self.b = nn.Parameter(torch.zeros(1, 2))

        def forward(self, x):
            return self.base(x) + x @ self.a.T @ self.b.T

    model = Adapted()
    return setup(model, batches(x, y), optimizer=torch.optim.Adam([model.a, model.b], 0.01))


@faulty("autograd.loss-not-connected")
def loss_of_numpy():
    x, y = regression()

    def loss_fn(out, label):
        return torch.tensor(float(((out - label) ** 2).mean()), requires_grad=True)

    return setup(mlp(), batches(x, y), loss_fn)


@faulty("autograd.loss-not-connected")
def loss_without_graph():
    x, y = classes()

    def loss_fn(out, label):
        return 1 - (out.argmax(1) == label).float().mean()

    return setup(mlp(4, 3), batches(x, y), loss_fn)


@faulty("loop.stale-state")
def hidden_state_kept_in_a_dict():
    torch.manual_seed(0)
    x = torch.randn(4, 8, 5, 2)
    y = x.sum((2, 3)).unsqueeze(-1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head = nn.GRUCell(2, 6), nn.Linear(6, 1)
            self.memory = {"h": torch.zeros(8, 6)}

        def forward(self, x):
            h = self.memory["h"]
            for t in range(x.shape[1]):
                h = self.cell(x[:, t], h)
            self.memory["h"] = h
            return self.head(h)

    return setup(Net(), list(zip(x, y, strict=True)))


@faulty("loop.stale-state")
def graph_retained_through_batches():
    torch.manual_seed(0)
    x = torch.randn(6, 8, 2)
    y = x.sum(2, keepdim=True)
    carried = [torch.zeros(8, 6)]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head = nn.Linear(8, 6), nn.Linear(6, 1)

        def forward(self, x):
            carried[0] = torch.tanh(self.cell(torch.cat([x, carried[0]], 1)))
            return self.head(carried[0])

    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        loss = loss_fn(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        with torch.no_grad():
            for p in model.parameters():
                p.data = p.data - 0.01 * p.grad
        return loss

    return setup(Net(), list(zip(x, y.squeeze(2).unsqueeze(2)[:, :, 0:1], strict=True)), step=step)


@faulty("autograd.graph-used-twice")
def two_losses_on_one_graph():
    x, y = regression()

    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        h = torch.tanh(model[0](batch[0]))
        loss = loss_fn(model[2](h), batch[1])
        loss.backward()
        h.square().mean().backward()
        optimizer.step()
        return loss

    return setup(mlp(), batches(x, y), step=step)


@faulty("autograd.graph-used-twice")
def critic_that_trains_the_generator_s_graph():
    torch.manual_seed(0)
    model = nn.ModuleDict({"g": mlp(2, 2), "c": mlp(2, 1)})
    og, oc = (torch.optim.SGD(model[name].parameters(), 0.01) for name in "gc")

    def step(model, real, loss_fn, optimizer):
        fake = model["g"](torch.randn(16, 2))
        oc.zero_grad()
        (model["c"](fake).mean() - model["c"](real).mean()).backward()
        oc.step()
        og.zero_grad()
        loss = -model["c"](fake).mean()
        loss.backward()
        og.step()
        return loss

    return setup(model, [torch.randn(16, 2) for _ in range(4)], optimizer=og, optimizers=[og, oc], step=step)


@healthy
def two_losses_with_a_kept_graph():
    x, y = regression()

    def step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        h = torch.tanh(model[0](batch[0]))
        loss = loss_fn(model[2](h), batch[1])
        loss.backward(retain_graph=True)
        h.square().mean().backward()
        optimizer.step()
        return loss

    return setup(mlp(), batches(x, y), step=step)


@healthy
def truncated_backpropagation():
    torch.manual_seed(0)
    x = torch.randn(4, 8, 5, 2)
    y = x.sum((2, 3)).unsqueeze(-1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.head, self.state = nn.GRU(2, 6, batch_first=True), nn.Linear(6, 1), None

        def forward(self, x):
            out, state = self.gru(x, self.state)
            self.state = state.detach()
            return self.head(out[:, -1])

    return setup(Net(), list(zip(x, y, strict=True)))


@healthy
def sequences_that_get_longer():
    torch.manual_seed(0)
    loader = []
    for length in (2, 3, 4, 5, 4, 3):
        x = torch.randn(8, length, 2)
        loader.append((x, x.sum((1, 2)).unsqueeze(1)))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head = nn.GRUCell(2, 6), nn.Linear(6, 1)

        def forward(self, x):
            h = x.new_zeros(len(x), 6)
            for t in range(x.shape[1]):
                h = self.cell(x[:, t], h)
            return self.head(h)

    return setup(Net(), loader)


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s + x * s * (1 - s))


class ForgetsTheChain(Swish):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return s + x * s * (1 - s)


class ForgetsATerm(Swish):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.sigmoid(x)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -0.5 * grad


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sign(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1)


class ClipGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-0.01, 0.01)


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).float()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad / (1 + 10 * x.abs()) ** 2


@faulty("autograd.function-ignores-gradient")
def function_without_chain_rule():
    x, y = regression()
    return setup(TwoParts(ForgetsTheChain.apply), batches(x, y))


@faulty("autograd.function-wrong-gradient")
def function_with_a_missing_term():
    x, y = regression()
    return setup(TwoParts(ForgetsATerm.apply), batches(x, y))


@healthy
def correct_function():
    x, y = regression()
    return setup(TwoParts(Swish.apply), batches(x, y))


@healthy
def gradient_reversal():
    x, y = regression()
    return setup(TwoParts(Reverse.apply), batches(x, y))


@healthy
def binary_activations():
    x, y = regression()
    return setup(TwoParts(Sign.apply), batches(x, y))


@healthy
def clipped_gradient_function():
    x, y = regression()
    return setup(TwoParts(ClipGradient.apply), batches(x, y))


@healthy
def spiking_surrogate():
    x, y = regression()
    return setup(TwoParts(Spike.apply), batches(x, y))


@faulty("autograd.saved-value-changed")
def data_edited_before_backward():
    x, y = regression()

    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        optimizer.zero_grad()
        h = torch.exp(model(inputs) * 0.1)
        loss = loss_fn(h, labels)
        h.data.clamp_(max=1.0)
        loss.backward()
        optimizer.step()
        return loss

    return setup(mlp(), batches(x, y), step=step)


@faulty("autograd.saved-value-changed")
def weights_clipped_between():
    x, y = regression()

    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), labels)
        for p in model.parameters():
            p.data.clamp_(-0.1, 0.1)
        loss.backward()
        optimizer.step()
        return loss

    return setup(mlp(), batches(x, y), step=step)


@healthy
def weights_clipped_after():
    x, y = regression()

    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), labels)
        loss.backward()
        optimizer.step()
        for p in model.parameters():
            p.data.clamp_(-0.5, 0.5)
        return loss

    return setup(mlp(), batches(x, y), step=step)


@faulty("failure.step")
def in_place_on_saved_value():
    x, y = regression()

    def between(h):
        s = torch.sigmoid(h)
        s += 1
        return s

    return setup(TwoParts(between), batches(x, y))


@faulty("model.inplace-changes-result")
def residual_with_in_place_sum():
    x, y = regression()

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(2)
            self.inp, self.out, self.scale = nn.Linear(4, 4), nn.Linear(4, 1), nn.Parameter(torch.ones(1))

        def forward(self, x):
            h = self.inp(x)
            skip = h
            h += 1.0
            h = h * self.scale
            return self.out(h + skip)

    return setup(Block(), batches(x, y))


@faulty("model.inplace-changes-result")
def functional_relu_in_place():
    x, y = regression()

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(2)
            self.inp, self.mid, self.out = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 1)

        def forward(self, x):
            h = self.inp(x)
            branch = self.mid(F.relu(h, inplace=True))
            return self.out(branch + h)

    return setup(Block(), batches(x, y))


@healthy
def in_place_where_nobody_looks():
    x, y = regression()
    model = nn.Sequential(
        nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.ELU(inplace=True), nn.Linear(8, 1)
    )
    return setup(model, batches(x, y))


@healthy
def rows_filled_in_place():
    x, y = regression()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, x):
            out = x.new_zeros(len(x), 1)
            out[:, 0] += self.net(x)[:, 0]
            return out

    return setup(Net(), batches(x, y))


@faulty("numerics.nan-gradient")
def norm_of_equal_points():
    torch.manual_seed(0)
    x = torch.randn(32, 2, 4)
    x[3, 1] = x[3, 0]

    class Twin(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(4, 3)

        def forward(self, pair):
            return (self.net(pair[:, 0]) - self.net(pair[:, 1])).pow(2).sum(1).sqrt()

    return setup(Twin(), batches(x, torch.rand(32)))


@faulty("numerics.nan-gradient")
def where_with_a_bad_branch():
    x, y = regression()

    def loss_fn(out, label):
        return torch.where(out > 0, torch.sqrt(out), torch.zeros_like(out)).mean() + (out - label).pow(2).mean()

    return setup(mlp(), batches(x, y), loss_fn)


@faulty("numerics.loss-not-finite")
def exploding_learning_rate():
    x, y = regression()
    model = mlp()
    return setup(model, batches(x, y), optimizer=torch.optim.SGD(model.parameters(), 1e6))


@faulty("numerics.loss-not-finite")
def log_of_zero():
    x, y = classes()

    def loss_fn(out, label):
        return -torch.log(torch.softmax(out * 1000, 1)[torch.arange(len(label)), label]).mean()

    return setup(mlp(4, 3), batches(x, y), loss_fn)


@faulty("numerics.log-of-softmax")
def log_softmax_in_two_steps():
    x, y = classes()

    def loss_fn(out, label):
        return F.nll_loss(torch.log(torch.softmax(out, 1)), label)

    return setup(mlp(4, 3), batches(x, y), loss_fn)


@healthy
def log_of_shifted_softmax():
    x, y = classes()

    def loss_fn(out, label):
        return F.nll_loss(torch.log(torch.softmax(out, 1) + 1e-8), label)

    return setup(mlp(4, 3), batches(x, y), loss_fn)


class Encoder(nn.Module):
    def __init__(self, draw):
        super().__init__()
        torch.manual_seed(1)
        self.mean, self.spread, self.decoder = nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(2, 4)
        self.draw = draw

    def forward(self, x):
        normal = torch.distributions.Normal(self.mean(x), F.softplus(self.spread(x)) + 1e-3)
        return self.decoder(self.draw(normal)), normal


def elbo(out, x):
    image, normal = out
    prior = torch.distributions.Normal(torch.zeros_like(normal.mean), torch.ones_like(normal.mean))
    return (image - x).pow(2).sum(1).mean() + torch.distributions.kl_divergence(normal, prior).sum(1).mean()


@faulty("autograd.sample-not-rsample")
def autoencoder_with_sample():
    x, _ = regression()
    return setup(Encoder(lambda normal: normal.sample()), batches(x, x), elbo)


@healthy
def autoencoder_with_rsample():
    x, _ = regression()
    return setup(Encoder(lambda normal: normal.rsample()), batches(x, x), elbo)


@healthy
def gaussian_policy():
    x, y = regression()

    def step(model, batch, loss_fn, optimizer):
        state, best = batch
        policy = torch.distributions.Normal(model(state), 0.5)
        action = policy.sample()
        reward = -(action - best).pow(2)
        loss = -(policy.log_prob(action) * (reward - reward.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return setup(mlp(), batches(x, y), step=step)


@faulty("loop.adversarial-gradients-kept")
def attack_pollutes_gradients():
    x, y = classes()

    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        optimizer.zero_grad()
        attacked = inputs.clone().requires_grad_()
        loss_fn(model(attacked), labels).backward()
        moved = (inputs + 0.1 * attacked.grad.sign()).detach()
        loss = loss_fn(model(moved), labels)
        loss.backward()
        optimizer.step()
        return loss

    return setup(mlp(4, 3), batches(x, y), nn.CrossEntropyLoss(), step=step)


@healthy
def attack_cleared():
    x, y = classes()

    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        attacked = inputs.clone().requires_grad_()
        loss_fn(model(attacked), labels).backward()
        moved = (inputs + 0.1 * attacked.grad.sign()).detach()
        optimizer.zero_grad()
        loss = loss_fn(model(moved), labels)
        loss.backward()
        optimizer.step()
        return loss

    return setup(mlp(4, 3), batches(x, y), nn.CrossEntropyLoss(), step=step)


@healthy
def gradient_penalty():
    x, y = regression()

    def step(model, batch, loss_fn, optimizer):
        inputs, labels = batch
        point = inputs.clone().requires_grad_()
        out = model(point)
        (slope,) = torch.autograd.grad(out.sum(), point, create_graph=True)
        loss = loss_fn(out, labels) + 0.1 * (slope.norm(dim=1) - 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return setup(mlp(), batches(x, y), step=step)
