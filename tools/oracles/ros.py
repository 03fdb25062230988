"""Ask the libraries of MCAP and ROS about what we export: `python tools/oracles/ros.py OUR_PYTHON [THEIR_PYTHON]`.

Makes a virtualenv of its own with mcap-ros2-support, mcap-protobuf-support and rosbags (light), unless one is given.
Brings every golden recording into a root and out again as MCAP, and exports a set of another kind. Their decoders must
read every number, text and picture of the originals again, under the topic of its signal. Writes what was compared into
`results/ros.json` and exits with 1 where it differs.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
GOLDEN = Path(os.environ.get("WARPDATA_SHARED_GOLDEN", ROOT.parent / "shared" / "golden")) / "foreign"
RESULTS = Path(__file__).resolve().parent / "results" / "ros.json"
PACKAGES = ("mcap-ros2-support", "mcap-protobuf-support", "rosbags")
RECORDINGS = (
    "mcap/gen/ros2_cdr_zstd.mcap",
    "mcap/gen/ros2_cdr_lz4.mcap",
    "mcap/gen/foxglove_protobuf.mcap",
    "mcap/gen/json_foxglove.mcap",
    "mcap/rosbag2/rosbag2_py/test/resources/mcap/talker/talker.mcap",
)
OTHER = "webdataset/gen/robot-000000.tar"

FLATTEN = """
import base64, hashlib, json, sys
values = {}
def add(key, value):
    if hasattr(value, "DESCRIPTOR"):
        for field in value.DESCRIPTOR.fields: add(f"{key}/{field.name}", getattr(value, field.name))
    elif isinstance(value, dict):
        for name, item in value.items(): add(f"{key}/{name}", item)
    elif hasattr(value, "__slots__") or hasattr(value, "__msgtype__"):
        names = getattr(value, "__slots__", None) or list(value.__dataclass_fields__)
        for name in names:
            if name != "__msgtype__": add(f"{key}/{name}", getattr(value, name))
    elif isinstance(value, (bytes, bytearray, memoryview)):
        values.setdefault(key, []).append(hashlib.sha256(bytes(value)).hexdigest())
    elif hasattr(value, "tolist") and getattr(value, "dtype", None) == "uint8":
        values.setdefault(key, []).append(hashlib.sha256(bytes(value)).hexdigest())
    elif isinstance(value, (str, bool, int, float)) or hasattr(value, "__iter__"):
        items = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(items, (str, bool, int, float)):
            items = list(items)
            if not all(isinstance(item, (bool, int, float)) for item in items): return
        values.setdefault(key, []).append(items)
"""

BY_MCAP = (
    FLATTEN
    + """
from importlib.metadata import version
from mcap.reader import make_reader
from mcap_protobuf.decoder import DecoderFactory as Protobuf
from mcap_ros2.decoder import DecoderFactory as Ros
count, ros, protobuf = 0, Ros(), Protobuf()
with open(sys.argv[1], "rb") as file:
    for schema, channel, message in make_reader(file, validate_crcs=True).iter_messages():
        decode = None
        for factory in (ros, protobuf):
            decode = decode or factory.decoder_for(channel.message_encoding, schema)
        count += 1
        add(channel.topic, json.loads(message.data) if decode is None else decode(message.data))
versions = {name: version(name) for name in ("mcap", "mcap-ros2-support", "mcap-protobuf-support", "rosbags")}
print(json.dumps({"versions": versions, "count": count, "values": values}))
"""
)

BY_ROSBAGS = (
    FLATTEN
    + """
from pathlib import Path
from rosbags.highlevel import AnyReader
count = 0
with AnyReader([Path(sys.argv[1])]) as reader:
    for connection, time, raw in reader.messages():
        count += 1
        add(connection.topic, reader.deserialize(raw, connection.msgtype))
print(json.dumps({"count": count, "values": values}))
"""
)


def main() -> int:
    """Run everything and print what was compared."""
    ours = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    results: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory(prefix="oracle-ros-") as temp:
        work = Path(temp)
        theirs = sys.argv[2] if len(sys.argv) > 2 else _virtualenv(work / "venv")
        for number, name in enumerate(RECORDINGS):
            root, out = work / f"root{number}", work / f"out{number}.mcap"
            for command in (["import", "mcap", GOLDEN / name, root], ["export", "mcap", root, out]):
                subprocess.run([ours, "-m", "warpdata", *map(str, command)], check=True, capture_output=True)
            before, after = _read(theirs, BY_MCAP, GOLDEN / name), _read(theirs, BY_MCAP, out)
            versions = before["versions"]
            library = ", ".join(f"{package} {versions[package]}" for package in PACKAGES[:2])
            results[name] = _compare(before, after, library)
            if "cdr" in name:
                before, after = _read(theirs, BY_ROSBAGS, GOLDEN / name), _read(theirs, BY_ROSBAGS, out)
                results[f"{name} (rosbags)"] = _compare(before, after, f"rosbags {versions['rosbags']}")
        folder = work / "other"
        command = [ours, "-m", "warpdata", "export", "mcap", str(GOLDEN / OTHER), str(folder)]
        subprocess.run(command, check=True, capture_output=True)
        read = [_read(theirs, BY_MCAP, path) for path in sorted(folder.glob("*.mcap"))]
        results[OTHER] = {
            "library": library,
            "fields compared": 0,
            "messages": sum(each["count"] for each in read),
            "against": "nothing: read to the end",
        }
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=1))
    return int(any("wrong" in result for result in results.values()))


def _compare(before: dict, after: dict, library: str) -> dict[str, object]:
    """Compare each field of the original with its topic in the export, whose values are under `value` or `data`.

    Fields that the export keeps elsewhere (names become static items) and pixels in the order blue, green, red, which
    the export turns, are counted as not compared.
    """
    compared, skipped, wrong = 0, [], []
    for key, values in before["values"].items():
        same = [after["values"][key + end] for end in ("/value", "/data") if key + end in after["values"]]
        topic, _, field = key.rpartition("/")
        encodings = before["values"].get(f"{topic}/encoding", [])
        if not same or (field == "data" and any(encoding.startswith("bgr") for encoding in encodings)):
            skipped.append(key)
            continue
        lengths = after["values"].get(f"{key}.length/value")
        if lengths is not None:  # lists of several lengths are padded
            same = [[row[:length] for row, length in zip(same[0], lengths, strict=True)]]
        compared += 1
        if same[0] != values and same[0] != _decode_base64(values):
            wrong.append(key)
    if not compared:
        wrong.append("no field was found")
    return {
        "library": library,
        "fields compared": compared,
        "fields not compared": len(skipped),
        "skipped": sorted(skipped),
        "messages in the recording": before["count"],
        "against": "the recording, read by it",
        **({"wrong": f"values differ: {', '.join(wrong[:5])}"} if wrong else {}),
    }


def _decode_base64(values: list) -> list:
    """Hashes of pictures that JSON holds as text."""
    try:
        return [hashlib.sha256(base64.b64decode(value, validate=True)).hexdigest() for value in values]
    except (TypeError, ValueError):
        return []


def _virtualenv(folder: Path) -> str:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    return python


def _read(python: str, script: str, path: Path) -> dict:
    done = subprocess.run([python, "-c", script, str(path)], check=True, capture_output=True, text=True)
    result: dict = json.loads(done.stdout.strip().splitlines()[-1])
    return result


if __name__ == "__main__":
    raise SystemExit(main())
