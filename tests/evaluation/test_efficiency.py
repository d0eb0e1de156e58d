"""The latency protocol: its manifest, and what is inside the clock."""

import random

from PIL import Image

from anchorfold.compressors import FullIndex
from anchorfold.evaluation.corpus import Corpus
from anchorfold.evaluation.efficiency import even_shares, sample_pages, time_method
from anchorfold.evaluation.methods import Method


def numbered(name, count):
    """A corpus whose pages are as wide as their number."""
    return Corpus(name, lambda _: ((f"{name}{i}", lambda i=i: Image.new("RGB", (i + 1, 1))) for i in range(count)), ())


def test_the_manifest_takes_as_many_pages_of_each_data_set():
    corpora = [numbered("a", 90), numbered("b", 60), numbered("c", 70), numbered("d", 51)]
    widths = [image.width for image in sample_pages(corpora, 1, 200)]
    assert len(widths) == 200
    expected = sorted(random.Random(42).sample(range(90), 50))
    assert widths[:50] == [i + 1 for i in expected]
    assert widths == [image.width for image in sample_pages(corpora, 1, 200)]
    assert len(sample_pages([numbered("a", 3)], 1, 200)) == 3
    assert even_shares(10, 4) == [3, 3, 2, 2]


def test_inputs_are_prepared_before_the_clock_runs(models, monkeypatch):
    model, events = models["colpali"], []
    prepare, encode = model.prepare_pages, model.prepared_states
    monkeypatch.setattr(model, "prepare_pages", lambda images: events.append("prepare") or prepare(images))
    monkeypatch.setattr(model, "prepared_states", lambda *a: events.append("encode") or encode(*a))
    found = time_method(model, Method(FullIndex.name, 1.0), [Image.new("RGB", (64, 64), "white")] * 3, 1, 2)
    assert events == ["prepare"] * 3 + ["encode"] * (1 + 2 * 3)
    assert found.total >= found.compression > 0
