"""Checks of lesson 09 about the packaged model, its report, and the service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from course_utils.capstone import Pile, balanced_accuracy, hidden_digits
from course_utils.data import Batches
from course_utils.exercises.capstone_data import MIN_ACCURACY, PEAK, pile_for, restored
from course_utils.exercises.compare import describe, is_equal, is_true
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.verdicts import Check
from course_utils.models import DigitCNN
from course_utils.scratch import scratch_folder
from course_utils.seeding import seeded, stream
from course_utils.serving import OnnxModel, Service, bad_requests, request_body, send_bad_requests
from course_utils.training import fit
from course_utils.transfer import moved, snapshot

MAX_SIZE = 0.4  # of the float32 parameters
MIN_AGREEMENT = 0.97
N_FEW = 300  # examples of the pile for the runs that only ask whether the same seed gives the same answers
PER_REQUEST = 50


@cache
def _trained() -> DigitCNN:
    """Return a network that reads restored digits; never hand it out, only copies."""
    from course_utils.data import load_digits28

    images, labels = load_digits28().train.as_batch()
    with seeded(0):
        model = DigitCNN(width=8)
        fit(
            model,
            F.cross_entropy,
            torch.optim.AdamW(model.parameters(), lr=3e-3),
            Batches(images, labels, 64, generator=stream(0, "capstone", "check")),
            epochs=2,
        )
    return model


def check_package(package: Callable, inputs: Inputs) -> Iterator[Check]:
    """capstone.package: one int8 file that takes raw pixels."""
    model = DigitCNN(width=8)
    model.load_state_dict(_trained().state_dict())
    model.train()  # as a training loop leaves it
    before = snapshot(model)
    x, _ = hidden_digits(inputs.size(0, 10_000), 300)
    x[::3] = PEAK - x[::3]
    with scratch_folder("answer") as folder:
        path = package(model, folder)
        yield is_true(
            "returns the path of a file in the folder",
            isinstance(path, Path) and path.is_file() and path.is_relative_to(folder),
            detail=_where(path, folder),
            hint="A Path, as quantize_onnx returns it: return folder / …",
        )
        loaded = OnnxModel(path)
        for n in (1, 7, 64):
            shape, problem = (), ""
            try:
                shape = loaded(x[:n].numpy()).shape
            except Exception as error:
                problem = str(error)[:100]
            yield is_true(
                f"takes a batch of {n}",
                shape == (n, 10),
                detail=problem or f"gives {shape}",
                hint="The file takes float32, as example is."
                if "data type" in problem
                else "The batch must be dynamic: to_onnx takes care of that.",
            )
        size = path.stat().st_size / (4 * sum(p.numel() for p in model.parameters()))
        yield is_true(
            f"is at most {MAX_SIZE:.0%} of the float32 parameters",
            size <= MAX_SIZE,
            detail=f"{size:.0%}",
            hint="quantize_onnx makes an int8 version; return its path.",
        )
        scores = torch.from_numpy(loaded(x.numpy()))
    yield is_equal("leaves the model as it was", moved(model, before), [], hint="Package a copy: copy.deepcopy(model).")
    yield is_true("and in its mode", all(part.training for part in model.modules()), hint="Package a copy.")
    model.eval()
    inverted = torch.arange(len(x)) % 3 == 0
    with torch.no_grad():
        wanted = model(restored(x, inverted)).argmax(1)
    agreement = (scores.argmax(1) == wanted).float()
    hint = "Does the file get raw pixels, 0..255, and restore them? Was the copy in eval mode when it was exported?"
    if agreement[~inverted].mean() >= MIN_AGREEMENT > agreement[inverted].mean():
        hint = "Inverted images are read wrongly: restore belongs into the file, before the network."
    yield is_true(
        f"agrees with the model in {MIN_AGREEMENT:.0%} of raw images, upright or inverted",
        agreement.mean().item() >= MIN_AGREEMENT,
        detail=f"{agreement.mean():.0%}",
        hint=hint,
    )


def _where(path: object, folder: Path) -> str:
    if not isinstance(path, Path):
        return f"got {describe(path)}"
    if not path.is_relative_to(folder):
        return "the file is not in the folder"
    return "that is a folder" if path.is_dir() else f"there is no file {path.name!r}"


class _Machine:
    """A clock and a model whose calls take a known time: ``single_s`` for one image, more in a batch.

    One call in five is quicker, and one in seven has a hiccup.
    """

    def __init__(self, labels: Tensor, single_s: float) -> None:
        self.labels, self.single_s = labels, single_s
        self.now, self.n_calls, self.n_readings = 1000.0, 0, 0

    def clock(self) -> float:
        self.n_readings += 1
        return self.now

    def predict(self, pixels: Any) -> np.ndarray:
        pixels = np.asarray(pixels)
        self.n_calls += 1
        n = len(pixels)
        slow = 30.0 if self.n_calls == 1 else 15.0 if self.n_calls % 7 == 0 else 0.6 if self.n_calls % 5 == 3 else 1.0
        self.now += self.single_s * slow * (1 + 0.25 * (n - 1))
        places = pixels.reshape(n, -1)[:, 0].round().astype(int)  # each image carries its own number
        return np.eye(10, dtype=np.float32)[(self.labels.numpy()[places] + (places % 4 == 0)) % 10]


def check_report(report: Callable, inputs: Inputs) -> Iterator[Check]:
    """capstone.report: balanced accuracy, bytes on disk, and the median time of one image."""
    n = 200
    labels = torch.cat([torch.zeros(90, dtype=torch.int64), inputs.randint(0, 10, n - 90)])
    images = torch.arange(n).float().reshape(n, 1, 1, 1).expand(n, 1, 28, 28).clone()
    single_s = inputs.size(10, 40) / 10_000
    machine = _Machine(labels, single_s)
    predictions = torch.from_numpy(_Machine(labels, 0.0).predict(images.numpy()).argmax(1))
    with scratch_folder("answer") as folder:
        path = folder / "digits.onnx"
        path.write_bytes(bytes(inputs.size(1_000, 9_000)))
        size = path.stat().st_size
        answer = report(machine.predict, path, images, labels, machine.clock)
    good = isinstance(answer, dict) and {"accuracy", "bytes", "latency_ms"} <= set(answer)
    yield is_true(
        "returns a dict with accuracy, bytes and latency_ms",
        good,
        detail=f"got {describe(answer)}",
        hint='Return {"accuracy": …, "bytes": …, "latency_ms": …}.',
    )
    numbers = {name: _number(answer[name]) for name in ("accuracy", "bytes", "latency_ms")}
    no_number = [name for name, value in numbers.items() if value is None]
    yield is_true(
        "all three are numbers",
        not no_number,
        detail=f"{no_number[0]}: got {describe(answer[no_number[0]])}" if no_number else "",
        hint="Numbers without a unit; the texts come later, in about.",
    )
    accuracy, n_bytes, latency = (value or 0.0 for value in numbers.values())
    yield is_true(
        "bytes: the size of the file",
        n_bytes == size,
        detail=f"{n_bytes:g}, not {size}",
        hint="In bytes, not in kB: path.stat().st_size.",
    )
    wanted = balanced_accuracy(predictions, labels)
    plain = (predictions == labels).float().mean().item()
    hint = (
        "Plain accuracy counts a frequent class more. Use balanced_accuracy."
        if abs(accuracy - plain) < 1e-6
        else ("predict(images).argmax(1) against the labels, by balanced_accuracy; a share, 0 to 1.")
    )
    yield is_true(
        "accuracy: balanced, as a share",
        abs(accuracy - wanted) < 1e-6,
        detail=f"{accuracy:.4f}, not {wanted:.4f}",
        hint=hint,
    )
    hint = "The median over at least 20 calls with one image each, without the first, in milliseconds."
    if not machine.n_readings:
        hint = "clock() was never read: take the time from the clock that comes in."
    elif abs(latency - single_s) < 1e-9:
        hint = "That is in seconds."
    elif abs(latency - 1e6 * single_s) < 1e-3:
        hint = "That is in microseconds."
    elif abs(latency - 600 * single_s) < 1e-6:
        hint = "That is the quickest call. Take the median."
    elif machine.n_calls < 20:
        hint = f"There were {machine.n_calls} calls. Time at least 20 of them, with one image each."
    elif latency < 999 * single_s:
        hint = (
            "A time per image of a batch is not what a customer with one image waits for: call with images[i : i + 1]."
        )
    elif latency > 1001 * single_s:
        hint = "Single slow calls pull the mean up. Take the median, and leave out the first call. One image each."
    yield is_true(
        "latency_ms: the median time of one image",
        abs(latency - 1000 * single_s) < 1e-6 * latency + 1e-9,
        detail=f"{latency:.3f} ms, not {1000 * single_s:.3f} ms",
        hint=hint,
    )
    yield is_true("measured by at least 20 calls", machine.n_calls >= 20, detail=f"{machine.n_calls} calls", hint=hint)


def check_acceptance(job: Callable, inputs: Inputs) -> Iterator[Check]:
    """capstone.acceptance: from a pile that nobody has seen to a service, judged through HTTP."""
    pile, _, seed = pile_for(inputs)
    few = Pile(pile.images[:N_FEW], pile.labels[:N_FEW], pile.annotators[:N_FEW])
    with scratch_folder("answer") as folder:
        confidences = []
        for turn in range(2):
            torch.manual_seed(turn)
            (folder / str(turn)).mkdir()
            app = job(few, folder / str(turn), 7)
            yield is_true(
                "returns a service", callable(app), detail=f"got {describe(app)}", hint="Return make_app(…, about=…)."
            )
            answer, problem = _asked(app, hidden_digits(seed, 20)[0])
            yield is_true(
                "that reads digits", answer is not None, detail=problem, hint="POST /predict, as make_app has it."
            )
            confidences.append(answer["confidence"])
        yield is_true(
            "the same seed and pile give the same answers",
            confidences[0] == confidences[1],
            detail="they differ",
            hint="Every draw must come from the seed, also those in suspects.",
        )
        (folder / "full").mkdir()
        app = job(pile, folder / "full", seed)
        sizes = {path.stat().st_size for path in (folder / "full").rglob("*") if path.is_file()}
        yield from _accepted(app, sizes, seed)


def _accepted(app: Any, sizes: set[int], seed: int) -> Iterator[Check]:
    x, y = hidden_digits(seed)
    sent = x.clone()
    sent[::5] = PEAK - sent[::5]
    with Service(app) as service, service.client() as client:
        yield is_equal("GET /health says ok", client.get("/health").status_code, 200, hint="make_app has this route.")
        found = []
        for part in sent.split(PER_REQUEST):
            answer = client.post("/predict", content=request_body(part), headers={"content-type": "application/json"})
            found += answer.json().get("digits", [-1] * len(part))
        accuracy = balanced_accuracy(torch.tensor(found), y)
        yield is_true(
            f"a balanced accuracy of at least {MIN_ACCURACY:.0%} on hidden digits, over HTTP",
            accuracy >= MIN_ACCURACY,
            detail=f"{accuracy:.1%}",
            hint="Are unusable images and suspects left out, and is every image restored, also in the service?",
        )
        refused = send_bad_requests(client, bad_requests())
        bad = [request.name for request, status, sentence in refused if not (400 <= status < 500 and sentence)]
        yield is_equal(
            "every bad request gets a 4xx and a sentence",
            bad,
            [],
            hint="make_app(…) refuses them all: leave its routes as they are.",
        )
        yield is_equal(
            "and the service goes on",
            client.get("/health").status_code,
            200,
            hint="A bad request ended the service. make_app(…) answers each one and goes on.",
        )
        about = client.get("/about").json()
        yield is_true(
            "GET /about reports accuracy, bytes and latency_ms",
            {"accuracy", "bytes", "latency_ms"} <= set(about),
            detail=f"it has {sorted(about)}",
            hint="make_app(…, about=…): names and texts.",
        )
        numbers = {name: _number(about[name], of_text=True) for name in ("accuracy", "bytes", "latency_ms")}
        no_number = [name for name, value in numbers.items() if value is None]
        yield is_true(
            "and each is the text of a number",
            not no_number,
            detail=f"{no_number[0]}: {about[no_number[0]]!r}" if no_number else "",
            hint="str(value): a program reads it, so no unit and no % sign.",
        )
        claimed, n_bytes, latency = (value or 0.0 for value in numbers.values())
        yield is_true(
            "the bytes are those of the file",
            int(n_bytes) in sizes,
            detail=f"{about['bytes']}",
            hint="The size of the file that is served, in bytes.",
        )
        yield is_true(
            "the accuracy is no more than 5 points from the truth",
            abs(claimed - accuracy) <= 0.05,
            detail=f"{claimed:.1%} reported, {accuracy:.1%} found",
            hint="Measure on examples that were not trained on, and whose labels can be believed.",
        )
        yield is_true(
            "the latency is a time", 0 < latency < 1000, detail=f"{latency} ms", hint="In milliseconds, above 0."
        )


def _asked(app: Any, images: Tensor) -> tuple[dict[str, Any] | None, str]:
    try:
        with Service(app) as service, service.client() as client:
            answer = client.post("/predict", content=request_body(images), headers={"content-type": "application/json"})
            return (answer.json(), "") if answer.status_code == 200 else (None, f"status {answer.status_code}")
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"[:200]


def _number(value: object, of_text: bool = False) -> float | None:
    """Return a finite number as a float, or None: a Python or NumPy number, a tensor with one value, or a text."""
    if type(value) is Tensor and value.numel() == 1:
        value = value.item()
    allowed = (int, float, np.integer, np.floating, np.ndarray, *((str,) if of_text else ()))
    if type(value) is bool or not isinstance(value, allowed):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if np.isfinite(number) else None
