"""Scores of variants against a loop over them through transformers, one variant at a time, from the same weights.

    python -m benchmarks.scoring
    python -m benchmarks.scoring --quick

In: the single mutants of a beta-lactamase, or drawn ones. Out: a table and the JSON line of `benchmarks.report`. Kept:
nothing. Ours scores every variant; the loop takes the same time for each, so it is timed on some, chosen by their
hashes. First the scores of these are compared.
"""

import argparse
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.embedding import DATA
from benchmarks.report import Row, report
from benchmarks.results.record import parse_options
from benchmarks.timing import side_by_side
from data.alphabet import STANDARD_RESIDUES
from finetune.score.plan import Scheme, Variant
from finetune.score.scorer import VariantScorer
from finetune.score.variant_table import read_variants
from finetune.tables.read import read_table
from finetune.tables.wild_types import named_wild_types, read_wild_types
from pretrain.model.build import build_initialized
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.settings import ModelSettings
from pretrain.model.weights import io as transformers_io

TIMED: dict[Scheme, int] = {"masked-marginal-wt-fill": 200, "wt-marginal": 200, "pseudo-likelihood": 1}
"""Variants that the loop is timed on."""
BARS: dict[Scheme, float] = {"masked-marginal-wt-fill": 12.0, "wt-marginal": 0.0, "pseudo-likelihood": 0.0}
"""Least ratio; 0 where it is only reported."""
ASSAY = "zeroshot/BLAT_ECOLX_Ranganathan2015_labeled.csv.gz"
PROTEINS = "zeroshot/P62593_BLAT_variants.fasta.gz"


class Loop:
    """Scores through transformers, a variant and a forward pass at a time, by the definitions of the schemes."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForMaskedLM, AutoTokenizer

        self.model = AutoModelForMaskedLM.from_pretrained(folder).train(False)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    @torch.no_grad()
    def probabilities(self, sequence: str, masked: Sequence[int]) -> Tensor:
        """(tokens, V) log probabilities of a sequence with these residues masked."""
        inputs = self.tokenizer(sequence, return_tensors="pt")
        inputs["input_ids"][0, [at + 1 for at in masked]] = self.tokenizer.mask_token_id
        found: Tensor = self.model(**inputs).logits[0].double().log_softmax(-1)
        return found

    def __call__(self, target: str, variant: Variant, scheme: Scheme) -> float:
        """The score of one variant."""
        if scheme == "pseudo-likelihood":
            letters = enumerate(variant.sequence)
            return sum(
                float(self.probabilities(variant.sequence, (at,))[at + 1, self._id(letter)]) for at, letter in letters
            )
        mutated = variant.mutated or ()
        if scheme == "masked-marginal-wt-fill":
            of_place = {at: self.probabilities(target, (at,)) for at in mutated}
        else:
            whole = self.probabilities(target, mutated if scheme == "masked-marginal-joint" else ())
            of_place = dict.fromkeys(mutated, whole)
        return sum(
            float(found[at + 1, self._id(variant.sequence[at])] - found[at + 1, self._id(target[at])])
            for at, found in of_place.items()
        )

    def _id(self, letter: str) -> int:
        return int(self.tokenizer.convert_tokens_to_ids(letter))


def written(preset: str, folder: Path, scale: float = 1.0) -> None:
    """Random weights of a preset, as transformers reads them; matrices times `scale`, so that residues differ more."""
    shape, weights = build_initialized(ModelSettings(preset=preset), 0)
    model = MaskedLanguageModel(shape)
    first = {name: weight() for name, weight in weights.items()}
    model.load_state_dict({name: weight * scale if weight.ndim > 1 else weight for name, weight in first.items()})
    transformers_io.save(model, folder)


def blat(data: Path) -> tuple[str, list[Variant]]:
    """The wild type of a beta-lactamase, and the 4,996 single mutants of an assay."""
    proteins = read_wild_types(str(data / PROTEINS))
    target = next(letters for name, letters in proteins.items() if "_P20P|" in name)
    table = read_table(str(data / ASSAY))
    rows = read_variants(table, named_wild_types(table, None, {"BLAT": target}, PROTEINS), mutation=["mutant"])
    return target, [variant for variant in rows.variants if variant is not None]


def drawn(residues: int, count: int, mutations: int = 1, seed: int = 0) -> tuple[str, list[Variant]]:
    """A random protein and random variants with so many substitutions each."""
    rng = np.random.default_rng(seed)
    target = "".join(rng.choice(list(STANDARD_RESIDUES), residues))
    return target, substituted(target, count, mutations, seed)


def substituted(target: str, count: int, mutations: int, seed: int = 0) -> list[Variant]:
    """Random variants of a protein with so many substitutions each."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        places = sorted(rng.choice(len(target), mutations, replace=False).tolist())
        letters = list(target)
        for at in places:
            letters[at] = str(rng.choice([each for each in STANDARD_RESIDUES if each != target[at]]))
        found.append(Variant("".join(letters), tuple(places)))
    return found


def by_hash(variants: Sequence[Variant], count: int) -> list[int]:
    """Numbers of some variants, chosen by hashes of their sequences."""
    order = sorted(range(len(variants)), key=lambda n: sha256(variants[n].sequence.encode()).digest())
    return order[:count]


def difference(ours: VariantScorer, theirs: Loop, target: str, variants: Sequence[Variant], scheme: Scheme) -> float:
    """Largest difference between the scores of both."""
    found: NDArray[np.float64] = ours(target, variants, scheme).values
    return float(max(abs(theirs(target, each, scheme) - mine) for each, mine in zip(variants, found, strict=True)))


def measured(preset: str, target: str, variants: Sequence[Variant], scheme: Scheme, timed: int, rounds: int) -> float:
    """How many times as many variants ours scores a CPU second.

    Raises:
        RuntimeError: the scores differ by more than 1e-4.
    """
    some = [variants[number] for number in by_hash(variants, timed)]
    # A pseudo-likelihood shares nothing between variants, so that a few are all that is needed on either side.
    every = some if scheme == "pseudo-likelihood" else variants
    with tempfile.TemporaryDirectory() as scratch:
        written(preset, Path(scratch))
        ours, theirs = VariantScorer.open(scratch), Loop(Path(scratch))
    off = difference(ours, theirs, target, some, scheme)
    print(f"{preset}, {scheme}: largest difference {off:.1e}", flush=True)
    if off > 1e-4:
        raise RuntimeError(f"{preset}, {scheme}: the scores differ by {off:.1e}; must be 1e-4")
    works = (lambda: ours(target, every, scheme), lambda: [theirs(target, each, scheme) for each in some])
    seconds = side_by_side(*works, rounds=rounds)
    rates = len(every) / seconds[0], len(some) / seconds[1]
    print(f"    ours {rates[0]:,.1f} variants a CPU second, the loop {rates[1]:,.1f}", flush=True)
    return rates[0] / rates[1]


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scoring", description="Scores of variants against a loop over them, by CPU time."
    )
    parser.add_argument("--data", type=Path, default=DATA, help="folder of real data")
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are taken")
    parser.add_argument("--preset", default="esm2_800k", help="of the model, whose weights are random")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--quick", action="store_true", help="only show that it runs: a tiny model, no ratios")
    options = parse_options(parser, words)
    torch.set_num_threads(options.threads)
    if options.quick:
        target, variants = drawn(8, 20)
    elif not (options.data / ASSAY).is_file():
        parser.error(f"there is no {options.data / ASSAY}; name the folder of real data with --data")
    else:
        target, variants = blat(options.data)
    print(f"{len(variants):,} variants of {len(target)} residues, {options.threads} thread(s)", flush=True)
    rows = []
    for scheme, bar in BARS.items():
        ratio: float | None = None
        if options.quick:
            measured("esm2_60k", target, variants, scheme, 2, 1)
        else:
            ratio = measured(options.preset, target, variants, scheme, TIMED[scheme], options.rounds)
        work = f"{options.preset}, {scheme}: variants a CPU second"
        rows.append(Row(work, "one variant at a time through transformers", ratio, bar, "higher"))
    report("scoring", rows, record=options.record)


if __name__ == "__main__":
    main()
