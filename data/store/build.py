"""Building a token store from sources, or finding the one that was built before.

In: sources, settings. Out: a `TokenStore`. Kept: the store; after an interruption, what the build had committed, from
which the same call continues and ends with the same bytes.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from data.settings import AUTO, IngestSettings, LetterPolicy
from data.sources.block import JUDGED, RecordBlock, RejectedRecord, Source, num_bad
from data.sources.protein import BEGINNING_RECORDS, shown, wrong_content
from data.store.folder import discard, locked, remove_journal
from data.store.journal import FAILED, BuildJournal
from data.store.token_store import FACTS, FORMAT, REJECTED, TokenStore, read_facts
from data.store.writer import StoreWriter
from data.transport.retries import ConnectionLostError, SourceChangedError
from zymogen.console.progress import BuildProgress
from zymogen.console.safe_text import log
from zymogen.settings.extension import is_external
from zymogen.settings.origin import format_option

Progress = Callable[[int, int, int, int | None], None]
"""Called with records, residues, stored bytes of the sources that were read, and all their bytes (None if unknown)."""

BUDGET_RECORDS = 10_000
"""`max_bad_fraction` is checked each time so many more records were read, and at the end."""


class UnusableStoreError(ValueError):
    """What was read cannot become a store, so its files are removed, except those that are named.

    Args:
        message: what is wrong, and what to change.
        keep: names of the files to keep.
    """

    def __init__(self, message: str, keep: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.keep = keep


@dataclass(frozen=True, slots=True)
class BuildInputs:
    """What a store is built from, and the settings that decide its bytes."""

    sources: Sequence[Source]
    """They are read one after the other."""
    stamps: Sequence[list[str | int]]
    """The stamps that the sources had at the beginning."""
    unknown_letters: LetterPolicy
    """What to do with letters outside the alphabet."""
    ingest: IngestSettings
    """What sources hold, and the budget of bad records."""

    @classmethod
    def of(cls, sources: Sequence[Source], unknown_letters: LetterPolicy, ingest: IngestSettings) -> "BuildInputs":
        """The inputs with the stamps that the sources have now."""
        return cls(sources, [source.stamp() for source in sources], unknown_letters, ingest)

    @property
    def key(self) -> str:
        """Hash of everything that decides the bytes of a store and whether it can be built; 20 hexadecimal digits."""
        content = [FORMAT, self.unknown_letters, self.ingest.content, *map(list, self.stamps)]
        return hashlib.blake2b(json.dumps(content).encode(), digest_size=10).hexdigest()

    @property
    def reading(self) -> list[str]:
        """The settings that decide the bytes of a store: `find_built` compares them."""
        # A class of the user's stands first in the stamps of its files.
        own = {str(stamp[0]) for stamp in self.stamps if is_external(stamp[0])}
        return [self.unknown_letters, self.ingest.content, *sorted(own)]


def find_built(
    names: Sequence[str], store_dir: Path, unknown_letters: LetterPolicy, ingest: IngestSettings, format: str = AUTO
) -> Path | None:
    """Folder of the newest finished store of sources of these names, which are not asked what they hold now."""
    wanted = list(names), [unknown_letters, ingest.content, *([] if format == AUTO else [format])]
    for path in sorted(store_dir.glob(f"*/{FACTS}"), key=lambda each: each.stat().st_mtime, reverse=True):
        with suppress(ValueError):  # a store of another version
            facts = read_facts(path.parent)
            if (facts["sources"], facts.get("reading")) == wanted:
                return path.parent
    return None


def open_or_build(
    sources: Sequence[Source],
    store_dir: Path,
    unknown_letters: LetterPolicy,
    ingest: IngestSettings,
    *,
    progress: Progress | None = None,
) -> TokenStore:
    """The store of these sources: the one that was built before, or a new one.

    A store is reused if the sources' stamps (place, size, time of change) and the settings that decide its bytes are
    the same. If another process builds it already, this one waits. A build that was interrupted is continued.

    Args:
        sources: the sources, which are read one after the other.
        store_dir: folder of stores.
        unknown_letters: what to do with letters outside the alphabet.
        ingest: limits and budget.
        progress: called in place of the line on standard error.

    Raises:
        ValueError: a source cannot be read; there is a bad record, or there are more than the budget allows; there is
            no record at all; the disk is full. Then nothing is published. What was committed stays, unless the content
            itself is wrong.
    """
    inputs = BuildInputs.of(sources, unknown_letters, ingest)
    return _built(store_dir / inputs.key, inputs, progress)


def build_into(
    folder: Path,
    sources: Sequence[Source],
    unknown_letters: LetterPolicy,
    ingest: IngestSettings,
    *,
    progress: Progress | None = None,
) -> TokenStore:
    """`open_or_build` with a folder that the caller chooses.

    Raises:
        ValueError: as in `open_or_build`; or the folder holds a store of other sources or settings, finished or not;
            or it is neither empty nor ours (`data.store.folder`).
    """
    return _built(folder, BuildInputs.of(sources, unknown_letters, ingest), progress)


def _built(folder: Path, inputs: BuildInputs, progress: Progress | None) -> TokenStore:
    # Before the lock is taken, as a finished store may lie where nothing can be written.
    if (store := finished(folder, inputs)) is not None:
        return store
    text = f"{folder}: another process builds this store; waiting for it"
    with locked(folder, lambda: log(text)):
        try:
            with BuildProgress() if progress is None else nullcontext(progress) as line:
                store = build_exclusively(folder, inputs, line)
        except UnusableStoreError as error:  # its list of files to keep matters only to `build_exclusively`
            raise ValueError(str(error)) from None
    if progress is None and store.rejected:
        text = f"{folder}: left out {format_rejected(store.rejected)} ({REJECTED})"
        log(text)
    return store


def finished(folder: Path, inputs: BuildInputs) -> TokenStore | None:
    """The store in `folder`; None if it is not finished.

    Raises:
        ValueError: it is of other sources or settings, has more bad records than they allow, or is damaged.
    """
    if not (folder / FACTS).exists():
        return None
    store = TokenStore(folder)
    if store.facts["key"] != inputs.key:
        raise ValueError(
            f"{folder} holds a store of other sources or settings, those of {', '.join(store.facts['sources'][:3])}; "
            "choose another folder, or delete it"
        )
    num_read, budget = sum(store.rejected.values()) + store.num_records, inputs.ingest.max_bad_fraction
    _require_within_budget(folder, num_bad(store.rejected), num_read, budget)
    with suppress(OSError):  # the store is another user's, or lies where nothing can be written
        remove_journal(folder)  # left if a builder was killed between its last two steps
    return store


def build_exclusively(
    folder: Path, inputs: BuildInputs, progress: Progress, *, is_followed: bool = False
) -> TokenStore:
    """Find, continue or build the store in `folder`, whose lock the caller holds; see `open_or_build`.

    Args:
        folder: folder of the store.
        inputs: the sources to read, and the settings.
        progress: called after each block.
        is_followed: whether other processes read what was committed. It then stays, even if the rest is unusable.
    """
    if (store := finished(folder, inputs)) is not None:
        return store
    (folder / FAILED).unlink(missing_ok=True)
    sources, ingest = inputs.sources, inputs.ingest
    writer = StoreWriter(folder, inputs.key, is_followed=is_followed)
    try:
        if not ingest.max_bad_fraction:
            _require_none_bad(writer)
        sizes = [source.num_bytes for source in sources]
        for number in range(writer.journal.source, len(sources)):
            _read_source(writer, progress, sizes, number, inputs)
        journal = writer.journal
        _require_within_budget(folder, num_bad(journal.rejected), journal.num_read, ingest.max_bad_fraction)
        if not journal.counts.records:
            raise UnusableStoreError(f"no record in {', '.join(source.name for source in sources) or 'data.sources'}")
        writer.publish([source.name for source in sources], inputs.reading)
    except UnusableStoreError as error:
        if is_followed:
            writer.roll_back()
        else:
            writer.close()
            discard(folder, error.keep)
        raise
    except BaseException as failure:
        if isinstance(failure, ConnectionLostError):  # what was read before the connection was lost is valid
            with suppress(ValueError):
                writer.commit()
        writer.roll_back()
        if not writer.committed.num_read:
            discard(folder)
        raise
    return TokenStore(folder)


def _read_source(
    writer: StoreWriter, progress: Progress, sizes: Sequence[int | None], number: int, inputs: BuildInputs
) -> None:
    """Append what is left of the source of this number."""
    source = inputs.sources[number]
    done = sum(filter(None, sizes[:number]))
    total = None if None in sizes else sum(filter(None, sizes))
    # An earlier call that read far enough has checked the beginning.
    judged = inputs.ingest.content != "protein" or writer.journal.position.records >= BEGINNING_RECORDS
    try:
        for block in source.blocks(writer.journal.position):
            if not judged and (reason := wrong_content(block)):
                raise UnusableStoreError(f"{source.name}: {reason}")
            judged = True
            before, budget = writer.journal, inputs.ingest.max_bad_fraction
            bad = [record for record in block.rejected if num_bad({record.kind: 1})]
            if bad and not budget:
                _refuse(source, bad[0])
            writer.append(block, source.name)
            _require_share(block, bad, before, budget, writer.folder)
            counts = writer.journal.counts
            progress(counts.records, counts.residues, done + block.bytes_read, total)
    except SourceChangedError as error:
        raise UnusableStoreError(str(error)) from error
    if source.stamp() != inputs.stamps[number]:
        raise UnusableStoreError(f"{source.name} was changed while it was read; the same command reads it again")
    writer.end_source()


def _refuse(source: Source, bad: RejectedRecord) -> NoReturn:
    """Refuse a bad record, where none may be."""
    insist = format_option("data.ingest.content", "any", ", or ", " if they are proteins") * (bad.kind in JUDGED)
    share = " to the share that may be bad, such as 0.01"
    way = format_option("data.ingest.max_bad_fraction", None, ". To leave such records out, set ", share)
    raise UnusableStoreError(f"{source.name}: record {bad.record} ({shown(bad.header)}) {bad.reason}{way}{insist}")


def _require_share(
    block: RecordBlock, bad: Sequence[RejectedRecord], before: BuildJournal, budget: float, folder: Path
) -> None:
    """Check the bad records of a block that was read after `before` against the budget."""
    # After fixed numbers of records, not where blocks or commits happen to end, so that an interruption cannot change
    # the result.
    num_read = before.num_read + block.end.records - before.position.records
    asked = range(before.num_read // BUDGET_RECORDS + 1, num_read // BUDGET_RECORDS + 1)
    if asked:
        places = np.array([record.record for record in bad], np.int64)
        places += before.num_read - before.position.records
        for limit in (BUDGET_RECORDS * n for n in asked):
            count = num_bad(before.rejected) + int(np.count_nonzero(places <= limit))
            _require_within_budget(folder, count, limit, budget)


def _require_none_bad(writer: StoreWriter) -> None:
    """Refuse to continue, without a budget, a build that had one and has bad records; before anything is removed."""
    count = num_bad(writer.journal.rejected)
    if count:
        raise ValueError(
            f"{writer.folder} holds an unfinished store: {count} of {writer.journal.num_read} "
            f"records are bad, where {format_option('data.ingest.max_bad_fraction')} allows 0; give the "
            "max_bad_fraction that it was begun with to continue it, or delete the folder to begin again"
        )


def _require_within_budget(folder: Path, count: int, num_read: int, budget: float) -> None:
    if count > budget * num_read:
        raise UnusableStoreError(
            f"{count} of {num_read} records are bad, a fraction of {count / num_read:.3g}, where "
            f"{format_option('data.ingest.max_bad_fraction')} allows {budget:g}; {folder / REJECTED} lists them with "
            "reasons: correct them, or raise max_bad_fraction to leave them out",
            keep=(REJECTED,),
        )


def format_rejected(rejected: Mapping[str, int]) -> str:
    """How many records were left out and why, such as "3 records: 2 nucleotides, 1 gap"."""
    count = sum(rejected.values())
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in rejected.items())
    return f"{count:,} record{'' if count == 1 else 's'}: {kinds}"
