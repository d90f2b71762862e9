"""The plan of one size in the time there is: how many tokens, in which steps, at what speed, in which memory.

In: a shape, facts about corpus, split and machine, the time, what the user gave, timed speeds. Out: `TrainingPlan`.
Kept: nothing. Torch is not imported.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pretrain.machine import Machine
from pretrain.model.memory import MEMORY_SHARE, memory_of, training_flops
from pretrain.model.presets import PRESETS, EsmShape
from pretrain.model.settings import Checkpointing
from pretrain.proposal import rules
from pretrain.proposal.corpus import CorpusFacts, SplitFacts
from zymogen.settings.interval import Interval, interval

_TARGETS = 0.15
"""Share of the tokens that are predicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """One size in the time there is."""

    size: str
    """The preset, or what `model.init` names."""
    shape: EsmShape
    parameters: int
    optimizer: str
    crop_tokens: int
    bin_tokens: int
    bins_per_step: int
    fill: float
    """Share of the slots that hold tokens."""
    total_tokens: int
    pass_tokens: float
    """Tokens of one pass over the training proteins."""
    distinct_share: float
    """Share of these proteins that are no copies of another."""
    limit: Literal["time", "passes", "given"]
    """What the number of tokens follows from; `given` if the user gave it."""
    tokens_per_s: float
    """Real tokens a second, all processes together."""
    is_timed: bool
    """Whether that was timed on this machine, not estimated."""
    memory_bytes: float
    """Memory of one process."""
    scored: int
    """Most proteins that one validation scores."""
    evaluate_every: Interval
    validation_s: float
    """Time of all validations."""
    rest_s: float
    """Time of start, saves and export, which takes as long as a save."""
    budget_s: float

    @property
    def step_slots(self) -> int:
        """Slots of a step, over all processes."""
        return self.bins_per_step * self.bin_tokens

    @property
    def steps(self) -> int:
        """Number of steps."""
        return math.ceil(self.total_tokens / (self.step_slots * self.fill))

    @property
    def is_short(self) -> bool:
        """Whether it has no more tokens than `rules.SHORT_TOKENS`."""
        return self.total_tokens <= rules.SHORT_TOKENS

    @property
    def passes(self) -> float:
        """Passes over the training proteins."""
        return self.total_tokens / self.pass_tokens

    @property
    def repeats(self) -> float:
        """How often each distinct one of them is read: copies of a protein teach no more than passes over it do."""
        return self.passes / self.distinct_share

    @property
    def tokens_per_parameter(self) -> float:
        """Tokens for each parameter."""
        return self.total_tokens / self.parameters

    @property
    def has_enough_tokens(self) -> bool:
        """Whether the tokens are worth the size."""
        return self.tokens_per_parameter >= rules.TOKENS_PER_PARAMETER

    @property
    def training_s(self) -> float:
        """Time of all steps."""
        return self.total_tokens / self.tokens_per_s

    @property
    def seconds(self) -> float:
        """Time from the proposal to the end of the run."""
        return self.training_s + self.validation_s + self.rest_s

    @property
    def is_in_time(self) -> bool:
        """Whether the run takes no longer than the time there is."""
        return self.seconds <= self.budget_s

    def fits_into(self, machine: Machine) -> bool:
        """Whether it takes no more memory than it may."""
        return self.memory_bytes <= MEMORY_SHARE * machine.memory_bytes


def plan_of(
    size: str,
    shape: EsmShape,
    corpus: CorpusFacts,
    split: SplitFacts,
    machine: Machine,
    budget_s: float,
    given: Mapping[str, Any],
    speeds: Mapping[str, float],
) -> TrainingPlan:
    """The plan for one size; arguments are those of `choose.propose_settings`."""
    optimizer: str = given.get("optimizer.name") or _optimizer(machine, given)
    number = shape.num_parameters
    training = 1 - split.held_proteins / corpus.num_records
    distinct = (corpus.distinct or corpus.num_records) / corpus.num_records
    checkpoint_every = interval("run.checkpoint_every", {**rules.INTERVALS, **given}["run.checkpoint_every"])
    ends_s = rules.START_S + rules.END_S + (rules.COMPILE_S if machine.kind == "cuda" else 0.0)
    save_s = rules.SAVED_BYTES * number / rules.DISK_BYTES_PER_S

    def besides(training_s: float, steps: int) -> tuple[float, float]:
        """Time of all validations, and of start, saves and export."""
        validations, saves = (every.times(0, steps, training_s) for every in (evaluate_every, checkpoint_every))
        return validations * one_s, ends_s + (saves + 1) * save_s

    crop, bin_tokens, bins, step_s = given.get("data.crop_tokens") or _crop(corpus, machine), 0, 0, math.inf
    asked = given.get("schedule.total_tokens")
    # From the second time on, with a crop that a bin holds, and the steps after which a validation or save may come.
    for _ in range(3):
        rate = speeds.get(size) or _estimated(shape, corpus, crop, machine, speeds)
        one_s, scored = _validation(corpus, split, crop, rate, budget_s, given)
        evaluate_every = _evaluate_every(one_s, budget_s, given)
        pass_tokens = max(1.0, corpus.pass_tokens(crop) * training)
        # The longest training that leaves room for what is counted whole, whose time rises in jumps too.
        low, high = 0.0, budget_s
        for _ in range(40):
            middle = (low + high) / 2
            fits = middle + sum(besides(middle, max(1, math.ceil(middle / step_s)))) <= budget_s
            low, high = (middle, high) if fits else (low, middle)
        tokens = rate * (low or 0.2 * budget_s)  # a time too short for its start gets a plan too, with a note
        most = rules.MOST_PASSES * pass_tokens * distinct
        if not bins:
            first = asked or _round(min(tokens, most))
            bin_tokens, bins, crop = _layout(first, pass_tokens, crop, machine, given)
        fill = _fill(pass_tokens, bin_tokens)
        step_s = bin_tokens * bins * fill / rate
    total = asked or _round(min(tokens, max(most, rules.LEAST_STEPS * bin_tokens * bins * fill)))
    forward = given.get("data.bins_per_forward")
    forward = forward if isinstance(forward, int) else 1  # "auto" fits itself into the memory, which must hold one
    slots = bin_tokens * forward // (given.get("parallel.context") or 1)
    checkpointing: Checkpointing = given.get("compute.checkpointing") or "none"
    validation_s, rest_s = besides(total / rate, math.ceil(total / (bins * bin_tokens * fill)))
    return TrainingPlan(
        size=size,
        shape=shape,
        parameters=number,
        optimizer=optimizer,
        crop_tokens=crop,
        bin_tokens=bin_tokens,
        bins_per_step=bins,
        fill=fill,
        total_tokens=total,
        pass_tokens=pass_tokens,
        distinct_share=distinct,
        limit="given" if asked else "passes" if tokens > 1.02 * total else "time",
        tokens_per_s=rate,
        is_timed=size in speeds,
        memory_bytes=memory_of(shape, slots, machine, optimizer, checkpointing).total,
        scored=scored,
        evaluate_every=evaluate_every,
        validation_s=validation_s,
        rest_s=rest_s,
        budget_s=budget_s,
    )


def tokens_per_s(shape: EsmShape, corpus: CorpusFacts, crop_tokens: int, machine: Machine) -> float:
    """Real tokens a second of all processes together, where nothing was timed."""
    tokens = corpus.pass_tokens(crop_tokens)
    flops = training_flops(shape, tokens, corpus.pass_squares(crop_tokens), _TARGETS * tokens, pruned=True) / tokens
    rate = machine.flops / flops
    if machine.kind == "cuda":
        rate = min(rate * rules.utilization(shape.num_parameters), rules.GPU_TOKENS_PER_S)
    else:
        rate = min(rate, machine.cores * rules.CPU_TOKENS_PER_S)
    return machine.processes * rate


def _optimizer(machine: Machine, given: Mapping[str, Any]) -> str:
    if "optimizer.momentum" in given or "optimizer.newton_schulz" in given:
        return "muon"  # which alone reads them
    # ZeRO flattens matrices, which Muon needs whole; published weights were trained with AdamW.
    return "adamw" if machine.engine.startswith("zero") or given.get("model.init") else "muon"


def _estimated(shape: EsmShape, corpus: CorpusFacts, crop: int, machine: Machine, speeds: Mapping[str, float]) -> float:
    """The estimated speed, corrected by how the timed sizes differ from their estimates."""
    rate = tokens_per_s(shape, corpus, crop, machine)
    ratios = [
        timed / tokens_per_s(PRESETS[name], corpus, crop, machine) for name, timed in speeds.items() if name in PRESETS
    ]
    return rate * ratios[-1] if ratios else rate


def _crop(corpus: CorpusFacts, machine: Machine) -> int:
    """The quantile in whole 64s; no longer than the longest protein needs."""
    wanted = -(-(corpus.quantile(rules.CROP_QUANTILE) + 2) // 64) * 64
    return int(min(max(wanted, rules.LEAST_CROP), rules.MOST_CROP[machine.kind]))


def _layout(
    total: float, pass_tokens: float, crop: int, machine: Machine, given: Mapping[str, Any]
) -> tuple[int, int, int]:
    """Slots of a bin, bins of a step, and the crop, which a bin must hold."""
    context = given.get("parallel.context") or 1
    groups = max(1, machine.processes // context)
    slots = rules.step_tokens(total)
    if machine.kind == "cuda":
        slots = max(slots, groups * rules.LEAST_GPU_TOKENS)
    slots = min(math.sqrt(2) * slots, total / rules.LEAST_STEPS)  # so that the nearest power of two is taken
    slots = rules.power_of_two(min(max(slots, rules.LEAST_STEP_TOKENS), rules.MOST_STEP_TOKENS))
    # Not larger than the pass needs: the last bin of a pass is filled with what is left.
    useful = rules.power_of_two(max(2 * pass_tokens - 1, 1))
    bin_tokens = given.get("data.bin_tokens")
    if bin_tokens is None:
        bin_tokens = min(rules.MOST_BIN_TOKENS[machine.kind], rules.power_of_two(slots / groups), useful)
        crops = [crop for _, crop in given.get("data.curriculum") or ()]
        bin_tokens = max(bin_tokens, rules.LEAST_CROP, crop if "data.crop_tokens" in given else 0, *crops)
        bin_tokens = -(-bin_tokens // context) * context
    crop = crop if "data.crop_tokens" in given else min(crop, bin_tokens)
    bins = given.get("data.bins_per_step") or max(1, round(slots / (groups * bin_tokens))) * groups
    return bin_tokens, bins, crop


def _validation(
    corpus: CorpusFacts, split: SplitFacts, crop: int, rate: float, budget_s: float, given: Mapping[str, Any]
) -> tuple[float, int]:
    """Time of one validation, and how many proteins it scores.

    So few that several fit into the share of the time that validation may take, if the time is long enough for several.
    """
    each_s = rules.CORRUPTIONS * rules.FORWARD_SHARE * corpus.pass_tokens(crop) / corpus.num_records / rate
    held = split.held_proteins or corpus.num_records
    wanted = min(rules.VALIDATIONS, max(1, int(budget_s / _default_s("run.evaluate_every"))))
    fits = int(rules.VALIDATION_TIME * budget_s / wanted / each_s)
    scored = given.get("run.validation_sequences")
    if scored is None:
        scored = min(2000, max(1, fits))
    return each_s * min(scored, held), scored


def _evaluate_every(one_s: float, budget_s: float, given: Mapping[str, Any]) -> Interval:
    """The default interval, a shorter one for a curve in a short run, a longer one where these exceed their share."""
    if "run.evaluate_every" in given:
        return interval("run.evaluate_every", given["run.evaluate_every"])
    most = max(1, int(rules.VALIDATION_TIME * budget_s / one_s)) if one_s else math.inf
    seconds = max(min(_default_s("run.evaluate_every"), budget_s / rules.VALIDATIONS), budget_s / most)
    unit = 1 if seconds < 60 else 60 if seconds < 7200 else 3600
    return Interval(None, float(math.ceil(seconds / unit) * unit))


def _default_s(name: str) -> float:
    return interval(name, rules.INTERVALS[name]).seconds or math.inf


def _fill(pass_tokens: float, bin_tokens: int) -> float:
    return 0.98 * pass_tokens / (bin_tokens * math.ceil(pass_tokens / bin_tokens))


def _round(tokens: float) -> int:
    """At most so many tokens, in three digits, so that they can be read."""
    unit = 10.0 ** max(0, math.floor(math.log10(max(tokens, 1))) - 2)
    return max(1, int(tokens // unit * unit))
