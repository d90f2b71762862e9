"""The data plane against what users run today.

    python -m benchmarks.data [--records 360000] [--store-mb 2000]

CPU seconds of one process, both sides interleaved, medians of several rounds; the corpus is drawn like UniRef50:
log-normal lengths of mean 280, UniRef headers, lines of 60.
"""

import argparse
import gzip
import os
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from Bio.SeqIO.FastaIO import SimpleFastaParser
from isal import igzip
from transformers import DataCollatorForLanguageModeling, EsmTokenizer

from benchmarks.proteins import lengths
from benchmarks.report import Row, report
from benchmarks.resident_memory import peak_mib
from benchmarks.results.record import parse_options
from benchmarks.timing import Work, side_by_side
from data.alphabet import CLS, EOS, LETTER_IDS, STANDARD_RESIDUES, TOKENS
from data.batches.loader import Loader
from data.commands.digest import cursor_at
from data.corpus.corpora import Corpora
from data.corpus.prepare import open_corpora, prepare_corpora
from data.order.balance import attention_cost, balance, imbalance
from data.order.plan import SPECIAL_TOKENS, Cursor
from data.settings import DataSettings
from data.sources.fasta import FastaSource


def write_fasta(path: Path, count: int) -> None:
    """A file of `count` records."""
    rng = np.random.default_rng(0)
    letters = np.frombuffer(STANDARD_RESIDUES.encode(), np.uint8)
    with path.open("wb") as file:
        for number, length in enumerate(lengths(count).tolist()):
            sequence = letters[rng.integers(0, 20, length)].tobytes()
            file.write(
                b">UniRef50_A%09d Uncharacterized protein n=1 Tax=Bacteria TaxID=2 RepID=A%09d_9BACT\n"
                % (number, number)
            )
            file.writelines(sequence[start : start + 60] + b"\n" for start in range(0, length, 60))


def ours(path: Path) -> Work:
    """Token ids and offsets of a FASTA file, by this project."""

    def read() -> int:
        return sum(len(block.tokens) for block in FastaSource(str(path), "refuse").blocks())

    return read


def biopython(path: Path) -> Work:
    """The same result by Biopython's fastest parser, one join and one translate."""
    table = LETTER_IDS.tobytes()

    def read() -> int:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            sequences = [sequence for _, sequence in SimpleFastaParser(file)]  # type: ignore[no-untyped-call]
        tokens = np.frombuffer("".join(sequences).encode("ascii").translate(table), np.uint8)
        offsets = np.cumsum([0, *map(len, sequences)])
        return int(offsets[-1]) + 0 * len(tokens)

    return read


def isal_alone(path: Path) -> Work:
    """Decompression by isal through its fastest interface; the output is not used."""
    buffer = bytearray(4 << 20)

    def read() -> None:
        with igzip.IGzipFile(path, "rb") as file:
            while file.readinto(buffer):
                pass

    return read


def parsing(folder: Path, count: int) -> list[Row]:
    """FASTA to token ids."""
    plain, packed = folder / "a.fasta", folder / "a.fasta.gz"
    write_fasta(plain, count)
    packed.write_bytes(gzip.compress(plain.read_bytes(), 6))
    mine, theirs = side_by_side(ours(plain), biopython(plain))
    mine_packed, theirs_packed, alone = side_by_side(ours(packed), biopython(packed), isal_alone(packed))
    return [
        Row("FASTA -> token ids", "SimpleFastaParser", theirs / mine, 12.0, "higher"),
        Row("FASTA.gz -> token ids", "gzip + SimpleFastaParser", theirs_packed / mine_packed, 4.0, "higher"),
        Row("FASTA.gz -> token ids", "isal alone", alone / mine_packed, 0.8, "higher"),
    ]


def filling(corpora: Corpora, settings: DataSettings) -> list[Row]:
    """Gather + mask + labels: bins of ours against transformers' collator on batches sorted by length."""
    bins = corpora.plan(0).window(0, 0, 0)
    assert bins is not None
    chosen = bins[:32]
    samples = np.concatenate([b.samples for b in chosen])
    crops = {
        int(s): [CLS, *corpora.reader.residues(int(s))[: settings.crop_tokens - SPECIAL_TOKENS].tolist(), EOS]
        for s in samples
    }
    in_order = sorted(crops.values(), key=len)  # the best case for them: hardly any padding
    batches: list[list[dict[str, list[int]]]] = [[]]
    for tokens in in_order:
        if (len(batches[-1]) + 1) * len(tokens) > settings.bin_tokens:
            batches.append([])
        # The mask of special tokens is given ready-made: without it the collator spends longer finding them.
        special = [1, *[0] * (len(tokens) - 2), 1]
        batches[-1].append({"input_ids": tokens, "special_tokens_mask": special})
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Path(folder) / "vocab.txt"
        vocabulary.write_text("\n".join(TOKENS))
        collator = DataCollatorForLanguageModeling(EsmTokenizer(str(vocabulary)), mlm_probability=0.15)

    def theirs() -> None:
        for features in batches:
            collator(features)

    masked = corpora.masked(0)

    def mine() -> None:
        for packed in chosen:
            masked.batch([packed], [0])

    torch.manual_seed(0)
    our_tokens, their_tokens = sum(b.num_tokens for b in chosen), sum(map(len, in_order))
    ours_s, theirs_s = side_by_side(mine, theirs)
    ratio = (our_tokens / ours_s) / (their_tokens / theirs_s)
    print(f"gather + mask + labels: {our_tokens / ours_s / 1e6:.1f} M tokens a CPU second, {ratio:.1f} times theirs")
    return [Row("gather + mask + labels, packed", "HF collator, sorted by length", ratio, 50.0, "higher")]


def planning(corpora: Corpora, settings: DataSettings) -> list[Row]:
    """Waste, the planner's share of the work, the start far into a run, and the balance of ranks."""
    plan = corpora.plan(0)
    bins = plan.window(0, 0, 0) or []
    waste = 1 - sum(b.num_tokens for b in bins) / (len(bins) * settings.bin_tokens)
    rows = [Row("padding, T = 16k, window 2^17", "share of all slots", waste, 0.005, "lower")]
    means = [b.num_tokens / len(b.lengths) for b in bins]
    print(f"mean length per bin {np.mean(means):.0f}, standard deviation {np.std(means):.0f} tokens")

    some = bins[:: len(bins) // 64]
    masked = corpora.masked(0)
    window_s, fill_s = side_by_side(
        lambda: plan.window(0, 1, 0),
        lambda: [masked.batch([b], [0]).num_bins for b in some],
    )
    share = window_s / (window_s + fill_s * len(bins) / len(some))
    rows.append(Row("planner", "all work of the loader", share, 0.05, "lower"))

    costs = [attention_cost(b.lengths) for b in bins]
    for per_step in (128, 64, 32, 16, 8):
        steps = [costs[i : i + per_step] for i in range(0, len(costs) - per_step + 1, per_step)]
        spread = float(np.mean([imbalance(step, balance(step, 8)) for step in steps]))
        print(f"slowest over mean rank cost, 8 ranks, {per_step} bins a step: {spread:.4f}")
        if per_step == settings.bins_per_step:
            rows.append(Row("slowest rank, 8 ranks, T = 16k, crop 1024", "mean rank", spread, 1.05, "lower"))

    small = replace(settings, bins_per_step=1, window_sequences=4096, crop_tokens=1024)
    many = replace(corpora, settings=small)
    far = many.plan(0)
    million = cursor_at(far, 1_000_000)
    print(f"step 1,000,000 of a small step is pass {million.epoch}, window {million.window}")

    def start(cursor: Cursor, step: int) -> Work:
        def first() -> None:
            with closing(Loader(many.masked(0), far, cursor, step, 0, 1)) as loader:
                next(loader)

        return first

    at_zero, at_million = side_by_side(start(Cursor(), 0), start(million, 1_000_000))
    rows.append(Row("start at step 1,000,000", "start at step 0", at_million / at_zero, 1.5, "lower"))
    return rows


def rates(corpora: Corpora, settings: DataSettings) -> list[Row]:
    """Wall-clock rate of the loader; the bar is for a GPU machine."""
    best = 0.0
    for workers in (0, 1, 2, 4):
        if workers > (os.cpu_count() or 1):
            continue
        chosen = replace(settings, workers=workers, bins_per_step=32)
        loaded = replace(corpora, settings=chosen)
        with closing(Loader(loaded.masked(0), loaded.plan(0), Cursor(), 0, 0, 1)) as loader:
            for _ in islice(loader, 8):  # until workers have started, and what they had read ahead is consumed
                pass
            started, tokens = time.perf_counter(), 0
            while time.perf_counter() - started < 4:
                tokens += next(loader).num_tokens
            rate = tokens / (time.perf_counter() - started)
        print(f"loader, {workers} workers: {rate / 1e6:.1f} M tokens a second (wall time)")
        best = max(best, rate)
    on_gpu = best / 3e6 if torch.cuda.is_available() else None
    return [Row("at most 4 workers, pinned batches, GPU machine", "3 M tokens a second", on_gpu, 1.0, "higher")]


def memory(folder: Path, store_mb: int) -> list[Row]:
    """Resident memory of building from, and iterating, a FASTA file of `store_mb` megabytes."""
    one = folder / "part.fasta"
    write_fasta(one, 360_000)
    part = one.read_bytes()
    with (folder / "large.fasta").open("wb") as file:
        for _ in range(max(1, store_mb * 1_000_000 // len(part))):
            file.write(part)
    size = (folder / "large.fasta").stat().st_size / 1e9
    works = (("build_large", "building a store", 1024.0), ("iterate_large", "filling bins from it", 500.0))
    return [
        Row(f"{name}, {size:.1f} GB of FASTA: peak resident MiB", "1 MiB", peak_mib(what, folder), bar, "lower")
        for what, name, bar in works
    ]


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description="The data plane against what users run today.")
    parser.add_argument("--records", type=int, default=360_000, help="proteins of the corpus; 360,000 are 130 MB")
    parser.add_argument(
        "--store-mb", type=int, default=2000, help="FASTA for the memory rows, in MB; 0 leaves them out"
    )
    options = parse_options(parser)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        rows = parsing(folder, min(options.records, 250_000))
        write_fasta(folder / "b.fasta", options.records)
        settings = DataSettings(sources=(str(folder / "b.fasta"),), store_dir=str(folder / "stores"))
        corpora = open_corpora(settings, prepare_corpora(settings))
        rows += filling(corpora, settings)
        rows += planning(corpora, settings)
        rows += rates(corpora, settings)
        if options.store_mb:
            rows += memory(folder, options.store_mb)
    report("data", rows, record=options.record)


if __name__ == "__main__":
    main()
