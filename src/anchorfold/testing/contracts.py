"""Contract tests for compressors, encoders, exporters, vector sources and page stores.

    from anchorfold.testing.contracts import CompressorContract

    class TestMine(CompressorContract):
        kind = MyCompressor

Each class is a set of pytest functions; set its class attributes or override its fixtures.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from PIL import Image
from torch import Tensor

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.signals import InDegree, LastTextAttention, PropagatedAttention, Signal
from anchorfold.backbones.encoder import Encoder, select_stored
from anchorfold.compressors import BudgetCompressor, Compressor, FullIndex
from anchorfold.core.budget import vector_budget
from anchorfold.exporters import Exporter
from anchorfold.page import EncodedPage, PageState, PatchGrid
from anchorfold.retrieval.embedded_store import EmbeddedStore
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.records import PageRow
from anchorfold.testing.store_contract import STORE_SETTINGS, StoreContract
from anchorfold.vectors.vector_source import VectorSource

LAYERS = LayerSettings(window=(1, 2), sap_window=(0, 1), layers=4, universal=5)
HIDDEN, DIM = 10, 6


class RandomSignals(dict[Signal, Tensor]):
    """Reproducible random values for any signal."""

    def __init__(self, tokens: int, seed: int) -> None:
        super().__init__()
        self.tokens, self.seed = tokens, seed

    def __missing__(self, signal: Signal) -> Tensor:
        number = [PropagatedAttention, InDegree, LastTextAttention].index(type(signal))
        generator = torch.Generator().manual_seed(1000 * self.seed + 10 * signal.layer + number)
        return torch.rand(self.tokens, generator=generator)


def random_page(tokens: int, seed: int = 0, equal: int = 0) -> PageState:
    """Return a page of random hidden states; the last `equal` tokens are identical, as on blank paper."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, HIDDEN, generator=generator)
    if equal:
        hidden[-equal:] = hidden[-1].clone()
    weight = torch.randn(HIDDEN, DIM, generator=torch.Generator().manual_seed(3))
    return PageState(hidden, lambda z: z @ weight.to(z.dtype), RandomSignals(tokens, seed))


class CompressorContract:
    """Tests of a compressor; `kind` is its class."""

    kind: ClassVar[type[Compressor]]

    @pytest.fixture
    def compressor(self) -> Compressor:
        """Compressor that keeps a fifth of a page."""
        compressor = self.kind.with_budget(ratio=None if self.kind is FullIndex else 0.2)
        return compressor if compressor.ready else compressor.calibrate([random_page(40, s) for s in range(4)], LAYERS)

    @pytest.mark.parametrize("tokens", [1, 2, 5, 37, 60])
    @pytest.mark.parametrize("equal", [0, 1, 30])
    def test_budget_order_and_provenance(self, compressor: Compressor, tokens: int, equal: int) -> None:
        """Exactly m vectors in page order, each with its anchor, its group and weights that sum to one."""
        page = random_page(tokens, seed=tokens, equal=min(equal, tokens))
        folded = compressor.compress(page, LAYERS)
        m = len(folded.vectors)
        assert 1 <= m <= tokens
        if isinstance(compressor, BudgetCompressor):
            assert m == vector_budget(tokens, compressor.ratio, compressor.cap)
        assert folded.vectors.shape == (m, DIM)
        norms = folded.vectors.norm(dim=1)
        torch.testing.assert_close(norms, torch.ones(m) if compressor.normalize else norms.clamp(max=1.0))
        assert folded.anchors.tolist() == sorted(set(folded.anchors.tolist()))
        assert folded.groups.shape == folded.weights.shape == (tokens,)
        assert folded.groups[folded.anchors].tolist() == list(range(m))
        members = folded.groups >= 0
        assert set(folded.groups[members].tolist()) == set(range(m))
        sums = torch.zeros(m).index_add_(0, folded.groups[members], folded.weights[members])
        torch.testing.assert_close(sums, torch.ones(m))

    def test_empty_page(self, compressor: Compressor) -> None:
        """A page without visual tokens has no vectors."""
        assert compressor.compress(random_page(0), LAYERS).vectors.shape == (0, DIM)

    def test_deterministic_and_independent_of_other_pages(self, compressor: Compressor) -> None:
        """The same page gives the same vectors, independent of pages compressed before."""
        first = compressor.compress(random_page(40), LAYERS).vectors
        compressor.compress(random_page(23, seed=9), LAYERS)
        assert torch.equal(compressor.compress(random_page(40), LAYERS).vectors, first)

    def test_half_precision_is_computed_in_float32(self, compressor: Compressor) -> None:
        """bfloat16 hidden states give float32 vectors."""
        page = random_page(40)
        half = PageState(page.hidden.bfloat16(), page.project, page.signals)
        assert compressor.compress(half, LAYERS).vectors.dtype == torch.float32

    def test_options_create_an_equal_compressor(self, compressor: Compressor) -> None:
        """An index stores the options as JSON and creates the compressor from them."""
        options = json.loads(json.dumps(compressor.options))
        again = type(compressor)(**options)
        page = random_page(40)
        assert torch.equal(again.compress(page, LAYERS).vectors, compressor.compress(page, LAYERS).vectors)

    def test_signals_are_complete(self, compressor: Compressor) -> None:
        """Only the requested signals are available in `compress`."""
        page = random_page(40)
        collected = {signal: page.signals[signal] for signal in compressor.signals(LAYERS)}
        compressor.compress(PageState(page.hidden, page.project, collected), LAYERS)

    def test_name_is_lower_case(self) -> None:
        """Commands accept the name as written."""
        assert self.kind.name == self.kind.name.strip().lower()


def random_images() -> list[Image.Image]:
    """Return random page images of several shapes."""
    generator = torch.Generator().manual_seed(7)
    sizes = [(200, 150), (120, 240), (90, 90), (300, 60)]
    return [
        Image.fromarray((torch.rand(h // 10, w // 10, 3, generator=generator) * 255).byte().numpy()).resize((w, h))
        for h, w in sizes
    ]


class EncoderContract:
    """Tests of an encoder; override the fixture `encoder`."""

    query: ClassVar[str] = "net revenue by region"
    tolerance: ClassVar[float] = 1e-4

    @pytest.fixture
    def encoder(self) -> Encoder:
        """Encoder to test."""
        raise pytest.UsageError("override the fixture `encoder` of EncoderContract")

    @pytest.fixture
    def images(self) -> list[Image.Image]:
        """Page images to encode."""
        return random_images()

    def test_pages_have_unit_vectors_and_provenance(self, encoder: Encoder, images: list[Image.Image]) -> None:
        """One float32 vector per token on the CPU; each token is its own group."""
        for page in encoder.encode_documents(images):
            assert page.vectors.dtype == torch.float32
            assert page.vectors.shape == (page.full, encoder.dim)
            torch.testing.assert_close(page.vectors.norm(dim=1), torch.ones(page.full), atol=1e-3, rtol=0)
            assert page.groups.tolist() == list(range(page.full))
            assert page.grid is None or len(page.grid) == page.full

    def test_vectors_do_not_depend_on_the_batch(self, encoder: Encoder, images: list[Image.Image]) -> None:
        """A page encoded alone equals the page in a batch."""
        alone = encoder.encode_documents(images, batch_size=1)
        together = encoder.encode_documents(images, batch_size=len(images))
        for one, other in zip(alone, together, strict=True):
            torch.testing.assert_close(one.vectors, other.vectors, atol=self.tolerance, rtol=0)

    def test_deterministic(self, encoder: Encoder, images: list[Image.Image]) -> None:
        """Encoding a page twice gives equal vectors."""
        first, second = encoder.encode_documents([images[0], images[0]], batch_size=1)
        assert torch.equal(first.vectors, second.vectors)

    def test_queries(self, encoder: Encoder) -> None:
        """Query vectors have the dimension of pages and an optional word each."""
        (vectors,) = encoder.encode_queries([self.query])
        assert vectors.dtype == torch.float32
        assert vectors.shape[1] == encoder.dim
        explained = encoder.explain_query(self.query)
        assert torch.equal(explained.vectors, vectors)
        assert len(explained.labels) == len(vectors)
        assert all(label is None or 0 <= label < len(explained.words) for label in explained.labels)

    def test_stored_attributes(self, encoder: Encoder) -> None:
        """Attributes that an index stores are valid."""
        assert encoder.name
        assert encoder.fingerprint
        assert select_stored(encoder.load_options) == dict(encoder.load_options)
        assert encoder.page_pixels > 0
        assert encoder.default_batch_size >= 1


class ExporterContract:
    """Tests of an exporter; override the fixture `target` unless it is a file."""

    exporter: ClassVar[Exporter]
    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture
    def target(self, tmp_path: Path) -> str:
        """Path or URL to write to."""
        return str(tmp_path / f"out.{self.exporter.name}")

    @pytest.fixture
    def store(self, tmp_path: Path) -> EmbeddedStore:
        """Index of three pages, one of them without vectors."""
        settings = IndexSettings("random", "fingerprint", DIM, "none", {}, layers=None)
        store = EmbeddedStore.create(tmp_path / "my.index", settings)
        with store.writing():
            store.append([_row(1, random_page(12, 1)), _row(2, random_page(9, 2)), _row(3, None)])
        return store

    def _write(self, store: EmbeddedStore, target: str, **options: Any) -> int:
        return store.read(lambda snapshot: self.exporter.write(snapshot, target, **options, **self.options))

    def test_all_pages_with_vectors_are_written(self, store: EmbeddedStore, target: str) -> None:
        """The returned count and the progress are complete."""
        seen: list[int] = []
        assert self._write(store, target, progress=seen.append) == 2
        assert max(seen) == 2

    def test_repeated_export(self, store: EmbeddedStore, target: str) -> None:
        """A second export replaces or completes the first."""
        self._write(store, target)
        assert self._write(store, target) in (0, 2)


class VectorSourceContract:
    """Tests of a vector source; override the fixture `source` with at least two pages."""

    @pytest.fixture
    def source(self) -> VectorSource:
        """Vector source to test."""
        raise pytest.UsageError("override the fixture `source` of VectorSourceContract")

    def test_pages_are_in_a_fixed_order(self, source: VectorSource) -> None:
        """All pages have vectors of one dimension and the same order each time."""
        pages = list(source.pages(lambda *_: True))
        assert len(pages) == len(source) >= 2
        assert all(page.vectors is not None and page.vectors.ndim == 2 for page in pages)
        assert len({page.vectors.shape[1] for page in pages if page.vectors is not None}) == 1
        names = [(page.document, page.page) for page in pages]
        assert len(set(names)) == len(names)
        assert [(page.document, page.page) for page in source.pages(lambda *_: True)] == names

    def test_selected_pages(self, source: VectorSource) -> None:
        """The selection is called once per page, and other pages are skipped."""
        names = [(page.document, page.page) for page in source.pages(lambda *_: True)]
        offered: list[tuple[str, int]] = []

        def selected(document: str, page: int) -> bool:
            offered.append((document, page))
            return (document, page) == names[1]

        (page,) = source.pages(selected)
        assert (page.document, page.page) == names[1]
        assert sorted(offered) == sorted(names)

    def test_description_and_identity(self, source: VectorSource) -> None:
        """Sources have a description and a stable identity."""
        assert type(source).description
        assert source.identity


def _row(number: int, page: PageState | None) -> PageRow:
    encoded = None
    if page is not None:
        folded = FullIndex().compress(page, LAYERS)
        grid = PatchGrid.single(1, len(page))
        encoded = EncodedPage(folded.vectors, folded.anchors, folded.groups, folded.weights, grid)
    return PageRow(
        "/docs/a.pdf", "a.pdf", number, 3, "digest", 1, 1, True, encoded, problem=None if page else "damaged"
    )


__all__: Sequence[str] = [
    "STORE_SETTINGS",
    "CompressorContract",
    "EncoderContract",
    "ExporterContract",
    "StoreContract",
    "VectorSourceContract",
    "random_images",
    "random_page",
]
