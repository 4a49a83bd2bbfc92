"""What datagram rsockets on a real device do with each other. Functions as in scenarios.py."""
import ctypes
import errno
import hashlib
import os
import pathlib
import random
import resource
import socket
import struct
import time

from rsockets import POLLIN, POLLOUT, Library, PollFd, socket_address

SIZES = (0, 1, 16, 100, 1000, 1016, 1017, 2024)
ROUNDS = 40  # of each size
LARGE_SIZES = (1017, 1018, 2024, 2041, 4096, 10_000, 31_000, 32_500, 50_000, 65_479)
LARGE_ROUNDS = 6
FLOOD = 4000  # datagrams
SENDERS = 12
STRANGERS = 10_000
STRANGERS_NETWORK = "10.99"


class Wrong(Exception):
    """The peer, the library or the device did something that it must not do."""


class Post:
    """A datagram rsocket. mode: "blocking", "nonblocking" (waits in poll after EAGAIN) or "async" (polls first)."""

    def __init__(self, library, address, mode="blocking", port=None):
        self.library, self.mode = library, mode
        self.family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.descriptor = library.call("socket", int(self.family), int(socket.SOCK_DGRAM), 0)
        self.library.call("setsockopt", self.descriptor, socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("qq", 20, 0), 16)
        if mode == "nonblocking":
            library.call("fcntl", self.descriptor, 4, os.O_NONBLOCK)  # F_SETFL
        if port is not None:
            raw = socket_address(address, port)
            library.call("bind", self.descriptor, raw, len(raw))

    def poll(self, events, seconds):
        """Whether one of the events came in time."""
        entry = PollFd(self.descriptor, events, 0)
        return self.library.call("poll", ctypes.byref(entry), 1, int(seconds * 1000)) == 1

    def _attempt(self, events, name, *arguments):
        if self.mode == "async" and not self.poll(events, 20):
            raise Wrong(f"poll({events}) before {name}: nothing for 20 s")
        while True:
            try:
                return self.library.call(name, self.descriptor, *arguments, result=ctypes.c_ssize_t)
            except OSError as error:
                if error.errno != errno.EAGAIN or self.mode != "nonblocking":
                    raise
            if not self.poll(events, 20):
                raise Wrong(f"poll({events}) after {name}: nothing for 20 s")

    def connect(self, address, port):
        raw = socket_address(address, port)
        self.library.call("connect", self.descriptor, raw, len(raw))

    def send(self, data, to=None):
        """to: a raw address."""
        length = len(to) if to else 0
        sent = self._attempt(POLLOUT, "sendto", bytes(data), ctypes.c_size_t(len(data)), 0, to, length)
        if sent != len(data):
            raise Wrong(f"{sent} of {len(data)} bytes sent")

    def hear(self, flags=0, room=70_000):
        """(data, raw source address)"""
        buffer, name, length = ctypes.create_string_buffer(room), ctypes.create_string_buffer(128), ctypes.c_uint32(128)
        size = ctypes.c_size_t(room)
        got = self._attempt(POLLIN, "recvfrom", buffer, size, flags, name, ctypes.byref(length))
        return buffer.raw[: min(got, room)], name.raw[: length.value]

    def try_to_hear(self, seconds):
        """None when nothing comes in time."""
        return self.hear() if self.poll(POLLIN, seconds) else None

    def waiting_bytes(self):
        """FIONREAD is libc's: what a peek says of a large buffer."""
        return len(self.hear(flags=socket.MSG_PEEK)[0])

    def close(self):
        self.library.call("close", self.descriptor)


def sent_packets(cell):
    """Of the device, of all its queue pairs."""
    return int(pathlib.Path(f"/sys/class/infiniband/{cell['device']}/ports/1/hw_counters/sent_pkts").read_text())


def must_have_used_device(cell, before, least):
    sent = sent_packets(cell) - before
    if sent < least:
        raise Wrong(f"the device has sent {sent} packets, not {least}")


def content(size, seed):
    return random.Random(f"{size} {seed}").randbytes(size)


def server_of(cell, say):
    post = Post(Library(cell["library"]), cell["address"], cell.get("mode", "blocking"), cell["port"])
    say("listening")
    return post


def client_of(cell, port=None):
    return Post(Library(cell["library"]), cell["address"], cell.get("mode", "blocking"), port)


def ask(post, data, to, tries=20, wanted=None):
    """Sends until an answer comes, or the wanted one: a datagram may be lost, and one that is late is answered twice. Returns the
    answer."""
    for _ in range(tries):
        post.send(data, to)
        while answer := post.try_to_hear(1):
            if wanted is None or answer[0] == wanted:
                return answer[0]
    raise Wrong(f"no answer to {len(data)} bytes")


def digests_server(cell, say):
    """Answers each datagram with its length and hash, until one says "end"."""
    post = server_of(cell, say)
    while True:
        data, source = post.hear()
        if data == b"end":
            break
        post.send(str(len(data)).encode() + b" " + hashlib.sha256(data).hexdigest().encode(), source)
    post.close()


def digests_client(cell, say):
    post, to = client_of(cell), socket_address(cell["address"], cell["port"])
    if cell.get("connected"):
        post.connect(cell["address"], cell["port"])
        to = None
    before = sent_packets(cell)
    for size in cell["sizes"]:
        for turn in range(cell["rounds"]):
            data = content(size, turn)
            wanted = f"{size} {hashlib.sha256(data).hexdigest()}".encode()
            ask(post, data, to, wanted=wanted)
    must_have_used_device(cell, before, cell["least_packets"])
    try:
        post.send(bytes(65_480), to)
        raise Wrong("a datagram that is too large")
    except OSError as error:
        if error.errno != errno.EMSGSIZE:
            raise
    post.send(b"end", to)
    post.close()


def mixed_server(cell, say):
    """Counts what is right, whatever is lost."""
    post, right = server_of(cell, say), set()
    while True:
        data, source = post.hear()
        if data == b"end":
            break
        number, text = data.split(b" ", 1)
        if content(len(text), int(number)) != text:
            raise Wrong(f"datagram {number} of {len(text)} bytes has another text")
        right.add(int(number))
    post.send(str(len(right)).encode(), source)
    post.close()


def mixed_client(cell, say):
    """Sends datagrams of many sizes one after the other, without waiting for answers."""
    post, to, sizes = client_of(cell), socket_address(cell["address"], cell["port"]), random.Random(7)
    for number in range(400):
        post.send(str(number).encode() + b" " + content(sizes.choice((10, 900, 3000, 9000, 20_000)), number), to)
        time.sleep(0.002)
    heard = int(ask(post, b"end", to))
    if heard < 100:
        raise Wrong(f"{heard} of 400 datagrams arrived")
    post.close()


def many_senders_server(cell, say):
    """Each sender's datagrams come in order, and from that sender only."""
    post, seen, ended = server_of(cell, say), {}, 0
    while ended < SENDERS:
        data, source = post.hear()
        if data == b"end":
            ended += 1
            post.send(b"bye", source)
            continue
        number, text = data.split(b" ", 1)
        if seen.setdefault(source, 0) > int(number):
            raise Wrong(f"{number} after {seen[source]}")
        if content(200, int(number)) != text:
            raise Wrong(f"{number} has another text")
        seen[source] = int(number)
        post.send(number, source)
    if len(seen) != SENDERS:
        raise Wrong(f"{len(seen)} senders")
    post.close()


def many_senders_client(cell, say):
    library, to = Library(cell["library"]), socket_address(cell["address"], cell["port"])
    posts, before = [Post(library, cell["address"]) for _ in range(SENDERS)], sent_packets(cell)
    for number in range(ROUNDS):
        for post in posts:
            ask(post, str(number).encode() + b" " + content(200, number), to, wanted=str(number).encode())
    must_have_used_device(cell, before, SENDERS * ROUNDS)
    for post in posts:
        ask(post, b"end", to)
        post.close()


def restarted_server(cell, say):
    """Is killed, again and again."""
    post = server_of(cell, say)
    while True:
        data, source = post.hear()
        post.send(str(os.getpid()).encode() + b" " + data, source)
        say("flowing")


def restarted_client(cell, say):
    """Talks to one server, then to the next one on the same port, from the same socket."""
    post, to = client_of(cell), socket_address(cell["address"], cell["port"])
    last = None
    for life in range(cell["lives"]):
        while True:
            pid = ask(post, b"who?", to, 40).split()[0]
            if pid != last:
                break
        last = pid
        for _ in range(5):
            ask(post, b"again", to)
        say(f"life {life}")
    post.close()


def forked_server(cell, say):
    """Answers with its process's number; then its child does, while the parent goes on living, and then when it has ended."""
    post = server_of(cell, say)

    def answer():
        data, source = post.hear()
        if data != b"end":
            post.send(str(os.getpid()).encode(), source)
        return data != b"end"

    for _ in range(5):
        answer()
    child = os.fork()
    if child == 0:
        while answer():
            pass
        os._exit(0)
    # The parent's queue pair is known to the client until the parent has closed the socket.
    for _ in range(3):
        answer()
    post.close()
    os.waitpid(child, 0)


def forked_client(cell, say):
    post, to, heard = client_of(cell), socket_address(cell["address"], cell["port"]), []
    while len(set(heard)) < 2 or heard[-5:] != heard[-1:] * 5:
        heard.append(ask(post, b"who?", to))
        if len(heard) > 100:
            raise Wrong(f"no child: {heard}")
    for _ in range(3):
        post.send(b"end", to)
        time.sleep(0.1)
    post.close()


def waits_server(cell, say):
    """Sends nothing for a while, then one datagram for each that came."""
    post = server_of(cell, say)
    for _ in range(cell["turns"]):
        data, source = post.hear()
        time.sleep(0.3)
        post.send(data, source)
    post.close()


def waits_client(cell, say):
    """Sleeps in poll and in recv until the answer comes; peeks, cuts, and filters by the peer of connect."""
    post, library = client_of(cell), Library(cell["library"])
    post.connect(cell["address"], cell["port"])
    for turn in range(cell["turns"]):
        text = f"{turn} abcdef".encode()
        post.send(text)
        if turn % 2 and not post.poll(POLLIN, 20):
            raise Wrong("poll() does not wake up")
        if turn % 2 and post.waiting_bytes() != len(text):
            raise Wrong("a peek finds another datagram")
        if turn % 3 == 0:
            if post.hear(room=3)[0] != text[:3]:
                raise Wrong("cut differently")
        elif post.hear()[0] != text:
            raise Wrong("another answer")
    if post.poll(POLLIN, 0):
        raise Wrong("more than was sent")
    stranger = Post(library, cell["address"])
    name = ctypes.create_string_buffer(128)
    length = ctypes.c_uint32(128)
    library.call("getsockname", post.descriptor, name, ctypes.byref(length))
    for _ in range(3):
        stranger.send(b"not from the peer", name.raw[: length.value])
        if post.try_to_hear(0.1):
            raise Wrong("a datagram of a stranger")
    library.call("setsockopt", post.descriptor, socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("qq", 0, 100_000), 16)
    try:
        post.hear()
        raise Wrong("a datagram of nobody")
    except OSError as error:
        if error.errno != errno.EAGAIN:
            raise
    stranger.close()
    post.close()


def full_server(cell, say):
    """Does not read while the client floods it; then it must go on."""
    post = server_of(cell, say)
    post.send(post.hear()[0], post_source(post))
    say("deaf")
    time.sleep(2)
    heard = 0
    while post.try_to_hear(0.5) is not None:
        heard += 1
    if not 10 <= heard < FLOOD:
        raise Wrong(f"{heard} datagrams of a flood")
    data, source = post.hear()
    post.send(data, source)
    post.close()


def post_source(post):
    """Of the next datagram."""
    return post.hear(flags=socket.MSG_PEEK)[1]


def full_client(cell, say):
    post, to = client_of(cell), socket_address(cell["address"], cell["port"])
    post.send(b"first", to)
    post.send(b"second", to)
    post.hear()
    for _ in range(FLOOD):
        post.send(content(500, 0), to)
    time.sleep(4)
    ask(post, b"still there?", to)
    post.close()


def no_datagrams_client(cell, say):
    """iWARP has none."""
    post, to = client_of(cell), socket_address(cell["address"], cell["port"])
    for call in (lambda: post.send(b"x", to), lambda: post.connect(cell["address"], cell["port"])):
        try:
            call()
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
        else:
            raise Wrong("a datagram by iWARP")
    post.close()


def storm_server(cell, say):
    """Answers whoever sends. Its memory must not grow with the number of addresses."""
    post = server_of(cell, say)
    answered, before = 0, None
    while True:
        data, source = post.hear()
        if data == b"end":
            break
        post.send(data, source)
        answered += 1
        if answered == STRANGERS // 4:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    if answered < STRANGERS or grown > 4096:
        raise Wrong(f"{answered} answers, and {grown} KiB more")
    post.send(b"bye", source)
    post.close()


def rendezvous(op, number, note, data=b""):
    return b"UUUU" + struct.pack("!BBBBI4x", 4, op, 16, note, number) + data


def storm_client(cell, say):
    """Rendezvous packets from 10,000 addresses, which nobody has, between those of an honest peer."""
    network = f"{STRANGERS_NETWORK}.0.0/16"
    os.system(f"/usr/bin/ip route add {network} dev {cell['device_kind']} src {cell['address']}")
    honest, to = client_of(cell), socket_address(cell["address"], cell["port"])
    before = sent_packets(cell)
    try:
        for number in range(STRANGERS):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                stranger.setsockopt(socket.SOL_IP, 19, 1)  # IP_TRANSPARENT
                stranger.bind((f"{STRANGERS_NETWORK}.{number // 250}.{1 + number % 250}", 5000))
                stranger.sendto(rendezvous(0, 0x17, 0x31, b"storm"), (cell["address"], cell["port"]))
            if number % 50 == 0:
                ask(honest, f"honest {number}".encode(), to)
        must_have_used_device(cell, before, STRANGERS // 50)
        ask(honest, b"end", to)
    finally:
        os.system(f"/usr/bin/ip route del {network}")
    honest.close()
