"""AnchorFold: visual document search, 5 to 20 times smaller, without losing the answers.

Four ways in: `Index` for documents, `load` and a compressor for pages of your own, `attach` for an encoder that you
run already, `compress` and `compress_vectors` for hidden states or vectors that you have. The names are
listed in `__init__.pyi`, and each is imported when it is first used: a command starts without waiting for what it does
not need.

It logs under the name `anchorfold`, and says nothing unless the application asks:
`logging.getLogger("anchorfold").setLevel("INFO")`, or `anchorfold --verbose ...`.
"""

import logging

import lazy_loader

logging.getLogger(__name__).addHandler(logging.NullHandler())

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
