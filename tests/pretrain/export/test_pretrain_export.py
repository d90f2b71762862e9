"""Export: a trained run as a directory that transformers loads alone, and that a new run can start from."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoTokenizer

from data.alphabet import CLS, EOS, TOKENS
from data.batches.batch import Batch
from data.batches.contents import MaskedContents
from data.batches.masking import BertMask
from data.batches.settings import MaskSettings
from data.corpus.prepare import open_corpora, prepare_corpora
from data.order.plan import Bin
from data.settings import DataSettings
from pretrain.__main__ import main
from pretrain.card.card import validation
from pretrain.evaluate.scores import HeldOutUnit
from pretrain.export import __main__ as export
from pretrain.export.checksums import CHECKSUMS
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import PRESETS
from support.launching import End, end_of, lines
from zymogen.trainer.optimizer.schedule import learning_rate
from zymogen.trainer.optimizer.settings import ScheduleSettings

# One group: all tests look at one run, which is made once.
pytestmark = pytest.mark.xdist_group("export")

HIDDEN = MaskSettings(select_prob=0.15, mask_prob=1.0, random_prob=0.0)


@pytest.fixture(scope="module")
def run(recipe_in, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 30 steps."""
    folder = tmp_path_factory.mktemp("export")
    assert main([str(recipe_in(folder))]) == 0
    return folder / "run"


def restored(end: End, preset: str = "esm2_60k") -> MaskedLanguageModel:
    """The trainer's model, from its checkpoint, read without the code under test."""
    model = MaskedLanguageModel(PRESETS[preset])
    model.load_state_dict({n: t for n, t in end.tensors.items() if not n.startswith("exp_")})
    return model.eval()


def some_proteins(families_files: tuple[Path, Path], folder: Path) -> Batch:
    """Four masked proteins in one bin."""
    settings = DataSettings(
        sources=(str(families_files[0]),),
        store_dir=str(folder),
        crop_tokens=200,
        bin_tokens=700,
        validation_fraction=0.2,
    )
    reader = open_corpora(settings, prepare_corpora(settings)).reader
    samples = np.array([0, 41, 82, 159])
    zeros = np.zeros(4, np.int64)
    packed = Bin(samples, zeros, zeros, reader.num_residues(samples) + 2)
    return MaskedContents(reader, settings, BertMask(HIDDEN), 3).batch([packed], [0])


FOREIGN_PROCESS = """
import json, os, sys
folder, work = sys.argv[1:]
sys.path = [path for path in sys.path if not os.path.isdir(os.path.join(path, "pretrain"))]
try:
    import pretrain
except ImportError:
    pass
else:
    sys.exit("this process can import the project: " + pretrain.__file__)
import numpy as np, torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline
model, tokenizer = AutoModelForMaskedLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
said = {"ids": [], "class": type(model).__module__ + "." + type(model).__name__, "vocabulary": tokenizer.get_vocab()}
for number, sequence in enumerate(json.load(open(work + "/sequences.json"))):
    encoded = tokenizer(sequence, return_tensors="pt")
    said["ids"].append(encoded.input_ids[0].tolist())
    with torch.no_grad():
        np.save(f"{work}/{number}.npy", model(**encoded).logits[0].numpy())
said["best"] = pipeline("fill-mask", model=folder, tokenizer=folder)("MKTAYIAKQRQIS<mask>VKSHF", top_k=33)
print(json.dumps(said))
"""


@pytest.mark.slow
def test_transformers_alone_gives_the_trainers_logits(
    run: Path, families_files: tuple[Path, Path], tmp_path: Path
) -> None:
    batch = some_proteins(families_files, tmp_path / "stores")
    documents = [batch.tokens[start:end] for start, end in batch.spans]
    assert all(document[0] == CLS and document[-1] == EOS for document in documents)
    texts = ["".join(TOKENS[token] for token in document[1:-1].tolist()) for document in documents]
    assert all("<mask>" in text for text in texts)
    (tmp_path / "sequences.json").write_text(json.dumps(texts))
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TRANSFORMERS_VERBOSITY")}
    done = subprocess.run(
        [sys.executable, "-c", FOREIGN_PROCESS, str(run / "export"), str(tmp_path)],
        cwd=tmp_path,
        env={**environment, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for complaint in ("initialized", "MISSING", "UNEXPECTED", "MISMATCH", "not used", "trust_remote_code", "Warning"):
        assert complaint not in done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["class"] == "transformers.models.esm.modeling_esm.EsmForMaskedLM"
    assert not list((run / "export").glob("*.py"))
    assert "auto_map" not in (run / "export/config.json").read_text()
    assert said["vocabulary"] == {text: token for token, text in enumerate(TOKENS)}
    assert said["ids"] == [document.tolist() for document in documents]

    model = restored(end_of(run))
    with torch.no_grad():
        ours = model.logits(batch)
    for number, (start, end) in enumerate(batch.spans):
        theirs = torch.from_numpy(np.load(tmp_path / f"{number}.npy"))
        assert theirs.shape == (end - start, 33)
        assert (theirs - ours[start:end]).abs().max() <= 1e-5 * ours[start:end].abs().max()
    untrained = MaskedLanguageModel(PRESETS["esm2_60k"]).eval()
    assert (untrained.logits(batch) - ours).abs().max() > 0.1  # a control: other weights are seen
    assert {guess["token_str"] for guess in said["best"][:5]} <= set("ACDEFGHIKLMNPQRSTVWY")
    assert sum(guess["score"] for guess in said["best"]) == pytest.approx(1, abs=1e-4)


def test_what_is_in_the_directory(run: Path) -> None:
    folder = run / "export"
    names = {path.name for path in folder.iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt", "README.md"}
    assert not any(name.endswith((".py", ".bin", ".pkl", ".pt")) for name in names)
    assert not list(run.glob(".export-*"))
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["EsmForMaskedLM"]
    assert (config["num_hidden_layers"], config["hidden_size"], config["token_dropout"]) == (2, 48, True)


def test_the_card_names_step_and_perplexities(run: Path) -> None:
    card = (run / "export/README.md").read_text()
    end = end_of(run)
    assert f"30 steps, {end.tokens_seen:,} tokens" in card
    assert "random weights, esm2_60k" in card
    (scores,) = [line["validation"] for line in lines(run / "metrics.jsonl") if "validation" in line]
    for name, shown in (("mask_all", "mask-all"), ("80_10_10", "80/10/10")):
        s = scores[name]
        row = f"| {shown} | {s['perplexity']:.2f} | {s['low']:.2f} to {s['high']:.2f} | {s['unigram']:.2f} |"
        assert row in card
    described = json.loads((run / "run.json").read_text())["corpus"]
    assert described["fingerprint"] in card
    assert described["held_out"] == "clusters"
    assert "proteins of held-out clusters, 15 % of residues" in card
    assert f"{described['training_records']:,} training and {described['validation_records']:,} validation" in card
    assert "split by clusters" in card


@pytest.mark.parametrize(
    ("held_out", "said", "over"),
    [
        (
            HeldOutUnit.CLUSTERS,
            "Validation perplexity on 40 of 90 proteins of held-out clusters, 15 %",
            "bootstrap over clusters)",
        ),
        (
            HeldOutUnit.SEQUENCES,
            "Validation perplexity on 40 of 90 held-out proteins, 15 %",
            "bootstrap over sequences)",
        ),
        (
            HeldOutUnit.NOTHING,
            "Perplexity on 40 of 500 training proteins, because none is held out, 15 %",
            "by bootstrap).",
        ),
        (None, "Validation perplexity, 15 %", "by bootstrap)."),  # a run of an early version
    ],
)
def test_the_card_says_what_was_scored(held_out: HeldOutUnit | None, said: str, over: str) -> None:
    diverged = {"perplexity": 6.5e228, "low": 1e3, "high": None, "unigram": 18.0, "sequences": 40.0}
    corpus = {"training_records": 500, "validation_records": 90, "held_out": held_out}
    card = "\n".join(validation({"mask_all": diverged}, corpus))
    assert said in card
    assert over in card
    assert "| mask-all | 6e+228 | unknown | 18.00 |" in card
    assert ("cluster" in card) == (held_out is HeldOutUnit.CLUSTERS)


def digest(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_the_command_writes_the_same_files_again(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    before = digest(copy / "export")
    (copy / "export/model.safetensors").write_bytes(b"lost")
    export.main([str(copy)])
    assert capsys.readouterr().out.startswith("step 30: ")
    assert digest(copy / "export") == before
    shutil.rmtree(copy / "export")
    export.main([str(copy)])
    assert digest(copy / "export") == before


def test_an_export_that_the_user_changed_is_kept(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    before = digest(copy / "export")
    export.main([str(copy)])
    assert {path.name for path in copy.glob("*export*")} == {"export"}
    (copy / "export/README.md").write_text("my own card")
    export.main([str(copy)])
    assert digest(copy / "export") == before
    assert (copy / "export-1/README.md").read_text() == "my own card"
    assert f"{copy}/export is not as it was written; it is kept as {copy}/export-1" in capsys.readouterr().err
    (copy / "export/notes").mkdir()
    (copy / "export/notes/mine.txt").write_text("years of work")
    export.main([str(copy)])
    assert digest(copy / "export") == before
    assert (copy / "export-2/notes/mine.txt").read_text() == "years of work"
    (copy / "export" / CHECKSUMS).unlink()  # nobody knows any more
    export.main([str(copy)])
    assert digest(copy / "export") == before
    assert digest(copy / "export-3").items() == before.items() - {(CHECKSUMS, before[CHECKSUMS])}
    shutil.rmtree(copy / "export")
    (copy / "export").symlink_to(copy / "export-1")
    export.main([str(copy)])
    assert digest(copy / "export") == before
    assert (copy / "export-4").readlink() == copy / "export-1"
    assert (copy / "export-1/README.md").read_text() == "my own card"


@pytest.mark.parametrize("left", ["nothing", "a folder", "run.json of a start that failed", "all but checkpoints"])
def test_a_run_without_a_checkpoint_is_one_error(
    run: Path, left: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = tmp_path / "run"
    if left != "nothing":
        folder.mkdir()
    if left == "run.json of a start that failed":
        described = json.loads((run / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps({k: described[k] for k in ("format", "recipe", "versions")}))
    elif left == "all but checkpoints":
        shutil.copy(run / "run.json", folder)
    assert export.main([str(folder)]) == 78
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ")
    assert str(folder) in error
    assert not (folder / "export").exists()


def validations(run: Path) -> list[dict]:
    return [line["validation"] for line in lines(run / "metrics.jsonl") if "validation" in line]


def losses(run: Path) -> list[float]:
    return [line["loss"] for line in lines(run / "metrics.jsonl") if "loss" in line]


@pytest.mark.slow
def test_a_new_run_starts_from_an_export(run: Path, recipe_in, tmp_path: Path) -> None:
    published = tmp_path / "published"
    shutil.copytree(run / "export", published)
    words = [str(recipe_in(tmp_path)), "model.preset=none", f"model.init={published}", "--allow-schedule-change"]
    # At a learning rate of next to nothing the new run ends where the old one ended.
    assert main([*words, "schedule.peak_lr=1e-12", "schedule.total_tokens=900"]) == 0
    new = tmp_path / "run"
    for name, scores in validations(run)[-1].items():
        assert validations(new)[-1][name]["perplexity"] == pytest.approx(scores["perplexity"], rel=1e-5)
    first, trained = losses(run)[0], np.mean(losses(run)[-5:])
    assert first - trained > 0.3
    assert abs(losses(new)[0] - trained) < 0.2
    assert f"started from | weights in {published.name} |" in (new / "export/README.md").read_text()

    shutil.rmtree(published)
    assert main([*words, "schedule.total_tokens=2_500"]) == 0
    assert end_of(new).step > 2
    assert [line["base_step"] for line in lines(new / "attempts.jsonl") if "base_step" in line] == [0, 2]
    weights, before = load_file(new / "export/model.safetensors"), load_file(run / "export/model.safetensors")
    moved = max(float((weights[name] - before[name]).abs().max()) for name in weights)
    assert 1e-4 < moved < 0.1


@pytest.mark.slow
def test_a_modern_run_is_exported_as_esm_c_and_a_new_run_starts_from_it(
    recipe_in, families_files: tuple[Path, Path], tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert main([str(recipe_in(first)), "model.preset=modern_60k", "schedule.total_tokens=4_000"]) == 0
    exported = first / "run/export"
    theirs, tokenizer = AutoModelForMaskedLM.from_pretrained(exported), AutoTokenizer.from_pretrained(exported)
    assert type(theirs).__module__ == "transformers.models.esmc.modeling_esmc"
    batch = some_proteins(families_files, tmp_path / "stores")
    with torch.no_grad():
        ours = restored(end_of(first / "run"), "modern_60k").logits(batch)
        for start, end in batch.spans:
            encoded = tokenizer("".join(TOKENS[token] for token in batch.tokens[start + 1 : end - 1].tolist()))
            assert encoded["input_ids"] == batch.tokens[start:end].tolist()
            logits = theirs(torch.tensor([encoded["input_ids"]])).logits[0]
            assert (logits - ours[start:end]).abs().max() <= 1e-5 * ours[start:end].abs().max()
    card = (exported / "README.md").read_text()
    assert "An ESM C encoder" in card
    assert "random weights, modern_60k" in card
    assert "predict_contacts" not in card

    before = digest(exported)
    export.main([str(first / "run")])
    assert digest(exported) == before
    # At a learning rate of next to nothing the new run ends where the old one ended.
    words = [str(recipe_in(second)), "model.preset=none", f"model.init={exported}", "schedule.total_tokens=900"]
    assert main([*words, "schedule.peak_lr=1e-12"]) == 0
    for name, scores in validations(first / "run")[-1].items():
        assert validations(second / "run")[-1][name]["perplexity"] == pytest.approx(scores["perplexity"], rel=1e-5)


@pytest.mark.slow
def test_trained_weights_begin_at_a_tenth_of_the_peak_rate(
    run: Path, recipe_in, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = ["model.preset=none", f"model.init={run / 'export'}", "schedule.total_tokens=900"]
    peaks = {"none": 4e-5, "4e-4": 4e-4, "1e-4": 1e-4}
    said = {}
    for given, peak in peaks.items():
        assert main([str(recipe_in(tmp_path / given)), *words, f"schedule.peak_lr={given}"]) == 0
        described = json.loads((tmp_path / given / "run/run.json").read_text())
        said[given] = [line for line in described["compute"] if line.startswith("learning rate: ")]
        screen = capsys.readouterr()
        assert all(line in screen.out + screen.err for line in said[given])
        first = lines(tmp_path / given / "run/metrics.jsonl")[0]
        schedule = ScheduleSettings(peak_lr=peak, total_tokens=900, warmup_tokens=0)
        assert first["learning_rate"] == pytest.approx(learning_rate(schedule, first["tokens"]), rel=1e-12)
        assert described["recipe"]["schedule"]["peak_lr"] == peak
    lowered = f"a tenth of that from random weights, because {run / 'export'} is trained already"
    warned = f"a rate for random weights, and {run / 'export'} is trained already"
    assert said == {
        "none": [f"learning rate: peak 4e-05, {lowered}; schedule.peak_lr sets another"],
        "4e-4": [f"learning rate: peak 0.0004, {warned}; schedule.peak_lr=none takes 4e-05"],
        "1e-4": [],
    }


def test_init_that_is_not_there_is_one_error(
    run: Path, recipe_in, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = [str(recipe_in(tmp_path)), "model.preset=none", "schedule.total_tokens=900"]
    assert main([*words, f"model.init={tmp_path / 'absent'}"]) == 78
    said = capsys.readouterr().err
    assert said.count("error: ") == 1
    assert (
        f"error: {tmp_path / 'absent'}: no transformers model can be read there, because there is no such folder"
        in said
    )
    assert "Traceback" not in said
    assert main([*words, f"model.init={run / 'export'}"]) == 0
