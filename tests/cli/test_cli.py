"""Commands in separate processes, on a tiny checkpoint of the real architecture."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from fpdf import FPDF
from PIL import Image

from anchorfold.backbones.nano.query import NanoQueryEncoder
from anchorfold.retrieval.candidate_files import update_lists
from anchorfold.retrieval.candidates import FIRST_PAGES
from anchorfold.retrieval.embedded_store import EmbeddedStore
from anchorfold.retrieval.kernels import kernel
from anchorfold.storage.column_file import TAIL
from anchorfold.storage.lock import writer_lock
from benchmarks.invented_index import append_pages, new_store, random_pages
from tests.cli.processes import run
from tests.documents.test_formats import write_encrypted
from tests.forked import ENVIRONMENT, completed, running
from tests.number_reader import page_image, write_pdf


@pytest.fixture(scope="module")
def folder(tmp_path_factory, checkpoints):
    """A folder with reports/ and an index of it."""
    folder = tmp_path_factory.mktemp("cli")
    write_pdf(folder / "reports/a.pdf", [1, 2, 3])
    write_pdf(folder / "reports/old.pdf", [11, 12])
    page_image(77).save(folder / "reports/scan.png")
    run("index", "./reports", "-o", "my.index", "--model", checkpoints["colpali"], cwd=folder)
    return folder


@pytest.fixture
def copy(folder, tmp_path):
    """A copy, for tests that change it."""
    shutil.copytree(folder, tmp_path / "work")
    return tmp_path / "work"


def test_index_reports_and_skips_unchanged_files(copy):
    run("index", "./reports", "-o", "my.index", cwd=copy)
    write_pdf(copy / "reports/new.pdf", [5, 6])
    completed = run("--verbose", "index", "./reports", "-o", "my.index", cwd=copy)
    assert "anchorfold.documents.render_process: renderer" in completed.stderr
    lines = {line.split("  ")[0]: line for line in completed.stdout.splitlines()}
    assert "(1 new, 0 changed, 3 unchanged)" in completed.stdout
    assert {"documents", "pages", "vectors before", "vectors after", "compression ratio", "on disk", "skipped"} <= set(
        lines
    )


def test_index_reports_ignored_files_by_extension(copy):
    for name in ("a.epub", "b.epub", "c.zip", ".hidden.txt"):
        (copy / "reports" / name).write_text("x")
    completed = run("index", "./reports", "-o", "my.index", cwd=copy)
    assert completed.stdout.splitlines()[-1] == "Ignored 3 files: 2 .epub, 1 .zip."
    report = json.loads(run("index", "./reports", "-o", "my.index", "--json", cwd=copy).stdout)
    assert report["ignored"] == {".epub": 2, ".zip": 1}


def test_small_sets_only_missing_options(copy, checkpoints):
    options = ("index", "reports/old.pdf", "--model", checkpoints["colpali"], "--small")
    run(*options, "-o", "small.index", cwd=copy)
    settings = EmbeddedStore.open(copy / "small.index").settings
    assert (settings.options["ratio"], settings.bits) == (0.05, 2)
    run(*options, "-o", "smaller.index", "--cap", "3", "--bits", "1", cwd=copy)
    settings = EmbeddedStore.open(copy / "smaller.index").settings
    assert (settings.options["cap"], settings.options.get("ratio"), settings.bits) == (3, None, 1)


def test_search_prints_a_table_and_json(folder):
    plain = run("search", "my.index", "net revenue by region", cwd=folder).stdout.splitlines()
    assert plain[0].split() == ["score", "document", "page", "visual", "text", "snippet"]
    assert len(plain) == 7
    answer = json.loads(run("search", "my.index", "net revenue", "--json", "--top-k", "3", cwd=folder).stdout)
    assert answer["query"] == "net revenue"
    assert len(answer["results"]) == 3
    fields = {"document", "page", "score", "metadata", "visual", "text", "snippet", "matches"}
    assert set(answer["results"][0]) == fields
    visual = run("search", "my.index", "net revenue", "--mode", "visual", cwd=folder).stdout.splitlines()
    assert visual[0].split() == ["score", "document", "page"]
    assert {r["document"] for r in answer["results"]} <= {"reports/a.pdf", "reports/old.pdf", "reports/scan.png"}
    assert all(r["page"] >= 1 for r in answer["results"])
    scores = [r["score"] for r in answer["results"]]
    assert scores == sorted(scores, reverse=True)


def test_search_reads_queries_from_stdin(folder):
    completed = run(
        "search", "my.index", "--queries", "-", "--json", "-d", "*.pdf", stdin="one\n\ntwo words\n", cwd=folder
    )
    objects = [json.loads(line) for line in completed.stdout.splitlines()]
    assert [o["query"] for o in objects] == ["one", "two words"]
    assert all(r["document"].endswith(".pdf") for o in objects for r in o["results"])


def test_info(folder):
    info = json.loads(run("info", "my.index", "--json", cwd=folder).stdout)
    assert {"documents", "pages", "vectors", "full_vectors", "bytes", "model", "method"} <= set(info)
    assert (info["documents"], info["pages"], info["method"]) == (3, 6, "anchorfold")
    assert info["full_vector_bytes"] / info["vector_bytes"] == pytest.approx(info["vector_compression_ratio"], abs=0.01)
    on_disk = info["bytes"] - info["thumbnail_bytes"] - info["text_bytes"]
    assert info["full_vector_bytes"] / on_disk == pytest.approx(info["compression_ratio"], abs=0.01)
    assert "compression ratio" in run("info", "my.index", cwd=folder).stdout


def test_info_of_the_system_includes_the_search_kernel(folder):
    facts = json.loads(run("info", "--system", "--json", cwd=folder).stdout)
    assert facts["search kernel"] == kernel()
    assert "search kernel" in run("info", "--system", cwd=folder).stdout
    assert "use --system" in run("info", code=2, cwd=folder).stderr


def test_remove_and_prune(copy):
    assert run("remove", "my.index", "reports/old.pdf", cwd=copy).stdout == "removed reports/old.pdf\n"
    assert json.loads(run("info", "my.index", "--json", cwd=copy).stdout)["documents"] == 2
    assert "nothing was changed" in run("remove", "my.index", "reports/old.pdf", code=1, cwd=copy).stderr


def test_removing_several_documents_requires_confirmation(copy):
    refused = run("remove", "my.index", "reports", code=1, stdin="n\n", cwd=copy)
    assert "Remove 3 documents" in refused.stderr
    assert "nothing was removed" in refused.stderr
    run("remove", "my.index", "reports", code=1, stdin="", cwd=copy)  # nobody is there to answer
    assert "empty document name" in one_line(run("remove", "my.index", "", "--yes", code=1, cwd=copy))
    assert "empty document name" in one_line(run("search", "my.index", "x", "-d", "", code=1, cwd=copy))
    assert json.loads(run("info", "my.index", "--json", cwd=copy).stdout)["documents"] == 3
    assert run("remove", "my.index", "*.pdf", "--yes", cwd=copy).stdout.count("removed") == 2
    assert run("remove", "my.index", "reports", cwd=copy).stdout == "removed reports/scan.png\n"


def test_model_path_is_resolved_and_can_be_overridden(tmp_path, checkpoints):
    home = tmp_path / "home"
    write_pdf(home / "reports/a.pdf", [1])
    shutil.copytree(checkpoints["colpali"], home / "m")
    run("index", "reports", "-o", "my.index", "--model", "./m", cwd=home)
    (tmp_path / "elsewhere").mkdir()
    run("search", home / "my.index", "x", cwd=tmp_path / "elsewhere")
    (home / "m").rename(home / "moved")
    lost = one_line(run("search", home / "my.index", "x", code=1, cwd=tmp_path / "elsewhere"))
    assert str(home / "m") in lost
    assert "--model" in lost
    run("search", home / "my.index", "x", "--model", home / "moved", cwd=tmp_path / "elsewhere")
    write_pdf(home / "reports/b.pdf", [2])
    run("index", "reports", "-o", "my.index", "--model", "./moved", cwd=home)
    other = one_line(run("search", home / "my.index", "x", "--model", checkpoints["colqwen2"], code=1, cwd=home))
    assert "another model" in other


def test_export(copy):
    pytest.importorskip("qdrant_client")
    written = run("export", "my.index", "--format", "npz", cwd=copy).stdout
    assert f"wrote 6 pages ({(copy / 'my.npz').stat().st_size / 1000:.1f} kB)" in written
    assert "wrote 6 pages" in run("export", "my.index", "--format", "parquet", "-o", "p.parquet", cwd=copy).stdout
    to_qdrant = ("export", "my.index", "--format", "qdrant")
    uploaded = run(*to_qdrant, "--url", "q", "--quantization", "turbo4", cwd=copy).stdout
    assert "uploaded 6 new pages" in uploaded
    assert re.search(r"The collection takes about .*B: vectors .*B, turbo4 copy .*B \(in RAM\), payload", uploaded)
    assert "uploaded 0 new pages" in run(*to_qdrant, "--url", "q", cwd=copy).stdout
    refused = run("export", "my.index", "--format", "npz", "--quantization", "scalar", code=1, cwd=copy)
    assert "--quantization cannot be used with npz: leave it out" in one_line(refused)
    assert "needs --url" in run(*to_qdrant, code=1, cwd=copy).stderr


def one_line(completed):
    lines = [line for line in completed.stderr.splitlines() if line.startswith("anchorfold:")]
    assert len(lines) == 1, completed.stderr
    return lines[0]


def test_errors_are_one_line_with_non_zero_exit_code(copy, checkpoints):
    (copy / "empty").mkdir()
    (copy / "notes.txt").write_text("x")
    colpali = checkpoints["colpali"]
    assert "no documents in" in one_line(run("index", "empty", "-o", "e.index", code=1, cwd=copy))
    assert not (copy / "e.index").exists()
    assert "no such file" in one_line(run("index", "gone", "-o", "e.index", code=1, cwd=copy))
    assert "is not an AnchorFold index" in one_line(run("search", "reports", "x", code=1, cwd=copy))
    assert "does not exist" in one_line(run("info", "none.index", code=1, cwd=copy))
    assert "no query" in one_line(run("search", "my.index", code=1, cwd=copy))
    assert "not empty" in one_line(run("index", "reports", "-o", "reports", "--model", colpali, code=1, cwd=copy))
    assert "is a file" in one_line(run("index", "reports", "-o", "notes.txt", "--model", colpali, code=1, cwd=copy))
    assert "was created with" in one_line(run("index", "reports", "-o", "my.index", "--ratio", "0.1", code=1, cwd=copy))
    assert "no model folder" in one_line(run("index", "reports", "-o", "e.index", "--model", "./x", code=1, cwd=copy))
    run("index", "reports", code=2, cwd=copy)
    run("search", "my.index", "x", "--top-k", "0", code=2, cwd=copy)
    for batch in ("0", "-3"):
        run("index", "reports", "-o", "my.index", "--batch-size", batch, code=2, cwd=copy)
    assert json.loads(run("info", "my.index", "--json", cwd=copy).stdout)["pages"] == 6


def test_unreadable_documents_are_reported_and_skipped(copy, checkpoints):
    bad = copy / "bad"
    bad.mkdir()
    good = write_pdf(bad / "good.pdf", [1]).read_bytes()
    (bad / "empty.pdf").write_bytes(b"")
    (bad / "cut.pdf").write_bytes(good[:150])
    (bad / "text.pdf").write_text("words")
    (bad / ("long " + "x" * 200 + ".pdf")).write_bytes(good)
    (bad / "it's \N{SNOWMAN} [odd].pdf").write_bytes(good)
    Image.new("1", (30_000, 30_000)).save(bad / "bomb.png")
    locked = FPDF()
    locked.add_page()
    locked.set_encryption(owner_password="secret", user_password="secret")
    locked.output(str(bad / "locked.pdf"))
    (bad / "loop").symlink_to(bad)
    completed = run("index", "bad", "-o", "my.index", code=3, cwd=copy)
    skipped = {
        line.split(":")[0].removeprefix("skipped bad/"): line
        for line in completed.stderr.splitlines()
        if "skipped" in line
    }
    assert set(skipped) == {"empty.pdf", "cut.pdf", "text.pdf", "bomb.png", "locked.pdf", "loop"}
    assert "encrypted" in skipped["locked.pdf"]
    assert "more than 175 million pixels" in skipped["bomb.png"]
    info = json.loads(run("info", "my.index", "--json", cwd=copy).stdout)
    assert info["documents"] == 6
    answer = json.loads(run("search", "my.index", "x", "--json", cwd=copy).stdout)
    assert "bad/it's \N{SNOWMAN} [odd].pdf" in [r["document"] for r in answer["results"]]


def test_password_of_encrypted_documents_is_not_stored(copy, checkpoints):
    password = "correct horse"
    (copy / "locked").mkdir()
    write_encrypted(copy / "locked/a.pdf", user=password)
    arguments = ("index", "locked", "-o", "locked.index", "--model", checkpoints["colpali"])
    refused = run(*arguments, code=1, cwd=copy)
    assert "skipped locked/a.pdf: encrypted: set its password with --password" in refused.stderr
    assert "nothing was indexed: 1 of 1 document failed" in one_line(refused)
    assert refused.stdout == ""
    assert not (copy / "locked.index").exists()
    report = run(*arguments, "--json", code=1, cwd=copy).stdout
    assert json.loads(report)["skipped"][0][0] == "locked/a.pdf"
    wrong = run(*arguments, "--password", "hunter2", code=1, cwd=copy)
    assert "encrypted: wrong password" in wrong.stderr
    assert "hunter2" not in wrong.stderr
    done = run("--verbose", *arguments, "--password", password, cwd=copy)
    assert "(1 new, 0 changed, 0 unchanged)" in done.stdout
    assert password not in done.stdout + done.stderr
    stored = [path for path in (copy / "locked.index").rglob("*") if path.is_file()]
    assert not any(password.encode() in path.read_bytes() for path in stored)
    sent = run(*arguments, "--password", password, "--ray", "auto", code=1, cwd=copy)
    assert "set ANCHORFOLD_PDF_PASSWORD in the environment of its nodes" in one_line(sent)
    write_encrypted(copy / "locked/b.pdf", user=password)
    again = completed("index", "locked", "-o", "locked.index", cwd=copy, ANCHORFOLD_PDF_PASSWORD=password)
    assert "(1 new, 0 changed, 1 unchanged)" in again.stdout


def test_existing_index_is_kept_if_all_documents_fail(copy):
    write_encrypted(copy / "locked.pdf")
    run("index", "locked.pdf", "-o", "my.index", code=3, cwd=copy)
    assert json.loads(run("info", "my.index", "--json", cwd=copy).stdout)["pages"] == 6


@pytest.mark.parametrize("content", [b"", b"x", b"SQLite format 3\0" + bytes(5000)])
def test_damaged_database_is_reported_in_one_line(copy, content):
    (copy / "my.index/index.db").write_bytes(content)
    assert "damaged" in one_line(run("search", "my.index", "x", code=1, cwd=copy))
    assert "damaged" in one_line(run("index", "reports", "-o", "my.index", code=1, cwd=copy))


def test_damaged_page_is_repaired_and_indexed_again(folder, copy):
    assert "OK, no problems found" in run("check", "my.index", cwd=copy).stderr
    (path,) = (copy / "my.index/vectors").glob("*.seg")
    data = bytearray(path.read_bytes())
    length, _, _ = TAIL.unpack(data[-TAIL.size :])
    _, shape, start, _ = json.loads(data[-TAIL.size - length : -TAIL.size])["columns"]["codes"]
    data[start + shape[0] * shape[1] // 2] ^= 1
    path.write_bytes(data)
    report = run("check", "my.index", code=1, cwd=copy).stderr
    assert "--repair" in report
    damages = json.loads(run("check", "my.index", "--repair", "--json", cwd=copy).stdout.splitlines()[0])
    (document,) = {name for damage in damages for name in damage["documents"]}
    assert document in report
    run("check", "my.index", cwd=copy)
    assert json.loads(run("info", "my.index", "--json", cwd=copy).stdout)["pages"] < 6
    again = run("index", "./reports", "-o", copy / "my.index", cwd=folder)  # the documents of the index
    assert "2 unchanged" in again.stdout
    run("check", "my.index", cwd=copy)
    assert json.loads(run("info", "my.index", "--json", cwd=copy).stdout)["pages"] == 6


def test_index_of_an_older_version_is_rejected(copy):
    for name in ("logs", "segments"):
        (copy / "old.index" / name).mkdir(parents=True)
    (copy / "old.index/head").write_bytes(b"x")
    for arguments in (("search", "old.index", "x"), ("index", "reports", "-o", "old.index")):
        message = one_line(run(*arguments, code=1, cwd=copy))
        assert "created by anchorfold 0.2" in message
        assert "index the documents into a new folder" in message


def test_interrupted_index_command_is_resumed(copy, checkpoints):
    write_pdf(copy / "many/m.pdf", list(range(400)))
    arguments = ("index", "many", "-o", "m.index", "--model", checkpoints["colpali"])
    data = copy / "m.index/vectors"
    with running(*arguments, cwd=copy) as process:
        while not (data.exists() and os.listdir(data)) and process.process.is_alive():
            time.sleep(0.05)
        process.interrupt()
        stopped = process.wait()
    assert stopped.returncode == 130, stopped.stderr
    assert "run the same command again" in stopped.stdout
    some = json.loads(run("info", "m.index", "--json", cwd=copy).stdout)["pages"]
    assert 0 < some < 400
    run("index", "many", "-o", "m.index", cwd=copy)
    assert json.loads(run("info", "m.index", "--json", cwd=copy).stdout)["pages"] == 400


def test_interrupt_while_waiting_for_the_lock(copy):
    arguments = ("index", "reports", "-o", "my.index")
    with writer_lock(copy / "my.index", 0), running(*arguments, cwd=copy) as process:
        while "waiting for it" not in process.printed("stderr"):
            assert process.process.is_alive(), process.printed("stderr")
            time.sleep(0.05)
        process.interrupt()
        stopped = process.wait()
    assert stopped.returncode == 130
    assert "after this batch" not in stopped.stderr


def test_concurrent_writers(copy):
    write_pdf(copy / "many/m.pdf", list(range(60)))
    write_pdf(copy / "more/n.pdf", list(range(60)))
    with (
        running("index", "many", "-o", "my.index", cwd=copy) as many,
        running("index", "more", "-o", "my.index", cwd=copy) as more,
    ):
        for process in (many, more):
            ended = process.wait()
            assert ended.returncode == 0, ended.stderr
    assert json.loads(run("info", "my.index", "--json", cwd=copy).stdout)["pages"] == 126


FULL_DISK = """
mount -t tmpfs -o size=500k tmpfs disk || exit 77
{python} -m anchorfold index many -o disk/f.index --model {model}
code=$?
{python} -m anchorfold info disk/f.index --json
exit $code
"""


@pytest.mark.slow
def test_full_disk(copy, checkpoints):
    write_pdf(copy / "many/m.pdf", list(range(300)))
    (copy / "disk").mkdir()
    script = FULL_DISK.format(python=sys.executable, model=checkpoints["colpali"])
    own_mounts = ["unshare", "--mount", "--map-root-user", "--user", "sh", "-c", script]
    completed = subprocess.run(own_mounts, cwd=copy, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if completed.returncode == 77 or "unshare" in completed.stderr:
        completed = subprocess.run(["unshare", "--mount", "sh", "-c", script], cwd=copy, env=ENVIRONMENT, capture_output=True, text=True, check=False)  # fmt: skip  # noqa: E501
    if completed.returncode == 77 or "unshare" in completed.stderr:
        pytest.skip("this machine does not let tests mount a small disk")
    assert completed.returncode == 1, completed.stderr
    assert "the disk is full" in one_line(completed)
    assert json.loads(completed.stdout.splitlines()[-1])["pages"] > 0


def test_demo_with_a_file(copy, checkpoints):
    completed = run("demo", "reports/a.pdf", "--query", "a question", "--model", checkpoints["colpali"], cwd=copy)
    assert "a question" in completed.stdout
    assert "compression ratio" in completed.stdout
    assert Path(copy / "anchorfold-demo").is_dir()


def test_explain(folder, tmp_path):
    page = ("--document", "a.pdf", "--page")
    completed = run("explain", "my.index", "net revenue", *page, "2", "-o", tmp_path / "why.png", cwd=folder)
    assert "of the uncompressed score" in completed.stdout
    search = ("search", "my.index", "net revenue", "--mode", "visual")
    hits = json.loads(run(*search, "--json", "--top-k", "6", cwd=folder).stdout)["results"]
    (second,) = (hit for hit in hits if (hit["document"], hit["page"]) == ("reports/a.pdf", 2))
    assert f"a.pdf page 2: visual score {second['score']:.3f}" in completed.stdout
    picture = np.asarray(Image.open(tmp_path / "why.png").convert("L")).astype(int)
    for level in (10, 60):  # the bands of page 2; a random model finds no evidence to paint over them
        assert (abs(picture - level) < 5).mean() > 0.02
    best = run("explain", "my.index", "net revenue", "-o", tmp_path / "best.jpg", cwd=folder)
    assert f"{hits[0]['document']} page {hits[0]['page']}: visual score {hits[0]['score']:.3f}" in best.stdout
    assert "requires --document" in one_line(run("explain", "my.index", "x", "--page", "2", code=1, cwd=folder))
    only = run("explain", "my.index", "net revenue", "--document", "a.pdf", "-o", tmp_path / "a.png", cwd=folder).stdout
    assert "a.pdf page" in only
    assert "no page 9" in one_line(run("explain", "my.index", "x", *page, "9", code=1, cwd=folder))
    assert "cannot be written" in one_line(run("explain", "my.index", "x", "-o", "/nowhere/x.png", code=1, cwd=folder))


def test_serve_reports_a_wrong_path(folder):
    assert "is not an AnchorFold index" in one_line(run("serve", "reports", "--no-browser", code=1, cwd=folder))


def test_help_contains_examples():
    for name in ("index", "search", "remove", "info", "export", "demo", "explain", "serve"):
        assert f"anchorfold {name}" in run(name, "--help").stdout
    assert run("--version").stdout.startswith("anchorfold ")


def test_bench_agreement(folder, tmp_path):
    (tmp_path / "queries.jsonl").write_text('{"id": 1, "text": "net revenue by region"}\n\nstaff costs\n')
    small = run("bench", "agreement", folder / "my.index", tmp_path / "queries.jsonl", code=1)
    assert "6 pages and no candidate stage" in one_line(small)
    store = new_store(tmp_path / "large.index", 128, 1, "nano", NanoQueryEncoder().fingerprint)
    append_pages(store, *random_pages(FIRST_PAGES, 128, 1, 2))
    with store.writing():
        update_lists(store)
    arguments = ("bench", "agreement", tmp_path / "large.index", tmp_path / "queries.jsonl")
    report = json.loads(run(*arguments, "--json").stdout)
    assert [f["candidates"] for f in report["figures"]][:3] == [50, 100, 200]
    assert report["figures"][-1]["overlap"] > 0.5
    assert "time / full scan" in run(*arguments).stdout
    hits = json.loads(run("search", tmp_path / "large.index", "staff costs", "--candidates", 500, "--json").stdout)
    assert len(hits["results"]) == 10
    (tmp_path / "queries.jsonl").write_text("{broken")
    assert "neither a query nor JSON" in one_line(run(*arguments, code=1))
