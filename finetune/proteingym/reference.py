"""ProteinGym's reference file: which assays there are, and of which protein.

In: the file, as ProteinGym distributes it. Out: assays. Kept: nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from finetune.score.variant_table import read_target
from finetune.tables.read import read_table
from zymogen.settings.section import require_known

_COLUMNS = ("DMS_id", "DMS_filename", "UniProt_ID", "target_seq", "coarse_selection_type")


@dataclass(frozen=True, slots=True)
class Assay:
    """A row of the reference file."""

    name: str
    """Its DMS_id."""
    file: str
    """Name of its table in the folder of assays."""
    protein: str
    """UniProt's name of its target."""
    target: str
    """Letters of the wild type."""
    selection: str
    """What it selects for: Activity, Binding, Expression, OrganismalFitness, Stability."""


def read_reference(location: str) -> list[Assay]:
    """The assays of a reference file, in its order.

    Raises:
        ValueError: it cannot be read, lacks a column, or names an assay twice or none; a target is no protein.
    """
    table = read_table(location)
    found: dict[str, Assay] = {}
    for row, cells in enumerate(zip(*map(table.column, _COLUMNS), strict=True)):
        name, file, protein, letters, selection = stripped = [(cell or "").strip() for cell in cells]
        if "" in stripped:
            raise ValueError(f"{table.row(row)}: its column {_COLUMNS[stripped.index('')]!r} is empty")
        if name in found:
            raise ValueError(f"{table.row(row)}: {name!r} is the DMS_id of an earlier row, too")
        if "/" in file or file in (".", ".."):
            raise ValueError(
                f"{table.row(row)}: DMS_filename {file!r} must be the name of a file in the folder of assays"
            )
        found[name] = Assay(name, file, protein, read_target(letters, f"{table.row(row)}: target_seq"), selection)
    return list(found.values())


def chosen(assays: Sequence[Assay], names: Sequence[str] | None) -> list[Assay]:
    """The assays of these names; all of them without any.

    Raises:
        ValueError: there is no such assay; the nearest one is named.
    """
    known = {assay.name: assay for assay in assays}
    for name in names or ():
        require_known("--assays", name, known)
    return [known[name] for name in dict.fromkeys(names or known)]
