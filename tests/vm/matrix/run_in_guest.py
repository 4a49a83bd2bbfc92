#!/usr/bin/env python3
"""Runs the cells of the matrix in a guest and prints TAP. Usage: see run_matrix, which starts it."""
import argparse
import itertools
import re
import sys
import time

import cells
import tools
from deadline import Deadline
from kernel_log import KernelLog
from meetings import meet
from remote import end_agent

UPSTREAM_PRELOAD = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"
PORTS = itertools.count(20000)
MOST_REPETITIONS = 4  # of a cell that fails by its driver's fault


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", help="where our build is installed; without it upstream's side alone runs")
    parser.add_argument("--raw-peer", help="the program")
    parser.add_argument("--raw-datagrams", help="the program")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--wire", action="store_true", help="the server is in another guest, node 1, which runs remote.py")
    parser.add_argument("--only", default="", help="regular expression: the cells whose name has it")
    parser.add_argument("--times", type=int, default=1, help="runs the cells so often")
    parser.add_argument("--list", action="store_true", help="names the cells")
    parser.add_argument("--cell-seconds", type=float, default=40, metavar="S", help="time limit of a cell")
    return parser.parse_args()


class Installation:
    """Where the programs and libraries of a side are."""

    def __init__(self, stage, raw_peer, raw_datagrams):
        self._stage, self.raw_peer, self.raw_datagrams = stage, raw_peer, raw_datagrams

    def tools(self, whose):
        if whose == "upstream":
            return tools.Side("/usr/bin", {})
        return tools.Side(f"{self._stage}/bin", self._environment())

    def peer(self, whose, cell):
        """The cell as this side's peer needs it."""
        preload = cell["flavor"] == "preload"
        if whose == "upstream":
            changed = dict(cell, strict=False, folder="/usr/bin", library=UPSTREAM_PRELOAD if preload else "librdmacm.so.1")
            # Upstream does not fit its queues to the device's completion queues; rxe has 32767 entries.
            if "rq" in cell and cell["device_kind"] == "rxe":
                changed["rq"] = min(cell["rq"], 30000)
            return changed
        name = "lib/rsocket/librspreload.so" if preload else "lib/librsocket.so.1"
        place = dict(folder=f"{self._stage}/bin", library=f"{self._stage}/{name}")
        return dict(cell, **place, strict=True, environment=self._environment())

    def _environment(self):
        return {"LD_LIBRARY_PATH": f"{self._stage}/lib", "RINGSOCK_DEVICE": "rdma"}


def run_tool(cell, installation, deadline):
    client, server = installation.tools(cell["client"]), installation.tools(cell["server"])
    if cell["tool"] == "rsdevices":
        return tools.list_devices(client, cell["addresses"], deadline)
    if cell["tool"] == "rcopy":
        return tools.copy_tool(server, client, cell, deadline)
    if cell["tool"] == "udpong":
        return tools.datagram_tool(server, client, cell["options"], cell, deadline)
    return tools.stream_tool(cell["tool"], server, client, cell["options"], cell, deadline)


def run_cell(cell, installation, seconds, wire):
    cell = dict(cell, port=next(PORTS), address=cells.address(cell["device_kind"], cell["family"]))
    if wire:
        # What is told to the other guest goes over the network that the cell leaves alone.
        other = "siw" if cell["device_kind"] == "rxe" else "rxe"
        cell.update(agent=cells.address(other, "IPv4"), local_ipv6=cells.address(cell["device_kind"], "IPv6", 2))
    deadline = Deadline(seconds + cell.get("survival_seconds", 0))
    return (run_tool if "tool" in cell else meet)(cell, installation, deadline)


def is_refused_by_siw(cell, why):
    """siw refuses a connection when the server's first message comes right behind the connection's reply (MPA forbids that);
    upstream's servers do not wait for the client's first message."""
    return cell["server"] == "upstream" and "Invalid argument" in why


def is_forgotten_by_siw(cell, log):
    """siw, answering a call, does not notice what comes before it has finished (state 7: the queue pair should have been told),
    until more comes; upstream's clients, and those on raw verbs, may have nothing more to say."""
    speaks_once = cell["client"] == "upstream" or cell.get("scenario") == "hostile_client"
    return speaks_once and log.has("siw_cm_llp_data_ready", "cep state: 7")


def is_reset_by_siw(cell, log):
    """siw closes its TCP socket right behind the last message. What the peer sends at that moment (rsockets announce buffers and
    credits) is answered by a reset, which takes the last messages from the peer. The kernel's log shows it: error 104 (ECONNRESET) of
    the socket while its connection is in use, after the client's last announcement. Busy machines see it in one of four sessions of
    rstream-20000, before the receive window of segments as well as with it. A server of ours could wait for the client's end before it closes; it does
    not yet, so with one the fault is not the driver's alone."""
    return "session" in cell and cell["client"] == "ours" and log.has("siw_cm_llp_error_report", "error 104", "cep state: 7")


def is_held_by_rxe(why):
    """rxe, asked to let go of an object, waits 50 s for its last user, now and then for one that is gone already."""
    return "it waits in __rxe_cleanup" in why


def drivers_fault(cell, why, log):
    """What the emulated device's driver did wrong, when that is why a cell failed. None otherwise."""
    if cell["device_kind"] == "rxe":
        return "rxe holds an object" if is_held_by_rxe(why) else None
    if is_refused_by_siw(cell, why):
        return "siw refused the connection"
    if is_reset_by_siw(cell, log):
        return "siw reset the connection behind the last message"
    return "siw did not notice a message" if is_forgotten_by_siw(cell, log) else None


def run_repeatedly(cell, installation, seconds, wire, log):
    """(why the last run failed or None, why each run before it was repeated). Only a driver's fault has a cell run again."""
    repetitions = []
    while True:
        log.forget()
        why = run_cell(cell, installation, seconds, wire)
        fault = why and drivers_fault(cell, why, log)
        if not fault or len(repetitions) == MOST_REPETITIONS:
            return why, repetitions
        repetitions.append(f"{fault}: {why.splitlines()[0]}")


def selected(options):
    sides = cells.SIDES if options.stage else [("upstream", "upstream")]
    everything = (cells.wire_cells if options.wire else cells.cells)(sides, options.full)
    return [(cell, name) for cell, name in everything if re.search(options.only, name)] * options.times


def known(cell):
    """Why a cell cannot pass. None when it must."""
    if cell.get("scenario") == "killed_server_reader" and cell["client"] == "upstream":
        return "upstream does not look at connection manager events of connections that a blocking call made"
    if cell["device_kind"] == "siw" and cell.get("rq") == 16 and cell["client"] == cell["server"] == "upstream":
        return "upstream's control messages need receives that it does not post, and iWARP has no retry"
    if cell["device_kind"] == "siw" and cell["flavor"] == "preload" and cell["server"] == "ours":
        return "siw's connections are the kernel's TCP connections, and end at the kernel's listener of the same port"
    return None


def has_none_of_ours(cell):
    """Such a cell shows what upstream and the emulated device do by themselves. When it fails, that is told and does not count
    against ringsock: siw has refused one of ten connections between upstream's own ends (ECONNREFUSED, once in some 30 runs)."""
    return cell["client"] == cell["server"] == "upstream"


def main():
    options = arguments()
    chosen = selected(options)
    if options.list:
        print("\n".join(name for _, name in chosen))
        return 0
    installation = Installation(options.stage, options.raw_peer, options.raw_datagrams)
    print(f"1..{len(chosen)}", flush=True)
    log = KernelLog(["siw_cm_llp_data_ready", "siw_cm_llp_error_report"])
    failed = repeated = 0
    started = time.monotonic()
    for number, (cell, name) in enumerate(chosen, 1):
        begin = time.monotonic()
        reason = known(cell)
        if reason:
            print(f"ok {number} - {name} # SKIP {reason}", flush=True)
            continue
        why, repetitions = run_repeatedly(cell, installation, options.cell_seconds, options.wire, log)
        repeated += len(repetitions)
        for reason in repetitions:
            print(f"# repeated: {name}: {reason}", flush=True)
        if why and has_none_of_ours(cell):
            print(f"ok {number} - {name} # SKIP upstream's own ends failed: {why.splitlines()[0]}", flush=True)
            continue
        failed += bool(why)
        # Where only the names of what failed are kept, the first and the last line tell what happened.
        short = f": {why.splitlines()[0]}; {why.rstrip().splitlines()[-1]}" if why else ""
        print(f"{'not ok' if why else 'ok'} {number} - {name} ({time.monotonic() - begin:.1f} s){short}", flush=True)
        if why:
            print("\n".join(f"#   {line}" for line in why.splitlines()), flush=True)
    if options.wire:
        end_agent(cells.address("rxe", "IPv4"))
    print(f"# {len(chosen)} cells, {failed} failed, {repeated} repetitions, {time.monotonic() - started:.0f} s, {Deadline.stood_still:.0f} s of standstill")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
