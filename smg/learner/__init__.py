"""A model that learns round by round, and a stream of rounds."""
