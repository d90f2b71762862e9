"""The words of a look on the screen, in three parts: the columns and what is in them, relatives, what is proposed.

In: what was found. Out: lines. Kept: nothing. A part is said as soon as it is known.
"""

import shlex
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from finetune.look.column_profile import ColumnProfile
from finetune.look.draft_data import DraftData
from finetune.look.estimate import RunEstimate
from finetune.look.infer_task import InferredTask
from finetune.look.protein_columns import ProteinColumns
from finetune.look.roles import ColumnRoles
from finetune.look.sizes import LONGEST, RunSizes
from finetune.look.split_proposal import ProposedSplit
from finetune.tables.table import Table, truncate_cell
from zymogen.console.format import aligned, count, duration
from zymogen.settings.section import listed

_aligned = partial(aligned, columns=110, indent="  ")
_lines = partial(_aligned, name_columns=11)
_MOST_TASKS = 20
_NAMED = 60
_DIFFER = 0.05
"""Share of labels that are means of rows under different conditions, above which a note says so."""
_FEW_LABELS = 30
"""Labels below which a task has words of warning."""


def format_columns(table: Table, columns: Sequence[ColumnProfile], roles: ColumnRoles) -> list[str]:
    """The file, and what each column is."""
    lines = [f"{table.name}: {table.num_rows:,} rows, {len(columns)} columns"]
    lines += _aligned([("", "; ".join(table.said))], name_columns=1) if table.said else []
    lines += ["", "columns"]
    by_name = {column.name: column for column in columns}
    width = min(28, max(len(name) for name in roles.of))
    kind_width = max(len(kind) for kind, _ in roles.of.values())
    shown: dict[tuple[str, str], list[str]] = {}
    for name, of in roles.of.items():
        shown.setdefault(of if of[0] != "task" else (name, ""), []).append(name)
    tasks = [name for name, (kind, _) in roles.of.items() if kind == "task"]
    for names in shown.values():
        if names[0] in tasks[_MOST_TASKS:]:
            continue
        name, (kind, reason) = names[0], roles.of[names[0]]
        if "by its name" in reason and "guess" not in reason:
            reason += "; a guess"
        if len(names) > 1:
            reason += f" (and {len(names) - 1} more such column{'s' * (len(names) > 2)}, the last {names[-1]!r})"
        missing = 1 - by_name[name].num_measured / max(table.num_rows, 1)
        more = f"; {missing:.0%} missing" if missing >= 0.005 and kind == "task" else ""
        head = f"{truncate_cell(name, width):{width}}  {kind:{kind_width}}"
        lines += _aligned([(head, reason + more)], name_columns=len(head) + 1)
    if len(tasks) > _MOST_TASKS:
        lines += _aligned(
            [("", f"and {len(tasks) - _MOST_TASKS:,} more tasks: {listed(tasks[_MOST_TASKS:], _NAMED)}")],
            name_columns=1,
        )
    return lines + _doubts(roles)


def _doubts(roles: ColumnRoles) -> list[str]:
    """Which tasks may have been computed or set, which columns a name alone left out, and what to type if so."""
    rows = []
    if any(roles.of[name][0] == "task" for name in roles.unsure):
        learned = [name for task in roles.tasks for name in task.columns if roles.of[name][0] == "task"]
        sure = [name for name in learned if name not in roles.unsure]
        named = shlex.join([word for name in sure for word in ("--task", name)])
        instead = f"{named} learns without" if 0 < len(sure) <= _MOST_TASKS else "--task names what was measured"
        doubtful = [name for name in roles.unsure if name in learned]
        said = f"{listed(doubtful, _NAMED)}: a guess, as no name, unit or bound says that this was measured"
        rows.append(("note", f"{said}; {instead}"))
    if left := [name for name, (kind, reason) in roles.of.items() if kind != "task" and "by its name" in reason]:
        rows.append(("note", f"{listed(left, _NAMED)}: left out by name alone; --task COLUMN learns one of them"))
    return ["", *_lines(rows)] if rows else []


def format_proteins(table: Table, found: DraftData, place: ProteinColumns) -> list[str]:
    """Proteins and labels."""
    proteins = found.proteins
    used = int(np.count_nonzero(proteins.record_of_row >= 0))
    lengths = np.sort(proteins.num_residues - np.diff(proteins.linkers)[:, 0])  # without what joins two chains
    span = f"{lengths[0]} to {lengths[-1]} residues, half of them up to {lengths[len(lengths) // 2]}"
    if lengths[0] == lengths[-1]:
        span = f"{lengths[0]} residues each"
    more = used - proteins.num_records
    duplicates = f"; {count(more, 'row')} {'repeats' if more == 1 else 'repeat'} one" if more else ""
    none = table.num_rows - used
    without = f"; {count(none, 'row')} {'has' if none == 1 else 'have'} none" if none else ""
    rows = [("proteins", f"{proteins.num_records:,} distinct, {span}{duplicates}{without}")]
    repeated = f"{used} rows are of {proteins.num_records} distinct proteins"  # said above
    rows += [("note", text) for text in (*proteins.said, *place.notes) if text != repeated]
    for inferred, task in zip(found.inferred[:_MOST_TASKS], found.tasks[:_MOST_TASKS], strict=True):
        rows.append(("task", f"{task.settings.name}: {_labels(inferred, task.labels)}"))
        if len(task.outputs) > 1 and inferred.settings.get("conditions"):
            columns = " and ".join(map(repr, inferred.settings["conditions"]))
            rows.append(("", f"{len(task.outputs):,} outputs, one for each value of {columns}"))
    for task in found.tasks[:_MOST_TASKS]:
        labels = task.labels
        if labels.replicates is not None and labels.spread is not None:
            differ = (labels.replicates > 1) & np.isnan(labels.spread)
            rows += [("note", text) for text in task.said if differ.mean() > _DIFFER and "which differ in" in text]
    if len(found.tasks) > _MOST_TASKS:
        rows.append(("", f"and {len(found.tasks) - _MOST_TASKS:,} more tasks"))
    few = [task.settings.name for task in found.tasks if len(task.labels.values) < _FEW_LABELS]
    if few:
        said = f"too few labels to judge a model by: fewer than {_FEW_LABELS} of {', '.join(map(repr, few[:5]))}"
        rows.append(("note", f"{said}{f' and {len(few) - 5} more' if len(few) > 5 else ''}"))
    return ["", "found", *_lines(rows)]


def format_relatives(split: ProposedSplit) -> list[str]:
    """Who is related to whom."""
    return _lines([("relatives", split.audited)]) if split.audited else []


def format_draft(model: str, split: ProposedSplit, chosen: RunSizes, expected: RunEstimate | str) -> list[str]:
    """What is proposed, and what it takes."""
    learns = "frozen encoder, heads learn" if chosen.kind == "frozen" else "LoRA adapters and heads learn"
    runs = f" for {split.settings['folds']} runs together" if split.settings.get("folds") else ""
    rows = [
        ("model", model),
        ("learns", learns),
        ("split", split.reason),
        *(("", f"not {text}") for text in split.rejected),
        *(("", f"or {text}") for text in split.alternatives),
        *(("left out", f"{name}: {why}") for name, why in split.left_out.items()),
        ("step", f"{count(chosen.bins_per_step, 'bin')} of {chosen.bin_tokens:,} slots, crop {chosen.crop_tokens}"),
        ("length", f"{chosen.epochs} epochs of about {chosen.steps_per_epoch} steps, a validation every "
                   f"{chosen.evaluate_every}, ended after {chosen.patience} that are no better"),
    ]  # fmt: skip
    if isinstance(expected, str):
        rows.append(("time", f"not measured: {expected}"))
    else:
        train, end = (duration(max(1.0, seconds)) for seconds in (expected.seconds, expected.end_s))
        rows.append(
            ("time", f"at most about {train} of training{runs}, then {end} of predictions, {expected.how}; baselines "
                     "and the search for relatives come on top")
        )  # fmt: skip
        rows.append(("memory", f"about {expected.memory_bytes / 1e9:.1f} GB for a process, measured"))
    if chosen.crop_tokens > LONGEST:
        rows.append(("note", f"joined chains are longer than the {LONGEST} tokens that ESM-2 was trained on"))
    return ["", "proposed", *_lines(rows)]


def _labels(inferred: InferredTask, labels: Any) -> str:
    kind = inferred.settings["type"] + (" of residues" if inferred.settings.get("level") == "residue" else "")
    words = f"{kind}, {len(labels.values):,} labels"
    if labels.replicates is not None:
        words += f", {int((labels.replicates > 1).sum()):,} of them made of several measurements"
    if labels.spread is not None:
        differ, torn = (
            (np.nan_to_num(labels.spread) > 0).sum(),
            (np.isnan(labels.spread) & (labels.replicates > 1)).sum(),
        )
        words += f", {differ:,} of which differ" if differ else ""
        words += f", {torn:,} of which are of rows that differ in another column or in a bound" if torn else ""
    if labels.censoring is not None:
        words += f", {int((labels.censoring != 0).sum()):,} bounds"
    return words
