"""Ask the libraries of MCAP and ROS about what we export: `python tools/oracles/ros.py OUR_PYTHON [THEIR_PYTHON]`.

Makes a virtualenv of its own with mcap-ros2-support, mcap-protobuf-support and rosbags (light), unless one is given.
Brings every golden recording into a root and out again as MCAP, and exports a set of another kind; their decoders must
read the same from the results as from the originals. Writes what was compared into `results/ros.json` and exits with 1
where it differs.
"""

from __future__ import annotations

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

ASKED = """
import hashlib, json, sys
from importlib.metadata import version
from mcap.reader import make_reader
from mcap_protobuf.decoder import DecoderFactory as Protobuf
from mcap_ros2.decoder import DecoderFactory as Ros
found = {}
versions = {name: version(name) for name in ("mcap", "mcap-ros2-support", "mcap-protobuf-support", "rosbags")}
with open(sys.argv[1], "rb") as file:
    reader = make_reader(file, validate_crcs=True, decoder_factories=[Ros(), Protobuf()])
    raw = [(s, c, m) for s, c, m in reader.iter_messages() if c.message_encoding == "json"]
    decoded = [(s, c, m, d) for s, c, m, d in reader.iter_decoded_messages(topics=sorted(
        {c.topic for s, c, m in reader.iter_messages() if c.message_encoding != "json"}) or ["/none"])]
def plain(value):
    if hasattr(value, "DESCRIPTOR"):
        return str(value)
    slots = getattr(value, "__slots__", None)
    if slots and not isinstance(value, (bytes, str)):
        return {name: plain(getattr(value, name)) for name in slots}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else repr(value)
for s, c, m, d in decoded + [(s, c, m, m.data) for s, c, m in raw]:
    about = json.dumps([m.log_time, m.publish_time, plain(d)])
    topic = found.setdefault(c.topic, [0, hashlib.sha256()])
    topic[0] += 1
    topic[1].update(about.encode())
print(json.dumps({"versions": versions, "topics": {t: [n, h.hexdigest()] for t, (n, h) in sorted(found.items())}}))
"""

BY_ROSBAGS = """
import hashlib, json, sys
from pathlib import Path
from rosbags.highlevel import AnyReader
found = {}
with AnyReader([Path(sys.argv[1])]) as reader:
    for connection, time, raw in reader.messages():
        about = repr([time, reader.deserialize(raw, connection.msgtype)])
        topic = found.setdefault(connection.topic, [0, hashlib.sha256()])
        topic[0] += 1
        topic[1].update(about.encode())
print(json.dumps({"topics": {t: [n, h.hexdigest()] for t, (n, h) in sorted(found.items())}}))
"""


def main() -> int:
    """Run everything and print what was compared."""
    ours = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    compared, versions = [], {}
    with tempfile.TemporaryDirectory(prefix="oracle-ros-") as temp:
        work = Path(temp)
        theirs = sys.argv[2] if len(sys.argv) > 2 else _virtualenv(work / "venv")
        for number, name in enumerate(RECORDINGS):
            root, out = work / f"root{number}", work / f"out{number}.mcap"
            for command in (["import", "mcap", GOLDEN / name, root], ["export", "mcap", root, out]):
                subprocess.run([ours, "-m", "warpdata", *map(str, command)], check=True, capture_output=True)
            before, after = _asked(theirs, ASKED, GOLDEN / name), _asked(theirs, ASKED, out)
            versions = before["versions"]
            if "cdr" in name:
                one, other = (_asked(theirs, BY_ROSBAGS, each)["topics"] for each in (GOLDEN / name, out))
                compared.append(
                    {
                        "rosbags": name,
                        "topics": len(one),
                        "same": one == other,
                        "messages": sum(count for count, _ in one.values()),
                    }
                )
            compared.append(
                {
                    "recording": name,
                    "topics": len(before["topics"]),
                    "messages": sum(count for count, _ in before["topics"].values()),
                    "same": before["topics"] == after["topics"],
                }
            )
        out = work / "other"
        subprocess.run(
            [ours, "-m", "warpdata", "export", "mcap", str(GOLDEN / OTHER), str(out)],
            check=True,
            capture_output=True,
        )
        read = [_asked(theirs, ASKED, path)["topics"] for path in sorted(out.glob("*.mcap"))]
        compared.append(
            {
                "exported": OTHER,
                "files": len(read),
                "topics": len(read[0]),
                "messages": 0,
                "same": all(count for each in read for count, _ in each.values()),
            }
        )
    library = ", ".join(f"{name} {versions[name]}" for name in PACKAGES[:2])
    found = {
        f"{each['rosbags']} (rosbags)"
        if "rosbags" in each
        else str(each.get("recording") or each["exported"]): {
            "library": f"rosbags {versions['rosbags']}" if "rosbags" in each else library,
            "messages compared": each["messages"],
            "topics": each["topics"],
            "against": "nothing: read to the end" if "exported" in each else "the recording, read by it",
            **({} if each["same"] else {"wrong": "values differ"}),
        }
        for each in compared
    }
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=1))
    return int(not all(each["same"] for each in compared))


def _virtualenv(folder: Path) -> str:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    return python


def _asked(python: str, script: str, path: Path) -> dict[str, dict[str, list[object]]]:
    done = subprocess.run([python, "-c", script, str(path)], check=True, capture_output=True, text=True)
    found: dict[str, dict[str, list[object]]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


if __name__ == "__main__":
    raise SystemExit(main())
