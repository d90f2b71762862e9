"""A contact map: what touches in a structure below the diagonal, what a model predicts above it.

In: pairs of residues, a width in pixels. Out: SVG. Kept: nothing.
"""

from dataclasses import dataclass

from pretrain.report.chart import as_svg, new_figure, ticks
from pretrain.report.palette import placeholder
from pretrain.report.section import Drawing

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactMap(Drawing):
    """The contacts of one chain; residues from 0."""

    residues: int
    touching: Pairs
    predicted: Pairs

    @property
    def summary(self) -> str:
        """Numbers of pairs."""
        hits = len(set(self.touching) & set(self.predicted))
        return (
            f"{len(self.touching)} pairs of {self.residues} residues touch; of the {len(self.predicted)} most probable "
            f"pairs {hits} do"
        )

    def draw(self, width: int) -> str:
        """The map as an SVG element of `width` pixels."""
        side = min(width - 52, 460)
        figure, axes = new_figure(width, side + 52, left=40, right=width - 40 - side, top=6, bottom=46)
        axes.grid(visible=False)
        axes.set_xlim(0, self.residues)
        axes.set_ylim(self.residues, 0)
        axes.plot((0, self.residues), (0, self.residues), color=placeholder("grid"), linewidth=1)
        style = {"marker": "s", "markersize": max(1.5, side / self.residues), "markeredgewidth": 0, "linestyle": "none"}
        for i, j in self.touching:
            axes.plot(i + 0.5, j + 0.5, color=placeholder("muted"), **style)
        for i, j in self.predicted:
            colour = "blue" if (i, j) in self.touching else "orange"
            axes.plot(j + 0.5, i + 0.5, color=placeholder(colour), **style)
        ticks(axes.xaxis, "{:.0f}".format, 5)
        ticks(axes.yaxis, "{:.0f}".format, 5)
        axes.set_xlabel("residue", loc="left")
        return as_svg(figure, f"{self.name}-{width}", self.title, self.summary)
