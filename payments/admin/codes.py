"""Codes that are stored, in the reader's language: statuses, kinds of facts, transfers and findings, acts of staff.

An English reader sees them as they are stored, which is how commands, logs and metrics say them. Their translations
are in the catalogs like all others.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from django.db.models import Model
from django.utils.translation import gettext

from payments.models import Finding, ReconciliationLine, StaffAction

SYSTEM: Final = "system"  # who closes what heals


def shown(code: str) -> str:
    """Return a code in the reader's language; what no catalog knows (an application's own) as it is."""
    return gettext(code) if code else code


def listed(text: str) -> str:
    """Return `<code>: <code>, <code>`, as a closed service says why, in the reader's language."""
    first, colon, others = text.partition(": ")
    return f"{shown(first)}{colon}{', '.join(map(shown, others.split(', ')))}"


def counted(codes: Iterable[str]) -> str:
    """Return codes, each once, with how often it is there where that is more."""
    numbers = Counter(codes)
    return ", ".join(shown(code) if number == 1 else f"{shown(code)} ({number})" for code, number in numbers.items())


def name_of(instance: Model) -> str:
    """Return what an object is called: its own name, but for a code in it."""
    match instance:
        case Finding():
            return f"{shown(instance.kind)}: {instance.subject}"
        case StaffAction():
            return f"{instance.actor} {shown(instance.action)} {instance.subject}"
        case ReconciliationLine():
            return f"{instance.get_verdict_display()} {instance.key}"
        case _:
            return str(instance)


def closed_by(finding: Finding) -> str:
    """Return who closed a finding: a person's name, or the system."""
    return shown(finding.closed_by) if finding.closed_by == SYSTEM else finding.closed_by


def close_reason(finding: Finding) -> str:
    """Return why a finding was closed: in a person's words, or in the system's."""
    return shown(finding.close_reason) if finding.closed_by == SYSTEM else finding.close_reason
