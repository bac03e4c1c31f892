"""Federated rounds: the incoming hospital runs the round, the others answer for their data, the server only relays."""
