"""What a session of rsockets says, as text, and whether it keeps the protocol's rules (rdma-core librdmacm/docs/rsocket)."""
import struct

DATA, SGL, IOMAP, CTRL = 0, 4, 6, 7
CONTROLS = {0: "DISCONNECT", 1: "KEEPALIVE", 2: "SHUTDOWN"}


class BrokenRule(Exception):
    """What a side sent that it must not send."""


class Greeting:
    """The 40 bytes of the connection request and reply."""

    def __init__(self, data):
        if len(data) < 40:
            raise BrokenRule(f"a greeting of {len(data)} bytes")
        (self.version, self.flags, self.credits, self.iomap, self.table, self.table_key, self.entries, self.buffer, self.buffer_key,
         self.buffer_bytes) = struct.unpack(">BBHxxxBQIIQII", data[:40])  # fmt: skip

    def text(self):
        return (
            f"version {self.version}, flags {self.flags:#x}, credits {self.credits}, iomap {self.iomap}, "
            f"entries {self.entries}, buffer {self.buffer_bytes}"
        )


class Side:
    """What a side may do, by what the other one has told it."""

    def __init__(self, other):
        self.other = other  # Greeting
        self.sequence, self.limit = 0, other.credits
        self.buffers = [[other.buffer, other.buffer_key, other.buffer_bytes]]
        self.next_entry = 1 % other.entries  # where it announces
        self.unsaid = []  # iWARP: what was written, and no word has told of
        self.has_ended = False


class Reader:
    """Turns what was sent into lines, and checks it on the way."""

    def __init__(self, session):
        self._greetings = {who: Greeting(data) for who, data in session.greetings.items()}
        other = {"client": "server", "server": "client"}
        self._sides = {who: Side(self._greetings[other[who]]) for who in other}
        self._other = other
        self.lines = [f"{who} {self._greetings[who].text()}" for who in ("client", "server")]
        for sent in session.sent:
            self._take(sent)

    def _take(self, sent):
        side = self._sides[sent.sender]
        if sent.word is None:
            side.unsaid.append(sent)
            if not self._is_for_a_word(side, sent):
                self._write_alone(side, side.unsaid.pop())
            return
        if side.has_ended:
            raise BrokenRule(f"{sent.sender} goes on after DISCONNECT")
        opcode, value = sent.word >> 29, sent.word & 0x1FFFFFFF
        if sent.payload:
            side.unsaid.append(sent)
        written = side.unsaid.pop() if side.unsaid and opcode in (DATA, SGL, IOMAP) else None
        text = {DATA: self._data, SGL: self._sgl, IOMAP: self._iomap, CTRL: self._control}[opcode](sent.sender, side, value, written)
        self.lines.append(f"{sent.sender} {text}")

    def _is_for_a_word(self, side, sent):
        """Whether a word will follow: it goes where the protocol puts something."""
        place, key, _ = side.buffers[0] if side.buffers else (None, None, None)
        table_end = side.other.table + 16 * side.other.entries + 24 * side.other.iomap
        return bool(sent.payload) and ((sent.address, sent.key) == (place, key) or side.other.table <= sent.address < table_end)

    def _write_alone(self, side, sent):
        self.lines.append(f"{sent.sender} WRITE {len(sent.payload)}" if sent.payload else f"{sent.sender} KEEPALIVE")

    def _data(self, who, side, value, written):
        if written is None or value == 0 or len(written.payload) != value:
            raise BrokenRule(f"{who}: DATA {value} with {len(written.payload) if written else 0} bytes")
        if side.sequence == side.limit:
            raise BrokenRule(f"{who}: DATA without a credit")
        side.sequence = (side.sequence + 1) & 0xFFFF
        buffer = side.buffers[0]
        if [written.address, written.key] != buffer[:2] or value > buffer[2]:
            raise BrokenRule(f"{who}: DATA {value} to {written.address:#x} instead of {buffer}")
        buffer[0], buffer[2] = buffer[0] + value, buffer[2] - value
        if buffer[2] == 0:
            del side.buffers[0]
        return f"DATA {value}"

    def _sgl(self, who, side, value, written):
        other = self._sides[self._other[who]]
        if (value - other.sequence) & 0xFFFF > self._greetings[who].credits:
            raise BrokenRule(f"{who}: a limit of {value} after {other.sequence} messages")
        other.limit = value & 0xFFFF
        if written is None:
            return f"CREDITS {value}"
        if len(written.payload) != 16 or written.address != side.other.table + 16 * side.next_entry:
            raise BrokenRule(f"{who}: an entry of {len(written.payload)} bytes at {written.address - side.other.table}")
        address, key, length = struct.unpack("<QII", written.payload)
        other.buffers.append([address, key, length])
        text = f"ENTRY {side.next_entry}: {length} bytes, CREDITS {value}"
        side.next_entry = (side.next_entry + 1) % side.other.entries
        return text

    def _iomap(self, who, side, value, written):
        place = side.other.table + 16 * side.other.entries + 24 * value
        if written is None or len(written.payload) != 24 or written.address != place:
            raise BrokenRule(f"{who}: IOMAP {value}")
        # Upstream counts it, and its receiver gives no credit back for it; who does not count it is right, too.
        offset, _, _, length = struct.unpack("<QQII", written.payload)
        return f"IOMAP {value}: offset {offset}, {length}"

    def _control(self, who, side, value, written):
        side.has_ended = value == 0
        return CONTROLS.get(value, f"CTRL {value}")
