"""Samplers: every training record once a pass, shares as weighted, any window from its number alone."""

import numpy as np
import pytest

from data.order.sampler import CORPUS_BITS, Epochs, Mixture, WindowSamples
from support.inputs.raw_store import Records

WINDOW = 64


def one_pass(sampler: Epochs, epoch: int) -> list[WindowSamples]:
    windows = []
    while (items := sampler.window(epoch, len(windows))) is not None:
        windows.append(items)
    return windows


@pytest.mark.parametrize("epoch", [0, 3])
def test_a_pass_holds_every_training_record_once(epoch: int) -> None:
    held_out = frozenset(range(0, 300, 7))
    windows = one_pass(Epochs(Records(300, held_out), 0, WINDOW), epoch)
    samples = np.concatenate([w.samples for w in windows])
    assert len(windows) == 5  # the last one short
    assert np.array_equal(np.sort(samples), [r for r in range(300) if r not in held_out])
    assert all((w.epochs == epoch).all() for w in windows)


def test_passes_and_seeds_differ() -> None:
    orders = [
        np.concatenate([w.samples for w in one_pass(Epochs(Records(300), seed, WINDOW), epoch)]).tolist()
        for seed, epoch in ((0, 0), (0, 1), (1, 0))
    ]
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert orders[0] != sorted(orders[0])


def test_a_stream_comes_in_order_once_and_permuted_after() -> None:
    sampler = Epochs(Records(200, streamed=True), 0, WINDOW)
    first, second = (np.concatenate([w.samples for w in one_pass(sampler, p)]).tolist() for p in (0, 1))
    assert first == list(range(200))
    assert second != first
    assert sorted(second) == first


def test_what_is_held_out_leaves_the_order_of_the_rest() -> None:
    everything = one_pass(Epochs(Records(300), 0, WINDOW), 0)[2].samples.tolist()
    fewer = one_pass(Epochs(Records(300, frozenset({everything[5]})), 0, WINDOW), 0)[2].samples.tolist()
    assert fewer == everything[:5] + everything[6:]


SIZES, WEIGHTS = (500, 40, 1000), (5, 1, 3)


def mixture(seed: int = 0, window: int = WINDOW) -> Mixture:
    return Mixture([Records(size) for size in SIZES], WEIGHTS, seed, window)


def test_shares_follow_the_weights_and_windows_are_full() -> None:
    windows = [mixture().window(0, w) for w in range(90)]
    assert all(len(w.samples) == WINDOW for w in windows)
    corpora = np.concatenate([w.samples for w in windows]) >> CORPUS_BITS
    drawn = np.bincount(corpora)
    exact = 90 * WINDOW * np.array(WEIGHTS) / sum(WEIGHTS)
    assert (np.abs(drawn - exact) <= 1).all()


def test_each_corpus_goes_round_in_its_own_passes() -> None:
    windows = [mixture().window(0, w) for w in range(90)]
    samples, passes = (np.concatenate(arrays) for arrays in zip(*windows, strict=True))
    for number, size in enumerate(SIZES):
        mine = samples >> CORPUS_BITS == number
        records = samples[mine] & ((1 << CORPUS_BITS) - 1)
        for epoch in range(int(passes[mine].max())):  # every pass but the last, which is not over
            assert np.array_equal(np.sort(records[passes[mine] == epoch]), np.arange(size)), (number, epoch)
    assert passes[samples >> CORPUS_BITS == 1].max() > 10  # the small one has had many passes


def test_corpora_are_mixed_inside_a_window() -> None:
    corpora = mixture().window(0, 7).samples >> CORPUS_BITS
    assert np.count_nonzero(np.diff(corpora)) > WINDOW // 4


def test_a_window_of_a_mixture_needs_no_other() -> None:
    again = mixture().window(0, 10**9)
    assert np.array_equal(again.samples, mixture().window(0, 10**9).samples)
    assert not np.array_equal(again.samples, mixture(seed=1).window(0, 10**9).samples)


def test_equal_corpora_come_in_different_orders() -> None:
    items = Mixture([Records(500), Records(500)], (1, 1), 0, WINDOW).window(0, 0)
    records = [items.samples[items.samples >> CORPUS_BITS == n] & ((1 << CORPUS_BITS) - 1) for n in (0, 1)]
    assert set(records[0].tolist()) != set(records[1].tolist())


def test_a_weight_too_small_for_the_window() -> None:
    with pytest.raises(ValueError, match=r"weight 1 of 1001 .* in a window of 64"):
        Mixture([Records(10), Records(10)], (1000, 1), 0, WINDOW)
