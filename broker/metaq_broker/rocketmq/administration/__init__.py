"""Administrative requests about topics, groups and the running broker."""
