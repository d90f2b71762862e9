"""The launcher alone is killed: nothing of the run is left, the same command goes on and ends with the same bytes."""

import random
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from support.assays.small_run import write
from support.kept_runs import Trained
from support.launching import DDP, bit_equal, command, end_of, lines, started, until
from support.rank_pool import RankPool

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("engines")]

GONE_S = 5.0
MARK = "ZYMOGEN_TEST_LAUNCH"
"""A variable that all processes of a launch inherit, whoever their parents are by then."""
STEPS_36 = ("schedule.total_tokens=26_400",)
STEPS_60 = ("schedule.total_tokens=44_000",)
STEPS_240 = ("schedule.total_tokens=176_000",)
HOW = ("data.workers=1", "run.checkpoint_every=10")


@dataclass
class Launches:
    """Launches of one run whose launcher is killed."""

    mark: str
    log: Path
    took_s: float = 0.0
    """Of all launches the longest time until nothing was left."""

    def kill(self, words: list[str], when: Callable[[], bool]) -> bool:
        """Launch, kill the launcher when that holds, and wait for the others' end; False if it ended by itself.

        Raises:
            AssertionError: something of it is left.
        """
        with started(words, self.log) as launcher:
            until(lambda: launcher.poll() is not None or when(), self.log)
            was_killed = launcher.poll() is None
            assert was_killed or launcher.returncode == 0, self.log.read_text()  # a refusal, say
            launcher.kill()
            launcher.wait()
            begun = time.monotonic()
            while (left := self.living()) and time.monotonic() - begun < GONE_S:
                time.sleep(0.05)
            self.took_s = max(self.took_s, time.monotonic() - begun)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        assert not left, (list(left.values()), self.log.read_text())
        return was_killed

    def living(self) -> dict[psutil.Process, list[str]]:
        """Command lines of the launch's processes that live."""
        found = {}
        for each in psutil.process_iter():
            with suppress(psutil.Error):  # gone, or somebody else's
                if each.environ().get(MARK) == self.mark:
                    found[each] = each.cmdline()
        return found


@pytest.fixture
def launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launches:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    return Launches(mark, tmp_path / "log")


def assert_goes_on(pool: RankPool, trained: Trained, recipe: Path, processes: int, length: tuple[str, ...]) -> None:
    done = pool.run(processes, DDP, [recipe, *length, *HOW])
    assert done.status == 0, done.output
    end, reference = end_of(recipe.parent / "run"), trained("ddp", processes, length=length).end
    assert (end.step, end.chain) == (reference.step, reference.chain)
    assert bit_equal(end, reference)


@pytest.mark.parametrize("job", ["pretrain", "finetune"])
def test_while_ranks_start(launches: Launches, recipe_in, tmp_path: Path, job: str) -> None:
    """Two ranks exist, and import what they need before they look for each other."""
    recipe = recipe_in(tmp_path) if job == "pretrain" else write(tmp_path)
    words = [job if word == "pretrain" else word for word in command([recipe, *STEPS_60, *HOW], 2)]

    def has_ranks() -> bool:
        return sum(each[2:4] == ["-m", job] for each in launches.living().values()) >= 2

    assert launches.kill(words, has_ranks)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_while_ranks_train(pool: RankPool, trained: Trained, launches: Launches, recipe_in, tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    metrics = tmp_path / "run/metrics.jsonl"
    words = command([recipe, *STEPS_36, *HOW], 2)
    assert launches.kill(words, lambda: any(line["step"] >= 5 for line in lines(metrics)))
    assert_goes_on(pool, trained, recipe, 2, STEPS_36)
    causes = [line["cause"] for line in lines(tmp_path / "run/attempts.jsonl") if "cause" in line]
    assert causes == ["fresh", "continued: attempt 1 ended as killed"]


@pytest.mark.prove
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_at_random_times(
    pool: RankPool, trained: Trained, launches: Launches, recipe_in, tmp_path: Path, processes: int, seed: int
) -> None:
    """Five times each, from its first moment on; a run that ends before is followed by another one."""
    times = random.Random(10 * seed + processes)
    recipes = [recipe_in(tmp_path / "0")]
    killed: list[float] = []
    while len(killed) < 5:
        after_s, begun = times.uniform(0, 14), time.monotonic()
        words = command([recipes[-1], *STEPS_240, *HOW], processes)
        if launches.kill(words, lambda: time.monotonic() - begun >= after_s):  # noqa: B023
            killed.append(round(after_s, 1))
        else:
            recipes.append(recipe_in(tmp_path / str(len(recipes))))
    for recipe in recipes:
        assert_goes_on(pool, trained, recipe, processes, STEPS_240)
    print(f"{processes} ranks: killed after {killed} s, {len(recipes)} runs, gone within {launches.took_s:.1f} s")
