"""What all tests share: no network, no learner's files, time limits that suit a busy machine."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would every program they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("course", deadline=None)  # a busy machine is no failure
settings.load_profile("course")


@pytest.fixture(autouse=True)
def only_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse connections beyond this machine, so that no test comes to need a network."""
    connect = socket.socket.connect

    def connect_here(self: socket.socket, address: object) -> None:
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a test tried to reach {address[0]}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect_here)


@pytest.fixture(autouse=True)
def no_learner(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep progress and notebooks of whoever runs the tests out of reach."""
    monkeypatch.setenv("COURSE_PROGRESS", "off")
    monkeypatch.setenv("COURSE_WORKSPACE", str(tmp_path_factory.getbasetemp() / "workspace"))


@pytest.fixture(autouse=True)
def no_hooks_on_all_modules() -> Iterator[None]:
    """Notice what stays behind for all modules: a later test would see it, or be warned by ``torch.compile``."""
    yield
    modules = sys.modules.get("torch.nn.modules.module")
    if modules is not None:
        left = [name for name, hooks in vars(modules).items() if name.startswith("_global_") and hooks]
        left = [name for name in left if name != "_global_is_full_backward_hook"]
        for name in left:
            vars(modules)[name].clear()
        assert not left, f"this test left hooks on all modules: {left}"
