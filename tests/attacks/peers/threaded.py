"""A server with blocking calls, one client at a time: threaded.py. Says "port N"."""
import socket

listener = socket.create_server(("127.0.0.1", 0), backlog=64)
print("port", listener.getsockname()[1], flush=True)
while True:
    client, _ = listener.accept()
    with client:
        try:
            while data := client.recv(4096):
                client.sendall(data)
        except OSError:
            pass
