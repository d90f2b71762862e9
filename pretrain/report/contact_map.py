"""A contact map: what touches in a structure below the diagonal, what a model predicts above it.

In: pairs of residues, a width in pixels. Out: SVG. Kept: nothing.
"""

from dataclasses import dataclass

from pretrain.report.chart import TEXT, as_svg, new_figure, ticks_x
from pretrain.report.palette import placeholder

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ContactMap:
    """The contacts of one chain (a `section.Drawing`); residues from 0."""

    name: str
    title: str
    residues: int
    touching: Pairs
    predicted: Pairs
    note: str = ""

    @property
    def summary(self) -> str:
        """What is to be seen, for readers who do not see it."""
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
        size = max(1.5, side / self.residues)
        true = set(self.touching)
        for pairs, colour, above in (
            (self.touching, "muted", False),
            ([pair for pair in self.predicted if pair not in true], "orange", True),
            ([pair for pair in self.predicted if pair in true], "blue", True),
        ):
            ends = [(j + 0.5, i + 0.5) if above else (i + 0.5, j + 0.5) for i, j in pairs]
            if ends:
                x, y = zip(*ends, strict=True)
                marks = {"marker": "s", "markersize": size, "linestyle": "none", "markeredgewidth": 0}
                axes.plot(x, y, color=placeholder(colour), **marks)
        ticks_x(axes, 0, self.residues, "{:.0f}".format, 5)
        axes.set_yticks(axes.get_xticks())
        text = {"fontsize": TEXT, "color": placeholder("muted"), "ha": "left", "va": "baseline"}
        axes.annotate("residue", (0, 0), (0, -40), xycoords="axes fraction", textcoords="offset pixels", **text)
        return as_svg(figure, f"{self.name}-{width}", self.title, self.summary)
