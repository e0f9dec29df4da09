"""Publish kits, door lists and revocations for many doors: a repository of static files by The Update Framework (`tuf`).

documents.py has the files that terminals read, contents.py changes those of a group. repository.py signs metadata and
publishes it in an order that is valid for readers at every moment, roles.py makes and rotates keys. broker.py reads what doors
report, status.py shows it, health.py decides about a rollout, advance.py publishes that. commands.py and watch_commands.py
have the commands. Only repository.py, roles.py, keys.py, contents.py, overview.py, pruning.py and advance.py need the extra
`fleet`.
"""
