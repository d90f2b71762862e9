"""Stages of a curriculum: in a corpus that is smaller than a window they end where they say, elsewhere as ever."""

from itertools import islice

import numpy as np
import pytest
from numpy.typing import NDArray

from data.order.packing import pack
from data.order.plan import Bin, Cursor, Plan, crop, next_cursor, stage_end, stage_value
from data.order.sampler import CORPUS_BITS, Epochs, Mixture, Sampler
from data.settings import DataSettings
from support.inputs.raw_store import Records
from zymogen import keyed_random

ENDS = (5_000, 12_000)
CURRICULUM = ((ENDS[0], 20), (ENDS[1], 40))
BASE = {"sources": ("-",), "crop_tokens": 60, "bin_tokens": 128, "bins_per_step": 4}
LENGTHS = np.random.default_rng(0).integers(1, 150, 400)


def num_residues(samples: NDArray[np.int64]) -> NDArray[np.int64]:
    return LENGTHS[samples & ((1 << CORPUS_BITS) - 1)]


def plan(window: int, records: int = 400, *, mixed: bool = False, **settings: object) -> Plan:
    chosen = DataSettings(**BASE | {"window_sequences": window, "curriculum": CURRICULUM} | settings)
    sampler: Sampler = Epochs(Records(records), 0, window)
    if mixed:
        sampler = Mixture([Records(records), Records(50)], (3, 1), 0, window)
    return Plan(sampler, num_residues, chosen, 0)


def before_stages_were_cut(p: Plan, cursor: Cursor) -> list[tuple[list[int], list[int], list[int]]]:
    """The bins of a window by the rules of before: one stage for all of it."""
    items, settings = p.sampler.window(cursor.epoch, cursor.window), p.settings
    assert items is not None
    longest = stage_value(settings.curriculum, settings.crop_tokens, cursor.tokens_before_window)
    starts, lengths = crop(*items, num_residues(items.samples), longest, p.seed)
    groups = pack(lengths, settings.bin_tokens, settings.documents_per_bin)
    key = keyed_random.key(p.seed, keyed_random.BIN_ORDER, cursor.epoch, cursor.window)
    bins = [groups.bins()[b] for b in np.argsort(keyed_random.hashes(key, np.arange(groups.num_bins)), kind="stable")]
    return [(items.samples[of].tolist(), starts[of].tolist(), lengths[of].tolist()) for of in bins]


def content(bins: list[Bin]) -> list[tuple[list[int], list[int], list[int]]]:
    return [(b.samples.tolist(), b.starts.tolist(), b.lengths.tolist()) for b in bins]


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("window", [1000, 401])
def test_below_a_window_a_stage_ends_with_the_document_that_reaches_it(window: int, mixed: bool) -> None:
    if mixed:
        window += 50
    bins = [b for b, _ in islice(plan(window, mixed=mixed).bins(Cursor()), 300)]
    seen, first = 0, {}
    for packed in bins:
        longest = int(packed.lengths.max())
        for crop_tokens in (20, 40):
            if longest > crop_tokens:
                first.setdefault(crop_tokens, seen)
        seen += packed.num_tokens
    assert ENDS[0] <= first[20] < ENDS[0] + 20
    assert ENDS[1] <= first[40] < ENDS[1] + 40
    assert seen > 20_000


def test_by_the_rules_of_before_the_stage_lasted_a_whole_pass() -> None:
    """The control: what the cut changes."""
    bins = before_stages_were_cut(plan(1000), Cursor())
    assert sum(len(lengths) for _, _, lengths in bins) == 400
    assert max(max(lengths) for _, _, lengths in bins) == 20
    assert sum(sum(lengths) for _, _, lengths in bins) > ENDS[0] + 1000
    assert content(plan(1000).window(0, 0, 0) or []) != bins


@pytest.mark.parametrize(
    ("window", "mixed", "curriculum"),
    [
        *((64, False, CURRICULUM), (400, False, CURRICULUM), (64, True, CURRICULUM), (450, True, CURRICULUM)),
        *((64, False, ()), (1000, False, ()), (1000, True, ())),
    ],
)
def test_other_runs_keep_their_order_to_the_byte(
    window: int, mixed: bool, curriculum: tuple[tuple[int, int], ...]
) -> None:
    """Those without a curriculum, and those of a corpus that fills a window."""
    p = plan(window, mixed=mixed, curriculum=curriculum)
    cursor, windows = Cursor(), 0
    while cursor.tokens_before_window < 90_000:
        bins = p.window(cursor.epoch, cursor.window, cursor.tokens_before_window)
        if bins is None:
            cursor = Cursor(epoch=cursor.epoch + 1, tokens_before_window=cursor.tokens_before_window)
            continue
        assert content(bins) == before_stages_were_cut(p, cursor)
        cursor, windows = next_cursor(cursor, bins), windows + 1
    assert windows > 1


@pytest.mark.parametrize("mixed", [False, True])
def test_after_its_last_stage_a_small_corpus_is_ordered_as_ever(mixed: bool) -> None:
    for begin in (ENDS[1], 10**9):
        cursor = Cursor(epoch=0 if mixed else 3, window=3 if mixed else 0, tokens_before_window=begin)
        p = plan(1000, mixed=mixed)
        bins = p.window(cursor.epoch, cursor.window, begin) or []
        assert content(bins) == before_stages_were_cut(p, cursor)


def test_a_pass_with_stages_holds_every_sample_once_and_the_cursor_is_the_whole_state() -> None:
    p = plan(1000)
    for epoch in (0, 1):
        bins = p.window(epoch, 0, 0) or []
        assert sorted(np.concatenate([b.samples for b in bins]).tolist()) == list(range(400))
    stream = list(islice(p.bins(Cursor()), 400))
    assert stream[-1][1].epoch > 1
    for at in (1, 40, 41, 100, 170, 333):
        resumed = list(islice(plan(1000).bins(stream[at - 1][1]), 30))
        assert [(content([a]), c) for a, c in resumed] == [(content([b]), d) for b, d in stream[at : at + 30]]


def test_the_order_of_bins_is_drawn_for_each_stage() -> None:
    """A stage's bins are not shuffled among those of the stage before, nor all in the order of their composition."""
    bins = plan(1000).window(0, 0, 0) or []
    before = np.cumsum([0, *(b.num_tokens for b in bins)]).tolist()
    first = [b for b, seen in zip(bins, before, strict=False) if seen < ENDS[0]]
    second = [b for b, seen in zip(bins, before, strict=False) if ENDS[0] + 20 <= seen < ENDS[1]]
    assert len(first) > 30 < len(second)
    arrival = {s: place for place, s in enumerate(plan(1000).sampler.window(0, 0).samples.tolist())}  # type: ignore[union-attr]
    for part in (first, second):
        places = [min(arrival[s] for s in b.samples.tolist()) for b in part]
        assert places != sorted(places)
    assert max(arrival[s] for b in first for s in b.samples.tolist()) < min(
        arrival[s] for b in second for s in b.samples.tolist()
    )


def test_where_a_stage_ends() -> None:
    stages = ((100, 64), (250, 128))
    assert [stage_end(stages, seen) for seen in (0, 99, 100, 249, 250)] == [100, 100, 250, 250, None]
    assert stage_end((), 0) is None
