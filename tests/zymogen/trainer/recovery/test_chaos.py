"""Runs that are killed again and again end as if nothing had happened: the same bytes, and no sample twice or never."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.chaos.campaign import OPTIONS, Campaign, Ledger, continued
from support.kept_runs import Trained
from support.launching import LIMIT_S, environment
from support.places import ROOT

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("engines")]


@pytest.fixture
def assert_unharmed(trained: Trained, recipe_in, tmp_path: Path) -> Callable[[list[int], int, int], None]:
    """Kills runs so often, as often in each world; one that ends before its kills have come is followed by another."""

    def kill(worlds: list[int], tokens: int, kills: int) -> None:
        found, folder = [], tmp_path / "runs"
        campaign = Campaign(folder, recipe_in(tmp_path), tokens)
        for ranks in worlds:
            whole = trained("ddp", ranks, OPTIONS, (f"schedule.total_tokens={tokens}",)).folder / "run"
            shutil.copytree(whole, folder / f"ddp-{ranks}")  # to compare with; made sooner than the campaign makes it
            ledger = Ledger(folder / f"ledger-{ranks}.jsonl", ranks, "ddp")
            found += continued(ledger, campaign, [("ddp", ranks)], kills // len(worlds))
        assert all(run.same for run in found)
        assert {run.ranks for run in found} == set(worlds)
        assert sum(run.kills for run in found) == kills
        # A third waits for a save; some of these come when it has just ended, or before the next start trains.
        assert sum(run.in_saves for run in found) >= kills // 10
        assert max(run.most_lost for run in found) > 0  # the campaign itself says how many they may be

    return kill


@pytest.mark.canary
def test_a_run_that_is_killed_ten_times_ends_the_same(assert_unharmed) -> None:
    assert_unharmed([2], 24_000, 10)


@pytest.mark.prove
def test_runs_that_are_killed_sixty_times_end_the_same(assert_unharmed) -> None:
    assert_unharmed([2, 3], 80_000, 60)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "kills", "tokens"), [("fsdp2", 2, 16_000), pytest.param("zero2", 10, 60_000, marks=pytest.mark.prove)]
)
def test_the_command_kills_under_other_engines(engine: str, kills: int, tokens: int, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "support.chaos", "--kills", str(kills), "--tokens", str(tokens), "--engine", engine]
    words += ["--folder", str(tmp_path)]
    done = subprocess.run(
        words, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["kills"], found["others"]) == (kills, 0)
    if engine == "fsdp2":
        again = subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
        assert again.stdout.splitlines() == done.stdout.splitlines()[-1:], "the ledger has all of them"
