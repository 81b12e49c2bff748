"""Settings are checked once, can't drift, and survive a file; YAML's traps are explained."""

from __future__ import annotations

import dataclasses
import doctest
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_utils import config
from course_utils.config import OPTIMIZERS, SCHEDULES, TrainConfig, replace
from course_utils.errors import UsageError
from course_utils.paths import NOTEBOOKS

POSITIVE = st.floats(0, 1e30, exclude_min=True, allow_subnormal=False)
CONFIGS = st.builds(
    TrainConfig,
    seed=st.integers(0, 2**32 - 1),
    device=st.text(max_size=8),
    deterministic=st.booleans(),
    epochs=st.integers(1, 10**9),
    optimizer=st.sampled_from(OPTIMIZERS),
    lr=POSITIVE,
    momentum=st.floats(0, 1, exclude_max=True),
    schedule=st.sampled_from(SCHEDULES),
    clip_norm=st.none() | POSITIVE,
    patience=st.none() | st.integers(1, 100),
)


@given(CONFIGS)
def test_a_config_survives_yaml_and_plain_data(settings):
    assert TrainConfig.from_yaml(settings.to_yaml()) == settings
    assert TrainConfig.from_dict(settings.to_dict()) == settings


def test_a_config_survives_a_file(tmp_path):
    settings = TrainConfig(lr=1e-5, device="cpu")
    settings.to_file(tmp_path / "new folder" / "run.yaml")
    assert TrainConfig.from_file(tmp_path / "new folder" / "run.yaml") == settings


def test_a_config_can_not_be_changed_and_serves_as_a_key():
    settings = TrainConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.lr = 1.0
    assert {settings: "here"}[TrainConfig()] == "here"


def test_replace_checks_too():
    assert replace(TrainConfig(), lr=0.5).lr == 0.5
    with pytest.raises(UsageError, match="'lr' is out of range"):
        replace(TrainConfig(), lr=0)


def test_settings_are_given_by_name_only():
    with pytest.raises(TypeError):
        TrainConfig(3)


def test_what_is_left_out_keeps_its_default():
    assert TrainConfig.from_yaml("lr: 0.5\n") == TrainConfig(lr=0.5)
    assert (
        TrainConfig.from_yaml("")
        == TrainConfig.from_yaml("# nothing\n")
        == TrainConfig.from_yaml("{}")
        == TrainConfig()
    )


def test_numbers_become_plain_python_numbers():
    settings = TrainConfig(lr=1, epochs=np.int64(3), momentum=np.float32(0.5), clip_norm=np.float64(2))
    assert [type(v) for v in (settings.lr, settings.epochs, settings.momentum, settings.clip_norm)] == [
        float, int, float, float,
    ]  # fmt: skip
    assert TrainConfig.from_yaml(settings.to_yaml()) == settings


OUT_OF_RANGE = {
    "seed": ([-1, 2**32], "a whole number from 0 to 2**32 - 1"),
    "epochs": ([0, -1], "a whole number of at least 1"),
    "batch_size": ([0, -64], "a whole number of at least 1"),
    "accumulate": ([0], "a whole number of at least 1"),
    "optimizer": (["Adam", ""], "one of adam, adamw, sgd"),
    "lr": ([0, -0.1, float("nan"), float("inf")], "a number above 0"),
    "momentum": ([-0.1, 1, float("nan")], "a number from 0 to below 1"),
    "weight_decay": ([-0.1, float("nan"), float("inf")], "a number of at least 0"),
    "schedule": (["OneCycle"], "one of constant, cosine, onecycle, plateau"),
    "warmup": ([-0.1, 1, float("nan")], "a number from 0 to below 1"),
    "clip_norm": ([0, -1.0, float("nan"), float("inf")], "a number above 0, or None"),
    "patience": ([0, -1], "a whole number of at least 1, or None"),
}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [(name, value, expected) for name, (values, expected) in OUT_OF_RANGE.items() for value in values],
)
def test_a_value_out_of_range_is_refused(name, value, expected):
    with pytest.raises(UsageError) as caught:
        TrainConfig(**{name: value})
    assert caught.value.what == f"The setting {name!r} is out of range."
    assert caught.value.expected == expected


def test_every_setting_with_a_range_is_in_the_table_above():
    free = {"device", "deterministic", "model", "channels_last", "augment", "amp"}  # any text; yes or no
    assert OUT_OF_RANGE.keys() | free == {field.name for field in dataclasses.fields(TrainConfig)}


WRONG_TYPE = {
    "lr: 1e-4": (
        "'1e-4', of type str",
        "a number",
        "write 0.0001: YAML takes 1e-4 for text, its numbers need a dot and a signed exponent",
    ),
    "lr: 3E-7": (
        "'3E-7', of type str",
        "a number",
        "write 3.0e-07: YAML takes 3E-7 for text, its numbers need a dot and a signed exponent",
    ),
    "lr: 1.5e2": (
        "'1.5e2', of type str",
        "a number",
        "write 150.0: YAML takes 1.5e2 for text, its numbers need a dot and a signed exponent",
    ),
    "epochs: 1e1": (
        "'1e1', of type str",
        "a whole number",
        "write 10: YAML takes 1e1 for text, its numbers need a dot and a signed exponent",
    ),
    "lr: '0.1'": ("'0.1', of type str", "a number", "write 0.1 without quotes"),
    "epochs: '2.5'": ("'2.5', of type str", "a whole number", ""),
    "epochs: 2.0": ("2.0, of type float", "a whole number", ""),
    "lr: 1e999": ("'1e999', of type str", "a number", ""),
    "lr: fast": ("'fast', of type str", "a number", ""),
    "lr: [0.1]": ("[0.1], of type list", "a number", ""),
    "lr: true": ("True, of type bool", "a number", ""),
    "epochs: true": ("True, of type bool", "a whole number", ""),
    "lr: null": ("None, of type NoneType", "a number", ""),
    "clip_norm: none": ("'none', of type str", "a number, or None", ""),
    "amp: 1": ("1, of type int", "true or false", ""),
    "model: 3": ("3, of type int", "text", ""),
}


@pytest.mark.parametrize(("text", "parts"), WRONG_TYPE.items(), ids=WRONG_TYPE.keys())
def test_a_value_of_the_wrong_type_is_refused_and_numbers_that_yaml_takes_for_text_are_explained(text, parts):
    with pytest.raises(UsageError) as caught:
        TrainConfig.from_yaml(text)
    error = caught.value
    assert error.what == f"The setting {text.split(':')[0]!r} has the wrong type."
    assert (error.got, error.expected, error.fix) == parts


@pytest.mark.parametrize("text", [text for text, parts in WRONG_TYPE.items() if parts[2].startswith("write ")])
def test_the_number_that_the_error_proposes_is_one(text):
    name, (*_, fix) = text.split(":")[0], WRONG_TYPE[text]
    proposed = fix.split()[1].rstrip(":")
    assert isinstance(TrainConfig.from_yaml(f"{name}: {proposed}"), TrainConfig)


def test_an_unknown_setting_is_answered_with_the_nearest():
    with pytest.raises(UsageError) as caught:
        TrainConfig.from_yaml("batchsize: 3")
    assert str(caught.value) == "There is no setting called 'batchsize'.\n  fix:      Did you mean 'batch_size'?"


def test_a_setting_given_twice_is_refused():
    with pytest.raises(UsageError) as caught:
        TrainConfig.from_yaml("lr: 0.1\nepochs: 3\nlr: 0.2\n")
    assert str(caught.value) == "The setting 'lr' is given 2 times.\n  fix:      keep one of the lines"


@pytest.mark.parametrize("text", ["a: b: c", "? [1]\n: 2", "lr: 1\n---\nlr: 2"])
def test_text_that_is_no_yaml_is_refused(text):
    with pytest.raises(UsageError) as caught:
        TrainConfig.from_yaml(text)
    assert caught.value.what == "The settings are not valid YAML."
    assert "line" in caught.value.got
    assert caught.value.expected == "lines like 'lr: 0.01'"


@pytest.mark.parametrize("text", ["[lr, 0.1]", "lr 0.1", "3"])
def test_yaml_that_is_no_mapping_is_refused(text):
    with pytest.raises(UsageError) as caught:
        TrainConfig.from_yaml(text)
    assert caught.value.what == "The settings are not a mapping."
    assert caught.value.expected == "lines like 'lr: 0.01'"


def test_a_file_that_is_missing_or_no_text_is_named(tmp_path):
    (tmp_path / "binary.yaml").write_bytes(b"\xff\x00\xff")
    for name in ("missing.yaml", "binary.yaml"):
        with pytest.raises(UsageError) as caught:
            TrainConfig.from_file(tmp_path / name)
        assert caught.value.what == f"The settings in {tmp_path / name} can't be read."
        assert caught.value.expected == "a YAML file"


def test_a_file_from_an_editor_that_marks_its_encoding_is_read(tmp_path):
    path = Path(tmp_path / "run.yaml")
    path.write_text("lr: 0.5\n", encoding="utf-8-sig")
    assert TrainConfig.from_file(path).lr == 0.5


def test_the_examples_in_the_documentation_run():
    failed, tried = doctest.testmod(config)
    assert (failed, tried > 0) == (0, True)


def test_the_defaults_are_the_recipe_that_lesson_05_reads():
    assert TrainConfig.from_file(NOTEBOOKS / "settings" / "05_training.yaml") == TrainConfig()
