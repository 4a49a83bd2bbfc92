"""So many clients of one process: crowd.py PORT COUNT. Says "connected N" once each has had its bytes back, and stays."""
import signal
import socket
import sys

clients = []
for _ in range(int(sys.argv[2])):
    try:
        client = socket.socket()
        client.settimeout(1)
        client.connect(("127.0.0.1", int(sys.argv[1])))
        client.sendall(b"hello\n")
        if client.recv(6) == b"hello\n":
            clients.append(client)
    except OSError as error:
        print(error, file=sys.stderr)
print("connected", len(clients), flush=True)
while True:
    signal.pause()
