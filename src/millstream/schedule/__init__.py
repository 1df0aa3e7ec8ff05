"""What fires when: a Petri net of places and transitions, and who steps it.

    net        places hold tokens, transitions fire when their condition holds; no threads, no clock of its own
    runner     a thread that sleeps until something is put or due, and steps the net
    upkeep     the net that keeps a database in shape

Touches neither Spark nor SQL text.
"""
