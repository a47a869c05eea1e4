"""The page of gpunode report in a real headless Chromium.  Without chromium and chromedriver these are passed over."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from report_fleet import fleet
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from gpunode.core.report.html import html_text
from gpunode.edge.report import load_page

pytestmark = [
    pytest.mark.skipif(not shutil.which("chromedriver"), reason="no chromedriver: apt-get install chromium-driver"),
    pytest.mark.slow,
]
HOSTS, FEW, MANY = 400, 300, 2_000
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
Browser = webdriver.Chrome
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--window-size=1400,900"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    for count in (HOSTS, MANY):
        (folder / f"{count}.html").write_text(html_text(fleet(count), load_page()), encoding="utf-8")
    return folder


def open_chromium() -> webdriver.Chrome:
    """A headless Chromium that talks to nobody, with its log and its requests kept."""
    options = webdriver.ChromeOptions()
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    browser = open_chromium()
    yield browser
    browser.quit()


@pytest.fixture
def page(chromium: Browser, folder: Path) -> Browser:
    """The page of 400 hosts, freshly opened, nothing chosen."""
    chromium.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    chromium.set_window_size(1400, 900)
    chromium.get((folder / f"{HOSTS}.html").as_uri())
    chromium.execute_script("localStorage.clear()")
    chromium.refresh()
    chromium.get_log("browser")  # type: ignore[no-untyped-call]
    return chromium


def shown(page: Browser) -> list[str]:
    """Names of the hosts whose rows are to be seen, in their order."""
    script = (
        "return [...document.querySelectorAll('#table > tbody > tr[data-n]')].filter(r => r.offsetHeight > 0)"
        ".map(r => r.cells[0].textContent)"
    )
    names: list[str] = page.execute_script(script)
    return names


def count(page: Browser) -> str:
    return page.find_element(By.ID, "shown").text


def column(page: Browser, name: str, place: int) -> list[str]:
    script = (
        "return [...document.querySelectorAll('#table > tbody > tr[data-n]')].filter(r => r.offsetHeight > 0)"
        f".map(r => r.cells[{place}].textContent)"
    )
    cells: list[str] = page.execute_script(script)
    return cells


def press(page: Browser, *keys: str) -> None:
    ActionChains(page).send_keys(*keys).perform()


def style(page: Browser, selector: str, name: str) -> str:
    script = f"return getComputedStyle(document.querySelector({json.dumps(selector)})).{name}"
    return str(page.execute_script(script))


# ---------------------------------------------------------------- opening


def test_2000_hosts_open_at_once_and_are_no_large_file(chromium: Browser, folder: Path) -> None:
    """The time is the processor's, so that a busy machine does not count."""
    path = folder / f"{MANY}.html"
    assert path.stat().st_size <= 5_000_000
    chromium.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    chromium.get(path.as_uri())
    chromium.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => setTimeout(done))")
    metrics = chromium.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    chromium.execute_cdp_cmd("Performance.disable", {})
    assert {m["name"]: m["value"] for m in metrics}["TaskDuration"] <= 2
    assert len(shown(chromium)) == FEW
    assert "show all 2000" in chromium.find_element(By.ID, "more").text


def test_it_says_nothing_on_the_console_and_asks_for_nothing(page: Browser) -> None:
    page.get_log("performance")  # type: ignore[no-untyped-call]
    page.refresh()
    page.find_element(By.CSS_SELECTOR, ".open").click()
    page.find_element(By.CSS_SELECTOR, "#table .sort").click()
    assert page.get_log("browser") == []  # type: ignore[no-untyped-call]
    output = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]  # type: ignore[no-untyped-call]
    asked = {m["params"]["request"]["url"] for m in output if m["method"] == "Network.requestWillBeSent"}
    assert asked == {page.current_url}


def test_its_own_policy_forbids_requests_and_scripts_that_are_not_its_own(page: Browser) -> None:
    script = """
      const done = arguments[0], broken = [];
      document.addEventListener("securitypolicyviolation", (event) => broken.push(event.effectiveDirective));
      const strange = document.createElement("script");
      strange.textContent = "window.strange = true";
      document.body.append(strange);
      fetch("data:text/plain,x").catch(() => 0).finally(() => setTimeout(() =>
        done([broken.sort(), window.strange ?? null]), 100));
    """
    assert page.execute_async_script(script) == [["connect-src", "script-src-elem"], None]


def test_without_javascript_it_is_plain_tables(page: Browser) -> None:
    page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    page.refresh()
    assert len(shown(page)) == HOSTS
    assert {style(page, s, "display") for s in (".filters", ".theme", "#more", ".issue p.js")} == {"none"}


# ---------------------------------------------------------------- sorting, filtering


def test_a_click_on_a_header_sorts_up_another_one_down(page: Browser) -> None:
    head = page.find_element(By.CSS_SELECTOR, "#table > thead th:nth-child(1)")
    head.find_element(By.TAG_NAME, "button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert shown(page) == [f"gpu{n:04}" for n in range(FEW)]
    head.find_element(By.TAG_NAME, "button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert shown(page) == [f"gpu{n:04}" for n in range(HOSTS - 1, HOSTS - FEW - 1, -1)]
    other = page.find_element(By.CSS_SELECTOR, "#table > thead th:nth-child(2)")
    other.find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)  # by the keyboard alone
    assert (head.get_attribute("aria-sort"), other.get_attribute("aria-sort")) == ("none", "ascending")
    assert column(page, "state", 1)[0] == "failed"


def test_every_table_sorts_numbers_as_numbers(page: Browser) -> None:
    table = page.find_element(By.CSS_SELECTOR, "section:has(#gpus-title) table")
    cells = table.find_elements(By.CSS_SELECTOR, "tbody td:nth-child(2)")
    for cell, number in zip(cells, ("10", "9", "100"), strict=True):
        page.execute_script("arguments[0].textContent = arguments[1]", cell, number)
    table.find_element(By.CSS_SELECTOR, "th:nth-child(2) button").click()
    assert [cell.text for cell in table.find_elements(By.CSS_SELECTOR, "tbody td:nth-child(2)")] == ["9", "10", "100"]


def test_words_find_names_findings_and_versions_together(page: Browser) -> None:
    find = page.find_element(By.ID, "find")
    find.send_keys("gpu039")
    assert shown(page) == [f"gpu{n:04}" for n in range(390, 400)] and count(page) == "10 of 400"
    find.clear()
    find.send_keys("575.57.08 train-a")
    assert set(shown(page)) <= {f"gpu{n:04}" for n in range(100)} and len(shown(page)) == 3
    find.clear()
    find.send_keys("docker")  # an engine that has no column
    assert 0 < len(shown(page)) < FEW


def test_pools_states_and_reset(page: Browser) -> None:
    Select(page.find_element(By.ID, "pool")).select_by_visible_text("train-b")
    assert count(page) == "100 of 400" and set(column(page, "pool", 2)) == {"train-b"}
    Select(page.find_element(By.ID, "state")).select_by_visible_text("all but ok")
    assert "ok" not in column(page, "state", 1)
    chip = page.find_element(By.CSS_SELECTOR, ".chip.unreachable")
    chip.click()
    assert chip.get_attribute("aria-pressed") == "true"
    assert set(column(page, "state", 1)) == {"unreachable"}
    page.find_element(By.CSS_SELECTOR, "button[type=reset]").click()
    assert count(page) == "400" and chip.get_attribute("aria-pressed") == "false"


def test_a_problem_shows_its_hosts_and_gives_the_rest_back(page: Browser) -> None:
    button = page.find_element(By.CSS_SELECTOR, ".issue .pick")
    label, hosts = button.get_attribute("data-label"), int(re.findall(r"\d+", button.text)[0])
    button.click()
    assert len(shown(page)) == hosts and count(page) == f"{hosts} of 400"
    assert page.find_element(By.ID, "picked").text.startswith(str(label))
    assert page.switch_to.active_element.get_attribute("id") == "hosts"
    page.find_element(By.ID, "unpick").click()
    assert count(page) == "400" and not page.find_element(By.ID, "picked").is_displayed()


def test_a_version_shows_the_hosts_of_its_class(page: Browser) -> None:
    button = page.find_element(By.CSS_SELECTOR, '.versions .pick[data-version="575.57.08 open"]')
    hosts = int(button.find_element(By.TAG_NAME, "b").text.lstrip("×"))
    button.click()
    assert len(shown(page)) == hosts and set(column(page, "driver", 5)) == {"575.57.08 open"}


def test_all_rows_come_when_they_are_asked_for(page: Browser) -> None:
    more = page.find_element(By.CSS_SELECTOR, "#more button")
    assert more.text == "show all 400 (the first 300 are shown)"
    more.click()
    assert len(shown(page)) == HOSTS and not more.is_displayed()


def test_a_name_opens_its_host_and_sorting_keeps_it_below(page: Browser) -> None:
    name = page.find_element(By.CSS_SELECTOR, ".open")
    host = name.text
    name.click()
    assert name.get_attribute("aria-expanded") == "true"
    detail = page.find_element(By.CSS_SELECTOR, ".detail").text
    assert (
        "Findings" in detail and "GPUs and topology" in detail and "0000:19:00.0" in detail and "In the run" in detail
    )
    assert "NUMA 0" in detail and "NV18" in detail
    page.find_element(By.CSS_SELECTOR, "#table > thead th:nth-child(6) button").click()
    above = page.execute_script("return document.querySelector('.detail').previousElementSibling.cells[0].textContent")
    assert above == host
    page.find_element(By.ID, "find").send_keys("no host has this")
    assert not page.find_element(By.CSS_SELECTOR, ".detail").is_displayed()
    page.find_element(By.ID, "find").clear()
    page.find_element(By.ID, "find").send_keys(host)
    page.find_element(By.CSS_SELECTOR, ".detail").is_displayed()
    page.execute_script("document.querySelector('.open[aria-expanded=true]').click()")
    assert page.find_elements(By.CSS_SELECTOR, ".detail") == []


# ---------------------------------------------------------------- people


def test_the_keyboard_reaches_everything(page: Browser) -> None:
    press(page, Keys.TAB)
    assert page.switch_to.active_element.text == "to the hosts"
    press(page, Keys.ENTER)
    press(page, "/")
    assert page.switch_to.active_element.get_attribute("id") == "find"
    press(page, "gpu0001")
    assert shown(page) == ["gpu0001"]
    press(page, Keys.ESCAPE)
    assert len(shown(page)) == FEW
    script = (
        "return [...document.querySelectorAll('button, summary, input, select')].filter(e => e.tabIndex < 0).length"
    )
    assert page.execute_script(script) == 0
    clicks = "return document.querySelectorAll('[onclick], div[data-state], span[data-issue]').length"
    assert page.execute_script(clicks) == 0


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_nothing_that_keeps_people_out(page: Browser, colours: str) -> None:
    """WCAG 2.1 A and AA, contrast included, with hosts and problems opened.

    What scrolls, its shadow, and a bar behind a number, axe cannot judge: laid open, and in the bar's colour as a
    whole, it can.
    """
    laid_open = """
      .scroll, .hosts { overflow: visible !important; max-height: none !important; background: none !important }
      #table thead th { position: static !important }
      .meter { background: color-mix(in srgb, var(--running) 16%, var(--card)) !important }
    """
    media = {"features": [{"name": "prefers-color-scheme", "value": colours}]}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    page.execute_script("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.execute_script("[...document.querySelectorAll('.open')].slice(0, 3).forEach(b => b.click())")
    page.execute_script(
        "document.head.append(Object.assign(document.createElement('style'), arguments[0]))", {"textContent": laid_open}
    )
    page.execute_script("[...document.querySelectorAll('#table > tbody > tr')].slice(40).forEach(r => r.remove())")
    page.execute_script("document.querySelector('meta[http-equiv]').remove()")
    page.execute_script((files("selenium_axe_python") / "axe-core/axe.min.js").read_text())
    script = "const [rules, done] = arguments; axe.run({runOnly: rules}).then(done, (error) => done(String(error)))"
    found: dict[str, Any] = page.execute_async_script(script, RULES)
    reported = [(v["id"], v["nodes"][0]["html"][:200], v["nodes"][0]["failureSummary"]) for v in found["violations"]]
    assert reported == []
    assert "color-contrast" in {rule["id"] for rule in found["passes"]}
    assert [(rule["id"], node["html"][:120]) for rule in found["incomplete"] for node in rule["nodes"]] == []


def test_colours_are_those_of_the_system_until_somebody_chooses(page: Browser) -> None:
    def background(system: str) -> str:
        media = {"features": [{"name": "prefers-color-scheme", "value": system}]}
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        return style(page, "body", "backgroundColor")

    light, dark = background("light"), background("dark")
    assert light != dark
    page.find_element(By.CSS_SELECTOR, '[data-theme-to="dark"]').click()
    assert background("light") == dark
    page.refresh()
    assert background("light") == dark
    page.find_element(By.CSS_SELECTOR, '[data-theme-to="light"]').click()
    assert background("dark") == light
    page.find_element(By.CSS_SELECTOR, '[data-theme-to="auto"]').click()
    assert background("dark") == dark


@pytest.mark.parametrize("width", [360, 800, 1400, 2600])
def test_no_window_is_too_narrow(page: Browser, width: int) -> None:
    """Tables scroll within their frames, the page does not."""
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        assert page.execute_script("return document.documentElement.scrollWidth") <= width
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_on_paper_there_are_no_controls_and_nothing_is_cut_off(page: Browser) -> None:
    page.execute_script("document.documentElement.dataset.theme = 'dark'")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert {style(page, s, "display") for s in (".filters", ".theme", ".skip", "#more")} == {"none"}
    assert style(page, ".hosts", "overflowY") == "visible" and style(page, ".hosts", "maxHeight") == "none"
    assert style(page, "body", "backgroundColor") == "rgb(255, 255, 255)"
    printed = page.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True, "printBackground": True})
    assert len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(printed["data"]))) > 5


def test_an_open_card_has_no_hole_where_its_headline_was(page: Browser) -> None:
    for width in (1400, 390):
        metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        heights = page.execute_script(
            "return [...document.querySelectorAll('.issue[open] > summary')].map(s => s.offsetHeight)"
        )
        assert heights and max(heights) <= 60
    first = page.execute_script("return document.querySelector('section:has(#pools-title) th:nth-child(3)').innerText")
    assert first.startswith("healthy")
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_on_a_phone_each_host_has_its_state_and_what_happened_without_scrolling(page: Browser) -> None:
    metrics = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    page.execute_script("document.querySelector('#table .open').click()")
    cells = page.execute_script(
        "const row = document.querySelector('#table > tbody > tr[data-n]');"
        "const right = row.closest('section').getBoundingClientRect().right;"
        "return [...row.cells].filter(c => c.offsetWidth)"
        ".map(c => [c.offsetWidth, c.getBoundingClientRect().right <= right])"
    )
    assert [inside for _, inside in cells] == [True, True, True] and cells[2][0] > 130, cells
    assert page.execute_script("return document.documentElement.scrollWidth") == 390
    assert page.execute_script("return document.querySelector('.detail td').colSpan") == 3
    # a table that goes on has a shadow there, and what stands in a cell stands on its bar
    assert style(page, ".scroll", "backgroundAttachment") == "local, local, scroll, scroll"
    gap = page.execute_script(
        "const cell = document.querySelector('td.meter'), seen = getComputedStyle(cell);"
        "return [parseFloat(seen.paddingRight), parseFloat(seen.backgroundSize.match(/- ([0-9.]+)px/)[1])]"
    )
    assert gap[1] < gap[0], gap
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
