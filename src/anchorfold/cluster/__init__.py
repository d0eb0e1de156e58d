"""Distributed encoding and search on a Ray cluster, with a single committer. Requires `anchorfold[ray]`.

Names are listed in `__init__.pyi` and imported on first use; Ray is imported when connecting to a cluster. No other
package requires it.
"""

from anchorfold._lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
