"""An error about copies names the ranks that differ from the most."""

import pytest

from support.checkpoint_run import build
from zymogen.trainer.checkpoint.digests.replicas import _in_words
from zymogen.trainer.engine.named_state import TorchState


@pytest.mark.parametrize(
    ("sums", "words"),
    [
        ("ab", "rank 0 (h0), rank 1 (h1) are not alike, and which of them is right, 2 cannot say"),
        ("aab", "rank 2 (h2) differs from the 2 others"),
        ("baa", "rank 0 (h0) differs from the 2 others"),
        ("abc", "rank 0 (h0), rank 1 (h1), rank 2 (h2) are not alike, and which of them is right, 3 cannot say"),
        ("abaac", "rank 1 (h1), rank 4 (h4) differ from the 3 others"),
        ("abab", "rank 0 (h0), rank 1 (h1), rank 2 (h2), rank 3 (h3) are not alike, and which of them is right, 4"),
    ],
)
def test_the_ranks_that_differ_from_the_most_are_named(sums: str, words: str) -> None:
    assert _in_words(range(len(sums)), sums, [f"h{rank}" for rank in range(9)]).startswith(words)


def test_one_process_has_no_copy() -> None:
    assert TorchState(*build()).replica() is None
