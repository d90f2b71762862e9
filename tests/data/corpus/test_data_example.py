"""The example that the sign of `data` tells, computed."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import data
from data.alphabet import TOKENS
from data.batches.contents import MaskedContents
from data.batches.loader import Loader
from data.batches.masking import BertMask
from data.corpus.reader import CorpusReader
from data.order.plan import Cursor
from data.settings import DataSettings
from support.inputs.raw_store import Records, plan_over
from support.inputs.token_stores import store_of

PROTEINS = [("p0", "MKTAYIAKQR"), ("p1", "GGSGGS"), ("p2", "MKVLAAGIVG")]
SETTINGS = DataSettings(sources=("three.fasta",), crop_tokens=16, bin_tokens=24, bins_per_step=2, window_sequences=64)


@pytest.fixture
def reader(tmp_path: Path) -> CorpusReader:
    return CorpusReader([store_of(tmp_path, PROTEINS).folder])


def told(*words: str) -> None:
    said = " ".join(str(data.__doc__).split())
    for text in words:
        assert text in said


def test_the_order_and_the_bins(tmp_path: Path, reader: CorpusReader) -> None:
    plan = plan_over(reader, Records(3), SETTINGS)
    offsets = np.fromfile(next(tmp_path.rglob("offsets.bin")), "<u8").tolist()
    orders = [plan.sampler.window(number, 0).samples.tolist() for number in (0, 1)]
    first, second = plan.window(0, 0, 0)
    assert (offsets, orders) == ([0, 10, 16, 26], [[1, 2, 0], [1, 0, 2]])
    assert (first.samples.tolist(), second.samples.tolist()) == ([0], [1, 2])
    assert (first.lengths.tolist(), second.lengths.tolist()) == ([12], [8, 12])
    told("offsets.bin 0 10 16 26", "visits the records 1 2 0, and pass 1 visits 1 0 2", "of 8, 12 and 12 tokens")
    told("the bin of 0 first", *(f">{name} {residues}" for name, residues in PROTEINS))


@pytest.mark.parametrize(
    ("rank", "bin_", "shown", "truth"),
    [
        (0, 1, ["<cls>", *"GGSGGS", "<eos>", "<cls>", "M", "K", "<mask>", *"LAAGIVG", "<eos>"], "V"),
        (1, 0, ["<cls>", "<mask>", "K", "<mask>", *"AYIAKDR", "<eos>"], "MTQ"),
    ],
)
def test_what_each_rank_is_fed(reader: CorpusReader, rank: int, bin_: int, shown: list[str], truth: str) -> None:
    plan = plan_over(reader, Records(3), SETTINGS)
    with closing(
        Loader(MaskedContents(reader, SETTINGS, BertMask(SETTINGS.mask), 0), plan, Cursor(), 0, rank, 2)
    ) as loader:
        step = next(loader)
    (batch,) = step.batches
    slots = batch.tokens.tolist()
    assert (step.bins, [TOKENS[token] for token in slots]) == ((bin_,), shown + ["<pad>"] * (24 - len(shown)))
    (targets,) = batch.targets
    assert "".join(TOKENS[label] for label in targets.labels.tolist()) == truth
    assert step.cursor == Cursor(epoch=0, window=0, bin=2, tokens_before_window=0)
    told(
        "rank 0 gets bin 1 (documents 1 and 2), rank 1 gets bin 0", "on rank 0 the V of p2, on rank 1 M, T and Q of p0"
    )
    told("<mask> for V, M and T, and D for Q", "(pass 0, window 0, bin 2, 0 tokens before the window)")
