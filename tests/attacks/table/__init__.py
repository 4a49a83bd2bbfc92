"""The table of attacks: a module for each section of SECURITY.md that they belong to."""
from .attack import Attack

ATTACKS = []


def attack(section, title, seconds=30):
    """Enters body(scene) -> Verdict in the table. section: the number of the promise in SECURITY.md."""

    def enter(body):
        index = 1 + sum(each.section == section for each in ATTACKS)
        ATTACKS.append(Attack(section, index, title, seconds, body))
        return body

    return enter


def all_attacks():
    from . import memory, descriptors, budgets, floods, patience, identity, names, udp_claims, surroundings  # noqa: F401

    return sorted(ATTACKS, key=lambda each: (each.section, each.index))
