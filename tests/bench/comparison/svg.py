"""Charts as SVG text: lines over a logarithmic or linear axis, or over named places."""
import dataclasses
import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 470, 320  # of a chart
LEFT, RIGHT, TOP, BOTTOM = 66, 16, 58, 46  # its margins
FONT = "font-family='sans-serif'"
INK, FAINT, PAPER = "#222222", "#dddddd", "#ffffff"
# Colours that colour-blind readers tell apart (Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#7f7f7f", "#cc79a7", "#e69f00")


@dataclasses.dataclass(frozen=True)
class Series:
    """points: (x, y), x a number, or the index of a named place; colour: index into COLOURS; dashed: drawn so."""

    name: str
    points: tuple
    colour: int
    dashed: bool = False


@dataclasses.dataclass(frozen=True)
class Chart:
    """x_ticks: (x, text), all of them drawn; x_log, y_log: logarithmic axes, of positive values."""

    title: str
    x_title: str
    y_title: str
    series: tuple
    x_ticks: tuple
    x_log: bool = False
    y_log: bool = False


def number_text(value):
    """Short text of a tick: 0.1, 20, 3k, 1.5M."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:g}{prefix}"
    return f"{value:g}"


def linear_ticks(highest):
    """From 0 to at least `highest` in steps of 1, 2 or 5 times a power of ten: four to eight of them."""
    if highest <= 0:
        return [0.0, 1.0]
    power = 10 ** math.floor(math.log10(highest))
    step = next(part * power for part in (0.2, 0.5, 1, 2) if highest <= 6 * part * power)
    return [step * i for i in range(math.ceil(highest / step - 1e-9) + 1)]


def log_ticks(lowest, highest):
    """Powers of ten around the two positive values."""
    first, last = math.floor(math.log10(lowest)), math.ceil(math.log10(highest))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def scale(lowest, highest, start, end, log):
    """A function from values to places."""
    change = math.log10 if log else float
    low, high = change(lowest), change(highest)
    span = (high - low) or 1.0
    return lambda value: start + (change(value) - low) / span * (end - start)


def _text(x, y, text, *, size=11, anchor="middle", more=""):
    attributes = f"x='{x:.1f}' y='{y:.1f}' font-size='{size}' text-anchor='{anchor}' fill='{INK}' {FONT} {more}"
    return f"<text {attributes}>{escape(text)}</text>"


def _line(x1, y1, x2, y2, colour, width=1.0, dashed=False):
    dash = " stroke-dasharray='5 4'" if dashed else ""
    ends = f"x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}'"
    return f"<line {ends} stroke='{colour}' stroke-width='{width}'{dash}/>"


def _legend(series):
    """Names beside short lines, in a row under the title."""
    x = LEFT
    for each in series:
        colour = COLOURS[each.colour]
        yield _line(x, TOP - 18, x + 18, TOP - 18, colour, 2, each.dashed)
        yield _text(x + 23, TOP - 14, each.name, anchor="start")
        x += 36 + 6.2 * len(each.name)


def _curve(each, place_x, place_y):
    colour = COLOURS[each.colour]
    places = [(place_x(x), place_y(y)) for x, y in each.points]
    dash = " stroke-dasharray='5 4'" if each.dashed else ""
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    yield f"<polyline points='{joined}' fill='none' stroke='{colour}' stroke-width='2'{dash}/>"
    for (x, y), (_, value) in zip(places, each.points):
        shown = f"<title>{escape(each.name)}: {value:.4g}</title>"
        yield f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{colour}'>{shown}</circle>"


def draw(chart):
    """Lines of SVG of one chart, its upper left corner at 0, 0. ValueError when it has no points."""
    values = [y for each in chart.series for _, y in each.points]
    if not values:
        raise ValueError(f"nothing to draw: {chart.title}")
    ticks = log_ticks(min(values), max(values)) if chart.y_log else linear_ticks(max(values))
    places = [x for x, _ in chart.x_ticks]
    inset = 14
    place_x = scale(min(places), max(places), LEFT + inset, WIDTH - RIGHT - inset, chart.x_log)
    place_y = scale(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP, chart.y_log)
    yield _text(LEFT, 22, chart.title, size=14, anchor="start", more="font-weight='bold'")
    for tick in ticks:
        yield _line(LEFT, place_y(tick), WIDTH - RIGHT, place_y(tick), FAINT)
        yield _text(LEFT - 7, place_y(tick) + 4, number_text(tick), anchor="end")
    for x, text in chart.x_ticks:
        yield _line(place_x(x), HEIGHT - BOTTOM, place_x(x), HEIGHT - BOTTOM + 4, INK)
        yield _text(place_x(x), HEIGHT - BOTTOM + 17, text)
    yield _line(LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, INK)
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, chart.x_title)
    middle = (TOP + HEIGHT - BOTTOM) / 2
    yield _text(16, middle, chart.y_title, more=f"transform='rotate(-90 16 {middle:.1f})'")
    yield from _legend(chart.series)
    for each in chart.series:
        yield from _curve(each, place_x, place_y)


def page(title, charts, columns=2):
    """A whole SVG document with the charts in rows."""
    head = 34
    rows = math.ceil(len(charts) / columns)
    width, height = columns * WIDTH, head + rows * HEIGHT
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0 {width} {height}'>",
        f"<rect width='{width}' height='{height}' fill='{PAPER}'/>",
        _text(16, 22, title, size=12, anchor="start"),
    ]
    for number, chart in enumerate(charts):
        x, y = number % columns * WIDTH, head + number // columns * HEIGHT
        lines += [f"<g transform='translate({x} {y})'>", *draw(chart), "</g>"]
    return "\n".join([*lines, "</svg>"]) + "\n"
