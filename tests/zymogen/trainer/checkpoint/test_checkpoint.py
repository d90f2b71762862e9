"""What a checkpoint carries: round trip, named state, files, what is kept."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from support.checkpoint_run import (
    Tiny,
    assert_same,
    build,
    digest_by_hand,
    everything,
    restore,
    save,
    train,
    trainer_at,
)
from support.forked import forked, status_of
from zymogen.trainer.checkpoint.canonical import canonical
from zymogen.trainer.checkpoint.load import find, newest_valid, quarantine, verify
from zymogen.trainer.checkpoint.retention import retain, sweep
from zymogen.trainer.engine.named_state import TorchState


def test_restored_run_is_bitwise_the_uninterrupted_one(tmp_path: Path) -> None:
    model, optimizer = build(seed=0)
    train(model, optimizer, 0, 3)
    path = save(tmp_path, TorchState(model, optimizer), 3)
    at_three = everything(model, optimizer)
    train(model, optimizer, 3, 6)

    other, other_optimizer = build(seed=1)
    assert not torch.equal(other.embed.weight, at_three["embed.weight"])
    found = newest_valid(tmp_path, writer=True)
    assert found is not None
    assert found.path == path == tmp_path / "step-000000003"
    assert restore(found, TorchState(other, other_optimizer)) == trainer_at(3)
    assert_same(everything(other, other_optimizer), at_three)
    assert other.head.weight is other.embed.weight
    train(other, other_optimizer, 3, 6)
    assert_same(everything(other, other_optimizer), everything(model, optimizer))


def test_step_zero_leaves_no_step_behind(tmp_path: Path) -> None:
    model, optimizer = build(seed=0)
    found = verify(save(tmp_path, TorchState(model, optimizer), 0))
    assert not optimizer.state
    other, other_optimizer = build(seed=1)
    restore(found, TorchState(other, other_optimizer))
    state = TorchState(other, other_optimizer)
    assert [state.step_of(n) for n in state.names] == [0] * 6
    train(model, optimizer, 0, 3)
    train(other, other_optimizer, 0, 3)
    assert_same(everything(other, other_optimizer), everything(model, optimizer))


def test_files_on_disk(two: Path) -> None:
    path = two / "step-000000004"
    weights = load_file(path / "model/00000.safetensors")
    assert {n: tuple(t.shape) for n, t in weights.items()} == {
        "embed.weight": (11, 6),
        "layers.0.weight": (6, 6),
        "layers.0.bias": (6,),
        "layers.1.weight": (6, 6),
        "layers.1.bias": (6,),
        "head.bias": (11,),
    }
    moments = load_file(path / "optimizer/00000.safetensors")
    assert set(moments) == {f"{k}/{n}" for n in weights for k in ("exp_avg", "exp_avg_sq")}
    index = json.loads((path / "model/index.json").read_text())
    assert index["aliases"] == {"head.weight": "embed.weight"}
    assert index["tensors"]["embed.weight"] == {
        "shape": [11, 6],
        "cut": [[0, 0, 66, 66, 66]],
        "digest": digest_by_hand(weights["embed.weight"]),
    }
    steps = json.loads((path / "optimizer/index.json").read_text())["steps"]
    assert steps == dict.fromkeys(weights, 2)
    manifest = json.loads((path / "manifest.json").read_text())
    claimed = manifest.pop("self_sha256")
    assert hashlib.sha256(canonical(manifest)).hexdigest() == claimed
    for entry in manifest["files"]:
        raw = (path / entry["path"]).read_bytes()
        assert (len(raw), [hashlib.sha256(raw).hexdigest()]) == (entry["size"], entry["sha256"])
    assert sorted(p.name for p in two.iterdir()) == ["step-000000003", "step-000000004"]


def mismatches() -> dict[str, tuple[dict[str, Any], str]]:
    return {
        "tied": ({"tie": False}, r"1 missing in the checkpoint \['head.weight'\]"),
        "width": (
            {"width": 8},
            r"shapes differ: embed.weight: checkpoint \(11, 6\), model \(11, 8",
        ),
    }


@pytest.mark.parametrize("case", mismatches())
def test_another_model_is_refused_untouched(two: Path, case: str) -> None:
    arguments, message = mismatches()[case]
    found = newest_valid(two, writer=True)
    assert found is not None
    model, optimizer = build(seed=1, **arguments)
    before = everything(model, optimizer)
    with pytest.raises(ValueError, match=message):
        restore(found, TorchState(model, optimizer))
    assert_same(everything(model, optimizer), before)


def test_aliases_are_compared(tmp_path: Path) -> None:
    class Twice(Tiny):
        def __init__(self, seed: int) -> None:
            super().__init__(seed)
            self.second = self.layers[0]

    model, optimizer = build()
    found = verify(save(tmp_path, TorchState(model, optimizer), 1))
    other = Twice(1)
    with pytest.raises(ValueError, match=r"tied weights differ.*second.weight"):
        restore(found, TorchState(other, torch.optim.AdamW(other.parameters())))


def test_state_that_would_be_lost_is_refused() -> None:
    model = Tiny(0)
    body = [p for n, p in model.named_parameters() if not n.startswith("head")]
    with pytest.raises(ValueError, match=r"1 trainable parameters .* \['head.bias'\]"):
        TorchState(model, torch.optim.AdamW(body))
    model.head.bias.requires_grad_(False)
    assert TorchState(model, torch.optim.AdamW(body)).frozen == ("head.bias",)
    with pytest.raises(ValueError, match="5 parameters that the model does not have"):
        TorchState(model, torch.optim.AdamW([*body, *Tiny(0).parameters()][:-1]))
    wide = nn.Linear(2, 2).double()
    with pytest.raises(ValueError, match=r"float64; fp32 can store"):
        TorchState(wide, torch.optim.AdamW(wide.parameters()))
    norm = nn.BatchNorm1d(3)
    with pytest.raises(ValueError, match=r"persistent buffers are not stored: \['num_batches_tr"):
        TorchState(norm, torch.optim.AdamW(norm.parameters()))
    layer = nn.Linear(4, 4)
    rowwise = torch.optim.Adafactor(layer.parameters())
    layer(torch.ones(4)).sum().backward()
    rowwise.step()
    with pytest.raises(ValueError, match=r"'col_var' of 'weight' is|'row_var' of 'weight' is"):
        TorchState(layer, rowwise).moments("weight")


@pytest.mark.slow
def test_wrappers_do_not_reach_the_names() -> None:
    def work() -> None:
        from accelerate import Accelerator

        model, optimizer = build()
        names = TorchState(model, optimizer).names
        prepared, wrapped = Accelerator(cpu=True).prepare(model, optimizer)
        assert type(wrapped) is not type(optimizer)
        state = TorchState(prepared, wrapped)
        assert state.names == names
        train(prepared, wrapped, 0, 2)
        assert [state.step_of(n) for n in names] == [2] * 6
        assert TorchState(torch.compile(model), optimizer).names == names

    assert status_of(forked(work)) == 0


def test_retention_keeps_the_newest_and_strangers(tmp_path: Path) -> None:
    model, optimizer = build()
    state = TorchState(model, optimizer)
    strangers = {"best", "step-7", "step-000000001.bak", ".quarantine"}
    for name in strangers:
        (tmp_path / name).mkdir()
    for step in range(1, 6):
        path = save(tmp_path, state, step)
        retain(tmp_path, keep=3, committed=path)
    names = {p.name for p in tmp_path.iterdir()}
    assert names == strangers | {f"step-00000000{k}" for k in (3, 4, 5)}
    path = save(tmp_path, state, 2)  # the run went back: what it just wrote stays
    gone = retain(tmp_path, keep=1, committed=path)
    assert [p.name for p in gone] == ["step-000000004", "step-000000003"]
    assert [p.name for p in find(tmp_path)] == ["step-000000005", "step-000000002"]
    with pytest.raises(ValueError, match="keep: got 0, allowed 1 or more"):
        retain(tmp_path, keep=0, committed=path)
    with pytest.raises(ValueError, match="no committed checkpoint"):
        retain(tmp_path, keep=1, committed=tmp_path / "step-000000009")
    assert len(find(tmp_path)) == 2


def test_quarantine_holds_the_last_one_and_what_is_not_all_ours(tmp_path: Path) -> None:
    """Also of superseded ones; one that made way may get its name back."""
    state = TorchState(*build())
    for step, reason in ((1, "hash"), (2, "hash"), (3, "superseded"), (4, "made-way"), (5, "hash")):
        quarantine(save(tmp_path, state, step), reason)
    (tmp_path / ".quarantine/step-000000001-hash/mine.txt").write_text("years of work")
    committed = save(tmp_path, state, 6)
    assert len(os.listdir(tmp_path / ".quarantine")) == 5, "until a later one is kept"
    retain(tmp_path, keep=1, committed=committed)
    left = ["step-000000001-hash", "step-000000004-made-way", "step-000000005-hash"]
    assert sorted(os.listdir(tmp_path / ".quarantine")) == left


def test_retention_leaves_what_is_not_all_ours(tmp_path: Path) -> None:
    state = TorchState(*build())
    theirs = {"step-000000001/mine.txt": b"years of work", "step-000000003/model/mine.txt": b"more"}
    for name, content in theirs.items():
        if name.startswith("step-000000003"):
            save(tmp_path, state, 3)
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    save(tmp_path, state, 2)
    (tmp_path / "step-000000000").symlink_to(tmp_path / "step-000000003")
    gone = retain(tmp_path, keep=1, committed=save(tmp_path, state, 4))
    assert [path.name for path in gone] == ["step-000000002"]
    assert {path.name for path in tmp_path.iterdir()} == {f"step-00000000{n}" for n in (0, 1, 3, 4)}
    assert {name: (tmp_path / name).read_bytes() for name in theirs} == theirs


def test_sweep_removes_leftovers_alone(two: Path) -> None:
    for name in (".tmp-step-000000005-a1-00", ".trash-step-000000001-00", ".tmp-mine", "other"):
        (two / name).mkdir()
        (two / name / "file").write_text("x")
    (two / ".tmp-step-link").symlink_to(two / "other")
    gone = {p.name for p in sweep(two)}
    assert gone == {".tmp-step-000000005-a1-00", ".trash-step-000000001-00", ".tmp-step-link"}
    left = {"step-000000003", "step-000000004", ".tmp-mine", "other"}
    assert {p.name for p in two.iterdir()} == left
    assert (two / "other/file").read_text() == "x"
    assert sweep(two / "never") == []
