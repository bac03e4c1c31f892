"""From sites to batches: resample and normalise scans, cache them, and draw augmented slices."""
