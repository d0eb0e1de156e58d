"""The paper's evaluation: every method and ratio from one encoding pass, on any corpus."""
