"""The choice: what to train, for how long and how much at a time, each value with its reason.

In: facts about a corpus, its split, a machine, the time there is, what the user gave, and speeds that were timed. Out:
a `ProposedRecipe`. Kept: nothing. It is a function of plain values, and imports no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pretrain.machine import Machine
from pretrain.model.memory import MEMORY_SHARE
from pretrain.model.presets import PRESETS, EsmShape
from pretrain.proposal import rules
from pretrain.proposal.corpus import CorpusFacts, SplitFacts
from pretrain.proposal.plan import TrainingPlan, plan_of
from pretrain.proposal.reasons import SettingChoice, choices
from zymogen.console.format import duration


@dataclass(frozen=True, slots=True)
class ProposedRecipe:
    """What is proposed."""

    plan: TrainingPlan
    choices: tuple[SettingChoice, ...]
    """The settings, in the order of the recipe."""
    notes: tuple[str, ...]
    """Lines for the reader where a bound could not be kept."""


def propose_settings(
    corpus: CorpusFacts,
    split: SplitFacts,
    machine: Machine,
    budget_s: float,
    given: Mapping[str, Any],
    speeds: Mapping[str, float] | None = None,
    init: EsmShape | None = None,
) -> ProposedRecipe:
    """Apply the rules: of all sizes that the memory holds, the largest that gets enough tokens.

    Args:
        corpus: the corpus.
        split: what is held out of it.
        machine: what trains.
        budget_s: time from the proposal to the end of the run.
        given: dotted name of each setting that the user gave -> its value, None for one that was taken out.
        speeds: real tokens a second that were timed, by size; others are estimated, corrected as the last one is.
        init: shape of the weights that `model.init` names, if it is given.
    """
    shapes = _shapes(given, init)
    facts = corpus, split, machine, budget_s, given, speeds or {}
    plans = [plan_of(size, shape, *facts) for size, shape in shapes.items()]
    fitting = [plan for plan in plans if plan.fits_into(machine)] or plans[:1]
    worth = [plan for plan in fitting if plan.size == rules.SMALLEST or (plan.has_enough_tokens and plan.is_in_time)]
    plan = (worth or fitting)[-1]
    larger = next((other for other in plans if other.parameters > plan.parameters), None)
    return ProposedRecipe(plan, choices(plan, corpus, split, machine, given, larger), tuple(_notes(plan, machine)))


def _shapes(given: Mapping[str, Any], init: EsmShape | None) -> dict[str, EsmShape]:
    if init is not None:
        return {str(given["model.init"]): init}
    if given.get("model.preset"):
        return {given["model.preset"]: PRESETS[given["model.preset"]]}
    return {name: PRESETS[name] for name in rules.SIZES}


def _notes(plan: TrainingPlan, machine: Machine) -> list[str]:
    notes = [f"limits of this container or job: {machine.limits}"] if machine.limits else []
    if not plan.fits_into(machine):
        notes.append(
            f"memory: {plan.memory_bytes / 1e9:.1f} GB for each process is more than {MEMORY_SHARE:.0%} of the "
            f"{machine.memory_bytes / 1e9:.1f} GB that it has"
        )
    if plan.repeats > 1.05 * rules.MOST_PASSES:
        over = "" if plan.distinct_share > 0.95 else " over each distinct protein"
        notes.append(
            f"passes: {plan.repeats:,.0f}{over}, more than the {rules.MOST_PASSES:.0f} after which a repeated pass "
            "teaches next to nothing: expect the model to know little beyond these proteins"
        )
    is_given = plan.limit == "given"
    if plan.steps < rules.LEAST_STEPS:
        notes.append(
            f"steps: {plan.steps}, fewer than the {rules.LEAST_STEPS} that teach random weights something: give it "
            f"more {'tokens' if is_given else 'time'}"
        )
    if not plan.is_in_time:
        notes.append(
            f"time: about {duration(plan.seconds)}, more than the {duration(plan.budget_s)} there are"
            f"{'; without schedule.total_tokens, a length that fits is chosen' if is_given else ''}"
        )
    return notes
