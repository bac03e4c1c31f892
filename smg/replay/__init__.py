"""The replay buffer: features of subjects, and the policies that choose exemplars."""
