"""Limits of databases that are checked before anything is written."""

QDRANT_MAX_VALUES = 1_048_576  # components of all vectors of one point must be fewer
