"""ProteinGym: figures of an assay, means over assays, and the command on a folder."""

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from benchmarks.scoring import written
from finetune.proteingym.__main__ import main
from finetune.proteingym.figures import figures_of, means
from finetune.proteingym.reference import Assay, read_reference
from finetune.score.plan import Variant, variant_of
from finetune.score.scorer import VariantScorer

ZEROSHOT = Path(__file__).resolve().parents[4] / "shared" / "data" / "zeroshot"
REFERENCE = ZEROSHOT / "proteingym_DMS_substitutions_reference.csv.gz"
real = pytest.mark.skipif(not REFERENCE.exists(), reason="the published files are not here")
TARGET, OTHER = "MKTAYIAKQRQISFVKSHFSRQ", "MSDNELKQAAVLRWTHG"
HEADER = "DMS_id,DMS_filename,UniProt_ID,target_seq,coarse_selection_type\n"
ASSAYS = f"A_1,A_1.csv,A,{TARGET},Activity\nA_2,A_2.csv,A,{TARGET},Stability\nB_1,B_1.csv,B,{OTHER},Activity\n"
FIT, WHOLE = "masked-marginal-wt-fill", "pseudo-likelihood"


def mutated(target: str, mutations: str) -> str:
    letters = list(target)
    for each in mutations.split(":"):
        assert letters[int(each[1:-1]) - 1] == each[0]
        letters[int(each[1:-1]) - 1] = each[-1]
    return "".join(letters)


def assay_table(target: str, *mutations: str) -> str:
    rows = [f"{each},{mutated(target, each)},{at}.5,{at % 2},kept {at}\n" for at, each in enumerate(mutations)]
    return "mutant,mutated_sequence,DMS_score,DMS_score_bin,remark\n" + "".join(rows)


@pytest.fixture(scope="module")
def models() -> Iterator[tuple[Path, Path]]:
    with TemporaryDirectory() as scratch:
        for number in range(2):
            written("esm2_60k", Path(scratch) / str(number) / "small", 4.0 + number)
        yield Path(scratch) / "0" / "small", Path(scratch) / "1" / "small"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "reference.csv").write_text(HEADER + ASSAYS)
    folder = tmp_path / "assays"
    folder.mkdir()
    (folder / "A_1.csv").write_text(assay_table(TARGET, "K2R", "T3W", "K2R:T3W", "Q9A"))
    (folder / "A_2.csv").write_text(assay_table(TARGET, "K2A", "A7W", "Q11L"))
    (folder / "B_1.csv").write_text(assay_table(OTHER, "S2A", "D3A", "N4A"))
    return tmp_path


def run(place: Path, *words: str) -> int:
    return main([str(place / "reference.csv"), str(place / "assays"), *words])


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# Figures ------------------------------------------------------------------------------------------


def test_figures_of_an_assay_are_proteingyms() -> None:
    measured = np.arange(50.0)
    scores = np.array([17 * i % 50 + 0.3 * i for i in range(50)])
    found = figures_of(measured, (measured >= 25).astype(float), scores)
    assert found["variants"] == 50
    # Made once by ProteinGym's own functions.
    assert found["ndcg"] == pytest.approx(0.894019841005432, abs=1e-12)
    assert found["recall"] == pytest.approx(0.2, abs=1e-12)
    assert found["spearman"] == pytest.approx(0.5351740696278511, abs=1e-12)
    # Of 25 above the median 16 are fit, by counting: 16 * 16 - 9 * 9 over 25 * 25.
    above = scores >= np.median(scores)
    hits = int((above & (measured >= 25)).sum())
    assert found["mcc"] == pytest.approx((hits * hits - (25 - hits) ** 2) / 625, abs=1e-12)
    pairs = [float(scores[i] > scores[j]) for i in range(25, 50) for j in range(25)]
    assert found["auc"] == pytest.approx(np.mean(pairs), abs=1e-12)


def test_scores_without_order_get_nothing_from_the_order_of_a_file() -> None:
    measured = np.arange(40.0)
    for order in (measured, measured[::-1].copy()):
        found = figures_of(order, (order >= 20).astype(float), np.zeros(40))
        assert np.isnan(found["spearman"])
        assert (found["auc"], found["mcc"]) == (0.5, 0.0)
        assert found["recall"] == pytest.approx(0.1)


def test_rows_without_a_score_or_a_measurement_do_not_count() -> None:
    nan = float("nan")
    measured, is_fit = np.array([1.0, 2.0, nan, 4.0]), np.array([0.0, 0.0, 1.0, 1.0])
    found = figures_of(measured, is_fit, np.array([1.0, nan, 3.0, 2.0]))
    assert (found["variants"], found["spearman"], found["auc"]) == (2, pytest.approx(1.0), 1.0)
    assert np.isnan(found["ndcg"])  # a tenth of two is no variant
    assert np.isnan(figures_of(measured, np.ones(4), np.arange(4.0))["auc"])


def test_means_are_over_proteins_within_a_selection_and_then_over_selections() -> None:
    nan = float("nan")
    values = [("A", "Activity", 0.2), ("A", "Activity", 0.4), ("B", "Activity", 0.6), ("A", "Stability", 1.0)]
    values.append(("C", "Stability", nan))
    assays = [(Assay(str(n), f"{n}.csv", name, "MK", kind), x) for n, (name, kind, x) in enumerate(values)]
    found = means(assays)
    assert found.of_selection == {"Activity": pytest.approx(0.45), "Stability": 1.0}
    assert found.aggregate == pytest.approx(0.725)
    assert (found.of_assays, found.assays) == (pytest.approx(0.55), 4)


@real
def test_published_means_come_out_of_published_values() -> None:
    assays = {assay.name: assay for assay in read_reference(str(REFERENCE))}
    with gzip.open(ZEROSHOT / "proteingym_zero_shot_Spearman_DMS_level.csv.gz", "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(assays) == 217
    expected = {
        **{"8M": (0.2056, 0.2257), "35M": (0.3188, 0.3208), "150M": (0.4006, 0.3868)},
        **{"650M": (0.4382, 0.4138), "3B": (0.4321, 0.4056), "15B": (0.4253, 0.4003)},
    }
    for size, (plain, aggregate) in expected.items():
        found = means((assays[row["DMS ID"]], float(row[f"ESM2 ({size})"])) for row in rows)
        assert found.of_assays == pytest.approx(plain, abs=5e-5), size
        assert found.aggregate == pytest.approx(aggregate, abs=5e-5), size


# The command --------------------------------------------------------------------------------------


def test_columns_are_added_and_a_finished_assay_is_skipped(
    models: tuple[Path, Path], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: rows_of(path) for path in (place / "assays").glob("*.csv")}
    assert run(place, "--model", str(models[0]), "-o", str(place / "figures.csv")) == 0
    said = capsys.readouterr().out
    assert f"A_1, A_2: {FIT}: 5 forward passes" in said  # residues 2, 3, 7, 9, 11; residue 2 serves both
    assert f"B_1: {FIT}: 3 forward passes" in said
    scorer = VariantScorer.open(models[0])
    for name, rows in before.items():
        target = OTHER if name.startswith("B") else TARGET
        variants: list[Variant] = [variant_of(target, row["mutated_sequence"]) for row in rows]
        expected = scorer(target, variants, "masked-marginal-wt-fill").values
        found = rows_of(place / "assays" / name)
        assert [{key: row[key] for key in rows[0]} for row in found] == rows
        assert [float(row[f"small:{FIT}"]) for row in found] == pytest.approx(list(expected), abs=1e-5)
    figures = {row["DMS_id"]: row for row in rows_of(place / "figures.csv")}
    scores = np.array([float(row[f"small:{FIT}"]) for row in rows_of(place / "assays" / "A_1.csv")])
    expected_figures = figures_of(np.arange(4) + 0.5, np.arange(4) % 2, scores)
    assert float(figures["A_1"]["spearman"]) == pytest.approx(expected_figures["spearman"], abs=1e-12)
    assert figures["A_1"]["ndcg"] == ""

    stamps = {path: path.read_bytes() for path in (place / "assays").iterdir()}
    assert run(place, "--model", str(models[0])) == 0
    said = capsys.readouterr().out
    assert "3 of 3 assays are scored already" in said
    assert "forward passes" not in said
    assert {path: path.read_bytes() for path in (place / "assays").iterdir()} == stamps

    # As after a stop between two assays: one has no column yet.
    first = place / "assays" / "B_1.csv"
    first.write_text(assay_table(OTHER, "S2A", "D3A", "N4A"))
    assert run(place, "--model", str(models[0])) == 0
    assert f"B_1: {FIT}: 3 forward passes" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in (place / "assays").iterdir()} == stamps


def test_a_column_of_other_weights_is_not_taken_for_finished(
    models: tuple[Path, Path], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(place, "--model", str(models[0])) == 0
    stamps = {path: path.read_bytes() for path in (place / "assays").iterdir()}
    assert run(place, "--model", str(models[1])) == 78
    assert f"has a column 'small:{FIT}' already, of other weights" in capsys.readouterr().err
    assert run(place, "--model", str(models[0]), "--window", "whole") == 78
    assert {path: path.read_bytes() for path in (place / "assays").iterdir()} == stamps
    (place / "assays" / "zymogen_scores.json").unlink()
    assert run(place, "--model", str(models[0])) == 78
    assert "which this command did not write" in capsys.readouterr().err


def test_insertions_are_scored_by_likelihood_and_have_empty_cells_otherwise(
    models: tuple[Path, Path], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = TARGET[:5] + "GG" + TARGET[5:]
    table = "mutant,mutated_sequence,DMS_score,DMS_score_bin\n"
    (place / "assays" / "A_1.csv").write_text(table + f"{longer},{longer},1,1\n{TARGET[2:]},{TARGET[2:]},0,0\n")
    words = ("--assays", "A_1", "--model", str(models[0]), "--scheme", FIT, WHOLE)
    assert run(place, *words) == 0
    assert "2 variants without a score" in capsys.readouterr().out
    found = rows_of(place / "assays" / "A_1.csv")
    assert [row[f"small:{FIT}"] for row in found] == ["", ""]
    expected = VariantScorer.open(models[0])(
        TARGET, [Variant(longer, None), Variant(TARGET[2:], None)], "pseudo-likelihood"
    )
    assert [float(row[f"small:{WHOLE}"]) for row in found] == pytest.approx(list(expected.values), abs=1e-5)


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        (HEADER + "A_1,A_1.csv,A,,Activity\n", (), "row 2: its column 'target_seq' is empty"),
        (HEADER + ASSAYS + ASSAYS, (), "row 5: 'A_1' is the DMS_id of an earlier row, too"),
        (HEADER + f"A_1,../A_1.csv,A,{TARGET},Activity\n", (), "must be the name of a file"),
        (HEADER + f"A_1,x.csv,A,{TARGET},Activity\n", (), "holds none of the 1 tables, such as x.csv"),
        (HEADER + ASSAYS, ("--assays", "A_3"), "--assays"),
        (HEADER + ASSAYS.replace(TARGET, "W" + TARGET[1:] * 1).replace("KT", "WT"), (), "expects K at 2"),
    ],
)
def test_a_mistake_is_one_line(
    models: tuple[Path, Path],
    place: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    words: tuple[str, ...],
    expected: str,
) -> None:
    (place / "reference.csv").write_text(text)
    before = {path: path.read_bytes() for path in (place / "assays").iterdir()}
    assert run(place, "--model", str(models[0]), *words) == 78
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert expected in last
    assert {path: path.read_bytes() for path in (place / "assays").iterdir()} == before


def test_a_table_without_measurements_is_refused_before_anything_is_scored(
    models: tuple[Path, Path], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "assays" / "B_1.csv").write_text("mutant,mutated_sequence\nS2A," + mutated(OTHER, "S2A") + "\n")
    assert run(place, "--model", str(models[0])) == 78
    assert "'DMS_score'" in capsys.readouterr().err
    assert "small" not in (place / "assays" / "A_1.csv").read_text()
