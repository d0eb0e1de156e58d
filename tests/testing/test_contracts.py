"""Our own compressors, encoders and export targets keep the contracts that we offer to others."""

import pytest

import anchorfold
from anchorfold.compressors import COMPRESSORS
from anchorfold.index.export import EXPORTERS
from anchorfold.testing.contracts import CompressorContract, EncoderContract, ExporterContract

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
