"""Tables of README.md that are made of results."""
import pathlib
import re

from .program import MODES, MODE_TEXT

README = pathlib.Path(__file__).resolve().parents[4] / "README.md"
VERDICTS = {"ok": "✓", "not ok": "✗", "skip": "–"}


def programs_table(programs, outcomes):
    """Lines of Markdown: a row for each program, a column for each mode."""
    found = {(outcome.program, outcome.mode): outcome.verdict for outcome in outcomes}
    yield "| programs | " + " | ".join(MODE_TEXT[mode] for mode in MODES) + " |"
    yield "| --- |" + " :-: |" * len(MODES)
    for program in programs:
        cells = (VERDICTS.get(found.get((program.name, mode)), " ") for mode in MODES)
        yield f"| {program.title} | " + " | ".join(cells) + " |"


def write(block, lines):
    """Replaces what stands between <!-- BLOCK:begin … --> and <!-- BLOCK:end -->; raises ValueError unless there is one such pair."""
    text = README.read_text()
    marked = re.compile(rf"(<!-- {block}:begin[^\n]*-->\n).*?(<!-- {block}:end -->)", re.S)
    if len(marked.findall(text)) != 1:
        raise ValueError(f"README.md has not exactly one pair of {block}:begin and {block}:end marks")
    body = "\n".join(lines)
    README.write_text(marked.sub(lambda match: f"{match[1]}{body}\n{match[2]}", text))
