"""The role of each column, with the reason: what is learned, what divides the rows, what is neither.

In: columns, where the proteins are. Out: `Roles`. Kept: nothing. What each column may be is collected over all columns
before anything is decided, in an order of their names, so that the order of the table decides nothing.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from finetune.look import words
from finetune.look.column import Column
from finetune.look.columns.evidence import of_text, own_role
from finetune.look.columns.own_split import OwnSplit, own_split
from finetune.look.columns.relations import copies, fits, replicates, units_and_bounds
from finetune.look.guess import Guess, guess, is_along
from finetune.tables.units import molar
from finetune.tasks.bounds import USUAL, bare

_WEAK = ("group", "condition", "descriptor", "count", "note")
"""Roles by names, of which the first that holds labels is learned where nothing else is."""
_CONDITIONS = ("condition", "molecule")
_KEY = 0.9
"""Share of the sequences with several rows in which all cells of a condition differ."""
_MISTAKES = 0.05
"""Share of the sequences with several rows in which cells may differ by mistake."""
_MOST_CONDITIONS = 50


@dataclass
class Roles:
    """What the columns of a table are."""

    of: dict[str, tuple[str, str]]
    """Column -> (role, reason), in the order of the table."""
    split: OwnSplit
    """The split that the table brings along."""
    tasks: list[Guess] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)


def roles_of(
    columns: Sequence[Column],
    known: dict[str, tuple[str, str]],
    residues: NDArray[np.int64],
    named: Sequence[str] = (),
    records: NDArray[np.int64] | None = None,
) -> Roles:
    """Sort columns into roles.

    Args:
        columns: of the table.
        known: roles that are known already, those of the protein.
        residues: (R,) residues of each row's protein; 0 without one.
        named: columns that the user named as tasks; then no other one is.
        records: (R,) record of each row, -1 without one; where it is not given, no rows are of one sequence.

    Raises:
        ValueError: a column that the user named holds nothing to learn.
    """
    order = [column.name for column in columns]
    columns = [
        replace(column, is_text=True) if is_along(column, residues) else column
        for column in sorted(columns, key=lambda column: _natural(column.name))
    ]
    records = np.full(len(residues), -1) if records is None else records
    others = [column for column in columns if column.name not in known and column.name not in named]
    split = own_split(others)
    others = [column for column in others if column.name not in split.roles]
    own = {column.name: own_role(column, residues) for column in others}
    free = [column for column in columns if column.name in named or (column.name in own and own[column.name] is None)]
    companions, units, bounds = units_and_bounds(others, [column for column in free if column.numbers is not None])
    roles = Roles(known | split.roles | {name: role for name, role in own.items() if role} | companions, split)
    free = [
        _completed(column, units.get(column.name), bounds.get(column.name))
        for column in free
        if column.name not in roles.of or column.name in named
    ]
    if any(column.numbers is not None for column in free):
        roles.of |= {
            column.name: ("condition", "the rows of one sequence differ in it")
            for column in free
            if column.name not in named and column.numbers is None and _is_key(column, records)
        }
    free = [column for column in free if column.name not in roles.of or column.name in named]
    if named:
        roles.of |= {column.name: ("not named", "--task names others") for column in free if column.name not in named}
        roles.tasks = [_named(column, residues) for column in free if column.name in named]
    else:
        roles.tasks = _tasks(free, roles, residues) or _weak_tasks(others, roles, residues)
    varying = [column.name for column in columns if _varies(column, records)]
    conditions = [name for name in varying if roles.of.get(name, ("",))[0] in _CONDITIONS]
    for name in conditions:
        roles.of[name] = roles.of[name][0], "rows of one sequence differ in it"
    for task in roles.tasks:
        if conditions and not {*task.columns}.isdisjoint(varying):
            task.settings["conditions"] = conditions
        _join(task, units.get(task.columns[0]), bounds.get(task.columns[0]))
        for name in task.columns:
            roles.of[name] = "task", task.reason
    roles.groups = [column.name for column in columns if roles.of[column.name][0] == "group"]
    roles.of = {name: roles.of[name] for name in order}
    roles.tasks.sort(key=lambda task: order.index(task.columns[0]))
    _distinct_names(roles.tasks)
    return roles


def _completed(column: Column, units: Column | None, bounds: tuple[Column, dict[str, int]] | None) -> Column:
    """A column of numbers with what other columns say of it."""
    if units is not None and len(units.texts) == 1:
        column = replace(column, unit=units.texts[0])
    if bounds is None:
        return column
    cells, directions = bounds[0].all, bounds[1]
    of_rows = np.zeros(column.num_rows, np.int8)
    of_rows[cells.rows] = np.array([directions.get(text, 0) for text in cells.texts], np.int8)[cells.which]
    return replace(column, bounds=of_rows)


def _join(task: Guess, units: Column | None, bounds: tuple[Column, dict[str, int]] | None) -> None:
    """Give a task the columns of its units and bounds."""
    if units is not None and len(units.texts) > 1:
        task.settings["unit_column"] = units.name
        task.settings.pop("unit", None)
        if "transform" in task.settings and all(map(molar, units.texts)):
            task.settings["transform"] = "p"
    if bounds is None or task.settings["type"] != "regression":
        return
    task.settings["bound_column"] = bounds[0].name
    for setting, sign in (("lower_bounds", 1), ("upper_bounds", -1)):
        texts = [text for text, at in bounds[1].items() if at == sign and bare(text) not in USUAL]
        task.settings |= {setting: texts} if texts else {}


def _natural(name: str) -> list[tuple[int, str]]:
    """A key by which 'rep 2' is before 'rep 10'."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _named(column: Column, residues: NDArray[np.int64]) -> Guess:
    """The task of a column that the user named.

    Raises:
        ValueError: it holds nothing to learn.
    """
    found = guess(column, residues, is_named=True)
    if found is None:
        why = own_role(column, residues) or of_text(column)
        raise ValueError(f"--task {column.name!r}: nothing to learn in this column: {why[1]}; name another one")
    return found


def _tasks(columns: Sequence[Column], roles: Roles, residues: NDArray[np.int64]) -> list[Guess]:
    """The tasks among columns that may be ones; the others get roles."""
    groups, summed_up = replicates(columns)
    roles.of |= copies(columns, [*summed_up, *(column.name for _, members in groups for column in members)])
    groups, summed_up = replicates([column for column in columns if column.name not in roles.of])
    roles.of |= summed_up
    repeated = {column.name for _, members in groups for column in members}
    columns = [column for column in columns if column.name not in {*roles.of, *repeated}]
    roles.of |= fits(columns)
    tasks = []
    for column in columns:
        found = guess(column, residues) if column.name not in roles.of else None
        if found is not None:
            tasks.append(found)
        else:
            roles.of.setdefault(column.name, of_text(column))
    for base, members in groups:
        found = guess(members[0], residues)
        if found is None:
            roles.of |= {member.name: of_text(member) for member in members}
            continue
        found.columns = tuple(member.name for member in members)
        found.settings["columns_are"] = "replicates"
        found.name = base or found.name
        found.reason = f"{len(members)} replicates, whose mean is learned; {found.reason}"
        _widen(found, members)
        tasks.append(found)
    return tasks


def _weak_tasks(columns: Sequence[Column], roles: Roles, residues: NDArray[np.int64]) -> list[Guess]:
    """The tasks among columns whose names are those of something else, where no other column is one."""
    for role in _WEAK:
        among = [column for column in columns if roles.of[column.name][0] == role]
        labels = [column for column in among if words.LABEL.search(words.plain(column.name))] or among
        found = [task for column in labels if (task := guess(column, residues)) is not None]
        for task in found:
            task.reason += f"; by its name a {role}, and learned as no other column holds labels: a guess"
        if found:
            return found
    return []


def _varies(column: Column, records: NDArray[np.int64]) -> bool:
    """Whether cells of a sequence with several rows differ, in more of these sequences than by mistakes."""
    torn, _, repeated = _cells_of_records(column, records)
    return len(torn) > _MISTAKES * len(repeated)


def _is_key(column: Column, records: NDArray[np.int64]) -> bool:
    """Whether texts tell the rows of one sequence apart, in most sequences, of which most have several rows."""
    if not 2 <= len(column.texts) <= min(_MOST_CONDITIONS, column.num_measured // 3):
        return False
    _, keyed, repeated = _cells_of_records(column, records)
    rows = np.isin(records, repeated).sum()
    return len(repeated) > 2 and rows > column.num_rows / 2 and len(keyed) >= _KEY * len(repeated)


def _cells_of_records(column: Column, records: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    """Records whose cells differ, those all of whose cells differ, and those with several cells."""
    of = records[column.cells.rows]
    known = of >= 0
    rows = np.bincount(of[known], minlength=1)
    pairs = np.unique(np.stack([of[known], column.cells.which[known]]), axis=1)[0]
    texts = np.bincount(pairs, minlength=len(rows))
    return np.flatnonzero(texts > 1), np.flatnonzero((rows > 1) & (texts == rows)), np.flatnonzero(rows > 1)


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
