"""Cores and memory within the limits of control groups, and what a container without room refuses."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator

from data.homology import mmseqs
from pretrain.auto_recipe import propose
from pretrain.job import open_job
from pretrain.machine import Machine
from pretrain.model.memory import PROCESS_BYTES, require_memory
from pretrain.proposal.options import ProposalOptions
from pretrain.recipe import Recipe
from support.other_machines import write_inputs
from zymogen.processes.resources import Resources, resources
from zymogen.settings.toml_file import read
from zymogen.trainer.engine.engine import Engine


def tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V1 = "33 31 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
V1 += "34 31 0:32 {root} /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
V2 = "29 23 0:26 {root} /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate\n"
GROUPS_1 = "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/\n"
MEMORY, CPU = "sys/fs/cgroup/memory", "sys/fs/cgroup/cpu,cpuacct"


@pytest.mark.parametrize(
    ("mounts", "groups", "files", "cores", "memory", "said"),
    [
        pytest.param(V2, "0::/\n", {}, None, None, "", id="none"),
        pytest.param(
            V2,
            "0::/\n",
            {"sys/fs/cgroup/memory.max": "2000000000\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"},
            *(2, 2_000_000_000, "2.0 GB (memory.max)"),
            id="namespace of a container, version 2",
        ),
        pytest.param(
            V2,
            "0::/kubepods/pod/own\n",
            {
                "sys/fs/cgroup/kubepods/pod/memory.max": "3000000000\n",
                "sys/fs/cgroup/kubepods/pod/own/memory.max": "max\n",
                "sys/fs/cgroup/kubepods/memory.high": "2500000000\n",
                "sys/fs/cgroup/kubepods/pod/own/cpu.max": "max 100000\n",
                "sys/fs/cgroup/kubepods/pod/cpu.max": "50000 100000\n",
            },
            *(1, 2_500_000_000, "1 core (cpu.max), 2.5 GB (memory.high)"),
            id="least of the groups above",
        ),
        pytest.param(
            V1.format(root="/docker/abc"),
            GROUPS_1,
            {
                f"{MEMORY}/memory.limit_in_bytes": "1258291200\n",
                f"{CPU}/cpu.cfs_quota_us": "100000\n",
                f"{CPU}/cpu.cfs_period_us": "100000\n",
            },
            *(1, 1_258_291_200, "1 core (cpu.cfs_quota_us), 1.3 GB (memory.limit_in_bytes)"),
            id="own group mounted as the root, version 1",
        ),
        pytest.param(
            V1.format(root="/"),
            GROUPS_1,
            {
                f"{MEMORY}/memory.limit_in_bytes": f"{(1 << 63) - 4096}\n",
                f"{MEMORY}/docker/abc/memory.limit_in_bytes": "1500000000\n",
                f"{CPU}/docker/abc/cpu.cfs_quota_us": "-1\n",
                f"{CPU}/docker/abc/cpu.cfs_period_us": "100000\n",
            },
            *(None, 1_500_000_000, "1.5 GB (memory.limit_in_bytes)"),
            id="group below the root, version 1",
        ),
        pytest.param(
            V2,
            "0::/../../elsewhere\n",
            {"sys/fs/cgroup/memory.max": "2000000000\n"},
            *(None, 2_000_000_000, "2.0 GB (memory.max)"),
            id="group outside of the namespace",
        ),
    ],
)
def test_limits_of_control_groups(
    tmp_path: Path, mounts: str, groups: str, files: dict[str, str], cores: int | None, memory: int | None, said: str
) -> None:
    free = resources(tmp_path)  # a tree without control groups
    files |= {"proc/self/mountinfo": mounts.format(root="/"), "proc/self/cgroup": groups}
    found = resources(tree(tmp_path, files))
    assert found.cores == min(cores or free.cores, free.cores)
    assert found.memory_bytes == (memory or free.memory_bytes)
    assert found.available_bytes <= found.memory_bytes
    if not (cores and cores < free.cores):
        said = said.removeprefix("1 core (cpu.max), ").removeprefix("1 core (cpu.cfs_quota_us), ")
    assert found.limits == said


@pytest.mark.parametrize(
    ("mounts", "groups", "files"),
    [
        pytest.param(
            V2,
            "0::/pod/own\n",
            {
                "sys/fs/cgroup/pod/memory.max": "2000000000\n",
                "sys/fs/cgroup/pod/memory.current": "1700000000\n",
                "sys/fs/cgroup/pod/memory.stat": "anon 5\ninactive_file 300000000\nactive_file 100000000\n",
                "sys/fs/cgroup/pod/own/memory.max": "1900000000\n",
                "sys/fs/cgroup/pod/own/memory.current": "200000000\n",
            },
            id="version 2, where another process of the pod takes most",
        ),
        pytest.param(
            V1.format(root="/docker/abc"),
            GROUPS_1,
            {
                f"{MEMORY}/memory.limit_in_bytes": "2000000000\n",
                f"{MEMORY}/memory.usage_in_bytes": "1700000000\n",
                f"{MEMORY}/memory.stat": "active_file 7\ntotal_inactive_file 300000000\ntotal_active_file 100000000\n",
            },
            id="version 1, with the groups below",
        ),
    ],
)
def test_memory_that_is_free_in_a_container(tmp_path: Path, mounts: str, groups: str, files: dict[str, str]) -> None:
    files |= {"proc/self/mountinfo": mounts.format(root="/"), "proc/self/cgroup": groups}
    assert resources(tree(tmp_path, files)).available_bytes == 700_000_000  # of 2 GB, 1.7 in use, of which 0.4 is cache


def _container(monkeypatch: pytest.MonkeyPatch, free: int = 1_000_000_000) -> None:
    """This process is in a container of 1.3 GB, of which so many bytes are free."""
    here = Resources(2, 1_300_000_000, free, "1.3 GB (memory.max)")
    for of in ("data.homology.mmseqs", "pretrain.machine"):
        monkeypatch.setattr(f"{of}.resources", lambda: here)


def test_what_a_container_cannot_hold_is_refused_before_anything_is_built_or_clustered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    _container(monkeypatch)
    engine, options = Engine(Accelerator(cpu=True)), ("model.preset=modern_150m", "data.store_dir=stores")
    with pytest.raises(ValueError, match=r"^not enough memory: training takes about"):
        open_job(read(Recipe, Path("tiny.toml"), options), engine)
    assert not Path("stores").exists()
    monkeypatch.setattr(mmseqs, "cluster_by_identity", lambda *_: pytest.fail("it clusters"))
    for how in ((), ("data.split_identity=0.5",)):
        with pytest.raises(ValueError, match=r"^not enough memory: training takes about"):
            propose(ProposalOptions(("ok.fasta",), (*options, *how), 60.0), engine)


def test_all_ranks_propose_for_the_machine_of_rank_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    engine = Engine(Accelerator(cpu=True))

    def of_rank_0(_: Engine, body: Callable[[], Any]) -> Any:
        with pytest.MonkeyPatch.context() as there:
            _container(there)
            return body()

    monkeypatch.setattr(Engine, "on_main", of_rank_0)
    monkeypatch.setattr(mmseqs, "cluster_by_identity", lambda *_: pytest.fail("it clusters"))
    options = ("model.preset=modern_150m", "data.store_dir=stores", "data.split_identity=0.5")
    with pytest.raises(ValueError, match=r"limits of this container or job: 1\.3 GB"):
        propose(ProposalOptions(("ok.fasta",), options, 60.0), engine)


@pytest.mark.parametrize(
    ("free", "said"),
    [
        (1_300_000_000, ""),
        (900_000_000, "MMseqs2 needs 1.2 GB of memory, and 0.9 GB are free (limits of this container or job: 1.3 GB ("),
    ],
)
def test_mmseqs_runs_where_it_has_room(monkeypatch: pytest.MonkeyPatch, free: int, said: str) -> None:
    _container(monkeypatch, free)
    monkeypatch.setattr(mmseqs, "is_installed", lambda: True)
    mmseqs._memory_obstacle.cache_clear()
    assert mmseqs.why_not_installed().startswith(said)
    assert bool(mmseqs.why_not_installed()) == bool(said)
    if said:
        with pytest.raises(ValueError, match=r"^data\.split_identity needs .* GB are free .*: raise the limit"):
            mmseqs.version("data.split_identity")
    mmseqs._memory_obstacle.cache_clear()


def test_only_a_limit_refuses_training() -> None:
    total = PROCESS_BYTES["cpu"] + 1e9
    require_memory(total, Machine("cpu", "1 CPU core", 1, 1, 1.2e9, 1e9))  # a host, which may swap
    require_memory(total, Machine("cpu", "1 CPU core", 1, 1, 1.5e9, 1e9, limits="1.5 GB (memory.max)"))
    with pytest.raises(ValueError, match=r"2\.3 GB for each process, which has 1\.2 GB .*\(memory\.max\)\): raise"):
        require_memory(total, Machine("cpu", "1 CPU core", 1, 1, 1.2e9, 1e9, limits="1.2 GB (memory.max)"))
