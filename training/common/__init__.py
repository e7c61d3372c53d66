"""Code that the trainings share.

- command: the command line. recipe: the base of all recipes. learner: a step, averaged weights and
  the saved state.
- loop: the training loop. prefetch: batches made in a background thread. journal: log and curves.
- batch: the input of a policy's step. objective: its losses. views: the cache with gradients.
  segments: questions and answers behind a prefix.
- initial: initial weights of a policy. words: its tokenizer.
"""
