"""What is compared of a copy changes with every bit of it, and an error names the ranks that differ from the most."""

import pytest
import torch

from pretrain.checkpoint.digests.copies import _in_words, _sum
from pretrain.engine.named_state import TorchState
from support.checkpoint_run import build


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("offset", [0, 1])
def test_the_sum_of_a_tensor_changes_with_every_bit(dtype: torch.dtype, offset: int) -> None:
    """Also of the last elements, which fill no word, and of a tensor that begins within one."""
    tensor = torch.arange(7 + offset, dtype=dtype)[offset:]
    before = int(_sum(tensor))
    assert before == int(_sum(tensor.clone()))
    content = tensor.view(torch.uint8)
    for byte in range(len(content)):
        for bit in range(8):
            content[byte] ^= 1 << bit
            assert int(_sum(tensor)) != before
            content[byte] ^= 1 << bit
    assert int(_sum(tensor)) == before
    assert int(_sum(tensor[:0])) == 0


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
    assert TorchState(*build()).copy() is None
