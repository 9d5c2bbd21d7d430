"""Requests checked against AWS's own service models, as boto3 checks them."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from botocore import xform_name
from botocore.exceptions import ParamValidationError
from botocore.loaders import Loader
from botocore.model import OperationModel, ServiceModel, Shape
from botocore.validate import ParamValidator


def check_requests(client: object, service: str) -> None:
    """From now on every operation of `client` raises ParamValidationError for what boto3 would refuse to send."""
    for name, operation in operations(service).items():
        method = getattr(client, name, None)
        if method is not None and operation.input_shape is not None:
            setattr(client, name, _checked(method, operation.input_shape))


@lru_cache
def operations(service: str) -> Mapping[str, OperationModel]:
    """The operations of a service by boto3's method name."""
    model = ServiceModel(Loader().load_service_model(service, "service-2"), service)
    return {xform_name(name): model.operation_model(name) for name in model.operation_names}


def _checked(method: Callable[..., Any], shape: Shape) -> Callable[..., Any]:
    def call(**request: Any) -> Any:
        report = ParamValidator().validate(request, shape)
        if report.has_errors():
            raise ParamValidationError(report=report.generate_report())
        return method(**request)

    return call
