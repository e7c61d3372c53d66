"""KV compression: methods that choose the positions of a prefix that are kept.

Statistics and budgets go in, positions come out; no method depends on a model, arena or engine.
"""
