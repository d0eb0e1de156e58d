"""Stores in databases, addressed by a URL. Each implements `storage.protocol.PageStore` and is imported on first use.

How to add a store:

- `indexes.locations.STORES` maps the scheme of a URL to a class with `open`, `require_target` and `create`
  (`storage.protocol.StoreType`); other packages use the entry point group `anchorfold.stores`. The module raises
  `MissingExtraError` if its driver cannot be imported.
- `StoreContract` in `anchorfold.testing.store_contract` tests the class. Each object may open its own connections; they
  are shared neither between threads nor across a fork.
- A document has one live version and at most one staged version per digest. Readers see live versions only; `promote`
  exchanges them in one step. Reads of one call belong to one commit where the engine has snapshots.
- `writing(sources=...)` may admit writers of other documents; without `sources` it excludes all of them.
- Pages are stored as codes of `settings.coding` and packed provenance (`storage.provenance`). A page is read as a
  `PageContent`, which derives the rest. `retrieval.fetched_pages` scores fetched codes exactly, and
  caches them.
- `storage.records.public_name` and `info.shown_metadata` give the names and the metadata that clients see.
  `filters.where.parse_where` gives the filter that a store compiles; `storage.text_search.query_terms` the words.
- Messages show `location`, which is `urls.without_password(url)`. Credentials are never stored and never printed.
"""
