"""The first hour on a machine that is not here: every documented command, resolved for GPUs of several kinds.

A command's YAML and flags go through Accelerate's own launcher, which says what each process would see; from there on
the program's own decisions are taken, up to the first line of the run. Only what asks the machine is replaced: torch's
queries of the GPU, the finders of triton, compiler and headers, and the two tries that need a GPU to be taken.
"""

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pretrain.model import compilation, compute
from pretrain.model.attention.choice import choose
from pretrain.model.compute import configure
from pretrain.model.encoder import Encoder
from pretrain.model.presets import PRESETS
from support.launching import launch_environments
from support.pages.shown import README, commands, recipe_of
from support.places import ROOT
from zymogen.trainer.engine import launch, launch_request
from zymogen.trainer.engine.engine import Engine
from zymogen.unsupported import UnsupportedFeature

CONFIGS = sorted((ROOT / "accelerate_configs").glob("*.yaml"))
DOCUMENTED = [
    command
    for page in (README, *sorted((ROOT / "docs").glob("*.md")))
    for command in commands(page)
    if command.startswith("accelerate launch") and re.search(r"-m pretrain \S+\.toml", command)  # or none
]
EVERY_YAML = [
    f"accelerate launch --config_file accelerate_configs/{path.name} -m pretrain recipes/esm2_35m.toml"
    for path in CONFIGS
]
SOMETHING_TO_TYPE = re.compile(
    r"--mixed_precision \w+|compute\.\w+=\w+|apt-get install|pip install|accelerate_configs/"
)


def make_pretrain(*arguments: str) -> str:
    """The launch of `make pretrain`, as make would run it on a machine with one GPU."""
    # Under `make test` this make is a make's child, which prints the folder that it enters and leaves.
    dry_run = ["make", "-n", "--no-print-directory", "-o", "setup", "pretrain", *arguments]
    done = subprocess.run(dry_run, cwd=ROOT, capture_output=True, text=True, check=True)
    words = done.stdout.replace("\\\n", " ").partition("/accelerate launch ")[2].split()
    return " ".join(["accelerate launch", *words]).replace("$processes", "1")


@dataclass(frozen=True)
class Machine:
    """What the program asks of one."""

    name: str
    capability: tuple[int, int]
    gpus: int = 8
    triton: bool = True
    headers: bool = True
    compiler: bool = True
    first_step: UnsupportedFeature | None = None
    """What keeps compiled layers from working although everything is there."""

    def stand_in(self, patch: pytest.MonkeyPatch) -> None:
        """Answer for this machine."""
        choose.cache_clear()
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: self.gpus)
        patch.setattr(torch.cuda, "get_device_capability", lambda *_: self.capability)
        patch.setattr(torch.cuda, "get_device_name", lambda *_: self.name)
        patch.setattr(torch, "set_float32_matmul_precision", lambda _: None)
        patch.setattr(compilation, "find_spec", lambda _: self.triton or None)
        patch.setattr(compilation, "which", lambda _: "/usr/bin/cc" if self.compiler else None)
        patch.setattr(compilation, "has_headers", lambda: self.headers)
        patch.setattr(compute, "first_step", lambda *_: self.first_step)
        patch.delenv("CC", raising=False)


H200 = Machine("NVIDIA H200", (9, 0))
A100 = Machine("NVIDIA A100-SXM4-80GB", (8, 0))
T4 = Machine("Tesla T4", (7, 5))
V100 = Machine("Tesla V100-SXM2-16GB", (7, 0))


@dataclass(frozen=True)
class Launch:
    """A command, as the launcher understands it."""

    engine: Engine
    compute: list[str]
    """The lines with which the run would begin."""


Resolve = Callable[[str, Machine], Launch]


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolve]:
    """Takes a command as far as the first line of its run on a machine.

    Raises:
        ValueError: the program would stop there, before the corpus is opened.
    """

    def on(command: str, machine: Machine) -> Launch:
        with monkeypatch.context() as patch:
            return _resolved(command, machine, patch)

    yield on
    choose.cache_clear()


def _resolved(command: str, machine: Machine, patch: pytest.MonkeyPatch) -> Launch:
    command = re.sub(r"\$\w+", lambda name: "10.0.0.1" if "ADDRESS" in name[0] else "0", command)
    words = shlex.split(command)
    flags = words[words.index("launch") + 1 : words.index("-m")]
    asked = dict(zip(flags[::2], flags[1::2], strict=True))
    config = ROOT / asked.pop("--config_file")
    processes = launch_request._from_accelerate([*flags, "-m", "pretrain"], ROOT).world_size
    assert processes is not None
    asked.pop("--num_processes", None)
    environment = launch_environments(config, processes, [word for pair in asked.items() for word in pair])[0]
    local = processes // int(asked.get("--num_machines", 1))
    for variable, value in {**environment, "LOCAL_WORLD_SIZE": str(local)}.items():
        patch.setenv(variable, value)
    seen = launch_request._from_accelerate([*flags, "-m", "pretrain"], ROOT)  # by a process of that launch
    patch.setattr(launch_request, "_requested", lambda: seen)

    machine.stand_in(patch)
    recipe, launched = recipe_of(command), launch_request.read_launch_config()
    launched.check(recipe)
    launch._check_devices(launched, local)
    kind = launch._engine(launched)
    plugins = {} if kind is Engine else kind.plugins(1.0)
    copies = int(environment.get("PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "1"))
    accelerator: Any = SimpleNamespace(
        device=torch.device("cuda"),
        process_index=0,
        num_processes=processes,
        parallelism_config=SimpleNamespace(dp_replicate_enabled=copies > 1),
        **plugins,
    )
    patch.setattr(torch.amp, "GradScaler", lambda *_, **__: None)  # in fp16 it looks for a device
    engine = kind(accelerator, launched.precision)
    with torch.device("meta"):
        encoder = Encoder(PRESETS[recipe.model.preset or "esm2_8m"])
    how = engine.device, engine.compute_dtype, engine.compile_obstacle
    return Launch(engine, configure(encoder, recipe.compute, *how, launched=engine.launched))


def short(command: str) -> str:
    return command.replace("accelerate launch --config_file accelerate_configs/", "")[:60]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "machine"),
    [
        *((command, H200) for command in (*DOCUMENTED, *EVERY_YAML, make_pretrain())),
        *(pytest.param(command, A100, marks=pytest.mark.slow) for command in (*DOCUMENTED, make_pretrain())),
    ],
    ids=lambda value: short(value) if isinstance(value, str) else value.name,
)
def test_a_documented_command_takes_the_fast_path(command: str, machine: Machine, resolve: Resolve) -> None:
    done = resolve(command, machine)
    compiled = "not compiled" if done.engine.name == "zero3" else "compiled"
    processes = f"{done.engine.world_size} process{'es' if done.engine.world_size > 1 else ''}"
    assert done.compute[0] == (
        f"compute: {done.engine.name}, {processes}, cuda ({machine.name}), bfloat16, attention varlen, {compiled}"
    )
    others = done.compute[1:]
    assert [line for line in others if not SOMETHING_TO_TYPE.search(line)] == []
    assert [line.partition(",")[0] for line in others] == [
        *(["compile: off"] if done.engine.name == "zero3" else []),
    ]


def test_the_commands_are_those_of_the_pages() -> None:
    assert {Path(shlex.split(command)[3]).stem for command in EVERY_YAML} >= {"single", "ddp", "zero3", "hsdp"}
    assert len(DOCUMENTED) >= 6
    assert "accelerate_configs/ddp.yaml" in make_pretrain()


@pytest.mark.parametrize(
    ("command", "machine"),
    [*((command, T4) for command in (*DOCUMENTED, make_pretrain())), *((command, V100) for command in EVERY_YAML)],
    ids=lambda value: short(value) if isinstance(value, str) else value.name,
)
def test_a_gpu_without_bfloat16_stops_with_what_to_type(command: str, machine: Machine, resolve: Resolve) -> None:
    with pytest.raises(ValueError) as stopped:  # noqa: PT011 - matched below
        resolve(command, machine)
    said = str(stopped.value)
    assert re.search(rf"asks for mixed_precision bf16, and {machine.name} computes in no bfloat16", said)
    can_scale = re.search(r"configs/(single|ddp)\.yaml", command) is not None
    first = "--mixed_precision fp16, or in float32 with --mixed_precision no"
    assert said.endswith(f"launch it with {first}") == can_scale
    for precision in ("fp16", "no") if can_scale else ("no",):
        typed = command.replace(" -m pretrain", f" --mixed_precision {precision} -m pretrain").replace(
            " --mixed_precision bf16", ""
        )
        first, attention, compiled = resolve(typed, machine).compute
        name = {"fp16": "float16", "no": "float32"}[precision]
        assert first.endswith(f"cuda ({machine.name}), {name}, attention per_document, not compiled")
        assert attention.startswith(
            f"attention: not varlen, because varlen needs a GPU from Ampere on and this is {machine.name}"
        )
        assert "compute.attention=dense" in attention
        assert compiled.startswith("compile: off, because ")


@pytest.mark.parametrize(
    ("lacks", "said"),
    [
        ({"triton": False}, "compile: off, because triton is not installed; pip install triton"),
        (
            {"headers": False},
            r"compile: off, because Python's headers are not installed \(.*\); .*apt-get install python3",
        ),
        ({"compiler": False}, r"compile: off, because there is no C compiler \(gcc or clang\); .*apt-get install gcc"),
    ],
    ids=["triton", "headers", "compiler"],
)
def test_what_a_machine_lacks_for_compiling_is_said(lacks: dict[str, bool], said: str, resolve: Resolve) -> None:
    done = resolve(DOCUMENTED[0], replace(A100, **lacks))
    assert done.compute[0].endswith("bfloat16, attention varlen, not compiled")
    assert re.match(said, done.compute[1])
    assert len(done.compute) == 2


def test_a_first_step_that_fails_is_said(resolve: Resolve) -> None:
    failed = UnsupportedFeature("a first compiled step failed (CalledProcessError)", "compute.compile=off")
    assert resolve(DOCUMENTED[0], replace(A100, first_step=failed)).compute[1:] == [f"compile: off, because {failed}"]


def test_two_processes_on_one_gpu_say_how_to_start_one(resolve: Resolve) -> None:
    ddp = "accelerate launch --config_file accelerate_configs/ddp.yaml -m pretrain recipes/quickstart.toml"
    said = (
        r"2 processes were started on a machine with 1 GPU\(s\), .*; start 1 with accelerate launch --num_processes 1"
    )
    with pytest.raises(ValueError, match=said):
        resolve(ddp, replace(H200, gpus=1))
    typed = ddp.replace(" -m", " --num_processes 1 -m")
    assert resolve(typed, replace(H200, gpus=1)).compute[0].startswith("compute: single, 1 process, ")
