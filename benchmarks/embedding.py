"""Embedding against transformers: mean vectors of the same proteins from the same weights, packed and padded.

    python -m benchmarks.embedding
    python -m benchmarks.embedding --quick

In: 600 proteins of DeepLoc, or drawn ones. Out: a table and the JSON line of `benchmarks.report`. Kept: nothing. Either
side gets the sequences as text and returns the mean over the residues of each; first both are compared.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.finetune.rows import Protein, deeploc, drawn
from benchmarks.report import Row, report
from benchmarks.results.record import parse_options
from benchmarks.timing import side_by_side
from data.batches.packed import BinSize, PlainContents, TokenArrays, token_ids
from data.order.plan import SPECIAL_TOKENS
from finetune.adaptation.vectors import Embedder, windows_of
from pretrain.model.build import build_initialized
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.settings import ModelSettings
from pretrain.model.weights import io as transformers_io
from pretrain.trained_model import ENCODER, encoder_of, open_trained_model

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
CROP = 1024
"""Longest document, begin and end token counted."""
BARS = {"esm2_800k": (1.4, 2.5), "esm2_8m": (0.0, 0.0)}
"""Least ratio against transformers sorted by length, and in the order of the file; 0 where it is only reported."""


class Ours:
    """The embedder of `finetune.embed`."""

    def __init__(self, folder: Path, bin_tokens: int) -> None:
        encoder = encoder_of(open_trained_model(folder, ENCODER))
        self.embedder = Embedder(encoder, (encoder.shape.layers,), "mean", autocast=False)
        self.bin_tokens = bin_tokens

    def __call__(self, sequences: Sequence[str]) -> NDArray[np.float32]:
        """(n, D) in the order of `sequences`."""
        lengths = np.array([len(letters) + SPECIAL_TOKENS for letters in sequences])
        contents = PlainContents(TokenArrays([*map(token_ids, sequences)]), BinSize.holding(lengths, self.bin_tokens))
        return self.embedder(contents, np.arange(len(lengths)), windows_of(lengths, CROP))[:, 0]


class Theirs:
    """transformers' encoder on padded batches."""

    def __init__(self, folder: Path, batch_sequences: int) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.model = AutoModel.from_pretrained(folder, add_pooling_layer=False).train(False)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.batch_sequences = batch_sequences

    @torch.no_grad()
    def __call__(self, sequences: Sequence[str], is_sorted: bool) -> Tensor:
        """(n, D) in the order of `sequences`; batches are made of neighbours by length, or of neighbours."""
        order = sorted(range(len(sequences)), key=lambda n: -len(sequences[n])) if is_sorted else range(len(sequences))
        found = torch.empty(len(sequences), self.model.config.hidden_size)
        for first in range(0, len(sequences), self.batch_sequences):
            chosen = list(order[first : first + self.batch_sequences])
            batch = self.tokenizer([sequences[n] for n in chosen], return_tensors="pt", padding=True)
            vectors = self.model(**batch).last_hidden_state
            weights = batch["attention_mask"].clone()
            weights[:, 0] = 0  # the begin token, and the end token of each row
            weights[torch.arange(len(chosen)), batch["attention_mask"].sum(1) - 1] = 0
            found[chosen] = (vectors * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)
        return found


def written(preset: str, folder: Path) -> None:
    """Random weights of a preset, as transformers reads them."""
    shape, weights = build_initialized(ModelSettings(preset=preset), 0)
    model = MaskedLanguageModel(shape)
    model.load_state_dict({name: weight() for name, weight in weights.items()})
    transformers_io.save(model, folder)


def measured(
    preset: str, proteins: Sequence[Protein], rounds: int, batch_sequences: int, bin_tokens: int
) -> tuple[float, float]:
    """CPU seconds of transformers over those of ours: sorted by length, and in the order of the file.

    Raises:
        RuntimeError: the vectors differ by more than 1e-5 of the largest.
    """
    sequences = [protein.sequence for protein in proteins]
    tokens = sum(map(len, proteins))
    with tempfile.TemporaryDirectory() as scratch:
        written(preset, Path(scratch))
        ours, theirs = Ours(Path(scratch), bin_tokens), Theirs(Path(scratch), batch_sequences)
    reference = theirs(sequences, True).numpy()
    off = float(np.abs(ours(sequences) - reference).max() / np.abs(reference).max())
    print(f"{preset}: largest difference {off:.1e} of the largest number", flush=True)
    if off > 1e-5:
        raise RuntimeError(f"{preset}: the vectors differ by {off:.1e} of the largest number; must be 1e-5")
    works = (lambda: ours(sequences), lambda: theirs(sequences, True), lambda: theirs(sequences, False))
    seconds = side_by_side(*works, rounds=rounds)
    for name, took in zip(("ours", "transformers, sorted by length", "transformers, unsorted"), seconds, strict=True):
        print(f"    {name}: {tokens / took:,.0f} real tokens a CPU second", flush=True)
    return seconds[1] / seconds[0], seconds[2] / seconds[0]


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.embedding", description="Embedding against transformers, by CPU time."
    )
    parser.add_argument("--data", type=Path, default=DATA, help="folder of real data")
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are taken")
    parser.add_argument("--only", nargs="+", choices=[*BARS], help="presets")
    parser.add_argument("--proteins", type=int, default=600, help="evenly from the file")
    parser.add_argument("--batch-sequences", type=int, default=8, help="of transformers")
    parser.add_argument("--bin-tokens", type=int, default=4096, help="of ours")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--quick", action="store_true", help="only show that it runs: a tiny model, no ratios")
    options = parse_options(parser, words)
    torch.set_num_threads(options.threads)
    if options.quick:
        measured("esm2_60k", drawn(40, 128), 1, options.batch_sequences, options.bin_tokens)
        proteins = []
    elif not options.data.is_dir():
        parser.error(f"there is no folder {options.data}; name the folder of real data with --data")
    else:
        every = deeploc(options.data, CROP)
        proteins = [every[number * len(every) // options.proteins] for number in range(options.proteins)]
        print(f"{len(proteins)} proteins, {sum(map(len, proteins)):,} tokens, {options.threads} thread(s)", flush=True)
    rows = []
    for preset, (by_length, unsorted) in BARS.items():
        ratios: tuple[float | None, float | None] = None, None
        if not options.quick and preset in (options.only or BARS):
            size = options.batch_sequences, options.bin_tokens
            ratios = measured(preset, proteins, options.rounds, *size)
        work = f"{preset}, mean vectors, crop {CROP:,}: proteins a CPU second"
        rows.append(Row(work, "transformers, sorted by length", ratios[0], by_length, "higher"))
        rows.append(Row(work, "transformers, in the order of the file", ratios[1], unsorted, "higher"))
    report("embedding", rows, record=options.record)


if __name__ == "__main__":
    main()
