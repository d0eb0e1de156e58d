"""A sample corpus with known answers, written by code, for `anchorfold demo` and `make demo`."""
