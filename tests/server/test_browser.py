"""The search page in a real browser: queries, viewer, keyboard, history, errors; no console errors."""

import re
import time

from playwright.sync_api import expect

QUERY = "night work supplement"


def until(page, truth):
    """Wait for an expression; Playwright's own way needs eval, which the page's security policy forbids."""
    deadline = time.monotonic() + 15
    while not page.evaluate(truth):
        assert time.monotonic() < deadline, truth
        page.wait_for_timeout(50)


def lit(page):
    """How many pixels of the canvas are painted."""
    return page.evaluate(
        """() => { const c = document.querySelector('#panels canvas');
        const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n; }"""
    )


def open_first(page):
    page.fill("#query", QUERY)
    expect(page.locator(".hit")).to_have_count(11)
    page.locator(".hit").first.click()
    expect(page.locator("#words button")).to_have_count(4)
    until(page, "document.querySelector('#panels img').complete")


def test_results_appear_while_typing_and_the_url_contains_the_query(page, server):
    expect(page.locator("#empty")).to_be_visible()
    expect(page.locator("#info")).to_contain_text("Compression ratio ")
    page.locator("#query").press_sequentially(QUERY, delay=15)
    expect(page.locator(".hit")).to_have_count(11)
    expect(page.locator(".hit").first).to_contain_text("handbook.pdf")
    expect(page.locator(".hit").first).to_contain_text("page 1")
    assert page.url == f"{server}?q=night+work+supplement"
    until(page, "document.querySelector('.hit img').naturalWidth > 0")


def test_viewer_shows_a_heatmap_per_word(page):
    open_first(page)
    expect(page.locator("#viewer-title")).to_have_text("handbook.pdf, page 1")
    expect(page.locator("#viewer-status")).to_contain_text("compression ratio 5.0")
    until(page, "document.querySelector('#panels canvas').clientWidth > 100")
    everything = lit(page)
    assert everything > 0
    page.get_by_role("radio", name=re.compile("^night")).click()
    expect(page.get_by_role("radio", name=re.compile("^night"))).to_have_attribute("aria-checked", "true")
    assert 0 < lit(page) < everything


def test_a_shared_url_opens_the_same_page(page, browser):
    open_first(page)
    other = browser.new_page()
    other.goto(page.url)
    expect(other.locator("#viewer-title")).to_have_text("handbook.pdf, page 1")
    other.close()


def test_back_and_forward(page):
    open_first(page)
    page.go_back()
    expect(page.locator("#viewer")).not_to_be_visible()
    expect(page.locator(".hit")).to_have_count(11)
    page.go_forward()
    expect(page.locator("#viewer-title")).to_have_text("handbook.pdf, page 1")


def test_with_the_keyboard_only(page):
    page.keyboard.press("Tab")
    page.locator("body").press("/")
    expect(page.locator("#query")).to_be_focused()
    page.keyboard.type(QUERY)
    page.keyboard.press("Enter")
    expect(page.locator(".hit")).to_have_count(11)
    page.keyboard.press("ArrowDown")
    expect(page.locator(".hit").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#words button")).to_have_count(4)
    page.locator("#words").get_by_role("radio").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("radio", name=re.compile("^night"))).to_have_attribute("aria-checked", "true")
    page.locator("#close").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#viewer-title")).not_to_have_text("handbook.pdf, page 1")
    page.keyboard.press("Escape")
    expect(page.locator("#viewer")).not_to_be_visible()
    expect(page.locator(".hit").nth(1)).to_be_focused()


def test_light_and_dark(page):
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.locator("#theme").click()
    expect(page.locator("#theme")).to_have_attribute("aria-pressed", "true")
    dark = page.evaluate(background)
    assert light != dark
    page.reload()
    assert page.evaluate(background) == dark
    page.locator("#theme").click()
    assert page.evaluate(background) == light


def test_full_size_and_back(page):
    open_first(page)
    width = "document.querySelector('#panels img').clientWidth"
    small = page.evaluate(width)
    page.locator("#zoom").click()
    until(page, f"{width} > {small * 1.3}")
    until(page, "document.querySelector('#panels canvas').clientWidth > 600")
    assert lit(page) > 0
    page.keyboard.press("z")
    until(page, f"{width} === {small}")


def test_methods_side_by_side(page):
    open_first(page)
    page.locator("#compare").click()
    expect(page.locator("figcaption")).to_have_count(3)
    expect(page.locator("figcaption").first).to_contain_text(" %")
    page.get_by_label("SAP 0.05").click()
    expect(page.locator("figcaption")).to_have_count(3)  # a fourth is not taken
    page.locator("#compare").click()
    expect(page.locator("figcaption")).to_have_count(0)


def test_usable_on_a_phone(browser, server):
    tab = browser.new_page(viewport={"width": 360, "height": 720})
    tab.goto(f"{server}?q=dogs")
    expect(tab.locator(".hit").first).to_be_visible()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    tab.locator(".hit").first.click()
    expect(tab.locator("#words button").first).to_be_visible()
    tab.close()


def test_every_control_has_a_name(page):
    open_first(page)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('button, input')].filter(e => !(e.innerText
        || e.getAttribute('aria-label') || e.labels?.length || e.querySelector('.sr'))).map(e => e.outerHTML)"""
    )
    assert nameless == []


def test_a_failing_server_shows_a_message(page):
    page.expected_problems = 10
    page.route("**/api/search*", lambda route: route.abort())
    page.fill("#query", QUERY)
    expect(page.locator("#status")).to_contain_text("Cannot reach the server")
    page.unroute("**/api/search*")
    page.route("**/api/search*", lambda route: route.fulfill(status=503, json={"detail": "busy"}))
    page.fill("#query", "other words")
    expect(page.locator("#status")).to_contain_text("busy")
    page.unroute("**/api/search*")
    page.fill("#query", QUERY)
    expect(page.locator(".hit")).to_have_count(11)
    page.route(
        "**/api/pages/*/evidence*", lambda route: route.fulfill(status=404, json={"detail": "The page does not exist."})
    )
    page.locator(".hit").first.click()
    expect(page.locator("#viewer-status")).to_contain_text("does not exist")


def test_no_matches_and_empty_query(page):
    page.fill("#query", "???")
    expect(page.locator("#status")).to_contain_text("No results")
    page.fill("#query", "")
    expect(page.locator("#empty")).to_be_visible()


def test_results_of_invented_words_are_no_strong_match(page):
    page.fill("#query", "xqzv blorf wibble")
    expect(page.locator("#status")).to_have_text("No strong match. Closest pages: 11")
    expect(page.locator(".hit")).to_have_count(11)
    page.fill("#query", QUERY)
    expect(page.locator("#status")).to_have_text("Top 11 results")


def test_neighboring_pages_original_and_similar_pages(page):
    open_first(page)
    title = page.locator("#viewer-title").inner_text()
    number = int(title.rpartition(" ")[2])
    expect(page.locator("#original")).to_have_attribute("href", re.compile(rf"/original#page={number}$"))
    step = "#page-after" if number == 1 else "#page-before"
    expect(page.locator(step)).to_be_enabled()
    page.locator(step).click()
    neighbor = 2 if number == 1 else number - 1
    expect(page.locator("#viewer-title")).to_have_text(title.replace(f"page {number}", f"page {neighbor}"))
    page.locator("#similar").click()
    expect(page.locator("#viewer")).not_to_be_visible()
    expect(page.locator("#status")).to_contain_text(f"pages similar to handbook.pdf, page {neighbor}")
    expect(page.locator("#mode")).not_to_be_visible()
    assert "like=" in page.url
    page.locator(".hit").first.click()
    expect(page.locator("#viewer-title")).to_be_visible()
    expect(page.locator("#compare")).to_be_disabled()
    page.go_back()
    page.go_back()
    expect(page.locator("#viewer")).to_be_visible()


def test_one_result_per_document(page):
    page.fill("#query", QUERY)
    expect(page.locator(".hit")).to_have_count(11)
    page.get_by_label("One result per document").check()
    expect(page.locator(".hit")).to_have_count(2)
    page.reload()
    expect(page.locator(".hit")).to_have_count(2)


def test_more_results(page):
    hits = [
        {"id": f"1-{n}", "document": "a.pdf", "page": n, "score": 1.0, "visual": 1.0, "text": None, "snippet": ""}
        for n in range(1, 40)
    ]
    page.route("**/thumbnail", lambda route: route.fulfill(status=200, body=b"", content_type="image/webp"))

    def answer(route):
        count = int(route.request.url.partition("top_k=")[2].partition("&")[0])
        route.fulfill(json={"query": "x", "results": hits[:count], "searched": 1})

    page.route("**/api/search*", answer)
    page.fill("#query", "x")
    expect(page.locator(".hit")).to_have_count(24)
    page.locator("#more").click()
    expect(page.locator(".hit")).to_have_count(39)
    expect(page.locator("#more")).not_to_be_visible()


def test_results_stay_when_the_server_is_gone(page):
    page.expected_problems = 3
    page.fill("#query", QUERY)
    expect(page.locator(".hit")).to_have_count(11)
    page.route("**/api/search*", lambda route: route.abort())
    page.fill("#query", "other words")
    expect(page.locator("#status")).to_contain_text("Cannot reach the server")
    expect(page.locator(".hit")).to_have_count(11)
    page.unroute("**/api/search*")
    page.get_by_role("button", name="Retry").click()
    expect(page.locator("#status")).to_contain_text("No strong match")


def test_an_unknown_page_in_the_url_shows_a_message(page, server):
    page.expected_problems = 2
    page.goto(f"{server}?q=dogs&page=99-99")
    expect(page.locator("#status")).to_contain_text("not in the index")
