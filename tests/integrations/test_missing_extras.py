"""Integrations without their extra raise an error with the install command."""

import importlib
import sys

import pytest

from anchorfold.errors import AnchorFoldError, MissingExtraError

EXTRAS = {
    "langchain": ("langchain_core", "langchain"),
    "llamaindex": ("llama_index", "llamaindex"),
    "sentence_transformers": ("sentence_transformers", "multivector"),
}


@pytest.mark.parametrize("name", EXTRAS)
def test_the_error_names_the_extra(name, monkeypatch):
    library, extra = EXTRAS[name]
    for module in [m for m in sys.modules if m.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"anchorfold.integrations.{name}", raising=False)
    message = rf"cannot be imported \(.*\): pip install 'anchorfold\[{extra}\]'"
    with pytest.raises(MissingExtraError, match=message) as caught:
        importlib.import_module(f"anchorfold.integrations.{name}")
    assert isinstance(caught.value, AnchorFoldError)
    assert isinstance(caught.value, ImportError)
    assert caught.value.__suppress_context__
