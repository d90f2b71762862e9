"""What a run has read of a stream is bound; what comes after it is not."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from data.corpus.consumed import StreamIdentity
from data.order.plan import Cursor
from data.settings import IngestSettings
from data.store import growing as stream
from data.store.growing import GrowingStore
from data.store.token_store import new_hash
from support.inputs.seeded_source import SeededSource
from support.inputs.stream_builders import is_finished, start_builder_of
from support.inputs.token_stores import Proteins, changed, proteins, store_from, store_of

WINDOW = 50


@pytest.fixture(autouse=True)
def _builders(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield
    while stream._builders:
        builder = stream._builders.pop()
        builder.kill()
        builder.wait()


@pytest.fixture
def consumed_of(tmp_path: Path) -> Callable[[Proteins], StreamIdentity]:
    def of(content: Proteins) -> StreamIdentity:
        return StreamIdentity(GrowingStore(store_of(tmp_path, content).folder), WINDOW)

    return of


def at(window: int, epoch: int = 0) -> Cursor:
    return Cursor(epoch=epoch, window=window, bin=1)


def test_it_is_the_hash_of_the_digests_of_the_windows_that_were_reached(consumed_of, tmp_path: Path) -> None:
    consumed = consumed_of(proteins(175))
    digests = store_from(tmp_path / "proteins.fasta", tmp_path).digests

    def expected(records: int) -> dict[str, Any]:
        return {"records": records, "hash": new_hash(digests[:records].tobytes()).hexdigest()}

    # One after the other, and, as after a resume, at once; also backwards.
    for window, epoch, records in ((0, 0, 50), (1, 0, 100), (3, 0, 175), (0, 1, 175), (2, 7, 175), (0, 0, 50)):
        assert consumed.up_to(at(window, epoch)) == expected(records)
        assert consumed_of(proteins(175)).up_to(at(window, epoch)) == expected(records)


@pytest.mark.parametrize(
    ("change", "cursor", "same"),
    [
        (lambda p: p, at(1), True),
        (lambda p: [(f"other {name}", letters) for name, letters in p], at(1), True),
        (lambda p: changed(p, 99), at(1), False),
        (lambda p: changed(p, 0), at(1), False),
        (lambda p: changed(p, 100), at(1), True),
        (lambda p: p[1::-1] + p[2:], at(1), False),
        (lambda p: p[:100], at(1), True),
        (lambda p: p[:99], at(1), False),
        (lambda p: p + proteins(9, seed=1), at(1), True),
        (lambda p: p + proteins(9, seed=1), at(3), False),  # the last window was not full, and now holds more
        (lambda p: p + proteins(9, seed=1), at(0, epoch=1), False),
        (lambda p: changed(p, 174), at(0, epoch=1), False),
    ],
    ids=[
        *("same", "headers", "last read", "first", "first unread", "order", "cut after", "cut before"),
        *("longer", "longer in the last window", "longer in the second pass", "changed in the second pass"),
    ],
)
def test_what_was_read_is_bound(
    consumed_of, change: Callable[[Proteins], Proteins], cursor: Cursor, same: bool
) -> None:
    content = proteins(175)
    kept = consumed_of(content).up_to(cursor)
    resumed = consumed_of(change(content))
    if same:
        resumed.require(kept, cursor)
        return
    with pytest.raises(ValueError, match="the stream has changed where the run has read it already") as caught:
        resumed.require(kept, cursor)
    assert f"after {kept['records']} records with hash {kept['hash']}; restore the files of data.sources" in str(
        caught.value
    )


@pytest.mark.slow
def test_a_resume_waits_for_the_records_that_it_had(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    whole, slow = SeededSource("s", gate_at=0), SeededSource("s", gate=gate, gate_at=300)
    kept = StreamIdentity(GrowingStore(start_builder_of([whole], "count", IngestSettings(), tmp_path / "a")), WINDOW)
    early, late = kept.up_to(at(5)), kept.up_to(at(6))
    store = GrowingStore(start_builder_of([slow], "count", IngestSettings(), tmp_path / "b"))
    consumed = StreamIdentity(store, WINDOW)
    consumed.require(early, at(5))
    assert not is_finished(store.folder)
    waited_for: list[int] = []

    def wait(records: int) -> int:  # the source continues once a caller waits for it
        waited_for.append(records)
        gate.touch()
        return GrowingStore.wait(store, records)

    store.wait = wait  # type: ignore[method-assign]
    consumed.require(late, at(6))
    assert waited_for == [350]
