"""Pages in a real browser, from the disk and without a network: sorted, hovered, toggled, printed, on a phone."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from experiments.report import compose

pytestmark = pytest.mark.process

ROOT = Path(__file__).parent.parent.parent.parent
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
PHONE = {"width": 375, "height": 720}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page over real records of five kinds."""
    out = tmp_path_factory.mktemp("page")
    folders = ("experiments/collaborative/results", "experiments/toy/results", "benchmarks/results")
    files = sorted((ROOT / "experiments/cifar10/results").glob("fast-*-0.[35]-seed[01].json"))
    task = ROOT / "experiments/rates/results/digits.json"
    found = compose.compose([*files, *(ROOT / name for name in folders), task])
    compose.write(out, found)
    return (out / "index.html").as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path, "chromium: not found; install the system's chromium package (apt install chromium)"
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """The page, whose every request but for itself and every complaint fails the test."""
    context = browser.new_context(color_scheme="light", offline=True, viewport={"width": 1100, "height": 900})
    opened = context.new_page()
    wrong: list[str] = []
    opened.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on(
        "request", lambda request: None if request.url.startswith(("data:", address)) else wrong.append(request.url)
    )
    opened.goto(address)
    yield opened
    context.close()
    assert wrong == []


FIRST = "section:has(h2:text-is('On the test set')) table >> nth=0"


def column(page: Page, heading: str) -> tuple[int, list[str]]:
    table = page.locator(FIRST)
    headings = [text.strip() for text in table.locator("thead th").all_inner_texts()]
    place = headings.index(heading)
    return place, table.locator(f"tbody tr > :nth-child({place + 1})").all_inner_texts()


def test_table_is_sorted_by_click_and_by_key_and_back(page: Page):
    place, printed = column(page, "NLL")
    head = page.locator(FIRST).locator("thead th").nth(place)
    values = sorted(printed, key=lambda text: float(text.split()[0]))
    assert printed != values
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert column(page, "NLL")[1] == values  # with their ±
    assert all("±" in text for text in values)
    head.locator("button").press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert column(page, "NLL")[1] == values[::-1]
    page.locator(FIRST).locator("thead th button").first.press("Space")
    assert head.get_attribute("aria-sort") is None
    labels = column(page, "method")[1]
    assert labels == sorted(labels, key=str.lower)
    for _ in range(2):
        page.locator(FIRST).locator("thead th button").first.click()
    assert column(page, "NLL")[1] == printed


def test_missing_cells_stay_last_in_both_sort_orders(page: Page):
    table = page.locator("section:has(h2:text-is('Beside the paper')) table >> nth=0")
    head = table.locator("thead th").nth(4)
    for way in ("ascending", "descending"):
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == way
        assert table.locator("tbody tr > :nth-child(5)").all_inner_texts()[-1] == "–"


def test_tooltip_shows_values_under_the_pointer_and_by_arrow_keys(page: Page):
    figure = page.locator("section:has(h2:text-is('Rates over training')) figure svg").first
    figure.scroll_into_view_if_needed()
    tip = page.locator("#tip")
    assert tip.is_hidden()
    line = figure.locator("polyline").last
    x, y = map(float, (line.get_attribute("points") or "").split()[-1].split(","))
    box = figure.bounding_box()
    assert box is not None
    scale = box["width"] / float((figure.get_attribute("viewBox") or "").split()[2])
    page.mouse.move(box["x"] + x * scale, box["y"] + y * scale)
    value = (line.get_attribute("data-values") or "").split()[-1].split("|")
    assert tip.inner_text() == f"{line.get_attribute('data-label')}: {value[1]} at {value[0]}"
    assert line.evaluate("line => line.classList.contains('hot')")
    page.mouse.move(2, 2)
    assert tip.is_hidden()
    figure.focus()
    page.keyboard.press("ArrowRight")
    first = tip.inner_text()
    page.keyboard.press("ArrowRight")
    assert first
    assert tip.inner_text() != first
    page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_tooltip_shows_the_value_of_a_bar(page: Page):
    bar = page.locator("section:has(h2:text-is('Where the learned rates ended')) rect").first
    bar.scroll_into_view_if_needed()
    bar.hover(force=True)
    assert "% in 0." in page.locator("#tip").inner_text()


def test_legend_hides_a_method_in_all_figures_of_its_section(page: Page):
    section = page.locator("section:has(h2:text-is('Does uncertainty point at errors?'))").first
    button = section.locator(".legend button").first
    name = section.locator(".legend li").first.get_attribute("data-series")
    lines = section.locator(f'svg polyline[data-series="{name}"]')
    assert lines.count() == 2
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert not any(line.is_visible() for line in lines.all())
    button.click()
    assert all(line.is_visible() for line in lines.all())


def test_dark_mode_follows_the_system_until_the_reader_chooses(page: Page, browser: Browser, address: str):
    def ground(of: Page) -> str:
        return of.evaluate("getComputedStyle(document.body).backgroundColor")

    light = ground(page)
    page.emulate_media(color_scheme="dark")
    dark = ground(page)
    assert light != dark
    page.get_by_role("button", name="Show the page light").click()
    assert ground(page) == light
    page.reload()
    assert ground(page) == light
    page.get_by_role("button", name="Show the page dark").click()
    page.emulate_media(color_scheme="light")
    assert ground(page) == dark
    ink = page.evaluate("getComputedStyle(document.body).color")
    page.emulate_media(media="print")  # paper is light, whatever the screen is
    assert ground(page) == "rgba(0, 0, 0, 0)"
    assert page.evaluate("getComputedStyle(document.body).color") != ink


def test_phone_scrolls_tables_in_their_box_and_never_the_page(page: Page):
    page.set_viewport_size(PHONE)  # pyright: ignore[reportArgumentType]
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    boxes = page.locator(".scroll")
    assert boxes.evaluate_all("boxes => boxes.some(box => box.scrollWidth > box.clientWidth)")
    figure = page.locator("section:has(h2:text-is('Rates over training')) figure svg").first
    figure.scroll_into_view_if_needed()
    figure.focus()
    page.keyboard.press("ArrowLeft")  # the tip of the last value lies at the right edge
    assert page.locator("#tip").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_contents_lead_to_their_sections(page: Page):
    page.get_by_role("link", name="Under corruption").click()
    assert (
        page.locator("section:has(h2:text-is('Under corruption'))").evaluate("s => s.getBoundingClientRect().top") < 200
    )


def test_page_without_script_shows_everything(browser: Browser, address: str):
    context = browser.new_context(java_script_enabled=False, offline=True)
    opened = context.new_page()
    opened.goto(address)
    assert opened.locator("table").first.is_visible()
    assert opened.locator("svg circle title").count() > 100
    assert opened.locator("button").count() == 0
    context.close()
