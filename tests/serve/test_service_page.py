"""The page in a real browser: typing, keyboard, dark mode, a phone, and titles with markup."""

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect, sync_playwright

from lbdrop.recommend import Recommender
from lbdrop.serve import create_app

pytestmark = pytest.mark.process
HARM = '<script>document.title="harm"</script><img src=x onerror="document.title=\'harm\'"> lantern'
expect.set_options(timeout=20_000)
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


class Served:
    """The app behind uvicorn on a free port of this machine."""

    def __init__(self, app: Any):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}/"
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]})
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join()
        self.socket.close()


@pytest.fixture(scope="module")
def named(fitted: Recommender, titles: dict[str, str]) -> dict[str, str]:
    return titles | {fitted.items_[1]: HARM}


@pytest.fixture(scope="module")
def served(fitted: Recommender, named: dict[str, str]) -> Iterator[Served]:
    running = Served(create_app(fitted, named))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path is not None, "want Chromium on the PATH, as chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Browser, served: Served) -> Iterator[Callable[..., Page]]:
    """Opens the page; at the end nothing may have been complained about, nor loaded from anywhere else."""
    complaints, asked, contexts = [], [], []

    def visit(**options: Any) -> Page:
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda each: complaints.append(each.text) if each.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda each: asked.append(each.url))
        page.goto(served.url)
        expect(page.locator("#popular button")).to_have_count(4)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in asked if not url.startswith((served.url, "data:"))] == []


def add(page: Page, words: str) -> str:
    """Types, takes the first that is found, by keyboard alone; its title."""
    page.keyboard.insert_text(words)  # at once: in the pauses of a slow typist there would be a list for each part
    first = page.get_by_role("option").first
    expect(first).to_be_visible()
    title = first.locator("span").first.inner_text()
    page.keyboard.press("ArrowDown")
    expect(first).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("combobox")).to_have_attribute("aria-activedescendant", "option-0")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name=f"Remove {title}")).to_be_visible()
    return title


def test_typed_titles_lead_to_recommendations_with_uncertainty_and_reasons(
    opened: Callable[..., Page], fitted: Recommender, named: dict[str, str]
) -> None:
    page = opened()
    expect(page.get_by_role("combobox")).to_be_focused()
    mine = [add(page, "birch tele"), add(page, "alder bread")]
    expect(page.get_by_role("status")).to_have_text("10 recommendations from 2 titles.")
    cards = page.locator("#results > li")
    expect(cards).to_have_count(10)
    numbers = {title: item for item, title in named.items()}
    history = pl.DataFrame({"user_id": ["me", "me"], "item_id": [numbers[title] for title in mine]})
    own = fitted.recommend(history, k=10)
    shown = [card.locator(".title").inner_text() for card in cards.all()]
    assert shown == [named[item] for item in own["item_id"]]
    for card in cards.all():
        low, dot, high = (card.locator(part).bounding_box() for part in (".spread", ".dot", ".spread"))
        assert low is not None
        assert dot is not None
        assert high is not None
        assert low["x"] < dot["x"] + dot["width"] / 2 < high["x"] + high["width"]
        assert "%" in card.locator(".number").inner_text()
        reasons = card.locator(".reasons b").all_inner_texts()
        assert set(reasons) <= set(mine)
    assert any(card.locator(".reasons b").count() for card in cards.all())


def test_titles_can_be_removed_added_from_results_and_chosen_with_a_click(opened: Callable[..., Page]) -> None:
    page = opened()
    page.locator("#popular button").first.click()
    expect(page.locator("#results > li")).to_have_count(10)
    like = page.locator("#results .title").first.inner_text()
    page.get_by_role("button", name=f"I like {like} too").click()
    expect(page.locator("#liked li")).to_have_count(2)
    expect(page.locator("#results .title").filter(has_text=like)).to_have_count(0)
    page.get_by_role("combobox").fill("cedar")
    page.get_by_role("option").nth(1).click()
    expect(page.locator("#liked li")).to_have_count(3)
    page.get_by_role("button", name=f"Remove {like}").click()
    expect(page.locator("#liked li")).to_have_count(2)
    page.keyboard.press("Backspace")
    page.keyboard.press("Backspace")
    expect(page.locator("#liked li")).to_have_count(0)
    expect(page.locator("#found")).to_be_hidden()


def test_enter_right_after_typing_takes_the_first_match(opened: Callable[..., Page]) -> None:
    page = opened()
    page.keyboard.type("birch tele")
    page.keyboard.press("Enter")
    expect(page.locator("#liked li")).to_have_text(["Birch telescope×"])


def test_enter_does_not_take_a_match_of_an_earlier_text(opened: Callable[..., Page]) -> None:
    page = opened()
    page.keyboard.insert_text("birch")
    before = page.get_by_role("option").first
    expect(before).to_be_visible()
    assert "telescope" not in before.inner_text()
    page.evaluate("""() => {
        const field = document.querySelector("#query");
        field.value = "birch tele";
        field.dispatchEvent(new Event("input"));
        field.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
    }""")
    expect(page.locator("#liked li")).to_have_text(["Birch telescope×"])


def test_unknown_title_gets_a_message_and_escape_closes_the_list(opened: Callable[..., Page]) -> None:
    page = opened()
    page.keyboard.type("zeppelin")
    expect(page.get_by_role("status")).to_have_text("No title has “zeppelin”. Try fewer letters, or another word.")
    page.keyboard.press("Enter")
    expect(page.locator("#liked li")).to_have_count(0)
    page.get_by_role("combobox").fill("alder")
    expect(page.get_by_role("listbox")).to_be_visible()
    expect(page.get_by_role("combobox")).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("Escape")
    expect(page.get_by_role("listbox")).to_be_hidden()
    expect(page.get_by_role("combobox")).to_have_attribute("aria-expanded", "false")


def test_title_with_markup_is_shown_as_text(opened: Callable[..., Page]) -> None:
    page = opened()
    page.keyboard.type("script")
    expect(page.get_by_role("option")).to_have_count(1)
    assert page.get_by_role("option").locator("span").first.inner_text() == HARM
    page.keyboard.press("Enter")
    expect(page.locator("#results > li")).to_have_count(10)
    assert page.locator("#liked li").text_content() == HARM + "×"
    assert page.title() == "Recommendations"
    assert page.locator("main script, main img").count() == 0


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_colours_follow_the_readers_setting(opened: Callable[..., Page], scheme: Any, dark: bool) -> None:
    page = opened(color_scheme=scheme)
    colours = page.evaluate(
        "[document.body, document.querySelector('#query')].flatMap(e => [getComputedStyle(e).color, getComputedStyle(e).backgroundColor])"
    )
    ink, paper, text, field = (sum(map(int, each[4:-1].split(","))) for each in colours)
    assert (ink > paper) == (text > field) == dark
    assert min(abs(ink - paper), abs(text - field)) > 400  # of 765: readable


def test_phone_shows_the_page_without_horizontal_scrolling(opened: Callable[..., Page]) -> None:
    page = opened(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    add(page, "script")
    add(page, "birch")
    # Not the count of results: those of the first title alone are ten as well, and are replaced while one looks at them.
    expect(page.get_by_role("status")).to_have_text("10 recommendations from 2 titles.")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    box = page.get_by_role("combobox").bounding_box()
    assert box is not None
    assert box["height"] >= 44  # a finger's width
    track = page.locator(".track").first.bounding_box()
    assert track is not None
    assert track["width"] > 200


def test_page_has_a_strict_content_security_policy(client: Any) -> None:
    for path, kind in (("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")):
        response = client.get(path)
        assert response.headers["Content-Type"].startswith(kind)
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert "http://" not in response.text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in response.text


def test_page_notices_a_stopped_service(browser: Browser, fitted: Recommender) -> None:
    running = Served(create_app(fitted))
    page = browser.new_page()
    page.goto(running.url)
    expect(page.locator("#popular button")).to_have_count(4)
    running.stop()
    page.locator("#popular button").first.click()
    expect(page.get_by_role("status")).to_have_text("The service does not answer. Is it still running?")
    page.close()
