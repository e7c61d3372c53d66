"""One budget for all KV against fixed shares of it, in virtual time.

- settings: what is fixed before any result; story: what a robot is asked for, by a seed.
- world: the real pools without memory, under one budget or under three; figures: rows.
"""
