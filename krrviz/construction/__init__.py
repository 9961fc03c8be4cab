"""The hand-built transformer: parameters -> weights -> a module that runs."""
