"""Frozen settings of a training run: checked once, changed by `replace`, kept as YAML beside the results."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, fields, replace
from numbers import Integral, Real
from pathlib import Path
from reprlib import Repr
from typing import Any

from course_utils.errors import UsageError
from course_utils.paths import write_text
from course_utils.text import did_you_mean

__all__ = ["OPTIMIZERS", "SCHEDULES", "TrainConfig", "replace"]

OPTIMIZERS = ("adam", "adamw", "sgd")
SCHEDULES = ("constant", "cosine", "onecycle", "plateau")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """What decides the outcome of a training run. The defaults are the recipe of lesson 05.

    Raises:
        UsageError: if a value has the wrong type or lies outside its range.

    Example:
        >>> config = replace(TrainConfig(), lr=0.1, epochs=3)
        >>> config.lr, config.epochs
        (0.1, 3)
    """

    seed: int = 0  # every stream of random numbers derives from it
    device: str = "auto"  # see devices.pick_device
    deterministic: bool = False  # only deterministic algorithms; see seeding.deterministic
    model: str = "digit-cnn"  # see models.from_name
    channels_last: bool = True  # keep a pixel's channels side by side in memory; convolutions on CPU are quicker so
    augment: bool = True  # turn, move and resize the training images; see data.affine_augment
    epochs: int = 20  # passes over the training examples
    batch_size: int = 64  # examples per batch
    accumulate: int = 1  # batches per step
    optimizer: str = "adamw"  # one of OPTIMIZERS
    lr: float = 0.01  # learning rate; if a schedule moves it, its highest value
    momentum: float = 0.9  # share of the last update that goes on; for sgd
    weight_decay: float = 0.01  # strength of the pull of the weights towards 0
    schedule: str = "onecycle"  # one of SCHEDULES
    warmup: float = 0.3  # share of all steps in which the learning rate rises; for onecycle and cosine
    clip_norm: float | None = None  # largest norm of all gradients together; None: no limit
    amp: bool = False  # automatic mixed precision in the forward pass
    patience: int | None = None  # epochs without a better validation loss before stopping; None: never stop early

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _typed(field.name, field.type, getattr(self, field.name)))
        # Every rule is written so that nan fails it.
        self._require("seed", 0 <= self.seed < 2**32, "a whole number from 0 to 2**32 - 1")
        for name in ("epochs", "batch_size", "accumulate"):
            self._require(name, getattr(self, name) >= 1, "a whole number of at least 1")
        self._require("optimizer", self.optimizer in OPTIMIZERS, f"one of {', '.join(OPTIMIZERS)}")
        self._require("lr", 0 < self.lr < math.inf, "a number above 0")
        self._require("momentum", 0 <= self.momentum < 1, "a number from 0 to below 1")
        self._require("weight_decay", 0 <= self.weight_decay < math.inf, "a number of at least 0")
        self._require("schedule", self.schedule in SCHEDULES, f"one of {', '.join(SCHEDULES)}")
        self._require("warmup", 0 <= self.warmup < 1, "a number from 0 to below 1")
        self._require("clip_norm", self.clip_norm is None or 0 < self.clip_norm < math.inf, "a number above 0, or None")
        self._require("patience", self.patience is None or self.patience >= 1, "a whole number of at least 1, or None")

    def _require(self, name: str, passed: bool, expected: str) -> None:
        if not passed:
            raise UsageError(f"The setting {name!r} is out of range.", got=getattr(self, name), expected=expected)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain data: text, numbers, True, False and None."""
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> TrainConfig:
        """Return the config with these settings; the others keep their defaults.

        Raises:
            UsageError: if a name is unknown or a value is refused.
        """
        known = [field.name for field in fields(cls)]
        for name in settings:
            if name not in known:
                raise UsageError(f"There is no setting called {name!r}.", fix=did_you_mean(str(name), known))
        return cls(**settings)

    def to_yaml(self) -> str:
        """Return the settings as YAML, one line each, in the order of the class."""
        import yaml  # here: only those who read or write a file wait for it

        return yaml.safe_dump(self.to_dict(), sort_keys=False)

    @classmethod
    def from_yaml(cls, text: str) -> TrainConfig:
        """Return the config that a YAML text describes; an empty text gives the defaults.

        YAML reads ``1e-4`` as text: its numbers need a dot, ``1.0e-4``. The error says so.

        Raises:
            UsageError: if the text is no YAML mapping, names a setting twice, or holds a setting that is refused.
        """
        import yaml

        try:
            tree = yaml.compose(text, Loader=yaml.SafeLoader)
            settings = yaml.safe_load(text)
        except Exception as error:  # beside YAMLError whatever its readers of dates, numbers and bytes raise
            raise UsageError(
                "The settings are not valid YAML.", got=str(error), expected="lines like 'lr: 0.01'"
            ) from error
        if settings is None:
            return cls()
        if not isinstance(settings, dict):
            raise UsageError("The settings are not a mapping.", got=_short(settings), expected="lines like 'lr: 0.01'")
        names = Counter(str(key.value) for key, _ in tree.value)
        name, count = names.most_common(1)[0] if names else ("", 0)
        if count > 1:  # YAML would let the last one win, silently
            raise UsageError(f"The setting {name!r} is given {count} times.", fix="keep one of the lines")
        return cls.from_dict(settings)

    def to_file(self, path: Path) -> None:
        """Write the settings to a YAML file, all of it or nothing."""
        write_text(Path(path), self.to_yaml())

    @classmethod
    def from_file(cls, path: Path) -> TrainConfig:
        """Return the config kept in a YAML file.

        Raises:
            UsageError: if the file can't be read, or for the reasons of `from_yaml`.
        """
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"The settings in {path} can't be read.", got=str(error), expected="a YAML file"
            ) from error
        try:
            return cls.from_yaml(text)
        except UsageError as error:
            what = f"{Path(path).name}: {error.what}"
            raise UsageError(what, got=error.got or None, expected=error.expected, fix=error.fix) from error


def _typed(name: str, declared: str, value: object) -> object:
    """Return the value as the plain Python type that the field declares: NumPy numbers become Python's."""
    kind, _, optional = declared.partition(" | ")
    if optional and value is None:
        return None
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind == "str" and isinstance(value, str):
        return value
    if kind == "int" and isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    if kind == "float" and isinstance(value, Real) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:  # a whole number with hundreds of digits
            return math.inf
    words = {"bool": "true or false", "str": "text", "int": "a whole number", "float": "a number"}
    raise UsageError(
        f"The setting {name!r} has the wrong type.",
        got=f"{_short(value)}, of type {type(value).__name__}",
        expected=words[kind] + (", or None" if optional else ""),
        fix=_number_in_text(value, kind) if kind in ("int", "float") else "",
    )


def _short(value: object) -> str:
    """Return the beginning of a value: a few lines of YAML can mean a list of lists with millions of entries."""
    shortener = Repr()
    shortener.maxlevel, shortener.maxstring, shortener.maxother = 2, 80, 80
    return shortener.repr(value)


def _number_in_text(value: object, kind: str) -> str:
    """Return what to write instead of a text that looks like a number, such as YAML's reading of ``1e-4``."""
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or (kind == "int" and not number.is_integer()):
        return ""
    written = repr(int(number) if kind == "int" else number)
    if "e" in written and "." not in written:
        written = written.replace("e", ".0e")  # Python's 1e-05 is text for YAML too
    if "e" in value.lower():
        return f"write {written}: YAML takes {value} for text, its numbers need a dot and a signed exponent"
    return f"write {written} without quotes"
