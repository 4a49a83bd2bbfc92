#!/usr/bin/env python3
"""Counts the functions of each class and the lines of each function.

Usage: check_classes.py ROOT [LINES]

Exit status 1 when a class declares more than 40 functions, or when a tenth of the functions have more than 20 lines.
With LINES, lists the functions that are longer than that. Deleted functions and pointers to functions do not count; inherited functions count where they are declared. The count is textual: it needs the layout of
clang-format.
"""
import pathlib
import re
import sys

ROOTS = ("core", "librsocket", "libvmacompat", "preload", "tools")
LIMIT = 40
LONG = 20  # of the ninth of ten functions, in lines


def code(text):
    """The text without comments, literals and preprocessor lines; as many lines."""
    def blank(match):
        found = match[0]
        return "\n" * found.count("\n") if found.startswith("/") else '""'
    text = re.sub(r'//[^\n]*|/\*.*?\*/|R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', blank, text, flags=re.S)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda match: "\n" * match[0].count("\n"), text, flags=re.M)


def close(text, start):
    """The place behind the bracket that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += text[place] in "{(["
        depth -= text[place] in "})]"
        if depth == 0:
            return place + 1
    return len(text)


CLASS = re.compile(r"\b(?:class|struct|union)\s+(?:\[\[[^]]*\]\]\s*|alignas\([^)]*\)\s*)*([A-Za-z_][\w:]*)(?:<[^;{}]*>)?(?:\s+final)?\s*(:[^;{}]*)?\{")
NO_FUNCTION = re.compile(r"^(using|friend|static_assert|typedef|enum|class|struct|union|namespace)\b|^template\s*<[^{};]*>\s*(using|class|struct|friend)\b")


def is_function(head):
    head = re.sub(r"\[\[.*?\]\]|alignas\s*\([^()]*\)|__attribute__\s*\(\(.*?\)\)|\b(public|private|protected)\s*:", " ", head, flags=re.S).strip()
    if NO_FUNCTION.match(head) or re.search(r"=\s*delete\s*$", head):
        return False
    if re.search(r"\boperator\b", head):
        return True
    while True:  # template arguments, which may contain types of functions
        shorter = re.sub(r"<[^<>]*>", "", head)
        if shorter == head:
            break
        head = shorter
    head = re.split(r"=(?!\s*(0|default)\s*$)", head)[0]
    return re.search(r"[\w~]\s*\((?!\s*\*)", re.sub(r"\bdecltype\s*\([^()]*\)", "type", head)) is not None


def members(body):
    """The heads of the declarations of a class body."""
    head, place = "", 0
    while place < len(body):
        char = body[place]
        if char == "(" or char == "[":
            end = close(body, place)
            head += body[place:end]
            place = end
        elif char == "{":
            place = close(body, place)
            if re.match(r"\s*[;,]", body[place:]) and not is_function(head):
                continue  # an initialiser, or a nested type
            yield head
            head = ""
        elif char == ";":
            yield head
            head = ""
            place += 1
        else:
            head += char
            place += 1


def classes(text):
    """(name, functions) of each class that is defined in the text."""
    for match in CLASS.finditer(text):
        if re.search(r"\benum\s+$", text[:match.start()]):
            continue
        body = text[match.end() - 1:close(text, match.end() - 1)][1:-1]
        body = re.sub(r"\b(public|private|protected)\s*:(?!:)", " ", body)
        yield match[1], sum(is_function(head) for head in members(body))


def functions(text):
    """(line, lines, head) of each function with a body of its own lines."""
    begin = None
    for number, line in enumerate(text.splitlines(), 1):
        indent = len(line) - len(line.lstrip())
        if begin and re.match(r" {%d}\}[;)]*" % begin[1], line) and indent == begin[1]:
            yield begin[0], number - begin[0] + 1, begin[2]
            begin = None
        elif begin is None and line.rstrip().endswith("{") and indent in (0, 2) and "(" in line + begin_of(text, number) \
                and not re.match(r"\s*(namespace|class|struct|union|enum|extern|if|for|while|switch|do|else|template <.*> (class|struct))\b", line) \
                and "=" not in line.split("(")[0]:
            begin = (number, indent, line.strip())


def begin_of(text, number):
    """The lines of a declaration that continues on this line."""
    lines = text.splitlines()
    first = number - 1
    while first > 0 and lines[first].startswith("    ") and number - first < 8:
        first -= 1
    return " ".join(lines[first:number - 1])


def main():
    root = pathlib.Path(sys.argv[1])
    longer = int(sys.argv[2]) if len(sys.argv) > 2 else None
    large, lengths, problems = {}, [], []
    for file in sorted(file for top in ROOTS for file in (root / top).rglob("*") if file.suffix in (".h", ".cc")):
        path, text = str(file.relative_to(root)), code(file.read_text())
        large.update({f"{path}:{name}": number for name, number in classes(text) if number > LIMIT})
        found = list(functions(text))
        lengths += [lines for _, lines, _ in found]
        if longer:
            print("".join(f"{path}:{number}: {lines} lines: {head}\n" for number, lines, head in found if lines > longer), end="")
    problems += [f"not ok {name} declares {number} functions, more than {LIMIT}" for name, number in sorted(large.items())]
    lengths.sort()
    ninth = lengths[len(lengths) * 9 // 10]
    if ninth > LONG:
        problems.append(f"not ok a tenth of the functions have more than {LONG} lines")
    print("\n".join(problems) if problems else f"ok no class declares more than {LIMIT} functions")
    print(f"# {len(lengths)} functions with lines of their own: median {lengths[len(lengths) // 2]}, p90 {ninth}, longest {lengths[-1]} lines")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
