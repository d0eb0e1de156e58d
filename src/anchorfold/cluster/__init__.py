"""Past one machine: encoders on a Ray cluster, and one committer. Needs `anchorfold[ray]`.

Names are listed in `__init__.pyi` and imported when first used; Ray when a cluster is connected to. All other rooms
work without it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
