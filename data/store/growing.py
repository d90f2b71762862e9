"""Streaming: training from a token store that another process is still writing.

In: settings of a corpus. Out: the folder of its store, and `GrowingStore`, which waits for records. Kept: the store, so
that the first pass can be resumed from the records on disk.

One builder per node reads the sources. Every rank and every worker waits until it has committed the records that they
need, so a slow source costs time but never changes the order.
"""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from data.settings import CorpusSettings, IngestSettings, LetterPolicy
from data.store.folder import is_held
from data.store.journal import FAILED, failure, read_journal, write_failure
from data.store.token_store import FACTS, PATIENCE_S, StoreCounts, TokenStore

if TYPE_CHECKING:  # what building needs is imported where a store is built, so that reading needs no parser
    from data.sources.block import Source
    from data.store.builder_process import MessageSender

_POLL_S = 0.05
_ALIVE_S = 2.0
"""How long a store may be without a builder, after one has ended and before another takes over."""

_builders: list[subprocess.Popen[bytes]] = []


def start_builder(
    corpus: "CorpusSettings | Sequence[Source]",
    unknown_letters: LetterPolicy,
    ingest: IngestSettings,
    store_dir: Path,
) -> Path:
    """Start a process that begins or continues the store of `corpus`, and that ends when this process ends.

    If another process builds it already, the new one waits, and takes over if that one ends before it has finished.

    Args:
        corpus: what names the sources, or these.
        unknown_letters: what to do with letters outside the alphabet.
        ingest: limits and budget.
        store_dir: folder of stores.

    Returns:
        Folder of the store, for `GrowingStore`, here or in other processes.

    Raises:
        ValueError: the sources cannot be found.
    """
    from data.store.builder_process import messages, start

    process = start(_serve, corpus, unknown_letters, ingest, store_dir)
    _builders.append(process)
    folder = Path(next(messages(process, "the token store"))["folder"])
    assert process.stdout is not None
    process.stdout.close()  # later errors are written into the folder
    return folder


def _serve(
    send: "MessageSender",
    corpus: "CorpusSettings | Sequence[Source]",
    unknown_letters: LetterPolicy,
    ingest: IngestSettings,
    store_dir: Path,
) -> None:
    """Build the store of a corpus unless it is finished, and `send` its folder."""
    if isinstance(corpus, CorpusSettings):
        from data.sources.resolve import resolve

        found = resolve(corpus, unknown_letters, ingest, store_dir)
        if found.store is not None:
            send(folder=str(found.store))
            return
        corpus = found.sources
    from data.store.build import BuildInputs, build_exclusively, finished
    from data.store.folder import locked

    inputs = BuildInputs.of(corpus, unknown_letters, ingest)
    folder = store_dir / inputs.key
    if finished(folder, inputs) is not None:
        send(folder=str(folder))
        return
    with locked(folder, lambda: send(folder=str(folder))):
        (folder / FAILED).unlink(missing_ok=True)
        send(folder=str(folder))
        try:
            build_exclusively(folder, inputs, lambda *_: None, is_followed=True)
        except ValueError as error:
            write_failure(folder, str(error))
        except Exception as error:
            write_failure(folder, f"the builder of {folder} failed, {type(error).__name__}: {error}")
            raise


class GrowingStore(TokenStore):
    """A token store that may still be written; the records up to the last call of `wait` can be read.

    Args:
        folder: folder of the store, as `start_builder` returned it.
        store_dir: as for a `TokenStore`.
    """

    is_growing = True
    _patience_s = PATIENCE_S  # another machine may have finished it just now

    def __init__(self, folder: Path, store_dir: Path | None = None) -> None:
        super().__init__(folder, store_dir)
        self._committed, self._finished = StoreCounts(), False
        self._refresh()

    @property
    def counts(self) -> StoreCounts:
        """How much can be read: what was committed at the last call of `wait`."""
        return super().counts if self._finished else self._committed

    def wait(self, num_records: int) -> int:
        """Wait until the store has `num_records` records, or is finished.

        Returns:
            `num_records`, or the number of all records if that is less.

        Raises:
            ValueError: the build failed; the message is the builder's.
            RuntimeError: no process builds the store.
        """
        if not self._finished and num_records <= self._committed.records:
            return num_records
        alone_since = time.monotonic()
        while True:
            self._refresh()
            if self._finished:
                return min(num_records, self.counts.records)
            if (message := failure(self.folder)) is not None:
                raise ValueError(message)
            if num_records <= self._committed.records:
                return num_records
            now = time.monotonic()
            if is_held(self.folder):
                alone_since = now
            elif now > alone_since + _ALIVE_S and not (self.folder / FACTS).exists():
                raise RuntimeError(
                    f"{self.folder}: its builder ended before the store was finished, after "
                    f"{self._committed.records} records; start the run again, it continues from there"
                )
            time.sleep(_POLL_S)

    def _refresh(self) -> None:
        if self._finished:
            return
        if (self.folder / FACTS).exists():
            self._finished = True
        elif (journal := read_journal(self.folder)) is not None:
            self._committed = max(self._committed, journal.counts)
