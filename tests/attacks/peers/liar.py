"""A client with a source port of its choice on every address: liar.py PORT SOURCE_PORT."""
import socket
import sys

client = socket.socket()
client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
client.settimeout(10)
client.bind(("0.0.0.0", int(sys.argv[2])))
client.connect(("127.0.0.1", int(sys.argv[1])))
client.sendall(b"hello\n")
print("got", client.recv(6), "from", client.getpeername(), "at", client.getsockname(), flush=True)
