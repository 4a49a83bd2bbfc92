"""A client that connects, says "fd N" and waits to be killed: holder.py PORT."""
import signal
import socket
import sys

client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print("fd", client.fileno(), flush=True)
while True:
    signal.pause()
