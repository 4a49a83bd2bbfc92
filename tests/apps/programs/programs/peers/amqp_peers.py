"""Usage: amqp_peers.py client|endless PORT: clients of an AMQP broker by pika; every publication is confirmed."""
import hashlib
import os
import sys
import threading

import pika

CONSUMERS = 4
MESSAGES = 120
BULK = 1_500_007


def connect(port):
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0))
    channel = connection.channel()
    channel.confirm_delivery()
    return connection, channel


def publish(channel, queue, content):
    """Returns when the broker has confirmed it; raises when it could not be routed."""
    channel.basic_publish("", queue, content, pika.BasicProperties(delivery_mode=2), mandatory=True)


def consume(port, queue, got, errors):
    """Adds digests to got until an empty message comes."""
    try:
        connection, channel = connect(port)
        channel.basic_qos(prefetch_count=5)
        for method, _, content in channel.consume(queue):
            channel.basic_ack(method.delivery_tag)
            if not content:
                break
            got.append(hashlib.sha256(content).hexdigest())
        channel.cancel()
        connection.close()
    except BaseException as error:
        errors.append(error)
        raise


def share_a_queue(port):
    """Several consumers of one queue: each message comes to one of them."""
    connection, channel = connect(port)
    channel.queue_declare("shared", durable=True)
    got, errors, sent = [], [], []
    consumers = [threading.Thread(target=consume, args=(port, "shared", got, errors)) for _ in range(CONSUMERS)]
    for consumer in consumers:
        consumer.start()
    for number in range(MESSAGES):
        content = os.urandom(1 + number * 500)
        sent.append(hashlib.sha256(content).hexdigest())
        publish(channel, "shared", content)
    publish_ends(channel)
    for consumer in consumers:
        consumer.join()
    assert not errors, errors
    assert sorted(got) == sorted(sent), f"{len(got)} messages of {len(sent)}"
    connection.close()


def publish_ends(channel):
    for _ in range(CONSUMERS):
        publish(channel, "shared", b"")


def fan_out(port):
    """An exchange with a queue for each of several consumers: every message comes to all."""
    connection, channel = connect(port)
    channel.exchange_declare("all", "fanout")
    queues = [channel.queue_declare("", exclusive=True).method.queue for _ in range(3)]
    for queue in queues:
        channel.queue_bind(queue, "all")
    contents = [os.urandom(BULK + number) for number in range(3)]
    for content in contents:
        channel.basic_publish("all", "", content, mandatory=True)
    for queue in queues:
        for content in contents:
            _, _, got = channel.basic_get(queue, auto_ack=True)
            assert got == content, f"{len(got or b'')} bytes, not {len(content)}"
    connection.close()


def talk_shortly(port):
    for number in range(20):
        connection, channel = connect(port)
        channel.queue_declare("short")
        publish(channel, "short", b"%d" % number)
        _, _, got = channel.basic_get("short", auto_ack=True)
        assert got == b"%d" % number, got
        connection.close()


def run_clients(port):
    share_a_queue(port)
    fan_out(port)
    talk_shortly(port)
    print("correct")


def talk_forever(port):
    _, channel = connect(port)
    channel.queue_declare("endless")
    begun = False
    while True:
        publish(channel, "endless", bytes(50_000))
        channel.basic_get("endless", auto_ack=True)
        if not begun:
            print("begun", flush=True)
            begun = True


{"client": run_clients, "endless": talk_forever}[sys.argv[1]](int(sys.argv[2]))
