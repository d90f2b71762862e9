"""Groups: what is held out together, by a column, by scaffold, or by homology.

In: records, settings. Out: the group of each record, and notes. Kept: nothing here; MMseqs2's clusters are kept beside
the store. rdkit (https://rdkit.org) reads molecules, and only `scaffolds` imports it.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.homology.components import find_components
from data.store.token_store import TokenStore
from finetune.splits.parts import SplitParts, SplitRecords, in_order_of_first
from finetune.splits.settings import SplitSettings
from finetune.splits.variants import MutatedPositions, are_variants, consensus
from finetune.tables.numbers import MISSING

_IDENTITIES = (0.3, 0.5, 0.7, 0.9)
_FEWEST_POSITIONS = 10


def by_group(records: SplitRecords, settings: SplitSettings) -> tuple[NDArray[np.int64], list[str], NDArray[np.bool_]]:
    """(N,) groups by `split.column`: records that share a value, directly or through others, are one group.

    A record none of whose rows has a value is on its own. If `split.conflict` is "unused", records with several values
    join nothing and are unused. The third array, (rows,), tells which rows are of other records.
    """
    texts = group_texts(records, settings.column)
    alone = records.count - len(np.unique(records.of_row[[text is not None for text in texts]]))
    notes = [f"{alone:,} records have no {settings.column} and are on their own"] if alone > 0 else []
    torn = records_in_several_groups(records, texts) if settings.conflict == "unused" else []
    notes += [f"{len(torn):,} sequences have rows in two groups and are in none"] if torn else []
    used = ~np.isin(records.of_row, torn)
    return merge_groups(records, [text if of else None for text, of in zip(texts, used, strict=True)]), notes, used


def group_texts(records: SplitRecords, column: str | None) -> list[str | None]:
    """(rows,) the groups that a column names; None where a cell is empty or a word that means 'missing'."""
    missing = {text.casefold() for text in MISSING}
    texts = records.texts(column, "split.column")
    return [None if text is None or text.casefold() in missing else text for text in texts]


def records_in_several_groups(records: SplitRecords, values: Sequence[str | None]) -> list[int]:
    """The records whose rows have several values."""
    pairs = {(record, value) for record, value in zip(records.of_row.tolist(), values, strict=True) if value}
    return sorted(record for record, times in Counter(record for record, _ in pairs).items() if record >= 0 < times - 1)


def by_scaffold(
    records: SplitRecords, settings: SplitSettings
) -> tuple[NDArray[np.int64], list[str], NDArray[np.bool_]]:
    """(N,) groups by the Bemis-Murcko scaffold of the molecules in `split.column`.

    Molecules without a ring have one scaffold, the empty one, as is the custom. Records of which no row has a molecule
    that can be read are unused. The third array, (rows,), tells which rows have one. Others give no label; a note
    counts them and names rows.

    Raises:
        ValueError: rdkit is not installed.
    """
    texts = records.texts(settings.column, "split.column")
    found = scaffolds([text or "" for text in texts])
    unreadable = [row for row, scaffold in enumerate(found) if scaffold is None]
    read = np.array([scaffold is not None for scaffold in found], np.bool_) & (records.of_row >= 0)
    unused = records.count - len(np.unique(records.of_row[read]))
    note = (
        f"{len(unreadable):,} rows have no SMILES that can be read in {settings.column!r}, and give no label "
        f"({records.rows(unreadable)}); {unused:,} records are unused for it"
    )
    return merge_groups(records, found), [note] if unreadable else [], read


def by_homology(records: SplitRecords, settings: SplitSettings) -> tuple[NDArray[np.int64], str, bool]:
    """(N,) clusters of sequences of at least `split.identity`, and what found them, and whether it is approximate.

    Raises:
        ValueError: the table has no proteins.
    """
    from data.homology.relatives import related

    if records.store is None:
        raise ValueError(
            f"split.by is 'homology' and {records.table.name} has no protein sequences; choose 'scaffold', 'time', "
            "'group' or 'random'"
        )
    clustering = related(records.store, settings.identity)
    return in_order_of_first(clustering.hashes), clustering.description, clustering.is_approximate


def merge_groups(records: SplitRecords, values: list[str | None]) -> NDArray[np.int64]:
    """(N,) connected components of records by the values of their rows; None joins nothing."""
    rows = np.array([row for row, value in enumerate(values) if value is not None and records.of_row[row] >= 0], int)
    if not len(rows):
        return np.arange(records.count)
    numbers: dict[str, int] = {}
    of_value = np.array([numbers.setdefault(values[row] or "", len(numbers)) for row in rows.tolist()])
    # Nodes are records, then values; a row is an edge between the two.
    found = find_components(records.count + len(numbers), records.of_row[rows], records.count + of_value)
    return in_order_of_first(found[: records.count])


def resampling_units(parts: SplitParts, store: TokenStore) -> NDArray[np.uint64]:
    """(N,) what an interval leaves out together: clusters of relatives, each named by the lowest digest in it.

    These are the split's own groups where it has some. Otherwise variants of one protein are together by their first
    mutated position, of fewer than ten positions by the mutation there, and other proteins by clusters of relatives
    at 30 % identity; where all are one cluster, at the lowest of 50, 70 and 90 % at which they are not.
    """
    from data.homology.relatives import related

    group = parts.group
    if len(np.unique(group)) == len(group) > 1:
        if are_variants(store):
            residues = np.asarray(store.tokens).reshape(store.num_records, -1)
            record, position = np.nonzero(residues != consensus(residues))
            lowest = MutatedPositions(len(group), record, position).lowest
            mutation = 256 * lowest + residues[np.arange(len(group)), lowest]
            group = in_order_of_first(lowest if len(np.unique(lowest)) >= _FEWEST_POSITIONS else mutation)
        else:
            for identity in _IDENTITIES:
                group = in_order_of_first(related(store, identity).hashes)
                if group.any():
                    break
    names = np.full(len(group), np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(names, group, parts.digests)
    return np.asarray(names[group])


def scaffolds(smiles: list[str]) -> list[str | None]:
    """The Bemis-Murcko scaffold (doi:10.1021/jm9602928) of each molecule as SMILES; None where it cannot be read.

    Raises:
        ValueError: rdkit is not installed.
    """
    try:
        from rdkit import Chem
        from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles
        from rdkit.rdBase import BlockLogs
    except ImportError:
        raise ValueError("split.by = 'scaffold' needs rdkit: pip install 'zymogen[molecules]'") from None
    scaffold_of: Any = MurckoScaffoldSmiles
    with BlockLogs():  # rdkit writes a line for each text that is no molecule
        known: dict[str, str | None] = {
            text: scaffold_of(mol=molecule) if text and (molecule := Chem.MolFromSmiles(text)) is not None else None
            for text in dict.fromkeys(smiles)
        }
    return [known[text] for text in smiles]
