"""The smallest index that is worth having, by the measurements in docs/scale.md."""

SMALL_RATIO = 0.05  # vectors that are kept of a page
SMALL_BITS = 2  # a number of a vector
