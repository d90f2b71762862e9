"""The page: a run's report as one HTML file that needs no network, no script and no other file.

In: a run directory. Out: report.html in it. Kept: nothing; a file of that name that this module did not write stays.
"""

from datetime import UTC, datetime
from pathlib import Path

from pretrain.evaluate.scores import kind_of
from pretrain.report import charts, page_text, results
from pretrain.report.chart import style_sheet
from pretrain.report.history import RunHistory, read_history
from pretrain.report.section import ReportContent, ReportSection
from zymogen.console.safe_text import log
from zymogen.files.durable import replacing_file
from zymogen.trainer.run.directory import RunDirectory

MARK = "zymogen.report/1"
"""Stands at the beginning of every page that this module writes."""
_LETTERS = """\
Each letter is the true residue. Its colour is the probability that the model gives it while the residue is hidden, a
seventh of the protein at a time."""
WIDE, HALF, NARROW = 880, 420, 342
"""Widths in pixels at which charts are drawn: the column of a desktop, half of it, and that of a phone."""


def write_report(
    root: Path, refresh_s: int | None = None, history: RunHistory | None = None, content: ReportContent | None = None
) -> Path:
    """Draw the report of a run, and put it in the place of the last one.

    Args:
        root: run directory; a process may be training in it.
        refresh_s: seconds after which an open page reloads itself; None for a page that does not.
        history: of the run, where it was read already.
        content: of the page; None for that of pretraining.

    Returns:
        The path of the page.

    Raises:
        ValueError: it is no run directory, or its report.html was not written by this function.
    """
    path, history = RunDirectory(root).report, history or read_history(root)
    text = render(history, refresh_s, content or _of_pretraining(history))
    require_ours(path, MARK, "report")
    with replacing_file(path, "get the right to write there") as new:
        new.touch(0o666 if history.is_shared else 0o600)  # it shows proteins of the corpus
        new.write_text(text, encoding="utf-8")
    return path


def write_last_report(root: Path) -> None:
    """Draw the report of a run that has just come to its end; whatever prevents it costs a line and not the run."""
    try:
        write_report(root)
    except Exception as error:
        log(f"the report was not drawn: {type(error).__name__}: {error}")


def render(history: RunHistory, refresh_s: int | None, content: ReportContent) -> str:
    """The page of a run as text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(__package__, "."),
        autoescape=True,  # names and messages come from files
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        mark=MARK,
        widths={"wide": WIDE, "half": HALF, "narrow": NARROW},
        refresh_s=refresh_s,
        colours=style_sheet(),
        content=content,
        sections=(*content.sections, *_of_every_run(history)),
        state=page_text.run_state(history),
        drawn=datetime.now(UTC).strftime("%-d %B %Y, %H:%M:%S UTC"),
    )


def _of_pretraining(history: RunHistory) -> ReportContent:
    return ReportContent(
        name=history.root.resolve().name,
        subtitle=page_text.subtitle(history),
        judged=tuple(page_text.format_verdict(history)),
        keys=tuple(page_text.key_numbers(history)),
        sections=(
            results.read(history.root).section(),
            ReportSection("", drawings=(charts.loss_figure(history),), is_wide=True),
        ),
        drawn_by="python -m pretrain.report",
    )


def _of_every_run(history: RunHistory) -> list[ReportSection]:
    """What the page of each job ends with."""
    proteins, kind = page_text.proteins(history), kind_of(history.held_out).capitalize()
    explained = (_LETTERS,) if proteins else ()
    return [
        ReportSection(f"{kind}s, as the model predicts them", explained, drawings=proteins, is_wide=True),
        ReportSection("How it trained", drawings=charts.training_figures(history)),
        ReportSection("When", sheets=page_text.attempts(history), drawings=(charts.time_line(history),), is_wide=True),
        ReportSection("Recipe", settings=page_text.recipe(history)),
        ReportSection("Environment", settings=page_text.environment(history)),
    ]


def require_ours(path: Path, mark: str, what: str) -> None:
    """Refuse to replace a file that this room did not write.

    Raises:
        ValueError: so.
    """
    if path.is_symlink() or (path.exists() and not (path.is_file() and mark in path.read_text(errors="replace"))):
        raise ValueError(f"{path} is there, and is no {what} of this command; move it, and start again")
