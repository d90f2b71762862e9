"""The curriculum: a stage is a function of tokens seen."""

import pytest

from data.order.plan import stage_value
from data.settings import DataSettings

STAGES = ((100, 64), (250, 128))


@pytest.mark.parametrize(("seen", "crop"), [(0, 64), (99, 64), (100, 128), (249, 128), (250, 512), (10**15, 512)])
def test_a_stage_ends_at_its_tokens(seen: int, crop: int) -> None:
    assert stage_value(STAGES, 512, seen) == crop


def test_without_stages_the_last_value_holds() -> None:
    assert stage_value((), 512, 0) == 512


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"curriculum": ((100, 64), (100, 128))}, "ends that are above 0 and rise"),
        ({"curriculum": ((0, 64),)}, "ends that are above 0 and rise"),
        ({"curriculum": ((100, 2),)}, "data.curriculum is 2; it must lie between 3"),
        ({"curriculum": ((100, 20_000),)}, "lower the crop or raise the bin"),
    ],
)
def test_stages_that_make_no_sense(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DataSettings(sources=("-",), **settings)
