"""Continuous queries: made, fed, answered, delivered.

front       the engine's door
known       all queries of a database, by id, name and stream
listing     queries for people: SHOW QUERIES, DESCRIBE, EXPLAIN
company     who shares what with whom, for people: EXPLAIN SHARED, SHOW EDDY
handing     deliveries for those who read and subscribe
defining    CREATE: a query, a streaming view, an insert that stands, entered behind the rows that there are
making      its plan: windows, sample, texts; what is wrong with them
place       how far a query is: positions, instants, counters; goes into the catalogue
run         a query in force, and what one step of it makes
running     one step of one query: rows in, answers out, one commit
arrivals    the rows of a stream that are new, and the watermark that each of them met
instants    which instants are due
windows     when a row enters a window and when it leaves it, as arrays and as SQL
feeding     the rows of a query's windows, for the texts of its plan
held        the rows of windows that move row by row
panes       partial results of open panes, merged in the driver so that answers stay cheap
dense       the groups of many instants at once, as arrays
piles       partial results that Spark merges, few at a time
answering   the texts of a plan run for the instants that are due
here        the kernel in the driver, for small baskets and answers
tasks       the kernel in Spark's tasks, for large baskets
tuning      how many chunks, and which plan: from measured costs
emitting    what is delivered of an answer
assigning   the rows of a standing insert as its table has them
storing     what a step leaves behind, in one commit

What queries share:

together    the groups of a database: stepped, joined, left
groups      selections on one stream that are answered together
sharing     one step of a group: filters, tests, expressions, one block, one commit
matching    a basket through grouped filters, here or in Spark's tasks
evaluating  tests and expressions of many queries in one job
blocks      deliveries to many queries, with each row once
chorus      aggregates over windows of one stream, stepped together
joining     joins of windows of the same streams, stepped together
combining   what one query makes of combinations of rows that others have found
scheduled   joins of two streams with large windows: turns begun, slices joined, results released
scheduled_join  one of them: who is in it, what it has begun
turns       where a scheduled join is in its streams, and the turns that it has begun
slices      a batch of new rows joined with a slice of the other stream
slicing     slices in the driver or in Spark's tasks, and the files that they need
response    how long results take, in a few numbers a query
wording     a query's own words as Spark understands them, and the way back
"""
