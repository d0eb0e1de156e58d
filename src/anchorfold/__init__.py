"""AnchorFold: visual document search with compressed multi-vector indexes.

Entry points: `Index` for documents, `load` and a compressor for page images, `attach` for a sentence-transformers
encoder, `compress_vectors` and `compress_hidden_states` for existing vectors. The public names are listed in
`__init__.pyi` and imported on first use, which keeps the start of the command line short.

The package logs under the name `anchorfold` and prints nothing by default. To see messages, set
`logging.getLogger("anchorfold").setLevel("INFO")` or run `anchorfold --verbose ...`.
"""

import logging

from anchorfold._lazy import attach_stub

logging.getLogger(__name__).addHandler(logging.NullHandler())

__version__ = "0.3.0"

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
