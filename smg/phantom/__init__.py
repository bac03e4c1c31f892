"""Phantom sites: random pelves, drawn and scanned by six protocols, for demonstrations and tests without a download."""
