"""What a model must beat: each predictor by hand, and scored on exactly what a validation shows a model."""

import json
from pathlib import Path

import numpy as np
import pytest
from accelerate import Accelerator
from numpy.typing import NDArray

from data.alphabet import CLS, EOS, LETTER_IDS, MASK
from data.batches.contents import MaskedContents
from data.batches.masking import BertMask
from data.batches.packed import BinSize, TokenArrays
from data.batches.settings import MaskSettings
from data.corpus.prepare import open_corpora, prepare_corpora
from data.order.plan import Bin
from pretrain.baselines import fit
from pretrain.baselines.__main__ import main
from pretrain.baselines.fit import measure
from pretrain.baselines.predictors import (
    FEATURES_EACH,
    LETTERS,
    NUM_LETTERS,
    CompositionModel,
    HiddenResidues,
    NeighbourModel,
    fit_composition,
    hidden_residues,
)
from pretrain.evaluate.validation import evaluate, unigram_losses, validation_set
from support.jobs.finished_runs import model_of, settings_of
from zymogen.trainer.engine.engine import Engine

EVEN = np.full(NUM_LETTERS, 1 / NUM_LETTERS)


def tokens_of(letters: str) -> NDArray[np.uint8]:
    return np.concatenate([[CLS], LETTER_IDS[np.frombuffer(letters.encode(), np.uint8)], [EOS]]).astype(np.uint8)


def place(letter: str) -> int:
    return int(np.flatnonzero(tokens_of(letter)[1] == LETTERS)[0])


def documents(*texts: str, select_prob: float = 0.15, epoch: int = 0) -> tuple[Bin, MaskedContents]:
    arrays = [tokens_of(text) for text in texts]
    lengths, count = np.array([len(each) for each in arrays]), len(arrays)
    mask = MaskSettings(select_prob=select_prob, mask_prob=1.0, random_prob=0.0)
    contents = MaskedContents(TokenArrays(arrays), BinSize.holding(np.array([lengths.sum()])), BertMask(mask), 0)
    return Bin(np.arange(count), np.full(count, epoch), np.zeros(count, np.int64), lengths), contents


def hidden(*texts: str, select_prob: float = 0.15, epoch: int = 0) -> HiddenResidues:
    return hidden_residues(*documents(*texts, select_prob=select_prob, epoch=epoch))


# What is seen -------------------------------------------------------------------------------------


def test_a_predictor_sees_the_visible_letters_of_its_own_protein_and_nothing_else() -> None:
    texts = ("ACDEFGHIKLMNPQRSTVWY" * 2, "WWWWWWWWWW", "MKV")
    bin_, contents = documents(*texts, select_prob=0.4)
    filled = contents.fill(bin_)
    found = hidden_residues(bin_, contents)
    inputs = np.split(filled.inputs, np.cumsum(bin_.lengths)[:-1])
    at = 0
    for number, (text, shown) in enumerate(zip(texts, inputs, strict=True)):
        visible = [int((shown == token).sum()) for token in LETTERS]
        assert found.counts[number].tolist() == visible
        for slot in np.flatnonzero(shown == MASK).tolist():
            assert found.documents[at] == number
            assert found.truths[at] == place(text[slot - 1])
            around = [shown[s] if 0 <= s < len(shown) else 33 for s in range(slot - 10, slot + 11) if s != slot]
            assert found.features[at, :20].tolist() == [34 * column + int(token) for column, token in enumerate(around)]
            classes = [min(int(np.log2(d)), 10) for d in (slot + 1, len(shown) - slot)]
            assert found.features[at, 20:].tolist() == [680 + classes[0], 691 + classes[1]]
            at += 1
    assert at == len(found) > 10
    assert found.features.shape == (at, FEATURES_EACH)


# The predictors -----------------------------------------------------------------------------------


def test_the_composition_is_the_posterior_mean_of_a_dirichlet() -> None:
    found = hidden("AAAAAAAAAAAAAAAACCCC")
    frequencies = EVEN.copy()
    of = found.counts[0]
    logs = CompositionModel(frequencies, 5.0).log_probabilities(found)[0]
    seen = of.sum()
    assert np.exp(logs[place("A")]) == pytest.approx((of[place("A")] + 5 / NUM_LETTERS) / (seen + 5), rel=1e-12)
    assert np.exp(logs).sum() == pytest.approx(1, abs=1e-12)
    losses = CompositionModel(frequencies, 5.0).losses(found)
    assert losses == pytest.approx([-logs[truth] for truth in found.truths], abs=1e-12)


def test_the_weight_of_the_corpus_is_the_one_that_proteins_were_drawn_with() -> None:
    draws = np.random.default_rng(0)
    letters = np.array(list("ACDEFGHIKLMNPQRSTVWY"))
    frequencies = np.zeros(NUM_LETTERS)
    frequencies[[place(letter) for letter in letters]] = 0.05
    for strength in (8.0, 64.0):
        texts = ["".join(draws.choice(letters, 200, p=draws.dirichlet(np.full(20, strength / 20)))) for _ in range(400)]
        # The likelihood's curvature at 400 proteins of 200 residues leaves α known to about a tenth.
        with np.errstate(divide="ignore", invalid="ignore"):
            assert fit_composition(frequencies, hidden(*texts)).strength == pytest.approx(strength, rel=0.35)


@pytest.mark.slow
def test_neighbours_learn_what_the_letters_beside_say_and_invent_nothing() -> None:
    """A letter that follows from the one before it is learned; of letters drawn at random nothing is."""
    draws = np.random.default_rng(0)
    letters = "ACDEFGHIKLMNPQRSTVWY"
    chain, chance = [], []
    for _ in range(120):
        at = int(draws.integers(20))
        chain.append("".join(letters[(at + 7 * step) % 20] for step in range(100)))
        chance.append("".join(draws.choice(list(letters), 100)))
    for width in (0, 256):
        # The mean of the 302 losses of letters drawn at random has a standard error of about 0.014 nats.
        for texts, least, most in ((chain, 0.0, 0.2), (chance, np.log(20) - 0.05, np.log(22))):
            tuning = hidden(*texts[100:])
            composition = fit_composition(EVEN, tuning)
            model = NeighbourModel(composition, width)
            before = model.losses(tuning).mean()
            assert before == pytest.approx(composition.losses(tuning).mean(), abs=1e-6)

            def in_pass(number: int, texts: list[str] = texts) -> HiddenResidues:
                return hidden(*texts[:100], epoch=number)

            model.fit(in_pass, tuning)
            assert least <= model.losses(tuning).mean() <= min(before, most)


# As a validation scores ---------------------------------------------------------------------------


@pytest.mark.slow
def test_the_residues_that_are_scored_are_those_of_a_validation(
    families_files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(families_files, tmp_path)
    corpora = open_corpora(settings, prepare_corpora(settings))
    scored, engine = validation_set(corpora, settings, 2000), Engine(Accelerator(cpu=True))
    inside = evaluate(model_of(), corpora, scored, settings, engine, unigram_losses(corpora))["mask_all"]
    groups = corpora.clusters_of(scored.samples)
    found = measure(corpora, settings, scored, groups, 0)
    for each in found:
        assert (each.scores.sequences, each.scores.targets) == (inside.sequences, inside.targets)
        assert each.scores.unigram == pytest.approx(inside.unigram, rel=1e-9)
    assert found[0].scores.gain == pytest.approx(0, abs=1e-12)

    # What is fitted never sees a held-out protein.
    seen: list[NDArray[np.int64]] = []

    def looked(bin_: Bin, contents: MaskedContents) -> HiddenResidues:
        if contents.seed == 1:
            seen.append(bin_.samples)
        return hidden_residues(bin_, contents)

    monkeypatch.setattr(fit, "hidden_residues", looked)
    measure(corpora, settings, scored, groups, 0)
    fitted_on, held_out = np.unique(np.concatenate(seen)), corpora.validation
    assert not np.isin(fitted_on, held_out).any()
    assert len(fitted_on) == corpora.num_training
    tuning, fitting = (np.unique(corpora.clusters_of(part)) for part in seen[:2])
    assert not np.isin(tuning, fitting).any()


@pytest.mark.slow
def test_the_command_prints_the_table_and_writes_it(
    families_files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fasta, clusters = families_files
    recipe, out = tmp_path / "recipe.toml", tmp_path / "baselines.json"
    recipe.write_text(
        f"""
[run]
directory = "{tmp_path}/run"
[model]
preset = "esm2_60k"
[data]
sources = ["{fasta}"]
store_dir = "{tmp_path}/stores"
crop_tokens = 64
bin_tokens = 512
[schedule]
total_tokens = 1
"""
    )
    words = [str(recipe), f"data.clusters={clusters}", "data.validation_fraction=0.2", "-o", str(out)]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = json.loads(out.read_text())["rows"]
    assert [row["name"] for row in rows][::2] == ["residue frequencies", "10 neighbours a side, linear"]
    assert len(lines) == 2 + len(rows) == 6
    for line, row in zip(lines[2:], rows, strict=True):
        assert row["name"] in line
        assert f"{row['mask_all']['perplexity']:.2f}" in line
    assert not (tmp_path / "run").exists()
    assert main(words) == 78
    assert "--overwrite" in capsys.readouterr().err
    assert main([str(recipe), "data.crop_tokens=1"]) == 78
