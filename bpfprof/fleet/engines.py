"""What answers a query over a data set: DuckDB here, or a Spark cluster. A query is an expression of Ibis for both."""

from __future__ import annotations

import contextlib
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from bpfprof.dataclass import dataclass
from bpfprof.errors import RecordingError, UnsupportedError, UsageError
from bpfprof.fleet.layout import FUNCTIONS, RECORDINGS, STEPS, THREADS, WEIGHTS, files_of

DUCKDB = "duckdb"
_SPARK = ("spark://", "local", "yarn", "k8s://")
# Table -> the columns that queries ask, and what they are: `is_KIND()` of a type of Ibis.
_TEXTS = dict.fromkeys(("recording", "function", "library", "module"), "string")
_TIMES = ("cpu_ns", "ready_ns", "wait_ns")
_ASKED = {
    RECORDINGS: {
        **dict.fromkeys(("recording", "date", "host_name"), "string"),
        **dict.fromkeys((*_TIMES, "idle_ns", "duration_ns"), "integer"),
        "labels": "map",
    },
    FUNCTIONS: {**_TEXTS, **dict.fromkeys((*_TIMES, "cpu_total_ns", "ready_total_ns", "wait_total_ns"), "integer")},
    THREADS: {"recording": "string", "rank": "string"},
    STEPS: {"recording": "string", "rank": "string", "duration_ns": "integer", "phases": "map"},
    WEIGHTS: {
        **_TEXTS,
        "rank": "string",
        "minute": "timestamp",
        "state": "string",
        "reason": "string",
        "idle": "boolean",
        "ns": "integer",
    },
}
_ADDED = {"rank"}  # columns that data sets had not from the beginning
_MOST_ROWS = 1_000_000  # that an answer may have


@dataclass(frozen=True)
class Limits:
    """Of DuckDB, in this process: what does not fit into memory is in files of a temporary folder meanwhile."""

    memory: str = "2GB"
    threads: int = 0  # 0: as many as there are CPUs


class Engine(ABC):
    """Tables of a data set, and the rows of a query over them."""

    def __init__(self, folder: str) -> None:
        self._folder, self._tables = folder, dict[str, Any]()

    def table(self, name: str) -> Any:
        """As a table of Ibis, with the columns date, host and recording of its folders, as texts.

        Raises RecordingError where there is none, or one without the columns that are asked.
        """
        import ibis

        if name not in self._tables:
            with _read_errors(self._folder):
                found = self._open(name, files_of(self._folder, name))
                kinds = found.schema()
            for column in _ADDED & _ASKED[name].keys() - set(kinds):
                found = found.mutate(**{column: ibis.null(_ASKED[name][column])})
                kinds = found.schema()
            for column, kind in _ASKED[name].items():
                if column not in kinds or not getattr(kinds[column], f"is_{kind}")():
                    raise RecordingError(f"{self._folder}: {name}.parquet has no column {column} of the kind {kind}")
            self._tables[name] = found
        return self._tables[name]

    def rows(self, query: Any) -> list[dict[str, Any]]:
        """Whole numbers are int.

        Raises RecordingError where a file of the data set cannot be read, UsageError where there are too many rows.
        """
        with _read_errors(self._folder):
            found = self._fetched(query.limit(_MOST_ROWS + 1))
        if len(found) > _MOST_ROWS:
            raise UsageError(
                f"more than {_MOST_ROWS:,} rows", "--where chooses recordings, --every 1d makes longer times"
            )
        return [{name: _plain(value) for name, value in row.items()} for row in found]

    @abstractmethod
    def _open(self, name: str, files: str) -> Any: ...

    @abstractmethod
    def _fetched(self, query: Any) -> list[dict[str, Any]]: ...


def _plain(value: Any) -> Any:
    """Sums of whole numbers are of types that have more digits than an int64."""
    if not isinstance(value, Decimal):
        return value
    return int(value) if value == value.to_integral_value() else float(value)


def is_engine(name: str) -> bool:
    """DUCKDB, or the address of a Spark master."""
    return name == DUCKDB or name.startswith(_SPARK)


@contextlib.contextmanager
def opened(folder: str, engine: str, limits: Limits) -> Iterator[Engine]:
    """The engine of this name over the data set. Raises UnsupportedError where packages are missing."""
    _check(engine)
    with _duckdb(folder, limits) if engine == DUCKDB else _spark(folder, engine) as found:
        yield found


def _check(engine: str) -> None:
    extra, package = ("fleet", "duckdb") if engine == DUCKDB else ("spark", "pyspark")
    try:
        import ibis  # noqa: F401

        __import__(package)
    except ImportError as error:
        hint = f"pip install 'bpfprof[{extra}]' for the Python that runs it"
        raise UnsupportedError(
            f"a data set is asked with Ibis and {package}, and one is not here: {error}", hint
        ) from error


class _DuckDb(Engine):
    def __init__(self, folder: str, connection: Any) -> None:
        super().__init__(folder)
        self._connection = connection

    def _open(self, name: str, files: str) -> Any:
        options = {"hive_partitioning": True, "hive_types_autocast": False, "union_by_name": True}
        return self._connection.read_parquet(files, table_name=name, **options)

    def _fetched(self, query: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._connection.to_pyarrow(query).to_pylist()
        return found


@contextlib.contextmanager
def _duckdb(folder: str, limits: Limits) -> Iterator[Engine]:
    import ibis

    with tempfile.TemporaryDirectory(prefix="bpfprof-fleet-", dir=os.environ.get("TMPDIR") or "/var/tmp") as spill:
        connection = ibis.duckdb.connect(
            memory_limit=limits.memory,
            threads=limits.threads or os.cpu_count() or 1,
            temp_directory=spill,
            # A file of a stranger makes it neither load an extension nor open anything else.
            autoinstall_known_extensions=False,
            autoload_known_extensions=False,
        )
        try:
            connection.raw_sql("SET preserve_insertion_order = false")
            folders = ", ".join("'" + os.path.abspath(path).replace("'", "''") + "/'" for path in (folder, spill))
            connection.raw_sql(f"SET allowed_directories = [{folders}]")
            connection.raw_sql("SET enable_external_access = false")
            connection.raw_sql("SET lock_configuration = true")
            yield _DuckDb(os.path.abspath(folder), connection)
        finally:
            connection.disconnect()


class _Spark(Engine):
    def __init__(self, folder: str, session: Any, connection: Any) -> None:
        super().__init__(folder)
        self._session, self._connection = session, connection

    def _open(self, name: str, files: str) -> Any:
        reader = self._session.read.option("basePath", self._folder).option("mergeSchema", "true")
        reader.parquet(files).createOrReplaceTempView(name)
        return self._connection.table(name)

    def _fetched(self, query: Any) -> list[dict[str, Any]]:
        return [row.asDict() for row in self._session.sql(self._connection.compile(query)).collect()]


@contextlib.contextmanager
def _spark(folder: str, master: str) -> Iterator[Engine]:
    """The session is this process's own: memory and cores are as the user's Spark configuration has them."""
    import ibis
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    }
    session = None
    try:
        builder = SparkSession.builder.master(master).appName("bpfprof fleet")
        for name, value in settings.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
    except Exception as error:
        first = str(error).strip().split("\n")[0]
        raise UnsupportedError(
            f"no Spark session: {first}", "it needs Java 17 (openjdk-17-jre-headless) and a master that answers"
        ) from error
    try:
        session.sparkContext.setLogLevel("ERROR")
        where = folder if "://" in folder else os.path.abspath(folder)
        yield _Spark(where, session, ibis.pyspark.connect(session))
    finally:
        session.stop()


@contextlib.contextmanager
def _read_errors(folder: str) -> Iterator[None]:
    """What the engines raise about files is told as that of any recording."""
    try:
        yield
    except Exception as error:
        text = " ".join(str(error).split())
        if any(words in text for words in ("No files found", "PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")):
            hint = "bpfprof export RECORDING... --to DIR makes one"
            raise RecordingError(f"{folder} has no recordings: no {files_of('DIR', RECORDINGS)}", hint) from error
        if not _is_about_data(error):
            raise
        raise RecordingError(f"{folder} cannot be asked: {text[:400]}", details=str(error)) from error


def _is_about_data(error: Exception) -> bool:
    module = type(error).__module__
    return module.startswith(("duckdb", "_duckdb", "ibis", "pyarrow", "pyspark", "py4j"))
