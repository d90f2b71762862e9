"""What was measured of a run after its end: perplexity of groups of proteins, contacts, scores of assays.

In: evaluation.json, contacts.json and proteingym.csv of the run directory, as `python -m pretrain.evaluate -o`, `python
-m pretrain.contacts -o` and `python -m finetune.proteingym -o` write them. Out: `RunResults` and their drawings, none
for a file that is not there or not whole. Kept: nothing.
"""

import csv
import itertools
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pretrain.evaluate.results import (
    ALL,
    CHANCE,
    CONTROL,
    HEAD,
    IDENTITY,
    LENGTH,
    ContactScores,
    EvaluationResult,
    EvaluationRow,
)
from pretrain.evaluate.scores import TITLES, format_interval, kind_of
from pretrain.report.chart import Chart, ChartSeries
from pretrain.report.drawings import IntervalPlot, IntervalRow
from pretrain.report.section import NOT_MEASURED, Drawing, ReportSection, ReportTable, source_names
from zymogen.console.format import count
from zymogen.settings.json_file import read_bytes

EVALUATION, CONTACTS, ASSAYS = "evaluation.json", "contacts.json", "proteingym.csv"
Shown = tuple[ReportTable, list[Drawing | None]]
"""A table, and the drawings of what it holds."""
Assays = Mapping[str, Mapping[str, Mapping[str, list[float]]]]
"""Column of scores -> type of selection -> protein -> Spearman of each of its assays."""


@dataclass(frozen=True, slots=True)
class RunResults:
    """What the files of a run directory hold; nothing of one that is not there or not whole."""

    evaluation: EvaluationResult | None
    contacts: ContactScores | None
    assays: Assays
    of_others: tuple[str, ...] = ()
    """Files that hold nothing of the weights that were asked for."""

    def section(self) -> ReportSection:
        """Tables and drawings, for a page and a card; empty where nothing was measured."""
        found = [
            *([_perplexities(self.evaluation)] if self.evaluation else []),
            *([_precisions(self.contacts)] if self.contacts else []),
            *(_spearman(number, *of_column) for number, of_column in enumerate(self.assays.items())),
        ]
        return ReportSection(
            "Measured afterwards",
            sheets=[sheet for sheet, _ in found],
            drawings=[drawing for _, of_sheet in found for drawing in of_sheet],
            note="In brackets 95 % intervals by bootstrap.",
        )


def is_any(root: Path) -> bool:
    """Whether a run directory has one of the files."""
    return any((root / name).is_file() for name in (EVALUATION, CONTACTS, ASSAYS))


def read(root: Path, weights: Collection[str] | None = None) -> RunResults:
    """What the files of a run directory hold.

    Args:
        root: the run directory.
        weights: content hashes, as `trainer.checkpoint.restore` defines them. What was measured of other weights, or
            does not say of which, is left out. None for all that there is.
    """
    evaluation, contacts = read_bytes(EvaluationResult, root / EVALUATION), read_bytes(ContactScores, root / CONTACTS)
    assays = _read_assays(root / ASSAYS)
    if weights is None:
        return RunResults(evaluation, contacts, {column: of for (column, _), of in assays.items()})
    own = (
        evaluation if evaluation and evaluation.weights in weights else None,
        contacts if contacts and contacts.weights in weights else None,
        {column: of for (column, made_of), of in assays.items() if made_of in weights},
    )
    found = zip((EVALUATION, CONTACTS, ASSAYS), (evaluation, contacts, assays), own, strict=True)
    return RunResults(*own, tuple(name for name, of_any, of_these in found if of_any and not of_these))


def result_rows(evaluation: EvaluationResult) -> list[EvaluationRow]:
    """All proteins under each corruption, then each bucket of proteins under mask-all."""
    rows = [row for row in evaluation.rows if row.sequences and (row.by == ALL or row.corruption == "mask_all")]
    return sorted(rows, key=lambda row: row.by != ALL)


def format_comparison(found: ContactScores, precision: str) -> dict[str, float]:
    """The same precision of random weights, and chance, which is one for all."""
    return {CONTROL: found.means[CONTROL][precision].mean, CHANCE: found.means[CHANCE][CHANCE].mean}


def mean_of_proteins(proteins: Mapping[str, list[float]]) -> float:
    """Mean over proteins of the mean over a protein's assays."""
    return math.fsum(math.fsum(own) / len(own) for own in proteins.values()) / len(proteins)


def mean_of_types(selections: Mapping[str, Mapping[str, list[float]]]) -> float:
    """Mean over types of selection of the mean over their proteins."""
    return math.fsum(map(mean_of_proteins, selections.values())) / len(selections)


# Tables and drawings ------------------------------------------------------------------------------


def _perplexities(found: EvaluationResult) -> Shown:
    """Perplexities of all proteins under each corruption, and of each bucket under mask-all."""
    identity = f"Identity to the training corpus: {NOT_MEASURED}."
    if any(row.by == IDENTITY for row in found.rows) and found.training:
        nearest = f"the nearest training protein of {source_names(found.training)}"
        identity = f"Identity is that to {nearest} ({found.searched_by})."
    sheet = ReportTable(
        f"Perplexity of {kind_of(found.held_out)}s of {source_names(found.data)}",
        HEAD,
        tuple(row.cells for row in result_rows(found)),
        f"Measured by python -m pretrain.evaluate on {found.sequences:,} proteins, {found.residues:,} residues in "
        f"crops of at most {found.crop_tokens:,} tokens: the frozen set {found.set}. Intervals draw {found.groups}; "
        f"frequencies are those of {found.unigram_of}. {' '.join([identity, *found.not_measured])}",
    )
    return sheet, [_perplexity(found, by) for by in (LENGTH, IDENTITY)]


def _precisions(found: ContactScores) -> Shown:
    """Precisions at long range, beside random weights and chance."""
    rows = (
        (
            name,
            _share(of.mean),
            format_interval(of.low, of.high, _share),
            *map(_share, format_comparison(found, name).values()),
        )
        for name, of in found.means[found.model].items()
    )
    constant = "No attention map says enough of contacts: every weight of the regression is 0, and it ranks no pair."
    sheet = ReportTable(
        "Contacts",
        ("pairs", "precision", "95 % interval", CONTROL, CHANCE),
        tuple(rows),
        "Measured by python -m pretrain.contacts: precision of the most probable pairs of residues at long range, mean "
        f"over {len(found.chains):,} chains. None of them is a relative of the {len(found.fitted_on):,} chains on "
        f"whose attention maps the regression was fitted. {constant if found.is_constant else ''}",
    )
    drawn = (
        IntervalRow(who if who == what else f"{what}, {who}", of.mean, ((of.low, of.high),))
        for who, each in found.means.items()
        for what, of in each.items()
    )
    plot = IntervalPlot(
        name="contacts",
        title="Contacts at long range",
        rows=tuple(drawn),
        x_title="precision, mean over chains",
        number="{:.3f}".format,
        note=f"Of {len(found.chains):,} chains, none a relative of those that the regression was fitted on.",
    )
    return sheet, [plot, _map(found)]


def _spearman(number: int, column: str, selections: Mapping[str, Mapping[str, list[float]]]) -> Shown:
    """Spearman by type of selection, and of each assay."""
    rows, drawn = [], []
    for selection, proteins in sorted(selections.items()):
        points, mean = tuple(itertools.chain(*proteins.values())), mean_of_proteins(proteins)
        rows.append((selection, f"{len(points):,}", _share(mean)))
        drawn.append(IntervalRow(f"{selection}, {count(len(points), 'assay')}", mean, points=points))
    every = sum(len(row.points) for row in drawn)
    sheet = ReportTable(
        f"ProteinGym, {column}",
        ("type of selection", "assays", "Spearman"),
        (*rows, ("mean over types", f"{every:,}", _share(mean_of_types(selections)))),
        "Measured by python -m finetune.proteingym: Spearman of the scores and what was measured, mean over the assays "
        "of a protein, then over proteins, then over types of selection.",
    )
    drawing = IntervalPlot(
        name=f"assays-{number}",
        title=f"ProteinGym, {column}",
        rows=tuple(drawn),
        x_title="Spearman; a stroke is an assay",
        number="{:.3f}".format,
        note="The dot is the mean over proteins of the mean over a protein's assays.",
    )
    return sheet, [drawing]


def _share(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else NOT_MEASURED


# The files ----------------------------------------------------------------------------------------


def _read_assays(path: Path) -> dict[tuple[str, str | None], dict[str, dict[str, list[float]]]]:
    """`Assays` by column and content hash of the weights that it was scored with, None where that is not said."""
    columns: dict[tuple[str, str | None], dict[str, dict[str, list[float]]]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["spearman"]:
                    of_column = columns.setdefault((row["column"], row.get("weights")), {})
                    of_proteins = of_column.setdefault(row["selection_type"], {})
                    of_proteins.setdefault(row["UniProt_ID"], []).append(float(row["spearman"]))
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return columns


def _perplexity(evaluation: EvaluationResult, by: str) -> IntervalPlot | None:
    """Perplexity under mask-all in each bucket."""
    rows = tuple(
        IntervalRow(row.bucket, row.perplexity, ((row.low, row.high),), row.unigram)
        for row in evaluation.rows
        if row.by == by and row.corruption == "mask_all" and row.sequences
    )
    if not rows:
        return None
    return IntervalPlot(
        name=f"perplexity-{by}",
        title={LENGTH: "Perplexity by length", IDENTITY: "Perplexity by identity to the training corpus"}[by],
        rows=rows,
        x_title=f"perplexity, {TITLES['mask_all']}; upright: residue frequencies",
        number="{:.2f}".format,
        note=f"Frozen set {evaluation.set[:12]}.",
    )


def _map(found: ContactScores) -> Chart | None:
    """The contacts of one chain; none where all pairs have one probability, so that none is more probable."""
    if found.is_constant:
        return None
    pairs, touching = found.map, {*found.map.touching}
    right, wrong = ([pair for pair in pairs.predicted if (pair in touching) == is_right] for is_right in (True, False))
    return Chart(
        name="contact-map",
        title=f"Contacts of {pairs.name}",
        lines=(
            _pairs("touch", pairs.touching, "muted"),
            _pairs("predicted, touch", [(j, i) for i, j in right], "blue"),
            _pairs("predicted, do not", [(j, i) for i, j in wrong], "orange"),
        ),
        x_title="residue",
        y_title="residue",
        ranges=((0, pairs.residues), (pairs.residues, 0)),
        diagonal=True,
        shows_last=False,
        height=396,
        note=f"Below the diagonal: pairs that touch. Above it the {len(pairs.predicted)} most probable pairs of "
        f"{found.model}. Of all chains this one's precision is in the middle.",
    )


def _pairs(label: str, pairs: Iterable[tuple[int, int]], colour: str) -> ChartSeries:
    x, y = np.array([*pairs], np.float64).reshape(-1, 2).T + 0.5
    return ChartSeries(label, x, y, colour, "points")
