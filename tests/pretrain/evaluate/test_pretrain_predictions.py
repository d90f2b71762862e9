"""Predictions of held-out proteins: every residue is hidden once, and its probability is the model's own."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from data.alphabet import MASK, TOKENS
from data.batches.batch import Batch
from data.corpus.corpora import Corpora
from data.corpus.prepare import open_corpora, prepare_corpora
from data.settings import DataSettings
from pretrain.evaluate.predictions import MOST_TOKENS, PROTEINS, TURNS, predict
from pretrain.evaluate.scores import Prediction

SETTINGS = DataSettings(
    sources=("-",), validation_fraction=0.15, crop_tokens=100, bin_tokens=128, bins_per_step=7, window_sequences=64
)


UNIGRAM = 0.05 * np.arange(33)


@pytest.fixture(scope="module")
def corpora(families_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Corpora:
    fasta, clusters = families_files
    folder = str(tmp_path_factory.mktemp("stores"))
    settings = replace(SETTINGS, sources=(str(fasta),), clusters=str(clusters), store_dir=folder)
    return open_corpora(settings, prepare_corpora(settings))


class Ranks:
    """One rank of some; what the others had is replayed where ranks gather."""

    device = "cpu"

    def __init__(self, rank: int = 0, world: int = 1, others: Sequence[list] = (), *, share: bool = False) -> None:
        self.rank, self.world, self.others, self.is_shared = rank, world, others, share
        self.data_rank, self.data_world_size = (0, 1) if share else (rank, world)
        self.given: list = []
        self.asked = 0
        """How often it was asked whether a signal ends the run."""

    def raise_if_interrupted(self) -> None:
        self.asked += 1

    def autocast(self) -> nullcontext:
        return nullcontext()

    def share(self, batch: Batch) -> Batch:
        return batch.share(self.rank, self.world) if self.is_shared else batch

    def gather(self, rows: list) -> list[list]:
        self.given = rows
        return [rows, *self.others]


class Fake(nn.Module):
    """A model whose loss is a function of the batch; keeps the batches."""

    def __init__(self, losses: Callable[[Batch], Tensor]) -> None:
        super().__init__()
        self.losses = losses
        self.seen: list[Batch] = []

    def forward(self, batch: Batch, each: bool) -> Tensor:
        assert each
        assert not self.training
        self.seen.append(batch)
        return self.losses(batch)


def by_place(batch: Batch) -> Tensor:
    """Losses that differ by residue and position."""
    at = batch.targets[0].slots
    return 0.1 * batch.targets[0].labels + 0.01 * batch.positions[at]


def predicted(corpora: Corpora, engine: Any, settings: DataSettings = SETTINGS) -> list[Prediction]:
    return predict(Fake(by_place), corpora, settings, engine, UNIGRAM)


def test_each_residue_has_the_probability_of_the_model(corpora: Corpora) -> None:
    proteins = predicted(corpora, Ranks())
    assert len(proteins) == PROTEINS
    held_out = corpora.validation.tolist()
    for protein in proteins:
        assert protein.record in held_out
        true = "".join(TOKENS[token] for token in corpora.reader.residues(protein.record))
        assert protein.whole == len(true)
        assert protein.residues == true[protein.first : protein.first + len(protein.residues)]
        begins = int(protein.first == 0)  # a begin token takes the first position
        by_hand = [
            np.exp(-0.1 * TOKENS.index(letter) - 0.01 * (place + begins))
            for place, letter in enumerate(protein.residues)
        ]
        assert protein.probabilities == pytest.approx(by_hand, rel=1e-6)
        frequencies = [np.exp(-0.05 * TOKENS.index(letter)) for letter in protein.residues]
        assert protein.by_frequencies == pytest.approx(np.mean(frequencies), rel=1e-9)
        assert [protein.name] == corpora.names(np.array([protein.record]))
    assert len({protein.record for protein in proteins}) == PROTEINS


def test_a_seventh_is_hidden_at_a_time_and_everything_once(corpora: Corpora) -> None:
    model = Fake(by_place)
    proteins = predict(model, corpora, SETTINGS, Ranks(), UNIGRAM)
    copies = [
        (batch.tokens[a:b], set(batch.targets[0].slots.tolist()) & set(range(a, b)))
        for batch in model.seen
        for a, b in batch.spans
    ]
    assert len(copies) == TURNS * PROTEINS
    for tokens, hidden in copies:
        assert int((tokens == MASK).sum()) == len(hidden)
        assert len(hidden) <= len(tokens) // TURNS + 1
    assert sum(len(hidden) for _, hidden in copies) == sum(len(protein.residues) for protein in proteins)
    assert len(model.seen) < TURNS * PROTEINS  # copies share bins


@pytest.mark.parametrize("share", [False, True])
def test_ranks_predict_what_one_does(corpora: Corpora, share: bool) -> None:
    alone = predicted(corpora, Ranks())
    other = Ranks(1, 2, share=share)
    assert predicted(corpora, other) != alone
    assert 0 < len(other.given) < sum(len(protein.residues) for protein in alone)
    assert predicted(corpora, Ranks(0, 2, [other.given], share=share)) == alone


def test_a_bin_for_each_rank_and_more_ranks_than_bins(corpora: Corpora) -> None:
    """Ranks without a bin of their own compute an idle one, and predict nothing."""
    alone = Fake(by_place)
    predict(alone, corpora, SETTINGS, one := Ranks(), UNIGRAM)
    assert one.asked == len(alone.seen)
    idle, world = Fake(by_place), len(alone.seen) + 1
    predict(idle, corpora, SETTINGS, last := Ranks(world - 1, world), UNIGRAM)
    assert len(idle.seen) == 1
    assert last.given == []


def test_what_is_no_target_has_no_probability_and_a_long_protein_is_cropped(tmp_path: Path) -> None:
    fasta = tmp_path / "long.fasta"
    fasta.write_text("".join(f">p{number}\n{'ACDEFGHIKX' * (40 + number)}\n" for number in range(12)))
    settings = replace(SETTINGS, crop_tokens=500, bin_tokens=512, validation_fraction=0.5)
    settings = replace(settings, sources=(str(fasta),), store_dir=str(tmp_path / "stores"))
    proteins = predicted(open_corpora(settings, prepare_corpora(settings)), Ranks(), settings)
    for protein in proteins:
        assert MOST_TOKENS - 2 <= len(protein.residues) <= MOST_TOKENS
        assert protein.whole >= 400
        assert protein.residues == ("ACDEFGHIKX" * 60)[protein.first : protein.first + len(protein.residues)]
        for letter, prob in zip(protein.residues, protein.probabilities, strict=True):
            assert (prob is None) == (letter == "X")
    assert any(protein.first for protein in proteins)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_given_back(corpora: Corpora, training: bool) -> None:
    model = Fake(by_place)
    model.train(training)
    predict(model, corpora, SETTINGS, Ranks(), UNIGRAM)
    assert model.training == training
    assert torch.is_grad_enabled()
