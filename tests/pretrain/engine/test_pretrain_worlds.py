"""One, two and three processes: they end in one place, and a killed run ends where it would have ended.

Contracts C5 and C8 of docs/contracts.md. Every run here is a real `accelerate launch`, with masking on, over several
passes of a corpus that is larger than any window.
"""

from pathlib import Path

import pytest

from pretrain.__main__ import main
from support.launching import End, bit_equal, end_of, largest_difference, launch, launch_and_kill, lines
from support.places import ROOT

# One group: the runs that several tests compare with are made once.
pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("worlds")]

MODERN = ("model.preset=modern_60k", "optimizer.name=muon", "compute.checkpointing=selective")
WORLDS = [
    pytest.param(processes, overrides, id=f"{'modern-muon' if overrides else 'esm2-adamw'}-{processes}")
    for processes, overrides in ((1, ()), (2, ()), (3, ()), (2, MODERN))
]


def split_noise(uninterrupted, *overrides: str) -> float:
    """How far one process ends from itself when only the grouping of a step's bins into forward passes differs."""
    one = uninterrupted(1, *overrides)
    regrouped = [uninterrupted(1, *overrides, f"data.bins_per_forward={n}") for n in (3, 7)]
    noise = max(largest_difference(one, other) for other in regrouped)
    assert noise < 2e-6  # what rounding in float32 amounts to over these steps
    return noise


@pytest.fixture(scope="session")
def uninterrupted(recipe_in, tmp_path_factory: pytest.TempPathFactory):
    """The end of an uninterrupted run on `processes`, with overrides; each is made once."""
    made: dict[tuple, End] = {}

    def end(processes: int, *overrides: str, script: tuple[str, ...] = ()) -> End:
        key = (processes, overrides, script)
        if key not in made:
            folder = tmp_path_factory.mktemp("uninterrupted")
            if processes == 1:  # what `accelerate launch` does for one process, without the seconds of a new one
                assert main([str(recipe_in(folder)), *overrides]) == 0
            else:
                done = launch([recipe_in(folder), *overrides], processes, script=script)
                assert done.status == 0, done.output
            made[key] = end_of(folder / "run")
        return made[key]

    return end


def test_the_corpus_is_larger_than_any_buffer(uninterrupted) -> None:
    assert uninterrupted(1).step == 30
    assert uninterrupted(1).cursor["pass_index"] == 2
    assert uninterrupted(1).cursor["window"] == 1
    assert uninterrupted(1).tokens_seen == 22_333


@pytest.mark.parametrize(("processes", "overrides"), WORLDS[1:])
def test_worlds_end_where_one_process_ends(uninterrupted, processes: int, overrides: tuple[str, ...]) -> None:
    one, other = uninterrupted(1, *overrides), uninterrupted(processes, *overrides)
    assert other.chain == one.chain
    noise = split_noise(uninterrupted, *overrides)
    at_start = uninterrupted(1, *overrides, "schedule.total_tokens=1")
    assert largest_difference(one, at_start) > 1e-3  # parameters moved
    assert largest_difference(one, other) <= 3 * noise


@pytest.mark.slow  # the controls of test_pretrain_engines.py are not
def test_control_division_by_local_counts_is_seen(uninterrupted) -> None:
    wrong = uninterrupted(2, script=(str(ROOT / "tests/support/wrong_engine.py"), "local_counts"))
    assert largest_difference(uninterrupted(1), wrong) > 300 * split_noise(uninterrupted)


@pytest.mark.slow
def test_dropout_is_the_same_in_every_world(uninterrupted) -> None:
    dropped = "model.dropout=0.2"
    one = uninterrupted(1, dropped)
    assert largest_difference(one, uninterrupted(1)) > 1e-3
    assert largest_difference(one, uninterrupted(2, dropped)) <= 3 * split_noise(uninterrupted, dropped)


@pytest.mark.parametrize(("processes", "overrides"), WORLDS)
def test_a_killed_run_ends_bit_equal(
    uninterrupted, recipe_in, tmp_path: Path, processes: int, overrides: tuple[str, ...]
) -> None:
    recipe, run = recipe_in(tmp_path), tmp_path / "run"

    def past_a_checkpoint() -> bool:
        return any(line["step"] >= 13 for line in lines(run / "metrics.jsonl"))

    launch_and_kill([recipe, *overrides], processes, past_a_checkpoint, tmp_path / "log")
    assert max(line["step"] for line in lines(run / "metrics.jsonl")) < 30
    resumed = launch([recipe, *overrides], processes)
    assert resumed.status == 0, resumed.output

    attempts = [line for line in lines(run / "attempts.jsonl") if "base_step" in line]
    assert [line["world_size"] for line in attempts] == [processes] * 2
    assert attempts[1]["base_step"] in (10, 20)
    assert attempts[1]["cause"] == "continued: attempt 1 ended as killed"
    end, reference = end_of(run), uninterrupted(processes, *overrides)
    assert (end.step, end.chain, end.tokens_seen) == (reference.step, reference.chain, reference.tokens_seen)
    assert bit_equal(end, reference)


@pytest.mark.slow
def test_three_starts_in_one_pass_and_another_world(uninterrupted, recipe_in, tmp_path: Path) -> None:
    recipe, run = recipe_in(tmp_path), tmp_path / "run"
    for total, processes in ((5_000, 2), (9_000, 3), (13_000, 1), (22_000, 2)):
        # Stopping short is a schedule change; the learning rate is held constant so that it changes nothing else.
        constant = ["schedule.final_lr=1.0", f"schedule.total_tokens={total}"]
        done = launch([recipe, *constant, "--allow-schedule-change"], processes)
        assert done.status == 0, done.output
    end, reference = end_of(run), uninterrupted(1, "schedule.final_lr=1.0")
    assert (end.step, end.chain) == (reference.step, reference.chain)
    assert largest_difference(end, reference) <= 3 * split_noise(uninterrupted, "schedule.final_lr=1.0")


@pytest.mark.slow
def test_control_without_settling_three_ranks_do_not_resume_bit_equal(recipe_in, tmp_path: Path) -> None:
    """DDP's bucket rebuild is real: without the remedy the same test fails, so passing it says something."""
    script = (str(ROOT / "tests/support/wrong_engine.py"), "unsettled")
    whole, stopped = recipe_in(tmp_path / "whole"), recipe_in(tmp_path / "stopped")
    constant = ["schedule.final_lr=1.0", "--allow-schedule-change"]
    assert launch([whole, *constant], 3, script=script).status == 0
    for total in (9_000, 22_000):
        done = launch([stopped, *constant, f"schedule.total_tokens={total}"], 3, script=script)
        assert done.status == 0, done.output
    end, reference = end_of(tmp_path / "stopped/run"), end_of(tmp_path / "whole/run")
    assert end.chain == reference.chain
    assert not bit_equal(end, reference)
