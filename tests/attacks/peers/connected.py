"""A client that says how long connect() took, "connected MS", and then expects its bytes back: connected.py PORT."""
import socket
import sys
import time

before = time.monotonic()
client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print("connected", (time.monotonic() - before) * 1000, flush=True)
client.sendall(b"hello\n")
sys.exit(0 if client.recv(6) == b"hello\n" else 1)
