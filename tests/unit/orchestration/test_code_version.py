"""The version of a consumer's code changes with what its workers execute, and with nothing else."""

import importlib
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import kcl_dagster.orchestration.code_version as versions
from kcl_dagster.application import Application, FleetSettings, Position, StartAt, StreamSettings
from kcl_dagster.orchestration.code_version import code_version, project_files

APPLICATION = Application(name="versioned", streams="orders")
FILES = {
    "shop/__init__.py": "",
    "shop/consumers.py": "from shop import cleaning\nfrom .rules import LIMIT\norders = lambda records: records\n",
    "shop/cleaning.py": "import shop.words.english\n",
    "shop/rules.py": "LIMIT = 1\n",
    "shop/words/__init__.py": "",
    "shop/words/english.py": "",
    "shop/reports.py": "",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "shop"]:
        del sys.modules[name]


def version_of(root: Path, application: Application = APPLICATION) -> str:
    return code_version(importlib.import_module("shop.consumers").orders, application)


@pytest.mark.audit("F4")
@pytest.mark.parametrize("changed", sorted(set(FILES) - {"shop/reports.py"}))
def test_a_change_of_what_the_transform_imports_is_another_version(root: Path, changed: str) -> None:
    before = version_of(root)
    (root / changed).write_text(FILES[changed] + "# mended\n")
    assert version_of(root) != before


@pytest.mark.audit("F4")
def test_what_the_transform_does_not_import_does_not_count(root: Path) -> None:
    before = version_of(root)
    (root / "shop/reports.py").write_text("import os\n")
    (root / "shop/__pycache__").mkdir(exist_ok=True)
    assert version_of(root) == before


@pytest.mark.audit("F4")
def test_settings_count_and_where_a_new_application_begins_does_not(root: Path) -> None:
    """`datetime.now()` as a start would be other code at every load."""

    def started(hour: int) -> Application:
        start = StartAt(position=Position.AT_TIMESTAMP, timestamp=datetime(2026, 1, 1, hour, tzinfo=UTC))
        return Application(name="versioned", streams=(StreamSettings(name="orders", start=start),))

    larger = Application(name="versioned", streams="orders", fleet=FleetSettings(max_workers=3))
    assert version_of(root, larger) != version_of(root)
    assert version_of(root, started(1)) == version_of(root, started(2))


@pytest.mark.audit("F4")
def test_where_the_project_lies_does_not_count(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("another")
    for name, content in FILES.items():
        (elsewhere / name).parent.mkdir(exist_ok=True)
        (elsewhere / name).write_text(content)
    here = project_files(root / "shop/consumers.py", "shop.consumers")
    assert project_files(elsewhere / "shop/consumers.py", "shop.consumers") == here
    assert set(here) == set(FILES) - {"shop/reports.py"}


@pytest.mark.audit("F4")
def test_a_module_that_stands_alone_counts_with_its_neighbours(tmp_path: Path) -> None:
    """As `dagster dev -f definitions.py` loads it."""
    (tmp_path / "definitions.py").write_text("import transforms\nimport numpy\n")
    (tmp_path / "transforms.py").write_text("import definitions\n")
    assert set(project_files(tmp_path / "definitions.py", "definitions")) == {"definitions.py", "transforms.py"}


@pytest.mark.audit("F4")
@pytest.mark.parametrize("content", [b"def broken(", b"\xff\xfe", b"\0"])
def test_a_module_that_cannot_be_parsed_counts_as_it_is(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "definitions.py").write_bytes(content)
    assert project_files(tmp_path / "definitions.py", "definitions") == {"definitions.py": content}


@pytest.mark.audit("F4")
def test_a_transform_without_source_has_a_version() -> None:
    assert code_version(len, APPLICATION) == code_version(len, APPLICATION) != code_version(abs, APPLICATION)


@pytest.mark.audit("F4")
@pytest.mark.parametrize(
    "importing",
    [
        "if True:\n    import found\n",
        "if False:\n    pass\nelse:\n    import found\n",
        "try:\n    pass\nexcept ValueError:\n    import found\n",
        "try:\n    pass\nfinally:\n    from found import x\n",
        "for x in ():\n    pass\nelse:\n    import found\n",
        "match 1:\n    case _:\n        import found\n",
        "class A:\n    def f(self):\n        with self:\n            import found\n",
        "async def f():\n    while True:\n        import found\n",
    ],
)
def test_an_import_counts_wherever_it_is(tmp_path: Path, importing: str) -> None:
    (tmp_path / "definitions.py").write_text(importing)
    (tmp_path / "found.py").write_text("")
    assert set(project_files(tmp_path / "definitions.py", "definitions")) == {"definitions.py", "found.py"}


@pytest.mark.audit("F4")
def test_where_this_package_is_part_of_the_project_all_of_it_counts_and_none_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "kcl_dagster"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "leases.py").write_text("def broken(")
    (tmp_path / "definitions.py").write_text("import kcl_dagster\nimport rules\n")
    (tmp_path / "rules.py").write_text("")
    monkeypatch.setattr(versions, "PACKAGE", package)
    parsed: list[Path] = []
    imports = versions._imports

    def noted(content: bytes, path: Path, root: Path) -> Iterator[Path]:
        parsed.append(path)
        return imports(content, path, root)

    monkeypatch.setattr(versions, "_imports", noted)
    found = project_files(tmp_path / "definitions.py", "definitions")
    assert set(found) == {"definitions.py", "rules.py", "kcl_dagster/__init__.py", "kcl_dagster/leases.py"}
    assert {path.name for path in parsed} == {"definitions.py", "rules.py"}
