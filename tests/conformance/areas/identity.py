"""Names: streams, and what sequence numbers tell of their shard."""

from kcl_dagster.model.stream import StreamIdentifier
from tests.conformance.agreement import Observed
from tests.conformance.case import Given, NotUnderstood
from tests.conformance.registry import area
from tests.conformance.rules.sequence import SequenceOrigin, belongs_to
from tests.conformance.rules.stream_arn import StreamArn


@area("stream_id")
def stream_id(given: Given) -> Observed:
    if "arns" in given:
        epoch = given.number_or_none("epoch")
        return _all_refused([(StreamArn.parse, text, epoch) for text in given.texts("arns")])
    if "epochs" in given:
        arn = given.text("arn", default="arn:aws:kinesis:us-east-1:123456789012:stream/name")
        return _all_refused([(StreamArn.parse, arn, epoch) for epoch in given.sequence("epochs")])
    if "texts" in given:
        return _all_refused([(StreamIdentifier.parse, text, None) for text in given.texts("texts")])
    if given.has("arn"):
        arn_epoch = given.number_or_none("epoch")
        parsed = StreamArn.parse(given.text("arn"))
        return {
            **_described(parsed.identifier(None if arn_epoch is None else int(arn_epoch))),
            "account": parsed.account,
            "region": parsed.region,
        }
    if given.has("text") or given.has("serialized"):
        return _described(StreamIdentifier.parse(given.text("text", "serialized")))
    name = given.text("name", "stream_name", "stream")
    if given.has("account") or given.has("account_id"):
        return _described(
            StreamIdentifier.parse(f"{given.text('account', 'account_id')}:{name}:{given.integer('epoch')}")
        )
    return _described(StreamIdentifier.single(name))


def _described(stream: StreamIdentifier) -> dict[str, object]:
    return {
        "serialized": str(stream),
        "text": str(stream),
        "name": stream.name,
        "stream_name": stream.name,
        "stream": stream.name,
        "account": stream.account,
        "account_id": stream.account,
        "accountId": stream.account,
        "streamName": stream.name,
        "streamCreationEpoch": stream.creation_epoch,
        "creation_epoch": stream.creation_epoch,
        "epoch": stream.creation_epoch,
        "multi_stream": stream.is_multi,
    }


def _all_refused(attempts: list[tuple[object, object, object]]) -> Observed:
    """Every one of them has to fail: one that does not is the answer."""
    for parse, text, epoch in attempts:
        assert callable(parse)
        try:
            made = parse(text)
            if isinstance(made, StreamArn):
                made = made.identifier(None if epoch is None else int(str(epoch)))
        except ValueError as refused:
            last: ValueError = refused
        else:
            return {**_described(made), "error": None}
    if not attempts:
        raise NotUnderstood("an empty list of texts")
    raise last


@area("sequence_validator")
def sequence_validator(given: Given) -> Observed:
    sequence = str(given.first("sequence", "sequence_number"))
    origin = SequenceOrigin.of(sequence)
    observed: dict[str, object] = {
        "version": None if origin is None else origin.version,
        "shard": None if origin is None else origin.shard_id,
    }
    if given.has("shard"):
        observed["valid"] = belongs_to(sequence, given.text("shard"))
    return observed
