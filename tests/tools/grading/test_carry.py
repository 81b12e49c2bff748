"""Answers carried between two processes: plain data arrives as it was, storage shared, and nothing else does."""

from __future__ import annotations

import json
import math
import socket
import threading

import numpy as np
import pytest
import torch

from course_utils.exercises.registry import all_exercises, find_exercise
from course_utils.tools.grading import carriable
from course_utils.tools.grading.carry import Channel, Lost, NotCarried, Reader, Writer, stand_in


def carried(value):
    writer = Writer()
    message = json.loads(json.dumps(writer.encode(value), allow_nan=False))
    return Reader(writer.storages).decode(message)


PLAIN = [
    None, True, 3, -(2**70), 1.5, math.inf, -0.0, "text", b"\x00\xff", 1 + 2j, [1, [2]], (1,), {1: "a", "b": (2,)},
    {1, 2}, frozenset({3}), slice(1, None, 2), range(3), ..., torch.float32, torch.strided, torch.channels_last,
    torch.device("cpu"), torch.Size([2, 3]),
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_data_arrives_as_it_was(value):
    arrived = carried(value)
    assert arrived == value
    assert type(arrived) is type(value)


def test_nan_arrives_as_nan():
    assert math.isnan(carried(float("nan")))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8]
)
def test_tensors_keep_dtype_shape_strides_and_offset(dtype):
    tensor = torch.arange(24).reshape(4, 6).to(dtype)[1:, ::2].t()
    arrived = carried(tensor)
    assert torch.equal(arrived, tensor)
    assert (arrived.dtype, arrived.stride(), arrived.storage_offset()) == (
        dtype,
        tensor.stride(),
        tensor.storage_offset(),
    )
    assert carried(torch.empty(0, 3)).shape == (0, 3)
    assert carried(torch.tensor(2.0)).shape == ()


def test_numpy_arrives_with_its_dtype():
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert np.array_equal(carried(array), array)
    assert type(carried(np.int16(3))) is np.int16


def test_tensors_that_share_storage_share_it_on_the_other_side():
    base = torch.zeros(4)
    first, second = carried([base, base[1:]])
    first[1] = 7
    assert second[0] == 7


class Odd:
    pass


@pytest.mark.parametrize(
    "value",
    [
        Odd(),
        len,
        torch.nn.Linear(1, 1),
        torch.ones(1, requires_grad=True),
        torch.ones(2).to_sparse(),
        np.array([object()]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_plain_data_is_refused(value):
    with pytest.raises(NotCarried):
        Writer().encode(value)
    with pytest.raises(NotCarried):
        Writer().encode({"inside": [value]})


def test_endless_nesting_is_refused():
    nest: list = []
    nest.append(nest)
    with pytest.raises(NotCarried):
        Writer().encode(nest)


@pytest.mark.parametrize(
    "nonsense",
    [
        {"t": "tensor", "v": [0, "torch.float32", [10**6], [1], 0]},
        {"t": "tensor", "v": [5, "torch.float32", [1], [1], 0]},
        {"t": "tensor", "v": [0, "torch.float32", [1], [1], 2]},
        {"t": "tensor", "v": [0, "torch.float32", [-1], [1], 0]},
        {"t": "tensor", "v": [0, "torch.nothing", [1], [1], 0]},
        {"t": "pickle", "v": "x"}, {"t": "list", "v": 3}, {}, [1],
        {"t": "array", "v": ["|O", [1], "00"]}, {"t": "tensor", "v": [0, "torch.float32", [2], [-1], 0]},
    ],
    ids=str,
)  # fmt: skip
def test_nonsense_is_refused_and_reads_no_memory_outside(nonsense):
    with pytest.raises(Lost):
        Reader([torch.UntypedStorage(8)]).decode(nonsense)


@pytest.fixture
def channels():
    ours, theirs = socket.socketpair()
    yield Channel(ours), Channel(theirs)
    ours.close(), theirs.close()


def calling(channels, function, timeout_s=10.0):
    ours, theirs = channels
    threading.Thread(target=carriable._serve, args=(theirs, function), daemon=True).start()
    return stand_in(ours, timeout_s)


def test_a_call_returns_a_view_of_its_argument_as_a_view(channels):
    x = torch.zeros(6)
    view = calling(channels, lambda t: t.view(2, 3)[1])(x)
    view += 1
    assert x.tolist() == [0, 0, 0, 1, 1, 1]


def test_what_a_call_does_in_place_is_seen(channels):
    x, y = torch.zeros(3), torch.ones(3)
    result = calling(channels, lambda t, *, other: t.add_(other))(x, other=y)
    assert x.tolist() == [1, 1, 1]
    assert result.data_ptr() == x.data_ptr()


def test_errors_come_back_by_name(channels):
    def fail(kind):
        raise {"key": KeyError("k"), "own": type("MyError", (Exception,), {})("m")}[kind]

    call = calling(channels, fail)
    with pytest.raises(KeyError, match="k"):
        call("key")
    with pytest.raises(Exception, match="m") as raised:
        call("own")
    assert type(raised.value).__name__ == "MyError"


def test_a_result_that_can_not_be_carried_is_a_type_error(channels):
    with pytest.raises(TypeError, match="Odd"):
        calling(channels, lambda: Odd())()


def test_a_call_that_takes_too_long_is_lost(channels):
    import time

    with pytest.raises(Lost, match="in time"):
        calling(channels, lambda: time.sleep(5), timeout_s=0.2)()


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00" * 8, b"\xff" * 8, b"\x00\x00\x00\x02\x00\x00\x00\x00[]", b"\x00\x00\x00\x02\x00\x00\x00\x00{}"],
)
def test_a_channel_refuses_what_is_no_message(channels, content):
    ours, theirs = channels
    theirs.sock.sendall(content)
    theirs.sock.close()
    with pytest.raises(Lost):
        ours.receive(2.0)


@pytest.mark.parametrize("exercise", all_exercises(), ids=lambda exercise: exercise.id)
def test_the_list_of_carried_exercises_is_what_is_measured(exercise):
    """Run `python -m course_utils.tools.grading.carriable` when an exercise was added or changed."""
    assert (exercise.id in carriable.carried()) == carriable.can_be_carried(exercise)


def test_other_right_answers_pass_when_they_are_carried():
    from tests.exercises import test_tensors

    for exercise_id, answers in test_tensors.RIGHT.items():
        if exercise_id in carriable.carried():
            for name, answer in answers.items():
                assert carriable.passes_when_carried(find_exercise(exercise_id), answer, 0), (exercise_id, name)
