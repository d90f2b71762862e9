"""Tensors stored as pieces are put together, or refused."""

import hashlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from pretrain.checkpoint import (
    InvalidCheckpoint,
    OtherVersion,
    Verified,
    restore,
    verify,
)
from pretrain.checkpoint.canonical import canonical
from pretrain.engine.named_state import TorchState
from support.checkpoint_run import assert_same, build, everything, files_of, rewrite_manifest, save


def resign(path: Path) -> Verified:
    """List the files as they are now, as another writer of the format would have."""

    def relist(manifest: dict[str, Any]) -> None:
        manifest["files"] = [
            {
                "path": file.relative_to(path).as_posix(),
                "size": file.stat().st_size,
                "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            }
            for file in files_of(path)
            if file.name != "manifest.json"
        ]
        manifest["files"].sort(key=lambda entry: entry["path"])

    rewrite_manifest(path, relist, sign=True)
    return verify(path)


def split_embedding(path: Path, cuts: list[int], dtype: torch.dtype = torch.float32) -> None:
    """Store `embed.weight` as ranges between `cuts`, the last in a file of its own."""
    data = path / "model/00000.safetensors"
    tensors = load_file(data)
    flat = tensors.pop("embed.weight").flatten()
    pieces, second = [], {}
    for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
        last = number == len(cuts) - 2
        file, key = ("00001.safetensors", "rows") if last else (data.name, f"piece{number}")
        (second if last else tensors)[key] = flat[start:stop].to(dtype).clone()
        pieces.append({"start": start, "stop": stop, "file": file, "key": key})
    save_file(tensors, data)
    save_file(second, data.with_name("00001.safetensors"))
    edit_index(path, lambda index: index["tensors"]["embed.weight"].update(pieces=pieces[::-1]))


def edit_index(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = path / "model/index.json"
    index = json.loads(file.read_text())
    change(index)
    file.write_bytes(canonical(index))


@pytest.mark.parametrize("cuts", [[0, 17, 66], [0, 17, 40, 66]], ids=["two", "three"])
def test_pieces_are_put_together_across_files(two: Path, cuts: list[int]) -> None:
    path = two / "step-000000004"
    model, optimizer = build(seed=5)
    restore(verify(path), TorchState(model, optimizer))
    expected = everything(model, optimizer)
    split_embedding(path, cuts)
    found = resign(path)
    other, other_optimizer = build(seed=6)
    restore(found, TorchState(other, other_optimizer))
    assert_same(everything(other, other_optimizer), expected)


INDEX_FAULTS: dict[str, tuple[Callable[[list[dict[str, Any]]], object], str]] = {
    "gap at the start": (lambda p: p.pop(), r"gap: piece \[17, 66\) where 0 is next"),
    "gap at the end": (lambda p: p.pop(0), "pieces end at 17, the tensor at 66"),
    "overlap": (lambda p: p[0].update(start=16), r"overlap: piece \[16, 66\) where 17 is next"),
    "twice": (lambda p: p.append(dict(p[-1])), r"overlap: piece \[0, 17\) where 17 is next"),
    "beyond": (lambda p: p[0].update(stop=67), "pieces end at 67, the tensor at 66"),
    "other cut": (lambda p: (p[1].update(stop=18), p[0].update(start=18)), "(17|49) elements for"),
    "unknown key": (lambda p: p[0].update(key="nothing"), "nothing"),
    "other folder": (lambda p: p[0].update(file="../model/00001.safetensors"), "relative path"),
    "unlisted": (lambda p: p[0].update(file="00002.safetensors"), "not in the manifest"),
    "none": (lambda p: p.clear(), "pieces end at 0"),
}


@pytest.mark.parametrize("fault", INDEX_FAULTS)
def test_pieces_that_do_not_fit_are_refused(two: Path, fault: str) -> None:
    change, message = INDEX_FAULTS[fault]
    path = two / "step-000000004"
    split_embedding(path, [0, 17, 66])
    edit_index(path, lambda index: change(index["tensors"]["embed.weight"]["pieces"]))
    with pytest.raises(InvalidCheckpoint, match=message):
        resign(path)


def test_another_dtype_is_refused(two: Path) -> None:
    path = two / "step-000000004"
    edit_index(path, lambda index: index["tensors"]["head.bias"].update(dtype="BF16"))
    with pytest.raises(OtherVersion, match="got 'BF16', allowed 'F32'"):
        resign(path)
    edit_index(path, lambda index: index["tensors"]["head.bias"].update(dtype="F32"))
    split_embedding(path, [0, 17, 66], torch.bfloat16)
    with pytest.raises(OtherVersion, match=r"embed.weight in 0000..safetensors: got BF16"):
        resign(path)


def test_odd_shapes_are_readable_by_others(tmp_path: Path) -> None:
    """A scalar and a transposed parameter; bf16 comes back bit for bit."""

    class Odd(nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.scalar = nn.Parameter(torch.tensor(value))
            self.turned = nn.Parameter(torch.arange(6.0).reshape(2, 3).t() * value)
            self.rounded = nn.Parameter(torch.full((3,), value, dtype=torch.bfloat16))

    model = Odd(1.1)
    optimizer = torch.optim.AdamW(model.parameters())
    (model.scalar * (model.turned.sum() + model.rounded.sum())).backward()
    optimizer.step()
    path = save(tmp_path, TorchState(model, optimizer), 1)
    with safe_open(path / "model/00000.safetensors", framework="pt") as file:
        assert torch.equal(file.get_tensor("turned"), model.turned.detach())
        assert file.get_slice("scalar").get_shape() == []
    other = Odd(2.0)
    restored = torch.optim.AdamW(other.parameters())
    restore(verify(path), TorchState(other, restored))
    assert_same(everything(other, restored), everything(model, optimizer))
