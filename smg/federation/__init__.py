"""Hospitals that answer for data that stay with them: the round is run by the incoming one, the server only relays."""
