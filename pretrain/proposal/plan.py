"""The plan of one size in the time there is: how many tokens, in which steps, at what speed, in which memory.

In: a shape, facts about corpus, split and machine, the time, what the user gave, timed speeds. Out: `Plan`. Kept:
nothing. Torch is not imported.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pretrain.model.presets import PRESETS, EsmShape
from pretrain.model.settings import Checkpointing
from pretrain.proposal import rules
from pretrain.proposal.corpus import CorpusFacts, SplitFacts
from pretrain.proposal.estimates import tokens_per_s
from pretrain.proposal.machine import Machine
from pretrain.proposal.memory import memory_of

_INTERVAL_S = 600.0
"""Time between two validations or saves, by their defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One size in the time there is."""

    size: str
    """The preset, or what `model.init` names."""
    shape: EsmShape
    parameters: int
    optimizer: Literal["adamw", "muon"]
    crop_tokens: int
    bin_tokens: int
    bins_per_step: int
    fill: float
    """Share of the slots that hold tokens."""
    total_tokens: int
    pass_tokens: float
    """Tokens of one pass over the training proteins."""
    by_passes: bool
    """Whether the passes limit the tokens, not the time."""
    tokens_per_s: float
    """Real tokens a second, all processes together."""
    is_timed: bool
    """Whether that was timed on this machine, not estimated."""
    memory_bytes: float
    """Memory of one process."""
    scored: int
    """Most proteins that one validation scores."""
    one_validation_s: float
    rest_s: float
    """Time of start, saves and export."""
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
    def passes(self) -> float:
        """Passes over the training proteins."""
        return self.total_tokens / self.pass_tokens

    @property
    def training_s(self) -> float:
        """Time of all steps."""
        return self.total_tokens / self.tokens_per_s

    @property
    def validation_s(self) -> float:
        """Time of all validations."""
        return (1 + int(self.training_s // _INTERVAL_S)) * self.one_validation_s

    @property
    def seconds(self) -> float:
        """Time from the proposal to the end of the run."""
        return self.training_s + self.validation_s + self.rest_s


def plan_of(
    size: str,
    shape: EsmShape,
    corpus: CorpusFacts,
    split: SplitFacts,
    machine: Machine,
    budget_s: float,
    given: Mapping[str, Any],
    speeds: Mapping[str, float],
) -> Plan:
    """The plan for one size; arguments are those of `choice.choose`."""
    optimizer: Literal["adamw", "muon"] = given.get("optimizer.name") or _optimizer(machine, given)
    number = shape.num_parameters
    crop = given.get("data.crop_tokens") or _crop(corpus, machine)
    rate = speeds.get(size) or _estimated(shape, corpus, crop, machine, speeds)
    training = 1 - split.held_proteins / corpus.proteins
    pass_tokens = max(1.0, corpus.pass_tokens(crop) * training)
    one_s, scored = _validation(corpus, split, crop, rate, budget_s, given)
    time_s = budget_s - _rest_s(number, machine, budget_s)
    time_s = max(time_s - (1 + int(time_s // _INTERVAL_S)) * one_s, 0.2 * budget_s)
    most = rules.MOST_PASSES * pass_tokens
    total = given.get("schedule.total_tokens") or _round(min(rate * time_s, most))
    bin_tokens, bins, crop = _layout(total, pass_tokens, crop, machine, given)
    fill = 0.98 * pass_tokens / (bin_tokens * math.ceil(pass_tokens / bin_tokens))
    least = rules.LEAST_STEPS * bin_tokens * bins * fill
    if "schedule.total_tokens" not in given and total < least:
        total = _round(max(total, min(rate * time_s, least)))
    slots = bin_tokens * (given.get("data.bins_per_forward") or 1) // (given.get("parallel.context") or 1)
    checkpointing: Checkpointing = given.get("compute.checkpointing") or "none"
    return Plan(
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
        by_passes="schedule.total_tokens" not in given and rate * time_s > 1.02 * total,
        tokens_per_s=rate,
        is_timed=size in speeds,
        memory_bytes=memory_of(shape, slots, machine, optimizer, checkpointing).total,
        scored=scored,
        one_validation_s=one_s,
        rest_s=_rest_s(number, machine, total / rate),
        budget_s=budget_s,
    )


def _optimizer(machine: Machine, given: Mapping[str, Any]) -> Literal["adamw", "muon"]:
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
    slots = _power(min(max(slots, rules.LEAST_STEP_TOKENS), rules.MOST_STEP_TOKENS))
    # Not larger than the pass needs: the last bin of a pass is filled with what is left.
    useful = _power(max(2 * pass_tokens - 1, 1))
    bin_tokens = given.get("data.bin_tokens")
    if bin_tokens is None:
        bin_tokens = min(rules.MOST_BIN_TOKENS[machine.kind], _power(slots / groups), useful)
        bin_tokens = max(bin_tokens, rules.LEAST_CROP, crop if "data.crop_tokens" in given else 0)
        bin_tokens = -(-bin_tokens // context) * context
    crop = crop if "data.crop_tokens" in given else min(crop, bin_tokens)
    bins = given.get("data.bins_per_step") or max(1, round(slots / (groups * bin_tokens))) * groups
    return bin_tokens, bins, crop


def _validation(
    corpus: CorpusFacts, split: SplitFacts, crop: int, rate: float, budget_s: float, given: Mapping[str, Any]
) -> tuple[float, int]:
    """Time of one validation, and how many proteins it scores."""
    each_s = rules.CORRUPTIONS * rules.FORWARD_SHARE * corpus.pass_tokens(crop) / corpus.proteins / rate
    held = split.held_proteins or corpus.proteins
    fits = int(rules.VALIDATION_TIME * budget_s / each_s)
    scored = given.get("run.validation_sequences")
    if scored is None:
        scored = min(2000, max(rules.LEAST_VALIDATION_PROTEINS, fits))
    return each_s * min(scored, held), scored


def _rest_s(parameters: int, machine: Machine, training_s: float) -> float:
    saves = 2 + int(training_s // _INTERVAL_S)
    moved = rules.SAVED_BYTES * parameters * saves
    start_s = rules.START_S + (rules.COMPILE_S if machine.kind == "cuda" else 0.0)
    return start_s + rules.END_S + moved / rules.DISK_BYTES_PER_S


def _power(value: float) -> int:
    """The largest power of two that is at most `value`, 1 or more."""
    return 1 << max(0, int(math.log2(max(value, 1))))


def _round(tokens: float) -> int:
    """Tokens to three digits, so that they can be read."""
    return max(1, int(float(f"{tokens:.3g}")))
