"""What a mission requests of the other nodes, by services, topics and actions."""
