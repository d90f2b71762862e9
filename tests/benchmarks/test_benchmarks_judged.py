"""The judge beside loss: which proteins it takes, what its ridge fits, and what it says of a model."""

import shutil
import subprocess
import zipfile
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.embedding import written
from benchmarks.learning import judged
from benchmarks.learning.__main__ import main
from benchmarks.learning.judged import Embedded, Judged, Moments, judge, neighbours
from benchmarks.learning.runs import judged as judged_run
from benchmarks.learning.structure import FITTED, STATES, UNKNOWN, structures
from data.alphabet import STANDARD_RESIDUES
from finetune.baselines.ridge import ALPHAS
from pretrain.__main__ import main as pretrain
from pretrain.trained_model import masked_language_model, open_trained_model
from support.assays.structure_zip import STATE_OF, Record, records, zipped
from support.places import ROOT

FLIP = ROOT.parent / "shared" / "data" / "token" / "flip_secondary_structure_splits.zip"
CROP = 24


@pytest.fixture(scope="module")
def flip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return zipped(tmp_path_factory.mktemp("flip") / "flip.zip", records())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights."""
    folder = tmp_path_factory.mktemp("model")
    written("esm2_60k", folder)
    return folder


@pytest.fixture(scope="module")
def embedded(folder: Path) -> Embedded:
    return Embedded(masked_language_model(open_trained_model(folder)).encoder, CROP)


# Which proteins ----------------------------------------------------------------------------------


def test_the_proteins_follow_from_their_sequences_alone(tmp_path: Path) -> None:
    content = records()
    # Training proteins with the sequence of a judged one, those that validate, and those of which nothing is known.
    content += [each._replace(name=f"twin-{each.name}", part="train") for each in content if each.part == "test"]
    content[0:50] = [each._replace(validation="True") for each in content[0:50]]
    content += records(60, 0)[50:]  # ten sequences that are there already
    content = [each._replace(name=f"{each.name}-{number}") for number, each in enumerate(content)]
    content[50] = content[50]._replace(mask="0" * len(content[50].mask))
    content[-1] = content[-1]._replace(mask="0" * len(content[-1].mask))
    content += [
        Record(f"more{number}", each.sequence[::-1], each.states[::-1], each.mask[::-1], "train")
        for number, each in enumerate(content[100:200])
    ]

    found = structures(zipped(tmp_path / "one.zip", content))
    judged_sequences = {each.sequence for each in content if each.part == "test"}
    able = {
        each.sequence
        for each in content
        if (each.part, each.validation) == ("train", "False") and "1" in each.mask
        if each.sequence not in judged_sequences
    }
    assert len(able) > FITTED
    expected = sorted(able, key=lambda sequence: sha256(sequence.encode()).hexdigest())[:FITTED]
    assert [protein.sequence for protein in found.fitted] == expected
    assert {protein.sequence for protein in found.judged} == judged_sequences
    assert not judged_sequences & set(expected)
    again = structures(zipped(tmp_path / "two.zip", content[::-1]))
    assert [protein.sequence for protein in again.judged] == [protein.sequence for protein in found.judged]
    assert again.fingerprint == found.fingerprint
    for protein in found.judged:
        (record,) = [each for each in content if each.sequence == protein.sequence and each.part == "test"]
        known = "".join(state if bit == "1" else "-" for state, bit in zip(record.states, record.mask, strict=True))
        assert "".join((STATES + "-")[state] for state in protein.states.tolist()) == known
    other = [each._replace(states=each.states[::-1]) if each.part == "test" else each for each in content]
    assert structures(zipped(tmp_path / "three.zip", other)).fingerprint != found.fingerprint


@pytest.mark.skipif(not FLIP.is_file(), reason="no FLIP set beside the project (shared/data/token)")
def test_flips_own_file_has_what_the_judge_is_called_after() -> None:
    found = structures(FLIP)
    assert (len(found.fitted), len(found.judged)) == (1000, 364)
    assert sum(int((protein.states != UNKNOWN).sum()) for protein in found.judged) == 75_402


def _no_such_file(path: Path) -> None:
    del path


def _no_zip(path: Path) -> None:
    path.write_text("splits")


def _other_files(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("splits/sampled.csv", "sequence,target\nAAA,1\n")


def _no_parts(path: Path) -> None:
    zipped(path, records(3, 1))
    with zipfile.ZipFile(path) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in texts.items():
            archive.writestr(name, text.replace(" SET=", " PART="))


def _few(path: Path) -> None:
    zipped(path, records(FITTED - 1, 1))


def _none_to_judge_by(path: Path) -> None:
    zipped(path, records(FITTED, 0))


def _eight_states(path: Path) -> None:
    zipped(path, [each._replace(states="G" * len(each.states)) for each in records(3, 1)])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_no_such_file, "there is no such file; give FLIP's flip_secondary_structure_splits.zip"),
        (_no_zip, "no zip file whose name ends with .zip"),
        (_other_files, "member is 'splits/sequences.fasta'"),
        (_no_parts, "'SET'"),
        (_few, "999 proteins to fit on and 1 to judge by"),
        (_none_to_judge_by, "1,000 proteins to fit on and 0 to judge by"),
        (_eight_states, "has a residue in the state 'G'; the states are H, E, C"),
    ],
)
def test_another_file_ends_the_command_in_one_line(make: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    path, folder = tmp_path / "given.zip", tmp_path / "runs"
    make(path)
    with pytest.raises(SystemExit) as ended:
        main(["no proteins", "--folder", str(folder), "--structure", str(path)])
    message = str(ended.value)
    assert message.startswith(f"--structure {path}")
    assert said in message
    assert "\n" not in message
    assert not folder.exists()


# The ridge ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.01, 1e3])
def test_the_ridge_is_that_of_scikit_learn(alpha: float) -> None:
    from sklearn.linear_model import RidgeClassifier
    from sklearn.preprocessing import StandardScaler

    draws = np.random.default_rng(0)
    values = draws.normal(size=(600, 12)) * draws.uniform(0.01, 100, 12) + draws.normal(size=12)
    values[:, 3], values[:, 4] = 0.1, 0.0  # constant
    states = (values[:, 0] / values[:, 0].std() + draws.normal(size=600) > 0).astype(np.int64)
    states[values[:, 1] > np.quantile(values[:, 1], 0.7)] = 2
    fitted = (Moments.of(values[:150], states[:150]) + Moments.of(values[150:400], states[150:400])).ridge(alpha)
    scaler = StandardScaler().fit(values[:400])
    theirs = RidgeClassifier(alpha=alpha, solver="cholesky").fit(scaler.transform(values[:400]), states[:400])
    # Its targets are -1 and 1, so its outputs are ours times 2, less 1.
    outputs = values[400:] @ fitted.weight + fitted.intercept
    assert 2 * outputs - 1 == pytest.approx(theirs.decision_function(scaler.transform(values[400:])), abs=1e-8)
    right = theirs.predict(scaler.transform(values[400:])) == states[400:]
    assert fitted.is_right(values[400:], states[400:]).tolist() == right.tolist()
    assert 0.4 < right.mean() < 1


def test_a_tenth_chooses_the_penalty_and_all_are_fitted(flip: Path) -> None:
    """Features of which one is the state with noise and the others are noise: a second way to compute all of it."""
    known = structures(flip)
    draws = np.random.default_rng(1)
    noise = {}
    for protein in (*known.fitted, *known.judged):
        noise[protein.sequence] = draws.normal(size=(len(protein.sequence), 30))
        noise[protein.sequence][:, 0] += np.array([STATES.index(STATE_OF[letter]) for letter in protein.sequence])

    def table(proteins: Sequence) -> tuple[np.ndarray, np.ndarray]:
        kept = np.concatenate([protein.states for protein in proteins]) != UNKNOWN
        values = np.concatenate([noise[protein.sequence] for protein in proteins])[kept]
        return values, np.concatenate([protein.states for protein in proteins])[kept]

    tenth, most = table(known.fitted[:100]), table(known.fitted[100:])
    right = [int(Moments.of(*most).ridge(alpha).is_right(*tenth).sum()) for alpha in ALPHAS]
    best = max(zip(right, ALPHAS, strict=True))[1]
    assert len(set(right)) > 1
    of_all = Moments.of(*table(known.fitted)).ridge(best)
    found = judge(lambda sequences: np.concatenate([noise[sequence] for sequence in sequences]), known)
    assert found.alpha == best
    assert found.correct.sum() == of_all.is_right(*table(known.judged)).sum()


# What it says of a model -------------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_that_knows_a_residue_knows_its_state(flip: Path, embedded: Embedded, tmp_path: Path) -> None:
    """Masked residues have wrong letters, two in five, so that counting or fitting them would show."""
    known = structures(flip)
    assert max(len(protein.sequence) for protein in known.judged) + 2 > CROP, "some are read in windows"
    found = judge(embedded, known)
    assert found.q3 > 0.95
    masks = {each.sequence: each.mask for each in records()}
    assert found.residues.tolist() == [masks[protein.sequence].count("1") for protein in known.judged]
    assert (found.correct <= found.residues).all()
    assert found.names.tolist() == [protein.name for protein in known.judged]
    found.write(tmp_path / "structure.npz")
    read = Judged.read(tmp_path / "structure.npz")
    assert (read.q3, read.alpha, read.fingerprint) == (found.q3, found.alpha, known.fingerprint)
    assert judge(neighbours, known).q3 > 0.99
    # A control: without the residue there is nothing to read.
    assert judge(lambda sequences: np.ones((sum(map(len, sequences)), 1)), known).q3 < 0.5
    with pytest.raises(ValueError, match="not finite"):
        judge(lambda sequences: np.full((sum(map(len, sequences)), 1), np.nan), known)


def test_an_owner_gets_its_own_residues(flip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many residues are in memory together, each protein has the same residues right."""
    known = structures(flip)
    found = judge(_ends, known)
    monkeypatch.setattr(judged, "_AT_ONCE", 100)
    again = judge(_ends, known)
    assert (again.correct.tolist(), again.residues.tolist()) == (found.correct.tolist(), found.residues.tolist())
    assert len(set((found.residues - found.correct).tolist())) > 3


def _ends(sequences: Sequence[str]) -> NDArray[np.float64]:
    """Which residue it is, but not in the first five places of a protein."""
    is_letter = [np.array(list(letters))[:, None] == np.array(list(STANDARD_RESIDUES)) for letters in sequences]
    return np.concatenate([np.where(np.arange(len(each))[:, None] < 5, 0.0, each) for each in is_letter])


def test_a_residue_is_the_last_hidden_state_of_transformers(folder: Path, embedded: Embedded) -> None:
    from transformers import AutoModel, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(folder)("MKVLAAGX", return_tensors="pt")
    theirs = AutoModel.from_pretrained(folder, add_pooling_layer=False).train(False)(**tokens).last_hidden_state
    assert embedded(["ACD", "MKVLAAGX"])[3:] == pytest.approx(theirs[0, 1:-1].detach().numpy(), abs=1e-5)


def test_no_residue_sees_farther_than_the_runs_were_trained(embedded: Embedded) -> None:
    draws = np.random.default_rng(0)
    sequence = "".join(draws.choice(list(STANDARD_RESIDUES), 60))
    other = sequence[: 2 * CROP] + "".join(draws.choice(list(STANDARD_RESIDUES), 60 - 2 * CROP))
    first, second = embedded([sequence]), embedded([other])
    assert first.shape == (60, embedded.encoder.shape.dim)
    assert np.abs(first[: CROP // 2] - second[: CROP // 2]).max() < 1e-6
    far = Embedded(embedded.encoder, 100)
    assert np.abs(far([sequence])[: CROP // 2] - far([other])[: CROP // 2]).max() > 1e-6
    short = sequence[:20]
    assert embedded([other, short])[60:] == pytest.approx(far([short]), abs=1e-5)


@pytest.mark.prove
def test_a_run_is_judged_once_for_each_file(recipe_in, flip: Path, tmp_path: Path) -> None:
    assert pretrain([str(recipe_in(tmp_path)), "schedule.total_tokens=2_000"]) == 0
    run, kept = tmp_path / "run", tmp_path / "run/structure.npz"
    known = structures(flip)
    found = judged_run(run, CROP, flip, known.fingerprint)
    mine = judge(Embedded(masked_language_model(open_trained_model(run)).encoder, CROP), known)
    assert np.abs(found.correct - mine.correct).sum() <= 2  # sums of threads may differ in the last bit
    assert found.q3 > 0.9
    made = kept.stat().st_mtime_ns
    assert judged_run(run, CROP, flip, known.fingerprint).correct.tolist() == found.correct.tolist()
    assert kept.stat().st_mtime_ns == made
    other = zipped(tmp_path / "other.zip", records(num_test=12))
    assert len(judged_run(run, CROP, other, structures(other).fingerprint).names) == 12
    shutil.copytree(run, tmp_path / "copy")
    (tmp_path / "copy/structure.npz").unlink()
    with pytest.raises(subprocess.CalledProcessError):
        judged_run(tmp_path / "copy", CROP, tmp_path / "none.zip", "")
    assert "there is no such file" in (tmp_path / "copy.log").read_text()
