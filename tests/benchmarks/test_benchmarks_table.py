"""The table of the track of learning: what a difference is, beyond what it counts, and who has won."""

import numpy as np
import pytest

from benchmarks.learning.arms import PUBLISHED
from benchmarks.learning.judged import Judged
from benchmarks.learning.runs import Run
from benchmarks.learning.scored import Scored
from benchmarks.learning.table import Measure, by_loss, by_structure, line, rows, verdict

ARM = "modern, Muon"


def measure(values: dict[str, list[float]], title: str = "") -> Measure:
    """A measure whose runs have these numbers, over two proteins that count 10 together."""
    runs = {Run(arm, "800k", 1, seed): value for arm, found in values.items() for seed, value in enumerate(found)}
    sums = {run: np.array([value * 4, value * 6]) for run, value in runs.items()}
    return Measure(sums, dict.fromkeys(sums, np.array([4, 6])), np.array([0, 1]), "proteins", title)


def test_the_noise_is_that_of_all_arms_together() -> None:
    """Sums of squares around each arm's own mean, over the degrees of freedom: (2 + 8) / (2 + 1)."""
    found = measure({PUBLISHED: [0.0] * 3, "a": [1.0, 2.0, 3.0], "b": [5.0, 9.0], "c": [7.0]})
    assert found.noise() == pytest.approx((10 / 3) ** 0.5)
    assert found.least("b") == pytest.approx(2 * (10 / 3) ** 0.5 / 2**0.5)
    assert found.least(PUBLISHED) is None
    assert [found.sign(arm) for arm in ("a", "b", "c")] == [0, 1, 1]
    alone = measure({PUBLISHED: [0.0], "a": [1.0]})
    assert (alone.noise(), alone.least("a"), alone.sign("a")) == (None, None, None)


def test_an_arm_is_compared_with_its_own_seeds() -> None:
    found = measure({PUBLISHED: [1.0, 5.0, 3.0], ARM: [2.0, 3.0]})
    assert [(mine.seed, other.seed, other.arm) for mine, other in found.pairs(ARM)] == [
        (0, 0, PUBLISHED),
        (1, 1, PUBLISHED),
    ]
    assert found.differences(ARM) == pytest.approx([1, -2])
    assert found.pairs(PUBLISHED) == []
    (row,) = rows([PUBLISHED, ARM, "none"], found)
    assert (row.work, row.against, row.ratio) == (f"{ARM}: gain", PUBLISHED, pytest.approx(2.5 / 3))


def test_the_gain_and_the_share_are_what_the_files_say() -> None:
    ours, theirs = (Run(arm, "800k", 1, 0) for arm in (ARM, PUBLISHED))
    names, targets, unigram = np.array(["a", "b"]), np.array([5, 15]), np.array([15.0, 45.0])
    gains = {ours: 0.3, theirs: 0.1}
    scored = {run: Scored(names, unigram - gain * targets, unigram, targets) for run, gain in gains.items()}
    loss = by_loss(scored, {"a": "x", "b": "y"})
    assert (loss.value(ours), loss.value(theirs)) == pytest.approx((scored[ours].gain, 0.1))
    assert loss.interval(ARM) == pytest.approx((0.2, 0.2))
    residues = np.array([10, 30])
    files = {
        run: Judged(names, correct, residues, np.array(1.0), np.array(""))
        for run, correct in ((ours, np.array([9, 12])), (theirs, np.array([4, 12])))
    }
    structure = by_structure(files)
    assert (structure.value(ours), structure.value(theirs)) == pytest.approx((21 / 40, 16 / 40))
    low, high = structure.interval(ARM)
    assert (low, high) == pytest.approx((0.0, 0.5))  # of either protein alone


@pytest.mark.parametrize(
    ("loss", "structure", "said"),
    [
        ([0.3, 0.4], [0.6, 0.61], "won"),
        ([0.3, 0.4], [0.49, 0.505], "won"),  # worse by less than the noise
        ([0.3, 0.4], [0.4, 0.41], "not won, as its SS3 is worse"),
        ([0.3, 0.4], None, "won"),
        ([0.1, 0.1], [0.6, 0.61], "undecided"),
        ([-0.3, -0.4], [0.6, 0.61], "lost"),
    ],
)
def test_an_arm_wins_by_loss_if_its_structure_is_not_worse(
    loss: list[float], structure: list[float] | None, said: str
) -> None:
    by_what = None if structure is None else measure({PUBLISHED: [0.5, 0.5], ARM: structure}, "SS3")
    found = line(ARM, measure({PUBLISHED: [0.1, 0.1], ARM: loss}), by_what)
    assert found.rpartition(": ")[2] == said
    assert found.count("2s/sqrt(n)") == (1 if structure is None else 2)
    if structure is not None:
        difference = sum(structure) / 2 - 0.5
        share = f"SS3 {sum(structure) / 2:.4f}  ({structure[0]:.4f}, {structure[1]:.4f})  {difference:+.4f} (proteins "
        assert share in " ".join(found.replace("  ", "~").split()).replace("~", "  ")


def test_without_seeds_there_is_no_verdict() -> None:
    assert verdict(1, None) == "undecided, as its SS3 is not known"
    assert line(ARM, measure({PUBLISHED: [0.1], ARM: [0.3]}), None).endswith("+0.2000 (proteins +0.2000 to +0.2000)")
