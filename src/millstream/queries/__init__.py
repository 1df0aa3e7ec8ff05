"""Continuous queries: made, fed, answered, delivered.

front       the engine's door
making      CREATE: windows, sample and plan; what is wrong with them
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
"""
