"""A fleet on paper: a million hours of robot data, 1,000 trainers, 10,000 recorders, from what was measured here.

`python -m bench.scale_model` prints the tables of docs/explanation/scale.md; `--write` puts them there. Nothing is
drawn from the machine it runs on: measured constants come from bench/results, the rest is below and in the page.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import measure
from warpdata.bytekit.checksum import sha256_hex
from warpdata.formats.manifest.layout import MAX_MANIFEST_BYTES
from warpdata.formats.manifest.model import BlobRef, PartedShards, packed_shards, with_added

PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "scale.md"


@dataclass(frozen=True, slots=True)
class Fleet:
    """What there is."""

    hours: float = 1e6
    episode_s: float = 60.0
    bytes_per_hour: float = 1.5e9
    """Two cameras at 1.5 Mbit/s each, and joints, actions and forces at 200 Hz."""
    recorders: int = 10_000
    shift: float = 1.0
    """The part of the time a recorder records."""
    trainers: int = 1000
    trainers_per_machine: int = 8
    windows_per_s: float = 64.0
    """What one trainer takes."""
    window_s: float = 2.0
    cache_bytes: float = 4e12
    """Disk of one machine for pages."""

    @property
    def episodes(self) -> int:
        return round(self.hours * 3600 / self.episode_s)

    @property
    def machines(self) -> int:
        return self.trainers // self.trainers_per_machine

    @property
    def bytes(self) -> float:
        return self.hours * self.bytes_per_hour


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars, list prices of a large object store in one region in 2026."""

    per_get: float = 0.0004 / 1000
    per_put: float = 0.005 / 1000
    per_byte_month: float = 0.023 / 1e9
    reads_per_prefix_s: float = 5500.0
    """What one prefix of such a store answers before it asks for patience; blobs lie under 256."""
    prefixes: int = 256


@dataclass(frozen=True, slots=True)
class Constants:
    """What was measured: bench/results/scale_catalog.json, with 20 ms to the store."""

    publish_s: float
    publish_requests: int
    publish_bytes: int
    turn_s: float
    window_requests: int
    window_bytes: int
    measured: dict[str, Any]


FLAT_ENTRY_BYTES = 244
ID_BYTES = 70
"""A short string in Python."""


def constants() -> Constants:
    found = json.loads((measure.RESULTS / "scale_catalog.json").read_text())
    publish, window = found["parts"]["publish ten"], found["parts"]["two seconds with two cameras"]
    return Constants(
        publish["seconds"],
        publish["requests"],
        publish["sent_bytes"] + publish["answered_bytes"],
        publish["turn_seconds"],
        window["requests"],
        window["answered_bytes"],
        found,
    )


@dataclass(frozen=True, slots=True)
class Tree:
    """How large the parts of manifests are, from trees that are built here."""

    entry_bytes: float
    entries_per_part: float
    changed_parts: float
    changed_bytes: float


def tree(count: int = 20_000) -> Tree:
    """Build a list of episodes and add ten to it, as a publisher does."""
    refs = [
        BlobRef(sha256_hex(f"{n}".encode()), 25_000_000 + n, name=f"{n:012d}.wshard") for n in range(count)
    ]
    packed = packed_shards(tuple(refs))
    assert isinstance(packed.shards, PartedShards)
    leaves = [ref for ref in packed.shards.part_blobs() if getattr(ref, "level", 0) == 0]
    new = [BlobRef(sha256_hex(f"x{n}".encode()), 7, name=f"{count + n:012d}.wshard") for n in range(10)]
    grown = with_added(packed.shards, new)
    return Tree(
        sum(map(len, packed.blobs.values())) / count,
        count / len(leaves),
        len(grown.blobs),
        sum(map(len, grown.blobs.values())),
    )


def levels(episodes: int, per_part: float) -> int:
    """How many parts lie between the manifest and a shard."""
    return max(1, math.ceil(math.log(episodes) / math.log(per_part)))


def waiting(writers: int, every_s: float, turn_s: float, seed: int = 0, turns: int = 20_000) -> float:
    """Mean wait for a turn, in seconds: writers come at random, one after the other has it. A queue, played."""
    dice = random.Random(seed)
    arrivals: list[float] = [dice.expovariate(1.0) * every_s for _ in range(writers)]
    heapq.heapify(arrivals)
    free, waited = 0.0, 0.0
    for _ in range(turns):
        now = heapq.heappop(arrivals)
        begin = max(now, free)
        waited += begin - now
        free = begin + turn_s
        heapq.heappush(arrivals, free + dice.expovariate(1.0) * every_s)
    return waited / turns


def hits(
    machines: int, episodes: int, windows: int, cached: int, *, at_home: bool, epochs: int = 3, seed: int = 0
) -> float:
    """The part of windows that are in their machine's cache, after the first epoch. Caches of `cached` windows, played.

    What was read of an episode stays together, and goes together when others were read more recently. `at_home`: every
    episode belongs to one machine, which visits all its windows; else any machine takes any window.
    """
    dice = random.Random(seed)
    caches: list[OrderedDict[int, set[int]]] = [OrderedDict() for _ in range(machines)]
    held = [0] * machines
    found = asked = 0
    for epoch in range(epochs):
        order = [(episode, window) for episode in range(episodes) for window in range(windows)]
        dice.shuffle(order)
        for episode, window in order:
            machine = episode % machines if at_home else dice.randrange(machines)
            cache = caches[machine]
            have = cache.setdefault(episode, set())
            cache.move_to_end(episode)
            if epoch:
                asked += 1
                found += window in have
            held[machine] += window not in have
            have.add(window)
            while held[machine] > cached:
                held[machine] -= len(cache.popitem(last=False)[1])
    return found / asked


def report(fleet: Fleet = Fleet(), prices: Prices = Prices()) -> dict[str, Any]:  # noqa: B008 - both are frozen
    """Every number of the page."""
    known, shape = constants(), tree()
    turn_s = known.turn_s
    made_per_s = fleet.recorders * fleet.shift / fleet.episode_s
    batches = {}
    for label, every_s in (
        ("each episode", 60.0),
        ("an hour", 3600.0),
        ("two hours", 7200.0),
        ("a day", 86_400.0),
    ):
        rate = fleet.recorders / every_s
        load = rate * turn_s
        batches[label] = {
            "versions_per_s": round(rate, 2),
            "load": round(load, 2),
            "wait_s": round(waiting(fleet.recorders, every_s, turn_s), 1) if load < 0.95 else None,
            "puts_per_s": round(made_per_s + rate * known.publish_requests / 2),
        }
    share = fleet.cache_bytes * fleet.machines / fleet.bytes
    per_episode = round(fleet.episode_s / fleet.window_s)
    machines, episodes = 8, 800  # small, with the same share of the bytes in caches
    cached = round(episodes * per_episode / machines * min(1.0, share))
    home = hits(machines, episodes, per_episode, cached, at_home=True)
    roaming = hits(machines, episodes, per_episode, cached, at_home=False)
    windows = fleet.episodes * per_episode
    wanted_per_s = fleet.trainers * fleet.windows_per_s
    epochs = {}
    for label, hit in (
        ("cold", 0.0),
        ("any machine takes any window", roaming),
        ("episodes have a home", home),
    ):
        gets = windows * (1 - hit) * known.window_requests
        epochs[label] = {
            "hit_rate": round(hit, 2),
            "gets_per_s": round(wanted_per_s * (1 - hit) * known.window_requests),
            "gets": gets,
            "dollars": round(gets * prices.per_get),
            "machine_gbits": round(
                wanted_per_s / fleet.machines * (1 - hit) * known.window_bytes * 8 / 1e9, 1
            ),
        }
    height = levels(fleet.episodes, shape.entries_per_part)
    return {
        "episodes": fleet.episodes,
        "bytes": fleet.bytes,
        "storage_per_month": round(fleet.bytes * prices.per_byte_month),
        "made_per_s": round(made_per_s),
        "turn_s": round(turn_s, 2),
        "most_versions_per_s": round(1 / turn_s, 1),
        "batches": batches,
        "cache_share": round(share, 2),
        "epochs": epochs,
        "epoch_days": round(windows / wanted_per_s / 86_400, 2),
        "reads_limit": prices.reads_per_prefix_s * prices.prefixes,
        "tree": {
            "per_part": round(shape.entries_per_part),
            "levels": height,
            "total_bytes": shape.entry_bytes * fleet.episodes,
            "changed_bytes": shape.changed_bytes / shape.changed_parts * height,
            "flat_bytes": FLAT_ENTRY_BYTES * fleet.episodes,
            "flat_most": MAX_MANIFEST_BYTES // FLAT_ENTRY_BYTES,
        },
        "publish": {
            "requests": known.publish_requests,
            "bytes": known.publish_bytes,
            "seconds": known.publish_s,
        },
        "ids_bytes": fleet.episodes * 2 * ID_BYTES,
        "measured": known.measured,
    }


def human(count: float) -> str:
    """A number of bytes as people say it."""
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def tables(found: dict[str, Any]) -> str:
    """The numbers as the page shows them."""
    parts = [_measured(found["measured"]), _numbers(found), _writers(found), _readers(found)]
    return "\n\n".join(parts)


def _measured(found: dict[str, Any]) -> str:
    """What was measured as a catalog grew: what costs the same in all columns costs what is changed."""
    sizes, cases = found["sizes"], [found["few episodes"], found["few versions"], found["parts"]]
    episodes, versions = sizes["episodes"], sizes["versions"]
    heads = [f"{episodes // 100:,} episodes", f"{episodes:,} episodes", f"and {versions:,} versions"]
    lines = [f"| measured | {' | '.join(heads)} |", "|---|---|---|---|"]
    for label, row in found["parts"].items():
        if isinstance(row, dict):
            cells = [_cell(case.get(label)) for case in cases]
            lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    requests = f"{row['requests']:,} request{'s' if row['requests'] != 1 else ''}"
    return f"{row['seconds']:.2f} s, {requests}, {human(row['sent_bytes'] + row['answered_bytes'])}"


def _numbers(found: dict[str, Any]) -> str:
    shape, publish, turn = found["tree"], found["publish"], found["turn_s"]
    kept = f"{human(found['bytes'])}, {found['storage_per_month']:,} $ a month"
    sent = f"{publish['requests']} requests, {human(publish['bytes'])}, {publish['seconds']} s"
    lists = (
        f"{shape['levels']} levels of about {shape['per_part']} entries, {human(shape['total_bytes'])} in all"
    )
    flat = f"{human(shape['flat_bytes'])}, written anew each time; the cap ends it at {shape['flat_most']:,} episodes"
    rows = {
        "episodes": f"{found['episodes']:,}",
        "bytes, and what keeping them costs": kept,
        "episodes recorded": f"{found['made_per_s']} a second",
        "one publish of ten episodes into 100,000 (measured)": sent,
        "a writer's turn": f"{turn} s, so at most {found['most_versions_per_s']} versions a second in one dataset",
        "the list of episodes in parts": lists,
        "parts that one publish writes anew": human(shape["changed_bytes"]),
        "the list in one JSON file": flat,
        "ids and members of all episodes in one process": human(found["ids_bytes"]),
    }
    return "\n".join(
        ["| what | number |", "|---|---|", *(f"| {name} | {row} |" for name, row in rows.items())]
    )


def _writers(found: dict[str, Any]) -> str:
    lines = [
        "| a recorder publishes every | versions/s | load of the turn | mean wait | puts/s |",
        "|---|---|---|---|---|",
    ]
    for label, row in found["batches"].items():
        wait = "never ends" if row["wait_s"] is None else f"{row['wait_s']} s"
        lines.append(f"| {label} | {row['versions_per_s']} | {row['load']} | {wait} | {row['puts_per_s']} |")
    return "\n".join(lines)


def _readers(found: dict[str, Any]) -> str:
    heads = (
        "caches",
        "hit rate",
        "GET/s of all trainers",
        "Gbit/s into one machine",
        "$ per epoch in requests",
    )
    lines = [f"| {' | '.join(heads)} |", "|---|---|---|---|---|"]
    for label, row in found["epochs"].items():
        rest = f"{row['gets_per_s']:,} | {row['machine_gbits']} | {row['dollars']:,}"
        lines.append(f"| {label} | {row['hit_rate']} | {rest} |")
    share, days = f"{found['cache_share']:.0%}", found["epoch_days"]
    lines += [
        "",
        f"Caches of all machines hold {share} of the bytes; an epoch over all windows takes {days} days.",
    ]
    lines.append(f"The store answers about {found['reads_limit']:,.0f} GET/s over all its prefixes.")
    return "\n".join(lines)


BEGIN, END = "<!-- model: begin -->\n", "<!-- model: end -->"


def page_with(text: str, new: str) -> str:
    """The page with these tables between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{new}\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the tables into the page")
    args = parser.parse_args()
    new = tables(report())
    if args.write:
        PAGE.write_text(page_with(PAGE.read_text(), new))
    print(new)


if __name__ == "__main__":
    main()
