"""Metadata of documents and filters on it.

`given` and `tables` read metadata that users provide, `values` defines its types, `where` parses a filter into
`conditions`, which a store compiles to its own query language.
"""
