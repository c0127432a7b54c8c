"""`merged`: the drafts of several producers and of the grammar in one tree, under one budget."""
