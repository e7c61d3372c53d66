"""A fleet with language, compared with one without language and with one engine per robot.

- measure: which fleets are run, and the cost of language; figures: rows and tables.
"""
