"""Flat parameters, the gradient oracle, the optimiser's step."""
