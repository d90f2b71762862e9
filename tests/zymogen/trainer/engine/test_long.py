"""A protein far beyond what others take, up to 65,534 residues, shared by two processes."""

import random
from pathlib import Path

import pytest

from support.launching import lines
from support.places import ROOT
from support.rank_pool import RankPool

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("engines")]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "residues", [pytest.param(16_382, marks=pytest.mark.slow), pytest.param(65_534, marks=pytest.mark.prove)]
)
def test_two_processes_train_on_a_long_protein(pool: RankPool, tmp_path: Path, residues: int) -> None:
    """Attention takes 16 times as long for four times as many residues."""
    draw = random.Random(0)

    def protein(number: int, length: int) -> str:
        return f">p{number}\n{''.join(draw.choices('ACDEFGHIKLMNPQRSTVWY', k=length))}\n"

    short = [protein(number, 60) for number in range(1, 9)]
    fasta, clusters = tmp_path / "long.fasta", tmp_path / "clusters.tsv"
    fasta.write_text("".join([protein(0, residues), *short]))
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
crop_tokens = {residues + 2}
bin_tokens = {residues + 2}
bins_per_step = 1

[schedule]
warmup_tokens = 0
total_tokens = {residues + 2}

[parallel]
context = 2
""")
    done = pool.run(2, ROOT / "accelerate_configs/fsdp2.yaml", [recipe], timeout_s=800)
    assert done.status == 0, done.output
    steps = [line for line in lines(tmp_path / "run/metrics.jsonl") if "loss" in line]
    assert max(line["targets"] for line in steps) > 0.14 * residues
    assert all(2.0 < line["loss"] < 6.0 for line in steps)  # log 33 = 3.5, and weights that are random
    assert steps[-1]["tokens"] >= residues + 2
