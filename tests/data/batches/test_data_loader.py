"""Batches and steps: the flat layout, and a stream that ranks, workers, forwards and restarts cannot change."""

import gc
import os
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from data.alphabet import CLS, EOS, PAD
from data.batches.batch import IGNORED, Batch
from data.batches.collate import fill_bin
from data.batches.contents import MaskedContents
from data.batches.loader import Loader, Step
from data.batches.masking import BertMask
from data.batches.settings import MaskSettings
from data.corpus.reader import CorpusReader
from data.order.balance import attention_cost, balance, imbalance
from data.order.plan import EMPTY_CHAIN, Bin, Cursor, Plan, extend_chain
from data.order.sampler import CORPUS_BITS
from data.settings import DataSettings
from support.inputs.flat_batches import labels_of
from support.inputs.raw_store import Records, plan_over, without_numba, write_store
from support.reference_kernels import corrupted, gathered, spread

SETTINGS = DataSettings(
    sources=("-",),
    crop_tokens=60,
    curriculum=((9_000, 30),),
    bin_tokens=128,
    bins_per_step=7,
    window_sequences=64,
)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> CorpusReader:
    lengths = np.random.default_rng(0).integers(1, 150, 300)
    return CorpusReader([write_store(tmp_path_factory.mktemp("store"), lengths)])


def plan(reader: CorpusReader, settings: DataSettings = SETTINGS, seed: int = 0) -> Plan:
    return plan_over(reader, Records(300), settings, seed)


def masked(
    reader: CorpusReader, settings: DataSettings = SETTINGS, mask: MaskSettings = SETTINGS.mask, seed: int = 0
) -> MaskedContents:
    return MaskedContents(reader, settings, BertMask(mask), seed)


def window(reader: CorpusReader, settings: DataSettings = SETTINGS) -> list[Bin]:
    bins = plan(reader, settings).window(0, 0, 10**9)
    assert bins is not None
    return bins


def some(
    reader: CorpusReader,
    count: int,
    rank: int = 0,
    world_size: int = 1,
    settings: DataSettings = SETTINGS,
    seed: int = 0,
    cursor: Cursor = Cursor(),  # noqa: B008
    first_step: int = 0,
) -> list[Step]:
    with closing(
        Loader(masked(reader, settings, seed=seed), plan(reader, settings, seed), cursor, first_step, rank, world_size)
    ) as loader:
        return list(islice(loader, count))


def by_bin(ranks: list[list[Step]], index: int, what: str = "digests") -> dict[int, int]:
    """Global bin -> digest of one step, over all ranks."""
    return {
        bin_: int(value)
        for rank in ranks
        for bin_, value in zip(
            rank[index].bins, [value for b in rank[index].batches for value in getattr(b, what)], strict=True
        )
    }


def chain(ranks: list[list[Step]]) -> str:
    value = EMPTY_CHAIN
    for index in range(len(ranks[0])):
        digests = by_bin(ranks, index)
        assert sorted(digests) == list(range(SETTINGS.bins_per_step))
        value = extend_chain(value, [digests[i] for i in sorted(digests)])
    return value


def test_the_flat_layout(reader: CorpusReader) -> None:
    bins = window(reader)[:3]
    batch = masked(reader).batch(bins, [1, 2, 2**63 + 5])
    per_bin = SETTINGS.documents_per_bin + 1
    assert batch.tokens.shape == labels_of(batch).shape == batch.positions.shape == batch.documents.shape == (3 * 128,)
    assert batch.tokens.dtype == labels_of(batch).dtype == batch.positions.dtype == batch.documents.dtype == torch.int64
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
    assert torch.equal(batch.targets[0].slots, (labels_of(batch) != IGNORED).nonzero().flatten())
    assert batch.counts.tolist() == [len(batch.targets[0].slots)]
    assert batch.draw_keys == (1, 2, 2**63 + 5)
    assert batch.to("cpu").tokens.equal(batch.tokens)


def test_arrays_give_the_bytes_of_the_kernels(reader: CorpusReader) -> None:
    rates = MaskSettings(mask_prob=0.5, random_prob=0.4)
    bins = window(reader)[:20]
    batch = masked(reader, mask=rates, seed=3).batch(bins, range(20))
    rows, of_bins = [], []
    for index, bin_ in enumerate(bins):
        tokens = gathered(reader, bin_)
        inputs, targets = corrupted(tokens, bin_, rates, seed=3)
        of_bins.append(fill_bin(bin_, inputs, (targets, tokens[targets])))
        rows.append(spread(bin_.lengths, inputs, 128, index * (SETTINGS.documents_per_bin + 1)))
    for name, expected in zip(("tokens", "positions", "documents"), np.concatenate(rows, axis=1), strict=True):
        assert np.array_equal(getattr(batch, name), expected), name
    assert batch.digests.numpy().view(np.uint64).tolist() == [of_bin.digest for of_bin in of_bins]
    each = [of_bin.targets[0] for of_bin in of_bins]
    assert batch.targets[0].slots.tolist() == [128 * i + s for i, (slots, _) in enumerate(each) for s in slots]
    assert batch.targets[0].labels.tolist() == [label for _, labels in each for label in labels]
    assert batch.counts.tolist() == [sum(len(slots) for slots, _ in each)]


@pytest.mark.filterwarnings("error")  # NumPy's, of integers that wrap around
def test_batches_are_the_same_without_numba(reader: CorpusReader, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = MaskSettings(mask_prob=0.5, random_prob=0.4)
    compiled = masked(reader, mask=rates, seed=3).batch(window(reader)[:20], range(20))
    without_numba(monkeypatch)
    plain = masked(reader, mask=rates, seed=3).batch(window(reader)[:20], range(20))
    for name in ("tokens", "positions", "documents", "cu_seqlens", "counts", "digests"):
        assert torch.equal(getattr(compiled, name), getattr(plain, name)), name
    for name in ("slots", "labels"):
        assert torch.equal(getattr(compiled.targets[0], name), getattr(plain.targets[0], name)), name


def test_documents_are_slices_with_termini_where_they_are(reader: CorpusReader) -> None:
    length = int(reader.num_residues(np.array([record := int(np.argmax(reader.num_residues(np.arange(300))))]))[0]) + 2
    crops = [Bin(*(np.array([v]) for v in (record, 0, start, 60))) for start in (0, length - 60)]
    kinds = set()
    unmasked = masked(reader, mask=MaskSettings(select_prob=1e-15))
    for packed in [*crops, *window(reader)]:
        batch = unmasked.batch([packed], [0])
        for (a, b), sample, start in zip(batch.spans, packed.samples, packed.starts, strict=True):
            whole = [CLS, *reader.residues(int(sample)).tolist(), EOS]
            assert batch.tokens[a:b].tolist() == whole[start : start + b - a]
            kinds.add((start == 0, start + b - a == len(whole)))
    assert len(kinds) == 4  # whole, begin alone, end alone, from the middle


def test_a_mixture_reads_from_each_store(tmp_path: Path) -> None:
    folders = [write_store(tmp_path / str(n), np.full(5, 20 + n), seed=n) for n in range(3)]
    both = CorpusReader(folders)
    samples = np.array([n << CORPUS_BITS | r for n in (2, 0, 1, 2) for r in (4, 1)])
    lengths = both.num_residues(samples) + 2
    assert lengths.tolist() == [24, 24, 22, 22, 23, 23, 24, 24]
    tokens = both.tokens(Bin(samples, samples * 0, samples * 0, lengths))
    for sample, end, length in zip(samples.tolist(), np.cumsum(lengths).tolist(), lengths.tolist(), strict=True):
        alone = CorpusReader([folders[sample >> CORPUS_BITS]])
        record = sample & ((1 << CORPUS_BITS) - 1)
        assert tokens[end - length : end].tolist() == [CLS, *alone.residues(record).tolist(), EOS]


def test_a_store_that_grows_is_mapped_again(tmp_path: Path) -> None:
    lengths = np.random.default_rng(1).integers(1, 50, 40)
    write_store(tmp_path / "whole", lengths)
    growing = tmp_path / "growing"
    growing.mkdir()
    content = {name: (tmp_path / "whole" / name).read_bytes() for name in ("tokens.bin", "offsets.bin")}
    growing.joinpath("offsets.bin").write_bytes(content["offsets.bin"][: 8 * 11 + 3])  # a write that is under way
    growing.joinpath("tokens.bin").write_bytes(content["tokens.bin"][: int(lengths[:10].sum())])
    reader, whole = CorpusReader([growing]), CorpusReader([tmp_path / "whole"])
    assert np.array_equal(reader.residues(9), whole.residues(9))
    for name, written in content.items():
        growing.joinpath(name).write_bytes(written)
    assert np.array_equal(reader.num_residues(np.arange(40)), lengths)
    assert np.array_equal(reader.residues(39), whole.residues(39))


@pytest.mark.parametrize(
    ("world_size", "workers", "bins_per_forward"),
    [
        *((1, 0, 3), (2, 0, 1), (3, 0, 3), (5, 0, 1), (7, 0, 1)),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((2, 2, 3), (3, 1, 1))),
    ],
)
def test_the_world_has_no_part_in_what_comes(
    reader: CorpusReader, world_size: int, workers: int, bins_per_forward: int
) -> None:
    settings = replace(SETTINGS, bins_per_forward=bins_per_forward, workers=workers)
    # 60 steps of 7 bins: past the end of the corpus' first pass, and across the curriculum's stage.
    reference = some(reader, 60)
    ranks = [some(reader, 60, rank, world_size, settings) for rank in range(world_size)]
    assert reference[-1].cursor.epoch >= 1
    assert chain(ranks) == chain([reference])
    for rank in ranks:
        assert [s.cursor for s in rank] == [s.cursor for s in reference]
        assert [s.num_tokens for s in rank] == [s.num_tokens for s in reference]
        assert [s.squared_lengths for s in rank] == [s.squared_lengths for s in reference]
        assert all(b.num_bins <= bins_per_forward for s in rank for b in s.batches)
    spans = [end - start for batch in reference[0].batches for start, end in batch.spans]
    assert (reference[0].num_tokens, reference[0].squared_lengths) == (sum(spans), sum(n * n for n in spans))
    keys = by_bin(ranks, 0, "draw_keys")
    assert keys == by_bin([reference], 0, "draw_keys")
    assert len(set(keys.values())) == 7


def test_bins_are_dealt_by_attention_cost(reader: CorpusReader) -> None:
    (step,) = some(reader, 1, rank=1, world_size=3)
    bins = [b for b, _ in islice(plan(reader).bins(Cursor()), 7)]
    costs = [attention_cost(b.lengths) for b in bins]
    assert list(step.bins) == balance(costs, 3)[1]
    assert step.imbalance == imbalance(costs, balance(costs, 3)) > 1


@pytest.mark.parametrize(
    ("workers", "steps"), [(0, (1, 20, 45, 59)), pytest.param(2, (1, 20, 45, 59), marks=pytest.mark.slow)]
)
def test_a_step_is_found_again_from_its_cursor(reader: CorpusReader, workers: int, steps: tuple[int, ...]) -> None:
    settings = replace(SETTINGS, workers=workers)
    reference = some(reader, 60)
    for at in steps:
        (again,) = some(reader, 1, settings=settings, cursor=reference[at - 1].cursor, first_step=at)
        assert by_bin([[again]], 0) == by_bin([reference], at)
        assert again.batches[0].draw_keys == reference[at].batches[0].draw_keys


@pytest.mark.slow
def test_what_is_read_ahead_is_not_consumed(reader: CorpusReader) -> None:
    """Three restarts in one pass, each from the last step taken while workers were ahead of it."""
    settings = replace(SETTINGS, workers=2)
    reference, seen, cursor = some(reader, 24), [], Cursor()
    for start in (0, 5, 11):
        seen += some(reader, 6, settings=settings, cursor=cursor, first_step=start)[
            : 6 if start == 11 else 5 + (start > 0)
        ]
        cursor = seen[-1].cursor
    assert [by_bin([seen], i) for i in range(17)] == [by_bin([reference], i) for i in range(17)]


def test_controls_seed_and_cursor_change_the_chain(reader: CorpusReader) -> None:
    reference = chain([some(reader, 10)])
    other_seed = chain([some(reader, 10, seed=1)])
    off_by_one = chain([some(reader, 10, cursor=Cursor(bin=1))])
    assert len({reference, other_seed, off_by_one}) == 3


@pytest.mark.launch
def test_workers_end_with_the_loader(reader: CorpusReader) -> None:
    before = psutil.Process().children(recursive=True)
    loader = Loader(masked(reader), plan(reader, replace(SETTINGS, workers=2)), Cursor(), 0, 0, 1)
    next(loader)
    begun = [process for process in psutil.Process().children(recursive=True) if process not in before]
    workers = [process for process in begun if process.ppid() != os.getpid()]  # others: the server that forked them
    assert len(workers) == 2
    loader.close()
    gc.collect()
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive


def test_an_error_in_a_worker_arrives(tmp_path: Path) -> None:
    folder = write_store(tmp_path, np.full(300, 50))
    loader = Loader(
        masked(CorpusReader([folder])), plan(CorpusReader([folder]), replace(SETTINGS, workers=1)), Cursor(), 0, 0, 1
    )
    (folder / "tokens.bin").unlink()
    with closing(loader), pytest.raises(FileNotFoundError, match=r"tokens\.bin"):
        next(loader)


@pytest.mark.slow
def test_the_model_draws_anew_each_step(reader: CorpusReader) -> None:
    keys = [int(k) for step in some(reader, 3) for batch in step.batches for k in batch.draw_keys]
    assert len(set(keys)) == 3 * 7


def test_the_chain_knows_the_order() -> None:
    assert extend_chain(EMPTY_CHAIN, [1, 2]) != extend_chain(EMPTY_CHAIN, [2, 1])
    assert extend_chain(EMPTY_CHAIN, [-1]) == extend_chain(
        EMPTY_CHAIN, [2**64 - 1]
    )  # torch's int64 and the digest are one number
    assert extend_chain(extend_chain(EMPTY_CHAIN, [1]), [2]) != extend_chain(EMPTY_CHAIN, [1, 2])


def test_the_chain_knows_every_step_before() -> None:
    assert extend_chain(extend_chain(EMPTY_CHAIN, [1]), [2]) != extend_chain(extend_chain(EMPTY_CHAIN, [3]), [2])
    assert extend_chain(extend_chain(EMPTY_CHAIN, [1]), [2]) != extend_chain(EMPTY_CHAIN, [2])


def test_the_digest_sees_everything_a_bin_feeds(reader: CorpusReader) -> None:
    packed = window(reader)[0]

    def digest(of: Bin = packed, mask: MaskSettings = SETTINGS.mask, seed: int = 0) -> int:
        return int(masked(reader, mask=mask, seed=seed).batch([of], [0]).digests)

    changed = [
        digest(),
        digest(seed=1),
        digest(mask=MaskSettings(mask_prob=1.0, random_prob=0.0)),
        digest(packed._replace(epochs=packed.epochs + 1)),
        digest(mask=MaskSettings(select_prob=0.3)),
        digest(packed._replace(samples=packed.samples[::-1], lengths=packed.lengths[::-1], starts=packed.starts[::-1])),
    ]
    assert len(set(changed)) == len(changed)
    assert digest() == digest()


@pytest.mark.slow
def test_the_digest_tells_equal_content_apart(tmp_path: Path) -> None:
    """Two records and two crops that look the same: which one it was still counts."""
    folder = write_store(tmp_path, np.array([100, 100]))
    (folder / "tokens.bin").write_bytes(bytes([5]) * 200)
    twins = CorpusReader([folder])

    def digest(record: int, start: int) -> int:
        documents = Bin(*(np.array([v]) for v in (record, 0, start, 50)))
        return int(masked(twins, mask=MaskSettings(select_prob=1e-15)).batch([documents], [0]).digests)

    assert len({digest(0, 10), digest(1, 10), digest(0, 11)}) == 3


def test_more_ranks_than_bins(reader: CorpusReader) -> None:
    with pytest.raises(ValueError, match=r"bins_per_step is 7, but 8 processes train"):
        Loader(masked(reader), plan(reader), Cursor(), 0, 0, 8)


def test_batches_move_what_a_model_reads(reader: CorpusReader) -> None:
    batch: Batch = masked(reader).batch(window(reader)[:1], [7])
    moved = batch.to("meta")
    read = moved.tokens, moved.targets[0].labels, moved.targets[0].slots, moved.cu_seqlens
    assert {tensor.device.type for tensor in read} == {"meta"}
    assert moved.digests.device.type == moved.counts.device.type == "cpu"  # the step sums them there
    assert moved.spans == batch.spans


def test_a_bin_that_is_left_out_changes_nothing_else(reader: CorpusReader) -> None:
    """Its place is taken by one without documents, as an idle batch has none; all others are as they were."""
    left_out = (3, 8, 9, 20)  # places 3; 1 and 2; and 6 of the steps 0, 1 and 2
    settings = replace(SETTINGS, skip_bins=left_out, bins_per_forward=2)
    plain = replace(SETTINGS, bins_per_forward=2)
    for world_size in (1, 2):
        for rank in range(world_size):
            whole = some(reader, 4, rank, world_size, plain)
            for number, (a, b) in enumerate(zip(whole, some(reader, 4, rank, world_size, settings), strict=True)):
                assert replace(a, batches=()) == replace(b, batches=())
                for of, with_all, without in zip(range(0, 9, 2), a.batches, b.batches, strict=False):
                    gone = [7 * number + bin_ in left_out for bin_ in a.bins[of : of + 2]]
                    idle, slots = with_all.idle(), 128
                    for place, is_gone in enumerate(gone):
                        cut = slice(place * slots, (place + 1) * slots)
                        expected = idle if is_gone else with_all
                        for name in ("tokens", "positions", "documents"):
                            assert torch.equal(getattr(without, name)[cut], getattr(expected, name)[cut]), name
                        of_bin = slice(17 * place, 17 * (place + 1))
                        assert torch.equal(without.cu_seqlens[of_bin], expected.cu_seqlens[of_bin])
                        assert without.digests[place] == expected.digests[place]
                        targets = without.targets[0].between(cut.start, cut.stop)
                        assert torch.equal(targets.slots, expected.targets[0].between(cut.start, cut.stop).slots)
                        assert (len(targets.slots) == 0) == is_gone
                    assert without.draw_keys == with_all.draw_keys
                    assert len(without.spans) == sum(not gone[first // slots] for first, _ in with_all.spans), (
                        "documents of the others"
                    )
    resumed = some(reader, 2, settings=settings, cursor=some(reader, 2)[-1].cursor, first_step=2)
    assert by_bin([resumed], 0)[6] == 0
    assert by_bin([resumed], 1) == by_bin([some(reader, 4)], 3)


def test_bins_that_are_left_out_have_numbers() -> None:
    for wrong in ((-1,), (3, 3)):
        with pytest.raises(ValueError, match=r"data.skip_bins is \(.*; each must be the number of a bin, from 0 on"):
            replace(SETTINGS, skip_bins=wrong)
