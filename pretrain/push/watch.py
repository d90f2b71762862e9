"""Push the checkpoints of a run while it trains, from a process of its own.

In: a run directory, which is only read, except for what follows. Out: a repository with the newest checkpoint that
was pushed, with a tag for each. Kept in the run directory: alerts.jsonl, a line for each failure; while it exports, a
folder ``.push-TOKEN``, which is removed.

The trainer does not know of it: nothing is written where the trainer writes, and no lock of it is taken.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from huggingface_hub import HfApi

from data.durable import workspace
from data.safe_text import tell
from pretrain.checkpoint.load import find, newest_step
from pretrain.checkpoint.manifest import step_of_name
from pretrain.push.commit import push
from pretrain.push.failure import PushError, TagTaken, Unavailable, one_line, wait_s
from pretrain.run import records
from pretrain.run.directory import RunDirectory

ALERTS = "alerts.jsonl"


@dataclass(slots=True)
class Watch:
    """A run, and the repository that its checkpoints are pushed to."""

    run: RunDirectory
    repository: str
    """organisation/name."""
    private: bool = False
    api: HfApi | None = None
    every: int = 1
    """How many checkpoints must be new since the last push."""
    patience_s: float = 24 * 3600.0
    """How long it waits for a run that gives no sign of life, or after its end for a hub that does not answer."""
    poll_s: float = 15.0
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    say: Callable[[str], None] = tell

    def follow(self) -> bool:
        """Push until the run has finished and is pushed; whether it is, or else the patience has ended."""
        known = failed = 0
        seen: set[int] = set()
        alive, alive_at, wait_until = self._signs(), self.now(), 0.0
        while True:
            finished = has_finished(self.run)  # before the checkpoints are listed: then the last one is among them
            seen |= {step_of_name(path.name) or 0 for path in find(self.run.checkpoints)}
            num_new = len(seen) - known
            if (signs := self._signs()) != alive:
                alive, alive_at = signs, self.now()
            if (finished or num_new >= self.every) and self.now() >= wait_until:
                try:
                    seen.add(self._push())
                except (PushError, OSError, ValueError) as error:
                    self.say(alert(self.run.root, self.repository, error))
                    if isinstance(error, ValueError):  # no attempt would mend it
                        raise
                    failed += 1
                    wait_until = self.now() + wait_s(failed, getattr(error, "asked_s", 0.0))
                else:
                    if finished:
                        return True
                    known, failed, alive_at = len(seen), 0, self.now()
                    continue
            if self.now() - alive_at > self.patience_s:
                problem = "could not be pushed" if finished else "has not finished, and gives no sign of life"
                hours = f"{self.patience_s / 3600:.3g} hours"
                self.say(f"{self.run.root} {problem} for {hours}; the same command continues")
                return False
            self.sleep(self.poll_s)

    def _push(self) -> int:
        """Push the newest checkpoint that is whole; its step."""
        with ExitStack() as stack:
            try:
                folder, step = stack.enter_context(newest(self.run))
            except Exception as error:  # the next checkpoint may be exported
                raise Unavailable(f"{self.run.root}: {error}") from error
            if not step:
                root = self.run.root
                raise ValueError(f"{root} has no checkpoints any more; push its {root / 'export'} without --watch")
            message = f"Step {step} of {self.run.root.name}"
            send = partial(
                push, folder, self.repository, private=self.private, message=message, api=self.api, attempts=1
            )
            try:
                done = send(tag=f"step-{step}")
            except TagTaken:  # the same weights, with a card that has since learned of a validation
                done = send()
        self.say(f"step {step}: {self.repository} at commit {done.commit}, {done.num_added} files sent")
        return step

    def _signs(self) -> list[int]:
        """Times that change while a run lives."""
        found = []
        for path in (self.run.metrics, self.run.attempts, self.run.checkpoints):
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
    from pretrain.ship.export import export  # transformers takes seconds to import

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
