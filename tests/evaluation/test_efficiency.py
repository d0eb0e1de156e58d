"""The latency protocol: its manifest, and what is inside the clock."""

import inspect
import random
from typing import Any

import pytest
from PIL import Image

from anchorfold import AnchorFold, DocPruner
from anchorfold.attention.signals import PropagatedAttention
from anchorfold.cli.bench_command import efficiency_command
from anchorfold.compressors import FullIndex
from anchorfold.evaluation.corpus import Corpus
from anchorfold.evaluation.efficiency import time_method
from anchorfold.evaluation.held_out_pages import sample_pages, split_evenly


def numbered(name, count):
    """A corpus whose pages are as wide as their number."""
    pages: Any = lambda _: ((f"{name}{i}", lambda i=i: Image.new("RGB", (i + 1, 1))) for i in range(count))  # noqa: E731
    return Corpus(name, pages, ())


def test_the_manifest_takes_as_many_pages_of_each_data_set():
    corpora = [numbered("a", 90), numbered("b", 60), numbered("c", 70), numbered("d", 51)]
    widths = [image.width for image in sample_pages(corpora, 1, 200)]
    assert len(widths) == 200
    expected = sorted(random.Random(42).sample(range(90), 50))
    assert widths[:50] == [i + 1 for i in expected]
    assert widths == [image.width for image in sample_pages(corpora, 1, 200)]
    assert len(sample_pages([numbered("a", 3)], 1, 200)) == 3
    assert split_evenly(10, 4) == [3, 3, 2, 2]


PAGE = [Image.new("RGB", (64, 64), "white")]


def test_inputs_are_prepared_before_the_clock_runs(models, monkeypatch):
    """A clock that moves by an hour at each preparation and by a minute at each encoding."""
    model, events, now = models["colpali"], [], [0.0]
    prepare, encode = model.prepare_pages, model.prepared_states

    def timed(name, function, seconds):
        def call(*arguments):
            events.append(name)
            now[0] += seconds
            return function(*arguments)

        return call

    monkeypatch.setattr(model, "prepare_pages", timed("prepare", prepare, 3600))
    monkeypatch.setattr(model, "prepared_states", timed("encode", encode, 60))
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    latency = time_method(model, "none@1", FullIndex(), PAGE * 3, 1, 2)
    assert events == ["prepare"] * 3 + ["encode"] * (1 + 2 * 3)
    assert latency.total == pytest.approx(60_000)
    assert latency.realised == 100


def test_encoding_capture_and_compression_are_apart(models, monkeypatch):
    """A clock that moves by a minute at each projection and by a second at each layer that is listened to."""
    model, now = models["colpali"], [0.0]
    project, measure = model.project, vars(PropagatedAttention)["measure"].__func__

    def slow_project(hidden):
        now[0] += 60
        return project(hidden)

    def slow_measure(cls, requests, view):
        now[0] += 1
        return measure(cls, requests, view)

    monkeypatch.setattr(model, "project", slow_project)
    monkeypatch.setattr(PropagatedAttention, "measure", classmethod(slow_measure))
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    first, last = model.layer_settings.window
    listened = last - first + 1
    pruned = time_method(model, "no-folding@0.5", AnchorFold(0.5, folding=False), PAGE, 0, 1)
    assert pruned.compression == 0
    assert (pruned.encoding, pruned.capture) == pytest.approx((60_000, 1000 * listened))
    assert pruned.total == pytest.approx(1000 * (60 + listened))
    folded = time_method(model, "anchorfold@0.5", AnchorFold(0.5), PAGE, 0, 1)
    assert folded.compression == pytest.approx(60_000)  # the folded states are projected too
    assert folded.total == pytest.approx(1000 * (120 + listened))
    full = time_method(model, "none@1", FullIndex(), PAGE, 0, 1)
    assert (full.capture, full.compression) == (0, 0)
    assert full.vectors == folded.vectors > 0
    assert full.total == pytest.approx(60_000)


def test_what_docpruner_realises_is_reported(models, images):
    model = models["colpali"]
    half = DocPruner(0.5).calibrate_on(model, images)
    latency = time_method(model, "docpruner@0.5", half, images, 1, 1)
    share = sum(len(p) for p in model.encode_documents(images, half)) / sum(
        len(p) for p in model.encode_documents(images)
    )
    assert latency.realised == pytest.approx(100 * share)


def test_nothing_leaves_the_device(models, monkeypatch):
    """What is timed calls no compressor through `BackboneEncoder.compress_page`, which copies to main memory."""
    model = models["colpali"]
    monkeypatch.setattr(model, "compress_page", lambda *_: 1 / 0)
    assert time_method(model, "none@1", FullIndex(), PAGE, 0, 1).realised == 100


def test_the_protocol_is_the_papers():
    defaults = {name: option.default for name, option in inspect.signature(efficiency_command).parameters.items()}
    assert (defaults["warm_up"], defaults["pages"], defaults["passes"]) == (30, 200, 3)
