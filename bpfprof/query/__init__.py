"""Profile to answers: groups, chains, filters and comparisons; nothing is counted twice and nothing is rendered."""
