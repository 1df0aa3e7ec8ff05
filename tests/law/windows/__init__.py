"""The law of continuous queries: every answer equals the plain query over the rows in its windows."""
