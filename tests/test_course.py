"""``course.py`` on a fresh machine: every Python there is, and every way in which a set-up can go wrong."""

from __future__ import annotations

import contextlib
import http.server
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import course
from tests.tiny_checkout import begin, facts, finish, make_checkout, make_quick_venv, make_wheel, tiny_env

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals, links and modes as POSIX has them")

PYENV = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
VERSIONS = ("2.7", "3.6", "3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")


OLD = [version for version in VERSIONS if tuple(map(int, version.split("."))) < course.OLDEST]
SUPPORTED = [version for version in VERSIONS if version not in OLD]


def interpreter(version: str) -> Path | None:
    """Return a Python of that version, if this machine has one."""
    found = sorted(PYENV.glob(f"{version}.*/bin/python"))
    on_path = shutil.which(f"python{version}")
    if found or on_path is None or Path(on_path).is_relative_to(PYENV.parent):  # pyenv's shims promise too much
        return found[-1] if found else None
    return Path(on_path)


def interpreter_or_skip(version: str) -> Path:
    return interpreter(version) or pytest.skip(f"no Python {version} on this machine")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the one wheel that the tiny checkout asks for."""
    return make_wheel(tmp_path_factory.mktemp("wheels")).parent


@pytest.fixture(scope="module")
def first_starts(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> dict[str, tuple[Path, int, str, str]]:
    """First starts with every supported Python, at the same time: checkout, exit code, output and errors by version."""
    started = {}
    for version in SUPPORTED:
        if python := interpreter(version):
            checkout = make_checkout(tmp_path_factory.mktemp("first") / f"my course – größe 数 {version}")
            started[version] = checkout, begin(checkout, "progress", "--json", env=tiny_env(wheels), python=python)
    return {version: (checkout, *finish(process)) for version, (checkout, process) in started.items()}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory, wheels: Path, first_starts: dict[str, Any]) -> dict[str, str]:
    """Variables for a start of this Python in which making a virtual environment is a copy."""
    checkout, code, _, _ = first_starts.get("{}.{}".format(*sys.version_info), (None, 1, "", ""))
    template = checkout / ".venv" if code == 0 else None
    return tiny_env(wheels, PYTHONPATH=str(make_quick_venv(tmp_path_factory.mktemp("quick"), template)))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A tiny checkout in a folder with spaces and letters beyond ASCII."""
    return make_checkout(tmp_path / "my course – größe 数")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, quick: dict[str, str]) -> Path:
    """A tiny checkout with a finished environment, to be copied."""
    checkout = make_checkout(tmp_path_factory.mktemp("finished") / "a course")
    code, _, err = finish(begin(checkout, "env", env=quick))
    assert code == 0, err
    return checkout


@pytest.fixture
def ready(finished: Path, tmp_path: Path) -> Path:
    """A finished tiny checkout of this test's own."""
    checkout = tmp_path / "ready course"
    shutil.copytree(finished, checkout, symlinks=True)
    record = checkout / ".venv/course-environment.json"
    record.write_text(record.read_text().replace(str(finished), str(checkout)))  # as if it had always been here
    return checkout


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, f"it ended first: {process.communicate()}"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def log_of(checkout: Path) -> str:
    try:
        return (checkout / ".venv/course-setup.log").read_text()
    except FileNotFoundError:
        return ""


def is_one_sentence_with_a_next_step(err: str) -> bool:
    return "Traceback" not in err and len(err.strip().splitlines()) == 1 and err.count(". ") >= 1


# Which Python


@pytest.mark.parametrize("version", OLD)
def test_an_old_python_says_so_in_one_sentence_and_changes_nothing(version, checkout, wheels):
    code, out, err = finish(begin(checkout, "run", env=tiny_env(wheels), python=interpreter_or_skip(version)))
    assert code == 2
    assert out == ""
    assert is_one_sentence_with_a_next_step(err)
    assert f"too old: it is {version}" in err
    assert "3.10 to 3.14" in err
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize("version", SUPPORTED)
def test_a_supported_python_makes_the_environment_and_then_starts_at_once(version, first_starts, wheels):
    python = interpreter_or_skip(version)
    checkout, code, out, err = first_starts[version]
    assert code == 0, err
    assert facts(out) == {
        "words": ["progress", "--json"],
        "prefix": str(checkout / ".venv"),
        "tiny": "1.0",
        "pythonpath": [str(checkout)],
        "version": [int(part) for part in version.split(".")],
    }
    assert "The environment is complete" in err
    assert list((checkout / ".venv/lib").glob("python*/site-packages/tiny_course.pth")), "the checkout is installed too"
    log = log_of(checkout)

    code, out, err = finish(begin(checkout, "env", env=tiny_env(wheels), python=python))
    assert (code, err) == (0, "")
    assert log_of(checkout) == log, "the second start installs nothing"


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ((2, 7, 18), "too old: it is 2.7.18"),
        ((3, 9, 20), "too old"),
        ((3, 15, 0), "too new: it is 3.15.0"),
        ((4, 0, 0), "too new"),
        ((3, 14, 1), "can't be installed on Python 3.14.1"),
    ],
)
def test_a_python_that_does_not_fit_is_refused_with_the_versions_that_do(version, problem):
    sentence = course.refusal(version)
    assert problem in sentence
    assert "needs Python 3.10 to 3.14" in sentence


@pytest.mark.parametrize("version", [(3, 10, 0), (3, 11, 7), (3, 14, 0), (3, 14, 2)])
def test_a_python_that_fits_is_not_refused(version):
    assert course.refusal(version) is None


def test_a_python_that_has_the_pinned_packages_is_used_as_it_is(checkout, wheels, tmp_path):
    with zipfile.ZipFile(wheels / "tiny-1.0-py3-none-any.whl") as wheel:
        wheel.extractall(tmp_path / "site")
    code, out, err = finish(begin(checkout, "env", env=tiny_env(wheels, PYTHONPATH=str(tmp_path / "site"))))
    assert (code, err) == (0, "")
    assert facts(out)["prefix"] == sys.prefix
    assert facts(out)["pythonpath"] == [str(checkout), str(tmp_path / "site")]
    assert not (checkout / ".venv").exists()


# Before anything is installed


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["run", "--help"]])
def test_help_installs_nothing(words, checkout, wheels):
    code, out, _ = finish(begin(checkout, *words, env=tiny_env(wheels)))
    assert code == 0
    assert re.search(r"setup +Create or repair", out)
    assert not (checkout / ".venv").exists()


def test_no_command_shows_the_commands_as_wrong_usage(checkout, wheels):
    code, out, err = finish(begin(checkout, env=tiny_env(wheels)))
    assert (code, out) == (2, "")
    assert "Usage: python3 course.py COMMAND" in err


def test_a_misspelt_command_is_refused_before_anything_is_installed(checkout, wheels):
    code, _, err = finish(begin(checkout, "rum", env=tiny_env(wheels)))
    assert code == 2
    assert err == "There is no command 'rum'. Did you mean 'run'?\n"
    assert not (checkout / ".venv").exists()


# Interrupted


def test_a_start_that_was_killed_while_making_the_environment_is_completed_by_the_next(checkout, quick):
    process = begin(checkout, "env", env=quick | {"TINY_PAUSE": "1"})
    wait_until(lambda: (checkout / ".venv/pyvenv.cfg").exists(), process)
    process.kill()
    finish(process)
    assert not (checkout / ".venv/lib").exists(), "killed too late"
    code, out, err = finish(begin(checkout, "env", env=quick))
    assert code == 0, err
    assert facts(out)["tiny"] == "1.0"
    assert "waiting for it" in err, "what the killed start had begun goes on, and must not be disturbed"


def test_a_start_that_was_killed_while_pip_ran_is_completed_by_the_next(checkout, quick):
    process = begin(checkout, "env", env=quick)
    wait_until(lambda: "requirements.txt" in log_of(checkout), process)
    process.kill()
    finish(process)
    code, out, err = finish(begin(checkout, "env", env=quick))
    assert code == 0, err
    assert facts(out)["tiny"] == "1.0"
    assert log_of(checkout).count("-m venv") == 1, "the environment itself was kept"


def test_ctrl_c_during_set_up_says_that_the_same_command_goes_on_and_it_does(checkout, quick):
    process = begin(checkout, "env", env=quick | {"TINY_PAUSE": "1"})
    wait_until(lambda: "-m venv" in log_of(checkout), process)
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process)
    assert code == 130
    assert out == ""
    assert "Traceback" not in err
    assert f"kept in {checkout / '.venv'}; the same command goes on from there." in err
    code, out, _ = finish(begin(checkout, "env", env=quick))
    assert (code, facts(out)["tiny"]) == (0, "1.0")


def test_two_starts_at_once_make_one_environment_and_both_run(checkout, quick):
    processes = [begin(checkout, "env", env=quick), begin(checkout, "progress", env=quick)]
    results = [finish(process) for process in processes]
    assert [code for code, _, _ in results] == [0, 0], results
    assert [facts(out)["words"] for _, out, _ in results] == [["env"], ["progress"]]
    assert log_of(checkout).count("-m venv") == 1
    assert sum("waiting for it" in err for _, _, err in results) == 1


# Damaged


def break_link(venv: Path) -> None:
    (venv / "bin/python").unlink()
    (venv / "bin/python").symlink_to("/nowhere/python")


def leave_half(venv: Path) -> None:
    shutil.rmtree(venv / "lib")
    shutil.rmtree(venv / "bin")
    (venv / "course-environment.json").write_text('{"finished": false, "cpu": false}')


def fake_python(venv: Path) -> None:
    """A program in place of Python that carries the time and size we trusted, and can't be run."""
    python = venv / "bin/python"
    record = venv / "course-environment.json"
    python.unlink()
    python.write_text("not a program")
    facts_of = [str(python), python.stat().st_size, python.stat().st_mtime_ns]
    noted = re.sub(
        r'"python": \[.*?\]',
        f'"python": ["{facts_of[0]}", {facts_of[1]}, {facts_of[2]}]',
        record.read_text(),
        flags=re.DOTALL,
    )
    record.write_text(noted)


@pytest.mark.parametrize("damage", [break_link, leave_half, fake_python])
def test_an_environment_whose_python_does_not_start_is_made_again(damage, ready, quick):
    damage(ready / ".venv")
    code, out, err = finish(begin(ready, "env", env=quick))
    assert code == 0, err
    assert facts(out)["tiny"] == "1.0"
    assert "Setting up the course" in err


def test_setup_repairs_a_package_with_a_cut_off_file(ready, quick):
    (module,) = ready.glob(".venv/lib/python*/site-packages/tiny/__init__.py")
    module.write_text("")
    code, out, err = finish(begin(ready, "setup", env=quick))
    assert code == 0, err
    assert facts(out)["tiny"] == "1.0"


def test_setup_leaves_a_whole_environment_alone(ready, quick):
    log = log_of(ready)
    code, _, err = finish(begin(ready, "setup", env=quick))
    assert (code, err) == (0, "")
    assert log_of(ready) == log


@pytest.mark.skipif(not sys.platform.startswith("linux") or platform.machine() != "x86_64", reason="no choice there")
def test_setup_with_cpu_keeps_the_standard_build_that_is_there_and_says_so(ready, quick):
    code, _, err = finish(begin(ready, "setup", "--cpu", env=quick))
    assert code == 0
    assert err == (
        "PyTorch's standard build is there already and works without a GPU too; "
        f"for the smaller one remove {ready / '.venv'} and start again.\n"
    )


def test_a_package_that_was_cut_off_in_an_interrupted_set_up_is_installed_again(ready, quick):
    (info,) = ready.glob(".venv/lib/python*/site-packages/tiny-1.0.dist-info")
    (info / "RECORD").unlink()
    (info.parent / "tiny/__init__.py").write_text("")
    (ready / ".venv/course-environment.json").write_text('{"finished": false, "cpu": false}')
    code, out, err = finish(begin(ready, "env", env=quick))
    assert code == 0, err
    assert facts(out)["tiny"] == "1.0"


def test_changed_requirements_are_installed_by_the_next_start(ready, quick, tmp_path):
    wheels = make_wheel(tmp_path / "wheels", version="2.0").parent
    (ready / "requirements.txt").write_text("-c constraints.txt\ntiny==2.0\n")
    (ready / "constraints.txt").write_text("tiny==2.0\n")
    code, out, err = finish(begin(ready, "env", env=quick | {"PIP_FIND_LINKS": str(wheels)}))
    assert code == 0, err
    assert facts(out)["tiny"] == "2.0"


def test_a_checkout_that_was_moved_goes_on_from_its_new_place(ready, quick, tmp_path):
    moved = ready.rename(tmp_path / "elsewhere")
    code, out, err = finish(begin(moved, "env", env=quick))
    assert code == 0, err
    assert facts(out)["prefix"] == str(moved / ".venv")
    (pth,) = moved.glob(".venv/lib/python*/site-packages/tiny_course.pth")
    assert pth.read_text() == str(moved)


# Each failure in one sentence


def last_line(err: str) -> str:
    return err.strip().splitlines()[-1]


def test_without_a_network_the_sentence_says_so_and_the_next_start_goes_on(ready, quick, tmp_path):
    (ready / "constraints.txt").write_text("tiny==2.0\n")
    (ready / "requirements.txt").write_text("-c constraints.txt\ntiny==2.0\n")
    nowhere = quick | {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"}  # port 9: nobody listens
    del nowhere["PIP_NO_INDEX"], nowhere["PIP_FIND_LINKS"]
    code, _, err = finish(begin(ready, "run", env=nowhere))
    assert code == 2
    assert last_line(err).startswith("The package index can't be reached: there is no network")
    assert "run the same command again" in last_line(err)
    assert "course-setup.log" in last_line(err)
    code, out, err = finish(
        begin(ready, "run", env=quick | {"PIP_FIND_LINKS": str(make_wheel(tmp_path, version="2.0").parent)})
    )
    assert code == 0, err
    assert facts(out)["tiny"] == "2.0"


@contextlib.contextmanager
def server(status: int, kind: str, text: str) -> Iterator[str]:
    """Answer every question with one text; gives the address."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *words: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()


LOGIN = (
    "<!DOCTYPE html><html><head><title>Guest\n network &amp; more</title></head><body><a href='/in'>Log in</a></body>"
)
OTHER_SYSTEM = "<html><body><a href='/tiny-2.0-cp39-cp39-win32.whl'>tiny-2.0-cp39-cp39-win32.whl</a></body></html>"


@pytest.mark.parametrize(("status", "way"), [(200, "index"), (403, "proxy"), (511, "index")])
def test_a_web_page_in_place_of_the_index_is_named_with_its_title(status, way, ready, quick):
    (ready / "constraints.txt").write_text("tiny==2.0\n")
    (ready / "requirements.txt").write_text("-c constraints.txt\ntiny==2.0\n")
    with server(status, "text/html; charset=utf-8", LOGIN) as address:
        index = address if way == "index" else "http://index.example"
        env = quick | {"PIP_INDEX_URL": f"{index}/simple", "PIP_TRUSTED_HOST": "index.example"}
        env |= {"http_proxy": address} if way == "proxy" else {"no_proxy": "*"}
        del env["PIP_NO_INDEX"], env["PIP_FIND_LINKS"]
        code, _, err = finish(begin(ready, "run", env=env))
    assert code == 2
    assert last_line(err).startswith(
        f"The package index can't be read: instead of it a web page comes from {index}/simple, 'Guest network & more'."
    )
    assert "Log in to the network" in last_line(err)
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [(200, "text/html", OTHER_SYSTEM), (404, "text/html", LOGIN), (200, "application/vnd.pypi.simple.v1+json", "{}")],
)
def test_an_index_that_lacks_a_build_is_no_web_page(status, kind, text, ready, quick):
    (ready / "constraints.txt").write_text("tiny==2.0\n")
    (ready / "requirements.txt").write_text("-c constraints.txt\ntiny==2.0\n")
    with server(status, kind, text) as address:
        env = quick | {"PIP_INDEX_URL": f"{address}/simple", "no_proxy": "*"}
        del env["PIP_NO_INDEX"], env["PIP_FIND_LINKS"]
        code, _, err = finish(begin(ready, "run", env=env))
    assert code == 2
    assert "web page" not in err


def test_passwords_of_an_index_and_a_proxy_reach_neither_the_log_nor_the_screen(ready, quick):
    (ready / "constraints.txt").write_text("tiny==2.0\n")
    (ready / "requirements.txt").write_text("-c constraints.txt\ntiny==2.0\n")
    word = "open-sesame"
    for name, value in (
        ("PIP_INDEX_URL", f"http://teacher:{word}@127.0.0.1:9/simple"),
        ("PIP_FIND_LINKS", f"http://teacher:{word}@127.0.0.1:9/links"),
        ("https_proxy", f"http://teacher:{word}@127.0.0.1:9"),
    ):
        env = quick | {name: value, "PIP_RETRIES": "1"}
        if name != "PIP_FIND_LINKS":
            del env["PIP_NO_INDEX"], env["PIP_FIND_LINKS"]
        code, out, err = finish(begin(ready, "run", env=env))
        assert code == 2
        assert word not in out + err + log_of(ready)


def test_a_version_that_has_no_build_for_this_system_is_named(ready, quick):
    (ready / "requirements.txt").write_text("tiny==3.0\n")
    code, _, err = finish(begin(ready, "run", env=quick))
    assert code == 2
    assert last_line(err).startswith("There is no build of tiny 3.0 for this system")


def test_a_pinned_version_that_has_no_build_for_this_system_is_named_too(ready, quick):
    (ready / "requirements.txt").write_text("-c constraints.txt\ntiny==3.0\n")
    (ready / "constraints.txt").write_text("tiny==3.0\n")
    code, _, err = finish(begin(ready, "run", env=quick))
    assert code == 2
    assert last_line(err).startswith("There is no build of tiny 3.0 for this system")


def test_pins_that_contradict_one_another_are_named(ready, quick):
    (ready / "constraints.txt").write_text("tiny==2.0\n")
    code, _, err = finish(begin(ready, "run", env=quick))
    assert code == 2
    assert "can't be installed together: tiny==1.0 against tiny==2.0." in last_line(err)


def test_a_damaged_wheel_is_a_sentence_that_names_the_log(ready, quick, tmp_path):
    wheel = make_wheel(tmp_path / "wheels", version="2.0")
    wheel.write_bytes(wheel.read_bytes()[:100])
    (ready / "requirements.txt").write_text("tiny==2.0\n")
    (ready / "constraints.txt").write_text("")
    code, _, err = finish(begin(ready, "run", env=quick | {"PIP_FIND_LINKS": str(wheel.parent)}))
    assert code == 2
    assert "Traceback" not in err
    assert "course-setup.log" in last_line(err)


@pytest.mark.skipif(os.name == "posix" and os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_checkout_is_a_sentence_with_a_way_out(checkout, quick):
    checkout.chmod(0o555)
    code, _, err = finish(begin(checkout, "run", env=quick))
    checkout.chmod(0o755)
    assert code == 2
    assert "can't be written to" in last_line(err)
    assert "COURSE_VENV" in last_line(err)


# Other places, other folders


def test_course_venv_names_the_place_with_the_hash_of_the_requirements(checkout, quick, tmp_path):
    env = quick | {"COURSE_VENV": str(tmp_path / "cache/venv-{requirements}")}
    code, out, err = finish(begin(checkout, "env", env=env))
    assert code == 0, err
    assert re.fullmatch(r"venv-[0-9a-f]{12}", Path(facts(out)["prefix"]).name)
    assert not (checkout / ".venv").exists()
    other = make_checkout(tmp_path / "other checkout")
    code, out, err = finish(begin(other, "env", env=env))
    assert (code, err) == (0, ""), "a second checkout with the same pins starts at once"
    assert facts(out)["pythonpath"][0] == str(other)


def test_course_venv_never_touches_a_folder_with_other_things(checkout, quick, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home/thesis.txt").write_text("years of work")
    code, _, err = finish(begin(checkout, "env", env=quick | {"COURSE_VENV": str(tmp_path / "home")}))
    assert code == 2
    assert is_one_sentence_with_a_next_step(err)
    assert "holds other things, such as 'thesis.txt'" in err
    assert [entry.name for entry in (tmp_path / "home").iterdir()] == ["thesis.txt"]


def test_a_file_in_the_place_of_the_environment_is_a_sentence(checkout, quick):
    (checkout / ".venv").write_text("")
    code, _, err = finish(begin(checkout, "env", env=quick))
    assert code == 2
    assert is_one_sentence_with_a_next_step(err)
    assert "a file is in the way" in err


def test_the_command_gets_its_arguments_and_its_exit_code_comes_back(ready, quick):
    code, out, _ = finish(begin(ready, "run", "1", "-p", "A", "ü b", env=quick | {"TINY_EXIT": "1"}))
    assert code == 1
    assert facts(out)["words"] == ["run", "1", "-p", "A", "ü b"]


def test_files_in_the_present_folder_do_not_get_in_the_way(ready, quick, tmp_path):
    for name in ("json.py", "course_utils.py", "random.py"):
        (tmp_path / name).write_text("raise SystemExit('imported by mistake')")
    code, _, err = finish(begin(ready, "env", env=quick, cwd=tmp_path))
    assert (code, err) == (0, "")
