"""Search over shards returns the ranks and scores of one process, or an error."""

import os
import signal

import numpy as np
import pytest
from fastapi.testclient import TestClient

from anchorfold import Index, Pooling1D
from anchorfold.cluster import ShardedIndex
from anchorfold.cluster.shard import Shard
from anchorfold.cluster.sharded_index import ShardSearch, _is_newer, shard_cpus
from anchorfold.errors import AnchorFoldError, UnavailableError
from anchorfold.ingestion import ingest
from anchorfold.retrieval.embedded_store import EmbeddedStore
from anchorfold.retrieval.visual_search import visual_hits
from anchorfold.server.app import create_app
from anchorfold.server.service import IndexService
from anchorfold.storage import segment
from anchorfold.storage.hits import SearchRequest
from anchorfold.storage.records import Version
from tests.number_reader import NumberReader, write_pdf

QUERIES = [f"page {number}" for number in (11, 24, 203, 250, 999)]


def build(folder) -> Index:
    """Several segments, documents with equal pages, one that was replaced and one that was removed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ingest, "MAX_COMMIT_PAGES", 7)
        patch.setattr(segment, "tiers_to_merge", lambda files: [])
        index = Index.create(folder / "my.index", NumberReader(), Pooling1D(ratio=0.25))
        for d in range(1, 6):
            write_pdf(folder / "docs" / f"{d}.pdf", list(range(10 * d, 11 * d)))
        write_pdf(folder / "docs/again.pdf", [24, 11, 24])
        write_pdf(folder / "docs/long.pdf", list(range(200, 240)))
        index.add(folder / "docs")
        write_pdf(folder / "docs/5.pdf", [250, 251])
        index.add(folder / "docs")
        index.remove("*/1.pdf")
        assert len(EmbeddedStore.open(folder / "my.index").pages.newest_scanner().live.segments) > 1
        return index


@pytest.fixture
def index(tmp_path):
    return build(tmp_path)


@pytest.fixture(scope="module")
def shared_index(tmp_path_factory):
    return build(tmp_path_factory.mktemp("shards"))


def encoded(queries) -> list[np.ndarray]:
    return [np.asarray(query) for query in NumberReader().encode_queries(queries)]


@pytest.mark.parametrize("shards", [1, 2, 3, 8, 70])
@pytest.mark.parametrize(
    ("documents", "where"),
    [
        (None, None),
        ("*long.pdf", None),
        (["*again.pdf", "*2.pdf"], None),
        (None, "page <= 2"),
        ("*long.pdf", "page > 3"),
    ],
)
def test_merged_rankings_equal_those_of_one_process(shared_index, shards, documents, where):
    index = shared_index
    queries, live = encoded(QUERIES), index.store.pages.newest_scanner().live
    parts = [Shard(str(index.path), number, shards) for number in range(shards)]
    selection = SearchRequest(documents=documents, where=where)
    allowed = index.store.read(lambda snapshot: index.store.pages.allowed(snapshot, live, selection))
    bits = None if allowed is None else np.packbits(allowed)
    results = [part.search(index.version, queries, 9, bits) for part in parts]
    assert sum(result.pages for result in results) == len(live)
    if shards <= 8:
        assert max(result.pages for result in results) - min(result.pages for result in results) <= 2 * len(
            live.segments
        )
    searched = index.search(QUERIES, 9, mode="visual", documents=documents, where=where, exact=True)
    for number, expected in enumerate(searched):
        merged = sorted((-score, page) for result in results for page, score in result.rankings[number])[:9]
        ranking = [(page, -score) for score, page in merged]
        hits = index.store.read(lambda snapshot, ranking=ranking: visual_hits(snapshot, live, [ranking])[0])
        assert hits == expected


def test_a_shard_returns_the_requested_version_or_none(index, tmp_path):
    part, queries, old = Shard(str(index.path), 0, 2), encoded(QUERIES[:1]), index.version
    before = part.search(old, queries, 3, None)
    cached = dict(part._parts)
    write_pdf(tmp_path / "new.pdf", [300])
    index.add(tmp_path / "new.pdf")
    assert part.search(old, queries, 3, None) == before  # a running query
    assert part.search(index.version, queries, 3, None).version == index.version
    shared = cached.keys() & part._parts.keys()
    assert all(part._parts[number] is cached[number] for number in shared if len(cached[number]))
    late = Shard(str(index.path), 0, 2).search(old, queries, 3, None)
    assert (late.version, late.rankings) == (index.version, ())


def _answers(ray, shard) -> bool:
    try:
        ray.get(shard.__ray_call__.remote(lambda _: None))
    except ray.exceptions.RayActorError:
        return False
    return True


@pytest.mark.slow
def test_shards_on_two_nodes(nodes, index, tmp_path):
    import ray

    with ShardedIndex.open(
        index.path, NumberReader(), address=nodes.address, shards=2, cpus=0.5, timeout=60
    ) as sharded:
        for documents in (None, "*long.pdf"):
            assert sharded.search(QUERIES, documents=documents) == index.search(
                QUERIES, documents=documents, exact=True
            )
        for where in ("page <= 2", "pages > 5 and not page = 3", "kind is null"):
            hits = sharded.search(QUERIES, where=where)
            assert hits == index.search(QUERIES, where=where, exact=True)
            assert [hit.metadata for hit in hits[0]] == [hit.metadata for hit in index.search(QUERIES[0], where=where)]
        with pytest.raises(AnchorFoldError, match="contains no document that matches nothing"):
            sharded.search("page 11", documents="nothing")
        assert sharded.page("long.pdf", 3).pages == 40
        for mode in ("text", "hybrid"):  # text is searched in this process
            both = sharded.search("page 11", mode=mode), index.search("page 11", mode=mode, exact=True)
            assert both[0] == both[1]
        # A new version is loaded.
        write_pdf(tmp_path / "new.pdf", [300, 301])
        index.add(tmp_path / "new.pdf")
        assert sharded.search("page 301", top_k=1)[0].page == 2
        # A shard that dies is restarted, and the query waits for it.
        store = sharded.store
        assert isinstance(store, EmbeddedStore)
        search = store.pages
        assert isinstance(search, ShardSearch)
        victim = search.shards[0]
        os.kill(ray.get(victim.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
        assert sharded.search(QUERIES) == index.search(QUERIES, exact=True)
        assert sharded.store.searched == 1.0
        # A shard that is not restarted: a partial result is never returned silently.
        ray.kill(victim)  # which takes a moment
        while _answers(ray, victim):
            pass
        search.timeout = 1.0
        with pytest.raises(UnavailableError, match="1 of 2 shards did not answer within 1 seconds"):
            sharded.search("page 11")
        client = TestClient(create_app(IndexService(sharded)), base_url="http://localhost")
        result = client.get("/api/search", params={"q": "page 11"})
        assert result.status_code == 503
        assert result.json()["detail"].startswith("1 of 2 shards did not answer within 1 seconds: they are being")
        search.allow_partial = True
        assert sharded.search("page 11")
        assert 0.3 < sharded.store.searched < 0.7
        assert client.get("/api/search", params={"q": "page 11"}).json()["searched"] == sharded.store.searched


@pytest.mark.parametrize(
    ("processors", "shards", "cpus"), [((1, 1), 2, 1), ((1, 1), 3, 0.5), ((4, 0), 4, 1), ((2,), 5, 0.33), ((), 2, 1)]
)
def test_cpus_per_shard_are_reduced_until_all_shards_fit(processors, shards, cpus):
    nodes = [{"Alive": True, "Resources": {"CPU": count}} for count in processors]
    assert shard_cpus([*nodes, {"Alive": False, "Resources": {"CPU": 8}}], shards) == cpus


def test_zero_shards_are_an_error(index):
    with pytest.raises(AnchorFoldError, match="at least 1 shard"), ShardedIndex.open(index.path, shards=0):
        pass


@pytest.mark.parametrize(
    ("found", "newer"),
    [
        (Version("a", 3, "x"), False),  # the requested commit
        (Version("a", 2, "w"), False),
        (Version("a", 4, "y"), True),
        (Version("a", 3, "z"), True),  # a restored backup that was written again
        (Version("b", 1, "q"), True),  # the index was re-created
    ],
)
def test_is_newer(found, newer):
    assert _is_newer(found, Version("a", 3, "x")) is newer
