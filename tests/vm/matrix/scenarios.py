"""What two peers do with each other. Each scenario has a function for the server and one for the client; both take the cell's
parameters (a dictionary) and say(event), which tells the one who started them. Whatever is not as it must be raises."""
import ctypes
import errno
import json
import os
import random
import socket
import subprocess
import time

from rsockets import RDMA_INLINE, RDMA_IOMAPSIZE, RDMA_RQSIZE, SOL_RDMA, POLLIN, BLOCKING, Library, Socket

SMALL_MESSAGES = 40
CHUNKS = (1, 17, 4095, 4096, 65536, 100003)


class Wrong(Exception):
    """The peer, the library or the device did something that it must not do."""


def library_of(cell):
    return Library(None, "") if cell["flavor"] == "preload" else Library(cell["library"])


def new_socket(cell, library):
    """With the sizes of the cell, which accepted sockets take from their listener."""
    made = Socket(library, cell["address"], cell.get("mode", BLOCKING))
    if "ring" in cell:
        # The calls double what they are given, as TCP does.
        made.set_option(socket.SOL_SOCKET, socket.SO_RCVBUF, cell["ring"] // 2)
        made.set_option(socket.SOL_SOCKET, socket.SO_SNDBUF, cell["ring"] // 2)
    for key, name in (("rq", RDMA_RQSIZE), ("inline", RDMA_INLINE)):
        if key in cell:
            made.set_option(SOL_RDMA, name, cell[key])
    if cell.get("send") == "riowrite":
        made.set_option(SOL_RDMA, RDMA_IOMAPSIZE, 1)
    return made


def listener(cell, library, say):
    made = new_socket(cell, library)
    made.listen(cell["address"], cell["port"])
    say("listening")
    return made


def connected(cell, library):
    made = new_socket(cell, library)
    made.connect(cell["address"], cell["port"])
    return made


def check_device(cell):
    """The connection must be on the device that the cell is about, not on shared memory or the kernel's TCP."""
    text = subprocess.run(
        ["/usr/bin/rdma", "-j", "resource", "show", "qp", "link", cell["device"]], stdout=subprocess.PIPE, check=True,
        env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
    ).stdout  # fmt: skip
    # The kernel names the thread that made it; upstream's listeners have one for that.
    if not any(str(entry.get("pid")) in os.listdir("/proc/self/task") for entry in json.loads(text)):
        raise Wrong(f"no queue pair of this process on {cell['device']}: {text.decode()}")


def content(length, seed):
    return random.Random(seed).randbytes(length)


def chunks(data):
    """Pieces of many sizes."""
    position, turn = 0, 0
    while position < len(data):
        size = CHUNKS[turn % len(CHUNKS)]
        yield position, data[position : position + size]
        position, turn = position + size, turn + 1


def compare(received, expected, what):
    if received == expected:
        return
    place = next((i for i, (a, b) in enumerate(zip(received, expected)) if a != b), min(len(received), len(expected)))
    raise Wrong(f"{what}: differs at byte {place} of {len(expected)} ({len(received)} came)")


def send_stream(cell, stream, data):
    send = stream.send_message if cell["send"] == "sendmsg" else stream.send
    if cell["send"] == "riowrite":
        stream.receive(1)  # the peer's mapping goes ahead of this
        for position, piece in chunks(data):
            stream.write_mapped(piece, position)
        stream.send(b"!")
    else:
        for _, piece in chunks(data):
            send(piece)


def receive_stream(cell, stream, expected, what):
    if cell["send"] == "riowrite":
        buffer = (ctypes.c_char * len(expected))()
        stream.map(buffer)
        stream.send(b"?")
        stream.receive(1)
        compare(buffer.raw, expected, what)
        stream.unmap(buffer)
    else:
        compare(stream.receive(len(expected)), expected, what)


def small_messages(cell, stream, first):
    """Question and answer of sizes up to 200 bytes."""
    for turn in range(SMALL_MESSAGES):
        data = content(1 + turn * 5, turn)
        if first:
            stream.send(data)
        compare(stream.receive(len(data)), data, f"small message {turn}")
        if not first:
            stream.send(data)


def transfer_server(cell, say):
    waiting = listener(cell, library_of(cell), say)
    stream = waiting.accept()
    receive_stream(cell, stream, content(cell["bytes"], 1), "client to server")
    check_device(cell)
    send_stream(cell, stream, content(cell["bytes"], 2))
    small_messages(cell, stream, first=False)
    expect_end(stream)
    stream.close()
    waiting.close()


def transfer_client(cell, say):
    stream = connected(cell, library_of(cell))
    send_stream(cell, stream, content(cell["bytes"], 1))
    receive_stream(cell, stream, content(cell["bytes"], 2), "server to client")
    small_messages(cell, stream, first=True)
    stream.close()


def expect_end(stream):
    buffer = (ctypes.c_char * 16)()
    count = stream.receive_some(buffer, 0, 16)
    if count:
        raise Wrong(f"{count} bytes where the stream ends")


def half_close_first(stream, cell, seed):
    """Ends its direction at once, then reads all that the other one has to say."""
    stream.send(content(cell["bytes"], seed))
    stream.shutdown_writes()
    compare(stream.receive(cell["bytes"]), content(cell["bytes"], seed + 1), "after the own half is closed")
    expect_end(stream)
    if not cell["strict"]:
        stream.close()
        return
    try:
        stream.send(b"x")
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ECONNRESET):
            raise
    else:
        raise Wrong("sending after shutdown(SHUT_WR) works")
    stream.close()


def half_close_second(stream, cell, seed):
    """Reads to the end, then sends, then ends its direction, too."""
    compare(stream.receive(cell["bytes"]), content(cell["bytes"], seed), "until the peer's half is closed")
    expect_end(stream)
    stream.send(content(cell["bytes"], seed + 1))
    stream.shutdown_writes()
    expect_end(stream)
    stream.close()


def half_close_server(cell, say):
    waiting = listener(cell, library_of(cell), say)
    (half_close_first if cell["first"] == "server" else half_close_second)(waiting.accept(), cell, 3)
    waiting.close()


def half_close_client(cell, say):
    (half_close_first if cell["first"] == "client" else half_close_second)(connected(cell, library_of(cell)), cell, 3)


def refused_client(cell, say):
    begin = time.monotonic()
    try:
        connected(cell, library_of(cell))
    except OSError as error:
        if error.errno != errno.ECONNREFUSED:
            raise
    else:
        raise Wrong("connected, and nobody listens")
    if time.monotonic() - begin > 5:
        raise Wrong(f"the refusal took {time.monotonic() - begin:.1f} s")


def many_server(cell, say):
    waiting = listener(cell, library_of(cell), say)
    for turn in range(cell["connections"]):
        stream = waiting.accept()
        stream.send(stream.receive(100))
        expect_end(stream)
        stream.close()
    waiting.close()


def many_client(cell, say):
    library = library_of(cell)
    for turn in range(cell["connections"]):
        stream = connected(cell, library)
        data = content(100, turn)
        stream.send(data)
        compare(stream.receive(100), data, f"connection {turn}")
        stream.close()


def end_after_receive(stream, buffer):
    """Receives once. How the stream has ended, in words; None: data came."""
    try:
        return None if stream.receive_some(buffer, 0, len(buffer)) else "end of the stream"
    except OSError as error:
        return error.strerror


def read_to_the_end(stream, say):
    """Takes what comes until the peer is gone."""
    buffer, told = (ctypes.c_char * 65536)(), False
    while True:
        end = end_after_receive(stream, buffer)
        if end:
            return end
        if not told:
            say("flowing")
            told = True


def end_of_silence(stream):
    """The same for a peer that never says anything."""
    end = end_after_receive(stream, (ctypes.c_char * 16)())
    if not end:
        raise Wrong("data on an idle connection")
    return end


def write_to_the_end(stream):
    data = content(65536, 5)
    while True:
        try:
            stream.send(data)
        except OSError as error:
            return error.strerror


def killed_client_server(cell, say):
    """The survivor reads; its peer is killed while data flows. Then the listener must still serve another client."""
    library = library_of(cell)
    waiting = listener(cell, library, say)
    stream = waiting.accept()
    say("survived: " + read_to_the_end(stream, say))
    stream.close()
    again = waiting.accept()
    again.send(again.receive(1000))
    expect_end(again)
    again.close()
    waiting.close()


def killed_client_client(cell, say):
    write_to_the_end(connected(cell, library_of(cell)))
    raise Wrong("the victim outlived the connection")


def one_echo_client(cell, say):
    stream = connected(cell, library_of(cell))
    data = content(1000, 6)
    stream.send(data)
    compare(stream.receive(1000), data, "echo")
    stream.close()


def killed_server_server(cell, say):
    stream = listener(cell, library_of(cell), say).accept()
    read_to_the_end(stream, say)
    raise Wrong("the victim outlived the connection")


def killed_server_client(cell, say):
    stream = connected(cell, library_of(cell))
    say("survived: " + write_to_the_end(stream))
    stream.close()


def killed_server_reader_client(cell, say):
    """Like it, but it sleeps in recv() when the server dies."""
    stream = connected(cell, library_of(cell))
    stream.send(b"hello")
    say("survived: " + end_of_silence(stream))
    stream.close()


def wait_idle(stream, cell, say):
    """An idle connection with keepalive: poll() must come back, and recv() must tell that it is over."""
    stream.set_option(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    stream.set_option(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    say("idle")
    begin = time.monotonic()
    stream.wait(POLLIN, cell["survival_seconds"] + 20)
    say(f"survived: {end_of_silence(stream)} after {time.monotonic() - begin:.0f} s")
    stream.close()


def link_cut_server(cell, say):
    waiting = listener(cell, library_of(cell), say)
    stream = waiting.accept()
    stream.send(stream.receive(5))
    wait_idle(stream, cell, say)
    waiting.close()


def link_cut_client(cell, say):
    stream = connected(cell, library_of(cell))
    stream.send(b"hello")
    stream.receive(5)
    wait_idle(stream, cell, say)
