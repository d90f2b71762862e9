"""Finished runs without a training: a corpus, run.json and checkpoints, as commands that score models read them."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from data.corpus.prepare import open_corpora, prepare_corpora
from data.settings import DataSettings
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import EsmShape
from support.checkpoint_run import save
from support.inputs.flat_batches import perturb
from zymogen.trainer.engine.named_state import TorchState
from zymogen.trainer.run.run_json import FORMAT

SHAPE = EsmShape(layers=1, dim=24, heads=2)


def settings_of(files: tuple[Path, Path], folder: Path) -> DataSettings:
    """Those of a small corpus, of which some families are held out."""
    fasta, clusters = map(str, files)
    return DataSettings(
        sources=(fasta,),
        clusters=clusters,
        store_dir=str(folder / "stores"),
        validation_fraction=0.15,
        crop_tokens=60,
        bin_tokens=128,
    )


def finished_run(root: Path, settings: DataSettings, models: Sequence[MaskedLanguageModel], shape: EsmShape) -> Path:
    """A run whose checkpoints of the steps 1, 2, ... hold these models."""
    corpora = open_corpora(settings, prepare_corpora(settings))
    recipe = {"data": json.loads(json.dumps(asdict(settings))), "run": {"validation_sequences": 2000}}
    corpus = corpora.description() | {"held_out": "clusters"}
    root.mkdir()
    content = {"format": FORMAT, "recipe": recipe, "model": asdict(shape), "corpus": corpus}
    (root / "run.json").write_text(json.dumps(content))
    for step, model in enumerate(models, 1):
        save(root / "checkpoints", TorchState(model, torch.optim.AdamW(model.parameters())), step)
    return root


def model_of(shape: EsmShape = SHAPE, seed: int = 0) -> MaskedLanguageModel:
    """A model whose every parameter has a part in its logits."""
    model = MaskedLanguageModel(shape).eval()
    perturb(model, seed)
    return model
