"""What must never be, refused by the database itself: the second wall behind the modules that write.

Every guard has a name, and a test that goes around Python to meet it.
"""

from django.db import migrations

# An entry's currency is its account's. Beside it, no foreign key to the account alone is needed.
COMPOSITE_CURRENCY_KEY = """
ALTER TABLE payments_entry ADD CONSTRAINT payments_entry_account_currency
    FOREIGN KEY (account_id, currency) REFERENCES payments_account (id, currency);
"""

# History is never changed. A statement-level trigger also refuses what would touch no row, and TRUNCATE.
APPEND_ONLY = """
CREATE FUNCTION payments_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% on % is refused: rows are never changed or removed', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation', CONSTRAINT = TG_NAME;
END $$;
"""
APPEND_ONLY_TABLES = (
    "payments_transfer",
    "payments_entry",
    "payments_sighting",
    "payments_correction",
    "payments_staffaction",
)

# A claim may be amended only by the transaction that made it. (xmin would not do: it differs inside a savepoint.)
SETTLED_CLAIMS = """
ALTER TABLE payments_claim ADD COLUMN claimed_xid xid8 NOT NULL DEFAULT pg_current_xact_id();
CREATE FUNCTION payments_refuse_settled_claim() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.claimed_xid = pg_current_xact_id() AND NEW.claimed_xid = OLD.claimed_xid
        AND (NEW.id, NEW.endpoint_id, NEW.event_id) = (OLD.id, OLD.endpoint_id, OLD.event_id)
    THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION '% on a settled claim is refused', TG_OP
        USING ERRCODE = 'restrict_violation', CONSTRAINT = TG_NAME;
END $$;
CREATE TRIGGER payments_claim_settled BEFORE UPDATE OR DELETE ON payments_claim
    FOR EACH ROW EXECUTE FUNCTION payments_refuse_settled_claim();
CREATE TRIGGER payments_claim_kept BEFORE TRUNCATE ON payments_claim
    FOR EACH STATEMENT EXECUTE FUNCTION payments_refuse_change();
"""

# All entries of a transfer come in one statement, from line 1 without a gap, and sum to zero per currency. With
# unique (transfer, line) nothing can be added later, and no old entry has to be looked up to know it.
BALANCED_TRANSFERS = """
CREATE FUNCTION payments_check_balanced() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    broken bigint;
BEGIN
    SELECT transfer_id INTO broken FROM inserted
        GROUP BY transfer_id, currency
        HAVING sum(CASE direction WHEN 'debit' THEN amount ELSE -amount END) <> 0
        LIMIT 1;
    IF broken IS NOT NULL THEN
        RAISE EXCEPTION 'entries of transfer % do not sum to zero', broken
            USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME;
    END IF;
    SELECT transfer_id INTO broken FROM inserted
        GROUP BY transfer_id
        HAVING min(line) <> 1 OR max(line) <> count(*)
        LIMIT 1;
    IF broken IS NOT NULL THEN
        RAISE EXCEPTION 'entries of transfer % are not numbered from 1', broken
            USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER payments_entry_balanced AFTER INSERT ON payments_entry
    REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT EXECUTE FUNCTION payments_check_balanced();
"""

# A balance begins at zero and is the difference of two sums that only grow.
GROWING_ACCOUNTS = """
CREATE FUNCTION payments_check_account() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' AND NEW.debits = 0 AND NEW.credits = 0 THEN
        RETURN NEW;
    END IF;
    IF TG_OP = 'UPDATE' AND NEW.debits >= OLD.debits AND NEW.credits >= OLD.credits
        AND (NEW.id, NEW.code, NEW.currency, NEW.kind) = (OLD.id, OLD.code, OLD.currency, OLD.kind)
        AND NEW.endpoint_id IS NOT DISTINCT FROM OLD.endpoint_id
    THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION '% of account % is refused: sums begin at zero and only grow', TG_OP, COALESCE(NEW.id, OLD.id)
        USING ERRCODE = 'restrict_violation', CONSTRAINT = TG_NAME;
END $$;
CREATE TRIGGER payments_account_grows BEFORE INSERT OR UPDATE OR DELETE ON payments_account
    FOR EACH ROW EXECUTE FUNCTION payments_check_account();
CREATE TRIGGER payments_account_kept BEFORE TRUNCATE ON payments_account
    FOR EACH STATEMENT EXECUTE FUNCTION payments_refuse_change();
"""

# Other tables point to endpoints without a foreign key constraint (see models/endpoints.py).
KEPT_ENDPOINTS = """
CREATE TRIGGER payments_endpoint_kept BEFORE DELETE OR TRUNCATE ON payments_endpoint
    FOR EACH STATEMENT EXECUTE FUNCTION payments_refuse_change();
"""

# The writing transaction, so that verification can go on from where it was without missing a late commit.
RECORDED_XID = """
ALTER TABLE payments_transfer ADD COLUMN recorded_xid xid8 NOT NULL DEFAULT pg_current_xact_id();
CREATE INDEX payments_transfer_by_xid ON payments_transfer (recorded_xid);
"""

# Rows that are updated after their insert leave room on their page for it, so that no index has to be written again.
ROOM_FOR_UPDATES = """
ALTER TABLE payments_account SET (fillfactor = 20);
ALTER TABLE payments_payment SET (fillfactor = 60);
"""


def _triggers(tables: tuple[str, ...]) -> str:
    return "".join(
        f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}\n"
        "    FOR EACH STATEMENT EXECUTE FUNCTION payments_refuse_change();\n"
        for table in tables
    )


def _drop_triggers(tables: tuple[str, ...]) -> str:
    return "".join(f"DROP TRIGGER {table}_append_only ON {table};\n" for table in tables)


class Migration(migrations.Migration):
    dependencies = [("payments", "0001_tables")]

    operations = [
        migrations.RunSQL(
            COMPOSITE_CURRENCY_KEY,
            "ALTER TABLE payments_entry DROP CONSTRAINT payments_entry_account_currency;",
        ),
        migrations.RunSQL(
            APPEND_ONLY + _triggers(APPEND_ONLY_TABLES),
            _drop_triggers(APPEND_ONLY_TABLES) + "DROP FUNCTION payments_refuse_change();",
        ),
        migrations.RunSQL(
            SETTLED_CLAIMS,
            "DROP TRIGGER payments_claim_kept ON payments_claim; DROP TRIGGER payments_claim_settled ON payments_claim;"
            "DROP FUNCTION payments_refuse_settled_claim(); ALTER TABLE payments_claim DROP COLUMN claimed_xid;",
        ),
        migrations.RunSQL(
            BALANCED_TRANSFERS,
            "DROP TRIGGER payments_entry_balanced ON payments_entry; DROP FUNCTION payments_check_balanced();",
        ),
        migrations.RunSQL(
            GROWING_ACCOUNTS,
            "DROP TRIGGER payments_account_kept ON payments_account;"
            "DROP TRIGGER payments_account_grows ON payments_account; DROP FUNCTION payments_check_account();",
        ),
        migrations.RunSQL(KEPT_ENDPOINTS, "DROP TRIGGER payments_endpoint_kept ON payments_endpoint;"),
        migrations.RunSQL(
            RECORDED_XID,
            "DROP INDEX payments_transfer_by_xid; ALTER TABLE payments_transfer DROP COLUMN recorded_xid;",
        ),
        migrations.RunSQL(
            ROOM_FOR_UPDATES,
            "ALTER TABLE payments_account RESET (fillfactor); ALTER TABLE payments_payment RESET (fillfactor);",
        ),
    ]
