"""Sections 1 to 3: what riomap() and riowrite() may not do to memory and calls. memory_attacks.cc carries it out."""
from scene.scene import ALICE, ROOT, Verdict
from . import attack

SCENARIOS = (
    (1, "forked-small", "riowrite to a child of the process that accepted, 8 KiB"),
    (1, "forked-large", "the same, 256 KiB"),
    (1, "executed", "riowrite to a process that has executed another program"),
    (1, "number-reused", "riowrite to a process whose number another one has got"),
    (2, "mprotect", "half of a mapped buffer is protected, then unmapped"),
    (2, "mremap", "a mapped buffer is moved by mremap()"),
    (2, "realloc", "a mapped buffer grows by realloc()"),
    (2, "direct-io", "riomap() during direct reads into the buffer"),
    (2, "shared-futex", "riomap() of memory with a process-shared semaphore that somebody waits for"),
    (3, "fork-riounmap", "riounmap() after fork()"),
    (3, "fork-riomap", "riomap() after fork()"),
    (3, "fork-riowrite", "riowrite() after fork()"),
    (3, "kept-riounmap", "riounmap() after fork() while the child lives"),
    (3, "kept-riowrite", "riowrite() after fork() while the child lives"),
    (3, "system-riounmap", "riounmap() after system()"),
    (3, "system-riowrite", "riowrite() after system()"),
    (3, "fork-rshutdown", "rshutdown() after fork()"),
    (3, "fork-rclose", "rclose() after fork()"),
    (3, "fork-options", "options and flags after fork()"),
    (3, "fork-rpoll", "rpoll() after fork()"),
)


def carried_out(scenario):
    def body(scene):
        # Direct I/O needs a file system that has it.
        more = [scene.tools / f"direct-io-{scene.folder.name}"] if scenario == "direct-io" else []
        user = ROOT if scenario in ("direct-io", "number-reused") else ALICE
        try:
            process = scene.tool("memory_attacks", scenario, *more, user=user, preload=False, env={"LD_LIBRARY_PATH": str(scene.stage / "lib")})
            status = process.wait(25)
        finally:
            for path in more:
                path.unlink(missing_ok=True)
        said = process.output().decode().strip().splitlines() or [f"ended with {status}: {process.errors()[-200:]}"]
        return Verdict(status == 0, said[-1])

    return body


for number, scenario, title in SCENARIOS:
    attack(number, title)(carried_out(scenario))
