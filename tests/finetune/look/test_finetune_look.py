"""A look at tables as people have them: roles, tasks, split, and a recipe that is valid as it is written."""

from pathlib import Path
from typing import Any

import pytest

from data.homology import mmseqs
from finetune.look.__main__ import _remark
from finetune.look.__main__ import main as look
from finetune.look.draft import LookOptions, RecipeDraft, draft_recipe
from finetune.recipe import Recipe
from support.assays.messy_tables import TABLES, lines, numbers, proteins, saved
from support.inputs.written_runs import WrittenRun
from support.places import REAL
from zymogen.settings.toml_file import read

DATA = REAL.parent
BLAT = DATA / "zeroshot" / "BLAT_ECOLX_Ranganathan2015_labeled.csv.gz"
# Table -> its tasks as (name, type, further settings that are expected), and what decides the split.
EXPECTED: dict[str, tuple[list[tuple[str, str, dict[str, Any]]], str]] = {
    "blat_like": ([("0", "regression", {}), ("39", "regression", {})], "position"),
    "two_headers": ([("kcat", "regression", {"unit": "1/s"}), ("Tm", "regression", {"unit": "°C"})], "homology"),
    "forty_rows": ([("stability", "regression", {})], "homology"),
    "two_chains": ([("affinity", "regression", {})], "homology"),
    "longer_than_the_model": ([("stability", "regression", {})], "homology"),
    "worse_dump": (
        [("Titer", "regression", {"unit": "mg/L"}), ("Grade", "ordinal", {"classes": ("low", "medium", "high")})],
        "homology",
    ),
    "worse_merge": ([("binds", "binary", {}), ("KD", "regression", {"transform": "p"})], "homology"),
    "worse_notebook": (
        [
            ("IC50", "regression", {"unit": "nM", "transform": "p"}),
            ("Tm", "regression", {"unit": "°C", "columns": ("Tm1 [°C]", "Tm2 [°C]"), "columns_are": "replicates"}),
        ],
        "homology",
    ),
    "worse_residues": ([("ss", "multiclass", {"level": "residue"})], "column"),
}


def looked(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RecipeDraft, Recipe]:
    monkeypatch.setattr(mmseqs, "is_installed", lambda: False)
    table, *more = TABLES[name](folder)
    found = draft_recipe(
        LookOptions((table,), folder / "r.toml", more[1] if more else None, store_dir=str(folder / "stores"))
    )
    (folder / "r.toml").write_text(found.recipe)
    return found, read(Recipe, folder / "r.toml")


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_each_table_gives_a_valid_recipe_with_its_tasks(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, recipe = looked(name, tmp_path, monkeypatch)
    tasks, by = EXPECTED[name]
    assert [(task.name, task.type) for task in recipe.tasks] == [(task, kind) for task, kind, _ in tasks]
    for task, (_, _, more) in zip(recipe.tasks, tasks, strict=True):
        assert {setting: getattr(task, setting) for setting in more} == more
    assert recipe.split.by == by
    assert recipe.split.folds == (0 if by == "column" else 5)
    assert recipe.adaptation.kind == "frozen"
    assert all(reason for _, reason in found.roles.values())
    if name == "blat_like":
        assert [found.roles[c][0] for c in ("column 1", "0_1", "39_1", "esm1v_1")] == [
            *("index", "replicate", "copy", "prediction"),
        ]
    if name == "two_chains":
        assert recipe.data.sequence == ("heavy", "light")
    if name == "longer_than_the_model":
        assert (recipe.data.too_long, recipe.data.crop_tokens) == ("start", 1024)
    if name == "worse_residues":
        assert (recipe.data.rows_without_protein, recipe.data.unknown_letters) == ("leave_out", "count")
        assert found.roles["length"][0] == "length"
    if name == "worse_notebook":
        names = ("Clone", "Sequence", "IC50 n", "molecule_name", "compound", "protein_dataset", "Run date")
        assert [found.roles[column][0] for column in names] == [
            *("id", "sequence", "count", "id", "molecule", "constant", "date"),
        ]


def test_a_table_without_a_protein_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert look(saved(tmp_path, lines("mutant,score", ["A1P", "A2C"] * 5, list(range(10))))) == 78
    assert "name a FASTA file of it with --wild-type" in capsys.readouterr().err
    assert look(saved(tmp_path, lines("smiles,score", ["CCO", "c1ccccc1"] * 5, numbers(10)))) == 78
    assert "has no protein: it needs a column of sequences" in capsys.readouterr().err
    assert not (tmp_path / "recipes").exists()


def test_a_recipe_is_written_over_only_if_nobody_changed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mmseqs, "is_installed", lambda: False)
    table = saved(tmp_path, lines("sequence,stability", proteins(12), numbers(12)))
    assert look(table) == 0
    assert "to train: python -m finetune recipes/table.toml" in capsys.readouterr().out
    assert look(table) == 0
    path = tmp_path / "recipes" / "table.toml"
    path.write_text(path.read_text() + "# mine\n")
    assert look(table) == 78
    assert "was not written by this command alone" in capsys.readouterr().err
    assert path.read_text().endswith("# mine\n")


@pytest.mark.slow
@pytest.mark.skipif(not BLAT.is_file(), reason="no real assays beside the project (shared/data/zeroshot)")
def test_six_columns_of_blat_are_tasks(tmp_path: Path) -> None:
    variants = str(DATA / "zeroshot" / "P62593_BLAT_variants.fasta.gz")
    found = draft_recipe(LookOptions((str(BLAT),), tmp_path / "r.toml", variants, store_dir=str(tmp_path)))
    tasks = [name for name, (role, _) in found.roles.items() if role == "task"]
    assert tasks == ["0", "39", "156", "625", "2500", "cefotaxime"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_each_recipe_trains_twenty_steps(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from functools import partial

    from finetune.assays import open_on_every_rank
    from finetune.ensemble import ensemble_members
    from finetune.job import FineTuneJob
    from zymogen.trainer.attempt import train
    from zymogen.trainer.engine.launch import launch

    monkeypatch.chdir(tmp_path)
    _, proposed = looked(name, tmp_path, monkeypatch)
    path = tmp_path / "r.toml"
    # Only the length is another one: 20 steps of the proposed sizes, at most.
    tokens = 20 * proposed.data.bin_tokens * proposed.data.bins_per_step
    recipe = read(Recipe, path, ["schedule.passes=none", f"schedule.total_tokens={tokens}", "run.patience=none"])
    with launch(recipe) as engine:
        member = next(iter(ensemble_members(recipe, open_on_every_rank(recipe, engine))))
        summary = train(member.recipe, partial(FineTuneJob, assays=member.assays), engine)
    assert summary.state.step >= 20
    assert summary.scores.rank_metric == summary.scores.rank_metric


def test_the_run_is_named_after_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mmseqs, "is_installed", lambda: False)
    table, *_ = TABLES["forty_rows"](tmp_path)
    for name, run in (("bind.toml", "runs/bind"), ("second try.toml", "runs/second_try")):
        assert look([str(table), "-o", name, "--no-timing"]) == 0
        assert read(Recipe, Path(name)).run.directory == run


def test_an_encoder_that_learned_little_is_remarked_on(tmp_path: Path) -> None:
    little, learned = (WrittenRun(unigram=each).write(tmp_path / str(each)) for each in (7.9, 17.8))
    for init in (little, little / "export"):
        (first, second) = _remark(init)
        assert first.startswith(f"note: {init} learned little or nothing beyond residue frequencies: its vectors")
        assert second.endswith("--init facebook/esm2_t6_8M_UR50D\n")
    assert not [*_remark(learned), *_remark(tmp_path / "nowhere")]
