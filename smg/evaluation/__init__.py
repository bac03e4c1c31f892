"""Predict masks on the scan's own grid, measure them there, and compute BM, BT, FM and FT from the matrix."""
