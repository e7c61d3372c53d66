"""A deeper judge: records of eight tokens, some of which refer to an earlier record.

- records: the task. lessons: auxiliary targets. trainer: the recipe. gate: the test whether the
  judge can distinguish methods of KV reuse.
"""
