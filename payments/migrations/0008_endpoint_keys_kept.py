"""An endpoint's id, slug and books never change: they are part of every business key and of every claim's.

Under other keys, all that was booked would look new, and be booked again when it is delivered again.
"""

from django.db import migrations

KEEP = """
CREATE FUNCTION payments_refuse_other_keys() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'endpoint % keeps id, slug and books: under other keys its facts would be booked again', OLD.slug
        USING ERRCODE = 'restrict_violation', CONSTRAINT = TG_NAME, HINT = 'Make another endpoint.';
END $$;
CREATE TRIGGER payments_endpoint_keys_kept BEFORE UPDATE ON payments_endpoint
    FOR EACH ROW WHEN ((NEW.id, NEW.slug, NEW.books_id) IS DISTINCT FROM (OLD.id, OLD.slug, OLD.books_id))
    EXECUTE FUNCTION payments_refuse_other_keys();
"""
DROP = """
DROP TRIGGER payments_endpoint_keys_kept ON payments_endpoint;
DROP FUNCTION payments_refuse_other_keys();
"""


class Migration(migrations.Migration):
    dependencies = [("payments", "0007_transfers_by_day")]

    operations = [migrations.RunSQL(KEEP, DROP)]
