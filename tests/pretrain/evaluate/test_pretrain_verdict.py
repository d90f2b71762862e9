"""The verdict: three judgements and their borders, and advice that follows from the course of the losses."""

import math
from dataclasses import replace

import pytest

from pretrain.evaluate.scores import CorruptionScores, HeldOutUnit
from pretrain.evaluate.training_curve import Point, TrainingCurve
from pretrain.evaluate.verdict import Advice, Judgement, Verdict, verdict

BETTER = CorruptionScores(9.0, 8.5, 9.5, 18.0, 0.693, 0.6, 0.8, None, 40, 900)
UNDECIDED = replace(BETTER, gain=0.01, gain_low=-0.05, gain_high=0.07)
WORSE = replace(BETTER, perplexity=25.0, gain=-0.33, gain_low=-0.4, gain_high=-0.2)
TOKENS = range(10_000, 1_000_001, 10_000)


def judged(
    scores: CorruptionScores,
    course: TrainingCurve = TrainingCurve(),  # noqa: B008
    held_out: HeldOutUnit = HeldOutUnit.CLUSTERS,
) -> Verdict:
    return verdict(scores, course, held_out)


def line(at_half: float, at_end: float) -> tuple[Point, ...]:
    """Losses against tokens: straight against their logarithm."""
    return tuple((t, at_end + (at_half - at_end) * math.log2(TOKENS[-1] / t)) for t in TOKENS)


def course(*validations: Point, diverged: bool = False, skipped: int = 0, steps: int = 100) -> TrainingCurve:
    return TrainingCurve(validations, diverged=diverged, steps=steps, skipped_steps=skipped)


# What the scores show -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "judgement"),
    [
        (BETTER, Judgement.BETTER),
        (replace(BETTER, gain_low=1e-9), Judgement.BETTER),
        (replace(BETTER, gain_low=0.0), Judgement.UNDECIDED),  # the interval touches 0
        (UNDECIDED, Judgement.UNDECIDED),
        (replace(WORSE, gain_high=0.0), Judgement.UNDECIDED),
        (replace(WORSE, gain_high=-1e-9), Judgement.WORSE),
        (WORSE, Judgement.WORSE),
        (replace(BETTER, gain_low=math.nan, gain_high=math.nan), Judgement.UNDECIDED),  # one cluster, so no interval
        (replace(WORSE, gain_low=math.nan, gain_high=math.nan), Judgement.UNDECIDED),
        (replace(WORSE, gain=math.nan, gain_low=math.nan, gain_high=math.nan), Judgement.WORSE),
        (replace(WORSE, gain=-math.inf, gain_low=-math.inf, gain_high=math.nan), Judgement.WORSE),
    ],
)
def test_the_judgement_follows_from_the_interval_of_the_gain(scores: CorruptionScores, judgement: Judgement) -> None:
    assert judged(scores).judgement is judgement


def test_each_finding_is_said_only_where_it_holds() -> None:
    assert judged(BETTER).finding == (
        "It beats residue frequencies by 0.693 nats a residue (at least 0.600, bootstrap 95 %): perplexity 9.0, "
        "against 18.0 for residue frequencies (1 would be certainty)."
    )
    assert judged(WORSE).finding == (
        "It is worse than residue frequencies, by 0.330 nats a residue (at least 0.200, bootstrap 95 %)."
    )
    assert judged(UNDECIDED).finding == (
        "It cannot be told from residue frequencies: the gain of 0.010 nats a residue lies between -0.050 and 0.070 "
        "(bootstrap 95 %)."
    )
    alone = replace(BETTER, gain_low=math.nan, gain_high=math.nan)
    assert judged(alone).finding.startswith("All validation proteins are of one cluster, so there is no interval and")
    one = judged(alone, held_out=HeldOutUnit.SEQUENCES).finding
    assert one.startswith("All validation proteins are one sequence, so there is")
    assert "diverged" in judged(replace(WORSE, gain=math.nan)).finding


def test_what_was_learned_little_of_is_named_with_every_caveat() -> None:
    """0.1 nats over residue frequencies, and beyond their interval."""
    borders = [(0.099, 0.05, True), (0.1, 0.05, False), (0.3, 0.001, False), (0.3, 0.0, True), (-0.33, -0.4, True)]
    for gain, low, is_little in borders:
        found = judged(replace(BETTER, gain=gain, gain_low=low, gain_high=gain + 0.1))
        assert found.is_little == is_little
        assert any("no better than random weights" in each for each in found.sentences) == is_little
        assert not judged(replace(BETTER, gain=gain, gain_low=low, floor=4.5)).is_little
    assert not judged(replace(WORSE, gain=math.nan)).is_little  # it has diverged
    assert judged(BETTER, held_out=HeldOutUnit.SEQUENCES).caveats[0].startswith("Relatives of these proteins may have")
    flattered = verdict(BETTER, TrainingCurve(), HeldOutUnit.CLUSTERS, replace(BETTER, perplexity=18.1))
    assert flattered.caveats[0].startswith("80/10/10 is above residue frequencies because")
    assert verdict(BETTER, TrainingCurve(), HeldOutUnit.CLUSTERS, BETTER).caveats == ()


def test_the_share_of_what_can_be_learned() -> None:
    """From 18 towards 4.5 is two halvings; half of that way is one. It is no praise for a model that is worse."""
    half = replace(BETTER, gain=math.log(2), floor=4.5)
    assert judged(half).finding.splitlines()[1].startswith("That is 50% of what can be learned")
    assert "can be learned" not in judged(replace(WORSE, floor=4.5)).finding


# What the course shows ----------------------------------------------------------------------------

FALLS, FLAT, RISES = line(2.3, 2.2), line(2.2, 2.198), line(2.2, 2.3)
ALONE = replace(BETTER, gain_low=math.nan, gain_high=math.nan)


@pytest.mark.parametrize(
    ("scores", "course_of_run", "advice", "said"),
    [
        (BETTER, course(*FALLS), Advice.LONGER, "validation loss still falls, by 0.1"),
        (WORSE, course(*FALLS), Advice.LONGER, "train twice as long"),
        (BETTER, course(*FLAT), Advice.LARGER, "validation loss no longer falls (-0.00"),
        (UNDECIDED, course(*FLAT), None, ""),
        (BETTER, course(), None, ""),
        (BETTER, course(*FALLS[-1:]), None, ""),
        (UNDECIDED, course(), Advice.LONGER, "too short to show"),
        (WORSE, course(), Advice.LONGER, "too short to show"),
        (ALONE, course(*FLAT), None, ""),
        (ALONE, course(), None, ""),  # nor too short for all we know
        (BETTER, course(*RISES), Advice.MORE_DATA, "nats since 10,000 tokens: train on more proteins, or make"),
        (WORSE, course(*RISES), Advice.LOWER_RATE, "nats since 10,000 tokens: lower schedule.peak_lr."),
        (replace(WORSE, perplexity=601.0), course(), Advice.LOWER_RATE, "The perplexity is 601, above that of a guess"),
        (BETTER, course((1, math.nan), *RISES), Advice.MORE_DATA, "since 10,000 tokens"),  # a first one is no number
        (BETTER, course(*FALLS, skipped=1), Advice.LOWER_RATE, "1 of 100 steps had no finite gradient"),
        (BETTER, course(*FALLS, skipped=1, steps=2_000), Advice.LONGER, "still falls"),
        (WORSE, course(*FALLS, diverged=True), Advice.LOWER_RATE, "became infinite or no number"),
    ],
)
def test_the_advice_follows_from_the_course(
    scores: CorruptionScores, course_of_run: TrainingCurve, advice: Advice | None, said: str
) -> None:
    found = judged(scores, course_of_run)
    assert (found.advice, said in found.reason) == (advice, True), found.reason
    assert found.sentences == [found.finding, *found.caveats, *([found.reason] if advice else [])]
    assert found.best_tokens == (10_000 if advice is Advice.MORE_DATA else None)


FITS = "It is 0.693 nats a residue better than residue frequencies on proteins that it was trained on: that says how "
NOT = "It is 0.330 nats a residue worse than residue frequencies on proteins that it was trained on: that says how "
LOST = "Its loss on the training proteins is no finite number: the weights have diverged."


@pytest.mark.parametrize(
    ("scores", "course_of_run", "begins", "advice"),
    [
        (BETTER, course(*RISES), FITS, None),
        (BETTER, course(*FALLS), FITS, None),
        (WORSE, course(*FALLS), NOT, Advice.LONGER),
        (replace(WORSE, gain=math.nan), course(*FALLS, diverged=True), LOST, Advice.LOWER_RATE),
    ],
)
def test_where_nothing_is_held_out_no_validation_is_spoken_of(
    scores: CorruptionScores, course_of_run: TrainingCurve, begins: str, advice: Advice | None
) -> None:
    found = judged(scores, course_of_run, HeldOutUnit.NOTHING)
    assert (found.finding.startswith(begins), found.advice) == (True, advice), found
    assert "validation" not in " ".join(found.sentences)
    is_worse = scores.gain_high < 0 or math.isnan(scores.gain)
    assert found.judgement is (Judgement.WORSE if is_worse else Judgement.UNDECIDED)
    assert found.best_tokens is None
