"""What a look says that a run takes: rows that were timed, and a search for relatives that is bounded."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from data.homology import mmseqs
from finetune.look import draft, split_proposal
from finetune.look import estimate as estimates
from finetune.look.__main__ import main as look
from finetune.look.draft import LookOptions, draft_recipe
from finetune.look.estimate import bins_of_rows, estimate, measure
from finetune.look.sizes import RunSizes
from finetune.recipe import Recipe
from support.assays.messy_tables import lines, numbers, proteins, saved
from zymogen.settings.toml_file import read

SIZES = RunSizes("lora", 64, 1024, 4, steps_per_epoch=10, epochs=6, patience=5)
FOUND = {"rows": 100, "encoder_tokens_per_s": 1e3, "training_tokens_per_s": 200.0, "memory_bytes": 7, "device": "cpu"}


def test_a_run_takes_its_passes_validations_and_predictions_at_the_speeds_of_100_rows() -> None:
    lora = estimate(FOUND, SIZES, 10.0, (80, 10, 20), members=1)
    # 800 tokens are read once, 6 times 800 are trained on, and 6 validations of 100 tokens; 4 seconds of any run, and
    # 0.3 of any validation.
    assert lora.seconds == pytest.approx(0.8 + 6 * 800 / 200 + 6 * 0.1 + 4 + 6 * 0.3)
    # At the end 300 tokens are predicted, and all 1,100 read for the baselines.
    assert lora.end_s == pytest.approx(0.3 + 1.1)
    assert (lora.memory_bytes, lora.how) == (7, "measured here on 100 rows")
    frozen = estimate(FOUND, replace(SIZES, kind="frozen"), 10.0, (80, 10, 20), members=5)
    # All 1,100 tokens are read once, and the heads of 5 members see 800 of them 6 times.
    assert frozen.seconds == pytest.approx(1.1 + 5 * (6 * 800 / 200 + 4 + 6 * 0.3))
    assert frozen.end_s == pytest.approx(5 * 0.3)
    assert [bins_of_rows(mean, SIZES) for mean in (5.0, 20.0, 500.0)] == [1, 2, 4]


def test_what_is_known_is_said_before_relatives_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def stopped(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(draft, "propose_split", stopped)
    (table,) = saved(tmp_path, lines("sequence,stability", proteins(12), numbers(12)))
    with pytest.raises(KeyboardInterrupt):
        draft_recipe(LookOptions((table,), tmp_path / "r.toml", store_dir=str(tmp_path)), said.extend)
    assert [line.split()[:2] for line in said if "sequence  " in line or "task  " in line] == [
        *(["sequence", "sequence"], ["stability", "task"], ["task", "stability:"]),
    ]


def test_relatives_that_take_too_long_to_find_are_left_to_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*given: object) -> None:
        raise AssertionError("clustering was begun")

    monkeypatch.setattr(mmseqs, "is_installed", lambda: True)
    monkeypatch.setattr(split_proposal, "related", never)
    monkeypatch.setattr(split_proposal, "_MOST_SEARCHED", 1000)
    (table,) = saved(tmp_path, lines("sequence,stability", proteins(1200), numbers(1200)))
    found = draft_recipe(LookOptions((table,), tmp_path / "r.toml", store_dir=str(tmp_path)))
    (tmp_path / "r.toml").write_text(found.recipe)
    recipe = read(Recipe, tmp_path / "r.toml")
    assert (recipe.split.by, recipe.split.identity, recipe.split.folds) == ("homology", 0.3, 0)
    comments = found.recipe.replace("\n# ", " ")
    assert "not tried here, as finding them takes long: the run does it first" in comments
    assert "over 960 proteins that train" in comments


def test_what_cannot_be_timed_gives_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[run]\ndirectory = "x"\n[model]\npreset = "esm2_60k"\n'
    monkeypatch.setattr(estimates, "_MOST_S", 0.01)
    assert measure(text, [], 100) == "100 rows take more than 0 seconds here"


@pytest.mark.launch
def test_a_look_with_a_model_times_the_rows_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mmseqs, "is_installed", lambda: False)
    (table,) = saved(tmp_path, lines("sequence,stability", proteins(150), numbers(150)))
    assert look([table, "--preset", "esm2_60k", "-o", "r.toml"]) == 0
    captured = capsys.readouterr()
    said = " ".join(captured.out.split())
    assert re.search(r"of training for 5 runs together, then \d+ seconds? of predictions", said)
    timed = re.search(r"measured here on (\d+) rows; .* memory about [01]\.\d GB for a process, measured", said)
    assert timed
    assert int(timed[1]) < 100
    assert f"timing {timed[1]} rows of the proposal" in captured.err
    assert "measured here on" in (tmp_path / "r.toml").read_text()
    assert tomllib.loads((tmp_path / "r.toml").read_text())["model"] == {"preset": "esm2_60k"}
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["stores"]
    assert look([table, "--preset", "esm2_60k", "-o", "r.toml", "--no-timing"]) == 0
    assert "measured" not in (tmp_path / "r.toml").read_text()
    assert "not measured: rows are timed where --init or --preset names a model" in " ".join(
        capsys.readouterr().out.split()
    )
