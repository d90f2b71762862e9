"""How columns of numbers belong together: units, bounds, copies, replicates, constants that are fitted to a series.

In: columns, in an order of their own. Out: which column belongs to which. Kept: nothing.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from finetune.look import terms
from finetune.look.column_profile import ColumnProfile
from finetune.look.columns.conditions import numbered
from finetune.tables.numbers import is_unit, molar, name_and_unit
from finetune.tasks.cells import BOUND_WORDS, normalize_bound

_REPLICATES_AGREE, _SAID_TO_AGREE = 0.5, 0.2
"""Correlation from which on columns of one name with numbers are replicates of each other; of a name that says so."""
_SHIFT = 1.0
"""Distance of the means, in standard deviations, from which on columns of one name with numbers are no replicates."""
_SUMMARY, _NEARLY_ALL = 0.9, 0.98
_FEW = 10
"""Rows below which a correlation means nothing, and names alone decide."""
_SERIES = 3
"""Columns whose names are numbers that make a series of doses or times."""
_ONE = 0.9999
"""Correlation of two columns of which one follows from the other."""
_NAMES = ("id", "protein", "wild type", "mutation", "sequence")
"""Roles of columns whose copy is no label."""
_MONOTONE, _EVEN = "as ordered as", 0.25
_FILLED, _FILLINGS = "with gaps filled", 3
"""Number of values by which gaps of equal numbers may be filled."""
_IN_MOST, _MOSTLY = "in most rows equal to", 0.8
"""Share of rows in which numbers are equal, of which none is that of half the rows."""
_LEAST_ROWS = 20
"""Rows from which on numbers in one order are those of one measurement."""
_RATE = 0.9
"""Correlation of a rate with the share of one count in another."""
_MOST_COMPARED = 60
"""Columns of numbers up to which each is compared with each; of more, equal ones are found alone."""
_ENDS = ("upper", "lower", "censored")
_FLAGS = (*_ENDS, "1", "yes", "true", "y", "t")
"""Words of bounds whose direction the numbers show."""
_COMPANION = re.compile(
    r"\b(?:units?|relations?|signs?|qualifiers?|operators?|modifiers?|prefix|censor\w*|is|bounds?|type|values?|limit)\b"
)
"""Words that a number's name and that of its unit or bound do not share."""


def units_and_bounds(
    columns: Sequence[ColumnProfile], numbers: Sequence[ColumnProfile]
) -> tuple[dict[str, tuple[str, str]], dict[str, ColumnProfile], dict[str, tuple[ColumnProfile, dict[str, int]]]]:
    """Columns that say of another one what its unit is, or which of its numbers are bounds.

    Args:
        columns: that may be of units or bounds.
        numbers: of numbers that may be labels.

    Returns:
        Column -> (role, reason); number -> column of its units; number -> column of its bounds, and the direction of
        each text there: 1 where the true value is above the number, -1 below.
    """
    roles: dict[str, tuple[str, str]] = {}
    units: dict[str, ColumnProfile] = {}
    bounds: dict[str, tuple[ColumnProfile, dict[str, int]]] = {}
    bases = {number.name: _base(number.name) for number in numbers}
    for column in columns:
        name, texts = terms.plain(column.name), column.texts
        is_called = terms.UNIT.search(name) is not None
        are_units = texts and all(map(is_unit, texts)) and column.numbers is None
        is_of_units = are_units and (is_called or all(molar(text) or "/" in text for text in texts))
        others = [number for number in numbers if number is not column]
        directions = {} if is_of_units else _directions(column, name, others)
        if (not is_of_units and not directions) or terms.RESIDUE.search(name):
            continue
        owner = _owner(column, others, bases)
        if is_of_units:
            roles[column.name] = "unit", f"of each number in {owner.name!r}" if owner else "of which number is not said"
            units |= {owner.name: column} if owner else {}
            continue
        roles[column.name] = "bound", "which numbers are bounds; tasks.bound_column reads it with its number"
        if owner is not None:
            found = _resolved(column, directions, owner)
            said = ", ".join(f"{text!r} above" if found[text] > 0 else f"{text!r} below" for text in found)
            roles[column.name] = "bound", f"of {owner.name!r}, where the true value is: {said}"
            bounds[owner.name] = column, found
    return roles, units, bounds


def _directions(column: ColumnProfile, name: str, numbers: Sequence[ColumnProfile]) -> dict[str, int | None]:
    """Text -> 1, -1, or None where numbers show which, of a column of bounds; empty if it is none.

    Flags such as 'yes' are of bounds only where there are `numbers` that they may be about.
    """
    texts = [text for text in column.all.texts if text.casefold() not in terms.NOT_MEASURED or text == "none"]
    unclear = _FLAGS if numbers and re.search(r"censor|\bbound|saturat|off ?scale|\blo[dq]\b", name) else _ENDS
    if not all(normalize_bound(text) in BOUND_WORDS or normalize_bound(text) in unclear for text in texts):
        return {}
    return {text: found for text in texts if (found := BOUND_WORDS.get(normalize_bound(text))) != 0}


def _resolved(column: ColumnProfile, directions: Mapping[str, int | None], owner: ColumnProfile) -> dict[str, int]:
    """Directions, where a word such as 'upper' is of the end of the numbers at which its rows are."""
    found = {}
    for text, direction in directions.items():
        mine = column.all.over_rows(np.array([each == text for each in column.all.texts]), column.num_rows, False)
        known = ~np.isnan(owner.values)
        above = np.median(owner.values[mine & known]) if (mine & known).any() else np.inf
        others = np.median(owner.values[~mine & known]) if (~mine & known).any() else -np.inf
        found[text] = direction if direction is not None else (1 if above >= others else -1)
    return found


def _owner(column: ColumnProfile, numbers: Sequence[ColumnProfile], bases: Mapping[str, str]) -> ColumnProfile | None:
    """The column of numbers that another one is about: by their names, or as it is the only one."""
    base = _base(column.name)
    named = [each for each in numbers if base and bases[each.name] == base]
    named = named or [each for each in numbers if base and bases[each.name].startswith(f"{base} ")]
    return named[0] if len(named) == 1 else numbers[0] if len(numbers) == 1 else None


def _base(name: str) -> str:
    return " ".join(_COMPANION.sub(" ", terms.plain(name_and_unit(name)[0])).split())


def find_copies(columns: Sequence[ColumnProfile], repeated: Collection[str] = ()) -> dict[str, tuple[str, str]]:
    """Columns whose numbers are those of another one: equal, in another unit or scale, or their logarithm.

    The one that is kept has bounds, or is the logarithm, or has the shorter name. Of columns that are `repeated`, as
    their names call them replicates, equal ones alone are copies.
    """
    roles: dict[str, tuple[str, str]] = {}
    kept: dict[bytes, list[ColumnProfile]] = {}
    numeric = [column for column in columns if column.numbers is not None]
    for column in sorted(numeric, key=lambda each: (not each.num_censored, len(each.name))):
        near = kept.setdefault(b"" if len(numeric) <= _MOST_COMPARED else column.values.tobytes(), [])
        for at, other in enumerate(near):
            relation = _relation(column.values, other.values)
            if not relation or (relation not in ("equal to", _FILLED) and {column.name, other.name} & {*repeated}):
                continue
            more = (column.num_measured - other.num_measured) * (-1 if relation == _FILLED else 1)
            is_finer = relation == _MONOTONE and _fineness(column.values) > _fineness(other.values)
            is_log = relation == "the logarithm of" and not other.num_censored
            if more > 0 or (more == 0 and (is_log or is_finer)):
                roles[other.name] = "copy", f"the same measurement is in {column.name!r}"
                near[at] = column
            else:
                said = "the same numbers as in" if relation == "equal to" else f"its numbers are {relation} those in"
                roles[column.name] = "copy", f"{said} {other.name!r}"
            break
        else:
            near.append(column)
    return roles


def _fineness(values: NDArray[np.float64]) -> tuple[bool, int]:
    """Whether steps between numbers differ, as those between ranks do not; and how many numbers differ."""
    distinct = np.unique(values[~np.isnan(values)])
    steps = np.diff(distinct)
    return bool(np.ptp(steps) > _EVEN * steps.mean()), len(distinct)


def match_renamed(columns: Sequence[ColumnProfile]) -> dict[str, tuple[str, str]]:
    """Columns of classes that are another one's under other names, such as TRUE for 1."""
    kept: dict[bytes, str] = {}
    roles: dict[str, tuple[str, str]] = {}
    has_no_name = {each.name: terms.WITHOUT_NAME.search(terms.plain(each.name)) is not None for each in columns}
    for column in sorted(columns, key=lambda each: (has_no_name[each.name], _are_codes(each), len(each.name))):
        of_rows = numbered(column)
        _, first, codes = np.unique(of_rows, return_index=True, return_inverse=True)
        in_order = np.argsort(np.argsort(first))[codes]  # numbered from the first row on, whatever their texts are
        if column.num_measured >= _LEAST_ROWS and 2 <= len(column.texts) <= column.num_measured // 3:
            other = kept.setdefault((of_rows < 0).tobytes() + in_order.tobytes(), column.name)
            roles |= {column.name: ("copy", f"the same classes as in {other!r}")} if other != column.name else {}
    fullest = sorted((each for each in columns if each.name in kept.values()), key=lambda each: -each.num_measured)
    for column in (each for each in fullest if each.num_measured < each.num_rows):
        for whole in fullest[:_MOST_COMPARED]:
            if whole.num_measured > column.num_measured and _are_renamed(numbered(column), numbered(whole)):
                roles[column.name] = "copy", f"the same classes as in {whole.name!r}, with gaps"
    return roles


def _are_codes(column: ColumnProfile) -> bool:
    """Whether numbers are 0, 1, 2 and so on, which may stand for classes that another column names."""
    return column.numbers is not None and 2 < len(column.texts) == np.ptp(column.values[~np.isnan(column.values)]) + 1


def is_coarser(classes: NDArray[np.int64], others: NDArray[np.int64]) -> bool:
    """Whether each class of another column, of which there are more, is in one of these; in all rows that have one."""
    pairs = np.stack([classes, others])[:, classes >= 0]
    kinds = [len(np.unique(each)) for each in pairs]
    return bool((pairs >= 0).all() and 1 < kinds[0] < kinds[1] == np.unique(pairs, axis=1).shape[1])


def _are_renamed(part: NDArray[np.int64], whole: NDArray[np.int64]) -> bool:
    """Whether each class of one column is one of another column, in all rows that have it."""
    pairs = np.stack([part, whole])[:, part >= 0]
    kinds = [len(np.unique(each)) for each in pairs]
    return bool((pairs >= 0).all() and kinds[0] == kinds[1] == np.unique(pairs, axis=1).shape[1] > 1)


def of_no_label(
    columns: Sequence[ColumnProfile], others: Sequence[tuple[ColumnProfile, str]]
) -> dict[str, tuple[str, str]]:
    """Columns that repeat an id or a protein, and numbers from which a predictor made its classes.

    Args:
        columns: that may be labels.
        others: each with its role.
    """
    ids = {_content(other): other.name for other, role in others if role in _NAMES}
    predictions = [other for other, role in others if role == "prediction"]
    roles: dict[str, tuple[str, str]] = {}
    for column in columns:
        base = terms.plain(column.name).rpartition(" ")[0]
        for other in predictions if base else ():
            if terms.plain(other.name).startswith(f"{base} ") and is_thresholded(column.values, numbered(other)):
                roles[column.name] = "prediction", f"a threshold in it gives each class in {other.name!r}"
        if _content(column) in ids:
            roles[column.name] = "copy", f"the same texts as in {ids[_content(column)]!r}"
    return roles


def _content(column: ColumnProfile) -> tuple[Sequence[str], bytes, bytes]:
    """What two columns of equal cells have in common."""
    return column.texts, column.cells.rows.tobytes(), column.cells.which.tobytes()


def is_thresholded(values: NDArray[np.float64], classes: NDArray[np.int64]) -> bool:
    """Whether each class, -1 for none, is an interval of the numbers."""
    both = ~np.isnan(values) & (classes >= 0)
    found = classes[both][np.argsort(values[both], kind="stable")]
    return len(found) >= _FEW and 0 < np.count_nonzero(np.diff(found)) == len(np.unique(found)) - 1


def _relation(values: NDArray[np.float64], others: NDArray[np.float64]) -> str:
    """What numbers are to others, in words; empty if they are something else."""
    mine, theirs = ~np.isnan(values), ~np.isnan(others)
    known = mine & theirs
    if known.sum() < max(3, min(mine.sum(), theirs.sum())):
        return ""
    a, b = values[known], others[known]
    if np.array_equal(values, others, equal_nan=True):
        return "equal to"
    alone = np.where(mine, values, others)[mine ^ theirs]
    if known.sum() >= _LEAST_ROWS and np.mean(a == b) > _NEARLY_ALL and len(np.unique(alone)) <= _FILLINGS < len(alone):
        return _FILLED
    if (
        known.sum() >= _LEAST_ROWS
        and np.mean(a == b) > _MOSTLY
        and np.unique(a, return_counts=True)[1].max() < len(a) / 2
    ):
        return _IN_MOST
    if len(np.unique(a)) < _FEW:
        return ""
    if abs(correlation(a, b)) > _ONE:
        return "on another scale than"
    for first, second, said in ((a, b, "the logarithm of"), (b, a, "a power of")):
        if second.min() > 0 and abs(correlation(first, np.log(second))) > _ONE > abs(correlation(first, second)):
            return said
    sign = 1 if a[np.argmax(b)] > a[np.argmin(b)] else -1
    steps = np.diff(sign * b[np.lexsort((sign * b, a))])
    return _MONOTONE if len(a) >= _LEAST_ROWS and len(np.unique(b)) >= _FEW and (steps >= 0).all() else ""


def counts_of_rates(columns: Sequence[ColumnProfile]) -> dict[str, tuple[str, str]]:
    """Two columns of whole numbers, of which one is never above the other, and which a third one divides."""
    roles: dict[str, tuple[str, str]] = {}
    numeric = [column for column in columns if column.numbers is not None][:_MOST_COMPARED]
    of_counts = [
        each
        for each in numeric
        if len(each.texts) > 2 and np.nanmin(each.values) >= 0 and not (np.nan_to_num(each.values) % 1).any()
    ]
    for total, part in permutations(of_counts, 2):
        known = (total.values > 0) & (part.values >= 0)
        if known.sum() < _LEAST_ROWS or not (part.values[known] <= total.values[known]).all():
            continue
        share = part.values[known] / total.values[known]
        for rate in (each for each in numeric if each not in of_counts and not np.isnan(each.values[known]).any()):
            if correlation(share, rate.values[known]) > _RATE:
                said = f"{part.name!r} of {total.name!r} is what {rate.name!r} gives as a rate"
                roles |= {total.name: ("count", said), part.name: ("count", said)}
    return roles


def replicates(
    columns: Sequence[ColumnProfile],
) -> tuple[list[tuple[str, list[ColumnProfile], str]], dict[str, tuple[str, str]]]:
    """Groups of columns that repeat one measurement, in words too, and the roles of those that another one sums up."""
    roles: dict[str, tuple[str, str]] = {}
    numeric = [column for column in columns if column.numbers is not None]
    by_name = {name_and_unit(column.name)[0].strip(): column for column in numeric}
    families: dict[str, list[ColumnProfile]] = {}
    numbers: dict[str, list[int]] = {}
    said_so: set[str] = set()
    for column in numeric:
        name = terms.REPLICATE_FIRST.sub(r"\g<base>_\g<repeat>", name_and_unit(column.name)[0].strip())
        found = terms.REPLICATE.fullmatch(name)
        if found is None or not found["base"].strip(" _-.#("):
            continue
        base = found["base"].strip(" _-.#(")
        if base.isdigit() and not any(sign in column.name for sign in "_-. #"):
            continue
        families.setdefault(base, []).append(column)
        numbers.setdefault(base, []).append(int(found["number"]))
        said_so |= {base} if found["word"] and len(found["word"]) > 2 else set()
    groups: list[tuple[str, list[ColumnProfile], str]] = []
    num_summed_up = 0
    of_means = [column for column in numeric if terms.SUMMARY.search(terms.plain(column.name))]
    summing = {terms.SUMMARY.sub("", terms.plain(column.name)).strip(): column for column in of_means}
    for base, members in families.items():
        own = by_name.get(base) or summing.get(terms.plain(base))
        everyone = [*([own] if own is not None else []), *members]
        is_series = not _count_up(numbers[base], base in by_name) or terms.SERIES.search(terms.plain(base))
        if len(everyone) < 2 or (is_series and base not in said_so) or not _agree(everyone, base in said_so):
            continue
        if own is not None and _is_summary(own, members):
            num_summed_up += 1
            roles |= {each.name: ("replicate", f"of {own.name!r}, which sums them up") for each in members}
        else:
            doubt = "" if base in said_so else ", which their numbers alone say: a guess; --task learns one of them"
            groups.append((base, everyone, f"{len(everyone)} replicates, whose mean is learned{doubt}"))
    repeated = {column.name for _, everyone, _ in groups for column in everyone}
    for base, members in families.items() if num_summed_up > 1 else ():
        if len(members) == 1 and base not in by_name and members[0].name not in repeated:
            roles[members[0].name] = "replicate", f"of {base!r}, which has no column of its own as the others have"
    return groups, roles


def _count_up(numbers: Collection[int], has_own: bool) -> bool:
    """Whether numbers are those of repeats: from 0 or 1 on, or from 1 or 2 on after a column without one."""
    begin = min(numbers)
    return 0 <= begin - has_own <= 1 and sorted(numbers) == [*range(begin, begin + len(numbers))]


def _agree(columns: Sequence[ColumnProfile], said_so: bool) -> bool:
    """Whether columns rise and fall together; of few rows, whether their names call them replicates."""
    first, least = columns[0].values, _SAID_TO_AGREE if said_so else _REPLICATES_AGREE
    for column in columns[1:]:
        both = ~np.isnan(first) & ~np.isnan(column.values)
        a, b = first[both], column.values[both]
        if not (said_so if len(a) < _FEW else correlation(a, b) > least):
            return False
        if not said_so and abs(a.mean() - b.mean()) > _SHIFT * max(a.std(), b.std()):
            return False  # such as a first and a second melting point
    return True


def _is_summary(column: ColumnProfile, members: Sequence[ColumnProfile]) -> bool:
    """Whether a column is the mean of others, or nearly so."""
    values = np.array([member.values for member in members])
    counts = (~np.isnan(values)).sum(axis=0)
    means = np.where(counts > 0, np.nansum(values, axis=0) / np.maximum(counts, 1), np.nan)
    both = ~np.isnan(means) & ~np.isnan(column.values)
    if len(members) < 2 or not both.any():
        return False
    equal = np.isclose(means[both], column.values[both], rtol=1e-4, atol=1e-6).mean()
    return bool(equal > _SUMMARY or (both.sum() >= _FEW and correlation(means[both], column.values[both]) > _SUMMARY))


def correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """The correlation of numbers, 0 where all of one are equal."""
    if not np.ptp(a) or not np.ptp(b):
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def fits(columns: Sequence[ColumnProfile]) -> dict[str, tuple[str, str]]:
    """Constants that were fitted to a series of doses in the same table."""
    numeric = [column for column in columns if column.numbers is not None]
    series = [each.name for each in numeric if each.name.strip().replace(".", "", 1).isdigit()]
    if len(series) < _SERIES:
        return {}
    said = f"fitted to the series {series[0]}, ..., {series[-1]}, which is learned itself; --task reads it instead"
    return {each.name: ("fit", said) for each in numeric if terms.FITTED.search(terms.plain(each.name))}
