"""The verdict: three judgements and their borders, and advice that follows from the course of the losses."""

import math
from dataclasses import replace

import numpy as np
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


def line(at_half: float, at_end: float, noise: float = 0.0, start: float | None = None) -> tuple[Point, ...]:
    """Losses against tokens: straight against their logarithm, with `start` before half of them."""
    drawn = np.random.default_rng(0).normal(0, noise, len(TOKENS))
    losses = [at_end + (at_half - at_end) * math.log2(TOKENS[-1] / t) for t in TOKENS]
    losses = [
        start if start is not None and 2 * t < TOKENS[-1] else loss for t, loss in zip(TOKENS, losses, strict=True)
    ]
    return tuple((t, loss + away) for t, loss, away in zip(TOKENS, losses, drawn.tolist(), strict=True))


def course(*, skipped: int = 0, training: tuple[Point, ...] = (), validations: tuple[Point, ...] = ()) -> TrainingCurve:
    return TrainingCurve(training, validations, steps=len(TOKENS), skipped_steps=skipped)


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


@pytest.mark.parametrize(
    ("scores", "course_of_run", "advice", "said"),
    [
        (BETTER, course(validations=FALLS), Advice.LONGER, "validation loss still falls, by 0.1"),
        (BETTER, course(validations=FLAT), Advice.LARGER, "validation loss no longer falls (-0.00"),
        (BETTER, course(training=line(2.2, 2.1, 0.01)), Advice.LONGER, "training loss still falls, by 0.1"),
        (BETTER, course(training=line(2.2, 2.2, 0.01)), Advice.LARGER, "training loss no longer falls"),
        (BETTER, course(training=line(2.2, 2.19, 0.3)), None, ""),  # too noisy to tell
        (BETTER, course(), None, ""),
        (BETTER, course(validations=FALLS[-1:]), None, ""),
        (UNDECIDED, course(), Advice.LONGER, "too short to show"),
        (WORSE, course(), Advice.LONGER, "too short to show"),
        (replace(BETTER, gain_low=math.nan, gain_high=math.nan), course(validations=FLAT), None, ""),  # and not near
        (replace(BETTER, gain_low=math.nan, gain_high=math.nan), course(), None, ""),  # nor too short for all we know
        (UNDECIDED, course(validations=FLAT), Advice.LONGER, "near that of residue frequencies: train 4 times as long"),
        (WORSE, course(validations=FLAT), Advice.LOWER_RATE, "no longer falls"),
        (WORSE, course(training=line(2.9, 3.1, 0.01)), Advice.LOWER_RATE, "training loss has risen by 0.2"),
        (BETTER, course(validations=line(2.4, 2.3, start=2.1)), Advice.LOWER_RATE, "since 10,000 tokens: lower"),
        (
            BETTER,
            course(validations=((1, math.nan), *line(2.4, 2.3, start=2.1))),  # a first one that is no number
            Advice.LOWER_RATE,
            "has risen by 0.20 nats since 10,000 tokens",
        ),
        (
            BETTER,
            course(validations=RISES, training=line(2.2, 2.0, 0.01)),
            Advice.MORE_DATA,
            "while the training loss still falls: train on more proteins, or make fewer passes",
        ),
        (
            BETTER,
            course(validations=FLAT, training=line(2.2, 2.0, 0.01)),
            Advice.MORE_DATA,
            "no longer falls (-0.002 nats over the last half of the training), while the training loss still falls",
        ),
        (BETTER, course(validations=FALLS, training=line(2.2, 2.0, 0.01)), Advice.LONGER, "still falls"),
        (WORSE, course(validations=line(4.0, 3.2), training=line(3.9, 3.1, 0.01)), Advice.LONGER, "still falls"),
        (WORSE, course(validations=line(3.6, 3.4), training=line(3.3, 3.1, 0.01)), Advice.LONGER, "still falls"),
        (BETTER, course(validations=FALLS, skipped=1), Advice.LOWER_RATE, "1 of 100 steps had no finite gradient"),
        (BETTER, replace(course(validations=FALLS, skipped=1), steps=2_000), Advice.LONGER, "still falls"),
        (WORSE, course(training=(*FALLS, (1_000_001, math.nan))), Advice.LOWER_RATE, "became infinite or no number"),
        (WORSE, course(validations=(*FALLS, (1_000_001, math.nan))), Advice.LOWER_RATE, "became infinite or no number"),
        (BETTER, course(training=((1, math.nan), *line(2.2, 2.1, 0.01))), Advice.LONGER, "still falls"),  # long ago
        (WORSE, course(training=line(600.0, 550.0, 1.0)), Advice.LOWER_RATE, "above that of a guess"),
        (WORSE, course(training=line(4.17, 4.1, 0.001)), Advice.LONGER, "still falls"),  # untrained, 64 token ids
    ],
)
def test_the_advice_follows_from_the_course(
    scores: CorruptionScores, course_of_run: TrainingCurve, advice: Advice | None, said: str
) -> None:
    found = judged(scores, course_of_run)
    assert (found.advice, said in found.reason) == (advice, True), found.reason
    assert found.sentences == [found.finding, *found.caveats, *([found.reason] if advice else [])]


FITS = "It is 0.693 nats a residue better than residue frequencies on proteins that it was trained on: that says how "
NOT = "It is 0.330 nats a residue worse than residue frequencies on proteins that it was trained on: that says how "
TRAINED = line(2.2, 2.2, 0.01)


@pytest.mark.parametrize(
    ("scores", "course_of_run", "begins", "advice", "said"),
    [
        (BETTER, course(training=TRAINED, validations=FLAT), FITS, None, ""),
        (BETTER, course(training=line(2.2, 2.1, 0.01), validations=RISES), FITS, Advice.LONGER, "The training loss st"),
        (BETTER, course(validations=FALLS), FITS, None, ""),
        (BETTER, course(training=line(1.2, 1.2, 0.01), validations=FLAT), FITS, None, ""),  # nothing to compare it with
        (UNDECIDED, course(training=TRAINED), "It is 0.010 nats a residue better", Advice.LONGER, "near that of resid"),
        (WORSE, course(training=TRAINED), NOT, Advice.LOWER_RATE, "The training loss no longer falls"),
        (WORSE, course(validations=FALLS), NOT, Advice.LONGER, "The run was too short"),
        (
            replace(WORSE, gain=math.nan, gain_low=math.nan, gain_high=math.nan),
            course(validations=(*FALLS, (1_000_001, math.nan))),
            "Its loss on the training proteins is no finite number: the weights have diverged.",
            Advice.LOWER_RATE,
            "The loss became infinite",
        ),
    ],
)
def test_where_nothing_is_held_out_the_training_loss_alone_is_spoken_of(
    scores: CorruptionScores, course_of_run: TrainingCurve, begins: str, advice: Advice | None, said: str
) -> None:
    found = judged(scores, course_of_run, HeldOutUnit.NOTHING)
    assert (found.finding.startswith(begins), found.advice, said in found.reason) == (True, advice, True), found
    assert "validation" not in " ".join(found.sentences)
    is_worse = scores.gain_high < 0 or math.isnan(scores.gain)
    assert found.judgement is (Judgement.WORSE if is_worse else Judgement.UNDECIDED)


def test_how_much_longer() -> None:
    found = [judged(BETTER, course(validations=FALLS)), judged(UNDECIDED, course(validations=FLAT)), judged(UNDECIDED)]
    assert [each.times for each in found] == [2, 4, 10]
