"""Kits, door lists and revocations from a repository of many doors, by The Update Framework (the package `tuf`).

documents.py has the files of the repository, connection.py the HTTP connection, client.py the client of `tuf`. freshness.py
says how old the data are, memory.py what survives a restart. fleet.py pulls, rules.py denies at the door, poller.py is the
thread. status.py describes the door. Only client.py needs the extra `fleet`; it is loaded when a pull begins.
"""
