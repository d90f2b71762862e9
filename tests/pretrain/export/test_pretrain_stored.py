"""What an export is made of: contact heads that pass through a run, types, files, steps, and what is refused."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForMaskedLM

import pretrain.export.export as ship
from pretrain.__main__ import main
from pretrain.evaluate import __main__ as evaluate
from pretrain.export import __main__ as export
from pretrain.export.checksums import CHECKSUMS
from pretrain.export.verify import reference_logits, require_same
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import PRESETS
from pretrain.model.weights import io as transformers_io
from pretrain.model.weights.names import CONTACT_BIAS, CONTACT_WEIGHT, ContactHead
from pretrain.push.folder import finished_files
from support.checkpoint_run import rewrite_trainer, trainer_at
from support.forked import forked, status_of
from support.inputs.flat_batches import perturb
from support.inputs.whole_models import load as read_model
from support.launching import environment
from support.places import ROOT
from support.wrong_engine import rise
from zymogen.trainer.checkpoint import load
from zymogen.trainer.run import records
from zymogen.trainer.run.directory import RunDirectory

# One group: most tests look at one run, which is made once.
pytestmark = pytest.mark.xdist_group("stored")


@pytest.fixture(scope="module")
def run(recipe_in, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 30 steps, with three checkpoints."""
    folder = tmp_path_factory.mktemp("stored")
    assert main([str(recipe_in(folder)), "run.keep_checkpoints=3", "run.validation_sequences=4"]) == 0
    return folder / "run"


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(run, tmp_path / "run")


def published(folder: Path, preset: str) -> dict[str, Tensor]:
    """Write a model of transformers with random values everywhere, its contact head included; its tensors."""
    theirs = transformers_io.to_transformers(MaskedLanguageModel(PRESETS[preset]))
    perturb(theirs)
    theirs.save_pretrained(folder)
    return tensors(folder)


def tensors(folder: Path) -> dict[str, Tensor]:
    """What transformers reads in a folder, as it is stored."""
    theirs, info = AutoModelForMaskedLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return dict(theirs.state_dict())


def same_bytes(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].numpy().tobytes() == other[name].numpy().tobytes() for name in one
    )


# Through a run ------------------------------------------------------------------------------------

NOT_TRAINED = ("schedule.peak_lr=1e-30", "run.validation_sequences=4")
"""Far below the last bit of any weight, so that a run ends with the weights that it began with."""


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["esm2_60k", "modern_60k"])
def test_a_run_exports_the_bytes_that_it_started_from(preset: str, recipe_in, tmp_path: Path) -> None:
    """The contact head too, which is in every checkpoint: what the run started from is gone when it is continued."""
    before = published(tmp_path / "published", preset)
    words = [str(recipe_in(tmp_path)), "model.preset=none", f"model.init={tmp_path / 'published'}", *NOT_TRAINED]
    assert main([*words, "schedule.total_tokens=900"]) == 0
    assert same_bytes(tensors(tmp_path / "run/export"), before)
    shutil.rmtree(tmp_path / "published")
    shutil.rmtree(tmp_path / "run/export")
    assert main([*words, "schedule.total_tokens=1_700", "--allow-schedule-change"]) == 0
    assert same_bytes(tensors(tmp_path / "run/export"), before)
    if preset == "esm2_60k":
        assert before[CONTACT_WEIGHT].abs().min() > 0
        assert before[CONTACT_WEIGHT].shape == (1, 2 * 4)
        for checkpoint in (tmp_path / "run/checkpoints").glob("step-*"):
            kept = json.loads((checkpoint / "trainer.json").read_text())["entries"]["contact_head"]
            assert torch.equal(torch.tensor([kept["weight"]]), before[CONTACT_WEIGHT])
            assert torch.equal(torch.tensor([kept["bias"]]), before[CONTACT_BIAS])
        assert "uses the contact head of the model" in (tmp_path / "run/export/README.md").read_text()


def test_a_head_that_is_absent_or_zero_is_none(tmp_path: Path) -> None:
    published(tmp_path, "esm2_60k")
    weights = load_file(tmp_path / "model.safetensors")
    without = {name: tensor for name, tensor in weights.items() if "contact_head" not in name}
    save_file(without, tmp_path / "model.safetensors", {"format": "pt"})
    assert transformers_io.published(tmp_path)[-1] is None
    zero = {name: torch.zeros_like(weights[name]) for name in (CONTACT_WEIGHT, CONTACT_BIAS)}
    save_file(without | zero, tmp_path / "model.safetensors", {"format": "pt"})
    assert transformers_io.published(tmp_path)[-1] is None
    save_file(without | zero | {CONTACT_BIAS: torch.tensor([-2.5])}, tmp_path / "model.safetensors", {"format": "pt"})
    assert transformers_io.published(tmp_path)[-1] == ContactHead((0.0,) * 8, -2.5)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, "contact_head: weight: Field required"),
        ({"weight": [1.0] * 8, "bias": None}, "contact_head: bias: .*number, got None"),
        ({"weight": "x", "bias": 0.0}, "contact_head: weight: .*, got 'x'"),
    ],
)
def test_an_entry_that_is_no_contact_head_is_refused(entry: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(trainer_at(1), entries={"contact_head": entry}).entry("contact_head", ContactHead)


def test_a_contact_head_of_another_shape_is_not_exported(copy: Path, capsys: pytest.CaptureFixture) -> None:
    checkpoint = copy / "checkpoints/step-000000030"
    head = {"contact_head": {"weight": [1.0] * 7, "bias": 0.0}}
    rewrite_trainer(checkpoint, lambda record: record["entries"].update(head))
    assert export.main([str(copy)]) == 78
    assert f"error: {checkpoint}: the contact head has 7 numbers, allowed 8\n" == capsys.readouterr().err


def test_weights_that_are_no_numbers_are_no_start(tmp_path: Path) -> None:
    published(tmp_path, "esm2_60k")
    weights = load_file(tmp_path / "model.safetensors")
    name = "esm.encoder.layer.1.output.dense.bias"
    weights[name][[3, 5]] = float("nan")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=rf"^{tmp_path}: {name} has 2 of 48 values that are NaN or infinite; give "):
        transformers_io.published(tmp_path)


# Types and files ----------------------------------------------------------------------------------


def test_an_export_is_written_without_a_second_copy_of_the_weights(tmp_path: Path) -> None:
    """Beside the model stand one file of it and the parts of its fused matrices."""

    def work() -> None:
        torch.set_num_threads(1)
        transformers_io.save(
            MaskedLanguageModel(PRESETS["esm2_60k"]), tmp_path / "first"
        )  # what is imported on the way
        model = MaskedLanguageModel(PRESETS["esm2_35m"]).eval()
        size = 4 * sum(parameter.numel() for parameter in model.parameters())
        rose = rise(lambda: transformers_io.save(model, tmp_path / "export", largest_file="20MB"))
        assert rose < 0.6 * size, rose / size

    assert status_of(forked(work)) == 0


@pytest.mark.parametrize("preset", ["esm2_800k", "modern_800k"])
def test_float16_in_files_of_1_mb_loads(preset: str, tmp_path: Path) -> None:
    model = MaskedLanguageModel(PRESETS[preset]).eval()
    perturb(model)
    transformers_io.save(model, tmp_path, dtype="float16", largest_file="1MB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = set(index["weight_map"].values())
    assert len(files) >= 2
    assert all((tmp_path / file).stat().st_size < 1_050_000 for file in files)
    assert not (tmp_path / "model.safetensors").exists()
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "float16"
    stored = {name: tensor for file in files for name, tensor in load_file(tmp_path / file).items()}
    assert {tensor.dtype for name, tensor in stored.items() if "inv_freq" not in name} == {torch.float16}
    assert {tensor.dtype for name, tensor in stored.items() if "inv_freq" in name} <= {torch.float32}
    again = read_model(tmp_path)
    assert again.shape == model.shape  # the precision of rotary frequencies, too
    rounded = {name: weight.half().float() for name, weight in model.state_dict().items()}
    assert same_bytes(dict(again.state_dict()), rounded)
    with pytest.raises(ValueError, match="transformers computes other logits with it than were trained"):
        require_same(
            reference_logits(model), tmp_path
        )  # a control: before its weights are rounded, it is another model
    model.load_state_dict(rounded)
    require_same(reference_logits(model), tmp_path)


@pytest.mark.slow
def test_the_command_stores_as_it_is_told(copy: Path, capsys: pytest.CaptureFixture) -> None:
    assert export.main([str(copy), "--dtype", "bfloat16", "--largest-file", "50KB"]) == 0
    assert len(list((copy / "export").glob("model-*.safetensors"))) >= 2
    types = {name: tensor.dtype for name, tensor in tensors(copy / "export").items()}
    assert types.pop("esm.rotary_embeddings.inv_freq") == torch.float32
    assert set(types.values()) == {torch.bfloat16}
    assert capsys.readouterr().out == f"step 30: {copy}/export\n"
    assert export.main([str(copy)]) == 0
    assert not list((copy / "export").glob("model-*"))
    assert export.main([str(copy), "--largest-file", "5"]) == 78
    assert "it takes a whole number with KB, MB or GB" in capsys.readouterr().err


def test_any_step_is_exported(copy: Path, capsys: pytest.CaptureFixture) -> None:
    newest = tensors(copy / "export")
    assert export.main([str(copy), "--step", "10"]) == 0
    assert capsys.readouterr().out == f"step 10: {copy}/export\n"
    assert "| trained for | 10 steps, " in (copy / "export/README.md").read_text()
    assert not same_bytes(tensors(copy / "export"), newest)
    assert export.main([str(copy), "--step", "11"]) == 78
    said = f"error: {copy} has no checkpoint of step 11; it has those of the steps 10, 20, 30\n"
    assert capsys.readouterr().err == said
    (copy / "checkpoints/step-000000020/trainer.json").write_text("{}")
    assert export.main([str(copy), "--step", "20"]) == 78
    assert "step-000000020 is not whole: " in capsys.readouterr().err


def test_what_was_measured_of_the_exported_weights_goes_with_them(copy: Path, capsys: pytest.CaptureFixture) -> None:
    """Onto the card, with its pictures, whatever the weights are stored as; and into no export of another step."""
    out = copy / "evaluation.json"
    assert evaluate.main([str(copy), "--training", "none", "-o", str(out)]) == 0
    measured = json.loads(out.read_text())
    (last,) = [line for line in records.read(copy / "metrics.jsonl") if "validation" in line][-1:]
    assert last["set"] == measured["set"]
    assert last["validation"]["mask_all"]["perplexity"] == pytest.approx(measured["rows"][0]["perplexity"], rel=1e-4)
    picture, card = copy / "export/perplexity-length.svg", copy / "export/README.md"
    for words in ([], ["--dtype", "bfloat16"]):
        assert export.main([str(copy), *words]) == 0
        assert picture.read_text().startswith("<svg ")
        assert f"the frozen set {measured['set']}." in card.read_text()
        assert f"  {picture.name}\n" in (copy / "export" / CHECKSUMS).read_text()
    assert finished_files(copy / "export").keys() >= {picture.name, "loss.svg", "README.md"}
    assert evaluate.main([str(copy / "export"), "--training", "none", "-o", str(out), "--overwrite"]) == 0
    assert json.loads(out.read_text())["weights"] != measured["weights"]
    assert export.main([str(copy), "--dtype", "bfloat16"]) == 0
    assert picture.is_file()
    picture.write_text("mine")
    capsys.readouterr()
    assert export.main([str(copy), "--step", "10"]) == 0
    assert (copy / "export-1" / picture.name).read_text() == "mine"
    assert not picture.exists()
    assert f"not of the exported weights, and not on the card: {out}\n" in capsys.readouterr().err


# What is refused ----------------------------------------------------------------------------------

Change = Callable[[Tensor], object]
NAME = "encoder.layers.1.feed_forward.down.weight"
REFUSED: dict[str, tuple[Change, list[str], str]] = {
    "NaN": (lambda t: t[0, 0].fill_(float("nan")), [], f"{NAME} has 1 of 9,216 values that are NaN or infinite"),
    "infinite": (lambda t: t[:2].fill_(float("inf")), [], f"{NAME} has 384 of 9,216 values that are NaN or infinite"),
    "too large": (
        lambda t: t[0, 0].fill_(1e5),
        ["--dtype", "float16"],
        f"{NAME} reaches 100000, and float16 ends at 65504; store the weights as bfloat16 or float32",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_weights_that_are_no_numbers_are_not_exported(
    case: str, copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    change, words, said = REFUSED[case]
    before, read_whole = tensors(copy / "export"), ship.read_whole

    def changed(*arguments) -> dict[str, Tensor]:
        weights = read_whole(*arguments)
        change(weights[NAME])
        return weights

    monkeypatch.setattr(ship, "read_whole", changed)
    assert export.main([str(copy), *words]) == 78
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: {copy}/checkpoints/step-000000030: {said}")
    assert same_bytes(tensors(copy / "export"), before)
    assert not list(copy.glob(".export*"))


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"token_dropout": False}, "transformers computes other logits with it than were trained"),
        ({"tie_word_embeddings": False}, "transformers finds 1 missing keys in it, such as lm_head.decoder.weight"),
        ({"num_hidden_layers": 3}, "transformers cannot read it: "),
    ],
)
def test_what_does_not_load_as_it_was_trained_replaces_nothing(
    broken: dict, said: str, copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    before, save = tensors(copy / "export"), transformers_io.save

    def spoiled(model: MaskedLanguageModel, folder: Path, **how: object) -> None:
        save(model, folder, **how)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | broken))

    monkeypatch.setattr(transformers_io, "save", spoiled)
    assert export.main([str(copy)]) == 78
    assert f"error: the export was not kept: {said}" in capsys.readouterr().err
    assert same_bytes(tensors(copy / "export"), before)
    assert not list(copy.glob(".export*"))


# A run that trains --------------------------------------------------------------------------------


@pytest.mark.parametrize("during", ["verify", "read_whole"])
def test_a_checkpoint_that_vanishes_gives_way_to_the_next(
    during: str, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """While the one of step 20 is read, that of step 30 is published and the older ones are removed."""
    checkpoints = copy / "checkpoints"
    (checkpoints / "step-000000030").rename(tmp_path / "next")
    module = load if during == "verify" else ship
    read, seen = getattr(module, during), []

    def overtaken(first, *others):
        path = first if isinstance(first, Path) else first.path
        seen.append(path.name)
        if len(seen) == 1:
            (tmp_path / "next").rename(checkpoints / "step-000000030")
            for name in ("step-000000010", "step-000000020"):
                os.rename(checkpoints / name, checkpoints / f".trash-{name}")
                shutil.rmtree(checkpoints / f".trash-{name}")
        return read(first, *others)

    monkeypatch.setattr(module, during, overtaken)
    assert export.main([str(copy)]) == 0
    out, err = capsys.readouterr()
    assert out == f"step 30: {copy}/export\n"
    assert err == ""
    assert seen == ["step-000000020", "step-000000030"]


def test_a_file_that_vanishes_while_it_is_opened_gives_way_to_the_next(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    checkpoints = copy / "checkpoints"
    (checkpoints / "step-000000030").rename(tmp_path / "next")
    opened, seen = os.open, []

    def overtaken(path: str, *others, **how):
        if Path(path).suffix == ".safetensors" and Path(path).is_relative_to(checkpoints):
            seen.append(Path(path).relative_to(checkpoints).parts[0])
        if len(seen) == 1 and not (checkpoints / "step-000000030").exists():
            (tmp_path / "next").rename(checkpoints / "step-000000030")
            shutil.rmtree(checkpoints / "step-000000020")
        return opened(path, *others, **how)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", overtaken)
        assert ship.export(RunDirectory(copy))[1] == 30
    assert seen[:2] == ["step-000000020", "step-000000030"]
    assert capsys.readouterr().err == ""


def test_a_step_that_vanishes_is_one_error(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    read_whole = ship.read_whole

    def overtaken(checkpoint, *others):
        shutil.rmtree(checkpoint.path)
        return read_whole(checkpoint, *others)

    monkeypatch.setattr(ship, "read_whole", overtaken)
    assert export.main([str(copy), "--step", "20"]) == 70
    said = "step-000000020: the run, which trains, removed it while it was read; raise run.keep_checkpoints"
    assert said in capsys.readouterr().err


@pytest.mark.prove
def test_exports_of_a_run_that_keeps_one_checkpoint_and_saves_every_step(recipe_in, tmp_path: Path) -> None:
    """As often as it can: none fails, and the run does not notice."""
    run, few = tmp_path / "run", ["run.validation_sequences=4", "schedule.total_tokens=50_000"]
    words = [str(recipe_in(tmp_path)), "run.checkpoint_every=1", "run.keep_checkpoints=1", *few]
    command = [sys.executable, "-m", "pretrain", *words]
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL) as training:
        steps = []
        while training.poll() is None:
            if list((run / "checkpoints").glob("step-*")):
                assert export.main([str(run)]) == 0
                card = (run / "export/README.md").read_text()
                steps.append(int(card.partition("| trained for | ")[2].partition(" steps")[0]))
    assert training.returncode == 0
    assert steps == sorted(steps)
    assert len(set(steps)) >= 3
    assert not list(run.glob("export-*"))
