"""What fine-tuning leaves goes to a hub and back: a bundle, and an adapter of peft's."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import snapshot_download

from finetune.bundle.folder import open_folder
from finetune.export.__main__ import main as export
from pretrain.export.checksums import CHECKSUMS
from pretrain.push.__main__ import main
from support.hub.client import local_hub
from support.hub.folders import contents
from support.hub.server import Hub
from zymogen.settings.json_file import as_json

pytestmark = pytest.mark.xdist_group("bundle")  # one worker makes the run
NAME = "lab/tuned"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with local_hub(tmp_path) as running:
        yield running


def test_a_bundle_is_pushed_and_opens_where_it_was_downloaded(hub: Hub, folder: Path, tmp_path: Path) -> None:
    bundle = folder / "run/bundle"
    assert main([str(bundle), NAME, "--private", "--tag", "v1"]) == 0
    repository = hub.repositories[NAME]
    assert (repository.private, repository.tags) == (True, {"v1": repository.head.oid})
    there = Path(snapshot_download(NAME, revision="v1", cache_dir=tmp_path / "cache", endpoint=hub.url))
    ours, theirs = open_folder(bundle), open_folder(there)
    assert as_json(theirs.manifest) == as_json(ours.manifest)
    assert ours.tensors.keys() == theirs.tensors.keys()
    assert all(torch.equal(tensor, theirs.tensors[name]) for name, tensor in ours.tensors.items())
    assert contents(bundle).items() <= contents(there).items()
    assert (bundle / CHECKSUMS).exists()
    assert not (there / CHECKSUMS).exists()  # they are of the folder here


def test_an_adapter_is_pushed_and_loads_in_peft(
    hub: Hub, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from peft import PeftConfig
    from peft.utils import load_peft_weights

    out = tmp_path / "adapter"
    words = [str(folder / "run"), "-o", str(out), "--adapter", "EsmModel"]
    assert (export(words), export(words)) == (0, 78)
    assert f"{out} exists; an export is written to a new folder" in capsys.readouterr().err
    assert main([str(out), NAME]) == 0
    there = snapshot_download(NAME, cache_dir=tmp_path / "cache", endpoint=hub.url)
    assert contents(out).items() <= contents(Path(there)).items()
    assert PeftConfig.from_pretrained(there).to_dict() == PeftConfig.from_pretrained(str(out)).to_dict()
    ours, theirs = load_peft_weights(str(out), device="cpu"), load_peft_weights(there, device="cpu")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.parametrize("more", [[], ["--watch"]])
def test_of_a_run_the_bundle_is_to_be_named(hub: Hub, folder: Path, capsys: pytest.CaptureFixture, more) -> None:
    assert main([str(folder / "run"), NAME, *more]) == 78
    said = f"error: {folder}/run is a fine-tuning run; when it has finished, name its bundle: {folder}/run/bundle\n"
    assert capsys.readouterr().err == said
    assert hub.faulty.requests == []
