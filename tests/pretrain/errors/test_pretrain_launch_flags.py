"""Flags of the launcher that it would ignore, or that carry the recipe's values, are refused."""

import re
from pathlib import Path

import pytest
import yaml

from data.settings import DataSettings
from pretrain.model.settings import ModelSettings
from pretrain.recipe import Recipe
from support.places import ROOT
from zymogen.trainer.engine import launch_request
from zymogen.trainer.run.settings import RunSettings

RECIPE = Recipe(
    run=RunSettings(directory="-"), model=ModelSettings(preset="esm2_60k"), data=DataSettings(sources=("-",))
)
FLAGS = [
    ("ddp", ["--gradient_clipping", "0.1"], "sets gradient_clipping: 0.1, the recipe has optimizer.clip_norm = 1"),
    (
        "ddp",
        ["--gradient_accumulation_steps", "4"],
        "sets gradient_accumulation_steps: 4, the recipe has data.bins",
    ),
    ("fsdp2", ["--gradient_clipping", "0.1"], "sets gradient_clipping: 0.1"),
    ("ddp", ["--fsdp_activation_checkpointing", "true"], "sets fsdp_activation_checkpointing: true"),
    ("ddp", ["--parallelism_config_cp_size", "2"], "sets parallelism_config_cp_size: 2"),
    ("single", ["--dynamo_backend", "inductor"], "sets dynamo_backend: inductor"),
    (
        "ddp",
        ["--zero_stage", "3"],
        "--zero_stage 3 would be ignored: accelerate launch reads it for DEEPSPEED alone",
    ),
    ("fsdp2", ["--offload_optimizer_device", "cpu"], "--offload_optimizer_device cpu would be ignored"),
    ("zero2", ["--fsdp_reshard_after_forward", "false"], "would be ignored: accelerate launch reads it for FSDP alone"),
    ("fsdp2", ["--parallelism_config_dp_shard_size", "2"], "alone, and this is a launch of FSDP; remove it"),
]


@pytest.mark.parametrize(("name", "flags", "said"), FLAGS, ids=[f"{name} {flags[0]}" for name, flags, _ in FLAGS])
def test_flags_of_another_launch_are_refused(
    name: str, flags: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accelerate sets no variable for them, so that the launcher's own command line is all that has them."""
    monkeypatch.setenv("FSDP_VERSION", "2")
    words = ["--config_file", f"accelerate_configs/{name}.yaml", *flags, "-m", "pretrain", "r.toml"]
    with pytest.raises(ValueError, match=re.escape(said)):
        launch_request._from_accelerate(words, ROOT).check(RECIPE)


@pytest.mark.parametrize("path", sorted((ROOT / "accelerate_configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_flags_of_this_launch_pass(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_kind = {"FSDP": ["--fsdp_reshard_after_forward", "false"], "DEEPSPEED": ["--zero_stage", "1"]}
    config = yaml.safe_load(path.read_text())
    flags = of_kind.get(config["distributed_type"], [])
    if config.get("parallelism_config"):
        flags += ["--parallelism_config_dp_replicate_size", "2"]
    words = ["--config_file", str(path), "--gradient_accumulation_steps", "1", "--num_processes", "2", *flags]
    read = launch_request._from_accelerate([*words, "-m", "pretrain", "r.toml"], ROOT)
    assert set(read.config.get("flags", ())) <= {"gradient_accumulation_steps"}
