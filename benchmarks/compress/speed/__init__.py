"""The speed of compression: `python -m benchmarks.compress.speed`.

- __main__: every table, model by model.
- plan: the amount of measurement.
- models: dimensions, of whole models and of slices.
- scene: engines, frames and questions, without a camera.
- request: one question from camera to last token, and what compression adds to it.
- decode: steps of many streams. deferred: the cost of a later choice.
- serve: throughput, and how many streams a cache holds.
- plot: the plot.
"""
