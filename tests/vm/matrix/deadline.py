"""Time limits that do not run while the whole guest stands still."""
import time

STEP = 0.5  # seconds: who waits looks at the clock at least so often
STANDSTILL = 3.0  # seconds between two looks that only a stopped machine explains


class Deadline:
    """A moment. `stood_still`: seconds by which it was put off, over all deadlines."""

    stood_still = 0.0
    _last_look = time.monotonic()

    def __init__(self, seconds):
        self._look()
        self._end = time.monotonic() + seconds - Deadline.stood_still

    @staticmethod
    def _look():
        now = time.monotonic()
        gap = now - Deadline._last_look
        if gap > STANDSTILL:
            Deadline.stood_still += gap
        Deadline._last_look = now

    def left(self):
        """Seconds, at most STEP: then ask again. 0 when it is over."""
        self._look()
        return min(STEP, max(0.0, self._end + Deadline.stood_still - time.monotonic()))

    def sooner(self, seconds):
        """This one or the one in so many seconds, whichever comes first."""
        other = Deadline(seconds)
        return other if other._end < self._end else self
