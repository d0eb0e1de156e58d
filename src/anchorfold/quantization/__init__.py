"""Scalar quantization of document vectors."""
