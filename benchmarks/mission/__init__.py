"""Missions: success, steps and seconds, by planner, memory and policy."""
