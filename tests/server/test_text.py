"""Text and hybrid search in the API and in a real browser."""

import re

import pytest
from fastapi.testclient import TestClient
from playwright.sync_api import expect

from anchorfold import AnchorFold, Index
from anchorfold.server.app import create_app
from anchorfold.server.service import IndexService
from tests.number_reader import NumberReader
from tests.server.test_browser import until
from tests.text_pages import write_text_pdf

QUERY = "night work supplement"


@pytest.fixture(scope="module")
def client(service):
    return TestClient(create_app(service), base_url="http://localhost")


def search(client, **params):
    return client.get("/api/search", params={"q": QUERY, "top_k": 3, **params}).json()["results"]


class TestApi:
    def test_the_modes_of_an_index(self, client):
        info = client.get("/api/info").json()
        assert set(info["modes"]) == {"visual", "hybrid", "text"}
        assert info["text_bytes"] > 0

    def test_hits_have_scores_of_both_modes(self, client):
        for mode in ("text", "hybrid"):
            best = search(client, mode=mode)[0]
            assert (best["document"], best["page"]) == ("handbook.pdf", 1)
            assert best["text"] > 0
            assert (best["visual"] is None) == (mode == "text")
            shown = [best["snippet"][first:last] for first, last in best["matches"]]
            assert {"Night", "work", "supplement"} <= set(shown)
        best = search(client, mode="visual")[0]
        assert best["text"] is None
        assert (best["visual"], best["snippet"], best["matches"]) == (best["score"], "", [])
        assert client.get("/api/search", params={"q": QUERY, "mode": "semantic"}).status_code == 422

    def test_words_have_boxes_on_the_page(self, client):
        best = search(client, mode="text")[0]
        boxes = client.get(f"/api/pages/{best['id']}/words", params={"q": QUERY}).json()["boxes"]
        assert len(boxes) >= 3
        for left, top, right, bottom in boxes:
            assert 0 <= left < right <= 1
            assert 0.05 < top < bottom < 0.6  # the text is in the upper half
            assert right - left < 0.2
        assert client.get(f"/api/pages/{best['id']}/words", params={"q": "zzz"}).json() == {"boxes": []}

    def test_text_mode_without_text_is_an_error(self, tmp_path):
        write_text_pdf(tmp_path / "docs/a.pdf", [(1, "words")])
        index = Index.create(tmp_path / "my.index", NumberReader(), AnchorFold(ratio=0.5), text=False)
        index.add(tmp_path / "docs")
        client = TestClient(create_app(IndexService(index)), base_url="http://localhost")
        answer = client.get("/api/search", params={"q": "words 1", "mode": "text"})
        assert answer.status_code == 409
        assert answer.json()["detail"].startswith("the index stores no text")
        (hit,) = client.get("/api/search", params={"q": "words 1"}).json()["results"]
        assert client.get(f"/api/pages/{hit['id']}/words", params={"q": "words 1"}).json() == {"boxes": []}


class TestPage:
    def blue(self, page):
        """How many pixels of the canvas are blue, as the frames round words are."""
        return page.evaluate(
            """() => { const c = document.querySelector('#panels canvas');
            const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
            let n = 0; for (let i = 0; i < d.length; i += 4)
              n += d[i + 3] > 150 && d[i + 2] > 150 && d[i] < 90; return n; }"""
        )

    def test_mode_is_remembered_and_matches_are_marked(self, page):
        page.fill("#query", QUERY)
        expect(page.locator(".hit")).to_have_count(11)
        page.locator("#mode label", has_text="Text").click()
        expect(page.locator(".hit").first.locator("mark").first).to_be_visible()
        words = page.locator(".hit").first.locator("mark").all_text_contents()
        assert {"Night", "work", "supplement"} <= set(words)
        page.reload()
        expect(page.locator(".hit").first.locator("mark").first).to_be_visible()
        assert page.locator("#mode input:checked").input_value() == "text"
        page.locator(".hit").first.click()
        until(page, "document.querySelectorAll('#words button').length === 4")
        deadline = 100
        while not self.blue(page) and deadline:
            page.wait_for_timeout(100)
            deadline -= 1
        assert self.blue(page) > 100
        page.keyboard.press("Escape")
        page.locator("#mode label", has_text="Visual").click()
        expect(page.locator(".hit")).to_have_count(11)
        expect(page.locator(".hit mark")).to_have_count(0)

    @pytest.mark.parametrize(("mode", "label"), [("visual", "visual"), ("text", "text"), ("hybrid", "fused")])
    def test_a_score_has_the_same_label_and_number_on_the_card_and_in_the_viewer(self, page, mode, label):
        page.fill("#query", QUERY)
        page.locator(f"#mode input[value={mode}]").check()
        score = page.locator(".hit .where span:last-child").first
        expect(score).to_have_text(re.compile(rf"^{label} score \d+\.\d{{3}}$"))
        page.locator(".hit").first.click()
        status = page.locator("#viewer-status")
        expect(status).to_have_text(re.compile(rf"^{score.text_content()}[,.]", re.IGNORECASE))
        (visual,) = re.findall(r"visual score (\d+\.\d{3})", status.text_content(), re.IGNORECASE)
        expect(page.get_by_role("radio", name=f"all words {visual}").first).to_be_visible()

    def test_mode_by_keyboard(self, page):
        page.fill("#query", QUERY)
        page.locator("#mode input:checked").focus()
        before = page.locator("#mode input:checked").input_value()
        page.keyboard.press("ArrowRight")
        assert page.locator("#mode input:checked").input_value() != before
