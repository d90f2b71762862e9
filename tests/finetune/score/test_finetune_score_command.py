"""The command: the table that it writes, and what it says about a mistake."""

import csv
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from benchmarks.scoring import written
from finetune.score.__main__ import main
from finetune.score.plan import SCHEMES, variant_of
from finetune.score.scorer import VariantScorer
from support.launching import torchrun_variables

TARGET = "MKTAYIAKQRQISFVKSHFSRQ"


@pytest.fixture(scope="module")
def model() -> Iterator[Path]:
    with TemporaryDirectory() as scratch:
        written("esm2_60k", Path(scratch) / "small", 4.0)
        yield Path(scratch) / "small"


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def run(model: Path, folder: Path, text: str, *words: str) -> int:
    (folder / "in.csv").write_text(text)
    target = () if {"--wild-type", "--target-sequences"} & {*words} else ("--target-seq", TARGET)
    return main([str(model), str(folder / "in.csv"), *target, "-o", str(folder / "out.csv"), *words])


def test_input_columns_stay_and_each_scheme_is_a_column(model: Path, tmp_path: Path) -> None:
    text = 'mutant,note,dose\nK2R,"a, b",1\nK2R:Q11A,,2\nT3T,,3\nWT,,4\n'
    assert run(model, tmp_path, text, "--scheme", *SCHEMES) == 0
    found = rows_of(tmp_path / "out.csv")
    assert list(found[0]) == ["mutant", "note", "dose", *(f"small:{scheme}" for scheme in SCHEMES), "note_scored"]
    assert [row["note"] for row in found] == ["a, b", "", "", ""]
    scorer = VariantScorer.open(model)
    sequences = ["MRTAYIAKQRQISFVKSHFSRQ", "MRTAYIAKQRAISFVKSHFSRQ", TARGET, TARGET]
    for scheme in SCHEMES:
        expected = scorer(TARGET, [variant_of(TARGET, each) for each in sequences], scheme).values
        assert [float(row[f"small:{scheme}"]) for row in found] == pytest.approx(list(expected), abs=1e-6)
        assert scheme == SCHEMES[3] or [row[f"small:{scheme}"] for row in found[2:]] == ["0.0", "0.0"]


def test_targets_by_name_and_sequences_instead_of_mutations(model: Path, tmp_path: Path) -> None:
    (tmp_path / "two.fasta").write_text(f">A\n{TARGET}\n>B\n{TARGET[:10]}\n")
    text = "target,mutated_sequence\nA,MRTAYIAKQRQISFVKSHFSRQ\nB,MKTAYIAKQW\nB,MKTAY\n"
    words = ("--wild-type", str(tmp_path / "two.fasta"))
    assert run(model, tmp_path, text, *words, "--scheme", "wt-marginal", "--leave-out") == 0
    found = rows_of(tmp_path / "out.csv")
    scorer = VariantScorer.open(model)
    own = [
        scorer(target, [variant_of(target, row["mutated_sequence"])], "wt-marginal").values[0]
        for target, row in zip((TARGET, TARGET[:10]), found[:2], strict=True)
    ]
    assert [float(row["small:wt-marginal"]) for row in found[:2]] == pytest.approx(own, abs=1e-6)
    assert found[2]["small:wt-marginal"] == ""
    assert found[2]["note"] == ("wt-marginal: 5 residues instead of 10, and wt-marginal scores substitutions alone")


def test_the_target_of_each_row_and_mutations_in_three_columns(model: Path, tmp_path: Path) -> None:
    text = f"wild,old,at,new\n{TARGET},K,2,R\n{TARGET[:10]},T,3,S\n,T,3,S\n"
    words = ("--target-sequences", "wild", "--mutations", "old", "at", "new", "--leave-out", "--scheme", "wt-marginal")
    assert run(model, tmp_path, text, *words) == 0
    found, scorer = rows_of(tmp_path / "out.csv"), VariantScorer.open(model)
    for row, target, mutant in zip(
        found, (TARGET, TARGET[:10]), ("MR" + TARGET[2:], "MKS" + TARGET[3:10]), strict=False
    ):
        own = scorer(target, [variant_of(target, mutant)], "wt-marginal").values
        assert float(row["small:wt-marginal"]) == pytest.approx(own[0], abs=1e-6)
    assert (found[2]["small:wt-marginal"], found[2]["note"]) == ("", "its column 'wild' is empty")


def test_a_column_of_wild_types_is_found_and_one_of_residues_is_none(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [str(model), str(tmp_path / "in.csv"), "-o", str(tmp_path / "out.csv"), "--scheme", "wt-marginal"]
    (tmp_path / "in.csv").write_text(f"Wild_Type,mutation\n{TARGET},K2R\n{TARGET[:10]},T3S\n")
    assert main(words) == 0
    scorer = VariantScorer.open(model)
    for row, letters in zip(rows_of(tmp_path / "out.csv"), ("MR" + TARGET[2:], "MKS" + TARGET[3:10]), strict=True):
        own = scorer(row["Wild_Type"], [variant_of(row["Wild_Type"], letters)], "wt-marginal").values
        assert float(row["small:wt-marginal"]) == pytest.approx(own[0], abs=1e-6)
    (tmp_path / "in.csv").write_text("wild_type,position,mutation\nK,2,R\nT,3,S\n")
    assert main([*words, "--overwrite"]) == 78
    assert "has no column of wild types, such as 'wild_type': name one with --target-seq" in capfd.readouterr().err


def test_rows_that_cannot_be_scored_stay_with_a_note(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = {
        "G9Z": "'G9Z' is no mutation",
        "NA": "says 'NA'",
        "W4C": "expects W at 4, and the target has A there",
        "K2R:K2T": "residue 2 is changed twice",
        "p.Met1?": "of unknown effect",
    }
    good = [f"{letter}{at}C" for at, letter in enumerate(TARGET, 1)]
    text = "mutations\n" + "\n".join([*good, *bad]) + "\n"
    assert run(model, tmp_path, text, "--scheme", "wt-marginal", "--leave-out") == 0
    found = rows_of(tmp_path / "out.csv")
    assert [row["small:wt-marginal"] != "" for row in found] == [True] * len(good) + [False] * len(bad)
    assert [text in row["note"] for row, text in zip(found[len(good) :], bad.values(), strict=True)] == [True] * len(
        bad
    )
    for cell, reason in bad.items():
        assert run(model, tmp_path, "mutations\n" + "\n".join([*good, cell]) + "\n", "--overwrite") == 78
        assert reason in capfd.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("mutant\nK2R\nA3W\n", (), "row 3, column 'mutant': expects A at 3, and the target has T there"),
        ("mutant\nK1R\nT2W\nA3W\n", (), "with 1 all of them fit: set --offset 1"),
        ("mutant\nK2R\nK2del\n", (), "'K2del' is a deletion"),
        ("mutated_sequence\nMKTAY\n", (), "row 2: has insertions or deletions, as 1 rows have"),
        ("mutant,dose\nK2R,1\n,2\n", (), "write WT for the wild type"),
        ("mutant\nK2R and more\n", (), "'and' is no mutation"),
        ("name\nK2R\n", (), "name one with --mutations or --sequences"),
        ("mutant,mutated_sequence\nK2R,MKTAYIAKQRQISFVKSHFSRQ\n", (), "is not what 'K2R' makes of the target"),
        ("mutant,small:masked-marginal-wt-fill\nK2R,1\n", (), "has a column 'small:masked-marginal-wt-fill' already"),
        ("mutant\nK2R\n", ("--target-column", "who"), "--target-column"),
    ],
)
def test_a_mistake_is_one_line(
    model: Path, tmp_path: Path, text: str, words: tuple[str, ...], expected: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(model, tmp_path, text, *words) == 78
    said = capfd.readouterr().err.strip().splitlines()[-1]
    assert expected in said
    assert "data." not in said
    assert not (tmp_path / "out.csv").exists()


def test_a_target_that_is_no_protein_and_an_occupied_output(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.csv").write_text("mutant\nK2R\n")
    (tmp_path / "out.csv").write_text("mine")
    command = [str(model), str(tmp_path / "in.csv"), "-o", str(tmp_path / "out.csv"), "--target-seq"]
    assert main([*command, TARGET]) == 78
    assert "out.csv exists; give another name with -o, or replace it with --overwrite" in capfd.readouterr().err
    assert (tmp_path / "out.csv").read_text() == "mine"
    assert main([*command, "MK1", "--overwrite"]) == 78
    assert "--target-seq 'MK1'" in capfd.readouterr().err
    assert main([*command, TARGET, "--overwrite"]) == 0
    assert [row["mutant"] for row in rows_of(tmp_path / "out.csv")] == ["K2R"]
    assert main([str(tmp_path / "none"), *command[1:], TARGET, "--overwrite"]) == 78
    assert "none" in capfd.readouterr().err


def test_several_processes_are_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in torchrun_variables(0, 2, 29500).items():
        monkeypatch.setenv(name, value)
    assert run(model, tmp_path, "mutant\nK2R\n") == 78
    assert "error: 2 processes were started, and each would do and write the same" in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("name", ["Mutations", "mutation", "Variant", "mutant"])
def test_usual_names_of_mutations_in_any_case(model: Path, tmp_path: Path, name: str) -> None:
    assert run(model, tmp_path, f"{name}\nK2R\n", "--scheme", "wt-marginal") == 0
    assert rows_of(tmp_path / "out.csv")[0]["small:wt-marginal"] != ""
