"""How many tokens a step and a pass hold, before the first step: against the steps that are then taken."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from data.corpus.reader import CorpusReader
from data.order.plan import Cursor, Plan
from data.order.plan_size import PlanSize, plan_size, tokens_per_epoch
from data.order.sampler import Mixture
from data.settings import DataSettings
from support.inputs.raw_store import Records, plan_over, write_store

RECORDS = 600


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> CorpusReader:
    lengths = np.random.default_rng(1).integers(20, 300, RECORDS)
    return CorpusReader([write_store(tmp_path_factory.mktemp("extent"), lengths)])


def settings(**more: object) -> DataSettings:
    given = {"sources": ("-",), "crop_tokens": 200, "bin_tokens": 512, "bins_per_step": 3, "window_sequences": 1000}
    return DataSettings(**given | more)  # type: ignore[arg-type]


def taken(plan: Plan, total: int) -> int:
    """How many steps a run takes to `total` tokens."""
    bins, steps, tokens = plan.bins(Cursor()), 0, 0
    while tokens < total:
        tokens += sum(bin_.num_tokens for bin_, _ in islice(bins, plan.settings.bins_per_step))
        steps += 1
    return steps


def tokens_of_pass(plan: Plan) -> int:
    windows = (plan.window(0, number, 10**12) for number in range(RECORDS))
    return sum(bin_.num_tokens for bins in iter(lambda: next(windows), None) for bin_ in bins)


def test_a_corpus_of_one_window_is_counted(reader: CorpusReader) -> None:
    plan = plan_over(reader, Records(RECORDS), settings())
    found = plan_size(plan)
    assert (found.tokens_per_pass, found.is_exact) == (tokens_of_pass(plan), True)
    assert abs(found.steps(0, 300_000) - taken(plan, 300_000)) <= 1
    assert found.steps(0, 300_000) >= 100


def test_of_many_windows_the_first_one_speaks(reader: CorpusReader) -> None:
    plan = plan_over(reader, Records(RECORDS), settings(window_sequences=100))
    found = plan_size(plan)
    assert not found.is_exact
    assert found.tokens_per_pass == pytest.approx(tokens_of_pass(plan), rel=0.1)
    assert found.steps(0, 300_000) == pytest.approx(taken(plan, 300_000), rel=0.02)


def test_each_stage_of_a_curriculum_has_its_own_steps(tmp_path: Path) -> None:
    """Two documents of more than 150 tokens do not share a bin of 300; three crops of 100 fill one."""
    reader = CorpusReader([write_store(tmp_path, np.random.default_rng(1).integers(160, 280, RECORDS))])
    staged = settings(curriculum=((100_000, 100),), crop_tokens=300, bin_tokens=300, bins_per_step=4)
    plan = plan_over(reader, Records(RECORDS), staged)
    found = plan_size(plan)
    assert [begin for begin, _ in found.stages] == [0, 100_000]
    assert found.stages[0][1] == 1200
    assert 800 < found.stages[1][1] < 1000
    assert found.steps(0, 300_000) == pytest.approx(taken(plan, 300_000), rel=0.04)
    # Control: without the first stage's own number it is further off than that.
    alone = PlanSize(None, False, ((0, found.stages[1][1]),))
    assert alone.steps(0, 300_000) != pytest.approx(taken(plan, 300_000), rel=0.04)


def test_steps_between_two_tokens() -> None:
    found = PlanSize(None, False, ((0, 10.0), (100, 20.0)))
    assert [found.steps(0, stop) for stop in (1, 10, 11, 100, 101, 140)] == [1, 1, 2, 10, 11, 12]
    assert [found.steps(start, 140) for start in (90, 100, 139, 140, 150)] == [3, 2, 1, 0, 0]


def test_streams_and_mixtures_have_no_pass(reader: CorpusReader) -> None:
    records = Records(RECORDS)
    mixed = Plan(Mixture([records, records], (1, 1), 0, 100), lambda s: reader.num_residues(s % 2**40), settings(), 0)
    assert plan_size(mixed).tokens_per_pass is None
    assert plan_size(mixed).stages[0][1] > 1000
    assert plan_size(plan_over(reader, Records(RECORDS, streamed=True), settings())).tokens_per_pass is None


@pytest.mark.parametrize("window_sequences", [1000, 100])
def test_the_tokens_of_a_pass_are_counted_whatever_its_windows(reader: CorpusReader, window_sequences: int) -> None:
    plan = plan_over(reader, Records(RECORDS), settings(window_sequences=window_sequences))
    assert tokens_per_epoch(plan) == tokens_of_pass(plan)


def test_what_has_no_such_pass_is_refused(reader: CorpusReader) -> None:
    mixture = plan_over(reader, Records(RECORDS), settings())
    mixture.sampler = Mixture([Records(RECORDS)], [1], 0, 1000)
    with pytest.raises(ValueError, match="a stream or a mixture has no pass whose tokens could be counted"):
        tokens_per_epoch(mixture)
    changing = plan_over(reader, Records(RECORDS), settings(curriculum=((5_000, 60),)))
    with pytest.raises(ValueError, match=r"schedule\.passes is given beside data\.curriculum"):
        tokens_per_epoch(changing)
