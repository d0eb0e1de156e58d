"""Search over stored pages: exact scan, candidates, text, hybrid."""
