"""What any program could use: words for people, processes as Linux shows them, and forks."""
