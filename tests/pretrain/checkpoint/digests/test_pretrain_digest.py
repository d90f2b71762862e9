"""The digest of tensors: the same however they are cut and whoever holds them, another one after any change."""

import hashlib
import json
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from pretrain.checkpoint import CheckpointError, InvalidCheckpoint, OtherVersion, restore, verify
from pretrain.checkpoint.canonical import canonical
from pretrain.checkpoint.digests.lanes import Digest
from pretrain.engine.named_state import TorchState
from pretrain.engine.ranks import Ranks
from support.checkpoint_run import (
    assert_same,
    build,
    everything,
    rewrite_manifest,
    save,
    train,
    write_ranks,
)
from support.launching import whole_tensors

NAME = "model/embed.weight"
VALUES = torch.tensor([0.0, -0.0, 1.5, float("inf"), float("nan"), -3e-42, 1.5])
CUTS = ((0, 7), (0, 3, 7), (0, 1, 2, 3, 4, 5, 6, 7), (0, 0, 5, 5, 7))


def mixed(word: int) -> int:
    """The end of splitmix64, on Python's integers."""
    word %= 1 << 64
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % (1 << 64)
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % (1 << 64)
    return word ^ (word >> 31)


def expected(name: str, values: list[float], start: int = 0) -> str:
    """The formula of the docstring, word by word."""
    key = hashlib.sha256(name.encode()).digest()
    lanes = []
    for lane, half in enumerate(struct.unpack("<QQ", key[:16])):
        total = 0
        for index, value in enumerate(values, start):
            (bits,) = struct.unpack("<I", struct.pack("<f", value))
            draw = mixed(lane + (index % 2048 + 1) * 0x9E3779B97F4A7C15)
            total += bits * (draw | 1) * (mixed(half + index // 2048) | 1)
        lanes.append(total % (1 << 64))
    return "".join(f"{lane:016x}" for lane in lanes)


def of(values: torch.Tensor, name: str = NAME) -> Digest:
    return Digest.of(name, 0, values)


def test_it_is_what_its_formula_says() -> None:
    assert of(VALUES).hexadecimal() == expected(NAME, VALUES.tolist())
    assert Digest.of(NAME, 1 << 33, VALUES).hexadecimal() == expected(NAME, VALUES.tolist(), 1 << 33)
    long = torch.randn(5000, generator=torch.Generator().manual_seed(1))
    assert Digest.of(NAME, 2045, long).hexadecimal() == expected(NAME, long.tolist(), 2045)
    assert of(torch.empty(0)).hexadecimal() == "0" * 32


@pytest.mark.parametrize("cuts", CUTS)
def test_pieces_add_up_whatever_the_cut_and_order(cuts: tuple[int, ...]) -> None:
    pieces = [Digest.of(NAME, start, VALUES[start:stop]) for start, stop in pairwise(cuts)]
    assert Digest.total(pieces) == Digest.total(pieces[::-1]) == of(VALUES)
    assert of(VALUES[:6].reshape(2, 3).t().contiguous().t()) == of(VALUES[:6])  # as it is stored, not as it lies


@pytest.mark.parametrize("element", range(len(VALUES)))
def test_a_change_of_any_bit_changes_both_lanes(element: int) -> None:
    for bit in range(32):
        other = VALUES.clone()
        other.view(torch.int32)[element] ^= torch.tensor(-(1 << 31) if bit == 31 else 1 << bit, dtype=torch.int32)
        found = of(other)
        assert found.first != of(VALUES).first
        assert found.second != of(VALUES).second


def test_pieces_of_a_long_tensor_add_up() -> None:
    """Cut within blocks of 2048, at their ends and beside them."""
    long = torch.randn(9000, generator=torch.Generator().manual_seed(2))
    cuts = (0, 1, 2047, 2048, 2049, 6144, 8000, 9000)
    assert Digest.total(Digest.of(NAME, a, long[a:b]) for a, b in pairwise(cuts)) == of(long)
    swapped = torch.cat([long[2048:4096], long[:2048], long[4096:]])
    assert of(swapped) != of(long)


def test_what_changes_places_changes_it() -> None:
    assert of(VALUES[[1, 0, 2, 3, 4, 5, 6]]) != of(VALUES)  # 0 and -0
    assert of(VALUES[[0, 1, 2, 3, 4, 6, 5]]) != of(VALUES)
    two = [of(VALUES, "model/a"), of(VALUES + 1, "model/b")]
    assert Digest.total(two) != Digest.total([of(VALUES, "model/b"), of(VALUES + 1, "model/a")])


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_checkpoint_has_the_digest_of_its_whole_tensors(tmp_path: Path, ranks: int) -> None:
    path = write_ranks(tmp_path, ranks)
    found = verify(path)
    names = [(part, name) for part in ("model", "optimizer") for name in whole_tensors(path / part)]
    wholes = {(part, name): whole_tensors(path / part)[name].flatten() for part, name in names}
    each = {of_part: expected("/".join(of_part), whole.tolist()) for of_part, whole in wholes.items()}
    for part in ("model", "optimizer"):
        assert found.tensors(part).digests == {name: each[part, name] for p, name in names if p == part}
    lanes = [sum(int(digest[at : at + 16], 16) for digest in each.values()) % (1 << 64) for at in (0, 16)]
    assert found.manifest.digest == "".join(f"{lane:016x}" for lane in lanes)


def strip(path: Path) -> None:
    """The checkpoint as versions wrote it that had no digests."""
    for part in ("model", "optimizer"):
        index = json.loads((path / part / "index.json").read_text())
        for tensor in index["tensors"].values():
            del tensor["digest"]
        (path / part / "index.json").write_bytes(canonical(index))
    relist(path, lambda manifest: manifest.pop("digest"))


def relist(path: Path, change: Any) -> None:
    def changed(manifest: dict[str, Any]) -> None:
        change(manifest)
        for entry in manifest["files"]:
            raw = (path / entry["path"]).read_bytes()
            entry.update(size=len(raw), sha256=hashlib.sha256(raw).hexdigest())

    rewrite_manifest(path, changed, sign=True)


@pytest.fixture
def ranks() -> Ranks:
    return Ranks(Accelerator(cpu=True))


def saved(folder: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    model, optimizer = build()
    train(model, optimizer, 0, 3)
    return save(folder, TorchState(model, optimizer), 3), everything(model, optimizer)


def test_a_checkpoint_of_an_earlier_version_has_none_and_loads(tmp_path: Path, ranks: Ranks) -> None:
    path, wanted = saved(tmp_path)
    strip(path)
    assert verify(path).manifest.digest is None
    model, optimizer = build(seed=1)
    restore(verify(path), TorchState(model, optimizer), ranks=ranks)
    assert_same(everything(model, optimizer), wanted)


@pytest.mark.parametrize("digest", ["", "0" * 31, "0" * 31 + "G", 0])
def test_what_is_no_digest_is_of_another_version(tmp_path: Path, digest: object) -> None:
    path, _ = saved(tmp_path)
    rewrite_manifest(path, lambda manifest: manifest.update(digest=digest), sign=True)
    with pytest.raises(OtherVersion, match=r"manifest\.digest: got "):
        verify(path)


class Misplaced(TorchState):
    """A state into which a load puts two elements of a moment the wrong way round."""

    def end_load(self) -> None:
        flat = self._tensor("layers.1.weight", "exp_avg").view(-1)
        flat[[4, 5]] = flat[[5, 4]]


def test_a_load_that_puts_elements_elsewhere_is_noticed(tmp_path: Path, ranks: Ranks) -> None:
    path, wanted = saved(tmp_path)
    model, optimizer = build(seed=1)
    restore(verify(path), TorchState(model, optimizer), ranks=ranks)
    assert_same(everything(model, optimizer), wanted)
    with pytest.raises(CheckpointError, match=r"1 of 18 tensors are not what was saved.*'optimizer/exp_avg/layers.1.w"):
        restore(verify(path), Misplaced(*build(seed=1)), ranks=ranks)


def test_a_digest_that_the_tensors_do_not_have_is_noticed(tmp_path: Path, ranks: Ranks) -> None:
    path, _ = saved(tmp_path)
    rewrite_manifest(path, lambda manifest: manifest.update(digest="0" * 32), sign=True)
    with pytest.raises(CheckpointError, match="0 of 18 tensors"):
        restore(verify(path), TorchState(*build(seed=1)), ranks=ranks)
    rewrite_manifest(path, lambda manifest: manifest.update(digest="1" * 32), sign=False)
    with pytest.raises(InvalidCheckpoint, match="self_sha256"):
        verify(path)
