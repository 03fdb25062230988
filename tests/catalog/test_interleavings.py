"""Publishers, taggers, deleters and collectors at once, killed anywhere: what can be named is always whole."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.catalog.simulated import Crashed, LossyStore, Process, ProcessStore, World
from tests.memory_store import MemoryStore
from tests.sweeps import SOAK
from warpdata.bytekit.checksum import sha256_hex
from warpdata.catalog.access import AccessOptions, Catalog, parse_name
from warpdata.catalog.manage import versions as expiry
from warpdata.catalog.manage import versions as remotegc
from warpdata.catalog.manage.copies import copy_dataset, mend_version
from warpdata.catalog.manage.versions import tag_version
from warpdata.catalog.publish import pointers as removals
from warpdata.catalog.publish import publish
from warpdata.catalog.publish.pointers import read_pointer
from warpdata.catalog.publish.publish import PublishOptions, Upload, stored_parts
from warpdata.errors import (
    BlobNotFoundError,
    DatasetNotFoundError,
    WarpError,
)
from warpdata.formats.manifest.codec import pack_manifest, parse_manifest
from warpdata.formats.manifest.model import ArtifactPart, BlobRef, Manifest, blob_key
from warpdata.stores.blobstore import ReliableStore, RetryPolicy

NAME = parse_name("ws/x")
DAY_S = 24 * 3600.0
WHOLE = 10**9
BLOBS = {letter: f"the bytes of {letter}".encode() for letter in "abcdef"}


def manifest_of(letters: Iterable[str]) -> Manifest:
    shards = tuple(
        BlobRef(sha256_hex(BLOBS[one]), len(BLOBS[one]), name=f"{one}.bin") for one in sorted(letters)
    )
    return Manifest(NAME.dataset_id, {}, {"raw": ArtifactPart("files", shards)})


def version_of(letters: str) -> str:
    return parse_manifest(pack_manifest(manifest_of(letters))).version_hash


def publishing(letters: str, **options: Any) -> Callable[[ProcessStore], Any]:
    uploads = [Upload(sha256_hex(BLOBS[n]), len(BLOBS[n]), lambda n=n: iter([BLOBS[n]])) for n in letters]

    def run(store: ProcessStore) -> Any:
        given = PublishOptions(workers=1, retries=10, **options)
        return publish.publish(store, NAME, lambda _: (manifest_of(letters), uploads), given)

    return run


def growing(letter: str) -> Callable[[ProcessStore], Any]:
    """Adds a letter to the newest version, whose other blobs it does not look at."""
    upload = Upload(sha256_hex(BLOBS[letter]), len(BLOBS[letter]), lambda: iter([BLOBS[letter]]))

    def run(store: ProcessStore) -> Any:
        def build(latest: str | None) -> Any:
            held = store.get(NAME.version_key(latest), max_bytes=1 << 20)
            shards = parse_manifest(held.data).artifacts["raw"].shards
            return manifest_of({*(shard.name[0] for shard in shards), letter}), [upload]

        return publish.publish(store, NAME, build, PublishOptions(workers=1, retries=10))

    return run


def collecting(store: ProcessStore) -> Any:
    return remotegc.collect(Catalog(store.address, store), delete=True, grace_s=7 * DAY_S, workers=1)


def expiring(store: ProcessStore) -> Any:
    return expiry.expire_versions(access_to(store), NAME, keep_last=0, older_than_s=DAY_S, delete=True)


def access_to(*stores: Any) -> Any:
    """What menders, copiers and deleters need of an access, to stores of a simulated world."""
    return SimpleNamespace(
        catalogs=[Catalog(store.address, store) for store in stores],
        cache=None,
        is_offline=False,
        options=AccessOptions(catalogs=("simulated",), mode="remote"),
        parts=lambda catalog: stored_parts(catalog.store),
        place=lambda catalog, blob: (catalog.store, blob.key),
    )


def deleting(letters: str) -> Callable[[ProcessStore], Any]:
    return lambda store: expiry.delete_versions(access_to(store), NAME, [version_of(letters)])


def mending(letters: str) -> Callable[[ProcessStore], Any]:
    name = parse_name(f"{NAME.dataset_id}@{version_of(letters)}")
    return lambda store: mend_version(
        access_to(store), name, sources=[access_to(old_world().store)], workers=1
    )


def copying(store: ProcessStore) -> Any:
    """Brings the versions `bde` and `cdf`, one of them tagged, from another catalog."""
    return copy_dataset(access_to(other_world().store), access_to(store), NAME, all_versions=True, workers=1)


def expiring_and_collecting(store: ProcessStore) -> Any:
    return expiring(store), collecting(store)


def tagging(letters: str) -> Callable[[ProcessStore], Any]:
    return lambda store: tag_version(store, NAME, version_of(letters), "good")


def check_whole(world: World) -> None:
    """Every version that `latest` or a tag names is complete.

    But for one that is deleted while it is published or tagged again: its publisher brings it again, and its tagger
    removes the tag, once they see that something was removed.
    """
    if not world.alive or removals._read_lock(world.store)[0] == world.removals_at_start:
        check_named(world.store)


def check_named(store: MemoryStore) -> None:
    for info in list(store.list(NAME.folder)):
        if info.key == NAME.latest_key or info.key.startswith(f"{NAME.folder}tags/"):
            check_version(store, read_pointer(store, info.key).pointer.version)
    assert read_pointer(store, NAME.latest_key).pointer is not None, "latest is lost"


def check_version(store: MemoryStore, version: str) -> None:
    held = store.get(NAME.version_key(version), max_bytes=1 << 20)
    for blob in parse_manifest(held.data, expected_hash=version).blobs().values():
        assert sha256_hex(store.get(blob.key, max_bytes=1 << 20).data) == blob.hash


def patch_time(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    monkeypatch.setattr(removals, "_sleep", world.sleep)
    monkeypatch.setattr(removals, "seconds_with_sleep", lambda: world.now_s)
    monkeypatch.setattr(publish, "pause", lambda attempt: world.sleep(0.1))


@functools.cache
def old_world() -> World:
    """Two old versions (`ab` and, later, `bc`, which is latest), and the old orphans `d` and `e`."""
    world = World()
    with pytest.MonkeyPatch.context() as patch:
        patch_time(patch, world)
        for letters in ("ab", "bc"):
            world.start(letters, publishing(letters))
            world.finish()
            world.now_s += DAY_S
    for orphan in "de":
        world.store.put_if_absent(blob_key(sha256_hex(BLOBS[orphan])), BLOBS[orphan])
    world.now_s += 30 * DAY_S
    return world


@functools.cache
def other_world() -> World:
    """Another catalog of the same dataset."""
    world = World()
    with pytest.MonkeyPatch.context() as patch:
        patch_time(patch, world)
        for letters, tags in (("bde", ("copied",)), ("cdf", ())):
            world.start(letters, publishing(letters, tags=tags))
            world.finish()
    return world


def new_world(monkeypatch: pytest.MonkeyPatch) -> World:
    """The old world as it is when the play begins."""
    world, old = World(MemoryStore), old_world()
    world.now_s = old.now_s
    world.store._blobs = dict(old.store._blobs)
    world.store._writes = old.store._writes
    patch_time(monkeypatch, world)
    world.removals_at_start = removals._read_lock(world.store)[0]
    world.checks.append(lambda: check_whole(world))
    world.checks[0]()
    return world


def check_ended_well(process: Process) -> None:
    assert process.error is None or isinstance(process.error, Crashed | WarpError), process.error


def check_settled(world: World) -> None:
    """What crashes left is made good by publishing again and collecting again, later."""
    for _ in range(2):
        world.now_s += 10 * DAY_S
        again, collector = world.start("again", publishing("bde")), world.start("gc", collecting)
        world.finish([again, collector])
        assert again.error is None
        assert collector.error is None, collector.error
    assert read_pointer(world.store, NAME.latest_key).pointer.version == version_of("bde")
    used = set()
    for info in world.store.list(f"{NAME.folder}versions/"):
        if info.key.count(".") == 1:
            used |= parse_manifest(world.store.get(info.key, max_bytes=1 << 20).data).blobs().keys()
    assert {info.key.rpartition("/")[2] for info in world.store.list("blobs/")} == used
    assert [info.key for info in world.store.list("probe/")] == []


CAST = {
    "publisher of orphans": publishing("bde"),
    "publisher of an old version": publishing("ab", tags=("old",)),
    "publisher": publishing("cdf", tags=("new",)),
    "grower": growing("d"),
    "second grower": growing("f"),
    "replacing, then expirer": lambda store: (publishing("ef")(store), expiring_and_collecting(store)),
    "collector": collecting,
    "second collector": collecting,
    "expirer": expiring_and_collecting,
    "tagger": tagging("ab"),
    "repairer": publishing("ab", repair=True),
    "mender": mending("ab"),
    "deleter": deleting("ab"),
    "copier": copying,
}


def play_at_random(world: World, dice: random.Random, crashes: float) -> None:
    for name in dice.sample(sorted(CAST), dice.randint(2, 5)):
        world.start(name, CAST[name])
    while world.alive:
        process = world.overdue()
        if process is None:
            process = dice.choice(world.alive)
            world.now_s += dice.choice([0.0, 0.01, 1.0, 30.0, 150.0])
        world.let(process, crash=dice.random() < crashes)
    for process in world.processes:
        check_ended_well(process)


@pytest.mark.parametrize("crashes", [0.0, 0.01])
def test_many_random_interleavings(crashes: float, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(25 if SOAK else 10):
        world = new_world(monkeypatch)
        try:
            play_at_random(world, random.Random(seed), crashes)
            check_settled(world)
        except (AssertionError, BlobNotFoundError) as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def steps_of(monkeypatch: pytest.MonkeyPatch, run: Callable[[ProcessStore], Any]) -> int:
    world = new_world(monkeypatch)
    process = world.start("alone", run)
    world.finish()
    return process.steps


def play_two_switches(
    monkeypatch: pytest.MonkeyPatch, first: str, second: str, stride: int = 1
) -> Iterator[tuple[World, Process, Process]]:
    """Every way to interrupt one process by a part of another or by the whole, and to finish both."""
    lengths = [steps_of(monkeypatch, CAST[name]) for name in (first, second)]
    for cut in range(1, lengths[0] + 2, stride):
        for part in [WHOLE, *range(1, lengths[1] + 1, stride)]:
            world = new_world(monkeypatch)
            one, two = world.start(first, CAST[first]), world.start(second, CAST[second])
            for process, count in ((one, cut), (two, part)):
                while process.steps < count and not process.is_done:
                    world.let(world.overdue() or process)
            world.finish([one, two])
            yield world, one, two


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("publisher of orphans", "collector"),
        ("collector", "publisher of orphans"),
        ("expirer", "publisher of an old version"),
        ("tagger", "expirer"),
        ("expirer", "tagger"),
        ("grower", "replacing, then expirer"),
        ("replacing, then expirer", "grower"),
        ("mender", "expirer"),
        ("copier", "expirer"),
        ("expirer", "copier"),
    ],
)
def test_every_interruption_by_a_part_of_another(
    first: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for world, one, two in play_two_switches(
        monkeypatch,
        first,
        second,
        2 if first == "collector" else 5 if {"grower", "copier"} & {first, second} else 3,
    ):
        for process in (one, two):
            check_ended_well(process)
            if process.name.startswith("publisher"):
                assert process.error is None
                assert list(world.store.list(NAME.version_key(process.result.version)))
        assert not removals._read_lock(world.store)[1], "the lock was released"


def crash_at_every_step(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for step in range(1, steps_of(monkeypatch, CAST[name]) + 1):
        world = new_world(monkeypatch)
        process = world.start(name, CAST[name])
        for _ in range(step):
            if not process.is_done:
                world.let(process)
        if not process.is_done:
            world.let(process, crash=True)
        check_settled(world)


@pytest.mark.parametrize(
    "name",
    ["publisher of orphans", "expirer", "collector", "tagger", "grower", "repairer", "deleter", "copier"],
)
def test_a_crash_at_every_step_then_a_collector_then_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_at_every_step(monkeypatch, name)


def check_sleep_at_every_step(monkeypatch: pytest.MonkeyPatch, name: str, steps: int) -> None:
    for step in range(1, steps):
        world = new_world(monkeypatch)
        world.checks.clear()
        sleeper = world.start("sleeper", CAST[name])
        for _ in range(step):
            if not sleeper.is_done:
                world.let(sleeper)
        world.now_s += 3 * DAY_S
        deleter = world.start("deleter", expiring_and_collecting)
        while not deleter.is_done:
            world.let(deleter)
        world.finish()
        check_named(world.store)
        assert sleeper.error is None or isinstance(sleeper.error, WarpError), sleeper.error
        assert sleeper.error is None or name in ("tagger", "grower"), sleeper.error


@pytest.mark.parametrize(
    "name", ["publisher of orphans", "publisher of an old version", "grower", "copier", "tagger"]
)
def test_a_publisher_that_slept_for_days_notices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blobs and its manifest were removed: it brings them again, or fails and leaves no pointer to them."""
    check_sleep_at_every_step(monkeypatch, name, steps_of(monkeypatch, CAST[name]))


def damage(world: World, key: str) -> None:
    held = world.store._blobs[key]
    world.store._blobs[key] = replace(held, data=held.data[:-1] + b"X")


@pytest.mark.parametrize("is_tried_again", [True, False])
@pytest.mark.parametrize("name", sorted(CAST.keys() - {"replacing, then expirer"}))
def test_every_answer_may_be_lost(name: str, is_tried_again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was done and is tried again is done; what failed for good is made good by running it again."""
    damaged = NAME.version_key(version_of("ab")) if name in ("repairer", "mender") else None
    for lost in range(1, steps_of(monkeypatch, CAST[name]) + 2):
        world = new_world(monkeypatch)
        if damaged:
            world.checks.clear()
            damage(world, damaged)

        def run(store: ProcessStore, lost: int = lost) -> Any:
            lossy: Any = LossyStore(store, lost)
            policy = RetryPolicy(sleep=lambda _: None)
            return CAST[name](ReliableStore(lossy, policy=policy) if is_tried_again else lossy)

        first = world.start(name, run)
        world.finish()
        if is_tried_again:
            assert first.error is None, f"answer {lost}: {first.error}"
        elif first.error is not None:
            again = world.start(name, CAST[name])
            world.finish()
            assert again.error is None or isinstance(again.error, DatasetNotFoundError), again.error
        check_named(world.store)
        check_settled(world)


def test_a_request_that_is_tried_for_long_undoes_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each move of `latest` goes on from the one before, however long a request takes until it fails."""
    policy = RetryPolicy()
    for step in range(1, steps_of(monkeypatch, CAST["publisher of orphans"]) + 4):
        world = new_world(monkeypatch)
        world.least_sleep_s = 1.0
        moves = [read_pointer(world.store, NAME.latest_key).pointer]

        def look(world: World = world, moves: list[Any] = moves) -> None:
            now = read_pointer(world.store, NAME.latest_key).pointer
            if now != moves[-1]:
                assert (now.sequence, now.previous) == (moves[-1].sequence + 1, moves[-1].version)
                moves.append(now)

        world.checks.append(look)
        slow = world.start("slow", CAST["publisher of orphans"])
        for _ in range(step):
            if not slow.is_done:
                world.let(slow)
        world.now_s += policy.max_total_s + 20  # one time-out of a store
        other = world.start("other", CAST["publisher"])
        for _ in range(30):
            if not other.is_done:
                world.let(other)
        world.finish([slow, other])
        assert len(moves) == 3


def test_this_machines_clock_is_not_asked_for_ages(monkeypatch: pytest.MonkeyPatch) -> None:
    world = new_world(monkeypatch)
    monkeypatch.setattr(time, "time", lambda: 2e9 + 10 * 365 * DAY_S)
    young = blob_key(sha256_hex(BLOBS["f"]))
    world.store.put_if_absent(young, BLOBS["f"])
    collector = world.start("collector", collecting)
    world.finish()
    assert collector.error is None
    assert collector.result.young_blobs == 1
    assert list(world.store.list(young)), "it is young, whatever this machine thinks the year is"
    assert len(collector.result.blobs) == 2


def _removals_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (removals, expiry):
        monkeypatch.setattr(module, "removal_count", lambda _: 0)


def _manifests_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = remotegc._References.read
    monkeypatch.setattr(remotegc._References, "read", lambda used, store: used.versions or read(used, store))


def _pointers_read_before_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    pointed = functools.cache(expiry._pointed)
    monkeypatch.setattr(expiry, "_pointed", pointed)


@pytest.mark.parametrize(
    ("fault", "first", "second"),
    [
        (_removals_unseen, "publisher of orphans", "collector"),
        (_removals_unseen, "expirer", "tagger"),
        (_removals_unseen, "grower", "replacing, then expirer"),
        (_manifests_read_once, "collector", "publisher of orphans"),
        (_pointers_read_before_the_lock, "expirer", "publisher of an old version"),
    ],
)
def test_the_simulation_finds_a_broken_protocol(
    fault: Callable[[pytest.MonkeyPatch], None], first: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rule is needed: without it, some interleaving loses something."""
    fault(monkeypatch)
    with pytest.raises((AssertionError, BlobNotFoundError)):
        for world, _, _ in play_two_switches(monkeypatch, first, second):
            check_named(world.store)
