"""Usage: multiprocessing_manager.py server|client|endless PORT: a queue, a dictionary and a lock shared over TCP."""
import multiprocessing
import multiprocessing.managers
import os
import queue
import sys
import threading

KEY = b"of this test"
WORKERS = 4
TASKS = 200
shared = {"tasks": queue.Queue(), "results": {}, "lock": threading.Lock()}


class Manager(multiprocessing.managers.BaseManager):
    pass


Manager.register("tasks", callable=lambda: shared["tasks"])
Manager.register("results", callable=lambda: shared["results"], exposed=("__setitem__", "items", "get"))
Manager.register("lock", callable=lambda: shared["lock"], exposed=("acquire", "release"))


def connect(port):
    manager = Manager(address=("127.0.0.1", port), authkey=KEY)
    manager.connect()
    return manager


def work(port):
    """Squares numbers until the queue says None; the counter would be wrong without the lock."""
    manager = connect(port)
    tasks, results, lock = manager.tasks(), manager.results(), manager.lock()
    while (number := tasks.get()) is not None:
        results[number] = number * number
        lock.acquire()
        results["done"] = results.get("done", 0) + 1
        lock.release()


def run_clients(port):
    multiprocessing.current_process().authkey = KEY
    manager = connect(port)
    tasks, results = manager.tasks(), manager.results()
    workers = [multiprocessing.Process(target=work, args=(port,)) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    for task in [*range(TASKS), *[None] * WORKERS]:
        tasks.put(task)
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert dict(results.items()) == {"done": TASKS, **{number: number * number for number in range(TASKS)}}
    blob = os.urandom(1_000_003)
    results["blob"] = blob
    assert results.get("blob") == blob
    print("correct")


def talk_forever(port):
    results = connect(port).results()
    blob, begun = bytes(100_000), False
    while True:
        results["blob"] = blob
        if not begun:
            print("begun", flush=True)
            begun = True


def serve(port):
    Manager(address=("127.0.0.1", port), authkey=KEY).get_server().serve_forever()


if __name__ == "__main__":
    {"server": serve, "client": run_clients, "endless": talk_forever}[sys.argv[1]](int(sys.argv[2]))
