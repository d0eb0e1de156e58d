"""Which pages a search may answer with, by what is known of their documents.

`given` and `tables` take in what people say of documents, `values` knows its types, `columns` has what is known of all
documents of a version, `where` checks an expression against it, `conditions` evaluates that.
"""
