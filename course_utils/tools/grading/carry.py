"""Carry answers between two processes as plain data, so that a verdict is reached where no student's code runs.

The judge's process holds a stand-in for the student's function. A call of it sends the arguments over, the student's
process calls the real function, and the result comes back. Tensors travel with their storage: an argument that was
changed in place is changed in the judge's process too, and a result that is a view of an argument arrives as one.

Nothing is unpickled. What is not plain data (an object, a module, a graph) can't be carried; those exercises are
judged in the student's process, under controls.
"""

from __future__ import annotations

import json
import math
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

MAX_MESSAGE_BYTES = 256 * 2**20
MAX_DEPTH = 30
MAX_ITEMS = 200_000
_HEAD = struct.Struct("!II")  # bytes of JSON, bytes of storages

_DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
_LAYOUTS = {
    str(value): value for value in vars(torch).values() if isinstance(value, (torch.layout, torch.memory_format))
}


class NotCarried(Exception):
    """A value that is no plain data."""


class Lost(Exception):
    """The other process is gone, late, or talks nonsense."""


class Writer:
    """Turns values into JSON and storages. One writer for one message: storages are numbered in it."""

    def __init__(self, known: list[torch.UntypedStorage] | None = None) -> None:
        self.storages: list[torch.UntypedStorage] = list(known or [])
        self.items = 0

    def encode(self, value: Any, depth: int = 0) -> Any:
        """Return the value as JSON can hold it.

        Raises:
            NotCarried: if it is no plain data.
        """
        self.items += 1
        if depth > MAX_DEPTH or self.items > MAX_ITEMS:
            raise NotCarried("it is nested too deeply or holds too many items")
        kind = type(value)
        if value is None or kind in (bool, str):
            return value
        if value is ...:
            return {"t": "..."}
        if kind is int:
            return {"t": "int", "v": hex(value)} if abs(value) > 2**53 else value
        if kind is float:
            return value if math.isfinite(value) else {"t": "float", "v": repr(value)}
        if kind is complex:
            return {"t": "complex", "v": [repr(value.real), repr(value.imag)]}
        if kind is bytes:
            return {"t": "bytes", "v": value.hex()}
        if kind in (list, tuple, set, frozenset, torch.Size):
            name = "tuple" if kind is torch.Size else kind.__name__
            return {
                "t": name if kind is not torch.Size else "size",
                "v": [self.encode(item, depth + 1) for item in value],
            }
        if kind is dict:
            return {
                "t": "dict",
                "v": [[self.encode(k, depth + 1), self.encode(v, depth + 1)] for k, v in value.items()],
            }
        if kind is slice:
            return {"t": "slice", "v": [self.encode(v, depth + 1) for v in (value.start, value.stop, value.step)]}
        if kind is range:
            return {"t": "range", "v": [value.start, value.stop, value.step]}
        if kind is torch.dtype:
            return {"t": "dtype", "v": str(value)}
        if kind in (torch.layout, torch.memory_format):
            return {"t": "layout", "v": str(value)}
        if kind is torch.device:
            return {"t": "device", "v": str(value)}
        if kind is np.ndarray or isinstance(value, np.generic):
            return self._array(value)
        if kind is Tensor:
            return self._tensor(value)
        raise NotCarried(f"a {kind.__module__}.{kind.__qualname__}")

    def _tensor(self, tensor: Tensor) -> Any:
        if tensor.requires_grad or tensor.is_inference():
            raise NotCarried("a tensor that belongs to a graph")
        if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized or tensor.is_conj():
            raise NotCarried("a tensor that is not plain numbers on the CPU")
        place, before = self._place(tensor.untyped_storage(), tensor.element_size())
        shape = [list(tensor.shape), list(tensor.stride()), tensor.storage_offset() + before]
        return {"t": "tensor", "v": [place, str(tensor.dtype), *shape], "neg": tensor.is_neg()}

    def _place(self, storage: torch.UntypedStorage, item_bytes: int) -> tuple[int, int]:
        """Return the number of the storage that holds this one, and how many items of it come before.

        A tensor made from a part of a NumPy array has a storage of its own inside that of the array's other tensors.
        """
        start, size = storage.data_ptr(), storage.nbytes()
        for place, known in enumerate(self.storages):
            before = start - known.data_ptr()
            if size and known.nbytes() and 0 <= before <= known.nbytes() - size and before % item_bytes == 0:
                return place, before // item_bytes
        self.storages.append(storage)
        return len(self.storages) - 1, 0

    def _array(self, value: np.ndarray | np.generic) -> Any:
        if value.dtype.hasobject or value.dtype.kind not in "biufc" or value.dtype.fields is not None:
            raise NotCarried(f"a NumPy {value.dtype}")
        array = np.ascontiguousarray(value)
        kind = "array" if isinstance(value, np.ndarray) else "number"
        return {"t": kind, "v": [value.dtype.str, list(value.shape), array.tobytes().hex()]}


class Reader:
    """Turns JSON and storages back into values."""

    def __init__(self, storages: list[torch.UntypedStorage]) -> None:
        self.storages = storages

    def decode(self, value: Any, depth: int = 0) -> Any:
        """Return the value.

        Raises:
            Lost: if this is nothing that a writer writes.
        """
        if depth > MAX_DEPTH:
            raise Lost("a value nested too deeply")
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        try:
            return self._made(value["t"], value.get("v"), value, depth)
        except Lost:
            raise
        except Exception as error:
            raise Lost(f"a value that can't be read ({type(error).__name__})") from None

    def _made(self, kind: str, v: Any, whole: dict[str, Any], depth: int) -> Any:
        if kind == "...":
            return ...
        if kind == "int":
            return int(v, 16)
        if kind == "float":
            return float(v)
        if kind == "complex":
            return complex(float(v[0]), float(v[1]))
        if kind == "bytes":
            return bytes.fromhex(v)
        if kind in ("list", "tuple", "set", "frozenset", "size"):
            makers = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "size": torch.Size}
            return makers[kind](self.decode(item, depth + 1) for item in v)
        if kind == "dict":
            return {self.decode(k, depth + 1): self.decode(item, depth + 1) for k, item in v}
        if kind == "slice":
            return slice(*(self.decode(item, depth + 1) for item in v))
        if kind == "range":
            return range(*v)
        if kind == "dtype":
            return _DTYPES[v]
        if kind == "layout":
            return _LAYOUTS[v]
        if kind == "device":
            return torch.device(v)
        if kind in ("array", "number"):
            array = np.frombuffer(bytes.fromhex(v[2]), np.dtype(v[0])).reshape(v[1]).copy()
            return array if kind == "array" else array[()]
        if kind == "tensor":
            place, dtype, shape, stride, offset = v
            empty = torch.empty(0, dtype=_DTYPES[dtype])
            last = offset + sum((count - 1) * step for count, step in zip(shape, stride, strict=True))
            is_inside = 0 <= offset <= last < self.storages[place].nbytes() // empty.element_size()
            if min([*stride, 0]) < 0 or not (is_inside or (0 in shape and offset >= 0)):
                raise Lost("a tensor that reaches beyond its storage")
            tensor = empty.set_(self.storages[place], offset if is_inside else 0, shape, stride)
            return tensor._neg_view() if whole.get("neg") else tensor
        raise Lost(f"a value of kind {kind!r}")


class Channel:
    """Messages of JSON and storages over a socket, with a deadline for each."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, message: dict[str, Any], storages: list[torch.UntypedStorage] | None = None) -> None:
        """Send a message.

        Raises:
            Lost: if the other side is gone, or the message is too large.
        """
        blocks = [_bytes_of(storage) for storage in storages or []]
        head = json.dumps({**message, "sizes": [len(block) for block in blocks]}).encode()
        body = b"".join(blocks)
        if len(head) + len(body) > MAX_MESSAGE_BYTES:
            raise Lost("a message that is too large")
        try:
            self.sock.settimeout(None)
            self.sock.sendall(_HEAD.pack(len(head), len(body)) + head + body)
        except OSError as error:
            raise Lost("the other process is gone") from error

    def receive(self, timeout_s: float | None = None) -> tuple[dict[str, Any], list[torch.UntypedStorage]]:
        """Return the next message and its storages.

        Raises:
            Lost: if there is none in time, or it is no message.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        n_head, n_body = _HEAD.unpack(self._read(_HEAD.size, deadline))
        if n_head + n_body > MAX_MESSAGE_BYTES:
            raise Lost("a message that is too large")
        try:
            message = json.loads(self._read(n_head, deadline))
            sizes = [int(size) for size in message["sizes"]]
        except Lost:
            raise
        except Exception:
            raise Lost("a message that can't be read") from None
        body = self._read(n_body, deadline)
        if not isinstance(message, dict) or sum(sizes) != n_body or min(sizes, default=0) < 0:
            raise Lost("a message that can't be read")
        storages, at = [], 0
        for size in sizes:
            storages.append(_storage_of(body[at : at + size]))
            at += size
        return message, storages

    def _read(self, count: int, deadline: float | None) -> bytes:
        parts, left = [], count
        while left:
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise Lost("no answer in time")
            try:
                self.sock.settimeout(remaining)
                part = self.sock.recv(min(left, 2**20))
            except TimeoutError:
                raise Lost("no answer in time") from None
            except OSError as error:
                raise Lost("the other process is gone") from error
            if not part:
                raise Lost("the other process has ended")
            parts.append(part)
            left -= len(part)
        return b"".join(parts)


def _bytes_of(storage: torch.UntypedStorage) -> bytes:
    if not storage.nbytes():
        return b""
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy().tobytes()


def _storage_of(content: bytes) -> torch.UntypedStorage:
    storage = torch.UntypedStorage(len(content))
    if content:
        torch.empty(0, dtype=torch.uint8).set_(storage).numpy()[:] = np.frombuffer(content, np.uint8)
    return storage


class CarriedError(Exception):
    """Base of the stand-ins for errors that a student's function raised in its own process."""


_ERRORS = {
    kind.__name__: kind
    for kind in (
        ArithmeticError, AssertionError, AttributeError, IndexError, KeyError, NameError, NotImplementedError,
        OverflowError, RuntimeError, StopIteration, TypeError, UnboundLocalError, ValueError, ZeroDivisionError,
        RecursionError, ImportError, ModuleNotFoundError, MemoryError, LookupError, OSError, FileNotFoundError,
    )
}  # fmt: skip


def stand_in(channel: Channel, timeout_s: float) -> Callable[..., Any]:
    """Return a function for the judge: each call is made in the student's process.

    Args:
        channel: to a process that runs `serve`.
        timeout_s: seconds for one call.
    """
    lock = threading.Lock()

    def answer(*args: Any, **kwargs: Any) -> Any:
        writer = Writer()
        call = {"call": [writer.encode(list(args)), writer.encode(kwargs)]}
        sent = list(writer.storages)
        with lock:
            channel.send(call, sent)
            reply, storages = channel.receive(timeout_s)
        if len(storages) < len(sent):
            raise Lost("a message that can't be read")
        for mine, theirs in zip(sent, storages, strict=False):  # what was done to the arguments in place
            if mine.nbytes() != theirs.nbytes():
                raise Lost("a message that can't be read")
            if mine.nbytes():
                mine.copy_(theirs)
        if "error" in reply:
            name, text = str(reply["error"][0]), str(reply["error"][1])
            raise _ERRORS.get(name, type(name if name.isidentifier() else "Error", (CarriedError,), {}))(text)
        return Reader([*sent, *storages[len(sent) :]]).decode(reply["value"])

    return answer


def serve(channel: Channel, function: Callable[..., Any]) -> None:
    """Make the calls that the judge asks for, until it says ``done``. Runs in the student's process."""
    while True:
        message, storages = channel.receive()
        if "done" in message:
            return
        reader = Reader(storages)
        args, kwargs = (reader.decode(part) for part in message["call"])
        n_given = len(storages)
        writer = Writer(storages)
        try:
            reply = {"value": writer.encode(function(*args, **kwargs))}
        except NotCarried as error:
            writer = Writer(storages)
            reply = {"error": ["TypeError", f"the result can't be judged here: {error}"]}
        except BaseException as error:
            writer = Writer(storages)
            reply = {"error": [type(error).__name__, _message_of(error)]}
        del args, kwargs
        channel.send(reply, writer.storages if len(writer.storages) >= n_given else storages)


def _message_of(error: BaseException) -> str:
    try:
        return str(error)[:2000]
    except Exception:
        return ""
