"""A trained model by its name: a run of ours, its export, published models of both architectures."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import EsmShape
from pretrain.model.weights import io as transformers_io
from pretrain.trained_model import ENCODER, TrainedModel, encoder_of, masked_language_model, open_trained_model
from support.checkpoint_run import CUTS, flip, identity_by_hand, save, write_cut
from support.hub.client import local_hub
from support.inputs.flat_batches import document, pack, perturb
from zymogen.trainer.checkpoint.writer import StagingBuffer
from zymogen.trainer.engine.named_state import TorchState
from zymogen.trainer.run.run_json import FORMAT

TINY = EsmShape(layers=2, dim=48, heads=4)
MODERN = EsmShape(layers=2, dim=48, heads=3, architecture="modern", token_dropout=False)


def whole(shape: EsmShape, seed: int = 0) -> MaskedLanguageModel:
    model = MaskedLanguageModel(shape)
    perturb(model, seed)
    return model


def described(root: Path, model: object) -> Path:
    root.mkdir()
    (root / "run.json").write_text(json.dumps({"format": FORMAT, "model": model}))
    return root


@pytest.mark.parametrize("shape", [TINY, MODERN], ids=["ESM-2", "ESM C"])
def test_a_published_model(tmp_path: Path, shape: EsmShape) -> None:
    model = whole(shape)
    transformers_io.save(model, tmp_path / "published")
    start = open_trained_model(tmp_path / "published", ENCODER)
    assert (start.shape, start.origin) == (shape, str(tmp_path / "published"))
    names = [name for name, _ in model.named_parameters() if name.startswith("encoder.")]
    assert sorted(start.weights) == sorted(names)
    assert all(torch.equal(start.weights[name](), model.get_parameter(name)) for name in names)


def test_a_run_is_its_newest_checkpoint_or_its_export(tmp_path: Path) -> None:
    run = described(tmp_path / "run", asdict(TINY))
    with pytest.raises(ValueError, match="run has no checkpoint and no export yet; train until"):
        open_trained_model(run, ENCODER)
    exported = whole(TINY, 1)
    transformers_io.save(exported, run / "export")
    name = "encoder.layers.1.attention.qkv.weight"
    assert torch.equal(open_trained_model(run, ENCODER).weights[name](), exported.get_parameter(name))

    for step, seed in ((3, 2), (4, 3)):
        newest = whole(TINY, seed)
        save(run / "checkpoints", TorchState(newest, torch.optim.AdamW(newest.parameters())), step)
    start = open_trained_model(run, ENCODER)
    assert start.origin == f"{run}, step 4"
    assert start.shape == TINY
    inside = {n: p for n, p in newest.named_parameters() if n.startswith("encoder.")}
    assert start.weights.keys() == inside.keys()
    assert all(torch.equal(start.weights[n](), p) for n, p in inside.items())


def test_the_hash_is_of_all_weights(tmp_path: Path) -> None:
    hashes = []
    for number, (seed, change) in enumerate(((0, 0.0), (0, 0.0), (0, 1e-6), (1, 0.0))):
        model = whole(TINY, seed)
        model.encoder.final_norm.bias.data[7] += change
        transformers_io.save(model, tmp_path / str(number))
        hashes.append(open_trained_model(tmp_path / str(number), ENCODER).content_hash())
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3


def test_what_is_no_pretrained_encoder_is_refused(tmp_path: Path) -> None:
    other = described(tmp_path / "other", {"encoder": asdict(TINY), "heads": {}})
    partly = described(tmp_path / "partly", asdict(TINY))
    prints = {"identity": "a", "schedule": "b", "corpus": "c", "split": "d", "frozen": "0" * 64}
    for root in (other, partly):
        model = whole(TINY)
        model.encoder.embedding.weight.requires_grad_(False)
        trained = [p for p in model.parameters() if p.requires_grad]
        save(root / "checkpoints", TorchState(model, torch.optim.AdamW(trained)), 3, fingerprints=prints)
    with pytest.raises(
        ValueError, match=r"other is no pretraining run: its run.json describes .*\['encoder', 'heads'\]"
    ):
        open_trained_model(other, ENCODER)
    with pytest.raises(ValueError, match=r"lacks 1 of the encoder's 27 weights, such as 'encoder.embedding.weight'"):
        open_trained_model(partly, ENCODER)
    with pytest.raises(ValueError, match="nowhere: no transformers model can be read there"):
        open_trained_model(tmp_path / "nowhere", ENCODER)


@pytest.mark.parametrize("name", ["runs/nope", "./nope", "~/nope", "runs/own/export", "own", "lab/model.safetensors"])
def test_a_path_that_does_not_exist_is_not_asked_for_on_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "nopes").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with local_hub(tmp_path) as hub, pytest.raises(ValueError, match="there is no such folder") as refused:
        open_trained_model(name, ENCODER)
    assert not hub.faulty.requests
    assert ("; the nearest is 'runs/nopes'" in str(refused.value)) == (name == "runs/nope")


def test_a_hub_that_cannot_be_reached_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    (tmp_path / "lap" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with local_hub(tmp_path) as hub:
        pass
    with local_hub(tmp_path):
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/{revision}/{filename}")
        with pytest.raises(ValueError, match="lab/model: no transformers model can be read there") as refused:
            open_trained_model("lab/model", ENCODER)
    assert f"The Hub at {hub.url} cannot be reached: [Errno 111] Connection refused" in str(refused.value)
    assert "; the nearest is 'lap/model'; give" in str(refused.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("shape", "said", "found"),
    [
        (TINY, {"num_hidden_layers": 1}, "num_hidden_layers = 1, and there are weights of 2 layers"),
        (TINY, {"num_attention_heads": 2}, r"2 of the weights have other shapes, such as .*: \[1, 8\], not \[1, 4\]"),
        (TINY, {"hidden_size": 96, "intermediate_size": 384}, r"40 of the weights .*: \[33, 48\], not \[33, 96\]"),
        (MODERN, {"num_hidden_layers": 1}, "num_hidden_layers = 1, and there are weights of 2 layers"),
    ],
)
def test_a_configuration_of_other_weights_is_one_error(
    shape: EsmShape, said: dict, found: str, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    transformers_io.save(whole(shape), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | said))
    with pytest.raises(ValueError, match=f"^{tmp_path}: config.json and weights disagree: {found}; give the config"):
        open_trained_model(tmp_path)
    assert "LOAD REPORT" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("shape", [TINY, MODERN], ids=["ESM-2", "ESM C"])
def test_the_whole_model_and_its_encoder(tmp_path: Path, shape: EsmShape) -> None:
    model = whole(shape).train(False)
    transformers_io.save(model, tmp_path / "published")
    source = open_trained_model(tmp_path / "published")
    assert source.name == "published"
    assert sorted(source.weights) == sorted(name for name, _ in model.named_parameters())
    opened = masked_language_model(source)
    batch = pack([[document(30, 0.2, 0), document(17, 0.1, 1)]], 64)
    assert torch.equal(opened.logits(batch), model.logits(batch))
    encoder = encoder_of(open_trained_model(tmp_path / "published", ENCODER))
    assert torch.equal(encoder(batch), model.encoder(batch))
    for module in (opened, encoder):
        assert not module.training
        assert not any(parameter.requires_grad for parameter in module.parameters())


@pytest.mark.parametrize("open_", [masked_language_model, encoder_of])
def test_a_checkpoint_that_diverged_is_no_model(open_: Callable[[TrainedModel], object], tmp_path: Path) -> None:
    run, model = described(tmp_path / "run", asdict(TINY)), whole(TINY)
    model.encoder.final_norm.bias.data[3:5] = float("inf")
    save(run / "checkpoints", TorchState(model, torch.optim.AdamW(model.parameters())), 3)
    said = f"^{run}, step 3: encoder.final_norm.bias has 2 of 48 values that are NaN or infinite; the training diverged"
    with pytest.raises(ValueError, match=said):
        open_(open_trained_model(run))


def test_a_run_is_called_by_its_name_and_so_is_its_export(tmp_path: Path) -> None:
    run = described(tmp_path / "mine", asdict(TINY))
    model = whole(TINY)
    transformers_io.save(model, run / "export")
    assert open_trained_model(run).name == "mine"
    assert open_trained_model(run / "export").name == "mine"
    save(run / "checkpoints", TorchState(model, torch.optim.AdamW(model.parameters())), 3)
    source = open_trained_model(run)
    assert source.name == "mine"
    opened = masked_language_model(source)
    assert all(torch.equal(opened.get_parameter(name), parameter) for name, parameter in model.named_parameters())


def retired(run: Path, cut: str = "rows", files: int = 8) -> tuple[Path, MaskedLanguageModel]:
    """A run whose one checkpoint, of several files, is removed as soon as a source has been opened."""
    described(run, asdict(TINY))
    model = whole(TINY, 5)
    state = TorchState(model, torch.optim.AdamW(model.parameters()))
    write_cut(run / "checkpoints", StagingBuffer().stage(state), CUTS[cut], files)
    return run, model


@pytest.mark.parametrize("cut", ["rows", "partitions", "tensors"])
def test_an_open_source_reads_nothing_by_name(tmp_path: Path, cut: str) -> None:
    """Its checkpoint may be retired by a run that trains."""
    run, model = retired(tmp_path / "run", cut)
    source = open_trained_model(run)
    shutil.rmtree(run / "checkpoints")
    opened = masked_language_model(source)
    expected = {name: parameter.detach() for name, parameter in model.named_parameters()}
    assert all(torch.equal(opened.get_parameter(name), tensor) for name, tensor in expected.items())
    assert source.content_hash() == identity_by_hand(expected)


def test_a_damaged_checkpoint_gives_way_to_the_one_before_it(tmp_path: Path) -> None:
    """Damage of the moments, which nobody reads here, does not matter."""
    run, _ = retired(tmp_path / "run")
    newer = whole(TINY, 6)
    newest = save(run / "checkpoints", TorchState(newer, torch.optim.AdamW(newer.parameters())), 7)
    assert open_trained_model(run).origin == f"{run}, step 7"
    flip(newest / "model/00000.safetensors", -9)
    assert open_trained_model(run).origin == f"{run}, step 4"
    with pytest.raises(ValueError, match=r"step-000000007 is not whole: model/00000\.safetensors: sha256"):
        open_trained_model(newest)
    assert newest.exists(), "a reader moves nothing"
