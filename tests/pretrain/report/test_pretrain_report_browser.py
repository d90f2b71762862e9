"""The page in a browser, on a desktop and on a phone: nothing leaves it, overlaps or is too small to read."""

import time
from pathlib import Path

import pytest

from pretrain.report.page import write_report
from support.inputs.written_runs import WrittenRun
from support.screens.browser import Browser, offences

pytestmark = pytest.mark.slow

LONG_NAME = "a-recipe-with-a-name-that-is-longer-than-a-phone-is-wide-and-has-no-blank.fasta.gz"
RUNS = {
    "finished": WrittenRun(steps=200, floor=7.5, attempts=2, curriculum=((400_000, 128), (900_000, 256))),
    "one step": WrittenRun(steps=1),
    "none": WrittenRun(steps=0, exit=None),
    "diverged": WrittenRun(diverges_at=60, exit="error", floor=7.5),
    "100 restarts": WrittenRun(steps=1000, attempts=100, sources=(LONG_NAME,) * 3),
    "100,000 lines": WrittenRun(steps=100_000, validate_every=500, floor=7.5),
}
SCREENS = {"desktop": (1280, False), "phone": (390, True)}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: write_report(run.write(tmp_path_factory.mktemp("runs") / "run")) for name, run in RUNS.items()}


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("name", RUNS)
def test_a_page_is_readable_and_asks_for_nothing(
    browser: Browser, pages: dict[str, Path], name: str, screen: str
) -> None:
    width, mobile = SCREENS[screen]
    browser.requests()
    browser.open(pages[name], width, mobile=mobile)
    assert browser.requests() == [pages[name].as_uri()]
    assert browser.driver.get_log("browser") == []
    seen = browser.look()
    assert seen["width"] == width
    assert offences(seen) == []
    assert len(seen["figures"]) == (1 if name == "none" else 10)
    assert len(seen["texts"]) > 30
    wide = {round(right - left) for left, _, right, _ in (figure["box"] for figure in seen["figures"])}
    assert wide <= ({342} if mobile else {420})


def test_what_offends_is_found(browser: Browser, pages: dict[str, Path], tmp_path: Path) -> None:
    """Each rule on a page that breaks it."""
    whole = pages["finished"].read_text()
    broken = {
        "has 9.0 px": whole.replace("<h2>Recipe</h2>", '<h2 style="font-size:9px">Recipe</h2>'),
        "lies on 'Frequencies'": whole.replace("<dt>Frequencies</dt>", '<dt style="height:9px">Frequencies</dt>'),
        "lies on another figure": whole.replace('<figure id="mfu">', '<figure id="mfu" style="margin-top:-200px">'),
        "the page is ": whole.replace("<main>", '<main><p style="width:3000px">wide</p>'),
        "leaves the page": whole.replace("<h2>When</h2>", '<h2 style="margin-left:-300px">When</h2>'),
        "a text of 'MFU' leaves it": whole.replace(
            "</head>", "<style>#mfu text{font-size:90px!important}</style></head>"
        ),
    }
    for words, text in broken.items():
        assert text != whole
        (tmp_path / "page.html").write_text(text)
        browser.open(tmp_path / "page.html", 390, mobile=True)
        assert any(words in offence for offence in offences(browser.look())), words
    (tmp_path / "page.html").write_text(whole.replace("<main>", '<main><img src="https://127.0.0.1:1/a.png">'))
    browser.requests()
    browser.open(tmp_path / "page.html", 390, mobile=True)
    assert browser.driver.get_log("browser") != []  # the page's own policy blocks what it does not hold


def test_light_dark_and_paper(browser: Browser, pages: dict[str, Path]) -> None:
    paper, fills = {}, {}
    for scheme in ("light", "dark"):
        browser.open(pages["finished"], 1280, mobile=False, scheme=scheme)
        paper[scheme] = browser.colour("backgroundColor")
        fills[scheme] = browser.colour("fill", "#loss text")
        assert len(browser.picture()) > 100_000
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 29)"}
    assert fills == {"light": "rgb(91, 100, 112)", "dark": "rgb(164, 173, 184)"}
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    assert browser.colour("backgroundColor") == "rgb(255, 255, 255)"


def test_a_long_run_is_drawn_in_time(pages: dict[str, Path]) -> None:
    root = pages["100,000 lines"].parent
    started = time.process_time()
    assert write_report(root).stat().st_size < 3_000_000
    assert time.process_time() - started < 5
