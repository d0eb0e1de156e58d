"""Tensor functions of the method: vector budget, attention centrality, folding and MaxSim."""
