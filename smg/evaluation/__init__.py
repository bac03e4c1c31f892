"""Predict on the scan's own grid, measure there, and read memorizability and generalizability off the matrix."""
