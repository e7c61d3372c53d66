"""What a robot remembers, kept as KV: segments, their store, their groups, and how KV is reused.

Knows text, tensors and files. Does not know a model, an arena or an engine: embeddings, attention
and the work of a layer come in as arguments.

Source: KEEP, a KV-cache-centric memory management system for efficient embodied planning.
"""
