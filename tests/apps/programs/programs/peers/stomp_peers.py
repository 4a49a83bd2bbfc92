"""Usage: stomp_peers.py client|endless PORT: clients of a STOMP broker by stomp.py."""
import hashlib
import os
import queue
import sys

import stomp

READERS = 4
MESSAGES = 120
BULK = 1_500_007
WAIT_S = 30


class Reader(stomp.ConnectionListener):
    """Puts what arrives into `messages`, as (headers, bytes), and confirmations into `receipts`."""

    def __init__(self, messages):
        self.messages = messages
        self.receipts = queue.Queue()

    def on_message(self, frame):
        self.messages.put((frame.headers, frame.body))

    def on_receipt(self, frame):
        self.receipts.put(frame.headers["receipt-id"])

    def on_error(self, frame):
        self.messages.put(({"error": frame.body}, b""))

    def on_disconnected(self):
        self.receipts.put("the broker is gone")


class Client:
    def __init__(self, port, messages=None):
        self.reader = Reader(queue.Queue() if messages is None else messages)
        self.connection = stomp.Connection12([("127.0.0.1", port)], auto_decode=False, reconnect_attempts_max=1)
        self.connection.set_listener("", self.reader)
        self.connection.connect(wait=True)
        self.sent = 0

    def subscribe(self, destination, number=0, ack="auto"):
        self.connection.subscribe(destination, id=number, ack=ack, headers={"receipt": "subscribed"})
        self.expect_receipt("subscribed")

    def send(self, destination, content):
        """Returns when the broker has confirmed it."""
        self.sent += 1
        receipt = f"sent-{self.sent}"
        self.connection.send(destination, content, receipt=receipt, persistent="true")
        self.expect_receipt(receipt)

    def expect_receipt(self, wanted):
        got = self.reader.receipts.get(timeout=WAIT_S)
        assert got == wanted, f"{got}, not {wanted}"

    def receive(self):
        return self.reader.messages.get(timeout=WAIT_S)

    def close(self):
        self.connection.disconnect(receipt="end")


def sum_of(content):
    return hashlib.sha256(content).hexdigest()


def publish_to_all(port):
    """A topic with several subscribers: every message comes to all, in order."""
    readers = [Client(port) for _ in range(READERS)]
    for reader in readers:
        reader.subscribe("/topic/all")
    writer = Client(port)
    contents = [os.urandom(BULK + number) for number in range(2)] + [os.urandom(number * 300) for number in range(1, MESSAGES)]
    for content in contents:
        writer.send("/topic/all", content)
    for reader in readers:
        for content in contents:
            headers, got = reader.receive()
            assert sum_of(got) == sum_of(content), f"{len(got)} bytes, not {len(content)}: {headers}"
        reader.close()
    writer.close()


def share_a_queue(port):
    """Several consumers of one queue: each message comes to one of them, which acknowledges it."""
    arrived, got = queue.Queue(), []
    readers = [Client(port, arrived) for _ in range(READERS)]
    for number, reader in enumerate(readers):
        reader.subscribe("/queue/shared", number, ack="client-individual")
    writer = Client(port)
    contents = [os.urandom(1 + number * 500) for number in range(MESSAGES)]
    for content in contents:
        writer.send("/queue/shared", content)
    while len(got) < MESSAGES:
        headers, content = readers[0].receive()
        got.append(sum_of(content))
        readers[int(headers["subscription"])].connection.ack(headers["ack"])
    for reader in readers:
        reader.close()
    assert sorted(got) == sorted(map(sum_of, contents)), "other messages than were sent"
    writer.close()


def talk_shortly(port):
    for number in range(20):
        client = Client(port)
        client.subscribe("/queue/short")
        client.send("/queue/short", b"%d" % number)
        _, got = client.receive()
        assert got == b"%d" % number, got
        client.close()


def run_clients(port):
    publish_to_all(port)
    share_a_queue(port)
    talk_shortly(port)
    print("correct")


def talk_forever(port):
    client = Client(port)
    client.subscribe("/queue/endless")
    begun = False
    while True:
        client.send("/queue/endless", bytes(50_000))
        client.receive()
        if not begun:
            print("begun", flush=True)
            begun = True


{"client": run_clients, "endless": talk_forever}[sys.argv[1]](int(sys.argv[2]))
