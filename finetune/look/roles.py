"""The role of each column, with the reason: what is learned, what divides the rows, what is neither.

In: columns, where the proteins are. Out: `Roles`. Kept: nothing. Evidence in the cells decides before names do.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from data.sources.tables import ID_COLUMNS
from finetune.look import words
from finetune.look.column import Column
from finetune.look.guess import Guess, guess
from finetune.splits.columns import USUAL
from finetune.tables.units import is_unit, name_and_unit

_PARTS = {word for group in USUAL.values() for word in group}
_TRUE = {"true", "false", "t", "f", "yes", "no", "0", "1", "0.0", "1.0", "y", "n"}
_REPLICATES_AGREE = 0.5
"""Correlation from which on columns of one name with numbers are replicates of each other."""
_SUMMARY = 0.9
_FEW = 10
"""Rows below which a correlation means nothing, and names alone decide."""
_BY_NAME = (
    (words.PREDICTED, "prediction", "by its name another model's, or computed from the sequence; it was not measured"),
    (words.UNCERTAINTY, "uncertainty", "by its name the error of another number"),
    (words.DESCRIPTORS, "descriptor", "by its name where or what a row is, and nothing that was measured"),
    (words.COUNTS, "count", "by its name a number of measurements, reads or mutations"),
)
"""Roles by names, and their reasons; all but the first are of columns of numbers alone."""
_SERIES = 3
"""Columns whose names are numbers that make a series of doses or times."""


@dataclass
class Roles:
    """What the columns of a table are."""

    of: dict[str, tuple[str, str]]
    """Column -> (role, reason), in the order of the table."""
    tasks: list[Guess] = field(default_factory=list)
    part: str | None = None
    """Column that says which part of a split a row is in."""
    validation: str | None = None
    """Column that is true in training rows that validate."""
    fold: str | None = None
    """Column of folds."""
    groups: list[str] = field(default_factory=list)
    units: dict[str, str] = field(default_factory=dict)
    """Column of numbers -> the column of their units."""


def roles_of(
    columns: Sequence[Column],
    known: dict[str, tuple[str, str]],
    residues: NDArray[np.int64],
    named: Sequence[str] = (),
) -> Roles:
    """Sort columns into roles.

    Args:
        columns: of the table.
        known: roles that are known already, those of the protein.
        residues: (R,) residues of each row's protein; 0 without one.
        named: columns that the user named as tasks; then no other one is.
    """
    roles = Roles(dict(known))
    rest = []
    for column in columns:
        if column.name in roles.of and column.name not in named:
            continue
        found = None if column.name in named else _by_evidence(column, columns, residues, roles)
        if found is not None:
            roles.of[column.name] = found
        else:
            rest.append(column)
    if not named:
        rest = _without_copies(rest, roles)
    groups, rest = ([], rest) if named else _replicates(rest, roles)
    if not named:
        rest = _without_fits(rest, roles)
    for column in rest:
        found_task = guess(column, residues)
        if found_task is None:
            roles.of[column.name] = _of_text(column)
        else:
            roles.tasks.append(found_task)
    for base, members in groups:
        found_task = guess(members[0], residues)
        if found_task is None:
            continue
        found_task.columns = tuple(member.name for member in members)
        found_task.settings["columns_are"] = "replicates"
        found_task.name = base or found_task.name
        found_task.reason = f"{len(members)} replicates, whose mean is learned; {found_task.reason}"
        _widen(found_task, members)
        roles.tasks.append(found_task)
    for task in roles.tasks:
        if task.columns[0] in roles.units:
            task.settings["unit_column"] = roles.units[task.columns[0]]
            task.settings.pop("unit", None)
        for name in task.columns:
            roles.of[name] = "task", task.reason
    roles.of = {column.name: roles.of[column.name] for column in columns}
    order = [column.name for column in columns]
    roles.tasks.sort(key=lambda task: order.index(task.columns[0]))
    _distinct_names(roles.tasks)
    return roles


def _by_evidence(
    column: Column, columns: Sequence[Column], residues: NDArray[np.int64], roles: Roles
) -> tuple[str, str] | None:
    """The role of a column that is no task; None where it may be one."""
    name, texts = column.name.strip(), column.texts
    folded = {text.casefold() for text in texts}
    if not column.num_measured:
        return "empty", "no cell holds anything" if not column.all.texts else f"only {column.all.texts[0]!r}"
    if words.VALIDATION.search(name) and folded <= _TRUE and roles.part is not None:
        roles.validation = column.name
        return "part of a split", "true in the training rows that validate"
    if len(texts) == 1:
        return "constant", f"{texts[0][:40]!r} in every row that has a value"
    if words.PART.search(name) and folded <= _PARTS and folded & set(USUAL["train"]):
        roles.part = column.name
        return "part of a split", f"its words are {', '.join(sorted(folded))}"
    values = column.values
    if words.FOLD.search(name) and 2 < len(texts) <= 20:
        roles.fold = column.name
        return "part of a split", f"{len(texts)} folds"
    if _is_index(values):
        return "index", "it counts the rows"
    if column.numbers is not None and _is_length(values, residues):
        return "length", "the number of the protein's residues"
    if _is_date(column):
        return "date", f"dates such as {texts[0]!r}"
    if all(map(is_unit, texts)) and (owner := _owner(column, columns)) is not None:
        roles.units[owner.name] = column.name
        return "unit", f"of each number in {owner.name!r}"
    if folded <= {"=", "<", ">", "<=", ">=", "~", "'='", "'<'", "'>'"}:
        return "sign", "of another number, and not read: write '<5' into the cell of the number for a bound"
    if column.numbers is None and (words.SMILES.search(name) or _are_molecules(texts)):
        return "molecule", "not read: the model sees proteins alone"
    for pattern, role, reason in _BY_NAME if column.numbers is not None else _BY_NAME[:1]:
        if pattern.search(name):
            return role, reason
    if column.numbers is None and name.lower() in ID_COLUMNS:
        return "id", "a usual name of ids"
    if column.numbers is None and len(texts) > 0.9 * column.num_measured and words.IDENTIFIER.search(name):
        return "id", "nearly as many texts as rows"
    if words.GROUP.search(name) and 2 <= len(texts) <= max(2, column.num_measured // 2):
        roles.groups.append(column.name)
        return "group", f"{len(texts)} groups of rows, by its name; split.by = 'group' holds them out together"
    if words.META.search(name) and guess(column, residues) is not None and column.numbers is None:
        return "note", "by its name about the measurement, and nothing that was measured"
    is_own = words.IDENTIFIER.search(name) is not None and len(texts) == column.num_measured
    if column.numbers is not None and is_own and bool((values[~np.isnan(values)] % 1 == 0).all()):
        return "id", "a whole number of its own in each row"
    return None


def _of_text(column: Column) -> tuple[str, str]:
    """The role of a column that is no task."""
    texts = column.texts
    if len(texts) > 0.9 * column.num_measured:
        return "id", f"{len(texts):,} texts, nearly as many as rows"
    repeated = f"{len(texts):,} texts in {column.num_measured:,} rows"
    if column.num_measured < 3 * len(texts):
        return "text", f"{repeated}: too many for classes"
    return "text", repeated


def _are_molecules(texts: Sequence[str]) -> bool:
    """Whether most cells are SMILES; of the few atoms without a bond or bracket there may be some."""
    shown = texts[:300]
    return len(shown) > 2 and sum(words.MOLECULE.fullmatch(text) is not None for text in shown) > 0.7 * len(shown)


def _is_index(values: NDArray[np.float64]) -> bool:
    """Whether numbers rise by one from row to row."""
    return len(values) > 2 and not np.isnan(values).any() and bool((np.diff(values) == 1).all())


def _is_length(values: NDArray[np.float64], residues: NDArray[np.int64]) -> bool:
    both = ~np.isnan(values) & (residues > 0)
    return bool(both.sum() > 2 and (values[both] == residues[both]).mean() > 0.95)


def _is_date(column: Column) -> bool:
    texts = column.texts[:300]
    if column.numbers is not None and not any(sign in texts[0] for sign in "-/:"):
        return False
    return sum(words.DATE.fullmatch(text) is not None for text in texts) > 0.9 * len(texts)


def _owner(column: Column, columns: Sequence[Column]) -> Column | None:
    """The column of numbers that a column of units stands after."""
    at = [each.name for each in columns].index(column.name)
    near = [columns[i] for i in (at - 1, at + 1) if 0 <= i < len(columns)]
    return next((each for each in near if each.numbers is not None and len(each.texts) > 2), None)


def _without_copies(columns: Sequence[Column], roles: Roles) -> list[Column]:
    """Columns without those that hold the same numbers as one before them."""
    kept: list[Column] = []
    seen: dict[bytes, str] = {}
    for column in columns:
        key = column.values.tobytes() if column.numbers is not None else None
        if key is not None and key in seen:
            roles.of[column.name] = "copy", f"the same numbers as in {seen[key]!r}"
            continue
        if key is not None:
            seen[key] = column.name
        kept.append(column)
    return kept


def _replicates(columns: Sequence[Column], roles: Roles) -> tuple[list[tuple[str, list[Column]]], list[Column]]:
    """Groups of columns that repeat one measurement, and the other columns."""
    numeric = [column for column in columns if column.numbers is not None]
    by_name = {name_and_unit(column.name)[0].strip(): column for column in numeric}
    families: dict[str, list[Column]] = {}
    said_so: set[str] = set()
    for column in numeric:
        found = words.REPLICATE.fullmatch(name_and_unit(column.name)[0].strip())
        if found is None or not found["base"].strip(" _-.#("):
            continue
        base = found["base"].strip(" _-.#(")
        if base.isdigit() and not any(sign in column.name for sign in "_-. #"):
            continue
        families.setdefault(base, []).append(column)
        said_so |= {base} if found["word"] and len(found["word"]) > 2 else set()
    groups: list[tuple[str, list[Column]]] = []
    gone: set[str] = set()
    summarized = 0
    for base, members in families.items():
        own = by_name.get(base)
        everyone = [*([own] if own is not None else []), *members]
        if len(everyone) < 2 or not _agree(everyone, base in said_so):
            continue
        if own is not None and _is_summary(own, members):
            summarized += 1
            for member in members:
                roles.of[member.name] = "replicate", f"of {own.name!r}, which sums them up"
            gone |= {member.name for member in members}
        else:
            groups.append((base, everyone))
            gone |= {member.name for member in everyone}
    for base, members in families.items():
        if len(members) == 1 and base not in by_name and summarized > 1 and members[0].name not in gone:
            roles.of[members[0].name] = "replicate", f"of {base!r}, which has no column of its own as the others have"
            gone.add(members[0].name)
    return groups, [column for column in columns if column.name not in gone]


def _agree(columns: Sequence[Column], said_so: bool) -> bool:
    """Whether columns rise and fall together; of few rows, whether their names call them replicates."""
    first = columns[0].values
    for column in columns[1:]:
        both = ~np.isnan(first) & ~np.isnan(column.values)
        if both.sum() < _FEW:
            if not said_so:
                return False
            continue
        if not _correlation(first[both], column.values[both]) > (0.2 if said_so else _REPLICATES_AGREE):
            return False
    return True


def _is_summary(column: Column, members: Sequence[Column]) -> bool:
    """Whether a column is the mean of others, or nearly so."""
    values = np.array([member.values for member in members])
    counts = (~np.isnan(values)).sum(axis=0)
    means = np.where(counts > 0, np.nansum(values, axis=0) / np.maximum(counts, 1), np.nan)
    both = ~np.isnan(means) & ~np.isnan(column.values)
    if len(members) < 2 or not both.any():
        return False
    equal = np.isclose(means[both], column.values[both], rtol=1e-4, atol=1e-6).mean()
    return bool(equal > _SUMMARY or (both.sum() >= _FEW and _correlation(means[both], column.values[both]) > _SUMMARY))


def _correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    if not np.ptp(a) or not np.ptp(b):
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def _without_fits(columns: Sequence[Column], roles: Roles) -> list[Column]:
    """Columns without constants that were fitted to a series of doses in the same table."""
    series = [column.name for column in columns if column.numbers is not None and _is_plain(column.name)]
    if len(series) < _SERIES:
        return list(columns)
    fitted = [column for column in columns if words.FITTED.search(column.name.strip()) and column.numbers is not None]
    for column in fitted:
        said = f"fitted to the series {series[0]}, ..., {series[-1]}, which is learned itself; --task reads it too"
        roles.of[column.name] = "fit", said
    return [column for column in columns if column not in fitted]


def _is_plain(name: str) -> bool:
    return name.strip().replace(".", "", 1).isdigit()


def _widen(task: Guess, members: Sequence[Column]) -> None:
    """Give a task of several columns what all of them need: the texts that mean 'missing', a scale that holds all."""
    from finetune.tasks.settings import MISSING

    texts = dict.fromkeys(text for member in members for text in member.missing)
    if texts:
        task.settings["missing"] = [*MISSING, *texts]
    values = np.concatenate([member.values for member in members])
    if task.settings.get("transform") and np.nanmin(values) <= 0:
        del task.settings["transform"]


def _distinct_names(tasks: Sequence[Guess]) -> None:
    """Tasks whose columns differ only in their unit keep the name of the column."""
    names = [task.name for task in tasks]
    for task in tasks:
        if names.count(task.name) > 1:
            task.name = task.columns[0]
