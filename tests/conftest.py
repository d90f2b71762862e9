"""What several test files share: a small corpus on disk and the recipe of a run of seconds.

The program is imported by those who collect and run tests: a process of pytest that only hands them out needs none.
"""

import gc
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.cpu_limit import pytest_addoption, pytest_runtest_call

if TYPE_CHECKING:
    from support.context_ranks import Ranks
    from support.kept_runs import Trained
    from support.rank_pool import RankPool
    from support.screens.browser import Browser

__all__ = ["pytest_addoption", "pytest_runtest_call"]  # hooks, which pytest finds here

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["ACCELERATE_MIXED_PRECISION"] = "no"  # of runs inside pytest: they are compared to the last bits
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # or tests of other machines' GPUs start compilers, five seconds each
# A shell's background job ignores an interrupt, and so would each process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups, and pytest selects by marks, in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that use the same kept processes are in one group, or the other process of pytest starts them too.

    Tests of benchmarks are slow: who changes the program does not wait for them.
    """
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent / "benchmarks"):
            item.add_marker(pytest.mark.slow)
        for fixture, group in (("pool", "engines"), ("context_ranks", "context")):
            if fixture in getattr(item, "fixturenames", ()) and item.get_closest_marker("xdist_group") is None:
                item.add_marker(pytest.mark.xdist_group(group))


_whole_collections = 0


def pytest_collection_finish() -> None:
    """What is imported by now stays: half of a run of seconds went into collecting it, at its end."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def write_last_report() -> Callable[[Path], None]:
    """Make runs inside this process quick; the value is how the program draws a run's report at its end."""
    import torch

    from pretrain.report import page
    from support.forgotten_runs import measure_peak_once
    from support.launching import fork_server
    from zymogen.trainer.checkpoint import saver

    # A small tensor on two threads of a busy machine waits for the second thread ten times as long as it computes.
    torch.set_num_threads(1)
    measure_peak_once()
    fork_server()
    forkserver.ensure_running()  # before a loader starts it without the program, which each rank would then import
    saver._PATIENCE_S = 60.0  # a save that is due waits for the one before it, however slow the disk is just now
    kept = page.write_last_report
    page.write_last_report = lambda root: None  # half of a run of a second; a test that needs it asks for `last_report`
    return kept


def pytest_unconfigure() -> None:
    """At the interpreter's end it may go; libraries complain of what does not."""
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Whatever a run imported stays, too: the next run collects garbage a few times among all that is there."""
    global _whole_collections
    result = yield
    if gc.get_stats()[2]["collections"] > _whole_collections:
        gc.collect()
        gc.freeze()
        _whole_collections = gc.get_stats()[2]["collections"]
    return result


@pytest.fixture
def last_report(write_last_report: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A run inside this process draws its report at its end, as the program does."""
    from pretrain.report import page

    monkeypatch.setattr(page, "write_last_report", write_last_report)


@pytest.fixture(scope="session")
def browser() -> Iterator["Browser"]:
    """A browser that looks at pages; skipped without one."""
    pytest.importorskip("selenium")
    if not shutil.which("chromedriver"):
        pytest.skip("needs Debian's chromium and chromium-driver")
    from support.screens.browser import Browser

    opened = Browser()
    yield opened
    opened.driver.quit()


@pytest.fixture(scope="session")
def families_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """FASTA and cluster table of 40 small synthetic families."""
    from support.jobs.run_of_seconds import small_families

    return small_families(tmp_path_factory.mktemp("families"))


@pytest.fixture(scope="session")
def recipe_in(families_files: tuple[Path, Path]):
    """Writes the recipe of a run of seconds into a folder, and says where it is."""
    from support.jobs.run_of_seconds import write_recipe_of_seconds

    def write_recipe(folder: Path) -> Path:
        return write_recipe_of_seconds(folder, *families_files)

    return write_recipe


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[RankPool]":
    """Processes that run the program, kept for all tests; those that use it are in the xdist groups "engines" and, in
    `finetune`, "finetune": two groups keep two workers busy, and more would train the same runs more often."""
    from support.rank_pool import RankPool

    with RankPool(tmp_path_factory.mktemp("pool")) as kept:
        yield kept


@pytest.fixture(scope="session")
def context_ranks(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Ranks]":
    """Processes that share batches, kept for all tests of context parallelism."""
    from support.context_ranks import Ranks

    running = Ranks(tmp_path_factory.mktemp("ranks"))
    yield running
    running.end()


@pytest.fixture(scope="session")
def trained(pool: "RankPool", recipe_in, tmp_path_factory: pytest.TempPathFactory) -> "Trained":
    """The end of a run in kept processes; each is made once for all test files."""
    from support.kept_runs import Trained

    return Trained(pool, recipe_in, tmp_path_factory)


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from support.checkpoint_run import write_two

    return write_two(tmp_path_factory.mktemp("pristine"))


@pytest.fixture
def two(pristine: Path, tmp_path: Path) -> Path:
    """Checkpoints of steps 3 and 4."""
    shutil.copytree(pristine, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def signalled_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Has this process get a signal in a step, once."""
    import zymogen.trainer.loop

    train_step = zymogen.trainer.loop.train_step

    def arrange(step: int) -> None:
        calls = [0]

        def signalling(*arguments: Any, **how: Any) -> Any:
            calls[0] += 1
            if calls[0] == step:
                os.kill(os.getpid(), signal.SIGTERM)
            return train_step(*arguments, **how)

        monkeypatch.setattr(zymogen.trainer.loop, "train_step", signalling)

    return arrange
