"""A run that was killed goes on and finds the same numbers; another run in its folder is refused, and why."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.errors import MismatchError
from anchorfold.evaluation import run_key
from anchorfold.evaluation.collect import SAVE_EVERY, collect
from anchorfold.evaluation.corpus import local_corpus
from anchorfold.evaluation.methods import Method, choose_methods
from anchorfold.evaluation.run import evaluate
from anchorfold.page import EncodedPage, PageState, PatchGrid
from tests.number_reader import COLUMNS, ROWS, NumberReader, number_vectors, read_number, write_pdf

PAGES = 40
METHODS = choose_methods("anchorfold,sap,docpruner,1d-pooling", [0.5, 0.25])


class Reader(NumberReader):
    """Kills its own process when it has read so many pages."""

    dtype = torch.float32

    def __init__(self, life=None):
        super().__init__()
        self.life, self.read = life, count()

    def page_states(self, images, signals=()):
        for image in images:
            if next(self.read) == self.life:
                os.kill(os.getpid(), signal.SIGKILL)
            number = read_number(image)
            values = {s: torch.rand(ROWS * COLUMNS, generator=torch.Generator().manual_seed(number)) for s in signals}
            vectors = torch.from_numpy(number_vectors(number))
            yield PageState(vectors, lambda z: z, values, PatchGrid.single(ROWS, COLUMNS))

    def compress(self, state, compressor):
        folded = compressor.compress(state, self.settings)
        return EncodedPage(folded.vectors, folded.anchors, folded.groups, folded.weights, state.grid)


def write_corpus(folder):
    write_pdf(folder / "pdfs/a.pdf", list(range(100, 100 + PAGES // 2)))
    write_pdf(folder / "pdfs/b.pdf", list(range(200, 200 + PAGES // 2)))
    lines = [
        {"id": f"{file}{i}", "text": f"number {start + i}", "relevant": [[f"{file}.pdf", i]]}
        for file, start in (("a", 100), ("b", 200))
        for i in range(PAGES // 2)
    ]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


@pytest.fixture(scope="module", autouse=True)
def _one_core():
    """Pages are tiny: threads would spend their time waiting for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def finished(corpus, tmp_path_factory):
    """The folder of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    run(corpus, folder)
    return folder


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of it that a test may change."""
    return shutil.copytree(finished, tmp_path / "run")


def results(folder):
    return json.loads((folder / "results.json").read_text())


def run(corpus, folder, life=None, told=None):
    evaluate(local_corpus(corpus), Reader(life), METHODS, folder, (told if told is not None else []).append)
    return results(folder)


# Pages read before the kill: while thresholds are found (the whole corpus is held out for that), then before the first
# save with nothing, and with part of it, on disk, then after it.
LIVES = {"calibrating": 10, "first pages": PAGES + 3, "unsaved pages": PAGES + SAVE_EVERY - 1, "saved": PAGES + 25}


def test_a_killed_run_finds_the_same_numbers(corpus, finished, tmp_path):
    command = [sys.executable, "-m", "tests.evaluation.test_resuming", str(corpus), str(tmp_path)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(-signal.SIGKILL)] * len(LIVES)
    assert results(finished)["rows"][0]["ndcg"] == pytest.approx(100)
    for when in LIVES:
        assert not (tmp_path / when / "results.json").exists()
        told = []
        assert run(corpus, tmp_path / when, told=told) == results(finished)
        first = SAVE_EVERY + 1 if when == "saved" else 1
        assert told[0].endswith(f": {first} pages encoded")


def test_files_of_a_run_without_a_state_are_not_added_to(corpus, copied):
    whole = results(copied)
    (copied / "state.json").unlink()
    assert run(corpus, copied) == whole


def test_a_finished_run_is_not_encoded_again(corpus, copied):
    whole = results(copied)
    assert run(corpus, copied, life=0) == whole


def test_files_that_lost_something_are_not_filled_with_zeros(corpus, copied):
    path = copied / "sap@0.5.vectors"
    os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(MismatchError, match=r"sap@0.5.vectors is shorter than its run has saved"):
        run(corpus, copied)


class TestAnotherRun:
    @pytest.fixture
    def own(self, corpus, copied):
        """A corpus that a test may change, beside a run on it."""
        return shutil.copytree(corpus, copied.parent / "corpus")

    def refused(self, own, message, model=None, methods=METHODS, documents=None):
        files = {p.name: p.read_bytes() for p in (own.parent / "run").iterdir()}
        with pytest.raises(MismatchError, match=message):
            collect(local_corpus(own, documents), model or Reader(), methods, own.parent / "run")
        assert files == {p.name: p.read_bytes() for p in (own.parent / "run").iterdir()}

    def test_of_some_documents(self, own):
        self.refused(own, r"document b.pdf was \d+ bytes, digest \w+, is absent now", documents=["a.pdf"])

    def test_of_a_changed_document(self, own):
        write_pdf(own / "pdfs/b.pdf", list(range(300, 300 + PAGES // 2)))
        self.refused(own, r"document b.pdf was \d+ bytes, digest (\w+), is \d+ bytes, digest (?!\1)\w+ now")

    def test_without_some_pages(self, own):
        (own / "exclude_pages.json").write_text('{"a.pdf": [3]}')
        self.refused(own, r"is \d+ bytes, digest \w+, without pages \[3\] now")

    def test_with_other_queries(self, own):
        lines = (own / "queries.jsonl").read_text().splitlines()
        (own / "queries.jsonl").write_text("\n".join(lines[1:]))
        self.refused(own, "queries was 40, digest .*, is 39, digest .* now")

    def test_with_another_model(self, own):
        model = Reader()
        model.fingerprint = "number-reader-2"
        self.refused(own, "model was number number-reader-1 .*, is number number-reader-2 .* now", model)

    def test_in_another_precision(self, own):
        model = Reader()
        model.dtype = torch.bfloat16
        self.refused(own, r"in torch.float32, is .* in torch.bfloat16 now", model)

    @pytest.mark.parametrize(("name", "value"), [
        ("window", (0, 2)), ("sap_window", (0, 1)), ("steps", 3), ("layers", 5), ("universal", 2),
    ])  # fmt: skip
    def test_with_other_layers(self, own, name, value):
        model = Reader()
        model.settings = replace(LayerSettings(window=(1, 2), sap_window=(1, 2), layers=4), **{name: value})
        shown = str(list(value) if isinstance(value, tuple) else value).replace("[", r"\[")
        self.refused(own, f"layers {name} was .*, is {shown} now", model)

    def test_with_larger_pages(self, own):
        model = Reader()
        model.page_pixels = 50_000
        self.refused(own, "pixels of a page was 40000, is 50000 now", model)

    def test_with_other_options_under_the_same_label(self, own, tmp_path):
        full, depth = Method("none", 1.0), Method("K=2", 0.25, window=(1, 2), steps=2)
        collect(local_corpus(own), Reader(), [full, depth], tmp_path / "depths")
        with pytest.raises(MismatchError, match=r"method K=2@0.25 was .*\(1, 2\).*, is .*\(2, 3\).* now"):
            collect(local_corpus(own), Reader(), [full, replace(depth, window=(2, 3))], tmp_path / "depths")

    def test_of_another_version(self, own, monkeypatch):
        monkeypatch.setattr(run_key, "__version__", "9.9")
        self.refused(own, r"anchorfold was .*, is 9.9 now")

    def test_of_a_version_that_kept_no_key(self, own):
        state = own.parent / "run" / "state.json"
        state.write_text(json.dumps({"about": {}, "pages": [], "sizes": {}, "thresholds": {}}))
        self.refused(own, "anchorfold was absent")

    def test_whose_state_is_damaged(self, own):
        (own.parent / "run" / "state.json").write_text("{")
        self.refused(own, "cannot be read")

    def test_but_a_corpus_that_only_moved_goes_on(self, own, tmp_path):
        moved = own.rename(tmp_path / "elsewhere")
        assert len(collect(local_corpus(moved), Reader(0), METHODS, tmp_path / "run").pages) == PAGES


def die_in_time(corpus, folder):
    """One run that is killed in each of the ways, each a process of its own; prints how they ended."""
    fork = multiprocessing.get_context("fork")  # the imports take longer than the runs
    for when, life in LIVES.items():
        process = fork.Process(target=run, args=(corpus, folder / when, life))
        process.start()
        process.join()
        print(process.exitcode)


if __name__ == "__main__":
    torch.set_num_threads(1)
    die_in_time(Path(sys.argv[1]), Path(sys.argv[2]))
