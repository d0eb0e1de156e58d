"""Ingestion pipeline: plan a run, encode pages, commit them."""
