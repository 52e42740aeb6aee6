"""Settings of the ledger's tests."""

from hypothesis import settings

# A busy machine is no reason for a property to fail.
settings.register_profile("ledger", deadline=None)
settings.load_profile("ledger")
