"""The plan: every sample once a pass, bins that hold, crops that are fair, and a cursor that is the whole state."""

from itertools import islice, product

import numpy as np
import pytest
from numpy.typing import NDArray

from data.order.plan import Bin, Cursor, Plan, crop
from data.order.sampler import CORPUS_BITS, Epochs, Mixture
from data.settings import DataSettings
from support.inputs.raw_store import Records

BASE = {"sources": ("-",), "crop_tokens": 60, "bin_tokens": 128, "bins_per_step": 4, "window_sequences": 64}
SETTINGS = DataSettings(**BASE)
LENGTHS = np.random.default_rng(0).integers(1, 150, 300)


def num_residues(samples: NDArray[np.int64]) -> NDArray[np.int64]:
    return LENGTHS[samples & ((1 << CORPUS_BITS) - 1)]


def plan(seed: int = 0, settings: DataSettings = SETTINGS) -> Plan:
    return Plan(Epochs(Records(300), seed, settings.window_sequences), num_residues, settings, seed)


def mixed(seed: int = 0) -> Plan:
    return Plan(Mixture([Records(300), Records(50)], (3, 1), seed, 64), num_residues, SETTINGS, seed)


def one_pass(p: Plan, epoch: int = 0) -> list[Bin]:
    stream = (b for b, after in p.bins(Cursor(epoch=epoch)) if after)
    bins: list[Bin] = []
    while (next_bin := next(stream)).epochs[0] == epoch:
        bins.append(next_bin)
    return bins


def same(a: Bin, b: Bin) -> bool:
    arrays = ("samples", "epochs", "starts", "lengths")
    return all(np.array_equal(getattr(a, f), getattr(b, f)) for f in arrays)


@pytest.mark.parametrize("epoch", [0, 1])
def test_every_sample_once_a_pass(epoch: int) -> None:
    bins = one_pass(plan(), epoch)
    assert np.array_equal(np.sort(np.concatenate([b.samples for b in bins])), np.arange(300))
    assert plan().window(epoch, 4, 0) is not None
    assert plan().window(epoch, 5, 0) is None  # several windows, the last one short


def test_bins_hold_what_they_say() -> None:
    for packed in one_pass(plan()):
        assert 0 < packed.num_tokens <= 128
        total = LENGTHS[packed.samples] + 2
        assert np.array_equal(packed.lengths, np.minimum(total, 60))
        assert (packed.starts >= 0).all()
        assert (packed.starts + packed.lengths <= total).all()


def test_the_stream_is_the_windows_in_order_across_passes() -> None:
    expected: list[Bin] = []
    for epoch, window in product((0, 1), range(5)):
        before = sum(b.num_tokens for b in expected)
        expected += plan().window(epoch, window, before) or ()
    streamed = [b for b, _ in islice(plan().bins(Cursor()), len(expected))]
    assert all(same(a, b) for a, b in zip(streamed, expected, strict=True))


@pytest.mark.parametrize("make", [plan, mixed])
def test_the_cursor_is_the_whole_state(make) -> None:
    stream = list(islice(make().bins(Cursor()), 400))
    for at in (1, 17, 63, 64, 200, 333):
        resumed = list(islice(make().bins(stream[at - 1][1]), 30))
        assert all(same(a, b) and c == d for (a, c), (b, d) in zip(resumed, stream[at : at + 30], strict=True))
    assert max(stream[399][0].epochs) > 0


@pytest.mark.parametrize("make", [plan, mixed])
def test_the_cursor_counts_the_tokens_before_its_window(make) -> None:
    seen, before = 0, Cursor()
    for packed, after in islice(make().bins(Cursor()), 300):
        if (after.epoch, after.window) != (before.epoch, before.window):
            assert after.tokens_before_window == seen
        seen += packed.num_tokens
        before = after
    assert before.window + before.epoch > 2


@pytest.mark.parametrize("make", [plan, mixed])
def test_controls_another_seed_or_cursor_is_another_stream(make) -> None:
    first = [b for b, _ in islice(make().bins(Cursor()), 20)]
    other = [b for b, _ in islice(make(seed=1).bins(Cursor()), 20)]
    shifted = [b for b, _ in islice(make().bins(Cursor(bin=1)), 20)]
    assert not any(same(a, b) for a, b in zip(first, other, strict=True))
    assert not any(same(a, b) for a, b in zip(first, shifted, strict=True))


def test_bins_of_every_window_are_shuffled_anew() -> None:
    """With one document a bin, the place of each bin is that of its document's arrival."""

    def order(epoch: int, window: int) -> list[int]:
        whole = Plan(Epochs(Records(300), 0, 64), lambda samples: np.full(len(samples), 126), SETTINGS, 0)
        one_each = Plan(whole.sampler, whole.num_residues, DataSettings(**BASE | {"crop_tokens": 128}), 0)
        arrived = one_each.sampler.window(epoch, window)
        assert arrived is not None
        places = {sample: place for place, sample in enumerate(arrived.samples.tolist())}
        return [places[int(b.samples[0])] for b in one_each.window(epoch, window, 0) or ()]

    orders = [order(0, 0), order(0, 1), order(1, 0)]
    assert all(sorted(each) == list(range(64)) for each in orders)
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert orders[0] != list(range(64))


def test_the_curriculum_lengthens_crops_by_tokens_seen() -> None:
    settings = DataSettings(**BASE, curriculum=((5_000, 20), (12_000, 40)))
    stages: list[tuple[int, int]] = []
    for packed, after in islice(plan(settings=settings).bins(Cursor()), 400):
        stages.append((after.tokens_before_window, int(packed.lengths.max())))
    for before, longest in stages:
        assert longest <= (20 if before < 5_000 else 40 if before < 12_000 else 60)
    assert {20, 40, 60} <= {longest for _, longest in stages}
    # A cursor in the middle finds its stage without what came before.
    stream = list(islice(plan(settings=settings).bins(Cursor()), 300))
    assert all(
        same(a, stream[150 + i][0]) for i, (a, _) in enumerate(islice(plan(settings=settings).bins(stream[149][1]), 50))
    )


def test_passes_crop_anew() -> None:
    def starts(epoch: int) -> dict[int, int]:
        bins = one_pass(plan(), epoch)
        return {int(s): int(t) for b in bins for s, t in zip(b.samples, b.starts, strict=True)}

    first, second = starts(0), starts(1)
    assert np.mean([first[s] == second[s] for s in np.flatnonzero(LENGTHS > 100).tolist()]) < 0.1


def test_crops_reach_every_start_alike() -> None:
    samples = np.arange(40_000)
    starts, taken = crop(samples, samples * 0, np.full(40_000, 67), 60, seed=3)  # 69 tokens: starts 0 to 9
    assert (taken == 60).all()
    counts = np.bincount(starts, minlength=10)
    assert len(counts) == 10
    assert ((counts - 4000) ** 2 / 4000).sum() < 27.9  # 99.9 % quantile with 9 degrees of freedom


def test_a_crop_is_keyed_by_the_pass_of_each_sample() -> None:
    samples = np.arange(1000)
    residues = np.full(1000, 500)
    alone = [crop(samples, np.full(1000, p), residues, 60, 0)[0] for p in (0, 1)]
    together, _ = crop(samples, samples % 2, residues, 60, 0)
    assert np.array_equal(together, np.where(samples % 2, alone[1], alone[0]))


def test_nothing_to_train_on_is_an_error_not_a_loop() -> None:
    empty = Plan(Epochs(Records(0), 0, 64), num_residues, SETTINGS, 0)
    with pytest.raises(ValueError, match="no sequence to train on"):
        next(empty.bins(Cursor()))
