"""Launchers that start killed ranks again (`accelerate launch --max_restarts`): each restart finds its peers."""

import signal
import time
from pathlib import Path

import psutil
import pytest

from support.chaos.campaign import Campaign
from support.chaos.short_window import WINDOW_S
from support.launching import command, lines, started, until
from zymogen.trainer.checkpoint.load import find, verify

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("engines")]


class Run:
    """A run of two ranks whose launcher restarts them."""

    def __init__(self, folder: Path, recipe_in, tokens: int, program: str = "pretrain", restarts: int = 20) -> None:
        recipe = recipe_in(folder)
        self._campaign = Campaign(folder / "runs", recipe, tokens)
        self.reference = self._campaign.reference("ddp", 2)
        self.root, self.log = folder / "run", folder / "log"
        words = [recipe, "run.checkpoint_every=4", "run.log_every=1", "run.validation_sequences=4"]
        words += [f"run.directory={self.root}", f"schedule.total_tokens={tokens}"]
        launch = command(words, 2, program=program)
        at = launch.index("-m", 2)
        self.command = [*launch[:at], "--max_restarts", str(restarts), *launch[at:]]

    def bases(self) -> list[int]:
        return [line["base_step"] for line in lines(self.root / "attempts.jsonl") if "base_step" in line]

    def trains(self, attempt: int, steps: int) -> None:
        """Wait until an attempt has taken some steps."""

        def taken() -> list[int]:
            return [line["step"] for line in lines(self.root / "metrics.jsonl") if line["attempt"] == attempt]

        until(lambda: len(self.bases()) >= attempt and len(taken()) >= steps, self.log, 60)

    def assert_same(self) -> None:
        assert verify(find(self.root / "checkpoints")[0]).manifest.files == self.reference.files


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(1, marks=pytest.mark.slow),
        pytest.param(20, marks=[pytest.mark.prove, pytest.mark.timeout(1200)]),  # each start has 60 s
    ],
)
def test_each_restart_finds_its_peers(kills: int, recipe_in, tmp_path: Path) -> None:
    """Without a prefix, a rank reads the address that another one had before, and the restart fails."""
    run = Run(tmp_path, recipe_in, tokens=4_000 + 9_000 * kills)
    with started(run.command, run.log) as launcher:
        for attempt in range(1, kills + 1):
            run.trains(attempt, steps=6)
            psutil.Process(launcher.pid).children()[attempt % 2].kill()
        assert launcher.wait(120) == 0, run.log.read_text()
    assert len(run.bases()) == kills + 1, run.log.read_text()
    assert run.bases() == sorted(run.bases())
    run.assert_same()


@pytest.mark.parametrize("stopped", [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.prove)])
def test_a_stopped_rank_is_named_and_replaced(
    stopped: int, recipe_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher, which is the host of the store, kills it when it has not obeyed for some seconds."""
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "3")
    run = Run(tmp_path, recipe_in, tokens=22_000, program="support.chaos.short_window", restarts=1)
    with started(run.command, run.log) as launcher:
        run.trains(1, steps=6)
        ranks = psutil.Process(launcher.pid).children()
        ranks[stopped].send_signal(signal.SIGSTOP)
        began = time.monotonic()
        _, alive = psutil.wait_procs(ranks, timeout=WINDOW_S + 35)
        assert alive == [], f"{time.monotonic() - began} s"
        assert launcher.wait(180) == 0, run.log.read_text()
    assert f"rank {1 - stopped} is blocked: rank {stopped} was last seen after step" in run.log.read_text()
    assert len(run.bases()) == 2
    run.assert_same()
