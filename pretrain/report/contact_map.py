"""A contact map: what touches in a structure below the diagonal, what a model predicts above it.

In: pairs of residues, a width in pixels. Out: SVG. Kept: nothing.
"""

from dataclasses import dataclass

from pretrain.evaluation.contact_figures import ContactPairs
from pretrain.report.chart import as_svg, new_figure, ticks
from pretrain.report.palette import placeholder
from pretrain.report.section import Drawing


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactMap(Drawing):
    """The contacts of one chain."""

    pairs: ContactPairs

    @property
    def summary(self) -> str:
        """Numbers of pairs."""
        touching, predicted = self.pairs.touching, self.pairs.predicted
        return (
            f"{len(touching)} pairs of {self.pairs.residues} residues touch; of the {len(predicted)} most probable "
            f"pairs {len({*touching} & {*predicted})} do"
        )

    def draw(self, width: int) -> str:
        """The map as an SVG element of `width` pixels."""
        side, residues = min(width - 52, 460), self.pairs.residues
        figure, axes = new_figure(width, side + 52, left=40, right=width - 40 - side, top=6, bottom=46)
        axes.grid(visible=False)
        axes.set_xlim(0, residues)
        axes.set_ylim(residues, 0)
        axes.plot((0, residues), (0, residues), color=placeholder("grid"), linewidth=1)
        style = {"marker": "s", "markersize": max(1.5, side / residues), "markeredgewidth": 0, "linestyle": "none"}
        for i, j in self.pairs.touching:
            axes.plot(i + 0.5, j + 0.5, color=placeholder("muted"), **style)
        for i, j in self.pairs.predicted:
            colour = "blue" if (i, j) in self.pairs.touching else "orange"
            axes.plot(j + 0.5, i + 0.5, color=placeholder(colour), **style)
        ticks(axes.xaxis, "{:.0f}".format, 5)
        ticks(axes.yaxis, "{:.0f}".format, 5)
        axes.set_xlabel("residue", loc="left")
        return as_svg(figure, f"{self.name}-{width}", self.title, self.summary)
