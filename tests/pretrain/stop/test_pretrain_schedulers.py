"""The examples for schedulers: their shell is run with a scheduler's signals, and their statuses are those of classes.

Neither Slurm nor Kubernetes is here. `srun` and `scontrol` are stand-ins of a few lines; shell, launcher, processes and
signals are real.
"""

import os
import shlex
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pretrain.run.classes import INPUT, PEER, PREEMPTED, STORAGE
from pretrain.run.directory import FORMAT
from support.launching import environment, lines, until
from support.places import ROOT

SLURM = ROOT / "docs/examples/slurm.sh"
KUBERNETES = ROOT / "docs/examples/kubernetes.yaml"
SRUN = """#!/bin/bash
shift  # its option
SLURM_NODEID=0 "$@" &
task=$!
trap 'kill -TERM "$task"' TERM
until wait "$task" || ! kill -0 "$task" 2>/dev/null; do :; done
exit 1
"""
SCONTROL = """#!/bin/bash
if [[ $1 == show ]]; then echo 127.0.0.1; else echo "$@" >> "$ASKED"; fi
"""


@pytest.mark.launch
@pytest.mark.slow
@pytest.mark.xdist_group("engines")
def test_slurm_requeues_a_job_that_it_stopped_and_no_other(recipe_in: Callable, tmp_path: Path) -> None:
    for name, text in {"srun": SRUN, "scontrol": SCONTROL}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    asked, log, run = tmp_path / "asked", tmp_path / "log", tmp_path / "run"
    slurm = {"SLURM_SUBMIT_DIR": ROOT, "SLURM_JOB_NODELIST": "a", "SLURM_JOB_ID": os.getpid(), "SLURM_NNODES": 1}
    variables = {**environment(), **{name: str(value) for name, value in slurm.items()}, "SLURM_GPUS_ON_NODE": "2"}
    variables |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ASKED": str(asked)}
    job: list[object] = ["bash", SLURM, run, recipe_in(tmp_path)]

    def started(*settings: str) -> subprocess.Popen[bytes]:
        words = [str(word) for word in (*job, *settings)]
        with log.open("w") as output:
            return subprocess.Popen(words, env=variables, stdout=output, stderr=output, start_new_session=True)

    first = started()
    try:
        until(lambda: len(lines(run / "metrics.jsonl")) > 3 or first.poll() is not None, log)
        first.send_signal(signal.SIGTERM)  # to the shell alone, as `--signal=B:TERM@300` does
        assert first.wait(100) == 0, log.read_text()
    finally:
        if first.poll() is None:
            os.killpg(first.pid, signal.SIGKILL)
    assert asked.read_text() == f"requeue {os.getpid()}\n"
    _, end = lines(run / "attempts.jsonl")
    assert end["exit"].startswith("stopped by SIGTERM at step ")
    assert f"class        preempted ({PREEMPTED.status})" in log.read_text()
    assert started("model.preset=none").wait(100) == 1, log.read_text()  # before it claims the directory
    assert len(asked.read_text().splitlines()) == 1
    assert started().wait(200) == 0, log.read_text()
    assert lines(run / "attempts.jsonl")[-1]["exit"] == "finished"
    assert len(asked.read_text().splitlines()) == 1


def test_slurm_gives_more_time_than_the_run_is_told() -> None:
    text = SLURM.read_text()
    (before,) = (
        int(line.split("@")[1].split()[0]) for line in text.splitlines() if line.startswith("#SBATCH --signal")
    )
    (grace,) = (int(line.split("=")[1]) for line in text.splitlines() if line.startswith("grace="))
    assert grace < before
    assert "70 | 71 | 75) scontrol requeue" in text


def container() -> dict[str, Any]:
    _, job = yaml.safe_load_all(KUBERNETES.read_text())
    spec: dict[str, Any] = job["spec"]
    return spec


def test_kubernetes_decides_by_the_statuses_of_classes() -> None:
    job = container()
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never"  # which podFailurePolicy needs
    exits = {rule["action"]: rule["onExitCodes"]["values"] for rule in job["podFailurePolicy"]["rules"][:2]}
    assert exits == {"FailJob": [STORAGE.status, INPUT.status], "Ignore": [PEER.status, PREEMPTED.status]}
    (train,) = pod["containers"]
    (variable,) = train["env"]
    grace = int(variable["value"])
    assert f"run.grace_s={grace} &" in train["args"][0]
    assert grace < pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("stopped by SIGTERM at step 7", 75),
        pytest.param("storage", 74, marks=pytest.mark.slow),
        pytest.param("finished", 0, marks=pytest.mark.slow),
    ],
)
def test_the_container_ends_as_the_run_did(tmp_path: Path, end: str, status: int) -> None:
    """With a launcher that waits for SIGTERM, when the run's end is written, and ends with 1, as launchers do."""
    launcher = "trap 'cat end >> run/attempts.jsonl; exit 1' TERM; echo waits; while :; do sleep 0.05; done"
    with launched(tmp_path, launcher, end) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "waits\n"
        shell.send_signal(signal.SIGTERM)
        assert shell.wait(30) == status


@pytest.mark.slow
@pytest.mark.parametrize("waits", ["", "sleep 0.002; ", "sleep 0.01; "])
def test_a_container_that_is_stopped_as_its_launcher_starts_is_preempted(tmp_path: Path, waits: str) -> None:
    """The launcher itself sends the signal, before it could tell the run of one."""
    with launched(tmp_path, f"{waits}kill -TERM $PPID; sleep 30", "not reached") as shell:
        assert shell.wait(30) == 75


def launched(tmp_path: Path, launcher: str, end: str) -> subprocess.Popen[str]:
    """The container's command, with this launcher, beside a run whose next end would be `end`."""
    for name, text in {
        "accelerate": launcher,
        "python": f'exec {shlex.quote(str(ROOT / ".venv/bin/python"))} "$@"',
    }.items():
        path = tmp_path / ".venv/bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text(f'{{"format": "{FORMAT}"}}')
    begun = '{"attempt": 1, "time": "2026-01-01T00:00:00+00:00", "world_size": 2, "base_step": 0, "cause": "fresh"}\n'
    ended = f'{{"attempt": 1, "time": "2026-01-01T00:01:00+00:00", "exit": "{end}"}}\n'
    (run / "attempts.jsonl").write_text(begun)
    (tmp_path / "end").write_text(ended)
    (train,) = container()["template"]["spec"]["containers"]
    script = train["args"][0].replace("/runs/esm2_650m", str(run))
    environment_there = {**environment(), "JOB_COMPLETION_INDEX": "0"}
    command = [*train["command"], script]
    return subprocess.Popen(command, cwd=tmp_path, env=environment_there, stdout=subprocess.PIPE, text=True)
