DROP TRIGGER alerts_raise;
DROP INDEX rate_limit_audit_alerting;
DROP TABLE alerts;
