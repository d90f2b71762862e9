"""Push the checkpoints of a run while it trains, from a process of its own.

In: a run directory, which is only read, except for what follows. Out: a repository with the newest checkpoint that
was pushed, with a tag for each. Kept in the run directory: pushed.json, the step that was pushed last; alerts.jsonl, a
line for each failure; while it exports, a folder ``.push-TOKEN``, which is removed.

The trainer does not know of it: nothing is written where the trainer writes, and no lock of it is taken.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub import HfApi

from data.durable import workspace, write_whole
from data.safe_text import redacted
from pretrain.checkpoint.load import find
from pretrain.checkpoint.manifest import step_of_name
from pretrain.push.commit import TagTaken, push
from pretrain.push.failure import Backoff, Clock, PushError
from pretrain.run import records
from pretrain.run.directory import RunDirectory

ALERTS, STATE = "alerts.jsonl", "pushed.json"
FORMAT = "zymogen.pushed/1"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a run is pushed to."""

    repository: str
    """organisation/name."""
    private: bool = False
    api: HfApi | None = None


class ExportFailed(RuntimeError):
    """The newest checkpoint could not be exported; the next one may be."""


@dataclass(slots=True)
class Watch:
    """What follows one run."""

    run: RunDirectory
    target: Target
    every: int = 1
    """How many checkpoints must be new since the last push."""
    patience_s: float = 24 * 3600.0
    """How long it waits for a run that gives no sign of life, or after its end for a hub that does not answer."""
    poll_s: float = 15.0
    clock: Clock = field(default_factory=Clock)
    say: Callable[[str], None] = print

    def follow(self) -> int:
        """Push until the run has finished and is pushed; the exit status: 0, or 1 if the patience has ended."""
        backoff = Backoff(self.clock)
        pushed = _pushed(self.run.root, self.target.repository)
        seen: set[int] = set()
        alive, alive_at, wait_until = self._signs(), self.clock.now(), 0.0
        while True:
            finished = has_finished(self.run)  # before the checkpoints are listed: then the last one is among them
            seen |= {step for step in _steps(self.run) if step > pushed}
            if (signs := self._signs()) != alive:
                alive, alive_at = signs, self.clock.now()
            if (finished or len(seen) >= self.every) and self.clock.now() >= wait_until:
                try:
                    pushed = self._push()
                except (PushError, ExportFailed, OSError) as error:
                    alert(self.run.root, self.target.repository, error, self.say)
                    wait_until = self.clock.now() + backoff.wait_s(getattr(error, "asked_s", 0.0))
                except ValueError as error:  # no attempt would mend it
                    alert(self.run.root, self.target.repository, error, self.say)
                    raise
                else:
                    if finished:
                        return 0
                    backoff.failed, alive_at = 0, self.clock.now()
                    seen = {step for step in seen if step > pushed}
                    continue
            if self.clock.now() - alive_at > self.patience_s:
                what = "could not be pushed" if finished else "has not finished, and gives no sign of life"
                self.say(f"{self.run.root} {what} for {self.patience_s / 3600:.3g} hours; the same command continues")
                return 1
            self.clock.sleep(self.poll_s)

    def _push(self) -> int:
        """Push the newest checkpoint; its step."""
        with ExitStack() as stack:
            try:
                folder, step = stack.enter_context(newest(self.run))
            except Exception as error:
                raise ExportFailed(f"{self.run.root}: {error}") from error
            if not step:
                root = self.run.root
                raise ValueError(f"{root} has no checkpoints any more; push its {root / 'export'} without --watch")
            self._push_folder(folder, step)
        content = {"format": FORMAT, "repository": self.target.repository, "step": step}
        write_whole(self.run.root / STATE, json.dumps(content) + "\n")
        return step

    def _push_folder(self, folder: Path, step: int) -> None:
        target, tag = self.target, f"step-{step}"
        message = f"Step {step} of {self.run.root.name}"
        try:
            done = push(
                folder, target.repository, private=target.private, tag=tag, message=message, api=target.api, attempts=1
            )
        except TagTaken:  # the same weights, with a card that has since learned of a validation
            done = push(folder, target.repository, private=target.private, message=message, api=target.api, attempts=1)
        self.say(f"step {step}: {target.repository} at commit {done.commit}, {done.num_added} files sent")

    def _signs(self) -> tuple[tuple[int, int], ...]:
        """What changes while a run lives."""
        signs = []
        for path in (self.run.metrics, self.run.attempts, self.run.checkpoints):
            with suppress(OSError):
                found = path.stat()
                signs.append((found.st_mtime_ns, found.st_size))
        return tuple(signs)


@contextmanager
def newest(run: RunDirectory) -> Iterator[tuple[Path, int]]:
    """The newest weights of a run: its export/ if it has finished, else an export beside that, removed afterwards.

    Returns:
        The folder, and the number of optimizer steps that the weights have taken; 0 if no checkpoint tells.

    Raises:
        ValueError: there is no checkpoint to export, or nothing can be written there.
    """
    if has_finished(run) and run.export.is_dir():
        yield run.export, max(_steps(run), default=0)
        return
    from pretrain.ship.export import export  # transformers takes seconds to import

    with workspace(run.root / "push", "get the right to write there") as work:
        elsewhere = RunDirectory(run.root)
        elsewhere.export, elsewhere.exported = work / "export", work / "export.json"
        yield export(elsewhere)


def has_finished(run: RunDirectory) -> bool:
    """Whether the newest attempt of a run has trained to its end and exported."""
    lines = list(records.read(run.attempts))
    return bool(lines) and lines[-1].get("exit") == "finished"


def alert(root: Path, repository: str, error: Exception, say: Callable[[str], None]) -> None:
    """Report a failure on the console, and in a line of alerts.jsonl in the run directory, without tokens."""
    message = redacted(" ".join(str(error).split()) or type(error).__name__)
    say(f"not pushed: {message}")
    line = {"time": records.now(), "alert": "push", "repository": repository, "message": message}
    try:
        records.append(root / ALERTS, line)
    except OSError as failed:
        say(f"{root / ALERTS}: {failed.strerror}")


def _steps(run: RunDirectory) -> list[int]:
    steps = [step_of_name(path.name) for path in find(run.checkpoints)]
    return [step for step in steps if step is not None]


def _pushed(root: Path, repository: str) -> int:
    """The step that was pushed last; 0 if none was, or to another repository."""
    try:
        content = json.loads((root / STATE).read_bytes())
        if content["format"] == FORMAT and content["repository"] == repository:
            return int(content["step"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return 0
