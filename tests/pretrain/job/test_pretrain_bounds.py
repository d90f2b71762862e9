"""Bounds of settings: --help shows each, and both sides hold, in a file and where a section is made without one."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from data.settings import DataSettings, MixedCorpus
from pretrain.model.settings import ComputeSettings
from pretrain.recipe import Recipe
from zymogen.settings.section import OPERATIONAL, Section, setting
from zymogen.settings.toml_file import documented, read
from zymogen.trainer.optimizer.settings import OptimizerSettings
from zymogen.trainer.run.settings import RunSettings

BOUNDS = {
    "at least 1": """
        run.validation_sequences run.keep_checkpoints run.keep_checkpoints_every
        data.bin_tokens data.bins_per_step data.window_sequences data.bins_per_forward
        parallel.context
    """,
    "at least 0": "optimizer.weight_decay schedule.warmup_tokens run.compare_copies_every",
    "above 0": """
        optimizer.eps optimizer.clip_norm schedule.peak_lr schedule.total_tokens schedule.passes
        run.grace_s run.spike_nats
    """,
    "in [0, 1)": """
        schedule.warmup model.dropout data.ingest.max_bad_fraction data.validation_fraction optimizer.momentum
        optimizer.betas
    """,
    "in [0, 1]": "data.mask.mask_prob data.mask.random_prob schedule.final_lr",
    "in (0, 1]": "data.split_identity data.mixture.split_identity data.mask.select_prob schedule.decay_end",
    "in [0, 64]": "data.workers",
    "in [1, 1_000_000]": "data.mixture.weight",
}
"""Every setting that is a number and has bounds of its own, by what --help and errors say of them."""

OF_SETTING = [(name, bounds) for bounds, names in BOUNDS.items() for name in names.split()]


def test_help_shows_every_bound() -> None:
    shown = {
        name: re.search(r"((?:int|float)(?: or (?:none|'auto'))?) ((at least|above|in [\[(]).*?)[,;] [^0-9]", text)
        for name, text in documented(Recipe)
    }
    assert {(name, match[2]) for name, match in shown.items() if match} == set(OF_SETTING)


def just_outside(bounds: str, whole: bool) -> list[int | float]:
    """The nearest number that is left out, on each side where there is a bound."""
    step = 1 if whole else 1e-9
    numbers = [int(number) for number in re.findall(r"[\d_]+", bounds)]
    outside = [numbers[0] - step * (not bounds.startswith(("above", "in (")))]
    return outside + [number + step * bounds.endswith("]") for number in numbers[1:]]


@pytest.mark.parametrize(("name", "bounds"), OF_SETTING)
def test_every_bound_holds_on_both_sides(tmp_path: Path, name: str, bounds: str) -> None:
    whole = dict(documented(Recipe))[name].partition("[")[2].startswith("int ")
    for value in just_outside(bounds, whole):
        given = {"run.directory": '"r"', "model.preset": '"esm2_8m"', "data.sources": '["a"]', name: repr(value)}
        if name == "optimizer.betas":
            given[name] = f"[{value!r}, 0.5]"
        if name.startswith("data.mixture."):
            del given["data.sources"], given[name]
            given["data.mixture"] = f'[{{sources = ["a"], {name.rpartition(".")[2]} = {value!r}}}]'
        (tmp_path / "r.toml").write_text("".join(f"{key} = {text}\n" for key, text in given.items()))
        words = rf"r\.toml: {name} is .*; (it|each) must (lie|be) {re.escape(bounds)}(, or 'auto')?$"
        with pytest.raises(ValueError, match=words):
            read(Recipe, tmp_path / "r.toml")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OptimizerSettings(eps=math.nan), "optimizer.eps is nan; it must be above 0"),
        (lambda: OptimizerSettings(betas=(0.9, math.nan)), "optimizer.betas is (0.9, nan); each must lie in [0, 1)"),
        (lambda: MixedCorpus(sources=("a",), weight=0), "data.mixture.weight is 0; it must lie in [1, 1_000_000]"),
        (
            lambda: DataSettings(sources=("a",), sample_by="clusters"),  # type: ignore[arg-type]
            "data.sample_by is 'clusters'; the nearest is 'cluster', allowed are 'sequence', 'cluster'",
        ),
        (
            lambda: RunSettings(directory="r", trackers=("wandb", "tensorbord")),  # type: ignore[arg-type]
            "run.trackers is 'tensorbord'; the nearest is 'tensorboard', allowed are 'wandb', 'tensorboard', 'trackio'",
        ),
        (lambda: ComputeSettings(tf32="auto"), "compute.tf32 is 'auto'; allowed are False, True"),  # type: ignore[arg-type]
    ],
)
def test_a_section_is_checked_without_a_file(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        make()


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample(Section):
    section: ClassVar = "sample"
    closed: float | None = setting(OPERATIONAL, "both ends belong to it", 0.5, at_least=0, at_most=1)
    open: tuple[float, ...] = setting(OPERATIONAL, "neither end does", (0.5,), above=0, below=1)


def test_a_closed_end_is_allowed_and_an_open_one_is_not() -> None:
    assert [Sample(closed=value).closed for value in (0.0, 1.0, None)] == [0.0, 1.0, None]
    for value in (0.0, 1.0):
        with pytest.raises(ValueError, match=re.escape(f"sample.open is (0.5, {value}); each must lie in (0, 1)")):
            Sample(open=(0.5, value))
