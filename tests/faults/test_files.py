"""Bad files of every kind that the course reads: a sentence with the file's name, no hang, no code run from them."""

from __future__ import annotations

import io
import json
import time
import zipfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, seed
from hypothesis import strategies as st
from PIL import Image

from course_utils import checkpoints
from course_utils.config import TrainConfig
from course_utils.datasets import ImageFolder
from course_utils.errors import CheckpointError, CourseError
from course_utils.exercises import progress
from course_utils.exercises.verdicts import PASSED, Outcome
from course_utils.paths import NOTEBOOKS
from course_utils.tools import build as builder
from course_utils.tools import lab, source, update
from course_utils.tools.grading import grade as grading
from course_utils.tools.grading.answers import script_of
from course_utils.tools.grading.submissions import find_submissions, read_notebook
from course_utils.tools.plan import check_parameters
from course_utils.tools.plan import read_notebook as read_to_run
from tests.faults.campaign import SEED, draws, report, size
from tests.faults.fuzz import answers, as_json, damaged, regrown, time_limit, trials
from tests.lesson_files import SAMPLE
from tests.resume.world import World
from tests.test_checkpoints import Bomb, torch_bytes
from tests.tools.test_merge import learner, newer
from tests.tools.test_update import course

__all__ = ["course"]  # a fixture

pytestmark = pytest.mark.faults
LESSON = json.loads((NOTEBOOKS / "01_tensors.ipynb").read_text(encoding="utf-8"))
LESSON["cells"] = [cell for cell in LESSON["cells"] if cell["id"] in ("title", "parameters", "item", "ex-energy")]
LESSON["metadata"]["course"]["cells"] = {cell["id"]: "0" * 12 for cell in LESSON["cells"]}
SOURCE = SAMPLE.read_bytes()
counts: dict[str, list[int]] = {}


@pytest.fixture(autouse=True, scope="module")
def _figures():
    yield
    for name, (tried, refused) in counts.items():
        report(f"bad files, {name}", f"{tried} inputs, {refused} refused with a sentence, 0 otherwise")


def count(name: str, words: str) -> None:
    both = counts.setdefault(name, [0, 0])
    both[0] += 1
    both[1] += bool(words)


def put(folder: Path, name: str, content: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(content)
    return path


NOTEBOOK_BYTES = st.one_of(damaged(as_json(LESSON)), regrown(LESSON).map(as_json))


@seed(SEED)
@trials(300)
@given(raw=NOTEBOOK_BYTES)
def test_a_damaged_notebook_is_not_run(tmp_path_factory, raw):
    path = put(tmp_path_factory.getbasetemp() / "run", "01_näme.ipynb", raw)

    def read():
        read_to_run(path)
        check_parameters(path, {"SEED": 0, "DEVICE": "cpu", "FAST": True}, asked=set())

    count("notebooks to run", answers(read, path.name))


@seed(SEED)
@trials(200)
@given(raw=NOTEBOOK_BYTES)
def test_a_damaged_built_notebook_is_out_of_step(tmp_path_factory, raw):
    folder = tmp_path_factory.getbasetemp() / "built"
    put(folder / "source", SAMPLE.name, SOURCE)
    put(folder / "solutions", f"{SAMPLE.stem}.ipynb", raw)
    put(folder, f"{SAMPLE.stem}.ipynb", raw)
    with time_limit():
        result = builder.build(check=True, folder=folder)
    assert not result.ok
    assert f"{SAMPLE.stem}.ipynb" in result.summary()
    count("built notebooks", result.summary())


@seed(SEED)
@trials(300)
@given(raw=damaged(SOURCE))
def test_a_damaged_source_is_a_sentence_with_its_name(tmp_path_factory, raw):
    folder = tmp_path_factory.getbasetemp() / "sources"
    path = put(folder / "source", "90_sample.py", raw)

    def read():
        source.insert_ids(path)
        source.agree_with_jupytext(path)
        source.make_editions(path)

    count("sources", answers(read, path.name))


@seed(SEED)
@trials(300)
@given(raw=st.one_of(
    damaged(as_json({"version": 1, "exercises": {"tensors.energy": "done", "start.sum": "tried"}})),
    regrown({"version": 1, "exercises": {"tensors.energy": "done", "start.sum": "tried"}}).map(as_json),
))  # fmt: skip
def test_a_damaged_progress_file_is_put_aside_and_progress_goes_on(tmp_path_factory, raw):
    folder = tmp_path_factory.mktemp("progress")
    path = put(folder, "progress.json", raw)
    with pytest.MonkeyPatch.context() as patch, time_limit():
        patch.setenv("COURSE_PROGRESS", str(path))
        known = progress.states()
        assert set(known.values()) <= {"done", "tried"}
        assert progress.record(Outcome("tensors.windows", PASSED)) == ""
        assert progress.states() == {**known, "tensors.windows": "done"}
        json.dumps(progress.summary())
    kept = [other.read_bytes() for other in folder.glob("progress.damaged-*.json")]
    assert kept in ([], [raw])
    count("progress files", "put aside" if kept else "")


@seed(SEED)
@trials(300)
@given(raw=st.one_of(
    damaged(TrainConfig().to_yaml().encode()),
    regrown(TrainConfig().to_dict()).map(as_json),  # JSON is YAML
))  # fmt: skip
def test_damaged_settings_are_a_sentence_with_their_name(tmp_path_factory, raw):
    path = put(tmp_path_factory.getbasetemp() / "settings", "mine näme.yaml", raw)
    count("settings", answers(lambda: TrainConfig.from_file(path), path.name))


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [" + "x," * 9 + "]\n" + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi")),  # noqa: B905, E501
        "lr: " + "[" * 5000,
        "lr: 2001-99-99",
        "lr: !!python/object/apply:os.system ['touch exploded']",
        "? [1, 2]\n: 3",
        "seed: " + "9" * 5000,
        "lr: " + "9" * 400,
        "lr: &a [*a]",
    ],
    ids=["a bomb of aliases", "deep", "no date", "code", "a list as a name", "long", "too large", "round"],
)  # fmt: skip
def test_settings_meant_to_harm_are_a_sentence(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    path = put(tmp_path, "mine.yaml", text.encode())
    assert answers(lambda: TrainConfig.from_file(path), path.name)
    assert not (tmp_path / "exploded").exists()


def picture(kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.arange(28 * 28, dtype=np.uint8).reshape(28, 28)).save(buffer, kind)
    return buffer.getvalue()


PICTURES = {"png": picture("PNG"), "jpg": picture("JPEG"), "jpeg": picture("GIF"), "bmp": picture("BMP")}


@seed(SEED)
@trials(300)
@given(data=st.data(), ending=st.sampled_from(sorted(PICTURES)))
@pytest.mark.filterwarnings("ignore")  # PIL warns of odd files that it can read
def test_a_damaged_image_is_a_sentence_with_its_name(tmp_path_factory, data, ending):
    folder = tmp_path_factory.mktemp("images")
    path = put(folder / "3", f"0001.{ending}", data.draw(damaged(PICTURES[ending])))
    put(folder / "3", f"0002.{ending}", PICTURES[ending])

    def read():
        images = ImageFolder(folder)
        if any(file == path for file, _ in images.files):
            assert images[0][0].dtype == torch.uint8

    count("images", answers(read, path.name))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of a run in which everything is in play."""
    folder = tmp_path_factory.mktemp("run")
    World(folder=folder, every=3).run(max_steps=3)
    (path,) = folder.glob("*.pt")
    return path.read_bytes()


def repacked(raw: bytes, change) -> bytes:
    """Return a checkpoint whose files inside are changed and whose checksums are right again."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return buffer.getvalue()


@seed(SEED)
@trials(400)
@given(data=st.data(), inside=st.booleans())
def test_a_damaged_checkpoint_is_refused_and_nothing_in_it_is_run(saved, tmp_path_factory, data, inside):
    if inside:  # the checksums are right: it is the content that is wrong
        part = data.draw(st.sampled_from(("data.pkl", "data.pkl", "data.pkl", "version", "byteorder", "data/0")))
        raw = repacked(saved, lambda name, old: data.draw(damaged(old)) if name.endswith(part) else old)
    else:
        raw = data.draw(damaged(saved))
    path = put(tmp_path_factory.getbasetemp() / "checkpoints", "step-00000003.pt", raw)
    count("checkpoints", answers(lambda: checkpoints.load(path), path.name))


def test_code_in_any_part_of_a_checkpoint_is_not_run(tmp_path):
    for number, state in enumerate(({"model": 1}, {"format": 1}, {"optimizer": {"state": [1]}})):
        for key in state:
            content = {"format": [checkpoints.MARK, 1], **state, key: Bomb(tmp_path)}
            path = put(tmp_path, f"bad-{number}.pt", torch_bytes(content))
            assert path.name in answers(lambda path=path: checkpoints.load(path), path.name)
    assert not (tmp_path / "exploded").exists()


def test_a_checkpoint_that_unpacks_to_much_more_than_it_is_is_refused(tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", bytes(50 * 2**20))
    path = put(tmp_path, "bomb.pt", buffer.getvalue())
    with pytest.raises(CheckpointError) as caught:
        checkpoints.load(path)
    assert "unpacked" in str(caught.value)


STATE_KINDS = (None, None, True, 3, -1, 1.5, "text", b"x", [], {}, torch.ones(2), torch.zeros(0), float("nan"))


def test_a_run_does_not_go_on_from_a_state_of_the_wrong_kind(saved, tmp_path):
    path = put(tmp_path, "c.pt", saved)
    draw = draws("state")
    for trial in range(size(8, 300)):
        content = checkpoints.load(path)
        *way, last = draw.choice([place for place in _state_places(content) if place])
        parent = content
        for key in way:
            parent = parent[key]
        kind = draw.choice(STATE_KINDS)
        if kind is None:
            del parent[last]
        else:
            parent[last] = kind
        words = ""
        with time_limit():
            try:
                World().run(resume=content, max_steps=3)  # all of them are done: only the state is read
            except CourseError as error:
                words = str(error)
            except Exception as error:
                raise AssertionError(f"seed {SEED}, trial {trial}: {[*way, last]} = {kind!r}") from error
        count("checkpoints of a wrong kind", words)


def _state_places(tree, where=()):
    yield where
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from _state_places(value, (*where, key))


@seed(SEED)
@trials(300)
@given(raw=NOTEBOOK_BYTES)
def test_a_damaged_submission_is_a_line_of_the_report(tmp_path_factory, raw):
    folder = tmp_path_factory.mktemp("class")
    path = put(folder / "in", "ada_01_tensors.ipynb", raw)
    (folder / "scratch").mkdir()
    with time_limit():
        (found,) = find_submissions(folder / "in", folder / "scratch")
        assert found.student == "ada"
        if not found.problem:
            script_of(read_notebook(path), found.lesson)
            script_of(read_notebook(path), found.lesson, whole=True)
        grading._key(found, grading.GradeOptions(folder=folder, out=folder))
    count("submissions", found.problem)


def archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name in ("ada_01_tensors.ipynb", "bob/01_tensors.ipynb"):
            file.writestr(name, as_json(LESSON))
    return buffer.getvalue()


@seed(SEED)
@trials(300)
@given(raw=damaged(archive()))
def test_a_damaged_archive_of_submissions_is_a_line_of_the_report(tmp_path_factory, raw):
    folder = tmp_path_factory.mktemp("class")
    put(folder / "in", "all.zip", raw)
    put(folder / "in", "eve_01_tensors.ipynb", as_json(LESSON))
    (folder / "scratch").mkdir()
    with time_limit():
        found = find_submissions(folder / "in", folder / "scratch")
    assert "eve" in {item.student for item in found}
    count("archives", "".join(item.problem for item in found))


MINE, FRESH = learner(exercise="answer = 42"), newer(title="# New")


@seed(SEED)
@trials(300)
@given(raw=st.one_of(damaged(as_json(MINE)), regrown(MINE).map(as_json)))
def test_a_damaged_notebook_of_a_workspace_is_updated_or_stays(tmp_path_factory, raw):
    folder = tmp_path_factory.mktemp("update")
    FRESH["metadata"]["course"]["lesson"] = "01_tensors"
    put(folder / "notebooks", "01_tensors.ipynb", as_json(FRESH))
    path = put(folder / "mine", "01_tensors.ipynb", raw)
    with pytest.MonkeyPatch.context() as patch, time_limit():
        patch.setenv("COURSE_WORKSPACE", str(folder / "mine"))
        patch.setattr(lab, "NOTEBOOKS", folder / "notebooks")
        patch.setattr(lab, "LESSONS", [lesson for lesson in lab.LESSONS if lesson.stem == "01_tensors"])
        (done,) = update.update()
        assert path.name in update.summary([done])
    assert raw in [other.read_bytes() for other in (folder / "mine").glob("*.ipynb")], "the learner's file is lost"
    if done.action == "updated":
        json.loads(path.read_text(encoding="utf-8"))
    count("notebooks of a workspace", done.note if done.action == "failed" else "")


EXERCISE = {"id": "tensors.energy", "state": "done", "message": ""}
GRADED = asdict(grading.Grade("ada", "01_tensors", "a.ipynb", "graded", 1, 2, (EXERCISE,), 0.5, notes=("one",)))


@seed(SEED)
@trials(100)
@given(raw=st.one_of(damaged(as_json(GRADED)), regrown(json.loads(as_json(GRADED))).map(as_json)))
def test_a_damaged_result_of_an_earlier_grading_counts_as_none(tmp_path_factory, raw):
    path = put(tmp_path_factory.getbasetemp() / "results", "a.json", raw)
    with time_limit():
        known = grading._kept(path)
    assert known is None or isinstance(known, grading.Grade)
    count("kept grades", "" if known else "none")


def test_the_alarm_of_these_tests_rings():
    with pytest.raises(BaseException, match="no answer within"), time_limit(0.05):
        time.sleep(5)
