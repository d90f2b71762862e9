"""The time line: what happened when, in rows of bars and marks.

In: rows, a width in pixels. Out: SVG. Kept: nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pretrain.report.chart import as_svg, new_figure, ticks
from pretrain.report.palette import placeholder
from pretrain.report.section import Drawing

_ROW = 38
"""Height of a row in pixels."""
_CROSS = 9
"""Pixels from one cross to the next at least."""


@dataclass(frozen=True, slots=True)
class Row:
    """What happened of one kind, in seconds."""

    label: str
    colour: str = "ink"
    """That of the marks; bars and crosses have theirs."""
    bars: tuple[tuple[float, float], ...] = ()
    """Beginnings and ends of what took time."""
    marks: tuple[float, ...] = ()
    crosses: tuple[float, ...] = ()
    """Times of failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLine(Drawing):
    """Rows over one axis of time that begins at 0."""

    rows: tuple[Row, ...]
    summary: str

    def draw(self, width: int) -> str:
        """The time line as an SVG element of `width` pixels."""
        height = _ROW * len(self.rows) + 48
        figure, axes = new_figure(width, height, left=92, right=4, top=6, bottom=42)
        times = [t for row in self.rows for t in (*row.marks, *row.crosses, *(end for _, end in row.bars))]
        end = max(times, default=0.0) or 1.0
        unit, seconds = next(
            ((u, s) for u, s in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)) if end > 1.5 * s),
            ("seconds", 1.0),
        )
        axes.set_xlim(0, end / seconds)
        axes.set_ylim(len(self.rows) - 0.5, -0.5)
        axes.set_yticks(range(len(self.rows)), [row.label for row in self.rows])
        for label in axes.get_yticklabels():
            label.set_horizontalalignment("left")
        axes.tick_params(axis="y", pad=92, labelcolor=placeholder("ink"))
        per_pixel = end / (width - 96)
        for number, row in enumerate(self.rows):
            for start, stop in row.bars:
                length = max(stop - start, 2 * per_pixel)  # a short one is seen too
                axes.barh(number, length / seconds, 0.42, start / seconds, color=placeholder("train"), linewidth=0)
            for happened, colour, marker, size, gap in (
                (row.marks, row.colour, "|", 13, 3),
                (row.crosses, "fault", "x", 7, _CROSS),
            ):
                at = [time / seconds for time in _apart(happened, gap * per_pixel)]
                style = {"marker": marker, "markersize": size, "mew": 1.6, "linestyle": "none", "zorder": 3}
                axes.plot(at, [number] * len(at), color=placeholder(colour), **style)
        ticks(axes.xaxis, "{:g}".format, max(2, (width - 96) // 64))
        axes.set_xlabel(f"{unit} since the first start", loc="right")
        return as_svg(figure, f"{self.name}-{width}", self.title, self.summary)


def _apart(times: Sequence[float], gap: float) -> list[float]:
    """The times without those that are nearer than `gap` to one before them; the first of each crowd stays."""
    kept: list[float] = []
    for at in sorted(times):
        if not kept or at - kept[-1] >= gap:
            kept.append(at)
    return kept
