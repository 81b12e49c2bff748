"""The lists of packages agree with one another, and every supported Python is served."""

from __future__ import annotations

import re
import sys

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement

from course_utils.errors import EnvironmentProblem
from course_utils.paths import ROOT
from course_utils.tools.requirements import FILES, fingerprint, normalized, pins, unmet

PYTHONS = [(3, 10), (3, 11), (3, 12), (3, 13), (3, 14)]
SYSTEMS = [
    ("linux", "x86_64", "Linux", "posix"),
    ("darwin", "arm64", "Darwin", "posix"),
    ("win32", "AMD64", "Windows", "nt"),
]


def lines(name: str) -> list[str]:
    """Return the requirements of a file, without comments and options."""
    stripped = [line.split("#")[0].strip() for line in (ROOT / name).read_text(encoding="utf-8").splitlines()]
    return [line for line in stripped if line and not line.startswith("-")]


def marker_environment(python: tuple[int, int], system: tuple[str, str, str, str]) -> dict[str, str]:
    version = "{}.{}".format(*python)
    platform, machine, name, os_name = system
    return dict(default_environment()) | {
        "python_version": version, "python_full_version": f"{version}.9", "sys_platform": platform,
        "platform_machine": machine, "platform_system": name, "os_name": os_name,
    }  # fmt: skip


def lock(python: tuple[int, int], system: tuple[str, str, str, str] = SYSTEMS[0]) -> dict[str, list[str]]:
    """Return the versions that the lock allows on that Python and system: one each, if it is consistent."""
    found: dict[str, list[str]] = {}
    for line in lines("constraints.txt"):
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate(marker_environment(python, system)):
            found.setdefault(normalized(requirement.name), []).append(str(requirement.specifier))
    return found


def test_plain_pip_gets_the_lock_too():
    assert (ROOT / "requirements.txt").read_text(encoding="utf-8").startswith("-c constraints.txt\n")


@pytest.mark.parametrize("name", FILES)
def test_every_line_is_one_exact_version(name):
    for line in lines(name):
        (specifier,) = Requirement(line).specifier
        assert specifier.operator == "=="
        assert "*" not in specifier.version


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system[2])
@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: "{}.{}".format(*python))
def test_the_lock_has_one_version_each_and_it_is_the_direct_pin(python, system):
    locked = lock(python, system)
    assert {name: versions for name, versions in locked.items() if len(versions) != 1} == {}
    direct = pins(python=python)
    assert {name: locked.get(name) for name in direct} == {name: [f"=={version}"] for name, version in direct.items()}


def test_every_python_gets_the_same_set_of_direct_packages():
    assert len({tuple(sorted(pins(python=python))) for python in PYTHONS}) == 1


def test_torch_and_torchvision_are_the_pair_the_course_is_written_for():
    for python in PYTHONS:
        assert pins(python=python)["torch"] == "2.14.1"
        assert pins(python=python)["torchvision"] == "0.29.1"


def test_the_conda_environment_has_the_same_pins_for_its_python():
    content = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    conda, (pip,) = [d for d in content["dependencies"] if isinstance(d, str)], [
        d["pip"] for d in content["dependencies"] if isinstance(d, dict)
    ]  # fmt: skip
    (python,) = [re.fullmatch(r"python=(\d)\.(\d+)", entry) for entry in conda if entry.startswith("python=")]
    assert (pip[0], pip[-1]) == ("-c constraints.txt", "--editable .")
    mirrored = dict(entry.split("==") for entry in pip[1:-1])
    assert {normalized(name): version for name, version in mirrored.items()} == pins(
        python=(int(python[1]), int(python[2]))
    )


def test_the_package_metadata_promises_the_same_pythons():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'requires-python = ">=3.10,<3.15"' in text


def test_everything_installed_is_in_the_lock():
    """What a pinned package needs is pinned too: walk the metadata of what is installed here."""
    from importlib.metadata import PackageNotFoundError, requires

    if unmet(pins()):
        pytest.skip("this environment is not made from the pins")
    locked, todo, seen = lock(sys.version_info[:2]), list(pins()), set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            needs = [Requirement(text) for text in requires(name) or []]
        except PackageNotFoundError:  # a CPU build of PyTorch comes without the GPU packages
            continue
        todo += [normalized(r.name) for r in needs if r.marker is None or r.marker.evaluate({"extra": ""})]
    assert seen <= locked.keys()


# The small parser that the start-up uses


def checkout(folder, requirements: str):
    (folder / "requirements.txt").write_text(requirements, encoding="utf-8")
    (folder / "constraints.txt").write_text("", encoding="utf-8")
    return folder


def test_conditions_choose_the_line_for_the_python(tmp_path):
    root = checkout(tmp_path, 'a==1 ; python_version < "3.11"\na==2 ; python_version >= "3.11"  # newer\nB_c.d==3\n')
    assert pins(root, (3, 10)) == {"a": "1", "b-c-d": "3"}
    assert pins(root, (3, 11)) == {"a": "2", "b-c-d": "3"}
    assert pins(root, (3, 12, 1)) == {"a": "2", "b-c-d": "3"}


@pytest.mark.parametrize(
    "line", ["a", "a>=1", 'a==1 ; sys_platform == "linux"', "a==1; python_version == '3.11'", "a[b]==1"]
)
def test_a_line_it_can_not_read_is_refused_with_the_form_it_wants(line, tmp_path):
    with pytest.raises(EnvironmentProblem) as caught:
        pins(checkout(tmp_path, f"{line}\n"))
    assert caught.value.got == line
    assert caught.value.expected.startswith("name==version")


def test_the_fingerprint_changes_with_a_pin_and_not_with_line_ends(tmp_path):
    root = checkout(tmp_path, "a==1\nb==2\n")
    first = fingerprint(root)
    (root / "requirements.txt").write_bytes(b"a==1\r\nb==2\r\n")
    assert fingerprint(root) == first
    (root / "constraints.txt").write_text("c==1\n")
    assert fingerprint(root) != first
    assert re.fullmatch("[0-9a-f]{12}", first)


def test_unmet_pins_tell_what_is_there_instead(tmp_path):
    for name, version in [("aa", "1.0"), ("bb_b", "2.14.1+cpu"), ("cc", "3.0")]:
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    pinned = {"aa": "1.0", "bb-b": "2.14.1", "cc": "3.1", "dd": "1"}
    assert unmet(pinned, [str(tmp_path)]) == {"cc": "3.0", "dd": None}
