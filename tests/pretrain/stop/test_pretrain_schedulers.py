"""The examples for schedulers: their shell is run with a scheduler's signals, and their statuses are those of classes.

Kubernetes is not here. The commands of Slurm are stand-ins, made from what the real ones do (`support.slurm`); the
script runs under a real Slurm in test_pretrain_slurm.py. Shell, launcher, processes and signals are real.
"""

import os
import shlex
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from support.launching import environment, lines, until
from support.places import ROOT
from support.slurm.stand_ins import PROBE, PROBED, STAND_INS, write_stand_ins
from zymogen.processes.exit_classes import INPUT, PEER, PREEMPTED, STORAGE
from zymogen.trainer.run.lock import RunLock
from zymogen.trainer.run.run_json import FORMAT

SLURM = ROOT / "docs/examples/slurm.sh"
KUBERNETES = ROOT / "docs/examples/kubernetes.yaml"


@pytest.mark.slow
def test_the_stand_ins_do_what_slurm_does(tmp_path: Path) -> None:
    variables = write_stand_ins(tmp_path / "slurm")
    done = subprocess.run(
        ["bash", "-c", PROBE], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=60
    )
    assert [line for line in done.stdout.splitlines() if line in PROBED] == PROBED
    assert "srun: forcing job termination" in done.stderr


@pytest.mark.prove
@pytest.mark.xdist_group("engines")
def test_slurm_requeues_a_job_that_it_stopped_and_no_other(recipe_in: Callable, tmp_path: Path) -> None:
    log, run = tmp_path / "log", tmp_path / "run"
    variables = write_stand_ins(tmp_path / "slurm") | {"SLURM_SUBMIT_DIR": str(ROOT)}
    asked = tmp_path / "slurm/asked"
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


ENDS = [
    ("stopped by SIGTERM at step 7", 75),
    pytest.param("peer", 71, marks=pytest.mark.slow),
    pytest.param("storage", 74, marks=pytest.mark.slow),
    pytest.param("finished", 0, marks=pytest.mark.slow),
]


@pytest.mark.launch
@pytest.mark.parametrize(("end", "status"), ENDS)
def test_the_container_ends_as_the_run_did(tmp_path: Path, end: str, status: int) -> None:
    with launched(tmp_path, WAITS, end) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "waits\n"
        shell.send_signal(signal.SIGTERM)
        assert shell.wait(30) == status


@pytest.mark.slow
@pytest.mark.parametrize(("end", "status"), ENDS)
def test_a_job_is_requeued_where_the_run_may_go_on(tmp_path: Path, end: str, status: int) -> None:
    with submitted(tmp_path, WAITS, end) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "waits\n"
        shell.send_signal(signal.SIGTERM)
        assert shell.wait(30) == (0 if status in (71, 75) else status)
    assert (tmp_path / "slurm/asked").exists() == (status in (71, 75))
    assert lines(tmp_path / "run/attempts.jsonl")[-1].get("exit") == end  # the launcher was asked, and not killed


@pytest.mark.launch
@pytest.mark.parametrize("start", ["launched", pytest.param("submitted", marks=pytest.mark.slow)])
def test_the_answer_of_a_run_that_is_still_ending_is_waited_for(tmp_path: Path, start: str) -> None:
    """Rank 0 of another node ends some seconds after a rank was killed, and until then the run has no status."""
    with globals()[start](tmp_path, "echo waits; exit 1", "peer") as shell:
        lock = [RunLock(tmp_path / "run")]
        until(lambda: "pretrain.inspect" in str([each.cmdline() for each in below(shell.pid)]), tmp_path / "end")
        with pytest.raises(subprocess.TimeoutExpired):
            shell.wait(4)  # it has asked by then, unless this machine is busy
        (tmp_path / "run/attempts.jsonl").open("a").write((tmp_path / "end").read_text())
        lock.clear()
        assert shell.wait(60) == (71 if start == "launched" else 0)


def below(pid: int) -> list[psutil.Process]:
    return [each for each in psutil.Process(pid).children(recursive=True) if each.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.launch
def test_a_job_that_was_cancelled_is_not_requeued(tmp_path: Path) -> None:
    """Slurm would do it, and has signalled the tasks itself: a second signal would end them before they have saved."""
    with submitted(tmp_path, f"echo $$ >slurm/task; {WAITS}", "stopped by SIGTERM at step 7") as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "waits\n"
        (tmp_path / "slurm/state").write_text("COMPLETING\n")
        shell.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            shell.wait(0.5)
        os.kill(int((tmp_path / "slurm/task").read_text()), signal.SIGTERM)
        assert shell.wait(30) == PREEMPTED.status
    assert not (tmp_path / "slurm/asked").exists()


@pytest.mark.launch
@pytest.mark.parametrize("waits", ["sleep 0.3; ", pytest.param("", marks=pytest.mark.slow)])
def test_a_job_that_is_stopped_before_its_step_runs_is_requeued(tmp_path: Path, waits: str) -> None:
    """Slurm drops a signal to a step that is not there yet."""
    late = f"#!/bin/bash\n{waits}kill -TERM $PPID; sleep 0.5\n"
    with submitted(tmp_path, "sleep 30", "not reached", srun=STAND_INS["srun"].replace("#!/bin/bash\n", late)) as shell:
        assert shell.wait(30) == 0
    assert (tmp_path / "slurm/asked").read_text().startswith("requeue ")


@pytest.mark.slow
@pytest.mark.parametrize("waits", ["", "sleep 0.002; ", "sleep 0.01; "])
def test_a_container_that_is_stopped_as_its_launcher_starts_is_preempted(tmp_path: Path, waits: str) -> None:
    """The launcher itself sends the signal, before it could tell the run of one."""
    with launched(tmp_path, f"{waits}kill -TERM $PPID; sleep 30", "not reached") as shell:
        assert shell.wait(30) == 75


WAITS = "trap 'cat end >> run/attempts.jsonl; exit 1' TERM; echo waits; while :; do sleep 0.05; done"
"""A launcher that waits for SIGTERM, when the run's end is written, and ends with 1, as launchers do."""


def launched(tmp_path: Path, launcher: str, end: str) -> subprocess.Popen[str]:
    """The container's command, with this launcher, beside a run whose next end would be `end`."""
    write_run(tmp_path, launcher, end)
    (train,) = container()["template"]["spec"]["containers"]
    script = train["args"][0].replace("/runs/esm2_650m", str(tmp_path / "run"))
    environment_there = {**environment(), "JOB_COMPLETION_INDEX": "0"}
    command = [*train["command"], script]
    return subprocess.Popen(command, cwd=tmp_path, env=environment_there, stdout=subprocess.PIPE, text=True)


def submitted(tmp_path: Path, launcher: str, end: str, **commands: str) -> subprocess.Popen[str]:
    """The same with the script for Slurm; `commands` take the place of stand-ins."""
    write_run(tmp_path, launcher, end)
    variables = write_stand_ins(tmp_path / "slurm") | {"SLURM_SUBMIT_DIR": str(tmp_path)}
    for name, text in commands.items():
        (tmp_path / "slurm" / name).write_text(text)
    (tmp_path / ".venv/bin/activate").write_text(f"PATH={tmp_path}/.venv/bin:$PATH\n")
    return subprocess.Popen(["bash", SLURM, "run", "recipe.toml"], env=variables, stdout=subprocess.PIPE, text=True)


def write_run(tmp_path: Path, launcher: str, end: str) -> None:
    """A run that has begun, an environment with this launcher, and the line of the run's next end."""
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
