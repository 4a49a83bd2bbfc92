"""Scenarios of servers that fork, under the preload libraries. As scenarios.py."""
import os
import time
import traceback

from scenarios import Wrong, check_device, compare, connected, content, expect_end, library_of, listener

WORKERS = 2
ROUNDS = 4


def cells(families, devices):
    """(cell, name) as cells.py has them; a cell runs only on the devices, and with the servers, that it names."""
    for family in families:
        common = dict(family=family, flavor="preload", bytes=300_001, devices=devices)
        for mode, speaks in (("blocking", "client"), ("nonblocking", "client"), ("blocking", "server")):
            cell = dict(common, scenario="fork_mode", mode=mode, speaks=speaks, fork_mode=True)
            yield cell, f"fork mode, {mode}, {speaks} speaks first, {family}"
        # Upstream's listener is of no use in a child.
        yield dict(common, scenario="prefork", servers=["ours"]), f"workers that inherit the listener, {family}"


def in_child(work, *arguments):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work(*arguments)
            status = 0
        except BaseException:  # pylint: disable=broad-except
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def must_end_well(child):
    status = os.waitpid(child, 0)[1]
    if status:
        raise Wrong(f"a child ended with {status}")


def exchange(cell, stream, mine, its, first, made_here=True):
    """made_here: by a thread that still is there, whose queue pair it is to the kernel."""
    if first:
        stream.send(content(cell["bytes"], mine))
    compare(stream.receive(cell["bytes"]), content(cell["bytes"], its), "the peer's data")
    if made_here:
        check_device(cell)
    if not first:
        stream.send(content(cell["bytes"], mine))


def serve_in_fork_mode(cell, waiting, stream):
    waiting.close()
    # Upstream's server has a thread for that, which has ended.
    exchange(cell, stream, 1, 2, cell["speaks"] == "server", made_here=cell["strict"])
    expect_end(stream)
    stream.close()


def fork_mode_server(cell, say):
    """Accepts, forks, and the child uses the connection."""
    waiting = listener(cell, library_of(cell), say)
    for _ in range(2):
        stream = waiting.accept()
        child = in_child(serve_in_fork_mode, cell, waiting, stream)
        stream.close()
        must_end_well(child)
    waiting.close()


def fork_mode_client(cell, say):
    library = library_of(cell)
    for _ in range(2):
        stream = connected(cell, library)
        exchange(cell, stream, 2, 1, cell["speaks"] == "client")
        stream.close()


def echo_clients(waiting):
    while True:
        stream = waiting.accept()
        data = stream.receive(100)
        stream.send(data)
        expect_end(stream)
        stream.close()
        if data == bytes(100):
            return


def prefork_server(cell, say):
    """The parent listens, and only its children accept."""
    waiting = listener(cell, library_of(cell), lambda event: None)
    children = [in_child(echo_clients, waiting) for _ in range(WORKERS)]
    time.sleep(1)  # they sleep in accept()
    say("listening")
    for child in children:
        must_end_well(child)
    waiting.close()


def prefork_client(cell, say):
    library = library_of(cell)
    for turn in range(ROUNDS + WORKERS):
        stream = connected(cell, library)
        data = content(100, turn + 1) if turn < ROUNDS else bytes(100)
        stream.send(data)
        compare(stream.receive(100), data, f"connection {turn}")
        stream.close()
