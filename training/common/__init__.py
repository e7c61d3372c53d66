"""What trainings share.

- command: the command line; recipe: what every recipe says; learner: a step, averages, the state.
- loop: a run of lessons, kept as it goes; prefetch: batches made beside it; journal: its log and
  its curves.
- batch: what a step of a policy learns from; objective: its losses; views: the cache with
  gradients; segments: questions and answers behind a prefix.
- initial: first weights of a policy; words: its tokenizer.
"""
