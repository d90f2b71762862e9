"""A browser that looks at pages: boxes of all texts and figures, and what a reader would stumble over."""

import base64
import json
import shutil
from pathlib import Path
from typing import Any

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
