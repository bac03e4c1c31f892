"""A node that a PACS and 3D Slicer can call: scans come in over the network, masks go back."""
