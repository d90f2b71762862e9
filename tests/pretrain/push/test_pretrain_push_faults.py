"""A push that is stopped or fails at each of its requests in turn, and is repeated.

Afterwards the repository has one commit with exactly the folder's bytes, and no large object was sent twice.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from pretrain.push.commit import push
from pretrain.push.errors import PushError
from support.forked import forked, status_of
from support.hub.client import api, local_hub
from support.hub.faults import STATUSES, Fault
from support.hub.folders import contents, write_export
from support.hub.server import Hub

NAME = "lab/model"
LOST = [("cut", 0), ("cut", 700), ("cut", 3000), ("lost", 0), ("lost", 60), ("lost", 400)]
KINDS = {"info", "create", "preupload", "batch", "put", "verify", "validate_yaml", "commit", "tag"}
"""The requests of a push to a new repository."""
LIMIT_S = 30.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_export(tmp_path_factory.mktemp("faults") / "export")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with local_hub(tmp_path_factory.mktemp("home")) as running:
        yield running


def at_each_request(hub: Hub, folder: Path, fault: Callable[[int], Fault], once: Callable[[], int]) -> int:
    """Push with a fault at request 0, 1, ..., each time to a new hub, and repeat; how many requests had it."""
    met = set()
    for number in itertools.count():
        hub.repositories.clear()
        broken = fault(number)
        hub.begin(broken)
        status = once()
        assert status in (-9, 0, 1)
        if broken.kind is None:
            assert status == 0
            assert met == KINDS
            return number
        met.add(broken.kind[1])
        sent = list(hub.sent)
        hub.begin()
        push(folder, NAME, tag="v1", api=api(hub), attempts=1)
        repository = hub.repositories[NAME]
        where = f"{broken.name} at request {number}, {broken.kind}"
        assert repository.files == contents(folder), where
        assert len(repository.commits) == 2, where
        assert repository.tags == {"v1": repository.head.oid}, where
        again = list(hub.sent)  # the library itself repeats what had no answer, but not what is there
        assert len(again) == len(set(again)), where
        assert set(again).isdisjoint(sent), where
        assert len({*sent, *again}) == 2, where
    raise AssertionError


def attempt(hub: Hub, folder: Path) -> int:
    """Push once; 0, or 1 if it failed in one line."""
    try:
        push(folder, NAME, tag="v1", api=api(hub), attempts=1)
    except PushError as error:
        return 1 + str(error).count("\n")
    return 0


def killed(hub: Hub, folder: Path) -> int:
    """Push in another process, which the hub may kill."""
    pid = forked(lambda: push(folder, NAME, tag="v1", api=api(hub), attempts=1))
    while not hub.faulty.victims.empty():
        hub.faulty.victims.get()
    hub.faulty.victims.put(pid)
    return status_of(pid)


@pytest.mark.slow
def test_an_answer_lost_at_each_request(hub: Hub, folder: Path) -> None:
    """The hub has done what was asked, and nobody knows."""
    assert at_each_request(hub, folder, lambda n: Fault("lost", n), lambda: attempt(hub, folder)) > len(KINDS)


@pytest.mark.slow
def test_each_fault_at_each_request(hub: Hub, folder: Path) -> None:
    """All of them in one test, which is measured."""
    began = time.monotonic()
    for name, at in [*((status, 0) for status in STATUSES), *LOST]:
        found = at_each_request(hub, folder, partial(Fault, name, at=at), lambda: attempt(hub, folder))
        assert found > len(KINDS)
    assert time.monotonic() - began < LIMIT_S


@pytest.mark.slow
@pytest.mark.parametrize("name", ["killed", "killed late"])
def test_killed_at_each_request(hub: Hub, folder: Path, name: str) -> None:
    statuses: list[int] = []

    def once() -> int:
        statuses.append(killed(hub, folder))
        return statuses[-1]

    assert at_each_request(hub, folder, lambda n: Fault(name, n, times=1), once) > len(KINDS)
    assert statuses[-1] == 0
    assert set(statuses[:-1]) == {-9}
