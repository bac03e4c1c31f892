"""`smg plan`: settings chosen from the scans and the machine, each with its reason."""
