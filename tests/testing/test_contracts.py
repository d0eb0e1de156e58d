"""Compressors, encoders, exporters and stores of this package pass the contract tests."""

import pytest

import anchorfold
from anchorfold.compressors import COMPRESSORS
from anchorfold.exporters import EXPORTERS
from anchorfold.retrieval.embedded_store import EmbeddedStore
from anchorfold.testing.contracts import (
    STORE_SETTINGS,
    CompressorContract,
    EncoderContract,
    ExporterContract,
    StoreContract,
)

for _name in COMPRESSORS.names():
    globals()[f"TestCompressor_{_name}"] = type(f"Test {_name}", (CompressorContract,), {"kind": COMPRESSORS[_name]})


class TestNano(EncoderContract):
    @pytest.fixture(scope="class")
    def encoder(self):
        return anchorfold.load("nano")


class TestNpz(ExporterContract):
    exporter = EXPORTERS["npz"]


class TestParquet(ExporterContract):
    exporter = EXPORTERS["parquet"]


class TestQdrant(ExporterContract):
    exporter = EXPORTERS["qdrant"]

    @pytest.fixture
    def target(self, tmp_path):
        return str(tmp_path / "qdrant")


class TestEmbeddedStore(StoreContract):
    @pytest.fixture
    def open_store(self, tmp_path):
        EmbeddedStore.create(tmp_path / "my.index", STORE_SETTINGS)
        return lambda: EmbeddedStore.open(tmp_path / "my.index")
