"""Learning rates over time."""

import torch
from torch.optim import lr_scheduler as schedules

from tests.doctor.programs import batches, faulty, healthy, mlp, regression, setup


def _loop(build, where, epochs=4, n=320, optimizer=None, metric=False):
    x, y = regression(n)
    model = mlp()
    optimizer = optimizer(model) if optimizer else torch.optim.SGD(model.parameters(), 0.05)
    scheduler = build(optimizer)

    def train(model, loader, loss_fn, optimizer, epochs=epochs):
        for _ in range(epochs):
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss = loss_fn(model(inputs), labels)
                loss.backward()
                optimizer.step()
                if where == "batch":
                    scheduler.step()
            if where == "epoch":
                scheduler.step(loss.item()) if metric else scheduler.step()

    return setup(model, batches(x, y), optimizer=optimizer, train=train, scheduler=scheduler)


@faulty("scheduler.wrong-pace")
def exponential_per_batch():
    return _loop(lambda opt: schedules.ExponentialLR(opt, 0.5), "batch")


@faulty("scheduler.wrong-pace")
def milestones_per_batch():
    return _loop(lambda opt: schedules.MultiStepLR(opt, [5, 10, 15]), "batch")


@faulty("scheduler.wrong-pace")
def cosine_in_epochs_stepped_per_batch():
    return _loop(lambda opt: schedules.CosineAnnealingLR(opt, T_max=4), "batch")


@faulty("scheduler.wrong-pace")
def one_cycle_per_epoch():
    return _loop(lambda opt: schedules.OneCycleLR(opt, 0.1, epochs=4, steps_per_epoch=20), "epoch")


@faulty("scheduler.wrong-pace")
def cosine_in_batches_stepped_per_epoch():
    return _loop(lambda opt: schedules.CosineAnnealingLR(opt, T_max=80), "epoch")


@healthy
def steps_per_epoch():
    return _loop(lambda opt: schedules.StepLR(opt, 2), "epoch")


@healthy
def cosine_per_epoch():
    return _loop(lambda opt: schedules.CosineAnnealingLR(opt, T_max=4), "epoch")


@healthy
def cosine_per_batch():
    return _loop(lambda opt: schedules.CosineAnnealingLR(opt, T_max=80), "batch")


@healthy
def one_cycle_per_batch():
    return _loop(lambda opt: schedules.OneCycleLR(opt, 0.1, epochs=4, steps_per_epoch=20), "batch")


@healthy
def one_cycle_over_one_epoch():
    return _loop(lambda opt: schedules.OneCycleLR(opt, 0.1, total_steps=20), "batch", epochs=1)


@healthy
def warm_restarts_per_batch():
    return _loop(lambda opt: schedules.CosineAnnealingWarmRestarts(opt, T_0=5), "batch")


@healthy
def warm_up_then_inverse_root():
    return _loop(lambda opt: schedules.LambdaLR(opt, lambda s: min((s + 1) / 10, (10 / (s + 1)) ** 0.5)), "batch")


@healthy
def slow_decay_per_batch():
    return _loop(lambda opt: schedules.ExponentialLR(opt, 0.99), "batch")


@healthy
def polynomial_to_the_end():
    return _loop(lambda opt: schedules.PolynomialLR(opt, total_iters=80), "batch")


@healthy
def sequential_warm_up():
    def build(opt):
        warm = schedules.LinearLR(opt, 0.01, total_iters=10)
        return schedules.SequentialLR(opt, [warm, schedules.CosineAnnealingLR(opt, 70)], [10])

    return _loop(build, "batch")


@healthy
def plateau_on_the_loss():
    return _loop(lambda opt: schedules.ReduceLROnPlateau(opt), "epoch", metric=True)


@faulty("scheduler.plateau-direction")
def plateau_waits_for_a_rise():
    return _loop(lambda opt: schedules.ReduceLROnPlateau(opt, mode="max"), "epoch", metric=True)


@faulty("scheduler.before-optimizer")
def schedule_first():
    x, y = regression()
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scheduler = schedules.StepLR(optimizer, 30)

    def step(model, batch, loss_fn, optimizer):
        scheduler.step()
        optimizer.zero_grad()
        loss = loss_fn(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss

    return setup(model, batches(x, y), optimizer=optimizer, step=step, scheduler=scheduler)


@faulty("scheduler.other-optimizer")
def schedule_of_a_discarded_optimizer():
    x, y = regression()
    model = mlp()
    scheduler = schedules.StepLR(torch.optim.SGD(model.parameters(), 0.05), 2)
    return setup(model, batches(x, y), optimizer=torch.optim.Adam(model.parameters(), 0.01), scheduler=scheduler)


@faulty("optimizer.learning-rate-zero")
def no_learning_rate():
    x, y = regression()
    model = mlp()
    return setup(model, batches(x, y), optimizer=torch.optim.SGD(model.parameters(), 0.0))


def _built_inside(build, where, epochs=4):
    x, y = regression(320)

    def train(model, loader, loss_fn, optimizer):
        scheduler = build(optimizer)
        for _ in range(epochs):
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss_fn(model(inputs), labels).backward()
                if where == "before":
                    scheduler.step()
                optimizer.step()
                if where == "batch":
                    scheduler.step()
            if where == "epoch":
                scheduler.step()

    return setup(mlp(), batches(x, y), train=train)


@healthy
def built_in_the_loop_s_function():
    return _built_inside(lambda opt: schedules.StepLR(opt, 2), "epoch")


@healthy
def two_parts_built_in_the_loop_s_function():
    def build(opt):
        warm = schedules.LinearLR(opt, 0.1, total_iters=10)
        return schedules.SequentialLR(opt, [warm, schedules.CosineAnnealingLR(opt, 70)], [10])

    return _built_inside(build, "batch")


@healthy
def one_cycle_built_in_the_loop_s_function():
    return _built_inside(lambda opt: schedules.OneCycleLR(opt, 0.1, epochs=4, steps_per_epoch=20), "batch")


@faulty("scheduler.wrong-pace")
def built_in_the_loop_s_function_and_stepped_per_batch():
    return _built_inside(lambda opt: schedules.StepLR(opt, 2), "batch")


@faulty("scheduler.before-optimizer")
def built_in_the_loop_s_function_and_stepped_first():
    return _built_inside(lambda opt: schedules.LinearLR(opt, 0.5, total_iters=90), "before")
