"""A row of the table."""
import typing


class Attack(typing.NamedTuple):
    section: int
    index: int
    title: str
    seconds: int
    body: typing.Callable

    @property
    def label(self):
        return f"{self.section}.{self.index}"
