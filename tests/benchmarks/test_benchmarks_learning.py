"""The track of learning: a frozen set that nobody can exchange, trials that do what they say, figures of real runs."""

import json
import os
import re
import subprocess
import sys
import time
from hashlib import sha256
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.learning import corpus
from benchmarks.learning.__main__ import main
from benchmarks.learning.arms import ARMS, PUBLISHED
from benchmarks.learning.judged import Judged
from benchmarks.learning.runs import Run, _tokens_in
from benchmarks.learning.scored import Scored, score
from benchmarks.learning.theirs import Setting, batch_of, train, training_side
from benchmarks.learning.trials import NAMES, TRIALS, Weights, install
from data.alphabet import CLS, EOS, MASK, PAD
from data.batches import loader
from data.corpus.prepare import open_corpora, prepare_corpora
from data.homology.mmseqs import is_installed
from data.settings import DataSettings
from pretrain.__main__ import main as pretrain
from pretrain.corpora import data_settings
from pretrain.model.build import build_meta
from pretrain.model.initialization import initial_weights
from pretrain.model.presets import PRESETS
from pretrain.recipe import Recipe
from support.assays.structure_zip import records, zipped
from support.places import REAL, ROOT
from zymogen.settings.toml_file import read
from zymogen.trainer.run.run_json import RunRecord

# The frozen set ----------------------------------------------------------------------------------


def test_the_list_of_the_frozen_set_cannot_be_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = corpus.frozen_digests()
    assert len(found) == 485
    assert (np.diff(found) > 0).all()
    other = tmp_path / "frozen.txt"
    other.write_text(corpus.FROZEN.read_text().replace("\n", "\n0\n", 1))
    monkeypatch.setattr(corpus, "FROZEN", other)
    with pytest.raises(ValueError, match=r"has the hash .* is right; restore the file"):
        corpus.frozen_digests()


def test_whole_clusters_are_frozen() -> None:
    draws = np.random.default_rng(0)
    clusters = draws.choice(draws.integers(0, 2**63, 900).astype(np.uint64), 3000)
    digests = np.arange(3000, dtype=np.uint64)
    frozen = corpus.drawn(digests, clusters)
    assert 500 <= len(frozen) < 520
    inside = np.isin(digests, frozen)
    assert not np.isin(clusters[inside], clusters[~inside]).any()
    assert (corpus.drawn(digests[::-1], clusters[::-1]) == frozen).all()


@pytest.mark.skipif(not REAL.is_dir(), reason="no real proteins beside the project (shared/data/pretrain)")
def test_the_frozen_set_is_there(tmp_path: Path) -> None:
    settings = DataSettings(sources=(f"{REAL}/*.gz",), store_dir=str(tmp_path / "stores"))
    (part,) = open_corpora(settings, prepare_corpora(settings)).parts
    assert int(np.isin(part.store.digests, corpus.frozen_digests()).sum()) == 500


@pytest.mark.slow
@pytest.mark.skipif(not is_installed(), reason="MMseqs2 is not installed; its clusters are what divides the proteins")
def test_other_proteins_have_no_frozen_set_and_have_to_be_said(
    families_files: tuple[Path, Path], tmp_path: Path
) -> None:
    sources = (str(families_files[0]),)
    with pytest.raises(ValueError, match=r"485 proteins of the frozen set are missing, .* or say --others"):
        corpus.proteins(sources, tmp_path)
    found = corpus.proteins(sources, tmp_path, others=True)
    assert (found.rest.exists(), found.frozen.exists()) == (True, False)
    headers = {line[1:] for line in found.rest.read_text().splitlines() if line.startswith(">")}
    assert headers == set(corpus.clusters_of(found))
    for words in (["--others", "--frozen"], ["--trainer"]):
        with pytest.raises(SystemExit, match=r"^--(others|trainer) "):
            main([*sources, "--folder", str(tmp_path / "never"), *words])
    assert not (tmp_path / "never").exists()


# The Trainer -------------------------------------------------------------------------------------


def test_a_batch_of_the_trainer_is_masked_as_published() -> None:
    torch.manual_seed(0)
    letters = np.random.default_rng(0).integers(4, 24, 900)
    whole = {"input_ids": np.concatenate([[CLS], letters, [EOS]]).astype(np.int64)}
    short = {"input_ids": whole["input_ids"][:100]}
    found = [batch_of([whole, short], 512) for _ in range(40)]
    for batch in found:
        assert batch["input_ids"].shape == (2, 512)
        assert batch["attention_mask"].sum(1).tolist() == [512, 100]
        assert (batch["input_ids"][1, 100:] == PAD).all()
        assert (batch["labels"][1, 100:] == -100).all()
    inputs, labels = (torch.cat([batch[name][0] for batch in found]) for name in ("input_ids", "labels"))
    targets = labels != -100
    assert targets.float().mean().item() == pytest.approx(0.15, abs=0.01)
    assert (inputs[targets] == MASK).float().mean().item() == pytest.approx(0.8, abs=0.03)
    kept = (inputs[targets] == labels[targets]).float().mean().item()
    assert kept == pytest.approx(0.1 + 0.1 / 20, abs=0.03)
    starts = {int(batch["input_ids"][0, 0]) == CLS for batch in found}
    assert starts == {False} or starts == {False, True}, "crops begin anywhere"


@pytest.mark.slow
def test_the_trainer_trains_for_so_long_and_is_scored_as_a_run_is(recipe_in, tmp_path: Path) -> None:
    assert pretrain([str(recipe_in(tmp_path)), "schedule.total_tokens=2_000"]) == 0
    run, out = tmp_path / "run", tmp_path / "trainer"
    recipe = json.loads((run / "run.json").read_text())["recipe"]
    settings = data_settings(RunRecord(recipe=recipe), run)
    rows = [{"input_ids": ids, "length": len(ids)} for ids in training_side(settings)]
    held_out = score(run, str(run)).names
    assert len(rows) + len(held_out) == 160
    began = time.monotonic()
    assert train(rows, "esm2_60k", Setting(4, 1e-3), 128, 3.0, out) > 20  # it refuses more than it was to take
    assert 3 * 0.5 < time.monotonic() - began < 60
    found = score(run, str(out))
    assert found.names.tolist() == held_out.tolist()
    assert found.targets.tolist() == score(run, str(run)).targets.tolist()
    assert abs(found.gain) < 1


# Trials ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["esm2_60k", "modern_60k"])
def test_a_trial_changes_what_it_says(preset: str) -> None:
    model = build_meta(PRESETS[preset])
    unigram = np.arange(33.0)

    def changed(trial: str, number: float) -> dict[str, torch.Tensor]:
        plain, weights = initial_weights(model, 3), Weights(model, initial_weights(model, 3), unigram)
        TRIALS[trial](weights, number)
        new = {name: weights.first[name]() for name in weights.first}
        return {name: value for name, value in new.items() if not torch.equal(value, plain[name]())}

    for name, weight in changed("fan_in", 0.5).items():
        assert name.startswith("encoder.layers.")
        assert weight.std().item() == pytest.approx(0.5 / weight.shape[1] ** 0.5, rel=0.1)
    outputs = changed("outputs", 0.0)
    assert len(outputs) == 2 * model.shape.layers
    assert not any(weight.any() for weight in outputs.values())
    (embedding,) = changed("embedding", 0.3).values()
    assert embedding.std().item() == pytest.approx(0.3, rel=0.1)
    (bias,) = changed("bias", 2.0).values()
    assert bias[4:24].tolist() == [2.0 - token for token in range(4, 24)]
    assert not bias[:4].any()


def test_steps_grow_after_so_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "islice", islice)
    install("ramp=30")
    stream = ((SimpleNamespace(num_tokens=10), number) for number in count())
    steps = [[number for _, number in loader.islice(stream, 4)] for _ in range(4)]
    assert steps == [[0, 1], [2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert list(loader.islice(iter([7, 8, 9]), 3)) == [7, 8, 9], "bins that are filled are no step"


# The track ---------------------------------------------------------------------------------------


@pytest.mark.prove
@pytest.mark.skipif(not is_installed(), reason="MMseqs2 is not installed; its clusters are what divides the proteins")
def test_the_figures_are_those_of_the_runs(families_files: tuple[Path, Path], tmp_path: Path) -> None:
    """On a corpus with a frozen set of its own: the gain of each line is that of the run's own last validation."""
    fasta, _ = families_files
    settings = DataSettings(sources=(str(fasta),), store_dir=str(tmp_path / "track/stores"), split_identity=0.3)
    (part,) = open_corpora(settings, prepare_corpora(settings)).parts
    clusters = part.split.clusters.of_records
    few = np.unique(clusters)[:4]
    text = "".join(f"{digest:016x}\n" for digest in np.unique(part.store.digests[np.isin(clusters, few)]).tolist())
    (tmp_path / "frozen.txt").write_text(text)
    program = f"""
import sys
from pathlib import Path
from benchmarks.learning import corpus
corpus.FROZEN, corpus.FROZEN_SHA256 = Path({str(tmp_path / "frozen.txt")!r}), {sha256(text.encode()).hexdigest()!r}
from benchmarks.learning.__main__ import main
main(sys.argv[1:])
"""
    arm = "modern, Muon"
    words = [str(fasta), "--folder", str(tmp_path / "track"), "--tokens", "20_000", "--arms", arm, "--seeds", "0", "1"]

    def ran(*more: str) -> tuple[str, dict]:
        done = subprocess.run(
            [sys.executable, "-c", program, *words, *more],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout, json.loads(done.stdout.splitlines()[-1])

    said, found = ran("--structure", str(zipped(tmp_path / "flip.zip", records())))
    assert "neighbours a side, linear" in said
    assert "SS3 of seven neighbours a side, linear" in said
    by_both = rf"^{arm} .*2s/sqrt\(n\) 0\.\d+\)  SS3 .*2s/sqrt\(n\) 0\.\d+\): (won|not won, .*|lost|undecided)$"
    assert re.search(by_both, said, re.M)
    runs = [Run(name, "800k", 20_000, 0).folder(tmp_path / "track") for name in (PUBLISHED, arm)]
    for folder in runs:
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        (*_, last) = (line["validation"]["mask_all"] for line in lines if "validation" in line)
        assert found["others"][f"{folder.name}: SS3"] == Judged.read(folder / "structure.npz").q3 > 0.9
        # The run computed in bfloat16, its figure here in float32.
        assert found["others"][folder.name] == pytest.approx(last["gain"], abs=2e-3)
    assert [row["work"] for row in found["rows"]] == [f"{arm}: gain"]
    began = [(folder / "run.json").stat().st_mtime_ns for folder in runs]
    said, frozen = ran("--frozen")
    assert "SS3" not in said
    assert began == [(folder / "run.json").stat().st_mtime_ns for folder in runs]  # none is trained a second time
    assert "neighbours a side, linear" in said
    names = set(Scored.read(runs[0] / "frozen.npz").names.tolist())
    headers = [line[1:] for line in (tmp_path / "track/frozen.fasta").read_text().splitlines() if line[0] == ">"]
    assert names <= set(headers)
    assert not names & set(Scored.read(runs[0] / "scored.npz").names.tolist())
    assert frozen["others"] != found["others"]


def test_a_time_becomes_tokens_by_two_short_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start of 20 s and 20,000 tokens a second: 100,000 tokens take 25 s, and four times as many 40 s."""
    trained: set[tuple[int, int]] = set()
    monkeypatch.setattr("benchmarks.learning.runs._train", lambda run, *_: trained.add((run.tokens, run.seed)))
    monkeypatch.setattr("benchmarks.learning.runs.seconds_of", lambda run, _: 20 + run.tokens / 20_000)
    nowhere = corpus.Proteins(tmp_path, tmp_path, tmp_path)
    assert _tokens_in(Run("esm2", "800k", 0, 3, 300.0), tmp_path, nowhere) == (300 - 20) * 20_000
    assert trained == {(100_000, 0), (400_000, 0)}


def test_every_arm_is_a_recipe_and_trials_that_exist() -> None:
    for name, arm in ARMS.items():
        assert all(trial.partition("=")[0] in NAMES for trial in arm.trials), name
    folders = [Run(name, "8m", 1, 0).folder(Path()) for name in ARMS]
    assert len(set(folders)) == len(folders)


@pytest.mark.parametrize("blocks", ["esm2", "modern"])
def test_an_arm_is_as_its_recipe_says(blocks: str, tmp_path: Path) -> None:
    nowhere = corpus.Proteins(tmp_path, tmp_path, tmp_path)
    words = Run(f"as in {blocks}_8m.toml", "8m", 1, 0).words(tmp_path, nowhere, 2_000_000)
    arm = read(Recipe, tmp_path / "recipe.toml", words[3:])
    recipe = read(Recipe, ROOT / "recipes" / f"{blocks}_8m.toml", ["schedule.total_tokens=2_000_000"])
    assert (arm.model, arm.optimizer, arm.schedule) == (recipe.model, recipe.optimizer, recipe.schedule)
    assert arm.data.mask == recipe.data.mask
    assert arm.data.bins_per_step < recipe.data.bins_per_step
