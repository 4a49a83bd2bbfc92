"""A server that loses its descriptors after its first client, and begins anew: daemon.py closefrom|loop|raw|fork|_Fork."""
import ctypes
import os
import signal
import socket
import sys

CLOSE_RANGE = 436
libc = ctypes.CDLL(None, use_errno=True)


def use_sockets():
    """Both ends of a connection, then nothing is open any more but a listener and one end."""
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    client.sendall(b"x")
    server.recv(1)
    return listener, client, server


def lose(how, kept):
    if how == "closefrom":
        libc.closefrom(3)
    elif how == "loop":
        for fd in range(3, 1024):
            libc.close(fd)
    elif how == "raw":
        libc.syscall(CLOSE_RANGE, 3, 0xFFFFFFFF, 0)
    elif how == "fork":
        for _ in range(2):
            if os.fork() != 0:
                signal.pause()
    elif how == "_Fork":
        if libc._Fork() != 0:
            signal.pause()
    for each in kept if how in ("closefrom", "loop", "raw") else ():
        each.detach()


kept = use_sockets()
lose(sys.argv[1], kept)
listener = socket.create_server(("127.0.0.1", 0), backlog=64)
print("port", listener.getsockname()[1], flush=True)
while True:
    client, _ = listener.accept()
    with client:
        while data := client.recv(4096):
            client.sendall(data)
