"""The verdict on a run: better than residue frequencies, undecided or worse, and what to do next.

In: the scores of its last weights, and the course of its losses. Out: `Verdict`. Kept: nothing: it is a pure function,
and each of its sentences is said only where it holds.

The judgement is by mask-all, where nothing can be copied. What to do next is the first of these that the course
shows: losses that are no numbers or above that of a guess, or skipped steps: a lower peak rate; a validation loss
that has risen: more data or fewer passes, or of a model that is worse, a lower peak rate; one that still falls:
longer; one that no longer does: a larger model. Where nothing is held out, nothing is claimed about other proteins.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from pretrain.evaluate.scores import CorruptionScores, HeldOutUnit
from pretrain.evaluate.training_curve import TrainingCurve, change

_CHANGE = 0.01
"""Nats over the last half of the training, 1 % of a perplexity: a smaller change counts as none."""
_SKIPPED = 1e-3
"""Share of the steps that may be skipped before the peak rate is blamed."""
_GUESS = 70.0
"""A perplexity above that of a guess among all token ids, 64 in ESM C's architecture: no untrained model has it."""
_LITTLE = 0.1
"""Nats a residue: a smaller gain over residue frequencies is that of perplexity 16.4 against 18.1 at most."""


class Judgement(StrEnum):
    """How a model compares with another one, or with residue frequencies."""

    BETTER = "better"
    UNDECIDED = "undecided"
    WORSE = "worse"


class Advice(StrEnum):
    """What to do next."""

    LONGER = "train longer"
    LOWER_RATE = "lower the peak rate"
    MORE_DATA = "more data or fewer passes"
    LARGER = "a larger model"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judgement and an advice, each with its sentence."""

    judgement: Judgement
    finding: str
    """What the scores show, as a sentence or two."""
    advice: Advice | None = None
    """None where the course shows nothing."""
    reason: str = ""
    """What the course shows and what follows from it, as a sentence; empty without an advice."""
    best_tokens: int | None = None
    """Tokens at which the validation loss was lowest, for `Advice.MORE_DATA`."""
    is_little: bool = False
    """Whether the model learned little or nothing beyond residue frequencies."""
    caveats: tuple[str, ...] = ()
    """What a reader of the scores has to know, a sentence each."""

    @property
    def sentences(self) -> list[str]:
        """What is said, each a line."""
        return [self.finding, *self.caveats, *([self.reason] if self.reason else [])]


def verdict(
    scores: CorruptionScores, course: TrainingCurve, held_out: HeldOutUnit, corrupted: CorruptionScores | None = None
) -> Verdict:
    """Judge a run.

    Args:
        scores: of its last weights, every target masked.
        course: of the run, up to these weights.
        held_out: what the scored proteins are.
        corrupted: scores of the same weights under 80/10/10, where they are shown.
    """
    judgement, finding = _judged(scores, held_out)
    found = _advised(Verdict(judgement, finding), scores, course, held_out)
    little = scores.floor is None and (scores.gain < _LITTLE or scores.gain_low <= 0) and math.isfinite(scores.gain)
    return replace(found, is_little=little, caveats=tuple(_caveats(scores, held_out, corrupted, little)))


# What the scores show -----------------------------------------------------------------------------


def _judged(s: CorruptionScores, held_out: HeldOutUnit) -> tuple[Judgement, str]:
    if not math.isfinite(s.gain):
        which = "training" if held_out is HeldOutUnit.NOTHING else "validation"
        return Judgement.WORSE, f"Its loss on the {which} proteins is no finite number: the weights have diverged."
    if held_out is HeldOutUnit.NOTHING:
        than = f"{abs(s.gain):.3f} nats a residue {'worse' if s.gain < 0 else 'better'} than residue frequencies"
        return Judgement.WORSE if s.gain_high < 0 else Judgement.UNDECIDED, (
            f"It is {than} on proteins that it was trained on: that says how well it fits them, and nothing about "
            "others."
        )
    if math.isnan(s.gain_low) or math.isnan(s.gain_high):
        of_one = "are of one cluster" if held_out is HeldOutUnit.CLUSTERS else "are one sequence"
        said = f"All validation proteins {of_one}, so there is no interval and nothing is claimed: raise "
        return Judgement.UNDECIDED, f"{said}data.validation_fraction."
    if s.gain_low > 0:
        by = f"{s.gain:.3f} nats a residue (at least {s.gain_low:.3f}, bootstrap 95 %)"
        said = (
            f"It beats residue frequencies by {by}: perplexity {s.perplexity:.1f}, against {s.unigram:.1f} for residue "
            "frequencies (1 would be certainty)."
        )
        if s.gain < _LITTLE and s.floor is None:
            said = (
                f"It learned little beyond residue frequencies, which it beats by {by}: perplexity {s.perplexity:.2f}, "
                f"against {s.unigram:.2f} for residue frequencies."
            )
        if s.floor is None:
            return Judgement.BETTER, said
        share = s.gain / (math.log(s.unigram) - math.log(s.floor))
        return Judgement.BETTER, f"{said}\nThat is {share:.0%} of what can be learned: no model can go below the floor."
    if s.gain_high < 0:
        return Judgement.WORSE, (
            f"It is worse than residue frequencies, by {-s.gain:.3f} nats a residue (at least {-s.gain_high:.3f}, "
            "bootstrap 95 %)."
        )
    return Judgement.UNDECIDED, (
        f"It cannot be told from residue frequencies: the gain of {s.gain:.3f} nats a residue lies between "
        f"{s.gain_low:.3f} and {s.gain_high:.3f} (bootstrap 95 %)."
    )


def _caveats(
    s: CorruptionScores, held_out: HeldOutUnit, corrupted: CorruptionScores | None, is_little: bool
) -> Iterator[str]:
    if held_out is HeldOutUnit.SEQUENCES:
        yield "Relatives of these proteins may have trained, which makes the model look better than it is."
    if corrupted and corrupted.perplexity > corrupted.unigram:
        yield (
            "80/10/10 is above residue frequencies because a model that trains on masks alone trusts the wrong "
            "residues that it shows; judge by mask-all."
        )
    if is_little:
        yield (
            "As an encoder it may be no better than random weights: it learned little or nothing beyond residue "
            "frequencies. Start from a published model instead (model.init)."
        )


# What the course shows ----------------------------------------------------------------------------


def _advised(found: Verdict, scores: CorruptionScores, course: TrainingCurve, held_out: HeldOutUnit) -> Verdict:
    def advised(advice: Advice, reason: str, best_tokens: int | None = None) -> Verdict:
        return replace(found, advice=advice, reason=reason, best_tokens=best_tokens)

    if course.diverged:
        return advised(Advice.LOWER_RATE, "The loss became infinite or no number: lower schedule.peak_lr.")
    if course.steps and course.skipped_steps >= max(1.0, _SKIPPED * course.steps):
        skipped = f"{course.skipped_steps} of {course.steps} steps had no finite gradient and were skipped"
        return advised(Advice.LOWER_RATE, f"{skipped}: lower schedule.peak_lr.")
    if scores.perplexity > _GUESS:
        guess = f"The perplexity is {scores.perplexity:.3g}, above that of a guess"
        return advised(Advice.LOWER_RATE, f"{guess}: lower schedule.peak_lr.")
    # Scores of training proteins are no second opinion.
    points = () if held_out is HeldOutUnit.NOTHING else course.validations
    finite = [point for point in points if math.isfinite(point[1])]
    if finite:
        tokens, best = min(finite, key=lambda point: point[1])
        if (rise := points[-1][1] - best) > _CHANGE:
            since = f"The validation loss has risen by {rise:.2f} nats since {tokens:,} tokens"
            if found.judgement is Judgement.WORSE:
                return advised(Advice.LOWER_RATE, f"{since}: lower schedule.peak_lr.")
            reason = f"{since}: train on more proteins, or make fewer passes over these."
            return advised(Advice.MORE_DATA, reason, tokens)
    fall = change(points)
    if fall is None:
        if scores.gain_low > 0 or math.isnan(scores.gain_low):
            return found
        return advised(Advice.LONGER, "The run was too short to show where it was going: train longer.")
    if fall < -_CHANGE:
        by = f"by {-fall:.3f} nats over the last half of the training"
        return advised(Advice.LONGER, f"The validation loss still falls, {by}: train twice as long.")
    if found.judgement is not Judgement.BETTER:
        return found
    by = f"({fall:+.3f} nats over the last half of the training)"
    return advised(Advice.LARGER, f"The validation loss no longer falls {by}: a larger model can learn more.")
