"""Mutations that know the structure of what they change: JSON values, lines, safetensors, SQLite, plain bytes.

Each takes bytes and a random.Random and returns bytes. Most results are nearly valid, which is where parsers err.
"""
import json
import sqlite3
import struct
import tempfile

ODD = [None, True, False, 0, -0.0, 1, -1, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, -2**63, 1e308, -1e-308, 0.5, "", "a",
       "\x00", "\u0000x", "\ud7ff\ufffd", "\U0010ffff", "x" * 5000, "%s%n", "../../etc/passwd", "NaN", "-Infinity", [], {},
       [[]], {"": {}}, [None] * 100, {"a": 1, "b": [2]}]
RAW = ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" * 400, "0" + "1" * 50, "01", "+1", ".5", "5.", "\"\\ud800\"",
       "\"\\u0000\"", "\"\x7f\"", "[" * 3000 + "]" * 3000, "{\"a\":" * 300 + "1" + "}" * 300, "/*x*/1", "'x'", "tru", "{\"a\":1,\"a\":2}"]
MARK = "\ue000mark\ue000"


def nodes(value, path=()):
    """Every place in a JSON value, the root first."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from nodes(value[key], path + (key,))
    elif isinstance(value, list):
        for i, item in enumerate(value[:50]):
            yield from nodes(item, path + (i,))


def value_at(value, path):
    for step in path:
        value = value[step]
    return value


def mutate_value(value, rng):
    """One change of one node; the root stays what it is."""
    places = [p for p in nodes(value) if p]
    if not places:
        return rng.choice(ODD)
    path = rng.choice(places)
    parent, key = value_at(value, path[:-1]), path[-1]
    old = parent[key]
    how = rng.randrange(9)
    if how == 0:
        del parent[key]
    elif how == 1:
        parent[key] = rng.choice(ODD)
    elif how == 2 and isinstance(old, (int, float)) and not isinstance(old, bool):
        parent[key] = rng.choice([old + 1, old - 1, -old, old * 2**31, old * 2**62, old / 3, 0])
    elif how == 3 and isinstance(old, list) and old:
        parent[key] = rng.choice([old + old, old[:-1], old[::-1], [old], old + [old[0]] * 1000])
    elif how == 4 and isinstance(old, str):
        at = rng.randrange(len(old) + 1)
        parent[key] = old[:at] + rng.choice(["\x00", "\n", "\u202e", "\U0001f600", old, "9" * 30]) + old[at:]
    elif how == 5 and isinstance(parent, dict):
        parent[rng.choice(["", "a", "\x00", key + "x", "x" * 300])] = parent.pop(key)
    elif how == 6:
        other = value_at(value, rng.choice(places)) if rng.random() < 0.8 else value
        parent[key] = json.loads(json.dumps(other))
    elif how == 7:
        parent[key] = {"nested": old}
    else:
        parent[key] = MARK  # becomes text that is no JSON, or hardly
    return value


def dump(value, rng):
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    if json.dumps(MARK) in text or MARK in text:
        raw = rng.choice(RAW)
        text = text.replace(json.dumps(MARK), raw).replace(json.dumps(MARK, ensure_ascii=False), raw)
    return text.encode("utf-8", "surrogatepass")


def mutate_bytes(data, rng):
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.randrange(len(data) + 1)
        how = rng.randrange(6)
        if how == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif how == 1 and at < len(data):
            data[at] = rng.choice([0, 9, 10, 13, 34, 92, 127, 128, 255])
        elif how == 2:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
        elif how == 3:
            del data[at:at + rng.randrange(1, 64)]
        elif how == 4:
            del data[at:]
        else:
            data[at:at] = data[at:at + rng.randrange(1, 200)]
    return bytes(data)


def mutate_json(data, rng):
    if rng.random() < 0.2:
        return mutate_bytes(data, rng)
    value = json.loads(data)
    for _ in range(rng.choice([1, 1, 1, 3])):
        value = mutate_value(value, rng)
        if not isinstance(value, (dict, list)):
            break
    return dump(value, rng)


def mutate_lines(data, rng):
    if rng.random() < 0.15:
        return mutate_bytes(data, rng)
    lines = [line for line in data.split(b"\n") if line]
    at = rng.randrange(len(lines))
    how = rng.randrange(8)
    if how == 0:
        lines.insert(at, lines[rng.randrange(len(lines))])
    elif how == 1:
        lines.insert(at, rng.choice([b"", b" \t", b"\r", b"\x00", b"[]", b"null", b"\xff\xfe", b"{}", b"\xef\xbb\xbf{}"]))
    elif how == 2:
        lines = lines[:at]
    elif how == 3:
        lines[at] = lines[at][:rng.randrange(len(lines[at]))]
    else:
        lines[at] = mutate_json(lines[at], rng)
    return rng.choice([b"\n", b"\n", b"\n", b"\r\n"]).join(lines) + rng.choice([b"\n", b""])


def mutate_safetensors(data, rng):
    length = struct.unpack("<Q", data[:8])[0]
    header, body = data[8:8 + length], data[8 + length:]
    how = rng.randrange(8)
    if how == 0:
        return mutate_bytes(data[:8 + length], rng) + body
    if how == 1:
        return struct.pack("<Q", rng.choice([0, 1, length - 1, length + 1, 2**31, 2**63, 2**64 - 1])) + data[8:]
    if how == 2:
        return data[:rng.randrange(len(data))]
    if how == 3:
        return data + bytes(rng.randrange(1, 100))
    value = json.loads(header)
    names = [n for n in value if n != "__metadata__"]
    tensor = value[rng.choice(names)]
    if how == 4:
        tensor["data_offsets"] = rng.choice([[0, 0], [-1, 4], [4, 0], [0, len(body)], [0, 2**63], value[rng.choice(names)]["data_offsets"]])
    elif how == 5:
        tensor["shape"] = rng.choice([[], [0], [-1], [2**32, 2**32], [2**63], tensor["shape"][::-1], tensor["shape"] + [1], [1] * 50])
    elif how == 6:
        tensor["dtype"] = rng.choice(["F32", "F16", "BF16", "I64", "U8", "F8_E4M3", "", "X", "f32"])
    else:
        value = mutate_value(value, rng)
    text = dump(value, rng)
    return struct.pack("<Q", len(text)) + text + body


def mutate_sqlite(data, rng):
    if rng.random() < 0.4:
        return mutate_bytes(data, rng)
    odd = ["NULL", "-1", "0", "9223372036854775807", "-9223372036854775808", "1e308", "'x'", "x'ff00'", "''", "1.5"]
    with tempfile.NamedTemporaryFile(suffix=".sqlite") as file:
        file.write(data)
        file.flush()
        db = sqlite3.connect(file.name)
        try:
            db.execute("PRAGMA writable_schema = 1")
            tables = [r[0] for r in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            table = rng.choice(tables)
            columns = [r[1] for r in db.execute(f"PRAGMA table_info({table})")]
            how = rng.randrange(5)
            if how == 0:
                db.execute(f"DROP TABLE {table}")
            elif how == 1:
                db.execute(f"DELETE FROM {table} WHERE rowid % 2 = {rng.randrange(2)}" if table not in ("metrics", "gates") else f"DELETE FROM {table}")
            elif how == 2:
                db.execute(f"PRAGMA user_version = {rng.choice([0, 2, -1])}")
            else:
                db.execute(f"UPDATE OR IGNORE {table} SET {rng.choice(columns)} = {rng.choice(odd)}")
            db.commit()
        except sqlite3.Error:
            pass
        db.close()
        with open(file.name, "rb") as changed:
            return changed.read()
