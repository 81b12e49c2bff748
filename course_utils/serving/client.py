"""Real requests to a service: good ones, bad ones that it must refuse, and many at once."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from course_utils.errors import UsageError
from course_utils.serving.limits import JSON, Limits

TIMEOUT_S = 30.0
REFUSED_CONNECTION = 0  # in place of a status, where no answer came


def connect(url: str, timeout_s: float = TIMEOUT_S) -> httpx.Client:
    """Return a client for a service on this machine; a proxy that the environment names is not asked."""
    return httpx.Client(base_url=url, timeout=timeout_s, trust_env=False)


def request_body(images: Any) -> bytes:
    """Return a request's body for raw pixels of shape (N, 1, H, W) or (N, H, W): a tensor or an array."""
    pixels = images.reshape(len(images), *images.shape[-2:])
    return json.dumps({"images": pixels.tolist()}, separators=(",", ":")).encode()


@dataclass(frozen=True)
class BadRequest:
    """A request that must be refused, with one of the statuses that are right for it."""

    name: str
    content: bytes
    statuses: tuple[int, ...]
    content_type: str = JSON
    path: str = "/predict"
    method: str = "POST"


def bad_requests(limits: Limits | None = None) -> list[BadRequest]:
    """Return one bad request for each thing that goes wrong out there. Each deserves a 4xx and a sentence."""
    limits = limits or Limits()
    good = [[[0] * limits.width for _ in range(limits.height)]]

    def images(value: object) -> bytes:
        return json.dumps({"images": value}).encode()

    def pixel(text: str) -> bytes:
        return images(good).replace(b"0", text.encode(), 1)

    short = [good[0][:-1]]
    ragged = [[*good[0][:-1], good[0][-1][:-1]]]
    return [
        BadRequest("malformed JSON", b'{"images": [[', (400,)),
        BadRequest("empty body", b"", (400, 422)),
        BadRequest("bytes that are no text", b"\xff\xfe\xfa" * 9, (400,)),
        BadRequest("nested 100,000 deep", b"[" * 100_000, (400, 422)),
        BadRequest("wrong content type", images(good), (415,), content_type="text/plain"),
        BadRequest("a list, no object", b"[1, 2]", (422, 400)),
        BadRequest("another key", b'{"pictures": []}', (422, 400)),
        BadRequest("no images", images([]), (422, 400)),
        BadRequest("an image without its last row", images(short), (422, 400)),
        BadRequest("a row without its last pixel", images(ragged), (422, 400)),
        BadRequest("text for a pixel", pixel('"7"'), (422, 400)),
        BadRequest("true for a pixel", pixel("true"), (422, 400)),
        BadRequest("null for a pixel", pixel("null"), (422, 400)),
        BadRequest("NaN for a pixel", pixel("NaN"), (422, 400)),
        BadRequest("infinity as 1e999", pixel("1e999"), (422, 400)),
        BadRequest("a pixel of 256", pixel("256"), (422, 400)),
        BadRequest("a pixel of -1", pixel("-1"), (422, 400)),
        BadRequest("too many images", images(good * (limits.max_images + 1)), (413, 422)),
        BadRequest("a body that is too long", b" " * (limits.max_bytes + 1), (413,)),
        BadRequest("no such page", images(good), (404,), path="/predictions"),
        BadRequest("GET where POST is meant", b"", (405,), method="GET"),
    ]


def send_bad_requests(
    client: httpx.Client, requests: Iterable[BadRequest] | None = None
) -> list[tuple[BadRequest, int, str]]:
    """Send each bad request; return it with the status and the sentence that came back.

    The sentence is empty if the answer has none under the key ``error``; the status is 0 if no answer came.
    """
    answers = []
    for request in bad_requests() if requests is None else requests:
        try:
            answer = client.request(
                request.method, request.path, content=request.content, headers={"content-type": request.content_type}
            )
            status, sentence = answer.status_code, _sentence(answer)
        except httpx.HTTPError as error:
            status, sentence = REFUSED_CONNECTION, type(error).__name__
        answers.append((request, status, sentence))
    return answers


def _sentence(answer: httpx.Response) -> str:
    try:
        message = answer.json()
    except ValueError:
        return ""
    text = message.get("error") if isinstance(message, dict) else None
    return text if isinstance(text, str) else ""


@dataclass(frozen=True)
class Load:
    """What a load test saw.

    Attributes:
        latencies_ms: of the answered requests with status 200, sorted.
        statuses: how often each status came; 0 stands for no answer at all.
        seconds: from the first request to the last answer.
    """

    latencies_ms: tuple[float, ...]
    statuses: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def per_second(self) -> float:
        """Requests with status 200, per second."""
        return len(self.latencies_ms) / self.seconds if self.seconds else 0.0

    @property
    def n_failed(self) -> int:
        return sum(self.statuses.values()) - self.statuses.get(200, 0)

    def latency_ms(self, share: float) -> float:
        """Return the latency that this share of *all* requests kept to, 0.95 for 95 %; infinite if too few did."""
        return percentile([*self.latencies_ms, *[math.inf] * self.n_failed], share)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed (the nearest rank).

    Raises:
        UsageError: if there are no values, or ``share`` is not in (0, 1].
    """
    if not values or not 0 < share <= 1:
        raise UsageError(
            "There is no such percentile.", got=f"{len(values)} values, share={share}", expected="some, and 0..1"
        )
    return sorted(values)[math.ceil(share * len(values) - 1e-9) - 1]


def load_test(
    url: str, bodies: Sequence[bytes], *, n_requests: int, n_clients: int, timeout_s: float = TIMEOUT_S
) -> Load:
    """Let several clients send requests to ``/predict`` at the same time, each its next one when the last is answered.

    Args:
        url: of the service.
        bodies: of the requests, used in turn.
        n_requests: of all clients together.
        n_clients: requests under way at a time.
        timeout_s: for the whole test; what is not answered by then counts as failed. Nothing runs on after an
            interrupt.
    """
    if n_requests < 1 or n_clients < 1 or not bodies:
        raise UsageError("A load test needs requests and clients.", got=f"{n_requests=}, {n_clients=}", fix="1 or more")
    numbers = iter(range(n_requests))
    lock, stop = threading.Lock(), threading.Event()
    latencies: list[float] = []
    statuses: Counter[int] = Counter()
    end = time.monotonic() + timeout_s

    def work() -> None:
        with connect(url) as client:
            while not stop.is_set():
                with lock:
                    number = next(numbers, None)
                left = end - time.monotonic()
                if number is None or left <= 0:
                    return
                began = time.perf_counter()
                status = _post(client, bodies[number % len(bodies)], left)
                took = 1000 * (time.perf_counter() - began)
                with lock:
                    statuses[status] += 1
                    if status == 200:
                        latencies.append(took)

    threads = [threading.Thread(target=work, name="load-test", daemon=True) for _ in range(min(n_clients, n_requests))]
    began = time.perf_counter()
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout_s + 1.0)
    finally:
        stop.set()
    with lock:
        unsent = n_requests - sum(statuses.values())
        if unsent:
            statuses[REFUSED_CONNECTION] += unsent
        return Load(tuple(sorted(latencies)), dict(statuses), time.perf_counter() - began)


def _post(client: httpx.Client, body: bytes, timeout_s: float) -> int:
    try:
        answer = client.post("/predict", content=body, headers={"content-type": JSON}, timeout=timeout_s)
    except httpx.HTTPError:
        return REFUSED_CONNECTION
    return answer.status_code
