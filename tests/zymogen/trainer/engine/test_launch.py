"""The launch: what was asked of the launcher is what trains, or the run stops before it starts."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import LoggerType

from data.settings import DataSettings
from pretrain.__main__ import main
from pretrain.model.settings import ModelSettings
from pretrain.recipe import Recipe
from support.launching import end_of, launch, lines, torchrun_variables
from zymogen.processes import launcher
from zymogen.trainer.engine import launch_request
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.engine.launch import _check
from zymogen.trainer.engine.launch_request import LaunchConfig, read_launch_config
from zymogen.trainer.engine.settings import ParallelSettings
from zymogen.trainer.optimizer.settings import OptimizerSettings
from zymogen.trainer.run.settings import RunSettings

RECIPE = Recipe(
    run=RunSettings(directory="-"), model=ModelSettings(preset="esm2_60k"), data=DataSettings(sources=("-",))
)
NOTHING_ASKED = (
    *("WORLD_SIZE", "RANK", "LOCAL_RANK", "ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_FSDP", "FSDP_VERSION"),
    *("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "ACCELERATE_DYNAMO_BACKEND"),
    *("ACCELERATE_GRADIENT_CLIPPING", "ACCELERATE_DEEPSPEED_CONFIG_FILE", "ACCELERATE_DEEPSPEED_ZERO_STAGE"),
    *(f"PARALLELISM_CONFIG_DP_{what}_SIZE" for what in ("REPLICATE", "SHARD")),
    *(f"ACCELERATE_DEEPSPEED_OFFLOAD_{what}_DEVICE" for what in ("OPTIMIZER", "PARAM")),
)


def asked(distributed_type: str = "MULTI_GPU", precision: str = "no", **config: object) -> LaunchConfig:
    return LaunchConfig(2, distributed_type, precision, "accelerate launch --config_file x.yaml", config)


@pytest.fixture
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment in which nothing was asked for."""
    for variable in NOTHING_ASKED:
        monkeypatch.delenv(variable, raising=False)
    return monkeypatch


@pytest.mark.parametrize("distributed_type", ["FSDP", "DEEPSPEED"])
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_engines_that_shard_pass(distributed_type: str, precision: str, no_launcher: pytest.MonkeyPatch) -> None:
    no_launcher.setenv("FSDP_VERSION", "2")
    asked(distributed_type, precision).check(RECIPE)


MUON = {"optimizer": OptimizerSettings(name="muon")}
ONE_BIN = {"data": replace(RECIPE.data, bins_per_step=1)}
OF_3 = {"data": replace(RECIPE.data, bin_tokens=1536), "parallel": ParallelSettings(context=3)}
FSDP2 = {"FSDP_VERSION": "2"}
COPIES = {f"PARALLELISM_CONFIG_DP_{what}_SIZE": "2" for what in ("REPLICATE", "SHARD")}
OFFLOAD = "ACCELERATE_DEEPSPEED_OFFLOAD"


@pytest.mark.parametrize(
    ("launched", "variables", "changes"),
    [
        *((("MULTI_GPU", precision), {}, {}) for precision in ("no", "bf16", "fp16")),
        *(((engine, "fp16"), {}, {}) for engine in ("NO", "MULTI_CPU")),
        (("FSDP",), FSDP2 | {"PARALLELISM_CONFIG_DP_SHARD_SIZE": "2"}, {}),
        (("FSDP",), FSDP2, MUON),
        (("DEEPSPEED",), {f"{OFFLOAD}_PARAM_DEVICE": "none"}, {}),
        (("MULTI_GPU",), {}, ONE_BIN | {"parallel": ParallelSettings(context=2)}),
    ],
)
def test_what_works_passes(
    launched: tuple[str, ...], variables: dict[str, str], changes: dict[str, Any], no_launcher: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        no_launcher.setenv(name, value)
    asked(*launched, num_processes=2, use_cpu=False).check(replace(RECIPE, **changes))


@pytest.mark.parametrize(
    ("launched", "variables", "changes", "said"),
    [
        (("TPU",), {}, {}, r"x\.yaml asks for TPU; allowed are NO, MULTI_GPU, MULTI_CPU, FSDP, DEEPSPEED: use one of"),
        (("FSDP", "fp16"), FSDP2, {}, "FSDP in mixed_precision fp16, .*--mixed_precision bf16"),
        (("DEEPSPEED", "fp16"), {}, {}, "DEEPSPEED in mixed_precision fp16, .*--mixed_precision bf16"),
        (("FSDP",), {}, {}, r"FSDP in version 1; .*accelerate_configs/fsdp2\.yaml"),
        (("FSDP",), {"FSDP_VERSION": "1"}, {}, r"FSDP in version 1; .*accelerate_configs/fsdp2\.yaml"),
        (("FSDP",), FSDP2 | COPIES, {}, "2 copies of 2 processes each, and for 2 processes; .*_shard_size must be"),
        (("DEEPSPEED",), {f"{OFFLOAD}_PARAM_DEVICE": "cpu"}, {}, r"offload to the host, .*configs/zero3\.yaml"),
        (("DEEPSPEED",), {f"{OFFLOAD}_OPTIMIZER_DEVICE": "cpu"}, {}, r"offload to the host, .*configs/zero3\.yaml"),
        (("DEEPSPEED",), {f"{OFFLOAD}_PARAM_DEVICE": "nvme"}, {}, "offload to nvme; allowed are 'none' and 'cpu'"),
        (("DEEPSPEED",), {"ACCELERATE_DEEPSPEED_ZERO_STAGE": "4"}, {}, r"zero_stage 4; allowed are 1, 2 and 3: .*ddp"),
        (("DEEPSPEED",), {}, MUON, r"asks for DEEPSPEED and optimizer\.name is 'muon', .*fsdp2\.yaml.*=adamw"),
        (("NO",), {}, OF_3, r"parallel\.context is 3, and 2 process.*start 3 with --num_processes, or"),
        (("NO",), {}, ONE_BIN, r"bins_per_step is 1, but 2 processes train: .*parallel\.context"),
        (("NO", "fp8"), {}, {}, r"x\.yaml asks for mixed_precision fp8; allowed are 'no', 'bf16' and, on a GPU"),
    ],
)
def test_what_does_not_work_is_refused(
    launched: tuple[str, ...],
    variables: dict[str, str],
    changes: dict[str, Any],
    said: str,
    no_launcher: pytest.MonkeyPatch,
) -> None:
    no_launcher.setattr(torch.cuda, "is_available", lambda: False)
    for name, value in variables.items():
        no_launcher.setenv(name, value)
    with pytest.raises(ValueError, match=said):
        asked(*launched).check(replace(RECIPE, **changes))


def test_a_tracker_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate itself would leave it out without a word."""
    recipe = replace(RECIPE, run=RunSettings(directory="-", trackers=("tensorboard", "trackio")))
    asked().check(recipe)
    monkeypatch.setattr(launch_request, "get_available_trackers", lambda: [LoggerType.TENSORBOARD, LoggerType.WANDB])
    with pytest.raises(
        ValueError, match=r"^run\.trackers names 'trackio', which is not installed: pip install trackio, "
    ):
        asked().check(recipe)


def test_without_deepspeed_zero_is_refused(no_launcher: pytest.MonkeyPatch) -> None:
    no_launcher.setattr(launch_request, "find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"deepspeed is not installed; .*pip install 'deepspeed>=0\.19\.8,<0\.20', .*fsdp2\.yaml"
    ):
        asked("DEEPSPEED").check(RECIPE)
    asked("MULTI_GPU").check(RECIPE)


def test_clipping_by_flag_is_refused(no_launcher: pytest.MonkeyPatch) -> None:
    no_launcher.setenv("ACCELERATE_GRADIENT_CLIPPING", "none")
    read_launch_config().check(RECIPE)
    no_launcher.setenv("ACCELERATE_GRADIENT_CLIPPING", "0.5")  # what --gradient_clipping 0.5 sets under DeepSpeed
    with pytest.raises(ValueError, match=r"gradient_clipping: 0\.5, the recipe has optimizer\.clip_norm = 1\.0"):
        read_launch_config().check(RECIPE)


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("parallelism_config", "cp_size"),  # without its prefix: Accelerate would ignore it
        ("fsdp_config", "fsdp_wrap"),
        ("deepspeed_config", "stage"),
    ],
)
def test_a_nested_key_that_accelerate_would_ignore_is_refused(section: str, key: str) -> None:
    with pytest.raises(ValueError, match=rf"x\.yaml sets {section}\.{key}, which is no setting of Accelerate's"):
        asked(**{section: {key: 2}}).check(RECIPE)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gradient_accumulation_steps", 4),
        ("gradient_clipping", 0.5),
        ("gradient_clipping", 1.0),  # Python's 1.0 == 1 == True
        ("fsdp_activation_checkpointing", True),
        ("parallelism_config_cp_size", 2),
        ("parallelism_config_sp_size", 2),
        ("parallelism_config_tp_size", 2),
        ("fsdp_offload_params", True),
        ("fsdp_cpu_ram_efficient_loading", True),
        ("zero3_init_flag", True),
        ("deepspeed_config_file", "zero.json"),
        ("fsdp_transformer_layer_cls_to_wrap", "EsmLayer"),
        ("fsdp_auto_wrap_policy", "NO_WRAP"),
        ("dynamo_backend", "inductor"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_a_yaml_that_carries_the_recipes_values_is_refused(key: str, value: object, nested: bool) -> None:
    config = {"mine": {key: value}} if nested else {key: value}
    with pytest.raises(ValueError, match=rf"sets {key}: {value}, the recipe has .*remove {key} from"):
        asked(**config).check(RECIPE)


def test_the_refusal_names_both_values() -> None:
    with pytest.raises(ValueError, match=r"sets gradient_clipping: 0\.5, the recipe has optimizer\.clip_norm = 1\.0;"):
        asked(gradient_clipping=0.5).check(RECIPE)


def test_values_that_ask_for_nothing_pass() -> None:
    asked(dynamo_config={"dynamo_backend": "no"}).check(RECIPE)
    asked(gradient_accumulation_steps=1, parallelism_config_cp_size=1, fsdp_activation_checkpointing=False).check(
        RECIPE
    )


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("/v/bin/python /v/bin/accelerate launch --num_processes 2 -m pretrain r.toml", "--num_processes 2"),
        ("/v/bin/python -m accelerate.commands.launch --num_processes 2 -m pretrain r.toml", "--num_processes 2"),
        ("/v/bin/python /v/bin/accelerate-launch --num_processes 2 -m pretrain r.toml", "--num_processes 2"),
        ("/v/bin/python -m accelerate.commands.accelerate_cli launch --cpu s.py", "--cpu s.py"),
        ("/v/bin/python /v/bin/torchrun --nproc_per_node 2 -m pretrain r.toml", "--nproc_per_node 2"),
        ("/v/bin/python -u -m torch.distributed.run --standalone -m pretrain r.toml", "--standalone"),
        ("/v/bin/python -m torch.distributed.launch --use-env s.py", "--use-env"),
        ("/v/bin/python -u -m deepspeed.launcher.launch --world_info=e30 s.py", "--world_info=e30"),
        ("/v/bin/python /v/bin/accelerate config", None),
        ("/v/bin/python -m pretrain r.toml", None),
        ("/bin/sh -c accelerate\xa0launch", None),  # one word, as a shell has it
        ("-bash", None),
    ],
)
def test_finds_the_launchers_own_command_line(command: str, found: str | None) -> None:
    parsed = launcher._parsed(command.split(" "))
    assert (parsed is None) == (found is None)
    if parsed is not None and found is not None:
        assert " ".join(parsed[0]).startswith(found)
        assert parsed[1].startswith("accelerate") == ("accelerate" in command)


def test_reads_the_launchers_yaml_and_flags(tmp_path: Path, no_launcher: pytest.MonkeyPatch) -> None:
    no_launcher.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    (tmp_path / "c.yaml").write_text("distributed_type: MULTI_CPU\nnum_processes: 4\nmixed_precision: bf16\n")
    read = launch_request._from_accelerate(
        ["--config_file", "c.yaml", "-m", "pretrain", "r.toml", "run.seed=1"], tmp_path
    )
    assert (read.world_size, read.distributed_type, read.precision) == (4, "MULTI_CPU", "bf16")
    assert read.config == {"distributed_type": "MULTI_CPU", "num_processes": 4, "mixed_precision": "bf16"}
    assert "--config_file c.yaml" in read.origin

    flags = ["--config_file", "c.yaml", "--num_processes", "3", "--multi_gpu", "-m", "pretrain", "r.toml"]
    read = launch_request._from_accelerate(flags, tmp_path)
    assert (read.world_size, read.distributed_type) == (3, "MULTI_GPU")


@pytest.mark.parametrize(("flag", "kind"), [("--use_fsdp", "FSDP"), ("--use_deepspeed", "DEEPSPEED")])
def test_engines_asked_for_by_flag_are_seen(tmp_path: Path, flag: str, kind: str) -> None:
    read = launch_request._from_accelerate([flag, "--num_processes", "2", "-m", "pretrain", "r.toml"], tmp_path)
    assert read.distributed_type == kind


def test_the_users_default_yaml_counts_as_asked_for(tmp_path: Path, no_launcher: pytest.MonkeyPatch) -> None:
    from accelerate.commands import launch as accelerate_launch

    default = tmp_path / "default_config.yaml"
    default.write_text("distributed_type: MULTI_CPU\nnum_processes: 2\n")
    no_launcher.setattr(accelerate_launch, "default_config_file", str(default))
    read = launch_request._from_accelerate(["-m", "pretrain", "r.toml"], tmp_path)
    assert (read.world_size, read.distributed_type) == (2, "MULTI_CPU")


def test_without_a_launcher_the_environment_speaks(no_launcher: pytest.MonkeyPatch) -> None:
    alone = read_launch_config()
    assert (alone.world_size, alone.distributed_type, alone.precision) == (1, "NO", "bf16")
    alone.check(RECIPE)
    for name, value in torchrun_variables(0, 3, 29500).items():
        no_launcher.setenv(name, value)
    no_launcher.setenv("ACCELERATE_USE_FSDP", "true")
    assert (read_launch_config().world_size, read_launch_config().distributed_type) == (3, "FSDP")


@pytest.mark.parametrize("in_yaml", ["", "gradient_accumulation_steps: 1\n"])
def test_accumulation_by_flag_is_refused(in_yaml: str, tmp_path: Path, no_launcher: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.yaml").write_text(f"distributed_type: 'NO'\n{in_yaml}")
    read = launch_request._from_accelerate(["--config_file", "c.yaml", "-m", "pretrain"], tmp_path)
    no_launcher.setattr(launch_request, "_requested", lambda: read)
    read_launch_config().check(RECIPE)
    no_launcher.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")  # what --gradient_accumulation_steps 4 sets
    with pytest.raises(ValueError, match="gradient_accumulation_steps: 4"):
        read_launch_config().check(RECIPE)


@pytest.mark.parametrize(
    ("precision", "message"),
    [
        ("fp8", "fp8; allowed are 'no', 'bf16' and, on a GPU, 'fp16': launch it with --mixed_precision bf16"),
        (
            "fp16",  # stock Accelerate trains in float32 there, without a word
            "fp16, and this run computes on a CPU, where allowed are 'no' and 'bf16'; launch it with "
            "--mixed_precision bf16, or on a GPU",
        ),
    ],
)
def test_a_refused_launch_leaves_nothing(
    recipe_in,
    tmp_path: Path,
    no_launcher: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    precision: str,
    message: str,
) -> None:
    no_launcher.setattr(torch.cuda, "is_available", lambda: False)
    no_launcher.setenv("ACCELERATE_MIXED_PRECISION", precision)
    assert main([str(recipe_in(tmp_path))]) == 78
    assert capsys.readouterr().err == f"error: the environment asks for mixed_precision {message}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]


@pytest.fixture
def computed() -> Iterator[set[tuple[bool, torch.dtype]]]:
    """(in training, dtype) of what linear layers gave."""
    seen: set[tuple[bool, torch.dtype]] = set()

    def look(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> None:
        if isinstance(module, torch.nn.Linear):
            seen.add((module.training, output.dtype))

    handle = torch.nn.modules.module.register_module_forward_hook(look)
    yield seen
    handle.remove()


@pytest.mark.slow
def test_bf16_computes_in_bf16_and_keeps_float32(
    recipe_in, tmp_path: Path, no_launcher: pytest.MonkeyPatch, computed: set[tuple[bool, torch.dtype]]
) -> None:
    def losses(name: str, precision: str) -> list[float]:
        computed.clear()
        no_launcher.setenv("ACCELERATE_MIXED_PRECISION", precision)
        for function in ("reference_logits", "require_same"):  # which compute in float32
            no_launcher.setattr(f"pretrain.export.export.{function}", lambda *_: None)
        assert main([str(recipe_in(tmp_path / name)), "schedule.total_tokens=5_000"]) == 0
        metrics = lines(tmp_path / name / "run/metrics.jsonl")
        return [line["loss"] for line in metrics if "loss" in line]

    full = losses("full", "no")
    assert computed == {(True, torch.float32), (False, torch.float32)}
    half = losses("half", "bf16")
    assert computed == {(True, torch.bfloat16), (False, torch.bfloat16)}
    assert len(full) == len(half) == 7
    assert all(a != b and abs(a - b) < 0.05 for a, b in zip(full, half, strict=True))
    assert half[-1] < half[0] - 0.1
    tensors = end_of(tmp_path / "half/run").tensors
    assert {str(tensor.dtype) for tensor in tensors.values()} == {"torch.float32"}
    assert any((tensor != tensor.bfloat16().float()).any() for tensor in tensors.values())
    (manifest,) = (tmp_path / "half/run/checkpoints").glob("step-*/manifest.json")
    assert json.loads(manifest.read_text())["precision"] == "bf16"


@pytest.mark.parametrize("kind", ["MULTI_CPU", "MULTI_GPU"])
def test_fewer_processes_than_were_asked_for_are_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=rf"^2 processes were asked for .*, but 1 train together: .* {kind}, as it is"):
        _check(asked(kind), Engine, Accelerator(cpu=True))


@pytest.mark.launch
def test_multi_cpu_would_train_alone_and_is_stopped(recipe_in, tmp_path: Path) -> None:
    config = tmp_path / "multi_cpu.yaml"
    config.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\n"
    )
    done = launch([recipe_in(tmp_path)], 2, config=config)
    assert done.status != 0
    (error,) = done.errors()
    assert error.startswith("error: 2 processes were asked for (accelerate launch --config_file")
    assert "but 1 train together: distributed_type MULTI_CPU" in error
    assert not (tmp_path / "run").exists()
