"""Recordings of a robot, and the data sets made from them, without ROS and torch."""
