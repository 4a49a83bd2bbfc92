"""The socket calls of librdmacm, librsocket or, under a preload library, of libc, as Python objects."""
import ctypes
import errno
import os
import socket
import struct
import time

SOL_RDMA = 0x10000
RDMA_SQSIZE, RDMA_RQSIZE, RDMA_INLINE, RDMA_IOMAPSIZE = range(4)
PROT_WRITE = 2
MSG_DONTWAIT = 0x40
POLLIN, POLLOUT, POLLERR, POLLHUP = 1, 4, 8, 16

BLOCKING, NON_BLOCKING, POLLED = "blocking", "nonblocking", "async"


class PollFd(ctypes.Structure):
    _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]


class IoVector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class MessageHeader(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("vectors", ctypes.POINTER(IoVector)),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    ]


class Library:
    """One implementation of the calls. A failing call raises OSError with its errno."""

    def __init__(self, path=None, prefix="r"):
        """path: the shared library; None: what the process has loaded. prefix: of the names, empty for libc's."""
        self._library = ctypes.CDLL(path, use_errno=True)
        self._prefix = prefix

    def call(self, name, *arguments, result=ctypes.c_int):
        function = getattr(self._library, self._prefix + name)
        function.restype = result
        value = function(*arguments)
        if value == -1:
            code = ctypes.get_errno()
            raise OSError(code, f"{self._prefix}{name}: {os.strerror(code)}")
        return value


def socket_address(address, port):
    """struct sockaddr_in or sockaddr_in6."""
    if ":" in address:
        return struct.pack("=HHI16sI", socket.AF_INET6, socket.htons(port), 0, socket.inet_pton(socket.AF_INET6, address), 0)
    return struct.pack("=HH4s8x", socket.AF_INET, socket.htons(port), socket.inet_aton(address))


class Timeout(Exception):
    pass


class Socket:
    """A stream socket. mode: BLOCKING; NON_BLOCKING, waits in poll after EAGAIN; POLLED, polls before each blocking call."""

    def __init__(self, library, address, mode=BLOCKING, descriptor=None):
        self.library, self.mode = library, mode
        if descriptor is None:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            descriptor = library.call("socket", int(family), int(socket.SOCK_STREAM), 0)
        self.descriptor = descriptor
        if mode == NON_BLOCKING:
            library.call("fcntl", descriptor, 4, os.O_NONBLOCK)  # F_SETFL

    def set_option(self, level, name, value):
        option = ctypes.c_int(value)
        self.library.call("setsockopt", self.descriptor, level, name, ctypes.byref(option), 4)

    def option(self, level, name):
        option, length = ctypes.c_int(0), ctypes.c_uint32(4)
        self.library.call("getsockopt", self.descriptor, level, name, ctypes.byref(option), ctypes.byref(length))
        return option.value

    def listen(self, address, port):
        raw = socket_address(address, port)
        self.library.call("bind", self.descriptor, raw, len(raw))
        self.library.call("listen", self.descriptor, 32)

    def accept(self):
        return Socket(self.library, "", self.mode, self._attempt(POLLIN, "accept", None, None))

    def connect(self, address, port):
        raw = socket_address(address, port)
        try:
            self.library.call("connect", self.descriptor, raw, len(raw))
        except OSError as error:
            if error.errno != errno.EINPROGRESS:
                raise
            self.wait(POLLOUT)
            code = self.option(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, f"connect: {os.strerror(code)}") from None

    def wait(self, events, seconds=60.0):
        """Polls; returns what is there. Raises Timeout."""
        entry = PollFd(self.descriptor, events, 0)
        deadline = time.monotonic() + seconds
        while True:
            # In pieces: upstream's rpoll overestimates the time that passed.
            if self.library.call("poll", ctypes.byref(entry), 1, 200):
                return entry.revents
            if time.monotonic() > deadline:
                raise Timeout(f"poll({events}) for {seconds} s")

    def _attempt(self, events, name, *arguments, result=ctypes.c_int):
        if self.mode == POLLED:
            self.wait(events)
        while True:
            try:
                return self.library.call(name, self.descriptor, *arguments, result=result)
            except OSError as error:
                if error.errno != errno.EAGAIN or self.mode != NON_BLOCKING:
                    raise
            self.wait(events)

    def receive_some(self, buffer, offset, length):
        """Into a ctypes array; the number of bytes, 0 at the end of the stream."""
        return self._attempt(POLLIN, "recv", ctypes.byref(buffer, offset), ctypes.c_size_t(length), 0, result=ctypes.c_ssize_t)

    def try_receive(self, buffer):
        """What is there now: the number of bytes, None for nothing."""
        return self._try("recv", buffer)

    def try_send(self, data):
        return self._try("send", ctypes.create_string_buffer(bytes(data), len(data)))

    def _try(self, name, buffer):
        try:
            return self.library.call(
                name, self.descriptor, buffer, ctypes.c_size_t(len(buffer)), MSG_DONTWAIT, result=ctypes.c_ssize_t
            )
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
            return None

    def receive(self, length):
        """Exactly so many bytes."""
        buffer, done = (ctypes.c_char * length)(), 0
        while done < length:
            count = self.receive_some(buffer, done, length - done)
            if count == 0:
                raise EOFError(f"end of the stream after {done} of {length} bytes")
            done += count
        return buffer.raw

    def send(self, data):
        self._send_all("send", data)

    def send_message(self, data):
        """The same by sendmsg, from three pieces."""
        self._send_all("sendmsg", data)

    def _send_all(self, name, data):
        buffer, done = ctypes.create_string_buffer(bytes(data), len(data)), 0
        while done < len(data):
            left = len(data) - done
            if name == "send":
                arguments = (ctypes.byref(buffer, done), ctypes.c_size_t(left), 0)
            else:
                arguments = (ctypes.byref(message_of(buffer, done, left)), 0)
            done += self._attempt(POLLOUT, name, *arguments, result=ctypes.c_ssize_t)

    def map(self, buffer):
        """Lets the peer write into a ctypes array, as stream offset 0."""
        self.library.call(
            "iomap", self.descriptor, buffer, ctypes.c_size_t(len(buffer)), PROT_WRITE, 0, ctypes.c_long(0), result=ctypes.c_long
        )

    def unmap(self, buffer):
        self.library.call("iounmap", self.descriptor, buffer, ctypes.c_size_t(len(buffer)))

    def write_mapped(self, data, offset):
        """Into what the peer has mapped."""
        buffer, done = ctypes.create_string_buffer(bytes(data), len(data)), 0
        while done < len(data):
            done += self._attempt(
                POLLOUT,
                "iowrite",
                ctypes.byref(buffer, done),
                ctypes.c_size_t(len(data) - done),
                ctypes.c_long(offset + done),
                0,
                result=ctypes.c_ssize_t,
            )

    def shutdown_writes(self):
        self.library.call("shutdown", self.descriptor, 1)

    def close(self):
        self.library.call("close", self.descriptor)


def message_of(buffer, offset, length):
    """A message header over three pieces of buffer[offset : offset + length]."""
    cuts = [0, length // 3, length // 3 + length // 5, length]
    base = ctypes.addressof(buffer) + offset
    vectors = (IoVector * 3)(*((base + begin, end - begin) for begin, end in zip(cuts, cuts[1:])))
    return MessageHeader(None, 0, vectors, 3, None, 0, 0)
