"""From facts told to transfers: which are new, which follow from them, and what contradicts what was known.

Facts add up; a correction and its original meet in whichever order they come; totals and single ids converge. Nothing
here depends on the order of facts, but for what the first of two contradicting ones says (and then a finding opens).
Holds no SQL: ledger.py and payment_states.py do the writing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from payments import facts, ledger, postings
from payments.facts import FactKind, Told
from payments.findings import Found
from payments.ledger import Account, AccountKey, Corrected, Leg, Original, Posting
from payments.payment_states import payment_of
from payments.precedence import Ref, State

# Single ids of these kinds, and failures of them, are named; a total of theirs may also be told.
_NAMED: Final = {
    FactKind.PAYMENT_CAPTURED: "captured",
    FactKind.PAYMENT_REVERSED: "captured",
    FactKind.REFUND_SUCCEEDED: "refunded",
    FactKind.REFUND_FAILED: "refunded",
}
_CORRECTABLE: Final = frozenset(
    {
        FactKind.PAYMENT_CAPTURED,
        FactKind.REFUND_SUCCEEDED,
        FactKind.PAYOUT_PAID,
        FactKind.PAYOUT_COLLECTED,
    }
)
_NAMED_MIRROR: Final = {"captured": postings.CAPTURE_NAMED, "refunded": postings.REFUND_NAMED}
_TOTAL_OF: Final = {FactKind.PAYMENT_CAPTURED_TOTAL: "captured", FactKind.REFUNDED_TOTAL: "refunded"}


@dataclass(slots=True)
class Booking:
    """What became of a batch of facts.

    transfers     the new ones, with their ids
    known         positions in `told` of money facts and corrections that were known before
    sightings     (transfer id, claim id, source) of facts told again
    """

    told: Sequence[Told]
    transfers: list[Posting] = field(default_factory=list)
    known: set[int] = field(default_factory=set)
    sightings: list[tuple[int, int | None, str]] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)


def record_facts(told: Sequence[Told], states: Mapping[Ref, State]) -> Booking:
    """Insert the transfers of new facts and all that follows from them; take every fact into its payment's state."""
    booking = Booking(told)
    direct = _direct_postings(told, states)
    booking.transfers = ledger.record(list(direct.values()))
    history = _read_history(told, direct, states)
    for position, one in enumerate(told):
        state = _state(one, states)
        is_new = one.key is None or _take_in(position, one, state, history, booking)
        if state is not None:
            state.tell(one.fact, moves_money=is_new)
    booking.transfers += ledger.record_derived(history.derived)
    for posting in booking.transfers:
        if posting.state is not None:
            posting.state.change_total(
                _table_kind(posting),
                amount=posting.amount,
                currency=posting.currency,
                is_reversal=posting.reverses is not None,
            )
    return booking


@dataclass(slots=True)
class _History:
    """What is known of the batch's business keys; grows while the batch is taken in, fact by fact."""

    direct: dict[str, Posting]  # of this batch, waiting for their turn
    originals: dict[str, Original]
    corrections: dict[str, Corrected]
    new_corrections: set[str]
    derived: list[Posting] = field(default_factory=list)


def _direct_postings(told: Sequence[Told], states: Mapping[Ref, State]) -> dict[str, Posting]:
    direct: dict[str, Posting] = {}
    for one in told:
        if one.key is None or one.fact.kind in facts.CORRECTIONS or one.fact.kind in facts.TOTALS:
            continue
        if one.fact.kind is FactKind.DISPUTE_LOST:
            withdrawal = facts.implied_withdrawal(one)
            direct.setdefault(_key(withdrawal), _posting(withdrawal, states))
        direct.setdefault(one.key, _posting(one, states))
    return direct


def _read_history(told: Sequence[Told], direct: dict[str, Posting], states: Mapping[Ref, State]) -> _History:
    corrections = {_key(one): one for one in reversed(told) if one.fact.kind in facts.CORRECTIONS}
    new_corrections = ledger.correct(
        corrections, {key: state.id if (state := _state(one, states)) else None for key, one in corrections.items()}
    )
    correctable = {key for key, posting in direct.items() if posting.id and _may_be_corrected(posting)}
    known_corrections = ledger.corrections((correctable | corrections.keys()) - new_corrections)
    known = {key for key, posting in direct.items() if posting.id is None} | corrections.keys() - _new_keys(direct)
    totals = {_key(one) for one in told if one.fact.kind in facts.TOTALS and not _is_new(one, states)}
    return _History(direct, ledger.originals(known | totals), known_corrections, new_corrections)


def _may_be_corrected(posting: Posting) -> bool:
    # A payment first heard of in this batch had no capture to correct; what corrects a refund may name another payment.
    is_first_capture = posting.kind == FactKind.PAYMENT_CAPTURED and posting.state is not None and posting.state.is_new
    return posting.kind in _CORRECTABLE and not is_first_capture


def _new_keys(direct: Mapping[str, Posting]) -> set[str]:
    return {key for key, posting in direct.items() if posting.id is not None}


def _is_new(one: Told, states: Mapping[Ref, State]) -> bool:
    state = _state(one, states)
    return state is not None and state.is_new


def _take_in(position: int, one: Told, state: State | None, history: _History, booking: Booking) -> bool:
    """Take one money fact in; return whether it was new."""
    kind = one.fact.kind
    if kind in facts.TOTALS:
        is_new = _take_in_total(one, state, history)
    elif kind in facts.CORRECTIONS:
        is_new = _take_in_correction(one, state, history, booking)
    else:
        if kind is FactKind.DISPUTE_LOST:
            _take_in_direct(facts.implied_withdrawal(one), state, history, booking)
        is_new = _take_in_direct(one, state, history, booking)
    if not is_new:
        booking.known.add(position)
        if (original := history.originals.get(_key(one))) is not None:
            booking.sightings.append((original.id, one.claim_id, one.source))
    return is_new


def _take_in_direct(one: Told, state: State | None, history: _History, booking: Booking) -> bool:
    key = _key(one)
    if (original := history.originals.get(key)) is not None:
        _compare(one, original, state, booking)
        return False
    posting = history.direct[key]
    if posting.id is None:
        raise AssertionError(f"Bug: transfer {key} is neither new nor known")
    original = Original(
        posting.id, posting.kind, posting.amount, posting.currency, state.id if state else None, posting.account_hint
    )
    history.originals[key] = original
    correction = history.corrections.get(key)
    if correction is None:
        _name(one, state, history)
    else:
        _reverse(key, original, correction, posting, history, booking)
    return True


def _take_in_correction(one: Told, state: State | None, history: _History, booking: Booking) -> bool:
    key = _key(one)
    if key in history.corrections:
        _compare_correction(one, history.corrections[key], booking)
        return False
    if key not in history.new_corrections:
        raise AssertionError(f"Bug: correction of {key} is neither new nor known")
    correction = Corrected(*_money(one), state.id if state else None)
    history.corrections[key] = correction
    original = history.originals.get(key)
    if original is None:
        _name(one, state, history)
    else:
        _reverse(key, original, correction, _posting(one, {}, state=state), history, booking)
    return True


def _reverse(
    key: str, original: Original, correction: Corrected, like: Posting, history: _History, booking: Booking
) -> None:
    """Original and correction are both known now: book the reversal, if they speak of the same money."""
    if (original.amount, original.currency, original.payment_id) != (
        correction.amount,
        correction.currency,
        correction.payment_id,
    ):
        detail = {"original": _shown(original), "correction": _shown(correction)}
        booking.found.append(Found("correction_differs", key, detail, like.books_id))
        return
    history.derived.append(
        Posting(
            key=f"{key}:reversed",
            kind=postings.REVERSAL,
            books_id=like.books_id,
            books=like.books,
            amount=original.amount,
            currency=original.currency,
            occurred_at=like.occurred_at,
            source=like.source,
            claim_id=like.claim_id,
            state=like.state,
            reverses=original,
        )
    )


def _name(one: Told, state: State | None, history: _History) -> None:
    """The first sight of a single id: what a total told of it before is undone, since the single is booked in full."""
    what = _NAMED.get(one.fact.kind)
    if what is None or state is None:
        return
    amount, _ = _money(one)
    if taken := state.name(what, amount):
        mirror = _posting(one, {}, state=state)
        mirror.key, mirror.kind, mirror.amount = f"{_key(one)}:named", _NAMED_MIRROR[what], taken
        mirror.account_hint = None
        history.derived.append(mirror)


def _take_in_total(one: Told, state: State | None, history: _History) -> bool:
    if state is None:
        raise AssertionError("Bug: a total without a payment")
    amount, _ = _money(one)
    rise = state.tell_total(_TOTAL_OF[one.fact.kind], amount)
    if rise:
        posting = _posting(one, {}, state=state)
        posting.amount = rise
        history.derived.append(posting)
    return rise is not None


def _compare(one: Told, original: Original, state: State | None, booking: Booking) -> None:
    """The same business key again: another amount, currency, payment or payee is a finding, never money."""
    amount, currency = _money(one)
    said = {"amount": amount, "currency": currency, "payment_id": state.id if state else None}
    known: dict[str, object] = {
        "amount": original.amount,
        "currency": original.currency,
        "payment_id": original.payment_id,
    }
    if one.fact.account is not None and original.account_hint is not None:
        said["account"], known["account"] = one.fact.account, original.account_hint
    if said != known:
        booking.found.append(Found("fact_differs", _key(one), {"booked": known, "told": said}, one.books_id))


def _compare_correction(one: Told, known: Corrected, booking: Booking) -> None:
    amount, currency = _money(one)
    if (amount, currency) != (known.amount, known.currency):
        detail = {"known": _shown(known), "told": {"amount": amount, "currency": currency}}
        booking.found.append(Found("correction_differs", _key(one), detail, one.books_id))


# Payees and legs ------------------------------------------------------------------------------------------------------


def accounts_needed(states: Iterable[State], booked: Sequence[Posting]) -> set[AccountKey]:
    """Return the accounts that the payments' payees and the transfers' legs may need."""
    needed = {(state.payee, state.currency) for state in states if state.payee and state.currency}
    for posting in booked:
        roles = {*postings.TABLE[_table_kind(posting)], postings.Role.SUSPENSE} - {postings.Role.PAYEE}
        needed |= {(postings.own_code(role, posting.books), posting.currency) for role in roles}
        if posting.state is not None and posting.state.payee:
            needed.add((posting.state.payee, posting.currency))
    return needed


def settle_payees(states: Iterable[State], accounts: dict[AccountKey, Account], *, now: datetime) -> list[Posting]:
    """Note where each payment's money belongs now; return the transfers that move there what lies elsewhere.

    accounts is filled up with what else has to be looked up for it.
    """
    moving: dict[int, State] = {}
    for state in states:
        account = _payee_account(state, state.currency, accounts)
        home = None if account is None else account.id
        if state.had_money and (state.payee_changed or home != state.payee_account_id or state.other_currencies):
            moving[state.id] = state
        state.payee_account_id = home
    nets = ledger.payee_nets(moving.keys())
    accounts |= ledger.read_accounts({(moving[net[0]].payee or "", net[1][1]) for net in nets} - accounts.keys())
    moved: dict[str, Posting] = {}
    for payment_id, key, net in nets:
        state = moving[payment_id]
        home_key = (payee_code(state, key[1], accounts), key[1])
        if key != home_key:
            posting = moved.setdefault(_allocation_key(state, key[1]), _allocation(state, key[1], abs(net), now=now))
            posting.legs = [*(posting.legs or []), *_moving_legs(key, home_key, net)]
    taken = ledger.originals(moved.keys())
    for key_wanted, posting in moved.items():
        posting.key = key_wanted
        if key_wanted in taken and posting.state is not None:
            # Its rank has chosen before: the payment turned out to have another reference than what stood in for it.
            posting.key = f"{key_wanted}:{facts.escape(posting.state.merchant_reference or '')}"
    return list(moved.values())


def _allocation_key(state: State, currency: str) -> str:
    # A payee chosen moves everything at once, and each rank chooses once. A payee's account opened later moves what
    # waited for it, per currency; staff may have chosen several payees whose accounts are opened later.
    payment = f"{state.books}:{facts.escape(state.reference)}"
    if state.staff_action_id is not None:
        return f"{payment}:staff:{state.staff_action_id}"
    key = f"{payment}:allocated:{state.payee_rank}"
    return key if state.payee_changed else f"{key}:{currency}:{facts.escape(state.payee or '')}"


def _allocation(state: State, currency: str, amount: int, *, now: datetime) -> Posting:
    return Posting(
        key="",
        kind=postings.ALLOCATION,
        books_id=state.books_id,
        books=state.books,
        amount=amount,
        currency=currency,
        occurred_at=now,
        source="system" if state.staff_action_id is None else "staff",
        state=state,
        account_hint=state.payee,
    )


def _moving_legs(old: AccountKey, new: AccountKey, net: int) -> list[Leg]:
    # A negative net moves too: the new payee owes it.
    directions = ("debit", "credit") if net > 0 else ("credit", "debit")
    return [(old, directions[0], abs(net)), (new, directions[1], abs(net))]


def payee_code(state: State, currency: str, accounts: Mapping[AccountKey, Account]) -> str:
    """Return the payee's account code, or the suspense account's where the payee has no account in the currency."""
    if _payee_account(state, currency, accounts) is not None:
        return str(state.payee)
    return postings.own_code(postings.Role.SUSPENSE, state.books)


def _payee_account(state: State, currency: str | None, accounts: Mapping[AccountKey, Account]) -> Account | None:
    if state.payee is None or currency is None:
        return None
    account = accounts.get((state.payee, currency))
    return account if account is not None and account.can_be_payee else None


def set_legs(booked: Sequence[Posting], accounts: Mapping[AccountKey, Account]) -> None:
    """Give every new transfer its legs, a conversion four; the payee's goes to the payment's payee of now."""
    for posting in booked:
        if posting.legs is not None:
            continue
        debit, credit = postings.TABLE[_table_kind(posting)]
        if posting.reverses is not None:
            debit, credit = credit, debit
        posting.legs = [
            (_account(posting, debit, accounts), "debit", posting.amount),
            (_account(posting, credit, accounts), "credit", posting.amount),
        ]
        if posting.into is not None:
            posting.legs += _conversion_legs(posting, posting.into)


def _conversion_legs(posting: Posting, into: tuple[int, str]) -> list[Leg]:
    amount, currency = into
    receivable, fx = (postings.own_code(role, posting.books) for role in (postings.Role.RECEIVABLE, postings.Role.FX))
    return [((receivable, currency), "debit", amount), ((fx, currency), "credit", amount)]


def _table_kind(posting: Posting) -> str:
    return posting.reverses.kind if posting.reverses is not None else posting.kind


def _account(posting: Posting, role: postings.Role, accounts: Mapping[AccountKey, Account]) -> AccountKey:
    if role is not postings.Role.PAYEE:
        return postings.own_code(role, posting.books), posting.currency
    if posting.state is None:
        raise AssertionError(f"Bug: {posting.key} has a payee's leg and no payment")
    return payee_code(posting.state, posting.currency, accounts), posting.currency


def _posting(one: Told, states: Mapping[Ref, State], *, state: State | None = None) -> Posting:
    amount, currency = _money(one)
    return Posting(
        key=_key(one),
        kind=one.fact.kind,
        books_id=one.books_id,
        books=one.books,
        amount=amount,
        currency=currency,
        occurred_at=one.fact.occurred_at,
        source=one.source,
        claim_id=one.claim_id,
        state=state or _state(one, states),
        account_hint=one.fact.account,
        into=_into(one.fact),
    )


def _into(fact: facts.Fact) -> tuple[int, str] | None:
    return None if fact.into_minor is None or fact.into_currency is None else (fact.into_minor, fact.into_currency)


def _state(one: Told, states: Mapping[Ref, State]) -> State | None:
    ref = payment_of(one)
    return None if ref is None else states.get(ref)


def _key(one: Told) -> str:
    if one.key is None:
        raise AssertionError(f"Bug: {one.fact.kind} has no business key")
    return one.key


def _money(one: Told) -> tuple[int, str]:
    if one.fact.amount_minor is None or one.fact.currency is None:
        raise AssertionError(f"Bug: {one.fact.kind} names no money")
    return one.fact.amount_minor, one.fact.currency


def _shown(known: Original | Corrected) -> dict[str, object]:
    return {"amount": known.amount, "currency": known.currency, "payment_id": known.payment_id}
