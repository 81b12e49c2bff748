"""A service over real HTTP: its routes, its start, its end, in a thread and in a process."""

from __future__ import annotations

import contextlib
import gc
import socket
import subprocess
import sys
import threading
import time

import httpx
import numpy as np
import psutil
import pytest

from course_utils.paths import ROOT, course_first
from course_utils.serving import (
    BadRequest,
    Limits,
    Service,
    ServiceProcess,
    ServingError,
    bad_requests,
    load_test,
    make_app,
    request_body,
    send_bad_requests,
    service_threads,
)

JSON_TYPE = {"content-type": "application/json"}
IMAGE = np.zeros((1, 1, 28, 28), dtype=np.uint8)


def ink(pixels):
    """A model: class 1 has the mean of the pixels as its score, class 0 has 100."""
    mean = pixels.mean((1, 2, 3))
    return np.stack([np.full_like(mean, 100), mean], axis=1)


def post(client, images, **options):
    return client.post("/predict", content=request_body(images), headers=JSON_TYPE, **options)


@pytest.fixture(scope="module")
def service():
    with Service(make_app(ink, about={"model": "ink"})) as service:
        yield service


@pytest.fixture
def client(service):
    with service.client() as client:
        yield client


def refuses_connections(port):
    with contextlib.closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_digits_and_confidence_come_back(client):
    answer = post(client, np.concatenate([IMAGE, IMAGE + 200]))
    assert answer.status_code == 200
    assert answer.json() == {"digits": [0, 1], "confidence": [1.0, 1.0]}


def test_health_about_and_stats(client):
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/about").json()["model"] == "ink"
    assert client.get("/about").json()["limits"]["max_images"] == Limits().max_images
    assert client.get("/stats").json()["batches"] >= 1


@pytest.mark.parametrize("request_", bad_requests(), ids=lambda request: request.name)
def test_each_bad_request_is_refused_with_a_sentence(client, request_: BadRequest):
    ((_, status, sentence),) = send_bad_requests(client, [request_])
    assert status in request_.statuses
    assert sentence.endswith(".")
    assert post(client, IMAGE).status_code == 200  # and the service goes on


def test_a_body_without_end_is_cut_off(client):
    def endless():
        for _ in range(40):
            yield b" " * 2**20

    with contextlib.suppress(httpx.TransportError):  # the server may hang up while we still send
        assert client.post("/predict", content=endless(), headers=JSON_TYPE).status_code == 413
    assert client.get("/health").status_code == 200


def test_a_sender_that_hangs_up_hurts_nobody(service, client):
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", service.port)) as raw:
        raw.sendall(head + b'{"images": [')
    assert client.get("/health").status_code == 200
    assert post(client, IMAGE).status_code == 200


def test_a_slow_sender_is_not_waited_for():
    def slow():
        yield b'{"images": '
        time.sleep(1.5)
        yield b"[]}"

    with Service(make_app(ink, timeout_s=0.3)) as service, service.client() as client:
        assert client.post("/predict", content=slow(), headers=JSON_TYPE).status_code == 408


def test_a_model_that_fails_is_a_500_that_tells_nothing_of_the_inside(capfd):
    def failing(pixels):
        if pixels.any():
            raise ValueError("a secret path")
        return ink(pixels)

    with Service(make_app(failing)) as service, service.client() as client:
        answer = post(client, IMAGE + 1)
        assert answer.status_code == 500
        assert answer.json() == {"error": "The model failed on this request."}
        assert client.get("/health").status_code == 200
    assert "a secret path" in capfd.readouterr().err


def test_a_model_that_answers_nan_is_a_500():
    def broken(pixels):
        return ink(pixels) * np.nan

    with Service(make_app(broken)) as service, service.client() as client:
        assert "finite" in post(client, IMAGE).json()["error"]


def test_too_much_at_once_is_a_503_and_says_when_to_come_back():
    gate = threading.Event()

    def slow(pixels):
        if pixels.any():
            gate.wait(20)
        return ink(pixels)

    with Service(make_app(slow, max_waiting=1, max_wait_s=0)) as service:
        threads = [threading.Thread(target=lambda: _post_once(service, 1)) for _ in range(2)]
        try:
            for thread in threads:  # one is computed, one waits
                thread.start()
                time.sleep(0.3)
            with service.client() as client:
                answer = post(client, IMAGE)
                assert answer.status_code == 503
                assert answer.headers["retry-after"] == "1"
        finally:
            gate.set()
            for thread in threads:
                thread.join()


def _post_once(service, ink_value):
    with service.client() as client:
        post(client, IMAGE + ink_value)


def test_a_request_that_takes_too_long_is_a_503():
    app = make_app(lambda p: (time.sleep(0.5 * bool(p.any())), ink(p))[1], timeout_s=0.1)
    with Service(app) as service, service.client() as client:
        assert "not computed within" in post(client, IMAGE + 1).json()["error"]


def test_clients_at_the_same_time_share_batches_and_get_their_own_answers(service):
    bodies = [request_body(IMAGE + value) for value in (0, 200)]
    load = load_test(service.url, bodies, n_requests=60, n_clients=6)
    assert load.statuses == {200: 60}
    assert len(load.latencies_ms) == 60
    assert load.per_second > 0


def test_small_answers_are_sent_at_once(service):
    load = load_test(service.url, [request_body(IMAGE)], n_requests=20, n_clients=1)
    assert load.latencies_ms[0] < 35  # a socket that asyncio does not know for TCP costs 40 ms each time


# --- start and end ----------------------------------------------------------------------------------------------------


def test_after_the_block_the_port_is_free_and_no_thread_is_left():
    before = service_threads()
    with Service(make_app(ink)) as service:
        port = service.port
        assert not refuses_connections(port)
    assert refuses_connections(port)
    assert service_threads() == before
    with Service(make_app(ink), port=port) as again:  # at once
        assert again.port == port


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_inside_the_block_ends_the_service(error):
    with pytest.raises(error), Service(make_app(ink)) as service:
        raise error
    assert not service.is_running
    assert refuses_connections(service.port)


def test_an_interrupt_of_the_stopping_does_not_keep_the_service(monkeypatch):
    service = Service(make_app(ink)).start()
    thread = service._thread
    monkeypatch.setattr(thread, "join", _interrupted)
    with pytest.raises(KeyboardInterrupt):
        service.stop()
    monkeypatch.undo()
    thread.join(10)
    assert not thread.is_alive()


def _interrupted(*_args):
    raise KeyboardInterrupt


def test_an_interrupt_of_the_start_ends_it(monkeypatch):
    monkeypatch.setattr("course_utils.serving.server.time.sleep", _interrupted)
    service = Service(make_app(lambda pixels: (threading.Event().wait(0.2), ink(pixels))[1]))
    with pytest.raises(KeyboardInterrupt):
        service.start()
    assert not service.is_running


def test_stopping_twice_and_starting_again(service):
    other = Service(make_app(ink)).start()
    assert other.start() is other
    other.stop()
    other.stop()
    with other, other.client() as client:
        assert client.get("/health").status_code == 200


def test_a_service_that_nobody_holds_ends():
    lost = Service(make_app(ink)).start()
    thread = lost._thread
    del lost
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_a_model_that_does_not_work_stops_the_start_and_says_why():
    def broken(pixels):
        raise ValueError("wrong file")

    service = Service(make_app(broken))
    with pytest.raises(ServingError, match="wrong file"):
        service.start()
    assert not service.is_running


def test_a_port_that_is_taken_is_one_sentence(service):
    with pytest.raises(ServingError, match=f"Port {service.port} of this machine"):
        Service(make_app(ink), port=service.port).start()


def test_a_start_that_hangs_is_given_up():
    gate = threading.Event()
    service = Service(make_app(lambda pixels: (gate.wait(1.5), ink(pixels))[1]))
    try:
        with pytest.raises(ServingError, match="not ready after"):
            service.start(timeout_s=0.2)
    finally:
        gate.set()
        service.stop()
    assert not service.is_running


# --- in a process of its own -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    """A model made by hand, without PyTorch: mean over the pixels for ten classes."""
    import onnx
    from onnx import TensorProto, helper

    pixels = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 1, 28, 28])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])
    weight = helper.make_tensor("w", TensorProto.FLOAT, [784, 10], [i % 10 / 784 for i in range(7840)])
    nodes = [helper.make_node("Flatten", ["pixels"], ["flat"]), helper.make_node("MatMul", ["flat", "w"], ["logits"])]
    graph = helper.make_graph(nodes, "ink", [pixels], [logits], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    helper.set_model_props(model, {"name": "by hand"})
    path = tmp_path_factory.mktemp("models") / "ink.onnx"
    onnx.save(model, path)
    return path


def test_a_process_serves_an_onnx_file_and_ends_with_the_block(model_file):
    with ServiceProcess(model_file, threads=1) as service:
        process = service.process
        with service.client() as client:
            assert post(client, IMAGE + 200).json()["digits"] == [9]
            assert client.get("/about").json()["name"] == "by hand"
            assert client.get("/health").status_code == 200
        assert service.start() is service
    assert process.poll() == 0
    assert not service.is_running
    assert refuses_connections(service.port)
    service.stop()


def test_a_process_that_is_interrupted_ends(model_file):
    service = ServiceProcess(model_file).start()
    process = service.process
    with pytest.raises(KeyboardInterrupt), service:
        raise KeyboardInterrupt
    assert process.poll() is not None


def test_a_process_whose_parent_is_killed_ends(model_file):
    code = (
        "import sys, time\nfrom course_utils.serving import ServiceProcess\n"
        f"service = ServiceProcess({str(model_file)!r}).start()\n"
        "print(service.process.pid, flush=True)\ntime.sleep(60)\n"
    )
    env = {"PYTHONPATH": course_first(None), "PATH": ""}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT)
    try:
        child = psutil.Process(int(parent.stdout.readline()))
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    try:
        child.wait(timeout=10)
    except psutil.TimeoutExpired:
        child.kill()
        raise


def test_the_process_never_imports_pytorch(model_file):
    code = (
        "import sys\nfrom course_utils.serving import OnnxModel, make_app, Service\n"
        f"with Service(make_app(OnnxModel({str(model_file)!r}))):\n    print('torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert ended.stdout.strip() == "False", ended.stderr


def test_a_file_that_is_no_model_is_one_sentence(tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    with pytest.raises(ServingError, match=r"can't read 'bad\.onnx'"):
        ServiceProcess(tmp_path / "bad.onnx").start()
    service = ServiceProcess(tmp_path / "none.onnx")
    with pytest.raises(ServingError, match="There is no model file"):
        service.start()
    assert service.process is None
