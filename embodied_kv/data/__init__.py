"""Recordings of a robot, and the data sets made of them. Files alone: no ROS, no torch."""
