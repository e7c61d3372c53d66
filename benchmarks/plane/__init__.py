"""One KV budget compared with fixed shares of it, in virtual time.

- settings: values fixed before any result; story: the requests of a robot, from a seed.
- world: the real pools without memory, under one budget or under three; figures: rows.
"""
