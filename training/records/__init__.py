"""A deeper judge: records of eight tokens that say, in part, `as that one before`.

- records: the task. lessons: what is taught beside answers. trainer: the recipe. gate: whether it
  can tell ways of reuse apart.
"""
