"""What the user asked the launcher for, read from the launcher's own command line.

Accelerate tells a process what it became, never what was asked for: `MULTI_CPU` in a YAML starts a single process, and
FSDP without a GPU trains separate models, all with exit status 0. The launcher is an ancestor of this process, so its
command line and its YAML say what the user meant.

In: the process tree and the environment. Out: `LaunchRequest`. Kept: nothing.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import yaml

from pretrain.recipe import Recipe

_NOT_THE_YAMLS: dict[str, tuple[int | bool | str | None, Callable[[Recipe], str]]] = {
    "gradient_accumulation_steps": (1, lambda r: f"data.bins_per_step = {r.data.bins_per_step}, which decides it"),
    "gradient_clipping": (None, lambda r: f"optimizer.clip_norm = {r.optimizer.clip_norm}"),
    "fsdp_activation_checkpointing": (False, lambda r: "no such setting, and DDP has no use for it"),
    "dynamo_backend": ("NO", lambda r: f"compute.compile = {r.compute.compile!r}"),
    "parallelism_config_cp_size": (1, lambda r: "no such setting: Accelerate's turns an encoder causal"),
    "parallelism_config_sp_size": (1, lambda r: "no such setting: Accelerate's needs a decoder"),
}
"""Keys that belong to the recipe or are wrong for an encoder: the value that asks for nothing, and what the recipe has
in their place. A YAML that sets another value is refused."""


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """The launch that was asked for; None where nothing said so."""

    world_size: int | None
    distributed_type: str
    """As Accelerate names it; 'NO' without a launcher."""
    precision: str
    origin: str
    """Who asked, for messages."""
    config: dict[str, Any]
    """The launcher's YAML; empty without one."""

    def check(self, recipe: Recipe) -> None:
        """Refuse, before any process group exists, what cannot be what the user means.

        Raises:
            ValueError: an engine or precision that does not work here, or a YAML that carries the recipe's values.
        """
        if self.distributed_type not in ("NO", "MULTI_GPU", "MULTI_CPU"):
            raise ValueError(
                f"{self.origin} asks for {self.distributed_type}; this version trains in one process or with DDP: "
                "use accelerate_configs/single.yaml or accelerate_configs/ddp.yaml"
            )
        if self.precision not in ("no", "bf16", "fp16"):
            raise ValueError(
                f"{self.origin} asks for mixed_precision {self.precision}; allowed are 'no', 'bf16' and, on a GPU, "
                "'fp16': launch it with --mixed_precision bf16"
            )
        for key, value in _nested(self.config):
            neutral, in_recipe = _NOT_THE_YAMLS.get(key, (value, str))
            if value not in (None, neutral) and str(value).upper() != neutral:
                raise ValueError(
                    f"{self.origin} sets {key}: {value}, the recipe has {in_recipe(recipe)}; a YAML says how a run is "
                    f"spread, the recipe what is trained: remove {key} from the launch"
                )


def requested() -> LaunchRequest:
    """The launch that this process belongs to."""
    request = _requested()
    steps = os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")
    dynamo = os.environ.get("ACCELERATE_DYNAMO_BACKEND", "NO")
    # Beside the YAML's own value, not in its place: Accelerate divides every loss by what the flag says.
    from_flags = {"gradient_accumulation_steps": int(steps), "dynamo_backend": dynamo}
    return replace(request, config={**request.config, "environment": from_flags})


def _requested() -> LaunchRequest:
    for ancestor in psutil.Process().parents():
        try:
            arguments = _launch_arguments(ancestor.cmdline())
            folder = ancestor.cwd()
        except psutil.Error:
            continue
        if arguments is not None:
            return _from_accelerate(arguments, Path(folder))
    return _from_environment()


def _launch_arguments(command: list[str]) -> list[str] | None:
    """What follows `accelerate launch` in a command line; None if it is none."""
    for index, word in enumerate(command[:4]):
        if os.path.basename(word) == "accelerate-launch" or word == "accelerate.commands.launch":
            return command[index + 1 :]
        if os.path.basename(word) in ("accelerate", "accelerate.commands.accelerate_cli"):
            return command[index + 2 :] if command[index + 1 : index + 2] == ["launch"] else None
    return None


def _from_accelerate(arguments: list[str], folder: Path) -> LaunchRequest:
    from accelerate.commands.launch import default_config_file, launch_command_parser

    parsed = launch_command_parser().parse_args(arguments)
    config: dict[str, Any] = {}
    # Without --config_file, the launcher reads what `accelerate config` wrote, unless --cpu is given.
    file = parsed.config_file
    if file is None and not parsed.cpu and Path(default_config_file).is_file():
        file = default_config_file
    if file is not None:
        config = yaml.safe_load((folder / file).read_text()) or {}
    world_size = parsed.num_processes or config.get("num_processes")
    kind = str(config.get("distributed_type", "NO"))
    for flag, meaning in (("use_deepspeed", "DEEPSPEED"), ("use_fsdp", "FSDP"), ("multi_gpu", "MULTI_GPU")):
        kind = meaning if getattr(parsed, flag) else kind
    return LaunchRequest(
        world_size=int(world_size) if world_size is not None else None,
        distributed_type=kind,
        precision=os.environ.get("ACCELERATE_MIXED_PRECISION", "no"),
        origin=f"accelerate launch --config_file {file}" if file else "accelerate launch",
        config=config,
    )


def _from_environment() -> LaunchRequest:
    kind = "NO"
    for variable, meaning in (("ACCELERATE_USE_DEEPSPEED", "DEEPSPEED"), ("ACCELERATE_USE_FSDP", "FSDP")):
        if os.environ.get(variable, "false").lower() == "true":
            kind = meaning
    return LaunchRequest(
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
        distributed_type=kind,
        precision=os.environ.get("ACCELERATE_MIXED_PRECISION", "no"),
        origin="the environment",
        config={},
    )


def _nested(config: dict[str, Any]) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in config.items():
        pairs += _nested(value) if isinstance(value, dict) else [(key, value)]
    return pairs
