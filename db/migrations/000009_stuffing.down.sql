DROP TRIGGER attacks_go_on;
DROP TRIGGER attacks_raise;
DROP TABLE attacks;
DROP TABLE sign_in_figures;
