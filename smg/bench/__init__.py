"""Comparison of methods: a plan of runs, and the worker processes that carry it out."""
