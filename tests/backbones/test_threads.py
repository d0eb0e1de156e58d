"""Many threads on one model: bit for bit what one thread gets."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import anchorfold
from anchorfold.attention.model_lock import model_lock
from anchorfold.attention.signals import PropagatedAttention
from anchorfold.attention.tap import AttentionTap, find_attention
from anchorfold.backbones.multivector import MultiVectorBackbone
from tests.backbones.test_multivector import encoder_for

THREADS, CALLS = 6, 300
TEXTS = ("net revenue by region", "a", "the table page 1 2 3")
KINDS = ("nano", "colpali", "colqwen2.5", "nemotron")


@pytest.fixture(scope="module")
def pages():
    rng = np.random.default_rng(3)
    return [Image.fromarray(rng.integers(0, 255, (h, w, 3), dtype=np.uint8)) for h, w in ((64, 64), (90, 60), (56, 96))]


@pytest.fixture(autouse=True)
def _one_core_each():
    """Sums in another order would differ in the last bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def retriever(models):
    return lambda kind: anchorfold.load("nano", device="cpu") if kind == "nano" else models[kind]


def differences(pages, others):
    """Results of 300 calls in six threads, one in six a page, that are not those of the same calls in one thread."""
    calls = [*pages, *others]
    expected = [call() for call in calls]
    wrong = []

    def repeat(number):
        try:
            if not torch.equal(calls[number](), expected[number]):
                wrong.append(f"call {number} differs")
        except Exception as error:
            wrong.append(repr(error))

    shares = [1 / len(pages)] * len(pages) + [5 / len(others)] * len(others)  # pages take long
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(repeat, random.Random(0).choices(range(len(calls)), shares, k=CALLS)))
    return wrong


@pytest.mark.parametrize("kind", KINDS)
def test_pages_and_queries_at_once(retriever, pages, kind):
    model = retriever(kind)
    signals = anchorfold.AnchorFold(ratio=0.3).signals(model.layer_settings)
    states = [next(iter(model.page_states([page], signals))) for page in pages]
    compressors = [anchorfold.AnchorFold(ratio=0.3), anchorfold.SAP(ratio=0.3)]
    if model.layer_settings.tower:
        compressors.append(anchorfold.AnchorFold(ratio=0.3, graph="vision-tower"))
    encode = [lambda p=p, c=c: model.encode_documents([p], c)[0].vectors for p in pages for c in compressors]
    search: list[Any] = [lambda t=t: model.encode_queries([t])[0] for t in TEXTS]
    search += [lambda: model.explain_query(TEXTS[0]).vectors]
    compress = [lambda s=s, c=compressors[0]: model.compress_page(s, c).vectors for s in states]
    assert differences(encode, search + compress) == []


@pytest.fixture
def attached(checkpoints):
    encoder = encoder_for(checkpoints["colpali"])
    return anchorfold.attach(encoder, anchorfold.AnchorFold(ratio=0.25))


def test_an_attached_encoder(attached, pages):
    encode = [lambda p=p: attached.encode_document([p], show_progress_bar=False)[0] for p in pages]
    search = [lambda t=t: attached.encode_query([t], show_progress_bar=False)[0] for t in TEXTS]
    assert differences(encode, search) == []
    assert [len(call()) for call in encode] == [4, 4, 4]


def in_thread(call):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(timeout=60)


class TestTurns:
    def test_everything_round_one_model_shares_a_lock(self, models, attached):
        inner = attached[0].auto_model
        assert model_lock(attached) is model_lock(inner) is model_lock(MultiVectorBackbone(attached).model)
        assert model_lock(models["colpali"].model) is not model_lock(inner)

    @pytest.mark.parametrize("kind", KINDS)
    def test_waiting_pages_do_not_block_workers(self, retriever, pages, kind):
        model = retriever(kind)
        states = model.page_states(pages, [PropagatedAttention(1)], batch_size=2)
        next(states)
        assert len(in_thread(lambda: model.encode_documents(pages[:1], anchorfold.AnchorFold(ratio=0.5)))) == 1
        assert len(list(states)) == 2

    def test_a_pass_that_was_interrupted_leaves_the_encoder_free(self, attached, pages):
        def interrupt(*_):
            raise KeyboardInterrupt

        handle = attached[1].register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            attached.encode_document(pages[:1])
        handle.remove()
        assert len(in_thread(lambda: attached.encode_document(pages[:1]))[0]) == 4

    def test_a_foreign_hook_that_fails_first(self, attached, pages):
        def fail(*_):
            raise ValueError("not today")

        handle = attached.register_forward_pre_hook(fail)
        with pytest.raises(ValueError, match="not today"):
            attached.encode_document(pages[:1])
        handle.remove()
        assert len(in_thread(lambda: attached.encode_document(pages[:1]))[0]) == 4


class TestStrangers:
    """Threads that call the model itself, and know nothing of its lock."""

    @pytest.mark.parametrize("kind", ["colpali", "colqwen2.5", "nemotron"])
    def test_a_plain_pass_is_neither_heard_nor_changed(self, models, pages, kind):
        model = models[kind]
        one, other = (model.prepare_pages([page]) for page in pages[:2])
        (expected,) = (state.signals for state in model.page_states(pages[:1], [PropagatedAttention(2)]))

        @torch.no_grad()
        def stranger():
            model.forward(other.inputs)

        with AttentionTap(model.model, model.attention_layers, [PropagatedAttention(2)]) as tap:
            tap.set_visual_tokens(one.visual, one.attention_mask)
            with model._projection_input() as caught:
                model.forward(one.inputs)
                in_thread(stranger)
            assert len(caught) == 1
        assert torch.equal(tap.pages[0][PropagatedAttention(2)], expected[PropagatedAttention(2)])

    def test_taps_within_each_other_both_hear(self, attached, pages):
        outer = MultiVectorBackbone(attached)
        (state,) = outer.page_states(pages[:1], [PropagatedAttention(2)])
        anchorfold.detach(attached)
        (expected,) = outer.page_states(pages[:1], [PropagatedAttention(2)])
        assert torch.equal(state.signals[PropagatedAttention(2)], expected.signals[PropagatedAttention(2)])
        assert torch.equal(state.hidden, expected.hidden)

    def test_layers_are_detected_while_another_model_runs(self, models, pages):
        kinds = ["colpali", "colqwen2"] * 3
        batches = {kind: models[kind].prepare_pages(pages[:1]) for kind in set(kinds)}
        start = threading.Barrier(len(kinds))

        def find(kind):
            model, batch = models[kind], batches[kind]
            start.wait()
            tokens = batch.visual.shape[1]
            return [find_attention(model.model, lambda: model._hidden(batch.inputs), tokens) for _ in range(5)]

        with ThreadPoolExecutor(len(kinds)) as pool:
            for kind, attempts in zip(kinds, pool.map(find, kinds), strict=True):
                assert attempts == [models[kind].attention_layers] * 5


def test_causality_is_measured_once(checkpoints, monkeypatch):
    model = anchorfold.load(checkpoints["colqwen2"], device="cpu")
    tries = []

    def find(_):
        tries.append(1)
        return True

    monkeypatch.setattr(type(model), "_measure_causality", find)
    with ThreadPoolExecutor(THREADS) as pool:
        assert all(pool.map(lambda _: model.is_causal, range(50)))
    assert tries == [1]


@pytest.mark.parametrize("kind", ["nano", "colqwen2.5"])
def test_lazy_properties_on_first_use(checkpoints, pages, kind):
    model = anchorfold.load(checkpoints.get(kind, kind), device="cpu")
    start = threading.Barrier(THREADS)

    def ask(number):
        start.wait()
        if number % 2:
            model.encode_documents(pages[:1], anchorfold.AnchorFold(ratio=0.5))
        return model.fingerprint, model.dim, model.is_causal

    with ThreadPoolExecutor(THREADS) as pool:
        answers = {future.result(timeout=60) for future in [pool.submit(ask, i) for i in range(THREADS)]}
    assert len(answers) == 1
