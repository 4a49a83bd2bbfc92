"""What the guest's kernel says, if it is told to."""
import os
import subprocess

CONTROL = "/sys/kernel/debug/dynamic_debug/control"


class KernelLog:
    """Its messages, from now on. functions: whose debugging messages are wanted, too."""

    def __init__(self, functions):
        if not os.path.exists(CONTROL):
            subprocess.run(["/usr/bin/mount", "-t", "debugfs", "none", "/sys/kernel/debug"], check=True)
        with open(CONTROL, "w", encoding="ascii") as control:
            control.write("\n".join(f"func {name} +p" for name in functions))
        self._messages = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        self.forget()

    def forget(self):
        os.lseek(self._messages, 0, os.SEEK_END)

    def has(self, *texts):
        """Whether a message since then has them all. Forgets the messages."""
        found = False
        while True:
            try:
                message = os.read(self._messages, 8192)
                found |= all(text.encode() in message for text in texts)
            except BlockingIOError:
                return found
            except BrokenPipeError:  # some are gone already; those that are left can be read
                pass
