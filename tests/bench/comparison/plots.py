"""The page of plots: latency by size, rate by connections, percentiles."""
from xml.sax.saxutils import escape

from . import tables
from .pinned import SIZES, size_text
from .programs import REDIS_CLIENTS
from .results import KERNEL, OURS, SIDE_TEXT, SPINNING, UCX
from .svg import Chart, Series, page

COLOUR = {OURS: 0, KERNEL: 1, UCX: 2, SPINNING: 3}
PERCENTILES = ("p50", "p99", "p99.9")
PERCENTILE_CLIENTS = (50, 1000)


def curve(results, side, keys):
    """Series of a side from {x: row key}; None when it has no positive figure."""
    points = [(x, results.median(key, side)) for x, key in keys.items()]
    points = tuple((x, y) for x, y in points if y)
    return Series(SIDE_TEXT[side], points, COLOUR[side], dashed=side == SPINNING) if points else None


def curves(results, sides, keys):
    return tuple(filter(None, (curve(results, side, keys) for side in sides)))


def latency_by_size(results):
    series = curves(results, (OURS, UCX, SPINNING, KERNEL), {size: f"latency-{size}" for size in SIZES})
    ticks = tuple((size, size_text(size)) for size in SIZES)
    return Chart("One way, two pinned processes", "message", "µs", series, ticks, x_log=True, y_log=True)


def rate_by_connections(results):
    series = curves(results, (OURS, KERNEL), {clients: f"redis-{clients}-rate" for clients in REDIS_CLIENTS})
    ticks = tuple((clients, f"{clients:,}") for clients in REDIS_CLIENTS)
    return Chart("redis GET, rate", "clients", "requests/s", series, ticks, x_log=True)


def percentiles(results, clients):
    keys = {place: f"redis-{clients}-{name}" for place, name in enumerate(PERCENTILES)}
    series = curves(results, (OURS, KERNEL), keys)
    ticks = tuple(enumerate(PERCENTILES))
    return Chart(f"redis GET, {clients:,} clients, latency", "percentile", "ms", series, ticks, y_log=True)


def charts(results):
    """Those that have points."""
    every = [latency_by_size(results), rate_by_connections(results)]
    every += [percentiles(results, clients) for clients in PERCENTILE_CLIENTS]
    return [chart for chart in every if chart.series]


def as_svg(results):
    """ValueError when nothing that is drawn was measured."""
    drawn = charts(results)
    if not drawn:
        raise ValueError("nothing that the plots show was measured")
    return page(tables.introduction(results), drawn)


def as_html(results):
    """The plots with the tables below. ValueError as as_svg()."""
    parts = [
        "<!DOCTYPE html>",
        "<html lang='en'><head><meta charset='utf-8'><title>ringsock beside others</title>",
        "<style>body{font-family:sans-serif} td,th{padding:2px 10px;text-align:right} td:first-child{text-align:left}"
        "</style></head><body>",
        as_svg(results),
    ]
    for title, (heading, *rest) in tables.all_tables(results):
        parts.append(f"<h2>{escape(title)}</h2><table>")
        parts.append("<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in heading) + "</tr>")
        parts += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in rest]
        parts.append("</table>")
    return "\n".join([*parts, "</body></html>"]) + "\n"


def write(results, path):
    """By the ending of the file's name: .html, or .svg and anything else."""
    path.write_text(as_html(results) if path.suffix == ".html" else as_svg(results), encoding="utf-8")
