"""Push a model to the HuggingFace Hub.

    python -m pretrain.push runs/own/export lab/esm2-small --private
    python -m pretrain.push runs/own lab/esm2-small --watch

In: a finished folder (an export, a bundle, an adapter of peft's), or a run; the name of a repository. The token comes
from HF_TOKEN, or from a login with `hf auth login`, and from nowhere else. Out: one commit, and a line with it; exit
status 0; 1 where `--only-if-better-than` or `--patience` ended it, 78 for a mistake in the input, 70 if it could not be
pushed. `pretrain.push.commit` does the work.
"""

import argparse
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from zymogen.command_line.command import run_and_report
from zymogen.command_line.parser import PathParser
from zymogen.console.progress import ProgressBar
from zymogen.console.safe_text import redacted

if TYPE_CHECKING:
    from zymogen.trainer.run.directory import RunDirectory


class _Parser(PathParser):
    """A parser whose errors do not repeat the command line, which may hold a token."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line.

        Raises:
            ValueError: always.
        """
        argument = re.match(r"argument (--[a-z-]+|[a-z]+):", message)
        if argument:
            message = f"{argument[1]} cannot be read"
        elif not message.startswith("the following arguments are required"):
            message = "; ".join(filter(None, ("unrecognized arguments", self.nearest_option(message))))
        raise ValueError(f"the command line: {message}; --help lists what may be given, and a token may not")


def main(arguments: list[str] | None = None) -> int:
    """Push what the command line names; the exit status."""
    return run_and_report(lambda: not _push(_parser().parse_args(arguments)), is_alone=True)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m pretrain.push", description=str(__doc__).split("\n")[0], allow_abbrev=False)
    parser.add_argument("folder", type=Path, help="folder of a finished model, or run directory")
    parser.add_argument("repository", help="organisation/name; it is made if it is not there")
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.add_argument("--tag", help="name for the commit")
    parser.add_argument("--watch", action="store_true", help="follow a run that trains, until it has finished")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="with --watch: push each N-th checkpoint")
    parser.add_argument(
        "--patience",
        type=float,
        default=24.0,
        metavar="HOURS",
        help="with --watch: how long to wait for a run that was killed, or for a hub that is down (24)",
    )
    parser.add_argument(
        "--poll", type=float, default=15.0, metavar="S", help="with --watch: seconds between looks (15)"
    )
    parser.add_argument(
        "--only-if-better-than",
        metavar="MODEL",
        help="push only what is better than this run, folder or Hub name beyond the paired interval",
    )
    parser.add_argument(
        "--data", nargs="+", metavar="WHAT", help="what the two are compared on; the run that the folder lies in"
    )
    return parser


def _push(options: argparse.Namespace) -> bool:
    """Push; whether it was, or else the model was no better, or the patience has ended."""
    from httpx2 import Client
    from huggingface_hub import get_session, set_client_factory  # it takes a second to import

    from pretrain.push.commit import require_name
    from pretrain.push.errors import SILENCE_S

    require_name(options.repository)
    if options.watch and options.tag is not None:
        raise ValueError("--tag is for one push; --watch names each commit step-N")
    if options.watch and options.only_if_better_than is not None:
        raise ValueError("--only-if-better-than is for one push; leave it or --watch out")
    if options.data is not None and options.only_if_better_than is None:
        raise ValueError("--data is what --only-if-better-than compares on; give both or none")
    if options.every < 1 or options.patience < 0 or options.poll <= 0:
        raise ValueError("--every is 1 or more, --patience 0 or more, and --poll more than 0")
    run = _run_at(options.folder)
    hooks = get_session().event_hooks
    # The library's own client waits for ever for a hub that sends nothing.
    set_client_factory(lambda: Client(event_hooks=hooks, follow_redirects=True, timeout=SILENCE_S))
    if not options.watch:
        return _push_once(options, run)
    if run is None:
        raise ValueError(f"{options.folder} is no run directory; --watch follows a run, once its directory is there")
    from pretrain.push.watch import follow

    how = {"every": options.every, "patience_s": options.patience * 3600, "poll_s": options.poll}
    return follow(run, options.repository, private=options.private, **how)


def _run_at(folder: Path) -> "RunDirectory | None":
    """The run in a folder; None if it holds something else.

    Raises:
        ValueError: it is a run that fine-tunes.
    """
    from zymogen.trainer.run.directory import RunDirectory

    if not (folder / "run.json").is_file():
        return None
    run = RunDirectory(folder)
    if "tasks" in run.read().recipe:
        raise ValueError(f"{folder} is a fine-tuning run; when it has finished, name its bundle: {folder / 'bundle'}")
    return run


def _push_once(options: argparse.Namespace, run: "RunDirectory | None") -> bool:
    from pretrain.push.commit import push
    from pretrain.push.errors import PushError
    from pretrain.push.watch import alert, newest

    root = run.root if run else options.folder.resolve().parent
    try:
        with newest(run) if run else nullcontext((options.folder, None)) as (folder, _):
            if options.only_if_better_than is not None and not _is_better(folder, options):
                return False
            with ProgressBar(f"pushing to {options.repository}", after_s=2.0):
                done = push(folder, options.repository, private=options.private, tag=options.tag)
    except PushError as error:
        if (root / "run.json").is_file():
            alert(root, options.repository, error)
        raise
    sent = f"{done.num_added} files sent, {done.num_deleted} deleted" if done.num_added else "nothing to send"
    print(f"{options.repository}: commit {done.commit}, {sent}")
    return True


def _is_better(folder: Path, options: argparse.Namespace) -> bool:
    """Whether a model is better than the one that is there, which a line says; `pretrain.compare` decides."""
    if (folder / "bundle.json").is_file():
        raise ValueError(
            "--only-if-better-than compares pretrained models; for bundles, python -m finetune.compare A B ends with "
            "status 1 where B is worse, so that && can go before the push"
        )
    from pretrain.compare.models import compare_models
    from pretrain.evaluate.scored_set import EvaluationSetOptions
    from pretrain.evaluate.verdict import Judgement

    found = compare_models(
        options.only_if_better_than, str(folder), EvaluationSetOptions(data=tuple(options.data or ()))
    )
    print(redacted(found.line()), flush=True)
    return found.judgement is Judgement.BETTER


if __name__ == "__main__":
    sys.exit(main())
