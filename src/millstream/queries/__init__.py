"""Continuous queries: made, fed, answered, delivered.

front       the engine's door
making      CREATE: windows, sample and plan; what is wrong with them
place       how far a query is: positions, instants, counters; goes into the catalogue
arrivals    the rows of a stream that are new, and the watermark that each of them met
instants    which instants are due
windows     when a row enters a window and when it leaves it, as arrays and as SQL
held        the rows of windows that move row by row
running     one step of one query: rows in, answers out, one commit
answering   the texts of a plan run on Spark for the instants that are due
emitting    what is delivered of an answer
"""
