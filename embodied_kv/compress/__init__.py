"""KV compression: methods that select which positions of a prefix are kept.

No method depends on a model, an arena or an engine.
"""
