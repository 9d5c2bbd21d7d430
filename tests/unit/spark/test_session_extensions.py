"""Which extensions of Spark's sessions are in jars."""

from pathlib import Path
from zipfile import ZipFile

import pytest

from kcl_dagster.spark.session_extensions import OF_SPARK, PROVIDERS, extensions_of


def jar(path: Path, text: str) -> str:
    """The URL of the file of extensions in a new jar."""
    with ZipFile(path, "w") as archive:
        archive.writestr(PROVIDERS, text)
    return f"jar:{path.as_uri().replace('file://', 'file:')}!/{PROVIDERS}"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (f"# a licence\n\n{OF_SPARK}\n", [OF_SPARK]),
        (f"{OF_SPARK}  # Spark's own\r\n  com.example.Rights", [OF_SPARK, "com.example.Rights"]),
        ("", []),
    ],
)
def test_a_jar_names_extensions_line_by_line(tmp_path: Path, text: str, names: list[str]) -> None:
    assert list(extensions_of(jar(tmp_path / "with spaces and ü.jar", text))) == names


@pytest.mark.parametrize("url", [f"file:/classes/{PROVIDERS}", f"jar:https://jars.example.com/a.jar!/{PROVIDERS}"])
def test_extensions_elsewhere_are_unknown(url: str) -> None:
    with pytest.raises(OSError, match="not in a jar"):
        list(extensions_of(url))
