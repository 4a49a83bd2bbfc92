"""Scenarios against raw_peer, which breaks one rule: the victim may lose that connection, and nothing else."""
import ctypes
import errno

from rsockets import NON_BLOCKING, POLLIN, POLLOUT
from scenarios import Wrong, connected, content, library_of, listener

BEHAVIOURS = (
    "hello", "version", "short", "nothing", "no-entries", "no-credits", "no-buffer", "huge-buffer", "huge-entries", "huge-iomap",
    "wild-addresses", "wrong-keys", "overrun", "beyond-ring", "write-outside", "empty-message", "reserved-words", "iomap-index",
    "wild-credits", "wild-entries", "wrong-entry-keys",
)  # fmt: skip
FEW_BEHAVIOURS = ("hello", "version", "short", "overrun", "beyond-ring", "wild-entries")
# What the protocol forbids so clearly that the connection must be reset, whatever else the peer does.
MUST_FAIL = ("overrun", "beyond-ring", "wild-entries", "wild-addresses")
# The same, but only the attacker's own device sees it; iWARP tells nobody why a connection ended.
MUST_FAIL_UNLESS_IWARP = ("wrong-keys", "wrong-entry-keys")
RESETS = (errno.ECONNRESET, errno.EPROTO, errno.EIO, errno.EPIPE)


NOISE = content(4096, 9)  # what victims send
HONEST = content(1000, 6)  # what an honest client sends


def suffer(stream, behaviour):
    """Sends and receives until the connection ends. Returns (the first bytes received, errno or 0)."""
    if behaviour == "overrun":
        stream.wait(0, 20)  # reads nothing before poll() says POLLERR or POLLHUP
    buffer, received, refusal = (ctypes.c_char * 65536)(), b"", 0
    try:
        while True:
            # What came before the peer closed can be read when nothing can be sent any more.
            events = stream.wait(POLLIN if refusal else POLLIN | POLLOUT, 20)
            if events & ~POLLOUT:
                count = stream.try_receive(buffer)
                if count == 0:
                    return received, refusal
                received = (received + buffer.raw[: count or 0])[: len(HONEST)]
            if events & ~POLLIN and not refusal:
                refusal = errno_of_sending(stream)
    except OSError as error:
        return received, error.errno


def errno_of_sending(stream):
    try:
        stream.try_send(NOISE)
    except OSError as error:
        return error.errno
    return 0


def judge(cell, received, code):
    behaviour, strict = cell["behaviour"], cell["strict"]
    must_fail = MUST_FAIL if cell["device_kind"] == "siw" else MUST_FAIL + MUST_FAIL_UNLESS_IWARP
    if behaviour == "hello" and received != b"hello":
        raise Wrong(f"an honest peer's 5 bytes: {received} came, errno {code}")
    if strict and code and code not in RESETS:
        raise Wrong(f"errno {code} ({errno.errorcode[code]})")
    if strict and behaviour in must_fail and not code:
        raise Wrong(f"the connection ended as if all were well, after {len(received)} bytes")


def hostile_client_server(cell, say):
    """Serves whoever connects, until the honest client has come."""
    waiting = listener(cell, library_of(cell), say)
    behaviour = cell["behaviour"]
    while True:
        stream = waiting.accept()
        received, code = suffer(stream, behaviour)
        behaviour = "hello"
        stream.close()
        if received == HONEST:
            break
        say(f"survived: {len(received)} bytes, errno {code}")
        judge(cell, received, code)
    waiting.close()


def honest_client(cell, say):
    stream = connected(cell, library_of(cell))
    stream.send(HONEST)
    if stream.receive(len(NOISE)) != NOISE:
        raise Wrong("what the server sends")
    stream.close()


def hostile_server_client(cell, say):
    library = library_of(cell)
    try:
        stream = connected(dict(cell, mode=NON_BLOCKING), library)
    except OSError as error:
        say(f"survived: connect fails, errno {error.errno}")
        if cell["behaviour"] == "version" and error.errno not in (errno.ENOTSUP, errno.EPROTO):
            raise
        if cell["behaviour"] == "hello":
            raise
        return
    if cell["behaviour"] == "version":
        raise Wrong("connected to a peer of another version")
    received, code = suffer(stream, cell["behaviour"])
    say(f"survived: {len(received)} bytes, errno {code}")
    judge(cell, received, code)


def slow_client_server(cell, say):
    """One client never completes its connection; the next one must be served all the same."""
    waiting = listener(cell, library_of(cell), say)
    echo = waiting.accept()
    echo.send(echo.receive(1000))
    echo.close()
    waiting.close()
