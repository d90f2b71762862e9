"""The pool of ranks: what runs in it ends as what is launched, and nothing that happens in it stays there."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.launching import DDP, End, bit_equal, end_of, largest_difference, launch, launch_environments
from support.places import ROOT
from support.rank_pool import AT_MOST, TIMED_OUT, RankPool

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("engines")]

SINGLE = ROOT / "accelerate_configs" / "single.yaml"
SHORT = ("schedule.total_tokens=6_000",)
PER_DOCUMENT = "compute.attention=per_document"


@pytest.fixture(scope="session")
def pooled(pool: RankPool, recipe_in, tmp_path_factory: pytest.TempPathFactory):
    """The end of a short run in the pool; each call runs it anew."""

    def end(processes: int, config: Path = DDP, *overrides: str, **how) -> End:
        folder = tmp_path_factory.mktemp("pooled")
        done = pool.run(processes, config, [recipe_in(folder), *SHORT, *overrides], **how)
        assert done.status == 0, done.output
        return end_of(folder / "run")

    return end


@pytest.mark.prove
def test_what_runs_in_the_pool_ends_as_what_is_launched(pooled, recipe_in, tmp_path: Path) -> None:
    done = launch([recipe_in(tmp_path), *SHORT], 2)
    assert done.status == 0, done.output
    launched = end_of(tmp_path / "run")
    one, two, three = pooled(1, SINGLE), pooled(2), pooled(3)
    assert bit_equal(two, launched)
    assert bit_equal(pooled(1), one)  # what torchrun sets for one process
    assert one.chain == two.chain == three.chain
    assert 0 < largest_difference(one, two) < 2e-6
    assert 0 < largest_difference(one, three) < 2e-6
    assert bit_equal(pooled(2), launched)  # after other worlds


def test_a_mistake_is_reported_and_the_pool_works_on(pool: RankPool, pooled, recipe_in, tmp_path: Path) -> None:
    done = pool.run(2, DDP, [recipe_in(tmp_path), "schedule.total_tokens=-1"])
    assert (done.status, done.statuses) == (78, (78, 78))
    errors = done.errors()
    assert "schedule.total_tokens" in errors[0]
    assert [line.startswith("error: rank 1: ") for line in errors] == [False, True]
    assert pooled(2).step > 0


@pytest.mark.parametrize(("fault", "overrides"), [("local_counts", ()), ("causal", (PER_DOCUMENT,))])
def test_a_fault_is_gone_afterwards(pooled, fault: str, overrides: tuple[str, ...]) -> None:
    right, wrong, after = (pooled(2, DDP, *overrides, fault=name) for name in (None, fault, None))
    assert largest_difference(right, wrong) > 1e-5
    assert bit_equal(right, after)


def test_a_run_that_hangs_is_ended(pool: RankPool, pooled, recipe_in, tmp_path: Path) -> None:
    before = pooled(2)
    done = pool.run(2, DDP, [recipe_in(tmp_path), *SHORT], fault="hang", timeout_s=4)
    assert (done.status, done.statuses) == (TIMED_OUT, (TIMED_OUT, TIMED_OUT))
    assert "rank 1 did not end within 4 s" in done.outputs[1]
    assert "in faulty" in done.outputs[1]
    assert "in on_main" in done.outputs[0]
    assert bit_equal(pooled(2), before)


@pytest.mark.prove
@pytest.mark.parametrize("engine", ["fsdp2", "zero3"])
def test_an_engine_leaves_nothing_behind(pooled, engine: str) -> None:
    if engine == "zero3" and find_spec("deepspeed") is None:
        pytest.skip("needs deepspeed")
    config = ROOT / "accelerate_configs" / f"{engine}.yaml"
    plain, first = pooled(2), pooled(2, config)
    pooled(3, config)  # a rank that was there and one that was not
    assert bit_equal(pooled(2, config), first)
    assert bit_equal(pooled(2), plain)


def test_a_launch_that_has_no_such_ranks_is_refused(pool: RankPool) -> None:
    with pytest.raises(ValueError, match=r"single\.yaml starts one process, not 2"):
        pool.run(2, SINGLE, ["recipe"])
    with pytest.raises(ValueError, match=r"processes = 9: must be 1 to 8"):
        pool.run(AT_MOST + 1, DDP, ["recipe"])


def test_the_environment_is_the_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")  # of whoever runs the tests
    (single,) = launch_environments(SINGLE, 1)
    assert "RANK" not in single
    first, second = launch_environments(DDP, 2, ("--mixed_precision", "bf16"))
    assert (first["RANK"], second["LOCAL_RANK"], second["WORLD_SIZE"]) == ("0", "1", "2")
    assert first["MASTER_PORT"] == second["MASTER_PORT"]
    assert second["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert "ACCELERATE_USE_FSDP" not in second
    assert os.environ["ACCELERATE_USE_FSDP"] == "true"
