"""A server with one thread: echo_server.py PORT [BACKLOG [HOST]]. Says "port N", then "peer HOST PORT" for each client."""
import select
import signal
import socket
import sys
import time


def main():
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((sys.argv[3] if len(sys.argv) > 3 else "127.0.0.1", int(sys.argv[1])))
    listener.listen(int(sys.argv[2]) if len(sys.argv) > 2 else 1024)
    listener.setblocking(False)
    print("port", listener.getsockname()[1], flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    clients = {}
    said = set()
    while True:
        for fd, _ in poller.poll(1000):
            if fd == listener.fileno():
                take_in(listener, clients, poller, said)
            else:
                serve(clients, fd, poller)


def take_in(listener, clients, poller, said):
    try:
        client, peer = listener.accept()
    except BlockingIOError:
        return
    except OSError as error:
        print("accept", error.errno, flush=True)
        time.sleep(0.01)
        return
    client.setblocking(False)
    if peer not in said and len(said) < 1000:
        said.add(peer)
        print("peer", *peer[:2], "at", *client.getsockname()[:2], flush=True)
    clients[client.fileno()] = client
    poller.register(client, select.POLLIN)


def serve(clients, fd, poller):
    try:
        data = clients[fd].recv(65536)
        if data and clients[fd].send(data):
            return
    except BlockingIOError:
        return
    except OSError:
        pass
    poller.unregister(fd)
    clients.pop(fd).close()


main()
