"""Tensors stored as pieces are put together, or refused."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.checkpoint_run import (
    CUTS,
    assert_same,
    build,
    everything,
    files_of,
    restore,
    rewrite_manifest,
    train,
    write_cut,
)
from support.launching import whole_tensors
from zymogen.trainer.checkpoint.canonical import InvalidCheckpointError, canonical
from zymogen.trainer.checkpoint.load import VerifiedCheckpoint, verify
from zymogen.trainer.checkpoint.manifest import UnsupportedVersionError
from zymogen.trainer.checkpoint.reader import read_tensors
from zymogen.trainer.checkpoint.writer import StagingBuffer
from zymogen.trainer.engine.named_state import TorchState


def resign(path: Path) -> VerifiedCheckpoint:
    """List the files as they are now, as another writer of the format would have."""

    def relist(manifest: dict[str, Any]) -> None:
        manifest["files"] = [
            {
                "path": file.relative_to(path).as_posix(),
                "size": file.stat().st_size,
                "sha256": [hashlib.sha256(file.read_bytes()).hexdigest()],
            }
            for file in files_of(path)
            if file.name != "manifest.json"
        ]
        manifest["files"].sort(key=lambda entry: entry["path"])

    rewrite_manifest(path, relist, sign=True)
    return verify(path)


def edit_index(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = path / "model/index.json"
    index = json.loads(file.read_text())
    change(index)
    file.write_bytes(canonical(index))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 13])
def test_pieces_of_any_cut_are_put_together(tmp_path: Path, cut: str, ranks: int) -> None:
    model, optimizer = build()
    train(model, optimizer, 0, 3)
    found = verify(write_cut(tmp_path, StagingBuffer().stage(TorchState(model, optimizer)), CUTS[cut], ranks))
    other, other_optimizer = build(seed=6)
    restore(found, TorchState(other, other_optimizer))
    assert_same(everything(other, other_optimizer), everything(model, optimizer))
    for part in ("model", "optimizer"):
        assert_same(read_tensors(found, part), whole_tensors(found.path / part))
        index = json.loads((found.path / part / "index.json").read_text())["tensors"]
        runs = [len(tensor["cut"]) for tensor in index.values()]
        assert max(runs) == 1 or (cut == "random" and ranks > 1), "a rule, however many ranks store a tensor"


Run = list[int]
FAULTS: dict[str, tuple[Callable[[list[Run]], object], str]] = {
    "gap at the start": (lambda cut: cut[0].__setitem__(1, 6), "do not follow element 0"),
    "gap at the end": (lambda cut: cut[0].__setitem__(2, 60), "or end beside its last one, 66"),
    "beyond": (lambda cut: cut[0].__setitem__(2, 72), "or end beside its last one, 66"),
    "overlap": (lambda cut: cut.append([1, 60, 66, 6, 6]), "do not follow element 66"),
    "gap between": (lambda cut: cut.__setitem__(slice(None), [[0, 0, 6, 6, 6], [1, 12, 66, 54, 54]]), "element 6"),
    "none": (lambda cut: cut.clear(), "no piece of it is stored"),
    "nothing in the first file": (lambda cut: cut[0].__setitem__(3, 0), "do not follow"),
    "a longer first piece": (lambda cut: cut[0].__setitem__(3, 30), "do not follow"),
    "no unit": (lambda cut: cut[0].__setitem__(4, 0), "do not follow"),
    "smaller units": (lambda cut: cut[0].__setitem__(slice(3, 5), [6, 6]), "00003.safetensors is not in the manifest"),
    "other units": (lambda cut: cut[0].__setitem__(slice(3, 5), [23, 23]), "bytes|header"),
    "unlisted": (lambda cut: cut[0].__setitem__(0, 7), "00007.safetensors is not in the manifest"),
    "other file": (lambda cut: cut[0].__setitem__(0, 1), "is not in the manifest"),
    "twice in a file": (
        lambda cut: cut.__setitem__(slice(None), [[0, 0, 24, 24, 24], [0, 24, 66, 42, 42]]),
        "do not hold",
    ),
    "four numbers": (lambda cut: cut[0].pop(), "cut.0.4: Field required"),
    "a fraction": (lambda cut: cut[0].__setitem__(0, 0.5), "cut.0.0: .*integer, got 0.5"),
    "a name": (lambda cut: cut[0].__setitem__(0, "../x"), "cut.0.0: .*integer, got '../x'"),
    "below zero": (lambda cut: cut[0].__setitem__(1, -6), "cut.0.1: .*, got -6"),
    "above all bounds": (lambda cut: cut[0].__setitem__(4, 1 << 62), "cut.0.4: Input should be less than"),
    "true": (lambda cut: cut[0].__setitem__(0, False), "cut.0.0: .*integer, got False"),
}


@pytest.fixture
def cut_in_three(tmp_path: Path) -> Path:
    model, optimizer = build()
    train(model, optimizer, 0, 1)
    return write_cut(tmp_path, StagingBuffer().stage(TorchState(model, optimizer)), CUTS["rows"], 3)


@pytest.mark.parametrize("fault", FAULTS)
def test_pieces_that_do_not_fit_are_refused(cut_in_three: Path, fault: str) -> None:
    change, message = FAULTS[fault]
    index = json.loads((cut_in_three / "model/index.json").read_text())
    assert index["tensors"]["embed.weight"]["cut"] == [[0, 0, 66, 24, 24]]
    edit_index(cut_in_three, lambda index: change(index["tensors"]["embed.weight"]["cut"]))
    with pytest.raises((InvalidCheckpointError, UnsupportedVersionError), match=message):
        resign(cut_in_three)


def test_a_giant_cut_takes_no_memory(cut_in_three: Path) -> None:
    """A hostile index of few bytes."""

    def change(index: dict[str, Any]) -> None:
        index["tensors"]["embed.weight"] = {"shape": [1 << 39], "digest": "0" * 32, "cut": [[0, 0, 1 << 39, 1, 1]]}

    edit_index(cut_in_three, change)
    with pytest.raises(InvalidCheckpointError, match=r"00003\.safetensors is not in the manifest"):
        resign(cut_in_three)


def test_another_dtype_is_refused(two: Path) -> None:
    path = two / "step-000000004"
    edit_index(path, lambda index: index.update(dtype="BF16"))
    with pytest.raises(UnsupportedVersionError, match="dtype: Input should be 'F32', got 'BF16'"):
        resign(path)


HEADERS: dict[str, Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]] = {
    "another type": lambda tensors: tensors | {"head.bias": tensors["head.bias"].to(torch.int32)},
    "another shape": lambda tensors: tensors | {"embed.weight": tensors["embed.weight"].reshape(6, 11)},
    "another name": lambda tensors: {name.replace("head", "tail"): tensor for name, tensor in tensors.items()},
    "one more": lambda tensors: tensors | {"more": torch.zeros(2)},
}


@pytest.mark.parametrize("kind", HEADERS)
def test_a_header_that_other_readers_would_read_differently_is_refused(two: Path, kind: str) -> None:
    file = two / "step-000000004/model/00000.safetensors"
    save_file(HEADERS[kind](load_file(file)), file)
    with pytest.raises(InvalidCheckpointError, match=r"header|do not hold"):
        resign(two / "step-000000004")
