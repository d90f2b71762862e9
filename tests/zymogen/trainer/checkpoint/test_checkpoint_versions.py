"""Checkpoints of another version of the program: told from damage, and left where they are."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import zymogen.trainer.checkpoint.manifest
from pretrain.__main__ import main
from support.checkpoint_run import (
    build,
    everything,
    files_of,
    flip,
    restore,
    rewrite_manifest,
    rewrite_trainer,
    save,
    train,
    trainer_at,
)
from support.launching import lines
from zymogen.processes.errors import CheckpointError
from zymogen.trainer.checkpoint.canonical import InvalidCheckpointError, canonical
from zymogen.trainer.checkpoint.load import find, newest_valid, verify
from zymogen.trainer.checkpoint.manifest import TrainerState
from zymogen.trainer.checkpoint.retention import retain
from zymogen.trainer.engine.named_state import TorchState

OF_TODAY = b"""{"chain": "%s", "cursor": {"bin": 3, "epoch": 1, "tokens_before_window": 123, "window": 2}, \
"entries": {}, "skipped_steps": 1, "step": 3, "tokens_seen": 3000}
""" % trainer_at(3).chain.encode()
"""trainer.json without named entries."""


def later(manifest: dict[str, Any]) -> None:
    manifest["versions"] = {"zymogen": "9.1"}


OTHERS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "schema": (lambda m: m.update(schema="zymogen.checkpoint/2"), "schema: got 'zymogen.checkpoint/2', allowed 'zym"),
    "field": (lambda m: m.update(shards=4), "manifest: shards: Unexpected keyword argument, got 4"),
    "both": (lambda m: (m.update(schema="x/3"), m.pop("files")), "schema: got 'x/3'"),
}


def everything_on_disk(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in files_of(folder)}


@pytest.mark.parametrize("other", OTHERS)
def test_another_version_moves_nothing(two: Path, other: str) -> None:
    change, message = OTHERS[other]
    original = everything_on_disk(two)
    for path in find(two):
        rewrite_manifest(path, lambda m: (later(m), change(m)), sign=True)
    before = everything_on_disk(two)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=message) as caught:
            newest_valid(two, writer=True)
        assert str(caught.value).startswith(f"{two / 'step-000000004'}: written by zymogen 9.1, this is zymogen ")
        assert everything_on_disk(two) == before
    for name, content in original.items():  # the right program again
        (two / name).write_bytes(content)
    found = newest_valid(two, writer=True)
    assert found is not None
    assert (found.path.name, found.rejected) == ("step-000000004", ())


def test_damage_before_another_version_is_all_that_is_moved(two: Path) -> None:
    rewrite_manifest(two / "step-000000003", OTHERS["schema"][0], sign=True)
    flip(two / "step-000000004/model/00000.safetensors", 400)
    with pytest.raises(CheckpointError, match="written by"):
        newest_valid(two, writer=True)
    assert os.listdir(two / ".quarantine") == ["step-000000004-hash"]
    assert [path.name for path in find(two)] == ["step-000000003"]


def test_an_unknown_field_of_the_trainer_is_another_version(two: Path) -> None:
    rewrite_trainer(two / "step-000000004", lambda t: t.update(ema=1))
    rewrite_manifest(two / "step-000000004", later, sign=True)
    with pytest.raises(
        CheckpointError, match=r"written by zymogen 9.1.*trainer: ema: Unexpected keyword argument, got 1"
    ):
        newest_valid(two, writer=True)
    assert len(find(two)) == 2


def test_a_commit_leaves_another_versions_step_alone(two: Path) -> None:
    rewrite_manifest(two / "step-000000004", OTHERS["schema"][0], sign=True)
    before = everything_on_disk(two)
    model, optimizer = build()
    train(model, optimizer, 0, 4)
    with pytest.raises(CheckpointError, match="written by"):
        save(two, TorchState(model, optimizer), 4, attempt=2)
    assert everything_on_disk(two) == before


@pytest.mark.parametrize("other", OTHERS)
def test_retention_leaves_another_versions_step_alone(two: Path, other: str) -> None:
    rewrite_manifest(two / "step-000000003", OTHERS[other][0], sign=True)
    model, optimizer = build()
    train(model, optimizer, 0, 1)
    committed = save(two, TorchState(model, optimizer), 5)
    assert retain(two, keep=1, committed=committed) == [two / "step-000000004"]
    assert find(two) == [committed, two / "step-000000003"]


def test_entries_are_kept_by_name() -> None:
    state = TrainerState.from_bytes(OF_TODAY)
    assert (state, dict(state.entries)) == (trainer_at(3), {})
    assert state.to_bytes() == OF_TODAY
    fields = json.loads(OF_TODAY)
    kept = canonical({**fields, "entries": {"corpus/consumed": {"records": 7, "hash": "ab"}, "ema": {"decay": 0.5}}})
    state = TrainerState.from_bytes(kept)
    assert state.entries == {"corpus/consumed": {"records": 7, "hash": "ab"}, "ema": {"decay": 0.5}}
    assert state.to_bytes() == kept
    for wrong, message in (
        ([], r"trainer: entries: Input should be .*, got \[\]"),
        ({"ema": 3}, r"trainer: entries\.ema: Input should be .*, got 3"),
        ({"../x": {}}, r"trainer: entries\.\.\./x.*pattern.*, got '\.\./x'"),
    ):
        with pytest.raises(InvalidCheckpointError, match=message):
            TrainerState.from_bytes(canonical({**fields, "entries": wrong}))


def test_an_entry_that_is_not_known_is_not_trained_on_without(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite_trainer(
        two / "step-000000004", lambda t: t.update(entries={"skipped_bins": {"bins": [1]}, "ema": {"decay": 0.9}})
    )
    rewrite_manifest(two / "step-000000004", later, sign=True)
    found = newest_valid(two, writer=True)
    assert found is not None
    assert found.path.name == "step-000000004"  # its weights can be read
    model, optimizer = build(seed=3)
    before = everything(model, optimizer)
    with pytest.raises(CheckpointError, match=r"written by zymogen 9\.1, .*trainer\.json has the entries \['ema'\]"):
        restore(found, TorchState(model, optimizer))
    assert everything(model, optimizer).keys() == before.keys()
    assert verify(found.path) == found


def test_a_run_of_another_version_is_refused_in_one_line(
    recipe_in, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(recipe_in(tmp_path)), "schedule.total_tokens=900"]
    assert main(words) == 0
    before = everything_on_disk(tmp_path / "run/checkpoints")
    capsys.readouterr()
    monkeypatch.setattr(zymogen.trainer.checkpoint.manifest, "SCHEMA", "zymogen.checkpoint/2")
    assert main(words) == 78
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: {tmp_path / 'run/checkpoints/step-00000000'}")
    assert "schema: got 'zymogen.checkpoint/1', allowed 'zymogen.checkpoint/2'" in error
    assert "written by zymogen " in error
    assert "continue with the version that wrote it" in error
    assert everything_on_disk(tmp_path / "run/checkpoints") == before
    starts = [line["base_step"] for line in lines(tmp_path / "run/attempts.jsonl") if "base_step" in line]
    assert starts == [0]  # the refused one made no attempt
