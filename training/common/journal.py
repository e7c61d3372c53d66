"""The log of a run: a CSV file with a line for each value, and its curves."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLUMNS = ('step', 'of', 'name', 'value')


class Journal:
    """Appends to a log. Lines after step `start`, from an interrupted run, are dropped."""

    def __init__(self, path: Path, start: int = 0) -> None:
        self._path = path
        self._rows: list[tuple[int, str, str, float]] = []
        if path.exists():
            with path.open(newline='') as stream:
                for row in csv.DictReader(stream):
                    if int(row['step']) <= start:
                        value = float(row['value'])
                        self._rows.append((int(row['step']), row['of'], row['name'], value))
        with path.open('w', newline='') as stream:
            writer = csv.writer(stream)
            writer.writerow(COLUMNS)
            writer.writerows(self._rows)

    def write(self, step: int, of: str, values: dict[str, float]) -> None:
        """Append the values of a step. of: 'seen' or 'unseen', the data that they come from."""
        rows = [(step, of, name, round(value, 5)) for name, value in values.items()]
        self._rows += rows
        with self._path.open('a', newline='') as stream:
            csv.writer(stream).writerows(rows)

    def last(self) -> str:
        """Return the newest values on unseen data, in a line."""
        newest = {row[2]: row for row in self._rows if row[1] == 'unseen'}
        step = max((row[0] for row in newest.values()), default=0)
        return f'step {step}: ' + ', '.join(
            f'{name} {row[3]:.3f}' for name, row in newest.items() if row[0] == step
        )

    def plot(self, path: Path) -> None:
        """Write a figure with a panel for each value, on seen and unseen data."""
        curves: dict[str, dict[str, list[tuple[int, float]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for step, of, name, value in self._rows:
            curves[name][of].append((step, value))
        columns = 5
        lines = -(-len(curves) // columns)
        figure = Figure((3.2 * columns, 2.4 * lines), dpi=90, layout='constrained')
        FigureCanvasAgg(figure)
        for i, (name, parts) in enumerate(curves.items()):
            axes = figure.add_subplot(lines, columns, i + 1, title=name)
            for of, style in (('seen', dict(alpha=0.5, lw=0.8)), ('unseen', dict(lw=1.6))):
                if parts[of]:
                    axes.plot(*zip(*parts[of], strict=True), label=of, **style)
            axes.grid(alpha=0.3)
            axes.legend(fontsize=7)
        figure.savefig(path)
