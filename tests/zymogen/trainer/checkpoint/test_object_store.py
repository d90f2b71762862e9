"""Checkpoints in an object store, of a real server on this machine: what is a checkpoint there, and whose."""

import gzip
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.checkpoint_run import build, plan_of, save, shares, train
from support.forked import forked, status_of
from support.object_store.server import S3Server
from zymogen.processes.errors import CheckpointError, StorageError
from zymogen.trainer.checkpoint.canonical import InvalidCheckpointError
from zymogen.trainer.checkpoint.commit import commit
from zymogen.trainer.checkpoint.load import verify
from zymogen.trainer.checkpoint.object_store.bucket import RECORDS_FILE, CheckpointBucket
from zymogen.trainer.checkpoint.object_store.objects import ObjectStore
from zymogen.trainer.engine.named_state import TorchState
from zymogen.trainer.run.settings import RunSettings

REQUESTS_OF_A_SAVE = 8
"""Two files of tensors, two indexes, the trainer's state, the records, a look for later starts, the manifest."""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as running:
        yield running


@pytest.fixture
def bucket(server: S3Server) -> CheckpointBucket:
    return CheckpointBucket(server.new_url())


def saved(folder: Path, bucket: CheckpointBucket, *steps: int, **changes: Any) -> list[Path]:
    model, optimizer = build()
    paths = []
    for step in steps:
        train(model, optimizer, step - 1, step)
        fields: dict[str, Any] = {"bucket": bucket, "number": step} | changes
        paths.append(save(folder / "checkpoints", TorchState(model, optimizer), step, **fields))
    return paths


def fetched(bucket: CheckpointBucket, folder: Path, number: int = 0) -> Path:
    found = [each for each in bucket.saves() if each.is_whole][number]
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / found.prefix.partition("-a")[0]
    bucket.fetch(found, target)
    return target


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def steps(bucket: CheckpointBucket) -> list[int]:
    return [each.step for each in bucket.saves() if each.is_whole]


def test_what_is_fetched_is_what_was_saved(bucket: CheckpointBucket, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}\n")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"st')
    three, four = saved(tmp_path, bucket, 3, 4)
    path = fetched(bucket, tmp_path / "elsewhere")
    assert content(path) == content(four)
    assert verify(path).manifest.step == 4
    assert content(fetched(bucket, tmp_path / "elsewhere", 1)) == content(three)
    assert bucket.records(bucket.saves()[0]) == {"run.json": "{}\n", "metrics.jsonl": '{"step": 1}\n{"step": 2}\n'}


def test_each_rank_stores_its_part(bucket: CheckpointBucket, tmp_path: Path) -> None:
    model, optimizer = build()
    train(model, optimizer, 0, 3)
    plan = plan_of(tmp_path / "checkpoints", 3, 2, bucket=bucket)
    first, second = shares(TorchState(model, optimizer), 2)
    assert commit(plan, second, rank=1) is None
    assert steps(bucket) == []
    commit(plan, first, rank=0)
    path = fetched(bucket, tmp_path / "elsewhere")
    assert content(path) == content(plan.published)
    assert (path / "model/00001.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize("is_answered", [False, True])
def test_a_save_that_is_killed_at_any_request_is_none(
    server: S3Server, tmp_path: Path, is_answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the request, or after the store has answered it: only the last one makes a checkpoint."""
    url = server.new_url()
    saved(tmp_path, CheckpointBucket(url), 3)
    at = ObjectStore._at
    for number in range(1, REQUESTS_OF_A_SAVE + 1):

        def save_and_die(last: int = number) -> None:
            calls = [0]

            class Mortal(ObjectStore):
                def _at(self, name: str) -> Any:
                    calls[0] += 1
                    if calls[0] == last + is_answered:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return at(self, name)

            monkeypatch.setattr(ObjectStore, "_at", Mortal._at)
            saved(tmp_path, CheckpointBucket(url), 4, attempt=2, number=last)

        assert status_of(forked(save_and_die)) == (0 if is_answered and number == 8 else -signal.SIGKILL)
        assert steps(CheckpointBucket(url)) == ([4, 3] if is_answered and number == 8 else [3])
    bucket = CheckpointBucket(url)
    assert len(bucket.saves()) > 2
    five = saved(tmp_path, bucket, 5, attempt=3)[0]
    bucket.retain("step-000000005-a3-00000005", keep=2, kept=lambda step: False)
    assert [each.step for each in bucket.saves()] == ([5, 4] if is_answered else [5, 3])
    assert content(fetched(bucket, tmp_path / "elsewhere")) == content(five)


def test_of_what_earlier_saves_put_there_the_newest_and_the_chosen_stay(bucket: CheckpointBucket) -> None:
    of_a_save = ("manifest.json", "trainer.json", "model/00000.safetensors")
    prefixes = [f"step-00000000{step}-a1-0000000{step}" for step in range(1, 6)]
    names = [f"{prefix}/{name}" for prefix in prefixes for name in of_a_save]
    mine = (f"{prefixes[0]}/mine.txt", "mine/a")
    cut_off, later = f"{prefixes[2]}/manifest.json", "step-000000001-a2-00000001/manifest.json"
    for name in {*names, *mine, later} - {cut_off}:
        bucket._objects.write(name, b"{}")
    gone = bucket.retain(prefixes[4], keep=2, kept=lambda step: step == 2)
    assert gone == [prefixes[3], prefixes[2], prefixes[0]]
    left = [name for name in names if name.startswith((prefixes[1], prefixes[4]))]
    assert set(bucket._objects.names()) == {*left, *mine, later}


@pytest.mark.slow
def test_an_earlier_start_saves_no_more(bucket: CheckpointBucket, tmp_path: Path) -> None:
    bucket.claim(1)
    saved(tmp_path, bucket, 3)
    bucket.claim(2)
    assert bucket.last_attempt() == 2
    with pytest.raises(CheckpointError, match=r"attempt 2 of the run has started elsewhere; end this process"):
        saved(tmp_path, bucket, 4)
    assert steps(bucket) == [3]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000000003"]
    with pytest.raises(CheckpointError, match="another start of the run has the number 2, too"):
        CheckpointBucket(bucket.url).claim(2)


def test_a_request_that_is_repeated_is_no_conflict(bucket: CheckpointBucket) -> None:
    """The store answers 412 where the first request did succeed and its answer was lost."""
    assert bucket._objects.create("a", b"1")
    assert bucket._objects.create("a", b"1")
    assert not bucket._objects.create("a", b"2")
    assert bucket._objects.read("a") == b"1"


def test_damage_is_noticed(bucket: CheckpointBucket, tmp_path: Path) -> None:
    saved(tmp_path, bucket, 3)
    prefix = bucket.saves()[0].prefix
    for name in ("model/00000.safetensors", "trainer.json", "manifest.json"):
        raw = bucket._objects.read(f"{prefix}/{name}")
        for number, damaged in enumerate((raw[:-1], raw[:40] + bytes([raw[40] ^ 1]) + raw[41:])):
            bucket._objects.write(f"{prefix}/{name}", damaged)
            with pytest.raises(InvalidCheckpointError):
                verify(fetched(bucket, tmp_path / f"{number}-{name[:4]}"))
        bucket._objects.write(f"{prefix}/{name}", raw)
    bucket._objects.write(f"{prefix}/{RECORDS_FILE}", gzip.compress(json.dumps({}).encode())[:-4])
    with pytest.raises(InvalidCheckpointError, match=RECORDS_FILE):
        bucket.records(bucket.saves()[0])
    bucket._objects.remove([f"{prefix}/trainer.json"])
    with pytest.raises(InvalidCheckpointError, match=r"trainer\.json is not in the object store"):
        fetched(bucket, tmp_path / "gone")


def test_a_store_that_refuses_costs_the_save(server: S3Server, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"step 3 was not saved: s3://none/run/step-.*bucket does not exist"):
        saved(tmp_path, CheckpointBucket("s3://none/run"), 3)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_store_that_refuses_costs_no_checkpoint_of_the_step(
    bucket: CheckpointBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an earlier attempt, which a save of the same step replaces only when the store has that one whole."""
    (earlier,) = saved(tmp_path, bucket, 3)
    held = content(earlier)

    def refused(*_: Any) -> None:
        raise PermissionError(f"{bucket.url}: no rights")

    model, optimizer = build()
    train(model, optimizer, 0, 3)
    monkeypatch.setattr(CheckpointBucket, "publish", refused)
    with pytest.raises(StorageError, match=rf"no rights; see that {bucket.url} answers and may be written; the checkp"):
        save(tmp_path / "checkpoints", TorchState(model, optimizer), 3, bucket=bucket, number=1, attempt=2)
    assert verify(earlier).manifest.attempt == 1
    assert content(earlier) == held
    assert [path.name for path in earlier.parent.iterdir()] == [earlier.name]


@pytest.mark.parametrize(
    "url", ["s3://bucket", "s3://bucket/", "http://host/a", "/tmp/a", "s3://key:secret@bucket/a", "s3://b/../a?x"]
)
def test_other_urls_are_refused(url: str) -> None:
    refused = r"run\.checkpoint_url: (got .*, allowed is 's3://bucket/name'|a URL has a user or a password in it)"
    with pytest.raises(ValueError, match=refused):
        RunSettings(directory="run", checkpoint_url=url)
    RunSettings(directory="run", checkpoint_url="s3://my-bucket/of/a.run_1")
