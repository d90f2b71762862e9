"""Push the checkpoints of a run while it trains, from a process of its own.

In: a run directory, which is only read, except for what follows. Out: a repository with the newest checkpoint that
was pushed, with a tag for each. Kept in the run directory: alerts.jsonl, a line for each failure; while it exports, a
folder ``.push-TOKEN``, which is removed.

The trainer does not know of it: nothing is written where the trainer writes, and no lock of it is taken.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from huggingface_hub import HfApi

from pretrain.push.commit import push
from pretrain.push.errors import HubUnavailableError, PushError, TagExistsError, one_line, wait_s
from zymogen.console.safe_text import log
from zymogen.files.durable import workspace
from zymogen.trainer.checkpoint.load import find, newest_step
from zymogen.trainer.checkpoint.manifest import step_of_name
from zymogen.trainer.run import records
from zymogen.trainer.run.directory import RunDirectory

ALERTS = "alerts.jsonl"


def follow(
    run: RunDirectory,
    repository: str,
    *,
    private: bool = False,
    api: HfApi | None = None,
    every: int = 1,
    patience_s: float = 24 * 3600.0,
    poll_s: float = 15.0,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    say: Callable[[str], None] = log,
) -> bool:
    """Push until the run has finished and is pushed; whether it is, or else the patience has ended.

    Args:
        run: the run.
        repository: organisation/name.
        private: whether a new repository is private.
        api: the hub, as for `push`.
        every: how many checkpoints must be new since the last push.
        patience_s: how long to wait for a run that gives no sign of life, or after its end for a hub that does not
            answer.
        poll_s: seconds between looks.
        now: gives seconds.
        sleep: waits.
        say: gets each line about a push.

    Raises:
        ValueError: a mistake, which no other attempt would mend.
    """
    known = failed = 0
    seen: set[int] = set()
    alive, alive_at, wait_until = _signs(run), now(), 0.0
    while True:
        finished = has_finished(run)  # before the checkpoints are listed: then the last one is among them
        seen |= {step_of_name(path.name) or 0 for path in find(run.checkpoints)}
        num_new = len(seen) - known
        if (signs := _signs(run)) != alive:
            alive, alive_at = signs, now()
        if (finished or num_new >= every) and now() >= wait_until:
            try:
                step, line = _push_newest(run, repository, private, api)
            except (PushError, OSError, ValueError) as error:
                say(alert(run.root, repository, error))
                if isinstance(error, ValueError):
                    raise
                failed += 1
                wait_until = now() + wait_s(failed, getattr(error, "asked_s", 0.0))
            else:
                say(line)
                if finished:
                    return True
                seen.add(step)
                known, failed, alive_at = len(seen), 0, now()
                continue
        if now() - alive_at > patience_s:
            problem = "could not be pushed" if finished else "has not finished, and gives no sign of life"
            say(f"{run.root} {problem} for {patience_s / 3600:.3g} hours; the same command continues")
            return False
        sleep(poll_s)


def _push_newest(run: RunDirectory, repository: str, private: bool, api: HfApi | None) -> tuple[int, str]:
    """Push the newest checkpoint that is whole; its step, and a line about it."""
    with ExitStack() as stack:
        try:
            folder, step = stack.enter_context(newest(run))
        except Exception as error:  # the next checkpoint may be exported
            raise HubUnavailableError(f"{run.root}: {error}") from error
        if not step:
            raise ValueError(f"{run.root} has no checkpoints any more; push its {run.export} without --watch")
        message = f"Step {step} of {run.root.name}"
        send = partial(push, folder, repository, private=private, message=message, api=api, attempts=1)
        try:
            done = send(tag=f"step-{step}")
        except TagExistsError:  # the same weights, with a card that has since learned of a validation
            done = send()
    return step, f"step {step}: {repository} at commit {done.commit}, {done.num_added} files sent"


def _signs(run: RunDirectory) -> list[int]:
    """Times that change while a run lives."""
    found = []
    for path in (run.metrics, run.attempts, run.checkpoints):
        with suppress(OSError):
            found.append(path.stat().st_mtime_ns)
    return found


@contextmanager
def newest(run: RunDirectory) -> Iterator[tuple[Path, int]]:
    """The newest weights of a run: its export/ if it has finished, else an export beside that, removed afterwards.

    Returns:
        The folder, and the number of optimizer steps that the weights have taken; 0 if no checkpoint tells.

    Raises:
        ValueError: there is no checkpoint to export, or nothing can be written there.
    """
    if has_finished(run) and run.export.is_dir():
        yield run.export, newest_step(run.checkpoints)
        return
    from pretrain.export.export import export  # transformers takes seconds to import

    with workspace(run.root / "push", "get the right to write there") as work:
        elsewhere = RunDirectory(run.root)
        elsewhere.export = work / "export"
        yield export(elsewhere)


def has_finished(run: RunDirectory) -> bool:
    """Whether the newest attempt of a run has trained to its end and exported."""
    lines = list(records.read(run.attempts))
    return bool(lines) and lines[-1].get("exit") == "finished"


def alert(root: Path, repository: str, error: Exception) -> str:
    """Add a failure to alerts.jsonl in the run directory, without tokens; the line about it for the console."""
    message = one_line(error)
    line = {"time": records.now(), "alert": "push", "repository": repository, "message": message}
    try:
        records.append(root / ALERTS, line)
    except OSError as failed:
        message += f" ({root / ALERTS}: {failed.strerror})"
    return f"not pushed: {message}"
