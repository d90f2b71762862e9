"""The assays of a run, opened: which proteins, which labels, and which part of the split each is in.

In: a recipe. Out: `Assays`: the plan of the training bins, the bins of other parts, what fills them. Kept: the stores
of proteins and labels under data.store_dir, which the first rank of each node builds while the others wait.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.batches.packed import bins_of
from data.corpus.reader import CorpusReader
from data.order.plan import SPECIAL_TOKENS, Bin, Plan
from data.order.sampler import Epochs
from data.order.weighted_epochs import WeightedEpochs
from data.settings import IngestSettings
from data.sources.tables import ID_COLUMNS, SEQUENCE_COLUMNS
from data.store.build import open_or_build
from data.store.token_store import TokenStore, new_hash
from finetune.labels.contents import LabelledContents
from finetune.labels.locate import TableRows
from finetune.labels.objectives import counts_by_part, labelled_records, objectives
from finetune.labels.other_columns import UnusedColumns
from finetune.labels.read import TaskLabels, TaskReadFacts, read_task
from finetune.labels.sampling import SampleGroup, TrainingSamples, groups_of
from finetune.labels.store import LabelStore, write
from finetune.recipe import AssaySettings, Recipe
from finetune.splits.audit import SplitAudit, audit
from finetune.splits.balance import balance_groups
from finetune.splits.parts import NAMES, TEST, TRAIN, VALIDATION, SplitParts, SplitRecords
from finetune.splits.settings import SplitSettings
from finetune.splits.split import Split, split_records
from finetune.splits.variants import of_rows
from finetune.tables.proteins import TableProteins, proteins_of
from finetune.tables.read import read_table
from finetune.tables.table import Table, concatenate_tables
from finetune.tasks.columns import columns_of
from finetune.tasks.task import Task
from zymogen import keyed_random
from zymogen.console.progress import ProgressBar
from zymogen.trainer.engine.engine import Engine

_DIVIDING = ("column", "validation_column")
"""Settings of a split that name columns."""
_FEWEST_OF_HALF = 40
"""Validation records that choose the checkpoint, and that calibrate, at least, where these are apart."""


class PreparedAssays(NamedTuple):
    """What `open_assays` opens; it is sent to other ranks."""

    proteins: Path
    """Folder of the token store."""
    labels: Path
    """Folder of the label store."""
    tasks: tuple[TaskReadFacts, ...]
    division: Split
    said: tuple[str, ...]
    """What was decided about the tables, for the user."""
    tables: Mapping[str, NDArray[np.int64]]
    """Location of each of several tables -> the records that it has a row of, rising."""


@dataclass(frozen=True)
class Assays:
    """Everything that a run trains on and is scored on."""

    settings: AssaySettings
    store: TokenStore
    labels: LabelStore
    tasks: tuple[TaskLabels, ...]
    division: Split
    parts: SplitParts
    """The parts of this run: those of the split, or of one of its folds."""
    said: tuple[str, ...]
    tables: Mapping[str, NDArray[np.int64]]
    """Location of each of several tables -> the records that it has a row of, rising."""

    def of_fold(self, fold: int) -> "Assays":
        """The assays of the run that predicts one fold."""
        return replace(self, parts=self.division.parts.of_fold(fold))

    @cached_property
    def objectives(self) -> tuple[Task, ...]:
        """The tasks with what their training labels decide.

        Raises:
            ValueError: a task cannot be trained.
        """
        return objectives(self.tasks, self.parts.part == TRAIN)

    @cached_property
    def is_labelled(self) -> NDArray[np.bool_]:
        """(N,) whether a record has any label."""
        return np.asarray(np.logical_or.reduce([np.diff(task.labels.pointers) > 0 for task in self.tasks]))

    def records(self, part: int) -> NDArray[np.int64]:
        """The records of a part that have a label, rising."""
        return np.flatnonzero((self.parts.part == part) & self.is_labelled)

    @property
    def chosen_on(self) -> str:
        """What chooses the checkpoint: "validation", or "training" where no validation record has a label."""
        return "validation" if len(self.records(VALIDATION)) else "training"

    @cached_property
    def calibrates(self) -> NDArray[np.bool_]:
        """(N,) whether a validation record calibrates and does not choose the checkpoint: half of the groups.

        None with folds, where other folds calibrate, and none where either half would have fewer than 40 records.
        """
        records, is_half = self.records(VALIDATION), np.zeros(self.store.num_records, np.bool_)
        if not self.parts.num_folds and len(records) >= 2 * _FEWEST_OF_HALF:
            numbers = np.unique(self.parts.group[records], return_inverse=True)[1]
            is_half[records] = balance_groups(numbers, self.parts.digests[records], (0.5, 0.5), 0)[numbers] == 1
            is_half &= _FEWEST_OF_HALF <= is_half.sum() <= len(records) - _FEWEST_OF_HALF
        return is_half

    def drawn_of_training(self, seed: int, most: int) -> NDArray[np.int64]:
        """At most so many labelled training records, by a keyed draw, rising."""
        records = self.records(TRAIN)
        order = np.argsort(keyed_random.hashes(keyed_random.key(seed, keyed_random.MEMBER), records), kind="stable")
        return np.sort(records[order[:most]])

    @cached_property
    def reader(self) -> CorpusReader:
        """The residues of all records."""
        return CorpusReader([self.store.folder])

    def plan(self, seed: int) -> Plan:
        """The plan of the training bins."""
        groups, window = self._drawn, self.settings.window_sequences
        sampler: Epochs | WeightedEpochs = Epochs(TrainingSamples(self._trains), seed, window)
        if groups:
            sampler = WeightedEpochs(
                [group.records for group in groups], [group.draws for group in groups], seed, window
            )
        return Plan(sampler, self.reader.num_residues, self.settings, seed)

    def num_seen(self, seed: int, epochs: int) -> int:
        """Number of training records that the first epochs draw, at least one of them."""
        sampler = self.plan(seed).sampler
        return sampler.distinct(epochs) if isinstance(sampler, WeightedEpochs) else int(self._trains.sum())

    @property
    def _trains(self) -> NDArray[np.bool_]:
        """(N,) whether a record trains."""
        return np.asarray((self.parts.part == TRAIN) & self.is_labelled)

    @property
    def _drawn(self) -> list[SampleGroup]:
        """The groups that an epoch draws from; none where it draws each training record once."""
        return groups_of(self.settings.temperature, self._trains, self.tables)

    @property
    def contents(self) -> LabelledContents:
        """What fills a bin."""
        return LabelledContents(self.reader, self.settings, self.labels)

    def bins(self, records: NDArray[np.int64]) -> list[Bin]:
        """Whole proteins in bins, for evaluation: every record once, in an order that follows from these alone."""
        if not len(records):
            return []
        lengths = self.reader.num_residues(records) + SPECIAL_TOKENS
        return bins_of(records, np.zeros_like(records), lengths, self.settings)

    @property
    def fingerprint(self) -> str:
        """Hash of the proteins and of all labels, and of which table each is of where that decides what is drawn."""
        if self.settings.temperature == 1:
            return self.labels.fingerprint
        members = (records.astype("<i8").tobytes() for records in self.tables.values())
        return new_hash(b"\0".join([self.labels.fingerprint.encode(), *members])).hexdigest()

    def labels_by_part(self) -> dict[str, dict[str, list[int]]]:
        """Task -> part -> number of labels of each of its outputs."""
        parts = {NAMES[part]: self.parts.part == part for part in (TRAIN, VALIDATION, TEST)}
        return {
            task.settings.name: {name: counts.tolist() for name, counts in counts_by_part(task, parts).items()}
            for task in self.tasks
        }

    def audited(self, settings: SplitSettings, init: str | None) -> SplitAudit | None:
        """The audit of the whole split, by what is scored; None where nothing that is tested has a label.

        Raises:
            ValueError: MMseqs2 failed.
        """
        parts, identities = self.division.parts, settings.audited_identities
        if not (self.is_labelled & ((parts.part == TEST) | (parts.fold >= 0))).any():
            return None
        labelled, conditioned = labelled_records(self.tasks), [t for t in self.tasks if t.settings.conditions]
        with ProgressBar("auditing the split", after_s=2.0):
            return audit(
                self.store,
                parts,
                labelled,
                identities,
                init,
                settings.search_pretraining,
                labelled_records(conditioned).keys() & labelled.keys(),
            )

    def facts(self) -> list[tuple[str, str]]:
        """(name, text) for readers: proteins, the split, tasks and their labels."""
        counts = {NAMES[part]: len(self.records(part)) for part in (TRAIN, VALIDATION, TEST)}
        shown = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        lines = [("proteins", f"{self.store.num_records:,} distinct: {shown}"), ("split", self.division.method)]
        lines += [("table", f"{name}: {len(records):,} distinct") for name, records in self.tables.items()]
        lines += [
            ("drawn", f"{group.draws:,} an epoch of the {len(group.records):,} training proteins of {group.name}")
            for group in self._drawn
        ]
        by_part = self.labels_by_part()
        for task in self.tasks:
            several = f", {len(task.outputs):,} tasks" if len(task.outputs) > 1 else ""
            labels = ", ".join(f"{sum(count):,} {name}" for name, count in by_part[task.settings.name].items())
            lines.append(("task", f"{task.settings.name}: {task.settings.type}{several}; labels: {labels}"))
        return lines

    def description(self) -> dict[str, Any]:
        """The description for run.json."""
        return {
            "fingerprint": self.fingerprint,
            "split": self.parts.fingerprint,
            "store": str(self.store.folder),
            "records": self.store.num_records,
            "parts": self.parts.counts(),
            "divided": {"method": self.division.method, "notes": list(self.division.notes)},
            "labels": self.labels_by_part(),
            "said": list(self.said),
            "tables": {name: len(records) for name, records in self.tables.items()},
            "drawn": {group.name: {"records": len(group.records), "draws": group.draws} for group in self._drawn},
        }


def prepare(recipe: Recipe) -> PreparedAssays:
    """Read the tables, build their stores, or find them, and divide them; called by one process of each node.

    Rows are divided before labels are read, so that a row that is in no part gives none.

    Raises:
        ValueError: a table, a task or the split is wrong; the message names file, row and column.
    """
    settings = recipe.data
    with ProgressBar(f"reading {' and '.join(settings.table)}", after_s=2.0):
        tables = [read_table(name) for name in settings.table]
        needed = ((column, f"split.{name}") for name in _DIVIDING if (column := getattr(recipe.split, name)))
        table = concatenate_tables(tables, settings, list(needed))
        proteins = proteins_of(table, settings, settings.crop_tokens, settings.ingest.content).by_content()
    ingest = IngestSettings(content=settings.ingest.content)
    store = open_or_build([proteins], Path(settings.store_dir), settings.unknown_letters, ingest)
    division, tasks, of_row = split_and_read(recipe, table, proteins, store)
    labels = write(store, {task.settings.name: task.labels for task in tasks}, proteins.linkers)
    opened = tuple(TaskReadFacts(task.settings, task.outputs, task.classes, task.unit, task.said) for task in tasks)
    said = (*table.said, *proteins.said, *(line for task in tasks for line in task.said), *division.notes)
    return PreparedAssays(store.folder, labels.folder, opened, division, said, _of_tables(table, of_row))


def split_and_read(
    recipe: Recipe, table: Table, proteins: TableProteins, store: TokenStore | None = None
) -> tuple[Split, list[TaskLabels], NDArray[np.int64]]:
    """Divide the rows of a table, and read the labels of those that have a part.

    Args:
        recipe: the recipe.
        table: the table, or tables that were joined.
        proteins: its proteins.
        store: their token store, for splits that compare sequences.

    Returns:
        The split; the labels of each task; and the record of each row, -1 for one that gives no label.

    Raises:
        ValueError: as for `prepare`.
    """
    records = SplitRecords(table, proteins.record_of_row, proteins.digests, store)
    with ProgressBar("dividing the records", after_s=2.0):
        mutations = of_rows(records, proteins.mutated, proteins.wild_types)
        division = split_records(recipe.split, records, proteins.ids, mutations)
    of_row = np.where(division.used, proteins.record_of_row, -1)
    with ProgressBar("reading the labels", after_s=2.0):
        others = UnusedColumns.of(table, _columns_read(recipe, table))
        rows = TableRows(table, of_row, proteins.num_records, proteins, proteins.ids, others)
        tasks = [read_task(rows, task, recipe.data.decimal) for task in recipe.tasks]
    return division, tasks, of_row


def _columns_read(recipe: Recipe, table: Table) -> set[str | None]:
    """Columns whose values a recipe uses, so that they say nothing of why two rows of one label differ."""
    settings = recipe.data
    columns = {settings.id, settings.protein, *settings.sequence, *settings.mutation, *ID_COLUMNS, *SEQUENCE_COLUMNS}
    columns |= {column for name in _DIVIDING if (column := getattr(recipe.split, name))}
    for task in recipe.tasks:
        columns |= {*columns_of(task, table.columns, table.name), task.unit_column, *task.conditions}
    return columns | {column for column in table.columns if column.strip().lower() in columns}


def _of_tables(table: Table, record_of_row: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """The records of each table that a table was joined from."""
    rows = np.split(record_of_row, [origin.first for origin in table.origins[1:]])
    found = [np.unique(of_rows[of_rows >= 0]) for of_rows in rows]
    return {origin.name: of_table for origin, of_table in zip(table.origins, found, strict=False)}


def open_assays(recipe: Recipe, prepared: PreparedAssays) -> Assays:
    """Open what was prepared; the same on every process of a node.

    Raises:
        ValueError: a store was changed, or a task cannot be trained.
    """
    store_dir = Path(recipe.data.store_dir)
    store = TokenStore(prepared.proteins, store_dir)
    labels = LabelStore(prepared.labels, prepared.proteins, store_dir)
    tasks = tuple(
        TaskLabels(task.settings, task.outputs, task.classes, task.unit, task.said, labels.labels(number))
        for number, task in enumerate(prepared.tasks)
    )
    division = prepared.division
    return Assays(recipe.data, store, labels, tasks, division, division.parts, prepared.said, prepared.tables)


def open_on_every_rank(recipe: Recipe, engine: Engine) -> Assays:
    """Find or build the stores and open them; collective.

    Raises:
        ValueError: a file is at fault, or nodes hold different ones; `PeerError` on the other ranks.
    """
    prepared = engine.on_each_node(lambda: prepare(recipe))
    assays = open_assays(recipe, prepared)
    seen: Sequence[tuple[str, str]] = engine.gather((assays.fingerprint, assays.parts.fingerprint))
    for rank, other in enumerate(seen):
        if other != seen[0]:
            raise ValueError(
                f"rank {rank} has other assays than rank 0: labels and split {other}, rank 0 has {seen[0]}; "
                "data.table must name the same content on every node"
            )
    return assays
