"""udp_probe.py ADDRESS PORT SECONDS: asks again and again, then says {rounds, lost, longest_ms}. A datagram may be lost once."""
import json
import socket
import sys
import time

client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.connect((sys.argv[1], int(sys.argv[2])))
client.settimeout(0.5)
print("ready", flush=True)
rounds, lost, longest = 0, 0, 0.0
over = time.monotonic() + float(sys.argv[3])
while time.monotonic() < over:
    asked = time.monotonic()
    while True:
        client.send(str(rounds).encode())
        try:
            while client.recv(100) != str(rounds).encode():
                pass
            break
        except OSError:
            lost += 1
            if time.monotonic() > over + 5:
                break
    rounds += 1
    longest = max(longest, time.monotonic() - asked)
    time.sleep(0.005)
print(json.dumps({"rounds": rounds, "lost": lost, "longest_ms": longest * 1000}), flush=True)
