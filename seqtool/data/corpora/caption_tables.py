"""Records of images and their captions in text: tables with a header, Flickr's two forms, and what `caption` writes."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from seqtool.data.corpora.caption_records import CAPTIONS, FILE, NUMBER, Entry, Record, plain_name
from seqtool.data.images.finding import SUFFIXES
from seqtool.errors import InputError
from seqtool.runtime.outputs import NOT_ENDED

SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}

# Flickr8k.token.txt, and Flickr30k's results.csv, of which one published line lacks its second |.
TOKENS = re.compile(r"(?P<image>[^\t]+)#(?P<number>\d+)\t(?P<caption>.*)")
RESULTS = re.compile(r"(?P<image>[^|\t]+?)\s*\|\s*(?P<number>\d+)\s*\|?(?P<caption>.*)")
RESULTS_HEADER = re.compile(r"[^|]*image[^|]*\|[^|]*number[^|]*\|[^|]*", re.IGNORECASE)

# What `caption` writes.
SCORE = rf"\t(?P<score>-?([0-9]+(\.[0-9]+)?|inf|nan))(\t{NOT_ENDED})?"
WRITTEN = re.compile(rf"(?P<image>[^\t]*)\t(?P<caption>[^\t]*)({SCORE})?")


class UnknownFormError(InputError):
    """A text file whose first line has none of the forms."""


Lines = Sequence[tuple[int, str]]  # numbered from 1, without empty ones


def text_records(text: str, path: Path) -> Iterator[Record]:
    """The records in a text file, whichever of the known forms its first line has."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        return iter(())
    number, first = lines[0]
    if separator := _separator(first):
        if RESULTS_HEADER.fullmatch(first):
            return _numbered(lines[1:], RESULTS, "a file name | a number | a caption", path)
        return _table(text, separator, path)
    if TOKENS.fullmatch(first):
        return _numbered(lines, TOKENS, "a file name, # and a number, one tab, a caption", path)
    if RESULTS.fullmatch(first):
        return _numbered(lines, RESULTS, "a file name | a number | a caption", path)
    if "\t" in first:
        _check_no_header(first, f"{path} line {number:,}")
        return _written(lines, path)
    shown = first if len(first) <= 60 else f"{first[:60]}…"
    raise UnknownFormError(
        f"{path} line {number:,} is {shown!r}: a file of captions has a header that names columns of images and "
        "captions, as in file,caption; or lines of an image, a tab and its caption; or is JSON."
    )


def is_header(line: str) -> bool:
    """Whether the line names a column of images and one of captions."""
    return _separator(line) is not None


def _separator(header: str) -> str | None:
    """What stands between the columns of this header, if it names those of images and of captions."""
    for separator in SEPARATORS:
        names = _names(header.split(separator))
        if set(names) & {*FILE, *NUMBER} and set(names) & set(CAPTIONS):
            return separator
    return None


def _check_no_header(line: str, place: str) -> None:
    """Refuse columns under names of which only that of the images or that of the captions is known."""
    cells = [cell.strip() for cell in line.split("\t")]
    if not is_image(cells[0]) and not {*_names(cells)}.isdisjoint([*FILE, *NUMBER, *CAPTIONS]):
        raise InputError(
            f"{place} has the columns {', '.join(cells)}: call that of the images file, and that of the captions "
            "caption; or leave this line out."
        )


def is_image(name: str) -> bool:
    """Whether this can only be the name or the number of an image."""
    return name.isdigit() or Path(name).suffix.casefold() in SUFFIXES


def _names(cells: Iterable[str]) -> list[str]:
    """The names of columns, in one spelling: "File Name" is file_name."""
    return [re.sub(r"[\s-]+", "_", cell.strip().strip('"').strip().casefold()) for cell in cells]


def _numbered(lines: Lines, form: re.Pattern[str], parts: str, path: Path) -> Iterator[Record]:
    """The lines of Flickr8k and Flickr30k, in which the captions of each image are numbered."""
    seen = set()
    for number, line in lines:
        place = f"{path} line {number:,}"
        match = form.fullmatch(line)
        if match is None:
            raise InputError(f"{place} must be {parts}.")
        image, digits, caption = match["image"], match["number"], match["caption"].strip()
        if (image, digits) in seen:
            raise InputError(f"{place} has caption {digits} of {image} again.")
        seen.add((image, digits))
        yield Record(image, [Entry(image, caption, place)])


def _written(lines: Lines, path: Path) -> Iterator[Record]:
    """Lines of an image, a tab and its caption; with scores at the end, n lines per image, best first."""
    ranked = set()
    for number, line in lines:
        match = WRITTEN.fullmatch(line)
        if match is None:
            raise InputError(
                f"{path} line {number:,} must be an image, a tab and its caption (of n best, also its score), or the "
                "file JSON."
            )
        image = match["image"]
        if match["score"] is None or image not in ranked:
            yield Record(image, [Entry(image, match["caption"], f"{path} line {number:,}")])
        ranked.add(image)


def _table(text: str, separator: str, path: Path) -> Iterator[Record]:
    """A table under a header, in which quotes may hold separators and line ends."""
    rows = _rows(text.replace("\r", "\n"), separator, path)
    header = _names(next(rows)[1])
    file, number, caption = (
        next((header.index(name) for name in names if name in header), None) for names in (FILE, NUMBER, CAPTIONS)
    )
    image = number if file is None else file
    assert image is not None and caption is not None  # as `_separator` found
    for line, row in rows:
        place = f"{path} line {line:,}"
        if len(row) > image:
            _check_lines(row, line, image, separator, path)
        if len(row) != len(header):
            raise InputError(
                f"{place} has {len(row)} columns but the header has {len(header)}: "
                f"a caption that has {SEPARATORS[separator]} must stand in double quotes."
            )
        name = plain_name(row[image].strip())
        other = None if file is None or number is None or header[number] == "id" else row[number].strip()
        yield Record(name, [Entry(name, " ".join(row[caption].split()), place, own=True)], other)


def _rows(text: str, separator: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows of a table that are not empty, each with the number of its first line."""
    mark = re.escape(separator)
    cell = re.compile(rf' *"((?:[^"]|"")*+)" *(?=[{mark}\n]|\Z)|([^{mark}\n]*)')
    start, line = 0, 1
    while start < len(text):
        row: list[str] = []
        first, end = line, start - 1
        while not row or text[end : end + 1] == separator:
            match = cell.match(text, end + 1)
            assert match is not None  # a cell may be empty
            quoted, plain = match.groups()
            if plain is not None and plain.startswith('"'):
                raise InputError(
                    f'{path} line {line:,} opens a quote (") that does not close at the end of a column: close it or '
                    'leave it out; within quotes a quote is written "".'
                )
            row.append(plain if quoted is None else quoted.replace('""', '"'))
            line += match[0].count("\n")
            end = match.end()
        if any(map(str.strip, row)):
            yield first, row
        start, line = end + 1, line + 1


def _check_lines(row: Sequence[str], line: int, image: int, separator: str, path: Path) -> None:
    """Refuse a quoted text over several lines of which one looks like another record, with a name like this image's."""
    for cell in row:
        for number, inner in enumerate(cell.split("\n")[1:], line + 1):
            cells = inner.split(separator)
            if len(cells) > image and len(cells) > 1 and _alike(cells[image].strip(), row[image].strip()):
                raise InputError(
                    f'{path} line {line:,} opens a quote (") that has not closed in line {number:,}, which names '
                    f"{cells[image].strip()}: close it, or leave it out."
                )


def _alike(name: str, image: str) -> bool:
    """Whether the text could be the name of another image, in a file that has this name of one."""
    suffix, own = (Path(text).suffix.casefold() for text in (name, image))
    if suffix in SUFFIXES or suffix == own != "":
        return True
    return suffix == own and _shape(name) == _shape(image)


def _shape(name: str) -> str | int:
    """What names without a suffix have in common in a file: they are numbers, or paths, or have as many words."""
    return "number" if name.isdigit() else "path" if "/" in name or "\\" in name else len(name.split())
