"""The results as tables, for a terminal and for README.md."""
import unicodedata

from harness.bench import short

from .goals import GOALS
from .results import KERNEL, LOWER, OURS, SPINNING, UCX

NOTHING = "–"
TABLES = (
    # name, title, sides, sides that ringsock is compared with
    ("pinned", "Two processes, a CPU each", (KERNEL, SPINNING, OURS, UCX), (KERNEL, UCX)),
    ("programs", "Programs, both ends the same way", (KERNEL, OURS), (KERNEL,)),
    ("costs", "What it costs", (KERNEL, OURS), (KERNEL,)),
)
COLUMN_TEXT = {KERNEL: "kernel TCP", SPINNING: "kernel, spinning", OURS: "ringsock", UCX: "UCX, shared memory"}
BETTER_TEXT = {KERNEL: "better than kernel", UCX: "better than UCX"}


def figure_text(value, unit):
    """Three digits with the unit; "–" for None."""
    if value is None:
        return NOTHING
    return f"{short(value)} {unit}".strip()


def times_better(row, other):
    """How many times ringsock is better than the other side; None when a figure is missing or zero."""
    ours, theirs = row["medians"].get(OURS), row["medians"].get(other)
    if not ours or not theirs:
        return None
    return theirs / ours if row["better"] == LOWER else ours / theirs


def times_text(ratio):
    """Three digits: 0.964 ×, 13.1 ×, 122 ×, 1,920 ×."""
    if ratio is None:
        return NOTHING
    return f"{ratio:.3g} ×" if ratio < 999.5 else f"{ratio:,.0f} ×"


def table_rows(results, name, sides, others):
    """Lists of cells, the heading first; None when nothing of the table was measured."""
    rows = [row for row in results.rows if row["table"] == name]
    if not rows:
        return None
    lines = [["", *(COLUMN_TEXT[side] for side in sides), *(BETTER_TEXT[other] for other in others)]]
    for row in rows:
        figures = (figure_text(row["medians"].get(side), row["unit"]) for side in sides)
        lines.append([row["text"], *figures, *(times_text(times_better(row, other)) for other in others)])
    return lines


def goal_rows(results):
    """The same of the goals that have a figure: figure, at least, aim, reached."""
    lines = [["goal", "figure", "at least", "aim", "reached"]]
    for goal in GOALS:
        figure = goal.ratio(results)
        if figure is None:
            continue
        reached = "aim" if goal.reaches(figure, goal.aim) else "yes" if goal.reaches(figure, goal.least) else "no"
        word = "≥ " if goal.better != LOWER else "≤ "
        bounds = (f"{word}{bound:g} {goal.unit}".strip() for bound in (goal.least, goal.aim))
        lines.append([goal.text, figure_text(figure, goal.unit), *bounds, reached])
    return lines if len(lines) > 1 else None


def all_tables(results):
    """(title, lists of cells) of what was measured."""
    found = [(title, table_rows(results, name, sides, others)) for name, title, sides, others in TABLES]
    found.append(("Goals", goal_rows(results)))
    return [(title, lines) for title, lines in found if lines]


def cache_line_text(results):
    """The time of a cache line, or the two ends of its range when rows were measured at different times."""
    times = sorted({round(row["cache_line_ns"]) for row in results.rows if row["cache_line_ns"]})
    if not times:
        return "unknown"
    return f"{times[0]} ns" if times[-1] <= times[0] * 1.2 else f"{times[0]} to {times[-1]} ns"


def introduction(results):
    """A line about the machine and the runs."""
    runs = sorted({row["runs"] for row in results.rows})
    dates = sorted({row["date"] for row in results.rows})
    cpus = ", ".join(map(str, results.cpus))
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return (
        f"Medians of {' or '.join(map(str, runs))} runs in turns on CPUs {cpus} ({results.machine}), {when}; "
        f"a cache line takes {cache_line_text(results)} from one CPU to the other."
    )


def width(text):
    """In columns of a terminal."""
    return sum(0 if unicodedata.combining(character) else 1 for character in text)


def aligned(lines):
    """Lines of text with columns of equal width; the first column to the left, the others to the right."""
    widths = [max(width(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        cells = [line[0] + " " * (widths[0] - width(line[0]))]
        cells += [" " * (widths[column] - width(cell)) + cell for column, cell in enumerate(line) if column > 0]
        yield "  ".join(cells).rstrip()


def remarks(results):
    """A line for each reason, without the output of programs that follows it."""
    return list(dict.fromkeys(reason.splitlines()[0] for reason in results.reasons))


def as_text(results):
    """Lines for a terminal."""
    if results.rows:
        yield introduction(results)
    for title, lines in all_tables(results):
        yield ""
        yield f"{title}:"
        yield from aligned(lines)
    if results.reasons:
        yield ""
        yield "Remarks:"
        yield from (f"  {reason}" for reason in remarks(results))


def as_markdown(results, plots=None):
    """Lines for README.md; plots: address of the page of plots, if there is one."""
    yield introduction(results)
    if plots:
        yield ""
        yield f"![latency by size, rate by connections, percentiles]({plots})"
    for title, lines in all_tables(results):
        heading, *rest = lines
        yield ""
        yield f"| {heading[0] or title} | " + " | ".join(heading[1:]) + " |"
        yield "| --- |" + " ---: |" * (len(heading) - 1)
        yield from (f"| {' | '.join(line)} |" for line in rest)
    if results.reasons:
        yield ""
        yield f"Remarks: {'; '.join(remarks(results))}."
