"""Tiny checkpoints from the command line."""

import pytest
from transformers import AutoConfig

from anchorfold.testing import tiny


def test_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["tiny", "colqwen2", str(tmp_path / "model")])
    tiny.main()
    assert "wrote a tiny random colqwen2 checkpoint" in capsys.readouterr().out
    assert AutoConfig.from_pretrained(tmp_path / "model").model_type == "colqwen2"
    monkeypatch.setattr("sys.argv", ["tiny", "gpt", str(tmp_path / "other")])
    with pytest.raises(SystemExit):
        tiny.main()
