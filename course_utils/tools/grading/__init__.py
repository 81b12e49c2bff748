"""Grade submitted notebooks: find them, take the answers out, run those apart from everything else, judge, report."""
