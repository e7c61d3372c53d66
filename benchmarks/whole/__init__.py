"""The ablation table: missions of a fleet with all five parts, and with one of them off at a time.

- settings: values fixed before any result; ways: which part is off in which row.
- costs: unit costs and the virtual clock that they drive; calibrate: measures them.
- measure: the groups that are run, and the file of their results; figures: rows and tables.
- group: missions carried out together, and the kill during them; process: what the kill ends;
  body: what survives it.
- mind: a mission in one process; robot: scene queries, planning and acting; capsules: snapshots
  and restores; planners: the planner and the memory of the heavy mode.
- device: the order of work; voices: language streams, shared or separate; turns: threads that wait
  for each other in virtual time.
"""
