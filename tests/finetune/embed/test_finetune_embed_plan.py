"""The plan of an embedding: windows of long sequences, and what is too long."""

from pathlib import Path

import numpy as np
import pytest

from finetune.adaptation.vectors import windows_of
from finetune.embed.plan import plan_of
from support.inputs.token_stores import store_of


@pytest.mark.parametrize("max_tokens", [8, 9, 12, 31])
def test_each_residue_is_taken_from_the_window_with_most_around_it(max_tokens: int) -> None:
    for length in range(3, 80):
        found = windows_of(np.array([length]), max_tokens)
        kept: list[tuple[int, int]] = []
        for start, read, keep_from, keep_to in zip(*found[1:], strict=True):
            assert 0 <= start
            assert start + read <= length
            assert read == min(length, max_tokens)
            kept += [(token, int(start)) for token in range(keep_from, keep_to)]
        assert [token for token, _ in kept] == list(range(1, length - 1))  # each residue once, in order

        def around(token: int, start: int, read: int = min(length, max_tokens), length: int = length) -> int:
            """Tokens to the nearer cut; the ends of the sequence are no cuts."""
            left = token - start if start else length
            return min(left, start + read - 1 - token if start + read < length else length)

        for token, start in kept:
            best = max(around(token, s) for s in found.start.tolist() if s <= token < s + max_tokens)
            assert best - around(token, start) <= 1  # the middle of an odd overlap
            if length > max_tokens:
                assert around(token, start) >= max_tokens // 4 - 1


def test_windows_of_several_sequences_follow_one_another() -> None:
    found = windows_of(np.array([10, 30, 5]), 16, first=4)
    assert found.sequence.tolist() == [4, 5, 5, 5, 6]
    assert found.start.tolist() == [0, 0, 8, 14, 0]
    assert found.length.tolist() == [10, 16, 16, 16, 5]
    assert found.keep_from.tolist() == [1, 1, 12, 19, 1]
    assert found.keep_to.tolist() == [9, 12, 19, 29, 4]


def test_too_long_is_refused_by_name(tmp_path: Path) -> None:
    store = store_of(tmp_path, [("a", "M" * 8), ("b x", "M" * 12), ("c", "K" * 9)])
    with pytest.raises(
        ValueError,
        match=r"x\.fasta: 2 of 3 sequences have more than the 8 residues that --max-tokens 10 allows .* 'b', has 12",
    ):
        plan_of(store, 10, "refuse", 100, 10, "x.fasta")
    assert len(plan_of(store, 10, "windows", 100, 10, "x.fasta").parts) == 1
