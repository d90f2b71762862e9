"""Finished models on frozen sets: one figure however they are computed, buckets that add up, and what is refused."""

import json
import math
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from transformers import AutoModelForMaskedLM

from data.alphabet import FASTA_LETTERS, PAD
from data.homology.mmseqs import is_installed
from pretrain import trained_model as source
from pretrain.evaluate.__main__ import main
from pretrain.evaluate.frozen_set import frozen_set
from pretrain.evaluate.results import ALL, IDENTITY, LENGTH, EvaluationResult, buckets
from pretrain.evaluate.score_models import scored_by
from pretrain.evaluate.scored_set import EvaluationSet, EvaluationSetOptions, open_evaluation_set, run_of_name
from pretrain.evaluate.scores import CORRUPTIONS
from pretrain.evaluate.validation import evaluate, unigram_losses
from pretrain.model.presets import EsmShape
from pretrain.model.weights import io as transformers_io
from support.checkpoint_run import CUTS, identity_by_hand, write_cut
from support.inputs.flat_batches import relative
from support.jobs.finished_runs import SHAPE, finished_run, model_of, settings_of
from zymogen.settings import json_file
from zymogen.trainer.checkpoint.writer import StagingBuffer
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.engine.named_state import TorchState

MODERN = EsmShape(layers=1, dim=24, heads=2, architecture="modern", token_dropout=False)


@pytest.fixture(scope="module")
def run(families_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    return finished_run(folder / "own", settings_of(families_files, folder), [model_of()], SHAPE)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(Accelerator(cpu=True))


@pytest.fixture(scope="module")
def opened(run: Path, engine: Engine) -> EvaluationSet:
    return open_evaluation_set(EvaluationSetOptions(data=(str(run),)), engine)


@pytest.fixture(scope="module")
def written(run: Path, families_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All proteins of the corpus, those that trained too; shared words find relatives faster than MMseqs2 starts."""
    folder = tmp_path_factory.mktemp("written")
    out = folder / "evaluation.json"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("data.homology.mmseqs.is_installed", lambda: False)
        words = [run, "--data", families_files[0], "--training", run, "--store-dir", folder / "stores", "-o", out]
        assert main([*map(str, words)]) == 0
    return out


# One figure ---------------------------------------------------------------------------------------


def test_the_figure_is_that_of_the_validation_of_a_run(run: Path, opened: EvaluationSet, engine: Engine) -> None:
    """The same targets and sums as inside the loop, whatever the size of a bin."""
    corpora, settings = opened.corpora, opened.corpora.settings
    inside = evaluate(model_of(), corpora, opened.scored, settings, engine, unigram_losses(corpora))
    for bin_tokens in (64, 300, 4096):
        sums = scored_by(model_of(), "own", opened, engine, bin_tokens=bin_tokens)
        for name, evaluation in inside.items():
            losses = np.array([row[1:] for row in sums[name]])
            assert len(losses) == evaluation.sequences
            assert int(losses[:, 2].sum()) == evaluation.targets
            assert np.exp(losses[:, 0].sum() / losses[:, 2].sum()) == pytest.approx(evaluation.perplexity, rel=1e-5)


@pytest.mark.parametrize("shape", [SHAPE, MODERN], ids=["ESM-2", "ESM C"])
def test_packed_is_padded_through_transformers(
    shape: EsmShape, opened: EvaluationSet, engine: Engine, tmp_path: Path
) -> None:
    """The whole set as one padded batch of transformers' own class, loss by hand."""
    model = model_of(shape, 3)
    transformers_io.save(model, tmp_path / "published")
    theirs = AutoModelForMaskedLM.from_pretrained(tmp_path / "published").eval()
    scored = opened.scored
    sums = scored_by(model, "published", opened, engine)
    for name, mask in CORRUPTIONS.items():
        longest = int(scored.lengths.max())
        tokens = torch.full((len(scored.samples), longest), PAD)
        losses: list[float] = []
        labels = []
        contents = scored.contents(mask, opened.corpora.settings)
        for place, alone in enumerate(one_by_one(scored)):
            batch = contents.batch([alone], [0])
            length = int(alone.lengths[0])
            tokens[place, :length] = batch.tokens[:length]
            labels.append(batch.targets[0])
        with torch.no_grad():
            logits = theirs(input_ids=tokens, attention_mask=(tokens != PAD).long()).logits
        for place, targets in enumerate(labels):
            losses.append(float(F.cross_entropy(logits[place, targets.slots], targets.labels, reduction="sum")))
        found = {row[0]: row[1] for row in sums[name]}
        ours = torch.tensor([found.get(sample, 0.0) for sample in scored.samples.tolist()])
        assert relative(ours, torch.tensor(losses)) <= 1e-5


def one_by_one(scored):
    for place in range(len(scored.samples)):
        own = slice(place, place + 1)
        yield from frozen_one(scored, own).bins(type("Size", (), {"bin_tokens": 200, "documents_per_bin": 1}))


def frozen_one(scored, own: slice):
    return type(scored)(scored.reader, scored.samples[own], scored.starts[own], scored.lengths[own])


@pytest.mark.parametrize(("shape", "size"), [(SHAPE, 33), (MODERN, 64)], ids=["ESM-2", "ESM C"])
def test_uniform_logits_have_the_size_of_the_vocabulary(
    shape: EsmShape, size: int, opened: EvaluationSet, engine: Engine
) -> None:
    model = model_of(shape)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    for sums in scored_by(model, "zeros", opened, engine).values():
        losses = np.array([row[1:] for row in sums])
        assert np.exp(losses[:, 0].sum() / losses[:, 2].sum()) == pytest.approx(size, rel=1e-6)


def test_weights_that_are_no_numbers_are_one_error(opened: EvaluationSet, engine: Engine) -> None:
    model = model_of()
    model.encoder.final_norm.bias.data[3] = math.nan
    with pytest.raises(ValueError, match=r"^own gives a loss that is no finite number for \d+ of \d+ proteins"):
        scored_by(model, "own", opened, engine)


# The frozen set -----------------------------------------------------------------------------------


def test_the_hash_is_of_proteins_crops_and_targets(opened: EvaluationSet, run: Path, engine: Engine) -> None:
    scored, corpora = opened.scored, opened.corpora
    every = scored.fingerprint()
    assert len(every) == 32
    assert open_evaluation_set(EvaluationSetOptions(data=(str(run),)), engine).scored.fingerprint() == every
    others = [
        frozen_set(corpora.reader, corpora.validation, 59, 2000),
        frozen_set(corpora.reader, corpora.validation, 60, 10),
        frozen_set(corpora.reader, corpora.validation[1:], 60, 2000),
        type(scored)(corpora.reader, scored.samples, scored.starts + (scored.starts > 1), scored.lengths),
    ]
    hashes = {other.fingerprint() for other in others}
    assert len(hashes | {every}) == 5


def test_one_hidden_residue_more_is_another_set(opened: EvaluationSet, monkeypatch: pytest.MonkeyPatch) -> None:
    before = opened.scored.fingerprint()
    monkeypatch.setattr("pretrain.evaluate.frozen_set.SEED", 1)
    assert opened.scored.fingerprint() != before


# The command --------------------------------------------------------------------------------------


def test_buckets_add_up_to_the_whole(written: Path) -> None:
    figures = json_file.read(EvaluationResult, written, "file of figures", "")
    assert figures.model == "own"
    assert figures.held_out is None
    assert not figures.not_measured
    assert figures.sequences == 160
    whole = {row.corruption: row for row in figures.rows if row.by == ALL}
    assert set(whole) == set(CORRUPTIONS)
    parts: dict[tuple[str, str], list] = defaultdict(list)
    for row in figures.rows:
        assert row.set == figures.set
        parts[row.corruption, row.by].append(row)
    assert {by for _, by in parts} == {ALL, LENGTH, IDENTITY}
    for (corruption, _), rows in parts.items():
        all_of = whole[corruption]
        assert sum(row.sequences for row in rows) == all_of.sequences
        assert sum(row.targets for row in rows) == all_of.targets
        assert sum(row.nats for row in rows) == pytest.approx(all_of.nats, rel=1e-12)
        for row in rows:
            assert row.perplexity == pytest.approx(math.exp(row.nats / row.targets), rel=1e-9)
    assert [row.bucket for row in parts["mask_all", LENGTH]] == ["below 100 residues", "100 to 199 residues"]
    of_identities = {row.bucket: row.sequences for row in parts["80_10_10", IDENTITY]}
    assert of_identities["90 % and more"] == 140
    assert of_identities["no relative found"] > 10


def test_the_file_is_plain_json(written: Path) -> None:
    content = json.loads(written.read_text(), parse_constant=lambda word: pytest.fail(word))
    assert content["format"] == "zymogen.evaluation/2"
    assert all(row["set"] == content["set"] for row in content["rows"])
    assert json_file.as_json(json_file.read(EvaluationResult, written, "file of figures", "")) == written.read_text()


def test_a_checkpoint_and_an_export_belong_to_their_run(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    assert run_of_name(None, run.name) == (run.name,)  # as it was typed
    for place in (run, run / "checkpoints/step-000000001", run / "export"):
        assert run_of_name(None, str(place)) == (str(run.absolute()),)
        assert run_of_name(["a", "b"], str(place)) == ("a", "b")
    assert run_of_name(None, str(tmp_path)) == run_of_name(None, "lab/model") == ()


@pytest.mark.parametrize("installed", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["words", "MMseqs2"])
def test_identity_is_that_to_the_nearest_training_protein(
    opened: EvaluationSet, engine: Engine, tmp_path: Path, installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three proteins one is a training protein, one a copy with few changes, and one is of another family;
    a fourth has one letter, of which no search finds relatives."""
    if installed and not is_installed():
        pytest.skip("MMseqs2 is not installed")
    monkeypatch.setattr("data.homology.mmseqs.is_installed", lambda: installed)
    corpora = opened.corpora
    training = next(n for n in range(160) if corpora.parts[0].split.is_training(np.array([n]))[0])
    letters = fasta_of(corpora.parts[0].store.residues(training))
    changed = "".join("W" if place % 20 == 10 else letter for place, letter in enumerate(letters))
    held_out = fasta_of(corpora.parts[0].store.residues(int(corpora.validation[0])))
    fasta = tmp_path / "three.fasta"
    fasta.write_text(f">same\n{letters}\n>near\n{changed}\n>far\n{held_out}\n>low\n{'Q' * 60}\n")
    three = open_evaluation_set(EvaluationSetOptions(data=(str(fasta),), store_dir=str(tmp_path / "stores")), engine)
    identities, _ = three.identities(corpora)
    assert identities[0] == 1
    assert 0.5 < identities[1] < 1
    assert identities[2] < (0.5 if installed else identities[1])  # shared words give an estimate
    assert identities[3] == -1  # neither search finds it when it is there


def fasta_of(tokens) -> str:
    return bytes(FASTA_LETTERS[tokens]).decode()


def test_buckets_open_at_their_edges() -> None:
    assert buckets((0.3, 0.5), ("low", "middle", "high"), [0.0, 0.3, 0.49, 0.5, 1.0]) == [
        *("low", "middle", "middle", "high", "high")
    ]


def test_what_cannot_be_scored_is_one_line(
    run: Path, written: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    transformers_io.save(model_of(), tmp_path / "alone")
    shutil.copytree(run, tmp_path / "changed")
    content = json.loads((run / "run.json").read_text())
    content["corpus"]["split"] = "0" * 32
    (tmp_path / "changed/run.json").write_text(json.dumps(content))
    for arguments, expected in (
        ([run, "-o", written], "exists; give another name with -o, or replace it with --overwrite"),
        ([run, "-o", tmp_path / "no/where.json"], "is no folder; make it"),
        ([tmp_path / "alone"], "--data is missing: "),
        ([run, "--data", run, run], "is a run, whose held-out proteins are scored, and stands alone"),
        ([tmp_path / "changed"], f"was started on other data: its split was {'0' * 32}"),
        ([f"{tmp_path}/alon"], f"there is no such folder; the nearest is '{tmp_path / 'alone'}'; give"),
        ([run, "--crop-tokens", "2"], "begin, one residue and end are 3 tokens"),
    ):
        before = written.read_bytes()
        assert main([*map(str, arguments)]) == 78
        (said,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
        assert expected in said
        assert written.read_bytes() == before


# A run that trains ---------------------------------------------------------------------------------


def test_a_score_is_not_lost_with_the_checkpoint(
    run: Path, tmp_path: Path, families_files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run retires it as soon as the model is open; it has eight files, of which no reader holds all."""
    copy, checkpoints = tmp_path / "own", tmp_path / "own/checkpoints"
    shutil.copytree(run, copy)
    shutil.rmtree(checkpoints)
    model = model_of()
    state = TorchState(model, torch.optim.AdamW(model.parameters()))
    write_cut(checkpoints, StagingBuffer().stage(state), CUTS["rows"], 8)
    open_source = source.open_trained_model

    def retired(*given: object) -> source.TrainedModel:
        found = open_source(*given)
        shutil.rmtree(checkpoints)
        return found

    monkeypatch.setattr(source, "open_trained_model", retired)
    monkeypatch.setattr("data.homology.mmseqs.is_installed", lambda: False)
    words = [copy, "--data", families_files[0], "--training", "none", "--store-dir", tmp_path / "stores"]
    assert main([*map(str, words), "-o", str(tmp_path / "out.json")]) == 0
    assert not checkpoints.exists()
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["weights"] == identity_by_hand({name: p.detach() for name, p in model.named_parameters()})
