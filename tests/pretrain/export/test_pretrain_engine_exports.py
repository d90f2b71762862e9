"""Exports of runs under each engine: in a process without this project they give the logits of what was trained."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from data.alphabet import TOKENS
from data.batches.batch import IGNORED
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import PRESETS
from support.inputs.flat_batches import pack, relative
from support.inputs.foreign_process import loaded_elsewhere
from support.kept_runs import Trained

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("engines")]

LETTERS = [*"MKTAYIAKQRQIS", "<mask>", *"VKSHF"]


@pytest.mark.parametrize(
    ("engine", "processes"),
    [
        pytest.param("ddp", 2, marks=pytest.mark.prove),
        ("fsdp2", 2),
        *(pytest.param(e, 2, marks=pytest.mark.prove) for e in ("zero1", "zero2", "zero3")),
    ],
)
def test_another_process_computes_the_logits_of_what_was_trained(
    trained: Trained, engine: str, processes: int, tmp_path: Path
) -> None:
    ended = trained(engine, processes)
    folder = shutil.copytree(ended.folder / "run/export", tmp_path / "export")
    said = loaded_elsewhere(folder, "".join(LETTERS))
    model = MaskedLanguageModel(PRESETS["esm2_60k"]).eval()
    model.load_state_dict({name: tensor for name, tensor in ended.end.tensors.items() if not name.startswith("exp_")})
    ids = [0, *(TOKENS.index(letter) for letter in LETTERS), 2]
    assert said["ids"] == ids
    batch = pack([[(ids, [IGNORED] * len(ids))]], num_slots=len(ids))
    with torch.no_grad():
        logits = model.logits(batch)
    assert relative(torch.from_numpy(np.load(folder / "logits.npy")), logits) <= 1e-5
