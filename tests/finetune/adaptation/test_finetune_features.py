"""Cached features: the same as the encoder's own, kept by content, whole or not at all."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from data.alphabet import CLS, EOS
from data.corpus.reader import CorpusReader
from data.settings import DataSettings
from data.store.token_store import TokenStore
from finetune.adaptation import features
from finetune.adaptation.features import CachedFeatures, EncoderInputs, cached_features
from finetune.adaptation.vectors import Pooling
from pretrain.model.encoder import Encoder
from pretrain.model.presets import EsmShape
from pretrain.trained_model import TrainedModel
from support.inputs.flat_batches import pack, perturb, relative
from support.inputs.token_stores import proteins, store_of

SHAPE = EsmShape(layers=2, dim=48, heads=4)
SETTINGS = DataSettings(sources=("none.fasta",), crop_tokens=64, bin_tokens=128)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return store_of(tmp_path_factory.mktemp("store"), proteins(9))


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    model = Encoder(SHAPE)
    perturb(model)
    return model.eval()


def start_of(encoder: Encoder) -> TrainedModel:
    named = encoder.named_parameters()
    return TrainedModel(SHAPE, {f"encoder.{n}": partial(Tensor.clone, p.detach()) for n, p in named}, "here")


def whole(store: TokenStore) -> EncoderInputs:
    """The records of a store without linkers."""
    return EncoderInputs(store.fingerprint, store.offsets, np.zeros((store.num_records, 2), np.int64))


Cached = tuple[CachedFeatures | None, list[str]]


@pytest.fixture
def cache(tmp_path: Path, store: TokenStore, encoder: Encoder) -> Callable[..., Cached]:
    def cached(
        pooling: Pooling | tuple[Pooling, ...], documents: EncoderInputs | None = None, **changes: Any
    ) -> Cached:
        documents = documents or whole(store)
        cache_gb = changes.pop("cache_gb", 1.0)
        start, settings = changes.pop("start", start_of(encoder)), changes.pop("settings", SETTINGS)
        poolings = (pooling,) if isinstance(pooling, str) else pooling
        how = (CorpusReader([store.folder]), settings, poolings, tmp_path / "cache", cache_gb)
        return cached_features(start, documents, *how, **changes)

    return cached


@torch.no_grad()
def alone(encoder: Encoder, store: TokenStore, record: int) -> Tensor:
    """(residues + 2, D): what the encoder makes of a record by itself."""
    ids = [CLS, *store.residues(record).tolist(), EOS]
    return encoder(pack([[(ids, [-100] * len(ids))]], 96))[: len(ids)]


def test_vectors_are_those_of_the_encoder(cache: Callable[..., Cached], store: TokenStore, encoder: Encoder) -> None:
    both, begin = cache(("mean", "residue"))[0], cache("begin")[0]
    assert both is not None
    assert begin is not None
    assert both.rows["residue"].shape == (int(store.offsets[-1]), 48)
    for record in range(store.num_records):
        own = alone(encoder, store, record)
        place = torch.tensor([record])
        assert relative(both.sequence(place)[0], own[1:-1].mean(0)) < 1e-5
        assert relative(begin.sequence(place)[0], own[0]) < 1e-5
        places = torch.arange(int(store.offsets[record]), int(store.offsets[record + 1]))
        assert relative(both.residue(places), own[1:-1]) < 1e-5
    assert both.sequence(torch.tensor([4, 4, 0])).dtype == torch.float32
    assert torch.equal(both.sequence(torch.tensor([4, 4, 0]))[2], both.sequence(torch.tensor([0]))[0])


def test_linkers_are_not_pooled(cache: Callable[..., Cached], store: TokenStore, encoder: Encoder) -> None:
    linkers = whole(store).linkers
    linkers[3] = 5, 12
    mean = cache("mean", replace(whole(store), linkers=linkers))[0]
    assert mean is not None
    own = alone(encoder, store, 3)
    kept = torch.cat([own[1:5], own[12:-1]]).mean(0)
    assert relative(mean.sequence(torch.tensor([3]))[0], kept) < 1e-5
    assert relative(mean.sequence(torch.tensor([3]))[0], own[1:-1].mean(0)) > 1e-3


@pytest.mark.parametrize("pooling", ["residue", "mean"])
def test_vectors_in_memory_are_bounded(
    store: TokenStore, encoder: Encoder, pooling: Pooling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four bins of residues at once where the bytes allow fewer; parts give what one whole gives."""
    lengths = np.diff(store.offsets).astype(np.int64) + 2
    settings = replace(SETTINGS, crop_tokens=32, bin_tokens=int(lengths.max()))
    asked = np.tile(np.arange(store.num_records), 3)

    def parts() -> list[Any]:
        reader = CorpusReader([store.folder])
        of_parts = features.vectors_of(start_of(encoder), whole(store), reader, settings, pooling, asked)
        return [vectors for _, vectors in of_parts]

    (once,) = parts()
    monkeypatch.setattr(features, "_PART_BYTES", 0)
    monkeypatch.setattr(features, "_PART_RECORDS", 7)
    found = parts()
    assert max(len(part) for part in found) <= (4 * lengths.max() if pooling == "residue" else 7)
    assert len(found) == -(-len(asked) // 7) if pooling == "mean" else len(found) > 3
    assert relative(torch.from_numpy(np.concatenate(found)), torch.from_numpy(once)) < 1e-5


def test_what_was_computed_is_reused_and_other_content_is_not(
    cache: Callable[..., Cached], encoder: Encoder, store: TokenStore, tmp_path: Path
) -> None:
    (line,) = cache("mean")[1]
    assert line.startswith(f"features: 9 proteins x 48 numbers, {9 * 48 * 4 / 1e9:.3g} GB, computed, in {tmp_path}")
    (again,) = cache("mean")[1]
    assert "as they were computed before" in again
    other = Encoder(SHAPE)
    perturb(other, 1)
    linkers = whole(store).linkers
    linkers[0] = 2, 3
    for changed in (
        cache("mean", start=start_of(other)),
        cache("begin"),
        cache("mean", replace(whole(store), linkers=linkers)),
        cache("mean", replace(whole(store), store="another")),
    ):
        assert ", computed, " in changed[1][0]
    assert len(list((tmp_path / "cache").glob("features-*"))) == 5
    assert "as they were" in cache("mean", settings=replace(SETTINGS, bin_tokens=256))[1][0]


def test_a_cache_that_would_be_too_large_is_not_made(cache: Callable[..., Cached], tmp_path: Path) -> None:
    found = cache("mean", cache_gb=9 * 48 * 4 / 1e9 - 1e-12)
    assert found[0] is None
    assert "more than adaptation.cache_gb = 1.728e-06: not kept, the encoder computes them each time" in found[1][0]
    assert not (tmp_path / "cache").exists()
    assert cache("mean", cache_gb=9 * 48 * 4 / 1e9)[0] is not None
    assert cache(("mean", "residue"), cache_gb=9 * 48 * 4 / 1e9)[0] is None


def test_it_is_written_whole_or_not_at_all(
    cache: Callable[..., Cached], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = features.vectors_of

    def interrupted(*args: Any) -> Iterator[Any]:
        yield next(computed(*args))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(features, "vectors_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache("mean")
    assert list((tmp_path / "cache").iterdir()) == []
    assert ", computed, " in cache("mean")[1][0]

    (place,) = (tmp_path / "cache").glob("features-*")
    with (place / "features.bin").open("r+b") as file:
        file.seek(100)
        file.write(b"\x00\x01")
    with pytest.raises(ValueError, match=r"features.bin differs from what was written.*delete .*it is written again"):
        cache("mean")
    (place / "features.json").write_text("{}")
    with pytest.raises(ValueError, match=r"features.json has no hash: .*; delete"):
        cache("mean")


def test_other_ranks_read_what_one_has_computed(cache: Callable[..., Cached]) -> None:
    calls: list[int] = []

    def on_first(work: Callable[[], int]) -> int:
        calls.append(work())
        return calls[-1]

    first = cache("mean", on_each_node=on_first)
    second = cache("mean", on_each_node=lambda work: calls[0])
    assert calls == [1]
    assert first[0] is not None
    assert second[0] is not None
    assert np.array_equal(first[0].rows["mean"], second[0].rows["mean"])
