"""The digest of tensors: the same however they are cut and whoever holds them, another one after any change."""

from itertools import pairwise, permutations
from pathlib import Path

import pytest
import torch

from support.checkpoint_run import (
    assert_same,
    build,
    digest_by_hand,
    everything,
    identity_by_hand,
    restore,
    rewrite_manifest,
    save,
    train,
    write_ranks,
)
from support.launching import whole_tensors
from zymogen.processes.errors import CheckpointError
from zymogen.trainer.checkpoint.digests.digest import hexadecimal, sums
from zymogen.trainer.checkpoint.load import verify
from zymogen.trainer.checkpoint.manifest import UnsupportedVersionError
from zymogen.trainer.engine.named_state import TorchState

VALUES = torch.tensor([0.0, -0.0, 1.5, float("inf"), float("nan"), -3e-42, 1.5])
CUTS = ((0, 7), (0, 3, 7), (0, 1, 2, 3, 4, 5, 6, 7), (0, 0, 5, 5, 7))


def of(values: torch.Tensor, start: int = 0) -> str:
    return hexadecimal(sums(values, start))


def added(values: torch.Tensor, cuts: tuple[int, ...]) -> str:
    return hexadecimal(torch.stack([sums(values[a:b], a) for a, b in pairwise(cuts)]).sum(0))


def test_it_is_what_its_formula_says() -> None:
    assert of(VALUES) == digest_by_hand(VALUES)
    assert of(VALUES, 1 << 33) == digest_by_hand(VALUES, 1 << 33)
    long = torch.randn(70_000, generator=torch.Generator().manual_seed(1))  # more than one chunk
    assert of(long, 2045) == digest_by_hand(long, 2045)
    assert of(torch.empty(0)) == "0" * 32
    rounded = long[:100].bfloat16()
    assert of(rounded) == digest_by_hand(rounded.float())


@pytest.mark.parametrize("cuts", CUTS)
def test_pieces_add_up_whatever_the_cut_and_order(cuts: tuple[int, ...]) -> None:
    assert added(VALUES, cuts) == of(VALUES)
    assert of(VALUES[:6].reshape(2, 3).t().contiguous().t()) == of(VALUES[:6])  # as it is stored, not as it lies


@pytest.mark.parametrize("element", range(len(VALUES)))
def test_a_change_of_any_bit_changes_the_first_sum(element: int) -> None:
    for bit in range(32):
        other = VALUES.clone()
        other.view(torch.int32)[element] ^= torch.tensor(-(1 << 31) if bit == 31 else 1 << bit, dtype=torch.int32)
        assert of(other)[:16] != of(VALUES)[:16]


def test_any_change_of_two_elements_changes_it() -> None:
    """Also where both changes cancel in the first sum: all pairs of places, and of bits that are set and cleared."""
    bits = torch.zeros(6, dtype=torch.int32)
    before = of(bits.view(torch.float32))
    for a, b in permutations(range(6), 2):
        for bit in range(31):
            other = bits.clone()
            other[a], other[b] = 1 << bit, -(1 << bit)
            assert of(other.view(torch.float32))[:16] == before[:16], "they cancel"
            assert of(other.view(torch.float32)) != before


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_checkpoint_has_the_digest_of_its_whole_tensors(tmp_path: Path, ranks: int) -> None:
    path = write_ranks(tmp_path, ranks)
    found = verify(path)
    names = [(part, name) for part in ("model", "optimizer") for name in whole_tensors(path / part)]
    wholes = {(part, name): whole_tensors(path / part)[name].flatten() for part, name in names}
    for part in ("model", "optimizer"):
        expected = {name: digest_by_hand(wholes[part, name]) for of, name in names if of == part}
        assert found.index[part].digests == expected
    shaped = {f"{part}/{name}": whole_tensors(path / part)[name] for part, name in names}
    assert found.manifest.digest == identity_by_hand(shaped)


def saved(folder: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    model, optimizer = build()
    train(model, optimizer, 0, 3)
    return save(folder, TorchState(model, optimizer), 3), everything(model, optimizer)


@pytest.mark.parametrize("digest", ["", "0" * 63, "0" * 63 + "G", 0])
def test_what_is_no_digest_is_of_another_version(tmp_path: Path, digest: object) -> None:
    path, _ = saved(tmp_path)
    rewrite_manifest(path, lambda manifest: manifest.update(digest=digest), sign=True)
    with pytest.raises(UnsupportedVersionError, match="manifest: digest: "):
        verify(path)


class Misplaced(TorchState):
    """A state into which a load puts two elements of a moment the wrong way round."""

    def end_load(self) -> None:
        flat = self._tensor("layers.1.weight", "exp_avg").view(-1)
        flat[[4, 5]] = flat[[5, 4]]


def test_a_load_that_puts_elements_elsewhere_is_noticed(tmp_path: Path) -> None:
    path, wanted = saved(tmp_path)
    model, optimizer = build(seed=1)
    restore(verify(path), TorchState(model, optimizer))
    assert_same(everything(model, optimizer), wanted)
    with pytest.raises(CheckpointError, match=r"1 of 18 tensors are not what was saved.*'optimizer/exp_avg/layers.1.w"):
        restore(verify(path), Misplaced(*build(seed=1)))
