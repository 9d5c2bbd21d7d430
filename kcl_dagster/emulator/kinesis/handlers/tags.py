"""Tags of streams and of consumers."""

from __future__ import annotations

from typing import Any

from kcl_dagster.emulator.kinesis import service_errors
from kcl_dagster.emulator.kinesis.account import Account, stream_name_of
from kcl_dagster.emulator.kinesis.handlers.consumer_requests import consumer_by_arn
from kcl_dagster.emulator.kinesis.parameters import Parameters
from kcl_dagster.emulator.kinesis.replies import Reply

TAGS_PER_RESOURCE = 50
TAGS_PER_PAGE = 50


def add_tags_to_stream(account: Account, request: Parameters) -> Reply:
    _add(account.named_stream(request).tags, request.tags("Tags"))
    return {}


def remove_tags_from_stream(account: Account, request: Parameters) -> Reply:
    _remove(account.named_stream(request).tags, request.texts("TagKeys"))
    return {}


def list_tags_for_stream(account: Account, request: Parameters) -> Reply:
    stream = account.named_stream(request)
    limit = request.integer("Limit", 1, TAGS_PER_PAGE, TAGS_PER_PAGE)
    after = request.optional_text("ExclusiveStartTagKey") or ""
    tags = [tag for tag in _describe(stream.tags) if tag["Key"] > after]
    return {"Tags": tags[:limit], "HasMoreTags": len(tags) > limit}


def tag_resource(account: Account, request: Parameters) -> Reply:
    _add(_tags_of(account, request), request.tags("Tags"))
    return {}


def untag_resource(account: Account, request: Parameters) -> Reply:
    _remove(_tags_of(account, request), request.texts("TagKeys"))
    return {}


def list_tags_for_resource(account: Account, request: Parameters) -> Reply:
    return {"Tags": _describe(_tags_of(account, request))}


def _tags_of(account: Account, request: Parameters) -> dict[str, str]:
    arn = request.text("ResourceARN")
    if "/consumer/" in arn:
        return consumer_by_arn(account, arn).tags
    return account.stream(stream_name_of(arn)).tags


def _add(tags: dict[str, str], new: dict[str, str]) -> None:
    if len(tags.keys() | new.keys()) > TAGS_PER_RESOURCE:
        raise service_errors.invalid_argument(
            f"Failed to add tags: a resource may have {TAGS_PER_RESOURCE} tags at most."
        )
    tags.update(new)


def _remove(tags: dict[str, str], keys: list[str]) -> None:
    for key in keys:
        tags.pop(key, None)


def _describe(tags: dict[str, str]) -> list[dict[str, Any]]:
    return [{"Key": key, "Value": tags[key]} for key in sorted(tags)]
