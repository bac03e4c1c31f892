"""Reports of runs and models: tables, figures, and one HTML page."""
