"""Starting the real program, in one process or several, and reading what it left."""

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import torch
from safetensors.torch import load_file

from support.places import ROOT, TESTS
from zymogen.processes.errors import RollbackError

DDP = ROOT / "accelerate_configs" / "ddp.yaml"
LIMIT_S = 240

IMPORTED = (
    *("accelerate", "zymogen.trainer.engine.launch", "zymogen.trainer.attempt"),
    *("pretrain.job", "pretrain.summary"),
)
"""What the program imports when it runs."""

_PREFIXES = ("ACCELERATE_", "DEEPSPEED_", "DS_", "FSDP_", "MEGATRON_LM_", "PARALLELISM_CONFIG_", "TORCHELASTIC_")
_NAMES = {f"{scope}{what}" for scope in ("", "LOCAL_", "GROUP_", "ROLE_") for what in ("RANK", "WORLD_SIZE")}
_NAMES |= {"MASTER_ADDR", "MASTER_PORT", "ROLE_NAME", "TORCH_NCCL_ASYNC_ERROR_HANDLING"}


@dataclass(frozen=True)
class Launched:
    """A program that ended."""

    status: int
    output: str
    """Standard output and error, as a terminal shows them."""

    def errors(self) -> list[str]:
        """The lines with which the program itself says what is wrong; torchrun repeats the first one at its end."""
        said = [line for line in self.output.splitlines() if line.startswith("error: ")]
        repeated = len(said) > 1 and said[-1] == said[0] and "torch.distributed.elastic" in self.output
        return said[:-1] if repeated else said


FLOAT32 = ("--mixed_precision", "no")
"""Engines, worlds and resumes are compared to the last bits; the files in `accelerate_configs/` say bf16."""


def command(arguments: Sequence[object], processes: int, config: Path = DDP, program: str = "pretrain") -> list[str]:
    """The command line that a user would type, in float32."""
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config)]
    return [*launcher, "--num_processes", str(processes), *FLOAT32, "-m", program, *map(str, arguments)]


def environment() -> dict[str, str]:
    """This environment, with one thread a process, so that a run's bits do not depend on how busy the machine is."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{ROOT}:{TESTS}"}


def fork_server() -> BaseContext:
    """Starts processes that find the program and numba imported; their server computes nothing before it forks.

    The loaders' workers come from the same server, if this is asked for first.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([*IMPORTED, "data.batches.loader", "numba"])
    return context


def exits(work: Callable[..., object], arguments: Sequence[tuple[object, ...]]) -> list[int | None]:
    """How `work` ended for each of these arguments, in a fresh process each, all at once; None: not in two minutes.

    Forked from pytest they would have what other tests left in its memory, and wait for locks that its threads held.
    """
    processes = [fork_server().Process(target=work, args=each, daemon=True) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    return [process.exitcode for process in processes]


def run(words: Sequence[str], cwd: Path = ROOT) -> Launched:
    """Run a command to its end."""
    done = subprocess.run(
        words, cwd=cwd, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S
    )
    return Launched(done.returncode, done.stdout)


def launch(arguments: Sequence[object], processes: int, **how: Any) -> Launched:
    """Launch the program to its end."""
    return run(command(arguments, processes, **how))


def with_rollbacks(main: Callable[[list[str]], int], arguments: list[str]) -> int:
    """The exit status of a command inside this process, which a rollback does not replace: it is called again."""
    while True:
        try:
            return main(arguments)
        except RollbackError:
            gc.collect()  # the lock of the run: its process would be another one


def launch_and_kill(arguments: Sequence[object], processes: int, when: Callable[[], bool], log: Path) -> None:
    """Launch the program and kill it, launcher and all ranks, with SIGKILL as soon as `when` holds."""
    with log.open("w") as output:
        launcher = subprocess.Popen(
            command(arguments, processes), cwd=ROOT, env=environment(), stdout=output, stderr=subprocess.STDOUT
        )
    deadline = time.monotonic() + LIMIT_S
    while not when():
        assert launcher.poll() is None, f"ended before it could be killed:\n{log.read_text()}"
        assert time.monotonic() < deadline, f"nothing to kill in time:\n{log.read_text()}"
        time.sleep(0.005)
    family = [psutil.Process(launcher.pid), *psutil.Process(launcher.pid).children(recursive=True)]
    for process in family:
        process.kill()
    launcher.wait()
    psutil.wait_procs(family, timeout=10)


@contextmanager
def started(words: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a session of its own, as a terminal starts it; what is left of it at the end is killed.

    Args:
        words: the command.
        log: where its output goes.
    """
    with log.open("w") as output:
        process = subprocess.Popen(
            words, cwd=ROOT, env=environment(), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    family = [psutil.Process(process.pid)]
    try:
        yield process
    finally:
        with suppress(psutil.NoSuchProcess):
            family += family[0].children(recursive=True)
        for each in family:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()


def until(holds: Callable[[], bool], log: Path, limit_s: float = LIMIT_S) -> None:
    """Wait until something holds that a process brings about, which writes to `log`."""
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, f"not in time:\n{log.read_text()}"
        time.sleep(0.005)


def launch_environments(config: Path, processes: int, flags: Sequence[str] = ()) -> list[dict[str, str]]:
    """The variables that `accelerate launch` sets for each rank.

    Raises:
        ValueError: it would start another number of processes.
    """
    from accelerate.commands import launch
    from accelerate.utils import launch as prepare
    from accelerate.utils.other import get_free_port

    words = ["--config_file", str(config), "--num_processes", str(processes), "--main_process_port", "0", *flags]
    made: dict[str, dict[str, str]] = {}

    def simple(args: Any) -> None:
        made["simple"] = prepare.prepare_simple_launcher_cmd_env(args)[1]

    def multi(args: Any) -> None:
        made["multi"] = prepare.prepare_multi_gpu_env(args)

    def deepspeed(args: Any) -> None:
        made["deepspeed"] = prepare.prepare_deepspeed_cmd_env(args)[1]

    before = {**without_launch(os.environ), "OMP_NUM_THREADS": "1"}
    with (
        mock.patch.multiple(launch, simple_launcher=simple, multi_gpu_launcher=multi, deepspeed_launcher=deepspeed),
        mock.patch.dict(os.environ, before, clear=True),
    ):
        launch.launch_command(launch.launch_command_parser().parse_args([*words, "-m", "pretrain"]))
    ((launcher, variables),) = made.items()
    # DeepSpeed's launcher puts the current folder into PYTHONPATH.
    added = {name: value for name, value in variables.items() if before.get(name) != value and name != "PYTHONPATH"}
    if launcher == "simple":
        if processes > 1:
            raise ValueError(f"{config} starts one process, not {processes}")
        return [added]
    port = get_free_port()
    return [{**added, **torchrun_variables(rank, processes, port)} for rank in range(processes)]


def torchrun_variables(rank: int, processes: int, port: int) -> dict[str, str]:
    """The variables that torchrun sets for one rank of a node."""
    ranks = dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(rank))
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(processes))
    return {
        **ranks,
        **sizes,
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


def without_launch(variables: Mapping[str, str]) -> dict[str, str]:
    """Those that no launcher has set."""
    return {k: v for k, v in variables.items() if k not in _NAMES and not k.startswith(_PREFIXES)}


def lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSON lines file, which may not be there yet."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


@dataclass(frozen=True)
class End:
    """Where a run ended: its last checkpoint."""

    step: int
    chain: str
    tokens_seen: int
    cursor: dict[str, int]
    skipped_steps: int
    tensors: dict[str, torch.Tensor]
    """Weights, and moments as ``exp_avg/...``."""


def end_of(run_dir: Path) -> End:
    """The newest checkpoint of a run."""
    newest = sorted((run_dir / "checkpoints").glob("step-*"))[-1]
    trainer = json.loads((newest / "trainer.json").read_text())
    tensors = {**whole_tensors(newest / "model"), **whole_tensors(newest / "optimizer")}
    return End(
        trainer["step"], trainer["chain"], trainer["tokens_seen"], trainer["cursor"], trainer["skipped_steps"], tensors
    )


def whole_tensors(part: Path) -> dict[str, torch.Tensor]:
    """The tensors of one part of a checkpoint, put together from its index without the code under test."""
    files = {int(path.stem): load_file(path) for path in sorted(part.glob("*.safetensors"))}
    index = json.loads((part / "index.json").read_text())["tensors"]
    wholes = {}
    for name, tensor in index.items():
        numbers = list[int]()
        for file, start, stop, first, unit in sorted(tensor["cut"], key=lambda run: run[1]):
            numbers += range(file, file + 1 - (start + first - stop) // unit)
        wholes[name] = torch.cat([files[number][name].flatten() for number in numbers]).reshape(tensor["shape"])
    return wholes


def largest_difference(a: End, b: End) -> float:
    """Largest absolute difference between the weights of two runs."""
    assert a.tensors.keys() == b.tensors.keys()
    return max(float((a.tensors[name] - b.tensors[name]).abs().max()) for name in a.tensors if "/" not in name)


def bit_equal(a: End, b: End) -> bool:
    """Whether two runs ended with the same bytes, moments included."""
    return a.tensors.keys() == b.tensors.keys() and all(torch.equal(a.tensors[n], b.tensors[n]) for n in a.tensors)
