"""A fleet that speaks, against a mute one and one engine per robot.

- measure: which fleets are run, and what words cost; figures: rows and tables.
"""
