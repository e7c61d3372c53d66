"""Records of README's figures: `python -m benchmarks.results`.

A record is a small JSON file of this folder, one for each row of README's table of figures:
- command, date, machine: what was run, when, and on which CPU.
- source: `measured`, written by this tool from the output of the command; or `transcribed`, copied
  from the documentation of an earlier run.
- figures: by name, each with its value. path: its place in the output. scale: a factor, for
  percentages. A figure without a path is a setting of the command.
"""
