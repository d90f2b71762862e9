"""Packing: bins that hold, best fit by hand and compiled alike, little waste, lengths mixed or alike."""

import numpy as np
import pytest
from numpy.typing import NDArray

from data.order import packing
from data.order.packing import BinMembers, pack
from support.reference_kernels import best_fit
from zymogen.compiled import compiled


def proteins(count: int, crop: int = 1024, seed: int = 0) -> NDArray[np.int64]:
    """Lengths in tokens as UniRef's are."""
    drawn = np.random.default_rng(seed).lognormal(5.3, 0.75, count)
    return np.minimum(np.maximum(drawn, 1).astype(np.int64) + 2, crop)


def waste(groups: BinMembers, lengths: NDArray[np.int64], bin_tokens: int) -> float:
    return 1 - lengths.sum() / (groups.num_bins * bin_tokens)


@pytest.mark.parametrize(
    ("bin_tokens", "most", "count"), [(64, 8, 500), (128, 16, 1), (1000, 4, 300), (5000, 625, 900)]
)
def test_every_document_once_in_a_bin_that_holds_it(bin_tokens: int, most: int, count: int) -> None:
    lengths = proteins(count, crop=min(bin_tokens, 300))
    groups = pack(lengths, bin_tokens, most)
    assert np.array_equal(np.sort(groups.members), np.arange(count))
    assert groups.first[0] == 0
    assert groups.first[-1] == count
    for members in groups.bins():
        assert 1 <= len(members) <= most
        assert lengths[members].sum() <= bin_tokens


def test_best_fit_by_hand() -> None:
    #       room after: 60 -> bin 0: 40; 50 -> bin 1: 50; 45 -> bin 1: 5; 35 -> bin 0: 5; 70 -> bin 2: 30; 5 -> bin 0
    groups = pack(np.array([60, 50, 45, 35, 70, 5]), 100, 10)
    assert [g.tolist() for g in groups.bins()] == [[0, 3, 5], [1, 2], [4]]


def test_among_equally_full_bins_the_one_filled_last() -> None:
    groups = pack(np.array([70, 70, 30, 20]), 100, 10)
    assert [g.tolist() for g in groups.bins()] == [[0, 3], [1, 2]]


def test_no_bin_holds_more_documents_than_it_may() -> None:
    assert np.diff(pack(np.full(50, 3), 1000, 8).first).tolist() == [8] * 6 + [2]


@pytest.mark.parametrize("bin_tokens", [63, 64, 65, 128, 1000, 4096, 16_384, 70_000])
@pytest.mark.parametrize("most", [2, 10_000])
def test_the_kernel_is_the_bisection(bin_tokens: int, most: int) -> None:
    for seed, low in ((0, 1), (1, bin_tokens // 20 + 1), (2, 1)):
        lengths = np.random.default_rng(seed).integers(low, bin_tokens + 1, 700)
        if seed == 2:  # short ones alone: deep stacks, and bins that fill to the last slot
            lengths = np.random.default_rng(seed).integers(1, 9, 4000)
        expected = best_fit(lengths, bin_tokens, most, int(lengths.min()))
        for kernel in (compiled(packing._best_fit), packing._best_fit):
            chosen, num_bins = kernel(lengths, bin_tokens, most, int(lengths.min()))
            assert num_bins == expected[1]
            assert np.array_equal(chosen, expected[0])


def test_waste_is_small_and_packed_bins_mix_lengths() -> None:
    lengths = proteins(1 << 17)
    packed = pack(lengths, 16_384, 2048)
    assert waste(packed, lengths, 16_384) <= 0.005
    means = np.array([lengths[members].mean() for members in packed.bins()])
    assert means.std() / lengths.mean() < 0.25  # best-fit-decreasing gives 0.7 here: bins of long or of short ones
