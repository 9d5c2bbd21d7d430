"""Where a referee is known to differ from AWS, and why that does not count against ours.

Each entry names tests that the referee must fail: when a newer referee passes, the entry is to be removed.
A test with parameters is named with those that fail, or without any if all do.
"""

from __future__ import annotations

KINESIS_LOCAL = "kinesis-local"
MINISTACK = "ministack"

_NO_INITIAL_RESPONSE = "its event streams lack the initial-response frame, so botocore refuses them"
_RECORD_LIMITS = "it does not enforce the sizes and counts of puts"
_HASH_KEYS = "it does not check hash keys"
_POSITIONS = "it takes positions that AWS refuses with InvalidArgumentException"

_KINESIS_LOCAL = {
    "test_a_closed_shard_is_neither_split_nor_merged": "it answers ResourceInUseException",
    "test_a_closed_shard_is_pushed_to_its_end": _NO_INITIAL_RESPONSE,
    "test_a_page_of_more_than_ten_thousand_shards_cannot_be_asked_for": "it accepts any MaxResults",
    "test_a_put_that_is_refused_stores_nothing": _RECORD_LIMITS,
    "test_a_reader_is_behind_by_the_age_of_what_it_has_not_read": "it measures to the newest record, not to now",
    "test_a_record_counts_its_key_and_fits_up_to_one_mebibyte": _RECORD_LIMITS,
    "test_a_sequence_number_of_another_shard_is_refused": _POSITIONS,
    "test_a_sequence_number_that_is_none_is_refused": _POSITIONS,
    "test_a_split_needs_a_key_inside_the_shard": _HASH_KEYS,
    "test_a_stream_created_again_has_a_new_birth_and_nothing_of_the_old_one": "old iterators read the new stream",
    "test_a_stream_with_consumers_is_deleted_only_by_force": "the refused attempt already loses the stream",
    "test_an_explicit_hash_key_that_is_none_is_refused[kinesis-local-abc]": "status 500",
    "test_an_iterator_in_the_future_is_refused": _POSITIONS,
    "test_an_iterator_that_nobody_issued_is_refused": "status 500",
    "test_at_trim_horizon_lists_the_shards_that_were_open_at_the_beginning": "it lists every shard",
    "test_children_start_above_everything_in_their_parents": "ending sequence numbers are 2^63-1 throughout",
    "test_consumers_are_listed_in_pages": "it ignores MaxResults",
    "test_consumers_do_not_take_records_from_each_other": _NO_INITIAL_RESPONSE,
    "test_five_hundred_records_fit_into_one_put": _RECORD_LIMITS,
    "test_larger_records_fit_once_the_stream_admits_them": _RECORD_LIMITS,
    "test_on_demand_streams_are_not_resharded_by_hand": "it reshards them",
    "test_reading_goes_on_after_the_continuation_of_an_event": _NO_INITIAL_RESPONSE,
    "test_records_are_pushed_from_the_position_that_was_asked_for": _NO_INITIAL_RESPONSE,
    "test_scaling_is_uniform_even_when_no_doubling_leads_there": "2 to 3 gives a half and two quarters",
    "test_scaling_reaches_the_count_and_covers_all_keys[kinesis-local-targets3]": "2 to 1 leaves two shards",
    "test_the_end_of_a_shard_names_its_children_and_ends_the_subscription": _NO_INITIAL_RESPONSE,
}

_MINISTACK: dict[str, str] = {}

DEVIATIONS: dict[tuple[str, str], str] = {
    **{(KINESIS_LOCAL, test): reason for test, reason in _KINESIS_LOCAL.items()},
    **{(MINISTACK, test): reason for test, reason in _MINISTACK.items()},
}

# Whether the referee passes is a matter of who is faster: it loses the stream some time after it has refused.
UNSTEADY: frozenset[tuple[str, str]] = frozenset(
    {(KINESIS_LOCAL, "test_a_stream_with_consumers_is_deleted_only_by_force")}
)
