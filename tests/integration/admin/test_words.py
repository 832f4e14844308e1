"""Every word that staff read is there in both languages."""

import ast
import gettext
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import translation
from django.utils.translation.template import templatize

from payments import approvals, handlers, outbox, postings, registrations
from payments.admin import codes, finding_page, words
from payments.facts import FactKind
from payments.models import Attempt, Event, Finding, Payment, ReconciliationLine, StaffAction
from payments.models.ledger import Source
from payments.reconciliation.summary import REASONS
from tests import staff

Deliver = Callable[..., Any]

CHECKOUT: Final = Path(__file__).resolve().parents[3]
CATALOG: Final = CHECKOUT / "payments/locale/id/LC_MESSAGES"
CALLS: Final = frozenset({"_", "_now", "gettext", "gettext_lazy"})
# The same in both: names of things, and terms that Indonesian took over.
SAME: Final = {
    *("ID", "Event", "event", "events", "endpoint", "endpoints", "transfer", "transfers", "Transfer", "Transfers"),
    *("Debit", "debit", "gateway", "format", "mode", "slug", "status", "Status", "Webhook", "webhook"),
}


def _of_python(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in CALLS:
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value


def _of_template(path: Path) -> Iterator[str]:
    calls = templatize(path.read_text(), origin=str(path))
    for literal in re.findall(r"""gettext\(u?("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""", calls):
        yield ast.literal_eval(literal)


def _said() -> dict[str, str]:
    """Return every text that is to be translated, and where it stands."""
    sources = [*(CHECKOUT / "payments/admin").rglob("*.py"), *(CHECKOUT / "project").glob("*.py")]
    templates = (CHECKOUT / "templates").rglob("*.html")
    said = {text: path.name for path in sources for text in _of_python(path)}
    said |= {text: path.name for path in templates for text in _of_template(path)}
    return said | dict.fromkeys(words.all_of("payments"), "models") | dict.fromkeys(_stored(), "stored")


def _stored() -> set[str]:
    """Return every code that is stored and shown: statuses, kinds of facts and transfers, findings, acts, sources."""
    status: Any = Payment._meta.get_field("status")
    cases = [case.result.value for case in status.expression.cases] + [status.expression.default.value]
    transfers = {*postings.TABLE, postings.REVERSAL, postings.ALLOCATION, postings.ADJUSTMENT}
    kinds = {*finding_page.MEANINGS, *_literals("Found", "Broken")}
    acts = _literals("record", "record_each", "_record")
    closed = {"broken invariant", "not recovered", "run manage.py recover"}
    counts = {
        "lines",
        "matched",
        "booked",
        "ignored",
        "unusable",
        "fees_booked",
        "fees_differing",
        "conversions_booked",
    }
    kinds |= counts | set(REASONS.values())
    return {*cases, *map(str, FactKind), *transfers, *kinds, *acts, *closed, *Source.values, codes.SYSTEM, "healed"}


def _literals(*functions: str) -> set[str]:
    """Return the texts that the payments' code gives first to functions of these names."""
    found: set[str] = set()
    for path in (CHECKOUT / "payments").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(text)), *_]
                ) if name in functions:
                    found.add(text)
    return found


def _written() -> dict[str, str]:
    """Return the catalog as its text says it: {English: Indonesian}."""
    written: dict[str, str] = {}
    for block in (CATALOG / "django.po").read_text().split("\n\n"):
        joined = re.sub(r'"\n"', "", block)  # a text may go on in the next line
        parts = dict(re.findall(r'^(msgid|msgstr) (".*")$', joined, re.MULTILINE))
        if parts and (text := ast.literal_eval(parts["msgid"])):
            written[text] = ast.literal_eval(parts["msgstr"])
    return written


def test_every_text_is_translated() -> None:
    """None is missing, none is left over, and none is only a copy."""
    said, written = _said(), _written()

    assert {text: where for text, where in said.items() if not written.get(text)} == {}
    assert written.keys() - said.keys() == set()
    assert {text for text, translated in written.items() if text == translated} - SAME == set()


def test_every_kind_of_finding_says_what_it_means() -> None:
    """A code alone tells nobody what to do."""
    contradictions = {"reference_differs", "payee_differs", "wrong_currency"}
    verdicts = set(ReconciliationLine.Verdict.values) - {ReconciliationLine.Verdict.BOOKED}
    opened = {*_literals("Found"), *registrations.KINDS, *contradictions, *verdicts}

    assert opened | {handlers.FAILED, outbox.DEAD, approvals.KIND} == finding_page.MEANINGS.keys()


def test_translations_name_the_same_values() -> None:
    """A placeholder that is missing hides something, one too many is a crash."""
    for text, translated in _written().items():
        assert set(re.findall(r"%\(\w+\)\w", translated)) == set(re.findall(r"%\(\w+\)\w", text)), text


def test_compiled_catalog_is_that_of_the_text() -> None:
    """`msgfmt` was run after the last change."""
    with (CATALOG / "django.mo").open("rb") as compiled:
        catalog = gettext.GNUTranslations(compiled)

    for text, translated in _written().items():
        assert catalog.gettext(text) == translated


@pytest.mark.django_db
def test_pages_are_indonesian_for_who_reads_it(conflict: Event, client: Client) -> None:
    """Models, fields, choices, filters and texts; with what stands in the database as it is."""
    client.force_login(staff.member("pembaca", *staff.ACTS))
    client.cookies["django_language"] = "id"
    Attempt.objects.create(endpoint_id=conflict.endpoint_id, event_id="evt_1", received_at=conflict.received_at)
    StaffAction.objects.create(actor="somebody", action="allocate", subject="x", reason="y")

    event = staff.text(client, staff.page(conflict))
    lists = staff.text(client, "/admin/payments/claim/")
    board = staff.text(client, "/admin/")

    for word in ("Yang terjadi", "Konflik: isi lain", "Diklaim: Diterapkan", "Temuan", "tipe event"):
        assert word.lower() in event.lower(), word
    for word in ("Klaim", "24 jam terakhir", "Unduh sebagai CSV", "Diabaikan", "hasil"):
        assert word.lower() in lists.lower(), word
    assert "Temuan terbuka" in board
    assert "payment.captured" in event
    for path, words_of_codes in (
        ("payment", ["tertagih"]),
        ("transfer", ["Pembayaran tertagih"]),
        ("finding", ["konflik"]),
        ("staffaction", ["alokasikan"]),
    ):
        listed = staff.text(client, f"/admin/payments/{path}/")
        assert not [word for word in words_of_codes if f">{word}</" not in listed], path
    assert "konflik: demo:evt_1" in board
    assert "Temuan konflik: demo:evt_1" in staff.text(client, staff.page(Finding.objects.get()))


@pytest.mark.django_db
def test_language_ends_with_the_page(conflict: Event, client: Client) -> None:
    """The thread's next answer is not in the reader's language."""
    client.force_login(User.objects.create_superuser("root"))
    client.cookies["django_language"] = "id"
    staff.text(client, "/admin/")

    assert translation.gettext("Findings") == "Findings"
