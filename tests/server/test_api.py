import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.testclient import TestClient

from anchorfold import AnchorFoldError, Index, Pooling1D
from anchorfold.server.app import create_app
from anchorfold.server.guard import token_for
from anchorfold.server.service import IndexService, public_model
from tests.number_reader import NumberReader, write_pdf

QUERY = "night work supplement"


@pytest.fixture(scope="module")
def client(service):
    return TestClient(create_app(service), base_url="http://localhost")


def best(client):
    return client.get("/api/search", params={"q": QUERY}).json()["results"][0]


class TestSearching:
    def test_the_best_page_comes_first(self, client):
        answer = client.get("/api/search", params={"q": QUERY, "top_k": 3}).json()
        assert answer["query"] == QUERY
        assert answer["results"][0]["document"] == "handbook.pdf"
        assert answer["results"][0]["page"] == 1
        assert len(answer["results"]) == 3
        assert answer["weak"] is False

    def test_results_of_invented_words_are_weak(self, client):
        for mode, weak in (("hybrid", True), ("visual", True), ("text", None)):
            answer = client.get("/api/search", params={"q": "xqzv blorf wibble", "mode": mode}).json()
            assert answer["weak"] is weak, mode

    def test_filters_by_public_names(self, client):
        answer = client.get("/api/search", params={"q": QUERY, "document": "forms*"}).json()["results"]
        assert {r["document"] for r in answer} == {"forms.pdf"}
        for name in ("/etc/passwd", "", " ", "\t"):
            assert client.get("/api/search", params={"q": QUERY, "document": name}).json()["results"] == []

    def test_info(self, client):
        info = client.get("/api/info").json()
        assert (info["documents"], info["pages"]) == (2, 11)
        assert info["full_vector_bytes"] / info["vector_bytes"] == pytest.approx(5, abs=0.05)
        on_disk = info["bytes"] - info["thumbnail_bytes"] - info["text_bytes"]
        assert info["compression_ratio"] == pytest.approx(info["full_vector_bytes"] / on_disk, abs=0.01)

    def test_all_offered_methods_can_be_compared(self, client):
        choices = client.get("/api/info").json()["methods"]
        assert [choice["method"] for choice in choices if choice["default"]] == [
            "anchorfold:0.2", "anchorfold:0.05", "semantic-clustering:0.05"
        ]  # fmt: skip
        for choice in choices:
            params = {"q": QUERY, "method": choice["method"]}
            answer = client.get(f"/api/pages/{best(client)['id']}/compare", params=params)
            assert answer.status_code == 200, answer.text
            assert answer.json()[0]["title"] == choice["title"]

    @pytest.mark.parametrize("params", [{}, {"q": ""}, {"q": "x" * 501}, {"q": "x", "top_k": 0}, {"q": "x", "top_k": 101}, {"q": "x", "top_k": "a"}])  # fmt: skip  # noqa: E501
    def test_limits(self, client, params):
        assert client.get("/api/search", params=params).status_code == 422


class TestPages:
    def test_images(self, client):
        hit = best(client)
        for rest, kind, start in (("thumbnail", "webp", b"RIFF"), ("image?size=300", "jpeg", b"\xff\xd8")):
            answer = client.get(f"/api/pages/{hit['id']}/{rest}")
            assert answer.headers["content-type"] == f"image/{kind}"
            assert answer.content.startswith(start)
        assert client.get(f"/api/pages/{hit['id']}/image?size=2001").status_code == 422
        assert client.get(f"/api/pages/{hit['id']}").json()["pages"] == 6

    def test_best_page_of_each_document(self, client):
        pages = client.get("/api/search", params={"q": "dogs", "top_k": 9}).json()["results"]
        best = client.get("/api/search", params={"q": "dogs", "top_k": 9, "per_document": True}).json()["results"]
        assert sorted(hit["document"] for hit in best) == ["forms.pdf", "handbook.pdf"]
        assert best[0] == pages[0]
        assert best[0]["score"] >= best[1]["score"]

    def test_similar_pages(self, client):
        first = client.get("/api/search", params={"q": "dogs"}).json()["results"][0]
        similar = client.get(f"/api/pages/{first['id']}/similar", params={"top_k": 4}).json()
        assert len(similar) == 4
        assert first["id"] not in {hit["id"] for hit in similar}
        assert [hit["score"] for hit in similar] == sorted((hit["score"] for hit in similar), reverse=True)

    def test_neighbors_and_original(self, client, served_folder):
        results = client.get("/api/search", params={"q": "dogs", "document": "handbook.pdf"}).json()["results"]
        (first,) = [hit for hit in results if hit["page"] == 1]
        info = client.get(f"/api/pages/{first['id']}").json()
        assert info["previous"] is None
        following = client.get(f"/api/pages/{info['next']}").json()
        assert (following["page"], following["previous"]) == (2, first["id"])
        original = client.get(f"/api/pages/{first['id']}/original")
        assert original.content == (served_folder / "office/handbook.pdf").read_bytes()
        assert original.headers["content-type"] == "application/pdf"
        assert original.headers["content-disposition"] == 'inline; filename="handbook.pdf"'
        assert original.headers["x-content-type-options"] == "nosniff"

    def test_evidence_adds_up_to_the_score(self, client):
        hit = best(client)
        evidence = client.get(f"/api/pages/{hit['id']}/evidence", params={"q": QUERY}).json()
        assert [w["word"] for w in evidence["words"]] == QUERY.split()
        assert sum(w["score"] for w in evidence["words"]) == pytest.approx(hit["visual"], abs=1e-3)
        lit = sum(value for w in evidence["words"] for _, value in w["patches"])
        assert lit == pytest.approx(hit["visual"], abs=1e-2)
        patches = sum(int(rows * columns) for rows, columns, *_ in evidence["tiles"])
        assert patches == evidence["full_vectors"] > evidence["vectors"]
        assert evidence["original"]

    def test_comparison(self, client):
        hit = best(client)
        methods = ["none", "anchorfold:0.05", "sap:0.05"]
        compared = client.get(f"/api/pages/{hit['id']}/compare", params={"q": QUERY, "method": methods}).json()
        assert [answer["method"] for answer in compared] == methods
        assert [answer["title"] for answer in compared] == ["full index", "AnchorFold 0.05", "SAP 0.05"]
        assert compared[0]["retention"] == pytest.approx(100)
        assert compared[1]["vectors"] == compared[2]["vectors"] < compared[0]["vectors"] / 15
        for bad in (
            ["zip:0.1"],
            ["sap:2"],
            ["sap:x"],
            ["sap:0.0"],
            ["sap"],
            ["none:0.5"],
            methods * 2,
            ["docpruner:0.1"],
        ):
            answer = client.get(f"/api/pages/{hit['id']}/compare", params={"q": QUERY, "method": bad})
            assert answer.status_code == 422, bad

    @pytest.mark.parametrize(
        "identity",
        ["0" * 24, "1", "1-", "-1", "0-1", "1-0", "1-99", "99-1", "1--1", "1-1-1", "1-1 ",
         "9" * 20 + "-1", "1-" + "9" * 20,
         "..%2f..%2fetc%2fpasswd", "%2fetc%2fpasswd", "x" * 3000, "'; DROP", "\u0661-1", "1-\uff11", "01-1", "1-01"],
    )  # fmt: skip
    def test_only_indexed_pages_can_be_read(self, client, identity):
        for rest in ("", "/similar", "/original", "/image", "/thumbnail", "/evidence?q=a"):
            assert client.get(f"/api/pages/{identity}{rest}").status_code == 404

    def test_responses_contain_no_local_path(self, client, served_folder):
        hit = best(client)
        for address in ("/api/info", f"/api/search?q={QUERY}", f"/api/pages/{hit['id']}", "/openapi.json", "/",
                        f"/api/pages/{hit['id']}/evidence?q=a", "/api/pages/none"):  # fmt: skip
            assert str(served_folder) not in client.get(address).text

    def test_api_is_read_only(self, client):
        hit = best(client)
        for method in ("post", "put", "delete", "patch"):
            assert getattr(client, method)(f"/api/pages/{hit['id']}").status_code == 405


class TestPublicNames:
    def test_public_names_are_unique_and_contain_no_absolute_path(self, tmp_path):
        folders = [tmp_path / name for name in ("one", "two", "one/two")]
        index = Index.create(tmp_path / "my.index", NumberReader(), Pooling1D(ratio=0.25))
        for number, folder in enumerate(folders):
            write_pdf(folder / "x.pdf", [number])
            index.add(folder / "x.pdf")
        service = IndexService(index)
        assert service.documents() == {"x.pdf": 1, "two/x.pdf": 1, "one/two/x.pdf": 1}
        sources = [service.find(name, 1).source for name in ("x.pdf", "two/x.pdf", "one/two/x.pdf")]
        assert sources == [str(folder / "x.pdf") for folder in folders]

    def test_names_that_do_not_exist(self, service):
        for name in ("none.pdf", "", "/etc/passwd", "\ud800", "handbook.pdf\0"):
            with pytest.raises(AnchorFoldError, match="contains no document"):
                service.find(name, 1)
        for number in (0, -1, 7, 10**30):
            with pytest.raises(AnchorFoldError, match="has no indexed page"):
                service.find("handbook.pdf", number)

    def test_names_and_ids_are_stable(self, tmp_path):
        index = Index.create(tmp_path / "my.index", NumberReader(), Pooling1D(ratio=0.25))
        for number, folder in enumerate(("one", "two")):
            index.add(write_pdf(tmp_path / folder / "x.pdf", [number, 9]))
        service = IndexService(index)
        before = service.find("two/x.pdf", 2)
        index.add(write_pdf(tmp_path / "two" / "x.pdf", [1, 9, 3]))  # another version
        assert service.find("two/x.pdf", 2) == before == service.page(before.id)
        index.remove(tmp_path / "one" / "x.pdf")  # its name is free, and is not taken over
        assert service.find("two/x.pdf", 2) == before
        assert service.documents() == {"two/x.pdf": 3}
        index.remove(tmp_path / "two" / "x.pdf")
        index.add(tmp_path / "two" / "x.pdf")
        with pytest.raises(KeyError):  # ids are never used again
            service.page(before.id)


def test_public_model_names():
    assert public_model("vidore/colpali-v1.3-hf") == "vidore/colpali-v1.3-hf"
    assert public_model("/home/ada/models/mine/") == "mine"
    assert public_model("../models/mine") == "mine"


class TestGuard:
    def test_other_addresses_require_the_token(self, service):
        token = token_for("0.0.0.0")
        client = TestClient(create_app(service, token), base_url="http://example.org")
        for address in ("/", "/healthz", "/api/info", f"/api/search?q={QUERY}", "/app.js", "/openapi.json"):
            assert client.get(address).status_code == 401
            assert client.get(address, headers={"authorization": f"Bearer {token}x"}).status_code == 401
            assert client.get(address, headers={"authorization": f"Bearer {token}"}).status_code == 200
        assert client.get("/api/info?token=wrong\N{SNOWMAN}").status_code == 401
        assert client.get(f"/?token={token}").status_code == 200
        assert client.get("/api/info").status_code == 200  # by the cookie that came with the page

    def test_without_a_token_only_loopback_hosts_are_allowed(self, service):
        client = TestClient(create_app(service), base_url="http://localhost")
        for name in ("localhost:8765", "127.0.0.1", "[::1]:8765", "[::1]", "LocalHost"):
            assert client.get("/healthz", headers={"host": name}).status_code == 200, name
        for name in (
            "evil.example", "localhost:x@evil.com", "localhost:80@evil.com", "[::1]evil.com", "[::1]:80evil.com", "::1",
            "localhost.evil.com", "evil.com:localhost", "localhost:", "localhost:123456", "127.0.0.1.evil.com", "",
            "localhost, evil.com", "user@localhost", "[::1", "127.0.0.1:80:80", "localhost/",
        ):  # fmt: skip
            assert client.get("/healthz", headers={"host": name}).status_code == 421, name

    def test_more_than_one_host_is_refused(self, service):
        for token in (None, "secret"):
            client = TestClient(create_app(service, token), base_url="http://localhost")
            headers = [("host", "localhost"), ("host", "localhost"), ("authorization", "Bearer secret")]
            assert client.get("/healthz", headers=headers).status_code == 400

    def test_two_lengths_of_a_body_are_refused(self, service):
        client = TestClient(create_app(service), base_url="http://localhost")
        answer = client.get("/healthz", headers={"content-length": "5", "transfer-encoding": "chunked"})
        assert (answer.status_code, answer.headers["connection"]) == (400, "close")

    @pytest.mark.parametrize("headers", [
        {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "http://evil.example"},
        {"origin": "http://localhost:3000"}, {"origin": "null"}, {"origin": ""},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
    ])  # fmt: skip
    def test_pages_of_other_origins_are_refused(self, service, headers):
        for token in (None, "secret"):
            client = TestClient(create_app(service, token), base_url="http://localhost")
            answer = client.get("/api/info", headers={"authorization": "Bearer secret", **headers})
            assert answer.status_code == 403, headers
            assert "cross-site request" in answer.json()["detail"]

    def test_every_value_of_a_repeated_header_is_checked(self, client):
        for name, same, other in (
            ("origin", "http://localhost", "http://evil.example"), ("sec-fetch-site", "same-origin", "cross-site"),
        ):  # fmt: skip
            assert client.get("/api/info", headers=[(name, same), (name, other)]).status_code == 403

    @pytest.mark.parametrize("headers", [
        {"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}, {"origin": "http://localhost"},
        {"origin": "https://LOCALHOST"}, {},
    ])  # fmt: skip
    def test_same_origin_and_non_browser_requests_are_allowed(self, client, headers):
        assert client.get("/healthz", headers=headers).status_code == 200

    def test_cross_site_links_open_the_page_but_cannot_embed_it(self, client):
        headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
        assert client.get("/", headers=headers).status_code == 200
        assert client.get("/", headers={**headers, "sec-fetch-dest": "iframe"}).status_code == 403
        assert client.post("/", headers=headers).status_code == 403

    def test_responses_cannot_be_embedded_by_other_origins(self, client):
        answers = [client.get("/"), client.get("/api/info"), client.get("/", headers={"host": "evil.example"})]
        for answer in answers:
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
            assert answer.headers["cross-origin-opener-policy"] == "same-origin"

    def test_too_many_requests_return_503(self, service):
        client = TestClient(create_app(service, limit=0), base_url="http://localhost")
        answer = client.get("/api/info")
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert client.get("/healthz").status_code == 200

    def test_content_security_policy_allows_same_origin_only(self, client):
        answer = client.get("/")
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        for address in ("/", "/app.js", "/heatmap.js", "/style.css"):
            assert "https://" not in client.get(address).text
            assert "//cdn" not in client.get(address).text


class TestChanges:
    def test_a_new_version_is_noticed_without_a_restart(self, own_copy, tmp_path, service):
        client = TestClient(
            create_app(IndexService(Index.open(own_copy, service.index.encoder))), base_url="http://localhost"
        )
        assert client.get("/api/info").json()["pages"] == 11
        before = best(client)
        writer = Index.open(own_copy, service.index.encoder)
        writer.add(write_pdf(tmp_path / "more.pdf", [1, 2]))
        assert client.get("/api/info").json()["pages"] == 13
        writer.remove("handbook.pdf")
        assert best(client)["document"] != before["document"]
        assert client.get(f"/api/pages/{before['id']}").status_code == 404

    def test_a_deleted_document_keeps_its_thumbnail(self, tmp_path, service):
        path = write_pdf(tmp_path / "docs" / "a.pdf", [123])
        index = Index.create(tmp_path / "a.index", service.index.encoder)
        index.add(path)
        client = TestClient(create_app(IndexService(index)), base_url="http://localhost")
        hit = client.get("/api/search?q=something").json()["results"][0]
        os.unlink(path)
        evidence = client.get(f"/api/pages/{hit['id']}/evidence?q=word").json()
        assert evidence["original"] is False
        assert client.get(f"/api/pages/{hit['id']}/image").status_code == 200
        answer = client.get(f"/api/pages/{hit['id']}/compare?q=word&method=sap:0.1")
        assert answer.status_code == 409
        assert "original document" in answer.json()["detail"]

    def test_many_threads_at_once(self, client):
        with ThreadPoolExecutor(30) as pool:
            hits = list(pool.map(lambda _: best(client), range(30)))
        assert hits == [best(client)] * 30
