"""A start on several nodes begins where all of them see one run directory, and nowhere else."""

import os
import re
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from support.chaos.campaign import _rank
from support.forked import forked, status_of
from support.launching import DDP, FLOAT32, launch_environments
from zymogen.trainer.recovery import shared_directory
from zymogen.trainer.recovery.shared_directory import require_shared
from zymogen.trainer.run.directory import RunDirectory


@pytest.mark.launch
@pytest.mark.xdist_group("nodes")
@pytest.mark.parametrize("directory", ["runs/t", "run"], ids=["new", "made"])
def test_nodes_with_directories_of_their_own_do_not_train(
    directory: str, recipe_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes of one rank each, in two folders, to which `run.directory` is relative."""
    monkeypatch.setattr(shared_directory, "_CACHED_S", 0.5)
    log, nodes, pids = tmp_path / "log", (tmp_path / "a", tmp_path / "b"), []
    words = [str(recipe_in(tmp_path)), f"run.directory={directory}"]
    for rank, variables in enumerate(launch_environments(DDP, 2, FLOAT32)):
        (nodes[rank] / "run").mkdir(parents=True)
        place = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": str(rank), "GROUP_WORLD_SIZE": "2"}

        def node(rank: int = rank, variables: dict[str, str] = {**variables, **place}) -> None:  # noqa: B006
            os.chdir(nodes[rank])
            _rank(words, variables, log)

        pids.append(forked(node))
    assert [status_of(pid) for pid in pids] == [78, 78], log.read_text()
    host = socket.gethostname()
    assert re.search(
        rf"error: run\.directory is not one folder on all nodes: rank 0 wrote a file to {nodes[0]}/{directory} of "
        rf"{host}, which is not seen in {nodes[1]}/{directory} of {host}; all nodes need one file system",
        log.read_text(),
    ), log.read_text()
    assert [list(node.rglob("*")) for node in nodes] == [[node / "run"] for node in nodes]


class Simulated:
    """Ranks that are threads of this process."""

    def __init__(self, size: int) -> None:
        self.values: list[Any] = [None] * size
        self.barrier = threading.Barrier(size)
        self.local = threading.local()

    @property
    def rank(self) -> int:
        return int(self.local.rank)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def world_size(self) -> int:
        return len(self.values)

    def gather(self, value: Any) -> list[Any]:
        self.values[self.rank] = value
        self.barrier.wait()
        values = list(self.values)
        self.barrier.wait()
        return values

    def on_main(self, work: Any) -> Any:
        return self.gather(work() if self.is_main else None)[0]

    def raise_if_interrupted(self) -> None:
        pass


def errors_of(ranks: Simulated, directories: list[Path]) -> list[Exception]:
    """What each rank raises, of as many directories as there are nodes."""
    errors: list[Exception] = []
    ranks_per_node = ranks.world_size // len(directories)

    def rank(number: int) -> None:
        ranks.local.rank = number
        try:
            require_shared(RunDirectory(directories[number // ranks_per_node]), ranks)  # type: ignore[arg-type]
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(ranks.world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(1, 8), (8, 8), (64, 1), (128, 8)])
def test_each_node_reads_once(nodes: int, ranks_per_node: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, read = Simulated(nodes * ranks_per_node), list[int]()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks_per_node))
    sees = shared_directory._sees

    def counted(file: Path) -> bool:
        read.append(ranks.rank)
        return sees(file)

    monkeypatch.setattr(shared_directory, "_sees", counted)
    assert errors_of(ranks, [tmp_path / "runs/new"] * nodes) == []
    assert sorted(read) == [ranks_per_node * node for node in range(1, nodes)]
    assert list(tmp_path.iterdir()) == []


def test_one_node_that_sees_another_directory_ends_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_directory, "_CACHED_S", 0.1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    errors = errors_of(Simulated(8), [tmp_path / "a/run"] * 3 + [tmp_path / "b/run"])
    assert len(errors) == 8
    (said,) = {f"{type(error).__name__}: {error}" for error in errors}
    assert said.startswith(
        f"ValueError: run.directory is not one folder on all nodes: rank 0 wrote a file to {tmp_path}/a/"
    )
    assert f"is not seen in {tmp_path}/b/run of {socket.gethostname()}; " in said
    assert not list(tmp_path.rglob(".zymogen*"))


def test_a_file_that_a_kill_left_does_not_make_a_directory_foreign(tmp_path: Path) -> None:
    (tmp_path / ".zymogen-0123").touch()
    RunDirectory(tmp_path).require_usable()
