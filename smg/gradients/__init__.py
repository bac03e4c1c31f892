"""Flat parameters, the gradient oracle, and the optimiser's step."""
