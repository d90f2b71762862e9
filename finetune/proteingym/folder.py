"""The folder of ProteinGym's assays: what of a model is scored there, and what is still to be.

In: assays, their folder, a model. Out: in each assay's table a column for each scheme, named by the model and the
scheme. Kept: in the folder `zymogen_scores.json`, which weights each column is of.

An assay whose column is there, of the same weights, is not read by the model again. So a command that was stopped
continues with the assay that it was at.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.metrics.weighted import Floats
from finetune.proteingym.figures import NAN, Figures, figures_of
from finetune.proteingym.reference import Assay
from finetune.score.plan import Scheme, Variant, column
from finetune.score.variant_table import MUTATION, SEQUENCE, read_variants
from finetune.score.write_table import write_with_columns
from finetune.tables.numbers import number_of
from finetune.tables.read import read_table
from finetune.tables.table import Table
from finetune.tables.wild_types import named_wild_types
from zymogen.files.durable import write_atomic
from zymogen.settings.json_file import as_json, read

if TYPE_CHECKING:
    from finetune.score.scorer import VariantScorer

KEPT = "zymogen_scores.json"
_SCORE, _FIT = "DMS_score", "DMS_score_bin"
_REMEDY = "get the right to write there"


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """What the columns of scores are of."""

    format: str = "zymogen.proteingym/1"
    assays: dict[str, dict[str, Any]]
    """Name of an assay -> name of a column -> what decided its scores."""


@dataclass(frozen=True)
class AssayFolder:
    """A folder with a table for each assay."""

    path: Path

    def held(self, assays: Sequence[Assay]) -> list[Assay]:
        """Those whose tables are there, with measurements.

        Raises:
            ValueError: none is, or one has no measurements, before anything is computed for it.
        """
        found = [assay for assay in assays if (self.path / assay.file).is_file()]
        for assay in found:
            table = self.table(assay)
            for name in (_SCORE, _FIT):
                table.require(name)
        if assays and not found:
            raise ValueError(
                f"{self.path} holds none of the {len(assays)} tables, such as {assays[0].file}; give the folder into "
                "which ProteinGym's assays were unpacked"
            )
        return found

    def table(self, assay: Assay) -> Table:
        """The table of an assay."""
        return read_table(str(self.path / assay.file))

    def variants(self, assay: Assay, table: Table) -> list[Variant]:
        """(rows,) the variants of an assay.

        Raises:
            ValueError: a row is no variant of the target.
        """
        names = table.columns
        sequence = SEQUENCE if SEQUENCE in names else None
        mutation = [MUTATION] if MUTATION in names else []
        # Tables of insertions and deletions repeat the sequence in the column of mutations.
        if mutation and sequence and table.column(MUTATION) == table.column(sequence):
            mutation = []
        target = named_wild_types(table, None, {assay.protein: assay.target}, "")
        rows = read_variants(table, target, mutation=mutation, sequence=sequence)
        for row, note in rows.notes.items():
            raise ValueError(f"{table.row(row)}: {note}")
        return [variant for variant in rows.variants if variant is not None]

    def to_do(self, assay: Assay, name: str, made_of: Mapping[str, Any], schemes: Sequence[Scheme]) -> list[Scheme]:
        """The schemes that a model has not scored an assay under.

        Args:
            assay: whose table is there.
            name: of the model, for columns.
            made_of: what decides the scores: hash of the weights, window.
            schemes: that are wanted.

        Raises:
            ValueError: a column of that name is of another model.
        """
        there, known = self.table(assay).columns, self._kept().get(assay.name, {})
        for scheme in schemes:
            own = column(name, scheme)
            if own in there and known.get(own) != dict(made_of):
                what = "of other weights or another window" if own in known else "which this command did not write"
                raise ValueError(
                    f"{self.path / assay.file}: has a column {own!r} already, {what}; remove it or give it another name"
                )
        return [scheme for scheme in schemes if column(name, scheme) not in there]

    def add(self, assay: Assay, table: Table, scores: Mapping[str, Floats], made_of: Mapping[str, Any]) -> None:
        """Add columns to the table of an assay, which is replaced whole; a NaN becomes an empty cell."""
        kept = self._kept()
        kept.setdefault(assay.name, {}).update({name: dict(made_of) for name in scores})
        # First what the columns are of: a column of which nothing is known would be refused by the next start.
        write_atomic(self.path / KEPT, as_json(_Columns(assays=kept)))
        cells = {
            name: ["" if np.isnan(value) else repr(value) for value in values.tolist()]
            for name, values in scores.items()
        }
        write_with_columns(table, cells, self.path / assay.file, _REMEDY)

    def figures(self, assay: Assay, name: str) -> Figures:
        """How well a column of scores ranks an assay."""
        table = self.table(assay)
        return figures_of(*(numbers(table, each) for each in (_SCORE, _FIT, name)))

    def _kept(self) -> dict[str, dict[str, Any]]:
        path = self.path / KEPT
        return read(_Columns, path, "file of this command", "move it away").assays if path.exists() else {}


def numbers(table: Table, name: str) -> Floats:
    """(rows,) a column as numbers; NaN for an empty cell.

    Raises:
        ValueError: there is no such column, or a cell is no number.
    """
    found = np.full(table.num_rows, NAN)
    for row, cell in enumerate(table.column(name)):
        if cell and cell.strip():
            number = number_of(cell)
            if number is None:
                raise ValueError(f"{table.row(row)}: {name!r} is {cell!r}, and must be a number")
            found[row] = number
    return found


def score(
    folder: AssayFolder,
    assays: Sequence[Assay],
    scorer: "VariantScorer",
    made_of: Mapping[str, Any],
    schemes: Sequence[Scheme],
) -> Iterator[str]:
    """Add the columns that are missing; assays of one target share forward passes.

    Yields:
        A line for each target and scheme that was scored.
    """
    targets: dict[str, list[Assay]] = {}
    for assay in assays:
        targets.setdefault(assay.target, []).append(assay)
    for target, own in targets.items():
        wanted = {assay: folder.to_do(assay, scorer.name, made_of, schemes) for assay in own}
        tables = {assay: folder.table(assay) for assay, to_do in wanted.items() if to_do}
        variants = {assay: folder.variants(assay, table) for assay, table in tables.items()}
        scores: dict[Assay, dict[str, Floats]] = {assay: {} for assay in tables}
        for scheme in schemes:
            asked = [assay for assay in tables if scheme in wanted[assay]]
            if not asked:
                continue
            scored = scorer(target, [variant for assay in asked for variant in variants[assay]], scheme)
            ends = np.cumsum([len(variants[assay]) for assay in asked])
            for assay, values in zip(asked, np.split(scored.values, ends[:-1]), strict=True):
                scores[assay][column(scorer.name, scheme)] = values
            without = f", {len(scored.notes):,} variants without a score" if scored.notes else ""
            names = ", ".join(assay.name for assay in asked)
            yield f"{names}: {scheme}: {scored.num_documents:,} forward passes of a sequence{without}"
        for assay, found in scores.items():
            folder.add(assay, tables[assay], found, made_of)
