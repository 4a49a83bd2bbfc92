"""memcached_client.py ADDRESS PORT PREFIX: stores values by UDP and reads them back, asking again what got no answer."""
import os
import socket
import struct
import sys

VALUES = 500
address, port, prefix = sys.argv[1], int(sys.argv[2]), sys.argv[3]
connection = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
connection.connect((address, port))
connection.settimeout(1)


def ask(number, request):
    """The whole answer, whose datagrams have a head of request, place, count and zero each."""
    for _ in range(5):
        connection.send(struct.pack("!4H", number, 0, 1, 0) + request)
        parts = {}
        try:
            while True:
                datagram = connection.recv(65536)
                answered, place, count, _ = struct.unpack("!4H", datagram[:8])
                if answered == number:
                    parts[place] = datagram[8:]
                    if len(parts) == count:
                        return b"".join(parts[index] for index in range(count))
        except socket.timeout:
            pass
    sys.exit(f"no answer to {request[:40]}")


for index in range(VALUES):
    key, value = f"{prefix}-{index}".encode(), os.urandom(1 + 4 * index).hex().encode()[:1300]
    stored = ask(2 * index, b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value))
    if stored != b"STORED\r\n":
        sys.exit(f"set: {stored}")
    found = ask(2 * index + 1, b"get %s\r\n" % key)
    if found != b"VALUE %s 0 %d\r\n%s\r\nEND\r\n" % (key, len(value), value):
        sys.exit(f"get: {found[:100]}")
print(f"{VALUES} values read back")
