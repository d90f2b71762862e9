"""Finished folders of a few kilobytes, as an export, a bundle and an adapter are."""

import hashlib
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from pretrain.export.checksums import CHECKSUMS

CARD = "---\nlibrary_name: transformers\n---\n\n# A model\n"


def write_export(folder: Path, seed: int = 0, shards: int = 2) -> Path:
    """Weights in shards, and the files around them."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(seed)
    names = [f"model-{n:05d}-of-{shards:05d}.safetensors" for n in range(1, shards + 1)]
    for number, name in enumerate(names):
        save_file({f"layer.{number}": draw.standard_normal((64, 16), np.float32)}, folder / name)
    index = {"metadata": {}, "weight_map": {f"layer.{number}": name for number, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps({"model_type": "esm", "seed": seed}))
    (folder / "README.md").write_text(f"{CARD}\nSeed {seed}.\n")
    (folder / "pictures").mkdir(exist_ok=True)
    (folder / "pictures/loss.svg").write_text("<svg/>")
    return folder


def write_bundle(folder: Path) -> Path:
    folder.mkdir(parents=True)
    save_file({"head.weight": np.ones((3, 2), np.float32)}, folder / "model.safetensors")
    (folder / "split.csv").write_text("id,part\na,train\n")
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    (folder / "bundle.json").write_text(json.dumps({"format": "zymogen.bundle/3", "files": files}))
    return folder


def write_adapter(folder: Path) -> Path:
    folder.mkdir(parents=True)
    save_file({"base_model.lora_A.weight": np.ones((3, 2), np.float32)}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Path -> bytes of each file that is pushed."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != CHECKSUMS]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
