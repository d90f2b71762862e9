"""How near proteins are to those that trained: by position for variants, by alignment for others."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from finetune.predict.relatives import TrainingProteins
from finetune.splits import split_file
from finetune.tables.proteins import TableProteins, proteins_of
from finetune.tables.read import read_table
from finetune.tables.settings import TableSettings
from support.assays.messy_tables import WILD, proteins


def read(path: Path, sequences: Mapping[str, str] | Sequence[str]) -> TableProteins:
    named = sequences if isinstance(sequences, Mapping) else {f"p{n}": each for n, each in enumerate(sequences)}
    path.write_text("".join(f">{name}\n{each}\n" for name, each in named.items()))
    return proteins_of(read_table(str(path)), TableSettings(), None)


def split(path: Path, table: TableProteins, of_ids: Mapping[str, str]) -> Path:
    """A split.csv under other ids, as row numbers of another table would be."""
    digests = dict(zip(table.ids, split_file.digest_texts(table.digests), strict=True))
    lines = [f"x{name},{part},{digests[name]}\n" for name, part in of_ids.items()]
    path.write_text("id,part,sequence_digest\n" + "".join(lines))
    return path


def changed(*places: int) -> str:
    letters = [*WILD]
    for place in places:
        letters[place] = "W"
    return "".join(letters)


def test_variants_are_compared_by_position_with_those_that_trained(tmp_path: Path) -> None:
    table = read(tmp_path / "train.fasta", {"a": changed(1), "b": changed(1, 2, 3), "c": changed(5, 6, 7, 8)})
    parts = [
        split(tmp_path / "one.csv", table, {"a": "train", "b": "test", "c": "validation"}),
        split(tmp_path / "two.csv", table, {"a": "validation", "b": "test", "c": "train"}),
    ]
    asked = read(tmp_path / "in.fasta", [changed(1), changed(1, 2, 3), changed(), changed(5, 6, 7, 8), changed(1, 9)])
    length = len(WILD)
    one = TrainingProteins.of(table, parts[:1], tmp_path / "1")
    assert one.said == (
        f"nearest_train_identity is to the 1 proteins of {table.name} that trained, by position; those of another "
        f"length by {one.said[0].rpartition(' by ')[2]}",
    )
    assert one.identities(asked).tolist() == pytest.approx([1 - n / length for n in (0, 2, 1, 5, 1)])
    both = TrainingProteins.of(table, parts, tmp_path / "2")  # of several models, what trained one of them
    assert both.identities(asked).tolist() == pytest.approx([1 - n / length for n in (0, 2, 1, 0, 1)])
    another = read(tmp_path / "another.fasta", {"a": changed(1), "b": changed(1, 2, 3), "c": changed(4)})
    fewer = split(tmp_path / "fewer.csv", table, {"a": "train", "b": "test"})
    as_many = split(tmp_path / "as_many.csv", another, {"a": "train", "b": "test", "c": "train"})
    for number, other in enumerate((fewer, as_many)):
        everything = TrainingProteins.of(table, [other], tmp_path / f"other-{number}")
        assert "all 3 proteins" in everything.said[0]
        assert "which is not the table of the training" in everything.said[0]
        assert everything.identities(asked).tolist() == pytest.approx([1 - n / length for n in (0, 0, 1, 0, 1)])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mmseqs") is None, reason="no program 'mmseqs' (apt install mmseqs2)")
def test_others_are_aligned(tmp_path: Path) -> None:
    found = proteins(4, least=80, most=120)
    table = read(tmp_path / "train.fasta", found[:3])
    parts = [split(tmp_path / "split.csv", table, {"p0": "train", "p1": "train", "p2": "test"})]
    near = found[1].replace("L", "I", 3)
    differ = sum(a != b for a, b in zip(near, found[1], strict=True))
    asked = read(tmp_path / "in.fasta", [found[3], found[0], near, found[2]])
    trained = TrainingProteins.of(table, parts, tmp_path / "work")
    identities = trained.identities(asked).tolist()
    assert identities == pytest.approx([0, 1, 1 - differ / len(near), 0], abs=2e-3)  # MMseqs2 writes three digits
    assert differ >= 2
    assert trained.identities(read(tmp_path / "b.fasta", [found[1]])).tolist() == [1]


def test_a_protein_that_no_search_finds_has_no_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found = proteins(3, least=80, most=120)
    table = read(tmp_path / "train.fasta", found[:2])
    asked = read(tmp_path / "in.fasta", [found[0], found[2], "Q" * 60])
    parts = [split(tmp_path / "split.csv", table, dict.fromkeys(table.ids, "train"))]
    identities = TrainingProteins.of(table, parts, tmp_path / "work").identities(asked)
    assert identities.tolist() == pytest.approx([1, 0, float("nan")], nan_ok=True)
