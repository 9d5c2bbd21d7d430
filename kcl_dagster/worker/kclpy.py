"""A replacement for the `amazon_kclpy` package. With it, processors can import `amazon_kclpy` although that package
is not installed.

The original package downloads a hundred Java archives that are not needed here. If the original is installed, it is
used unchanged. A refused checkpoint then raises the exception class of the original.
"""

import importlib.util
import sys
from types import ModuleType

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.worker import processor as ours

_PACKAGE = "amazon_kclpy"


class KCLProcess:
    """The class with which scripts for the Java KCL start a processor under `if __name__ == "__main__"`. Its `run`
    raises an error, because kcl_dagster starts processors itself."""

    def __init__(self, record_processor: object, *_: object, **__: object) -> None:
        self.processor = record_processor

    def run(self) -> None:
        raise ConfigurationError(
            "this processor was started as a process of the Java KCL: give its class to kcl_dagster instead"
        )


def install_stand_in() -> bool:
    """Make `import amazon_kclpy` work. Returns False if the original is installed. Can be called repeatedly."""
    if _is_installed():
        return False
    if _PACKAGE in sys.modules:
        return True
    _module("", __path__=[])
    _module(
        "kcl",
        CheckpointError=ours.CheckpointError,
        Checkpointer=ours.ProcessorCheckpointer,
        KCLProcess=KCLProcess,
    )
    _module("checkpoint_error", CheckpointError=ours.CheckpointError)
    _module(
        "messages",
        Record=ours.Record,
        InitializeInput=ours.InitializeInput,
        ProcessRecordsInput=ours.ProcessRecordsInput,
        LeaseLostInput=ours.LeaseLostInput,
        ShardEndedInput=ours.ShardEndedInput,
        ShutdownRequestedInput=ours.ShutdownRequestedInput,
    )
    _module("v3", __path__=[])
    _module("v3.processor", RecordProcessorBase=ours.RecordProcessorBase)
    return True


def checkpoint_error() -> type[Exception]:
    """The exception class that processors catch: amazon_kclpy's class if that package is installed, otherwise the
    class of this package."""
    if not _is_installed():
        return ours.CheckpointError
    from amazon_kclpy.kcl import CheckpointError  # type: ignore[import-not-found]

    theirs: type[Exception] = CheckpointError
    return theirs


def _is_installed() -> bool:
    """Whether the original is installed. Unlike the original, the replacement has no module specification."""
    if _PACKAGE in sys.modules:
        return sys.modules[_PACKAGE].__spec__ is not None
    return importlib.util.find_spec(_PACKAGE) is not None


def _module(name: str, **content: object) -> None:
    full = f"{_PACKAGE}.{name}" if name else _PACKAGE
    module = ModuleType(full, __doc__)
    vars(module).update(content)
    sys.modules[full] = module
    parent, _, child = full.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)  # an import does this, too
