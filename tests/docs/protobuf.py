"""The descriptor set that a page has `protoc` make of a message of two strings."""

from google.protobuf import descriptor_pb2  # type: ignore[import-untyped]


def _click() -> bytes:
    file = descriptor_pb2.FileDescriptorProto(name="click.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Click")
    for number, name in enumerate(("user", "page"), start=1):
        message.field.add(name=name, number=number, type="TYPE_STRING", label="LABEL_OPTIONAL")
    return bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())


CLICK_DESCRIPTOR = _click()
