"""Tools for extensions: tiny checkpoints, and contract tests for compressors, encoders, exporters and stores."""
