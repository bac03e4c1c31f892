"""Comparing methods: a plan of runs, and the worker processes that go through it."""
