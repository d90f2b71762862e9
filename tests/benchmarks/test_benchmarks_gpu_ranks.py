"""Ranks of a check of `make gpu`: the first one's findings are the check's, and none outlives it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.machine import Place
from benchmarks.gpu.ranks import together
from benchmarks.gpu.results import Finding, Results
from support.places import ROOT


def of_ranks(folder: Path, work: str, world: int = 2) -> Iterator[Finding]:
    (folder / "rank_work.py").write_text(RANK_WORK)
    return together(f"rank_work:{work}", Place(torch.device("cpu"), Results(folder)), "nccl", world, given=str(folder))


RANK_WORK = """
import os, time
from pathlib import Path
import torch.distributed as dist
from benchmarks.gpu.results import Finding

def counts(place, given):
    print("chatter")  # of a library
    yield Finding(f"{dist.get_backend()} of {dist.get_world_size()}, rank {dist.get_rank()}", 1.0, judged=True)

def raises(place, given):
    yield Finding("before", 1.0)
    dist.barrier()
    if dist.get_rank() == 1:
        raise ValueError("no such thing")
    dist.barrier()

def dies(place, given):
    os._exit(3)
    yield

def hangs(place, given):
    Path(given, str(dist.get_rank())).write_text(str(os.getpid()))
    yield Finding("before", 1.0)
    time.sleep(600)
"""


@pytest.fixture
def rank_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the package `benchmarks.gpu` finds modules, too, in processes that begin from here on."""
    add = f"import benchmarks.gpu\nbenchmarks.gpu.__path__.append({str(tmp_path)!r})\n"
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.path.append({str(ROOT)!r})\n{add}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


@pytest.mark.prove
def test_ranks_say_what_the_first_finds(rank_work: Path) -> None:
    assert list(of_ranks(rank_work, "counts")) == [Finding("gloo of 2, rank 0", 1.0, judged=True)]


@pytest.mark.launch
def test_a_rank_that_raises_is_heard(rank_work: Path) -> None:
    found = of_ranks(rank_work, "raises")
    assert next(found).what == "before"
    with pytest.raises(RuntimeError, match=r"rank 1: ValueError: no such thing"):
        next(found)


@pytest.mark.prove
def test_a_rank_that_dies_is_noticed(rank_work: Path) -> None:
    with pytest.raises(RuntimeError, match="its ranks ended with exit status 3"):
        list(of_ranks(rank_work, "dies", 1))


@pytest.mark.prove
def test_ranks_end_with_their_check(rank_work: Path) -> None:
    """Interrupted by its time, or by whoever stops listening."""
    found = of_ranks(rank_work, "hangs")
    assert next(found).what == "before"
    found.close()
    for rank in "01":
        pid = int((rank_work / rank).read_text())
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
