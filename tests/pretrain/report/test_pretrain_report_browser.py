"""The page in a browser, on a desktop and on a phone: nothing leaves it, overlaps or is too small to read."""

import base64
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pretrain.report.page import write_report
from support.inputs.written_runs import WrittenRun

pytest.importorskip("selenium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("chromedriver"), reason="needs Debian's chromium and chromium-driver"),
]

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

# What a reader sees: boxes of every text and figure, by the browser's own layout, in pixels of the page.
LOOK = """
const seen = el => { const r = el.getBoundingClientRect(); return r.width > 0 && r.height > 0; };
const box = el => { const r = el.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
const texts = [];
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const el = walk.currentNode.parentElement;
  if (!walk.currentNode.data.trim() || ['STYLE', 'title', 'desc'].includes(el.tagName) || !seen(el)) continue;
  const svg = el.closest('svg');
  const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
  const range = document.createRange(); range.selectNodeContents(walk.currentNode);
  for (const r of range.getClientRects())
    texts.push({text: walk.currentNode.data.trim(), size: parseFloat(getComputedStyle(el).fontSize) * scale,
                box: [r.left, r.top, r.right, r.bottom], svg: svg ? svg.getAttribute('aria-labelledby') : null});
}
const figures = [...document.querySelectorAll('svg')].filter(seen).map(svg => ({
  box: box(svg), title: svg.querySelector('title').textContent,
  inside: [...svg.querySelectorAll('text')].map(box)}));
return {texts, figures, width: document.documentElement.clientWidth, scroll: document.documentElement.scrollWidth};
"""


class Browser:
    """Headless Chromium."""

    def __init__(self) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))

    def open(self, page: Path, width: int, *, mobile: bool, scheme: str = "light") -> None:
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": mobile}
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        self.driver.get(page.as_uri())

    def look(self) -> Any:
        return self.driver.execute_script(LOOK)

    def colour(self, name: str, of: str = "body") -> str:
        return self.driver.execute_script(f"return getComputedStyle(document.querySelector('{of}')).{name}")

    def picture(self) -> bytes:
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
        return base64.b64decode(shot["data"])

    def requests(self) -> list[str]:
        """Addresses that were asked for since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    opened = Browser()
    yield opened
    opened.driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: write_report(run.write(tmp_path_factory.mktemp("runs") / "run")) for name, run in RUNS.items()}


def overlaps(boxes: list[list[float]], slack: float = 1.0) -> list[tuple[int, int]]:
    """Pairs of boxes that share more than a line of pixels."""
    return [
        (i, j)
        for i, a in enumerate(boxes)
        for j, b in enumerate(boxes[:i])
        if min(a[2], b[2]) - max(a[0], b[0]) > slack and min(a[3], b[3]) - max(a[1], b[1]) > slack
    ]


def offences(seen: Any) -> list[str]:
    """What a reader would stumble over."""
    found = []
    width = seen["width"]
    if seen["scroll"] > width:
        found.append(f"the page is {seen['scroll']} wide on a screen of {width}")
    for text in seen["texts"]:
        if text["size"] < 11:
            found.append(f"{text['text']!r} has {text['size']:.1f} px")
        if text["box"][0] < 0 or text["box"][2] > width:
            found.append(f"{text['text']!r} leaves the page: {text['box']}")
    for figure in seen["figures"]:
        left, top, right, bottom = figure["box"]
        if left < 0 or right > width:
            found.append(f"{figure['title']!r} leaves the page: {figure['box']}")
        for x, y, x_end, y_end in figure["inside"]:
            if x < left - 6 or x_end > right + 6 or y < top - 6 or y_end > bottom + 6:
                found.append(f"a text of {figure['title']!r} leaves it: {(x, y, x_end, y_end)} of {figure['box']}")
    # Boxes of texts are as high as a line, with some air above and below the letters.
    boxes = [[x, y + 2, x_end, y_end - 2] for x, y, x_end, y_end in (text["box"] for text in seen["texts"])]
    texts = [text["text"] for text in seen["texts"]]
    found += [f"{texts[i]!r} lies on {texts[j]!r}" for i, j in overlaps(boxes)]
    drawn = [figure["box"] for figure in seen["figures"]]
    found += [f"{seen['figures'][i]['title']!r} lies on another figure" for i, _ in overlaps(drawn)]
    return found


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
    assert wide <= ({342} if mobile else {420, 880})


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
        fills[scheme] = browser.colour("fill", "#loss .wide text")
        assert len(browser.picture()) > 100_000
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 29)"}
    assert fills == {"light": "rgb(91, 100, 112)", "dark": "rgb(164, 173, 184)"}
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    assert browser.colour("backgroundColor") == "rgb(255, 255, 255)"
    assert browser.colour("display", "#loss .narrow") == "none"


def test_a_long_run_is_drawn_in_time(pages: dict[str, Path]) -> None:
    root = pages["100,000 lines"].parent
    started = time.process_time()
    assert write_report(root).stat().st_size < 3_000_000
    assert time.process_time() - started < 5
