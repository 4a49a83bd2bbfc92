"""Tables of README.md that are made of results."""
import datetime
import pathlib
import re

from .program import MODES, MODE_TEXT

README = pathlib.Path(__file__).resolve().parents[4] / "README.md"
SECTION = "## Programs"
WRITER = "tests/apps/programs/run_programs.py"
VERDICTS = {"ok": "✓", "not ok": "✗", "skip": "–"}


def programs_table(programs, outcomes):
    """Lines of Markdown: a row for each program, a column for each mode."""
    found = {(outcome.program, outcome.mode): outcome.verdict for outcome in outcomes}
    yield (
        f"{datetime.date.today().isoformat()}, written by `tests/apps/programs/run_programs.py run --readme`; "
        "✓ data right, "
        "connections went the way they should, ✗ not, – not installed:"
    )
    yield ""
    yield "| programs | " + " | ".join(MODE_TEXT[mode] for mode in MODES) + " |"
    yield "| --- |" + " :-: |" * len(MODES)
    for program in programs:
        cells = (VERDICTS.get(found.get((program.name, mode)), " ") for mode in MODES)
        because = f" (by kernel TCP: {program.kernel_because})" if program.kernel_because else ""
        yield f"| {program.title}{because} | " + " | ".join(cells) + " |"


def write(block, lines, section_title=SECTION, writer=WRITER):
    """Replaces what stands between <!-- BLOCK:begin … --> and <!-- BLOCK:end -->; a new block ends its section.

    writer: the script that the mark of a new block names.

    Raises ValueError when README.md has no such section, or the block more than once.
    """
    text = README.read_text()
    body = "\n".join(lines)
    marked = re.compile(rf"(<!-- {block}:begin[^\n]*-->\n).*?(<!-- {block}:end -->)", re.S)
    blocks = len(marked.findall(text))
    if blocks == 1:
        README.write_text(marked.sub(lambda match: f"{match[1]}{body}\n{match[2]}", text))
        return
    section = re.search(rf"^{section_title}\n.*?(?=^## )", text, re.S | re.M)
    if blocks > 1 or section is None:
        raise ValueError(
            f"README.md has {blocks} pairs of {block}:begin and {block}:end marks, or no section {section_title!r}"
        )
    mark = f"<!-- {block}:begin (written by {writer} --readme; do not edit) -->"
    end = section.end()
    README.write_text(f"{text[:end]}{mark}\n{body}\n<!-- {block}:end -->\n\n{text[end:]}")
