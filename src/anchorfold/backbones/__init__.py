"""Models that encode pages and queries, one file a family; `load` finds the right one.

Names are listed in `__init__.pyi` and imported when first used: searching with nano needs none of transformers.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

DEFAULT_MODEL = "nano"  # it ships with this package
