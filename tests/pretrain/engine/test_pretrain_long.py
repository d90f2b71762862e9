"""A protein far beyond what others take: 65,534 residues, shared by two processes."""

import random
from pathlib import Path

import pytest

from support.launching import lines
from support.places import ROOT
from support.rank_pool import RankPool

pytestmark = [pytest.mark.launch, pytest.mark.slow, pytest.mark.xdist_group("engines")]

RESIDUES = 65_534


@pytest.mark.timeout(900)
def test_two_processes_train_on_a_protein_of_65534_residues(pool: RankPool, tmp_path: Path) -> None:
    draw = random.Random(0)

    def protein(number: int, residues: int) -> str:
        return f">p{number}\n{''.join(draw.choices('ACDEFGHIKLMNPQRSTVWY', k=residues))}\n"

    short = [protein(number, 60) for number in range(1, 9)]
    fasta, clusters = tmp_path / "long.fasta", tmp_path / "clusters.tsv"
    fasta.write_text("".join([protein(0, RESIDUES), *short]))
    # Whole clusters are held out: the short ones can be, the long one is alone in its own.
    clusters.write_text("".join(f"c{number % 3 if number else 9}\tp{number}\n" for number in range(9)))
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f"""
[run]
directory = "{tmp_path}/run"
log_every = 1
validation_sequences = 2

[model]
preset = "modern_60k"

[data]
sources = ["{fasta}"]
clusters = "{clusters}"
store_dir = "{tmp_path}/stores"
validation_fraction = 0.2
crop_tokens = {RESIDUES + 2}
bin_tokens = {RESIDUES + 2}
bins_per_step = 1

[schedule]
warmup_tokens = 0
total_tokens = {RESIDUES + 2}

[parallel]
context = 2
""")
    done = pool.run(2, ROOT / "accelerate_configs/fsdp2.yaml", [recipe], timeout_s=800)
    assert done.status == 0, done.output
    steps = [line for line in lines(tmp_path / "run/metrics.jsonl") if "loss" in line]
    assert max(line["targets"] for line in steps) > 0.14 * RESIDUES
    assert all(2.0 < line["loss"] < 6.0 for line in steps)  # log 33 = 3.5, and weights that are random
    assert steps[-1]["tokens"] >= RESIDUES + 2
