"""The rules of a proposal: every number that a choice rests on, with where it comes from.

In: nothing. Out: numbers, and a few functions of one number. Kept: nothing. Figures that were measured for this
project are in docs/results.md; they hold for models of 0.06 to 8 million parameters on two cores, and are extrapolated
beyond.
"""

import math

from zymogen.trainer.optimizer.kinds import optimizer_class

# How large a model, and how long ---------------------------------------------------------------------

SIZES = (
    *("modern_60k", "modern_800k", "modern_8m", "modern_35m"),
    *("modern_150m", "modern_300m", "modern_600m"),
)
"""Presets that are proposed, from small to large: ESM C's architecture, which with Muon learned more from the same
tokens than ESM-2's with AdamW at 0.8 million parameters. Larger ones need an engine that shards, which is a decision of
its own."""

TOKENS_PER_PARAMETER = 20.0
"""Least tokens for each parameter of a model larger than `SMALLEST`: the compute-optimal ratio of Hoffmann et al. 2022
(arXiv:2203.15556). A larger model would end before it has learned what a smaller one learns in the same time: on 9,478
proteins, one seed, 73 CPU seconds of modern_60k (4 million tokens, 62 for each parameter) gain 0.066 nats a residue
over residue frequencies, and some 200 CPU seconds of modern_800k (1 million tokens, 1.1 for each) 0.031."""

SMALLEST = "modern_60k"
"""The size that is taken where no size has enough tokens."""

MOST_PASSES = 40.0
"""Passes over the corpus at most. BERT made about 40 over its corpus with masks that were drawn again (Devlin et al.
2019, arXiv:1810.04805), and from about 40 on a repeated pass teaches a language model nothing (Muennighoff et al. 2023,
arXiv:2305.16264)."""

LEAST_STEPS = 300
"""Updates at least, whatever the corpus: fewer do not move random weights to where they have learned anything. A corpus
so small that `MOST_PASSES` gives fewer gets more passes, with a note of it."""

# How much at a time ----------------------------------------------------------------------------------

LEAST_STEP_TOKENS, MOST_STEP_TOKENS = 1024, 1 << 21
"""Slots of a step. The upper end is ESM-2's (Lin et al. 2023, doi:10.1126/science.ade2574)."""

LEAST_GPU_TOKENS = 16_384
"""Slots of a step for each GPU at least, where that leaves `LEAST_STEPS`: with fewer, a small model waits for kernels
to be launched (some 2 ms a step, whatever it holds)."""

MOST_BIN_TOKENS: dict[str, int] = {"cpu": 4096, "cuda": 16_384}
"""Slots of a bin, which are computed at once."""

CROP_QUANTILE = 95
"""Percentage of the proteins that a crop holds whole."""

LEAST_CROP = 64
MOST_CROP: dict[str, int] = {"cpu": 512, "cuda": 1024}
"""Longest crop: ESM-2's 1,024 tokens, and half of it on a CPU, where attention over long proteins takes most of the
time."""


def step_tokens(total_tokens: float) -> float:
    """Slots of a step, before they are rounded: they grow as the square root of the tokens of a run.

    The batch up to which more slots a step save steps grows about as the square root of a run's tokens, and hardly with
    the size of the model (Zhang et al. 2024, arXiv:2410.21676). The factor 2 leads to ESM-2's 2 million at its 1e12.
    """
    return 2.0 * math.sqrt(total_tokens)


def power_of_two(value: float) -> int:
    """The largest power of two that is at most `value`, 1 or more: slots come in powers of two."""
    return 1 << max(0, int(math.log2(max(value, 1))))


# How fast --------------------------------------------------------------------------------------------


def peak_lr(dim: int, optimizer: str) -> float:
    """Peak of the learning rate for an encoder of width `dim`: inversely proportional to it, from width 128 on.

    Muon's 4e-3 and AdamW's 2e-3 at width 128 are the best of those that were tried on two cores; the proportion is that
    of muP (Yang et al. 2022, arXiv:2203.03466), and leads to the 4e-4 of `recipes/modern_600m.toml`.
    """
    return float(f"{optimizer_class(optimizer).peak_lr_at_128 * 128 / max(dim, 128):.1e}")


SHORT_TOKENS = 10_000_000
"""Tokens of the longest run that is short: twice those of the longest in which the next two numbers were measured. Over
billions of tokens 20 to 25 % of targets are as good as 30."""

TARGETS = 0.4
"""Share of the residues that a short run predicts: best of 0.15, 0.25, 0.4 and 0.55 at 0.8 million parameters."""

MOMENTUM = 0.9
"""Muon's in a short run, which has few steps to average over: ahead of 0.95 and 0.98 at 0.8 million parameters."""

WARMUP = 0.02
"""Share of the tokens in which the rate rises; Muon needs next to none, AdamW a few dozen steps."""

DECAY_START = 0.8
"""Share of the tokens after which the rate falls to 0 (Hu et al. 2024, arXiv:2404.06395): until then a run may be
lengthened as if it had been longer from the beginning."""

# What is held out ------------------------------------------------------------------------------------

SPLIT_IDENTITY = 0.5
"""Identity above which two proteins are relatives: that of UniRef50, by which ESM-2 was split and judged."""

VALIDATION_CLUSTERS = 500
"""Clusters that are held out, if the corpus has so many to spare: their perplexity has an interval of some 2 %."""
VALIDATION_SHARE = (0.005, 0.1)
"""Least and greatest share of the clusters that is held out for this number."""
VALIDATION_LADDER = (0.15, 0.2, 0.3, 0.4, 0.5)
"""Larger shares for a corpus so small that the share before holds out nothing, one after the other."""
MOST_VALIDATION_RECORDS = 0.5
"""Share of the proteins that may be held out; clusters are of unequal size, so it may exceed theirs."""
VALIDATION_TIME = 0.05
"""Share of the budget that all validations together may take: fewer proteins are scored, and less often."""
VALIDATIONS = 5
"""Validations that should fit into that, if the budget is long enough: a curve needs several points."""

CLUSTER_TIME = 0.5
"""Time that clustering with MMseqs2 may take before training begins, as a share of the budget."""


def validation_share(clusters: int) -> float:
    """Share of the clusters to hold out, to three digits."""
    least, most = VALIDATION_SHARE
    return float(f"{min(max(VALIDATION_CLUSTERS / max(clusters, 1), least), most):.2g}")


def cluster_seconds(residues: float, sequences: float, cores: int) -> float:
    """Time of `data.split_identity` with MMseqs2: all pairs are compared, up to 20,000 sequences in one step.

    The two numbers were fitted to 500, 5,605 and 9,478 proteins, which take 7, 47 and 90 seconds on two cores. Beyond
    one step the time is taken to grow as the residues.
    """
    pairs = residues * min(sequences, 20_000)
    return 7.0 + pairs / (CLUSTER_RATE * cores)


CLUSTER_RATE = 1.6e8
"""Residues times sequences that MMseqs2 compares in a second of one core."""

# How often -------------------------------------------------------------------------------------------

INTERVALS: dict[str, str] = {"run.log_every": "10 s", "run.evaluate_every": "10 min", "run.checkpoint_every": "10 min"}
"""The defaults of these settings: often enough for a curve, and so seldom that they cost little."""

# What it needs ---------------------------------------------------------------------------------------

CPU_TOKENS_PER_S = 40e3
"""Tokens a second of a core at most, however small the model."""
GPU_TOKENS_PER_S = 1e6
"""Tokens a second of a GPU at most, however small the model: a bin of 16,384 slots takes some 16 ms of launches."""


def utilization(parameters: int) -> float:
    """Share of a GPU's peak that training reaches, where nothing was timed: 20 % at 8M, 40 % at 150M, 50 % at 650M.

    An estimate: small models wait for memory and for kernels to be launched.
    """
    return min(0.5, max(0.03, 0.2 * math.pow(parameters / 8e6, 0.22)))


# What a run takes besides its steps ------------------------------------------------------------------

DEFAULT_BUDGET_S = 3600.0
"""Time for which a recipe is chosen without --minutes or --hours."""

TIMED_S = 3.0
"""How long steps are timed, after one that is not counted."""
MOST_TIMED_STEP_S = 1.5
"""Steps that are estimated to take longer are timed with fewer bins."""

FORWARD_SHARE = 0.4
"""Time of a forward pass that scores, as a share of that of a training step on the same slots: a third of the products,
and no update."""
CORRUPTIONS = 2
"""Times that a validation reads its proteins."""

START_S, END_S = 0.7, 3.5
"""Time from the proposal to the first step, and from the last validation to the end of a run: opening the corpus,
measuring this machine's peak; writing the last checkpoint, importing transformers and exporting."""
COMPILE_S = 40.0
"""Time of compiling the layers before the first step on a GPU."""
SAVED_BYTES = 12.0
"""Bytes of each parameter in a checkpoint: the weight and two moments, in float32."""
DISK_BYTES_PER_S = 200e6
"""Speed at which checkpoints and exports are written, hashed and read again."""
