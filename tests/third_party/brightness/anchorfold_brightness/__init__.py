"""Pages known by their brightness: a compressor, an encoder, an export target and a kind of document."""
