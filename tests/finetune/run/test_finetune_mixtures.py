"""Several tables in one run, and classes that are drawn equally often: records, labels, ids, what a pass draws."""

import csv
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from data.homology import mmseqs
from data.order.plan import Cursor
from finetune.assays import Assays, open_assays, prepare
from finetune.ensemble import ensemble_members
from finetune.look.__main__ import main as look
from finetune.recipe import Recipe
from finetune.splits.parts import TRAIN
from support.assays.small_run import Rows, rows, write
from zymogen.settings.toml_file import read

TABLE = rows()
FEW = 48
"""Rows of the second table; the last four of them are sequences of the first one too."""
Change = Callable[[Rows], Rows]


def same(given: Rows) -> Rows:
    return given


def two(folder: Path, change: Change = same, of_second: Change = same, *, swapped: bool = False) -> Path:
    """Two tables: one has the tasks 'binds' and 'place' alone, the other all but those, and ids that are taken."""
    path = write(folder, lambda given: change([_only(row, ("binds", "place")) for row in given[FEW - 4 :]]))
    second = of_second([_only(row, ("affinity_a", "affinity_b", "grade", "state")) for row in TABLE[:FEW]])
    with (folder / "more.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(second[0]))
        writer.writeheader()
        writer.writerows(row | {"name": f"p{100 + i}"} for i, row in enumerate(second))
    names = [f"{folder}/assays.csv", f"{folder}/more.csv"]
    named = ", ".join(f'"{name}"' for name in (names[::-1] if swapped else names))
    path.write_text(path.read_text().replace(f'"{folder}/assays.csv"', f"[{named}]"))
    return path


def _only(row: dict[str, str], columns: tuple[str, ...]) -> dict[str, str]:
    return {name: row[name] for name in ("name", "sequence", *columns)}


def opened(path: Path, *words: str) -> Assays:
    recipe = read(Recipe, path, words)
    return open_assays(recipe, prepare(recipe))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two(tmp_path_factory.mktemp("mixtures")).parent


@pytest.fixture(scope="module")
def assays(folder: Path) -> Assays:
    return opened(folder / "recipe.toml")


def drawn(assays: Assays, passes: int, seed: int = 0) -> list[Counter[int]]:
    """How often each record is drawn in each pass."""
    found = [Counter[int]() for _ in range(passes)]
    for bin_, cursor in assays.plan(seed).bins(Cursor()):
        if cursor.epoch == passes:
            return found
        found[cursor.epoch].update(bin_.samples.tolist())
    raise AssertionError


def test_a_sequence_of_two_tables_is_one_record_with_the_labels_of_both(assays: Assays) -> None:
    """The whole table, cut in two that share four sequences, has as many labels as before where none was left out."""
    assert assays.store.num_records == len(TABLE)
    by_name = {task.settings.name: task.labels for task in assays.tasks}
    assert len(by_name["binds"]) == sum(bool(row["binds"]) for row in TABLE[FEW - 4 :])
    assert len(by_name["affinity"]) == sum(bool(r[f"affinity_{c}"]) for r in TABLE[:FEW] for c in "ab")
    for record, row in enumerate(TABLE[FEW - 4 : FEW], FEW - 4):
        assert assays.store.num_residues(np.array([record])) == len(row["sequence"])
        for name, column in (("binds", "binds"), ("grade", "grade")):
            count = np.diff(by_name[name].pointers)[record]
            assert count == bool(row[column])
    assert [(Path(name).name, len(records)) for name, records in assays.tables.items()] == [
        ("assays.csv", 164 - FEW),
        ("more.csv", FEW),
    ]
    assert [*assays.tables.values()][1].tolist() == list(range(FEW))


def test_ids_that_are_taken_in_another_table_are_called_after_their_table(assays: Assays) -> None:
    ids = [assays.store.header(record) for record in range(assays.store.num_records)]
    assert [ids[0], ids[FEW - 4], ids[-1]] == ["more:p100", f"assays:p{FEW - 4}", "assays:p159"]
    assert len(set(ids)) == len(ids)


def test_rows_without_ids_are_called_after_their_table(tmp_path: Path) -> None:
    found = opened(two(tmp_path, lambda given: [row | {"name": ""} for row in given]))
    assert [found.store.header(record) for record in (0, FEW - 4, 159)] == [
        "more:row-2",
        "assays:row-2",
        f"assays:row-{165 - FEW}",
    ]


def test_the_split_is_of_all_records_and_not_of_their_order(assays: Assays, tmp_path: Path) -> None:
    other = opened(two(tmp_path, swapped=True))
    assert other.parts.part.tolist() == assays.parts.part.tolist()
    assert other.fingerprint == assays.fingerprint
    assert opened(two(tmp_path / "again")).parts.fingerprint == assays.parts.fingerprint
    assert [*other.tables.values()][1].tolist() != [*assays.tables.values()][1].tolist()


def test_at_temperature_one_each_record_is_drawn_once_a_pass(assays: Assays) -> None:
    wanted = Counter(assays.records(TRAIN).tolist())
    assert drawn(assays, 2) == [wanted, wanted]


@pytest.mark.parametrize("temperature", [1.5, 3.0, 1000.0])
def test_tables_are_drawn_by_their_size_to_the_power_of_one_over_t(folder: Path, temperature: float) -> None:
    found = opened(folder / "recipe.toml", f"data.temperature={temperature}")
    training = set(found.records(TRAIN).tolist())
    large, small = (training & set(records.tolist()) for records in found.tables.values())
    shared, total = large & small, len(training)
    assert shared
    share = len(small) ** (1 / temperature) / (len(small) ** (1 / temperature) + len(large) ** (1 / temperature))
    passes = drawn(found, 3)
    assert {counts.total() for counts in passes} == {total}
    sums = sum(passes, Counter[int]())
    of_small = sum(sums[record] for record in small - shared)
    # A record that both have is drawn for either, so those of one alone are counted, and expected by their number.
    expected = 3 * round(share * total) * len(small - shared) / len(small)
    assert abs(of_small - expected) <= len(shared)  # each was drawn for the small one a time more, or less
    assert len({sums[record] for record in small - shared}) <= 2
    said = [text for name, text in found.facts() if name == "drawn"]
    assert said[1].startswith(f"{round(share * total)} an epoch of the {len(small)} training proteins of ")
    assert found.num_seen(0, 3) == len(sums)
    assert set(sums) <= training


def test_what_decides_the_order_is_in_the_fingerprint(folder: Path, assays: Assays) -> None:
    """A sequence that leaves one of its tables without a label changes what is drawn at another temperature."""
    words = "data.temperature=2"
    assert opened(folder / "recipe.toml").fingerprint == assays.fingerprint
    hot = opened(folder / "recipe.toml", words)
    assert hot.fingerprint != assays.fingerprint
    assert hot.fingerprint == opened(folder / "recipe.toml", words).fingerprint
    _, second = hot.tables
    less = replace(hot, tables={**hot.tables, second: hot.tables[second][1:]})
    assert less.fingerprint != hot.fingerprint


def test_a_plan_continues_in_the_middle_to_the_same_bytes(folder: Path) -> None:
    word = "data.temperature=2"
    ahead = list(islice(opened(folder / "recipe.toml", word).plan(5).bins(Cursor()), 120))
    assert ahead[-1][1].epoch >= 2
    for at in (0, 31, 77):
        fresh = opened(folder / "recipe.toml", word).plan(5).bins(ahead[at][1])
        for (wanted, _), (bin_, _) in zip(ahead[at + 1 : at + 30], fresh, strict=False):
            assert bin_.samples.tobytes() == wanted.samples.tobytes()


def test_a_pass_is_as_many_draws_as_training_records(folder: Path) -> None:
    words = ("schedule.total_tokens=none", "schedule.passes=4", "data.temperature=4")
    recipe = read(Recipe, folder / "recipe.toml", words)
    found = open_assays(recipe, prepare(recipe))
    (member,) = ensemble_members(recipe, found)
    lengths = found.reader.num_residues(np.arange(found.store.num_records)) + 2
    tokens = sum(int(lengths[record]) * times for record, times in drawn(found, 1)[0].items())
    assert member.recipe.schedule.total_tokens == 4 * tokens


def without(column: str) -> Change:
    return lambda given: [{name: cell for name, cell in row.items() if name != column} for row in given]


def renamed(given: Rows) -> Rows:
    return [{"seq" if name == "sequence" else name: cell for name, cell in row.items()} for row in given]


def short(given: Rows) -> Rows:
    return [row | {"sequence": "MK1T" if i == 3 else row["sequence"]} for i, row in enumerate(given)]


BAD = {
    "no such column": (without("grade"), (), "assays.csv and "),
    "sequence in one": (renamed, (), "the column of sequences is 'sequence' in "),
    "named sequence": (renamed, ("data.sequence=sequence",), "more.csv: data.sequence is 'sequence'; "),
    "split column": (
        same,
        ("split.by=column", "split.column=place", "split.fractions=none"),
        "more.csv: split.column is 'place'; ",
    ),
    "a letter": (short, (), "more.csv: row 5: has no protein: its column 'sequence' says "),
    "below 1": (same, ("data.temperature=0.5",), "data.temperature is 0.5; "),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_mixed_is_one_line(tmp_path: Path, what: str) -> None:
    change, words, said = BAD[what]
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        opened(two(tmp_path, of_second=change), *words)
    assert "\n" not in str(caught.value)


def test_a_temperature_of_one_table_and_a_table_named_twice_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r": data.temperature is 2.0; it mixes several tables, and data.table names"):
        opened(write(tmp_path), "data.temperature=2")
    path = two(tmp_path)
    path.write_text(path.read_text().replace("more.csv", "assays.csv"))
    with pytest.raises(ValueError, match=r"^data.table names \S+assays.csv 2 times; name each table once$"):
        opened(path)


def looked(folder: Path, **files: str) -> Recipe:
    for name, text in files.items():
        (folder / name.replace("_as_", ".")).write_text(text)
    names = [str(folder / name.replace("_as_", ".")) for name in files]
    assert look([*names, "-o", str(folder / "r.toml"), "--no-timing"]) == 0
    return read(Recipe, folder / "r.toml")


@pytest.fixture
def fasta() -> list[str]:
    """Four files of records of which two have the same name."""
    letters = np.random.default_rng(0).choice(list("ACDEFGHIKLMNPQRSTVWY"), (4, 12, 30))
    return ["".join(f">P{i}\n{''.join(each)}\n" for i, each in enumerate(of_file)) for of_file in letters]


def test_names_of_several_files_are_classes_and_parts(
    tmp_path: Path, fasta: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mmseqs, "is_installed", lambda: False)
    names = ("pos_train_as_fasta", "neg_train_as_fasta", "pos_test_as_fasta", "neg_test_as_fasta")
    recipe = looked(tmp_path, **dict(zip(names, fasta, strict=True)))
    assert len(recipe.data.table) == 4
    assert [(task.name, task.type) for task in recipe.tasks] == [("source_table", "binary")]
    assert (recipe.split.by, recipe.split.column) == ("column", "source_part")
    found = opened(tmp_path / "r.toml")
    assert len(found.tasks[0].labels.values) == 48
    assert found.tasks[0].labels.values.sum() == 24
    shown = capsys.readouterr().out
    assert "by the names of the files, as no other column holds labels: a guess" in " ".join(shown.split())
    assert "nearly tells the class" not in shown


def test_names_of_files_are_not_learned_where_another_column_is(
    tmp_path: Path, fasta: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mmseqs, "is_installed", lambda: False)
    letters = fasta[0].split("\n")[1::2]
    mouse, yeast = ["".join(f"{each},{tm + i}.5\n" for i, each in enumerate(letters)) for tm in (40, 41)]
    recipe = looked(tmp_path, mouse_as_csv=f"sequence,Tm (C)\n{mouse}", yeast_as_csv=f"sequence,Tm (C)\n{yeast}")
    assert [task.name for task in recipe.tasks] == ["Tm"]
    labels = opened(tmp_path / "r.toml").tasks[0].labels
    assert labels.spread is not None
    assert (labels.spread > 0).all()  # replicates, not measurements under two conditions
