"""Draws one picture of a run: every figure beside its peer as a bar, and lines for figures over a count or a size.

A bar shows how many times as good as its peer a figure is, on a logarithmic scale: a bar to the left of 1.0 is worse
than the peer, one to the right better. If less is better, it is the inverse of the ratio; the column shows the ratio
itself, as the tables do. A black mark is the aim.

Figures of one program whose names differ in one count or size only become a line: ``read, 4 partitions`` and ``read, 16
partitions`` belong together, as do ``write, 100 B`` and ``write, 10 KB``.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import matplotlib as mpl
from figures import Figure, Outcome, Results, number
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

POINTS_MIN: Final = 3
"""Fewer points do not make a line."""

_UNITS: Final = {"B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
_COUNTED: Final = re.compile(
    r"(?<![\w.,])(\d[\d,]*(?:\.\d+)?) (partitions?|connections?|tasks?|rows?|[KMG]i?B|B)(?!\w)"
)


@dataclass(frozen=True, slots=True)
class Panel:
    """A line: ``figures`` over ``counts``, which increase. ``counted`` names the unit; sizes are in bytes."""

    title: str
    counted: str
    counts: tuple[float, ...]
    figures: tuple[Figure, ...]

    @property
    def unit(self) -> str:
        return self.figures[0].unit

    @property
    def peer_name(self) -> str:
        """The name of the peer of all points, if they have the same one."""
        names = {figure.peer_name for figure in self.figures if figure.peer}
        return names.pop() if len(names) == 1 else "peer"


def panels(results: Results) -> list[Panel]:
    """Return the lines of all programs, in the order of their first figures."""
    return [panel for outcome in results.outcomes for panel in _panels(outcome.figures)]


def _panels(figures: Sequence[Figure]) -> Iterator[Panel]:
    families: dict[tuple[str, str, str], dict[float, Figure]] = defaultdict(dict)
    for figure in figures:
        for found in _COUNTED.finditer(figure.name):
            count, counted = float(found[1].replace(",", "")), found[2]
            if counted in _UNITS:
                count, counted = count * _UNITS[counted], "bytes"
            counted = {"partition": "partitions", "connection": "connections", "task": "tasks", "row": "rows"}.get(
                counted, counted
            )
            rest = f"{figure.name[: found.start()]}…{figure.name[found.end() :]}"
            families[rest, counted, figure.unit][count] = figure
    for (rest, counted, _), points in families.items():
        if len(points) >= POINTS_MIN:
            counts = sorted(points)
            yield Panel(_title(rest), counted, tuple(counts), tuple(points[count] for count in counts))


def _title(rest: str) -> str:
    """Return the name without the count."""
    return re.sub(r"(, …|… ?,? ?|^, )", "", rest).strip(" ,:")


MET, MISSED, NO_AIM = "#2a8c5a", "#d1495b", "#7a9cc6"
OURS, PEER = "#1f5fa8", "#8a8a8a"
WIDTH_INCHES: Final = 12.0
ROW_INCHES: Final = 0.23
PANEL_INCHES: Final = 2.7
PANELS_A_ROW: Final = 3
NAMES_AT: Final = -1.31
"""Left edge of the names, in widths of the bars' axes."""

RIGHT: Final = 1.42
"""Right edges of the columns of ratios and aims."""

NAME_MAX: Final = 98
"""Limit of a name's characters; the middle of longer ones is left out."""

LEAST: Final = 1 / 16
MOST: Final = 16.0
"""Longer bars end in an arrow."""

_STYLE = {"font.size": 9, "font.family": "DejaVu Sans", "svg.hashsalt": "metaq", "axes.spines.top": False}


def draw(results: Results, *files: Path) -> None:
    """Draw the picture to each file, in the format of its suffix. The same results give the same bytes."""
    groups = [(outcome, figures) for outcome in results.outcomes if (figures := compared(outcome))]
    lines = panels(results)
    with mpl.rc_context(cast("Any", _STYLE)):
        picture = _picture(groups, lines)
        for file in files:
            picture.savefig(file, dpi=110, metadata={"Date": None} if file.suffix == ".svg" else {"Software": None})


def compared(outcome: Outcome) -> list[Figure]:
    """Return the figures that have a peer."""
    return [figure for figure in outcome.figures if figure.ratio]


def times_as_good(figure: Figure, ratio: float) -> float:
    """Return the length of a bar: more than 1 is better than the peer."""
    return ratio if figure.better == "more" else 1 / ratio


def bound(figure: Figure, ratio: float) -> float:
    """Return ``times_as_good``, limited to what is shown."""
    return min(max(times_as_good(figure, ratio), LEAST), MOST)


def _picture(groups: Sequence[tuple[Outcome, list[Figure]]], lines: Sequence[Panel]) -> Picture:
    rows = sum(len(figures) + 1.3 for _, figures in groups)
    panels_inches = math.ceil(len(lines) / PANELS_A_ROW) * PANEL_INCHES
    height = rows * ROW_INCHES + 1.2 + panels_inches
    picture = Picture(figsize=(WIDTH_INCHES, height), facecolor="white")
    if groups:
        bottom, top = (panels_inches + 0.35) / height, 1 - 0.85 / height
        _draw_bars(picture.add_axes((0.48, bottom, 0.36, top - bottom)), groups)
    for place, panel in enumerate(lines):
        row, column = divmod(place, PANELS_A_ROW)
        bottom = (panels_inches - (row + 1) * PANEL_INCHES + 0.55) / height
        _draw_panel(picture.add_axes((0.06 + column * 0.325, bottom, 0.26, (PANEL_INCHES - 1.05) / height)), panel)
    return picture


def _draw_bars(axes: Axes, groups: Sequence[tuple[Outcome, list[Figure]]]) -> None:
    shown = [
        bound(figure, ratio) for _, each in groups for figure in each for ratio in (figure.ratio, figure.aim) if ratio
    ]
    least, most = 2.0 ** math.floor(math.log2(min(*shown, 0.5))), 2.0 ** math.ceil(math.log2(max(*shown, 2.0)))
    at = 0.0
    for outcome, figures in groups:
        _text(axes, NAMES_AT, at, outcome.title, weight="bold", fontsize=9.5)
        for at_figure, figure in enumerate(figures, int(at) + 1):
            if at_figure % 2:
                _draw_stripe(axes, at_figure)
            _draw_bar(axes, at_figure, figure)
        at = int(at) + len(figures) + 2
    _text(axes, 1.03, -1.0, "ratio", weight="bold")
    _text(axes, 1.19, -1.0, "aim", weight="bold")
    axes.set_xscale("log", base=2)
    axes.set_xlim(least / 1.07, most * 1.07)
    axes.set_ylim(at - 1.2, -0.7)
    ticks = [2.0**power for power in range(round(math.log2(least)), round(math.log2(most)) + 1)]
    axes.set_xticks(ticks, [f"{tick:g}" if tick >= 1 else f"1/{1 / tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_yticks([])
    axes.tick_params(axis="x", top=True, labeltop=True)
    axes.axvline(1.0, color="black", linewidth=1, zorder=3)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["left", "right"]].set_visible(False)
    _draw_legend(axes)


def _draw_stripe(axes: Axes, at: int) -> None:
    """Draw a stripe behind the whole line, from the name to the ratio."""
    corner, across = (NAMES_AT, at - 0.5), RIGHT - NAMES_AT
    axes.add_patch(
        Rectangle(corner, across, 1, transform=axes.get_yaxis_transform(), color="#f4f5f8", clip_on=False, zorder=0)
    )


def _draw_legend(axes: Axes) -> None:
    handles = [
        Patch(color=MET, label="aim met"),
        Patch(color=MISSED, label="aim missed"),
        Patch(color=NO_AIM, label="no aim"),
        Line2D([], [], color="black", marker="|", markersize=10, markeredgewidth=2, linestyle="", label="aim"),
    ]
    axes.set_title("how many times as good as the ceiling or peer", fontsize=10.5, pad=44, weight="bold")
    axes.legend(
        handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False, borderaxespad=2.2
    )


def _draw_bar(axes: Axes, at: float, figure: Figure) -> None:
    assert figure.ratio is not None
    length = bound(figure, figure.ratio)
    color = {True: MET, False: MISSED, None: NO_AIM}[figure.met]
    axes.barh(at, length - 1, left=1, height=0.66, color=color, zorder=2)
    if length != times_as_good(figure, figure.ratio):
        axes.plot(length, at, color=color, marker=">" if length > 1 else "<", markersize=9, zorder=4, clip_on=False)
    if figure.aim:
        aim = bound(figure, figure.aim)
        axes.plot([aim, aim], [at - 0.4, at + 0.4], color="black", linewidth=2.2, zorder=4, solid_capstyle="butt")
    _text(axes, NAMES_AT + 0.02, at, _shortened(figure.name), fontsize=8)
    less = " (less is better)" if figure.better == "less" and figure.aim is None else ""
    _text(axes, 1.03, at, f"{number(figure.ratio)}{less}", fontsize=8)
    if figure.aim:
        _text(axes, 1.19, at, f"{'≥' if figure.better == 'more' else '≤'} {figure.aim:.2f}", fontsize=8)


def _shortened(name: str) -> str:
    half = NAME_MAX // 2
    return name if len(name) <= NAME_MAX else f"{name[:half]}…{name[-half + 1 :]}"


def _text(axes: Axes, x: float, y: float, text: str, **style: Any) -> None:
    """Write left-aligned text at a fraction of the width of the axes, on the line of a bar."""
    axes.text(x, y, text, transform=axes.get_yaxis_transform(), ha="left", va="center", **style)


def _draw_panel(axes: Axes, panel: Panel) -> None:
    axes.plot(
        panel.counts, [figure.ours for figure in panel.figures], color=OURS, marker="o", markersize=4, label="ours"
    )
    peers = [(count, each.peer) for count, each in zip(panel.counts, panel.figures, strict=True) if each.peer]
    if peers:
        axes.plot(
            *zip(*peers, strict=True), color=PEER, marker="s", markersize=3.5, linestyle="--", label=panel.peer_name
        )
    axes.set_xscale("log")
    axes.set_xticks(panel.counts, [_short(count, panel.counted) for count in panel.counts])
    axes.minorticks_off()
    axes.set_ylim(0, 1.15 * max(value for each in panel.figures for value in (each.ours, each.peer or 0)))
    axes.set_title(f"{panel.title}, by {panel.counted}", fontsize=8.5, loc="left")
    axes.set_xlabel(panel.counted, fontsize=8, labelpad=1)
    axes.set_ylabel(panel.unit, fontsize=8)
    axes.tick_params(labelsize=7.5)
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.spines["right"].set_visible(False)
    axes.legend(fontsize=7, frameon=False, loc="best")


def _short(count: float, counted: str) -> str:
    """Format a count: 1 k for 1,000; 1 KB if bytes are counted."""
    unit = "B" if counted == "bytes" else ""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "K" if unit else "k")):
        if count >= size:
            return f"{count / size:g} {letter}{unit}"
    return f"{count:g} {unit}".rstrip()
