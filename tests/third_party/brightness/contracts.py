"""What the package runs in its own tests."""

import pytest
from anchorfold_brightness.brightness import Brightness
from anchorfold_brightness.every_other import EveryOther
from anchorfold_brightness.to_csv import EXPORTER

from anchorfold.testing.contracts import CompressorContract, EncoderContract, ExporterContract


class TestEveryOther(CompressorContract):
    kind = EveryOther


class TestCsv(ExporterContract):
    exporter = EXPORTER


class TestBrightness(EncoderContract):
    query = "dark and bright"

    @pytest.fixture
    def encoder(self):
        return Brightness()
