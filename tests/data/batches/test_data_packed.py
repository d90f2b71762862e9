"""Documents in bins for a trained model: all of them, once, with their tokens and places."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from data.alphabet import CLS, EOS, MASK, PAD, TOKENS, UNK
from data.batches.packed import STEP, BinSize, PlainContents, TokenArrays, bins_of, packed, split_by_tokens, token_ids
from zymogen.onednn import ROWS

SEQUENCES = ["MKV", "ACDEFGHIKL", "W", "MKTAYIAKQR", "GGGGJ"]


def lengths_of(documents: list[NDArray[np.uint8]]) -> NDArray[np.int64]:
    return np.array([len(each) for each in documents], np.int64)


def arrays(sizes: list[int]) -> list[NDArray[np.uint8]]:
    """Documents whose tokens tell which one it is, and where."""
    return [np.arange(size, dtype=np.uint8) + 7 * number % 200 for number, size in enumerate(sizes)]


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=60), ranks=st.integers(1, 3))
def test_every_document_is_read_once_with_its_tokens(sizes: list[int], ranks: int) -> None:
    documents = arrays(sizes)
    contents = PlainContents(TokenArrays(documents), BinSize(40, 10))
    seen: list[int] = []
    for rank in range(ranks):
        for part in packed(contents, lengths_of(documents), rank=rank, ranks=ranks):
            assert part.batch.tokens.numel() == int(part.lengths.sum()) <= 40
            assert [start for start, _ in part.batch.spans] == part.firsts.tolist()
            cut = np.split(part.batch.tokens.numpy(), part.firsts[1:])
            for place, tokens in zip(part.documents.tolist(), cut, strict=True):
                assert tokens.tolist() == documents[place].tolist()
            seen += part.documents.tolist()
    assert sorted(seen) == [*range(len(documents))]


@pytest.mark.parametrize(
    ("tokens", "slots"), [(1024, 1024), (1025, 1280), (1280, 1280), (4000, 4096), (4096, 4096), (4097, 4352)]
)
def test_large_bins_have_few_sizes(tokens: int, slots: int) -> None:
    """What fills them up is a document of pads, which is none of the caller's."""
    lengths = np.array([tokens - 100, 100])
    documents = [np.full(length, TOKENS.index("A"), np.uint8) for length in lengths]
    (part,) = packed(PlainContents(TokenArrays(documents), BinSize(5000, 1250)), lengths)
    read = part.batch.tokens.numpy()
    assert len(read) == slots
    assert (read[:tokens] == TOKENS.index("A")).all()
    assert (read[tokens:] == PAD).all()
    assert part.batch.spans[-1][1] == tokens
    assert part.batch.cu_seqlens[-2:].tolist() == [tokens, slots]
    assert STEP % ROWS == 0, "the pads are for products that take multiples of these rows"


def test_bins_do_not_depend_on_the_number_of_processes() -> None:
    documents = arrays([5, 30, 12, 9, 21, 17, 3, 28, 11])
    contents = PlainContents(TokenArrays(documents), BinSize(40, 10))
    lengths = lengths_of(documents)
    alone = [part.documents.tolist() for part in packed(contents, lengths)]
    assert len(alone) == 4
    shared = [[part.documents.tolist() for part in packed(contents, lengths, rank=rank, ranks=3)] for rank in range(3)]
    assert shared == [alone[0::3], alone[1::3], alone[2::3]]
    bins = bins_of(np.arange(9) + 100, np.ones(9, np.int64), lengths, BinSize(40, 10))
    assert [(bin_.samples - 100).tolist() for bin_ in bins] == alone
    assert all((bin_.starts == 1).all() for bin_ in bins)


def test_letters_are_whole_proteins_or_slices_of_them() -> None:
    contents = PlainContents(TokenArrays([*map(token_ids, SEQUENCES)]), BinSize(64, 16))
    lengths = np.array([len(each) + 2 for each in SEQUENCES])
    (part,) = packed(contents, lengths)
    read = np.split(part.batch.tokens.numpy(), part.firsts[1:])
    for place, tokens in zip(part.documents.tolist(), read, strict=True):
        assert tokens[0] == CLS
        assert tokens[-1] == EOS
        assert "".join(TOKENS[t] for t in tokens[1:-1].tolist()).replace("<unk>", "J") == SEQUENCES[place]
    assert read[-1][-2] == UNK

    (cut,) = packed(contents, np.array([4, 3]), samples=np.array([1, 3]), starts=np.array([0, 9]))
    tokens = np.split(cut.batch.tokens.numpy(), cut.firsts[1:])
    texts = {place: [TOKENS[one] for one in own] for place, own in zip(cut.documents.tolist(), tokens, strict=True)}
    assert texts == {0: ["<cls>", "A", "C", "D"], 1: ["Q", "R", "<eos>"]}


def test_masked_copies_are_documents_too() -> None:
    copies = [np.array([CLS, 5, MASK, EOS], np.uint8), np.array([CLS, MASK, 6, EOS], np.uint8)]
    lengths = lengths_of(copies)
    (part,) = packed(PlainContents(TokenArrays(copies), BinSize.holding(lengths, 4)), lengths, ranks=2)
    assert part.batch.tokens.tolist() == copies[0].tolist()
    assert part.batch.targets == ()


def test_a_document_that_does_not_fit_is_refused() -> None:
    contents = PlainContents(TokenArrays(arrays([50, 3])), BinSize(40, 10))
    with pytest.raises(ValueError, match="a document of 50 tokens does not fit into a bin of 40; read it in parts"):
        next(packed(contents, np.array([50, 3])))
    assert BinSize.holding(np.array([50, 3]), 40) == BinSize(50, 12)
    assert BinSize.holding(np.array([30, 3]), 40) == BinSize(40, 10)


@pytest.mark.parametrize(
    ("lengths", "tokens", "documents", "expected"),
    [
        ([3, 3, 3, 3], 6, 10, [(0, 2), (2, 4)]),
        ([3, 3, 3, 3], 7, 10, [(0, 2), (2, 4)]),
        ([3, 3, 3, 3], 100, 3, [(0, 3), (3, 4)]),
        ([9, 1, 1, 9, 1], 4, 10, [(0, 1), (1, 3), (3, 4), (4, 5)]),
        ([], 4, 10, []),
    ],
)
def test_stretches(lengths: list[int], tokens: int, documents: int, expected: list[tuple[int, int]]) -> None:
    found = split_by_tokens(np.array(lengths, np.int64), tokens, documents)
    assert [(each.start, each.stop) for each in found] == expected
