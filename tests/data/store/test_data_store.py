"""The token store: content, fingerprint, reuse, and damage that is noticed."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from data.alphabet import decode
from data.settings import IngestSettings, LetterPolicy
from data.sources.fasta import FastaSource
from data.store.build import build_into, open_or_build
from data.store.token_store import TokenStore, facts_text, new_hash
from support.inputs.seeded_source import SeededSource, contents
from support.places import ROOT

PROTEINS = {"p1": "MKTAYIAKQRQ", "p2": "GG", "p3": "MKTAYIAKQRQ", "p4": "WWWWW"}
TENTH = IngestSettings(max_bad_fraction=0.1)
FILES = ("tokens.bin", "offsets.bin", "digests.bin", "headers.bin", "header_offsets.bin", "rejected.jsonl")


def fasta(path: Path, proteins: dict[str, str] = PROTEINS) -> Path:
    content = "".join(f">{name} note\n{letters}\n" for name, letters in proteins.items()).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def built(tmp_path: Path, *paths: Path, letters: LetterPolicy = "refuse") -> TokenStore:
    ingest = IngestSettings()
    return open_or_build([FastaSource(str(p), letters) for p in paths], tmp_path / "stores", letters, ingest)


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    """A store of 470 records, 30 more rejected."""
    return build_into(tmp_path / "store", [SeededSource("s", bad_every=16)], "count", TENTH)


def test_holds_every_record(tmp_path: Path) -> None:
    store = built(tmp_path, fasta(tmp_path / "a.fasta"))
    assert (store.num_records, store.total_residues) == (4, 29)
    assert [decode(store.residues(i)) for i in range(4)] == list(PROTEINS.values())
    assert [store.header(i) for i in range(4)] == [f"{name} note" for name in PROTEINS]
    assert store.headers(1, 3) == [b"p2 note", b"p3 note"]
    assert store.headers(4, 6) == []
    with pytest.raises(IndexError, match="record 4 of"):
        store.header(4)
    assert store.num_residues(np.arange(4)).tolist() == [11, 2, 11, 5]
    assert store.num_residues(np.arange(4)).dtype == np.int64
    assert store.offsets.tolist() == [0, 11, 13, 24, 29]
    first, second, third, fourth = store.digests.tolist()
    assert first == third
    assert len({first, second, fourth}) == 3
    store.verify()


def test_holds_what_the_source_gave(store: TokenStore) -> None:
    whole = SeededSource("s", bad_every=16).block(0, 500)
    assert np.array_equal(store.tokens, whole.tokens)
    assert np.array_equal(np.diff(store.offsets.astype(np.int64)), whole.lengths)
    assert np.array_equal(store.digests, whole.digests)
    assert b"".join(store.headers(0, 469)) == whole.headers.tobytes()
    assert store.header(0) == "s|0 protein\N{REPLACEMENT CHARACTER}"
    letters = [SeededSource("s", bad_every=16).block(n, n + 100).unknown_letters["'!'"] for n in range(0, 500, 100)]
    assert store.unknown_letters == {"'!'": sum(letters), "'?'": 5}
    assert (store.num_records, store.rejected, store.facts["sources"]) == (469, {"no sequence": 31}, ["s"])
    lines = [json.loads(line) for line in (store.folder / "rejected.jsonl").read_text().splitlines()]
    assert [line["record"] for line in lines] == list(range(16, 500, 16))
    assert lines[1] == {
        "source": "s",
        "record": 32,
        "header": "bad 31\N{REPLACEMENT CHARACTER}",
        "offset": 31000,
        "kind": "no sequence",
        "reason": "has no sequence; fill it",
    }
    assert sorted(contents(store.folder)) == sorted([*FILES, "store.json"])
    store.verify()


def test_fingerprint_is_of_content(tmp_path: Path) -> None:
    plain = built(tmp_path, fasta(tmp_path / "a.fasta")).fingerprint
    assert built(tmp_path, fasta(tmp_path / "a.fasta.gz")).fingerprint == plain
    renamed = {f"other {name}": letters for name, letters in PROTEINS.items()}
    assert built(tmp_path, fasta(tmp_path / "n.fasta", renamed)).fingerprint == plain
    halves = [dict(list(PROTEINS.items())[half]) for half in (slice(2), slice(2, 4))]
    paths = [fasta(tmp_path / f"h{i}.fasta", half) for i, half in enumerate(halves)]
    assert built(tmp_path, *paths).fingerprint == plain
    swapped = dict(reversed(PROTEINS.items()))
    assert built(tmp_path, fasta(tmp_path / "b.fasta", swapped)).fingerprint != plain
    # The same residues, cut elsewhere: equal bytes in tokens.bin, another corpus.
    recut = {**PROTEINS, "p1": "MKTAYIAKQRQG", "p2": "G"}
    assert built(tmp_path, fasta(tmp_path / "c.fasta", recut)).fingerprint != plain


def test_is_reused_until_a_source_changes(tmp_path: Path) -> None:
    path = fasta(tmp_path / "a.fasta")
    first = built(tmp_path, path)
    stamp = (first.folder / "store.json").stat().st_mtime_ns
    assert built(tmp_path, path).folder == first.folder
    assert (first.folder / "store.json").stat().st_mtime_ns == stamp
    assert built(tmp_path, path, letters="count").folder != first.folder
    fasta(path, {**PROTEINS, "p5": "AAA"})
    assert built(tmp_path, path).num_records == 5


def test_a_bad_record_leaves_nothing(tmp_path: Path) -> None:
    good, bad = fasta(tmp_path / "a.fasta"), fasta(tmp_path / "b.fasta", {"p9": "MK!"})
    with pytest.raises(ValueError, match=r"b\.fasta: record 1 \('p9 note'\) has '!' at residue 3"):
        built(tmp_path, good, bad)
    assert list((tmp_path / "stores").iterdir()) == []


def test_missing_source(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.fasta: No such file.*data\.sources"):
        built(tmp_path, tmp_path / "none.fasta")


def test_a_store_cannot_be_written_there(tmp_path: Path) -> None:
    (tmp_path / "stores").write_text("a file")
    with pytest.raises(ValueError, match=r"Not a directory; choose another data\.store_dir"):
        built(tmp_path, fasta(tmp_path / "a.fasta"))


# Damage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_byte_is_found_by_verify(store: TokenStore, name: str) -> None:
    path = store.folder / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert TokenStore(store.folder).num_records == 469  # sizes do not tell
    with pytest.raises(ValueError, match=rf"{name} differs from what was written: its hash is .*delete the folder"):
        TokenStore(store.folder).verify()


def test_a_flipped_byte_of_store_json_is_found_at_once(store: TokenStore) -> None:
    path = store.folder / "store.json"
    content = path.read_bytes()
    for at in range(0, len(content), 5):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(ValueError, match=r"store\.json.*delete the folder"):
            _ = TokenStore(store.folder).facts


@pytest.mark.parametrize("name", FILES)
def test_another_size_is_noticed_at_once(store: TokenStore, name: str) -> None:
    path = store.folder / name
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    size = len(content)
    message = rf"{name} has {size - 1} bytes, store\.json says {size}: it was cut short; restore it from a copy, or, .*"
    with pytest.raises(ValueError, match=message):
        build_into(store.folder, [SeededSource("s", bad_every=16)], "count", TENTH)
    path.write_bytes(content + b"\0")
    with pytest.raises(ValueError, match=f"{name} has .*: it was written to"):
        _ = TokenStore(store.folder).fingerprint
    path.unlink()
    with pytest.raises(ValueError, match=f"{name} is missing; restore it from a copy, or, if its sources"):
        TokenStore(store.folder).verify()


def test_a_store_of_another_version(store: TokenStore) -> None:
    path = store.folder / "store.json"
    path.write_text(json.dumps({**store.facts, "format": "zymogen.store/1"}))
    message = r"store format is 'zymogen\.store/1', this version reads 'zymogen\.store/3'; use the version that wrote"
    with pytest.raises(ValueError, match=message):
        _ = TokenStore(store.folder).num_records


def test_no_store(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(ValueError, match=r"holds no finished token store \(no store\.json\); build one"):
            _ = TokenStore(folder).num_records


@pytest.mark.parametrize(
    ("name", "entry", "value", "message"),
    [
        ("offsets.bin", 0, 1, "does not rise from 0, at entry 0"),
        ("offsets.bin", 7, 2, "does not rise from 0, at entry 7"),
        ("header_offsets.bin", 9, 0, "does not rise from 0, at entry 9"),
        ("offsets.bin", -1, 1 << 40, "ends at 1099511627776"),
    ],
)
def test_offsets_that_a_wrong_writer_wrote(store: TokenStore, name: str, entry: int, value: int, message: str) -> None:
    offsets = np.fromfile(store.folder / name, np.uint64)
    offsets[entry] = value
    offsets.tofile(store.folder / name)
    facts = {key: fact for key, fact in store.facts.items() if key != "hash"}
    facts["files"][name]["hash"] = new_hash(offsets.tobytes()).hexdigest()
    (store.folder / "store.json").write_text(facts_text(facts))
    with pytest.raises(ValueError, match=f"{name} {message}"):
        TokenStore(store.folder).verify()


# Readers ------------------------------------------------------------------------------------------


def test_reading_needs_numpy_alone(store: TokenStore) -> None:
    program = f"""
import sys
from pathlib import Path
from data.store.token_store import TokenStore
from data.store.growing import GrowingStore
for kind in TokenStore, GrowingStore:
    store = kind(Path({str(store.folder)!r}))
    store.verify()
    print(store.num_records, store.residues(3).sum(), store.header(3), store.fingerprint)
known = {{*sys.stdlib_module_names, "numpy", "data", "zymogen", "__main__"}}
print(sorted({{name.partition(".")[0] for name in sys.modules}} - known))
"""
    done = subprocess.run([sys.executable, "-S", "-c", program], env=_only_numpy(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *lines, others = done.stdout.splitlines()
    assert lines == [f"469 {store.residues(3).sum()} {store.header(3)} {store.fingerprint}"] * 2
    assert [name for name in eval(others) if not name.startswith("_")] == []


def _only_numpy() -> dict[str, str]:
    packages = Path(np.__file__).parents[1]
    return {"PYTHONPATH": f"{ROOT}:{packages}", "PYTHONUTF8": "1", "PATH": "/usr/bin:/bin"}
