"""Golden plans: what each rule of the rewriter makes of its fixtures. No Spark."""
