"""Memory of a robot, stored as KV: segments, their store, their groups, and the reuse of KV.

Embeddings, attention and the computation of a layer are passed in as arguments.

Source: KEEP, a KV-cache-centric memory management system for efficient embodied planning.
"""
