"""The cells of the matrix: which sides, devices, addresses and settings meet."""
import itertools

import datagrams
import fork_scenarios
from captured import SESSIONS
from hostile import BEHAVIOURS, FEW_BEHAVIOURS

SIDES = [("upstream", "upstream"), ("ours", "upstream"), ("upstream", "ours"), ("ours", "ours")]  # client, server
DEVICES = {"rxe": {"IPv4": "10.7.0", "IPv6": "fd07:"}, "siw": {"IPv4": "10.8.0", "IPv6": "fd08:"}}

FAMILIES = ["IPv4", "IPv6"]
TRANSFER = {
    "family": FAMILIES,
    "mode": ["blocking", "nonblocking", "async"],
    "send": ["rsend", "sendmsg", "riowrite"],
    "inline": [0, 64],
    "rq": [16, 384, 65534],
    "ring": [4096, 131072, 1048576],
}
BYTES = {4096: 200_000, 131072: 700_001, 1048576: 3_000_000}  # by ring size: many rings full


def address(device, family, node=1):
    return f"{DEVICES[device][family]}{'.' if family == 'IPv4' else ':'}{node}"


def all_pairs(dimensions):
    """Few combinations in which every pair of values of two dimensions occurs: greedy, always the same ones."""
    names = list(dimensions)
    missing = {
        ((a, x), (b, y)) for a, b in itertools.combinations(names, 2) for x in dimensions[a] for y in dimensions[b]
    }
    everything = [dict(zip(names, values)) for values in itertools.product(*dimensions.values())]
    chosen = []
    while missing:
        best = max(everything, key=lambda cell: len(pairs_of(cell) & missing))
        chosen.append(best)
        missing -= pairs_of(best)
    return chosen


def pairs_of(cell):
    return set(itertools.combinations(cell.items(), 2))


def every_combination(dimensions):
    return [dict(zip(dimensions, values)) for values in itertools.product(*dimensions.values())]


def transfers(settings):
    for setting in settings:
        cell = dict(setting, scenario="transfer", bytes=BYTES[setting["ring"]])
        if cell["device_kind"] == "siw" and cell["inline"] == 0:
            cell["inline"] = 4  # iWARP mode needs it
        yield cell, "{mode} {send} {family} inline {inline} rq {rq} ring {ring}".format(**cell)


def ends(families):
    """Connections that end in other ways than a transfer does."""
    for family in families:
        for first in ("client", "server"):
            yield dict(scenario="half_close", family=family, first=first, bytes=150_000), f"half close, {first} first, {family}"
        yield dict(scenario="refused", family=family), f"refused, {family}"
        yield dict(scenario="many", family=family, connections=10), f"10 connections in turn, {family}"
        yield dict(scenario="killed_client", family=family, mode="async"), f"kill -9 of the client, {family}"
        yield dict(scenario="killed_server", family=family, mode="nonblocking"), f"kill -9 of the server, {family}"
        yield dict(scenario="killed_server_reader", family=family), f"kill -9 of the server, client sleeps in recv, {family}"


def preloaded(families):
    for family in families:
        common = dict(family=family, flavor="preload", bytes=700_001)
        for mode, send in (("blocking", "rsend"), ("nonblocking", "sendmsg")):
            yield dict(common, scenario="transfer", mode=mode, send=send), f"preload, {mode} {send} {family}"


def tool_runs(families, full):
    short = ["-S", "3000", "-C", "100", "-I", "5"]
    for family in families:
        options = ["-f", "ip"] if family == "IPv6" else []
        for tool, modes in (("rstream", "abnv"), ("riostream", "abn")):
            for mode in modes if full else modes[1:3]:
                words = ["-T", mode, *short, *options]
                yield dict(tool=tool, family=family, options=words), f"{tool} {' '.join(words)} {family}"
        if full:
            yield dict(tool="rstream", family=family, options=[*options, "-i", "0", *short]), f"rstream -i 0 {family}"
            yield dict(tool="rstream", family=family, options=[*options, "-k", "1", *short]), f"rstream -k 1 {family}"
            yield dict(tool="rstream", family=family, options=options), f"rstream {family}"
            yield dict(tool="riostream", family=family, options=options), f"riostream {family}"
    yield dict(tool="rcopy", family="IPv4"), "rcopy"


def other_cells(full):
    yield from tool_runs(FAMILIES if full else ["IPv4"], full)
    yield from ends(FAMILIES if full else ["IPv6"])
    yield from preloaded(FAMILIES if full else ["IPv4"])
    yield from fork_scenarios.cells(FAMILIES if full else ["IPv4"], ["rxe"])


def is_possible(cell, server):
    return cell["device_kind"] in cell.get("devices", DEVICES) and server in cell.get("servers", [server])


def cells_of(client, server, full):
    """(cell, name) of one pair of sides. The short matrix has every pair of settings, the full one every combination."""
    dimensions = {"device_kind": list(DEVICES), **TRANSFER}
    listed = [(dict(cell, device_kind=device), name) for device in DEVICES for cell, name in other_cells(full)]
    listed += transfers(every_combination(dimensions) if full else all_pairs(dimensions))
    listed = [(cell, name) for cell, name in listed if is_possible(cell, server)]
    for cell, name in listed:
        cell.update(client=client, server=server, device=f"{cell['device_kind']}0")
        cell.setdefault("flavor", "library")
        yield cell, f"{client} -> {server} {cell['device_kind']}: {name}"


def hostile_cells(sides, full):
    """Each side against peers that break a rule; upstream only against those that it is known to withstand."""
    for victim in sorted({side for pair in sides for side in pair}):
        for device in DEVICES:
            common = dict(device_kind=device, device=f"{device}0", family="IPv4", flavor="library", client=victim, server=victim)
            behaviours = BEHAVIOURS if full or device == "rxe" else FEW_BEHAVIOURS
            for behaviour in behaviours if victim == "ours" else ("hello", "version"):
                for end, name in (("client", f"raw -> {victim}"), ("server", f"{victim} -> raw")):
                    cell = dict(common, scenario=f"hostile_{end}", behaviour=behaviour)
                    yield cell, f"{name} {device}: {behaviour}"
            if (victim, device) == ("ours", "rxe"):  # iWARP knows no such client
                yield dict(common, scenario="slow_client", behaviour="no-rtu"), f"raw -> {victim} {device}: no-rtu"


def datagram_cells(full):
    """Upstream has none on these devices."""
    common = dict(device_kind="rxe", device="rxe0", flavor="library", client="ours", server="ours")
    for family in FAMILIES:
        for mode in ("blocking", "nonblocking", "async") if full or family == "IPv4" else ("async",):
            # Some of the first go by the kernel, and those beyond the MTU may.
            rounds = datagrams.ROUNDS
            settings = dict(sizes=datagrams.SIZES, rounds=rounds, least_packets=8 * rounds, connected=mode == "async")
            yield dict(common, scenario="digests", family=family, mode=mode, **settings), f"sizes, {mode}, {family}"
        large = dict(sizes=datagrams.LARGE_SIZES, rounds=datagrams.LARGE_ROUNDS, mode="blocking", least_packets=250)
        yield dict(common, scenario="digests", family=family, **large), f"large, {family}"
        yield dict(common, scenario="mixed", family=family), f"many sizes without answers, {family}"
        yield dict(common, scenario="many_senders", family=family), f"many senders, {family}"
        yield dict(common, scenario="waits", family=family, turns=7), f"waits, {family}"
    yield dict(common, scenario="full", family="IPv4"), "a receiver that does not read"
    few = dict(sizes=(100, 1000, 3000), rounds=5, least_packets=20)
    yield dict(common, scenario="hostile_datagrams", family="IPv4", **few), "a peer that keeps no rule"
    yield dict(common, scenario="forked", family="IPv4"), "a server that forks"
    yield dict(common, scenario="restarted", family="IPv4", lives=4), "a receiver that is restarted"
    yield dict(common, scenario="storm", family="IPv4", survival_seconds=80), "10,000 strangers"
    for options in (["-S", "100", "-C", "100"], ["-T", "e", "-T", "b", "-S", "1000", "-C", "100"]):
        yield dict(common, tool="udpong", family="IPv4", options=options), f"udpong {' '.join(options)}"
    iwarp = dict(common, device_kind="siw", device="siw0")
    yield dict(iwarp, scenario="no_datagrams", family="IPv4"), "iWARP has no datagrams"


def cells(sides, full):
    """All of them. Upstream with itself proves the lab, so the short matrix has little of it when there is more to see."""
    for client, server in sides:
        listed = list(cells_of(client, server, full))
        if not full and len(sides) > 1 and (client, server) == ("upstream", "upstream"):
            listed = listed[::5]
        yield from listed
    yield from hostile_cells(sides, full)
    if ("ours", "ours") in sides:
        addresses = {address(device, family) for device in DEVICES for family in FAMILIES}
        common = dict(device_kind="rxe", device="rxe0", family="IPv4", flavor="library", client="ours", server="ours")
        for cell, name in datagram_cells(full):
            yield cell, f"ours {cell['device_kind']} datagrams: {name}"
        yield dict(common, tool="rsdevices", addresses=addresses), "ours: rsdevices"


def datagrams_on_wire():
    common = dict(scenario="digests", mode="blocking", least_packets=60)
    for family in FAMILIES:
        yield dict(common, family=family, sizes=(10, 900), rounds=50), f"datagrams {family}"
        yield dict(common, family=family, sizes=(3000, 20_000, 60_000), rounds=5), f"large datagrams {family}"


def wire_cells(sides, full):
    """What must cross a wire: the server is in another guest."""
    for client, server in sides:
        for device in DEVICES:
            transfer = dict(scenario="transfer", bytes=700_001, rq=384, ring=131072, inline=64)
            listed = [
                (dict(transfer, family="IPv4", mode="blocking", send="rsend"), "blocking rsend IPv4"),
                (dict(transfer, family="IPv6", mode="async", send="sendmsg"), "async sendmsg IPv6"),
                (dict(transfer, family="IPv4", mode="nonblocking", send="riowrite"), "nonblocking riowrite IPv4"),
                *ends(FAMILIES if full else ["IPv4"]),
                *(datagrams_on_wire() if (client, server, device) == ("ours", "ours", "rxe") else ()),
                *((dict(scenario="captured", session=name, family="IPv4"), f"captured {name}") for name in SESSIONS),
            ]
            for cell, name in listed:
                yield on_wire(cell, name, client, server, device)
    # The last cell of all: rxe takes no connections afterwards as long as an end that noticed nothing goes on trying. TCP below
    # iWARP would notice after a quarter of an hour.
    if full:
        yield on_wire(dict(scenario="link_cut", family="IPv4", survival_seconds=60), "keepalive, link cut", *sides[-1], "rxe")


def on_wire(cell, name, client, server, device):
    cell.update(client=client, server=server, device_kind=device, device=f"{device}0", flavor="library")
    return cell, f"{client} -> {server} {device} wire: {name}"
