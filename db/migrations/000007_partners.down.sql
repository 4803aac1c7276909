DROP TABLE partner_keys;
