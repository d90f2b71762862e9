"""The page: one file that asks for nothing else, whose texts are escaped, and that replaces nothing but itself."""

import random
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pretrain.__main__ import main as pretrain
from pretrain.report import __main__ as command
from pretrain.report import page
from pretrain.report.__main__ import main
from pretrain.report.page import write_report
from support.inputs.written_runs import WrittenRun
from zymogen.trainer.run import records

NASTY = "<script>alert('x')</script>&\"<img src=a.png>"
EDGES = {
    "one step": WrittenRun(steps=1),
    "none": WrittenRun(steps=0, exit=None),
    "diverged": WrittenRun(diverges_at=60, exit="error", floor=7.5),
    "never finite": WrittenRun(diverges_at=0, exit="error"),
    "still running": WrittenRun(exit=None),
    "100 restarts": WrittenRun(steps=1000, attempts=100, curriculum=((2_000_000, 128), (5_000_000, 256))),
}


class Page(HTMLParser):
    """Tags, attributes that lead elsewhere, ids, and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.links, self.ids, self.text = list[str](), list[str](), list[str](), ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "action", "srcset", "data", "poster"):
                self.links.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def checked(path: Path) -> Page:
    """The page, which asks for nothing."""
    text = path.read_text("utf-8")
    found = Page(text)
    assert text.endswith("</html>")
    assert len(found.ids) == len(set(found.ids))
    assert all(link.startswith("#") and link[1:] in found.ids for link in found.links)
    assert not re.search(r"https?:|//[a-z]|@import|javascript:", text.replace("http-equiv", ""))
    assert all(name in found.ids for name in re.findall(r"url\(#([^)]+)\)", text))
    assert set(re.findall(r"url\((.)", text)) <= {"#"}
    assert not {"script", "link", "iframe", "img", "object"} & set(found.tags)
    assert "#0101" not in text  # every placeholder has become a variable
    assert set(re.findall(r"var\(--(\w+)\)", text)) <= set(re.findall(r"--(\w+):", text))
    return found


REST = [pytest.param(name, marks=pytest.mark.slow) for name in ("none", "never finite", "100 restarts")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one step", "diverged", "still running", *REST])
def test_a_run_at_the_edge_has_a_page(tmp_path: Path, name: str) -> None:
    path = write_report(EDGES[name].write(tmp_path / "run"))
    found = checked(path)
    assert path.stat().st_size < 1_000_000
    charts = found.tags.count("svg")
    assert charts == (1 if name == "none" else 10)
    assert 'title="M1: 0.50"' in path.read_text()  # the number behind a letter's colour, under the pointer
    assert ("Crosses on the axis are values that are not finite." in found.text) == (
        name in ("diverged", "never finite")
    )
    assert ("88 earlier attempts" in found.text) == (name == "100 restarts")


@pytest.mark.slow
def test_files_that_end_anywhere_have_a_page(tmp_path: Path) -> None:
    """As a reader finds them while they are written."""
    drawn = random.Random(0)
    run = WrittenRun(steps=6, validate_every=3, attempts=2)
    for number in range(6):
        root = run.write(tmp_path / str(number))
        for name in ("metrics.jsonl", "attempts.jsonl", "predictions.json"):
            content = (root / name).read_bytes()
            (root / name).write_bytes(content[: drawn.randrange(len(content))])
        checked(write_report(root))


@pytest.mark.parametrize(
    "held_out", ["clusters", *(pytest.param(what, marks=pytest.mark.slow) for what in ("nothing", None))]
)
def test_the_proteins_are_called_what_they_are(tmp_path: Path, held_out: str | None) -> None:
    root = WrittenRun(held_out=held_out).write(tmp_path / "run")
    kind = {"clusters": "Held-out proteins", "nothing": "Training proteins", None: "Proteins"}[held_out]
    text = write_report(root).read_text()
    assert re.findall(r"<h2>(.*), as the model predicts them</h2>", text) == [kind]


def test_texts_of_files_are_escaped(tmp_path: Path) -> None:
    root = WrittenRun(sources=(NASTY,), preset=NASTY, residues='<b>"&MK').write(tmp_path / "<i>run&")
    found = checked(write_report(root))
    assert found.text.count(NASTY) == 4  # subtitle and recipe, both names
    assert found.tags.count("i") == 0
    assert "<i>run&" in found.text


def test_every_chart_tells_its_name_and_what_it_shows(tmp_path: Path) -> None:
    text = write_report(EDGES["diverged"].write(tmp_path / "run")).read_text()
    names = re.findall(r'role="img" aria-labelledby="(\S+) (\S+)"', text)
    assert len(names) == text.count("<svg ") == 10
    assert all(re.search(rf'id="{name}">[^<]{{3,}}<', text) for pair in names for name in pair)


@pytest.mark.slow
def test_only_a_page_of_our_own_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = EDGES["one step"].write(tmp_path / "run")
    report, other = root / "report.html", tmp_path / "other.html"
    assert main([str(root)]) == 0
    assert main([str(root)]) == 0  # our own
    other.write_text(page.MARK)
    makers = (lambda: report.write_text("<p>mine"), report.mkdir, lambda: report.symlink_to(other))
    for make in makers:
        report.rmdir() if report.is_dir() else report.unlink()
        make()
        capsys.readouterr()
        assert main([str(root)]) == 78
        assert capsys.readouterr().err.startswith(f"error: {report} is there, and is no report of this command; ")
        assert not report.is_file() or report.is_symlink() or report.read_text() == "<p>mine"
    assert (report.is_symlink(), other.read_text()) == (True, page.MARK)
    assert sorted(path.name for path in root.iterdir() if path.name.startswith(".")) == []


@pytest.mark.usefixtures("last_report")
def test_a_report_that_cannot_be_drawn_costs_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "render", lambda *_: 1 / 0)
    page.write_last_report(EDGES["one step"].write(tmp_path / "run"))
    assert capsys.readouterr().err == "the report was not drawn: ZeroDivisionError: division by zero\n"


@pytest.mark.slow
def test_watching_ends_with_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = EDGES["still running"].write(tmp_path / "run")
    naps: list[str] = []

    def nap(seconds: float) -> None:
        text = (root / "report.html").read_text()
        assert f'http-equiv="refresh" content="{seconds}"' in text
        naps.append(text)
        if len(naps) == 3:
            records.append(root / "attempts.jsonl", {"attempt": 1, "time": records.now(), "exit": "finished"})

    monkeypatch.setattr(command.time, "sleep", nap)
    assert main([str(root), "--watch", "7"]) == 0
    assert len(naps) == 3
    last = (root / "report.html").read_text()
    assert 'http-equiv="refresh"' not in last
    assert "Finished at step 100" in last
    assert capsys.readouterr().out.splitlines()[-1] == str(root / "report.html")


@pytest.mark.parametrize("words", [["--watch", "0"], ["--watch", "1.5"], ["--watch", "soon"]])
def test_seconds_that_are_none(tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), *words]) == 78
    assert "a whole number from 1 on" in capsys.readouterr().err


@pytest.mark.usefixtures("last_report")
def test_a_run_ends_with_its_report(recipe_in, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pretrain([str(recipe_in(tmp_path)), "schedule.total_tokens=4_000", "run.checkpoint_every=3"]) == 0
    report = tmp_path / "run/report.html"
    said = capsys.readouterr().out.splitlines()
    assert f"The run in pictures: {report}" in said
    found = checked(report)
    (sentence,) = (line for line in said if line.startswith(("It beats ", "It learned ", "It is worse ", "It cannot ")))
    assert sentence in found.text
    assert "Finished at step 6, 100% of its 4k tokens." in found.text
    assert "1 attempt, 2 checkpoints saved, 0 failed saves, 1 validation." in found.text
    of_proteins = re.findall(r"true residue: 0\.\d{3} on average; by residue frequencies (0\.0\d{2})\.", found.text)
    assert len(of_proteins) == 3
    assert "esm2_60k" in found.text
