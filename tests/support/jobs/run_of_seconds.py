"""A run of seconds: a small corpus on disk, and the recipe of a run on it."""

from pathlib import Path

from data.sources.synthetic import Families, write_corpus

RECIPE = """
[run]
directory = "{folder}/run"
log_every = 1
evaluate_every = 1000
checkpoint_every = 10
validation_sequences = 40

[model]
preset = "esm2_60k"

[data]
sources = ["{fasta}"]
clusters = "{clusters}"
store_dir = "{folder}/stores"
validation_fraction = 0.15
crop_tokens = 100
bin_tokens = 128
bins_per_step = 7             # divisible by neither 2 nor 3: ranks get unequal numbers of bins and targets
window_sequences = 64         # many windows and several passes within a run of seconds

[optimizer]
eps = 1e-6                    # at 1e-8 one gradient element that starts near 1e-8 turns rounding into whole updates

[schedule]
peak_lr = 1e-3
warmup_tokens = 0             # under a warm-up nothing moves, and any engine agrees with any other
total_tokens = 22_000
"""


def small_families(folder: Path) -> tuple[Path, Path]:
    """FASTA and cluster table of 40 small synthetic families."""
    families = Families(num_families=40, members_per_family=4, mean_residues=60, max_residues=150)
    return write_corpus(folder, families)


def write_recipe_of_seconds(folder: Path, fasta: Path, clusters: Path) -> Path:
    """Write the recipe of a run on these files into a folder, and return where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "recipe.toml"
    path.write_text(RECIPE.format(folder=folder, fasta=fasta, clusters=clusters))
    return path
