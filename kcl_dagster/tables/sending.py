"""Sends requests to DynamoDB. Reads are repeated until they succeed, conditional writes until their outcome is
known."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kcl_dagster import aws
from kcl_dagster.errors import EndpointUnreachable, OutcomeUnknown, ServiceError, TableNotFound, Throttled
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.attributes import Item
from kcl_dagster.tables.expressions import Request
from kcl_dagster.tables.outcomes import WriteVerdict

# A third of the default lease duration; a request that takes longer counts as failed
DEADLINE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Applied:
    """The write was applied. `item`: the row after the write; None if the response does not contain it and it was
    not read."""

    item: Item | None


@dataclass(frozen=True, slots=True)
class Refused:
    """The write was not applied because its condition does not hold. `item`: the row; None if there is no row."""

    item: Item | None


class Sender:
    """Sends the requests of a class such as `LeaseTable`. Each request, with its retries, takes at most about
    `seconds`. Has no state, so any thread can use it."""

    def __init__(self, client: aws.Client, runtime: Runtime, seconds: float = DEADLINE_SECONDS) -> None:
        self._client = client
        self._runtime = runtime
        self._seconds = seconds

    def read(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a read, or another request that can be repeated, and return the response. Raises TableNotFound and
        ServiceError."""
        return self._read(method, parameters, self.deadline())

    def get(self, table: str, key: Item, *, consistent: bool = True) -> Item | None:
        return self._get(table, key, self.deadline(), consistent=consistent)

    def write(
        self, request: Request, judge: Callable[[Item | None], WriteVerdict], deadline: float | None = None
    ) -> Applied | Refused:
        """Send a conditional write. If the response is lost, the row is read, and `judge` decides whether the write
        was applied.

        Raises OutcomeUnknown if this cannot be decided before the deadline. Raises Throttled or EndpointUnreachable
        if the write was certainly not carried out.
        """
        deadline = self.deadline() if deadline is None else deadline
        in_doubt: aws.Unanswered | None = None
        for pause in aws.pauses(self._runtime):
            problem: ServiceError
            try:
                answer = self._call(request.operation, request.parameters, request.table)
            except aws.ConditionFailed as refusal:
                item = refusal.item
                if item is None:  # there is no such row, or the endpoint does not return it
                    item = self._read_back(request, deadline, in_doubt)
                applied = in_doubt is not None and judge(item) is WriteVerdict.APPLIED
                return Applied(item) if applied else Refused(item)
            except aws.Unanswered as lost:
                in_doubt = problem = lost
                item = self._read_back(request, deadline, in_doubt)
                verdict = judge(item)
                if verdict is not WriteVerdict.STANDING:
                    return Applied(item) if verdict is WriteVerdict.APPLIED else Refused(item)
            except (Throttled, EndpointUnreachable) as not_sent:
                problem = not_sent
            except (ServiceError, TableNotFound) as error:
                if in_doubt is None:
                    raise
                raise OutcomeUnknown(f"{in_doubt}; trying again failed too: {error}") from error
            else:
                return Applied(answer.get("Attributes"))
            if self._runtime.clock.monotonic() + pause > deadline:
                if in_doubt is None:
                    raise problem
                raise OutcomeUnknown(f"{in_doubt}; it was not applied yet when last read") from in_doubt
            self._runtime.clock.sleep(pause)
        raise AssertionError("pauses never end")  # pragma: no cover

    def overwrite(self, request: Request) -> Item | None:
        """Send a write repeatedly until it is answered. The write must be one that can be applied twice. Returns
        the attributes in the response. Raises as `read` does, and ConditionFailed."""
        answer = self._read(request.operation, request.parameters, self.deadline())
        attributes: Item | None = answer.get("Attributes")
        return attributes

    def deadline(self) -> float:
        """Return the monotonic time by which a request that begins now has to end."""
        return self._runtime.clock.monotonic() + self._seconds

    def _call(self, method: str, parameters: dict[str, Any], table: str | None = None) -> dict[str, Any]:
        try:
            return aws.call(self._client, method, **parameters)
        except aws.ResourceMissing as error:
            raise TableNotFound(
                f"table {table or parameters.get('TableName')} does not exist where this application looks for it: "
                f"check the application's name, the region and the account, or let kcl_dagster create it. {error}"
            ) from error

    def _read(self, method: str, parameters: dict[str, Any], deadline: float) -> dict[str, Any]:
        return aws.retried(lambda: self._call(method, parameters), self._runtime, deadline)

    def _get(self, table: str, key: Item, deadline: float, *, consistent: bool = True) -> Item | None:
        parameters = {"TableName": table, "Key": key, "ConsistentRead": consistent}
        item: Item | None = self._read("get_item", parameters, deadline).get("Item")
        return item or None

    def _read_back(self, request: Request, deadline: float, in_doubt: aws.Unanswered | None) -> Item | None:
        try:
            return self._get(request.table, request.key, deadline)
        except (ServiceError, TableNotFound) as error:
            if in_doubt is None:
                raise
            raise OutcomeUnknown(f"{in_doubt}; reading back failed too: {error}") from error
