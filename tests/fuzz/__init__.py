"""Mutated files of every format that a user or another hospital can hand in: `python -m tests.fuzz --count 10000`."""
