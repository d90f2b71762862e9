"""A run for benchmarks whose checkpoints follow each other closely: drawn proteins, and a recipe that does not end.

In: a folder. Out: the recipe's path. Kept: the files in that folder.
"""

import random
from pathlib import Path


def written(folder: Path, preset: str, checkpoint_every: int) -> Path:
    """Write 400 proteins, one cluster each, and a recipe of two bins of 512 slots a step; the recipe's path."""
    draw = random.Random(0)
    proteins = ["".join(draw.choices("ACDEFGHIKLMNPQRSTVWY", k=draw.randint(60, 400))) for _ in range(400)]
    (folder / "proteins.fasta").write_text("".join(f">{n}\n{text}\n" for n, text in enumerate(proteins)))
    (folder / "clusters.tsv").write_text("".join(f"{n}\t{n}\n" for n in range(len(proteins))))
    recipe = folder / "recipe.toml"
    recipe.write_text(
        f"""
[run]
directory = "{folder}/run"
log_every = 1
evaluate_every = 1_000_000
checkpoint_every = {checkpoint_every}

[model]
preset = "{preset}"

[data]
sources = ["{folder}/proteins.fasta"]
clusters = "{folder}/clusters.tsv"
validation_fraction = 0.04
crop_tokens = 512
bin_tokens = 512
bins_per_step = 2

[schedule]
peak_lr = 1e-4
warmup_tokens = 0
total_tokens = 1_000_000_000
"""
    )
    return recipe
