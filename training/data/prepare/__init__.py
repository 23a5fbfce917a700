"""Makes data sets that training reads: cleaned, split, in files of limited size, with digests."""
