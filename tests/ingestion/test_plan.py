from pathlib import Path

from anchorfold.documents.files import Document
from anchorfold.ingestion.plan import make_plan, missing_documents
from anchorfold.storage.records import DocumentState


def document(path, size=3, modified=4, name=None):
    return Document(name or Path(path).name, Path(path), size, modified)


def state(name, size=3, modified=4, pages=2, stored=2, **more):
    return DocumentState(name, "digest", size, modified, pages, stored, **more)


def nothing(_):
    return False


def everything(_):
    return True


def test_documents_that_are_new_incomplete_or_changed_are_read():
    states = {"/d/same.pdf": state("same.pdf"), "/d/part.pdf": state("part.pdf", stored=1),
              "/d/later.pdf": state("later.pdf"), "/d/longer.pdf": state("longer.pdf")}  # fmt: skip
    documents = [document("/d/same.pdf"), document("/d/part.pdf"), document("/d/later.pdf", modified=5),
                 document("/d/longer.pdf", size=9), document("/d/new.pdf")]  # fmt: skip
    plan = make_plan(documents, states, everything)
    assert [d.name for d in plan.unchanged] == ["same.pdf"]
    assert [d.name for d in plan.read] == ["part.pdf", "later.pdf", "longer.pdf", "new.pdf"]
    assert (plan.moved, plan.stale) == ({}, [])


def test_staged_pages_of_an_unchanged_document_are_stale():
    plan = make_plan([document("/d/a.pdf")], {"/d/a.pdf": state("a.pdf", staged={"other": 1})}, everything)
    assert plan.stale == ["/d/a.pdf"]


def test_an_existing_name_is_a_moved_file_or_a_second_one():
    states = {"/old/a.pdf": state("docs/a.pdf")}
    documents = [document("/new/a.pdf", name="docs/a.pdf")]
    moved = make_plan(documents, states, nothing)
    assert moved.moved == {"/old/a.pdf": "/new/a.pdf"}
    assert [d.name for d in moved.unchanged] == ["docs/a.pdf"]
    second = make_plan(documents, states, everything)
    assert second.moved == {}
    assert [d.name for d in second.read] == ["/new/a.pdf"]


def test_a_deleted_document_of_a_moved_folder_is_missing_from_the_new_folder():
    states = {"/old/docs/a.pdf": state("docs/a.pdf"), "/old/docs/b.pdf": state("docs/b.pdf"), "/olds/c.pdf": state("c")}
    plan = make_plan([document("/new/docs/a.pdf", name="docs/a.pdf")], states, nothing)
    assert plan.moved == {"/old/docs/a.pdf": "/new/docs/a.pdf", "/old/docs/b.pdf": "/new/docs/b.pdf"}


def test_a_known_document_keeps_its_name():
    plan = make_plan([document("/d/a.pdf", name="/d/a.pdf")], {"/d/a.pdf": state("d/a.pdf")}, everything)
    assert [d.name for d in plan.unchanged] == ["d/a.pdf"]


def test_missing_documents_are_deleted_files_below_the_roots():
    states = {s: state(s) for s in ("/d/a.pdf", "/d/b.pdf", "/other/c.pdf", "/dd/e.pdf")}
    assert missing_documents(["/d"], {"/d/a.pdf"}, states, nothing) == {"/d/b.pdf": "/d/b.pdf"}
    assert missing_documents(["/d"], {"/d/a.pdf"}, states, everything) == {}
