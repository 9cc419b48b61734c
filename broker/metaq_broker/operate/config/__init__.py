"""The broker's configuration: server.ini read, checked and turned into frozen objects."""
