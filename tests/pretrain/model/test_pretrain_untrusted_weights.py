"""Published weights from a folder that nobody vouches for: nothing in it is run, and a pickle is not read."""

import ast
import configparser
import json
import os
import pickle
import shlex
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from safetensors.torch import load_file, save_file

from pretrain.export.contact_head import require_writable, write
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import EsmShape
from pretrain.model.weights import io as transformers_io
from pretrain.model.weights.names import ContactHead
from pretrain.push.folder import finished_files
from support.inputs.whole_models import load
from support.places import ROOT
from support.source_tree import PACKAGES

SMALL = EsmShape(layers=2, dim=48, heads=4)


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = str(place)

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.place,)


def pickled(folder: Path) -> dict[str, torch.Tensor]:
    """A published model whose weights are in pytorch_model.bin; the weights of ours."""
    model = MaskedLanguageModel(SMALL)
    transformers_io.save(model, folder)
    file = folder / "model.safetensors"
    torch.save(load_file(file), folder / "pytorch_model.bin")
    file.unlink()
    return model.state_dict()


def test_a_pickle_is_refused_with_the_line_that_converts_it(tmp_path: Path) -> None:
    folder = tmp_path / "it's published"
    weights = pickled(folder)
    with pytest.raises(ValueError, match=r"weights are in pytorch_model\.bin, a pickle") as refused:
        load(folder)
    assert "Only if you trust where it came from" in str(refused.value)
    python, flag, program = shlex.split(str(refused.value).splitlines()[-1])
    assert (python, flag) == ("python", "-c")
    exec(program, {})  # what the shell would hand to Python
    read = load(folder).state_dict()
    assert read.keys() == weights.keys()
    assert all(torch.equal(read[name], weights[name]) for name in weights)


def test_weights_of_an_adapter_are_not_the_models(tmp_path: Path) -> None:
    pickled(tmp_path)
    save_file({"lora": torch.zeros(2)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ValueError, match=r"weights are in pytorch_model\.bin, a pickle"):
        load(tmp_path)


def test_a_hub_name_without_safetensors_says_how_to_convert_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the cache knows it after the Hub has answered; nothing is asked here, offline."""
    cache = tmp_path / "hub"
    repository, commit = cache / "models--someone--published", "0" * 40
    pickled(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="its weights cannot be read") as unknown:  # nobody has asked the Hub yet
        load("someone/published")
    assert "convert it" not in str(unknown.value)
    (repository / ".no_exist" / commit).mkdir(parents=True)
    for name in ("model.safetensors", "model.safetensors.index.json"):
        (repository / ".no_exist" / commit / name).touch()
    with pytest.raises(ValueError, match=r"someone/published: it has no weights in safetensors") as refused:
        load("someone/published")
    assert "on a machine that reaches the Hub, and set model.init to the folder published" in str(refused.value)
    exec(shlex.split(str(refused.value).splitlines()[-1])[2], {})
    assert load("published").shape == SMALL


def test_a_folder_that_brings_code_does_not_get_it_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder, ran = tmp_path / "published", tmp_path / "ran"
    weights = MaskedLanguageModel(SMALL)
    transformers_io.save(weights, folder)
    own = f"import os\nos.mkdir({str(ran)!r})\nfrom transformers import EsmConfig as Own, EsmForMaskedLM as OwnModel\n"
    (folder / "own.py").write_text(own)
    config = json.loads((folder / "config.json").read_text())
    classes = {"AutoConfig": "own.Own", "AutoModel": "own.OwnModel", "AutoModelForMaskedLM": "own.OwnModel"}
    (folder / "config.json").write_text(json.dumps({**config, "auto_map": classes}))
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(ran)))
    read = load(folder)  # a known type: its own code is passed over, and so is the pickle
    assert torch.equal(read.encoder.embedding.weight, weights.encoder.embedding.weight)
    assert not ran.exists()
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"pytorch_model\.bin, a pickle"):
        load(folder)
    assert not ran.exists()
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # transformers asks, where it is not told
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "own", "auto_map": classes}))
    with pytest.raises(ValueError, match="no transformers model can be read there") as refused:
        load(folder)
    assert not ran.exists()
    assert "Do you wish to run" not in str(refused.value) + "".join(capfd.readouterr())


OUTSIDE = ("../mine/model.safetensors", "/mine/model.safetensors", "..", "a/../../b.safetensors", "a\\b.safetensors", 7)


@pytest.mark.parametrize("name", OUTSIDE, ids=str)
def test_an_index_that_names_a_file_outside_of_its_folder_is_refused(name: object, tmp_path: Path) -> None:
    """By every reader of an index: a start of training, the contact head that is written, the push."""
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    for folder in (mine, theirs):
        transformers_io.save(MaskedLanguageModel(SMALL), folder)
    before = (mine / "model.safetensors").read_bytes()
    weights = load_file(theirs / "model.safetensors")
    (theirs / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, name)}
    (theirs / "model.safetensors.index.json").write_text(json.dumps(index))
    readers = (load, require_writable, lambda folder: write(folder, ContactHead((0.0,) * 8, 0.0), "1 chain"))
    for reader in readers:
        with pytest.raises(
            ValueError, match=r"theirs: model\.safetensors\.index\.json (names the file|cannot be read)"
        ):
            reader(theirs)
    with pytest.raises(ValueError, match="is not finished"):
        finished_files(theirs)
    assert (mine / "model.safetensors").read_bytes() == before


def test_an_adapter_beside_the_weights_is_refused_before_its_base_is_opened(tmp_path: Path) -> None:
    transformers_io.save(MaskedLanguageModel(SMALL), tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "../elsewhere"}))
    with pytest.raises(ValueError, match="it holds an adapter beside its weights; merge it"):
        load(tmp_path)


def test_no_call_leaves_it_to_transformers_whether_to_run_code() -> None:
    found = []
    for file in (file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        for call in (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Attribute) and call.func.attr == "from_pretrained":
                said = {word.arg: word.value for word in call.keywords}
                where = f"{file.relative_to(ROOT)}:{call.lineno}"
                trusted = said.get("trust_remote_code")
                assert isinstance(trusted, ast.Constant), where
                assert trusted.value is False, where
                found.append((where, "use_safetensors" in said))
    assert len(found) >= 2
    assert any(safely for _, safely in found)


def test_a_datasets_that_runs_scripts_cannot_be_installed_beside() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    needed = settings["options"]["install_requires"].strip().splitlines()
    (datasets,) = [r for r in map(Requirement, needed) if r.name == "datasets"]
    assert not datasets.specifier.contains("3.6.0")
    assert datasets.specifier.contains("5.2.0")
