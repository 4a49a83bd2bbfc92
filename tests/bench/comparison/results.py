"""Rows, measurements in turns, medians, and the file that keeps them."""
import dataclasses
import datetime
import json
import statistics
from typing import Callable

from harness import bench
from harness.processes import Failure

KERNEL, SPINNING, OURS, UCX = "kernel", "kernel-spinning", "ours", "ucx"
SIDE_TEXT = {KERNEL: "kernel TCP", SPINNING: "kernel TCP, spinning", OURS: "ringsock", UCX: "UCX"}
LOWER, HIGHER = "lower", "higher"  # which is better
REMARK = "remark"


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table. unit: of the value; better: LOWER or HIGHER."""

    key: str
    text: str
    unit: str
    better: str


@dataclasses.dataclass(frozen=True)
class Measurement:
    """measure(setting, side) takes a few seconds and returns {row.key: value}, and {REMARK: text} when a reader must
    know something. Failure, ValueError or OSError when it could not. missing(setting, side): why it cannot run here,
    empty when it can. table: which table has its rows."""

    name: str
    table: str
    sides: tuple
    rows: tuple
    measure: Callable
    missing: Callable


class CannotRun(Exception):
    """This machine has not what a measurement needs; the text says what."""


def take(measurement, setting, runs, say):
    """Runs all sides in turns: ({row key: {side: [value of each run]}}, [why a side is missing, or a remark])."""
    sides, reasons = [], []
    for side in measurement.sides:
        why = measurement.missing(setting, side)
        if why:
            reasons.append(f"{measurement.name}, {SIDE_TEXT[side]}: {why}")
            say(f"skip {reasons[-1]}")
        else:
            sides.append(side)
    values = {}
    for number in range(runs):
        for side in sides if number % 2 == 0 else sides[::-1]:
            try:
                found = measurement.measure(setting, side)
            except CannotRun as reason:
                reasons.append(f"{measurement.name}, {SIDE_TEXT[side]}: {reason}")
                say(f"skip {reasons[-1]}")
                continue
            except (Failure, ValueError, OSError, LookupError, TypeError) as failure:
                reasons.append(f"{measurement.name}, {SIDE_TEXT[side]}, run {number + 1}: failed: {failure}")
                say(f"not ok {reasons[-1]}")
                continue
            remark = found.pop(REMARK, None)
            if remark:
                reasons.append(f"{measurement.name}, {SIDE_TEXT[side]}, run {number + 1}: {remark}")
                say(f"# {reasons[-1]}")
            for key, value in found.items():
                values.setdefault(key, {}).setdefault(side, []).append(value)
            figures = ", ".join(bench.short(value) for value in found.values())
            say(f"# {measurement.name}, {SIDE_TEXT[side]}: {figures}")
    return values, reasons


def rows_of(measurement, values, *, runs, cache_line_ns):
    """What the file keeps of a measurement: a dictionary for each row that has a value."""
    return [
        {
            **dataclasses.asdict(row),
            "table": measurement.table,
            "measurement": measurement.name,
            "runs": runs,
            "cache_line_ns": cache_line_ns,
            "date": datetime.date.today().isoformat(),
            "values": values[row.key],
            "medians": {side: statistics.median(each) for side, each in values[row.key].items()},
        }
        for row in measurement.rows
        if row.key in values
    ]


class Results:
    """What was measured, in the order of `names`, the measurements' names."""

    def __init__(self, names):
        self._names = list(names)
        self._rows = []
        self._reasons = {}
        self.machine = bench.machine()
        self.cpus = ()

    def replace(self, name, rows, reasons):
        """Puts a measurement in place of an earlier one of that name."""
        self._rows = [row for row in self._rows if row["measurement"] != name] + list(rows)
        order = {each: place for place, each in enumerate(self._names)}
        self._rows.sort(key=lambda row: order.get(row["measurement"], len(order)))
        self._reasons[name] = list(reasons)

    @property
    def rows(self):
        return self._rows

    @property
    def reasons(self):
        return [reason for name in self._names for reason in self._reasons.get(name, ())]

    def median(self, key, side):
        """None when there is no such figure."""
        for row in self._rows:
            if row["key"] == key:
                return row["medians"].get(side)
        return None

    def load(self, path):
        """Raises OSError, ValueError or KeyError when the file is not one of save()."""
        stored = json.loads(path.read_text())
        self._rows, self._reasons = stored["rows"], stored["reasons"]
        self.machine, self.cpus = stored["machine"], tuple(stored["cpus"])

    def save(self, path):
        stored = {"machine": self.machine, "cpus": self.cpus, "rows": self._rows, "reasons": self._reasons}
        path.write_text(json.dumps(stored, indent=1) + "\n")
