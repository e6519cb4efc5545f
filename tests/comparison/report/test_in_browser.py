"""The HTML report in headless Chromium."""

import itertools
import json
import shutil
from dataclasses import replace

import pytest
from example_comparison import broken, hostile, realistic
from large_comparison import large

from ampft.comparison.report.html import html_text

EXAMPLES = (realistic, hostile, broken, large)
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars"),
)
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
DESK = {"width": 1400, "height": 900, "deviceScaleFactor": 1, "mobile": False}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.full,
    pytest.mark.skipif(
        not (shutil.which("chromium") and shutil.which("chromedriver")),
        reason="needs Debian's chromium and chromium-driver",
    ),
    # Selenium leaves the closing of the driver's pipes to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture(scope="module", params=EXAMPLES, ids=lambda make: make.__name__)
def opened(request, browser, tmp_path_factory):
    """Open the page on a phone; return the browser, address, console entries and requests."""
    path = tmp_path_factory.mktemp("page") / "comparison.html"
    path.write_text(html_text(request.param()), encoding="utf-8")
    return visit(browser, path)


def visit(browser, path):
    show(browser, PHONE)
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(path.as_uri())
    # Folded sections are checked, too.
    browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    console = [entry for entry in browser.get_log("browser") if entry["level"] != "DEBUG"]
    return browser, path.as_uri(), console, requested_addresses(browser, path.as_uri())


def show(browser, screen, theme="light", media=""):
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


def requested_addresses(browser, document) -> set[str]:
    """Return the addresses that a document requested, without those of Chromium's first tab."""
    messages = [json.loads(e["message"])["message"] for e in browser.get_log("performance")]
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return {request["request"]["url"] for request in sent if request["documentURL"] == document}


def overflow(browser) -> int:
    return browser.execute_script(
        "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )


def test_the_console_is_silent_and_nothing_leaves_the_file(opened):
    _, address, console, requests = opened
    assert console == []
    assert requests == {address}


def test_nothing_overflows_sideways(opened):
    browser, *_ = opened
    show(browser, PHONE)
    assert browser.execute_script("return innerWidth") == 390
    assert overflow(browser) <= 0
    show(browser, DESK, theme="dark")
    assert overflow(browser) <= 0


def test_the_checks_find_overflow_and_requests(browser, tmp_path):
    path = tmp_path / "bad.html"
    path.write_text(
        '<meta name="viewport" content="width=device-width"><title>bad</title>'
        '<div style="width: 900px">wide</div><img src="missing.png"><script>nope()</script>',
        encoding="utf-8",
    )
    browser, address, console, requests = visit(browser, path)
    assert overflow(browser) > 0
    assert console
    assert requests > {address}


def test_a_heading_of_two_lines_moves_no_row_of_a_matrix(browser, tmp_path):
    comparison = realistic()
    arms = [
        replace(arm, classes=arm.classes[:2], confusion=tuple(row[:2] for row in arm.confusion[:2]))
        for arm in comparison.arms
    ]
    path = tmp_path / "narrow.html"
    page = html_text(replace(comparison, label_names=("a", "b"), arms=tuple(arms)))
    path.write_text(page, encoding="utf-8")
    browser, *_ = visit(browser, path)
    show(browser, DESK)
    headings, tops = browser.execute_script("""
        const found = [...document.querySelectorAll('.matrix')];
        const box = element => element.getBoundingClientRect();
        return [found.map(m => box(m.caption).height), found.map(m => box(m.tBodies[0]).top)]""")
    assert len(headings) == len(arms)
    assert max(headings) > 1.5 * min(headings)
    assert tops == pytest.approx([tops[0]] * len(arms), abs=0.5)


def test_every_chart_has_a_text_alternative(opened):
    browser, *_ = opened
    charts = browser.execute_script("""
        return [...document.querySelectorAll('svg')].filter(s => !s.parentElement.closest('svg'))
            .map(s => [s.getAttribute('role'), s.getAttribute('aria-label') || '',
                       s.getAttribute('aria-hidden') === 'true',
                       s.querySelector('title')?.textContent || ''])""")
    assert len(charts) > 20
    for role, label, is_hidden, title in charts:
        assert is_hidden or (role == "img" and label.strip() and title == label)


def test_the_data_adds_no_scripts_handlers_or_addresses(opened):
    browser, *_ = opened
    counts = browser.execute_script("""
        const all = [...document.querySelectorAll('*')];
        const within = a => a.name == 'href' && a.value.startsWith('#');
        const acts = a => a.name.startsWith('on')
            || ['href', 'src', 'style'].includes(a.name) && !within(a);
        return [document.scripts.length, document.querySelectorAll('link').length,
                document.images.length, document.forms.length,
                all.filter(e => [...e.attributes].some(acts)).length]""")
    assert counts == [0, 0, 0, 0, 0]


def test_labels_of_charts_keep_their_size_on_a_phone(opened):
    browser, *_ = opened
    show(browser, PHONE)
    sizes = browser.execute_script("""
        return [...document.querySelectorAll('svg text')].map(t => {
            const box = t.getBoundingClientRect(); return box.height; }).filter(h => h > 0)""")
    assert sizes
    assert min(sizes) >= 11


def test_labels_at_the_ends_of_lines_do_not_overlap(opened):
    browser, *_ = opened
    boxes = browser.execute_script("""
        return [...document.querySelectorAll('svg.chart')].map(s =>
            [...s.querySelectorAll('text.name')].map(t => {
                const b = t.getBoundingClientRect(); return [b.top, b.bottom]; }))""")
    assert any(boxes)
    for names in boxes:
        tops = sorted(top for top, _ in names)
        assert all(b - a >= 12 for a, b in itertools.pairwise(tops))


def test_scales_are_as_wide_as_the_strips_below(opened):
    browser, *_ = opened
    for screen in (PHONE, DESK):
        show(browser, screen)
        places = browser.execute_script("""
            const ends = e => { const b = e.getBoundingClientRect(); return [b.left, b.right]; };
            return [...document.querySelectorAll('svg.head')].map(head => [
                ends(head), ends(head.closest('table, figure').querySelector('.strip'))])""")
        assert places
        for head, strip in places:
            assert head == pytest.approx(strip, abs=0.5)


def test_light_dark_and_print_themes(opened):
    browser, *_ = opened
    colours = []
    for theme, media in (("light", ""), ("dark", ""), ("dark", "print")):
        show(browser, DESK, theme=theme, media=media)
        colours.append(
            browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        )
    show(browser, PHONE)
    assert len(set(colours)) == 3
    assert colours[2] == "rgb(255, 255, 255)"
