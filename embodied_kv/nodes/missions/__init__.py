"""Requests of a mission to the other nodes, by services, topics and actions."""
