"""Reading the ledger, a file for each kind of thing that is on record. Nothing here changes anything."""
