"""The example for Slurm under a real Slurm of one node, with processes on the CPU in the place of GPUs.

The script is the shipped one: `sbatch` is told fewer nodes, GPUs and cores on its command line.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from support.launching import lines, until
from support.places import ROOT
from support.slurm import one_node as slurm
from support.slurm.one_node import Slurm
from support.slurm.stand_ins import PROBE, PROBED

pytestmark = [
    pytest.mark.launch,
    pytest.mark.slow,
    pytest.mark.xdist_group("engines"),
    pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing()),
]
SCRIPT = ROOT / "docs/examples/slurm.sh"


@pytest.fixture(scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm.one_node(tmp_path_factory.mktemp("slurm")) as started:
        yield started


def test_srun_and_scancel_do_what_their_stand_ins_do(one_node: Slurm, tmp_path: Path) -> None:
    script, log = tmp_path / "probe.sh", tmp_path / "log"
    script.write_text(PROBE)
    one_node.submit(log, f"--chdir={tmp_path}", script)
    until(lambda: log.exists() and PROBED[-1] in log.read_text(), log)
    assert [line for line in log.read_text().splitlines() if line in PROBED] == PROBED
    assert "srun: forcing job termination" in log.read_text()


@pytest.mark.timeout(600)
def test_a_job_is_stopped_requeued_saved_and_cancelled(
    one_node: Slurm, recipe_in: Callable[[Path], Path], tmp_path: Path
) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    size = ["--nodes=1", "--gpus-per-node=2", "--cpus-per-task=2", "--time=30"]
    settings = ["schedule.total_tokens=400_000_000", "run.checkpoint_every=100_000", "data.workers=1"]
    job = one_node.submit(log, *size, SCRIPT, run, recipe_in(tmp_path), *settings)

    def at(step: int, attempt: int) -> None:
        until(lambda: any(line["step"] >= step and line["attempt"] == attempt for line in metrics()), log)

    def metrics() -> list[dict[str, int]]:
        return lines(run / "metrics.jsonl")

    def ends() -> list[str]:
        return [line["exit"] for line in lines(run / "attempts.jsonl") if "exit" in line]

    # The time limit is near: --signal=B:TERM@300.
    at(4, attempt=1)
    one_node.run("scontrol", "update", f"JobId={job}", "TimeLimit=5")
    until(lambda: bool(ends()), log)
    (saved,) = (int(re.fullmatch(r"stopped by SIGTERM at step (\d+)", end)[1]) for end in ends())  # type: ignore[index]
    assert (run / f"checkpoints/step-{saved:09d}").is_dir()
    # It is requeued when its credential has expired, and goes on.
    one_node.run("scontrol", "update", f"JobId={job}", "TimeLimit=30")
    at(saved + 2, attempt=2)
    assert [line["base_step"] for line in lines(run / "attempts.jsonl") if "cause" in line] == [0, saved]
    pid = [line["pid"] for line in lines(run / "attempts.jsonl") if "cause" in line][-1]
    assert len(psutil.Process(pid).cpu_affinity() or ()) == 2  # SRUN_CPUS_PER_TASK
    # Every process of the job is told to save.
    one_node.run("scancel", "--signal=USR1", job)
    until(lambda: any("checkpoint_s" in line and line["attempt"] == 2 for line in metrics()), log)
    (asked,) = (line["step"] for line in metrics() if "checkpoint_s" in line and line["attempt"] == 2)
    at(asked + 2, attempt=2)
    # Cancelled, it ends in order where srun is not signalled, as under cgroups, or is killed; it is not requeued.
    one_node.run("scancel", job)
    until(lambda: one_node.job(job)["JobState"] == "CANCELLED", log)
    assert one_node.job(job)["Restarts"] == "1"
    assert not one_node.run("squeue", "--noheader")
    assert len(ends()) in (1, 2)
    assert "error" not in ends()
