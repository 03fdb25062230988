"""Rules of the house that import-linter cannot see: adapters, struct, environment, threads, hidden imports."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.sources import every, mentions, parsed, statements
from tests.conftest import ROOT

PACKAGE = ROOT / "src" / "warpdata"
MODULES = sorted(PACKAGE.rglob("*.py"))

ADAPTERS: dict[str, set[str]] = {
    "crc32c": {"bytekit/checksum.py"},
    "xxhash": {"bytekit/checksum.py"},
    "zstandard": {"bytekit/codec.py"},
    "lz4": {"bytekit/codec.py"},
    "ml_dtypes": {"bytekit/arrays.py"},
    "cryptography": {"catalog/publish/signing.py", "formats/rvf/signing.py"},
    "duckdb": {"sql/engine.py"},
    "faiss": {"search/query/ann.py"},
    "h5py": {"convert/hdf5/file.py"},
    "numcodecs": {"convert/zarr.py"},
    "imagecodecs": {"convert/zarr.py"},
    "zarr": {"convert/zarr.py"},
    "gymnasium": {"episodes/record/gym.py"},
    "botocore": {"stores/awskeys.py"},
    "isal": {"formats/episodedir/pictures.py"},
    "matplotlib": {"timeline/cards.py"},
    "obstore": {"stores/objects.py"},
    "polars": {"sql/columns.py"},
    "pqcrypto": {"formats/rvf/signing.py"},
    "pyarrow": {
        "bytekit/arrow_arrays.py",
        "catalog/build/parts.py",
        "catalog/read/episodes.py",
        "sql/arrow_source.py",
        "sql/engine.py",
        "sql/columns.py",
        "catalog/read/refs.py",
        "catalog/read/rowgroups.py",
        "catalog/build/tables.py",
        "catalog/table.py",
        "convert/lerobot/tables.py",
        "convert/tables/parquet.py",
        "corpora/side_table.py",
        "episodes/collection/episodes.py",
        "episodes/collection/facts.py",
        "episodes/collection/local.py",
        "formats/episodedir/signal_file.py",
        "loading/tables/arrays.py",
        "loading/tables/stream.py",
        "ray/planning.py",
        "search/columns.py",
        "search/file/metadata.py",
    },
    "tornado": {"viewer/server.py"},
    "urllib3": {"stores/webclient.py"},
    "PIL": {"catalog/read/media.py", "formats/episodedir/pictures.py", "loading/images.py"},
    "soundfile": {"catalog/read/media.py"},
    "av": {"catalog/read/media.py", "formats/episodedir/video.py"},
    "torch": {"convert/lerobot/dataset.py", "corpora/torch.py"},
    "array_record": {"convert/rlds/records.py"},
    "rosbags": {"convert/messages/cdr.py"},
    "google": {"convert/messages/decoders.py"},
    "mcap": {"convert/mcap/write.py"},
    "yaml": {"convert/rosbag2.py"},
    "rerun": {"convert/rrd.py"},
    "ray": {"ray/adapter.py"},
}
"""Foreign library -> the only modules that may import it. numpy is free everywhere."""

FREE = {"numpy", "warpdata"}

OPTIONAL_ADAPTERS: set[str] = {
    "sql/engine.py",
    "sql/columns.py",
    "catalog/read/media.py",
    "catalog/publish/signing.py",
    "convert/hdf5/file.py",
    "convert/zarr.py",
    "convert/rlds/records.py",
    "convert/mcap/write.py",
    "convert/messages/cdr.py",
    "convert/messages/decoders.py",
    "convert/rosbag2.py",
    "convert/rrd.py",
    "corpora/torch.py",
    "formats/episodedir/pictures.py",
    "loading/images.py",
    "formats/episodedir/video.py",
    "formats/rvf/signing.py",
    "ray/verbs.py",
    "search/query/ann.py",
    "stores/awskeys.py",
    "timeline/cards.py",
}
"""Adapters of optional libraries: they may import inside a function and raise MissingExtraError."""

FORBIDDEN_MODULES = {"pickle", "marshal", "shelve"}
FORBIDDEN_NAMES = {"utils", "helpers", "common", "misc", "base", "core", "manager", "handler"}


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def imports(tree: ast.AST) -> Iterator[tuple[str, ast.stmt]]:
    for node in statements(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.split(".")[0], node
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0], node


def type_checking_nodes(tree: ast.AST) -> set[ast.AST]:
    found: set[ast.AST] = set()
    for node in statements(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            found.update(node.body)
            for child in node.body:
                found.update(statements(child))
    return found


@functools.cache
def runtime_imports(path: Path) -> set[str]:
    tree = parsed(path)
    hidden = type_checking_nodes(tree)
    return {name for name, node in imports(tree) if node not in hidden}


@every(MODULES)
def test_foreign_libraries_are_imported_by_their_adapters(path: Path) -> None:
    import sys

    foreign = runtime_imports(path) - FREE - set(sys.stdlib_module_names)
    for library in foreign:
        assert library in ADAPTERS, (
            f"{library} has no adapter; give it one in tests/architecture/test_adapters.py"
        )
        assert relative(path) in ADAPTERS[library], f"{library} is imported outside its adapter"


@every(MODULES)
def test_struct_only_in_layouts_and_bytekit(path: Path) -> None:
    if "struct" in runtime_imports(path):
        assert path.name == "layout.py" or relative(path).startswith("bytekit/")


@every(MODULES)
def test_environment_only_in_settings(path: Path) -> None:
    words = {"environ", "getenv", "environb"}
    if relative(path) != "settings.py" and mentions(path, words):
        assert not words & {n.attr for n in ast.walk(parsed(path)) if isinstance(n, ast.Attribute)}


@every(MODULES)
def test_threads_are_started_in_one_place(path: Path) -> None:
    starters = {"Thread", "Timer", "ThreadPoolExecutor", "start_new_thread", "to_thread", "run_in_executor"}
    if relative(path) == "bytekit/process/threads.py" or not mentions(path, starters):
        return
    started = {
        getattr(node.func, "attr", None) or getattr(node.func, "id", None)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call)
    }
    assert not started & starters, "use what bytekit/process/threads.py offers"


LATE = {
    "timeline/episode.py", "formats/wshard/episode.py",  # the two views of an episode offer each other
    "episodes/sources/shard_episode.py",  # a shard by step needs no parquet library
    "episodes/collection/episodes.py",  # conditions load pyarrow.dataset, and with it pandas where that is installed
    "stores/webclient.py",  # urllib3 opens a socket when it is loaded, which local mode must not
    "catalog/read/refs.py", "catalog/read/episodes.py",  # what was pickled opens its dataset again
    "catalog/read/rowgroups.py",  # pyarrow's datasets load pandas: only for SQL
    "search/file/metadata.py",  # conditions load the SQL engine
    "catalog/dataset.py",  # a dataset publishes a lane about itself, and publishing opens datasets
}  # fmt: skip


@every(MODULES)
def test_no_import_hides_in_a_function(path: Path) -> None:
    if relative(path).startswith(("_api/", "cli/")):
        return
    if relative(path) in OPTIONAL_ADAPTERS | LATE:
        return
    for node in statements(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = [child for child in statements(node) if isinstance(child, ast.Import | ast.ImportFrom)]
            assert not inner, f"{relative(path)}:{inner[0].lineno} imports inside a function"


@every(MODULES)
def test_no_module_can_run_code_from_data(path: Path) -> None:
    assert not runtime_imports(path) & FORBIDDEN_MODULES


@every(MODULES)
def test_no_module_for_leftovers(path: Path) -> None:
    assert not set(Path(relative(path)).with_suffix("").parts) & FORBIDDEN_NAMES
