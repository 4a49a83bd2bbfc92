"""udp_echo.py ADDRESS PORT: echoes datagrams, and would let others share the port."""
import socket
import sys

server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind((sys.argv[1], int(sys.argv[2])))
print("bound", flush=True)
while True:
    data, peer = server.recvfrom(2048)
    server.sendto(data, peer)
