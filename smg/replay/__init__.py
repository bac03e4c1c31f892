"""The replay buffer: which subjects of a site are kept, and why."""
