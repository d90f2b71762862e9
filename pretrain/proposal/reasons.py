"""The settings of a proposal in the order of a recipe, each with the reason that a reader of the recipe sees.

In: the plan that was chosen. Out: `SettingChoice`s. Kept: nothing.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pretrain.machine import Machine
from pretrain.proposal import rules
from pretrain.proposal.corpus import CorpusFacts, SplitFacts
from pretrain.proposal.plan import TrainingPlan
from zymogen.console.format import count, duration
from zymogen.settings.extension import is_external
from zymogen.settings.interval import Interval


class SettingChoice(NamedTuple):
    """One setting of the recipe."""

    name: str
    """Its dotted name."""
    value: Any
    reason: str
    """Empty where the setting before it says it all, or where the user gave what the rules say nothing of."""
    is_given: bool = False
    """Whether the user gave the value; the reason is then that of what follows from it."""


def choices(
    plan: TrainingPlan,
    corpus: CorpusFacts,
    split: SplitFacts,
    machine: Machine,
    given: Mapping[str, Any],
    larger: TrainingPlan | None,
) -> tuple[SettingChoice, ...]:
    """All settings; what the user gave stands in the place of what the rules say, and what was taken out is left out.

    Args:
        plan: the plan that was chosen.
        corpus: as for `choose.propose_settings`, and so are the next three.
        split: what is held out.
        machine: what trains.
        given: what the user gave.
        larger: the plan for the next size, which was not chosen; None if there is none.
    """
    proposed = [SettingChoice(*each) for each in _proposed(plan, corpus, split, machine, given, larger)]
    names = {choice.name for choice in proposed}
    ours = (
        choice._replace(value=given[choice.name], is_given=True) if choice.name in given else choice
        for choice in proposed
    )
    theirs = (SettingChoice(name, value, "", True) for name, value in given.items() if name not in names)
    return tuple(choice for choice in (*ours, *theirs) if choice.value is not None)


def _proposed(
    plan: TrainingPlan,
    corpus: CorpusFacts,
    split: SplitFacts,
    machine: Machine,
    given: Mapping[str, Any],
    larger: TrainingPlan | None,
) -> Iterator[tuple[Any, ...]]:
    """(name, value, reason) of each setting."""
    if "model.init" not in given:
        yield "model.preset", plan.size, _size_reason(plan, larger, machine)
        yield "model.start", "neighbours", "the first layers begin by looking at the residues beside each one"
    if split.identity is not None:
        yield "data.split_identity", split.identity, split.reason
    share = f"holds out {split.held_proteins:,} of {corpus.num_records:,} proteins, " if split.held_proteins else ""
    held = f"{share}{'' if split.identity is not None else split.reason}".rstrip(", ")
    whole = f"holds {1 - corpus.longer_than(plan.crop_tokens - 2):.0%} of the proteins whole"
    scored = f", so that all take no more than {rules.VALIDATION_TIME:.0%} of the time" if plan.scored < 2000 else ""
    yield from (
        ("data.validation_fraction", split.fraction, held),
        ("data.crop_tokens", plan.crop_tokens, f"{whole}; others give a random crop"),
        ("data.bin_tokens", plan.bin_tokens, "slots that one process computes at once"),
        ("data.bins_per_step", plan.bins_per_step, _step_reason(plan, machine, given)),
        ("run.validation_sequences", plan.scored, f"most proteins that one validation scores{scored}"),
        (
            "run.log_every",
            rules.INTERVALS["run.log_every"],
            "between two lines of metrics; first and last step have one",
        ),
        ("run.evaluate_every", _shown(plan.evaluate_every), "between two validations; the last step has one, too"),
        (
            "run.checkpoint_every",
            rules.INTERVALS["run.checkpoint_every"],
            "between two checkpoints: no more is lost if the machine stops",
        ),
    )
    if machine.kind == "cuda":
        yield "data.workers", min(2, machine.cores), "processes that fill bins, so that the GPU does not wait"
    yield from _of_the_mask(plan, given)
    yield from _of_the_optimizer(plan, machine, given)
    yield "schedule.total_tokens", plan.total_tokens, _length_reason(plan)
    decay_end = given.get("schedule.decay_end") or 1.0
    fitting = float(f"{rules.DECAY_START * decay_end:.3g}")
    start, final = given.get("schedule.decay_start", fitting), given.get("schedule.final_lr") or 0.0
    end = "the end" if decay_end == 1 else f"{decay_end:.0%} of them"
    if "schedule.warmup_tokens" not in given:
        warmup = min(rules.WARMUP, fitting)
        yield "schedule.warmup", warmup, "share of the tokens in which the rate rises from 0"
    words = (
        f"the rate stays at its peak for {start:.0%} of the tokens, then falls to {final:.0%} of it at {end}: a run "
        "that is made longer before it falls equals one that was as long from the beginning"
    )
    yield from (("schedule.decay_start", start, words), ("schedule.decay_end", 1.0, ""), ("schedule.final_lr", 0.0, ""))


def _shown(every: Interval) -> str:
    seconds = every.seconds or 0
    if seconds >= 7200:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.0f} min"


def _of_the_mask(plan: TrainingPlan, given: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """What the preset's corruption is, or what fits the part of it that the user gave; nothing for ESM-2's own.

    A short run has more targets. A mask policy of the user's is left as it is.
    """
    if is_external(given.get("data.mask.name")):
        return
    is_modern = plan.shape.is_modern
    if plan.is_short and is_modern and "model.init" not in given:
        words = f"share of the residues that are targets; 0.15 in a run of over {rules.SHORT_TOKENS:,} tokens"
        yield "data.mask.select_prob", rules.TARGETS, words
    mask, random = given.get("data.mask.mask_prob"), given.get("data.mask.random_prob")
    if mask is random is None and not is_modern:
        return
    usual, at_random = (1.0, 0.0) if is_modern else (0.8, 0.1)
    words = "every target is hidden, as ESM C's are; none is replaced or kept" if is_modern else ""
    if random:
        words = "share of the targets that are hidden; the others are replaced"
    yield "data.mask.mask_prob", min(usual, round(1 - (random or 0.0), 9)), words
    yield "data.mask.random_prob", min(at_random, round(1 - (mask or 0.0), 9)), ""


def _of_the_optimizer(plan: TrainingPlan, machine: Machine, given: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    words = "Muon learns more from the same tokens than AdamW"
    if plan.optimizer == "adamw":
        words = "AdamW, because ZeRO flattens the matrices that Muon needs whole"
        words = "AdamW, by which published weights were trained" if "model.init" in given else words
    yield "optimizer.name", plan.optimizer, words
    if plan.optimizer == "muon" and plan.is_short:
        words = f"a short run: gradients of some 10 steps count; 0.95 above {rules.SHORT_TOKENS:,} tokens"
        yield "optimizer.momentum", rules.MOMENTUM, words
    if plan.optimizer == "muon" and machine.kind == "cuda":
        yield "optimizer.newton_schulz", "bfloat16", "cheaper on a GPU"
    yield "optimizer.betas", [0.9, 0.95], "a short run: the second moment forgets within 20 steps"
    if "model.init" not in given:  # with it, the default is a rate for weights that are trained already
        rate = rules.peak_lr(plan.shape.dim, plan.optimizer)
        yield "schedule.peak_lr", rate, f"for width {plan.shape.dim}: wider models need lower rates"


def _size_reason(plan: TrainingPlan, larger: TrainingPlan | None, machine: Machine) -> str:
    size = f"{_millions(plan.parameters)} parameters"
    each = f"{_tokens(plan)} tokens for each"
    if larger is None:
        return f"{size}, {each}"
    if not (plan.has_enough_tokens and plan.is_in_time):
        return f"{size}: the smallest that is worth the time, with {each} in {_limit(plan)}"
    would = f"{larger.size} would have {_tokens(larger)}"
    if not larger.has_enough_tokens:
        least = f"{rules.TOKENS_PER_PARAMETER:.0f} tokens for each parameter"
        return f"{size}: the largest that gets {least} in {_limit(plan)} ({_tokens(plan)}; {would})"
    bound = f"needs no more than {duration(plan.budget_s)}" if larger.fits_into(machine) else "fits into the memory"
    return f"{size}: the largest that {bound}, with {each} ({would})"


def _tokens(plan: TrainingPlan) -> str:
    ratio = plan.tokens_per_parameter
    return f"{ratio:,.1f}" if ratio < rules.TOKENS_PER_PARAMETER else f"{ratio:,.0f}"


def _limit(plan: TrainingPlan) -> str:
    if plan.limit == "given":
        return "the given length"
    proteins = "these proteins" if plan.distinct_share > 0.95 else "each distinct protein"
    return f"{plan.repeats:,.0f} passes over {proteins}" if plan.limit == "passes" else duration(plan.budget_s)


def _length_reason(plan: TrainingPlan) -> str:
    origin = "timed here" if plan.is_timed else "estimated, not timed"
    speed = f"at {plan.tokens_per_s:,.0f} tokens a second ({origin})"
    number = f"{plan.passes:,.1f}" if plan.passes >= 0.1 else "less than 0.1"
    took = f"{number} passes over the training proteins, about {duration(plan.training_s)} of training {speed}"
    return f"{took}; more passes over so few proteins would teach next to nothing" if plan.limit == "passes" else took


def _step_reason(plan: TrainingPlan, machine: Machine, given: Mapping[str, Any]) -> str:
    words = f"{count(plan.steps, 'step')} of {plan.step_slots:,} slots"
    if not {"data.bins_per_step", "data.bin_tokens"} & given.keys():
        if plan.step_slots <= 2 * rules.step_tokens(plan.total_tokens):
            words += ", about twice the square root of the run's tokens"
        else:
            words += ", which keep a GPU busy" if machine.kind == "cuda" else ", the fewest that a step has"
    return words + (f", divided among {machine.processes} processes" if machine.processes > 1 else "")


def _millions(parameters: int) -> str:
    return f"{parameters / 1e6:,.2g} million" if parameters < 1e7 else f"{parameters / 1e6:,.0f} million"
