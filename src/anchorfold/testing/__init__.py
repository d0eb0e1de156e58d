"""For those who extend AnchorFold: tiny checkpoints of the true architectures, and contracts to run on one's own."""
