"""Any order, any duplication, any batches, any source: one end, and it is what the rules of money say."""

import itertools

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests import books, money_model
from tests.steps import OnStatement, Said, Step, play

pytestmark = pytest.mark.django_db


@settings(
    max_examples=40,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),  # explaining is slow with a database
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data(), steps=money_model.histories())
def test_any_order_ends_in_what_the_rules_say(small_demo: None, data: st.DataObject, steps: list[Step]) -> None:
    """Shuffled, repeated and batched at will: the same rows, balances, findings and transfers, and the model's."""
    expected = money_model.Model(steps).books
    repeated: list[Step] = data.draw(st.lists(st.sampled_from(steps), max_size=5)) if steps else []
    repeated += [OnStatement(one) for one in repeated if isinstance(one, Said) and data.draw(st.booleans())]
    order = data.draw(st.permutations([*steps, *repeated]))
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    for steps_in_order in (order, order[::-1]):
        with books.undone():
            play(steps_in_order, itertools.cycle(sizes))
            assert books.read() == expected
