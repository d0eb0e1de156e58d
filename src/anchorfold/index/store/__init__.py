"""Where pages live: one LanceDB table, a lock for its writer, and a flat copy for fast search."""
