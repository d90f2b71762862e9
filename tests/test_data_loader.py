"""Batches and steps: the flat layout, termini, and a stream that ranks, forwards and restarts cannot change."""

from itertools import islice

import numpy as np
import pytest
import torch

from data import draw
from data.alphabet import CLS, EOS, PAD, STANDARD_RESIDUES
from data.batch import IGNORED, Batch
from data.chain import START, extend
from data.collate import collate
from data.loader import Step, steps
from data.plan import Bin, Cursor, Plan
from data.settings import DataSettings, MaskSettings
from data.store import Store, open_or_build

SETTINGS = DataSettings(sources=("-",), crop_tokens=60, bin_tokens=128, bins_per_step=7, window_sequences=64)
UNMASKED = MaskSettings(select_prob=1e-15)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("store")
    rng = np.random.default_rng(0)
    lines = [f">p{i}\n{''.join(rng.choice(list(STANDARD_RESIDUES), rng.integers(1, 150)))}\n" for i in range(300)]
    (folder / "a.fasta").write_text("".join(lines))
    return open_or_build([folder / "a.fasta"], folder / "stores", "refuse", None)


def plan(store: Store, settings: DataSettings = SETTINGS, seed: int = 0) -> Plan:
    samples = np.arange(store.num_records)
    return Plan(samples, store.num_residues(samples), settings, seed)


def some(store: Store, count: int, rank: int = 0, world_size: int = 1, settings: DataSettings = SETTINGS) -> list[Step]:
    return list(islice(steps(store, plan(store, settings), Cursor(), 0, rank, world_size), count))


def by_bin(ranks: list[list[Step]], index: int) -> dict[int, int]:
    """Global bin -> digest of one step, over all ranks."""
    return {
        bin_: int(digest)
        for rank in ranks
        for bin_, digest in zip(rank[index].bins, torch.cat([b.digests for b in rank[index].batches]), strict=True)
    }


def chain(ranks: list[list[Step]]) -> str:
    value = START
    for index in range(len(ranks[0])):
        digests = by_bin(ranks, index)
        assert sorted(digests) == list(range(SETTINGS.bins_per_step))
        value = extend(value, [digests[i] for i in sorted(digests)])
    return value


def test_the_flat_layout(store: Store) -> None:
    p = plan(store)
    bins = p.window(0, 0)[:3]
    batch = collate(store, bins, SETTINGS, SETTINGS.mask, 0, [1, 2, 2**63 + 5])
    per_bin = SETTINGS.documents_per_bin + 1
    assert batch.tokens.shape == batch.labels.shape == batch.positions.shape == batch.documents.shape == (3 * 128,)
    assert batch.cu_seqlens.shape == (3 * per_bin + 1,)
    assert batch.cu_seqlens.dtype == torch.int32
    assert batch.cu_seqlens[0] == 0
    assert batch.cu_seqlens[-1] == 3 * 128
    assert (batch.cu_seqlens.diff() >= 0).all()
    assert batch.num_bins == 3
    assert batch.num_documents == 3 * per_bin
    # Slots, documents, positions and boundaries tell one story.
    for document in range(batch.num_documents):
        start, end = batch.cu_seqlens[document : document + 2].tolist()
        assert (batch.documents[start:end] == document).all()
        assert batch.positions[start:end].tolist() == list(range(end - start))
    assert batch.spans == tuple(
        (int(batch.cu_seqlens[i * per_bin + j]), int(batch.cu_seqlens[i * per_bin + j + 1]))
        for i, packed in enumerate(bins)
        for j in range(len(packed.samples))
    )
    for i, packed in enumerate(bins):
        assert (batch.tokens[i * 128 + packed.num_tokens : (i + 1) * 128] == PAD).all()
    assert torch.equal(batch.target_slots, (batch.labels != IGNORED).nonzero().flatten())
    assert batch.counts.tolist() == [len(batch.target_slots)]
    assert batch.draw_keys.tolist() == [1, 2, -(2**63) + 5]
    assert batch.to("cpu").tokens.equal(batch.tokens)


def test_documents_are_slices_with_termini_where_they_are(store: Store) -> None:
    seen = {"whole": 0, "begin": 0, "middle": 0, "end": 0}
    for packed in plan(store).window(0, 0):
        batch = collate(store, [packed], SETTINGS, UNMASKED, 0, [0])
        for (a, b), sample, start in zip(batch.spans, packed.samples, packed.starts, strict=True):
            whole = [CLS, *store.residues(int(sample)).tolist(), EOS]
            assert batch.tokens[a:b].tolist() == whole[start : start + b - a]
            has_begin, has_end = start == 0, start + b - a == len(whole)
            kind = {(1, 1): "whole", (1, 0): "begin", (0, 0): "middle", (0, 1): "end"}[int(has_begin), int(has_end)]
            seen[kind] += 1
    assert min(seen["whole"], seen["middle"]) > 5
    assert seen["begin"] + seen["end"] > 0


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("bins_per_forward", [1, 3])
def test_the_world_has_no_part_in_what_comes(store: Store, world_size: int, bins_per_forward: int) -> None:
    settings = DataSettings(
        sources=("-",),
        crop_tokens=60,
        bin_tokens=128,
        bins_per_step=7,
        window_sequences=64,
        bins_per_forward=bins_per_forward,
    )
    # 60 steps of 7 bins: past the end of the corpus' first pass.
    reference = some(store, 60)
    ranks = [some(store, 60, rank, world_size, settings) for rank in range(world_size)]
    assert reference[-1].cursor.pass_index >= 1
    assert chain(ranks) == chain([reference])
    for rank in ranks:
        assert [s.cursor for s in rank] == [s.cursor for s in reference]
        assert [s.num_tokens for s in rank] == [s.num_tokens for s in reference]
        assert all(b.num_bins <= bins_per_forward for s in rank for b in s.batches)
    keys = {
        bin_: int(k)
        for rank in ranks
        for bin_, k in zip(rank[0].bins, torch.cat([b.draw_keys for b in rank[0].batches]), strict=True)
    }
    assert len(set(keys.values())) == 7


def test_a_step_is_found_again_from_its_cursor(store: Store) -> None:
    reference = some(store, 60)
    for at in (1, 20, 45, 59):
        again = next(steps(store, plan(store), reference[at - 1].cursor, at, 0, 1))
        assert by_bin([[again]], 0) == by_bin([reference], at)
        assert again.batches[0].draw_keys.equal(reference[at].batches[0].draw_keys)


def test_controls_seed_and_cursor_change_the_chain(store: Store) -> None:
    reference = chain([some(store, 10)])
    other_seed = list(islice(steps(store, plan(store, seed=1), Cursor(), 0, 0, 1), 10))
    off_by_one = list(islice(steps(store, plan(store), Cursor(bin=1), 0, 0, 1), 10))
    assert len({reference, chain([other_seed]), chain([off_by_one])}) == 3


def test_a_residue_keeps_its_mask_in_every_crop(store: Store) -> None:
    (record,) = np.flatnonzero(store.num_residues(np.arange(300)) > 120)[:1]
    lengths = np.array([60])
    crops = [Bin(0, np.array([record]), np.array([start]), lengths) for start in (0, 25)]
    first, second = (collate(store, [b], SETTINGS, SETTINGS.mask, 0, [0]) for b in crops)
    assert first.labels[25:60].tolist() == second.labels[:35].tolist()
    assert first.tokens[25:60].tolist() == second.tokens[:35].tolist()
    assert (first.labels[25:60] != IGNORED).any()


def test_the_model_draws_anew_each_step(store: Store) -> None:
    keys = [int(k) for step in some(store, 3) for batch in step.batches for k in batch.draw_keys]
    assert len(set(keys)) == 3 * 7


def test_the_chain_knows_the_order() -> None:
    assert extend(START, [1, 2]) != extend(START, [2, 1])
    assert extend(START, [-1]) == extend(START, [2**64 - 1])  # torch's int64 and the digest are one number
    assert extend(extend(START, [1]), [2]) != extend(START, [1, 2])


def test_a_pass_trains_every_protein_once(store: Store) -> None:
    p = plan(store)
    order = np.concatenate([b.samples for w in range(p.num_windows) for b in p.window(0, w)])
    assert np.array_equal(np.sort(order), np.arange(store.num_records))


def test_the_digest_sees_everything_a_bin_feeds(store: Store) -> None:
    (packed, *_) = plan(store).window(0, 0)

    def digest(mask: MaskSettings = SETTINGS.mask, seed: int = 0) -> int:
        return int(collate(store, [packed], SETTINGS, mask, seed, [0]).digests)

    assert len({digest(), digest(seed=1), digest(MaskSettings(mask_prob=1.0, random_prob=0.0))}) == 3
    assert digest() == digest()


def test_more_ranks_than_bins(store: Store) -> None:
    with pytest.raises(ValueError, match=r"bins_per_step is 7, but 8 processes train"):
        next(steps(store, plan(store), Cursor(), 0, 0, 8))


def test_batches_move_whole(store: Store) -> None:
    (packed, *_) = plan(store).window(0, 0)
    batch: Batch = collate(store, [packed], SETTINGS, SETTINGS.mask, 0, [draw.key(1)])
    moved = batch.to("meta")
    assert moved.tokens.device.type == moved.digests.device.type == "meta"
    assert moved.spans == batch.spans
