"""Any order at the same time: generated histories told by several threads at once end in what the rules say."""

import itertools
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

import pytest
from django.core.management import call_command
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from payments import conf, demo, models
from tests import books, money_model
from tests.races import at_once
from tests.steps import OnStatement, Said, Step, play

pytestmark = [pytest.mark.concurrency, pytest.mark.django_db(transaction=True)]

THREADS = 3


@settings(
    max_examples=10,
    derandomize=True,  # the interleaving is chance enough
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
@given(steps=money_model.histories(), seed=st.integers(0, 1_000_000))
def test_any_race_ends_in_what_the_rules_say(small_demo: None, steps: list[Step], seed: int) -> None:
    """Three threads tell a history's facts, some twice and from two sources; they register and open meanwhile."""
    begin_anew()
    dice = random.Random(seed)
    again = dice.sample(steps, len(steps) // 2)
    told = [*steps, *again, *(OnStatement(one) for one in again if isinstance(one, Said))]
    dice.shuffle(told)
    shares: list[Sequence[Step]] = [told[n::THREADS] for n in range(THREADS)]
    sizes = [dice.randint(1, 5) for _ in range(7)]

    at_once([partial(play, share, itertools.cycle(sizes)) for share in shares])

    assert books.read() == money_model.Model(steps).books


def begin_anew() -> None:
    """Leave of the last history nothing."""
    call_command("flush", verbosity=0, interactive=False)
    demo.seed()
    models.Verification.objects.create(is_full=True, horizon=0, checked={}, broken=[], started_at=datetime.now(UTC))
    conf.read_copy()
