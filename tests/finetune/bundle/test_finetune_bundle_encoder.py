"""The encoder of a bundle: that of its model, with the adapters in its weights."""

from pathlib import Path

import pytest
import torch

from finetune.bundle.encoder import _of_bundle, encoder_at
from finetune.bundle.folder import open_folder
from finetune.predict.predictor import open_predictor
from pretrain.trained_model import encoder_of
from support.inputs.flat_batches import document, pack, relative

pytestmark = pytest.mark.xdist_group("bundle")  # one worker makes the run


@torch.no_grad()
def test_adapters_are_in_the_weights(folder: Path) -> None:
    bundle = open_folder(folder / "run" / "bundle")
    assert bundle.manifest.adapters is not None
    source = encoder_at(folder / "run")
    assert source.name == "run"
    theirs = open_predictor(bundle).model.encoder
    assert theirs is not None
    batch = pack([[document(30, 0.0, 0), document(17, 0.0, 1)]], 64)
    expected = theirs(batch)[:47]
    assert relative(encoder_of(source)(batch)[:47], expected) < 1e-5
    plain = {name: tensor for name, tensor in bundle.tensors.items() if "lora_B" in name}
    assert plain
    for tensor in plain.values():
        tensor.zero_()
    assert relative(encoder_of(_of_bundle(bundle, None))(batch)[:47], expected) > 1e-3


def test_several_models_are_refused(folder: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "bundle").symlink_to(folder / "run" / "bundle")
    with pytest.raises(ValueError, match=r"has 2 models; name one of them, such as .*a/bundle"):
        encoder_at(tmp_path)
