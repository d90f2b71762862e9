"""What a run has read of a stream: it can be continued only if that part is unchanged.

In: a store that may still be growing, and a cursor. Out: how many records the windows up to the cursor hold, and a hash
of their digests in order. Kept: the hash so far, so that the next call reads only the records that were added.

A finished store has a fingerprint, which covers everything in it. A run reads a stream before it is complete, so the
stream is identified by the part that was read. What comes after that part may still change.
"""

from collections.abc import Mapping
from typing import Any

from data.order.plan import Cursor
from data.order.sampler import CORPUS_BITS
from data.store.growing import GrowingStore
from data.store.token_store import hash_of, new_hash


class StreamIdentity:
    """The identity of the records that a run's windows have reached.

    Args:
        store: the stream.
        window_sequences: records of a window.
    """

    def __init__(self, store: GrowingStore, window_sequences: int) -> None:
        self._store, self._window_sequences = store, window_sequences
        self._records, self._hash = 0, new_hash()

    def up_to(self, cursor: Cursor) -> dict[str, Any]:
        """`records`, the number of records in the windows up to the cursor's, and `hash`, that of their digests.

        Waits for these records. After the first pass they are all records, as the order of a later pass depends on
        their number.
        """
        end = (cursor.window + 1) * self._window_sequences
        records = self._store.wait(1 << CORPUS_BITS if cursor.epoch else end)
        if records < self._records:
            self._records, self._hash = 0, new_hash()
        with (self._store.folder / "digests.bin").open("rb", buffering=0) as file:
            file.seek(8 * self._records)
            hash_of(file, 8 * (records - self._records), self._hash)
        self._records = records
        return {"records": records, "hash": self._hash.hexdigest()}

    def require(self, kept: Mapping[str, Any], cursor: Cursor) -> None:
        """Check that the records up to `cursor` are unchanged; waits until the store holds them.

        Raises:
            ValueError: they differ from those of `kept`, which `up_to` returned at this cursor.
        """
        found = self.up_to(cursor)
        if found != kept:
            raise ValueError(
                f"{self._store.folder}: the stream has changed where the run has read it already: {_said(found)}, "
                f"and the checkpoint was written after {_said(kept)}; restore the files of data.sources as they were "
                "(what was not read yet may change), or choose another run.directory"
            )


def _said(consumed: Mapping[str, Any]) -> str:
    return f"{consumed.get('records')} records with hash {consumed.get('hash')}"
