import json

import pytest

from anchorfold.attention.layer_settings import (
    PAPER,
    LayerSettings,
    default_settings,
    settings_for,
    write_settings,
)
from anchorfold.errors import UncalibratedWarning


def test_the_papers_windows():
    assert PAPER["colpali"].window == (11, 14)
    assert PAPER["colqwen2.5"].window == (25, 32)
    assert PAPER["nemotron"].window == (14, 19)
    assert [PAPER[k].sap_window for k in ("colpali", "colqwen2.5", "nemotron")] == [(11, 14), (26, 33), (18, 23)]
    assert {s.steps for s in PAPER.values()} == {6}
    assert settings_for("colpali", 18) is PAPER["colpali"]


def test_default_window_is_at_70_to_90_percent_and_warns():
    assert default_settings("other", 36).window == (25, 32)
    assert default_settings("other", 1).window == (0, 0)
    with pytest.warns(UncalibratedWarning, match="anchorfold calibrate"):
        assert settings_for("colpali", 10).window == (7, 8)


def test_calibration_file_has_priority(tmp_path):
    write_settings(tmp_path / "anchorfold.json", LayerSettings((2, 3), (1, 2), 18, steps=4, universal=9))
    settings = settings_for("colpali", 18, tmp_path / "none.json", tmp_path / "anchorfold.json")
    assert (settings.window, settings.sap_window, settings.steps, settings.universal) == ((2, 3), (1, 2), 4, 9)


def test_sources(tmp_path):
    shipped = tmp_path / "anchorfold.json"
    write_settings(shipped, LayerSettings((2, 3), (1, 2), 18))
    assert str(settings_for("colpali", 18, shipped=shipped)) == "layers 2-3, 6 steps (shipped default)"
    assert str(settings_for("colpali", 18, shipped)) == f"layers 2-3, 6 steps (calibration file {shipped})"
    assert str(settings_for("colpali", 18)) == "layers 11-14, 6 steps (paper)"
    assert str(LayerSettings((2, 3), (1, 2), 18)) == "layers 2-3, 6 steps (given by the caller)"
    assert "guess" in str(default_settings("other", 18))


def test_invalid_calibration_files(tmp_path):
    path = tmp_path / "anchorfold.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match="not a calibration file"):
        settings_for("colpali", 18, path)
    path.write_text(json.dumps({"window": [2, 3], "sap_window": [1, 2], "layers": 12, "steps": 6}))
    with pytest.raises(ValueError, match="for a model of 12 layers"):
        settings_for("colpali", 18, path)
    path.write_text(json.dumps({"window": [2, 30], "sap_window": [1, 2], "layers": 12, "steps": 6}))
    with pytest.raises(ValueError, match="is not within"):
        settings_for("colpali", 12, path)
