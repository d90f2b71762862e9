"""The sizes that a look proposes train as README launches them, on one to eight processes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.batches.loader import require_enough_bins
from finetune.look.sizes import choose_crop, choose_sizes


@given(
    st.integers(10, 5000), st.sampled_from([8, 50, 300, 1022]), st.floats(0.5, 1.0), st.integers(0, 9), st.booleans()
)
def test_every_process_has_a_bin(count: int, longest: int, share: float, seed: int, is_varied: bool) -> None:
    lengths = np.full(count, longest)
    if is_varied:
        lengths = np.random.default_rng(seed).integers(min(8, longest), longest + 1, count)
    crop, training = choose_crop(lengths, may_cut=True), max(5, int(share * count))
    chosen = choose_sizes(lengths, training, count, crop)
    for world in range(1, 9):
        require_enough_bins(chosen.bins_per_step, world)
    assert all(chosen.bins_per_step % world == 0 for world in (1, 2, 4, 8))
    assert chosen.bin_tokens >= crop
    # One process is not hurt: a step is no longer than 40 a pass ask for, or than eight of the longest proteins.
    tokens = float((lengths + 2).mean()) * training
    assert chosen.bin_tokens * chosen.bins_per_step <= max(tokens / 40, 8 * (lengths.mean() + 2), 8 * crop) * 1.5
    assert chosen.steps >= 300


@pytest.mark.parametrize(("count", "length"), [(1700, 57), (45, 40), (4996, 286)])
def test_known_tables(count: int, length: int) -> None:
    lengths = np.full(count, length)
    chosen = choose_sizes(lengths, count * 4 // 5, count, choose_crop(lengths, may_cut=True))
    found = chosen.bins_per_step, chosen.bin_tokens
    assert found == {1700: (8, 256), 45: (8, 64), 4996: (8, 2048)}[count]
