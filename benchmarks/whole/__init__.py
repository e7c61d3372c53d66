"""The leave-one-out table: missions of a fleet with all five parts, and without each.

- settings: what is fixed before any result; ways: which part is off in which row.
- measure: which groups are run, and what work is charged; figures: rows and tables.
- group: missions carried out together, and the kill in their midst; process: what it ends; body:
  what it does not.
- mind: a mission in one process; robot: how it looks, plans and acts; capsules: how it comes back.
- device: whose work comes first; voices: words, shared or apart; turns: who waits for whom.
"""
