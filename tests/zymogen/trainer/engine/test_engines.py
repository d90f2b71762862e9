"""The matrix: every engine, with and without context parallelism, ends where one process ends: C5 of docs/contracts.md.

Every run is the real program over 16 steps of 7 bins, into its second pass: ranks have unequal numbers of bins and of
targets, several micro-batches each, and on the engines that keep step one rank has a micro-batch without a target. The
yardstick is how far one process ends from itself when the bins of a step are grouped otherwise: that is rounding, and
nothing else.
"""

import json
from pathlib import Path

import pytest

from support.inputs.cells import Cell, covering, full_product, pairs
from support.kept_runs import STEP_1, STEPS_16, Ended, Trained, distances, yardstick
from support.launching import DDP, largest_difference
from support.rank_pool import RankPool
from zymogen.onednn import HAS_ONEDNN

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("engines")]

MUON = ("model.preset=modern_60k", "optimizer.name=muon")
TWO = ("parallel.context=2",)

CANARY = Cell("ddp", 2)
FULL = full_product()
COVERING = covering(FULL, [CANARY, Cell("fsdp2", 2, "ulysses")])


def model_of(overrides: tuple[str, ...]) -> list[str]:
    """Those overrides that one process has too."""
    return [o for o in overrides if o.startswith(("model.", "optimizer."))]


DEALT = [Cell(engine, n, "none", "modern_60k", "muon") for engine in ("ddp", "fsdp2", "hsdp") for n in (2, 3, 4)]
"""Every world over whose ranks Muon's maps are dealt: `.ci/run` has three, besides those of the covering array."""
SHOWN = [DEALT[1], DEALT[3], DEALT[8]]


def in_its_tier(cell: Cell) -> object:
    """A parameter: the canary, one of the covering array, one that shows a contract of its own, or of the rest."""
    marks = [pytest.mark.canary] if cell == CANARY else [] if cell in COVERING else [pytest.mark.prove]
    if cell in SHOWN and cell not in COVERING:
        marks = [pytest.mark.slow]
    return pytest.param(cell, id=cell.name, marks=marks)


@pytest.mark.parametrize("cell", [in_its_tier(cell) for cell in FULL])
def test_every_engine_ends_where_one_process_ends(trained: Trained, cell: Cell) -> None:
    one = trained("single", 1, cell.model)
    assert largest_difference(one.end, trained("single", 1, cell.model, STEP_1).end) > 1e-3  # parameters moved
    of_weights, of_losses = yardstick(trained, cell.model)
    assert of_weights < 2e-6  # what rounding in float32 amounts to over these steps
    other = trained(cell.engine, cell.processes, cell.overrides)
    assert other.end.cursor == one.end.cursor
    weights, losses = distances(one, other)
    print(f"{cell.name}: weights {weights / of_weights:.2f} and losses {losses / of_losses:.2f} times rounding")
    assert weights <= 3 * of_weights
    assert losses <= 3 * of_losses
    assert predicted(other) == pytest.approx(predicted(one), abs=1e-4)


@pytest.mark.parametrize(
    ("engine", "processes"),
    [("ddp", 3), ("fsdp2", 2), pytest.param("hsdp", 4, marks=pytest.mark.prove)],
)
def test_maps_are_dealt_in_several_rounds(trained: Trained, engine: str, processes: int) -> None:
    """As of a model whose matrices are too many for one; ranks without a map in a round are among them."""
    rounds = trained(engine, processes, MUON, fault="small_rounds")
    weights, losses = distances(trained("single", 1, MUON), rounds)
    of_weights, of_losses = yardstick(trained, MUON)
    assert weights <= 3 * of_weights
    assert losses <= 3 * of_losses


def predicted(ended: Ended) -> list[float]:
    """The probability of each residue of the held-out proteins that the run's report shows."""
    proteins = json.loads((ended.folder / "run/predictions.json").read_text())["proteins"]
    assert [len(protein["residues"]) for protein in proteins] == [len(protein["probabilities"]) for protein in proteins]
    probabilities = [prob for protein in proteins for prob in protein["probabilities"]]
    assert len(proteins) == 3
    assert None not in probabilities
    assert len(set(probabilities)) > 50
    return probabilities


def test_the_everyday_cells_hold_every_pair_of_values_that_any_cell_holds() -> None:
    wanted = set().union(*map(pairs, FULL))
    assert set().union(*map(pairs, COVERING)) == wanted
    assert len(COVERING) < len(FULL) / 10
    # Each but the first two is needed: without the last that was chosen, a pair is missing.
    assert set().union(*map(pairs, COVERING[:-1])) != wanted


@pytest.mark.parametrize(
    ("fault", "engine", "overrides"),
    [
        ("local_counts", "fsdp2", ()),
        ("local_counts", "zero2", ()),
        ("causal", "fsdp2", ("compute.attention=per_document", *TWO)),
        ("own_share", "ddp", TWO),
    ],
)
def test_controls_are_seen(trained: Trained, fault: str, engine: str, overrides: tuple[str, ...]) -> None:
    """Division by each rank's own counts; attention to earlier positions alone, or to a rank's own slots."""
    one, wrong = trained("single", 1), trained(engine, 2, overrides, fault=fault)
    assert largest_difference(one.end, wrong.end) > 300 * yardstick(trained)[0]


@pytest.mark.parametrize(
    ("engine", "overrides"),
    [
        ("fsdp2", ()),
        ("zero2", ()),
        ("zero3", ()),
        ("ddp", TWO),
        pytest.param("zero1", (), marks=pytest.mark.prove),
        pytest.param("fsdp2", MUON, marks=pytest.mark.prove),
    ],
)
def test_a_gradient_that_is_not_finite_on_one_rank_moves_nothing_on_any(
    trained: Trained, engine: str, overrides: tuple[str, ...]
) -> None:
    """And leaves nothing behind: the steps after it go where one process goes that skipped the same step."""
    model = model_of(overrides)
    one, skipped = trained("single", 1, model, fault="infinite"), trained(engine, 2, overrides, fault="infinite")
    assert one.end.skipped_steps == skipped.end.skipped_steps == 1
    assert largest_difference(one.end, trained("single", 1, model).end) > 1e-4
    assert distances(one, skipped)[0] <= 3 * yardstick(trained, model)[0]


@pytest.mark.parametrize(
    ("engine", "overrides"),
    [
        *((engine, ()) for engine in ("ddp", "zero1")),
        pytest.param("fsdp2", (), marks=pytest.mark.slow),
        *(pytest.param(engine, (), marks=pytest.mark.prove) for engine in ("zero2", "zero3")),
        *(pytest.param(engine, TWO, marks=pytest.mark.prove) for engine in ("ddp", "zero1", "fsdp2", "zero2", "zero3")),
    ],
)
def test_bins_without_a_target_change_no_mean(trained: Trained, engine: str, overrides: tuple[str, ...]) -> None:
    """Three of the seven of every step: micro-batches that a rank computes, and whose loss has no term."""
    one = trained("single", 1, fault="targetless")
    assert largest_difference(one.end, trained("single", 1).end) > 1e-4
    weights, losses = distances(one, trained(engine, 2, overrides, fault="targetless"))
    assert weights <= 3 * yardstick(trained)[0]
    assert losses <= 3 * yardstick(trained)[1]


def test_copies_whose_sums_differ_in_a_bit_are_clipped_by_one_norm(trained: Trained) -> None:
    """Two nodes may add up in another order. Copies that parted would end the run: each step compares them."""
    clipped = ("optimizer.clip_norm=0.01", "run.compare_copies_every=1")
    weights, _ = distances(
        trained("single", 1, clipped), trained("hsdp", 4, clipped, STEPS_16, fault="norms_of_copies_differ")
    )
    assert weights <= 3 * yardstick(trained, clipped)[0]


@pytest.mark.skipif(not HAS_ONEDNN, reason="torch has no MKL or no oneDNN here")
@pytest.mark.parametrize(
    ("engine", "overrides"),
    [("ddp", ()), *(pytest.param(*spread, marks=pytest.mark.prove) for spread in (("fsdp2", TWO), ("zero3", ())))],
)
def test_products_by_onednn_go_the_same_way_under_every_engine(
    trained: Trained, engine: str, overrides: tuple[str, ...]
) -> None:
    """A small model's products are too small for it, so that no other run of this file has one."""
    large = ("data.bin_tokens=512",)
    one = trained("single", 1, large, fault="every_product_by_onednn")
    of_weights, of_losses = yardstick(trained)
    apart, _ = distances(one, trained("single", 1, large))
    assert 0 < apart <= 3 * of_weights
    weights, losses = distances(one, trained(engine, 2, (*large, *overrides), fault="every_product_by_onednn"))
    assert weights <= 3 * of_weights
    assert losses <= 3 * of_losses


def test_a_first_compiled_step_that_fails_on_one_rank_is_a_matter_of_all(
    pool: RankPool, recipe_in, tmp_path: Path
) -> None:
    recipe = recipe_in(tmp_path)
    done = pool.run(2, DDP, [recipe, *STEP_1], fault="compiles_on_rank_0")
    assert done.statuses == (0, 0), done.output
    first, second = json.loads((tmp_path / "run/run.json").read_text())["compute"]
    assert first == "compute: ddp, 2 processes, cpu, float32, attention flash_cpu, not compiled"
    assert second == "compile: off, because a first compiled step failed (on this rank); compute.compile=off"

    done = pool.run(2, DDP, [recipe, *STEP_1, "compute.compile=on"], fault="compiles_on_rank_0")
    assert done.statuses == (78, 78), done.output
    assert all("is 'on', but a first compiled step failed (on this rank); set it to" in o for o in done.outputs)
