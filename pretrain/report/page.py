"""The page: a run's report as one HTML file that needs no network, no script and no other file.

In: a run directory. Out: report.html in it. Kept: nothing; a file of that name that this module did not write stays.
"""

from datetime import UTC, datetime
from pathlib import Path

from pretrain.evaluate.scores import HeldOutUnit, kind_of
from pretrain.report import charts, page_text, results
from pretrain.report.chart import style_sheet
from pretrain.report.section import ReportContent, ReportSection
from zymogen.console.safe_text import log
from zymogen.files.durable import replacing_file
from zymogen.trainer.run.directory import RunDirectory
from zymogen.trainer.run.reader import RunReader

MARK = "zymogen.report/1"
"""Stands at the beginning of every page that this module writes."""
_LETTERS = """\
Each letter is the true residue. Its colour is the probability that the model gives it while the residue is hidden, a
seventh of the protein at a time."""


def write_report(
    root: Path, refresh_s: int | None = None, run: RunReader | None = None, content: ReportContent | None = None
) -> Path:
    """Draw the report of a run, and put it in the place of the last one.

    Args:
        root: run directory; a process may be training in it.
        refresh_s: seconds after which an open page reloads itself; None for a page that does not.
        run: the run whose attempts and curves are shown, if not that of `root`.
        content: of the page; None for that of pretraining.

    Returns:
        The path of the page.

    Raises:
        ValueError: it is no run directory, or its report.html was not written by this function.
    """
    path, run = RunDirectory(root).report, run or RunReader(root)
    text = render(run, refresh_s, content or _of_pretraining(run))
    if path.is_symlink() or (path.exists() and not (path.is_file() and MARK in path.read_text(errors="replace"))):
        raise ValueError(f"{path} is there, and is no report of this command; move it, and start again")
    with replacing_file(path, "get the right to write there") as new:
        # It shows proteins of the corpus.
        new.touch(0o666 if (run.settings.get("run") or {}).get("shared") else 0o600)
        new.write_text(text, encoding="utf-8")
    return path


def write_last_report(root: Path) -> None:
    """Draw the report of a run that has just come to its end; whatever prevents it costs a line and not the run."""
    try:
        write_report(root)
    except Exception as error:
        log(f"the report was not drawn: {type(error).__name__}: {error}")


def render(run: RunReader, refresh_s: int | None, content: ReportContent) -> str:
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
        refresh_s=refresh_s,
        colours=style_sheet(),
        content=content,
        sections=(*content.sections, *_of_every_run(run)),
        state=page_text.run_state(run),
        drawn=datetime.now(UTC).strftime("%-d %B %Y, %H:%M:%S UTC"),
    )


def _of_pretraining(run: RunReader) -> ReportContent:
    found = page_text.verdict_on(run)
    return ReportContent(
        name=run.root.resolve().name,
        subtitle=page_text.subtitle(run),
        judged=tuple(line for sentence in found.sentences for line in sentence.splitlines()) if found else (),
        keys=tuple(page_text.key_numbers(run)),
        sections=(
            results.read(run.root).section(),
            ReportSection("", drawings=(charts.loss_figure(run),)),
        ),
        drawn_by="python -m pretrain.report",
    )


def _of_every_run(run: RunReader) -> list[ReportSection]:
    """What the page of each job ends with."""
    proteins, kind = page_text.proteins(run), kind_of(HeldOutUnit.of(run.record.corpus)).capitalize()
    environment = [*(("", line) for line in run.record.compute), *run.record.versions.items()]
    explained = (_LETTERS,) if proteins else ()
    return [
        ReportSection(f"{kind}s, as the model predicts them", explained, drawings=proteins),
        ReportSection("How it trained", drawings=charts.training_figures(run)),
        ReportSection("When", sheets=page_text.attempts(run), drawings=(charts.time_line(run),)),
        ReportSection("Recipe", settings=page_text.recipe(run)),
        ReportSection("Environment", settings=[("", environment)] if environment else []),
    ]
