"""The checkpoints of a run: whether their bytes are whole, and whether they were trained on what the recipe says.

In: a run directory, or a checkpoint; to audit, its corpus too. Out: lines of text, as each is read; an exit status.
Kept: nothing is moved, as only a start puts a damaged checkpoint into quarantine; a token store that the corpus has
lost is built as a start would build it.

Each checkpoint holds a chain over the digests of all bins that reached the model, in their order (C8). No weight is
read and nothing is trained here: what a recipe, a seed and a corpus say that a run must have seen is computed, and a
sample that was trained twice, or never, in any start of the run, gives another chain.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from data.batches.loader import Loader
from data.corpus.prepare import open_corpora, prepare_corpora
from data.order.plan import EMPTY_CHAIN, Cursor, extend_chain
from data.settings import DataSettings
from pretrain.corpora import data_settings
from zymogen.console.format import count
from zymogen.console.progress import ProgressBar
from zymogen.processes.errors import StorageError
from zymogen.processes.exit_classes import ERROR, FINISHED, INPUT, STORAGE, ExitClass
from zymogen.trainer.checkpoint.canonical import InvalidCheckpointError
from zymogen.trainer.checkpoint.load import find, unreadable, verify
from zymogen.trainer.checkpoint.manifest import UnsupportedVersionError, step_of_name
from zymogen.trainer.recovery.loss_monitor import skipped_bins, skipped_bins_of
from zymogen.trainer.run.directory import RunDirectory

_ROW = "{:>12}  {:13}  {}"


def verify_run(path: Path, say: Callable[[str], None]) -> int:
    """Compare all checkpoints of a run, the oldest first, or one.

    Args:
        path: a run directory, or a checkpoint in one.
        say: gets each line of the table as soon as it is known.

    Returns:
        The exit status: 0, or that of a damaged disk, or if none is damaged of a mistake where another version is
        needed to read one.

    Raises:
        ValueError: there is no checkpoint.
    """
    paths = _checkpoints(path)
    say(_ROW.format("step", "verdict", "reason"))
    classes: dict[str, ExitClass] = {}
    for each in paths:
        with ProgressBar(f"comparing {each.name} with its hashes", after_s=2.0):
            exit_class, verdict, reason = _verdict(each)
        if os.path.lexists(each):  # a run that trains removes its oldest one
            classes[each.name] = exit_class
            say(_ROW.format(f"{step_of_name(each.name):,}", verdict, reason).rstrip())
    whole = [name for name, exit_class in classes.items() if exit_class is FINISHED]
    newest = f"the newest whole one is {whole[-1]}" if whole else "none is whole"
    say(f"{len(whole)} of {len(classes)} whole; {newest}")
    return max(classes.values(), key=(FINISHED, INPUT, STORAGE).index, default=FINISHED).status


def _checkpoints(path: Path) -> list[Path]:
    if step_of_name(path.absolute().name) is not None and os.path.lexists(path):
        return [path.absolute()]
    run = RunDirectory(path)
    run.read()
    if not (paths := find(run.checkpoints)):
        raise ValueError(f"{run.root} has no checkpoint yet; nothing is there to verify")
    return paths[::-1]


def _verdict(path: Path) -> tuple[ExitClass, str, str]:
    """The class of what a checkpoint is, what it is, and why."""
    try:
        verify(path)
    except InvalidCheckpointError as error:
        return STORAGE, "damaged", f"{error.reason}: {error}"
    except UnsupportedVersionError as error:
        return INPUT, "other version", error.reason
    except StorageError as error:
        return STORAGE, "unreadable", error.reason
    return FINISHED, "whole", ""


_AUDIT_ROW = "{:>12}  {:>16}  {}"


def audit_run(path: Path, say: Callable[[str], None]) -> int:
    """Compare all checkpoints of a run, the oldest first.

    Args:
        path: the run directory.
        say: gets each line of the table as soon as it is known.

    Returns:
        The exit status: 0, or that of an error where a checkpoint has seen something else.

    Raises:
        ValueError: it is no run, or one whose order is not in its recipe; or the corpus is another one.
        InvalidCheckpointError: a checkpoint is damaged.
    """
    run = RunDirectory(path)
    settings = data_settings(run.read(), run.root)
    saved = [verify(each, unreadable).trainer for each in reversed(find(run.checkpoints))]
    saved = [each for each in saved if each.step]
    if not saved:
        raise ValueError(f"{run.root} has no checkpoint of a step yet; nothing is there to audit")
    loader = _loader(run, settings)
    say(_AUDIT_ROW.format("step", "tokens", "trained on"))
    chain, tokens, step, cursor = EMPTY_CHAIN, 0, 0, Cursor()
    others, skipped = [], list[int]()
    for state in saved:
        with ProgressBar(f"computing the samples up to step {state.step:,}", after_s=2.0):
            while step < state.step:
                planned = next(loader)
                order = torch.tensor(planned.bins).argsort()
                chain = extend_chain(chain, torch.cat([batch.digests for batch in planned.batches])[order].tolist())
                step, tokens, cursor = step + 1, tokens + planned.num_tokens, planned.cursor
        skipped = skipped_bins(loader.plan.settings, step)
        same = (state.chain, state.tokens_seen, state.cursor) == (chain, tokens, cursor)
        same = same and skipped_bins_of(state) == skipped
        others += [state] * (not same)
        trained_on = "what the recipe says" if same else "something else"
        say(_AUDIT_ROW.format(f"{state.step:,}", f"{state.tokens_seen:,}", trained_on))
    last = saved[-1]
    refused = f", of which the optimizer did not take {last.skipped_steps:,}" if last.skipped_steps else ""
    left_out = f"; data.skip_bins left out {count(len(skipped), 'bin')}" if skipped else ""
    seen = f"{last.step:,} steps{refused}{left_out}"
    say(f"{len(saved) - len(others)} of {len(saved)} as the recipe says, {seen}")
    return ERROR.status if others else FINISHED.status


def _loader(run: RunDirectory, settings: DataSettings) -> Loader:
    if any(corpus.streaming for corpus in settings.corpora):
        raise ValueError(f"{run.root} trains on a stream, whose first pass is in the order in which it was read")
    if own := {"data.mask.name", "objective.name"} & run.read().code.keys():
        raise ValueError(
            f"{run.root} fills its bins by {min(own)}, a class of its user's, which only an attempt imports"
        )
    settings = replace(settings, bins_per_forward=1)  # which decides no bin, and may be "auto"
    corpora = open_corpora(settings, prepare_corpora(settings, fetches=False))
    run.require_corpus({"fingerprint": corpora.fingerprint, "split": corpora.split_fingerprint})
    seed = run.read().recipe["run"]["seed"]
    return Loader(corpora.masked(seed), corpora.plan(seed), Cursor(), 0, 0, 1)
