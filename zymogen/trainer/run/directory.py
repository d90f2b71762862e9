"""The run directory: who may write in it, what it was made for, and which attempts were made.

run.json             resolved recipe, versions, corpus; written before anything else
attempts.jsonl       a line when an attempt starts and a line when it ends by itself
metrics.jsonl        a line per logged step and validation
ranks/rank-00003.jsonl, faults.jsonl   errors of each rank; numerical faults that stopped the run
recipe.toml          the recipe that was chosen, for a run that was started without one; written with the first step
checkpoints/ export/
predictions.json     a few held-out proteins as the finished model predicts them
report.html          `pretrain.report` draws it
"""

import json
import os
import secrets
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from zymogen.console.safe_text import log
from zymogen.files.durable import describe_os_error, write_atomic, write_then_rename
from zymogen.files.suggestions import did_you_mean, format_list
from zymogen.processes.errors import with_location
from zymogen.settings import extension, json_file
from zymogen.settings.section import Section, SettingClass, flat, settings_of
from zymogen.trainer.run import records
from zymogen.trainer.run.lock import LOCK, RunLock
from zymogen.trainer.run.run_json import RunRecord, run_record
from zymogen.trainer.run.versions import versions

_ATTEMPTS, _RANKS, _FORMER_RANKS = "attempts.jsonl", "ranks", ".ranks"
_OF_A_START = ("run.json", _ATTEMPTS, _RANKS, _FORMER_RANKS, "zymogen", "wandb", LOCK)
"""What a start may have made before its first step, trackers included, in the order in which it is removed."""
UNCLAIMED = ".zymogen-"
"""Beginning of the name of a file by which nodes find out whether they see one directory."""
RECIPE = "recipe.toml"


class ScheduleDiffersError(ValueError):
    """Only the schedule differs from that of the run's earlier starts, and the change was not allowed by name.

    Attributes:
        before: dotted name of each setting that differs -> its value in the earlier starts.
    """

    def __init__(self, message: str, before: dict[str, Any]) -> None:
        super().__init__(message)
        self.before = before


def run_at(model: str) -> Path | None:
    """The directory of the run that a model is, or lies in as its export or a checkpoint; None where there is none."""
    near = (Path(model), *Path(model).absolute().parents[:2]) if Path(model).parent.is_dir() else ()
    return next((each for each in near if (each / "run.json").is_file()), None)


class RunDirectory:
    """One run on disk.

    Args:
        root: its folder.
        written: text of the recipe that was chosen for it, to be kept there; empty if it was started with a file.
    """

    def __init__(self, root: Path, written: str = "") -> None:
        self.root = root
        self.recipe = root / RECIPE
        self._written = written
        self.checkpoints = root / "checkpoints"
        self.export = root / "export"
        self.metrics = root / "metrics.jsonl"
        self.attempts = root / _ATTEMPTS
        self.faults = root / "faults.jsonl"
        self.predictions = root / "predictions.json"
        self.report = root / "report.html"
        self._lock: RunLock | None = None
        self._made: list[Path] = []  # folders that this start made, the innermost first

    @contextmanager
    def claimed(self, recipe: Any, *, allow_schedule_change: bool, allow_code_change: bool = False) -> Iterator[None]:
        """Claim the directory for this run, or check that it is this run's already; rank 0 only.

        The lock ends with the process. If an error ends the block before any start of the run was numbered, what this
        one has made is removed.

        Args:
            recipe: a dataclass of sections, of whatever job.
            allow_schedule_change: whether settings of class "schedule" may differ from those of earlier starts.
            allow_code_change: whether classes of the user's may have changed since.

        Raises:
            ValueError: the path holds something else, or a run with another recipe, or another process trains in it.
            ScheduleDiffersError: only settings of class "schedule" differ.
        """
        try:
            self._claim(recipe, allow_schedule_change, allow_code_change)
            yield
        except BaseException:
            # Without the lock, what is there may be another process's.
            if self._lock and not any(records.read(self.attempts)):
                with suppress(OSError):
                    self.remove()
            raise

    def _claim(self, recipe: Any, allow_schedule_change: bool, allow_code_change: bool) -> None:
        self.require_usable()
        try:
            if self._lock is None:  # else an earlier attempt of this process holds it
                self._made = [path for path in (self.root, *self.root.parents) if not path.exists()]
                self.root.mkdir(parents=True, exist_ok=True)
                self._lock = RunLock(self.root)
        except OSError as error:
            if self.root in self._made:
                with suppress(OSError):
                    (self.root / LOCK).unlink()
            self._remove_folders()
            raise ValueError(f"{self.root}: {describe_os_error(error)}; choose another run.directory") from error
        if self.has_trained:
            self.require_same(recipe, allow_schedule_change, allow_code_change=allow_code_change)
        else:
            self.describe_recipe(recipe)

    def require_usable(self) -> None:
        """Check that the directory is a run's, or is still to be one; nothing is written.

        Raises:
            ValueError: it is a file, or holds something else.
        """
        if self.root.exists() and not self.root.is_dir():
            raise ValueError(f"{self.root} is a file; choose another run.directory")
        if (self.root / "run.json").exists():
            self.read()  # refuses one of another program before anything is written beside it
        elif self.root.exists() and any(_is_foreign(path) for path in self.root.iterdir()):
            raise ValueError(
                f"{self.root} exists and is not a run directory (it has no run.json); choose another run.directory"
            )

    @property
    def has_trained(self) -> bool:
        """Whether there is anything to continue; a start that failed before its first step leaves nothing."""
        return self.metrics.exists() or self.checkpoints.exists()

    def remove(self) -> bool:
        """Remove what the first start of the run made before its first step; rank 0 only.

        Returns:
            Whether that was all that the directory held; otherwise it stays as it is.
        """
        if any(path.name not in _OF_A_START for path in self.root.iterdir()):
            return False
        shutil.rmtree(self.root / _FORMER_RANKS, ignore_errors=True)
        with suppress(FileNotFoundError):  # other ranks may still write there, by this name
            (self.root / _RANKS).rename(self.root / _FORMER_RANKS)
        for name in _OF_A_START:  # the lock last, so that no other start begins here before that
            path = self.root / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        self._remove_folders()
        return True

    def _remove_folders(self) -> None:
        with suppress(OSError):  # another start, or the user, has put something there
            for folder in self._made:
                folder.rmdir()

    def describe_recipe(self, recipe: Any) -> None:
        """Write the recipe to run.json; once the run has trained, later starts must agree with it."""
        self.describe(recipe=asdict(recipe), versions=versions(), code=extension.code_of(recipe))

    def write_recipe(self, recipe: Any, *, logs: bool = True) -> bool:
        """Write the recipe, now that the run has trained: to run.json, and as a file if it was chosen for the run.

        Returns:
            Whether the disk could store it; if not, the run continues, and with `logs` the reason is printed.
        """
        try:
            self.describe_recipe(recipe)
            if self._written and not self.recipe.exists():
                with with_location(self.recipe):
                    write_atomic(self.recipe, self._written)
        except OSError as error:
            if logs:
                log(f"{error.filename}: {describe_os_error(error)}; tried again after each step")
            return False
        return True

    def require_longer(self, total_tokens: int, seen: int) -> None:
        """Refuse to shorten a run to tokens that it has trained on: it would end in the middle of its schedule.

        Raises:
            ValueError: the total is another than in earlier starts, and not above `seen`.
        """
        if total_tokens != self.read().recipe["schedule"]["total_tokens"] and total_tokens <= seen:
            raise ValueError(
                f"schedule.total_tokens={total_tokens:_} would end {self.root} before the {seen:_} tokens that it has "
                "trained on; give more than that, or choose another run.directory"
            )

    def describe_corpus(self, corpus: Mapping[str, Any]) -> None:
        """Add the corpus to run.json.

        Raises:
            ValueError: as of `require_corpus`.
        """
        if self.has_trained:
            self.require_corpus(corpus)
        self.describe(corpus=corpus)

    def require_corpus(self, corpus: Mapping[str, Any]) -> None:
        """Check fingerprints of a corpus against those in run.json.

        Raises:
            ValueError: the run was started on another corpus or another split of it.
        """
        before = self.read().corpus
        for key in sorted({"fingerprint", "split"} & before.keys() & corpus.keys()):
            if before[key] != corpus[key]:
                raise ValueError(
                    f"{self.root} was started on other data: its {key} was {before[key]}, the files now give "
                    f"{corpus[key]}; restore the files and what divides them (MMseqs2 too, or its absence), or choose "
                    "another run.directory"
                )

    def describe(self, **changes: Any) -> None:
        """Change fields of run.json."""
        path = self.root / "run.json"
        before = self.read() if path.exists() else RunRecord(id=secrets.token_hex(8), created=records.now())
        with with_location(path):
            write_atomic(path, json_file.as_json(replace(before, **changes)))

    def model(self) -> dict[str, Any]:
        """The architecture that run.json describes.

        Raises:
            ValueError: no start of the run has built its model yet.
        """
        if not (model := self.read().model):
            raise ValueError(f"{self.root} has no model yet; attempts.jsonl says how its starts ended")
        return model

    def read(self) -> RunRecord:
        """The content of run.json.

        Raises:
            ValueError: it does not exist, or is no run.json of this program.
        """
        path = self.root / "run.json"
        try:
            content = path.read_bytes()
        except OSError as error:
            why = f"{path} cannot be read: {error.strerror or error}"
            near = "" if self.root.exists() else did_you_mean(self.root, files=False).removeprefix(";")
            if runs := sorted(str(each.parent) for each in self.root.glob("*/run.json")):
                near = f" it holds runs: {format_list(runs)}"
            raise ValueError(f"{why}; is {self.root} a run directory?{near}") from None
        return run_record(content, str(path))

    def start_attempt(
        self,
        world_size: int,
        step: int,
        *,
        despite_failures: bool = False,
        after: int = 0,
        code: Mapping[str, str] = MappingProxyType({}),
    ) -> int:
        """Number the attempt that starts now, and write down its first step and its cause.

        Args:
            world_size: processes that train together.
            step: that of the checkpoint from which it begins; 0 without one.
            despite_failures: whether it would have been refused if nobody had asked for it by name.
            after: the last attempt that is known to another place than attempts.jsonl.
            code: SHA-256 of the files of classes of the user's, by the settings that name them.

        Raises:
            OSError: the disk cannot store it; the error names the file.
        """
        path = self.attempts
        lines = list(records.read(path))
        attempt = max(self.last_attempt(), after) + 1
        ended = {line["attempt"]: line["exit"] for line in lines if "exit" in line}
        how = ended.get(attempt - 1, "killed")
        how = f"was {how}" if how.startswith("stopped") else f"ended as {how}"
        line: dict[str, Any] = {
            "attempt": attempt,
            "time": records.now(),
            "world_size": world_size,
            "base_step": step,
            "cause": "fresh" if attempt == 1 else f"continued: attempt {attempt - 1} {how}",
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        if despite_failures:
            line["despite_failures"] = True
        if code:
            line["code"] = dict(code)
        with with_location(path):
            records.append(path, line)
        return attempt

    def end_attempt(self, attempt: int, exit_class: str) -> None:
        """Write down how an attempt ended; a killed one has no such line."""
        records.append(self.attempts, {"attempt": attempt, "time": records.now(), "exit": exit_class})

    def write_predictions(self, text: str) -> None:
        """Write how the finished model predicts a few held-out proteins; a disk that refuses it costs only this.

        They are as private as checkpoints.
        """
        try:
            write_atomic(self.predictions, text, private=not self.read().recipe["run"]["shared"])
        except OSError as error:
            log(f"{self.predictions} was not written: {describe_os_error(error)}")

    def rank_file(self, rank: int) -> Path:
        """Where one rank writes its errors."""
        return self.root / _RANKS / f"rank-{rank:05d}.jsonl"

    def last_attempt(self) -> int:
        """The number of the last start; 0 without any."""
        return max((line["attempt"] for line in records.read(self.attempts)), default=0)

    def require_same(
        self,
        recipe: Any,
        allow_schedule_change: bool,
        described: RunRecord | None = None,
        *,
        allow_code_change: bool = False,
    ) -> None:
        """Check that run.json, or what it is to become, describes the run of this recipe.

        Raises:
            ValueError: it describes another one, or a class of the user's has changed; `ScheduleDiffersError` if only
                the schedule differs.
        """
        described = described or self.read()
        written = described.recipe, json.loads(json.dumps(asdict(recipe)))  # lists, not tuples
        before, now = (flat(_resolved(recipe, each)) for each in written)
        classes = {name: setting_class for name, setting_class, _ in settings_of(recipe)}
        refused = [SettingClass.IDENTITY] if allow_schedule_change else [SettingClass.IDENTITY, SettingClass.SCHEDULE]
        classes |= dict.fromkeys(before.keys() - now.keys(), SettingClass.IDENTITY)  # options that are gone
        differing = [name for name in classes if classes[name] in refused and before.get(name) != now.get(name)]
        if any(classes[name] is SettingClass.IDENTITY for name in differing):
            hint = "" if allow_schedule_change else " (--allow-schedule-change lets schedule.* differ)"
            raise ValueError(
                f"{self.root} is the output directory of another run: {_changes(differing[:5], before, now)}. "
                f"Choose another run.directory, or restore these settings{hint}"
            )
        code, now_code = described.code, extension.code_of(recipe)
        changed = [name for name in now_code if code.get(name, now_code[name]) != now_code[name]]
        if changed and not allow_code_change:
            place = extension.place_of(extension.external_names(recipe)[changed[0]][0])
            raise ValueError(
                f"{self.root}: {place}, the file of {changed[0]}, has changed since the run began: its SHA-256 was "
                f"{code[changed[0]][:12]}..., is {now_code[changed[0]][:12]}...; restore it, choose another "
                "run.directory, or continue with the changed code by --allow-code-change"
            )
        if differing:
            # As it was written, since a warm-up that is a share means other tokens with another length.
            before, now = map(flat, written)
            of_schedule = [name for name in classes if classes[name] is SettingClass.SCHEDULE]
            earlier = {name: before.get(name) for name in of_schedule if before.get(name) != now.get(name)}
            changes = _changes(earlier, before, now)
            raise ScheduleDiffersError(f"{self.root} was started with another schedule: {changes}", earlier)


def _changes(names: Iterable[str], before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    return "; ".join(f"{name} was {before.get(name)!r}, is {now.get(name)!r}" for name in names)


def _is_foreign(path: Path) -> bool:
    """Whether a file in a folder without run.json cannot come from a start that died before it wrote run.json."""
    if path.name == LOCK:
        return not path.is_file() or path.stat().st_size > 0
    unfinished = write_then_rename(Path("run.json")).name
    return path.name not in (_RANKS, _FORMER_RANKS, unfinished) and not path.name.startswith(UNCLAIMED)


def _resolved(recipe: Any, content: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a recipe, each with what its section resolves written out."""
    sections = {f.name: getattr(recipe, f.name) for f in fields(recipe)}
    return {
        name: sections[name].resolved(values) if isinstance(sections.get(name), Section) else values
        for name, values in content.items()
    }
