"""Validation: perplexities by hand, on targets that neither the run, nor its seed, nor the world has a part in."""

import gzip
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from data.alphabet import MASK, STANDARD_RESIDUES, TOKENS
from data.batches.batch import IGNORED, Batch
from data.batches.loader import Loader
from data.corpus.corpora import Corpora
from data.corpus.prepare import open_corpora, prepare_corpora
from data.order.plan import Cursor
from data.settings import DataSettings
from data.sources.synthetic import Families
from pretrain.evaluate.scores import CORRUPTIONS, CorruptionScores
from pretrain.evaluate.validation import (
    evaluate,
    intervals,
    require_targets,
    unigram_losses,
    validation_set,
    with_floor,
)
from pretrain.model.settings import ModelSettings
from support.inputs.flat_batches import labels_of
from support.inputs.whole_models import build_model
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.optimizer.kinds import build_optimizer, parameter_groups
from zymogen.trainer.optimizer.settings import OptimizerSettings
from zymogen.trainer.step import train_step

FAMILIES = Families(num_families=40, members_per_family=4, mean_residues=60, max_residues=150)
SETTINGS = DataSettings(
    sources=("-",), validation_fraction=0.15, crop_tokens=100, bin_tokens=128, bins_per_step=7, window_sequences=64
)
EVERY = 10**6
BOTH = ("mask_all", "80_10_10")


def opened(settings: DataSettings) -> Corpora:
    return open_corpora(settings, prepare_corpora(settings))


@pytest.fixture(scope="module")
def corpora(families_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Corpora:
    fasta, clusters = families_files
    folder = str(tmp_path_factory.mktemp("stores"))
    corpora = opened(replace(SETTINGS, sources=(str(fasta),), clusters=str(clusters), store_dir=folder))
    return replace(corpora, parts=(replace(corpora.parts[0], families=FAMILIES),))


@pytest.fixture(scope="module")
def unigram(corpora: Corpora) -> np.ndarray:
    return unigram_losses(corpora)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(Accelerator(cpu=True))


class Fake(nn.Module):
    """A model whose loss of a target is a function of the batch; keeps the batches."""

    def __init__(self, losses: Callable[[Batch], Tensor]) -> None:
        super().__init__()
        self.losses = losses
        self.seen: list[Batch] = []

    def forward(self, batch: Batch, each: bool) -> Tensor:
        assert each
        assert not self.training
        self.seen.append(batch)
        return self.losses(batch)


def uneven(batch: Batch) -> Tensor:
    """Losses that differ by residue, position and document."""
    at = batch.targets[0].slots
    return 2 + 0.05 * batch.targets[0].labels + 0.1 * (batch.positions[at] % 7) + 0.02 * (batch.tokens.sum() % 11)


def scored(
    model: Any, corpora: Corpora, engine: Any, unigram: np.ndarray, most: int = EVERY, settings: DataSettings = SETTINGS
) -> dict[str, CorruptionScores]:
    return evaluate(model, corpora, validation_set(corpora, settings, most), settings, engine, unigram)


def test_a_uniform_model_has_perplexity_33(corpora: Corpora, engine: Engine, unigram: np.ndarray) -> None:
    fake = Fake(lambda batch: torch.full((len(batch.targets[0].slots),), math.log(33)))
    results = scored(fake, corpora, engine, unigram)
    assert tuple(results) == BOTH
    residues = sum(len(corpora.reader.residues(int(r))) for r in corpora.validation)
    for result in results.values():
        assert result.perplexity == pytest.approx(33, rel=1e-6)
        assert (result.low, result.high) == pytest.approx((33, 33), rel=1e-6)
        assert result.gain == pytest.approx(math.log(result.unigram / 33), abs=1e-6)
        assert result.gain < -0.3
        assert result.sequences == len(corpora.validation)
        assert 0.12 * residues < result.targets < 0.18 * residues
        assert result.floor is None


def test_the_unigram_itself_gains_nothing(corpora: Corpora, engine: Engine, unigram: np.ndarray) -> None:
    table = torch.from_numpy(unigram)
    fake = Fake(lambda batch: table[batch.targets[0].labels])
    for result in scored(fake, corpora, engine, unigram).values():
        assert result.perplexity == pytest.approx(result.unigram, rel=1e-9)
        assert (result.gain, result.gain_low) == pytest.approx((0, 0), abs=1e-9)
        assert 15 < result.unigram < 25


def test_perplexity_and_interval_by_hand(
    corpora: Corpora, engine: Engine, unigram: np.ndarray, families_files: tuple[Path, Path]
) -> None:
    table = dict(reversed(line.split("\t")) for line in families_files[1].read_text().splitlines())
    fake = Fake(uneven)
    results = scored(fake, corpora, engine, unigram)
    half = len(fake.seen) // 2
    for name, batches in zip(BOTH, (fake.seen[:half], fake.seen[half:]), strict=True):
        losses = [uneven(batch).double().numpy() for batch in batches]
        baseline = [unigram[batch.targets[0].labels.numpy()] for batch in batches]
        result, (all_losses, all_baseline) = results[name], (np.concatenate(losses), np.concatenate(baseline))
        assert result.targets == len(all_losses)
        assert result.perplexity == pytest.approx(np.exp(all_losses.mean()), rel=1e-9)
        assert result.unigram == pytest.approx(np.exp(all_baseline.mean()), rel=1e-9)
        assert result.gain == pytest.approx((all_baseline - all_losses).mean(), rel=1e-6)
        # The interval over families: 1.96 standard errors of a ratio of sums (Cochran 1977, eq. 2.39).
        rows = []
        samples = np.concatenate(
            [scored.samples for scored in validation_set(corpora, SETTINGS, EVERY).bins(SETTINGS)]
        ).tolist()
        for batch, loss, base in zip(batches, losses, baseline, strict=True):
            slots = batch.targets[0].slots.numpy()
            for start, end in batch.spans:
                mine = (start <= slots) & (slots < end)
                family = table[corpora.parts[0].store.header(samples.pop(0)).split()[0]]
                rows.append((family, (loss[mine].sum(), (base[mine] - loss[mine]).sum(), mine.sum())))
        scored_rows = [row for row in rows if row[1][2]]
        assert result.sequences == len(scored_rows)
        families = {family: np.sum([of for its, of in scored_rows if its == family], 0) for family, _ in scored_rows}
        assert len(families) < len(scored_rows) / 2
        sums = np.array(list(families.values()))

        def error(column: int, sums: np.ndarray = sums) -> float:
            ratio = sums[:, column].sum() / sums[:, 2].sum()
            return float(np.sqrt(((sums[:, column] - ratio * sums[:, 2]) ** 2).sum()) / sums[:, 2].sum())

        assert result.low < result.perplexity < result.high
        assert math.log(result.high / result.low) == pytest.approx(2 * 1.96 * error(0), rel=0.15)
        assert result.gain - result.gain_low == pytest.approx(1.96 * error(1), rel=0.25)


def test_both_corruptions_ask_for_the_same_targets(corpora: Corpora, engine: Engine, unigram: np.ndarray) -> None:
    fake = Fake(uneven)
    scored(fake, corpora, engine, unigram)
    half = len(fake.seen) // 2
    shown: Counter[str] = Counter()
    for hidden, flattering in zip(fake.seen[:half], fake.seen[half:], strict=True):
        at = hidden.targets[0].slots
        assert torch.equal(labels_of(hidden), labels_of(flattering))
        assert (hidden.tokens[at] == MASK).all()
        others = labels_of(hidden) == IGNORED
        assert torch.equal(hidden.tokens[others], flattering.tokens[others])
        shown["mask"] += int((flattering.tokens[at] == MASK).sum())
        shown["true"] += int((flattering.tokens[at] == hidden.targets[0].labels).sum())
        shown["all"] += len(at)
    assert shown["mask"] / shown["all"] == pytest.approx(0.8, abs=0.06)
    assert shown["true"] / shown["all"] == pytest.approx(0.105, abs=0.05)


class Ranks:
    """One rank of two; what the other one had is replayed where ranks gather."""

    device = "cpu"

    def __init__(self, rank: int, others: Sequence[list] | None = None, *, share_batches: bool = False) -> None:
        self.rank = rank
        self.data_rank, self.data_world_size = (0, 1) if share_batches else (rank, 2)
        self.others = iter(others) if others else None
        self.given: list[list] = []

    def autocast(self) -> nullcontext:
        return nullcontext()

    def share(self, batch: Batch) -> Batch:
        return batch.share(self.rank, 2) if self.data_world_size == 1 else batch

    def gather(self, rows: list) -> list[list]:
        self.given.append(rows)
        return [rows, next(self.others)] if self.others else [rows]

    def on_main(self, work: Callable[[], Any]) -> Any:
        return work()

    def raise_if_interrupted(self) -> None:
        """No signal comes."""


def test_neither_world_nor_bins_per_forward_has_a_part(corpora: Corpora, engine: Engine, unigram: np.ndarray) -> None:
    alone = scored(Fake(uneven), corpora, engine, unigram)
    one = Ranks(1)
    of_rank_1 = scored(Fake(uneven), corpora, one, unigram)
    assert 0 < of_rank_1["mask_all"].sequences < alone["mask_all"].sequences
    assert scored(Fake(uneven), corpora, Ranks(0, one.given), unigram) == alone
    assert scored(Fake(uneven), corpora, engine, unigram, settings=replace(SETTINGS, bins_per_forward=5)) == alone


def test_ranks_that_share_batches_score_each_target_once(corpora: Corpora, engine: Engine, unigram: np.ndarray) -> None:
    """A document that lies on both has a row from each, and counts as one sequence."""

    def of_slots(batch: Batch) -> Tensor:
        return 1.0 + (batch.targets[0].slots % 7).float()  # of a target, whoever computes it

    alone = scored(Fake(of_slots), corpora, engine, unigram)
    one = Ranks(1, share_batches=True)
    assert 0 < scored(Fake(of_slots), corpora, one, unigram)["mask_all"].targets < alone["mask_all"].targets
    both = scored(Fake(of_slots), corpora, Ranks(0, one.given, share_batches=True), unigram)
    for name, evaluation in alone.items():
        assert both[name].numbers() == pytest.approx(evaluation.numbers(), rel=1e-12)


def test_rank_0_alone_resamples(
    corpora: Corpora, engine: Engine, unigram: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others get what it worked out."""
    alone = scored(Fake(uneven), corpora, engine, unigram)
    calls: list[int] = []

    def counted(*arguments: Any) -> tuple[float, float, float, float]:
        calls.append(1)
        return intervals(*arguments)

    monkeypatch.setattr("pretrain.evaluate.validation.intervals", counted)
    other = Ranks(1)
    monkeypatch.setattr(other, "on_main", lambda work: alone, raising=False)
    assert scored(Fake(uneven), corpora, other, unigram) is alone
    assert not calls
    assert scored(Fake(uneven), corpora, Ranks(0, other.given), unigram) == alone
    assert len(calls) == len(BOTH)


def test_unigram_counts_the_training_side_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    letters = ["".join(rng.choice(list("ACDEFGHIKLM"), rng.integers(5, 40))) + "X" for _ in range(80)]
    fasta = tmp_path / "a.fasta"

    letters[3] = "WWWWWW"
    table = tmp_path / "clusters.tsv"
    names = iter(f"c{i}" for i in range(10**6))
    while True:  # until the record of W alone is held out, so that training never sees one
        table.write_text("".join(f"{next(names)}\tp{i}\n" for i in range(80)))
        fasta.write_text("".join(f">p{i}\n{each}\n" for i, each in enumerate(letters)))
        settings = replace(SETTINGS, sources=(str(fasta),), clusters=str(table), store_dir=str(tmp_path / "stores"))
        corpora = opened(settings)
        held_out = corpora.validation
        if 3 in held_out:
            break
    losses = unigram_losses(corpora)
    counts = Counter("".join(each for i, each in enumerate(letters) if i not in held_out))
    targets = STANDARD_RESIDUES + "UO"
    total = sum(counts[letter] + 1 for letter in targets)
    for token, text in enumerate(TOKENS):
        by_hand = -math.log((counts[text] + 1) / total) if text in targets else math.inf
        assert losses[token] == pytest.approx(by_hand, rel=1e-12), text
    assert counts["X"] == 80 - len(held_out)
    assert losses[TOKENS.index("W")] == pytest.approx(math.log(total))
    assert np.exp(-losses).sum() == pytest.approx(1)


def test_unigram_of_the_families_by_counting_letters(
    corpora: Corpora, unigram: np.ndarray, families_files: tuple[Path, Path]
) -> None:
    records = gzip.decompress(families_files[0].read_bytes()).decode().split(">")[1:]
    training = set(range(160)) - set(corpora.validation.tolist())
    assert 0 < len(training) < len(records) == 160
    counts = Counter("".join("".join(r.split("\n")[1:]) for i, r in enumerate(records) if i in training))
    total = sum(counts.values()) + 22
    for letter in STANDARD_RESIDUES:
        assert unigram[TOKENS.index(letter)] == pytest.approx(-math.log((counts[letter] + 1) / total), rel=1e-12)


def chosen(corpora: Corpora, most: int) -> set[int]:
    bins = validation_set(corpora, SETTINGS, most).bins(SETTINGS)
    ids = [int(sample) for packed in bins for sample in packed.samples]
    assert len(ids) == len(set(ids))
    return set(ids)


def test_fewer_sequences_are_a_stable_subset(corpora: Corpora, engine: Engine, unigram: np.ndarray) -> None:
    every = set(corpora.validation.tolist())
    assert len(every) > 15
    assert chosen(corpora, EVERY) == chosen(corpora, len(every)) == every
    few, fewer = chosen(corpora, 12), chosen(corpora, 5)
    assert (len(few), len(fewer)) == (12, 5)
    assert fewer < few < every
    assert few != set(sorted(every)[:12])
    assert scored(Fake(uneven), corpora, engine, unigram, most=5)["mask_all"].sequences == 5


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_given_back(corpora: Corpora, engine: Engine, unigram: np.ndarray, training: bool) -> None:
    model = build_model(ModelSettings(preset="esm2_60k", dropout=0.5), 0)
    model.train(training)
    first = scored(model, corpora, engine, unigram, most=5)
    assert {module.training for module in model.modules()} == {training}
    assert first == scored(model, corpora, engine, unigram, most=5)  # dropout is off
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.slow
def test_the_floor_lies_below_what_a_model_learns(corpora: Corpora, engine: Engine, unigram: np.ndarray) -> None:
    model = build_model(ModelSettings(preset="esm2_60k"), 0)
    optimizer = build_optimizer(parameter_groups(model, OptimizerSettings(eps=1e-6)), OptimizerSettings(eps=1e-6))
    model.train()
    loader = Loader(corpora.masked(0), corpora.plan(0), Cursor(), 0, 0, 1)
    for step in islice(loader, 40):
        train_step(
            step, model, optimizer, engine, bins_per_step=7, weights=torch.ones(1), clip_norm=1.0, learning_rate=3e-3
        )
    results = with_floor(
        scored(model, corpora, engine, unigram), FAMILIES, validation_set(corpora, SETTINGS, EVERY), SETTINGS
    )
    for result in results.values():
        assert result.floor is not None
        assert 3 < result.floor < 0.95 * result.perplexity
        assert result.floor < 0.95 * result.unigram
        assert result.perplexity < 25  # it has learned something
    assert results["80_10_10"].floor < results["mask_all"].floor  # a letter in view can be copied


def test_numbers_are_the_fields_that_are_known() -> None:
    known = CorruptionScores(2.0, 1.0, 3.0, 4.0, 0.5, 0.1, 0.8, None, 7, 9)
    assert known.numbers() == {
        **{"perplexity": 2.0, "low": 1.0, "high": 3.0, "unigram": 4.0, "gain": 0.5, "gain_low": 0.1, "gain_high": 0.8},
        **{"sequences": 7.0, "targets": 9.0},
    }
    assert replace(known, floor=1.5).numbers()["floor"] == 1.5


def test_nothing_to_score_is_an_error(tmp_path: Path, corpora: Corpora) -> None:
    """Found before the first step; 15 % of few residues may be none."""

    def require(of: Corpora, max_sequences: int) -> None:
        scored = validation_set(of, of.settings, max_sequences)
        contents = scored.contents(CORRUPTIONS["mask_all"], of.settings)
        require_targets(contents, scored, of.settings, holds_out=of.holds_out)

    require(corpora, 1)
    fasta = tmp_path / "x.fasta"
    fasta.write_text("".join(f">p{i}\nXXXX{'BZ' * i}\n" for i in range(1, 40)))
    unscorable = replace(SETTINGS, sources=(str(fasta),), store_dir=str(tmp_path / "stores"))
    with pytest.raises(ValueError, match=r"^no residue of the \d validation proteins is a target .*: raise data\."):
        require(opened(unscorable), EVERY)
    with pytest.raises(ValueError, match=r"^no residue of the 39 training proteins is a target .*: add proteins"):
        require(opened(replace(unscorable, validation_fraction=0.0)), EVERY)
