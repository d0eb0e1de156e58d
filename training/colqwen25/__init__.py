"""Train ColQwen2.5 without its causal mask, and AGC, as the paper's appendices A and C do. See docs/training.md."""
