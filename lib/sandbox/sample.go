package sandbox

// sample is the database that each statement gets, as SQL. Its figures come from the numbers of the rows, so they are the
// same each time. It describes a shop: no person, name, address or anything else that could be somebody's.
//
// What is temporary is kept in memory and counts as such. The pages are bounded besides, so that a table that grows is told
// apart from a query that sorts too much.
const sample = `
PRAGMA temp_store = MEMORY;
PRAGMA page_size = 4096;
PRAGMA max_page_count = 1024; -- MaxDatabaseBytes
PRAGMA foreign_keys = ON;
BEGIN;

CREATE TABLE products (
  id          INTEGER PRIMARY KEY,
  name        TEXT NOT NULL UNIQUE,
  category    TEXT NOT NULL,
  price_cents INTEGER NOT NULL CHECK (price_cents > 0),
  weight_kg   REAL NOT NULL,
  stock       INTEGER NOT NULL CHECK (stock >= 0)
) STRICT;

CREATE TABLE customers (
  id        INTEGER PRIMARY KEY,
  segment   TEXT NOT NULL CHECK (segment IN ('home', 'office', 'school')),
  region    TEXT NOT NULL,
  joined_on TEXT NOT NULL
) STRICT;

CREATE TABLE orders (
  id          INTEGER PRIMARY KEY,
  customer_id INTEGER NOT NULL REFERENCES customers (id),
  ordered_on  TEXT NOT NULL,
  status      TEXT NOT NULL CHECK (status IN ('open', 'paid', 'shipped', 'returned')),
  note        TEXT
) STRICT;

CREATE TABLE order_lines (
  id          INTEGER PRIMARY KEY,
  order_id    INTEGER NOT NULL REFERENCES orders (id) ON DELETE CASCADE,
  product_id  INTEGER NOT NULL REFERENCES products (id),
  quantity    INTEGER NOT NULL CHECK (quantity > 0),
  price_cents INTEGER NOT NULL
) STRICT;

WITH materials AS (
  SELECT key AS i, value AS material FROM json_each('["Oak","Steel","Linen","Glass","Copper","Paper"]')
),
kinds AS (
  SELECT key AS j, json_extract(value, '$[0]') AS kind, json_extract(value, '$[1]') AS category
  FROM json_each('[["shelf","furniture"],["lamp","lighting"],["box","storage"],["clock","decoration"],
                   ["tray","kitchen"],["frame","decoration"],["stool","furniture"],["jar","kitchen"]]')
)
INSERT INTO products (id, name, category, price_cents, weight_kg, stock)
SELECT
  1 + i * 8 + j,
  material || ' ' || kind,
  category,
  490 + (i * 8 + j) * 7919 % 18000 / 10 * 10,
  0.25 + (i * 8 + j) * 37 % 60 / 4.0,
  (i * 8 + j) * 53 % 140
FROM materials CROSS JOIN kinds;

WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 120)
INSERT INTO customers (id, segment, region, joined_on)
SELECT
  i,
  json_extract('["home","home","office","home","school"]', '$[' || (i % 5) || ']'),
  json_extract('["north","east","south","west"]', '$[' || (i * 7 % 13 % 4) || ']'),
  date('2024-01-01', '+' || (i * 5) || ' days')
FROM n;

WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 600)
INSERT INTO orders (id, customer_id, ordered_on, status, note)
SELECT
  i,
  1 + i * i * 31 % 120,
  date('2025-01-01', '+' || (i * 3 / 5) || ' days'),
  CASE WHEN i % 29 = 0 THEN 'returned' WHEN i <= 540 THEN 'shipped' WHEN i <= 580 THEN 'paid' ELSE 'open' END,
  CASE i % 40 WHEN 7 THEN 'gift' WHEN 21 THEN 'leave at the door' END
FROM n;

INSERT INTO order_lines (order_id, product_id, quantity, price_cents)
SELECT orders.id, products.id, 1 + (orders.id + line.value) % 4, products.price_cents
FROM orders
CROSS JOIN json_each('[0,1,2,3]') AS line
JOIN products ON products.id = 1 + (orders.id * 17 + line.value * 11) % 48
WHERE line.value <= orders.id % 4;

CREATE INDEX orders_by_customer ON orders (customer_id);
CREATE INDEX order_lines_by_order ON order_lines (order_id);

COMMIT;
`
