"""What the recorder records of a robot, and how messages go into a file."""
