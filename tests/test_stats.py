"""When too many rows failed, and how that is said."""

from __future__ import annotations

import pytest

from gemma4cli.errors import JobError
from gemma4cli.stats import Stats


@pytest.mark.parametrize(
    ("limit", "said"), [(0.05, "10 of 100 rows failed, more than 5%, most"), (9, "10 rows failed, most")]
)
def test_a_limit_is_said_as_it_was_given(limit: float, said: str) -> None:
    stats = Stats(200, limit)
    stats.ok, stats.failed = 90, 10
    stats.reasons["decode", "truncated"] = 10
    with pytest.raises(JobError, match=said):
        stats.check_failures()
