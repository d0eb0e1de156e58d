"""Commits of writers that were killed."""

import shutil
from contextlib import closing

from anchorfold.retrieval.embedded_store import EmbeddedStore, check_index
from benchmarks.small_index import document_rows, make_index, observe


def test_a_commit_that_a_killed_writer_did_not_announce_is_discarded_by_the_next_writer(tmp_path):
    folder, restarted = tmp_path / "my.index", tmp_path / "restarted.index"
    killed, following = make_index(folder, ("alpha", "bravo")), EmbeddedStore.open(folder)
    with closing(killed.database.connect()) as reader:  # keeps the write-ahead log
        reader.execute("SELECT * FROM index_info").fetchall()
        shared_memory = folder / "index.db-shm"
        before, before_commit = observe(following), shared_memory.read_bytes()
        with killed.writing():
            killed.append(document_rows("unannounced"))
        with open(shared_memory, "r+b") as file:
            file.write(before_commit)
        assert observe(following) == before
        with following.writing():
            following.remove_unregistered()
        shutil.copytree(folder, restarted, ignore=shutil.ignore_patterns("*-shm"))  # as if all processes were killed
    assert check_index(restarted) == []
    assert observe(EmbeddedStore.open(restarted)) == before
