DROP TABLE rate_limit_refunds;
DROP TABLE rate_limit_audit;
DROP TABLE rate_limits;
