"""Train ColQwen2.5 without its causal mask, and AGC, as in appendices A and C. See docs/research/training.md."""
