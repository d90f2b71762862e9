"""A real Slurm of one node on this machine, whose jobs and daemons end with the test."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from support.launching import environment
from support.places import ROOT

_CONFIGURATION = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1
ReturnToService=2
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
KillWait=5
PropagatePrioProcess=1
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} Gres=gpu:2 CpuBind=core State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
"""A requeued job waits for as long as credentials live (Slurm takes 5 s or more; told less, it takes 120 s and
says so in its log alone). A step is bound to the cores that it asks for. A job is as nice as its `sbatch`."""


def missing() -> str:
    """Why no Slurm can be started here; empty if one can."""
    lacks = [name for name in ("slurmctld", "slurmd", "sbatch", "munged") if shutil.which(name) is None]
    if lacks:
        return f"{', '.join(lacks)} not installed: apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "slurmd is root's"


class Slurm:
    """The commands of a Slurm that runs.

    Args:
        folder: of its files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {**environment(), "SLURM_CONF": str(folder / "slurm.conf")}

    def run(self, *words: object) -> str:
        """The output of a command of Slurm's."""
        done = subprocess.run(
            list(map(str, words)), env=self._environment, cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout.strip()

    def submit(self, log: Path, *words: object) -> str:
        """Submit a job that leaves the cores to others; its number."""
        return self.run("nice", "-n", "19", "sbatch", "--parsable", f"--output={log}", *words)

    def job(self, number: str) -> dict[str, str]:
        """What `scontrol` shows of a job, such as JobState and Restarts."""
        words = self.run("scontrol", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)


@contextmanager
def one_node(folder: Path) -> Iterator[Slurm]:
    """A Slurm of this machine alone, with two GPUs that are none; its jobs and daemons end with the context."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o400)
    (folder / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
    names = {"host": socket.gethostname().split(".")[0], "user": getpass.getuser(), "cores": os.cpu_count()}
    configuration = _CONFIGURATION.format(folder=folder, ports=(_free_port(), _free_port()), **names)
    (folder / "slurm.conf").write_text(configuration)
    slurm, daemons = Slurm(folder), []
    files = [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "seed", "log")]
    munge = ["munged", "-F", "--force", f"--socket={folder}/munge.socket", f"--key-file={folder}/key", *files]
    try:
        daemons.append(_started(munge, folder))
        _until((folder / "munge.socket").exists)
        daemons += [_started([name, "-D", "-f", f"{folder}/slurm.conf"], folder) for name in ("slurmctld", "slurmd")]
        _until(lambda: "idle" in _quiet(slurm, "sinfo", "--noheader", "--format=%T"))
        yield slurm
    finally:
        _quiet(slurm, "scancel", "--full", "--signal=KILL", f"--user={names['user']}")
        _quiet(slurm, "scancel", f"--user={names['user']}")
        with suppress(AssertionError):
            _until(lambda: _quiet(slurm, "squeue", "--noheader") == "")
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        _end_steps(folder)


def _started(words: Sequence[str], folder: Path) -> "subprocess.Popen[bytes]":
    with (folder / f"{words[0]}.output").open("w") as output:
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )


def _end_steps(folder: Path) -> None:
    """End what serves a step of this Slurm and has outlived it."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.name() == "slurmstepd" and str(folder) in " ".join(process.environ().values()):
                process.send_signal(signal.SIGKILL)


def _quiet(slurm: Slurm, *words: str) -> str:
    with suppress(AssertionError, subprocess.TimeoutExpired):
        return slurm.run(*words)
    return "?"


def _until(holds: Callable[[], bool], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "Slurm does not answer"
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
