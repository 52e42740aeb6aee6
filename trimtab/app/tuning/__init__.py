"""The verb ``tune``: what only real runs can tell, found by short real runs.

A study is a folder: what is asked, every trial with its lease and its outcome in ``study.sqlite``, the trials' own runs,
a picture. Any number of processes may work on one study, die, and come back.
"""
