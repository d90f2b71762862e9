"""What the user asked the launcher for, read from the launcher's own command line.

Accelerate tells a process how it was set up, never what was asked for: `MULTI_CPU` in a YAML starts one process, and
FSDP without a GPU trains separate models, all with exit status 0. The launcher is an ancestor of this process, so its
command line and its YAML say what the user meant.

In: the process tree and the environment. Out: `LaunchConfig`. Kept: nothing.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import yaml
from accelerate.tracking import get_available_trackers

from data.batches.loader import require_enough_bins
from zymogen.processes.launcher import launched_world, launches
from zymogen.trainer.engine.ranks import require_divides
from zymogen.trainer.engine.settings import PRECISION, LaunchSettings
from zymogen.trainer.optimizer.kinds import optimizer_kind
from zymogen.trainer.run.console_numbers import console_numbers

_NOT_THE_YAMLS: dict[str, tuple[int | bool | str | None, Callable[[LaunchSettings], str]]] = {
    "gradient_accumulation_steps": (1, lambda r: f"data.bins_per_step = {r.data.bins_per_step}, which decides it"),
    "gradient_clipping": (None, lambda r: f"optimizer.clip_norm = {r.optimizer.clip_norm}"),
    "activation_checkpointing": (False, lambda r: f"compute.checkpointing = {r.compute.checkpointing!r}"),
    "activation_checkpointing_offload": (False, lambda r: f"compute.checkpointing = {r.compute.checkpointing!r}"),
    "dynamo_backend": ("NO", lambda r: f"compute.compile = {r.compute.compile!r}"),
    "cp_size": (1, lambda r: f"parallel.context = {r.parallel.context}; Accelerate's turns an encoder causal"),
    "sp_size": (1, lambda r: f"parallel.context = {r.parallel.context}; Accelerate's needs a decoder"),
    "tp_size": (1, lambda r: "no such setting: no layer is cut inside, parallel.context shares its heads"),
    "offload_params": (False, lambda r: "no such setting: accelerate_configs/zero3_offload.yaml does that"),
    "cpu_ram_efficient_loading": (False, lambda r: "no such setting: every process draws or reads its own part"),
    "zero3_init_flag": (False, lambda r: "no such setting: every process draws or reads its own part"),
    "auto_wrap_policy": ("TRANSFORMER_BASED_WRAP", lambda r: "a model whose layers are always what is gathered"),
    "transformer_layer_cls_to_wrap": ("Layer", lambda r: "a model whose layers are always what is gathered"),
    "deepspeed_config_file": (None, lambda r: "all that such a file would hold; zero_stage and offload go in the YAML"),
}
"""Keys that belong to the recipe or are wrong for an encoder, without the prefixes that Accelerate allows: the value
that asks for nothing, and what the recipe has in their place. A launch that sets another value is refused."""

ALONE = "a start without a launcher"
"""`LaunchConfig.origin` where neither a launcher nor the environment asked for a precision."""

_OF_A_LAUNCH = {
    **{"DeepSpeed Arguments": "DEEPSPEED", "FSDP Arguments": "FSDP", "Megatron-LM Arguments": "MEGATRON_LM"},
    **{"TPU": "TPU", "FP8 Arguments": "FP8", "ParallelismConfig Arguments": "parallelism_config"},
}
"""Groups of the launcher's flags, by their titles, with the launch or the section of a YAML without which it ignores
them."""

_FROM_FLAGS = {
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "gradient_accumulation_steps",
    "ACCELERATE_GRADIENT_CLIPPING": "gradient_clipping",
    "ACCELERATE_DEEPSPEED_CONFIG_FILE": "deepspeed_config_file",
    "ACCELERATE_DYNAMO_BACKEND": "dynamo_backend",
    "FSDP_ACTIVATION_CHECKPOINTING": "fsdp_activation_checkpointing",
    "FSDP_OFFLOAD_PARAMS": "fsdp_offload_params",
    "PARALLELISM_CONFIG_CP_SIZE": "parallelism_config_cp_size",
    "PARALLELISM_CONFIG_SP_SIZE": "parallelism_config_sp_size",
    "PARALLELISM_CONFIG_TP_SIZE": "parallelism_config_tp_size",
}
"""Variables with which the launcher tells a process what its flags said."""


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """The launch that was asked for; None for what is not known."""

    world_size: int | None
    distributed_type: str
    """The name that Accelerate uses; 'NO' without a launcher."""
    precision: str
    origin: str
    """Who asked, for messages."""
    config: dict[str, Any]
    """The launcher's YAML; empty without one."""

    def check(self, recipe: LaunchSettings) -> None:
        """Refuse, before any process group exists, what cannot be what the user means.

        Raises:
            ValueError: an engine or precision that does not work here, or a YAML that carries the recipe's values.
        """
        if self.distributed_type not in ENGINES:
            raise ValueError(
                f"{self.origin} asks for {self.distributed_type}; allowed are {', '.join(ENGINES)}: "
                "use one of the files in accelerate_configs/; its README.md says which"
            )
        self._check_sharded()
        if self.precision not in ("no", "bf16", "fp16"):
            raise ValueError(
                f"{self.origin} asks for mixed_precision {self.precision}; allowed are 'no', 'bf16' and, on a GPU, "
                "'fp16': launch it with --mixed_precision bf16"
            )
        for tracker in recipe.run.trackers:
            if tracker not in map(str, get_available_trackers()):  # Accelerate would leave it out without a word
                raise ValueError(
                    f"run.trackers names {tracker!r}, which is not installed: pip install {tracker}, or take it out"
                )
        for key in unknown_keys(self.config):
            raise ValueError(
                f"{self.origin} sets {key}, which is no setting of Accelerate's; it would be ignored: "
                "correct or remove it (accelerate launch --help lists them)"
            )
        for key, value in _nested(self.config):
            neutral, in_recipe = _NOT_THE_YAMLS.get(_plain(key), (value, str))
            if value not in (None, neutral) and str(value).upper() != str(neutral).upper():
                of_it = (name for name, flag in _FROM_FLAGS.items() if flag == key and name in os.environ)
                unset = "".join(f", and unset {name} if it is set without a launcher" for name in of_it)
                raise ValueError(
                    f"{self.origin} sets {key}: {value}, the recipe has {in_recipe(recipe)}; a YAML says how a run is "
                    f"spread, the recipe what is trained: remove {key} from the launch{unset}"
                )
        if self.world_size is not None:
            require_divides(recipe.parallel.context, self.world_size)
            require_enough_bins(recipe.data.bins_per_step, self.world_size // recipe.parallel.context)
        console_numbers(recipe.run.console)
        name, kind = recipe.optimizer.name, optimizer_kind(recipe.optimizer)
        if self.distributed_type == "DEEPSPEED" and kind.needs_whole_matrices:
            raise ValueError(
                f"{self.origin} asks for DEEPSPEED and optimizer.name is {name!r}, which needs whole matrices, and "
                "ZeRO flattens them; use accelerate_configs/fsdp2.yaml, which shards as ZeRO-3 does, or "
                "optimizer.name=adamw"
            )

    def _check_sharded(self) -> None:
        if self.distributed_type not in ("FSDP", "DEEPSPEED"):
            return
        if self.precision == "fp16":
            raise ValueError(
                f"{self.origin} asks for {self.distributed_type} in mixed_precision fp16, whose loss scaler is for one "
                "process and DDP; launch it with --mixed_precision bf16, or with accelerate_configs/ddp.yaml"
            )
        version = os.environ.get("FSDP_VERSION", "1")
        if self.distributed_type == "FSDP" and version != "2":
            raise ValueError(
                f"{self.origin} asks for FSDP in version {version}; only version 2 keeps parameters by name: use "
                "accelerate_configs/fsdp2.yaml, or set fsdp_config.fsdp_version: 2"
            )
        if self.distributed_type == "FSDP":
            self._check_mesh()
        else:
            self._check_zero()

    def _check_mesh(self) -> None:
        copies, shards = (int(os.environ.get(f"PARALLELISM_CONFIG_DP_{x}_SIZE", "1")) for x in ("REPLICATE", "SHARD"))
        if copies * shards > 1 and self.world_size is not None and copies * shards != self.world_size:
            raise ValueError(
                f"{self.origin} asks for {copies} copies of {shards} processes each, and for {self.world_size} "
                "processes; give numbers that agree: --parallelism_config_dp_replicate_size (copies) times "
                "--parallelism_config_dp_shard_size must be --num_processes"
            )

    def _check_zero(self) -> None:
        if find_spec("deepspeed") is None:
            raise ValueError(
                f"{self.origin} asks for DEEPSPEED, and deepspeed is not installed; install it with pip install "
                "'deepspeed>=0.19.8,<0.20', or use accelerate_configs/fsdp2.yaml, which needs nothing but torch"
            )
        stage = os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2")
        if stage not in ("1", "2", "3"):
            raise ValueError(
                f"{self.origin} asks for DeepSpeed with zero_stage {stage}; allowed are 1, 2 and 3: without any, "
                "accelerate_configs/ddp.yaml does the same"
            )
        offloads = {os.environ.get(f"ACCELERATE_DEEPSPEED_OFFLOAD_{what}_DEVICE") for what in ("OPTIMIZER", "PARAM")}
        offloads -= {None, "none"}
        if offloads - {"cpu"}:
            raise ValueError(
                f"{self.origin} asks for offload to {', '.join(map(str, offloads))}; allowed are 'none' and 'cpu', "
                "because checkpoints read what is offloaded from memory: use accelerate_configs/zero3_offload.yaml"
            )
        if offloads and not torch.cuda.is_available():
            raise ValueError(
                f"{self.origin} asks for offload to the host, and this run computes there already; use "
                "accelerate_configs/zero3.yaml, or a machine with GPUs"
            )


ENGINES = ("NO", "MULTI_GPU", "MULTI_CPU", "FSDP", "DEEPSPEED")
"""What this program trains with, as Accelerate names it; MULTI_CPU stands for several processes without a launcher."""


def read_launch_config() -> LaunchConfig:
    """The launch that this process belongs to."""
    request = _requested()
    # In addition to the YAML's own values, because both are checked; Accelerate follows the flags.
    from_flags = {key: os.environ[variable] for variable, key in _FROM_FLAGS.items() if variable in os.environ}
    return replace(request, config={**request.config, "environment": from_flags})


def _requested() -> LaunchConfig:
    launcher = next((each for each in launches() if each.name.startswith("accelerate")), None)
    return _from_accelerate(launcher.arguments, Path(launcher.process.cwd())) if launcher else _from_environment()


def _from_accelerate(arguments: list[str], folder: Path) -> LaunchConfig:
    from accelerate.commands.launch import default_config_file, launch_command_parser

    parser = launch_command_parser()
    parsed, unset = parser.parse_args(arguments), parser.parse_args(["script"])
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
    given = {key: value for key, value in vars(parsed).items() if value != getattr(unset, key)}
    of_recipe = {key: value for key, value in given.items() if _plain(key) in _NOT_THE_YAMLS}
    config |= {"flags": of_recipe} if of_recipe else {}
    has_mesh = parsed.use_parallelism_config or config.get("parallelism_config")
    for group in parser._action_groups:
        needs, of_group = _OF_A_LAUNCH.get(str(group.title), kind), {each.dest for each in group._group_actions}
        ignored = sorted(of_group & given.keys() - of_recipe.keys())
        if ignored and needs not in (kind, has_mesh and "parallelism_config"):
            raise ValueError(
                f"--{ignored[0]} {given[ignored[0]]} would be ignored: accelerate launch reads it for {needs} alone, "
                f"and this is a launch of {kind}; remove it, or use the file of accelerate_configs/ that has {needs}"
            )
    return LaunchConfig(
        world_size=int(world_size) if world_size is not None else None,
        distributed_type=kind,
        precision=os.environ.get("ACCELERATE_MIXED_PRECISION", "no"),
        origin=f"accelerate launch --config_file {file}" if file else "accelerate launch",
        config=config,
    )


def _from_environment() -> LaunchConfig:
    """What another launcher's variables ask for; without any, the one process of `accelerate_configs/single.yaml`."""
    kind = "NO"
    for variable, meaning in (("ACCELERATE_USE_DEEPSPEED", "DEEPSPEED"), ("ACCELERATE_USE_FSDP", "FSDP")):
        if os.environ.get(variable, "false").lower() == "true":
            kind = meaning
    return LaunchConfig(
        world_size=launched_world().world_size,
        distributed_type=kind,
        precision=os.environ.get("ACCELERATE_MIXED_PRECISION", PRECISION),
        origin="the environment" if "ACCELERATE_MIXED_PRECISION" in os.environ else ALONE,
        config={},
    )


def _plain(key: str) -> str:
    """A key without the prefix that Accelerate gives it in flags."""
    return key.removeprefix("fsdp_").removeprefix("parallelism_config_")


def _nested(config: dict[str, Any]) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in config.items():
        pairs += _nested(value) if isinstance(value, dict) else [(key, value)]
    return pairs


def unknown_keys(config: Mapping[str, Any]) -> list[str]:
    """Keys of a launcher's YAML that Accelerate has no setting for.

    Accelerate itself refuses unknown keys at the top level; those of a section become attributes that nothing reads.
    """
    from accelerate.commands.launch import launch_command_parser

    groups = {g.title: {a.dest for a in g._group_actions} for g in launch_command_parser()._action_groups}
    unknown = []
    for section, (title, prefix) in _SECTIONS.items():
        for key in config.get(section) or {}:
            dest = key if key.startswith(prefix) else prefix + key
            if dest not in groups[title] and not (section == "mpirun_config" and key == "quiet"):
                unknown.append(f"{section}.{key}")
    return unknown


_SECTIONS = {
    "deepspeed_config": ("DeepSpeed Arguments", ""),
    "fsdp_config": ("FSDP Arguments", "fsdp_"),
    "fp8_config": ("FP8 Arguments", "fp8_"),
    "dynamo_config": ("Resource Selection Arguments", "dynamo_"),
    "parallelism_config": ("ParallelismConfig Arguments", ""),
    "megatron_lm_config": ("Megatron-LM Arguments", ""),
    "mpirun_config": ("MPI Arguments", ""),
}
"""Sections of the launcher's YAML: title of their flags, and the prefix that a key there may leave out."""
