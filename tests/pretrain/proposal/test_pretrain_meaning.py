"""What a published recipe means for a small corpus is said before its first step, with what would fit."""

import re
from pathlib import Path

import numpy as np
import pytest

from pretrain.machine import CPU_FLOPS, Machine
from pretrain.model.presets import PRESETS
from pretrain.proposal import rules
from pretrain.proposal.choose import propose_settings
from pretrain.proposal.corpus import CorpusFacts, SplitFacts
from pretrain.proposal.proportions import check_proportions
from support.kept_runs import config
from support.places import ROOT
from support.rank_pool import RankPool

LAPTOP = Machine("cpu", "4 CPU cores", 1, 4, 16e9, 4 * CPU_FLOPS)
SMALL = CorpusFacts(np.array([340]), np.array([5_605]), None)


def lines(total_tokens: int, corpus: CorpusFacts = SMALL, machine: Machine = LAPTOP) -> list[str]:
    return check_proportions(
        total_tokens, PRESETS["esm2_35m"], 1024, 16_384, corpus, machine, "python -m pretrain your.fasta.gz"
    )


def test_passes_and_days_and_what_fits() -> None:
    total = 1_048_576_000_000
    meaning, remedy = lines(total)
    assert f"{total / (5_605 * 342):,.1f} passes over these 5,605 proteins" in meaning
    days = int(re.search(r"about ([\d,]+) days on 4 CPU cores \(estimated\)", meaning)[1].replace(",", ""))
    assert 1_000 < days < 100_000
    fits, bins = re.search(r"schedule\.total_tokens=(\d+) data\.bins_per_step=(\d+) ", remedy).groups()
    assert int(fits) <= rules.MOST_PASSES * 5_605 * 342
    assert int(fits) / (16_384 * int(bins)) >= rules.LEAST_STEPS
    assert remedy.endswith("python -m pretrain your.fasta.gz")


def test_a_recipe_in_proportion_is_left_alone() -> None:
    assert lines(40 * 5_605 * 342, machine=Machine("cuda", "a GPU", 1, 8, 80e9, 1e15, "bf16")) == []
    uniref = CorpusFacts(np.array([280]), np.array([67_000_000]), None)
    assert lines(10**12, uniref, Machine("cuda", "8 GPUs", 8, 8, 80e9, 1e15, "bf16")) == []
    assert len(lines(10**12, uniref)) == 2  # passes are few, days are not


def test_a_chosen_recipe_for_a_tiny_corpus_is_left_alone() -> None:
    tiny = CorpusFacts(np.array([52]), np.array([30]), 1)
    chosen = propose_settings(tiny, SplitFacts(0.0, None, 0, "nothing", 1), LAPTOP, 180.0, {}).plan
    assert chosen.passes > rules.TOO_MANY_PASSES  # of so few tokens that LEAST_STEPS are no fewer
    sizes = chosen.shape, chosen.crop_tokens, chosen.bin_tokens
    assert check_proportions(chosen.total_tokens, *sizes, tiny, LAPTOP, "same.fasta") == []
    assert len(check_proportions(2 * chosen.total_tokens, *sizes, tiny, LAPTOP, "same.fasta")) == 2


@pytest.mark.parametrize(("processes", "slots"), [(1, 1024), (2, None), (8, None)])
def test_what_fits_has_enough_steps(processes: int, slots: int | None) -> None:
    few = CorpusFacts(np.array([340]), np.array([40]), None)
    machine = Machine("cuda", "GPUs", processes, 8, 80e9, 1e15, "bf16", "ddp")
    remedy = lines(10**12, few, machine)[1]
    if slots is None:  # a crop for each process is too much already
        assert remedy == "length: what fits is a recipe that is chosen for you: python -m pretrain your.fasta.gz"
        return
    found = re.search(r"total_tokens=(\d+) data\.bins_per_step=(\d+) data\.bin_tokens=(\d+) \(", remedy)
    total, bins, bin_tokens = map(int, found.groups())
    assert (bins, bin_tokens) == (processes, slots)
    assert total / (bins * bin_tokens) >= rules.LEAST_STEPS


@pytest.mark.launch
def test_it_is_said_before_the_first_step(
    pool: RankPool, families_files: tuple[Path, Path], recipe_in, tmp_path: Path
) -> None:
    recipe = recipe_in(tmp_path)
    ended = pool.run(1, config("single"), [recipe, "schedule.total_tokens=1"])
    assert "length: " not in ended.output
    published = [ROOT / "recipes/esm2_8m.toml", f"data.sources=['{families_files[0]}']", "data.validation_fraction=0.1"]
    small = ["data.bin_tokens=1024", "data.bins_per_step=1", f"data.store_dir={tmp_path / 'stores'}", "data.workers=0"]
    stop = ["schedule.peak_lr=1e30", "schedule.warmup=0", "run.log_every=1"]  # it diverges in a few steps
    where = [f"run.directory={tmp_path / 'published'}", "model.preset=esm2_60k"]
    ended = pool.run(1, config("single"), [*published, *small, *stop, *where])
    assert "passes over these 160 proteins" in ended.output
    again = rf"a recipe that is chosen for you: \S+/python -m pretrain {re.escape(str(families_files[0]))}$"
    assert re.search(again, ended.output, re.M)
    assert ended.output.index("passes over these") < ended.output.index("step 1")
