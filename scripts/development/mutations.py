"""Mutate bytes, text, JSON and the formats of a checkpoint's files, for fuzz.py and tests."""

import copy
import gzip
import json
import os
import pickle
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

TYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I8", "U8", "BOOL", "C64", "F8_E4M3", "F8_E8M0", "F4", "U16", "?")
# Values of float32, little-endian: ∞, NaN, −∞, and the largest finite number.
SPECIAL_FLOATS = (b"\0\0\x80\x7f", b"\0\0\xc0\x7f", b"\0\0\x80\xff", b"\xff\xff\x7f\x7f")
INTEGERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**63, 2**64 - 1)
# Markers that `dump_json` replaces with JSON that json.dumps cannot write.
DEEP, LONG, INFINITE = "@deep@", "@long@", "@infinite@"
RAW = {DEEP: "[" * 100_000 + "]" * 100_000, LONG: "9" * 5000, INFINITE: "1e999"}
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3.5, -0.0, 10**6, 2**31, 2**63, 10**30, -(10**18), 1e300, float("nan")),
    *("", "x", "null", "???", "${oc.env:HOME}", "${model}", "a\0b", "\ud800", "é" * 1000, "../../../escaped", "/", "."),
    *("/dev/zero", "os.system", "posix.system", "builtins.eval", "seqtool.cli.main.main", "seqtool.models.bahdanau.nn"),
    *("seqtool", "seqtool.", ".", "seqtool..cli", "seqtool.data.corpora.parallel.Toy", "torch.nn.Linear"),
    *("subprocess.run", "seqtool.models.luong.Luong", "seqtool.models.show_tell.ShowTell"),
    "seqtool.models.backbone.ImageCaptioner",
    *("torchvision/alexnet", "timm/test_vit", "torchvision/vit_h_14", "step-9999999", "word", "unigram", "bpe", "gru"),
    *([], {}, [[]], [1, "a", None], {"": 0}, {"_target_": "os.system"}, {"a": {"b": {"c": []}}}, [0] * 1000),
    *(DEEP, LONG, INFINITE),
)
CHARACTERS = "\0\t\r\x0b\x1c\x85\u2028\u200f\u202e\ufeff\ufffd\U0001f469\u200d\U0001f680שלום مرحبا\u0301\u0336▁⁇ İßﬁ١½"
INVALID_UTF_8 = (b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82", b"\x80")


class Bomb:
    """An object that creates the file `canary` when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch '{self.canary}'",)


def bomb(canary: Path, random: Random) -> bytes:
    """Return a hostile pickle: plain, in torch's form (a ZIP file), or in NumPy's."""
    import io

    import numpy as np
    import torch

    stream = io.BytesIO()
    match random.randrange(3):
        case 0:
            pickle.dump(Bomb(canary), stream)
        case 1:
            torch.save({"state_dict": Bomb(canary)}, stream)
        case _:
            np.save(stream, np.array([Bomb(canary)], dtype=object), allow_pickle=True)
    return stream.getvalue()


def damage(content: bytes, random: Random) -> bytes:
    """Return the bytes with one to three small changes."""
    for _ in range(random.randint(1, 3)):
        content = _damage_once(content, random)
    return content


def _damage_once(content: bytes, random: Random) -> bytes:
    size = len(content)
    offset, length = random.randrange(size + 1), min(size, int(2 ** random.uniform(0, 12)))
    match random.randrange(10):
        case 0 if size:  # flip bits
            array = bytearray(content)
            for _ in range(random.randint(1, 8)):
                array[random.randrange(size)] ^= 1 << random.randrange(8)
            return bytes(array)
        case 1 if size:  # overwrite a number
            number = random.choice(INTEGERS).to_bytes(8, random.choice(("little", "big")))
            number = number[: random.choice((1, 2, 4, 8))]
            return content[:offset] + number + content[offset + len(number) :]
        case 2:
            return content[:offset]
        case 3:
            return content[:offset] + content[offset + length :]
        case 4:
            return content[:offset] + random.randbytes(length) + content[offset:]
        case 5:
            return (
                content[:offset]
                + content[offset : offset + length] * random.choice((2, 3, 50))
                + content[offset + length :]
            )
        case 6:
            return content[:offset] + bytes([random.choice((0, 255, 32))]) * length + content[offset + length :]
        case 7:
            source = random.randrange(size + 1)
            return content[:offset] + content[source : source + length] + content[offset:]
        case 8:
            return random.choice((b"", b"\0", b"\n", content[::-1], gzip.compress(content)))
    return content[:offset] + random.randbytes(1) + content[offset + 1 :]


def text(content: bytes, random: Random) -> bytes:
    """Return the text with a change that editors, operating systems or attackers may make."""
    lines = content.split(b"\n")
    index = random.randrange(len(lines))
    line = lines[index]
    column = random.randrange(len(line) + 1)
    match random.randrange(17):
        case 0:
            return b"\xef\xbb\xbf" * random.randint(1, 2) + content
        case 1:
            return content.replace(b"\n", random.choice((b"\r\n", b"\r", b"\n\n", b"\0\n", b" \n")))
        case 2:
            lines[index] = line[:column] + random.choice(INVALID_UTF_8) + line[column:]
        case 3:
            lines[index] = line[:column] + b"\t" * random.randint(1, 3) + line[column:]
        case 4:
            lines[index] = (line or b"x") * (random.choice((10_000, 1_000_000)) // (len(line) or 1))
        case 5:
            lines[index] = random.choice((b" ", b"\t", "\u3000".encode(), b"\0")) * random.choice((1, 5, 10_000))
        case 6 | 7 | 8:
            characters = "".join(random.choices(CHARACTERS, k=random.randint(1, 30)))
            lines[index] = line[:column] + characters.encode() + line[column:]
        case 9:
            del lines[index]
        case 10:
            lines.insert(index, random.choice(lines))
        case 11:
            utf_16 = content.decode(errors="replace").encode("utf-16")
            return random.choice((b"", b"\n", b" \n" * len(lines), utf_16))
        case 12:
            return gzip.compress(content)[: random.randint(0, 200)]
        case 13:
            return random.randbytes(random.randint(1, 300))
        case 14:
            code_points = [*range(0x300, 0x370), *range(0x1F000, 0x1FA00)]  # accents on accents, pictures
            lines[index] = "".join(map(chr, random.choices(code_points, k=200))).encode()
        case _:
            return damage(content, random)
    return b"\n".join(lines)


def json_bytes(value: Any, random: Random) -> bytes:
    """Return the value as JSON after one to three changes, some of which json.dumps could not write."""
    value = copy.deepcopy(value)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        value = change(value, random)
    content = dump_json(value)
    return damage(content, random) if random.random() < 0.1 else content


def dump_json(value: Any) -> bytes:
    """Return the value as JSON, with the markers of RAW replaced."""
    written = json.dumps(value)
    for marker, raw in RAW.items():
        written = written.replace(f'"{marker}"', raw)
    return written.encode()


def change(value: Any, random: Random) -> Any:
    """Return the value with one part replaced, removed, renamed, moved or duplicated."""
    locations = list(_locations(value))
    if not locations:
        return random.choice(HOSTILE)
    parent, key = random.choice(locations)
    match random.randrange(8):
        case 0:
            del parent[key]
        case 1 if isinstance(parent, dict):
            parent[random.choice(("", "_target_", "\0", "x" * 200, str(key).upper()))] = parent.pop(key)
        case 2:
            other, name = random.choice(locations)
            parent[key] = copy.deepcopy(other[name])
        case 3 if isinstance(parent[key], int) and not isinstance(parent[key], bool):
            parent[key] = random.choice((-parent[key], parent[key] + 1, parent[key] * 1000, random.choice(INTEGERS)))
        case 4:
            parent[key] = random.choice(([parent[key]], {"a": parent[key]}, str(parent[key])))
        case 5 if isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
        case _:
            parent[key] = copy.deepcopy(random.choice(HOSTILE))
    return value


def _locations(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (container, key) in a tree of dictionaries and lists."""
    items = value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    for key, inner in items:
        yield value, key
        yield from _locations(inner)


def safetensors(content: bytes, random: Random) -> bytes:
    """Return a safetensors file with a changed header, usually with its correct length, or with changed tensors."""
    (length,) = struct.unpack("<Q", content[:8])
    header, body = content[8 : 8 + length], content[8 + length :]
    match random.randrange(8):
        case 0:
            return struct.pack("<Q", random.choice(INTEGERS)) + header + body
        case 1:
            return content[:8] + header + damage(body, random)
        case 2:  # the same value everywhere
            kind = random.choice((b"\0", b"\xff", struct.pack("<f", float("inf")), struct.pack("<f", float("nan"))))
            return content[: 8 + length] + (kind * len(body))[: len(body)]
        case 3:
            header = damage(header, random)
        case 4:
            tensors = json.loads(header)
            name = random.choice(sorted(tensors.keys() - {"__metadata__"}))
            tensors[name]["dtype"] = random.choice(TYPES)
            header = json.dumps(tensors).encode()
        case 5:
            tensors = json.loads(header)
            name = random.choice(sorted(tensors.keys() - {"__metadata__"}))
            shape = tensors[name]["shape"]
            tensors[name]["shape"] = random.choice((shape[::-1], [*shape, 1], [1, *shape], [0], [], [2**62, 4], [-1]))
            header = json.dumps(tensors).encode()
        case _:
            header = json_bytes(json.loads(header), random)
    return struct.pack("<Q", len(header)) + header + body


def protobuf(content: bytes, random: Random, depth: int = 0) -> bytes:
    """Return a protobuf message with one field changed, and the lengths of the messages around it corrected."""
    fields = list(_fields(content))
    if not fields:
        return damage(content, random)
    index = (
        random.randrange(len(fields)) if depth or random.random() < 0.4 else random.randrange(-min(3, len(fields)), 0)
    )
    number, wire, value = fields[index]
    match random.randrange(7):
        case 0:
            del fields[index]
        case 1:
            fields.insert(random.randrange(len(fields) + 1), fields[index])
        case 2:
            other_number = random.choice((0, 1, 2, 3, 10, 15, 40, 41, 42, 43, 44, 45, 2**28))
            fields[index] = (other_number, wire, value)
        case _:
            if isinstance(value, int):
                value = random.choice((*INTEGERS, value + 1, value ^ 1))
            elif wire == 2:
                deeper = depth < 2 and random.random() < 0.7
                value = protobuf(value, random, depth + 1) if deeper else damage(value, random)
            else:
                value = random.choice((*SPECIAL_FLOATS, random.randbytes(8))).ljust(8, b"\0")[: len(value)]
            fields[index] = (number, wire, value)
    return b"".join(_field(*field) for field in fields)


def _fields(content: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yield the number, wire type and value of each field of a message."""
    offset = 0
    while offset < len(content):
        key, offset = _varint(content, offset)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, offset = _varint(content, offset)
            yield number, wire, value
        elif wire in (1, 2, 5):
            length = {1: 8, 5: 4}.get(wire)
            if length is None:
                length, offset = _varint(content, offset)
            yield number, wire, content[offset : offset + length]
            offset += length
        else:  # not a message
            return


def _field(number: int, wire: int, value: Any) -> bytes:
    """The bytes of a field."""
    key = _varint_bytes(number << 3 | wire)
    if wire == 0:
        return key + _varint_bytes(value)
    length = _varint_bytes(len(value)) if wire == 2 else b""
    return key + length + value


def _varint(content: bytes, offset: int) -> tuple[int, int]:
    """Read a varint at an offset; return it and the offset after it."""
    value = shift = 0
    while offset < len(content):
        byte = content[offset]
        offset += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    return value, offset


def _varint_bytes(value: int) -> bytes:
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    return bytes([*written, value])


def vocabulary(content: bytes, random: Random) -> bytes:
    """Return a vocabulary file with a change in its header or in its contents."""
    header, _, body = content.partition(b"\n")
    stored = json.loads(header)
    if random.random() < 0.3:
        return json_bytes(stored, random) + b"\n" + body
    if stored["kind"] == "word":
        return header + b"\n" + text(body, random)
    return header + b"\n" + (protobuf(body, random) if random.random() < 0.7 else damage(body, random))
