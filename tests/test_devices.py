"""Devices are found, named, and refused in words; threads are put back."""

from __future__ import annotations

import pytest
import torch

from course_utils import devices
from course_utils.devices import available_devices, describe_device, pick_device, synchronize, use_threads
from course_utils.errors import UsageError


@pytest.fixture
def machine(monkeypatch):
    """Let the course believe in a machine with these devices, the preferred kind first."""

    def with_devices(**counts: int) -> None:
        monkeypatch.setattr(devices, "available_devices", lambda: {**counts, "cpu": 1})

    return with_devices


def test_the_cpu_is_always_there_and_comes_last():
    assert list(available_devices())[-1] == "cpu"


@pytest.mark.parametrize(("kind", "count"), [("cuda", 2), ("mps", 1)])
def test_an_accelerator_comes_first(monkeypatch, kind, count):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device(kind))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
    assert list(available_devices().items()) == [(kind, count), ("cpu", 1)]
    assert pick_device() == torch.device(kind)


def test_auto_falls_back_to_the_cpu(machine):
    machine()
    assert pick_device("auto") == torch.device("cpu")


@pytest.mark.parametrize("name", ["cpu", "cpu:0", "cuda", "cuda:1"])
def test_a_device_that_is_there_is_taken_by_name_or_as_a_device(machine, name):
    machine(cuda=2)
    assert pick_device(name) == torch.device(name)
    assert pick_device(torch.device(name)) == torch.device(name)


UNKNOWN = {
    "gpu": "There is no kind of device called 'gpu'.\n  expected: one of auto, cpu\n  fix:      Did you mean 'cpu'?",
    "cudaa": "There is no kind of device called 'cudaa'.\n"
    "  expected: one of auto, cpu\n"
    "  fix:      Did you mean 'cuda'?",
    None: "There is no kind of device called 'None'.\n"
    "  expected: one of auto, cpu\n"
    "  fix:      Known are: auto, cpu, cuda, mps.",
}


@pytest.mark.parametrize(("name", "text"), UNKNOWN.items(), ids=map(str, UNKNOWN))
def test_a_name_that_is_no_device_is_explained(machine, name, text):
    machine()
    with pytest.raises(UsageError) as caught:
        pick_device(name)
    assert str(caught.value) == text
    assert caught.value.__cause__ is not None


def test_cuda_missing_from_a_build_without_it(machine, monkeypatch):
    machine()
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(UsageError) as caught:
        pick_device("cuda")
    assert str(caught.value) == (
        "This machine has no device 'cuda'.\n"
        "  got:      this PyTorch was built without CUDA\n"
        "  expected: one of auto, cpu\n"
        '  fix:      use "auto", which takes the best device that is there'
    )


def test_cuda_missing_from_the_machine(machine, monkeypatch):
    machine()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError) as caught:
        pick_device("cuda")
    assert caught.value.got == "PyTorch finds no NVIDIA driver and GPU that it can use"


@pytest.mark.parametrize("name", ["cuda:2", "mps", "cpu:1", "meta"])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(machine, monkeypatch, name):
    machine(cuda=2)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UsageError) as caught:
        pick_device(name)
    assert caught.value.what == f"This machine has no device {name!r}."
    assert caught.value.expected == "one of auto, cuda:0, cuda:1, cpu"
    assert caught.value.got == ""


def test_threads_are_set_and_restored_also_after_an_exception():
    before = torch.get_num_threads()
    with use_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with pytest.raises(ZeroDivisionError), use_threads(before + 1):
        raise ZeroDivisionError
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", None])
def test_a_number_of_threads_is_whole_and_positive(wrong):
    with pytest.raises(UsageError) as caught, use_threads(wrong):
        pass
    assert caught.value.what == "This is not a number of threads."
    assert caught.value.expected == "a whole number of at least 1"


def test_the_cpu_is_described_by_its_threads():
    with use_threads(1):
        assert describe_device("cpu") == "cpu (1 thread)"
    with use_threads(2):
        assert describe_device(torch.device("cpu")) == "cpu (2 threads)"


def test_a_gpu_is_described_by_name_and_memory(machine, monkeypatch):
    class Facts:
        name, total_memory = "NVIDIA H200", 150_000_000_000

    machine(cuda=1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Facts)
    assert describe_device("cuda:0") == "cuda:0 (NVIDIA H200, 139.7 GiB)"


def test_another_accelerator_is_described_by_its_kind(machine):
    machine(mps=1)
    assert describe_device("auto") == "mps"


def test_only_an_accelerator_is_waited_for(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    synchronize("cpu")
    assert waited == []
    synchronize("cuda:1")
    assert waited == [torch.device("cuda:1")]
