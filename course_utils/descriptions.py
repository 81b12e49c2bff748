"""Describe a figure in words and rounded numbers: alternative text for readers, and what regression compares.

The text must not change when the last digits of the data do (another CPU, another thread count), and must change
when the picture does. So numbers are rounded in steps of about 1/100 of what is drawn, and long series are told
as the means of a few equal parts, where one point that moves by a tenth of the picture's height still shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from course_utils.text import plural, shorten

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.collections import Collection
    from matplotlib.container import Container
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

PARTS = 8  # a long series is told as this many means: enough to see a curve's shape, few enough to read
IMAGE_PARTS = 3  # an image is told as this many means per side
# Data often sits exactly on a rounding boundary (0.125, 2.5). Shifted by this share of a step, the boundary lies
# where round numbers never are, so noise of 1e-9 can't tip a value over.
NUDGE = 0.0123
NOISE = 0.01  # differences below this share of the values' own size are not told apart


def describe_figure(figure: Figure, digits: int = 2) -> str:
    """Return what ``figure`` draws, as a few lines of text that are stable to rounding noise.

    Args:
        figure: any matplotlib figure.
        digits: how fine numbers are told: 2 means steps of 1/100 to 1/1000 of the range that is drawn. Take 1
            where the data itself differs a little from run to run or between machines.
    """
    lines = [f"Heading: {text}." for text in _figure_texts(figure)]
    for axes in figure.axes:
        if axes.get_visible():
            lines += _Describer(axes, digits).lines()
    return "\n".join(lines) or "An empty figure."


def rounded(values: Iterable[float], digits: int = 2, *, log: bool = False) -> list[str]:
    """Return ``values`` as text, all rounded to one step (or each to its own, for a logarithmic axis)."""
    numbers = [float(value) for value in values]
    finite = [number for number in numbers if math.isfinite(number)]
    if log:
        return [_number(number, _exponent(abs(number), digits - 1)) for number in numbers]
    if not finite:
        return [_number(number, 0) for number in numbers]
    size = max(abs(number) for number in finite)
    span = max(max(finite) - min(finite), NOISE * size)
    return [_number(number, _exponent(span, digits)) for number in numbers]


def _exponent(span: float, digits: int) -> int:
    """Return k so that 10**k is the step for values that spread over ``span``."""
    if not (math.isfinite(span) and span > 0):
        return 0
    return math.floor(math.log10(span * (1 + NUDGE))) - digits


def _number(value: float, exponent: int) -> str:
    if not math.isfinite(value):
        return str(value)
    count = math.floor(value / 10.0**exponent + 0.5 + NUDGE)
    if count == 0:
        return "0"
    if exponent >= 5 or exponent <= -7:
        return f"{count * 10.0**exponent:.6g}"
    text = f"{count * 10.0**exponent:.{max(-exponent, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


class _Describer:
    """Tells one Axes: its labels, then each artist on it."""

    def __init__(self, axes: Axes, digits: int) -> None:
        self.axes, self.digits = axes, digits
        self.is_log = {"x": axes.get_xscale() == "log", "y": axes.get_yscale() == "log"}

    def lines(self) -> list[str]:
        return [self.heading(), *(f"  {line}" for line in self.artists())]

    def heading(self) -> str:
        axes = self.axes
        kind = "Colour scale" if axes.get_label() == "<colorbar>" else "Plot"
        title = next((axes.get_title(loc) for loc in ("center", "left", "right") if axes.get_title(loc)), "")
        facts = []
        for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            label, scale = _one_line(axis.get_label_text()), axis.get_scale()
            facts += [f'{name} is "{label}"'] if label else []
            facts += [f"{name} in {scale} scale"] if scale != "linear" else []
        if not axes.get_autoscalex_on():
            facts.append(f"x from {' to '.join(rounded(axes.get_xlim(), self.digits, log=self.is_log['x']))}")
        if not axes.get_autoscaley_on():
            facts.append(f"y from {' to '.join(rounded(axes.get_ylim(), self.digits, log=self.is_log['y']))}")
        name = f'{kind} "{_one_line(title)}"' if title else kind
        return f"{name}: {', '.join(facts)}." if facts else f"{name}."

    def artists(self) -> Iterator[str]:
        axes, told = self.axes, set()
        for container in axes.containers:
            yield from self.container(container, told)
        for artist in [*axes.lines, *axes.collections, *axes.images]:
            if artist.get_visible() and artist not in told and axes.get_label() != "<colorbar>":
                yield self.artist(artist)
        yield from self.patches([patch for patch in axes.patches if patch.get_visible() and patch not in told])
        texts = [_one_line(text.get_text()) for text in axes.texts if text.get_visible() and text.get_text().strip()]
        if texts:
            yield f"{plural(len(texts), 'text')}: {'; '.join(texts)}"

    def container(self, container: Container, told: set[Artist]) -> Iterator[str]:
        from matplotlib.container import BarContainer

        parts = [part for part in _flat(container) if part is not None]
        if isinstance(container, BarContainer):
            told.update(parts)
            bars = [bar for bar in container.patches if bar.get_visible()]
            upright = container.orientation != "horizontal"
            sizes = [bar.get_height() if upright else bar.get_width() for bar in bars]
            starts = [bar.get_x() if upright else bar.get_y() for bar in bars]
            tops = [bar.get_y() + bar.get_height() if upright else bar.get_x() + bar.get_width() for bar in bars]
            along, across = ("x", "y") if upright else ("y", "x")
            names = self.tick_names(along)
            text = f"{self.named(plural(len(bars), 'bar'), container)}, "
            text += f"named {', '.join(names)}, " if names else f"{self.range(along, starts)}, "
            text += f"{self.range(across, tops)}; lengths: {self.profile(sizes, across, parts=16)}"
            yield text
        elif container.get_label() and not str(container.get_label()).startswith("_"):
            yield f'{type(container).__name__.removesuffix("Container").lower()} plot "{container.get_label()}" of:'

    def artist(self, artist: Artist) -> str:
        from matplotlib.collections import Collection
        from matplotlib.image import AxesImage
        from matplotlib.lines import Line2D

        if isinstance(artist, Line2D):
            return self.line(artist)
        if isinstance(artist, AxesImage):
            return self.image(artist)
        assert isinstance(artist, Collection)
        return self.collection(artist)

    def line(self, line: Line2D) -> str:
        x, y = (_floats(line.get_xdata()), _floats(line.get_ydata()))
        x_is_data, y_is_data = line.get_transform().contains_branch_seperately(self.axes.transData)
        if x_is_data != y_is_data:  # axhline, axvline: one coordinate counts in shares of the Axes
            name, value = ("x", x[0]) if x_is_data else ("y", y[0])
            kind = "vertical line" if x_is_data else "horizontal line"
            return f"{self.named(kind, line)} at {name} {_alone(value, self.digits)}"
        kind = "points" if line.get_linestyle() in ("None", "none", " ", "") else "line"
        return self.series(self.named(kind, line), x, y)

    def series(self, name: str, x: list[float], y: list[float]) -> str:
        if not x:
            return f"{name}: no points"
        text = f"{name}: {plural(len(x), 'point')}, {self.range('x', x)}, {self.range('y', y)}"
        if len(x) == 1:
            return text
        rising = all(a <= b for a, b in pairwise(x))
        return text + ("" if rising else f"; x: {self.profile(x, 'x')}") + f"; y: {self.profile(y, 'y')}"

    def collection(self, artist: Collection) -> str:
        from matplotlib.collections import LineCollection, PathCollection, PolyCollection, QuadMesh
        from matplotlib.contour import ContourSet
        from matplotlib.quiver import Quiver

        if isinstance(artist, ContourSet):
            return f"{self.named('contours', artist)} at {', '.join(rounded(artist.levels, self.digits))}"
        if isinstance(artist, QuadMesh):
            return f"{self.named('coloured grid', artist)} of {_grid(artist.get_array(), self.digits)}"
        if isinstance(artist, (PathCollection, Quiver)):
            offsets = artist.get_offsets()
            kind = "arrows" if isinstance(artist, Quiver) else "points"
            text = self.series(self.named(kind, artist), _floats(offsets[:, 0]), _floats(offsets[:, 1]))
            if isinstance(artist, Quiver):
                text += f"; across: {self.profile(_floats(artist.U))}; up: {self.profile(_floats(artist.V))}"
        else:
            kinds = ((LineCollection, "line segment"), (PolyCollection, "shaded area"))
            kind = next((kind for cls, kind in kinds if isinstance(artist, cls)), type(artist).__name__)
            outlines = [path.vertices for path in artist.get_paths() if len(path.vertices)]
            x = [float(point[0]) for outline in outlines for point in outline]
            y = [float(point[1]) for outline in outlines for point in outline]
            text = self.series(self.named(plural(len(outlines), kind), artist), x, y)
        values = artist.get_array()
        return text if values is None else f"{text}; colours: {self.profile(_floats(values))}"

    def image(self, image: AxesImage) -> str:
        return f"{self.named('image', image)} of {_grid(image.get_array(), self.digits)}"

    def patches(self, patches: list[Patch]) -> Iterator[str]:
        kinds: dict[str, list[Patch]] = {}
        for patch in patches:
            kinds.setdefault(type(patch).__name__, []).append(patch)
        for kind, group in kinds.items():
            boxes = [patch.get_path().get_extents(patch.get_patch_transform()) for patch in group]
            labels = [str(patch.get_label()) for patch in group if not str(patch.get_label()).startswith("_")]
            named = f" ({', '.join(filter(None, labels))})" if any(labels) else ""
            x = [(box.x0 + box.x1) / 2 for box in boxes]
            y = [(box.y0 + box.y1) / 2 for box in boxes]
            widths, heights = [box.width for box in boxes], [box.height for box in boxes]
            yield (
                f"shape {kind}, {len(group)} of it{named}; middle x: {self.profile(x, 'x')}; "
                f"y: {self.profile(y, 'y')}; "
                f"width: {self.profile(widths)}; height: {self.profile(heights)}"
            )

    def named(self, kind: str, artist: Any) -> str:
        label = _one_line(str(artist.get_label() or ""))
        return kind if not label or label.startswith("_") else f'{kind} "{label}"'

    def range(self, axis: str, values: list[float]) -> str:
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            return f"{axis} not finite"
        lost = f" ({len(values) - len(finite)} not finite)" if len(finite) < len(values) else ""
        low, high = rounded([min(finite), max(finite)], self.digits, log=self.is_log[axis])
        return f"{axis} {low}{lost}" if low == high else f"{axis} {low} to {high}{lost}"

    def profile(self, values: list[float], axis: str = "", parts: int = PARTS) -> str:
        """Return a short series as it is, a long one as the means of equal parts."""
        log = self.is_log.get(axis, False)
        if len(values) <= parts:
            return ", ".join(rounded(values, self.digits, log=log)) or "none"
        edges = [index * len(values) // parts for index in range(parts + 1)]
        means = [_mean(values[low:high]) for low, high in pairwise(edges)]
        return f"{', '.join(rounded(means, self.digits, log=log))} (means of {parts} parts)"

    def tick_names(self, axis: str) -> list[str]:
        """Return the names along an axis that counts categories, else nothing."""
        from matplotlib.category import StrCategoryFormatter
        from matplotlib.ticker import FixedFormatter, FuncFormatter

        formatter = (self.axes.xaxis if axis == "x" else self.axes.yaxis).get_major_formatter()
        if not isinstance(formatter, (FixedFormatter, FuncFormatter, StrCategoryFormatter)):
            return []
        labels = self.axes.get_xticklabels() if axis == "x" else self.axes.get_yticklabels()
        return [_one_line(label.get_text()) for label in labels if label.get_text()]


def _grid(values: Any, digits: int) -> str:
    """Return a picture's values: its size, its range, and the means of a few blocks."""
    import numpy as np

    array = np.ma.filled(np.ma.asarray(values).astype(float), np.nan)
    size = " × ".join(str(length) for length in array.shape)
    if not np.isfinite(array).any():
        return f"{size} values, none finite"
    if array.ndim == 3:
        array = array[..., :3].mean(axis=2)  # colour channels, without transparency
    array = np.atleast_2d(array)
    if array.size <= PARTS * PARTS // 2:
        flat = list(array.ravel())
        return f"{size} values: {', '.join(rounded(flat, digits))}"
    blocks = [block for rows in _split(array, 0) for block in _split(rows, 1)]
    told = rounded([np.nanmin(array), np.nanmax(array), *(_mean(list(block.ravel())) for block in blocks)], digits)
    return f"{size} values, {told[0]} to {told[1]}; means of {len(blocks)} blocks: {', '.join(told[2:])}"


def _split(array: Any, axis: int) -> list[Any]:
    import numpy as np

    return np.array_split(array, min(IMAGE_PARTS, array.shape[axis]), axis=axis)


def _mean(values: list[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else math.nan


def _alone(value: float, digits: int) -> str:
    """Return a single number, rounded to ``digits + 1`` significant digits: there is no range to go by."""
    return _number(value, _exponent(abs(value), digits))


def _floats(values: Any) -> list[float]:
    import numpy as np

    return [float(value) for value in np.ma.filled(np.ma.asarray(values).astype(float), np.nan).ravel()]


def _figure_texts(figure: Figure) -> list[str]:
    texts = [text.get_text() for text in figure.texts]
    return [_one_line(text) for text in texts if text.strip()]


def _flat(parts: Any) -> Iterator[Any]:
    for part in parts:
        if isinstance(part, (tuple, list)):
            yield from _flat(part)
        else:
            yield part


def _one_line(text: str) -> str:
    return shorten(text, 200)
