"""Requests, percentiles, and a load test that always ends."""

from __future__ import annotations

import math
import threading
import time

import numpy as np
import pytest

from course_utils.errors import CourseError, UsageError
from course_utils.serving import Load, Service, load_test, make_app, percentile, request_body, send_bad_requests
from course_utils.serving.client import connect
from course_utils.serving.runtime import OnnxModel

IMAGE = np.zeros((1, 28, 28), dtype=np.uint8)


def ink(pixels):
    return pixels.mean((2, 3)) * [[0.0, 1.0]]


@pytest.mark.parametrize(
    ("values", "share", "wanted"),
    [([1.0], 0.5, 1.0), ([3.0, 1.0, 2.0], 0.5, 2.0), ([1.0, 2.0], 0.5, 1.0), (list(range(1, 101)), 0.95, 95),
     (list(range(1, 101)), 1.0, 100), (list(range(1, 11)), 0.3, 3)],
)  # fmt: skip
def test_a_percentile_is_the_nearest_rank(values, share, wanted):
    assert percentile(values, share) == wanted


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], 0), ([1.0], 1.1)])
def test_a_percentile_of_nothing_is_refused(values, share):
    with pytest.raises(UsageError):
        percentile(values, share)


def test_failed_requests_count_as_endless():
    load = Load((1.0, 2.0, 3.0), {200: 3, 503: 1}, seconds=2.0)
    assert (load.n_failed, load.per_second) == (1, 1.5)
    assert load.latency_ms(0.75) == 3.0
    assert load.latency_ms(0.99) == math.inf
    assert Load(()).per_second == 0.0


def test_a_load_test_of_a_service_that_is_not_there_ends():
    load = load_test("http://127.0.0.1:9", [b"{}"], n_requests=4, n_clients=2, timeout_s=5)
    assert load.statuses == {0: 4}


def test_a_load_test_has_a_time_limit():
    with Service(make_app(lambda p: (time.sleep(0.1 * bool(p.any())), ink(p))[1], max_batch=1)) as service:
        began = time.monotonic()
        load = load_test(service.url, [request_body(IMAGE + 1)], n_requests=500, n_clients=2, timeout_s=0.5)
        assert time.monotonic() - began < 10
    assert load.n_failed > 400
    assert sum(load.statuses.values()) == 500


def test_no_client_runs_on_after_an_interrupt(monkeypatch):
    with Service(make_app(lambda p: (time.sleep(0.02), ink(p))[1])) as service:
        real = threading.Thread.join

        def interrupted(thread, timeout=None):
            if thread.name == "load-test":
                raise KeyboardInterrupt
            return real(thread, timeout)

        monkeypatch.setattr(threading.Thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            load_test(service.url, [request_body(IMAGE)], n_requests=10_000, n_clients=2)
        monkeypatch.undo()
        end = time.monotonic() + 10
        while any(t.name == "load-test" for t in threading.enumerate()) and time.monotonic() < end:
            time.sleep(0.01)
        assert not any(t.name == "load-test" for t in threading.enumerate())


@pytest.mark.parametrize("wrong", [{"n_requests": 0}, {"n_clients": 0}, {"bodies": []}])
def test_a_load_test_without_load_is_refused(wrong):
    with pytest.raises(UsageError):
        load_test("http://127.0.0.1:9", **{"bodies": [b"{}"], "n_requests": 1, "n_clients": 1, **wrong})


def test_bad_requests_to_nobody_are_status_0():
    with connect("http://127.0.0.1:9") as client:
        assert {status for _, status, _ in send_bad_requests(client)} == {0}


def test_an_answer_without_a_sentence_is_seen():
    async def mute(scope, receive, send):
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": message["type"] + ".complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        await send({"type": "http.response.start", "status": 400, "headers": []})
        await send({"type": "http.response.body", "body": b"<html>"})

    with Service(mute) as service, service.client() as client:
        assert all(sentence == "" for _, status, sentence in send_bad_requests(client) if status == 400)


def test_a_model_file_is_missing_or_no_model(tmp_path):
    with pytest.raises(CourseError, match="There is no model file"):
        OnnxModel(tmp_path / "none.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"text")
    with pytest.raises(CourseError, match="can't read"):
        OnnxModel(tmp_path / "bad.onnx")


def test_a_model_of_two_inputs_is_refused(tmp_path):
    import onnx
    from onnx import TensorProto, helper

    a, b, c = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "abc")
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["c"])], "two", [a, b], [c])
    path = tmp_path / "two.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    with pytest.raises(CourseError, match="several inputs"):
        OnnxModel(path)
