"""Statistics of a store: each number against a second way to compute it, duplicates against a dictionary."""

import gzip
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from Bio.SeqIO.FastaIO import SimpleFastaParser

from data.alphabet import LETTER_IDS
from data.commands import stats as module
from data.commands.stats import QUANTILES, count_distinct, count_tokens, lines, statistics
from data.corpus.lengths import count_lengths
from data.store.token_store import FACTS, FORMAT, StoreCounts, TokenStore, facts_text
from support.places import REAL


class Arrays(TokenStore):
    """A store with digests of our choice."""

    def __init__(
        self, folder: Path, proteins: list[str], digests: Sequence[int], rejected: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(folder)
        tokens = LETTER_IDS[np.frombuffer("".join(proteins).encode(), np.uint8)]
        headers = [f"p{i} protein" for i in range(len(proteins))]
        tokens.tofile(folder / "tokens.bin")
        for name, texts in (("offsets", proteins), ("header_offsets", headers)):
            np.cumsum([0, *map(len, texts)]).astype(np.uint64).tofile(folder / f"{name}.bin")
        np.array(digests, np.uint64).tofile(folder / "digests.bin")
        (folder / "headers.bin").write_text("".join(headers))
        counts = StoreCounts(len(proteins), len(tokens), sum(map(len, headers)))
        facts = {
            **{"format": FORMAT, "fingerprint": "0" * 32, **counts._asdict(), "rejected": dict(rejected)},
            **{"unknown_letters": {"'!'": 3}, "sources": ["a.fasta"]},
            "files": {name: {"bytes": size} for name, size in counts.file_sizes().items()},
        }
        (folder / FACTS).write_text(facts_text(facts))


@pytest.fixture
def arrays(tmp_path: Path) -> Callable[..., Arrays]:
    """Writes a store of proteins; equal ones get one digest, or all get those that are given."""

    def write(proteins: list[str], digests: Sequence[int] = (), rejected: Mapping[str, int] | None = None) -> Arrays:
        numbers: dict[str, int] = {}
        own = [numbers.setdefault(p, (len(numbers) * 0x9E3779B97F4A7C15 + 7) % (1 << 64)) for p in proteins]
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        return Arrays(folder, proteins, digests or own, rejected or {})

    return write


def drawn(count: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    letters = np.frombuffer(b"ACDEFGHIKLMNPQRSTVWYX", np.uint8)
    return [rng.choice(letters, n).tobytes().decode() for n in rng.geometric(0.01, count)]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every loop over blocks goes round more than once."""
    monkeypatch.setattr("data.corpus.lengths._BLOCK_RECORDS", 7)
    monkeypatch.setattr(module, "_BLOCK_RESIDUES", 64)
    monkeypatch.setattr("data.homology.clusters._BLOCK", 7)
    monkeypatch.setattr("data.homology.name_table.BLOCK", 7)


@pytest.mark.parametrize("count", [1, 2, 99, 100, 101, 500])
def test_quantiles_are_numpys_without_interpolation(arrays, count: int) -> None:
    proteins = drawn(count)
    lengths = count_lengths(arrays(proteins))
    one_by_one = np.array([len(p) for p in proteins])
    assert [lengths.quantile(q) for q in QUANTILES] == [
        int(np.quantile(one_by_one, q / 100, method="inverted_cdf")) for q in QUANTILES
    ]
    assert (lengths.values[0], lengths.values[-1]) == (one_by_one.min(), one_by_one.max())
    assert lengths.num_residues / lengths.num_records == pytest.approx(one_by_one.mean(), rel=1e-12)
    assert lengths.longer_than(100) == (one_by_one > 100).mean()
    assert dict(zip(lengths.values.tolist(), lengths.counts.tolist(), strict=True)) == Counter(one_by_one.tolist())


def test_lengths_up_to_the_limit_of_a_record_take_no_memory(arrays) -> None:
    store = arrays(["A", "C", "D"])
    np.array([0, 2**31 - 1, 2**31, 2**32 - 1], np.uint64).tofile(store.folder / "offsets.bin")
    lengths = count_lengths(store)
    assert lengths.values.tolist() == [1, 2**31 - 1]
    assert lengths.counts.tolist() == [1, 2]


def test_composition_counts_every_token(arrays) -> None:
    proteins = drawn(50)
    counted = count_tokens(arrays(proteins))
    assert counted == Counter("".join(proteins))
    assert list(counted.values()) == sorted(counted.values(), reverse=True)


def test_a_byte_that_is_no_token_is_damage(arrays) -> None:
    store = arrays(["ACDE"])
    (store.folder / "tokens.bin").write_bytes(b"\4\5\x4d\6")
    with pytest.raises(ValueError, match=r"tokens\.bin holds the byte 77, tokens are 0 to 32.*verify"):
        count_tokens(store)


def test_distinct_sequences_are_those_of_a_set(arrays) -> None:
    rng = np.random.default_rng(1)
    different = drawn(60)
    proteins = [different[i] for i in rng.zipf(1.5, 400) % 60]
    assert count_distinct(arrays(proteins)) == len(set(proteins))


def test_a_sort_that_does_not_fit_is_an_error(arrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data.homology.name_table._MEMORY", "1KB")
    with pytest.raises(ValueError, match=r"the records cannot be sorted in .*TMPDIR"):
        count_distinct(arrays(drawn(500)))


def test_text_and_json_say_the_same(arrays) -> None:
    store = arrays(["MKTAY", "MKTAY", "GGX", "W" * 10], rejected={"gap": 1, "no sequence": 1})
    content = statistics(store, count_lengths(store))
    text = "\n".join(lines(content))
    for part in (
        "records      4",
        "left out     2 records: 1 gap, 1 no sequence (rejected.jsonl)",
        "residues     23",
        "min 3, mean 5.8, max 10 residues",
        "distinct     3 sequences",
        "duplicates   1 records (25.00 %) equal an earlier one",
        "read as <unk>: '!' 3",
    ):
        assert part in text
    assert content["lengths"] == {
        "min": 3,
        "quantiles": {"1": 3, "5": 3, "25": 3, "50": 5, "75": 5, "95": 10, "99": 10},
        "max": 10,
        "mean": 5.75,
    }
    assert content["composition"]["W"] == {"count": 10, "share": 10 / 23}
    assert sum(entry["count"] for entry in content["composition"].values()) == content["residues"] == 23
    assert content["duplicates"] == 1
    assert (content["rejected"], content["unknown_letters"], content["distinct_sequences"]) == (
        {"gap": 1, "no sequence": 1},
        {"'!'": 3},
        3,
    )


@pytest.mark.skipif(not REAL.is_dir(), reason="no real proteins beside the project (shared/data/pretrain)")
def test_real_duplicates_are_found(arrays) -> None:
    with gzip.open(REAL / "orthofinder_M_agalactiae.faa.gz", "rt") as file:
        proteins = [letters.removesuffix("*") for _, letters in SimpleFastaParser(file)]
    assert count_distinct(arrays(proteins)) == len(set(proteins)) == len(proteins) - 59
