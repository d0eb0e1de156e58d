"""The search page and its JSON API, read-only on an index."""
