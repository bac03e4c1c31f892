"""The page in a real browser: headless chromium, driven by selenium.

Skipped where there is no chromium, unless SMG_BROWSER is set, as `.ci/run` does. The accessibility rules are
axe-core's (axe.min.js, version 4.14.0 from npm, MPL-2.0, unchanged; axe.LICENSE.txt).
"""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from smg.report.figures import Figures
from smg.report.page import write_report
from tests.learner.streams import tiny_stream, write_sites
from tests.report.benches import CHARACTER, TWO_STREAMS, add_costs, make_bench

BINARY = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (BINARY and DRIVER) and not os.environ.get("SMG_BROWSER"),
    reason="no chromium with chromedriver here: apt-get install chromium chromium-driver",
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--use-gl=angle",  # WebGL2 without a graphics card
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
)
AXE = Path(__file__).with_name("axe.min.js")


class Browser:
    """A browser with one page open."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, page: Path, width: int = 1280, dark: bool = False) -> None:
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get(page.as_uri())

    def js(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.js(
            "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)", selector
        )
        return found

    def click(self, selector: str) -> None:
        self.js("document.querySelector(arguments[0]).scrollIntoView({block: 'center', behavior: 'instant'})", selector)
        self.find(selector).click()

    def press(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def until(self, holds: Callable[[], Any], seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, "the condition did not hold in time"
            time.sleep(0.05)

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def requests(self) -> list[str]:
        """Return every address outside this machine that was requested since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        return [
            url for url in urls if not url.startswith(("file:", "data:", "blob:", "chrome"))
        ]  # chrome: the empty tab of the browser

    def axe(self) -> list[str]:
        self.js(AXE.read_text())
        code = "const done = arguments[0]; axe.run({resultTypes: ['violations']}).then(r => done(r.violations))"
        found = self.driver.execute_async_script(code)
        return [f"{v['id']}: {v['nodes'][0]['html'][:150]} ({v['nodes'][0].get('failureSummary', '')[:200]})"
                for v in found if v["impact"] in ("serious", "critical")]  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert BINARY, "SMG_BROWSER is set, but there is no chromium"
    assert DRIVER, "SMG_BROWSER is set, but there is no chromedriver"
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BINARY
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_script_timeout(60)
    driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
    try:
        yield Browser(driver)
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def many_methods(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on ten methods, two streams and what they cost."""
    folder = tmp_path_factory.mktemp("many")
    methods = (*CHARACTER, "ewc", "mas")
    bench = make_bench(folder / "bench", methods, TWO_STREAMS, (0, 1), subjects=2, reports=3)
    add_costs(bench, 8_100_000, 213.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figures, "_write", lambda *_: None)
        return write_report([bench], folder / "report.html").page


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    bench = make_bench(folder / "bench", ("finetune", "jm", "sga+c"), subjects=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figures, "_write", lambda *_: None)  # PNG and PDF take most of the time
        return write_report([bench], folder / "report.html").page


@pytest.fixture(scope="module")
def long_names(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the page of a bench and of a model, with hospitals that have long names."""
    folder = tmp_path_factory.mktemp("long_names")
    order = ("Universitätsklinikum-Schleswig-Holstein_Campus-Lübeck_3T", "Beth Israel Deaconess Medical Center, Boston")
    unseen = "University College London Hospitals NHS Foundation Trust"
    streams = {"one": (order, unseen), "two": (order[::-1], unseen)}
    bench = make_bench(folder / "bench", ("finetune", "sga+c"), streams, seeds=(0, 1), subjects=2, reports=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figures, "_write", lambda *_: None)
        model = bench / "one/sga+c/seed-0/model"
        return [write_report([path], folder / f"{path.name}.html").page for path in (bench, model)]


@pytest.fixture(scope="module")
def with_pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("with_pictures")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMG_CACHE", str(folder / "cache"))
        patch.setattr(Figures, "_write", lambda *_: None)
        data = write_sites(folder / "data")
        for method in ("finetune", "sga+c"):
            tiny_stream(data, method=method, iterations=2).run(folder / "bench" / method)
        return write_report([folder / "bench"], folder / "report.html", pictures=True, data=data).page


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_opens_anywhere(browser: Browser, with_pictures: Path, page: Path, width: int, dark: bool) -> None:
    """Check that there is no request, no error, no sideways scrolling and no serious finding of axe."""
    for one in (page, with_pictures):
        browser.open(one, width, dark)
        assert browser.js("return document.documentElement.scrollWidth") <= width
        assert browser.axe() == []
        assert browser.errors() == []
        assert browser.requests() == []
    background = browser.js("return getComputedStyle(document.body).backgroundColor")
    assert (sum(int(n) for n in background[4:-1].split(",")) < 200) == dark


@pytest.mark.parametrize("width", [1280, 768, 390])
def test_long_names_scroll_in_their_own_boxes(browser: Browser, long_names: list[Path], width: int) -> None:
    """Check that only tables scroll sideways, not the page, and that keys can scroll them."""
    too_wide = """return [...document.querySelectorAll('table, svg.chart')].filter(e => e.checkVisibility() &&
        e.getBoundingClientRect().right > innerWidth && !e.closest('.wide[tabindex="0"]')).map(e => e.className)"""
    for one in long_names:
        browser.open(one, width)
        browser.js("for (const d of document.querySelectorAll('details')) d.open = true")
        assert browser.js("return document.documentElement.scrollWidth") <= width
        assert browser.js(too_wide) == []
        assert browser.axe() == []


def test_the_first_screen_answers_the_question(browser: Browser, page: Path) -> None:
    for width in (1280, 390):
        browser.open(page, width)
        places = "return [...document.querySelectorAll('.verdict')].map(v => v.getBoundingClientRect().bottom)"
        assert max(browser.js(places)) <= 800
    browser.open(page)
    assert browser.js("return document.querySelector('.left').getBoundingClientRect().bottom") <= 800


def test_the_formula_shows_on_hover_and_on_focus(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert "BM =" not in browser.find(".paper").text
    browser.js("document.querySelector('.tip').focus()")
    assert "BM = mean over learned sites s of a[T][s]" in browser.find(".paper").text


def test_the_table_sorts_and_searches(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert "stream" not in browser.texts("#table thead th")  # with one stream the column is left out
    column = "#table tbody td:nth-child(6)"
    lowest = [float(text) for text in browser.texts(column)]
    assert lowest == sorted(lowest)
    head = "#table thead th:nth-child(6) button"
    browser.click(head)
    highest = [float(text) for text in browser.texts(column)]
    assert highest == sorted(highest, reverse=True)
    assert highest[0] > lowest[0]
    assert browser.find("#table thead th:nth-child(6)").get_attribute("aria-sort") == "descending"
    browser.find("#search").send_keys("sga subject-2")
    assert set(browser.texts("#table tbody td:nth-child(1)")) == {"sga+c"}
    assert set(browser.texts("#table tbody td:nth-child(5)")) == {"subject-2"}
    assert browser.find("#count").text.startswith("15 of 900 rows")  # 3 seeds, 5 sites, at the end
    browser.js("const w = document.querySelector('#when'); w.value = 'all'; w.dispatchEvent(new Event('change'))")
    assert browser.find("#count").text.startswith("75 of 900 rows")
    browser.click("#on")
    assert browser.find("#page").text == "page 2 of 3"
    assert len(browser.texts("#table tbody tr")) == 25


def test_the_metric_and_the_panel_can_be_chosen(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.find("[data-metric=dsc]").is_displayed()
    browser.click("input[value=asd]")
    assert browser.find("[data-metric=asd]").is_displayed()
    assert not browser.find("[data-metric=dsc]").is_displayed()
    shown = "return [...document.querySelectorAll('[data-panel]')].filter(p => !p.hidden).map(p => p.dataset.name)"
    assert browser.js(shown) == ["a-b-c-d-f-sga-plus-c"]
    browser.js(
        "const c = document.querySelector('.chooser'); c.selectedIndex = 1; c.dispatchEvent(new Event('change'))"
    )
    assert browser.js(shown) == ["a-b-c-d-f-jm"]


def test_a_click_highlights_a_method_and_greys_the_others(browser: Browser, many_methods: Path) -> None:
    browser.open(many_methods)
    chart = "#curves .chart"
    lit = f"return [...new Set([...document.querySelectorAll('{chart} .method.chosen')].map(m => m.dataset.method))]"
    box = "document.querySelectorAll('[data-highlight]')"
    names = f"return [...{box}].filter(b => b.checked).map(b => b.parentElement.textContent.trim())"
    assert browser.js(names) == ["jm", "sga+c"]
    assert len(browser.js(lit)) == 2
    faint = f"return getComputedStyle(document.querySelector('{chart} .method:not(.chosen)')).opacity"
    assert float(browser.js(faint)) < 0.5
    browser.click("[data-highlight='3']")
    assert "3" in browser.js(lit)
    line = f"document.querySelector('{chart} .method[data-method=\"4\"] path')"
    browser.js(f"{line}.dispatchEvent(new MouseEvent('click', {{bubbles: true}}))")
    assert "4" in browser.js(lit)
    assert len(browser.js(names)) == 4
    browser.js(f"for (const b of {box}) if (b.checked) b.click()")
    assert browser.js(f"return document.querySelectorAll('{chart}.choosing').length") == 0


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_ten_methods_fit_every_screen(browser: Browser, many_methods: Path, width: int) -> None:
    browser.open(many_methods, width)
    browser.js("for (const d of document.querySelectorAll('details')) d.open = true")
    assert browser.js("return document.documentElement.scrollWidth") <= width
    assert browser.axe() == []


@pytest.mark.parametrize(("name", "begins"), [("latex", r"\begin{tabular}"), ("csv", "stream,method,metric")])
def test_the_button_copies(browser: Browser, page: Path, name: str, begins: str) -> None:
    from selenium.webdriver import ActionChains, Keys

    browser.open(page)
    browser.click(f".copy[data-copies={name}]")
    browser.until(lambda: browser.find("#copied").text.startswith("Copied"))
    browser.js("document.body.append(Object.assign(document.createElement('textarea'), {id: 'paste'}))")
    browser.click("#paste")
    ActionChains(browser.driver).key_down(Keys.CONTROL).send_keys("v").key_up(Keys.CONTROL).perform()
    pasted = browser.js("return document.querySelector('#paste').value")
    assert pasted.startswith(begins)
    assert pasted == browser.js(f"return JSON.parse(document.querySelector('#{name}').textContent)")


def test_everything_can_be_reached_by_keyboard(browser: Browser, with_pictures: Path) -> None:
    from selenium.webdriver import Keys

    browser.open(with_pictures)
    controls = """[...document.querySelectorAll('button, select, summary, input:not([type=radio]), a[href]')]
        .filter(e => e.checkVisibility() && !e.disabled"""
    for _ in range(browser.js(f"return {controls}).length") + 40):  # more for radio buttons and tables
        browser.press(Keys.TAB)
        browser.js("document.activeElement.dataset.reached = 'yes'")
    assert browser.js(f"return {controls} && !e.dataset.reached).map(e => e.outerHTML.slice(0, 90))") == []
    browser.js("document.querySelector('#table thead button').focus()")
    browser.press(Keys.ENTER)
    assert browser.find("#table thead th").get_attribute("aria-sort") == "ascending"
    slider = "input[type=range]"
    browser.js(f"document.querySelector('{slider}').focus()")
    before = browser.find(slider).get_attribute("value")
    browser.press(Keys.ARROW_RIGHT)
    assert int(browser.find(slider).get_attribute("value")) == int(before) + 1


def test_the_slider_changes_the_picture_and_contours_can_be_hidden(browser: Browser, with_pictures: Path) -> None:
    browser.open(with_pictures)
    assert "holds pictures of patients" in browser.find(".notice").text
    seen = (
        "return [document.querySelector('.tile img').src, document.querySelector('.tile path.truth').getAttribute('d')]"
    )
    slide = """const s = document.querySelector('input[type=range]'); s.value = arguments[0];
        s.dispatchEvent(new Event('input')); """
    first, other = browser.js(slide + seen, 0), browser.js(slide + seen, 2)
    assert first[0] != other[0]
    assert first[1] != other[1]
    assert browser.js("return document.querySelector('.tile img').naturalWidth") > 0
    assert browser.find(".tile path.truth").is_displayed()
    browser.click("[data-contour=truth]")
    assert not browser.find(".tile path.truth").is_displayed()


def test_the_viewer_draws_a_scan(browser: Browser, with_pictures: Path) -> None:
    browser.open(with_pictures)
    browser.errors()
    assert browser.js("return typeof niivue") != "object" or browser.js("return niivue instanceof HTMLElement")
    browser.click(".open-viewer")
    browser.until(lambda: browser.find("#viewer-status").text == "")
    browser.until(lambda: _shades(browser) > 40)
    assert browser.js("return document.querySelector('#viewer-picture').hidden")
    browser.js(
        "const m = document.querySelector('#viewer-mask'); m.selectedIndex = 2; m.dispatchEvent(new Event('change'))"
    )
    time.sleep(0.3)
    assert browser.errors() == []
    assert browser.requests() == []
    assert browser.axe() == []
    browser.click("#viewer-close")
    assert not browser.find("#viewer").is_displayed()


def _shades(browser: Browser) -> int:
    """Return the number of distinct colours on the canvas; a blank one has one."""
    shot = base64.b64decode(browser.find("#viewer-canvas").screenshot_as_base64)
    pixels = np.asarray(Image.open(io.BytesIO(shot)).convert("RGB")).reshape(-1, 3)
    return len(np.unique(pixels, axis=0))


def test_without_webgl2_there_is_a_picture(browser: Browser, with_pictures: Path) -> None:
    code = """const get = HTMLCanvasElement.prototype.getContext;
        HTMLCanvasElement.prototype.getContext = function (kind, ...more) {
          return kind === 'webgl2' ? null : get.call(this, kind, ...more); };"""
    added = browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": code})
    try:
        browser.open(with_pictures)
        browser.click(".open-viewer")
        browser.until(lambda: browser.js("return document.querySelector('#viewer-picture').naturalWidth") > 0)
        assert "WebGL2" in browser.find("#viewer-status").text
        assert browser.find("#viewer-picture").is_displayed()
    finally:
        browser.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": added["identifier"]})


def test_it_prints(browser: Browser, page: Path) -> None:
    browser.open(page, dark=True)
    printed = base64.b64decode(browser.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert printed.startswith(b"%PDF")
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert browser.js("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not browser.find("nav").is_displayed()
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
