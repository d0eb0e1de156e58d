"""The URL of the search page contains mode, filters and page; reloading, back and forward restore them."""

import re

from playwright.sync_api import expect

QUERY = "night work supplement"


def search(page, query=QUERY, hits=11):
    page.fill("#query", query)
    expect(page.locator(".hit")).to_have_count(hits)


def test_mode(page, server):
    search(page)
    assert "mode" not in page.url  # the default
    page.get_by_role("radio", name="Text").check(force=True)
    expect(page.locator(".hit .score").first).to_contain_text("text score")
    assert page.url == f"{server}?q=night+work+supplement&mode=text"
    page.reload()
    expect(page.locator(".hit .score").first).to_contain_text("text score")
    page.go_back()
    expect(page.locator(".hit .score").first).to_contain_text("fused score")
    expect(page.get_by_role("radio", name="Hybrid")).to_be_checked()
    page.go_forward()
    expect(page.locator(".hit .score").first).to_contain_text("text score")


def test_a_saved_mode_does_not_change_links_of_others(page, server):
    page.get_by_role("radio", name="Visual").check(force=True)
    page.goto(f"{server}?q=dogs")
    expect(page.locator(".hit .score").first).to_contain_text("fused score")
    page.goto(server)
    expect(page.get_by_role("radio", name="Visual")).to_be_checked()
    page.fill("#query", "dogs")
    expect(page.locator(".hit .score").first).to_contain_text("visual score")
    assert page.url == f"{server}?q=dogs&mode=visual"


def test_filters_and_documents(page):
    search(page)
    page.get_by_label("One result per document").check()
    expect(page.locator(".hit")).to_have_count(2)
    page.locator("#filters summary").click()
    page.get_by_label(re.compile("people")).check()
    expect(page.locator(".hit")).to_have_count(1)
    page.reload()
    expect(page.locator(".hit")).to_have_count(1)
    expect(page.get_by_label(re.compile("people"))).to_be_checked()
    page.go_back()
    expect(page.locator(".hit")).to_have_count(2)
    expect(page.get_by_label(re.compile("people"))).not_to_be_checked()
    page.go_back()
    expect(page.locator(".hit")).to_have_count(11)
    expect(page.get_by_label("One result per document")).not_to_be_checked()


def test_typing_is_one_step_of_the_history(page):
    search(page, "dogs")
    for query in ("night", "night work"):
        page.fill("#query", query)
        expect(page).to_have_title(f"{query} - AnchorFold")
        expect(page).to_have_url(re.compile(f"{query.replace(' ', '.')}$"))
    page.keyboard.press("Enter")
    page.fill("#query", "sick leave")
    expect(page).to_have_url(re.compile("sick.leave"))
    page.go_back()
    expect(page.locator("#query")).to_have_value("night work")
    page.go_back()
    expect(page.locator("#empty")).to_be_visible()


def test_page_and_similar_pages(page):
    search(page)
    page.locator(".hit").nth(2).click()
    expect(page.locator("#viewer-title")).to_contain_text(", page ")
    title = page.locator("#viewer-title").inner_text()
    page.reload()
    expect(page.locator("#viewer-title")).to_have_text(title)
    page.locator("#similar").click()
    expect(page.locator("#status")).to_have_text(f"10 pages similar to {title}")
    page.reload()
    expect(page.locator("#status")).to_have_text(f"10 pages similar to {title}")
    page.fill("#query", "dogs")
    expect(page.locator("#status")).to_contain_text("Top")
    page.go_back()
    expect(page.locator("#status")).to_have_text(f"10 pages similar to {title}")


def test_unknown_similar_page(page, server):
    page.expected_problems = 4
    page.goto(f"{server}?like=99-99")
    expect(page.locator("#status")).to_have_text("The page does not exist.")


def test_a_query_typed_before_the_page_is_ready_is_searched(page, server):
    held = []
    page.route("**/api/info", lambda route: held.append(route))  # noqa: PLW0108 (Playwright cannot wrap built-ins)
    page.goto(server)
    page.keyboard.type("dogs")
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_have_text("Searching ...")
    for route in held:
        route.continue_()
    expect(page.locator(".hit")).to_have_count(11)
    assert page.url == f"{server}?q=dogs"
