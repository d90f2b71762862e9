"""The verdict on a run: better than residue frequencies, undecided or worse, and what to do next.

In: the scores of its last weights, and the course of its losses. Out: `Verdict`. Kept: nothing: it is a pure function,
and each of its sentences is said only where it holds.

The judgement is by mask-all, where nothing can be copied. What to do next is the first of these that the course shows:
losses that are no numbers or skipped steps, or a loss that has risen: a lower peak rate; a validation loss that no
longer falls while the training loss does: more data or fewer passes; a loss that still falls: longer; one that no
longer does: a larger model. Where nothing is held out, nothing is claimed about other proteins, and the course is that
of the training loss alone.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from pretrain.evaluate.scores import CorruptionScores, HeldOutUnit
from pretrain.evaluate.training_curve import LossTrend, TrainingCurve, trend, trend_of_validations

_CHANGE = 0.01
"""Nats over the last half of the training, 1 % of a perplexity: a smaller change counts as none."""
_SKIPPED = 1e-3
"""Share of the steps that may be skipped before the peak rate is blamed."""
_ABOVE_A_GUESS = math.log(64) + 0.1
"""A loss above that of a guess among all token ids, in either architecture: no untrained model has it."""
_LAST_HALF = "nats over the last half of the training"
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


Advised = tuple[Advice, str, int]
"""An advice, the sentence with its reason, and how many times as long to train."""


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
    times: int = 2
    """How many times as long to train, for `Advice.LONGER`."""
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
    advised = _diverged(course)
    if held_out is HeldOutUnit.NOTHING:  # scores of training proteins are no second opinion
        course = replace(course, validations=())
    advice, reason, times = advised or _risen(course) or _by_trend(judgement, scores, course) or (None, "", 2)
    little = scores.floor is None and (scores.gain < _LITTLE or scores.gain_low <= 0) and math.isfinite(scores.gain)
    caveats = tuple(_caveats(scores, held_out, corrupted, little))
    return Verdict(judgement, finding, advice, reason, times, little, caveats)


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


def _lower_rate(finding: str) -> Advised:
    return Advice.LOWER_RATE, f"{finding}: lower schedule.peak_lr.", 1


def _fewer_epochs(finding: str) -> Advised:
    said = f"{finding}, while the training loss still falls"
    return Advice.MORE_DATA, f"{said}: train on more proteins, or make fewer passes over these.", 1


def _diverged(course: TrainingCurve) -> Advised | None:
    last = course.training[-1][0] if course.training else 0
    lost = sum(not math.isfinite(loss) for tokens, loss in course.training if 2 * tokens >= last)
    if lost or (course.validations and not math.isfinite(course.validations[-1][1])):
        return _lower_rate("The loss became infinite or no number")
    if course.steps and course.skipped_steps >= max(1.0, _SKIPPED * course.steps):
        return _lower_rate(f"{course.skipped_steps} of {course.steps} steps had no finite gradient and were skipped")
    most = max(5, sum(10 * tokens >= 9 * last for tokens, _ in course.training))
    late = [loss for _, loss in course.training[-most:]]
    if len(late) >= 5 and (now := math.fsum(late) / len(late)) > _ABOVE_A_GUESS:
        return _lower_rate(f"The training loss is {now:.2f} nats, above that of a guess")
    return None


def _risen(course: TrainingCurve) -> Advised | None:
    """Whether the loss has become worse."""
    of_steps = trend(course.training)
    finite = [point for point in course.validations if math.isfinite(point[1])]
    if len(finite) > 1:
        tokens, best = min(finite, key=lambda point: point[1])
        if (rise := course.validations[-1][1] - best) <= _CHANGE:
            return None
        said = f"The validation loss has risen by {rise:.2f} nats since {tokens:,} tokens"
        return _fewer_epochs(said) if _is_falling(of_steps) else _lower_rate(said)
    if of_steps and of_steps[0] - 2 * of_steps[1] > _CHANGE:
        return _lower_rate(f"The training loss has risen by {of_steps[0]:.2f} {_LAST_HALF}")
    return None


def _by_trend(judgement: Judgement, scores: CorruptionScores, course: TrainingCurve) -> Advised | None:
    of_steps, of_validations = trend(course.training), trend_of_validations(course.validations)
    known, which = of_validations or of_steps, "validation" if of_validations else "training"
    lags = scores.gain_low <= 0
    if known is None:
        return (Advice.LONGER, "The run was too short to show where it was going: train longer.", 10) if lags else None
    change, error = known
    if _is_falling(known):
        return Advice.LONGER, f"The {which} loss still falls, by {-change:.3f} {_LAST_HALF}: train twice as long.", 2
    if abs(change) + 2 * error > 3 * _CHANGE:
        return None  # too noisy to tell
    said = f"The {which} loss no longer falls ({change:+.3f} {_LAST_HALF})"
    if _is_falling(of_steps):
        return _fewer_epochs(said)
    if judgement is Judgement.BETTER:
        return Advice.LARGER, f"{said}: a larger model can learn more.", 1
    if judgement is Judgement.WORSE:
        return _lower_rate(said)
    if not lags:
        return None
    said += ", near that of residue frequencies: train 4 times as long, to see whether it leaves them."
    return Advice.LONGER, said, 4


def _is_falling(known: LossTrend | None) -> bool:
    return known is not None and known[0] + 2 * known[1] < -_CHANGE
