"""What is not trained: in no checkpoint, identified by one hash, and put beside what is trained by whoever has it."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from support.checkpoint_run import Tiny, everything, identity_by_hand, restore, rewrite_trainer, save, train
from zymogen.trainer.checkpoint.load import VerifiedCheckpoint, verify
from zymogen.trainer.checkpoint.manifest import ENTRIES, UnsupportedVersionError
from zymogen.trainer.checkpoint.restore import fill_frozen, read_whole
from zymogen.trainer.engine.named_state import TorchState, Weights

PRINTS = {"identity": "a", "schedule": "b", "corpus": "c", "split": "d"}
FROZEN = ["embed.weight", "layers.1.bias"]
"""A tied one, and a vector; the head's weight is the embedding."""


def alone(value: Any) -> list[Any]:
    return [value]


def half(seed: int = 0) -> tuple[Tiny, TorchState]:
    model = Tiny(seed)
    for name in FROZEN:
        model.get_parameter(name).requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    return model, TorchState(model, optimizer)


def weights_of(model: Tiny) -> Weights:
    return {name: partial(Tensor.clone, parameter.detach()) for name, parameter in model.named_parameters()}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> VerifiedCheckpoint:
    """Step 3 of a run on the frozen parameters of seed 0."""
    model, state = half()
    train(model, state._optimizer, 0, 3)
    found = fill_frozen(state, weights_of(Tiny(0)), alone)
    assert found is not None
    path = save(tmp_path_factory.mktemp("half"), state, 3, fingerprints={**PRINTS, "frozen": found})
    return verify(path)


def test_the_file_holds_what_is_trained(checkpoint: VerifiedCheckpoint) -> None:
    with safe_open(checkpoint.path / "model/00000.safetensors", "pt") as file:
        assert sorted(file.keys()) == ["head.bias", "layers.0.bias", "layers.0.weight", "layers.1.weight"]
    index = json.loads((checkpoint.path / "model/index.json").read_text())
    assert index["aliases"] == {"head.weight": "embed.weight"}


def test_the_hash_is_of_names_shapes_and_values(checkpoint: VerifiedCheckpoint) -> None:
    model = Tiny(0)
    expected = identity_by_hand({name: model.get_parameter(name).detach() for name in FROZEN})
    assert checkpoint.manifest.fingerprints["frozen"] == expected


def test_a_run_goes_on_with_the_frozen_parameters_filled_in(checkpoint: VerifiedCheckpoint) -> None:
    model, state = half(seed=5)
    found = fill_frozen(state, weights_of(Tiny(0)), alone)
    restore(checkpoint, state, found)
    twin, of_twin = half()
    train(twin, of_twin._optimizer, 0, 3)
    ours, theirs = everything(model, state._optimizer), everything(twin, of_twin._optimizer)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_other_frozen_parameters_are_refused_before_anything_is_restored(checkpoint: VerifiedCheckpoint) -> None:
    model, state = half(seed=5)
    found = fill_frozen(state, weights_of(Tiny(1)), alone)
    before = everything(model, state._optimizer)
    stored = checkpoint.manifest.fingerprints["frozen"]
    for mine in (found, None):
        with pytest.raises(ValueError, match=rf"content hash was {stored}, and is now {mine}; put back the weights"):
            restore(checkpoint, state, mine)
    after = everything(model, state._optimizer)
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in after)


def test_ranks_must_read_the_same_frozen_parameters() -> None:
    with pytest.raises(ValueError, match=r"not alike on all ranks: their content hashes are \['\w{64}', 'other'\]"):
        fill_frozen(half()[1], weights_of(Tiny(0)), lambda mine: [mine, "other"])
    model = Tiny(0)
    assert fill_frozen(TorchState(model, torch.optim.AdamW(model.parameters())), {}, alone) is None


def test_whole_weights_are_those_of_the_checkpoint_and_the_frozen_ones(checkpoint: VerifiedCheckpoint) -> None:
    names = [name for name, _ in Tiny(0).named_parameters()]
    whole = read_whole(checkpoint, [*names, "head.weight"], weights_of(Tiny(0)))
    twin, of_twin = half()
    train(twin, of_twin._optimizer, 0, 3)
    assert whole.keys() == set(names)
    assert all(torch.equal(whole[name], parameter) for name, parameter in twin.named_parameters())
    with pytest.raises(ValueError, match=r"holds 4 of 6 parameters: 'embed.weight' and others were frozen \("):
        read_whole(checkpoint, names)
    with pytest.raises(ValueError, match="trained on other frozen parameters"):
        read_whole(checkpoint, names, weights_of(Tiny(1)))


def test_a_save_must_identify_what_is_frozen(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="identifies what is frozen"):
        save(tmp_path, half()[1], 1, fingerprints=PRINTS)
    assert list(tmp_path.iterdir()) == []


def test_what_the_model_does_without_is_identified_too(tmp_path: Path) -> None:
    model = Tiny(0)
    whole = TorchState(model, torch.optim.AdamW(model.parameters()))
    kept = verify(save(tmp_path, whole, 1, fingerprints={**PRINTS, "frozen": "ab"}))
    restore(kept, whole, "ab")
    with pytest.raises(ValueError, match="their content hash was ab, and is now cd"):
        restore(kept, whole, "cd")


def test_a_job_goes_on_from_the_entries_that_it_names(two: Path) -> None:
    path = two / "step-000000004"
    rewrite_trainer(path, lambda trainer: trainer.update(entries={"best/score": {"loss": 2.5}}))
    model = Tiny(3)
    state = TorchState(model, torch.optim.AdamW(model.parameters()))
    with pytest.raises(
        UnsupportedVersionError, match=r"has the entries \['best/score'\], known are \['loss_monitor', 'loss_"
    ):
        restore(verify(path), state)
    assert restore(verify(path), state, known=ENTRIES | {"best/score"}).entries == {"best/score": {"loss": 2.5}}
