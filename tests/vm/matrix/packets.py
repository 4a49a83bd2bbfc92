"""Sessions of rsockets out of Ethernet frames: RoCEv2 (InfiniBand Architecture Specification, annex A17) and iWARP (RFC 5040, 5041,
5044, 6581)."""
import collections
import struct

ROCE_PORT = 4791
WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_LAST_IMM, WRITE_ONLY, WRITE_ONLY_IMM = range(0x06, 0x0C)
UD_SEND_ONLY = 0x64
CM_CLASS, CM_REQ, CM_REP = 0x07, 0x10, 0x13
PSN_MASK = 0xFFFFFF

# What one side sends at once: bytes written to an address, or the word of a message, or both.
Sent = collections.namedtuple("Sent", "sender address key payload word")


class Session:
    """One connection. greetings: what "client" and "server" say of themselves while connecting. sent: what came then, in order."""

    def __init__(self):
        self.greetings, self.sent = {}, []


def read_pcap(data):
    """The frames of a capture file."""
    order = {b"\xd4\xc3\xb2\xa1": "<", b"\xa1\xb2\xc3\xd4": ">"}[data[:4]]
    position = 24
    while position + 16 <= len(data):
        length = struct.unpack_from(order + "I", data, position + 8)[0]
        yield data[position + 16 : position + 16 + length]
        position += 16 + length


def sessions(frames):
    """All sessions whose beginning is there, by the order of their requests."""
    roce, iwarp = RoceDecoder(), IwarpDecoder()
    for frame in frames:
        if frame[12:14] != b"\x08\x00" or frame[14] != 0x45:
            continue
        packet = frame[14 : 14 + int.from_bytes(frame[16:18], "big")]
        if packet[9] == 17 and int.from_bytes(packet[22:24], "big") == ROCE_PORT:
            roce.take(packet[12:16], packet[16:20], packet[28:])
        elif packet[9] == 6:
            iwarp.take(packet[12:16], packet[16:20], packet[20:])
    return [session for session in roce.sessions + iwarp.sessions() if len(session.greetings) == 2]


class RoceDecoder:
    """Takes UDP payloads."""

    def __init__(self):
        self.sessions = []
        self._calls = {}  # (caller's address, communication id) -> (session, queue pair number)
        self._ways = {}  # (address, queue pair) that packets go to -> Way

    def take(self, source, target, data):
        opcode, queue_pair = data[0], int.from_bytes(data[5:8], "big")
        body = data[12:-4]
        if opcode == UD_SEND_ONLY and queue_pair == 1:
            self._take_mad(source, target, body[8:])
        elif WRITE_FIRST <= opcode <= WRITE_ONLY_IMM and (target, queue_pair) in self._ways:
            self._ways[target, queue_pair].take(opcode, int.from_bytes(data[9:12], "big"), body)

    def _take_mad(self, source, target, mad):
        if mad[1] != CM_CLASS:
            return
        kind, body = int.from_bytes(mad[16:18], "big"), mad[24:]
        if kind == CM_REQ and (source, body[:4]) not in self._calls:
            session = Session()
            # Before what the caller says, RDMA CM tells the addresses.
            session.greetings["client"] = body[140 + 36 :]
            self.sessions.append(session)
            self._calls[source, body[:4]] = session, body[32:35]
        elif kind == CM_REP and (target, body[4:8]) in self._calls:
            session, caller = self._calls[target, body[4:8]]
            if "server" not in session.greetings:
                session.greetings["server"] = body[36:]
                self._ways[target, int.from_bytes(caller, "big")] = Way(session, "server")
                self._ways[source, int.from_bytes(body[12:15], "big")] = Way(session, "client")


class Way:
    """One direction of a RoCE connection."""

    def __init__(self, session, sender):
        self._session, self._sender = session, sender
        self._expected = None
        self._place, self._payload = None, b""

    def take(self, opcode, number, body):
        if self._expected not in (None, number):
            return  # sent again, or a gap that will be
        self._expected = (number + 1) & PSN_MASK
        if opcode in (WRITE_FIRST, WRITE_ONLY, WRITE_ONLY_IMM):
            address, key = struct.unpack_from(">QI", body)
            self._place, self._payload, body = (address, key), b"", body[16:]
        word = None
        if opcode in (WRITE_LAST_IMM, WRITE_ONLY_IMM):
            word, body = int.from_bytes(body[:4], "big"), body[4:]
        self._payload += body
        if opcode not in (WRITE_FIRST, WRITE_MIDDLE):
            self._session.sent.append(Sent(self._sender, *self._place, self._payload, word))


class IwarpDecoder:
    """Takes TCP segments."""

    def __init__(self):
        self._streams = {}  # (source, target, ports) -> Stream
        self._order = []

    def take(self, source, target, segment):
        ports, number = segment[:4], int.from_bytes(segment[4:8], "big")
        data, flags = segment[(segment[12] >> 4) * 4 :], segment[13]
        if flags & 0x12 == 0x02:  # SYN
            session = Session()
            back = target, source, ports[2:] + ports[:2]
            self._streams[source, target, ports] = Stream(session, "client")
            self._streams[back] = Stream(session, "server")
            self._order.append(session)
        stream = self._streams.get((source, target, ports))
        if stream is None:
            return
        if flags & 0x02:
            stream.expected = number + 1
        stream.take(number, data)

    def sessions(self):
        return self._order


class Stream:
    """One direction of a TCP connection that carries iWARP."""

    def __init__(self, session, sender):
        self._session, self._sender = session, sender
        self.expected = None
        self._early, self._data = {}, b""
        self._payload, self._place = b"", None

    def take(self, number, data):
        if not data or (number - self.expected) & 0x80000000:
            return  # nothing new
        self._early[number] = data
        while self.expected in self._early:
            piece = self._early.pop(self.expected)
            self.expected = (self.expected + len(piece)) & 0xFFFFFFFF
            self._data += piece
        while self._take_frame():
            pass

    def _take_frame(self):
        """Whether a whole one was there."""
        if self._sender not in self._session.greetings:
            if len(self._data) < 20 or len(self._data) < 20 + int.from_bytes(self._data[18:20], "big"):
                return False
            length = 20 + int.from_bytes(self._data[18:20], "big")
            # RFC 6581: before what the user says, how many READs may be under way.
            self._session.greetings[self._sender] = self._data[20 + (4 if self._data[17] == 2 else 0) : length]
            self._data = self._data[length:]
            return True
        length = int.from_bytes(self._data[:2], "big")
        whole = (2 + length + 3) // 4 * 4 + 4
        if len(self._data) < max(whole, 6):
            return False
        self._take_segment(self._data[2 : 2 + length])
        self._data = self._data[whole:]
        return True

    def _take_segment(self, segment):
        is_tagged, is_last, opcode = segment[0] & 0x80, segment[0] & 0x40, segment[1] & 0x0F
        if is_tagged and opcode == 0:
            key, address = struct.unpack_from(">IQ", segment, 2)
            if self._place is None:
                self._place = address, key
            self._payload += segment[14:]
            if is_last:
                self._session.sent.append(Sent(self._sender, *self._place, self._payload, None))
                self._place, self._payload = None, b""
        elif not is_tagged and opcode == 3:
            # rsockets' words have the sender's byte order here.
            self._session.sent.append(Sent(self._sender, None, None, b"", int.from_bytes(segment[18:22], "little")))
