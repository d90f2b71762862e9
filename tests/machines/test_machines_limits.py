"""What a machine, container or batch system lets a process write and use: folders, sockets, cores, memory, streams."""

from pathlib import Path

from data.homology import mmseqs
from support.launching import Launched
from support.other_machines import Row, no_cgroups, no_mounts, table
from zymogen.processes.exit_classes import ERROR, class_of

BUILD = ("-m", "data", "build", "ok.fasta", "--store-dir", "s")
PLAN = ("-m", "pretrain", "ok.fasta", "--plan", "--untimed", "--hours", "100")
READ_ONLY = 'mount --bind $ROOT $ROOT; mount -o remount,bind,ro $ROOT; cd $FOLDER; HOME=/sys exec "$@"'
WITHOUT_HOME = f"unshare -m bash -c '{READ_ONLY}' bash \"$@\""
CGROUP = """
above=/sys/fs/cgroup/memory/zymogen-$$ own=/sys/fs/cgroup/memory/zymogen-$$/own cpu=/sys/fs/cgroup/cpu/zymogen-$$
mkdir $above $own $cpu; echo 1258291200 > $above/memory.limit_in_bytes; echo 100000 > $cpu/cpu.cfs_quota_us
(echo $BASHPID > $own/cgroup.procs; echo $BASHPID > $cpu/cgroup.procs; exec "$@"); status=$?
for try in 1 2 3 4 5 6 7 8 9; do rmdir $own $above $cpu 2> /dev/null; [[ -e $cpu ]] || break; sleep 0.2; done
exit $status
"""
SOCKETS = """
import multiprocessing, os, tempfile
from zymogen.processes.environment import use_short_sockets
if __name__ == "__main__":
    use_short_sockets()
    process = multiprocessing.get_context("forkserver").Process(target=os._exit, args=(7,))
    process.start()
    process.join()
    print("ended with", process.exitcode, "temporary files still in", tempfile.gettempdir())
"""
THREADS = """
from zymogen.command_line.command import importing_torch
with importing_torch():
    import torch
print("threads", torch.get_num_threads())
"""
LONG = "x" * 90


def _others_scratch(folder: Path) -> None:
    (folder / "zymogen-0").mkdir()
    (folder / "zymogen-0").chmod(0o777)


def _has_cache(folder: Path, ended: Launched) -> None:
    assert list((folder / "tmp" / "zymogen-0").rglob("*.nbi"))
    assert (folder / "tmp" / "zymogen-0").stat().st_mode & 0o777 == 0o700


def _has_another_cache(folder: Path, ended: Launched) -> None:
    assert not list((folder / "zymogen-0").rglob("*"))
    assert list((folder / "zymogen-0-2").rglob("*.nbi"))


def _require_no_store(folder: Path) -> None:
    assert not (folder / "stores").exists()


ROWS = [
    Row(
        fault=1,
        situation="TMPDIR longer than the path of a socket",
        prepare=lambda folder: [(folder / LONG).mkdir(), (folder / "sockets.py").write_text(SOCKETS)],
        environment={"TMPDIR": "{folder}/" + LONG},
        words=("sockets.py",),
        says=(rf"ended with 7 temporary files still in \S+/{LONG}\n",),
    ),
    Row(
        fault=1,
        situation="run with workers and a long TMPDIR",
        slow=True,
        prepare=lambda folder: (folder / LONG).mkdir(),
        environment={"TMPDIR": "{folder}/" + LONG},
        words=("-m", "pretrain", "tiny.toml", "data.workers=1"),
        says=("step 2 of 2", "runs/t/export"),
    ),
    Row(
        fault=2,
        situation="neither checkout nor home can be written",
        slow=True,
        needs=no_mounts,
        prepare=lambda folder: (folder / "tmp").mkdir(),
        environment={"TMPDIR": "{folder}/tmp"},
        shell=WITHOUT_HOME,
        words=BUILD,
        says=(r"records +60\n",),
        check=_has_cache,
    ),
    Row(
        fault=2,
        situation="scratch folder that others may write is not used",
        slow=True,
        needs=no_mounts,
        prepare=_others_scratch,
        environment={"TMPDIR": "{folder}"},
        shell=WITHOUT_HOME,
        words=BUILD,
        says=(r"records +60\n",),
        check=_has_another_cache,
    ),
    Row(
        fault=2,
        situation="Parquet without a home",
        slow=True,
        needs=no_mounts,
        prepare=lambda folder: __import__("pyarrow.parquet").parquet.write_table(
            __import__("pyarrow").table({"id": ["a"], "sequence": ["MKTAYIAKQRQISFVK"]}), folder / "p.parquet"
        ),
        shell=WITHOUT_HOME,
        words=("-m", "data", "build", "p.parquet", "--store-dir", "s"),
        says=(r"records +1\n",),
    ),
    Row(
        fault=3,
        situation="quota of one core and 1.2 GB in a group above",
        needs=no_cgroups,
        shell=CGROUP,
        words=PLAN,
        says=(
            r"machine +1 CPU core\n",
            r"note +limits of this container or job: 1 core \(cpu.cfs_quota_us\), 1.3 GB \(memory.limit_in_bytes\)",
            r"model +modern_60k",
        ),
    ),
    Row(
        fault=3,
        situation="threads of torch under a quota",
        slow=True,
        needs=no_cgroups,
        shell=f"unset OMP_NUM_THREADS; {CGROUP.strip()}",
        words=("-c", THREADS),
        says=(r"(?m)^threads 1$",),
    ),
    Row(
        fault=3,
        situation="preset that a container cannot hold",
        slow=True,
        needs=no_cgroups,
        shell=CGROUP,
        words=("-m", "pretrain", "ok.fasta", "--minutes", "1", "model.preset=modern_150m"),
        status=78,
        says=(r"error: not enough memory: training takes about \d+\.\d GB .*1\.3 GB \(limits of this container",),
        never=("Traceback", "step 1", "clustering"),
    ),
    Row(
        fault=3,
        situation="recipe that a container cannot hold",
        slow=True,
        needs=no_cgroups,
        shell=CGROUP,
        words=("-m", "pretrain", "tiny.toml", "model.preset=modern_150m", "data.store_dir=stores"),
        status=78,
        says=(r"error: not enough memory: training takes about \d+\.\d GB",),
        never=("Traceback", "step 1"),
        check=lambda folder, ended: _require_no_store(folder),
    ),
    Row(
        fault=3,
        situation="container without room for MMseqs2",
        slow=True,
        needs=lambda: no_cgroups() or ("" if mmseqs.is_installed() else "MMseqs2 is not installed"),
        shell=CGROUP,
        words=("-m", "pretrain", "ok.fasta", "--minutes", "1", "--plan", "model.preset=modern_60k"),
        says=(r"because MMseqs2 needs 1\.2 GB of memory, and\s+[01]\.\d GB are free \(limits of this",),
        never=("Traceback", "Killed", "clustering"),
    ),
    Row(
        fault=20,
        situation="read-only dev shm",
        needs=no_mounts,
        shell='unshare -m bash -c \'mount -t tmpfs -o ro none /dev/shm; exec "$@"\' bash "$@"',
        words=("-c", "from data.batches.loader import _forkserver; _forkserver(1)"),
        status=1,
        says=(r"ValueError: /dev/shm cannot be used: Read-only file system; data.workers = 1 needs it",),
        never=("Exception ignored",),
    ),
    Row(
        fault=20,
        situation="dev shm with room for some semaphores",
        slow=True,
        needs=no_mounts,
        shell='unshare -m bash -c \'mount -t tmpfs -o size=32k none /dev/shm; exec "$@"\' bash "$@"',
        words=("-c", "from data.batches.loader import _forkserver; _forkserver(1)"),
        status=1,
        says=(r"ValueError: /dev/shm cannot be used: the disk is full.*--shm-size",),
        never=("Exception ignored",),
    ),
    *(
        Row(fault=22, situation=f"{command[1]} with {what}", shell=f'"$@" {how}', words=command, status=0)
        for command in (BUILD, PLAN)
        for what, how in (("stderr closed", "2>&-"), ("stdout closed", ">&-"), ("no stream", "<&- >&- 2>&-"))
    ),
    *(
        Row(
            fault=22,
            situation=f"{command[1]} whose reader has left",
            shell='"$@" 2>&1 | true; exit ${PIPESTATUS[0]}',
            words=command,
        )
        for command in (("-m", "data", "head", "ok.fasta", "--store-dir", "s"), PLAN)
    ),
    *(
        Row(
            fault=26,
            situation=f"{command[1]} with output in ASCII",
            environment={"PYTHONIOENCODING": "ascii"},
            prepare=lambda folder: (folder / "ok.fasta").rename(folder / "grün.fasta"),
            words=[word.replace("ok", "grün") for word in command],
            says=(said,),
        )
        for command, said in (
            (("-m", "data", "build", "ok.fasta", "--output", "ok"), r"gr\\xfcn"),
            (PLAN, r"gr\\xfcn\.fasta: 60 proteins"),
        )
    ),
]


@table(ROWS)
def test_row(row: Row, tmp_path: Path) -> None:
    row.run(tmp_path)


def test_text_that_cannot_be_printed_is_no_mistake_in_the_input() -> None:
    assert class_of(UnicodeEncodeError("ascii", "ü", 0, 1, "ordinal not in range(128)")) is ERROR
