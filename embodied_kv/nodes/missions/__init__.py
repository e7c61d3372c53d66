"""What a mission asks of the other nodes: services, topics, and its part of a capsule."""
