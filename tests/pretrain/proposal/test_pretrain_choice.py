"""The choice as a table: from 40 proteins to 67 million, on a laptop, one GPU and eight, within its bounds."""

import dataclasses
import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.machine import CPU_FLOPS, Machine
from pretrain.model.memory import MEMORY_SHARE
from pretrain.model.presets import PRESETS
from pretrain.proposal import rules
from pretrain.proposal.choose import ProposedRecipe, propose_settings
from pretrain.proposal.corpus import CorpusFacts, SplitFacts
from pretrain.proposal.plan import TrainingPlan, tokens_per_s
from pretrain.proposal.recipe_text import format_proposal
from support.places import ROOT
from zymogen.console.format import duration
from zymogen.trainer.run.settings import RunSettings

LAPTOP = Machine("cpu", "4 CPU cores", 1, 4, 16e9, 4 * CPU_FLOPS)
PAIR = Machine("cpu", "2 CPU cores, 2 processes", 2, 1, 8e9, CPU_FLOPS, engine="ddp")
GPU = Machine("cuda", "an H100", 1, 16, 80e9, 989e12, "bf16")
GPUS = Machine("cuda", "8 x H100", 8, 16, 80e9, 989e12, "bf16", "ddp")
MACHINES = {"laptop": LAPTOP, "two processes": PAIR, "one GPU": GPU, "eight GPUs": GPUS}
PROTEINS = (40, 500, 5_605, 9_478, 100_000, 1_000_000, 10_000_000, 67_000_000)
HOUR = 3600.0


def corpus_of(proteins: int) -> CorpusFacts:
    """Log-normal lengths of median 230, as UniRef50's are; a large corpus repeats 100,000 of them."""
    drawn = np.exp(np.random.default_rng(0).normal(np.log(230), 0.75, min(proteins, 100_000)))
    facts = CorpusFacts(*np.unique(np.clip(drawn, 10, 34_350).astype(np.int64), return_counts=True), None)
    times = proteins // int(facts.counts.sum())
    return dataclasses.replace(facts, counts=facts.counts * times, distinct=proteins)


def split_of(proteins: int) -> SplitFacts:
    share = rules.validation_share(proteins)
    return SplitFacts(share, rules.SPLIT_IDENTITY, max(1, int(share * proteins)), "by clusters", proteins)


def proposed(proteins: int, machine: Machine, seconds: float = HOUR, **given: object) -> ProposedRecipe:
    named = {name.replace("__", "."): value for name, value in given.items()}
    return propose_settings(corpus_of(proteins), split_of(proteins), machine, seconds, named)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("proteins", PROTEINS)
def test_the_bounds_hold(proteins: int, machine: Machine) -> None:
    found = proposed(proteins, machine)
    plan, held = found.plan, split_of(proteins).held_proteins
    assert plan.size == rules.SMALLEST or plan.total_tokens >= rules.TOKENS_PER_PARAMETER * plan.parameters
    passes = plan.total_tokens / (corpus_of(proteins).pass_tokens(plan.crop_tokens) * (1 - held / proteins))
    assert plan.passes == plan.repeats == pytest.approx(passes)
    if (proteins, machine) == (40, GPUS):  # the crop is cut to the bins of the smallest step, and 300 steps come first
        assert rules.MOST_PASSES < passes < 2 * rules.MOST_PASSES
        assert (plan.crop_tokens, plan.steps) == (128, rules.LEAST_STEPS)
        assert [note.split(",")[0] for note in found.notes] == [f"passes: {passes:.0f}"]
    else:
        assert passes <= 1.01 * rules.MOST_PASSES
        assert found.notes == ()
    assert plan.steps >= rules.LEAST_STEPS
    assert plan.memory_bytes <= MEMORY_SHARE * machine.memory_bytes
    assert plan.seconds <= HOUR
    assert plan.bins_per_step % machine.processes == 0
    assert plan.crop_tokens <= plan.bin_tokens <= rules.MOST_BIN_TOKENS[machine.kind]
    # A bin holds no more than a pass gives: the rest of it would be padding.
    assert plan.bin_tokens <= max(2 * plan.pass_tokens, rules.LEAST_CROP)


SIZES = {
    "laptop": ("60k", "60k", "800k", "800k", "800k", "800k", "800k", "800k"),
    "two processes": ("60k", "60k", "800k", "800k", "800k", "800k", "800k", "800k"),
    "one GPU": ("60k", "60k", "800k", "800k", "35m", "35m", "35m", "35m"),
    "eight GPUs": ("60k", "60k", "800k", "800k", "35m", "150m", "150m", "150m"),
}


@pytest.mark.parametrize("name", MACHINES)
def test_the_sizes(name: str) -> None:
    sizes = [proposed(proteins, MACHINES[name]).plan.size for proteins in PROTEINS]
    assert sizes == [f"modern_{size}" for size in SIZES[name]]


def test_the_next_size_would_have_too_few_tokens() -> None:
    for proteins, machine in itertools.product(PROTEINS, MACHINES.values()):
        plan = proposed(proteins, machine).plan
        at = rules.SIZES.index(plan.size)
        if at + 1 < len(rules.SIZES):
            larger = proposed(proteins, machine, model__preset=rules.SIZES[at + 1]).plan
            assert larger.total_tokens < rules.TOKENS_PER_PARAMETER * larger.parameters


def test_without_the_rule_of_tokens_a_table_row_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "TOKENS_PER_PARAMETER", 1.0)
    assert proposed(5_605, LAPTOP).plan.size == "modern_8m"


def test_a_step_has_the_tokens_that_published_runs_had() -> None:
    assert rules.step_tokens(1e12) == pytest.approx(2e6)  # ESM-2
    plans = [proposed(10**7, LAPTOP, seconds).plan for seconds in (60, 600, 6000, 60_000)]
    slots = [plan.step_slots for plan in plans]
    assert slots == sorted(slots)
    assert slots[-1] >= 8 * slots[0]


def test_a_budget_is_spent_and_not_exceeded() -> None:
    for seconds in (180.0, 600.0, 3600.0, 36_000.0):
        plan = proposed(1_000_000, LAPTOP, seconds).plan
        assert 0.9 * seconds <= plan.seconds <= seconds
        assert plan.seconds == plan.training_s + plan.validation_s + plan.rest_s


def test_a_timed_speed_corrects_the_estimates_of_other_sizes() -> None:
    estimated = proposed(10**6, LAPTOP).plan
    facts = corpus_of(10**6), split_of(10**6), LAPTOP, HOUR, {}
    slow = propose_settings(*facts, {estimated.size: estimated.tokens_per_s / 100}).plan
    assert (estimated.size, slow.size) == ("modern_800k", "modern_60k")
    per_s = tokens_per_s(PRESETS["modern_60k"], facts[0], slow.crop_tokens, LAPTOP)
    assert slow.tokens_per_s == pytest.approx(per_s / 100)
    assert not slow.is_timed
    assert propose_settings(*facts, {"modern_60k": 1000.0}).plan.tokens_per_s == 1000.0


def reason(found: ProposedRecipe, name: str) -> str:
    (said,) = (choice.reason for choice in found.choices if choice.name == name)
    return said


def test_a_given_length_leaves_the_time_what_it_is() -> None:
    long = proposed(100_000, LAPTOP, schedule__total_tokens=10**9)
    assert long.plan.size == "modern_60k"  # 20 tokens for each parameter of modern_35m would take weeks
    assert reason(long, "model.preset").endswith("for each in the given length")
    assert [note.partition(":")[0] for note in long.notes] == ["time"]
    assert long.notes[0].endswith("without schedule.total_tokens, a length that fits is chosen")

    hours = proposed(100_000, LAPTOP, 10 * HOUR, schedule__total_tokens=10**8)
    assert (hours.plan.size, hours.notes) == ("modern_800k", ())  # modern_8m has too few tokens
    days = proposed(10**6, LAPTOP, 24 * HOUR, schedule__total_tokens=10**9)
    assert (days.plan.size, days.notes) == ("modern_800k", ())
    assert (
        "the largest that needs no more than 24.0 hours, with 1,126 tokens for each (modern_8m would have 129)"
        in reason(days, "model.preset")
    )

    few = proposed(100_000, LAPTOP, schedule__total_tokens=8_000)
    assert reason(few, "model.preset").endswith("with 0.1 tokens for each in the given length")
    (note,) = few.notes
    assert note.startswith("steps: 8, fewer than the 300")
    assert note.endswith("give it more tokens")
    assert proposed(100_000, LAPTOP, 5.0).notes[0].endswith("give it more time")


@settings(deadline=None, max_examples=150)
@given(
    hours=st.floats(0.1, 1000),
    proteins=st.sampled_from(PROTEINS),
    machine=st.sampled_from([*MACHINES.values()]),
    slower=st.sampled_from([None, 1.0, 0.1, 0.01]),
)
def test_validation_takes_a_twentieth_and_the_run_no_longer_than_asked(
    hours: float, proteins: int, machine: Machine, slower: float | None
) -> None:
    """Estimated speeds, and timed ones that are down to a hundred times slower."""
    corpus, speeds = corpus_of(proteins), {}
    if slower is not None:
        speeds = {name: slower * tokens_per_s(PRESETS[name], corpus, 512, machine) for name in rules.SIZES}
    plan = propose_settings(corpus, split_of(proteins), machine, hours * HOUR, {}, speeds).plan
    assert plan.seconds <= hours * HOUR
    assert plan.validation_s <= 0.05 * hours * HOUR
    if plan.limit == "time":
        assert plan.seconds >= 0.85 * hours * HOUR
    validations = plan.evaluate_every.times(0, plan.steps, plan.training_s)
    if plan.limit == "time" and (hours >= 1 or plan.validation_s / validations <= 0.008 * hours * HOUR):
        assert validations >= 3  # a curve


def test_ten_minutes_are_validated_five_times() -> None:
    plan = proposed(100_000, LAPTOP, HOUR / 6).plan
    assert plan.evaluate_every.times(0, plan.steps, plan.training_s) == 5


def test_intervals_that_are_given_are_counted_and_fit_into_the_time() -> None:
    corpus = corpus_of(10**6)

    def one_validation_s(plan: TrainingPlan) -> float:
        """Two corruptions of each protein, whose tokens take 0.4 of the time that they take in training."""
        tokens = plan.scored * corpus.pass_tokens(plan.crop_tokens) / corpus.num_records
        return 2 * 0.4 * tokens / plan.tokens_per_s

    plain = proposed(10**6, LAPTOP).plan
    assert plain.validation_s == pytest.approx((1 + plain.training_s // 600) * one_validation_s(plain))
    each_step = proposed(10**6, LAPTOP, run__evaluate_every=1, run__checkpoint_every=10)
    plan = each_step.plan
    assert plan.validation_s == pytest.approx(plan.steps * one_validation_s(plan))
    one_save_s = rules.SAVED_BYTES * plan.parameters / rules.DISK_BYTES_PER_S
    assert plan.rest_s == rules.START_S + rules.END_S + (math.ceil(plan.steps / 10) + 1) * one_save_s
    assert 0.9 * HOUR <= plan.seconds <= HOUR
    assert plan.training_s < 0.5 * plain.training_s
    often = proposed(10**6, LAPTOP, run__evaluate_every="5 s").plan
    assert often.validation_s == pytest.approx((1 + often.training_s // 5) * one_validation_s(often))
    assert 0.9 * HOUR <= often.seconds <= HOUR
    asked = proposed(10**6, LAPTOP, run__evaluate_every=1, schedule__total_tokens=plain.total_tokens)
    assert asked.plan.total_tokens == plain.total_tokens
    assert asked.notes[0].startswith(f"time: about {asked.plan.seconds / 3600:.1f} hours, more than the 60 minutes")


def test_intervals_are_settings_with_a_reason() -> None:
    defaults = {f"run.{field.name}": field.default for field in dataclasses.fields(RunSettings)}
    chosen = {choice.name: choice for choice in proposed(5_605, LAPTOP, run__evaluate_every=100).choices}
    for name, value in rules.INTERVALS.items():
        assert defaults[name] == value
        assert chosen[name].reason.startswith("between two ")
        assert (chosen[name].value, chosen[name].is_given) == ((100, True) if "evaluate" in name else (value, False))


def test_copies_teach_no_more_than_passes_do() -> None:
    one = CorpusFacts(np.array([340]), np.array([500]), 1)
    found = propose_settings(one, SplitFacts(0.0, None, 0, "nothing", 1), LAPTOP, HOUR, {})
    plan = found.plan
    assert (plan.size, plan.steps) == (rules.SMALLEST, rules.LEAST_STEPS)
    assert plan.repeats == pytest.approx(plan.total_tokens / 342)
    assert plan.passes == pytest.approx(plan.repeats / 500)
    assert f"{plan.repeats:,.0f} passes over each distinct protein" in reason(found, "model.preset")
    assert found.notes[0].startswith(f"passes: {plan.repeats:,.0f} over each distinct protein, more than the 40")
    half = dataclasses.replace(corpus_of(5_605), distinct=2_803)
    copied, plain = propose_settings(half, split_of(5_605), LAPTOP, HOUR, {}).plan, proposed(5_605, LAPTOP).plan
    assert copied.total_tokens == pytest.approx(plain.total_tokens / 2, rel=0.01)


def test_the_block_counts_in_english() -> None:
    corpus = corpus_of(100_000)
    found = proposed(100_000, LAPTOP, schedule__total_tokens=8_000, run__evaluate_every=1)
    text = "\n".join(format_proposal(found, ["a.fasta"], corpus, LAPTOP))
    assert "  step      1 bin of 1,024 slots: 8 steps of 1,024 slots, the fewest that a step has\n" in text
    assert "  rate      peak 0.004, a warm-up over 2% of the tokens, falling after 80% of them\n" in text
    saves = "a checkpoint every 10 min, a validation every 1 step, a line every 10 s, and at the end"
    assert f"  saves     {saves}\n" in text
    assert "given by you, less than 0.1 passes" in text
    assert [duration(seconds) for seconds in (1.2, 2, 120)] == ["1 second", "2 seconds", "2 minutes"]
    for proteins, machine in itertools.product(PROTEINS, MACHINES.values()):
        rows = format_proposal(proposed(proteins, machine), ["a.fasta"], corpus, machine)
        assert len(rows) <= 20
        assert max(map(len, rows)) <= 110


def test_a_step_says_why_it_has_its_slots() -> None:
    def why(proteins: int, machine: Machine, **given: object) -> str:
        return reason(proposed(proteins, machine, **given), "data.bins_per_step")

    assert why(10**6, LAPTOP).endswith("slots, about twice the square root of the run's tokens")
    assert why(10**6, PAIR).endswith("root of the run's tokens, divided among 2 processes")
    assert why(500, GPUS).endswith("slots, which keep a GPU busy, divided among 8 processes")
    assert why(10**6, LAPTOP, data__bins_per_step=3).endswith("slots")


def test_what_is_given_wins_and_says_so() -> None:
    found = proposed(
        5_605, LAPTOP, model__preset="esm2_8m", schedule__total_tokens=10**6, data__crop_tokens=128, run__seed=3
    )
    chosen = {choice.name: choice for choice in found.choices}
    for name, value in (("model.preset", "esm2_8m"), ("schedule.total_tokens", 10**6), ("run.seed", 3)):
        assert chosen[name].value == value
        assert chosen[name].is_given
    assert not chosen["data.bin_tokens"].is_given
    assert found.plan.crop_tokens == chosen["data.crop_tokens"].value == 128
    assert found.plan.total_tokens == 10**6
    assert "data.mask.mask_prob" not in chosen  # ESM-2's own corruption


def test_what_is_taken_out_is_left_out() -> None:
    names = {choice.name for choice in proposed(5_605, LAPTOP, data__split_identity=None).choices}
    assert "data.split_identity" not in names
    assert "data.validation_fraction" in names


def test_engines_and_weights_decide_the_optimizer() -> None:
    def optimizer(machine: Machine, **given: object) -> object:
        return next(c.value for c in proposed(10**6, machine, **given).choices if c.name == "optimizer.name")

    assert optimizer(GPUS) == "muon"
    assert optimizer(dataclasses.replace(GPUS, engine="zero3")) == "adamw"


def test_a_short_run_has_more_targets_and_forgets_sooner() -> None:
    def short(tokens: int = rules.SHORT_TOKENS, machine: Machine = LAPTOP, **given: object) -> list[object]:
        found = proposed(10**6, machine, schedule__total_tokens=tokens, **given).choices
        return [c.value for c in found if c.name in ("data.mask.select_prob", "optimizer.momentum")]

    assert short() == [0.4, 0.9]
    assert short(rules.SHORT_TOKENS + 1) == []  # the defaults: 0.15 and 0.95
    assert short(model__preset="esm2_800k") == [0.9]  # ESM-2's own corruption
    assert short(machine=dataclasses.replace(GPUS, engine="zero3")) == [0.4]  # AdamW
    assert short(model__init="facebook/esm2_t6_8M_UR50D") == []
    assert short(data__mask__select_prob=0.2, optimizer__momentum=0.8) == [0.2, 0.8]


def test_too_few_proteins_for_enough_steps_get_more_passes_and_a_note() -> None:
    few = CorpusFacts(np.array([300]), np.array([1]), None)
    found = propose_settings(few, SplitFacts(0.0, None, 0, "nothing", 1), LAPTOP, HOUR, {})
    assert found.plan.steps >= rules.LEAST_STEPS
    assert found.plan.passes > rules.MOST_PASSES
    assert any(note.startswith("passes: ") for note in found.notes)


def test_bins_that_fit_themselves_into_the_memory_count_as_one() -> None:
    one, four, fitting = (proposed(1_000_000, GPU, data__bins_per_forward=number).plan for number in (1, 4, "auto"))
    assert fitting == one
    assert four.memory_bytes > 1.5 * one.memory_bytes


def test_a_model_too_large_for_the_memory_is_not_taken() -> None:
    small = dataclasses.replace(GPU, memory_bytes=8e9)
    found = proposed(10**7, small)
    assert (found.plan.size, proposed(10**7, GPU).plan.size) == ("modern_8m", "modern_35m")
    assert not found.notes
    assert "the largest that fits into the memory, with 455 tokens for each (modern_35m would have 105)" in reason(
        found, "model.preset"
    )
    asked = proposed(10**7, small, model__preset="modern_600m")
    assert any(note.startswith("memory: ") for note in asked.notes)


def test_choosing_needs_no_torch() -> None:
    program = "import sys, pretrain.proposal.recipe_text; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
