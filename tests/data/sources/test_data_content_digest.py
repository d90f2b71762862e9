"""Content digests: the number that is defined, and another one for any change."""

import numpy as np
import pytest

import data.sources.content_digest
from data.sources.content_digest import content_digests


def slow_digest(tokens: list[int]) -> int:
    """The definition, in Python's integers."""
    word = 1 << 64
    total, power = len(tokens) * 0xE7037ED1A0B428DB, 1
    for token in tokens:
        power = power * 0xA0761D6478BD642F % word
        total += int(data.sources.content_digest._TABLE[token]) * power
    total %= word
    total = ((total ^ (total >> 30)) * 0xBF58476D1CE4E5B9) % word
    total = ((total ^ (total >> 27)) * 0x94D049BB133111EB) % word
    return total ^ (total >> 31)


@pytest.mark.parametrize(
    "lengths",
    [[], [0], [0, 0], [5], [1, 8, 7, 9, 16, 0, 3], [0, 150_000, 3, 0, 65_536, 65_536, 1, 0, 70_000, 0]],
    ids=lambda lengths: f"{len(lengths)} records",
)
def test_digests_are_what_they_are_defined_as(lengths: list[int]) -> None:
    tokens = np.random.default_rng(0).integers(3, 29, sum(lengths)).astype(np.uint8)
    digests = content_digests(tokens, np.array(lengths, np.int64))
    assert digests.dtype == np.uint64
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    expected = [slow_digest(tokens[e - n : e].tolist()) for n, e in zip(lengths, ends, strict=True)]
    assert digests.tolist() == expected


def test_digests_tell_changes_apart() -> None:
    rng = np.random.default_rng(1)
    protein = rng.integers(4, 24, 64).astype(np.uint8)
    variants = [protein, protein[:-1], protein[1:], protein[::-1], np.append(protein, protein[-1])]
    for at in range(64):
        for token in range(3, 29):
            changed = protein.copy()
            changed[at] = token
            variants.append(changed)
        variants.append(np.roll(protein, at))
    distinct = {v.tobytes() for v in variants}
    lengths = np.array([len(v) for v in variants])
    digests = content_digests(np.concatenate(variants), lengths)
    assert len(set(digests.tolist())) == len(distinct) > 64 * 25
    # One bit in two of the digest changes with any change of the protein.
    differing = np.unpackbits((digests ^ digests[0]).view(np.uint8)).reshape(-1, 64).sum(axis=1)
    assert 25 < np.median(differing[differing > 0]) < 39
