"""Models that encode pages and queries, one file per family; `load` selects the family.

Names are listed in `__init__.pyi` and imported on first use: searching with nano does not import transformers.
"""

from anchorfold._lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)

DEFAULT_MODEL = "nano"  # included in this package
