DROP TABLE otp_codes;
