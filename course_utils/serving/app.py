"""The routes of the digit service. Every answer is JSON; every error is one sentence under the key "error"."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from course_utils.serving.batcher import Batcher, Busy, Closed, Predict
from course_utils.serving.limits import Limits, Refusal, check_size, check_type, read_images

DRAINED_BYTES = 16 * 2**20  # of a body that is too long: a client that is still sending can't read our answer
RETRY_AFTER_S = 1


class Reading(BaseModel):
    """What the service answers: the digit in each image, and how sure the model is of it, 0 to 1."""

    digits: list[int]
    confidence: list[float]


def make_app(
    predict: Predict,
    *,
    limits: Limits | None = None,
    about: Mapping[str, str] | None = None,
    max_batch: int = 64,
    max_wait_s: float = 0.002,
    max_waiting: int = 512,
    timeout_s: float = 10.0,
) -> FastAPI:
    """Return the service as an ASGI app: ``POST /predict``, ``GET /health``, ``/about`` and ``/stats``.

    The batcher starts with the app and ends with it; before the first request the model sees one blank image, so a
    model that does not work stops the start and not a customer.

    Args:
        predict: raw pixels (N, 1, H, W), float32, 0..peak, to scores (N, C). Called in a thread of its own.
        limits: of one request.
        about: facts about the model for ``/about``, such as its name and accuracy.
        max_batch, max_wait_s, max_waiting: see `Batcher`. ``max_batch=1`` turns batching off.
        timeout_s: for one request: to arrive, and again to be computed.
    """
    limits = limits or Limits()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with Batcher(predict, max_batch=max_batch, max_wait_s=max_wait_s, max_waiting=max_waiting) as batcher:
            try:
                blank = np.zeros((1, 1, limits.height, limits.width), dtype=np.float32)
                await asyncio.wrap_future(batcher.submit(blank))
            except Exception as error:
                app.state.problem = f"{type(error).__name__}: {error}"  # the server can only say that it stopped
                raise
            app.state.batcher = batcher
            yield

    # No pages with documentation: those load their scripts from the network.
    app = FastAPI(title="Digits", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.problem = ""

    @app.exception_handler(Refusal)
    async def refused(_request: Request, refusal: Refusal) -> JSONResponse:
        headers = {"Retry-After": str(RETRY_AFTER_S)} if refusal.status == 503 else None
        return JSONResponse({"error": refusal.sentence}, refusal.status, headers)

    @app.exception_handler(HTTPException)
    async def no_such_route(request: Request, error: HTTPException) -> JSONResponse:
        routes = "POST /predict, GET /health, GET /about, GET /stats"
        sentence = f"There is no {request.method} {request.url.path[:40]!a} here; there is {routes}."
        return JSONResponse({"error": sentence}, error.status_code, error.headers)

    @app.post("/predict")
    async def predict_digits(request: Request) -> Reading:
        check_type(request.headers.get("content-type"))
        try:
            body = await asyncio.wait_for(_body(request, limits), timeout_s)
        except asyncio.TimeoutError:
            raise Refusal(408, f"The request did not arrive within {timeout_s:g} s.") from None
        except ClientDisconnect:
            raise Refusal(400, "The connection ended before the request did.") from None
        pixels = read_images(body, request.headers.get("content-type"), limits)
        return _reading(await _scores(app.state.batcher, pixels, timeout_s))

    @app.get("/health")
    async def health() -> dict[str, str]:
        if not app.state.batcher.is_open:
            raise Refusal(503, "The service is ending.")
        return {"status": "ok"}

    @app.get("/about")
    async def facts() -> dict[str, object]:
        return {**(about or {}), "limits": asdict(limits)}

    @app.get("/stats")
    async def stats() -> dict[str, int]:
        return asdict(app.state.batcher.counts)

    return app


async def _body(request: Request, limits: Limits) -> bytes:
    """Return the body; one that is too long is refused without being kept."""
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said) > DRAINED_BYTES:
        check_size(int(said), limits)
    parts, n_bytes = [], 0
    async for part in request.stream():
        n_bytes += len(part)
        if n_bytes <= limits.max_bytes:
            parts.append(part)
        elif n_bytes > DRAINED_BYTES:
            break
    check_size(n_bytes, limits)
    return b"".join(parts)


async def _scores(batcher: Batcher, pixels: np.ndarray, timeout_s: float) -> np.ndarray:
    try:
        scores = await asyncio.wait_for(asyncio.wrap_future(batcher.submit(pixels)), timeout_s)
    except Busy:
        raise Refusal(503, "Too many requests are waiting; try again in a second.") from None
    except Closed:
        raise Refusal(503, "The service is ending.") from None
    except asyncio.TimeoutError:
        raise Refusal(503, f"The request was not computed within {timeout_s:g} s; try again later.") from None
    except Exception:
        traceback.print_exc()  # for the log: strangers get a sentence, and learn nothing about the inside
        raise Refusal(500, "The model failed on this request.") from None
    if not np.isfinite(scores).all():
        raise Refusal(500, "The model gave no finite number for this request.")
    return scores


def _reading(scores: np.ndarray) -> Reading:
    scores = scores.astype(np.float64)
    shares = np.exp(scores - scores.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    return Reading(digits=scores.argmax(1).tolist(), confidence=[round(p, 6) for p in shares.max(1).tolist()])
