"""The role of each column, with the reason: what is learned, what divides the rows, what is neither.

In: columns, where the proteins are. Out: `ColumnRoles`. Kept: nothing. What each column may be is collected over all
columns before anything is decided, in an order of their names, so that the order of the table decides nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from finetune.look import terms
from finetune.look.column_profile import ColumnProfile
from finetune.look.columns.computed import computed, of_amino_acids
from finetune.look.columns.conditions import follows, give_conditions, is_key, numbered, told_by, varies
from finetune.look.columns.derived import derived
from finetune.look.columns.evidence import HIDDEN, infer_role, infer_text_role
from finetune.look.columns.own_split import TableSplit, own_split
from finetune.look.columns.relations import (
    counts_of_rates,
    find_copies,
    fits,
    is_coarser,
    is_thresholded,
    match_renamed,
    of_no_label,
    replicates,
    units_and_bounds,
)
from finetune.look.infer_task import InferredTask, infer_task, is_per_residue
from finetune.tables.fasta import ID, PREFIX
from finetune.tables.numbers import MISSING, molar
from finetune.tables.table import SOURCE_TABLE
from finetune.tasks.cells import BOUND_WORDS, normalize_bound

_WEAK = ("group", "condition", "descriptor", "count", "note")
"""Roles by names, of which the first that holds labels is learned where nothing else is."""
_MANY_PREDICTIONS = 3
_MANY_UNSURE = 8
"""Tasks of which nothing says that they were measured, above which they are features where others were measured."""
_LEAST_CELLS, _FULLER = 10, 0.1
"""Cells of a task where another one has ten times as many."""
_CONDITIONS = ("condition", "molecule", "sequence, not read")
_SOURCES = ("condition", "date", "descriptor", "group", "id", "note", "text")
_OF_PROTEINS = ("wild type", "sequence, not read")
_OF_EXCHANGES = "the same in nearly all rows with one residue, or with one exchange of residues"
_OF_SITES = "the same in nearly all mutations of a residue: of the residue, and not of the mutation"


@dataclass
class ColumnRoles:
    """What the columns of a table are."""

    of: dict[str, tuple[str, str]]
    """Column -> (role, reason), in the order of the table."""
    split: TableSplit
    """The split that the table brings along."""
    tasks: list[InferredTask] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)
    """Columns of tasks of which nothing says that they were measured."""


def infer_roles(
    columns: Sequence[ColumnProfile],
    known: dict[str, tuple[str, str]],
    residues: NDArray[np.int64],
    named: Sequence[str] = (),
    records: NDArray[np.int64] | None = None,
    sites: NDArray[np.int64] | None = None,
    sequences: Sequence[str] | None = None,
) -> ColumnRoles:
    """Sort columns into roles.

    Args:
        columns: of the table.
        known: roles that are known already, those of the protein.
        residues: (R,) residues of each row's protein; 0 without one.
        named: columns that the user named as tasks; then no other one is.
        records: (R,) record of each row, -1 without one; where it is not given, no rows are of one sequence.
        sites: (R,) number of the residues that each row mutates, -1 without any.
        sequences: (N,) letters of each record.

    Raises:
        ValueError: a column that the user named holds nothing to learn.
    """
    order = [column.name for column in columns]
    columns = [
        replace(column, is_text=True) if is_per_residue(column, residues) else column
        for column in sorted(columns, key=lambda column: column.name)
    ]
    records = np.full(len(residues), -1) if records is None else records
    others = [column for column in columns if column.name not in known and column.name not in named]
    split = own_split(others)
    others = [column for column in others if column.name not in split.roles]
    own = {column.name: infer_role(column, residues) for column in others} | of_amino_acids(others)
    free = [column for column in columns if column.name in named or (column.name in own and own[column.name] is None)]
    companions, units, bounds = units_and_bounds(others, [column for column in free if column.numbers is not None])
    roles = ColumnRoles(known | split.roles | {name: role for name, role in own.items() if role} | companions, split)
    free = [
        _completed(column, units.get(column.name), bounds.get(column.name))
        for column in free
        if column.name not in roles.of or column.name in named
    ]
    of_others = [(column, roles.of[column.name][0]) for column in columns if column.name in roles.of]
    roles.of |= of_no_label([column for column in free if column.name not in named], of_others)
    free = [column for column in free if column.name not in roles.of or column.name in named]
    if any(column.numbers is not None for column in free):
        roles.of |= {
            column.name: ("condition", "the rows of one sequence differ in it")
            for column in free
            if column.name not in named and column.numbers is None and is_key(column, records)
        }
    if sequences is not None:
        unread = [column for column in columns if roles.of.get(column.name, ("",))[0] in _OF_PROTEINS]
        roles.of |= computed([column for column in free if column.name not in named], records, sequences, unread)
    used, first_rows = np.unique(records, return_index=True)
    is_first = np.isin(np.arange(len(records)), first_rows[used >= 0])
    for organism in (each for each in others if terms.ORGANISM.search(terms.plain(each.name)) and each.numbers is None):
        of_records = np.where(is_first, numbered(organism), -1)
        roles.of |= {
            column.name: ("descriptor", f"the same in nearly all proteins of each {organism.name!r}")
            for column in free
            if column.name not in named and column.numbers is not None and len(column.texts) > 2  # classes are labels
            if follows(numbered(column), of_records)
        }
    if sites is not None:
        set_ = [column for column in others if roles.of.get(column.name, ("",))[0] in _CONDITIONS]
        within = [sites, *_within(sites, set_)]
        roles.of |= {
            column.name: ("descriptor", _OF_SITES)
            for column in free
            if column.name not in named and any(follows(numbered(column), groups) for groups in within)
        }
    pieces = [column for column in columns if roles.of.get(column.name, ("",))[0] in ("residue", "mutation")]
    pieces = [column for column in pieces if column.texts and max(map(len, column.texts)) == 1]
    exchanges = [each for one in pieces for each in (numbered(one), *_within(numbered(one), pieces))]
    roles.of |= {
        column.name: ("descriptor", _OF_EXCHANGES)
        for column in free
        if column.name not in (*named, *roles.of) and any(follows(numbered(column), groups) for groups in exchanges)
    }
    free = [column for column in free if column.name not in roles.of or column.name in named]
    if named:
        roles.of |= {column.name: ("not named", "--task names others") for column in free if column.name not in named}
        roles.tasks = [_named(column, residues) for column in free if column.name in named]
    else:
        roles.tasks = _tasks(free, roles, residues) or _weak_tasks(others, roles, residues)
    set_ = [column for column in columns if roles.of.get(column.name, ("",))[0] in _CONDITIONS]
    conditions = [column for column in set_ if varies(column, records)]
    roles.of |= {each.name: (roles.of[each.name][0], "rows of one sequence differ in it") for each in conditions}
    varying = {column.name: column for column in columns if varies(column, records)}
    sources = [column for column in columns if roles.of.get(column.name, ("",))[0] in _SOURCES]
    for task in roles.tasks:
        if task.settings["type"] in ("binary", "multiclass") and task.settings.get("level") != "residue":
            classes = next(column for column in columns if column.name in task.columns)
            made_of = (PREFIX, ID) if classes.name == PREFIX else (classes.name,)
            task.reason += told_by(classes, [each for each in sources if each.name not in made_of], residues)
        label = next((varying[name] for name in task.columns if name in varying), None)
        if label is not None and task.settings.get("columns_are") != "lists":
            give_conditions(task, label, conditions, records)
        _join(task, units.get(task.columns[0]), bounds.get(task.columns[0]))
        roles.of |= dict.fromkeys(task.columns, ("task", task.reason))
    roles.groups = [column.name for column in columns if roles.of[column.name][0] == "group"]
    roles.of = {name: roles.of[name] for name in order}
    roles.tasks.sort(key=lambda task: order.index(task.columns[0]))
    _distinct_names(roles.tasks)
    if not named:
        bounded = {column.name for column in columns if column.num_censored}
        unsure = [task for task in roles.tasks if not _is_measured(task, bounded)]
        if len(roles.tasks) > len(unsure) > max(_MANY_UNSURE, 2 * (len(roles.tasks) - len(unsure))):
            most = max(column.num_measured for column in columns)
            whole = {column.name for column in columns if column.num_measured == most}
            features = [each for each in unsure if each.settings["type"] == "regression" and each.columns[0] in whole]
            why = f"one of {len(unsure)} tasks of which nothing says that they were measured; --task reads it"
            roles.of |= {task.columns[0]: ("note", why) for task in features}
            roles.tasks = [task for task in roles.tasks if task not in features]
        roles.unsure = [task.columns[0] for task in roles.tasks if task in unsure]
    return roles


def _is_measured(task: InferredTask, bounded: set[str]) -> bool:
    """Whether a name, a unit, bounds or replicates say that a task was measured."""
    settings = task.settings.keys() & {"unit", "unit_column", "bound_column", "columns_are"}
    return bool(settings) or task.columns[0] in bounded or bool(terms.MEASURED.search(terms.plain(task.columns[0])))


def _within(sites: NDArray[np.int64], conditions: Sequence[ColumnProfile]) -> list[NDArray[np.int64]]:
    """(R,) number of each row's residues in each value of a condition, of every condition; -1 without residues."""
    pairs = (np.stack([sites, numbered(column)]) for column in conditions)
    return [np.where(sites < 0, -1, np.unique(each, axis=1, return_inverse=True)[1].ravel()) for each in pairs]


def _completed(
    column: ColumnProfile, units: ColumnProfile | None, bounds: tuple[ColumnProfile, dict[str, int]] | None
) -> ColumnProfile:
    """A column of numbers with what other columns say of it."""
    if units is not None and len(units.texts) == 1:
        column = replace(column, unit=units.texts[0])
    if bounds is None:
        return column
    cells, directions = bounds[0].all, bounds[1]
    of_texts = np.array([directions.get(text, 0) for text in cells.texts], np.int8)
    return replace(column, bounds=cells.over_rows(of_texts, column.num_rows, 0))


def _join(task: InferredTask, units: ColumnProfile | None, bounds: tuple[ColumnProfile, dict[str, int]] | None) -> None:
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
        texts = [text for text, at in bounds[1].items() if at == sign and normalize_bound(text) not in BOUND_WORDS]
        task.settings |= {setting: texts} if texts else {}


def _named(column: ColumnProfile, residues: NDArray[np.int64]) -> InferredTask:
    """The task of a column that the user named.

    Raises:
        ValueError: it holds nothing to learn.
    """
    found = infer_task(column, residues, is_named=True)
    if found is None:
        why = infer_role(column, residues) or infer_text_role(column)
        raise ValueError(f"--task {column.name!r}: nothing to learn in this column: {why[1]}; name another one")
    return found


def _tasks(columns: Sequence[ColumnProfile], roles: ColumnRoles, residues: NDArray[np.int64]) -> list[InferredTask]:
    """The tasks among columns that may be ones; the others get roles."""
    groups, summed_up = replicates(columns)
    roles.of |= counts_of_rates(columns)
    columns = [column for column in columns if column.name not in roles.of]
    roles.of |= find_copies(columns, [*summed_up, *(column.name for _, members, _ in groups for column in members)])
    inferred = {column.name: infer_task(column, residues) for column in columns if column.name not in roles.of}
    of_residues = {name for name, found in inferred.items() if found and found.settings.get("level") == "residue"}
    roles.of |= match_renamed([each for each in columns if each.name in inferred and each.name not in of_residues])
    groups, summed_up = replicates([column for column in columns if column.name not in roles.of])
    roles.of |= summed_up
    repeated = {column.name for _, members, _ in groups for column in members}
    columns = [column for column in columns if column.name not in {*roles.of, *repeated}]
    roles.of |= fits(columns)
    tasks = []
    for column in columns:
        found = inferred[column.name] if column.name not in roles.of else None
        if found is not None:
            tasks.append(found)
        else:
            roles.of.setdefault(column.name, infer_text_role(column))
    for base, members, said in groups:
        found = inferred[members[0].name]
        if found is None:
            roles.of |= {member.name: infer_text_role(member) for member in members}
            continue
        found.columns = tuple(member.name for member in members)
        found.settings["columns_are"] = "replicates"
        found.name = base or found.name
        found.reason = f"{said}; {found.reason}"
        _widen(found, members)
        tasks.append(found)
    everyone = [*columns, *(member for _, members, _ in groups for member in members)]
    return _without_doubtful(tasks, everyone, roles)


def _without_doubtful(
    tasks: list[InferredTask], columns: Sequence[ColumnProfile], roles: ColumnRoles
) -> list[InferredTask]:
    """Tasks without those of columns that have no name, or few cells, where others have."""
    by_name = {column.name: column for column in columns}
    is_number = {task.columns[0]: task.settings["type"] == "regression" for task in tasks}
    measured = {column.name: column.num_measured for column in columns}
    unnamed = {name for name in measured if terms.WITHOUT_NAME.search(terms.plain(name))}
    most = max((measured[task.columns[0]] for task in tasks), default=0)
    kept = []
    for task in tasks:
        name, count = task.columns[0], measured[task.columns[0]]
        if name in unnamed and any(each.columns[0] not in unnamed for each in tasks):
            roles.of[name] = "note", "it has no name, as those that are learned have; --task reads it"
        elif count < _LEAST_CELLS <= most * _FULLER:
            roles.of[name] = "note", f"{count} cells hold something, too few to learn; --task reads it"
        elif is_number[name] and (others := _others(by_name[name])) < _LEAST_CELLS <= count * _FULLER:
            roles.of[name] = "note", f"all but {others} of {count:,} cells are one number; --task reads it"
        else:
            kept.append(task)
    made_of = derived([by_name[task.columns[0]] for task in kept if len(task.columns) == 1])
    numeric = [by_name[task.columns[0]] for task in kept if is_number[task.columns[0]]]
    of_classes = [by_name[task.columns[0]] for task in kept if task.settings["type"] == "multiclass"]
    for task in kept:
        if said := made_of.get(task.columns[0]):
            task.reason += f"; {said}, and so no measurement of its own"
        if not is_number[task.columns[0]] and task.settings.get("level") != "residue":
            classes = numbered(by_name[task.columns[0]])
            cut = next((each.name for each in numeric if is_thresholded(each.values, classes)), None)
            task.reason += f"; a threshold in {cut!r} gives it" if cut else ""
            finer = next((each.name for each in of_classes if is_coarser(classes, numbered(each))), None)
            task.reason += f"; the class of {finer!r} gives it" if finer else ""
    return kept


def unread_labels(of: dict[str, tuple[str, str]]) -> list[str]:
    """Columns of too many texts for classes whose names are those of what is measured."""
    return [name for name, (role, _) in of.items() if role == "text" and terms.MEASURED.search(terms.plain(name))]


def _others(column: ColumnProfile) -> int:
    """Cells that hold another number than the most frequent one."""
    counts = np.unique(column.values[~np.isnan(column.values)], return_counts=True)[1]
    return int(counts.sum() - counts.max(initial=0))


def _weak_tasks(
    columns: Sequence[ColumnProfile], roles: ColumnRoles, residues: NDArray[np.int64]
) -> list[InferredTask]:
    """The tasks among columns whose names are those of something else, where no other column is one.

    The names of the files come first, as of positive and negative ones: who gives several files means them.
    """
    for column in (each for each in columns if each.name == SOURCE_TABLE):
        if of_files := infer_task(column, residues):
            of_files.reason += "; by the names of the files, as no other column holds labels: a guess"
            return [of_files]
    is_hidden = any(role in HIDDEN for role, _ in roles.of.values())
    if sum(role == "prediction" for role, _ in roles.of.values()) >= _MANY_PREDICTIONS or unread_labels(roles.of):
        return []  # what programs wrote of designs, or labels that cannot be read
    for role in _WEAK[:1] if is_hidden else _WEAK:
        names = {column.name: terms.plain(column.name) for column in columns if roles.of[column.name][0] == role}
        among = [column for column in columns if column.name in names and not terms.NUMBERED.search(names[column.name])]
        labels = [column for column in among if terms.LABEL.search(names[column.name])] or among
        found = [task for column in labels if (task := infer_task(column, residues)) is not None]
        by_name = f"by its name a {role}, and " if labels is among else ""
        for task in found:
            task.reason += f"; {by_name}learned as no other column holds labels: a guess"
        if found:
            return found
    return []


def _widen(task: InferredTask, members: Sequence[ColumnProfile]) -> None:
    """Give a task of several columns what all of them need: the texts that mean 'missing', a scale that holds all."""
    texts = dict.fromkeys(text for member in members for text in member.missing)
    if texts:
        task.settings["missing"] = [*MISSING, *texts]
    values = np.concatenate([member.values for member in members])
    if task.settings.get("transform") and np.nanmin(values) <= 0:
        del task.settings["transform"]


def _distinct_names(tasks: Sequence[InferredTask]) -> None:
    """Tasks whose columns differ only in their unit keep the name of the column."""
    names = [task.name for task in tasks]
    for task in tasks:
        if names.count(task.name) > 1:
            task.name = task.columns[0]
