"""The embedded store: one SQLite database plus immutable vector files."""
