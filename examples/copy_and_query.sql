-- Files in, a question, files out. Run it with:
--
--     millstream sql :memory: -f examples/copy_and_query.sql
--
-- Files are named from the directory you are in; these go to /tmp.

CREATE TABLE orders (id BIGINT, customer STRING, amount DECIMAL(10, 2), placed TIMESTAMP);

INSERT INTO orders VALUES
  (1, 'ada', 19.90, '2024-05-01 09:00:00'),
  (2, 'grace', 5.00, '2024-05-01 09:30:00'),
  (3, 'ada', 42.50, '2024-05-02 10:00:00'),
  (4, 'edsger', NULL, '2024-05-03 11:00:00');

-- A query's rows as CSV, and the file back into another table.
COPY (SELECT * FROM orders WHERE amount IS NOT NULL) TO '/tmp/millstream-orders.csv' CSV HEADER;

CREATE TABLE paid (id BIGINT, customer STRING, amount DECIMAL(10, 2), placed TIMESTAMP);
COPY paid FROM '/tmp/millstream-orders.csv' CSV HEADER;

SELECT customer, count(*) AS orders, sum(amount) AS spent
FROM paid GROUP BY customer ORDER BY spent DESC;

-- What the query below reads, before Spark sees it.
EXPLAIN SELECT * FROM paid WHERE placed >= '2024-05-02';

-- A correction is a new version; the old one can still be read.
UPDATE paid SET amount = amount * 0.9 WHERE customer = 'ada';
SELECT customer, sum(amount) AS spent FROM paid GROUP BY customer ORDER BY customer;

SHOW TABLES;
