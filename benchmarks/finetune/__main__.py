"""Fine-tuning against `transformers.Trainer` with `EsmForSequenceClassification`, on DeepLoc's locations.

    python -m benchmarks.finetune [--only 800k-full-512 quality] [--rounds 3] [--threads 1] [--quick]

Both sides train the same rows from the same weights with the same form of head, in one process, in turn, in float32 and
in equally many steps, and are compared by CPU seconds from the first step to the last. Ours is the whole loop of
`python -m finetune`. Theirs takes batches as they come, and batches grouped by length; of each kind a few whose cost is
that of the mean batch. With LoRA, adapters of rank 8 stand on query, key, value and output: on both sides peft's.

`quality`: the loss on 400 proteins that were held out, after two passes over the same 768, for three seeds.
"""

import argparse
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import NamedTuple

import torch

from benchmarks.finetune.ours import Sizes, Trained, first_weights, recipe, train_ours
from benchmarks.finetune.rows import Protein, batches, deeploc, drawn
from benchmarks.finetune.theirs import classifier, scored, train_theirs
from benchmarks.proteins import representative
from benchmarks.report import Row, report
from benchmarks.results.record import parse_options

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


class Case(NamedTuple):
    """One comparison of speed, and what it must reach."""

    size: str
    """Name of the model, without ``esm2_``."""
    lora: bool
    crop: int
    num_batches: int
    """Padded batches of a round."""
    random: float
    """Least ratio to batches as they come."""
    grouped: float
    """Least ratio to batches grouped by length."""

    @property
    def name(self) -> str:
        """The name whose beginning ``--only`` takes."""
        return f"{self.size}-{'lora' if self.lora else 'full'}-{self.crop}"


CASES = (
    Case("800k", False, 512, 10, 2.0, 1.15),
    Case("800k", False, 1022, 10, 2.0, 1.3),
    Case("8m", False, 512, 3, 2.0, 1.15),
    Case("8m", False, 1022, 3, 2.0, 1.3),
    Case("800k", True, 512, 10, 1.0, 1.0),
    Case("8m", True, 512, 3, 1.0, 1.0),
)
"""No ratio was asked for with adapters; the bar there is to be no slower."""
BATCH_SEQUENCES = 16
SEEDS, TRAINED_ON, HELD_OUT = 3, 768, 400


class Turn(NamedTuple):
    """Both sides on the same rows."""

    ours: Trained
    theirs: Trained

    @property
    def ratio(self) -> float:
        """How many times less CPU time ours takes."""
        return self.theirs.seconds / self.ours.seconds


def turn(
    sizes: Sizes,
    training: Sequence[Protein],
    held_out: Sequence[Protein],
    *,
    ours_first: bool,
    in_order: bool = True,
) -> Turn:
    """Train both sides from the same weights.

    Raises:
        RuntimeError: they do not begin as the same function, or were not trained on the same tokens.
    """
    with tempfile.TemporaryDirectory() as folder:
        described = recipe(sizes, training, held_out, Path(folder))
        weights = first_weights(described)
        mine = train_ours(described) if ours_first else None
        theirs = train_theirs(sizes, weights, training, held_out, in_order=in_order)
        mine = mine or train_ours(described)
    if mine.tokens != theirs.tokens:
        raise RuntimeError(f"ours was trained on {mine.tokens:,} tokens, transformers' on {theirs.tokens:,}")
    return Turn(mine, theirs)


def first_losses(sizes: Sizes, proteins: Sequence[Protein]) -> tuple[float, float]:
    """Loss of either side before its first step: ours after a run whose learning rate is next to nothing."""
    with tempfile.TemporaryDirectory() as folder:
        still = sizes._replace(peak_lr=1e-12)
        described = recipe(still, proteins[:-8], proteins[-8:], Path(folder))
        weights = first_weights(described)
        return train_ours(described).loss, scored(classifier(still, weights), proteins[-8:], sizes.classes)[0]


def speeds(case: Case, proteins: Sequence[Protein], sizes: Sizes, rounds: int) -> dict[bool, list[Turn]]:
    """Turns on batches as they come (False) and grouped by length (True), after one that warms up."""
    few = 2 * sizes.batch_sequences  # from everywhere, because files are sorted by class
    ours, theirs = first_losses(sizes, [proteins[number * len(proteins) // few] for number in range(few)])
    print(f"{case.name}: first loss of transformers {theirs:.5f}, ours {ours:.5f}", flush=True)
    if abs(ours - theirs) > 1e-4:
        raise RuntimeError(f"{case.name}: the first losses are {ours} and {theirs}; must be equal")
    found: dict[bool, list[Turn]] = {False: [], True: []}
    for number in range(rounds):
        for grouped in (False, True):
            some = batches(proteins, sizes.batch_sequences, number, grouped=grouped)
            chosen = representative(some, case.num_batches, number)  # type: ignore[arg-type]  # it asks for lengths
            rows: list[Protein] = [protein for batch in chosen for protein in batch]  # type: ignore[misc]
            used = {protein.sequence for protein in rows}
            held_out = [protein for protein in proteins if protein.sequence not in used][:8]
            found[grouped].append(turn(sizes._replace(seed=number), rows, held_out, ours_first=number % 2 == 0))
    return found


def print_speeds(turns: Sequence[Turn], name: str) -> None:
    """The absolute figures of some turns."""
    for side in ("theirs", "ours"):
        of = [getattr(turn, side) for turn in turns]
        rate = median(each.tokens / each.seconds for each in of)
        pads = 1 - sum(each.tokens for each in of) / sum(each.slots for each in of)
        print(f"    {name}, {side}: {rate:,.0f} real tokens a CPU second, {pads:.1%} padding, {of[0].steps} steps")
    print(f"    {name}: ours takes {median(turn.ratio for turn in turns):.2f} times less CPU time", flush=True)


def quality(proteins: Sequence[Protein], sizes: Sizes, seeds: int, trained_on: int, held_out: int) -> list[Turn]:
    """Turns of several seeds, each on all of the same rows in orders of their own."""
    order = torch.randperm(len(proteins), generator=torch.Generator().manual_seed(0)).tolist()
    mixed = [proteins[i] for i in order]
    held, training = mixed[:held_out], mixed[held_out : held_out + trained_on]
    found = []
    for seed in range(seeds):
        own = sizes._replace(seed=seed, passes=2, peak_lr=1e-3)
        found.append(turn(own, training, held, ours_first=seed % 2 == 0, in_order=False))
        mine, theirs = found[-1]
        print(f"    seed {seed}: loss {mine.loss:.4f} ours, {theirs.loss:.4f} theirs", end="")
        print(f"; accuracy {mine.accuracy:.3f}, {theirs.accuracy:.3f}", flush=True)
    return found


def quality_row(turns: Sequence[Turn] | None) -> Row:
    """The loss of ours over theirs; they may differ by twice the standard error over seeds, and by 1 %."""
    work, against = "800k: loss of held-out proteins after the same rows", "Trainer, three seeds"
    if not turns:
        return Row(work, against, None, 1.01, "lower")
    ours, theirs = [turn.ours.loss for turn in turns], [turn.theirs.loss for turn in turns]
    noise = math.hypot(stdev(ours), stdev(theirs)) / math.sqrt(len(turns)) if len(turns) > 1 else 0.0
    return Row(work, against, mean(ours) / mean(theirs), 1.01 + 2 * noise / mean(theirs), "lower")


def rows_of(case: Case, turns: dict[bool, list[Turn]] | None) -> list[Row]:
    """The rows of a case; without turns, they say that nothing was measured."""
    adapted = "LoRA" if case.lora else "all weights"
    work = f"{case.size}, {adapted}, crop {case.crop:,}: rows a CPU second"
    ratios = {grouped: median(turn.ratio for turn in of) for grouped, of in turns.items()} if turns else {}
    peft = " with peft" if case.lora else ""
    return [
        Row(work, f"Trainer{peft}, random batches", ratios.get(False), case.random, "higher"),
        Row(work, f"Trainer{peft}, grouped by length", ratios.get(True), case.grouped, "higher"),
    ]


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.finetune", description="Fine-tuning against transformers.Trainer."
    )
    parser.add_argument("--data", type=Path, default=DATA, help="folder of real data")
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are taken")
    parser.add_argument("--only", nargs="+", help="cases whose names begin so (800k-full-512, 8m, quality, ...)")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--quick", action="store_true", help="only show that it runs: tiny models, no ratios")
    options = parse_options(parser, words)
    torch.set_num_threads(options.threads)
    quick, only = options.quick, tuple(options.only or ())
    if not quick and not options.data.is_dir():
        parser.error(f"there is no folder {options.data}; name the folder of real data with --data")
    print(f"{options.threads} thread(s), {1 if quick else options.rounds} rounds", flush=True)
    rows = []
    for case in CASES:  # tiny models are alike whatever their case is called
        if (only and not case.name.startswith(only)) or (quick and not case.name.startswith("800k")):
            rows += rows_of(case, None)
            continue
        crop = 64 if quick else case.crop
        proteins = drawn(120, crop) if quick else deeploc(options.data, crop)
        classes = tuple(sorted({protein.label for protein in proteins}))
        sizes = Sizes("esm2_60k" if quick else f"esm2_{case.size}", crop, case.lora, BATCH_SEQUENCES, classes)
        turns = speeds(case._replace(num_batches=2) if quick else case, proteins, sizes, 1 if quick else options.rounds)
        for grouped, of in turns.items():
            print_speeds(of, "grouped" if grouped else "random")
        rows += rows_of(case, None if quick else turns)
    if not only or "quality" in only:
        proteins = drawn(120, 64) if quick else deeploc(options.data, 512)
        classes = tuple(sorted({protein.label for protein in proteins}))
        sizes = Sizes("esm2_60k" if quick else "esm2_800k", 64 if quick else 512, False, BATCH_SEQUENCES, classes)
        counts = (1, 64, 32) if quick else (SEEDS, TRAINED_ON, HELD_OUT)
        found = quality(proteins, sizes, *counts)
        rows.append(quality_row(None if quick else found))
    else:
        rows.append(quality_row(None))
    report("finetune", rows, record=options.record)


if __name__ == "__main__":
    main()
