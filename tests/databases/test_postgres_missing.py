"""Without its driver, everything else works and the URL says what to install."""

import sys

import pytest

from anchorfold import Index
from anchorfold.errors import AnchorFoldError, MissingExtraError


def test_the_url_names_the_extra(monkeypatch, tmp_path):
    for module in [name for name in sys.modules if name.split(".")[0] == "psycopg" or "databases.postgres" in name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'anchorfold\[postgres\]'"):
        Index.open("postgresql://host/db")
    with pytest.raises(AnchorFoldError, match="does not exist"):
        Index.open(tmp_path / "my.index")
