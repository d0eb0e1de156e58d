"""Sample documents with queries and expected pages, for `anchorfold demo`."""
