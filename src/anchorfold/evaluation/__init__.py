"""Evaluation: every method and ratio from one encoding pass, on any corpus."""
