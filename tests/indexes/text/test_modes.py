"""Text and hybrid search of an index."""

import threading

import numpy as np
import pytest

from anchorfold import AnchorFold, Index
from anchorfold.errors import AnchorFoldError
from anchorfold.storage.checking import check
from tests.indexes.text.contents import pages
from tests.number_reader import NumberReader, page_image
from tests.text_pages import write_text_pdf


class TestSearching:
    def test_text_search_needs_no_model(self, index, monkeypatch):
        monkeypatch.setattr(index, "encode_queries", None)
        hits = index.search("revenue of northern regions 0", mode="text")
        assert pages(hits)[0] == ("report.pdf", 2)
        assert set(pages(hits)) == {("report.pdf", 2), ("handbook.pdf", 1)}
        assert hits[0].score == hits[0].text > hits[1].text > 0
        assert hits[0].visual is None
        assert [hits[0].snippet[a:b] for a, b in hits[0].matches] == ["revenue", "northern", "regions"]

    def test_hybrid_hits_have_the_scores_of_both_sides(self, index):
        looks = {(h.document, h.page): h.score for h in index.search("auditors 202", mode="visual")}
        hits = index.search("auditors 202", top_k=6, mode="hybrid")
        assert {pages(hits)[0], pages(hits)[1]} == {("report.pdf", 3), ("handbook.pdf", 2)}
        assert len(hits) == 6
        for hit in hits:
            assert hit.visual == looks[hit.document, hit.page]
            assert (hit.text > 0) == (hit.snippet != "") == (pages([hit]) == [("report.pdf", 3)])
        assert hits == sorted(hits, key=lambda hit: -hit.score)

    def test_hybrid_search_without_a_matching_word_is_visual(self, index):
        seen, both = (index.search("zzz 202", mode=mode) for mode in ("visual", "hybrid"))
        assert pages(both) == pages(seen)
        assert index.search("zzz 7", mode="text") == []
        assert index.search(" ?! ", mode="text") == []

    def test_scans_are_not_ranked_below_a_page_that_matches_one_word(self, folder):
        write_text_pdf(folder / "mixed/filler.pdf", [(400 + i, f"filler{i}") for i in range(40)])
        for name in "abc":
            page_image(300).save(folder / f"mixed/{name}.png")
        index = Index.create("mixed.index", NumberReader(), AnchorFold(ratio=0.5))
        index.add("mixed")
        hits = index.search("filler7 in North America 300", mode="hybrid")
        assert pages(hits)[:4] == [("a.png", 1), ("b.png", 1), ("c.png", 1), ("filler.pdf", 8)]

    def test_a_quoted_phrase_is_mandatory_in_hybrid_search_where_there_is_text(self, index):
        hits = index.search('"net revenue" 202', mode="hybrid")
        assert set(pages(hits)) == {("report.pdf", 2), ("scan.png", 1)}
        assert pages(index.search('"revenue net" 202', mode="hybrid")) == [("scan.png", 1)]
        assert index.search('"revenue net" 202', mode="hybrid", documents="*.pdf") == []
        assert index.no_result_reason('"revenue net" 202', "hybrid") == "no page contains the quoted phrase"

    def test_hybrid_search_is_text_search_for_a_query_that_the_model_cannot_read(self, index, monkeypatch):
        monkeypatch.setattr(index, "encode_queries", lambda texts: [np.zeros((0, 16), np.float32) for _ in texts])
        assert pages(index.search("horses", mode="hybrid")) == [("handbook.pdf", 2)]

    def test_pages_outside_the_visual_pool_are_scored(self, index, monkeypatch):
        from anchorfold.retrieval import hybrid

        monkeypatch.setattr(hybrid, "POOL", 1)
        hits = index.search("auditors 202", top_k=2, mode="hybrid")
        assert set(pages(hits)) == {("report.pdf", 3), ("handbook.pdf", 2)}
        assert all(hit.visual is not None for hit in hits)

    @pytest.mark.parametrize("mode", ["text", "hybrid"])
    def test_documents_can_be_selected(self, index, mode):
        hits = index.search("revenue 102", mode=mode, documents="*handbook*")
        assert {name for name, _ in pages(hits)} == {"handbook.pdf"}
        with pytest.raises(AnchorFoldError, match="no document that matches nowhere"):
            index.search("revenue 102", mode=mode, documents="nowhere")

    @pytest.mark.parametrize("mode", ["text", "hybrid"])
    def test_filters_apply_and_metadata_is_shown(self, index, mode):
        index.set_metadata({"year": 2024}, documents="*handbook*")
        hits = index.search("revenue 102", mode=mode, where="year >= 2024")
        assert {name for name, _ in pages(hits)} == {"handbook.pdf"}
        assert hits[0].metadata["year"] == 2024
        assert index.search("revenue 102", mode=mode, where="year > 2024") == []

    def test_several_queries(self, index):
        answers = index.search(["horses 1", "auditors 1"], top_k=1, mode="text")
        assert [pages(hits) for hits in answers] == [[("handbook.pdf", 2)], [("report.pdf", 3)]]

    def test_an_unknown_mode_is_refused(self, index):
        with pytest.raises(AnchorFoldError, match="unknown search mode 'semantic': choose one of visual, text"):
            index.search("x 1", mode="semantic")


def test_searches_continue_while_documents_are_added_and_removed(index, folder):
    for number in range(6):
        write_text_pdf(folder / f"docs/more{number}.pdf", [(600 + number, "horses")])
    problems, done = [], threading.Event()

    def search():
        reader = Index.open("my.index", NumberReader())
        while not done.is_set():
            try:
                assert ("handbook.pdf", 2) in pages(reader.search("horses 202", mode="text"))
                assert ("handbook.pdf", 2) in pages(reader.search("horses 202", mode="hybrid"))
            except BaseException as error:
                problems.append(error)
                return

    readers = [threading.Thread(target=search) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(2):
        assert index.add("docs").added == 6
        index.remove("docs/more*")
    done.set()
    for reader in readers:
        reader.join()
    assert problems == []
    assert check(index.path) == []
