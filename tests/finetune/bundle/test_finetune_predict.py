"""What is predicted with a bundle: every row, in its order, part by part, by one process or several."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pyarrow as pa
import pytest
import torch

import zymogen
from finetune.__main__ import _next as last_lines
from finetune.bundle.columns import cell as predicted_cell
from finetune.bundle.folder import open_folder, write_bundle
from finetune.bundle.manifest import MANIFEST, ReadingSettings
from finetune.predict.__main__ import main as predict
from finetune.predict.predictor import empty_model, open_predictor
from finetune.predict.rows import RowColumns, RowPredictions, _notes
from finetune.splits.parts import parts_of
from finetune.tables.proteins import proteins_of
from finetune.tables.read import read_table
from finetune.tables.settings import TableSettings
from finetune.tables.table import Table
from finetune.tasks.settings import TaskSettings
from finetune.tasks.task import Task
from support.assays.bundled import letters, rows
from support.launching import DDP, run, started, until

pytestmark = pytest.mark.xdist_group("bundle")  # one worker makes the run


def test_every_row_is_predicted_in_its_order_and_keeps_its_columns(folder: Path, tmp_path: Path) -> None:
    first, second = letters(90, 12), letters(91, 50)
    (tmp_path / "in.csv").write_text(
        f'plate,sequence,fold\nP1,{first},"x, y"\nP2,{second},\nP3,{first.replace("A", "X")}X,z\nP1,{first.lower()},\n'
    )
    out = tmp_path / "out.csv"
    assert predict([str(folder / "run"), str(tmp_path / "in.csv"), "-o", str(out)]) == 0
    found = rows(out)
    assert [*found[0]] == [
        *("plate", "sequence", "fold", "kd"),
        *("fold_predicted", "fold_predicted_p_a", "fold_predicted_p_b", "fold_predicted_p_c-d"),
        *("ss", "ss_p_C", "ss_p_E", "ss_p_H", "note"),
    ]
    assert [row["plate"] for row in found] == ["P1", "P2", "P3", "P1"]
    assert found[0]["fold"] == "x, y"
    assert {k: v for k, v in found[0].items() if k not in ("fold", "sequence")} == {
        k: v for k, v in found[3].items() if k not in ("fold", "sequence")
    }
    assert found[1]["note"] == "cut from 50 to 38 residues (start); 38 residues, outside the 10 to 18 of training"
    assert found[2]["note"] == "unusual letters: X"
    states, probabilities = json.loads(found[1]["ss"]), json.loads(found[1]["ss_p_H"])
    assert len(states) == len(probabilities) == 50
    assert states[38:] == [None] * 12
    assert set(states[:38]) <= {*"CEH"}
    of_classes = sum(float(found[0][f"fold_predicted_p_{name}"]) for name in ("a", "b", "c-d"))
    assert of_classes == pytest.approx(1, abs=1e-6)
    # In the user's unit: a kd between 1 nM and 100 uM, not a p value of 5 to 9.
    bundle = open_folder(folder / "run" / "bundle")
    table = read_table(str(tmp_path / "in.csv"))
    proteins = proteins_of(table, bundle.manifest.reading, 40)
    p = open_predictor(bundle)(proteins, np.array([0]))[0][0][0]
    assert float(found[0]["kd"]) == pytest.approx(10 ** (9 - p), rel=1e-5)


def test_fasta_is_read_and_an_output_is_never_replaced_unasked(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.fasta").write_text(f">one\n{letters(5, 14)}\n")
    out = tmp_path / "out.csv"
    out.write_text("mine")
    bundle = folder / "run" / "bundle"
    assert predict([str(bundle), str(tmp_path / "in.fasta"), "-o", str(out)]) == 78
    assert out.read_text() == "mine"
    assert "--overwrite" in capfd.readouterr().err
    assert predict([str(bundle), str(tmp_path / "in.fasta"), "-o", str(out), "--overwrite"]) == 0
    assert len(rows(out)) == 1


def test_a_row_without_a_protein_is_named_or_left_out(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.csv").write_text(f"sequence,n\n{letters(5, 14)},1\n,2\n")
    arguments = [str(folder / "run"), str(tmp_path / "in.csv"), "-o", str(tmp_path / "out.csv")]
    assert predict(arguments) == 78
    said = capfd.readouterr().err
    assert "row 3" in said
    assert "Fill it, or leave such rows out with --leave-out" in said
    assert not (tmp_path / "out.csv").exists()
    assert predict([*arguments, "--leave-out"]) == 0
    assert [(row["n"], row["kd"] != "", row["note"]) for row in rows(tmp_path / "out.csv")] == [
        ("1", True, ""),
        ("2", False, "no protein"),
    ]


def test_mutations_of_the_sequence_of_each_row(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finetune.predict.rows.ROWS", 2)  # the numbering is that of all parts
    first, second = letters(5, 14), letters(6, 14)
    whole = [first[:4] + "C" + first[5:], second, second[:1] + "W" + second[2:], second[:7] + "D" + second[8:]]
    named = [f"{first[4]}5C", "WT", f"{second[1]}2W", f"{second[7]}8D"]
    text = "".join(f"{own},{name}\n" for own, name in zip([first, second, second, second], named, strict=True))
    (tmp_path / "in.csv").write_text(f"wild,mut\n{text}")
    (tmp_path / "whole.csv").write_text("sequence\n" + "\n".join(whole) + "\n")
    for name, more in (("in", ["--sequence", "wild", "--mutation", "mut"]), ("whole", [])):
        arguments = [str(folder / "run"), str(tmp_path / f"{name}.csv"), "-o", str(tmp_path / f"{name}.out.csv")]
        assert predict([*arguments, *more]) == 0
    found, expected = (rows(tmp_path / f"{name}.out.csv") for name in ("in", "whole"))
    assert [row["kd"] for row in found] == [row["kd"] for row in expected]
    assert len({row["kd"] for row in found}) == 4
    arguments = [str(folder / "run"), str(tmp_path / "in.csv"), "-o", str(tmp_path / "none.csv"), "--mutation", "mut"]
    assert predict(arguments) == 78
    said = capfd.readouterr().err.splitlines()[-1]
    assert "it needs --wild-type, a FASTA file of the protein that is mutated, or --sequence, the column of" in said
    assert "data." not in said


def test_it_predicts_what_the_run_predicted(folder: Path, tmp_path: Path) -> None:
    assert predict([str(folder / "run"), str(folder / "train.csv"), "-o", str(tmp_path / "out.csv")]) == 0
    ours = {f"row-{number}": row for number, row in enumerate(rows(tmp_path / "out.csv"), 2)}
    theirs = rows(folder / "run" / "predictions.csv")
    assert {row["task"] for row in theirs} == {"kd", "fold", "ss"}
    assert {row["part"] for row in theirs} == {"validation", "test"}
    for row in theirs:
        # The table has the columns kd, fold and ss already, so that those of predictions have longer names.
        found = {name: text for name, text in ours[row["id"]].items() if name.startswith(f"{row['task']}_predicted")}
        if row["position"]:
            found = {name: json.loads(text)[int(row["position"]) - 1] for name, text in found.items()}
        name = f"{row['task']}_predicted"
        if row["task"] == "kd":
            assert float(found[name]) == pytest.approx(float(row["prediction"]), rel=1e-5)
            for end in ("low", "high"):
                has = f"{name}_{end}" in found
                assert has == bool(row[end])
                assert not has or float(found[f"{name}_{end}"]) == pytest.approx(float(row[end]), rel=1e-5)
        else:
            assert found[name] == row["prediction"]
            assert float(found[f"{name}_p_{row['prediction']}"]) == pytest.approx(float(row["probability"]), rel=1e-5)


def test_a_table_is_predicted_part_by_part(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    wild = letters(7, 20)
    (tmp_path / "wt.fasta").write_text(f">wt\n{wild}\n")
    places = [3, 17, 5, 8, 11, 3, 0, 19]  # numbered from 101: which one row alone does not show
    mutants = [f"{wild[at]}{at + 101}{'A' if wild[at] != 'A' else 'G'}" for at in places]
    (tmp_path / "mutants.csv").write_text("n,mutant\n" + "".join(f"{n},{text}\n" for n, text in enumerate(mutants)))
    whole = [f"{wild[:at]}{text[-1]}{wild[at + 1 :]}" for at, text in zip(places, mutants, strict=True)]
    (tmp_path / "whole.fasta").write_text("".join(f">{n}\n{each}\n" for n, each in enumerate(whole)))
    mutation = ["--mutation", "mutant", "--wild-type", str(tmp_path / "wt.fasta")]
    bundle = str(folder / "run")
    assert predict([bundle, str(tmp_path / "whole.fasta"), "-o", str(tmp_path / "at_once.csv")]) == 0
    monkeypatch.setattr("finetune.predict.rows.ROWS", 3)
    assert predict([bundle, str(tmp_path / "mutants.csv"), "-o", str(tmp_path / "parts.csv"), *mutation]) == 0
    assert "residue 1 of the wild type is number 101" in capfd.readouterr().err
    at_once, parts = rows(tmp_path / "at_once.csv"), rows(tmp_path / "parts.csv")
    assert [row["n"] for row in parts] == [row["id"] for row in at_once] == [*"01234567"]
    for one, other in zip(at_once, parts, strict=True):
        assert float(one["kd"]) == pytest.approx(float(other["kd"]), rel=1e-5)
        assert json.loads(one["ss_p_H"]) == pytest.approx(json.loads(other["ss_p_H"]), rel=1e-5)

    # What is wrong with the last part is said before anything of the first one is predicted.
    monkeypatch.setattr(RowPredictions, "parts", lambda *_: pytest.fail("predicted"))
    for wrong, said in (
        ("MK7", "row 10: has no protein: its column 'sequence' says 'MK7'"),
        ("M" * 50, "1 of 9 rows have a protein of more than 38 residues, the most that the model was told to read, "
         "first row 10; the longest, row 10, has 50. Say what is kept of them with --too-long"),
        ("", "row 10: has no protein"),
    ):  # fmt: skip
        (tmp_path / "bad.csv").write_text("sequence,n\n" + "".join(f"{each},0\n" for each in [*whole, wrong]))
        arguments = [bundle, str(tmp_path / "bad.csv"), "-o", str(tmp_path / "bad_out.csv")]
        assert predict(arguments if wrong[:2] != "MM" else [*arguments, "--too-long", "refuse"]) == 78
        assert said in capfd.readouterr().err
        assert not (tmp_path / "bad_out.csv").exists()


def test_how_near_a_row_is_to_the_training_is_asked_with_its_table(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    parts = {row["id"]: row["part"] for row in rows(folder / "run" / "bundle" / "split.csv")}
    trained = [n for n, row in enumerate(rows(folder / "train.csv"), 2) if parts[f"row-{n}"] == "train"][:3]
    sequences = [rows(folder / "train.csv")[n - 2]["sequence"] for n in trained]
    (tmp_path / "in.csv").write_text("sequence,n\n" + "".join(f"{each},1\n" for each in [*sequences, ""]))
    arguments = [str(folder / "run"), str(tmp_path / "in.csv"), "-o", str(tmp_path / "out.csv"), "--leave-out"]
    assert predict([*arguments, "--nearest", str(folder / "train.csv")]) == 0
    found = rows(tmp_path / "out.csv")
    assert [*found[0]][-2:] == ["nearest_train_identity", "note"]
    assert [row["nearest_train_identity"] for row in found] == ["1", "1", "1", ""]
    count = sum(part == "train" for part in parts.values())
    said = f"nearest_train_identity is to the {count} proteins of {folder}/train.csv that trained, by "
    assert said in capfd.readouterr().err


@pytest.mark.prove
def test_two_processes_write_what_one_does_and_a_killed_one_nothing(folder: Path, tmp_path: Path) -> None:
    table, bundle = tmp_path / "in.csv", str(folder / "run")
    proteins = [f"{number},{letters(number % 700, 8 + number % 23)}" for number in range(4500)]
    table.write_text("n,sequence\n" + "\n".join(proteins) + "\n")
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    words = [sys.executable, "-m", "finetune.predict", bundle, str(table), "-o"]
    with started([*words, str(one)], tmp_path / "log") as process:
        until(lambda: any(path.stat().st_size > 0 for path in tmp_path.glob(".one.csv-*/new")), tmp_path / "log")
        process.kill()
        process.wait()
    assert not one.exists()
    done = run([*words, str(one)])
    assert done.status == 0, done.output
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(DDP), "--num_processes", "2"]
    done = run([*launcher, *words[1:], str(two)])
    assert done.status == 0, done.output
    assert done.output.count("4,500 rows, 3 tasks, 1 model(s)") == 1
    assert one.read_bytes() == two.read_bytes()
    assert [row["n"] for row in rows(one)] == [str(number) for number in range(4500)]
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_prediction_that_is_no_number_is_an_error_with_its_row(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle = open_folder(folder / "run" / "bundle")
    tensors = {name: tensor.clone() for name, tensor in bundle.tensors.items()}
    bias = next(name for name in tensors if name.startswith("heads.task_kd.") and name.endswith("bias"))
    tensors[bias][0] = torch.nan
    parts = parts_of(np.zeros(1, np.uint64), np.zeros(1, np.int8), np.zeros(1, np.int64), np.full(1, -1, np.int16))
    write_bundle(tmp_path / "nan", bundle.manifest, tensors, ["a"], parts)
    (tmp_path / "in.csv").write_text(f"sequence\n{letters(5, 14)}\n")
    assert predict([str(tmp_path / "nan"), str(tmp_path / "in.csv"), "-o", str(tmp_path / "o.csv")]) == 78
    said = capfd.readouterr().err
    assert "row 2" in said
    assert "not a number for 'kd'" in said
    assert not (tmp_path / "o.csv").exists()


def test_pairs_of_residues_are_refused_or_left_out_by_name(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle = open_folder(folder / "run" / "bundle")
    settings = TaskSettings(name="contact", type="binary", level="pair")
    counts = np.ones((1, 2), np.int64)
    contact = Task(settings, ("contact",), ("no", "yes"), np.zeros(1), np.ones(1), counts)
    parts = parts_of(np.zeros(1, np.uint64), np.zeros(1, np.int8), np.zeros(1, np.int64), np.full(1, -1, np.int16))
    (tmp_path / "in.csv").write_text(f"sequence\n{letters(5, 14)}\n")
    for name, tasks in (("both", (bundle.manifest.tasks[0], contact)), ("alone", (contact,))):
        manifest = replace(bundle.manifest, tasks=tasks)
        heads = empty_model(replace(bundle, manifest=manifest)).heads.named_parameters(prefix="heads")
        kept = {name: tensor for name, tensor in bundle.tensors.items() if not name.startswith("heads.")}
        tensors = kept | {name: torch.zeros(parameter.shape, device="cpu") for name, parameter in heads}
        write_bundle(tmp_path / name, manifest, tensors, ["a"], parts)
    assert predict([str(tmp_path / "both"), str(tmp_path / "in.csv"), "-o", str(tmp_path / "o.csv")]) == 0
    assert "tasks about pairs of residues are not written: contact" in capfd.readouterr().err
    assert [*rows(tmp_path / "o.csv")[0]] == ["sequence", "kd", "note"]
    assert predict([str(tmp_path / "alone"), str(tmp_path / "in.csv"), "-o", str(tmp_path / "no.csv")]) == 78
    assert "row by row: pairs of residues have no cells in a table (contact)" in capfd.readouterr().err
    assert not (tmp_path / "no.csv").exists()


def test_whole_sequences_are_read_by_a_model_of_mutations() -> None:
    """No setting of mutations is left, of which another one would be refused."""
    trained = ReadingSettings(
        mutation=("m",),
        wild_type="wt.fasta",
        protein="p",
        numbering_offset=3,
        empty_mutation="wild_type",
        too_long="window",
    )
    found = RowColumns(sequence=["letters"]).settings(trained, Path("none"), ["letters"])
    assert found == ReadingSettings(sequence=("letters",))


@pytest.mark.parametrize("kind", ["frame", "columns", "list"])
def test_python_gets_the_numbers_of_the_command(folder: Path, tmp_path: Path, kind: str) -> None:
    sequences = [letters(90, 12), letters(91, 50), letters(90, 12).lower(), f"{letters(92, 13)}X"]
    text = "".join(f"{sequence},{number}\n" for number, sequence in enumerate(sequences))
    (tmp_path / "in.csv").write_text(f"sequence,mine\n{text}")
    assert predict([str(folder / "run"), str(tmp_path / "in.csv"), "-o", str(tmp_path / "out.csv")]) == 0
    written = rows(tmp_path / "out.csv")
    model = zymogen.open_bundle(folder / "run", device="cpu")
    assert model.tasks == ["kd", "fold", "ss"]
    frame = pandas.DataFrame({"sequence": sequences, "mine": range(4)}, index=[*"abcd"])
    given = {"frame": frame, "columns": dict(frame), "list": sequences}[kind]
    found = model.predict(given)
    assert model.predict(given)["kd"].tolist() == found["kd"].tolist()
    if kind == "frame":
        assert [*found.index] == [*"abcd"]
        assert [*found.columns] == [*written[0]]
        assert [*frame.columns] == ["sequence", "mine"]
    else:
        assert [*found] == [name for name in written[0] if name not in ("sequence", "mine")]
    for name in set(found) - {"sequence", "mine"}:
        for value, cell in zip(found[name], (row[name] for row in written), strict=True):
            assert predicted_cell(value) == cell


def test_python_names_a_row_that_cannot_be_predicted(folder: Path) -> None:
    model = zymogen.open_bundle(folder / "run" / "bundle", device="cpu")
    with pytest.raises(ValueError, match=r"^rows: row 1: has no protein: its column 'sequence' is empty"):
        model.predict([letters(90, 12), ""])
    found = model.predict([letters(90, 12), None], skip_invalid=True)  # type: ignore[list-item]
    assert np.isnan(found["kd"]).tolist() == [False, True]
    assert (found["fold"][1], found["note"][1]) == (None, "no protein")
    for rows_ in ([], {}, {"sequence": []}):
        with pytest.raises(ValueError, match=r"^rows: there is none"):
            model.predict(rows_)
    with pytest.raises(ValueError, match=r"^rows is one string; give a list of sequences, or a table"):
        model.predict("MKT")
    with pytest.raises(ValueError, match=r"none is no bundle, and has none in bundle/"):
        zymogen.open_bundle(folder / "none")


def test_unknown_letters_are_noted() -> None:
    table = Table("x.csv", pa.table({"sequence": ["MK?T*A", "MKTAA", "MKJTA"]}), 2)
    proteins = proteins_of(table, TableSettings(unknown_letters="count"), None, is_part=True)
    notes = ["; ".join(_notes(proteins, row, int(proteins.record_of_row[row]), (1, 99))) for row in range(3)]
    assert notes == ["2 unknown letters are read as <unk>: * ?", "", "1 unknown letters are read as <unk>: J"]


def test_the_last_lines_name_the_command_that_predicts_with_all_folds(tmp_path: Path) -> None:
    command = f"Predict other proteins: python -m finetune.predict {tmp_path} in.csv -o out.csv"
    assert command not in last_lines(tmp_path)
    for fold in ("fold-0", "fold-1"):
        (tmp_path / fold / "bundle").mkdir(parents=True)
        (tmp_path / fold / "bundle" / MANIFEST).touch()
    assert command in last_lines(tmp_path)
