"""Tests of `smg.report`."""
