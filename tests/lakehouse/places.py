"""The catalogs of Iceberg that cells are run in, each as the sink and as the other engine know it."""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from botocore.credentials import Credentials

from kcl_dagster.aws import client
from kcl_dagster.spark.storage import S3Options
from tests.lakehouse.engine import Engine
from tests.lakehouse.glue_server import glue_server
from tests.lakehouse.guarded_rest import GuardedRest, guarded_rest
from tests.lakehouse.guarded_s3 import GuardedS3, guarded_s3
from tests.lakehouse.hive_server import hive_server
from tests.lakehouse.rest_server import rest_server
from tests.lakehouse.spark_writer import SparkWriter, spark_writer

REGION: Final = "us-east-1"
ACCOUNT: Final = "111122223333"
OWN_KEY, OWN_SECRET = "own-key", "own-secret"  # of the worker
VENDED_KEY, VENDED_SECRET, VENDED_TOKEN = "vended-key", "vended-secret", "vended-token"
SPARK_CATALOG: Final = "org.apache.iceberg.spark.SparkCatalog"
S3_FILES: Final = "org.apache.iceberg.aws.s3.S3FileIO"

_numbers = itertools.count(1)


@dataclass
class Place:
    """`catalog`: of the sink. `engine`: the name and the settings of the same catalog in Spark. `chains`: below
    which the sinks of this place keep chains, where a table that does not exist has no known location."""

    name: str
    catalog: Mapping[str, str]
    engine_settings: Mapping[str, str]
    folder: Path
    s3: S3Options = field(default_factory=S3Options)
    chains: str | None = None
    rest: GuardedRest | None = None
    files: GuardedS3 | None = None
    made_by_engine: str = ""
    """What Spark says in `TBLPROPERTIES` of each table beside what a cell does."""

    def new_table(self) -> str:
        return f"lake.t{next(_numbers)}"

    def in_engine(self, table: str) -> str:
        return f"{self.name}.{table}"

    def chains_of(self, table: str) -> str | None:
        return None if self.chains is None else f"{self.chains}/{table}"

    def configure(self, engine: Engine) -> None:
        prefix = f"spark.sql.catalog.{self.name}"
        named = {f"{prefix}.{name}": value for name, value in self.engine_settings.items()}
        # Another process commits to the tables: nothing is kept of what was read of them.
        engine.configure({prefix: SPARK_CATALOG, f"{prefix}.cache-enabled": "false", **named})
        engine.sql(f"CREATE NAMESPACE IF NOT EXISTS {self.name}.lake")


def own_s3(uri: str) -> S3Options:
    return S3Options(REGION, uri, access_key=OWN_KEY, secret_key=OWN_SECRET)


def make_bucket(uri: str, name: str) -> None:
    requests = client("s3", region=REGION, endpoint_url=uri, access_key=OWN_KEY, secret_key=OWN_SECRET)
    requests.create_bucket(Bucket=name)


def engine_s3(uri: str, key: str = OWN_KEY, secret: str = OWN_SECRET) -> dict[str, str]:
    return {
        "io-impl": S3_FILES,
        "s3.endpoint": uri,
        "s3.path-style-access": "true",
        "s3.access-key-id": key,
        "s3.secret-access-key": secret,
        "client.region": REGION,
    }


@contextmanager
def sql(folder: Path, _: str) -> Iterator[Place]:
    """A SQL catalog in SQLite, and files in a directory."""
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    settings = {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
        "jdbc.schema-version": "V0",
    }
    yield Place("sql", catalog, settings, folder)


@contextmanager
def hive(folder: Path, _: str) -> Iterator[Place]:
    """The metastore of Hive 2.3, and files in a directory."""
    with hive_server(folder) as uri:
        catalog = {"type": "hive", "uri": uri, "warehouse": f"file://{folder}/warehouse"}
        settings = {"type": "hive", "uri": uri, "warehouse": f"file://{folder}/warehouse"}
        yield Place("hive", {**catalog, "hive.hive2-compatible": "true"}, settings, folder)


@contextmanager
def glue(folder: Path, s3: str) -> Iterator[Place]:
    """moto's Glue, and files in the embedded S3."""
    make_bucket(s3, "glue-lake")
    with glue_server() as uri:
        catalog = {"type": "glue", "glue.endpoint": uri, "warehouse": "s3://glue-lake/warehouse"}
        settings = {
            "type": "glue",
            "glue.endpoint": uri,
            "warehouse": "s3://glue-lake/warehouse",
            **engine_s3(s3),
        }
        yield Place("glue", catalog, settings, folder, own_s3(s3))


@contextmanager
def rest(folder: Path, _: str) -> Iterator[Place]:
    """Apache's REST catalog, and files in a directory."""
    warehouse = f"file://{folder}/warehouse"
    with rest_server(folder, {"warehouse": warehouse}) as uri:
        chains = str(folder / "chains")
        yield Place("rest", {"type": "rest", "uri": uri}, {"type": "rest", "uri": uri}, folder, chains=chains)


@contextmanager
def vended(folder: Path, s3: str) -> Iterator[Place]:
    """Apache's REST catalog, which hands out the only key that S3 accepts for the bucket of the tables."""
    for bucket in ("vended-lake", "vended-chains"):
        make_bucket(s3, bucket)
    with guarded_s3(s3) as files:
        files.keys |= {"vended-lake": VENDED_KEY, "vended-chains": OWN_KEY}
        files.tokens[VENDED_KEY] = VENDED_TOKEN
        properties = {
            "warehouse": "s3://vended-lake/warehouse",
            "include-credentials": "true",
            **engine_s3(files.uri, VENDED_KEY, VENDED_SECRET),
            "s3.session-token": VENDED_TOKEN,
        }
        with rest_server(folder, properties) as uri:
            settings = {
                "type": "rest",
                "uri": uri,
                "header.X-Iceberg-Access-Delegation": "vended-credentials",
                "io-impl": S3_FILES,
                "s3.endpoint": files.uri,
                "s3.path-style-access": "true",
                "client.region": REGION,
            }
            own, chains = own_s3(files.uri), "s3://vended-chains/chains"
            catalog = {"type": "rest", "uri": uri}
            yield Place("vended", catalog, settings, folder, own, chains, files=files)


def _signed(uri: str, service: str, files: GuardedS3, warehouse: str = "") -> tuple[dict[str, str], dict[str, str]]:
    """A catalog whose requests are signed: as the sink and as the other engine know it."""
    catalog = {
        "type": "rest",
        "uri": uri,
        "rest.sigv4-enabled": "true",
        "rest.signing-name": service,
        "rest.signing-region": REGION,
        **({"warehouse": warehouse} if warehouse else {}),
    }
    settings = {
        **catalog,
        "rest.auth.type": "sigv4",
        "rest.access-key-id": OWN_KEY,
        "rest.secret-access-key": OWN_SECRET,
        **engine_s3(files.uri),
    }
    return catalog, settings


@contextmanager
def s3_tables(folder: Path, s3: str) -> Iterator[Place]:
    """Apache's REST catalog behind signatures, with the restrictions of S3 Tables on requests to both."""
    bucket = "a1b2c3d4--table-s3"
    for name in (bucket, "tables-chains"):
        make_bucket(s3, name)
    with guarded_s3(s3) as files:
        files.tables.add(bucket)
        properties = {"warehouse": f"s3://{bucket}", **engine_s3(files.uri)}
        credentials = Credentials(OWN_KEY, OWN_SECRET)
        with (
            rest_server(folder, properties) as behind,
            guarded_rest(behind, "s3tables", credentials, as_s3_tables=True) as guarded,
        ):
            catalog, settings = _signed(guarded.uri, "s3tables", files)
            own, chains = own_s3(files.uri), "s3://tables-chains/chains"
            yield Place("s3tables", catalog, settings, folder, own, chains, guarded, files)


@contextmanager
def glue_rest(folder: Path, s3: str) -> Iterator[Place]:
    """Apache's REST catalog behind signatures for Glue, below the prefix of an account, and files in the embedded
    S3."""
    for name in ("gluerest-lake", "gluerest-chains"):
        make_bucket(s3, name)
    with guarded_s3(s3) as files:
        properties = {"warehouse": "s3://gluerest-lake/warehouse", **engine_s3(files.uri)}
        credentials = Credentials(OWN_KEY, OWN_SECRET)
        with (
            rest_server(folder, properties) as behind,
            guarded_rest(behind, "glue", credentials, account=ACCOUNT) as guarded,
        ):
            catalog, settings = _signed(f"{guarded.uri}/iceberg", "glue", files, ACCOUNT)
            own, chains = own_s3(files.uri), "s3://gluerest-chains/chains"
            yield Place("gluerest", catalog, settings, folder, own, chains, guarded, files)


@dataclass
class DeltaPlace:
    """Where Delta tables are."""

    name: str
    root: str
    s3: S3Options | None = None

    def new_table(self) -> str:
        return f"{self.root}/t{next(_numbers)}"

    def in_engine(self, path: str) -> str:
        return f"delta.`{path.replace('s3://', 's3a://')}`"

    def configure(self, engine: Engine) -> None:
        if self.s3 is None:
            return
        named = {
            "endpoint": self.s3.endpoint_url,
            "endpoint.region": REGION,
            "path.style.access": "true",
            "connection.ssl.enabled": "false",
            "access.key": self.s3.access_key,
            "secret.key": self.s3.secret_key,
            "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        }
        engine.configure({f"fs.s3a.{name}": str(value) for name, value in named.items()})


@contextmanager
def delta_folder(folder: Path, _: str) -> Iterator[DeltaPlace]:
    """A directory."""
    yield DeltaPlace("folder", str(folder))


@contextmanager
def delta_s3(_: Path, s3: str) -> Iterator[DeltaPlace]:
    """The embedded S3, and S3A in Spark."""
    make_bucket(s3, "delta-lake")
    yield DeltaPlace("s3", "s3://delta-lake/tables", own_s3(s3))


@dataclass
class SparkPlace:
    """Delta tables by name in the session catalog of the worker's Spark. `folder`: of tables and chains."""

    name: str
    folder: Path
    writer: SparkWriter
    _made: dict[str, str] = field(default_factory=dict)

    def new_table(self) -> str:
        return f"spark_catalog.default.t{next(_numbers)}"

    def location(self, table: str) -> str:
        """Where tables are that are made by `statement`, or were `made` elsewhere."""
        return self._made.get(table, str(self.folder / "tables" / table))

    def made(self, table: str, location: str) -> None:
        self._made[table] = location.removeprefix("file:")

    def statement(self, table: str, columns: str, rest: str) -> str:
        """Makes a table, or gives an existing one its name again."""
        location = self.location(table)
        if Path(location).exists():
            return f"CREATE TABLE {table} USING delta LOCATION '{location}'"
        return f"CREATE TABLE {table} ({columns}) USING delta LOCATION '{location}' {rest}"

    def chains_of(self, table: str) -> str:
        return str(self.folder / "chains" / table)

    def configure(self, engine: Engine) -> None:
        """Nothing: the engine reads the tables by their paths."""


@contextmanager
def delta_by_spark(folder: Path, _: str) -> Iterator[SparkPlace]:
    """The session catalog, in memory, and a directory."""
    with spark_writer(folder) as writer:
        yield SparkPlace("spark", folder, writer)
