import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.testclient import TestClient

from anchorfold import AnchorFoldError, Index, Pooling1D
from anchorfold.serve.app import create_app
from anchorfold.serve.guard import new_token
from anchorfold.serve.library import Library, public_model
from tests.number_reader import NumberReader, write_pdf

QUERY = "night work supplement"


@pytest.fixture(scope="module")
def client(library):
    return TestClient(create_app(library), base_url="http://localhost")


def best(client):
    return client.get("/api/search", params={"q": QUERY}).json()["results"][0]


class TestSearching:
    def test_the_best_page_comes_first(self, client):
        answer = client.get("/api/search", params={"q": QUERY, "top": 3}).json()
        assert answer["query"] == QUERY
        assert answer["results"][0]["document"] == "handbook.pdf"
        assert answer["results"][0]["page"] == 1
        assert len(answer["results"]) == 3

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
        assert info["times_smaller"] == pytest.approx(info["full_vector_bytes"] / on_disk, abs=0.01)

    def test_every_method_that_is_offered_can_be_compared(self, client):
        choices = client.get("/api/info").json()["choices"]
        assert [choice["method"] for choice in choices if choice["first"]] == [
            "anchorfold:0.2", "anchorfold:0.05", "semantic-clustering:0.05"
        ]  # fmt: skip
        for choice in choices:
            params = {"q": QUERY, "method": choice["method"]}
            answer = client.get(f"/api/pages/{best(client)['id']}/compare", params=params)
            assert answer.status_code == 200, answer.text
            assert answer.json()[0]["title"] == choice["title"]

    @pytest.mark.parametrize("params", [{}, {"q": ""}, {"q": "x" * 501}, {"q": "x", "top": 0}, {"q": "x", "top": 101}, {"q": "x", "top": "a"}])  # fmt: skip  # noqa: E501
    def test_limits(self, client, params):
        assert client.get("/api/search", params=params).status_code == 422


class TestPages:
    def test_pictures(self, client):
        hit = best(client)
        for rest, kind, start in (("thumbnail", "webp", b"RIFF"), ("image?size=300", "jpeg", b"\xff\xd8")):
            answer = client.get(f"/api/pages/{hit['id']}/{rest}")
            assert answer.headers["content-type"] == f"image/{kind}"
            assert answer.content.startswith(start)
        assert client.get(f"/api/pages/{hit['id']}/image?size=2001").status_code == 422
        assert client.get(f"/api/pages/{hit['id']}").json()["pages"] == 6

    def test_evidence_adds_up_to_the_score(self, client):
        hit = best(client)
        evidence = client.get(f"/api/pages/{hit['id']}/evidence", params={"q": QUERY}).json()
        assert [w["word"] for w in evidence["words"]] == QUERY.split()
        assert sum(w["score"] for w in evidence["words"]) == pytest.approx(hit["score"], abs=1e-3)
        lit = sum(value for w in evidence["words"] for _, value in w["patches"])
        assert lit == pytest.approx(hit["score"], abs=1e-2)
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
         "..%2f..%2fetc%2fpasswd", "%2fetc%2fpasswd", "x" * 3000, "'; DROP"],
    )  # fmt: skip
    def test_nothing_but_indexed_pages_can_be_read(self, client, identity):
        for rest in ("", "/image", "/thumbnail", "/evidence?q=a"):
            assert client.get(f"/api/pages/{identity}{rest}").status_code == 404

    def test_no_path_of_the_machine_leaks(self, client, served_folder):
        hit = best(client)
        for address in ("/api/info", f"/api/search?q={QUERY}", f"/api/pages/{hit['id']}", "/openapi.json", "/",
                        f"/api/pages/{hit['id']}/evidence?q=a", "/api/pages/none"):  # fmt: skip
            assert str(served_folder) not in client.get(address).text

    def test_only_reading(self, client):
        hit = best(client)
        for method in ("post", "put", "delete", "patch"):
            assert getattr(client, method)(f"/api/pages/{hit['id']}").status_code == 405


class TestPublicNames:
    def test_they_are_unique_and_show_no_absolute_path(self, tmp_path):
        folders = [tmp_path / name for name in ("one", "two", "one/two")]
        index = Index.create(tmp_path / "my.index", NumberReader(), Pooling1D(ratio=0.25))
        for number, folder in enumerate(folders):
            write_pdf(folder / "x.pdf", [number])
            index.add(folder / "x.pdf")
        library = Library(index)
        assert library.documents() == {"x.pdf": 1, "two/x.pdf": 1, "one/two/x.pdf": 1}
        sources = [library.find(name, 1).source for name in ("x.pdf", "two/x.pdf", "one/two/x.pdf")]
        assert sources == [str(folder / "x.pdf") for folder in folders]

    def test_names_that_do_not_exist(self, library):
        for name in ("none.pdf", "", "/etc/passwd", "\ud800", "handbook.pdf\0"):
            with pytest.raises(AnchorFoldError, match="contains no document"):
                library.find(name, 1)
        for number in (0, -1, 7, 10**30):
            with pytest.raises(AnchorFoldError, match="has no indexed page"):
                library.find("handbook.pdf", number)

    def test_names_and_ids_are_stable(self, tmp_path):
        index = Index.create(tmp_path / "my.index", NumberReader(), Pooling1D(ratio=0.25))
        for number, folder in enumerate(("one", "two")):
            index.add(write_pdf(tmp_path / folder / "x.pdf", [number, 9]))
        library = Library(index)
        before = library.find("two/x.pdf", 2)
        index.add(write_pdf(tmp_path / "two" / "x.pdf", [1, 9, 3]))  # another version
        assert library.find("two/x.pdf", 2) == before == library.page(before.id)
        index.remove(tmp_path / "one" / "x.pdf")  # its name is free, and is not taken over
        assert library.find("two/x.pdf", 2) == before
        assert library.documents() == {"two/x.pdf": 3}
        index.remove(tmp_path / "two" / "x.pdf")
        index.add(tmp_path / "two" / "x.pdf")
        with pytest.raises(KeyError):  # ids are never used again
            library.page(before.id)


def test_models_that_the_world_may_see():
    assert public_model("vidore/colpali-v1.3-hf") == "vidore/colpali-v1.3-hf"
    assert public_model("/home/ada/models/mine/") == "mine"
    assert public_model("../models/mine") == "mine"


class TestGuard:
    def test_another_address_needs_the_token(self, library):
        token = new_token()
        client = TestClient(create_app(library, token), base_url="http://example.org")
        for address in ("/", "/healthz", "/api/info", f"/api/search?q={QUERY}", "/app.js", "/openapi.json"):
            assert client.get(address).status_code == 401
            assert client.get(address, headers={"authorization": f"Bearer {token}x"}).status_code == 401
            assert client.get(address, headers={"authorization": f"Bearer {token}"}).status_code == 200
        assert client.get("/api/info?token=wrong\N{SNOWMAN}").status_code == 401
        assert client.get(f"/?token={token}").status_code == 200
        assert client.get("/api/info").status_code == 200  # by the cookie that came with the page

    def test_without_a_token_only_local_names_are_answered(self, library):
        client = TestClient(create_app(library), base_url="http://localhost")
        for name in ("localhost:8765", "127.0.0.1", "[::1]:8765", "[::1]", "LocalHost"):
            assert client.get("/healthz", headers={"host": name}).status_code == 200, name
        for name in (
            "evil.example", "localhost:x@evil.com", "localhost:80@evil.com", "[::1]evil.com", "[::1]:80evil.com", "::1",
            "localhost.evil.com", "evil.com:localhost", "localhost:", "localhost:123456", "127.0.0.1.evil.com", "",
            "localhost, evil.com", "user@localhost", "[::1", "127.0.0.1:80:80", "localhost/",
        ):  # fmt: skip
            assert client.get("/healthz", headers={"host": name}).status_code == 421, name

    def test_more_than_one_host_is_refused(self, library):
        for token in (None, "secret"):
            client = TestClient(create_app(library, token), base_url="http://localhost")
            headers = [("host", "localhost"), ("host", "localhost"), ("authorization", "Bearer secret")]
            assert client.get("/healthz", headers=headers).status_code == 400

    @pytest.mark.parametrize("headers", [
        {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "http://evil.example"},
        {"origin": "http://localhost:3000"}, {"origin": "null"}, {"origin": ""},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
    ])  # fmt: skip
    def test_pages_of_other_origins_are_refused(self, library, headers):
        for token in (None, "secret"):
            client = TestClient(create_app(library, token), base_url="http://localhost")
            answer = client.get("/api/info", headers={"authorization": "Bearer secret", **headers})
            assert answer.status_code == 403, headers
            assert "cross-site" in answer.json()["detail"]

    @pytest.mark.parametrize("headers", [
        {"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}, {"origin": "http://localhost"},
        {"origin": "https://LOCALHOST"}, {},
    ])  # fmt: skip
    def test_the_page_itself_and_programs_are_answered(self, client, headers):
        assert client.get("/healthz", headers=headers).status_code == 200

    def test_a_link_from_elsewhere_opens_the_page_but_cannot_embed_it(self, client):
        headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
        assert client.get("/", headers=headers).status_code == 200
        assert client.get("/", headers={**headers, "sec-fetch-dest": "iframe"}).status_code == 403
        assert client.post("/", headers=headers).status_code == 403

    def test_answers_cannot_be_embedded_elsewhere(self, client):
        answers = [client.get("/"), client.get("/api/info"), client.get("/", headers={"host": "evil.example"})]
        for answer in answers:
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
            assert answer.headers["cross-origin-opener-policy"] == "same-origin"

    def test_past_its_queue_it_says_503_at_once(self, library):
        client = TestClient(create_app(library, limit=0), base_url="http://localhost")
        answer = client.get("/api/info")
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert client.get("/healthz").status_code == 200

    def test_the_page_may_load_nothing_from_elsewhere(self, client):
        answer = client.get("/")
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        for address in ("/", "/app.js", "/heat.js", "/style.css"):
            assert "https://" not in client.get(address).text
            assert "//cdn" not in client.get(address).text


class TestChanges:
    def test_a_new_version_is_noticed_without_a_restart(self, own_copy, tmp_path, library):
        client = TestClient(create_app(Library(Index.open(own_copy, library.index.model))), base_url="http://localhost")
        assert client.get("/api/info").json()["pages"] == 11
        before = best(client)
        writer = Index.open(own_copy, library.index.model)
        writer.add(write_pdf(tmp_path / "more.pdf", [1, 2]))
        assert client.get("/api/info").json()["pages"] == 13
        writer.remove("handbook.pdf")
        assert best(client)["document"] != before["document"]
        assert client.get(f"/api/pages/{before['id']}").status_code == 404

    def test_a_document_that_is_gone_keeps_its_thumbnail(self, tmp_path, library):
        path = write_pdf(tmp_path / "docs" / "a.pdf", [123])
        index = Index.create(tmp_path / "a.index", library.index.model)
        index.add(path)
        client = TestClient(create_app(Library(index)), base_url="http://localhost")
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
