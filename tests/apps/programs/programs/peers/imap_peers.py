"""Usage: imap_peers.py client|endless PORT: clients of an IMAP server by imaplib, whose password is "secret"."""
import hashlib
import imaplib
import os
import re
import sys
import threading

CLIENTS = 6
MAILS = 12
WAITS_S = 30
SLEEP_S = 3  # long enough for the server to set a connection that is idle aside


class Mailbox:
    def __init__(self, port, user):
        self.imap = imaplib.IMAP4("127.0.0.1", port, timeout=WAITS_S)
        self.imap.login(user, "secret")
        self.check(self.imap.select("INBOX"))

    @staticmethod
    def check(answer):
        assert answer[0] == "OK", answer
        return answer[1]

    def append(self, content):
        self.check(self.imap.append("INBOX", None, None, content))

    def fetch(self, number):
        return self.check(self.imap.fetch(str(number), "(BODY.PEEK[])"))[0][1]

    def close(self):
        self.imap.logout()


def mail_of(number, size):
    text = os.urandom(size).hex().encode()
    lines = b"".join(text[at : at + 70] + b"\r\n" for at in range(0, len(text), 70))
    return b"From: tester@localhost\r\nSubject: mail %d\r\n\r\n" % number + lines


def store_and_fetch(port, user):
    """Stores by one connection, reads by another: sums and order are right."""
    writer, sums = Mailbox(port, user), []
    for number in range(MAILS):
        content = mail_of(number, number * 13_000)
        writer.append(content)
        sums.append(hashlib.sha256(content).hexdigest())
    reader = Mailbox(port, user)
    found = Mailbox.check(reader.imap.search(None, "ALL"))[0].split()
    assert len(found) == MAILS, found
    for number, wanted in enumerate(sums, start=1):
        assert hashlib.sha256(reader.fetch(number)).hexdigest() == wanted, f"mail {number} of {user} is another"
    subjects = Mailbox.check(reader.imap.fetch(f"1:{MAILS}", "(BODY.PEEK[HEADER.FIELDS (SUBJECT)])"))
    assert [int(re.search(rb"mail (\d+)", line[1])[1]) for line in subjects if isinstance(line, tuple)] == list(range(MAILS))
    writer.close()
    reader.close()


def wait_for_mail(port, user):
    """A connection that says IDLE for a while, is told of a mail, and goes on."""
    idle, writer = Mailbox(port, user), Mailbox(port, user)
    idle.imap.send(b"X1 IDLE\r\n")
    assert idle.imap.readline().startswith(b"+"), "no IDLE"
    pause = threading.Event()
    pause.wait(SLEEP_S)
    content = mail_of(0, 200_000)
    writer.append(content)
    while not (line := idle.imap.readline()).endswith(b"EXISTS\r\n"):
        assert line, "the connection has ended"
    number = int(line.split()[1])
    idle.imap.send(b"DONE\r\n")
    while not (line := idle.imap.readline()).startswith(b"X1 "):
        assert line, "the connection has ended"
    assert line.startswith(b"X1 OK"), line
    assert idle.fetch(number) == content, "another mail"
    writer.close()
    idle.close()


def work(port, user, errors):
    try:
        store_and_fetch(port, user)
        wait_for_mail(port, user)
    except BaseException as error:
        errors.append(f"{user}: {error!r}")
        raise


def run_clients(port):
    errors = []
    clients = [threading.Thread(target=work, args=(port, f"user{number}", errors)) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert not errors, errors
    print("correct")


def talk_forever(port):
    mailbox = Mailbox(port, "endless")
    content, begun = mail_of(0, 100_000), False
    mailbox.append(content)
    while True:
        assert mailbox.fetch(1) == content
        if not begun:
            print("begun", flush=True)
            begun = True


{"client": run_clients, "endless": talk_forever}[sys.argv[1]](int(sys.argv[2]))
