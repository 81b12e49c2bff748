"""Lesson 05, the part about what goes wrong: explosions, clipping, nan, and what to do first."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_utils.claims.ledger import Evidence
from course_utils.claims.training_gradients import PAGE, flat, gradient, problem, sgd
from course_utils.claims.verdicts import CAVEAT, FALSE, TRUE

# --- Clipping and nan ------------------------------------------------------------------------------------------------


@PAGE.claim(
    "L014",
    "clip_grad_norm_ rescales all gradients together when their total norm exceeds max_norm, keeping the direction.",
    rule=lambda seen: TRUE if all(seen.values()) else FALSE,
    right="On this version direction or length come out otherwise.",
    page="generated/torch.nn.utils.clip_grad_norm_.html",
)
def clip_three_gradients() -> Evidence:
    x, y, model = problem()
    F.cross_entropy(100 * model(x), y).backward()
    before = gradient(model)
    nn.utils.clip_grad_norm_(model.parameters(), 1e6)
    below = torch.equal(gradient(model), before)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return {
        "below the limit: unchanged": below,
        "above: the length is the limit": math.isclose(gradient(model).norm().item(), 1.0, rel_tol=1e-4),
        "above: same direction": torch.allclose(gradient(model), before / before.norm(), atol=1e-5),
    }


@PAGE.claim(
    "L015",
    "Gradient clipping is the standard remedy for a loss that turned NaN because of exploding gradients.",
    rule=lambda seen: FALSE if not seen["gradient of 1e18: finite weights after the step"] else TRUE
    if seen["one nan: finite weights after the step"] else CAVEAT,
    right="It prevents: a huge but finite gradient is shortened. It does not cure: one nan makes the total norm nan, "
    "and scaling by it spreads nan to all gradients. Skip that step, or let error_if_nonfinite=True stop you.",
    page="generated/torch.nn.utils.clip_grad_norm_.html",
)  # fmt: skip
def clip_what_exploded() -> Evidence:
    def after(value: float) -> Tensor:
        weights = [nn.Parameter(torch.ones(2)) for _ in range(3)]
        for weight in weights:
            weight.grad = torch.ones(2)
        weights[0].grad[0] = value
        nn.utils.clip_grad_norm_(weights, 1.0)
        torch.optim.SGD(weights, lr=0.1).step()
        return flat(weights)

    return {
        "gradient of 1e18: finite weights after the step": bool(after(1e18).isfinite().all()),
        "one nan: finite weights after the step": bool(after(math.nan).isfinite().all()),
        "one nan among 6: weights that are nan then": int(after(math.nan).isnan().sum()),
    }


@PAGE.claim(
    "L016",
    "Once the loss turns NaN mid-training it never recovers.",
    rule=lambda seen: (
        FALSE if seen["step taken: finite later"] else CAVEAT if seen["step skipped: finite later"] else TRUE
    ),
    right="It never does once step() has written nan into the weights. A nan loss alone harms nothing: skip that "
    "step, as GradScaler does, and the next batch is healthy.",
    page="amp.html#gradient-scaling",
)
def one_batch_with_nan() -> Evidence:
    def last_loss(skips: bool) -> float:
        x, y, model = problem()
        optimizer = sgd(model.parameters())
        for step in range(5):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x * math.nan if step == 1 else x), y)
            loss.backward()
            if loss.isfinite() or not skips:
                optimizer.step()
        return loss.item()

    return {
        "step taken: finite later": math.isfinite(last_loss(skips=False)),
        "step skipped: finite later": math.isfinite(last_loss(skips=True)),
    }


@PAGE.claim(
    "L024",
    "The officially recommended max_norm for clip_grad_norm_ is between 1.0 and 5.0.",
    rule=lambda seen: TRUE if seen["has a default"] or seen["the documentation recommends"] else FALSE,
    right="There is no default and no recommended value: max_norm is required. Log the norm that the function "
    "returns, and take a limit above what is usual in your run.",
    page="generated/torch.nn.utils.clip_grad_norm_.html",
)
def what_is_said_of_max_norm() -> Evidence:
    clip = nn.utils.clip_grad_norm_
    text = (inspect.getdoc(clip) or "").lower()
    return {
        "has a default": inspect.signature(clip).parameters["max_norm"].default is not inspect.Parameter.empty,
        "the documentation recommends": any(word in text for word in ("recommend", "typical", "usual")),
    }


@PAGE.claim(
    "L025",
    "When summing losses of different magnitude, weight them, otherwise the big one dominates the gradient.",
    rule=lambda seen: FALSE if seen["100 times the loss: share of the gradient"] < 0.9 else TRUE
    if seen["loss + 1,000: share of the gradient"] > 0.9 else CAVEAT,
    right="What dominates is the larger gradient, not the larger number: a loss that is big by a constant has no more "
    "pull. Compare the norms of the gradients, then weight.",
    page="generated/torch.autograd.grad.html",
)  # fmt: skip
def who_pulls_more() -> Evidence:
    def share(big: Callable[[Tensor], Tensor]) -> float:
        weight = torch.ones(3, requires_grad=True)
        pulls = [torch.autograd.grad(loss, weight)[0].norm() for loss in (big(weight), weight.square().sum())]
        return round((pulls[0] / sum(pulls)).item(), 3)

    return {
        "100 times the loss: share of the gradient": share(lambda w: 100 * w.square().sum()),
        "loss + 1,000: share of the gradient": share(lambda w: w.square().sum() + 1000),
    }


@PAGE.claim(
    "L045",
    'Check for divergence with "if torch.isnan(loss)".',
    rule=lambda seen: FALSE if not seen["nan is noticed"] else TRUE if seen["inf is noticed"] else CAVEAT,
    right="It misses inf, which comes first as a rule: ask `if not torch.isfinite(loss)`. On a GPU each such question "
    "waits for the GPU, so ask now and then.",
    page="generated/torch.isfinite.html",
)
def what_isnan_notices() -> Evidence:
    nan, inf = torch.tensor(math.nan), torch.tensor(math.inf)
    return {
        "nan is noticed": bool(torch.isnan(nan)),
        "inf is noticed": bool(torch.isnan(inf)),
        "inf is noticed by not isfinite": not bool(torch.isfinite(inf)),
    }


@PAGE.claim(
    "L046",
    "NaN in training can come from data (division by zero) as well as from the learning rate or model, so check all "
    "three.",
    rule=lambda seen: TRUE if all(seen.values()) else CAVEAT if any(seen.values()) else FALSE,
    right="On this version only some of the three end in nan.",
    page="generated/torch.autograd.set_detect_anomaly.html",
)
def three_sources_of_nan() -> Evidence:
    constant = torch.full((8,), 2.0)
    weight, zero = torch.ones((), requires_grad=True), torch.zeros((), requires_grad=True)
    for _ in range(200):  # a step of 10 down a parabola overshoots more each time
        (slope,) = torch.autograd.grad(weight**2, weight)
        weight = (weight - 10 * slope).detach().requires_grad_()
    (zero.sqrt() * 0).backward()
    return {
        "data: a constant feature, divided by its spread": bool(((constant - 2) / constant.std()).isnan().all()),
        "rate: far too high": bool(weight.isnan()),
        "model: the slope of sqrt at 0, times 0": bool(zero.grad.isnan()),
    }


@PAGE.claim(
    "L047",
    "Operations such as exp followed by log are numerically unstable and can create NaN/Inf.",
    rule=lambda seen: TRUE if not seen["log(exp(x)) finite"] and seen["logsumexp(x) finite"] else FALSE,
    right="On this version the pair stays finite.",
    page="generated/torch.logsumexp.html",
)
def log_of_exp() -> Evidence:
    x = torch.tensor([100.0, -200.0])
    return {
        "log(exp(x)) finite": bool(x.exp().log().isfinite().any()),
        "log(softmax(x)) finite": bool(x.softmax(0).log().isfinite().all()),
        "log_softmax(x) finite": bool(x.log_softmax(0).isfinite().all()),
        "logsumexp(x) finite": bool(x.logsumexp(0).isfinite()),
    }


def _norms_of_a_deep_sigmoid_stack() -> tuple[float, float]:
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(8, 8), nn.Sigmoid())], nn.Linear(8, 3))
    x, y, _ = problem()
    F.cross_entropy(model(x), y).backward()
    return gradient(model).norm().item(), gradient(model[0]).norm().item()


@PAGE.claim(
    "L054",
    "Record the gradient norm to see explosion or vanishing early.",
    rule=lambda seen: FALSE if not seen["explosion: norm 100 times its first value before the loss is nan"] else TRUE
    if seen["vanishing: total norm below 0.001"] else CAVEAT,
    right="The total norm shows an explosion early. It hides vanishing: the last layers keep it up while the first "
    "get nothing, so record it for each layer too.",
    page="generated/torch.nn.utils.get_total_norm.html",
)  # fmt: skip
def what_the_norm_shows() -> Evidence:
    x, y, model = problem()
    optimizer, norms, first_nan = sgd(model.parameters(), lr=3.0), [], 0
    for step in range(200):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), 10 * F.one_hot(y, 3).float())
        loss.backward()
        norms.append(gradient(model).norm().item())
        optimizer.step()
        if loss.isnan():
            first_nan = step
            break
    total, first_layer = _norms_of_a_deep_sigmoid_stack()
    return {
        "explosion: norm 100 times its first value before the loss is nan": any(
            n > 100 * norms[0] for n in norms[:first_nan]
        ),
        "vanishing: total norm below 0.001": total < 1e-3,
        "vanishing: first layer below a millionth of the total": first_layer < 1e-6 * total,
    }


@PAGE.claim(
    "L010",
    "When the loss is NaN or does not fall, the first action is always to lower the learning rate (start at 1e-3, "
    "reduce by 0.1x).",
    rule=lambda seen: TRUE if seen["nan in the data: cured"] and seen["the optimizer has another network: cured"]
    else FALSE,
    right="That cures a rate that is too high, and nothing else. First overfit one batch, then check data, labels, "
    "shapes and what the optimizer was given; a loss that falls too slowly wants a higher rate.",
    page="https://karpathy.github.io/2019/04/25/recipe/",
)  # fmt: skip
def does_a_lower_rate_cure_it() -> Evidence:
    def cured(start: float, spoil: Callable[[Tensor], Tensor] = lambda x: x, other_model: bool = False) -> bool:
        for lr in (start, start / 10, start / 100):
            x, y, model = problem()
            owner = copy.deepcopy(model) if other_model else model
            optimizer, first = sgd(owner.parameters(), lr=lr), math.nan
            for step in range(60):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(spoil(x)), y)
                loss.backward()
                optimizer.step()
                first = loss.item() if step == 0 else first
            if loss.item() < 0.9 * first:
                return True
        return False

    def one_nan(x: Tensor) -> Tensor:
        return x.masked_fill(torch.arange(len(x))[:, None] == 5, math.nan)

    return {
        "the rate was too high: cured": cured(100.0),
        "nan in the data: cured": cured(1e-3, spoil=one_nan),
        "the optimizer has another network: cured": cured(1e-3, other_model=True),
        "the rate was too low: cured": cured(1e-5),
    }
