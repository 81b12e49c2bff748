"""Checks of the clinic of lesson 08."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import torch
from torch import nn

from course_utils.exercises.compare import describe, has_shape, is_close, is_true, is_unchanged
from course_utils.exercises.export_models import expected_of, small_model
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.verdicts import Check
from course_utils.export import quiet

BUSY_S = 0.6  # how long the model of the blocking service computes, unless the health check has answered


def check_clinic_preprocess(prepare: Callable, inputs: Inputs) -> Iterator[Check]:
    """Clinic export.clinic-preprocess: the service prepares pixels as training did."""
    mean, std = 0.1 + 0.3 * float(inputs.rand(1)), 0.2 + 0.2 * float(inputs.rand(1))
    pixels = inputs.randint(0, 200, 4, 1, 3, 5).float()
    pixels[0] /= 8  # written with little pressure
    before = pixels.clone()
    answer = prepare(pixels, mean, std)
    want = (pixels / 255 - mean) / std
    own = pixels / pixels.max()
    yield has_shape("keeps the shape", answer, (4, 1, 3, 5), hint="(N, 1, H, W) -> (N, 1, H, W)")
    yield is_unchanged("leaves the pixels alone", pixels, before, hint="Nothing in place.")
    alone = prepare(pixels[:1].clone(), mean, std)
    yield is_close(
        "an image alone is prepared as in a batch",
        alone,
        answer[:1],
        hint="The largest pixel, the mean and the std of this request were used. Training knew none of them.",
    )
    yield is_close("as in training", answer, want, mistakes=[
        ((pixels / pixels.amax((1, 2, 3), keepdim=True) - mean) / std,
         "Divide by 255, the value of full ink, not by the largest pixel of each image."),
        ((own - mean) / std, "Divide by 255, the value of full ink, not by the largest pixel that came."),
        ((pixels - mean) / std, "mean and std are fractions: divide by 255 first."),
        ((own - own.mean()) / own.std(), "The statistics of this request were used, not those of training."),
        (pixels / 255, "mean and std are missing."),
        ((pixels / 255 - mean) * std, "Divide by std."),
        (((pixels - pixels.mean((1, 2, 3), keepdim=True)) / pixels.std((1, 2, 3), keepdim=True)),
         "Each image was given statistics of its own. Training used one mean and one std for all."),
    ], hint="(pixels / 255 - mean) / std")  # fmt: skip
    blank = prepare(torch.zeros(1, 1, 3, 5), mean, std)
    yield is_close("a blank image is no nan", blank, torch.full((1, 1, 3, 5), -mean / std),
                   hint="0 / 0: don't divide by what came.")  # fmt: skip


def check_clinic_train_mode(ship: Callable, inputs: Inputs) -> Iterator[Check]:
    """Clinic export.clinic-train-mode: what is exported is the model in evaluation mode, and training can go on."""
    model = small_model(inputs, 6)
    model[1].eval()  # one layer has a mode of its own
    modes = [m.training for m in model.modules()]
    statistics = model[2].running_mean.clone()
    images = inputs.randn(7, 1, 2, 3)
    with quiet():
        run = ship(model, images[:3])
        yield is_true("returns something that can be called", callable(run), detail=f"got {describe(run)}",
                      hint="return program.module()")  # fmt: skip
        with torch.no_grad():
            first, again, alone = run(images), run(images), run(images[:1])
    yield has_shape("one row for each image", first, (7, 3), hint="(N, 1, H, W) -> (N, C)")
    yield is_close("asked twice, it says the same", again, first, hint="Dropout still rolls dice. Which mode was the "
                   "model in when it was captured?")  # fmt: skip
    yield is_close("an image alone gets the same answer as in a batch", alone, first[:1], rtol=1e-3, atol=1e-4,
                   hint="BatchNorm still takes the statistics of the batch.")  # fmt: skip
    yield is_close("it says what the model says in evaluation mode", first, expected_of(model, images), rtol=1e-3,
                   atol=1e-4, hint="model.eval() before torch.export.export.")  # fmt: skip
    yield is_true("the statistics of BatchNorm have not moved", torch.equal(model[2].running_mean, statistics),
                  hint="A forward pass in training mode moved them.")  # fmt: skip
    yield is_true("the model has its modes back", modes == [m.training for m in model.modules()],
                  hint="It trains on, each module in its own mode: train() sets all of them. "
                  "`with evaluating(model):` puts every mode back.")  # fmt: skip


def check_clinic_fixed_batch(export_reader: Callable, inputs: Inputs) -> Iterator[Check]:
    """Clinic export.clinic-fixed-batch: the exported reader takes a batch of any size."""
    features = inputs.size(4, 9)
    layer = nn.Linear(features, 3)
    images = inputs.randn(9, 1, 1, features)
    want = layer(images.flatten(1)).detach()
    with quiet():
        run = export_reader(layer, images[:2])
        yield is_true("returns something that can be called", callable(run), detail=f"got {describe(run)}",
                      hint="return program.module()")  # fmt: skip
        for size in (2, 1, 5, 9):
            try:
                with torch.no_grad():
                    answer = run(images[:size])
            except Exception as error:
                words = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                hint = "The batch of the example is part of the program: dynamic_shapes says that it may vary."
                yield Check(f"takes {size} image{'s' if size > 1 else ''}", False, words, hint)
                return
            yield has_shape(
                f"gives {size} row{'s' if size > 1 else ''}", answer, (size, 3), hint="A row for each image that came."
            )
            yield is_close(f"the right rows ({size})", answer, want[:size], rtol=1e-3, atol=1e-5,
                           hint="layer(images.flatten(1))")  # fmt: skip


class _Watching(nn.Module):
    """A linear layer that remembers whether gradients were on when it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.seen: list[bool] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(torch.is_grad_enabled())
        return self.layer(x)


def check_clinic_thread(make_predict: Callable, inputs: Inputs) -> Iterator[Check]:
    """Clinic export.clinic-thread: no graph is built, whichever thread predicts."""
    model = _Watching()
    pixels = inputs.randn(5, 4).numpy()
    with torch.enable_grad():
        predict = make_predict(model)
        yield is_true(
            "gradients stay on for those who train",
            torch.is_grad_enabled(),
            detail="they are off",
            hint="set_grad_enabled changes this thread for good. `with torch.no_grad():` puts it back.",
        )
        want = model.layer(torch.from_numpy(pixels)).detach()
        here = predict(pixels)
        yield is_true("returns an array", type(here) is np.ndarray, detail=f"got {describe(here)}", hint=".numpy()")
        with ThreadPoolExecutor(1) as pool:
            there = pool.submit(predict, pixels).result(30)
        yield is_close("the right numbers in another thread", torch.from_numpy(there), want, hint="model(pixels)")
        yield is_true(
            "no graph in the service's thread",
            model.seen[-1] is False,
            detail="gradients were on",
            hint="Whether gradients are on is kept for each thread. Switch them off where the model is called.",
        )
        yield is_true("no graph in the notebook's thread", model.seen[0] is False, detail="gradients were on",
                      hint="Switch them off inside predict.")  # fmt: skip
        yield is_true("and afterwards they are on again", torch.is_grad_enabled(), hint="with torch.no_grad(): ...")


def check_clinic_answers(answer_all: Callable, inputs: Inputs) -> Iterator[Check]:
    """Clinic export.clinic-answers: everybody gets the digits of their own images."""
    sizes = [3, 1, 4, 2][:: inputs.choice([1, -1])]
    digits = inputs.randint(0, 10, sum(sizes)).numpy()
    images = np.eye(10, dtype=np.float32)[digits]  # (N, 10): the image of a digit has its ink at that place
    requests = np.split(images, np.cumsum(sizes)[:-1])
    calls: list[int] = []

    def predict(batch: np.ndarray) -> np.ndarray:
        calls.append(len(batch))
        return batch * 2.0

    answer = answer_all(predict, list(requests))
    yield is_true("one answer for each request", type(answer) in (list, tuple) and len(answer) == len(sizes),
                  detail=f"got {describe(answer)}", hint="A list, as long as the list of requests.")  # fmt: skip
    parts = [np.asarray(part) for part in answer]
    got = [len(part) for part in parts]
    yield is_true("one digit for each image", got == sizes, detail=f"{got} digits for {sizes} images",
                  hint="The answers came in another order than the questions." if sorted(got) == sorted(sizes)
                  else "np.split wants the places to cut at: the lengths added up, without the last.")  # fmt: skip
    yield is_true(
        "digits, not logits",
        all(part.ndim == 1 for part in parts),
        detail=f"got shapes {[part.shape for part in parts]}",
        hint="logits.argmax(1), then split.",
    )
    want = np.split(digits, np.cumsum(sizes)[:-1])
    yield is_true("everybody gets their own", all(np.array_equal(p, w) for p, w in zip(parts, want, strict=True)),
                  detail="some got the digits of others",
                  hint="Sorting changed the order. Put the answers back, or don't sort.")  # fmt: skip
    yield is_true("in one call of the model", calls == [sum(sizes)], detail=f"calls with {calls} images",
                  hint="That is what the batch is for.")  # fmt: skip
    same = [images[:2], images[2:4], images[4:6]]
    parts = [np.asarray(part).tolist() for part in answer_all(predict, same)]
    yield is_true("also when all ask for equally many", parts == [digits[i : i + 2].tolist() for i in (0, 2, 4)],
                  hint="Put the answers back into the order of the requests.")  # fmt: skip


def check_clinic_blocking(make_service: Callable, inputs: Inputs) -> Iterator[Check]:
    """Clinic export.clinic-blocking: the health check answers while the model computes."""
    digit = inputs.size(0, 9)
    let_go = threading.Event()

    def read_digit(body: bytes) -> int:
        let_go.wait(BUSY_S)
        return (int(body) + digit) % 10

    app = make_service(read_digit)
    yield is_true("returns an app", callable(app), detail=f"got {describe(app)}", hint="return app")
    try:
        with ThreadPoolExecutor(1) as pool:  # the notebook's own thread has a running loop
            seen = pool.submit(lambda: asyncio.run(_two_at_once(app, let_go))).result(60)
    finally:
        let_go.set()
    statuses, digits, order = seen
    yield is_true("both routes are there", statuses == [200, 200], detail=f"status {statuses}",
                  hint="POST /predict and GET /health, as before.")  # fmt: skip
    yield is_true("predict answers with the digit", digits == {"digit": (3 + digit) % 10}, detail=f"got {digits}",
                  hint='{"digit": ...}, and await what has to be awaited.')  # fmt: skip
    yield is_true(
        "health answers while the model computes",
        order[:1] == ["health"],
        detail="it waited for the model",
        hint="In `async def` everybody waits for the model. `await run_in_threadpool(read_digit, body)` goes aside.",
    )


async def _two_at_once(app: Any, let_go: threading.Event) -> tuple[list[int], Any, list[str]]:
    order: list[str] = []

    async def ask(client: httpx.AsyncClient, name: str, method: str, content: bytes | None) -> httpx.Response:
        answer = await client.request(method, f"/{name}", content=content)
        order.append(name)
        return answer

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
        slow = asyncio.create_task(ask(client, "predict", "POST", b"3"))
        await asyncio.sleep(0.05)  # it has started by now
        try:
            quick = await ask(client, "health", "GET", None)
        finally:
            let_go.set()
            first = await slow
    return [first.status_code, quick.status_code], _json(first), order


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return answer.text[:40]
