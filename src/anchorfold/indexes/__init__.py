"""The public index: create, update, search, export."""
