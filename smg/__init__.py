"""SMG-Learning: continual segmentation across hospitals that neither forgets nor overfits to those it has seen."""

__version__ = "0.1.0"
