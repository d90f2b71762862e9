"""Digests of steps: one value for every world, number of workers and start, over two passes and a curriculum stage."""

from dataclasses import replace
from pathlib import Path

import pytest

from data.commands.digest import DataRecipe, cursor_at, digest_command, digests_of_steps
from data.corpus.corpora import Corpora
from data.corpus.prepare import open_corpora, prepare_corpora
from data.order.plan import EMPTY_CHAIN, Cursor, extend_chain
from zymogen.settings.toml_file import check, sections

SETTINGS = (
    "data.validation_fraction=0.15",
    "data.crop_tokens=100",
    "data.curriculum=[[6_000, 40]]",
    "data.bin_tokens=128",
    "data.bins_per_step=24",
    "data.window_sequences=50",
)
STEPS = 20
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def lines(recipe_in, tmp_path_factory: pytest.TempPathFactory):
    """Lines of `python -m data digest` on one recipe; stores and indices are shared."""
    recipe: Path = recipe_in(tmp_path_factory.mktemp("digest"))

    def of(start: int, stop: int, world_size: int = 1, workers: int = 0, *overrides: str) -> list[str]:
        # The imbalance, last on the line, is of the world by nature.
        lines = digest_command(recipe, [*SETTINGS, *overrides], start, stop, world_size, workers)
        return [line.split("tokens")[0] for line in lines]

    return of


@pytest.fixture(scope="module")
def reference(lines) -> list[str]:
    return lines(0, STEPS)


def test_a_line_says_step_hash_and_tokens(reference: list[str]) -> None:
    for number, line in enumerate(reference):
        step, digest, tokens = line.removeprefix("step ").split()
        assert int(step) == number
        assert len(digest) == 64
        assert 0 < int(tokens) <= 24 * 128
    assert len({line.split()[2] for line in reference}) == STEPS


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores, on purpose
@pytest.mark.parametrize(
    ("world_size", "workers"),
    [(3, 0), *(pytest.param(*grid, marks=SLOW) for grid in ((2, 1), (5, 0), (8, 0), (24, 0), (3, 2), (1, 3), (2, 4)))],
)
def test_neither_world_nor_workers_have_a_part(lines, reference: list[str], world_size: int, workers: int) -> None:
    assert lines(0, STEPS, world_size, workers) == reference


@pytest.mark.parametrize("start", [1, 7, 13, 19])
def test_any_step_alone_is_that_line_of_the_whole(lines, reference: list[str], start: int) -> None:
    assert lines(start, STEPS, 2) == reference[start:]


def corpora_of(recipe_path: Path) -> Corpora:
    recipe = check(DataRecipe, {"data": sections(recipe_path, SETTINGS)["data"]}, "r")
    return open_corpora(recipe.data, prepare_corpora(recipe.data))


def test_it_covers_two_passes_and_every_stage(recipe_in, tmp_path: Path) -> None:
    """What the tests above compare is worth comparing."""
    plan = corpora_of(recipe_in(tmp_path)).plan(0)
    early, late = cursor_at(plan, 1), cursor_at(plan, STEPS - 1)
    assert late.epoch >= 2  # two passes are complete
    assert late.tokens_before_window > 6_000 > early.tokens_before_window  # on both sides of the stage


@pytest.mark.parametrize(
    "control",
    [
        "run.seed=1",
        "data.mask.mask_prob=0.7",
        "data.mask.select_prob=0.2",
        "data.crop_tokens=99",
        "data.curriculum=[[60_000, 40]]",
        "data.window_sequences=51",
        "data.validation_fraction=0.4",
        "data.sample_by=cluster",
    ],
)
def test_controls_what_decides_the_content_changes_it(lines, reference: list[str], control: str) -> None:
    changed = lines(0, STEPS, 1, 0, control)
    assert changed[-1] != reference[-1]
    assert sum(a != b for a, b in zip(changed, reference, strict=True)) > STEPS // 3


def test_control_a_cursor_off_by_one(lines, recipe_in, tmp_path: Path, reference: list[str]) -> None:
    corpora = corpora_of(recipe_in(tmp_path))
    plan = corpora.plan(0)
    cursor = cursor_at(plan, 5)

    def of(at: Cursor) -> str:
        ((_, digests, tokens, _),) = digests_of_steps(corpora, plan, at, 5, 6, 1)
        return f"step 5  {extend_chain(EMPTY_CHAIN, digests)}  {tokens} "

    assert of(cursor) == reference[5]
    assert of(replace(cursor, bin=cursor.bin + 1)) != reference[5]
    assert of(replace(cursor, window=cursor.window + 1)) != reference[5]


def test_more_ranks_than_bins(lines) -> None:
    with pytest.raises(ValueError, match="bins_per_step is 24, but 25 processes"):
        lines(0, 1, 25)


@pytest.mark.slow
def test_a_mixture_with_cluster_sampling(lines, families_files: tuple[Path, Path], tmp_path: Path) -> None:
    fasta, clusters = families_files
    small = tmp_path / "small.fasta"
    small.write_text(
        "".join(f">s{i}\n{'MKTAYIAKQR' * (i % 5 + 1)}{'ACDEFGHIKL'[i % 10]}{'W' * i}\n" for i in range(30))
    )
    mixture = (
        "data.sources=none",
        "data.clusters=none",
        f'data.mixture=[{{sources=["{fasta}"], clusters="{clusters}", sample_by="cluster", weight=3}}, '
        f'{{sources=["{small}"]}}]',
    )
    reference = lines(0, STEPS, 1, 0, *mixture)
    assert lines(0, STEPS, 3, 1, *mixture) == reference
    assert lines(11, STEPS, 2, 0, *mixture) == reference[11:]
    other = (*mixture[:2], mixture[2].replace("weight=3", "weight=2"))
    assert lines(0, STEPS, 1, 0, *other)[0] != reference[0]
