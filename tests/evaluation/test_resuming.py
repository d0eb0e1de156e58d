"""A run that was killed goes on and finds the same numbers; another run in its folder is refused, and why."""

import json
import os
import shutil
import signal
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.errors import MismatchError
from anchorfold.evaluation import run_folder as run_key
from anchorfold.evaluation.corpus import local_corpus
from anchorfold.evaluation.held_out_pages import calibrated_compressors, find_held_out
from anchorfold.evaluation.methods import Method, choose_methods
from anchorfold.evaluation.run import evaluate, model_folder
from anchorfold.evaluation.score_pages import SAVE_EVERY, score_pages
from anchorfold.page import PageState, PatchGrid
from tests import forked
from tests.number_reader import COLUMNS, ROWS, NumberReader, number_vectors, read_number, write_pdf

PAGES, HELD_OUT = 40, "held-out pages"
METHODS = choose_methods("anchorfold,sap,docpruner,1d-pooling", [0.5, 0.25])


class Reader(NumberReader):
    """Kills its own process when it has read so many pages."""

    dtype, device = torch.float32, torch.device("cpu")

    def __init__(self, life=None):
        super().__init__()
        self.life, self.read = life, count()

    def prepare_pages(self, images):
        return [read_number(image) for image in images]

    def prepared_states(self, numbers, signals):
        return [self.state(number, signals) for number in numbers]

    def page_states(self, images, signals=(), batch_size=None):
        return (self.state(read_number(image), signals) for image in images)

    def state(self, number, signals):
        if next(self.read) == self.life:
            os.kill(os.getpid(), signal.SIGKILL)
        values = {s: torch.rand(ROWS * COLUMNS, generator=torch.Generator().manual_seed(number)) for s in signals}
        return PageState(torch.from_numpy(number_vectors(number)), lambda z: z, values, PatchGrid.single(ROWS, COLUMNS))


def reader(life=None) -> Any:
    """It is no `BackboneEncoder`, but has what an evaluation calls."""
    return Reader(life)


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


def compressors_of(corpus, model, methods, folder):
    held_out = replace(find_held_out(str(corpus), [], model.page_pixels), source=HELD_OUT)
    return calibrated_compressors(methods, model, held_out, folder / "calibrated.json")[0]


def score(corpus, compressors, folder, model=None, documents=None):
    return score_pages(local_corpus(corpus, documents), model or reader(), compressors, folder, calibrated_on=HELD_OUT)


def run(corpus, folder, life=None, lines=None):
    model = reader(life)
    compressors = compressors_of(corpus, model, METHODS, folder)
    tell = (lines if lines is not None else []).append
    evaluate(local_corpus(corpus), model, METHODS, compressors, folder, tell, calibrated_on=HELD_OUT)
    return results(folder)


# Pages read before the kill: while thresholds are found (the whole corpus is held out for that), then before the first
# save with nothing, and with part of it, on disk, then after it.
LIVES = {"calibrating": 10, "first pages": PAGES + 3, "unsaved pages": PAGES + SAVE_EVERY - 1, "saved": PAGES + 35}


@pytest.mark.slow
def test_a_killed_run_finds_the_same_numbers(corpus, finished, tmp_path):
    for when, life in LIVES.items():
        process = forked.start(run, corpus, tmp_path / when, life)
        process.join()
        assert process.exitcode == -signal.SIGKILL
    assert results(finished)["rows"][0]["ndcg"] == pytest.approx(100)
    for when in LIVES:
        assert not (tmp_path / when / "results.json").exists()
        lines: list[str] = []
        assert run(corpus, tmp_path / when, lines=lines) == results(finished)
        first = SAVE_EVERY + 1 if when == "saved" else 1
        assert lines[0].endswith(f": {first} of {PAGES} pages")
    # Thresholds that were found are not looked for again.
    assert (tmp_path / "saved" / "calibrated.json").exists()


def test_two_models_under_one_folder_have_folders_of_their_own(tmp_path):
    one, other = reader(), reader()
    other.fingerprint = "another-reader"
    assert model_folder(tmp_path, one) != model_folder(tmp_path, other)
    assert model_folder(tmp_path, one) == model_folder(tmp_path, reader())


def test_files_of_a_run_without_a_state_are_not_added_to(corpus, copied):
    whole = results(copied)
    (copied / "state.json").unlink()
    assert run(corpus, copied) == whole


def test_a_finished_run_is_not_encoded_again(corpus, copied):
    whole = results(copied)
    assert run(corpus, copied, life=0) == whole


def test_files_that_lost_something_are_not_filled_with_zeros(corpus, copied):
    path = copied / "sap@0.5.scores"
    os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(MismatchError, match=r"sap@0.5.scores is shorter than its saved state"):
        run(corpus, copied)


class TestAnotherRun:
    @pytest.fixture
    def own(self, corpus, copied):
        """A corpus that a test may change, beside a run on it."""
        self.calibrated = corpus
        return shutil.copytree(corpus, copied.parent / "corpus")

    def refused(self, own, message, model=None, methods=METHODS, documents=None):
        files = {p.name: p.read_bytes() for p in (own.parent / "run").iterdir()}
        compressors = compressors_of(self.calibrated, reader(), methods, own.parent)
        with pytest.raises(MismatchError, match=message):
            score(own, compressors, own.parent / "run", model or reader(), documents)
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
        model = reader()
        model.fingerprint = "number-reader-2"
        self.refused(own, "model was number number-reader-1 .*, is number number-reader-2 .* now", model)

    def test_in_another_precision(self, own):
        model = reader()
        model.dtype = torch.bfloat16
        self.refused(own, r"in torch.float32 on cpu, is .* in torch.bfloat16 on cpu now", model)

    @pytest.mark.parametrize(("name", "value"), [
        ("window", (0, 2)), ("sap_window", (0, 1)), ("steps", 3), ("layers", 5), ("universal", 2),
    ])  # fmt: skip
    def test_with_other_layers(self, own, name, value):
        model = reader()
        model.layer_settings = replace(LayerSettings(window=(1, 2), sap_window=(1, 2), layers=4), **{name: value})
        shown = str(list(value) if isinstance(value, tuple) else value).replace("[", r"\[")
        self.refused(own, f"layers {name} was .*, is {shown} now", model)

    def test_with_larger_pages(self, own):
        model = reader()
        model.page_pixels = 50_000
        self.refused(own, "pixels of a page was 40000, is 50000 now", model)

    def test_with_other_options_under_the_same_label(self, own, tmp_path):
        full, depth = Method("none", 1.0), Method("K=2", 0.25, window=(1, 2), steps=2)
        score(own, {m.label: m.make() for m in (full, depth)}, tmp_path / "depths")
        other = {m.label: m.make() for m in (full, replace(depth, window=(2, 3)))}
        with pytest.raises(MismatchError, match=r"method K=2@0.25 was .*\(1, 2\).*, is .*\(2, 3\).* now"):
            score(own, other, tmp_path / "depths")

    def test_calibrated_on_other_pages(self, own):
        compressors = compressors_of(self.calibrated, reader(), METHODS, own.parent)
        with pytest.raises(MismatchError, match="calibration was held-out pages, is the evaluated pages now"):
            score_pages(
                local_corpus(own), reader(), compressors, own.parent / "run", calibrated_on="the evaluated pages"
            )

    def test_with_other_thresholds(self, own):
        compressors = {m.label: m.make() for m in METHODS}
        for compressor in (c for c in compressors.values() if not c.ready):
            vars(compressor)["threshold"] = 0.5
        with pytest.raises(MismatchError, match=r"method docpruner@0.5 was .*threshold.*, is .*0.5\} now"):
            score(own, compressors, own.parent / "run")

    def test_in_other_batches(self, own):
        compressors = compressors_of(self.calibrated, reader(), METHODS, own.parent)
        with pytest.raises(MismatchError, match="batch was 1, is 3 now"):
            score_pages(local_corpus(own), reader(), compressors, own.parent / "run", calibrated_on=HELD_OUT, batch=3)

    def test_of_another_version(self, own, monkeypatch):
        monkeypatch.setattr(run_key, "__version__", "9.9")
        self.refused(own, r"anchorfold was .*, is 9.9 now")

    def test_of_a_version_that_stored_no_key(self, own):
        state = own.parent / "run" / "state.json"
        state.write_text(json.dumps({"about": {}, "pages": [], "sizes": {}, "thresholds": {}}))
        self.refused(own, "anchorfold was absent")

    def test_whose_state_is_damaged(self, own):
        (own.parent / "run" / "state.json").write_text("{")
        self.refused(own, "cannot be read")

    def test_but_a_corpus_that_only_moved_goes_on(self, own, tmp_path):
        moved = own.rename(tmp_path / "elsewhere")
        compressors = compressors_of(self.calibrated, reader(), METHODS, tmp_path)
        assert len(score(moved, compressors, tmp_path / "run", reader(0)).pages) == PAGES
