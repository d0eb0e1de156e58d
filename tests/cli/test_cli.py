"""The command line as users run it: a real process for each, on a tiny checkpoint of the true architecture."""

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

from anchorfold.backbones.nano.query_side import QuerySide
from anchorfold.index.candidate_files import update_lists
from anchorfold.index.candidates import FIRST_PAGES
from anchorfold.index.embedded import EmbeddedStore
from anchorfold.index.store.lock import writer_lock
from benchmarks.invented_index import append_pages, new_store, random_pages
from tests.cli.processes import run
from tests.documents.test_pages import write_encrypted
from tests.forked import ENVIRONMENT, completed, running
from tests.number_reader import page_image, write_pdf


@pytest.fixture(scope="module")
def folder(tmp_path_factory, checkpoints):
    """A folder with reports/ and an index of it."""
    folder = tmp_path_factory.mktemp("cli")
    write_pdf(folder / "reports/a.pdf", [1, 2, 3])
    write_pdf(folder / "reports/old.pdf", [11, 12])
    page_image(77).save(folder / "reports/scan.png")
    run("index", "./reports", "--to", "my.index", "--model", checkpoints["colpali"], cwd=folder)
    return folder


@pytest.fixture
def copy(folder, tmp_path):
    """A copy, for tests that change it."""
    shutil.copytree(folder, tmp_path / "work")
    return tmp_path / "work"


def test_index_tells_what_it_did_and_does_only_what_changed(copy):
    run("index", "./reports", "--to", "my.index", cwd=copy)
    write_pdf(copy / "reports/new.pdf", [5, 6])
    completed = run("--verbose", "index", "./reports", "--to", "my.index", cwd=copy)
    assert "anchorfold.documents.render_process: renderer" in completed.stderr
    lines = {line.split("  ")[0]: line for line in completed.stdout.splitlines()}
    assert "(1 new, 0 changed, 3 unchanged)" in completed.stdout
    assert {"documents", "pages", "vectors before", "vectors after", "times smaller", "on disk", "skipped"} <= set(
        lines
    )


def test_index_reports_ignored_files_by_extension(copy):
    for name in ("a.docx", "b.docx", "c.xlsx", ".hidden.txt"):
        (copy / "reports" / name).write_text("x")
    completed = run("index", "./reports", "--to", "my.index", cwd=copy)
    assert completed.stdout.splitlines()[-1] == "Ignored 3 files: 2 .docx, 1 .xlsx."
    report = json.loads(run("index", "./reports", "--to", "my.index", "--json", cwd=copy).stdout)
    assert report["ignored"] == {".docx": 2, ".xlsx": 1}


def test_small_fills_in_what_is_not_given(copy, checkpoints):
    options = ("index", "reports/old.pdf", "--model", checkpoints["colpali"], "--small")
    run(*options, "--to", "small.index", cwd=copy)
    settings = EmbeddedStore.open(copy / "small.index").settings
    assert (settings.options["ratio"], settings.bits) == (0.05, 2)
    run(*options, "--to", "smaller.index", "--cap", "3", "--bits", "1", cwd=copy)
    settings = EmbeddedStore.open(copy / "smaller.index").settings
    assert (settings.options["cap"], settings.options.get("ratio"), settings.bits) == (3, None, 1)


def test_search_prints_a_table_and_json(folder):
    plain = run("search", "my.index", "net revenue by region", cwd=folder).stdout.splitlines()
    assert plain[0].split() == ["score", "document", "page"]
    assert len(plain) == 7
    answer = json.loads(run("search", "my.index", "net revenue", "--json", "--top", "3", cwd=folder).stdout)
    assert answer["query"] == "net revenue"
    assert len(answer["results"]) == 3
    assert set(answer["results"][0]) == {"document", "page", "score", "metadata"}
    assert {r["document"] for r in answer["results"]} <= {"reports/a.pdf", "reports/old.pdf", "reports/scan.png"}
    assert all(r["page"] >= 1 for r in answer["results"])
    scores = [r["score"] for r in answer["results"]]
    assert scores == sorted(scores, reverse=True)


def test_search_takes_several_queries_from_standard_input(folder):
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
    assert info["full_vector_bytes"] / info["vector_bytes"] == pytest.approx(info["vectors_times_smaller"], abs=0.01)
    on_disk = info["bytes"] - info["thumbnail_bytes"] - info["text_bytes"]
    assert info["full_vector_bytes"] / on_disk == pytest.approx(info["times_smaller"], abs=0.01)
    assert "times smaller" in run("info", "my.index", cwd=folder).stdout


def test_remove_and_prune(copy):
    assert run("remove", "my.index", "reports/old.pdf", cwd=copy).stdout == "removed reports/old.pdf\n"
    assert json.loads(run("info", "my.index", "--json", cwd=copy).stdout)["documents"] == 2
    assert "nothing was changed" in run("remove", "my.index", "reports/old.pdf", code=1, cwd=copy).stderr


def test_removing_several_documents_by_a_pattern_is_asked_about(copy):
    refused = run("remove", "my.index", "reports", code=1, stdin="n\n", cwd=copy)
    assert "Remove 3 documents" in refused.stderr
    assert "nothing was removed" in refused.stderr
    run("remove", "my.index", "reports", code=1, stdin="", cwd=copy)  # nobody is there to answer
    assert "empty name" in one_line(run("remove", "my.index", "", "--yes", code=1, cwd=copy))
    assert "empty name" in one_line(run("search", "my.index", "x", "-d", "", code=1, cwd=copy))
    assert json.loads(run("info", "my.index", "--json", cwd=copy).stdout)["documents"] == 3
    assert run("remove", "my.index", "*.pdf", "--yes", cwd=copy).stdout.count("removed") == 2
    assert run("remove", "my.index", "reports", cwd=copy).stdout == "removed reports/scan.png\n"


def test_an_index_finds_its_model_from_anywhere_and_after_a_move(tmp_path, checkpoints):
    home = tmp_path / "home"
    write_pdf(home / "reports/a.pdf", [1])
    shutil.copytree(checkpoints["colpali"], home / "m")
    run("index", "reports", "--to", "my.index", "--model", "./m", cwd=home)
    (tmp_path / "elsewhere").mkdir()
    run("search", home / "my.index", "x", cwd=tmp_path / "elsewhere")
    (home / "m").rename(home / "moved")
    lost = one_line(run("search", home / "my.index", "x", code=1, cwd=tmp_path / "elsewhere"))
    assert str(home / "m") in lost
    assert "--model" in lost
    run("search", home / "my.index", "x", "--model", home / "moved", cwd=tmp_path / "elsewhere")
    write_pdf(home / "reports/b.pdf", [2])
    run("index", "reports", "--to", "my.index", "--model", "./moved", cwd=home)
    other = one_line(run("search", home / "my.index", "x", "--model", checkpoints["colqwen2"], code=1, cwd=home))
    assert "another model" in other


def test_export(copy):
    pytest.importorskip("qdrant_client")
    written = run("export", "my.index", "--to", "npz", cwd=copy).stdout
    assert f"wrote 6 pages ({(copy / 'my.npz').stat().st_size / 1000:.1f} kB)" in written
    assert "wrote 6 pages" in run("export", "my.index", "--to", "parquet", "--file", "p.parquet", cwd=copy).stdout
    uploaded = run("export", "my.index", "--to", "qdrant", "--url", "q", "--quantization", "turbo4", cwd=copy).stdout
    assert "uploaded 6 new pages" in uploaded
    assert re.search(r"The collection takes about .*B: vectors .*B, turbo4 copy .*B \(in RAM\), payload", uploaded)
    assert "uploaded 0 new pages" in run("export", "my.index", "--to", "qdrant", "--url", "q", cwd=copy).stdout
    refused = run("export", "my.index", "--to", "npz", "--quantization", "scalar", code=1, cwd=copy)
    assert "--quantization cannot be used with npz: leave it out" in one_line(refused)
    assert "needs --url" in run("export", "my.index", "--to", "qdrant", code=1, cwd=copy).stderr


def one_line(completed):
    lines = [line for line in completed.stderr.splitlines() if line.startswith("anchorfold:")]
    assert len(lines) == 1, completed.stderr
    return lines[0]


def test_mistakes_are_one_line_and_a_non_zero_exit(copy, checkpoints):
    (copy / "empty").mkdir()
    (copy / "notes.txt").write_text("x")
    colpali = checkpoints["colpali"]
    assert "holds no document" in one_line(run("index", "empty", "--to", "e.index", code=1, cwd=copy))
    assert not (copy / "e.index").exists()
    assert "no such file" in one_line(run("index", "gone", "--to", "e.index", code=1, cwd=copy))
    assert "is not an AnchorFold index" in one_line(run("search", "reports", "x", code=1, cwd=copy))
    assert "does not exist" in one_line(run("info", "none.index", code=1, cwd=copy))
    assert "no query" in one_line(run("search", "my.index", code=1, cwd=copy))
    assert "not empty" in one_line(run("index", "reports", "--to", "reports", "--model", colpali, code=1, cwd=copy))
    assert "is a file" in one_line(run("index", "reports", "--to", "notes.txt", "--model", colpali, code=1, cwd=copy))
    assert "was made with" in one_line(run("index", "reports", "--to", "my.index", "--ratio", "0.1", code=1, cwd=copy))
    assert "no model folder" in one_line(run("index", "reports", "--to", "e.index", "--model", "./x", code=1, cwd=copy))
    run("index", "reports", code=2, cwd=copy)
    run("search", "my.index", "x", "--top", "0", code=2, cwd=copy)
    for batch in ("0", "-3"):
        run("index", "reports", "--to", "my.index", "--batch", batch, code=2, cwd=copy)
    assert json.loads(run("info", "my.index", "--json", cwd=copy).stdout)["pages"] == 6


def test_bad_documents_are_a_line_each_and_the_rest_goes_on(copy, checkpoints):
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
    completed = run("index", "bad", "--to", "my.index", code=3, cwd=copy)
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


def test_encrypted_documents_need_the_password_which_is_not_stored(copy, checkpoints):
    password = "correct horse"
    (copy / "locked").mkdir()
    write_encrypted(copy / "locked/a.pdf", user=password)
    arguments = ("index", "locked", "--to", "locked.index", "--model", checkpoints["colpali"])
    refused = run(*arguments, code=1, cwd=copy)
    assert "skipped locked/a.pdf: encrypted: give its password with --password" in refused.stderr
    assert "nothing was indexed: 1 of 1 documents failed" in one_line(refused)
    assert refused.stdout == ""
    assert not (copy / "locked.index").exists()
    report = run(*arguments, "--json", code=1, cwd=copy).stdout
    assert json.loads(report)["skipped"][0][0] == "locked/a.pdf"
    wrong = run(*arguments, "--password", "hunter2", code=1, cwd=copy)
    assert "the given password is wrong" in wrong.stderr
    assert "hunter2" not in wrong.stderr
    done = run("--verbose", *arguments, "--password", password, cwd=copy)
    assert "(1 new, 0 changed, 0 unchanged)" in done.stdout
    assert password not in done.stdout + done.stderr
    stored = [path for path in (copy / "locked.index").rglob("*") if path.is_file()]
    assert not any(password.encode() in path.read_bytes() for path in stored)
    sent = run(*arguments, "--password", password, "--ray", "auto", code=1, cwd=copy)
    assert "set ANCHORFOLD_PDF_PASSWORD in the environment of its nodes" in one_line(sent)
    write_encrypted(copy / "locked/b.pdf", user=password)
    again = completed("index", "locked", "--to", "locked.index", cwd=copy, ANCHORFOLD_PDF_PASSWORD=password)
    assert "(1 new, 0 changed, 1 unchanged)" in again.stdout


def test_an_index_that_exists_is_kept_if_all_documents_fail(copy):
    write_encrypted(copy / "locked.pdf")
    run("index", "locked.pdf", "--to", "my.index", code=3, cwd=copy)
    assert json.loads(run("info", "my.index", "--json", cwd=copy).stdout)["pages"] == 6


@pytest.mark.parametrize("content", [b"", b"x", b"SQLite format 3\0" + bytes(5000)])
def test_a_damaged_database_is_one_line(copy, content):
    (copy / "my.index/index.db").write_bytes(content)
    assert "damaged" in one_line(run("search", "my.index", "x", code=1, cwd=copy))
    assert "damaged" in one_line(run("index", "reports", "--to", "my.index", code=1, cwd=copy))


def test_a_damaged_page_is_found_dropped_and_made_again(folder, copy):
    assert "OK, no problems found" in run("check", "my.index", cwd=copy).stderr
    (path,) = (copy / "my.index/vectors").glob("*.seg")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    report = run("check", "my.index", code=1, cwd=copy).stderr
    assert "--repair" in report
    damages = json.loads(run("check", "my.index", "--repair", "--json", cwd=copy).stdout.splitlines()[0])
    (document,) = {name for damage in damages for name in damage["documents"]}
    assert document in report
    run("check", "my.index", cwd=copy)
    assert json.loads(run("info", "my.index", "--json", cwd=copy).stdout)["pages"] < 6
    again = run("index", "./reports", "--to", copy / "my.index", cwd=folder)  # the documents of the index
    assert "2 unchanged" in again.stdout
    run("check", "my.index", cwd=copy)
    assert json.loads(run("info", "my.index", "--json", cwd=copy).stdout)["pages"] == 6


def test_an_index_of_an_older_version_is_refused(copy):
    for name in ("logs", "segments"):
        (copy / "old.index" / name).mkdir(parents=True)
    (copy / "old.index/head").write_bytes(b"x")
    for arguments in (("search", "old.index", "x"), ("index", "reports", "--to", "old.index")):
        message = one_line(run(*arguments, code=1, cwd=copy))
        assert "created by anchorfold 0.2" in message
        assert "index the documents into a new folder" in message


def test_ctrl_c_stops_cleanly_and_the_same_command_finishes(copy, checkpoints):
    write_pdf(copy / "many/m.pdf", list(range(400)))
    arguments = ("index", "many", "--to", "m.index", "--model", checkpoints["colpali"])
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
    run("index", "many", "--to", "m.index", cwd=copy)
    assert json.loads(run("info", "m.index", "--json", cwd=copy).stdout)["pages"] == 400


def test_ctrl_c_while_waiting_for_another_writer_ends_at_once(copy):
    arguments = ("index", "reports", "--to", "my.index")
    with writer_lock(copy / "my.index", 0), running(*arguments, cwd=copy) as process:
        while "waiting for it" not in process.printed("stderr"):
            assert process.process.is_alive(), process.printed("stderr")
            time.sleep(0.05)
        process.interrupt()
        stopped = process.wait()
    assert stopped.returncode == 130
    assert "after this batch" not in stopped.stderr


def test_two_writers_take_turns(copy):
    write_pdf(copy / "many/m.pdf", list(range(60)))
    write_pdf(copy / "more/n.pdf", list(range(60)))
    with (
        running("index", "many", "--to", "my.index", cwd=copy) as many,
        running("index", "more", "--to", "my.index", cwd=copy) as more,
    ):
        for process in (many, more):
            ended = process.wait()
            assert ended.returncode == 0, ended.stderr
    assert json.loads(run("info", "my.index", "--json", cwd=copy).stdout)["pages"] == 126


FULL_DISK = """
mount -t tmpfs -o size=500k tmpfs disk || exit 77
{python} -m anchorfold index many --to disk/f.index --model {model}
code=$?
{python} -m anchorfold info disk/f.index --json
exit $code
"""


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_keeps_what_was_stored(copy, checkpoints):
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


def test_demo_on_a_file_of_the_users_own(copy, checkpoints):
    completed = run("demo", "reports/a.pdf", "--ask", "a question", "--model", checkpoints["colpali"], cwd=copy)
    assert "a question" in completed.stdout
    assert "times smaller than the full index" in completed.stdout
    assert Path(copy / "anchorfold-demo").is_dir()


def test_explain_draws_a_picture(folder, tmp_path):
    completed = run("explain", "my.index", "net revenue", "--page", "a.pdf:2", "--to", tmp_path / "why.png", cwd=folder)
    assert "of the full index's score" in completed.stdout
    hits = json.loads(run("search", "my.index", "net revenue", "--json", "--top", "6", cwd=folder).stdout)["results"]
    (second,) = (hit for hit in hits if (hit["document"], hit["page"]) == ("reports/a.pdf", 2))
    assert f"a.pdf page 2: score {second['score']:.3f}" in completed.stdout
    picture = np.asarray(Image.open(tmp_path / "why.png").convert("L")).astype(int)
    for level in (10, 60):  # the bands of page 2; a random model finds no evidence to paint over them
        assert (abs(picture - level) < 5).mean() > 0.02
    best = run("explain", "my.index", "net revenue", "--to", tmp_path / "best.jpg", cwd=folder)
    assert f"{hits[0]['document']} page {hits[0]['page']}: score {hits[0]['score']:.3f}" in best.stdout
    assert "document:page" in one_line(run("explain", "my.index", "x", "--page", "a.pdf", code=1, cwd=folder))
    assert "no page 9" in one_line(run("explain", "my.index", "x", "--page", "a.pdf:9", code=1, cwd=folder))
    assert "cannot be written" in one_line(
        run("explain", "my.index", "x", "--to", "/nowhere/x.png", code=1, cwd=folder)
    )


def test_serve_says_what_is_wrong(folder):
    assert "is not an AnchorFold index" in one_line(run("serve", "reports", "--no-browser", code=1, cwd=folder))


def test_help_teaches_with_examples():
    for name in ("index", "search", "remove", "info", "export", "demo", "explain", "serve"):
        assert f"anchorfold {name}" in run(name, "--help").stdout
    assert run("--version").stdout.startswith("anchorfold ")


def test_agreement_of_candidates_with_a_scan_of_everything(folder, tmp_path):
    (tmp_path / "queries.jsonl").write_text('{"id": 1, "text": "net revenue by region"}\n\nstaff costs\n')
    small = run("bench", "agreement", folder / "my.index", tmp_path / "queries.jsonl", code=1)
    assert "6 pages and no candidate stage" in one_line(small)
    store = new_store(tmp_path / "large.index", 128, 1, "nano", QuerySide().fingerprint)
    append_pages(store, *random_pages(FIRST_PAGES, 128, 1, 2))
    with store.writing():
        update_lists(store)
    arguments = ("bench", "agreement", tmp_path / "large.index", tmp_path / "queries.jsonl")
    report = json.loads(run(*arguments, "--json").stdout)
    assert [f["candidates"] for f in report["figures"]][:3] == [50, 100, 200]
    assert report["figures"][-1]["overlap"] > 0.5
    assert "time / scan of all" in run(*arguments).stdout
    hits = json.loads(run("search", tmp_path / "large.index", "staff costs", "--candidates", 500, "--json").stdout)
    assert len(hits["results"]) == 10
    (tmp_path / "queries.jsonl").write_text("{broken")
    assert "neither a query nor JSON" in one_line(run(*arguments, code=1))
