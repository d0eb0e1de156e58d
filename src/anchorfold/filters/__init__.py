"""Metadata of documents and filters on it.

`metadata` and `metadata_tables` read metadata that users provide, `values` defines its types, and `where` parses
filters, which a store compiles to its own query language.
"""
